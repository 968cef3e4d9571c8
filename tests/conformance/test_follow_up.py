"""Reading and following up as retrieval.md section 7, F2, C7 and C8 state them, on every store."""

import contextlib
import sqlite3
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from tests.support import START, Clock, OpenLibrary, TableEmbedder, ids, numbered
from workbench import (
    Config,
    CursorInvalid,
    Event,
    InvalidRequest,
    Memory,
    ModelMismatch,
    NotFound,
    SearchResult,
    SessionConfig,
    WorkbenchError,
)

FAMILY = "👩‍👩‍👧‍👦"


def concept(result: SearchResult, name: str = "图") -> str:
    return next(each.id for each in result.concepts if each.name == name)


def cursor(result: SearchResult) -> str:
    assert result.cursor is not None
    return result.cursor


def codes(result: SearchResult) -> list[str]:
    return [notice.code for notice in result.notices]


def told(result: SearchResult, code: str) -> str:
    """Return the message of a notice."""
    return next(str(notice["message"]) for notice in result.to_dict()["notices"] if notice["code"] == code)


def records(memory: Memory, names: Sequence[str], **fields: Any) -> None:
    """Save events that all share a concept and have one of their own, an hour apart."""
    memory.save_many(
        [
            Event(
                id=name,
                summary=f"summary {name}",
                content=f"content of {name}",
                concepts=("图", f"k {name}"),
                written_at=START + timedelta(hours=n),
                **fields,
            )
            for n, name in enumerate(names)
        ]
    )


def chapter(memory: Memory, numbers: Sequence[int | str], *, prefix: str = "b_ch1_e", **fields: Any) -> None:
    records(memory, [f"{prefix}{number}" for number in numbers], **fields)


def deliver(memory: Memory, name: str, **arguments: Any) -> SearchResult:
    """Deliver one event by its own concept."""
    result = memory.search(entity=f"k {name}", **arguments)
    assert ids(result.results) == [name]
    return result


def found(memory: Memory, name: str, **arguments: Any) -> SearchResult:
    """Deliver one event by a question for its summary, without a filter."""
    result = memory.search(f"summary {name}", limit=1, **arguments)
    assert ids(result.results) == [name]
    return result


def reason(memory: Memory, result: SearchResult, *, session: str = "default", name: str = "图") -> str:
    """Return why a cursor is broken; both operations that take one must agree."""
    reasons = []
    with pytest.raises(CursorInvalid) as caught:
        memory.expand(cursor(result), concept(result, name), session=session)
    reasons.append(caught.value.reason)
    with pytest.raises(CursorInvalid) as caught:
        memory.nearby(cursor(result), ids(result.results)[0], session=session)
    reasons.append(caught.value.reason)
    assert caught.value.code == "cursor_invalid"
    assert len(str(caught.value)) > 20
    assert reasons[0] == reasons[1]
    return reasons[0]


# -- F1, F2: read --------------------------------------------------------------------------------------------------------

MIXED = "\ufeff" + "a" * 797 + FAMILY + "e\u0301" + "𠮷" * 300 + "\u200f\u05d0\u05d1\u200f\r\n\r end" + "字" * 900


@pytest.mark.parametrize("limit", [1, 7, 1600, 10_000])
def test_pages_concatenate_to_the_text(memory: Memory, limit: int) -> None:
    """retrieval.md F1, S1, faults.md BL-03: text, range, total length and next, in code points; every page exact."""
    memory.save(Event(id="a", summary="s", content=MIXED))
    start, pages = 0, []
    while True:
        page = memory.tools.call("memory_database_search", {"operation": "read", "event_id": "a", "start": start, "limit": limit})
        end = min(start + limit, len(MIXED))
        expected = {"operation": "read", "id": "a", "text": MIXED[start:end], "range": [start, end], "contentLength": len(MIXED)}
        assert page == (expected | {"next": end} if end < len(MIXED) else expected)
        pages.append(page["text"])
        if "next" not in page:
            break
        start = page["next"]
    assert "".join(pages) == MIXED


def test_reading_by_default_gives_1600(memory: Memory) -> None:
    """retrieval.md F1: start 0, limit 1,600; the Python object has the same names."""
    memory.save(Event(id="a", summary="s", content="字" * 1601))
    page = memory.read("a")
    assert (page.id, page.text, tuple(page.range), page.content_length, page.next) == ("a", "字" * 1600, (0, 1600), 1601, 1600)
    last = memory.read("a", start=1600)
    assert (last.text, tuple(last.range), last.next) == ("字", (1600, 1601), None)
    assert memory.read("a", limit=10_000).next is None


@pytest.mark.parametrize("length", [0, 1, 500])
def test_reading_at_the_very_end(memory: Memory, length: int) -> None:
    """retrieval.md F2: start equal to the length gives an empty text without next; beyond it is refused."""
    memory.save(Event(id="a", summary="s", content="字" * length))
    page = memory.read("a", start=length)
    assert page.to_dict() == {"operation": "read", "id": "a", "text": "", "range": [length, length], "contentLength": length}
    with pytest.raises(InvalidRequest):
        memory.read("a", start=length + 1)


@pytest.mark.parametrize(
    "arguments",
    [
        {"limit": 0},
        {"limit": 10_001},
        {"limit": -1},
        {"limit": True},
        {"limit": 1.0},
        {"limit": "7"},
        {"start": -1},
        {"start": 0.0},
        {"start": True},
        {"start": 2**70},
    ],
)
def test_reading_is_refused_out_of_range(memory: Memory, arguments: dict[str, Any]) -> None:
    """retrieval.md F1: limit 1 to 10,000, start from 0; everything else is refused, by the tool too."""
    memory.save(Event(id="a", summary="s", content="abc"))
    with pytest.raises(InvalidRequest):
        memory.read("a", **arguments)
    with pytest.raises(InvalidRequest):
        memory.tools.call("memory_database_search", {"operation": "read", "event_id": "a"} | arguments)


