"""What a language model sees: schemas, checked calls, and answers as text (api.md, Retrieval)."""

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import workbench
from tests.support import Clock
from workbench import Config, CursorInvalid, Event, InvalidRequest, Memory, NotFound, Reading, RetrievalConfig, SearchResult
from workbench.core.database_search import DATABASE_SEARCH
from workbench.core.rendering import render
from workbench.core.results import NodeResult, Notice, OfferedConcept, QuoteRef, Result, delivered_excluded
from workbench.core.retrieval.evidence import Excerpt
from workbench.core.retrieval.neighbours import NEARBY_LIMIT

TOOL = "memory_database_search"
HAN = re.compile(r"[\u3000-\u303f\u3400-\u9fff\uff00-\uffef]")
LATIN = re.compile(r"[a-zA-Z]")
SECRET = "secretsecret"
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
ODD = "odd \r\n\x0b\x0c\x1b\x1c\x85\u2028\u2029 end"


@pytest.fixture
def memory(clock: Clock) -> Iterator[Memory]:
    with workbench.open_memory("sqlite://", embedder=workbench.embedders.HashingEmbedder(), clock=clock) as opened:
        opened.save_many(
            Event(
                id=f"novel_ch1_e{number}",
                title=f"Record {number}",
                summary=f"How Neo4j was deployed, part {number}",
                content=f"The deployment of Neo4j, told in part {number // 2}.\nThen it went on.",
                concepts=("Neo4j", "deployment"),
                persons=("Ada",),
            )
            for number in range(1, 10)
        )
        yield opened


def call(memory: Memory, session: str = "default", **arguments: Any) -> dict[str, Any]:
    return memory.tools.call(TOOL, arguments, session=session)


def parameters(memory: Memory) -> dict[str, Any]:
    (schema,) = memory.tools.schemas()
    found: dict[str, Any] = schema["function"]["parameters"]
    return found


# -- schemas ---------------------------------------------------------------------------------------------------------------


def test_the_schema_states_every_argument_of_every_operation_and_no_other(memory: Memory) -> None:
    """Q15, section 4: one entry with four operations."""
    (schema,) = memory.tools.schemas()
    assert schema["type"] == "function"
    assert schema["function"]["name"] == TOOL
    stated = parameters(memory)
    assert (stated["type"], stated["additionalProperties"], stated["required"]) == ("object", False, [])
    taken = {name for model in DATABASE_SEARCH.operations.values() for name in model.model_fields}
    assert set(stated["properties"]) == {"operation"} | taken
    assert stated["properties"]["operation"]["enum"] == ["search", "read", "expand", "nearby"]
    assert "session" not in taken
    json.dumps(schema, allow_nan=False)


def test_the_bounds_are_those_of_the_config() -> None:
    """ARCHITECTURE 2.8: nothing is configured by literals."""
    limits = RetrievalConfig(limit=2, max_limit=3, question_limit=50, read_limit=70, read_default=60)
    with workbench.open_memory(
        "sqlite://", embedder=workbench.embedders.HashingEmbedder(), config=Config(retrieval=limits)
    ) as memory:
        stated = parameters(memory)["properties"]
        assert stated["query_text"]["maxLength"] == 50
        assert (stated["limit"]["minimum"], stated["limit"]["maximum"]) == (1, 70)
        assert "at most 2 new events" in stated["limit"]["description"]
        memory.save_many(Event(summary=f"summary {number}", content=f"{number} " + "x" * 100) for number in range(5))
        assert len(call(memory, query_text="summary")["results"]) == 2
        assert call(memory, operation="read", event_id="event_1")["range"] == [0, 60]
        with pytest.raises(InvalidRequest, match="query_text"):
            call(memory, query_text="x" * 51)


