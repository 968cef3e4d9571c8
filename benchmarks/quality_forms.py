"""Variations that ``quality.py`` compares with the product: terms, coverage forms and excerpt policies.

The product has one form and no switches for the others. A variation replaces one pure function of it for the length of a
``with`` block, so that recall, fusion, merging, MMR and cutting stay the product's own code.
"""

import hashlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from unittest.mock import patch

import numpy as np
import regex
from numpy.typing import NDArray

from workbench.core.chunking import Span
from workbench.core.retrieval import evidence, pipeline
from workbench.core.retrieval.coverage import Frequencies, coverage, rarity
from workbench.core.text import Keys, TermCounts, fold, sentence_starts, term_positions

Floats = NDArray[np.float64]
Extract = Callable[[str], Keys]
"""Every term occurrence of a text, as keys."""

_HAN = regex.compile(r"[\p{Han}\u3007]")
_PAIRS_FROM, _WORDS_FROM = np.uint64(1 << 21), np.uint64(1 << 63)


def full_terms(text: str) -> Keys:
    """Return the terms as the product counts them: stems, bigrams and single Han characters."""
    return term_positions(fold(text).text).keys


def bigram_terms(text: str) -> Keys:
    """Return stems and bigrams without the single Han characters inside runs."""
    return _no_singles(fold(text).text)[0]


def plain_terms(text: str) -> Keys:
    """Return words unstemmed and bigrams."""
    folded = fold(text).text
    keys, starts, ends = _no_singles(folded)
    words = np.flatnonzero(keys >= _WORDS_FROM)
    keys[words] = [_word_key(folded[start:end]) for start, end in zip(starts[words], ends[words], strict=True)]
    return keys


def terms_without(functions: frozenset[str]) -> Extract:
    """Return an extraction like the product's whose single Han characters leave ``functions`` out instead."""

    def extract(text: str) -> Keys:
        folded = fold(text).text
        singles = [ord(match.group()) for match in _HAN.finditer(folded) if match.group() not in functions]
        keys = term_positions(folded).keys
        return np.concatenate([keys[keys >= _PAIRS_FROM], np.array(singles, np.uint64)])

    return extract


def _no_singles(folded: str) -> tuple[Keys, NDArray[np.int64], NDArray[np.int64]]:
    found = term_positions(folded)
    pairs = found.starts[(found.keys >= _PAIRS_FROM) & (found.keys < _WORDS_FROM)]
    kept = (found.keys >= _PAIRS_FROM) | ~np.isin(found.starts, np.concatenate([pairs, pairs + 1]))
    return found.keys[kept], found.starts[kept], found.ends[kept]


def _word_key(word: str) -> int:
    return int.from_bytes(hashlib.blake2b(word.encode(), digest_size=8).digest(), "little") | (1 << 63)


def counted(extract: Extract, *texts: str) -> TermCounts:
    """Return the distinct terms of the texts together."""
    keys, counts = np.unique(extract("\n".join(texts)), return_counts=True)
    return TermCounts(keys, counts.astype(np.uint32))


def frequencies_of(keys: Keys, texts: Sequence[TermCounts]) -> Frequencies:
    """Return how often each key occurs in each text, shape (texts, keys)."""
    table = np.zeros((len(texts), keys.size), np.int64)
    for row, terms in enumerate(texts):
        _, here, there = np.intersect1d(keys, terms.keys, assume_unique=True, return_indices=True)
        table[row, here] = terms.counts[there]
    return table


@dataclass(frozen=True, slots=True)
class Matter:
    """The question's terms in the candidates and in each candidate's chunks (``owners`` says whose a chunk is)."""

    frequencies: Frequencies
    lengths: NDArray[np.int64]
    chunk_frequencies: Frequencies
    chunk_lengths: NDArray[np.int64]
    owners: NDArray[np.int64]


Form = Callable[[Matter], Floats]


def plain(matter: Matter) -> Floats:
    """Return the share of the question's terms that occur."""
    return (matter.frequencies > 0).mean(axis=1) if matter.frequencies.size else np.zeros(len(matter.lengths))


def idf(matter: Matter) -> Floats:
    """Return the share of the question's term weight that occurs."""
    weights = rarity(matter.frequencies)
    return (matter.frequencies > 0) @ weights / weights.sum() if matter.frequencies.size else np.zeros(len(matter.lengths))


def saturated(matter: Matter) -> Floats:
    """Return the product's coverage."""
    return coverage(matter.frequencies, matter.lengths, rarity(matter.frequencies))


def with_best_chunk(matter: Matter) -> Floats:
    """Return the product's coverage and a quarter as much for the best single chunk."""
    per_chunk = coverage(matter.chunk_frequencies, matter.chunk_lengths, rarity(matter.frequencies))
    best = np.zeros(len(matter.lengths))
    np.maximum.at(best, matter.owners, per_chunk)
    return saturated(matter) + best / 4


@contextmanager
def ranking_by(form: Form, matter: Matter) -> Iterator[None]:
    """Let ``pipeline.rank`` take its coverage from ``form``."""
    with patch.object(pipeline, "coverage", lambda *_: form(matter)):
        yield


Begin = Callable[[str, Span, Span | None, int], int]
"""Where a window begins, from: head, core, best chunk, length."""


def at_core(head: str, core: Span, chunk: Span | None, length: int) -> int:
    """Begin at the first term."""
    return core[0]


def centred(head: str, core: Span, chunk: Span | None, length: int) -> int:
    """Put the core in the middle."""
    return max(core[0] - (length - (core[1] - core[0])) // 2, 0)


def nearest_sentence(head: str, core: Span, chunk: Span | None, length: int) -> int:
    """Begin at the sentence that holds the first term, if the core still fits."""
    starts = sentence_starts(head, max(core[1] - length, 0), core[0] + 1)
    return starts[-1] if starts else core[0]


def nearest_sentence_or_centred(head: str, core: Span, chunk: Span | None, length: int) -> int:
    """Begin at the sentence that holds the first term, if the core still fits, else centre."""
    starts = sentence_starts(head, max(core[1] - length, 0), core[0] + 1)
    return starts[-1] if starts else centred(head, core, chunk, length)


def earliest_sentence(head: str, core: Span, chunk: Span | None, length: int) -> int:
    """Begin at the earliest sentence from which the core still fits."""
    starts = sentence_starts(head, max(core[1] - length, 0), core[0] + 1)
    return starts[0] if starts else core[0]


def latest_fit(head: str, core: Span, chunk: Span | None, length: int) -> int:
    """Begin so that the core ends the window."""
    return max(core[1] - length, 0)


BEGINS: dict[str, Begin] = {
    "at the core": at_core,
    "nearest sentence": nearest_sentence,
    "nearest sentence, else centred": nearest_sentence_or_centred,
    "earliest sentence": earliest_sentence,
    "centred": centred,
    "core last": latest_fit,
}


@contextmanager
def beginning(begin: Begin) -> Iterator[None]:
    """Let ``evidence.choose_excerpt`` begin its windows by ``begin``."""
    with patch.object(evidence, "_begin", begin):
        yield