def test_reading_needs_no_embedder_and_takes_no_slot(memory: Memory, embedder: TableEmbedder) -> None:
    """retrieval.md F1: no cursor, no embedder, no delivery."""
    records(memory, ["a", "b"])
    first = deliver(memory, "a")
    embedded = len(embedder.documents)
    for _ in range(50):
        assert memory.read("b").text == "content of b"
    assert (embedder.queries, len(embedder.documents)) == ([], embedded)
    grown = memory.expand(cursor(first), concept(first, "k a"))
    assert grown.chain_remaining == 19
    assert ids(memory.search(entity="k b").results) == ["b"]


@pytest.mark.parametrize("hide", ["forget", "archive", "revoke"])
def test_a_hidden_event_reads_like_an_unknown_one(memory: Memory, hide: str) -> None:
    """retrieval.md F2: the same NotFound as an unknown id; memory.get still shows it; a restore undoes it."""
    records(memory, ["a"])
    getattr(memory, hide)("a")
    with pytest.raises(NotFound) as hidden:
        memory.read("a")
    with pytest.raises(NotFound) as unknown:
        memory.read("never")
    assert str(hidden.value).replace("'a'", "'never'") == str(unknown.value)
    assert (hidden.value.code, hidden.value.retryable) == (unknown.value.code, unknown.value.retryable)
    assert memory.get("a").event.content == "content of a"
    memory.restore("a")
    assert memory.read("a").text == "content of a"


def test_a_superseded_event_reads_with_a_notice(memory: Memory) -> None:
    """retrieval.md F2, api.md: notices only where there are some."""
    records(memory, ["a", "b"])
    memory.supersede("a", by="b")
    page = memory.read("a").to_dict()
    assert (page["text"], page["notices"]) == ("content of a", ["superseded"])
    assert "notices" not in memory.read("b").to_dict()


def test_reading_after_an_update_gives_the_new_text(memory: Memory) -> None:
    """retrieval.md F1, S5: read always gives what is stored now."""
    memory.save(Event(id="a", summary="s", content="old " * 1000))
    memory.save(Event(id="a", summary="s", content="new"))
    assert memory.read("a").to_dict() == {"operation": "read", "id": "a", "text": "new", "range": [0, 3], "contentLength": 3}


# -- C1: cursors and concepts come from what was delivered ----------------------------------------------------------------


def test_concepts_are_those_of_the_delivered_events(memory: Memory) -> None:
    """retrieval.md C1: candidates that were not delivered offer nothing, and no event is named that was not delivered."""
    records(memory, [f"e{n}" for n in range(9)])
    result = memory.search("content", limit=2)
    delivered = ids(result.results)
    assert {each.name for each in result.concepts} == {"图", *[f"k {name}" for name in delivered]}
    assert {event for each in result.concepts for event in each.event_ids} == set(delivered)
    assert set(next(each.event_ids for each in result.concepts if each.name == "图")) == set(delivered)
    grown = memory.expand(cursor(result), concept(result), limit=2)
    new = ids(grown.results)
    assert {event for each in grown.concepts for event in each.event_ids} == set(new)
    assert {each.name for each in grown.concepts} == {"图", *[f"k {name}" for name in new]}


def test_an_event_without_concepts_offers_none(memory: Memory) -> None:
    """retrieval.md C1, C2: persons are no way onward; the cursor is given all the same."""
    memory.save(Event(id="b_ch1_e1", summary="s", persons=("Ann",)))
    memory.save(Event(id="b_ch1_e2", summary="t", persons=("Ann",)))
    result = memory.search(entity="Ann", limit=1)
    assert result.concepts == ()
    assert len(memory.nearby(cursor(result), ids(result.results)[0]).results) == 1


def test_an_empty_call_gives_no_cursor_and_leaves_its_own_valid(memory: Memory) -> None:
    """retrieval.md C1, C7: a call that delivered nothing returns none, and the cursor it was given stays valid."""
    chapter(memory, [1, 2])
    first = deliver(memory, "b_ch1_e1")
    for _ in range(3):
        empty = memory.expand(cursor(first), concept(first, "k b_ch1_e1"))
        assert (empty.results, empty.cursor, empty.concepts, empty.chain_remaining) == ((), None, (), 19)
        assert "emptyIsNotAbsence" in codes(empty)
        beside = memory.nearby(cursor(first), "b_ch1_e1", before=0, after=0)
        assert (beside.results, beside.cursor, beside.concepts, beside.chain_remaining) == ((), None, (), 19)
        assert beside.notices
    assert ids(memory.nearby(cursor(first), "b_ch1_e1").results) == ["b_ch1_e2"]


# -- C2: expand ----------------------------------------------------------------------------------------------------------


def test_expand_ranks_by_the_original_question(memory: Memory, embedder: TableEmbedder) -> None:
    """retrieval.md C2, Q13: the pipeline, filters and vector of a search narrowed to the concept, and no embedder call."""
    records(memory, [f"e{n:02}" for n in range(30)])
    question = "content of e07 and e21"
    first = memory.search(question, limit=3, session="one")
    twin = memory.search(question, limit=3, session="two")
    assert ids(first.results) == ids(twin.results)
    questions, documents = len(embedder.queries), len(embedder.documents)
    grown = memory.expand(cursor(first), concept(first), session="one", explain=True)
    assert (len(embedder.queries), len(embedder.documents)) == (questions, documents)
    narrowed = memory.search(question, entity="图", session="two", explain=True)
    assert ids(grown.results) == ids(narrowed.results)
    assert grown.explanation is not None
    assert narrowed.explanation is not None
    assert grown.explanation.rows == narrowed.explanation.rows
    assert grown.explanation.terms == narrowed.explanation.terms
    assert [each.rank_score for each in grown.results] == [each.rank_score for each in narrowed.results]  # type: ignore[union-attr]
    assert grown.operation == "expand"


