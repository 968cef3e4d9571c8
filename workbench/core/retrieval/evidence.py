"""The excerpt that shows the evidence: an exact, short slice of the original text (V1 to V3, V7)."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from workbench.core.chunking import Span
from workbench.core.text import TermFinder, sentence_starts

_DIGITS = 9
Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Excerpt:
    """``text == content[start:end]``; offsets are code points of the whole content."""

    text: str
    start: int
    end: int

    @property
    def range(self) -> Span:
        """Return ``(start, end)``."""
        return self.start, self.end


def choose_excerpt(
    text: str, *, finder: TermFinder, weights: Floats, chunk: Span | None, length: int = 120, window: int | None = None
) -> Excerpt:
    """Return the excerpt of at most ``length`` code points that covers the greatest weight of distinct question terms.

    Of windows of equal weight one inside the best chunk wins, then the earliest. Its terms then stand in the middle, or
    behind the beginning of a sentence or turn, where that loses no term. Without a term it is the head of the best chunk,
    without a chunk the head of the text (V2).

    :param text: the text at least up to ``window``; one character more shows whether a word or cluster goes on there.
    :param finder: of the question's distinct terms.
    :param weights: of these terms, same length.
    :param chunk: the range of the event's best chunk, None if unknown; it is ignored where it begins beyond the window.
    :param length: the limit in code points.
    :param window: where the excerpt must end at the latest; None for the end of ``text``.
    :return: the excerpt, empty only for an empty text.
    """
    limit = len(text) if window is None else min(window, len(text))
    if chunk is not None:
        chunk = (chunk[0], min(chunk[1], limit)) if chunk[0] < limit else None
    core = _best_core(text, finder, weights, chunk, length, limit) if weights.size else None
    start = _begin(text, core, chunk, length) if core else chunk[0] if chunk else 0
    return _cut(text, start, min(start + length, limit))


def _best_core(text: str, finder: TermFinder, weights: Floats, chunk: Span | None, length: int, limit: int) -> Span | None:
    """Return the best window's span, from its first term to the end of the last term that it needs."""
    found = [each for each in finder.find(text) if each[1] <= limit]
    if not found:
        return None
    starts, ends, terms = (list(column) for column in zip(*found, strict=True))
    gains = _window_gains(starts, ends, terms, weights, length)
    best = np.flatnonzero(gains == gains.max()).tolist()
    cores = (_core(starts, ends, terms, place, length) for place in best)
    if chunk is None:
        return next(cores)
    first: Span | None = None
    for core in cores:
        if core is not None and _inside(core, chunk):
            return core
        first = first or core
    return first


def _core(starts: list[int], ends: list[int], terms: list[int], place: int, length: int) -> Span | None:
    reach: dict[int, int] = {}
    for following in range(place, len(starts)):
        if ends[following] > starts[place] + length:
            break
        reach.setdefault(terms[following], ends[following])
    return (starts[place], max(reach.values())) if reach else None


def _inside(core: Span, chunk: Span) -> bool:
    return chunk[0] <= core[0] and core[1] <= chunk[1]


def _window_gains(starts: list[int], ends: list[int], terms: list[int], weights: Floats, length: int) -> Floats:
    """Return for each occurrence the weight of the distinct terms in the window that begins with it.

    An occurrence adds its weight to the windows that begin after the one before it of the same term, and reach its end.
    """
    count, numbers = len(starts), np.array(terms)
    closes = np.searchsorted(ends, np.add(starts, length), side="right")
    by_term = np.argsort(numbers, kind="stable")
    same = numbers[by_term[1:]] == numbers[by_term[:-1]]
    after_last = np.zeros(count, np.int64)
    after_last[by_term[1:][same]] = by_term[:-1][same] + 1
    first = np.maximum(after_last, np.searchsorted(closes, np.arange(count), side="right"))
    adding = np.flatnonzero(first <= np.arange(count))
    gains = np.bincount(first[adding], weights[numbers[adding]], count + 1)
    gains -= np.bincount(adding + 1, weights[numbers[adding]], count + 1)
    return np.round(np.cumsum(gains)[:count], _DIGITS)


def _begin(text: str, core: Span, chunk: Span | None, length: int) -> int:
    """Return where the window begins: with the core in its middle, which showed the evidence most often (benchmarks/quality.py).

    It moves back to where a sentence or turn begins, if it still reaches the end of the core's last sentence from there, else
    it begins at a whole word. A core inside the best chunk keeps its whole window inside.
    """
    earliest, latest = max(core[1] - length, 0), core[0]
    if chunk is not None and _inside(core, chunk):
        earliest = max(earliest, chunk[0])
        latest = min(latest, max(chunk[1] - length, earliest))
    middle = min(max((core[0] + core[1] - length + 1) // 2, earliest), latest)
    for start in reversed(sentence_starts(text, earliest, middle + 1)):
        if start + length >= len(text) or sentence_starts(text, core[1], start + length + 1):
            return start
    return _whole_word(text, middle, latest)


def _whole_word(text: str, start: int, latest: int) -> int:
    """Return ``start``, or the next word's first letter where it would split a word between spaces."""
    if start == 0 or not (text[start - 1 : start + 1].isascii() and text[start - 1 : start + 1].isalnum()):
        return start
    return next((place + 1 for place in range(start, latest) if text[place].isspace()), start)


def _cut(text: str, start: int, end: int) -> Excerpt:
    """Return ``text[start:end]`` with both ends moved inwards to cluster borders where the text allows it."""
    first, last = cluster_borders(text, start)[1], cluster_borders(text, end)[0]
    if first >= last:
        first, last = start, end
    return Excerpt(text[first:last], first, last)


def cluster_borders(text: str, place: int) -> Span:
    """Return the nearest grapheme cluster borders (UAX #29) at or before and at or after ``place``."""
    anchor = place
    while anchor > 0 and not (_plain(text[anchor - 1]) and (anchor == len(text) or _plain(text[anchor]))):
        anchor -= 1
    if anchor == place:
        return place, place
    import regex

    cluster = regex.compile(r"\X")
    while anchor < place:
        match = cluster.match(text, anchor)
        assert match is not None
        if match.end() > place:
            return anchor, match.end()
        anchor = match.end()
    return place, place


def _plain(char: str) -> bool:
    """Return whether a cluster border lies between this character and any other plain one."""
    return " " <= char <= "~" or "\u4e00" <= char <= "\u9fff" or "\u3001" <= char <= "\u3029" or "\uff01" <= char <= "\uff5e"
