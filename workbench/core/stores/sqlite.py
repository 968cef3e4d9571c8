"""The embedded store: one SQLite file holds any number of namespaces."""

import itertools
import json
import re
import sqlite3
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from workbench.core.errors import Conflict, InvalidRequest, NotFound, StoreUnavailable
from workbench.core.event import Event, StoredEvent, from_micros, to_micros
from workbench.core.retrieval.coverage import Frequencies
from workbench.core.stores import sqlite_checks
from workbench.core.stores.base import (
    ENTITY_LABELS,
    Changes,
    Embedded,
    EmbeddedName,
    EntityKey,
    EntityRows,
    EventRows,
    Floats,
    Library,
    LibraryStats,
    Page,
    Passage,
    Prepared,
    Problem,
    Recipe,
    Texts,
    entity_keys,
    mismatch,
    text_hash,
)
from workbench.core.stores.sqlite_file import SQLiteFile
from workbench.core.text import Keys, TermCounts

_BATCH = 500
_COUNT_LIMIT = 65_535
_EVENT_COLUMNS = (
    "id, title, summary, content, concepts, persons, tags, kind, event_type, temporal_status, occurred_from, occurred_to, "
    "critical, written, visibility, superseded_by, adoptions"
)
_SHOWN = "visibility IN ('visible', 'superseded')"