def test_expand_keeps_the_filters(memory: Memory) -> None:
    """retrieval.md C2: the date and entity filters of the search hold for every expansion along its chain."""
    records(memory, [f"day{n}" for n in range(6)], persons=("Ann",))
    records(memory, ["stranger"], persons=("Bo",))
    window = {"written_from": START + timedelta(hours=1), "written_to": START + timedelta(hours=5)}
    for question in (None, "content"):
        session = f"filters {question}"
        first = memory.search(question, entity="Ann", limit=1, session=session, **window)  # type: ignore[arg-type]
        seen = ids(first.results)
        answer = first
        while True:
            step = memory.expand(cursor(answer), concept(answer), limit=1, session=session)
            if not step.results:
                break
            answer = step
            seen += ids(step.results)
        assert sorted(seen) == ["day1", "day2", "day3", "day4"]


def test_expand_without_a_question_is_newest_first(memory: Memory) -> None:
    """retrieval.md C2, Q9: newest written first, with a null rankScore."""
    records(memory, [f"e{n}" for n in range(8)])
    first = deliver_newest(memory)
    grown = memory.expand(cursor(first), concept(first))
    assert ids(grown.results) == ["e6", "e5", "e4", "e3"]
    assert {each.rank_score for each in grown.results} == {None}  # type: ignore[union-attr]


def deliver_newest(memory: Memory) -> SearchResult:
    result = memory.search(entity="图", limit=1)
    assert len(result.results) == 1
    return result


def test_only_an_offered_concept_is_accepted(memory: Memory) -> None:
    """retrieval.md C2: neither another cursor's concept, nor an undelivered event's, nor an invented one, nor a name."""
    records(memory, ["a", "b", "c"])
    of_a, of_b = found(memory, "a"), found(memory, "b")
    never = next(each.id for each in memory.search("k c", label="Concept", limit=8).results if each.name == "k c")  # type: ignore[union-attr]
    for wrong in (concept(of_b, "k b"), never, "concept_999", "图", "k a", concept(of_a).upper(), f" {concept(of_a)}"):
        with pytest.raises(WorkbenchError) as caught:
            memory.expand(cursor(of_a), wrong)
        assert not isinstance(caught.value, CursorInvalid)
    assert ids(memory.expand(cursor(of_a), concept(of_a)).results) == ["c"]


def test_expand_follows_concepts_not_persons_or_tags(memory: Memory) -> None:
    """retrieval.md C2: Event -MENTIONS-> Concept <-MENTIONS- Event, nothing else."""
    memory.save(Event(id="a", summary="a", concepts=("图",), persons=("Ann",), tags=("t",)))
    memory.save(Event(id="mentions", summary="b", concepts=("图",)))
    memory.save(Event(id="involves", summary="c", persons=("Ann", "图"), tags=("t", "图")))
    first = memory.search(entity=["Ann", "图"], limit=8)
    assert "a" in ids(first.results)
    plain = memory.search("a", session="2", limit=1)
    assert ids(plain.results) == ["a"]
    assert ids(memory.expand(cursor(plain), concept(plain), session="2").results) == ["mentions"]


@pytest.mark.parametrize("limit", range(1, 9))
def test_expand_delivers_at_most_four(memory: Memory, limit: int) -> None:
    """retrieval.md C2: limits 1 to 8 are accepted, at most 4 are new."""
    records(memory, [f"e{n}" for n in range(9)])
    first = deliver_newest(memory)
    grown = memory.expand(cursor(first), concept(first), limit=limit)
    assert len(grown.results) == min(limit, 4)
    assert grown.chain_remaining == 19 - min(limit, 4)


@pytest.mark.parametrize("limit", [0, 9, -1, True, 2.0, "3"])
def test_expand_refuses_other_limits(memory: Memory, limit: Any) -> None:
    """retrieval.md C2, Q15: a limit outside 1 to 8 is refused and takes nothing."""
    records(memory, ["a", "b"])
    first = found(memory, "a")
    with pytest.raises(InvalidRequest):
        memory.expand(cursor(first), concept(first), limit=limit)
    assert ids(memory.expand(cursor(first), concept(first)).results) == ["b"]


def test_expand_sees_hidden_and_new_events_as_they_are_now(memory: Memory) -> None:
    """retrieval.md C2, Q2: visibility and links are those of the moment."""
    records(memory, ["a", "b", "c"])
    first = found(memory, "a")
    memory.archive("b")
    memory.save(Event(id="d", summary="new", concepts=("图",), written_at=START))
    memory.save(Event(id="c", summary="no longer linked"))
    assert ids(memory.expand(cursor(first), concept(first)).results) == ["d"]


def test_expand_works_when_the_embedder_is_down(open_library: OpenLibrary) -> None:
    """retrieval.md C2: the question's vector is kept, so nothing is embedded again."""

    class Once(TableEmbedder):
        def embed_query(self, text: str) -> Any:
            if self.queries:
                raise RuntimeError("down")
            return super().embed_query(text)

    memory = open_library(embedder=Once())
    records(memory, [f"e{n}" for n in range(9)])
    first = memory.search("content")
    assert len(memory.expand(cursor(first), concept(first)).results) == 4


# -- C3, C7: nearby ------------------------------------------------------------------------------------------------------


def nearby(memory: Memory, name: str, **arguments: int) -> list[str]:
    """Return the numbers of the neighbours that a fresh session is given."""
    session = f"nearby {name} {arguments}"
    result = memory.nearby(cursor(deliver(memory, name, session=session)), name, session=session, **arguments)
    assert result.operation == "nearby"
    return [each.removeprefix("b_ch1_e") for each in ids(result.results)]


