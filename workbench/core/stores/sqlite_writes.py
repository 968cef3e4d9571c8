"""Records of ``base`` written as rows of a SQLite library; every function runs inside the caller's transaction."""

import json
import re
import sqlite3
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from workbench.core.errors import Conflict, InvalidRequest, NotFound
from workbench.core.event import Event, to_micros
from workbench.core.stores.base import (
    Embedded,
    EmbeddedName,
    EntityKey,
    Prepared,
    Recipe,
    entity_keys,
    text_hash,
)
from workbench.core.stores.sqlite_rows import known_entities, marks
from workbench.core.stores.term_blobs import pack


def record(connection: sqlite3.Connection, library: int, revision: int, recipe: Recipe) -> None:
    """Record a library's revision and recipe; a recipe without a chunker keeps the known one."""
    connection.execute(
        "UPDATE library SET revision = ?, model = ?, dimension = ?, chunker = coalesce(?, chunker) WHERE key = ?",
        (revision, recipe.model, recipe.dimension, recipe.chunker, library),
    )


def blob(values: NDArray[Any]) -> bytes:
    """Return an array as little-endian bytes."""
    return np.ascontiguousarray(values).astype(values.dtype.newbyteorder("<"), copy=False).tobytes()


def write_names(
    connection: sqlite3.Connection, library: int, revision: int, names: Sequence[EmbeddedName], events: Sequence[Prepared]
) -> dict[EntityKey, int]:
    """Insert the entities that the events mention and the library lacks; return the keys of all that they mention."""
    wanted = list(dict.fromkeys(key for prepared in events for key in entity_keys(prepared.event.concepts, prepared.event.persons)))
    entities, given = known_entities(connection, library, wanted), {(name.label, name.key): name for name in names}
    for entity in wanted:
        if entity in entities:
            continue
        name = given.get(entity)
        if name is None:
            raise Conflict("a name was removed while the event was being prepared; nothing was saved. Retry.")
        entity_id = (
            name.id if name.id and _free(connection, "entity", library, name.id) else _next_id(connection, library, name.label)
        )
        entities[entity] = _inserted(
            connection,
            "INSERT INTO entity (library, label, id, name_key, name, vector, changed) VALUES (?, ?, ?, ?, ?, ?, ?)",
            (library, name.label, entity_id, name.key, name.name, blob(name.vector), revision),
        )
    return entities


def _inserted(connection: sqlite3.Connection, sql: str, values: tuple[object, ...]) -> int:
    key = connection.execute(sql, values).lastrowid
    assert key is not None
    return key


def _free(connection: sqlite3.Connection, table: str, library: int, row_id: str) -> bool:
    return connection.execute(f"SELECT 1 FROM {table} WHERE library = ? AND id = ?", (library, row_id)).fetchone() is None


def _next_id(connection: sqlite3.Connection, library: int, label: str) -> str:
    """Return the next free ``<label>_<n>``; a number is never given twice, and one that a host used is skipped."""
    table, prefix = ("event" if label == "Event" else "entity"), label.lower()
    while True:
        (number,) = connection.execute(f"SELECT next_{prefix} FROM library WHERE key = ?", (library,)).fetchone()
        connection.execute(f"UPDATE library SET next_{prefix} = next_{prefix} + 1 WHERE key = ?", (library,))
        if _free(connection, table, library, f"{prefix}_{number}"):
            return f"{prefix}_{number}"


def reserve_ids(connection: sqlite3.Connection, library: int, label: str, ids: Iterable[str | None]) -> None:
    """Let the numbering go on after the ids that a host or a copy brings along."""
    numbers = [int(match[1]) for each in ids if each and (match := re.fullmatch(rf"{label.lower()}_([1-9][0-9]{{0,14}})", each))]
    column = f"next_{label.lower()}"
    if numbers:
        connection.execute(f"UPDATE library SET {column} = max({column}, ?) WHERE key = ?", (max(numbers) + 1, library))


def write_event(
    connection: sqlite3.Connection, library: int, revision: int, prepared: Prepared, entities: Mapping[EntityKey, int]
) -> Event:
    """Insert or replace one event with chunks, terms and links; return it with its id."""
    event = prepared.event
    if event.id is None:
        event = event.replace(id=_next_id(connection, library, "Event"))
    columns = _columns(event, prepared.embedded) | {"library": library, "changed": revision}
    for name in ("visibility", "superseded_by", "adoptions"):
        if (value := getattr(prepared, name)) is not None:
            columns[name] = value
    found = connection.execute("SELECT key FROM event WHERE library = ? AND id = ?", (library, event.id)).fetchone()
    if found is None:
        columns = {"visibility": "visible"} | columns
        sql = f"INSERT INTO event ({', '.join(columns)}) VALUES ({marks(list(columns))})"
        key = _inserted(connection, sql, tuple(columns.values()))
    else:
        (key,) = found
        sql = f"UPDATE event SET {', '.join(f'{name} = ?' for name in columns)} WHERE key = ?"
        connection.execute(sql, (*columns.values(), key))
    write_embedded(connection, key, prepared.embedded)
    connection.execute("DELETE FROM mention WHERE event = ?", (key,))
    connection.executemany(
        "INSERT INTO mention (event, position, entity, name) VALUES (?, ?, ?, ?)",
        [
            (key, position, entities[entity], name)
            for position, (entity, name) in enumerate(
                zip(entity_keys(event.concepts, event.persons), (*event.concepts, *event.persons), strict=True)
            )
        ],
    )
    return event


def _columns(event: Event, embedded: Embedded) -> dict[str, object]:
    assert event.written_at is not None
    columns: dict[str, object] = {
        name: json.dumps(getattr(event, name), ensure_ascii=False) for name in ("concepts", "persons", "tags")
    }
    for name in ("id", "title", "summary", "content", "kind", "event_type", "temporal_status", "critical"):
        columns[name] = getattr(event, name)
    for name in ("occurred_from", "occurred_to"):
        moment = getattr(event, name)
        columns[name] = None if moment is None else to_micros(moment)
    return columns | {
        "written": to_micros(event.written_at),
        "chunked": embedded.spans is not None,
        "length": len(event.content),
        "text_hash": text_hash(event.content),
        "summary_vector": blob(embedded.summary),
    }


def write_embedded(connection: sqlite3.Connection, event: int, embedded: Embedded) -> None:
    """Replace an event's chunks and terms."""
    connection.execute("DELETE FROM chunk WHERE event = ?", (event,))
    connection.executemany(
        'INSERT INTO chunk (event, ordinal, start, "end", vector) VALUES (?, ?, ?, ?, ?)',
        [
            (event, ordinal, start, end, blob(vector) if vector.any() else None)
            for ordinal, ((start, end), vector) in enumerate(zip(embedded.spans or (), embedded.vectors, strict=True))
        ],
    )
    connection.execute(
        "INSERT OR REPLACE INTO event_terms (event, total, keys, counts) VALUES (?, ?, ?, ?)",
        (event, embedded.terms.length, *pack(embedded.terms)),
    )


def check_successor(connection: sqlite3.Connection, library: int, event_id: str, successor: str) -> None:
    """Refuse a successor that does not exist or that would close a circle."""
    seen = {event_id}
    current: str | None = successor
    while current is not None:
        if current in seen:
            raise InvalidRequest("an event can not, directly or in a circle, supersede itself; choose another successor.")
        seen.add(current)
        row = connection.execute("SELECT superseded_by FROM event WHERE library = ? AND id = ?", (library, current)).fetchone()
        if row is None and current == successor:
            raise NotFound(f"there is no event {successor!r} to supersede by; check the id.")
        current = row[0] if row else None