class SQLiteStore:
    """A :class:`~workbench.core.stores.base.Store` in a SQLite file.

    :param path: the file, or None for a private library in memory.
    :param namespace: the library in it.
    :param read_only: open without ever writing.
    :raises StoreUnavailable: if the file can not be used.
    """

    def __init__(self, path: Path | None, *, namespace: str, read_only: bool = False) -> None:
        self.read_only = read_only
        self._namespace = namespace
        self._file = SQLiteFile(path, read_only=read_only)
        if not read_only:
            with self._file.writing() as connection:
                connection.execute("INSERT OR IGNORE INTO library (namespace) VALUES (?)", (namespace,))

    def _library(self, connection: sqlite3.Connection) -> tuple[int, Library]:
        row = connection.execute(
            "SELECT key, revision, model, dimension, chunker FROM library WHERE namespace = ?", (self._namespace,)
        ).fetchone()
        key, revision, *recipe = row or (-1, 0, None, None, None)
        return key, Library(self._namespace, revision, Recipe(*recipe))

    def library(self) -> Library:
        """See :meth:`Store.library`."""
        with self._file.reading() as connection:
            return self._library(connection)[1]

    # -- reading the index's changes ---------------------------------------------------------------------------------

    def changes(self, since: int) -> Changes | None:
        """See :meth:`Store.changes`."""
        with self._file.reading() as connection:
            key, library = self._library(connection)
            if library.revision == since:
                return None
            whole = since <= 0 or since > library.revision
            since = 0 if whole else since
            dimension = library.recipe.dimension or 0
            removed = connection.execute("SELECT id FROM removal WHERE library = ? AND changed > ?", (key, since)).fetchall()
            entities = _entity_rows(connection, key, since, dimension)
            events = _event_rows(connection, key, since, dimension)
            return Changes(library, whole, events, entities, [] if whole else [event_id for (event_id,) in removed])

    def known_names(self, keys: Sequence[EntityKey]) -> set[EntityKey]:
        """See :meth:`Store.known_names`."""
        with self._file.reading() as connection:
            library, _ = self._library(connection)
            return set(_entity_keys(connection, library, keys))

    def passages(self, event_ids: Sequence[str], head: int) -> Mapping[str, Passage]:
        """See :meth:`Store.passages`."""
        sql = (
            "SELECT key, id, title, summary, written, visibility, chunked, length, substr(content, 1, ?) FROM event "
            f"WHERE library = ? AND id IN ({_marks(event_ids)}) AND {_SHOWN}"
        )
        concepts = (
            "SELECT entity.id, entity.name FROM mention JOIN entity ON entity.key = mention.entity "
            "WHERE mention.event = ? AND entity.label = 'Concept' ORDER BY mention.position"
        )
        with self._file.reading() as connection:
            library, _ = self._library(connection)
            rows = connection.execute(sql, (head, library, *event_ids)).fetchall()
            mentioned = [connection.execute(concepts, row[:1]).fetchall() for row in rows]
            return {row[1]: _passage(row, own) for row, own in zip(rows, mentioned, strict=True)}

    def page(self, event_id: str, start: int, limit: int) -> Page | None:
        """See :meth:`Store.page`."""
        sql = "SELECT substr(content, ?, ?), length, visibility FROM event WHERE library = ? AND id = ?"
        with self._file.reading() as connection:
            library, _ = self._library(connection)
            row = connection.execute(sql, (start + 1, limit, library, event_id)).fetchone()
            return Page(*row) if row else None

    def frequencies(self, event_ids: Sequence[str], keys: Keys) -> tuple[Frequencies, NDArray[np.int64]]:
        """See :meth:`Store.frequencies`."""
        sql = (
            "SELECT event.id, total, keys, counts FROM event JOIN event_terms ON event_terms.event = event.key "
            f"WHERE library = ? AND id IN ({_marks(event_ids)})"
        )
        place = {event_id: number for number, event_id in enumerate(event_ids)}
        found, lengths = np.zeros((len(event_ids), len(keys)), np.int64), np.zeros(len(event_ids), np.int64)
        with self._file.reading() as connection:
            library, _ = self._library(connection)
            for event_id, total, own_keys, counts in connection.execute(sql, (library, *event_ids)):
                lengths[place[event_id]] = total
                found[place[event_id]] = _frequencies(np.frombuffer(own_keys, "<u8"), np.frombuffer(counts, "<u2"), keys)
        return found, lengths

    # -- events ------------------------------------------------------------------------------------------------------

    def get(self, event_id: str) -> StoredEvent | None:
        """See :meth:`Store.get`."""
        with self._file.reading() as connection:
            library, _ = self._library(connection)
            rows = _stored(connection, "library = ? AND id = ?", (library, event_id))
            return rows[0] if rows else None

    def events(self, offset: int, limit: int) -> list[StoredEvent]:
        """See :meth:`Store.events`."""
        with self._file.reading() as connection:
            library, _ = self._library(connection)
            return _stored(connection, "library = ? ORDER BY written, id LIMIT ? OFFSET ?", (library, limit, offset))

    def write(self, events: Sequence[Prepared], names: Sequence[EmbeddedName], recipe: Recipe) -> list[Event]:
        """See :meth:`Store.write`."""
        with self._file.writing() as connection:
            key, library = self._library(connection)
            mismatch(library.recipe, recipe)
            revision = library.revision + 1
            _record(connection, key, revision, recipe)
            _reserve_ids(connection, key, "Event", (prepared.event.id for prepared in events))
            for label in ENTITY_LABELS:
                _reserve_ids(connection, key, label, (name.id for name in names if name.label == label))
            entities = _write_names(connection, key, revision, names, events)
            return [_write_event(connection, key, revision, prepared, entities) for prepared in events]

    def set_visibility(self, event_id: str, visibility: str, superseded_by: str | None = None) -> None:
        """See :meth:`Store.set_visibility`."""
        with self._file.writing() as connection:
            library, _ = self._library(connection)
            if superseded_by is not None:
                _check_successor(connection, library, event_id, superseded_by)
            connection.execute("UPDATE library SET revision = revision + 1 WHERE key = ?", (library,))
            changed = connection.execute(
                "UPDATE event SET visibility = ?, superseded_by = ?, changed = (SELECT revision FROM library WHERE key = ?) "
                "WHERE library = ? AND id = ?",
                (visibility, superseded_by, library, library, event_id),
            )
            if changed.rowcount != 1:
                raise NotFound(f"there is no event {event_id!r}; check the id.")

    # -- re-embedding ------------------------------------------------------------------------------------------------

    def texts(self, since: int) -> tuple[Library, Iterator[Texts]]:
        """See :meth:`Store.texts`."""
        with self._file.reading() as connection:
            key, library = self._library(connection)
        return library, self._texts(key, since)

    def _texts(self, library: int, since: int) -> Iterator[Texts]:
        last = 0
        sql = (
            f"SELECT key, chunked, {_EVENT_COLUMNS} FROM event WHERE library = ? AND changed > ? AND key > ? ORDER BY key LIMIT 64"
        )
        while True:
            with self._file.reading() as connection:
                rows = connection.execute(sql, (library, since, last)).fetchall()
            if not rows:
                return
            yield from (Texts(_event(row[2:]), bool(row[1])) for row in rows)
            last = rows[-1][0]

    def names(self) -> list[tuple[str, str, str]]:
        """See :meth:`Store.names`."""
        with self._file.reading() as connection:
            library, _ = self._library(connection)
            return connection.execute(
                "SELECT label, name_key, name FROM entity WHERE library = ? ORDER BY key", (library,)
            ).fetchall()

    def replace_vectors(
        self, embedded: Mapping[str, Embedded], names: Sequence[EmbeddedName], recipe: Recipe, *, expected_revision: int
    ) -> bool:
        """See :meth:`Store.replace_vectors`."""
        with self._file.writing() as connection:
            key, library = self._library(connection)
            if library.revision != expected_revision:
                return False
            revision = library.revision + 1
            _record(connection, key, revision, recipe)
            connection.executemany(
                "UPDATE entity SET vector = ?, changed = ? WHERE library = ? AND label = ? AND name_key = ?",
                [(_blob(name.vector), revision, key, name.label, name.key) for name in names],
            )
            for event, event_id in connection.execute("SELECT key, id FROM event WHERE library = ?", (key,)).fetchall():
                own = embedded[event_id]
                connection.execute(
                    "UPDATE event SET summary_vector = ?, chunked = ?, changed = ? WHERE key = ?",
                    (_blob(own.summary), own.spans is not None, revision, event),
                )
                _write_embedded(connection, event, own)
            return True

    def dump(self) -> tuple[Library, list[EmbeddedName], Iterator[Prepared]]:
        """See :meth:`Store.dump`."""
        rows = self._dump()
        if self._file.private:  # its one connection can not be held while the caller goes on
            rows = (row for row in list(rows))
        library, names = next(rows)
        return library, names, rows

    def _dump(self) -> Iterator[Any]:
        """Yield the record with the names, then each event, all inside one read transaction."""
        with self._file.reading() as connection:
            key, library = self._library(connection)
            names = "SELECT label, name_key, name, vector, id FROM entity WHERE library = ? ORDER BY key"
            rows = connection.execute(names, (key,)).fetchall()
            yield (
                library,
                [EmbeddedName(label, own, name, np.frombuffer(blob, "<f4"), each) for label, own, name, blob, each in rows],
            )
            events = f"SELECT key, chunked, summary_vector, {_EVENT_COLUMNS} FROM event WHERE library = ? ORDER BY written, id"
            for event, chunked, summary, *row in connection.execute(events, (key,)):
                embedded = _embedded(connection, event, bool(chunked), np.frombuffer(summary, "<f4"))
                yield Prepared(_event(row), embedded, *row[-3:])

    # -- the whole ---------------------------------------------------------------------------------------------------

    def stats(self) -> LibraryStats:
        """See :meth:`Store.stats`."""
        with self._file.reading() as connection:
            key, library = self._library(connection)

            def count(sql: str) -> int:
                return int(connection.execute(sql, (key,)).fetchone()[0])

            recipe = library.recipe
            return LibraryStats(
                namespace=library.namespace,
                revision=library.revision,
                model=recipe.model,
                dimension=recipe.dimension,
                chunker=recipe.chunker,
                events=count("SELECT count(*) FROM event WHERE library = ?"),
                visible=count(f"SELECT count(*) FROM event WHERE library = ? AND {_SHOWN}"),
                chunks=count("SELECT count(*) FROM chunk JOIN event ON event.key = chunk.event WHERE library = ?"),
                concepts=count("SELECT count(*) FROM entity WHERE library = ? AND label = 'Concept'"),
                persons=count("SELECT count(*) FROM entity WHERE library = ? AND label = 'Person'"),
                unchunked=count("SELECT count(*) FROM event WHERE library = ? AND NOT chunked"),
            )

    def verify(self) -> list[Problem]:
        """See :meth:`Store.verify`."""
        with self._file.reading() as connection:
            key, library = self._library(connection)
            return sqlite_checks.problems(connection, key, library.recipe)

    def close(self) -> None:
        """See :meth:`Store.close`."""
        self._file.close()


