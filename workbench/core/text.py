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
from collections.abc import Iterable, Iterator
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
_SECOND = np.uint64((1 << 21) - 1)
_ASCII = 127
_JAMO = "\u1160", "\u11ff"
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


_UNKNOWN = 0xFFFFFFFF
_FOLDS = np.full(_TABLE_SIZE, _UNKNOWN, np.uint32)
"""Each code point's fold, a space where it becomes several; filled as texts bring code points along."""
_LONGER, _JOINS = 1, 2
_SPECIAL = np.zeros(_TABLE_SIZE, np.uint8)
"""Which code points become several, and which may join the one before them: marks, and vowels and finals of Hangul."""


def fold(text: str) -> Folded:
    """Return ``text`` under NFKC and case folding, with positions kept or mapped."""
    if text.isascii():
        return Folded(text.lower())
    codes = np.minimum(_codes(text), _TABLE_SIZE - 1)
    folds = _FOLDS[codes]
    if (folds == _UNKNOWN).any():
        _learn_folds(text)
        folds = _FOLDS[codes]
    folded, special = folds.astype("<u4").tobytes().decode("utf-32-le"), _SPECIAL[codes]
    if not special.any():
        return Folded(folded)
    mapped = _patched(text, folded, np.flatnonzero(special).tolist(), special == _JOINS)
    return mapped if unicodedata.is_normalized("NFC", mapped.text) else _fold_clusters(text)


def _patched(text: str, folded: str, special: list[int], marks: NDArray[np.bool_]) -> Folded:
    """Return the fold where some characters become longer or join the one before them; the others keep their places."""
    spans: list[tuple[int, int]] = []
    for place in special:
        start = place - 1 if marks[place] and place else place
        if spans and start < spans[-1][1]:
            start = spans.pop()[0]
        spans.append((start, place + 1))
    pieces, starts, ends, reached = list[str](), list[NDArray[np.int64]](), list[NDArray[np.int64]](), 0
    for start, end in [*spans, (len(text), len(text))]:
        kept, piece = np.arange(reached, start), _fold_cluster(text[start:end]) if start < end else ""
        pieces += [folded[reached:start], piece]
        starts += [kept, np.full(len(piece), start)]
        ends += [kept + 1, np.full(len(piece), end)]
        reached = end
    return Folded("".join(pieces), np.concatenate(starts), np.concatenate(ends))


def _codes(text: str) -> NDArray[np.uint32]:
    return np.frombuffer(text.encode("utf-32-le"), "<u4")


def _learn_folds(text: str) -> None:
    for char in set(text):
        code, folded = min(ord(char), _TABLE_SIZE - 1), _fold_cluster(char)
        joins = any(_is_mark(each) or _JAMO[0] <= each <= _JAMO[1] for each in (char, folded[0]))
        _SPECIAL[code] = _JOINS if joins else _LONGER if len(folded) > 1 else 0
        _FOLDS[code] = ord(folded) if len(folded) == 1 else ord(" ")


def _is_mark(char: str) -> bool:
    return bool(_class_table()[min(ord(char), _TABLE_SIZE - 1)] == _MARK)


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


@functools.lru_cache(maxsize=65_536)
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
    codes, classes = _classified(folded)
    script = _scripts(classes)
    starts, ends = _runs(script, _WORD)
    keys = list(map(_word_key, _slices(folded, starts, ends)))
    kept = np.array([key is not None for key in keys], bool)
    words = np.array([key for key in keys if key is not None], np.uint64), starts[kept], ends[kept]
    return TermPositions(*(np.concatenate(pair) for pair in zip(words, _characters(codes, classes, script), strict=True)))


def _classified(folded: str) -> tuple[NDArray[Any], NDArray[np.uint8]]:
    """Return the code points of a text, those beyond the table as its last, which is of no class, and their classes."""
    if folded.isascii():
        codes: NDArray[Any] = np.frombuffer(folded.encode("ascii"), np.uint8)
    else:
        codes = np.minimum(_codes(folded), _TABLE_SIZE - 1)
    return codes, _class_table()[codes]


_SCRIPTS = np.array([0, _WORD, _CJK, _CJK, _SOUTHEAST, _MARK, _CJK], np.uint8)
"""What a character of each class is in a run of: words, Han with Kana and Hangul, Southeast Asian."""


