"""Rows of a SQLite library read as the records of ``base``."""

import itertools
import json
import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from workbench.core.errors import StoreUnavailable
from workbench.core.event import Event, StoredEvent, from_micros
from workbench.core.stores.base import (
    Embedded,
    EmbeddedName,
    EntityKey,
    EntityRows,
    EventRows,
    Floats,
    Passage,
)
from workbench.core.stores.term_blobs import unpack

EVENT_COLUMNS = (
    "id, title, summary, content, concepts, persons, tags, kind, event_type, temporal_status, occurred_from, occurred_to, "
    "critical, written, visibility, superseded_by, adoptions"
)
SHOWN = "visibility IN ('visible', 'superseded')"
_BATCH = 500


def marks(values: Sequence[object]) -> str:
    """Return as many placeholders as there are values."""
    return ", ".join("?" * len(values))


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


def event_rows(connection: sqlite3.Connection, library: int, since: int, dimension: int) -> EventRows:
    """Return the events changed after a revision as columns, with their embedded chunks and links."""
    where, values = "event.library = ? AND event.changed > ?", (library, since)
    rows = connection.execute(
        f"SELECT key, id, written, {SHOWN}, text_hash FROM event WHERE {where} ORDER BY key", values
    ).fetchall()
    keys, ids, written, visible, hashes = zip(*rows, strict=True) if rows else ((),) * 5
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


def entity_rows(connection: sqlite3.Connection, library: int, since: int, dimension: int) -> EntityRows:
    """Return the entities changed after a revision."""
    rows = connection.execute(
        "SELECT key, id, label, name_key, vector FROM entity WHERE library = ? AND changed > ? ORDER BY key", (library, since)
    ).fetchall()
    keys, ids, labels, name_keys, vectors = map(list, zip(*rows, strict=True)) if rows else ([] for _ in range(5))
    return EntityRows(keys, ids, labels, name_keys, _matrix(iter(vectors), len(rows), dimension))


def known_entities(connection: sqlite3.Connection, library: int, keys: Iterable[EntityKey]) -> dict[EntityKey, int]:
    """Return the keys of those entities that the library has."""
    found: dict[EntityKey, int] = {}
    for label, group in itertools.groupby(sorted(set(keys)), key=lambda each: each[0]):
        names = [name for _, name in group]
        for start in range(0, len(names), _BATCH):
            some = names[start : start + _BATCH]
            sql = f"SELECT name_key, key FROM entity WHERE library = ? AND label = ? AND name_key IN ({marks(some)})"
            found.update({(label, name): key for name, key in connection.execute(sql, (library, label, *some))})
    return found


def stored_events(connection: sqlite3.Connection, where: str, values: tuple[object, ...]) -> list[StoredEvent]:
    """Return the events that a condition selects, with what the library knows of them."""
    chunks = "CASE WHEN chunked THEN (SELECT count(*) FROM chunk WHERE chunk.event = event.key) END"
    rows = connection.execute(f"SELECT {EVENT_COLUMNS}, {chunks} FROM event WHERE {where}", values)
    return [StoredEvent(event_of(row), *row[-4:]) for row in rows]


def passage_of(row: Sequence[Any], concepts: Iterable[tuple[str, str]]) -> Passage:
    """Return what evidence needs of one row."""
    _, event_id, title, summary, written, visibility, chunked, length, head = row
    return Passage(event_id, title, summary, written, visibility, bool(chunked), length, head, tuple(concepts))


def name_of(row: Sequence[Any]) -> EmbeddedName:
    """Return an entity row with its vector."""
    label, key, name, vector, entity_id = row
    return EmbeddedName(label, key, name, np.frombuffer(vector, "<f4"), entity_id)


def event_of(row: Sequence[Any]) -> Event:
    """Return the event of a row that begins with ``EVENT_COLUMNS``."""
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


def embedded_of(connection: sqlite3.Connection, event: int, chunked: bool, summary: Floats) -> Embedded:
    """Return an event's vectors, spans and terms as they are stored."""
    rows = connection.execute('SELECT start, "end", vector FROM chunk WHERE event = ? ORDER BY ordinal', (event,)).fetchall()
    vectors = np.zeros((len(rows), summary.size), np.float32)
    for place, (_, _, vector) in enumerate(rows):
        if vector is not None:
            vectors[place] = np.frombuffer(vector, "<f4")
    keys, counts = connection.execute("SELECT keys, counts FROM event_terms WHERE event = ?", (event,)).fetchone()
    return Embedded(summary, tuple((start, end) for start, end, _ in rows) if chunked else None, vectors, unpack(keys, counts))
