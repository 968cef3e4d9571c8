"""Search against a brute-force reference that is written from retrieval.md alone (Q1 to Q9, Q12, Q13, Q17, Q18)."""

import hashlib
import itertools
import json
import math
import os
import random
import re
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, date, datetime, time, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from tests.support import START, Clock, TableEmbedder, ids
from workbench import Config, Event, Memory, RetrievalConfig, open_memory
from workbench.core.text import FUNCTION_CHARACTERS

# -- the reference -------------------------------------------------------------------------------------------------------

STOP = {"the", "and", "is"}
K1, B = 1.2, 0.75


def terms(text: str) -> Counter[str]:
    """Return the terms of a text of Latin letters, digits and Han characters; the words used here are their own stems."""
    found: Counter[str] = Counter()
    for run in re.findall(r"[a-z0-9]+|[\u4e00-\u9fff]+", text.lower()):
        if run[0] < "\u4e00":
            found.update([run] if run not in STOP else [])
        else:
            found.update(run[place : place + 2] for place in range(len(run) - 1))
            found.update(char for char in run if char not in FUNCTION_CHARACTERS)
    return found


def event_terms(event: Event) -> Counter[str]:
    """Return the terms of all that coverage looks at, no term spanning two fields."""
    found: Counter[str] = Counter()
    for text in (event.title, event.summary, *event.concepts, *event.persons, event.content):
        found += terms(text)
    return found


def cosine(one: NDArray[np.float32], two: NDArray[np.float32]) -> float:
    a, b = one.astype(np.float64), two.astype(np.float64)
    return round(float(a @ b / math.sqrt(float(a @ a) * float(b @ b))), 6) + 0.0


def spans(text: str, size: int, overlap: int) -> list[tuple[int, int]]:
    """Return the chunks of S1 that have a vector (S8)."""
    found, start = [], 0
    while text:
        end = min(start + size, len(text))
        found.append((start, end))
        if end == len(text):
            break
        start += size - overlap
    return [(start, end) for start, end in found if text[start:end].strip()]


@dataclass
class Row:
    """One candidate as the explanation's columns name it."""

    event_id: str
    summary_rank: int | None = None
    summary_cosine: float | None = None
    source_rank: int | None = None
    source_cosine: float | None = None
    chunk_start: int | None = None
    chunk_end: int | None = None
    rrf: float = 0.0
    coverage: float = 0.0
    fused: float = 0.0
    duplicate_of: str | None = None
    mmr_step: int | None = None
    mmr_penalty: float | None = None
    mmr_score: float | None = None
    delivered: bool = False


