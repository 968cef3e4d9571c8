"""The vector index that all stores share: matrices in memory, kept at the store's revision (architecture, section 2.2).

A refresh appends rows and publishes a new :class:`View`; a view never changes, so searches go on with theirs while others
refresh. A changed event gets a new row and its old one dies; when too many rows are dead the index is read anew.
"""

import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from workbench.core.chunking import Span
from workbench.core.retrieval.coverage import Frequencies
from workbench.core.retrieval.neighbours import number_order, place_of
from workbench.core.retrieval.pipeline import Columns
from workbench.core.retrieval.recall import Blocks, Floats, Mask
from workbench.core.stores.base import Changes, EntityRows, EventRows, Library, Nearest, Store
from workbench.core.stores.term_blobs import frequencies_in
from workbench.core.stores.term_cache import TermCache
from workbench.core.text import Keys

_SPARE = 1 / 8
"""A full array grows by this share, so that memory stays near its content."""
_DEAD_SHARE = 0.5


class Vanished(Exception):
    """An event of a view was changed, hidden or removed before its text or vectors were fetched."""


class _Growing:
    """An append-only array whose published prefixes stay valid while it grows."""

    def __init__(self, first: NDArray[Any]) -> None:
        self._rows = first
        self.size = len(first)

    def append(self, rows: NDArray[Any]) -> None:
        needed = self.size + len(rows)
        if needed > len(self._rows):
            grown = np.empty((needed + int(needed * _SPARE) + 16, *self._rows.shape[1:]), self._rows.dtype)
            grown[: self.size] = self._rows[: self.size]
            self._rows = grown
        self._rows[self.size : needed] = rows
        self.size = needed

    def view(self) -> NDArray[Any]:
        return self._rows[: self.size]


