"""Terms of a text: what coverage counts and excerpts look for (Q5, Q19).

A text is folded (NFKC, case), cut into runs by script, and each run gives terms:

* Latin, digit and other spaced words: one term, stemmed by script where that is plain, without English stop words;
* runs of Han, Kana and Hangul, and of Thai, Lao, Khmer and Burmese: overlapping bigrams, and a lone character as itself;
* Han besides: single characters without function characters (Nie, Gao, Zhang and Zhou 2000).

Every term has a 64-bit key, so that texts are counted and compared as sorted arrays. Character terms are packed exactly;
words take 63 bits of BLAKE2b. Keys are stored, so a change of this mapping is a change of the stores' formats
(``TERMS_VERSION``).
"""

import functools
import hashlib
import threading
import unicodedata
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

TERMS_VERSION = 1
"""Raised whenever the same text would get other terms or keys."""

Keys = NDArray[np.uint64]

_WORD, _HAN, _CJK, _SOUTHEAST, _MARK, _FUNCTION = 1, 2, 3, 4, 5, 6
_CLASSES = (
    (_WORD, r"[\p{L}\p{N}]+"),
    (_MARK, r"\p{M}+"),
    (_CJK, r"[\p{Hiragana}\p{Katakana}\p{Hangul}\u30fc\uff70]+"),
    (_HAN, r"[\p{Han}\u3007]+"),
    (_SOUTHEAST, r"[\p{Thai}\p{Lao}\p{Khmer}\p{Myanmar}]+"),
)
_TABLE_SIZE = 0x40000
_PAIR_SHIFT = np.uint64(21)
_LOOK_BACK = 32

FUNCTION_CHARACTERS = frozenset(
    "的了是在和与及或而且也都就还又很不没把被给对从向到着过得地之其这那哪谁何么吗呢吧啊呀个为以于所被让使我你他她它们您有"
)
"""Han characters that carry grammar rather than matter; they count inside bigrams, not alone."""

STOP_WORDS = frozenset(
    """
    a ain am an and are aren at be been being can could couldn d did didn do does doesn doing don had hadn has hasn have haven
    having he her hers him his how i in is isn it its ll m me mustn my needn of on or our re s shall she should shouldn t that
    the their them these they this those to us ve was wasn we were weren what when where which who whom whose why will would
    wouldn you your
    """.split()  # noqa: SIM905 - a word list reads better than a list of words
)
"""English articles, pronouns, auxiliaries, question words and the commonest prepositions, left out of the terms.

The list is short on purpose: rarity weighs what remains, and a longer list (with during, over, may, won) ranked worse
(benchmarks/results/quality.json).
"""


@dataclass(frozen=True, slots=True)
class Folded:
    """A folded text and, per folded character, where its source lies: ``starts[i]`` to ``ends[i]``.

    Both are None where folding kept every position.
    """

    text: str
    starts: NDArray[np.int64] | None = None
    ends: NDArray[np.int64] | None = None


def _fold_cluster(cluster: str) -> str:
    """Return a cluster under NFKC and case fold, or a space where nothing of it can be part of a term."""
    folded = unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", cluster).casefold())
    return folded if any(unicodedata.category(char)[0] in "LNM" for char in folded) else " "


_UNKNOWN, _LONGER = 0xFFFFFFFF, 0xFFFFFFFE
_FOLDS = np.full(_TABLE_SIZE, _UNKNOWN, np.uint32)
"""Each code point's fold where that is one code point; filled as texts bring code points along."""


def fold(text: str) -> Folded:
    """Return ``text`` under NFKC and case folding, with positions kept or mapped."""
    if text.isascii():
        return Folded(text.lower())
    codes = _FOLDS[np.minimum(_codes(text), _TABLE_SIZE - 1)]
    if (codes == _UNKNOWN).any():
        _learn_folds(text)
        codes = _FOLDS[np.minimum(_codes(text), _TABLE_SIZE - 1)]
    if not (codes == _LONGER).any():
        folded = codes.astype("<u4").tobytes().decode("utf-32-le")
        if unicodedata.is_normalized("NFC", folded):
            return Folded(folded)
    return _fold_clusters(text)