def test_the_bound_of_nearby_is_the_one_that_memory_holds(memory: Memory) -> None:
    """C3."""
    stated = parameters(memory)["properties"]
    assert stated["before"]["maximum"] == stated["after"]["maximum"] == NEARBY_LIMIT
    cursor = call(memory, query_text="Neo4j", limit=1)
    near = {"operation": "nearby", "cursor": cursor["cursor"], "event_id": cursor["results"][0]["id"]}
    assert call(memory, **near, before=NEARBY_LIMIT, after=NEARBY_LIMIT)["results"]
    with pytest.raises(InvalidRequest, match="before"):
        call(memory, **near, before=NEARBY_LIMIT + 1)


def test_descriptions_are_chinese_with_english_beside(memory: Memory) -> None:
    (schema,) = memory.tools.schemas()
    descriptions = [schema["function"]["description"], *(each["description"] for each in parameters(memory)["properties"].values())]
    assert all(HAN.search(each) and LATIN.search(each) and len(each) <= 1024 for each in descriptions)


def test_a_changed_schema_is_the_callers_copy(memory: Memory) -> None:
    parameters(memory)["properties"].clear()
    parameters(memory)["properties"]["operation"]["enum"].clear()
    assert len(parameters(memory)["properties"]["operation"]["enum"]) == 4


# -- calls -----------------------------------------------------------------------------------------------------------------


def test_each_operation_answers_with_the_json_of_its_method(memory: Memory) -> None:
    """api.md, Retrieval: plain JSON, the same as the objects give."""
    found = call(memory, query_text="Neo4j deployment", limit=1)
    again = memory.search("Neo4j deployment", limit=1, session="other").to_dict()
    assert found | {"cursor": None} == again | {"cursor": None}
    event_id, concept = found["results"][0]["id"], found["concepts"][0]["id"]
    assert call(memory, operation="read", event_id=event_id, start=4, limit=3)["text"] == memory.get(event_id).event.content[4:7]
    spread = call(memory, operation="expand", cursor=found["cursor"], concept_id=concept, limit=2)
    assert (spread["operation"], len(spread["results"]), spread["chainRemaining"]) == ("expand", 2, 17)
    near = call(memory, operation="nearby", cursor=found["cursor"], event_id=event_id, before=3, after=3)
    assert near["operation"] == "nearby"
    nodes = call(memory, query_text="Ada", label="Person")
    assert [node["name"] for node in nodes["results"]] == ["Ada"]
    for answer in (found, spread, near, nodes):
        assert json.loads(json.dumps(answer, allow_nan=False)) == answer


def test_entity_is_one_or_several_and_dates_bound_the_listing(memory: Memory) -> None:
    """Q2, Q9."""
    assert len(call(memory, entity="Neo4j")["results"]) == 4
    assert len(call(memory, "two", entity=["Neo4j", "Ada"])["results"]) == 4
    assert call(memory, "three", written_to="2026-02-28")["results"] == []
    assert len(call(memory, "three", written_from="2026-03-01", written_to="2026-03-01")["results"]) == 4