def test_two_before_and_two_after_by_number(memory: Memory) -> None:
    """retrieval.md C3: by default two each, numeric (e9 before e10), in number order, whatever was saved or written first."""
    chapter(memory, [11, 9, 10, 1, 2, 8, 12, 100, 7])
    assert nearby(memory, "b_ch1_e10") == ["8", "9", "11", "12"]
    assert nearby(memory, "b_ch1_e12") == ["10", "11", "100"]
    assert nearby(memory, "b_ch1_e1") == ["2", "7"]
    assert nearby(memory, "b_ch1_e100") == ["11", "12"]


def test_gaps_are_no_neighbours(memory: Memory) -> None:
    """retrieval.md C7: before and after count the existing records, not the numbers."""
    chapter(memory, ["03", "20", "7", "500", "021"])
    assert nearby(memory, "b_ch1_e20", before=1, after=1) == ["7", "021"]
    assert nearby(memory, "b_ch1_e20", before=2, after=2) == ["03", "7", "021", "500"]


def test_zeros_before_a_number_do_not_count(memory: Memory) -> None:
    """retrieval.md C3, C7: e06 = 6; e6 and e06 are two neighbours of one number, ordered by id."""
    chapter(memory, ["5", "6", "06", "7"])
    assert nearby(memory, "b_ch1_e5", before=0, after=2) == ["06", "6"]
    assert nearby(memory, "b_ch1_e5", before=0, after=1) == ["06"]
    assert nearby(memory, "b_ch1_e7", before=2, after=0) == ["06", "6"]
    assert nearby(memory, "b_ch1_e7", before=1, after=0) == ["6"]
    assert nearby(memory, "b_ch1_e6", before=2, after=2) == ["5", "06", "7"]
    assert nearby(memory, "b_ch1_e06", before=2, after=2) == ["5", "6", "7"]


def test_only_the_same_prefix_and_chapter(memory: Memory) -> None:
    """retrieval.md C3: neighbours share prefix and chapter; any other id is none, however alike."""
    chapter(memory, [5])
    others = ["b_ch2_e6", "c_ch1_e6", "bb_ch1_e6", "B_ch1_e6", "b_ch1_e", "b_ch1_ex6", "b_ch1_e6x", "b_ch1_e-6", "b_ch11_e6"]
    records(memory, [*others, "b_ch1_f6", "b_ch_e6", "bxch1xe6", "b_ch1_e6_ch1_e6", "xb_ch1_e6", "b_ch1_e6 "])
    assert nearby(memory, "b_ch1_e5", before=10, after=10) == []
    chapter(memory, [6])
    assert nearby(memory, "b_ch1_e5", before=10, after=9) == ["6"]


@pytest.mark.parametrize("prefix", ["event", "a_ch2_e3", "书%", "b_", "%", "x y", "[a-z]*"])
def test_any_prefix_is_literal(memory: Memory, prefix: str) -> None:
    """retrieval.md C3, faults.md BL-41: the prefix is any text and matches literally."""
    chapter(memory, [1, 2, 3], prefix=f"{prefix}_ch33_e")
    chapter(memory, [4], prefix="decoy_ch33_e")
    chapter(memory, [4], prefix=f"z{prefix}_ch33_e")
    first = deliver(memory, f"{prefix}_ch33_e2")
    assert ids(memory.nearby(cursor(first), f"{prefix}_ch33_e2").results) == [f"{prefix}_ch33_e1", f"{prefix}_ch33_e3"]


def test_nearest_first_when_the_limit_cuts(memory: Memory) -> None:
    """retrieval.md C3: at most 4, the nearest of those asked for, returned in number order."""
    chapter(memory, range(1, 21))
    assert nearby(memory, "b_ch1_e10", before=10, after=10) == ["8", "9", "11", "12"]
    assert nearby(memory, "b_ch1_e10", before=1, after=10) == ["9", "11", "12", "13"]
    assert nearby(memory, "b_ch1_e10", before=10, after=1) == ["7", "8", "9", "11"]
    assert nearby(memory, "b_ch1_e10", before=0, after=10) == ["11", "12", "13", "14"]
    assert nearby(memory, "b_ch1_e10", before=10, after=0) == ["6", "7", "8", "9"]
    assert nearby(memory, "b_ch1_e2", before=10, after=10) == ["1", "3", "4", "5"]


def test_nearest_first_when_the_chain_cuts(open_library: OpenLibrary) -> None:
    """retrieval.md C3, C4: with two slots left, the two nearest come, in number order."""
    memory = open_library(config=Config(session=SessionConfig(chain_limit=3)))
    chapter(memory, range(1, 21))
    first = deliver(memory, "b_ch1_e10")
    assert first.chain_remaining == 2
    result = memory.nearby(cursor(first), "b_ch1_e10", before=5, after=5)
    assert ids(result.results) == ["b_ch1_e9", "b_ch1_e11"]
    assert result.chain_remaining == 0
    assert "chainLimit" in codes(result)


def test_delivered_neighbours_count_and_are_named(memory: Memory) -> None:
    """retrieval.md C7: they take their place among before and after, are not delivered again, and the notice names them."""
    chapter(memory, range(1, 10))
    deliver(memory, "b_ch1_e6")
    deliver(memory, "b_ch1_e3")
    first = deliver(memory, "b_ch1_e5")
    result = memory.nearby(cursor(first), "b_ch1_e5")
    assert ids(result.results) == ["b_ch1_e4", "b_ch1_e7"]
    message = told(result, "deliveredExcluded")
    assert "b_ch1_e6" in message
    assert "b_ch1_e3" in message
    assert "b_ch1_e8" not in message
    again = memory.nearby(cursor(first), "b_ch1_e5", before=1, after=1)
    assert again.results == ()
    assert {"deliveredExcluded", "emptyIsNotAbsence"} <= set(codes(again))
    assert all(name in told(again, "deliveredExcluded") for name in ("b_ch1_e4", "b_ch1_e6"))
    assert ids(memory.nearby(cursor(first), "b_ch1_e5", before=3, after=3).results) == ["b_ch1_e2", "b_ch1_e8"]


