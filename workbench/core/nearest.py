"""Recall in a library whose vectors this process does not hold: the store's own approximate index proposes events, and their exact
cosines order them like any others.

The view has no matrices then, but all small columns, so filters, visibility and exclusions are those of every other search.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from workbench.core.config import RetrievalConfig
from workbench.core.retrieval.pipeline import Candidate, Columns, recall_candidates
from workbench.core.retrieval.recall import Blocks, Floats, Mask, Rows, best_chunk_of
from workbench.core.stores.base import Nearest, Route
from workbench.core.stores.index import Vanished, View

EXACT_EVENTS = 400
"""Where no more events pass the filters, all their vectors are fetched, and the answer is exact."""
OVERSAMPLING = 3
"""How many times as many neighbours are asked for as a route needs; benchmarks/README.md has the recall that it gives."""
_EXCLUDED_AT_MOST = 640
"""As many as a session excludes; those are likely to be near the question."""


@dataclass(frozen=True, slots=True)
class Sample:
    """Some events of a view with their vectors; ``rows`` and ``chunk_rows`` say where they and their chunks stand in the view."""

    columns: Columns
    rows: Rows
    chunk_rows: Rows

    def candidates(self, query: Floats, *, config: RetrievalConfig) -> list[Candidate]:
        """Return the best of both routes among the sample, as rows of the view."""
        everything = np.ones(self.rows.size, bool)
        return [self._in_view(each) for each in recall_candidates(self.columns, query, mask=everything, config=config)]

    def _in_view(self, candidate: Candidate) -> Candidate:
        row, chunk = int(self.rows[candidate.row]), candidate.chunk
        return candidate._replace(row=row, chunk=None if chunk is None else int(self.chunk_rows[chunk]))

    def best_chunk(self, row: int, query: Floats) -> int | None:
        """Return the best chunk of a row of the view, as a chunk row of the view."""
        own = int(np.searchsorted(self.rows, row))
        chunk = best_chunk_of(self.columns.chunks, self.columns.blocks, own, query)
        return None if chunk is None else int(self.chunk_rows[chunk])

    def summaries(self, rows: Sequence[int]) -> Floats:
        """Return the summary vectors of rows of the view."""
        return self.columns.summaries[np.searchsorted(self.rows, rows)]


def propose(view: View, nearest: Nearest, query: Floats, *, mask: Mask, k: int) -> tuple[Rows, bool]:
    """Return rows of events that pass the mask, among them most of both routes' best ``k``; and whether they are all that pass.

    :param view: of a library whose vectors are elsewhere.
    :param nearest: the store's index.
    :param query: unit vector, shape (dimension,).
    :param mask: which events pass the filters.
    :param k: how many events a route may recall.
    :return: rows in ascending order, and whether the answer will be exact.
    """
    passing = np.flatnonzero(mask)
    if passing.size <= EXACT_EVENTS:
        return passing, True
    routes = [_passing_neighbours(view, nearest, route, query, mask, k) for route in ("summary", "source")]
    return np.union1d(*routes), False


def _passing_neighbours(view: View, nearest: Nearest, route: Route, query: Floats, mask: Mask, k: int) -> Rows:
    alive, passing = int(np.count_nonzero(view.alive)), int(np.count_nonzero(mask))
    each = 1.0 if route == "summary" else max(view.chunk_starts.size / max(alive, 1), 1.0)
    limit = math.ceil(OVERSAMPLING * k * each * alive / passing) + min(alive - passing, _EXCLUDED_AT_MOST)
    while True:
        ids, exhausted = nearest.nearest(route, query, limit)
        rows = [row for row in map(view.row, dict.fromkeys(ids)) if row is not None and mask[row]]
        if len(rows) >= k or exhausted:
            return np.array(sorted(rows), np.int64)
        limit *= 2


def gather(view: View, nearest: Nearest, rows: Rows) -> Sample:
    """Fetch the vectors of rows of a view.

    :param view: of a library whose vectors are elsewhere.
    :param nearest: the store's index.
    :param rows: in ascending order.
    :return: the events.
    :raises Vanished: if one of them has changed since the view.
    """
    columns, ids = view.columns, [view.columns.ids[row] for row in rows.tolist()]
    found = nearest.vectors(ids)
    blocks = columns.blocks.block_of[rows]
    have = np.flatnonzero(blocks >= 0)
    first, end = columns.blocks.starts[blocks[have]], columns.blocks.starts[blocks[have] + 1]
    counts = np.zeros(rows.size, np.int64)
    counts[have] = end - first
    if any(event_id not in found or len(found[event_id][1]) != count for event_id, count in zip(ids, counts.tolist(), strict=True)):
        raise Vanished
    starts = np.cumsum(counts[have]) - counts[have]
    sizes = np.append(starts, counts.sum())
    block_of = np.full(rows.size, -1, np.int64)
    block_of[have] = np.arange(have.size)
    none = np.empty((0, view.library.recipe.dimension or 0), np.float32)
    sample = Columns(
        np.concatenate([none, *(found[event_id][0][None] for event_id in ids)]),
        np.concatenate([none, *(found[event_id][1] for event_id in ids)]),
        Blocks(have, sizes, block_of),
        ids,
        columns.written[rows],
        [columns.text_hashes[row] for row in rows.tolist()],
    )
    return Sample(sample, rows, np.arange(counts.sum()) + np.repeat(first - starts, counts[have]))