def _codes(text: str) -> NDArray[np.uint32]:
    return np.frombuffer(text.encode("utf-32-le"), "<u4")


def _learn_folds(text: str) -> None:
    for char in set(text):
        folded = _fold_cluster(char)
        _FOLDS[min(ord(char), _TABLE_SIZE - 1)] = ord(folded) if len(folded) == 1 else _LONGER


def _fold_clusters(text: str) -> Folded:
    import regex

    pieces, starts, ends = [], [], []
    for match in regex.finditer(r"\X", text):
        piece = _fold_cluster(match.group())
        pieces.append(piece)
        starts.extend([match.start()] * len(piece))
        ends.extend([match.end()] * len(piece))
    return Folded("".join(pieces), np.array(starts, np.int64), np.array(ends, np.int64))


@functools.cache
def _class_table() -> NDArray[np.uint8]:
    import regex

    table = np.zeros(_TABLE_SIZE, np.uint8)
    alphabet = "".join(" " if 0xD800 <= code < 0xE000 else chr(code) for code in range(_TABLE_SIZE))
    for number, pattern in _CLASSES:
        for match in regex.finditer(pattern, alphabet):
            table[match.start() : match.end()] = number
    table[[ord(char) for char in FUNCTION_CHARACTERS]] = _FUNCTION
    return table


