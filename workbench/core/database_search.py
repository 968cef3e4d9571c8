"""The tool ``memory_database_search``: search, read, expand and nearby under one name (retrieval.md sections 4 to 7)."""

from typing import TYPE_CHECKING, Any

from workbench.core.config import Config
from workbench.core.event import ID_LIMIT
from workbench.core.retrieval.neighbours import NEARBY_LIMIT
from workbench.core.tool_arguments import Arguments, Properties, Tool

if TYPE_CHECKING:
    from workbench.core.memory import Memory

_DATE_ZH, _DATE_EN = "日期 2026-03-01 或 RFC 3339 时刻", "a date 2026-03-01 or an RFC 3339 time"


class SearchArguments(Arguments):
    """``search``: a question, filters, or both."""

    query_text: str | None = None
    entity: str | list[str] | None = None
    written_from: str | None = None
    written_to: str | None = None
    label: str = "Event"
    limit: int | None = None
    reset_seen: bool = False

    def answer(self, memory: "Memory", session: str) -> dict[str, Any]:
        """Return the JSON of a search."""
        return memory.search(**{"limit": memory.config.retrieval.limit, **self.given()}, session=session).to_dict()


class ReadArguments(Arguments):
    """``read``: a piece of one event's text."""

    event_id: str
    start: int = 0
    limit: int | None = None

    def answer(self, memory: "Memory", session: str) -> dict[str, Any]:  # noqa: ARG002 - reading leaves no trace in a session
        """Return the JSON of a reading."""
        return memory.read(**self.given()).to_dict()


class ExpandArguments(Arguments):
    """``expand``: from a concept of an answer to the other events that mention it."""

    cursor: str
    concept_id: str
    limit: int | None = None

    def answer(self, memory: "Memory", session: str) -> dict[str, Any]:
        """Return the JSON of an expansion."""
        return memory.expand(**{"limit": memory.config.retrieval.limit, **self.given()}, session=session).to_dict()


class NearbyArguments(Arguments):
    """``nearby``: the records before and after an event."""

    cursor: str
    event_id: str
    before: int = 2
    after: int = 2

    def answer(self, memory: "Memory", session: str) -> dict[str, Any]:
        """Return the JSON of a look at the neighbours."""
        return memory.nearby(**self.given(), session=session).to_dict()


_OPERATIONS: dict[str, type[Arguments]] = {
    "search": SearchArguments,
    "read": ReadArguments,
    "expand": ExpandArguments,
    "nearby": NearbyArguments,
}


def _properties(config: Config) -> Properties:
    operation = _described(
        "string",
        "操作：search 检索（默认）、read 读原文、expand 沿概念追查、nearby 补读同章相邻记录。",
        "What to do: search (default), read a text, expand along a concept, nearby for the records beside one.",
        enum=list(_OPERATIONS),
        default="search",
    )
    return {"operation": operation, **_finding(config), **_reading(config), **_following()}


def _described(kind: str, zh: str, en: str, **more: object) -> dict[str, Any]:
    return {"type": kind, "description": f"{zh} {en}", **more}


def _finding(config: Config) -> Properties:
    names = {"type": "string"}
    return {
        "query_text": _described("string", "search：问题。", "search: the question.", maxLength=config.retrieval.question_limit),
        "entity": {
            "anyOf": [names, {"type": "array", "items": names}],
            "description": "search：概念或人物的 ID 或名称；多个须同时满足。 "
            "search: a concept or person by id or name; several mean all of them.",
        },
        "written_from": _described(
            "string", f"search：写入起点（{_DATE_ZH}），含。", f"search: written from {_DATE_EN}, inclusive."
        ),
        "written_to": _described(
            "string",
            f"search：写入终点（{_DATE_ZH}）；日期含当天，时刻不含。",
            f"search: written to {_DATE_EN}; a day is inclusive, a time is not.",
        ),
        "label": _described(
            "string",
            "search：检索对象；Person、Concept 按名称找节点。",
            "search: what to find; Person and Concept find nodes by name.",
            enum=["Event", "Person", "Concept"],
            default="Event",
        ),
        "reset_seen": _described(
            "boolean",
            "仅 search：为独立新问题先清除本会话的去重记录与旧 cursor。",
            "search only: for a new question, first clear what this session was given and its cursors.",
            default=False,
        ),
    }


def _reading(config: Config) -> Properties:
    limits = config.retrieval
    return {
        "event_id": _described(
            "string", "read、nearby：事件 ID。", "read, nearby: the event's id.", minLength=1, maxLength=ID_LIMIT
        ),
        "start": _described("integer", "read：起始字符偏移。", "read: offset of the first character.", minimum=0, default=0),
        "limit": _described(
            "integer",
            f"search、expand：1–{limits.max_limit}，每次最多交付 {limits.limit} 个新事件；"
            f"read：1–{limits.read_limit} 字符，默认 {limits.read_default}。",
            f"search, expand: 1 to {limits.max_limit}, at most {limits.limit} new events a call; "
            f"read: 1 to {limits.read_limit} characters, default {limits.read_default}.",
            minimum=1,
            maximum=max(limits.read_limit, limits.max_limit),
        ),
    }


def _following() -> Properties:
    beside = {"minimum": 0, "maximum": NEARBY_LIMIT, "default": 2}
    return {
        "cursor": _described(
            "string", "expand、nearby：此前结果的 cursor。", "expand, nearby: the cursor of an answer.", minLength=1
        ),
        "concept_id": _described(
            "string",
            "expand：该结果提供的概念 ID。",
            "expand: the id of a concept that this answer offers.",
            minLength=1,
            maxLength=ID_LIMIT,
        ),
        "before": _described("integer", "nearby：之前的记录数。", "nearby: how many records before.", **beside),
        "after": _described("integer", "nearby：之后的记录数。", "nearby: how many records after.", **beside),
    }


DATABASE_SEARCH = Tool(
    "memory_database_search",
    "检索长期记忆并核对原文。search 返回摘要与原文摘录；摘要须以原文核实，可用 read 读全文，用 expand、nearby 追查。"
    "同一会话已交付的事件不再返回；空结果不证明记忆不存在，排序分不是置信度。 "
    "Search long-term memory and check it against the original texts. search gives summaries with verbatim excerpts; "
    "verify a summary with read, follow up with expand and nearby. Events given before in this session are not given again; "
    "an empty result does not show that no memory exists, and a rank score is no confidence.",
    _properties,
    _OPERATIONS,
)
