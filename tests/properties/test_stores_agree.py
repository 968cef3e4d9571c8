"""One library in two stores: the same ids, order, scores, excerpts and explanations (retrieval.md Q12, S10)."""

import secrets
from collections.abc import Iterator
from datetime import timedelta

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import workbench
from tests.support import START, Clock, TableEmbedder
from tools.neo4j.server import Endpoint
from workbench import Event, Memory, fixtures
from workbench.copying import copy_library

WORDS = st.sampled_from(["记忆", "检索", "harbour", "pump", "seal", "版本", "𠀀字", "é", "release 2.3", "ไทย", "\uff21\uff22"])
TEXTS = st.lists(WORDS, min_size=1, max_size=6).map(" ".join)
NAMES = st.lists(st.sampled_from(["Pump", "ＰＵＭＰ", "检索", "Ada", "ada"]), max_size=2, unique=True)
IDS = st.sampled_from(["e1", "e2", "\uffff x", "\U0001f600", "log_ch1_e01", "log_ch1_e02", "log_ch01_e2", "event_3", "é", "E1"])


@st.composite
def libraries(draw: st.DrawFn) -> list[Event]:
    """Return events with equal times, equal texts, ids that UTF-16 would order otherwise, and long and empty texts."""
    ids = draw(st.lists(IDS, min_size=1, max_size=8, unique=True))
    return [
        Event(
            id=event_id,
            summary=draw(TEXTS),
            title=draw(st.sampled_from(["", "Title 标题"])),
            content=draw(st.sampled_from(["", " \n"]) | TEXTS | TEXTS.map(lambda text: f"{text}。" * 120)),
            concepts=draw(NAMES),
            persons=draw(NAMES),
            written_at=START + timedelta(hours=draw(st.integers(0, 2))),
        )
        for event_id in ids
    ]


def answers(memory: Memory, question: str) -> list[object]:
    """Return all that a conversation about a question shows, cursors aside."""
    found: list[object] = []
    for filters in ({}, {"entity": "pump"}, {"written_from": START + timedelta(hours=1)}):
        answer = memory.search(question, explain=True, session=f"s{len(found)}", reset_seen=True, **filters)
        found.append((answer.results, answer.concepts, answer.notices, answer.explanation))
        for concept in answer.concepts[:1]:
            more = memory.expand(answer.cursor or "", concept.id, session=f"s{len(found) - 1}")
            found.append((more.results, more.concepts, more.notices))
    found.append(memory.search("pump", label="Concept").results)
    found.append(memory.search(written_from=START).results)
    return found


@pytest.fixture(scope="module")
def embedder() -> TableEmbedder:
    return TableEmbedder(dimension=8)


@pytest.mark.slow
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(libraries(), TEXTS)
def test_random_libraries_answer_alike(neo4j_server: Endpoint, embedder: TableEmbedder, events: list[Event], question: str) -> None:
    namespace = f"agree-{secrets.token_hex(8)}"
    clock = Clock()
    with (
        workbench.open_memory("sqlite://", embedder=embedder, clock=clock) as one,
        workbench.open_memory(
            neo4j_server.address, auth=neo4j_server.auth, namespace=namespace, embedder=embedder, clock=clock
        ) as other,
    ):
        for memory in (one, other):
            memory.save_many(events)
            memory.forget(str(events[-1].id))
        assert answers(one, question) == answers(other, question)
        assert [each.event.id for each in one.events()] == [each.event.id for each in other.events()]


@pytest.fixture(scope="module", params=fixtures.PARTS)
def pair(request: pytest.FixtureRequest, neo4j_server: Endpoint) -> Iterator[tuple[str, Memory, Memory]]:
    """Return a part of the sample texts in both stores."""
    namespace = f"samples-{secrets.token_hex(8)}"
    with (
        fixtures.embedder() as embedder,
        workbench.open_memory("sqlite://", embedder=embedder) as one,
        workbench.open_memory(neo4j_server.address, auth=neo4j_server.auth, namespace=namespace, embedder=embedder) as other,
    ):
        one.save_many(fixtures.load_events(request.param))
        copy_library(one, other)
        yield request.param, one, other


def test_every_question_of_the_samples_is_answered_alike(pair: tuple[str, Memory, Memory]) -> None:
    part, one, other = pair
    questions = fixtures.load_questions(part)
    assert len(questions) > 60
    for question in questions:
        ours, theirs = (memory.search(question.text, explain=True, reset_seen=True) for memory in (one, other))
        assert ours.results == theirs.results, question.id
        assert ours.explanation == theirs.explanation, question.id
        assert ours.concepts == theirs.concepts, question.id