def _record(connection: sqlite3.Connection, library: int, revision: int, recipe: Recipe) -> None:
    connection.execute(
        "UPDATE library SET revision = ?, model = ?, dimension = ?, chunker = coalesce(?, chunker) WHERE key = ?",
        (revision, recipe.model, recipe.dimension, recipe.chunker, library),
    )


def _marks(values: Sequence[object]) -> str:
    return ", ".join("?" * len(values))


def _blob(values: NDArray[Any]) -> bytes:
    return np.ascontiguousarray(values).astype(values.dtype.newbyteorder("<"), copy=False).tobytes()


def _matrix(blobs: Iterator[bytes], count: int, dimension: int) -> Floats:
    """Return blobs of float32 rows as one array, filled piece by piece so that memory holds them once."""
    matrix, filled = np.empty((count, dimension), np.float32), 0
    while piece := list(itertools.islice(blobs, 4096)):
        if any(len(blob) != 4 * dimension for blob in piece):
            raise _damaged()
        matrix[filled : filled + len(piece)] = np.frombuffer(b"".join(piece), "<f4").reshape(len(piece), dimension)
        filled += len(piece)
    if not np.isfinite(matrix).all():
        raise _damaged()
    return matrix


def _damaged() -> StoreUnavailable:
    return StoreUnavailable(
        "a stored vector is damaged; see `memory.verify()`, then re-embed or restore the library.", retryable=False
    )


