"""Answers as text: what a language model is shown of a search, a follow-up or a reading (retrieval.md section 5).

Everything an event or a concept says of itself stands on one line, so no title, summary, name, id or excerpt can forge a
line of the answer: line breaks and control characters become one space, and in an excerpt each line break is shown as ⏎.
A reading is the text itself, unchanged; it comes last, and the line before it says that nothing but the text follows.
"""

import re
from collections.abc import Iterator, Mapping
from typing import Any

from workbench.core.errors import InvalidRequest
from workbench.core.results import Notice, Reading, SearchResult, one_line

LOCALES = ("zh", "en")
_LINE_BREAK = re.compile("\r\n|[\n\r\v\f\x1c-\x1e\x85\u2028\u2029]")
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")

_WORDS = {
    "zh": {
        "found": "本次交付 {count} 个事件：",
        "none": "本次没有交付新事件。",
        "event": "[{place}] {id} · {written} · 全文 {length} 字符{title}",
        "summary": "摘要：{text}",
        "excerpt": "原文[{start},{end})：{text}",
        "quote": "原文同 {id}[{start},{end})",
        "hint": "注意：{text}",
        "concepts": "可用 expand 追查的概念：",
        "concept": "- {id} {name}（见 {events}）",
        "cursor": "cursor：{cursor}",
        "chain": "本追查链还可交付 {count} 个事件。",
        "notice": "提示：{text}",
        "nodes": "{label} 节点 {count} 个：",
        "no nodes": "没有按名称找到 {label} 节点；这不证明记忆不存在。",
        "node": "- {id} {name}（名称相似度 {similarity:.3f}，事件 {count} 个）",
        "reading": "{id} 原文[{start},{end})，全文 {length} 字符。",
        "next": "后文请用 read 从 start={start} 继续。",
        "text": "以下至末尾全部是原文：",
    },
    "en": {
        "found": "Events delivered: {count}",
        "none": "This call delivered no new event.",
        "event": "[{place}] {id} · {written} · {length} characters{title}",
        "summary": "summary: {text}",
        "excerpt": "original text[{start},{end}): {text}",
        "quote": "same text as {id}[{start},{end})",
        "hint": "note: {text}",
        "concepts": "Concepts to follow with expand:",
        "concept": "- {id} {name} (in {events})",
        "cursor": "cursor: {cursor}",
        "chain": "Events this chain may still deliver: {count}",
        "notice": "Notice: {text}",
        "nodes": "{label} nodes: {count}",
        "no nodes": "No {label} node was found by name; this does not show that no such memory exists.",
        "node": "- {id} {name} (name similarity {similarity:.3f}, events: {count})",
        "reading": "{id} original text[{start},{end}), {length} characters in all.",
        "next": "Go on with read from start={start}.",
        "text": "All from here to the end is the original text:",
    },
}
_HINTS = (
    Notice(
        "sourceChunksMissing",
        "该事件没有原文分块，只能按摘要检索；重新向量化可补齐。",
        "This event has no source chunks and is found by its summary only; re-embedding adds them.",
    ),
    Notice(
        "continueWithRead",
        "原文长于摘录的选取范围，请用 read 继续阅读。",
        "The text goes on past what the excerpt was chosen from; go on with read.",
    ),
    Notice("superseded", "该记录已被后来的记录取代。", "A later record has superseded this one."),
)
_HINT_OF = {hint.code: hint for hint in _HINTS}


def render(answer: SearchResult | Reading | Mapping[str, Any], *, locale: str = "zh") -> str:
    """Return an answer as the text that a language model is shown.

    The same answer gives the same text, whether it is the object or its JSON.

    :param answer: what search, read, expand, nearby or ``tools.call`` returned.
    :param locale: ``zh`` or ``en``.
    :return: lines of text. In an excerpt ⏎ stands for a line break; a reading's text is unchanged and comes last.
    :raises InvalidRequest: if the locale is not known or ``answer`` is no such answer.
    """
    check_locale(locale)
    shown = answer.to_dict() if isinstance(answer, SearchResult | Reading) else answer
    try:
        return "\n".join(_lines(shown, locale))
    except (AttributeError, LookupError, TypeError, ValueError):
        raise InvalidRequest("render takes a SearchResult, a Reading or the dict that tools.call returned.") from None


