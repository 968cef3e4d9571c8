"""Variations that ``quality.py`` compares with the product: terms, coverage forms, windows and where they begin.

The product has one form and no switches for the others. A variation stands in for one pure function of it for the length of
a ``with`` block, so recall, fusion, merging, MMR and cutting stay the product's own code.
"""

import hashlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from unittest.mock import patch

import numpy as np
import regex
from numpy.typing import NDArray

from workbench.core.chunking import Span
from workbench.core.retrieval import evidence, pipeline
from workbench.core.retrieval.coverage import Frequencies, coverage, rarity
from workbench.core.text import FUNCTION_CHARACTERS, Keys, TermFinder, TermPositions, fold, sentence_starts, term_positions

Floats = NDArray[np.float64]
Extract = Callable[[str], Keys]
"""From a text to the keys of all its term occurrences."""

LONG_STOP_LIST = frozenset(
    """
    about after again all also any as because before both but by down during each few for from further get got herself himself if
    into itself just may might more most must myself no nor not now off once only other ours out over own same so some such than
    theirs themselves then there through too under until up upon very while with won yours yourself yourselves
    """.split()  # noqa: SIM905 - a word list reads better than a list of words
)
"""Words that a first, longer stop list of the product held besides those of today."""

_HAN = regex.compile(r"[\p{Han}\u3007]")
_PAIRS_FROM, _WORDS_FROM = np.uint64(1 << 21), np.uint64(1 << 63)


def full_terms(text: str) -> Keys:
    """Return the terms as the product counts them: stems, bigrams and single Han characters."""
    return term_positions(fold(text).text).keys


def bigram_terms(text: str) -> Keys:
    """Return stems and bigrams, without the single Han characters inside runs."""
    return _without_singles(fold(text).text).keys


def plain_terms(text: str) -> Keys:
    """Return unstemmed words and bigrams."""
    folded = fold(text).text
    found = _without_singles(folded)
    words = np.flatnonzero(found.keys >= _WORDS_FROM)
    keys = found.keys.copy()
    keys[words] = [_word_key(word) for word in _slices(folded, found, words)]
    return keys


def long_stop_list(text: str) -> Keys:
    """Return the product's terms without the words of the longer stop list."""
    folded = fold(text).text
    found = term_positions(folded)
    words = np.flatnonzero(found.keys >= _WORDS_FROM)
    dropped = [place for place, word in zip(words, _slices(folded, found, words), strict=True) if word in LONG_STOP_LIST]
    return np.delete(found.keys, dropped)


def _without(functions: frozenset[str]) -> Extract:
    def extract(text: str) -> Keys:
        folded = fold(text).text
        singles = [ord(match.group()) for match in _HAN.finditer(folded) if match.group() not in functions]
        keys = term_positions(folded).keys
        return np.concatenate([keys[keys >= _PAIRS_FROM], np.array(singles, np.uint64)])

    return extract


FUNCTION_SETS: dict[str, Extract] = {
    "no function characters": _without(frozenset()),
    "17 of them": _without(frozenset("的了是在和与及或而且也着过得地之其")),
    "the product's": full_terms,
    "and 什怎样几多少些每": _without(FUNCTION_CHARACTERS | frozenset("什怎样几多少些每")),
    "and 上下里中来去能会可要想再才只": _without(FUNCTION_CHARACTERS | frozenset("上下里中来去能会可要想再才只")),
}


def _without_singles(folded: str) -> TermPositions:
    found = term_positions(folded)
    pairs = found.starts[(found.keys >= _PAIRS_FROM) & (found.keys < _WORDS_FROM)]
    kept = (found.keys >= _PAIRS_FROM) | ~np.isin(found.starts, np.concatenate([pairs, pairs + 1]))
    return TermPositions(found.keys[kept], found.starts[kept], found.ends[kept])


def _slices(folded: str, found: TermPositions, places: NDArray[np.intp]) -> list[str]:
    return [folded[start:end] for start, end in zip(found.starts[places], found.ends[places], strict=True)]


def _word_key(word: str) -> int:
    return int.from_bytes(hashlib.blake2b(word.encode(), digest_size=8).digest(), "little") | (1 << 63)


@dataclass(frozen=True, slots=True)
class Matter:
    """The question's terms in the candidates, and in the candidates' chunks (``owners`` says whose a chunk is)."""

    keys: Keys
    frequencies: Frequencies
    lengths: NDArray[np.int64]
    chunk_frequencies: Frequencies
    chunk_lengths: NDArray[np.int64]
    owners: NDArray[np.intp]


Form = Callable[[Matter], Floats]
"""From what is known of the candidates to one share per candidate."""


def plain(matter: Matter) -> Floats:
    """Return the share of the question's terms that occur."""
    return _share(matter.frequencies > 0, np.ones(matter.keys.size))


def idf(matter: Matter) -> Floats:
    """Return the share of the question's term weight that occurs."""
    return _share(matter.frequencies > 0, rarity(matter.frequencies))