def test_delivered_neighbours_do_not_use_up_the_four(memory: Memory) -> None:
    """retrieval.md C3, C7: at most 4 new ones; those delivered before are not among the 4."""
    chapter(memory, range(1, 20))
    for number in (9, 11):
        deliver(memory, f"b_ch1_e{number}")
    first = deliver(memory, "b_ch1_e10")
    result = memory.nearby(cursor(first), "b_ch1_e10", before=5, after=5)
    assert ids(result.results) == ["b_ch1_e7", "b_ch1_e8", "b_ch1_e12", "b_ch1_e13"]


def test_hidden_neighbours_do_not_count(memory: Memory) -> None:
    """retrieval.md C7: only visible records count; a superseded one is visible and says so."""
    chapter(memory, range(1, 10))
    memory.archive("b_ch1_e4")
    memory.forget("b_ch1_e6")
    memory.revoke("b_ch1_e8")
    memory.supersede("b_ch1_e7", by="b_ch1_e9")
    first = deliver(memory, "b_ch1_e5")
    result = memory.nearby(cursor(first), "b_ch1_e5")
    assert ids(result.results) == ["b_ch1_e2", "b_ch1_e3", "b_ch1_e7", "b_ch1_e9"]
    assert {each.id: each.notices for each in result.results}["b_ch1_e7"] == ("superseded",)  # type: ignore[union-attr]


def test_nearby_is_not_bound_to_the_filters(memory: Memory) -> None:
    """retrieval.md C3, C7: neighbours are the chapter's visible records, whatever the search was narrowed to."""
    chapter(memory, range(1, 6))
    first = memory.search(
        "content", entity="k b_ch1_e3", written_from=START + timedelta(hours=2), written_to=START + timedelta(hours=3)
    )
    assert ids(first.results) == ["b_ch1_e3"]
    assert ids(memory.nearby(cursor(first), "b_ch1_e3").results) == ["b_ch1_e1", "b_ch1_e2", "b_ch1_e4", "b_ch1_e5"]


@pytest.mark.parametrize("name", ["event_123", "b_ch1", "b_ch1_e", "b_ch1_eX", "b_chX_e1", "_e1", "b_ch1_e1_", "b-ch1-e1"])
def test_an_id_without_the_form_is_refused_with_advice(memory: Memory, name: str) -> None:
    """retrieval.md C3: refused with the advice to use read; the cursor stays valid and nothing is delivered."""
    records(memory, [name, "other"])
    first = deliver(memory, name)
    with pytest.raises(InvalidRequest, match="read"):
        memory.nearby(cursor(first), name)
    assert ids(memory.expand(cursor(first), concept(first, "k " + name)).results) == []
    assert ids(memory.search(entity="k other").results) == ["other"]


def test_the_event_must_be_of_the_chain(memory: Memory) -> None:
    """retrieval.md C3: delivered in the session but not in this cursor's chain, undelivered, unknown: refused."""
    chapter(memory, range(1, 6))
    elsewhere = deliver(memory, "b_ch1_e1")
    first = deliver(memory, "b_ch1_e3")
    for wrong in ("b_ch1_e1", "b_ch1_e5", "b_ch1_e77", "c_ch1_e3"):
        with pytest.raises(WorkbenchError) as caught:
            memory.nearby(cursor(first), wrong)
        assert not isinstance(caught.value, CursorInvalid)
    assert ids(memory.nearby(cursor(elsewhere), "b_ch1_e1").results) == ["b_ch1_e2"]
    grown = memory.nearby(cursor(first), "b_ch1_e3", before=0, after=1)
    assert ids(grown.results) == ["b_ch1_e4"]
    assert ids(memory.nearby(cursor(grown), "b_ch1_e4").results) == ["b_ch1_e5"]
    assert memory.nearby(cursor(grown), "b_ch1_e3").results == ()
    with pytest.raises(WorkbenchError):
        memory.nearby(cursor(first), "b_ch1_e4")


@pytest.mark.parametrize(
    "arguments", [{"before": 11}, {"after": 11}, {"before": -1}, {"after": -1}, {"before": True}, {"after": 1.0}]
)
def test_before_and_after_are_0_to_10(memory: Memory, arguments: dict[str, Any]) -> None:
    """retrieval.md C3: 0 to 10 each; anything else is refused, by the tool too."""
    chapter(memory, range(1, 4))
    first = deliver(memory, "b_ch1_e2")
    with pytest.raises(InvalidRequest):
        memory.nearby(cursor(first), "b_ch1_e2", **arguments)
    asked = {"operation": "nearby", "cursor": first.cursor, "event_id": "b_ch1_e2"} | arguments
    with pytest.raises(InvalidRequest):
        memory.tools.call("memory_database_search", asked)
    assert ids(memory.nearby(cursor(first), "b_ch1_e2", before=10, after=10).results) == ["b_ch1_e1", "b_ch1_e3"]