@dataclass
class Reference:
    """A library in plain Python."""

    embedder: TableEmbedder
    config: RetrievalConfig
    events: dict[str, Event] = field(default_factory=dict)
    hidden: set[str] = field(default_factory=set)
    delivered: dict[str, set[str]] = field(default_factory=dict)

    def passing(self, session: str, entities: Sequence[str], low: datetime | None, high: datetime | None) -> list[Event]:
        """Return the events that every filter leaves, newest first, then by id (Q2, Q12)."""
        found = [
            event
            for name, event in self.events.items()
            if name not in self.hidden | self.delivered.get(session, set())
            and all(entity in (*event.concepts, *event.persons) for entity in entities)
            and (low is None or written(event) >= low)
            and (high is None or written(event) < high)
        ]
        return sorted(found, key=tie)

    def listing(self, events: list[Event], limit: int) -> list[str]:
        """Return what comes without a question (Q9), equal texts merged (Q6)."""
        seen: set[str] = set()
        chosen = []
        for event in events:
            if event.content and event.content in seen:
                continue
            seen.add(event.content)
            chosen.append(str(event.id))
        return chosen[: min(limit, 4)]

    def rank(self, question: str, events: list[Event], limit: int) -> tuple[list[Row], list[str], dict[str, float]]:
        """Return the candidates best first, the ids delivered in order, and the terms' weights."""
        rows = self.recall(question, events)
        weights = self.cover(question, [self.events[row.event_id] for row in rows], rows)
        rows.sort(key=lambda row: (-round(row.fused, 9), tie(self.events[row.event_id])))
        first: dict[str, str] = {}
        for row in rows:
            content = self.events[row.event_id].content
            if content and first.setdefault(content, row.event_id) != row.event_id:
                row.duplicate_of = first[content]
        return rows, self.diversify([row for row in rows if row.duplicate_of is None], min(limit, 4)), weights

    def recall(self, question: str, events: list[Event]) -> list[Row]:
        query = self.embedder.vector(question)
        rows = {str(event.id): Row(str(event.id)) for event in events}
        for event in events:
            row = rows[str(event.id)]
            row.summary_cosine = cosine(self.embedder.vector(event.summary), query)
            for start, end in spans(event.content, self.config.chunk_size, self.config.chunk_overlap):
                value = cosine(self.embedder.vector(event.content[start:end]), query)
                if row.source_cosine is None or value > row.source_cosine:
                    row.source_cosine, row.chunk_start, row.chunk_end = value, start, end
        for route in ("summary", "source"):
            having = [event for event in events if getattr(rows[str(event.id)], f"{route}_cosine") is not None]
            having.sort(key=lambda event: (-getattr(rows[str(event.id)], f"{route}_cosine"), tie(event)))
            for rank, event in enumerate(having[: self.config.candidates], 1):
                setattr(rows[str(event.id)], f"{route}_rank", rank)
                rows[str(event.id)].rrf += 1 / (self.config.rrf_k + rank)
        return [row for row in rows.values() if row.summary_rank or row.source_rank]

    def cover(self, question: str, events: list[Event], rows: list[Row]) -> dict[str, float]:
        counts = [event_terms(event) for event in events]
        lengths = [sum(count.values()) for count in counts]
        asked, n = sorted(terms(question)), len(rows)
        weights = {}
        for term in asked:
            df = sum(1 for count in counts if count[term])
            weights[term] = math.log(1 + (n - df + 0.5) / (df + 0.5))
        whole = math.fsum(weights.values())
        for row, count, length in zip(rows, counts, lengths, strict=True):
            parts = [
                weights[term] * count[term] / (count[term] + K1 * (1 - B + B * length / (sum(lengths) / n)))
                for term in asked
                if count[term]
            ]
            row.coverage = math.fsum(parts) / whole if whole else 0.0
            row.fused = row.rrf + self.config.coverage_weight * row.coverage
        return weights

    def diversify(self, rows: list[Row], limit: int) -> list[str]:
        """Choose by Maximal Marginal Relevance; ``rows`` come in the order that breaks its ties (Q7, Q17)."""
        chosen: list[Row] = []
        vectors = {row.event_id: self.embedder.vector(self.events[row.event_id].summary) for row in rows}
        lambda_ = self.config.mmr_lambda
        while len(chosen) < min(limit, len(rows)):
            left = [row for row in rows if row not in chosen]
            for row in left:
                penalties = [cosine(vectors[row.event_id], vectors[other.event_id]) for other in chosen]
                row.mmr_penalty = max(penalties, default=0.0)
                row.mmr_score = lambda_ * row.fused / rows[0].fused - (1 - lambda_) * row.mmr_penalty
            best = max(left, key=lambda row: round(row.mmr_score or 0.0, 9))
            chosen.append(best)
            best.mmr_step, best.delivered = len(chosen), True
        return [row.event_id for row in chosen]


def written(event: Event) -> datetime:
    assert event.written_at is not None
    return event.written_at


def tie(event: Event) -> tuple[float, str]:
    """Return the order of equals: newest first, then by id (Q12)."""
    return -(written(event) - START) / timedelta(microseconds=1), str(event.id)


# -- random libraries ----------------------------------------------------------------------------------------------------


def directions() -> list[tuple[float, ...]]:
    """Return directions of four dimensions whose cosines are multiples of 1/50, so that ties are many and exact."""
    found = {(1.0, 0, 0, 0), (0.6, 0.8, 0, 0), (0.5, 0.5, 0.5, 0.5), (0.0, 0.6, -0.8, 0), (0.1, 0.1, 0.7, 0.7)}
    turned = {order for base in found for order in itertools.permutations(base)}
    signed = {tuple(s * x for s, x in zip((1, -1, 1, -1), order, strict=True)) for order in turned}
    return sorted(turned | signed | {tuple(-x for x in order) for order in turned})