def test_an_explicit_null_is_an_argument_left_out(memory: Memory) -> None:
    """Models in strict mode send every argument, null where it does not apply."""
    nothing: dict[str, Any] = dict.fromkeys(parameters(memory)["properties"])
    assert len(call(memory, **nothing | {"query_text": "Neo4j"})["results"]) == 4
    assert call(memory, **nothing | {"operation": "read", "event_id": "novel_ch1_e1"})["range"][0] == 0
    with pytest.raises(InvalidRequest, match="needs event_id"):
        call(memory, **nothing | {"operation": "read"})


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ({"query_text": SECRET, "limit": "4"}, "limit must be a whole number, not a string"),
        ({"query_text": SECRET, "limit": 4.0}, "limit must be a whole number"),
        ({"query_text": SECRET, "limit": True}, "limit must be a whole number"),
        ({"query_text": SECRET, "limit": 9}, "limit must be a whole number from 1 to 8"),
        ({"query_text": SECRET, "limit": 0}, "limit"),
        ({"query_text": [SECRET]}, "query_text must be a string, not a list"),
        ({"query_text": SECRET + "\ud800"}, "query_text"),
        ({"query_text": SECRET * 200}, "query_text"),
        ({"entity": [SECRET, 4]}, "entity must be a string or a list of strings"),
        ({"entity": {SECRET: SECRET}}, "entity must be a string or a list of strings, not an object"),
        ({"query_text": SECRET, "reset_seen": 1}, "reset_seen must be true or false"),
        ({"query_text": SECRET, "label": SECRET}, "label"),
        ({"written_from": SECRET}, "written_from"),
        ({"query_text": SECRET, "session": SECRET}, "session is no argument of memory_database_search"),
        ({"query_text": SECRET, "explain": None}, "explain is no argument"),
        ({"query_text": SECRET, "cursor": SECRET}, "cursor belongs to expand and nearby, not to search"),
        ({"operation": SECRET}, "operation is not known; use one of search, read, expand, nearby"),
        ({"operation": [SECRET]}, "operation"),
        ({}, "query_text"),
        ({"operation": "read"}, "read needs event_id; give a string"),
        ({"operation": "read", "event_id": "novel_ch1_e1", "limit": 10_001}, "limit must be a whole number from 1 to 10,000"),
        ({"operation": "read", "event_id": "novel_ch1_e1", "start": -1}, "start"),
        ({"operation": "read", "event_id": "novel_ch1_e1", "cursor": SECRET}, "cursor belongs to expand and nearby, not to read"),
        ({"operation": "expand", "cursor": SECRET}, "expand needs concept_id"),
        ({"operation": "expand", "cursor": SECRET, "concept_id": SECRET, "reset_seen": False}, "reset_seen belongs to search"),
        ({"operation": "nearby", "cursor": SECRET, "event_id": SECRET, "limit": 2}, "limit belongs to search and read and expand"),
        ({"operation": "nearby", "cursor": SECRET, "event_id": SECRET, "before": 11}, "before"),
    ],
)
def test_a_bad_argument_is_refused_by_name_and_its_value_is_not_repeated(
    memory: Memory, arguments: dict[str, Any], named: str
) -> None:
    """Q15, H4, F1, C3: nothing is coerced; the message says which argument and what to do."""
    with pytest.raises(InvalidRequest) as caught:
        memory.tools.call(TOOL, arguments)
    assert named in str(caught.value)
    assert SECRET not in str(caught.value)
    assert caught.value.__cause__ is None


@pytest.mark.parametrize("arguments", ['{"query_text": "Neo4j"}', [["query_text", "Neo4j"]], None, 4])
def test_arguments_that_are_no_object_are_refused(memory: Memory, arguments: Any) -> None:
    with pytest.raises(InvalidRequest, match="must be a JSON object"):
        memory.tools.call(TOOL, arguments)


@pytest.mark.parametrize("name", [SECRET, "", None, [TOOL]])
def test_an_unknown_tool_is_refused(memory: Memory, name: Any) -> None:
    with pytest.raises(InvalidRequest, match=TOOL) as caught:
        memory.tools.call(name, {})
    assert SECRET not in str(caught.value)


def test_a_strange_argument_name_can_not_break_the_message(memory: Memory) -> None:
    with pytest.raises(InvalidRequest) as caught:
        memory.tools.call(TOOL, {"a\nb\ud800" + "x" * 500: 1, 7: 2})  # type: ignore[dict-item]
    assert len(str(caught.value).splitlines()) == 1
    assert len(str(caught.value).encode()) < 500


def test_errors_of_the_library_pass_unchanged(memory: Memory) -> None:
    """F2, C8."""
    with pytest.raises(NotFound):
        call(memory, operation="read", event_id="event_99")
    with pytest.raises(CursorInvalid) as caught:
        call(memory, operation="expand", cursor="none", concept_id="concept_1")
    assert caught.value.reason == "unknown"


def test_the_session_is_the_hosts(memory: Memory) -> None:
    """H1, H2: two sessions do not see each other's history, and a refused call leaves none."""
    first = [each["id"] for each in call(memory, "a", query_text="Neo4j")["results"]]
    with pytest.raises(InvalidRequest):
        call(memory, "b", query_text="Neo4j", limit=9)
    assert [each["id"] for each in call(memory, "b", query_text="Neo4j")["results"]] == first
    assert not {each["id"] for each in call(memory, "a", query_text="Neo4j")["results"]} & set(first)
    again = call(memory, "a", query_text="Neo4j", reset_seen=True)
    assert [each["id"] for each in again["results"]] == first
    with pytest.raises(InvalidRequest, match="session"):
        call(memory, "", query_text="Neo4j")