@dataclass(slots=True)
class _Buffers:
    """What a refresh appends to. ``previous[row]`` is the dead row that an event had before, or -1."""

    summaries: _Growing
    chunks: _Growing
    chunk_starts: _Growing
    chunk_ends: _Growing
    block_events: _Growing
    block_starts: _Growing
    block_of: _Growing
    written: _Growing
    mention_events: _Growing
    mention_entities: _Growing
    entity_vectors: _Growing
    keys: list[int] = field(default_factory=list)
    ids: list[str] = field(default_factory=list)
    text_hashes: list[bytes] = field(default_factory=list)
    previous: list[int] = field(default_factory=list)
    row_of: dict[str, int] = field(default_factory=dict)
    entity_ids: list[str] = field(default_factory=list)
    entity_labels: list[str] = field(default_factory=list)
    entity_of: dict[int, int] = field(default_factory=dict)
    entities_by_name: dict[str, list[int]] = field(default_factory=dict)
    entity_by_id: dict[str, int] = field(default_factory=dict)
    chapters: dict[tuple[str, int], list[int]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class View:
    """The library at one revision, for reading. Rows of events that are gone or replaced are not ``alive``.

    Where there is ``nearest``, the columns hold no vectors of events and chunks: they have to be asked for.
    """

    library: Library
    columns: Columns
    alive: Mask
    visible: Mask
    ambiguous: frozenset[str]
    chunk_starts: NDArray[np.int64]
    chunk_ends: NDArray[np.int64]
    mention_events: NDArray[np.int64]
    mention_entities: NDArray[np.int64]
    entity_vectors: Floats
    entity_count: int
    nearest: Nearest | None
    _buffers: _Buffers

    def row(self, event_id: str) -> int | None:
        """Return the row of an event that exists in this view, hidden or not."""
        row = self._buffers.row_of.get(event_id, -1)
        while row >= len(self.alive):
            row = self._buffers.previous[row]
        return row if row >= 0 and self.alive[row] else None

    def exists_once(self, event_id: str) -> bool:
        """Return whether the id stands for one event only; a damaged store may hold it twice (C5)."""
        return event_id not in self.ambiguous

    def shown(self, event_id: str) -> bool:
        """Return whether the event exists and is visible."""
        row = self.row(event_id)
        return row is not None and bool(self.visible[row])

    def text_hash(self, event_id: str) -> bytes | None:
        """Return the hash of a visible event's text, or None where there is no such event."""
        row = self.row(event_id)
        return self.columns.text_hashes[row] if row is not None and self.visible[row] else None

    def chapter(self, prefix: str, chapter: int) -> list[str]:
        """Return the visible ids of one chapter in number order (C3)."""
        rows = [row for row in self._buffers.chapters.get((prefix, chapter), []) if row < len(self.visible) and self.visible[row]]
        return sorted((self.columns.ids[row] for row in rows), key=number_order)

    def span(self, chunk: int | None) -> Span | None:
        """Return the code points of a chunk row."""
        return None if chunk is None else (int(self.chunk_starts[chunk]), int(self.chunk_ends[chunk]))

    def entities(self, reference: str, key: str) -> list[int]:
        """Return the entities that an id or a normalised name means; a name may mean a concept and a person."""
        by_id = self._buffers.entity_by_id.get(reference)
        found = [by_id] if by_id is not None else self._buffers.entities_by_name.get(key, [])
        return [entity for entity in found if entity < self.entity_count]

    def mentioning(self, entities: Sequence[int]) -> Mask:
        """Return which events mention or involve any of the entities."""
        mask = np.zeros(len(self.alive), bool)
        for entity in entities:
            mask[self.mention_events[self.mention_entities == entity]] = True
        return mask

    def entity(self, number: int) -> tuple[str, str]:
        """Return id and label of an entity."""
        return self._buffers.entity_ids[number], self._buffers.entity_labels[number]

    def event_counts(self) -> NDArray[np.int64]:
        """Return how many visible events each entity has, shape (entities,)."""
        shown = self.visible[self.mention_events]
        return np.bincount(self.mention_entities[shown], minlength=self.entity_count)


class VectorIndex:
    """The in-memory side of a store. Thread-safe."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._lock = threading.Lock()
        self._view: View | None = None
        self._nearest: Nearest | None = None
        self._terms = TermCache()

    def current(self) -> View:
        """Return a view at the store's present revision; other processes' writes are seen."""
        with self._lock:
            if self._nearest is None and self._outgrown():
                self._view, self._nearest = None, self._store.nearest
            source = self._nearest or self._store
            since = self._view.library.revision if self._view else 0
            changes = source.changes(since)
            if changes is None:
                if self._view is None:
                    self._view = _load(_empty(self._store.library()), self._nearest)
            elif self._view is None or changes.whole or self._crowded(changes):
                if not changes.whole:
                    whole = source.changes(0)
                    assert whole is not None
                    changes = whole
                self._terms.drop(None)
                self._view = _load(changes, self._nearest)
            else:
                self._terms.drop([*changes.events.ids, *changes.removed])
                self._view = _append(self._view, changes)
            return self._view

    def frequencies(self, event_ids: Sequence[str], keys: Keys) -> tuple[Frequencies, NDArray[np.int64]]:
        """Return how often each event has each term, shape (events, terms), and each event's number of term occurrences."""
        return frequencies_in(self._terms.rows(event_ids, self._store.terms), event_ids, keys)

    def _outgrown(self) -> bool:
        """Return whether the library has more chunks than its store wants to be held in memory."""
        nearest = self._store.nearest
        if nearest is None:
            return False
        return (nearest.chunks() if self._view is None else self._view.chunk_starts.size) > nearest.above

    def _crowded(self, changes: Changes) -> bool:
        assert self._view is not None
        dead = int(np.count_nonzero(~self._view.alive)) + len(changes.events.ids)
        entities = self._view._buffers.entity_of
        renamed = any(number in entities for number in changes.entities.numbers)
        doubled = any(self._doubles(event_id, key) for event_id, key in zip(changes.events.ids, changes.events.keys, strict=True))
        return renamed or doubled or bool(self._view.ambiguous) or dead > _DEAD_SHARE * max(len(self._view.alive), 64)

    def _doubles(self, event_id: str, key: int) -> bool:
        """Return whether a changed row shares its id with another row, as only a damaged store does."""
        assert self._view is not None
        row = self._view.row(event_id)
        return row is not None and self._view._buffers.keys[row] != key


def _empty(library: Library) -> Changes:
    none = np.empty(0, np.int64)
    flat, flags = np.empty((0, library.recipe.dimension or 0), np.float32), np.empty(0, bool)
    events = EventRows([], [], none, flags, [], flat, none, none, none, flat, none, none)
    return Changes(library, True, events, EntityRows([], [], [], [], flat), [])


def _load(changes: Changes, nearest: Nearest | None) -> View:
    events, size = changes.events, len(changes.events.ids)
    buffers = _Buffers(
        summaries=_Growing(events.summaries),
        chunks=_Growing(events.chunks),
        chunk_starts=_Growing(events.chunk_starts),
        chunk_ends=_Growing(events.chunk_ends),
        block_events=_Growing(np.empty(0, np.int64)),
        block_starts=_Growing(np.empty(0, np.int64)),
        block_of=_Growing(np.empty(0, np.int64)),
        written=_Growing(events.written),
        mention_events=_Growing(events.mention_events),
        mention_entities=_Growing(np.empty(0, np.int64)),
        entity_vectors=_Growing(changes.entities.vectors),
    )
    _add_entities(buffers, changes.entities)
    buffers.mention_entities.append(_local_entities(buffers, events))
    _add_rows(buffers, events, chunk_base=0)
    visible, first = events.visible.copy(), dict[str, int]()
    repeated = [row for row, event_id in enumerate(events.ids) if first.setdefault(event_id, row) != row]
    visible[repeated] = False  # of several rows of one id, the first one answers
    buffers.row_of.update(first)
    ambiguous = frozenset(events.ids[row] for row in repeated)
    return _view(buffers, changes.library, np.ones(size, bool), visible, ambiguous, nearest)


def _append(view: View, changes: Changes) -> View:
    buffers, events = view._buffers, changes.events
    alive, visible = view.alive.copy(), view.visible.copy()
    for event_id in (*events.ids, *changes.removed):
        row = view.row(event_id)
        if row is not None:
            alive[row] = visible[row] = False
    _add_entities(buffers, changes.entities)
    buffers.entity_vectors.append(changes.entities.vectors)
    base, chunk_base = len(view.alive), buffers.chunks.size
    for growing, rows in (
        (buffers.summaries, events.summaries),
        (buffers.chunks, events.chunks),
        (buffers.chunk_starts, events.chunk_starts),
        (buffers.chunk_ends, events.chunk_ends),
        (buffers.written, events.written),
        (buffers.mention_events, events.mention_events + base),
        (buffers.mention_entities, _local_entities(buffers, events)),
    ):
        growing.append(rows)
    _add_rows(buffers, events, chunk_base=chunk_base)
    added = np.ones(len(events.ids), bool)
    alive, visible = np.concatenate([alive, added]), np.concatenate([visible, events.visible])
    return _view(buffers, changes.library, alive, visible, view.ambiguous, view.nearest)


def _add_entities(buffers: _Buffers, entities: EntityRows) -> None:
    for number, entity_id, label, key in zip(entities.numbers, entities.ids, entities.labels, entities.keys, strict=True):
        local = len(buffers.entity_ids)
        buffers.entity_of[number] = local
        buffers.entity_by_id[entity_id] = local
        buffers.entities_by_name.setdefault(key, []).append(local)
        buffers.entity_ids.append(entity_id)
        buffers.entity_labels.append(label)


def _local_entities(buffers: _Buffers, events: EventRows) -> NDArray[np.int64]:
    return np.array([buffers.entity_of[number] for number in events.mention_entities.tolist()], np.int64)


def _add_rows(buffers: _Buffers, events: EventRows, *, chunk_base: int) -> None:
    base = len(buffers.ids)
    buffers.keys.extend(events.keys)
    buffers.ids.extend(events.ids)
    buffers.text_hashes.extend(events.text_hashes)
    for row, event_id in enumerate(events.ids, start=base):
        buffers.previous.append(buffers.row_of.get(event_id, -1))
        buffers.row_of[event_id] = row
        place = place_of(event_id)
        if place is not None:
            buffers.chapters.setdefault((place.prefix, place.chapter), []).append(row)
    filled = np.flatnonzero(events.chunk_counts)
    starts = chunk_base + np.cumsum(events.chunk_counts) - events.chunk_counts
    block_of = np.full(len(events.ids), -1, np.int64)
    block_of[filled] = buffers.block_events.size + np.arange(filled.size)
    buffers.block_of.append(block_of)
    buffers.block_events.append(filled + base)
    buffers.block_starts.append(starts[filled])


def _view(
    buffers: _Buffers, library: Library, alive: Mask, visible: Mask, ambiguous: frozenset[str], nearest: Nearest | None
) -> View:
    starts = np.append(buffers.block_starts.view(), buffers.chunks.size)
    blocks = Blocks(buffers.block_events.view(), starts, buffers.block_of.view())
    columns = Columns(
        buffers.summaries.view(), buffers.chunks.view(), blocks, buffers.ids, buffers.written.view(), buffers.text_hashes
    )
    return View(
        library,
        columns,
        alive,
        visible,
        ambiguous,
        buffers.chunk_starts.view(),
        buffers.chunk_ends.view(),
        buffers.mention_events.view(),
        buffers.mention_entities.view(),
        buffers.entity_vectors.view(),
        len(buffers.entity_ids),
        nearest,
        buffers,
    )