DIRECTIONS = directions()


class Rational(TableEmbedder):
    """Gives every text one of few directions, of one of few lengths."""

    def __init__(self) -> None:
        super().__init__(dimension=4)

    def vector(self, text: str) -> NDArray[np.float32]:
        digest = hashlib.blake2b(text.encode(), digest_size=4).digest()
        direction = DIRECTIONS[int.from_bytes(digest[:2], "little") % len(DIRECTIONS)]
        return np.array(direction, np.float32) * np.float32((0.5, 1, 2, 4)[digest[3] % 4])


WORDS = ["fox", "red", "tin", "42", "v2", "the", "is", "图", "书馆", "图书", "的", "检索质量", "。", "，", " "]
NAMES = ["fox", "Ann", "图书", "red tin", "！"]
IDS = [f"e{n}" for n in range(9)] + ["E1", "é", "书", "a", "zz"]
MOMENTS = [START + timedelta(days=days, seconds=seconds) for days in (-2, -1, 0) for seconds in (0, 1)]

texts = st.lists(st.sampled_from(WORDS), min_size=1, max_size=9).map(" ".join) | st.lists(
    st.sampled_from(["图", "书", "馆", "的", "检索", "fox", "。"]), min_size=1, max_size=14
).map("".join)
visible_texts = texts.filter(lambda text: bool(text.strip()))
few_contents = st.sampled_from(["", "", "fox 图书馆 tin", "fox 图书馆 tin ", "   ", "red " * 9])
events = st.builds(
    Event,
    id=st.sampled_from(IDS),
    title=st.sampled_from(["", "fox", "图书"]),
    summary=visible_texts | st.sampled_from(["fox red", "图书", "一"]),
    content=texts | few_contents,
    concepts=st.lists(st.sampled_from(NAMES), max_size=2, unique=True).map(tuple),
    persons=st.lists(st.sampled_from(NAMES), max_size=1).map(tuple),
    written_at=st.sampled_from(MOMENTS),
)
libraries = st.lists(events, min_size=1, max_size=14, unique_by=lambda event: event.id)
bounds = st.none() | st.sampled_from([*MOMENTS, *(moment.date() for moment in MOMENTS)])


@dataclass(frozen=True)
class Asked:
    """One search."""

    question: str | None
    entities: tuple[str, ...]
    low: date | None
    high: date | None
    limit: int
    session: str

    def arguments(self) -> dict[str, Any]:
        entity: Any = self.entities[0] if len(self.entities) == 1 else list(self.entities) or None
        return {
            "query_text": self.question,
            "entity": entity,
            "written_from": self.low,
            "written_to": self.high,
            "limit": self.limit,
            "session": self.session,
        }


def lower(bound: date | None) -> datetime | None:
    if bound is None or isinstance(bound, datetime):
        return bound
    return datetime.combine(bound, time(), UTC)


def upper(bound: date | None) -> datetime | None:
    """Return the exclusive end that a bare date or an instant means (Q2)."""
    if bound is None or isinstance(bound, datetime):
        return bound
    return datetime.combine(bound, time(), UTC) + timedelta(days=1)


def in_order(asked: Asked) -> Asked:
    """Return the same search with bounds that are not reversed: that is refused or empty (faults.md BL-48), and no matter here."""
    low, high = lower(asked.low), upper(asked.high)
    return replace(asked, low=None) if low is not None and high is not None and low > high else asked


