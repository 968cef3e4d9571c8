"""The sample texts are what their README says, and every judgement points at what it quotes."""

import re
from collections import Counter

import pytest

import workbench
from workbench import demo, fixtures

EVENTS = {event.id: event for event in fixtures.load_events()}
QUESTIONS = fixtures.load_questions()


@pytest.mark.parametrize("question", QUESTIONS, ids=lambda question: question.id)
def test_every_range_is_what_it_quotes(question: fixtures.Question) -> None:
    for evidence in question.evidence:
        content = EVENTS[evidence.event_id].content
        assert content[evidence.start : evidence.end] == evidence.quote
        assert content.count(evidence.quote) == 1
    assert question.kind in fixtures.KINDS
    assert bool(question.evidence) == (question.kind != "unanswerable")
    assert question.require in ("any", "all")


def test_the_questions_are_enough_and_of_every_kind() -> None:
    assert len(QUESTIONS) == len({question.id for question in QUESTIONS}) >= 60
    assert set(Counter(question.kind for question in QUESTIONS)) == set(fixtures.KINDS)
    two = [question for question in QUESTIONS if question.kind == "two_events"]
    assert all(len({evidence.event_id for evidence in question.evidence}) == 2 for question in two)


def test_the_novella_is_cut_at_its_scene_borders() -> None:
    """At least 8 chapters of at least 2,000 characters and 4 to 6 scenes; the events are the chapters' text, nothing lost."""
    scenes = fixtures.load_events("novella")
    files = sorted((fixtures.directory() / "novella").glob("ch*.md"))
    assert len(files) >= 8
    for number, file in enumerate(files, start=1):
        text = file.read_text("utf-8")
        own = [event for event in scenes if f"_ch{number:02}_" in (event.id or "")]
        assert 4 <= len(own) <= 6
        assert [event.id for event in own] == [f"gauge_ch{number:02}_e{place:02}" for place in range(1, len(own) + 1)]
        assert len(re.findall(r"[\u4e00-\u9fff]", text)) >= 2_000
        body = text.partition("\n")[2]
        assert f"\n\n{fixtures.SCENE_BORDER}\n\n".join(event.content for event in own) == body.strip("\n")
        assert all(event.title and event.summary and event.concepts and event.persons for event in own)


def test_the_memories_have_the_shapes_that_the_readme_names() -> None:
    memories = fixtures.load_events("memories")
    assert len(memories) >= 40
    assert sum(len(event.content) > 32_000 for event in memories) == 1
    assert EVENTS["event_39"].content == EVENTS["event_40"].content
    assert "\r\n" in EVENTS["event_20"].content
    assert "\u0301" in EVENTS["event_18"].content or "\u0300" in EVENTS["event_18"].content
    assert "\u200d" in EVENTS["event_52"].content
    assert {event.event_type for event in memories} == set(workbench.core.event.EVENT_TYPES)
    assert {event.temporal_status for event in memories} == set(workbench.core.event.TEMPORAL_STATUSES)
    assert set(fixtures.load_projects()) == {event.id for event in memories}


def test_the_shipped_vectors_are_complete() -> None:
    """Everything that saving the texts and asking the questions embeds is there, and the file stays as it is."""
    path = fixtures.directory() / "vectors.db"
    before = path.read_bytes()
    with fixtures.embedder() as embedder, workbench.open_memory("sqlite://", embedder=embedder) as memory:
        assert not memory.save_many([*fixtures.load_events(), demo.OWN_EVENT]).failed
        for text in [*(question.text for question in QUESTIONS), *demo.QUESTIONS]:
            embedder.embed_query(text)
        assert memory.verify() == []
    assert path.read_bytes() == before
    assert sorted(file.name for file in path.parent.glob("vectors*")) == ["vectors.db"]


def test_an_unknown_part_is_refused() -> None:
    with pytest.raises(workbench.InvalidRequest, match="novella or memories"):
        fixtures.load_events("poems")
