"""Fitting texts to a provider's limits: parts of long texts, batches of parts, and one vector per text again (BL-09)."""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby

import numpy as np
from numpy.typing import NDArray

from workbench.core.embedders.base import Vectors, unit_vectors
from workbench.core.event import is_blank

_ASCII_RUN = re.compile(r"[\x00-\x7f]+")
_ENDS = frozenset("。！？；，、.!?;,")


@dataclass(frozen=True, slots=True)
class Part:
    """One input of a call: a whole text, or a part of a long one, numbered from 1. ``tokens`` is an estimate."""

    name: str
    number: int
    of: int
    text: str
    tokens: int

    def __str__(self) -> str:
        return self.name if self.of == 1 else f"part {self.number} of {self.of} of {self.name}"


def estimate_tokens(text: str) -> int:
    """Return the estimated tokens of a text: a quarter of each run of ASCII, rounded up, and one per other code point."""
    if text.isascii():
        return -(-len(text) // 4)
    runs = [match.end() - match.start() for match in _ASCII_RUN.finditer(text)]
    return len(text) - sum(runs) + sum(-(-length // 4) for length in runs)


def split_text(text: str, limit: int) -> list[str]:
    """Return ``text`` in parts of at most ``limit`` estimated tokens, in order; they join to ``text`` but for blank parts.

    A part ends behind white space or punctuation where its last eighth has any. Blank parts are left out (S8), all but one
    of a text that is blank.
    """
    if estimate_tokens(text) <= limit:
        return [text]
    costs = _costs(text)
    reached = np.cumsum(costs)
    pieces, start = [], 0
    while start < len(text):
        before = int(reached[start]) - 1
        end = int(np.searchsorted(reached, before + limit, side="right"))
        if end < len(text):
            end = _soft_end(text, start, end)
        pieces.append(text[start:end])
        start = end
    return [piece for piece in pieces if not is_blank(piece)] or pieces[:1]


def _costs(text: str) -> NDArray[np.int64]:
    """Return 1 for each code point that begins a token by the estimate, else 0."""
    ascii_ = np.frombuffer(text.encode("utf-32-le"), np.uint32) < 128
    index = np.arange(ascii_.size)
    run_start = np.maximum.accumulate(np.where(ascii_, 0, index + 1))
    costs: NDArray[np.int64] = (~ascii_ | ((index - run_start) % 4 == 0)).astype(np.int64)
    return costs


def _soft_end(text: str, start: int, end: int) -> int:
    for place in range(end, end - (end - start) // 8, -1):
        if text[place - 1].isspace() or text[place - 1] in _ENDS:
            return place
    return end


def plan_parts(texts: Mapping[str, str], *, input_tokens: int) -> list[Part]:
    """Return the parts of all texts, given by what a message may call them, in order."""
    parts = []
    for name, text in texts.items():
        pieces = split_text(text, input_tokens)
        parts += [Part(name, number, len(pieces), piece, estimate_tokens(piece)) for number, piece in enumerate(pieces, 1)]
    return parts


def batches(parts: Sequence[Part], *, size: int, tokens: int) -> Iterator[list[Part]]:
    """Yield the parts in order, in batches of at most ``size`` parts and ``tokens`` estimated tokens, but at least one part."""
    batch: list[Part] = []
    total = 0
    for part in parts:
        if batch and (len(batch) == size or total + part.tokens > tokens):
            yield batch
            batch, total = [], 0
        batch.append(part)
        total += part.tokens
    if batch:
        yield batch


def describe(batch: Sequence[Part]) -> str:
    """Return which inputs a batch holds, for an error message; never their content."""
    return str(batch[0]) if len(batch) == 1 else f"{batch[0]} to {batch[-1]} ({len(batch)} inputs)"


def join_parts(parts: Sequence[Part], rows: Vectors) -> Vectors:
    """Return one unit vector per text: its part's, or the mean of its parts' weighted by their length, renormalised.

    :param parts: in the order of the texts.
    :param rows: a unit vector for each part.
    :return: a unit vector for each text.
    :raises EmbeddingFailed: if the parts' vectors cancel out; the message names the text.
    """
    joined, first = [], 0
    for name, group in groupby(parts, key=lambda part: part.name):
        weights = np.array([len(part.text) for part in group], np.float64)
        own = rows[first : first + weights.size]
        first += weights.size
        if weights.size > 1:
            mean = (weights[:, None] * own).sum(axis=0, keepdims=True) / weights.sum()
            own = unit_vectors(mean, count=1, dimension=rows.shape[1], what=f"{name}, the mean of {weights.size} parts")
        joined.append(own)
    return np.concatenate(joined)