def test_nearby_gives_a_cursor_concepts_and_no_score(memory: Memory, embedder: TableEmbedder) -> None:
    """retrieval.md C1, C3, Q10: a delivering nearby is a link of the chain like any other, without any embedder call."""
    chapter(memory, range(1, 9))
    first = deliver(memory, "b_ch1_e3")
    asked = (len(embedder.queries), len(embedder.documents))
    beside = memory.nearby(cursor(first), "b_ch1_e3")
    assert (len(embedder.queries), len(embedder.documents)) == asked
    assert beside.chain_remaining == 15
    assert {each.name for each in beside.concepts} == {"图", *[f"k b_ch1_e{n}" for n in (1, 2, 4, 5)]}
    grown = memory.nearby(cursor(beside), "b_ch1_e5")
    assert ids(grown.results) == ["b_ch1_e6", "b_ch1_e7"]
    assert grown.chain_remaining == 13


# -- C4, C6: chains ------------------------------------------------------------------------------------------------------


def test_a_chain_holds_twenty_exactly(memory: Memory) -> None:
    """retrieval.md C4, C7: 20 events, then empty answers with a notice, and the cursor stays valid."""
    records(memory, [f"e{n:02}" for n in range(30)])
    step = memory.search("content", entity="图")
    remaining = [step.chain_remaining]
    while step.chain_remaining:
        step = memory.expand(cursor(step), concept(step))
        remaining.append(step.chain_remaining)
    assert remaining == [16, 12, 8, 4, 0]
    for _ in range(2):
        full = memory.expand(cursor(step), concept(step))
        assert (full.results, full.cursor, full.chain_remaining) == ((), None, 0)
        assert "chainLimit" in codes(full)
    assert len(memory.search("content", entity="图").results) == 4


def test_a_chain_gives_what_is_left(memory: Memory) -> None:
    """retrieval.md C4: batches of three, and the two left at the end rather than a refusal."""
    records(memory, [f"e{n:02}" for n in range(40)])
    step = memory.search("content", entity="图", limit=3)
    sizes = [len(step.results)]
    while step.chain_remaining:
        step = memory.expand(cursor(step), concept(step), limit=3)
        sizes.append(len(step.results))
    assert sizes == [3, 3, 3, 3, 3, 3, 2]
    assert "chainLimit" in codes(step)


def test_mixed_operations_fill_one_chain(memory: Memory) -> None:
    """retrieval.md C4: no slots are reserved for an operation and no order of them is forced."""
    chapter(memory, range(1, 61))
    step = memory.search("content", entity="图", limit=1)
    delivered = ids(step.results)
    turn = 0
    while step.chain_remaining:
        if turn % 2:
            after = memory.expand(cursor(step), concept(step), limit=3)
        else:
            after = memory.nearby(cursor(step), ids(step.results)[0], before=10, after=10)
        turn += 1
        assert after.chain_remaining == step.chain_remaining - len(after.results)
        assert after.results
        delivered += ids(after.results)
        step = after
    assert len(delivered) == len(set(delivered)) == 20


def test_an_older_cursor_branches(memory: Memory) -> None:
    """retrieval.md C6, H1: its chain is the path up to it, while everything delivered in the session stays excluded."""
    records(memory, [f"e{n:02}" for n in range(40)])
    root = memory.search("content", entity="图")
    left = memory.expand(cursor(root), concept(root))
    deeper = memory.expand(cursor(left), concept(left))
    assert (left.chain_remaining, deeper.chain_remaining) == (12, 8)
    right = memory.expand(cursor(root), concept(root), limit=2)
    assert right.chain_remaining == 14
    from_left = memory.expand(cursor(left), concept(left), limit=1)
    assert from_left.chain_remaining == 11
    delivered = [each for step in (root, left, deeper, right, from_left) for each in ids(step.results)]
    assert len(delivered) == len(set(delivered)) == 15
    empty = memory.expand(cursor(root), concept(root, "k " + ids(root.results)[0]))
    assert (empty.results, empty.chain_remaining) == ((), 16)


def test_branches_have_their_own_twenty(memory: Memory) -> None:
    """retrieval.md C4, C6: a full branch does not fill its siblings."""
    records(memory, [f"e{n:02}" for n in range(60)])
    root = memory.search("content", entity="图")
    for _ in range(2):
        step = root
        while step.chain_remaining:
            step = memory.expand(cursor(step), concept(step))
            assert len(step.results) == 4
    assert ids(memory.search("content", entity="图").results)


# -- C5, C7, C8: how cursors break ---------------------------------------------------------------------------------------


def test_expired(memory: Memory, clock: Clock) -> None:
    """retrieval.md C5, C8, H6: alive at 14:59.999999, expired at 15:00; using it does not renew it."""
    chapter(memory, [1, 2])
    first = deliver(memory, "b_ch1_e1")
    for step in ({"minutes": 10}, {"minutes": 4, "seconds": 59, "microseconds": 999_999}):
        clock.forward(**step)
        assert memory.expand(cursor(first), concept(first, "k b_ch1_e1")).results == ()
    clock.forward(microseconds=1)
    assert reason(memory, first) == "expired"
    clock.forward(days=3)
    assert reason(memory, first) == "expired"


def test_a_child_outlives_its_parent(memory: Memory, clock: Clock) -> None:
    """retrieval.md C5, C6: each cursor has its own 15 minutes."""
    chapter(memory, [1, 2, 3, 4])
    first = deliver(memory, "b_ch1_e1")
    clock.forward(minutes=10)
    second = memory.nearby(cursor(first), "b_ch1_e1", after=1)
    clock.forward(minutes=5)
    assert reason(memory, first) == "expired"
    assert ids(memory.nearby(cursor(second), "b_ch1_e2", before=0).results) == ["b_ch1_e3", "b_ch1_e4"]


def test_evicted(memory: Memory) -> None:
    """retrieval.md C5, C8: the 33rd cursor of the session lets the oldest go, and says so."""
    chapter(memory, range(1, 35))
    results = [deliver(memory, f"b_ch1_e{n}") for n in range(1, 34)]
    assert reason(memory, results[0]) == "evicted"
    assert memory.expand(cursor(results[1]), concept(results[1], "k b_ch1_e2")).results == ()