def _share(present: NDArray[np.bool_], weights: Floats) -> Floats:
    shares: Floats = present @ weights / max(float(weights.sum()), 1e-12)
    return shares


def saturated(matter: Matter) -> Floats:
    """Return the product's coverage."""
    return coverage(matter.frequencies, matter.lengths, rarity(matter.frequencies))


def with_best_chunk(matter: Matter) -> Floats:
    """Return the product's coverage and a quarter as much for the best single chunk."""
    per_chunk = coverage(matter.chunk_frequencies, matter.chunk_lengths, rarity(matter.frequencies))
    best = np.zeros(len(matter.lengths))
    np.maximum.at(best, matter.owners, per_chunk)
    return saturated(matter) + best / 4


def unseen_bigrams_out(matter: Matter) -> Floats:
    """Return the product's coverage with bigrams that no candidate has left out of the divisor: most cross word borders."""
    unseen = ~(matter.frequencies > 0).any(axis=0)
    kept = ~(unseen & (matter.keys >= _PAIRS_FROM) & (matter.keys < _WORDS_FROM))
    return coverage(matter.frequencies[:, kept], matter.lengths, rarity(matter.frequencies)[kept])


def scaled_to_best(matter: Matter) -> Floats:
    """Return the product's coverage divided by the best candidate's."""
    shares = saturated(matter)
    return shares / max(float(shares.max(initial=0.0)), 1e-12)


@contextmanager
def ranking_by(form: Form, matter: Matter) -> Iterator[None]:
    """Let ``pipeline.rank`` take its coverage from ``form``."""
    with patch.object(pipeline, "coverage", lambda *_: form(matter)):
        yield


Begin = Callable[[str, Span, Span | None, int], int]
"""Where a window begins, from: text, core, best chunk, length."""


def _bounds(core: Span, chunk: Span | None, length: int) -> Span:
    earliest, latest = max(core[1] - length, 0), core[0]
    if chunk is not None and chunk[0] <= core[0] and core[1] <= chunk[1]:
        earliest = max(earliest, chunk[0])
        latest = min(latest, max(chunk[1] - length, earliest))
    return earliest, latest


def at_core(text: str, core: Span, chunk: Span | None, length: int) -> int:
    return _bounds(core, chunk, length)[1]


def core_last(text: str, core: Span, chunk: Span | None, length: int) -> int:
    return _bounds(core, chunk, length)[0]


def middle(text: str, core: Span, chunk: Span | None, length: int) -> int:
    earliest, latest = _bounds(core, chunk, length)
    return min(max((core[0] + core[1] - length + 1) // 2, earliest), latest)


def nearest_sentence(text: str, core: Span, chunk: Span | None, length: int) -> int:
    earliest, latest = _bounds(core, chunk, length)
    return next(reversed(sentence_starts(text, earliest, latest + 1)), latest)


def earliest_sentence(text: str, core: Span, chunk: Span | None, length: int) -> int:
    earliest, latest = _bounds(core, chunk, length)
    return next(iter(sentence_starts(text, earliest, latest + 1)), latest)


def sentence_before_middle(text: str, core: Span, chunk: Span | None, length: int) -> int:
    place = middle(text, core, chunk, length)
    return next(reversed(sentence_starts(text, _bounds(core, chunk, length)[0], place + 1)), place)


BEGINS: dict[str, Begin] = {
    "at the first term": at_core,
    "at the sentence of the first term": nearest_sentence,
    "at the earliest sentence that fits": earliest_sentence,
    "terms last": core_last,
    "terms in the middle": middle,
    "at the sentence before the middle": sentence_before_middle,
}


@contextmanager
def beginning(begin: Begin) -> Iterator[None]:
    """Let ``evidence.choose_excerpt`` begin its windows by ``begin``."""
    with patch.object(evidence, "_begin", begin):
        yield


@contextmanager
def most_occurrences() -> Iterator[None]:
    """Of windows of equal weight, inside the best chunk where there are such, take the one with most term occurrences."""

    def best_core(text: str, finder: TermFinder, weights: Floats, chunk: Span | None, length: int, limit: int) -> Span | None:
        found = [each for each in finder.find(text) if each[1] <= limit]
        starts, ends, terms = (list(column) for column in zip(*found, strict=True)) if found else ([], [], [])
        gains = evidence._window_gains(starts, ends, terms, weights, length)
        best = np.flatnonzero(gains == gains.max(initial=0.0)).tolist()
        cores = [core for place in best if (core := evidence._core(starts, ends, terms, place, length))]
        inside = [core for core in cores if chunk is not None and evidence._inside(core, chunk)] or cores

        def occurrences(core: Span) -> int:
            return sum(core[0] <= start and end <= core[0] + length for start, end in zip(starts, ends, strict=True))

        return max(inside, key=occurrences, default=None)

    with patch.object(evidence, "_best_core", best_core):
        yield
