"""What a search answers: frozen records, their JSON of api.md, and the notices (section 5)."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from workbench.core.event import rfc3339
from workbench.core.retrieval.evidence import Excerpt
from workbench.core.retrieval.explanation import Explanation

Range = tuple[int, int]
_BREAKS = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]+")


def one_line(text: str) -> str:
    """Return ``text`` with every run of line breaks and control characters as one space, and none at its ends."""
    return _BREAKS.sub(" ", text).strip()


@dataclass(frozen=True, slots=True)
class Notice:
    """Something the reader of an answer has to know, in two languages of one line each."""

    code: str
    zh: str
    en: str

    def __post_init__(self) -> None:
        object.__setattr__(self, "zh", one_line(self.zh))
        object.__setattr__(self, "en", one_line(self.en))

    @property
    def message(self) -> str:
        """Return both languages: a line of Chinese, then a line of English."""
        return f"{self.zh}\n{self.en}"

    @classmethod
    def parse(cls, code: str, message: str) -> "Notice":
        """Return the notice that has this message, so that an answer in JSON can be shown in one language."""
        zh, _, en = message.partition("\n")
        return cls(code, zh, en or zh)


@dataclass(frozen=True, slots=True)
class QuoteRef:
    """An excerpt that this session has seen already: where (V5)."""

    id: str
    range: Range


@dataclass(frozen=True, slots=True)
class Result:
    """One delivered event. Exactly one of ``excerpt`` and ``quote_ref`` is set. ``rank_score`` is no confidence (Q11)."""

    id: str
    title: str
    summary: str
    written_at: datetime
    content_length: int
    excerpt: Excerpt | None
    quote_ref: QuoteRef | None
    routes: tuple[str, ...]
    rank_score: float | None
    notices: tuple[str, ...]

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON of api.md."""
        if self.excerpt is not None:
            quoted: dict[str, Any] = {"excerpt": {"text": self.excerpt.text, "range": list(self.excerpt.range)}}
        else:
            assert self.quote_ref is not None
            quoted = {"quoteRef": {"id": self.quote_ref.id, "range": list(self.quote_ref.range)}}
        return {
            "id": self.id,
            "title": self.title,
            "summary": self.summary,
            "writtenAt": rfc3339(self.written_at),
            "contentLength": self.content_length,
            **quoted,
            "routes": list(self.routes),
            "rankScore": self.rank_score,
            "notices": list(self.notices),
        }


@dataclass(frozen=True, slots=True)
class OfferedConcept:
    """A way onward: a concept that delivered events mention (C1)."""

    id: str
    name: str
    event_ids: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class NodeResult:
    """A concept or person found by its name (Q14)."""

    id: str
    name: str
    similarity: float
    event_count: int

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON of api.md."""
        return {"id": self.id, "name": self.name, "similarity": self.similarity, "eventCount": self.event_count}


@dataclass(frozen=True, slots=True)
class SearchResult:
    """The answer of search, expand and nearby. With ``label`` Person or Concept, ``results`` holds nodes and the rest is empty."""

    operation: str
    results: tuple[Result, ...] | tuple[NodeResult, ...]
    cursor: str | None = None
    concepts: tuple[OfferedConcept, ...] = ()
    chain_remaining: int | None = None
    notices: tuple[Notice, ...] = ()
    label: str = "Event"
    explanation: Explanation | None = None

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON of api.md."""
        results = [result.to_dict() for result in self.results]
        if self.label != "Event":
            return {"operation": self.operation, "label": self.label, "results": results}
        return {
            "operation": self.operation,
            "results": results,
            "cursor": self.cursor,
            "concepts": [{"id": each.id, "name": each.name, "eventIds": list(each.event_ids)} for each in self.concepts],
            "chainRemaining": self.chain_remaining,
            "notices": [{"code": notice.code, "message": notice.message} for notice in self.notices],
        }


@dataclass(frozen=True, slots=True)
class Reading:
    """A piece of an event's text; ``next`` is where to read on, None at the end (F1)."""

    id: str
    text: str
    range: Range
    content_length: int
    next: int | None
    notices: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON of api.md: ``next`` and ``notices`` only where there are some."""
        answer: dict[str, Any] = {
            "operation": "read",
            "id": self.id,
            "text": self.text,
            "range": list(self.range),
            "contentLength": self.content_length,
        }
        if self.next is not None:
            answer["next"] = self.next
        if self.notices:
            answer["notices"] = list(self.notices)
        return answer


VERIFY_SUMMARY = Notice("verifySummary", "摘要须以原文核实。", "Check a summary against the original text.")
NO_CAUSALITY = Notice(
    "noCausality",
    "共享概念或记录相邻不证明因果或先后。",
    "A shared concept or a neighbouring record proves neither cause nor order.",
)


APPROXIMATE = Notice(
    "approximate",
    "候选来自近似向量索引，可能漏掉个别记录；列出的相似度与次序为精确值。",
    "An approximate vector index chose the candidates and may miss some events; the scores and order of those found are exact.",
)


def delivered_excluded(count: int, named: Sequence[str] = ()) -> Notice:
    """Return the notice that events already delivered in this session were left out; nearby names them (C7)."""
    names = f"（{', '.join(named)}）" if named else ""
    names_en = f" ({', '.join(named)})" if named else ""
    return Notice(
        "deliveredExcluded",
        f"已排除本会话交付过的 {count} 条记录{names}。",
        f"{count} events already delivered in this session were left out{names_en}.",
    )


def empty_is_not_absence(applied: Sequence[tuple[str, str]]) -> Notice:
    """Return the notice of an empty answer, naming what was applied: pairs of Chinese and English (V6)."""
    zh, en = "、".join(pair[0] for pair in applied), ", ".join(pair[1] for pair in applied)
    return Notice(
        "emptyIsNotAbsence",
        f"空结果不证明记忆不存在。{f'已应用：{zh}。' if zh else ''}",
        f"An empty result does not show that no such memory exists.{f' Applied: {en}.' if en else ''}",
    )


def chain_limit(remaining: int) -> Notice:
    """Return the notice that the chain has no room for a whole batch (C4)."""
    return Notice(
        "chainLimit",
        f"本追查链还可交付 {remaining} 条；要继续请重新检索。",
        f"This chain may deliver {remaining} more events; search again to go on.",
    )