def _event_rows(connection: sqlite3.Connection, library: int, since: int, dimension: int) -> EventRows:
    where, values = "event.library = ? AND event.changed > ?", (library, since)
    rows = connection.execute(
        f"SELECT key, id, written, {_SHOWN}, chunked, text_hash FROM event WHERE {where} ORDER BY key", values
    ).fetchall()
    keys, ids, written, visible, chunked, hashes = zip(*rows, strict=True) if rows else ((),) * 6
    summaries = connection.execute(f"SELECT summary_vector FROM event WHERE {where} ORDER BY key", values)
    joined = (
        f"FROM event CROSS JOIN chunk ON chunk.event = event.key WHERE {where} AND vector IS NOT NULL ORDER BY event.key, ordinal"
    )
    spans = _integers(connection.execute(f'SELECT event.key, start, "end" {joined}', values), 3)
    vectors = connection.execute(f"SELECT vector {joined}", values)
    mentions = _integers(
        connection.execute(
            f"SELECT event.key, entity FROM event CROSS JOIN mention ON mention.event = event.key WHERE {where}", values
        ),
        2,
    )
    key_column = np.array(keys, np.int64)
    places, counts = np.unique(spans[:, 0], return_counts=True)
    chunk_counts = np.zeros(len(rows), np.int64)
    chunk_counts[np.searchsorted(key_column, places)] = counts
    return EventRows(
        keys=list(keys),
        ids=list(ids),
        written=np.array(written, np.int64),
        visible=np.array(visible, bool),
        chunked=np.array(chunked, bool),
        text_hashes=list(hashes),
        summaries=_matrix((blob for (blob,) in summaries), len(rows), dimension),
        chunk_counts=chunk_counts,
        chunk_starts=spans[:, 1].copy(),
        chunk_ends=spans[:, 2].copy(),
        chunks=_matrix((blob for (blob,) in vectors), len(spans), dimension),
        mention_events=np.searchsorted(key_column, mentions[:, 0]),
        mention_entities=mentions[:, 1].copy(),
    )


