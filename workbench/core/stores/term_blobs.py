"""The terms of an event as two byte strings, and how often wanted terms occur in many of them.

``keys`` holds the wide keys as 8 bytes each (words, and characters beyond the Basic Multilingual Plane), then the narrow ones as
4 (a pair of characters, or a single one, with 16 bits each); each part is sorted. ``counts`` has 2 bytes for each in this order.
All numbers are little-endian.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from workbench.core.retrieval.coverage import Frequencies
from workbench.core.text import Keys, TermCounts, WantedKeys, narrow_keys, wide_keys

COUNT_LIMIT = 65_535
Row = tuple[str, int, bytes, bytes]
"""Id, number of term occurrences, keys and counts."""


def pack(terms: TermCounts) -> tuple[bytes, bytes]:
    """Return the keys and the counts of a text's terms; a count above ``COUNT_LIMIT`` is stored as that."""
    narrow, able = narrow_keys(terms.keys)
    counts = np.minimum(terms.counts, COUNT_LIMIT).astype("<u2")
    keys = terms.keys[~able].astype("<u8").tobytes() + narrow.astype("<u4").tobytes()
    return keys, np.concatenate([counts[~able], counts[able]]).tobytes()


def unpack(keys: bytes, counts: bytes) -> TermCounts:
    """Return the terms that :func:`pack` packed."""
    wide = _wide_size(keys, counts)
    both = np.concatenate([np.frombuffer(keys[:wide], "<u8"), wide_keys(np.frombuffer(keys[wide:], "<u4"))])
    order = np.argsort(both)
    return TermCounts(both[order], np.frombuffer(counts, "<u2")[order].astype(np.uint32))


def repack(keys: bytes, counts: bytes) -> tuple[bytes, bytes]:
    """Return the terms of an older file, which kept every key as 8 bytes, as :func:`pack` has them."""
    return pack(TermCounts(np.frombuffer(keys, "<u8"), np.frombuffer(counts, "<u2").astype(np.uint32)))


def _wide_size(keys: bytes, counts: bytes) -> int:
    """Return how many bytes the wide keys take: each has 4 more than 2 per byte of counts."""
    return 2 * (len(keys) - 2 * len(counts))


def frequencies_in(rows: Sequence[Row], event_ids: Sequence[str], keys: Keys) -> tuple[Frequencies, NDArray[np.int64]]:
    """Return how often each event has each key, and each event's number of term occurrences.

    :param rows: the stored ones, in any order.
    :param event_ids: the events, in the order of the answer; one without a row has nothing.
    :param keys: what to look for.
    :return: shape (events, keys), and shape (events,).
    """
    found, lengths = np.zeros((len(event_ids), len(keys)), np.int64), np.zeros(len(event_ids), np.int64)
    place_of = {event_id: number for number, event_id in enumerate(event_ids)}
    events = np.array([place_of[row[0]] for row in rows], np.int64)
    lengths[events] = [row[1] for row in rows]
    if not (rows and keys.size):
        return found, lengths
    borders = [_wide_size(row[2], row[3]) for row in rows]
    wide = np.frombuffer(b"".join([row[2][:border] for row, border in zip(rows, borders, strict=True)]), "<u8")
    narrow = np.frombuffer(b"".join([row[2][border:] for row, border in zip(rows, borders, strict=True)]), "<u4")
    counts = np.frombuffer(b"".join([row[3] for row in rows]), "<u2")
    wides = np.array(borders) // 8
    totals = np.array([len(row[3]) // 2 for row in rows])
    first = np.cumsum(totals) - totals
    wanted, able = narrow_keys(keys)
    for part, part_keys, sizes, firsts, numbers in (
        (wide, keys[~able], wides, first, np.flatnonzero(~able)),
        (narrow, wanted, totals - wides, first + wides, np.flatnonzero(able)),
    ):
        places, which = WantedKeys(part_keys).find(part)
        ends = np.cumsum(sizes)
        row = np.searchsorted(ends, places, side="right")
        found[events[row], numbers[which]] = counts[firsts[row] + places - (ends - sizes)[row]]
    return found, lengths
