"""Cutting a text into overlapping spans (S1, S11). A span is a half-open range of code points."""

import operator
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

from workbench.core.errors import InvalidRequest
from workbench.core.event import is_blank

Span = tuple[int, int]


class Chunker(Protocol):
    """A callable from a text to its spans, with a ``name`` that the library records."""

    @property
    def name(self) -> str:
        """Return the name under which the library records this way of chunking (S11)."""

    def __call__(self, text: str, /) -> Sequence[Span]:
        """Return the spans of ``text``, in order."""


@dataclass(frozen=True, slots=True)
class FixedChunker:
    """Spans of ``size`` code points, each overlapping the one before by ``overlap`` (S1)."""

    size: int = 800
    overlap: int = 120

    @property
    def name(self) -> str:
        """Return ``fixed/<size>/<overlap>``."""
        return f"fixed/{self.size}/{self.overlap}"

    def __call__(self, text: str, /) -> list[Span]:
        """Return the spans of ``text``: none for an empty one, the last may be shorter."""
        step, length = self.size - self.overlap, len(text)
        starts = range(0, max(length - self.overlap, min(length, 1)), step)
        return [(start, min(start + self.size, length)) for start in starts]


def spans_of(chunker: Chunker, text: str) -> list[Span]:
    """Return the chunker's spans of ``text`` after checking them (S11).

    :param chunker: how to cut; what it raises is not passed on.
    :param text: what to cut.
    :return: the spans, in order.
    :raises InvalidRequest: if the chunker fails, or its spans are not in order, leave the text, or miss a visible character.
    """
    try:
        spans = [(operator.index(start), operator.index(end)) for start, end in chunker(text)]
    except Exception as error:
        raise InvalidRequest(
            f"the chunker {chunker.name!r} raised {type(error).__name__} or returned no list of (start, end); nothing was saved."
        ) from None
    reached = 0
    for before, (start, end) in zip([(-1, 0), *spans], spans, strict=False):
        if not 0 <= start < end <= len(text) or start <= before[0] or end <= before[1]:
            raise InvalidRequest(
                f"the chunker {chunker.name!r} returned a span out of order or outside the text: [{start}, {end})."
            )
        _check_gap(chunker, text, reached, start)
        reached = end
    _check_gap(chunker, text, reached, len(text))
    return spans


def _check_gap(chunker: Chunker, text: str, reached: int, start: int) -> None:
    if not is_blank(text[reached:start]):
        raise InvalidRequest(f"the chunker {chunker.name!r} left visible text out: [{reached}, {start}). Spans must cover it.")


def visible_spans(text: str, spans: Iterable[Span]) -> list[bool]:
    """Return for each span whether it holds a visible character, and so is embedded (S8)."""
    return [not is_blank(text[start:end]) for start, end in spans]