def _integers(rows: Iterable[tuple[int, ...]], width: int) -> NDArray[np.int64]:
    return np.fromiter(itertools.chain.from_iterable(rows), np.int64).reshape(-1, width)


def _entity_rows(connection: sqlite3.Connection, library: int, since: int, dimension: int) -> EntityRows:
    rows = connection.execute(
        "SELECT key, id, label, name_key, name, vector FROM entity WHERE library = ? AND changed > ? ORDER BY key", (library, since)
    ).fetchall()
    keys, ids, labels, name_keys, names, vectors = map(list, zip(*rows, strict=True)) if rows else ([] for _ in range(6))
    return EntityRows(keys, ids, labels, name_keys, names, _matrix(iter(vectors), len(rows), dimension))


def _entity_keys(connection: sqlite3.Connection, library: int, keys: Iterable[EntityKey]) -> dict[EntityKey, int]:
    found: dict[EntityKey, int] = {}
    for label, group in itertools.groupby(sorted(set(keys)), key=lambda each: each[0]):
        names = [name for _, name in group]
        for start in range(0, len(names), _BATCH):
            some = names[start : start + _BATCH]
            sql = f"SELECT name_key, key FROM entity WHERE library = ? AND label = ? AND name_key IN ({_marks(some)})"
            found.update({(label, name): key for name, key in connection.execute(sql, (library, label, *some))})
    return found


def _frequencies(own: Keys, counts: NDArray[np.uint16], keys: Keys) -> NDArray[np.int64]:
    if not own.size:
        return np.zeros(len(keys), np.int64)
    place = np.minimum(np.searchsorted(own, keys), own.size - 1)
    return np.where(own[place] == keys, counts[place], 0).astype(np.int64)


def _stored(connection: sqlite3.Connection, where: str, values: tuple[object, ...]) -> list[StoredEvent]:
    chunks = "CASE WHEN chunked THEN (SELECT count(*) FROM chunk WHERE chunk.event = event.key) END"
    rows = connection.execute(f"SELECT {_EVENT_COLUMNS}, {chunks} FROM event WHERE {where}", values)
    return [StoredEvent(_event(row), *row[-4:]) for row in rows]


def _passage(row: Sequence[Any], concepts: Iterable[tuple[str, str]]) -> Passage:
    _, event_id, title, summary, written, visibility, chunked, length, head = row
    return Passage(event_id, title, summary, written, visibility, bool(chunked), length, head, tuple(concepts))


def _name(row: Sequence[Any]) -> EmbeddedName:
    label, key, name, vector, entity_id = row
    return EmbeddedName(label, key, name, np.frombuffer(vector, "<f4"), entity_id)


def _event(row: Sequence[Any]) -> Event:
    event_id, title, summary, content, concepts, persons, tags, kind, event_type, status, begin, end, critical, written = row[:14]
    return Event(
        id=event_id,
        title=title,
        summary=summary,
        content=content,
        concepts=tuple(json.loads(concepts)),
        persons=tuple(json.loads(persons)),
        tags=tuple(json.loads(tags)),
        kind=kind,
        event_type=event_type,
        temporal_status=status,
        occurred_from=None if begin is None else from_micros(begin),
        occurred_to=None if end is None else from_micros(end),
        critical=bool(critical),
        written_at=from_micros(written),
    )