questions = visible_texts | st.sampled_from(["fox 图书馆", "？！", "fox red tin 42", "检索质量的图书"])
with_question = st.builds(
    Asked,
    question=questions,
    entities=st.lists(st.sampled_from(NAMES), max_size=2, unique=True).map(tuple) | st.just(()),
    low=st.none() | bounds,
    high=st.none() | bounds,
    limit=st.integers(1, 8),
    session=st.sampled_from("ab"),
)
without = st.builds(
    Asked,
    question=st.none(),
    entities=st.sampled_from(NAMES).map(lambda name: (name,)) | st.just(()),
    low=st.sampled_from(MOMENTS),
    high=st.none() | st.just(START + timedelta(days=1)),
    limit=st.integers(1, 8),
    session=st.sampled_from("ab"),
)
searches = (with_question | with_question | without).map(in_order)
hidings = st.tuples(st.sampled_from(["archive", "forget", "revoke", "restore"]), st.sampled_from(IDS))
steps = st.lists(searches | searches | events | hidings, min_size=1, max_size=8)
configs = st.builds(
    RetrievalConfig,
    candidates=st.sampled_from([1, 3, 5, 40]),
    chunk_size=st.just(12),
    chunk_overlap=st.just(4),
    mmr_lambda=st.sampled_from([0.85, 0.85, 0.0, 0.5, 1.0]),
    coverage_weight=st.sampled_from([8 / 61, 8 / 61, 0.0, 1.0]),
    rrf_k=st.sampled_from([60, 60, 0]),
)


def compare(memory: Memory, reference: Reference, asked: Asked) -> None:
    """Search both, assert that they agree in everything that is stated, and note the delivery."""
    result = memory.search(**asked.arguments(), explain=True)
    passing = reference.passing(asked.session, asked.entities, lower(asked.low), upper(asked.high))
    explanation = result.explanation
    assert explanation is not None
    rows = explanation.to_polars().to_dicts()
    if asked.question is None:
        delivered = reference.listing(passing, asked.limit)
        assert [row["event_id"] for row in rows] == [event.id for event in passing][: len(rows)]
    else:
        expected, delivered, weights = reference.rank(asked.question, passing, asked.limit)
        assert [row["event_id"] for row in rows] == [row.event_id for row in expected]
        for row, wanted in zip(rows, expected, strict=True):
            same_row(row, wanted)
        assert {term.term: term.weight for term in explanation.terms} == {
            term: pytest.approx(value, abs=1e-9) for term, value in weights.items()
        }
        scores = {row.event_id: row.fused for row in expected}
        assert {each.id: each.rank_score for each in result.results} == {  # type: ignore[union-attr]
            name: pytest.approx(scores[name], abs=1e-9) for name in delivered
        }
    assert ids(result.results) == delivered
    reference.delivered.setdefault(asked.session, set()).update(delivered)


def same_row(row: dict[str, Any], wanted: Row) -> None:
    """Assert that a row of the explanation is that of the reference; a cosine may be null only where there is no rank."""
    exact = ("summary_rank", "source_rank", "duplicate_of", "mmr_step", "delivered")
    assert [row[name] for name in exact] == [getattr(wanted, name) for name in exact]
    for name in ("rrf", "coverage", "fused", "mmr_penalty", "mmr_score"):
        value = getattr(wanted, name)
        assert row[name] == (None if value is None else pytest.approx(value, abs=1e-9)), name
    for route in ("summary", "source"):
        value = getattr(wanted, f"{route}_cosine")
        if row[f"{route}_cosine"] is not None or getattr(wanted, f"{route}_rank") is not None:
            assert row[f"{route}_cosine"] == pytest.approx(value, abs=1e-9)
    if row["chunk_start"] is not None or wanted.source_rank is not None:
        assert (row["chunk_start"], row["chunk_end"]) == (wanted.chunk_start, wanted.chunk_end)


def run(address: str, config: RetrievalConfig, library: list[Event], course: Sequence[Any]) -> None:
    """Take a library and its reference through the same steps."""
    embedder = Rational()
    with open_memory(address, embedder=embedder, config=Config(retrieval=config), clock=Clock()) as memory:
        reference = Reference(embedder, config)
        report = memory.save_many(library, batch_size=5)
        assert not report.failed
        reference.events |= {str(event.id): event for event in library}
        for step in course:
            if isinstance(step, Asked):
                compare(memory, reference, step)
            elif isinstance(step, Event):
                if step.id not in reference.hidden:
                    memory.save(step)
                    reference.events[str(step.id)] = step
            elif step[1] in reference.events:
                getattr(memory, step[0])(step[1])
                reference.hidden.discard(step[1]) if step[0] == "restore" else reference.hidden.add(step[1])