def test_reset(memory: Memory) -> None:
    """retrieval.md C8, H4: a reset breaks this session's old cursors."""
    chapter(memory, [1, 2])
    first = deliver(memory, "b_ch1_e1")
    deliver(memory, "b_ch1_e1", reset_seen=True)
    assert reason(memory, first) == "reset"


@pytest.mark.parametrize("made_up", ["nonsense", "x" * 16, "🚀", "0", "None"])
def test_unknown(memory: Memory, made_up: str) -> None:
    """retrieval.md C8: a cursor that never was."""
    chapter(memory, [1, 2])
    first = deliver(memory, "b_ch1_e1")
    with pytest.raises(CursorInvalid) as caught:
        memory.expand(made_up, concept(first))
    assert caught.value.reason == "unknown"
    with pytest.raises(CursorInvalid) as caught:
        memory.nearby(made_up, "b_ch1_e1")
    assert caught.value.reason == "unknown"


def test_foreign_session(memory: Memory) -> None:
    """retrieval.md C5, C8: a cursor is bound to its session, also when the other session has delivered the same event."""
    chapter(memory, [1, 2])
    first = deliver(memory, "b_ch1_e1")
    assert reason(memory, first, session="never used") == "foreign_session"
    deliver(memory, "b_ch1_e1", session="other")
    assert reason(memory, first, session="other") == "foreign_session"
    assert ids(memory.nearby(cursor(first), "b_ch1_e1").results) == ["b_ch1_e2"]


@pytest.mark.parametrize("question", [None, "content"])
@pytest.mark.parametrize("other", [{"model": "other"}, {"dimension": 8}])
def test_model_changed(memory: Memory, question: str | None, other: dict[str, Any]) -> None:
    """retrieval.md C5, C8, E4, faults.md BL-12: re-embedding with another model or dimension breaks old cursors; new ones work."""
    chapter(memory, [1, 2, 3])
    first = memory.search(question, entity="k b_ch1_e1")
    memory.reembed(TableEmbedder(**other))
    assert reason(memory, first) == "model_changed"
    second = memory.search(question, entity="k b_ch1_e2")
    assert ids(memory.nearby(cursor(second), "b_ch1_e2").results) == ["b_ch1_e3"]


def test_reembedding_with_the_same_model_breaks_nothing(memory: Memory) -> None:
    """retrieval.md C5, C7: only a changed model or dimension does."""
    chapter(memory, [1, 2, 3])
    first = memory.search("content", entity="图", limit=1)
    memory.reembed()
    assert len(memory.expand(cursor(first), concept(first)).results) == 2


@pytest.mark.parametrize("hide", ["forget", "archive", "revoke"])
def test_event_gone_and_back(memory: Memory, clock: Clock, hide: str) -> None:
    """retrieval.md C5, C7, C8: broken while an event of the chain is hidden, working again when it is restored in time."""
    chapter(memory, range(1, 9))
    root = found(memory, "b_ch1_e4")
    child = memory.nearby(cursor(root), "b_ch1_e4", before=1, after=1)
    getattr(memory, hide)("b_ch1_e4")
    assert reason(memory, root) == "event_gone"
    assert reason(memory, child) == "event_gone"
    memory.restore("b_ch1_e4")
    assert ids(memory.nearby(cursor(root), "b_ch1_e4").results) == ["b_ch1_e2", "b_ch1_e6"]
    getattr(memory, hide)("b_ch1_e3")
    assert reason(memory, child) == "event_gone"
    assert memory.expand(cursor(root), concept(root), limit=1).results
    memory.restore("b_ch1_e3")
    assert memory.expand(cursor(child), concept(child), limit=1).results
    clock.forward(minutes=15)
    memory.restore("b_ch1_e3")
    assert reason(memory, child) == "expired"


def test_a_superseded_event_breaks_no_cursor(memory: Memory) -> None:
    """retrieval.md C5, F2: superseded is still visible."""
    chapter(memory, [1, 2, 3])
    first = deliver(memory, "b_ch1_e1")
    memory.supersede("b_ch1_e1", by="b_ch1_e3")
    assert ids(memory.nearby(cursor(first), "b_ch1_e1").results) == ["b_ch1_e2", "b_ch1_e3"]


def test_an_update_breaks_no_cursor(memory: Memory) -> None:
    """retrieval.md C7: also of the very event that the cursor rests on, with another text, time and other concepts."""
    chapter(memory, range(1, 6))
    first = memory.search("content", entity="k b_ch1_e3")
    memory.save(Event(id="b_ch1_e3", summary="changed", content="changed " * 300, concepts=("新",), written_at=START))
    assert ids(memory.nearby(cursor(first), "b_ch1_e3").results) == ["b_ch1_e1", "b_ch1_e2", "b_ch1_e4", "b_ch1_e5"]
    second = deliver(memory, "b_ch1_e1", session="2")
    memory.save(Event(id="b_ch1_e1", summary="changed", concepts=("图", "k b_ch1_e1")))
    assert len(memory.expand(cursor(second), concept(second), session="2").results) == 0
    third = memory.search("content", entity="图", limit=1, session="3")
    memory.save(Event(id=ids(third.results)[0], summary="changed", concepts=()))
    assert memory.expand(cursor(third), concept(third), session="3").results


def test_other_events_come_and_go_without_harm(memory: Memory) -> None:
    """retrieval.md C5: a cursor rests on its own events only."""
    chapter(memory, range(1, 6))
    first = deliver(memory, "b_ch1_e3")
    memory.forget("b_ch1_e1")
    memory.save_many(numbered(20))
    assert ids(memory.nearby(cursor(first), "b_ch1_e3").results) == ["b_ch1_e2", "b_ch1_e4", "b_ch1_e5"]