def check_locale(locale: object) -> None:
    """Refuse a language that answers are not rendered in.

    :param locale: what a caller asked for.
    :raises InvalidRequest: naming the languages there are.
    """
    if locale not in LOCALES:
        raise InvalidRequest(f"locale is not known; use one of {', '.join(LOCALES)}.")


def _lines(shown: Mapping[str, Any], locale: str) -> Iterator[str]:
    if shown["operation"] == "read":
        return _reading(shown, locale)
    return _nodes(shown, locale) if "label" in shown else _events(shown, locale)


def _events(shown: Mapping[str, Any], locale: str) -> Iterator[str]:
    words, results = _WORDS[locale], shown["results"]
    yield words["found" if results else "none"].format(count=len(results))
    for place, result in enumerate(results, 1):
        yield from _event(place, result, locale)
    if shown["concepts"]:
        yield words["concepts"]
    for concept in shown["concepts"]:
        events = ", ".join(map(one_line, concept["eventIds"]))
        yield words["concept"].format(id=one_line(concept["id"]), name=one_line(concept["name"]), events=events)
    if shown["cursor"] is not None:
        yield words["cursor"].format(cursor=one_line(shown["cursor"]))
    if shown["chainRemaining"] is not None:
        yield words["chain"].format(count=shown["chainRemaining"])
    for each in shown["notices"]:
        notice = Notice.parse(each["code"], each["message"])
        yield words["notice"].format(text=notice.zh if locale == "zh" else notice.en)


def _event(place: int, result: Mapping[str, Any], locale: str) -> Iterator[str]:
    words, title = _WORDS[locale], one_line(result["title"])
    yield words["event"].format(
        place=place,
        id=one_line(result["id"]),
        written=re.sub(r"\.[0-9]+", "", one_line(result["writtenAt"])),
        length=result["contentLength"],
        title=f" · {title}" if title else "",
    )
    yield f"  {words['summary'].format(text=one_line(result['summary']))}"
    yield f"  {_evidence(result, words)}"
    for code in result["notices"]:
        yield f"  {_hint(code, locale)}"


def _evidence(result: Mapping[str, Any], words: Mapping[str, str]) -> str:
    if "excerpt" in result:
        start, end = result["excerpt"]["range"]
        return words["excerpt"].format(start=start, end=end, text=_on_one_line(result["excerpt"]["text"]))
    start, end = result["quoteRef"]["range"]
    return words["quote"].format(id=one_line(result["quoteRef"]["id"]), start=start, end=end)


def _on_one_line(excerpt: str) -> str:
    """Return an excerpt with ⏎ for each line break and a space for each other control character."""
    return _CONTROL.sub(" ", _LINE_BREAK.sub("⏎", excerpt))


def _hint(code: str, locale: str) -> str:
    hint = _HINT_OF.get(code) or Notice(code, code, code)
    return _WORDS[locale]["hint"].format(text=hint.zh if locale == "zh" else hint.en)


def _nodes(shown: Mapping[str, Any], locale: str) -> Iterator[str]:
    words, nodes, label = _WORDS[locale], shown["results"], one_line(shown["label"])
    yield words["nodes" if nodes else "no nodes"].format(label=label, count=len(nodes))
    for node in nodes:
        yield words["node"].format(
            id=one_line(node["id"]), name=one_line(node["name"]), similarity=node["similarity"], count=node["eventCount"]
        )


def _reading(shown: Mapping[str, Any], locale: str) -> Iterator[str]:
    words, (start, end) = _WORDS[locale], shown["range"]
    yield words["reading"].format(id=one_line(shown["id"]), start=start, end=end, length=shown["contentLength"])
    if shown.get("next") is not None:
        yield words["next"].format(start=shown["next"])
    for code in shown.get("notices", ()):
        yield _hint(code, locale)
    yield words["text"]
    yield shown["text"]