QUIET = settings(deadline=None, database=None, suppress_health_check=list(HealthCheck), derandomize=True)


def test_the_reference_knows_its_words() -> None:
    """retrieval.md Q5: the reference's own extraction and the directions' cosines are what the comparison takes them for."""
    import snowballstemmer

    words = [word for word in " ".join([*WORDS, *NAMES]).lower().split() if word.isascii()]
    assert [snowballstemmer.stemmer("english").stemWord(word) for word in words] == words
    assert terms("the fox 图书的馆 v2 图") == Counter(
        {"fox": 1, "图书": 1, "书的": 1, "的馆": 1, "图": 2, "书": 1, "馆": 1, "v2": 1}
    )
    vectors = np.array(DIRECTIONS)
    assert np.allclose(np.linalg.norm(vectors, axis=1), 1)
    assert np.allclose(np.round(vectors @ vectors.T * 100), vectors @ vectors.T * 100)
    assert spans("x" * 801, 800, 120) == [(0, 800), (680, 801)]
    assert spans("x" * 800, 800, 120) == [(0, 800)]


@settings(QUIET, max_examples=150)
@given(config=configs, library=libraries, course=steps)
def test_search_agrees_with_brute_force(config: RetrievalConfig, library: list[Event], course: list[Any]) -> None:
    """retrieval.md Q1 to Q9, Q12, Q13, Q17, Q18, H1, S5: order, every column and every delivery, with updates between searches."""
    run("sqlite://", config, library, course)


@pytest.mark.slow
@settings(QUIET, derandomize=False, max_examples=500, print_blob=True)
@given(config=configs, library=libraries, course=steps)
def test_search_agrees_with_brute_force_at_length(config: RetrievalConfig, library: list[Event], course: list[Any]) -> None:
    """retrieval.md Q1 to Q9, Q12, Q13, Q17, Q18, H1, S5: the same with other examples each time."""
    run("sqlite://", config, library, course)


@settings(QUIET, max_examples=15, phases=[Phase.generate])
@given(config=configs, library=libraries, course=steps)
def test_a_file_agrees_with_brute_force(config: RetrievalConfig, library: list[Event], course: list[Any]) -> None:
    """retrieval.md section 8: the same exactness on the store that is a file."""
    with tempfile.TemporaryDirectory() as directory:
        run(f"sqlite:///{directory}/library.db", config, library, course)


@settings(QUIET, max_examples=60)
@given(library=libraries, asked=st.lists(searches, min_size=1, max_size=4), seed=st.integers(0, 2**32))
def test_the_order_of_saving_does_not_matter(library: list[Event], asked: list[Asked], seed: int) -> None:
    """retrieval.md Q12, S10, faults.md BL-20: shuffled, saved singly or in batches, with detours by updates, one answer."""
    config = Config(retrieval=RetrievalConfig(candidates=5, chunk_size=12, chunk_overlap=4))
    shuffled = random.Random(seed).sample(library, len(library))
    courses: list[list[list[Event]]] = [[library], [[event] for event in shuffled]]
    courses.append([[event.replace(summary="fox", content="old") for event in shuffled[::2]], shuffled])
    answers = []
    for batches in courses:
        with open_memory("sqlite://", embedder=Rational(), config=config, clock=Clock()) as memory:
            for batch in batches:
                assert not memory.save_many(batch).failed
            results = [memory.search(**each.arguments(), explain=True) for each in asked]
            answers.append([shape(result.to_dict(), result.explanation) for result in results])
    assert answers[0] == answers[1] == answers[2]


def random_event(chance: random.Random, number: int) -> Event:
    words = " ".join(chance.choices(WORDS, k=chance.randint(0, 12)))
    return Event(
        id=f"e{number}",
        title=chance.choice(["", "fox", "图书"]),
        summary=chance.choice(["fox red", "图书", "tin"]) + " ".join(chance.choices(WORDS, k=4)),
        content=chance.choice([words, words, words, "fox 图书馆 tin", ""]),
        concepts=tuple(chance.sample(NAMES, chance.randint(0, 2))),
        persons=tuple(chance.sample(NAMES, chance.randint(0, 1))),
        written_at=chance.choice(MOMENTS),
    )