@pytest.mark.parametrize("when", ["before opening", "while open"])
def test_ambiguous_id(open_library: OpenLibrary, store_kind: str, tmp_path: Path, when: str) -> None:
    """retrieval.md C5, C8, faults.md BL-42: an id that two rows claim, or came to claim, breaks the cursor with its own reason."""
    memory = open_library()
    chapter(memory, range(1, 6))
    if store_kind == "sqlite-memory":  # nobody else can reach a private library, so no damage is possible there
        first = found(memory, "b_ch1_e3")
        assert ids(memory.nearby(cursor(first), "b_ch1_e3", before=1).results)[0] == "b_ch1_e2"
        return
    if when == "before opening":
        memory.close()
        damage(tmp_path / "library.db", "b_ch1_e3")
        memory = open_library()
    first, other = deliver(memory, "b_ch1_e3"), deliver(memory, "b_ch1_e1")
    if when == "while open":
        damage(tmp_path / "library.db", "b_ch1_e3")
    with pytest.raises(CursorInvalid) as caught:
        memory.nearby(cursor(first), "b_ch1_e3")
    assert caught.value.reason == "ambiguous_id"
    with pytest.raises(CursorInvalid) as caught:
        memory.expand(cursor(first), "concept_1")
    assert caught.value.reason == "ambiguous_id"
    assert ids(memory.nearby(cursor(other), "b_ch1_e1", after=1).results) == ["b_ch1_e2"]


def test_a_question_in_a_library_with_an_ambiguous_id(open_library: OpenLibrary, store_kind: str, tmp_path: Path) -> None:
    """retrieval.md C5, Q15, faults.md BL-42: damage has a clear, safe outcome: an answer, or an error that blames no argument."""
    memory = open_library()
    chapter(memory, range(1, 6))
    if store_kind == "sqlite-file":
        memory.close()
        damage(tmp_path / "library.db", "b_ch1_e3")
        memory = open_library()
    try:
        delivered = ids(memory.search("content").results)
    except InvalidRequest as error:
        pytest.fail(f"the question was valid, but: {error}")
    except WorkbenchError as error:
        delivered = [error.code]
    assert delivered
    assert len(delivered) == len(set(delivered))


def damage(path: Path, event_id: str) -> None:
    """Add a second row of an event, as a writer would that the index of unique ids no longer stops."""
    with contextlib.closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("DROP INDEX event_id")
        connection.execute("UPDATE library SET revision = revision + 1")
        columns = [row[1] for row in connection.execute("PRAGMA table_info(event)") if row[1] != "key"]
        values = [name if name != "changed" else "(SELECT revision FROM library)" for name in columns]
        copy = f"INSERT INTO event ({', '.join(columns)}) SELECT {', '.join(values)} FROM event WHERE id = ?"
        connection.execute(copy, (event_id,))
        connection.execute(
            "INSERT INTO event_terms SELECT (SELECT max(key) FROM event), total, keys, counts FROM event_terms WHERE event ="
            " (SELECT min(key) FROM event WHERE id = ?)",
            (event_id,),
        )
        assert connection.execute("SELECT count(*) FROM event WHERE id = ?", (event_id,)).fetchone() == (2,)


def test_a_broken_cursor_takes_nothing(memory: Memory, clock: Clock) -> None:
    """retrieval.md H2, C5: the failing call delivers nothing and breaks no other cursor."""
    chapter(memory, range(1, 9))
    first = deliver(memory, "b_ch1_e1")
    clock.forward(minutes=15)
    second = deliver(memory, "b_ch1_e4")
    assert reason(memory, first) == "expired"
    assert ids(memory.nearby(cursor(second), "b_ch1_e4").results) == ["b_ch1_e2", "b_ch1_e3", "b_ch1_e5", "b_ch1_e6"]


@pytest.mark.parametrize("wrong", [None, 7, "", "  ", b"x"])
def test_a_cursor_that_is_no_text_is_refused(memory: Memory, wrong: Any) -> None:
    """retrieval.md Q15, C5: a clear error of ours, whatever was given for a cursor."""
    chapter(memory, [1, 2])
    first = deliver(memory, "b_ch1_e1")
    with pytest.raises((InvalidRequest, CursorInvalid)):
        memory.expand(wrong, concept(first))
    with pytest.raises((InvalidRequest, CursorInvalid)):
        memory.nearby(wrong, "b_ch1_e1")
    with pytest.raises((InvalidRequest, NotFound)):
        memory.expand(cursor(first), wrong)
    with pytest.raises((InvalidRequest, NotFound)):
        memory.nearby(cursor(first), wrong)


def test_a_cursor_shows_nothing_of_the_library(memory: Memory) -> None:
    """retrieval.md C5: a cursor is opaque, differs at each delivery, and is plain text."""
    records(memory, [f"e{n:02}" for n in range(12)])
    cursors = [cursor(memory.search("secret question", session=f"s{n}")) for n in range(12)]
    assert len(set(cursors)) == 12
    assert all(each.isascii() and each.isprintable() for each in cursors)
    assert not any("secret" in each or each.startswith("e0") for each in cursors)


def test_expand_of_a_question_with_another_embedder_object(open_library: OpenLibrary, store_kind: str) -> None:
    """retrieval.md C2, S4: a cursor without a question goes on where another model could search nothing."""
    embedder = TableEmbedder()
    memory = open_library(embedder=embedder)
    records(memory, ["a", "b", "c"])
    if store_kind == "sqlite-file":
        memory.close()
        memory = open_library(embedder=TableEmbedder(model="other"))
        with pytest.raises(ModelMismatch):
            memory.search("content")
    first = memory.search(entity="图", limit=1)
    assert ids(memory.expand(cursor(first), concept(first)).results) == ["b", "a"]