def _write_names(
    connection: sqlite3.Connection, library: int, revision: int, names: Sequence[EmbeddedName], events: Sequence[Prepared]
) -> dict[EntityKey, int]:
    wanted = list(dict.fromkeys(key for prepared in events for key in entity_keys(prepared.event.concepts, prepared.event.persons)))
    entities, given = _entity_keys(connection, library, wanted), {(name.label, name.key): name for name in names}
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
            (library, name.label, entity_id, name.key, name.name, _blob(name.vector), revision),
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


def _reserve_ids(connection: sqlite3.Connection, library: int, label: str, ids: Iterable[str | None]) -> None:
    """Let the numbering go on after the ids that a host or a copy brings along."""
    numbers = [int(match[1]) for each in ids if each and (match := re.fullmatch(rf"{label.lower()}_([1-9][0-9]{{0,14}})", each))]
    column = f"next_{label.lower()}"
    if numbers:
        connection.execute(f"UPDATE library SET {column} = max({column}, ?) WHERE key = ?", (max(numbers) + 1, library))


def _write_event(
    connection: sqlite3.Connection, library: int, revision: int, prepared: Prepared, entities: Mapping[EntityKey, int]
) -> Event:
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
        sql = f"INSERT INTO event ({', '.join(columns)}) VALUES ({_marks(list(columns))})"
        key = _inserted(connection, sql, tuple(columns.values()))
    else:
        (key,) = found
        sql = f"UPDATE event SET {', '.join(f'{name} = ?' for name in columns)} WHERE key = ?"
        connection.execute(sql, (*columns.values(), key))
    _write_embedded(connection, key, prepared.embedded)
    connection.execute("DELETE FROM mention WHERE event = ?", (key,))
    connection.executemany(
        "INSERT INTO mention (event, position, entity) VALUES (?, ?, ?)",
        [(key, position, entities[entity]) for position, entity in enumerate(entity_keys(event.concepts, event.persons))],
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
        "summary_vector": _blob(embedded.summary),
    }


def _write_embedded(connection: sqlite3.Connection, event: int, embedded: Embedded) -> None:
    connection.execute("DELETE FROM chunk WHERE event = ?", (event,))
    connection.executemany(
        'INSERT INTO chunk (event, ordinal, start, "end", vector) VALUES (?, ?, ?, ?, ?)',
        [
            (event, ordinal, start, end, _blob(vector) if vector.any() else None)
            for ordinal, ((start, end), vector) in enumerate(zip(embedded.spans or (), embedded.vectors, strict=True))
        ],
    )
    terms = embedded.terms
    counts = np.minimum(terms.counts, _COUNT_LIMIT).astype(np.uint16)
    connection.execute(
        "INSERT OR REPLACE INTO event_terms (event, total, keys, counts) VALUES (?, ?, ?, ?)",
        (event, terms.length, _blob(terms.keys), _blob(counts)),
    )


def _embedded(connection: sqlite3.Connection, event: int, chunked: bool, summary: Floats) -> Embedded:
    rows = connection.execute('SELECT start, "end", vector FROM chunk WHERE event = ? ORDER BY ordinal', (event,)).fetchall()
    vectors = np.zeros((len(rows), summary.size), np.float32)
    for place, (_, _, vector) in enumerate(rows):
        if vector is not None:
            vectors[place] = np.frombuffer(vector, "<f4")
    keys, counts = connection.execute("SELECT keys, counts FROM event_terms WHERE event = ?", (event,)).fetchone()
    terms = TermCounts(np.frombuffer(keys, "<u8"), np.frombuffer(counts, "<u2").astype(np.uint32))
    return Embedded(summary, tuple((start, end) for start, end, _ in rows) if chunked else None, vectors, terms)


def _check_successor(connection: sqlite3.Connection, library: int, event_id: str, successor: str) -> None:
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