def test_importing_the_package_loads_no_pydantic() -> None:
    """ARCHITECTURE 1: importing workbench loads numpy and the standard library only."""
    code = "import sys, workbench; print([name for name in ('pydantic', 'mcp', 'httpx', 'rich') if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


# -- what a model is shown -------------------------------------------------------------------------------------------------


def result(**fields: Any) -> Result:
    values: dict[str, Any] = {
        "id": "event_12",
        "title": "A title",
        "summary": "A summary",
        "written_at": datetime(2026, 3, 1, 9, 30, 0, 250, tzinfo=UTC),
        "content_length": 5120,
        "excerpt": Excerpt("An excerpt", 680, 690),
        "quote_ref": None,
        "routes": ("summary",),
        "rank_score": 0.0483,
        "notices": (),
    }
    return Result(**values | fields)


def test_an_answer_reads_like_this(memory: Memory) -> None:
    """V1, V4, V5, C1, Q11: id, title, date, summary and evidence of each event; the ways onward; the notices."""
    quoted = result(id="event_13", title="", excerpt=None, quote_ref=QuoteRef("event_7", (0, 120)), notices=("superseded",))
    answer = SearchResult(
        "search",
        (result(excerpt=Excerpt("one\r\ntwo\nthree\x1b", 680, 696)), quoted),
        cursor="abc",
        concepts=(OfferedConcept("concept_3", "Neo4j", ("event_12", "event_13")),),
        chain_remaining=16,
        notices=(Notice("verifySummary", "中文。", "English."),),
    )
    assert memory.tools.render(answer).splitlines() == [
        "本次交付 2 个事件：",
        "[1] event_12 · 2026-03-01T09:30:00Z · 全文 5120 字符 · A title",
        "  摘要：A summary",
        "  原文[680,696)：one⏎two⏎three ",
        "[2] event_13 · 2026-03-01T09:30:00Z · 全文 5120 字符",
        "  摘要：A summary",
        "  原文同 event_7[0,120)",
        "  注意：该记录已被后来的记录取代。",
        "可用 expand 追查的概念：",
        "- concept_3 Neo4j（见 event_12, event_13）",
        "cursor：abc",
        "本追查链还可交付 16 个事件。",
        "提示：中文。",
    ]
    english = memory.tools.render(answer, locale="en")
    assert "  same text as event_7[0,120)" in english.splitlines()
    assert "Notice: English." in english
    assert not HAN.search(english)
    assert "confidence" not in english
    assert "0.0483" not in english


def test_a_dict_is_shown_like_the_object_in_either_language(memory: Memory) -> None:
    """Also after the host has sent it through JSON."""
    shown: list[SearchResult | Reading] = [
        memory.search("Neo4j"),
        memory.search("Neo4j"),
        memory.search("no such thing", written_to="2020-01-01"),
        memory.search("Ada", label="Person", limit=8),
        memory.read("novel_ch1_e1", limit=5),
        SearchResult("nearby", (), chain_remaining=3, notices=(delivered_excluded(2, [f"a{ODD}_ch1_e1", "b_ch1_e2"]),)),
    ]
    for answer in shown:
        for locale in ("zh", "en"):
            text = memory.tools.render(answer, locale=locale)
            assert memory.tools.render(answer.to_dict(), locale=locale) == text
            assert memory.tools.render(json.loads(json.dumps(answer.to_dict())), locale=locale) == text
            assert bool(HAN.search(text)) == (locale == "zh")


def test_a_repeated_quote_is_a_reference(memory: Memory) -> None:
    """V5: equal texts of neighbours; the second delivery refers to the first."""
    ids = ("novel_ch1_e2", "novel_ch1_e3")
    texts = [memory.tools.render(call(memory, written_from="2026-03-01")) for _ in range(3)]
    lines = [line.strip() for text in texts for line in text.splitlines()]
    span = [0, len(memory.get(ids[0]).event.content)]
    references = {f"原文同 {event_id}[{span[0]},{span[1]})" for event_id in ids}
    assert len(references & set(lines)) == 1


