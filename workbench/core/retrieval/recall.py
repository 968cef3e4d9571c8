"""Exact cosine recall over matrices (Q1 to Q3).

A single-precision product finds who may be among the best; those few are computed again in double precision and rounded
before they are compared. The margin between the two steps is the proven bound of a rounded dot product, so nobody who
belongs to the best is missed, and the order does not depend on the machine, the threads or the place of a row.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]
Rows = NDArray[np.int64]
Mask = NDArray[np.bool_]

COSINE_DIGITS = 6
"""Cosines are compared after rounding to this many digits (architecture, section 2.3)."""
_UNIT_ROUNDOFF = 2.0**-24
_NONE: Rows = np.empty(0, np.int64)
_NO_SCORES: Floats = np.empty(0, np.float32)


@dataclass(frozen=True, slots=True)
class Blocks:
    """Which chunk rows belong to which event row: block ``i`` is ``chunks[starts[i]:starts[i + 1]]`` of ``events[i]``.

    ``starts`` has one entry more than ``events``; ``block_of[row]`` is the block of an event row, or -1.
    """

    events: Rows
    starts: Rows
    block_of: Rows


@dataclass(frozen=True, slots=True)
class Recalled:
    """The events that may be among the best of a route, with their exact, rounded cosines.

    Arrays of one length: event ``rows``; ``summary`` cosines; ``source`` cosines of the best chunk, NaN without one; and
    ``chunks``, the row of that chunk (the earliest of equals) or -1.
    """

    rows: Rows
    summary: NDArray[np.float64]
    source: NDArray[np.float64]
    chunks: Rows


def margin(dimension: int) -> float:
    """Return how far two single-precision cosines of one pair of unit vectors may lie apart (Higham 2002, section 3.1)."""
    gamma = dimension * _UNIT_ROUNDOFF / (1 - dimension * _UNIT_ROUNDOFF)
    return 2 * gamma + 10.0**-COSINE_DIGITS


def rounded_cosines(rows: Floats, vector: Floats) -> NDArray[np.float64]:
    """Return the cosines of unit rows with a unit vector in double precision, rounded for comparison."""
    cosines: NDArray[np.float64] = np.round(rows.astype(np.float64) @ vector.astype(np.float64), COSINE_DIGITS) + 0.0
    return cosines


def recall(summaries: Floats, chunks: Floats, blocks: Blocks, query: Floats, *, mask: Mask, k: int) -> Recalled:
    """Return every event that can be among a route's true top ``k``, and exact cosines to order them by.

    In the source route an event counts once, by its best chunk, before ranking.

    :param summaries: unit rows, shape (events, dimension).
    :param chunks: unit rows, shape (chunks, dimension), grouped by event.
    :param blocks: the groups.
    :param query: unit vector, shape (dimension,).
    :param mask: which events pass the filters.
    :param k: how many events a route may recall.
    :return: the events of both routes, in order of row.
    """
    slack = margin(query.size)
    by_summary = _contenders(summaries @ query, mask, k, slack) if mask.any() else _NONE
    scores, best, by_source = _NO_SCORES, _NO_SCORES, _NONE
    if blocks.events.size and by_summary.size:
        scores = chunks @ query
        best = scores if scores.size == blocks.events.size else np.maximum.reduceat(scores, blocks.starts[:-1])
        own_mask = mask if mask.size == blocks.events.size else mask[blocks.events]  # blocks are in the order of rows
        by_source = blocks.events[_contenders(best, own_mask, k, slack)]
    rows = np.union1d(by_summary, by_source)
    source, places = best_chunks(chunks, blocks, rows, query, scores, best)
    return Recalled(rows, rounded_cosines(summaries[rows], query), source, places)


def best_chunks(
    chunks: Floats, blocks: Blocks, rows: Rows, query: Floats, scores: Floats, best: Floats
) -> tuple[NDArray[np.float64], Rows]:
    """Return each event's exact best cosine over its chunks, and that chunk's row; NaN and -1 where it has none.

    :param chunks: unit rows, shape (chunks, dimension), grouped by event.
    :param blocks: the groups.
    :param rows: of the events.
    :param query: unit vector, shape (dimension,).
    :param scores: single-precision cosines of all chunks.
    :param best: those of each block's best; what lies clearly below is not computed again.
    :return: cosines and chunk rows, one of each per event.
    """
    cosines, places = np.full(rows.size, np.nan), np.full(rows.size, -1, np.int64)
    have = np.flatnonzero(blocks.block_of[rows] >= 0)
    own = blocks.block_of[rows[have]]
    if not own.size:
        return cosines, places
    counts = blocks.starts[own + 1] - blocks.starts[own]
    first = np.cumsum(counts) - counts
    members = np.arange(counts.sum()) + np.repeat(blocks.starts[own] - first, counts)
    close = scores[members] >= np.repeat(best[own], counts) - margin(query.size)
    exact = np.full(members.size, -np.inf)
    exact[close] = rounded_cosines(chunks[members[close]], query)
    cosines[have] = np.maximum.reduceat(exact, first)
    hit = np.where(exact == np.repeat(cosines[have], counts), members, np.iinfo(np.int64).max)
    places[have] = np.minimum.reduceat(hit, first)
    return cosines, places


def best_chunk_of(chunks: Floats, blocks: Blocks, row: int, query: Floats) -> int | None:
    """Return the row of one event's best chunk, or None where it has no embedded one."""
    block = int(blocks.block_of[row])
    if block < 0:
        return None
    start, end = int(blocks.starts[block]), int(blocks.starts[block + 1])
    return start + int(np.argmax(rounded_cosines(chunks[start:end], query)))


def _contenders(scores: Floats, mask: Mask, k: int, slack: float) -> Rows:
    """Return who may be among the best ``k`` of the masked, by single-precision scores and the margin of their error."""
    rows = np.flatnonzero(mask)
    if rows.size <= k:
        return rows
    own = scores if rows.size == scores.size else scores[rows]
    last = np.partition(own, own.size - k)[own.size - k]
    close: Rows = rows[own >= last - slack]
    return close