def _scripts(classes: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Return the script of each character; a mark has that of the character that it stands on."""
    script = _SCRIPTS[classes]
    marks = script == _MARK
    if marks.any():
        index = np.where(marks, 0, np.arange(script.size))
        np.maximum.accumulate(index, out=index)
        script = script[index]
        script[script == _MARK] = 0  # nothing stands before it
    return script


def _runs(script: NDArray[np.uint8], wanted: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return where the runs of one script begin and end."""
    inside = np.zeros(script.size + 2, bool)
    np.equal(script, wanted, out=inside[1:-1])
    borders = np.flatnonzero(inside[1:] != inside[:-1])
    return borders[::2], borders[1::2]


def _slices(text: str, starts: NDArray[np.int64], ends: NDArray[np.int64]) -> Iterator[str]:
    return map(text.__getitem__, map(slice, starts.tolist(), ends.tolist()))


def _characters(
    codes: NDArray[Any], classes: NDArray[np.uint8], script: NDArray[np.uint8], among: NDArray[np.bool_] | None = None
) -> tuple[Keys, NDArray[np.int64], NDArray[np.int64]]:
    """Return pairs of neighbours in a run, single Han characters, and characters that are a run by themselves.

    :param codes: of the text.
    :param classes: of the same characters.
    :param script: of the same characters.
    :param among: by code point, with which characters a term must begin; None for any.
    :return: keys, starts and ends.
    """
    dense = (script == _CJK) | (script == _SOUTHEAST)
    joined = np.zeros(codes.size + 1, bool)  # with the character before
    np.equal(script[:-1], script[1:], out=joined[1:-1])
    places = np.flatnonzero(dense if among is None else dense & among[codes])
    before, after = joined[places], joined[places + 1]
    pairs, own = places[after], classes[places]
    singles = places[(own == _HAN) | ~(before | after | (own == _FUNCTION))]
    first, second = codes[pairs].astype(np.uint64), codes[pairs + 1].astype(np.uint64)
    return (
        np.concatenate([(first << _PAIR_SHIFT) | second, codes[singles].astype(np.uint64)]),
        np.concatenate([pairs, singles]),
        np.concatenate([pairs + 2, singles + 1]),
    )


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
    for start, end, key in sorted(zip(found.starts.tolist(), found.ends.tolist(), found.keys.tolist(), strict=True)):
        if key not in named:
            named[key] = stem(folded[start:end]) if key >> 63 else folded[start:end]
    return QueryTerms(tuple(named.values()), np.array(list(named), np.uint64))


_NARROW_LIMIT = 1 << 16


def narrow_keys(keys: Keys) -> tuple[NDArray[np.uint32], NDArray[np.bool_]]:
    """Return the keys that fit 32 bits in such a form, in their order, and which of ``keys`` they are: of terms of one or two
    characters of the Basic Multilingual Plane.
    """
    first, second = keys >> _PAIR_SHIFT, keys & _SECOND
    able = (first < _NARROW_LIMIT) & (second < _NARROW_LIMIT)
    return ((first[able] << np.uint64(16)) | second[able]).astype(np.uint32), able


def wide_keys(narrow: NDArray[np.uint32]) -> Keys:
    """Return the keys of :func:`narrow_keys` in their full form."""
    wide = narrow.astype(np.uint64)
    return ((wide >> np.uint64(16)) << _PAIR_SHIFT) | (wide & np.uint64(_NARROW_LIMIT - 1))


_SPREAD = {8: np.uint64(0x9E3779B97F4A7C15), 4: np.uint32(0x9E3779B1)}
"""Odd numbers near the golden section of 2 to the 64 and 32 (multiplicative hashing: Knuth, volume 3, section 6.4)."""


class WantedKeys:
    """A few wanted keys, to be found among many by a table of 16-bit hashes, which most keys do not share with a wanted one.

    :param keys: distinct, 64 or 32 bits each; they are numbered in this order.
    """

    def __init__(self, keys: NDArray[Any]) -> None:
        self.size = keys.size
        self._order = np.argsort(keys)
        self._sorted = keys[self._order]
        self._likely = np.zeros(1 << 16, bool)
        self._likely[_hashes(keys)] = True

    def find(self, keys: NDArray[Any]) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
        """Return where wanted keys stand, in order, and their numbers.

        :param keys: of the same width.
        :return: two arrays of one length.
        """
        there = np.flatnonzero(self._likely.take(_hashes(keys)))
        if not there.size:
            return there, there
        found = keys[there]
        place = np.minimum(np.searchsorted(self._sorted, found), self._sorted.size - 1)
        hit = self._sorted[place] == found
        return there[hit], self._order[place[hit]]


def _hashes(keys: NDArray[Any]) -> NDArray[np.uint16]:
    width = keys.dtype.itemsize
    hashes: NDArray[np.uint16] = (keys * _SPREAD[width] >> keys.dtype.type(8 * width - 16)).astype(np.uint16)
    return hashes


class TermFinder:
    """Finds a question's terms in texts; the same occurrences as :func:`term_positions` has, without stemming every word.

    :param question: the terms to find; they are numbered in this order.
    """

    def __init__(self, question: QueryTerms) -> None:
        self._wanted = WantedKeys(question.keys)
        self._numbers = {key: number for number, key in enumerate(question.keys.tolist()) if key >> 63}
        self._characters = np.zeros(_TABLE_SIZE, bool)
        self._characters[
            [ord(term[0]) for term, key in zip(question.terms, question.keys.tolist(), strict=True) if not key >> 63]
        ] = True
        self._beginnings = _beginnings(question.terms[number] for number in self._numbers.values())

    def find(self, text: str) -> list[tuple[int, int, int]]:
        """Return start, end and number of every occurrence, in order.

        :param text: as it stands in the event; the offsets are its code points.
        :return: the occurrences.
        """
        folded = fold(text)
        codes, classes = _classified(folded.text)
        script = _scripts(classes)
        found = [*self._find_characters(codes, classes, script), *self._find_words(folded.text, codes, script)]
        if folded.starts is not None and folded.ends is not None:
            found = [(int(folded.starts[start]), int(folded.ends[end - 1]), number) for start, end, number in found]
        return sorted(found)

    def _find_characters(
        self, codes: NDArray[Any], classes: NDArray[np.uint8], script: NDArray[np.uint8]
    ) -> Iterable[tuple[int, int, int]]:
        if self._wanted.size == len(self._numbers):
            return ()
        keys, starts, ends = _characters(codes, classes, script, self._characters)
        places, numbers = self._wanted.find(keys)
        return zip(starts[places].tolist(), ends[places].tolist(), numbers.tolist(), strict=True)

    def _find_words(self, folded: str, codes: NDArray[Any], script: NDArray[np.uint8]) -> Iterator[tuple[int, int, int]]:
        if not self._numbers:
            return
        starts, ends = _runs(script, _WORD)
        if starts.size:
            able = self._can_be_wanted(codes, starts, ends)
            starts, ends = starts[able], ends[able]
        keys = map(_word_key, _slices(folded, starts, ends))
        for start, end, key in zip(starts.tolist(), ends.tolist(), keys, strict=True):
            if key in self._numbers:
                yield start, end, self._numbers[key]

    def _can_be_wanted(self, codes: NDArray[Any], starts: NDArray[np.int64], ends: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Return which words begin like a wanted stem. A word that does not begin with ASCII is never ruled out."""
        first = codes[starts].astype(np.int64)
        second = np.where(ends - starts > 1, codes[np.minimum(starts + 1, codes.size - 1)], 0)
        ascii_ = (first <= _ASCII) & (second <= _ASCII)
        return ~ascii_ | self._beginnings[np.where(ascii_, (first << 7) | second, 0)]


def _beginnings(stems: Iterable[str]) -> NDArray[np.bool_]:
    """Return a table of the first two ASCII characters that words of these stems have.

    An English stem keeps both, but for one letter with ``-ying``, whose stem ends in ``-ie``.
    """
    table = np.zeros(1 << 14, bool)
    for stem_ in stems:
        if stem_[:2].isascii():
            first, second = ord(stem_[0]), ord(stem_[1]) if len(stem_) > 1 else 0
            table[(first << 7) | second] = True
            if second == ord("i"):
                table[(first << 7) | ord("y")] = True
    return table


@functools.cache
def _sentence_end() -> Any:
    import regex

    return regex.compile(r"(?:[。！？!?…；;]+[”’」』）)\"']*|\.[”’)\"']*(?=\s)|[\r\n])\s*")


def sentence_starts(text: str, start: int, end: int) -> list[int]:
    """Return where sentences, turns and lines begin in ``text[start:end]``, in order."""
    found = [match.end() for match in _sentence_end().finditer(text, max(start - _LOOK_BACK, 0), end)]
    return [place for place in ([0] if start == 0 else []) + found if start <= place < end]