def test_hints_of_an_event_are_told(memory: Memory, clock: Clock) -> None:
    """S6, V2, F2."""
    clock.forward(days=1)
    memory.save_many([Event(id="old", summary="An old one", content="old text")], chunks=False)
    memory.save(Event(id="long", summary="A long one", content="word " * 7000))
    memory.supersede("novel_ch1_e1", by="long")
    assert "没有原文分块" in memory.tools.render(memory.search("An old one", limit=1))
    assert "go on with read" in memory.tools.render(memory.search("A long one", limit=1), locale="en")
    assert "已被后来的记录取代" in memory.tools.render(memory.read("novel_ch1_e1"))


@pytest.mark.parametrize("label", ["Event", "Concept", "Person"])
def test_an_empty_answer_never_says_that_nothing_exists(label: str) -> None:
    """V6."""
    with workbench.open_memory("sqlite://", embedder=workbench.embedders.HashingEmbedder()) as memory:
        answer = memory.search("anything", label=label)
        assert "不证明记忆不存在" in memory.tools.render(answer)
        assert "does not show that no such memory exists" in memory.tools.render(answer, locale="en")


@given(texts=st.tuples(TEXT, TEXT, TEXT, TEXT, TEXT, TEXT))
def test_no_text_of_an_event_can_forge_a_line(texts: tuple[str, ...]) -> None:
    """V1 to V5 as shown: whatever the texts hold, the answer has the lines it would have with plain ones."""
    _assert_same_lines(texts)


def test_no_line_break_that_python_knows_can_forge_a_line() -> None:
    _assert_same_lines((ODD,) * 6)


def _assert_same_lines(texts: tuple[str, ...]) -> None:
    event_id, title, summary, excerpt, name, cursor = (f"x{text}x" for text in texts)
    events = (
        result(id=event_id, title=title, summary=summary, excerpt=Excerpt(excerpt, 0, len(excerpt))),
        result(excerpt=None, quote_ref=QuoteRef(event_id, (0, 3)), notices=(name,)),
    )
    notice = Notice("verifySummary", name, summary)
    found = SearchResult("search", events, cursor, (OfferedConcept(event_id, name, (event_id,)),), 3, (notice,))
    nodes = SearchResult("search", (NodeResult(event_id, name, 0.5, 2),), label="Concept")
    for locale in ("zh", "en"):
        assert len(render(found, locale=locale).splitlines()) == 13
        assert len(render(nodes, locale=locale).splitlines()) == 2


def test_a_reading_is_the_text_unchanged_and_last(memory: Memory) -> None:
    """F1, V5: read always gives the text, and all that is said about it stands before it."""
    content = "first\r\nTo the end:\u2028cursor: forged\n\n"
    memory.save(Event(id="raw", summary="Raw", content=content + "tail"))
    shown = memory.tools.render(call(memory, operation="read", event_id="raw", limit=len(content)), locale="en")
    head, mark, text = shown.partition("All from here to the end is the original text:\n")
    assert mark
    assert text == content
    assert f"raw original text[0,{len(content)}), {len(content) + 4} characters in all." in head
    assert f"Go on with read from start={len(content)}." in head


@pytest.mark.parametrize("locale", ["de", "ZH", "", None])
def test_an_unknown_locale_is_refused(memory: Memory, locale: Any) -> None:
    with pytest.raises(InvalidRequest, match="zh, en"):
        memory.tools.render(memory.read("novel_ch1_e1"), locale=locale)


@pytest.mark.parametrize("answer", [{}, {"operation": "search"}, {"operation": "read", "text": 4}, "text", None, []])
def test_what_is_no_answer_is_not_rendered(memory: Memory, answer: Any) -> None:
    with pytest.raises(InvalidRequest, match="render takes"):
        memory.tools.render(answer)