@pytest.mark.parametrize("seed", range(2))
def test_a_long_life_agrees_with_brute_force(seed: int, tmp_path: Path) -> None:
    """retrieval.md Q2, Q3, S5, E1, section 8: hundreds of updates, removals, re-embeddings and reopenings between searches."""
    chance, embedder = random.Random(seed), Rational()
    retrieval = RetrievalConfig(chunk_size=12, chunk_overlap=4, candidates=10)
    options: dict[str, Any] = {"embedder": embedder, "config": Config(retrieval=retrieval), "clock": Clock()}
    address, reference = f"sqlite:///{tmp_path / 'life.db'}", Reference(embedder, retrieval)
    memory = open_memory(address, **options)
    try:
        for step in range(220):
            kind = chance.random()
            if kind < 0.5 or not reference.events:
                batch = [random_event(chance, number) for number in chance.sample(range(90), chance.choice([1, 1, 1, 30]))]
                batch = [event for event in batch if event.id not in reference.hidden]
                assert not memory.save_many(batch).failed
                reference.events |= {str(event.id): event for event in batch}
            elif kind < 0.65:
                name = chance.choice(sorted(reference.events))
                memory.restore(name) if name in reference.hidden else memory.forget(name)
                reference.hidden ^= {name}
            elif kind < 0.68:
                memory.reembed()
            elif kind < 0.72:
                memory.close()
                memory = open_memory(address, **options)
                reference.delivered.clear()
            else:
                question = chance.choice([" ".join(chance.choices(WORDS[:10], k=4)), "？！", None])
                names = tuple(chance.sample(NAMES, chance.choice([0, 0, 1])))
                low = MOMENTS[0] if question is None else chance.choice([None, *MOMENTS])
                compare(memory, reference, Asked(question, names, low, None, chance.randint(1, 8), f"s{step // 40}"))
    finally:
        memory.close()


def shape(answer: dict[str, Any], explanation: Any) -> list[Any]:
    """Return what an answer says without its cursor and the numbers of concepts, which follow the order of saving."""
    offered = [(each["name"], each["eventIds"]) for each in answer["concepts"]]
    return [answer["results"], sorted(offered), answer["notices"], answer["chainRemaining"], explanation.to_polars().to_dicts()]


@pytest.mark.parametrize("copies", [2, 13, 60])
def test_equal_vectors_are_equal_in_every_row(copies: int) -> None:
    """retrieval.md Q3, Q12: one vector in many rows and places of a matrix gives one cosine, whatever BLAS does."""
    embedder = TableEmbedder(dimension=384)
    with open_memory("sqlite://", embedder=embedder, clock=Clock()) as memory:
        saved = []
        for n in range(copies):
            embedder.table[f"《{n}》"] = embedder.vector("one direction").tolist()
            embedder.table[f"〔{n}〕"] = embedder.vector("another").tolist()
            saved.append(Event(id=f"x{n:02}", summary=f"《{n}》", content=f"〔{n}〕", written_at=START))
            saved += [Event(id=f"y{n:02} {m}", summary=f"far {n} {m}", written_at=START) for m in range(n % 3)]
        memory.save_many(saved)
        embedder.table["？！"] = (embedder.vector("one direction") + embedder.vector("another")).tolist()
        result = memory.search("？！", explain=True)
        assert result.explanation is not None
        rows = [row for row in result.explanation.to_polars().to_dicts() if row["event_id"].startswith("x")]
        expected = [f"x{n:02}" for n in range(min(copies, 40))]
        assert [row["event_id"] for row in rows] == expected
        assert len({row["summary_cosine"] for row in rows}) == len({row["source_cosine"] for row in rows}) == 1
        assert [row["source_rank"] for row in rows] == list(range(1, len(rows) + 1))


# -- a larger library ----------------------------------------------------------------------------------------------------