@functools.lru_cache(maxsize=65_536)
def _word_key(word: str) -> int | None:
    """Return the key of a folded word, or None for a stop word and for marks without a letter."""
    if word in STOP_WORDS or not any(char.isalnum() for char in word):
        return None
    digest = hashlib.blake2b(stem(word).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") | (1 << 63)


class _Stemmers(threading.local):
    """Snowball stemmers of one thread: a stemmer keeps the word it works on in itself."""

    def __init__(self) -> None:
        self._by_language: dict[str, Any] = {}

    def stem(self, language: str, word: str) -> str:
        if language not in self._by_language:
            import snowballstemmer

            self._by_language[language] = snowballstemmer.stemmer(language)
        return str(self._by_language[language].stemWord(word))


_stemmers = _Stemmers()

_STEMMERS = (("a", "z", "english"), ("\u0370", "\u03ff", "greek"), ("\u0400", "\u04ff", "russian"), ("\u0600", "\u06ff", "arabic"))


def stem(word: str) -> str:
    """Return the Snowball stem of a folded word whose script makes the language plain, else the word itself.

    Plain means: only ``a`` to ``z`` (English), only Greek, only Cyrillic (Russian) or only Arabic letters. A word with a
    digit or a mixed script is left alone, so that names of models and versions match as they are.
    """
    for first, last, language in _STEMMERS:
        if all(first <= char <= last for char in word):
            return _stemmers.stem(language, word)
    return word


@dataclass(frozen=True, slots=True)
class TermPositions:
    """Every occurrence of every term in a text: three arrays of one length, unordered.

    ``starts`` and ``ends`` are code points of the folded text.
    """

    keys: Keys
    starts: NDArray[np.int64]
    ends: NDArray[np.int64]


def term_positions(folded: str) -> TermPositions:
    """Return all term occurrences of a folded text."""
    codes = _codes(folded)
    classes = _class_table()[np.minimum(codes, _TABLE_SIZE - 1)]
    classes[codes >= _TABLE_SIZE] = 0
    marks = classes == _MARK
    han, function = classes == _HAN, classes == _FUNCTION
    script = np.where(han | function, _CJK, classes)
    if marks.any():  # a mark belongs to what it stands on
        _inherit(script, marks)
    borders = np.flatnonzero(np.diff(script, prepend=0, append=0))
    run_of = script[borders[:-1]] if borders.size else script[:0]
    parts = [_characters(codes, script, han, function)]
    words = np.flatnonzero(run_of == _WORD)
    if words.size:
        parts.append(_words(folded, borders[words], borders[words + 1]))
    return TermPositions(*(np.concatenate(column) for column in zip(*parts, strict=True)))


def _inherit(script: NDArray[np.uint8], marks: NDArray[np.bool_]) -> None:
    index = np.where(marks, 0, np.arange(script.size))
    np.maximum.accumulate(index, out=index)
    script[:] = script[index]
    script[script == _MARK] = _WORD


def _characters(
    codes: NDArray[np.uint32], script: NDArray[np.uint8], han: NDArray[np.bool_], function: NDArray[np.bool_]
) -> tuple[Keys, NDArray[np.int64], NDArray[np.int64]]:
    dense = (script == _CJK) | (script == _SOUTHEAST)
    joined = dense[:-1] & (script[:-1] == script[1:])
    pairs = np.flatnonzero(joined)
    alone = dense.copy()
    alone[:-1] &= ~joined
    alone[1:] &= ~joined
    singles = np.flatnonzero(han | (alone & ~function))
    wide = codes.astype(np.uint64)
    return (
        np.concatenate([(wide[pairs] << _PAIR_SHIFT) | wide[pairs + 1], wide[singles]]),
        np.concatenate([pairs, singles]),
        np.concatenate([pairs + 2, singles + 1]),
    )


def _words(folded: str, starts: NDArray[np.int64], ends: NDArray[np.int64]) -> tuple[Keys, NDArray[np.int64], NDArray[np.int64]]:
    keys = [_word_key(folded[start:end]) for start, end in zip(starts.tolist(), ends.tolist(), strict=True)]
    kept = np.array([key is not None for key in keys])
    return np.array([key for key in keys if key is not None], np.uint64), starts[kept], ends[kept]


@dataclass(frozen=True, slots=True)
class TermCounts:
    """The distinct terms of a text: sorted ``keys``, how often each occurs, and the sum of ``counts`` as ``length``."""

    keys: Keys
    counts: NDArray[np.uint32]

    @property
    def length(self) -> int:
        """Return how many term occurrences the text has."""
        return int(self.counts.sum())


def count_terms(*texts: str) -> TermCounts:
    """Return the terms of the texts together; no term spans two of them."""
    keys, counts = np.unique(term_positions(fold("\n".join(texts)).text).keys, return_counts=True)
    return TermCounts(keys, counts.astype(np.uint32))


@dataclass(frozen=True, slots=True)
class QueryTerms:
    """The distinct terms of a question in order of first appearance, readable and as keys."""

    terms: tuple[str, ...]
    keys: Keys


def query_terms(question: str) -> QueryTerms:
    """Return the distinct terms of a question (Q5). A question without any gives an empty record."""
    folded = fold(question).text
    found = term_positions(folded)
    named: dict[int, str] = {}
    for place in np.lexsort((found.ends, found.starts)):
        text = folded[found.starts[place] : found.ends[place]]
        key = int(found.keys[place])
        named.setdefault(key, stem(text) if key >> 63 else text)
    return QueryTerms(tuple(named.values()), np.array(list(named), np.uint64))


@functools.cache
def _sentence_end() -> Any:
    import regex

    return regex.compile(r"(?:[。！？!?…；;]+[”’」』）)\"']*|\.[”’)\"']*(?=\s)|[\r\n])\s*")


def sentence_starts(text: str, start: int, end: int) -> list[int]:
    """Return where sentences, turns and lines begin in ``text[start:end]``, in order."""
    found = [match.end() for match in _sentence_end().finditer(text, max(start - _LOOK_BACK, 0), end)]
    return [place for place in ([0] if start == 0 else []) + found if start <= place < end]