SIZE, DIMENSION, ASKED = 3_000, 64, 20
CHILD = """
import json, sys
from tests.properties.test_exactness import ask_all
print(json.dumps(ask_all(sys.argv[1], json.loads(sys.argv[2]))))
"""


def large_events() -> list[Event]:
    return [
        Event(
            id=f"e{n:04}",
            summary=f"summary of {n}",
            content=f"text of {n}",
            concepts=(f"k{n % 7}",),
            written_at=START + timedelta(seconds=n % 50),
        )
        for n in range(SIZE)
    ]


def entity_for(number: int) -> str | None:
    return f"k{number % 7}" if number % 3 == 0 else None


def ask_all(address: str, numbers: list[int]) -> list[Any]:
    """Return every decision in full, as a child process prints it."""
    answers = []
    with open_memory(address, embedder=TableEmbedder(dimension=DIMENSION), clock=Clock(), read_only=True) as memory:
        for number in numbers:
            result = memory.search(f"？！{number}", entity=entity_for(number), explain=True, session=str(number))
            assert result.explanation is not None
            answers.append([ids(result.results), result.explanation.to_polars().to_dicts()])
    return answers


Best = dict[str, list[tuple[str, float]]]


def true_best(library: list[Event], embedder: TableEmbedder, numbers: Sequence[int]) -> dict[int, Best]:
    """Return each question's true top 40 of both routes by brute force, but for questions where rounding would decide."""
    routes = {
        "summary": unit(np.array([embedder.vector(event.summary) for event in library], np.float64)),
        "source": unit(np.array([embedder.vector(event.content) for event in library], np.float64)),
    }
    found: dict[int, Best] = {}
    for number in numbers:
        query, entity, best = unit(embedder.vector(f"？！{number}").astype(np.float64)[None])[0], entity_for(number), {}
        allowed = np.array([entity is None or entity in event.concepts for event in library])
        for route, vectors in routes.items():
            cosines = np.where(allowed, vectors @ query, -2.0)
            order = np.argsort(-cosines, kind="stable")[:41]
            if np.min(-np.diff(cosines[order])) > 2e-6:
                best[route] = [(str(library[n].id), float(cosines[n])) for n in order[:40].tolist()]
        if len(best) == len(routes):
            found[number] = best
    return found


def test_recall_of_three_thousand_is_exact_for_any_number_of_threads(tmp_path: Path) -> None:
    """retrieval.md Q1, Q2, Q3, Q12, section 8: recall equals brute force, and one or two BLAS threads give one answer."""
    embedder = TableEmbedder(dimension=DIMENSION)
    library = large_events()
    address = f"sqlite:///{tmp_path / 'large.db'}"
    with open_memory(address, embedder=embedder, clock=Clock()) as memory:
        assert not memory.save_many(library, batch_size=1000).failed
    expected = true_best(library, embedder, range(5 * ASKED))
    numbers = sorted(expected)[:ASKED]
    assert len(numbers) == ASKED
    running = [
        subprocess.Popen(
            [sys.executable, "-W", "error", "-c", CHILD, address, json.dumps(numbers)],
            env=os.environ | {"OPENBLAS_NUM_THREADS": threads, "OMP_NUM_THREADS": threads},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for threads in ("1", "2")
    ]
    printed = []
    for process in running:
        out, err = process.communicate(timeout=120)
        assert process.returncode == 0, err
        printed.append(out)
    assert printed[0] == printed[1]
    for number, (delivered, rows) in zip(numbers, json.loads(printed[0]), strict=True):
        for route, best in expected[number].items():
            ranked = sorted((row for row in rows if row[f"{route}_rank"]), key=lambda row: int(row[f"{route}_rank"]))
            assert [row["event_id"] for row in ranked] == [name for name, _ in best]
            assert [row[f"{route}_rank"] for row in ranked] == list(range(1, 41))
            assert [row[f"{route}_cosine"] for row in ranked] == pytest.approx([value for _, value in best], abs=1e-6)
        assert len(delivered) == 4


def unit(vectors: NDArray[np.float64]) -> NDArray[np.float64]:
    scaled: NDArray[np.float64] = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    return scaled
