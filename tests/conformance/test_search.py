"""Search and ranking as retrieval.md section 4 and section 9 (Q1 to Q19) state it, on every store."""

import json
import math
import os
import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from tests.support import START, Clock, OpenLibrary, TableEmbedder, ids, numbered
from workbench import Config, Event, InvalidRequest, Memory, ModelMismatch, RetrievalConfig, SearchResult

SYMBOLS = "？！…"
"""A question that is visible but has no terms: the vectors alone decide."""
COLUMNS = [
    "event_id",
    "summary_rank",
    "summary_cosine",
    "source_rank",
    "source_cosine",
    "chunk_start",
    "chunk_end",
    "rrf",
    "coverage",
    "fused",
    "duplicate_of",
    "mmr_step",
    "mmr_penalty",
    "mmr_score",
    "delivered",
]


def at(cosine: float) -> tuple[float, float]:
    """Return a unit vector with this cosine to (1, 0)."""
    return (cosine, math.sqrt(1 - cosine * cosine))


def flat(table: dict[str, Sequence[float]] | None = None, *, question: str = SYMBOLS) -> TableEmbedder:
    """Return an embedder of the plane in which ``question`` is (1, 0)."""
    return TableEmbedder({question: (1.0, 0.0)} | (table or {}), dimension=2)


def placed(
    embedder: TableEmbedder, event_id: str, summary: Sequence[float], source: Sequence[float] | None, **fields: Any
) -> Event:
    """Return an event whose summary and text have these vectors; None for an event without a text."""
    text = fields.pop("content", f"〔{event_id}〕") if source is not None else ""
    given: dict[str, Any] = {"id": event_id, "summary": f"《{event_id}》", "content": text, "written_at": START}
    made = Event(**given | fields)
    embedder.table[made.summary] = summary
    if source is not None:
        embedder.table[text] = source
    return made


def rows_of(result: SearchResult) -> dict[str, dict[str, Any]]:
    """Return the explanation's rows by event id."""
    assert result.explanation is not None
    return {row["event_id"]: row for row in result.explanation.to_polars().to_dicts()}


def terms_of(result: SearchResult) -> dict[str, float]:
    """Return the question's terms with their weights."""
    assert result.explanation is not None
    return {term.term: term.weight for term in result.explanation.terms}


def codes(result: SearchResult) -> list[str]:
    return [notice.code for notice in result.notices]


def drained(memory: Memory, *, session: str = "drain", **arguments: Any) -> list[list[str]]:
    """Return the batches that one session gets until it gets none."""
    batches: list[list[str]] = []
    while True:
        batch = ids(memory.search(**arguments, session=session).results)
        batches.append(batch)
        if not batch:
            return batches


def weight(n: int, df: int) -> float:
    return math.log(1 + (n - df + 0.5) / (df + 0.5))


def saturated(tf: int, length: int, mean: float) -> float:
    return tf / (tf + 1.2 * (1 - 0.75 + 0.75 * length / mean))


# -- Q1: two routes of 40 different events -------------------------------------------------------------------------------


def test_each_route_recalls_its_own_forty_events(open_library: OpenLibrary) -> None:
    """retrieval.md Q1: at most 40 different events per route, by the cosine of summary and of source."""
    embedder = flat()
    memory = open_library(embedder=embedder)
    memory.save_many([placed(embedder, f"e{n:02}", at(0.9 - n / 100), at(0.1 + n / 100)) for n in range(50)])
    rows = rows_of(memory.search(SYMBOLS, explain=True))
    assert len(rows) == 50
    for n in range(50):
        row = rows[f"e{n:02}"]
        assert row["summary_rank"] == (n + 1 if n < 40 else None)
        assert row["source_rank"] == (50 - n if n >= 10 else None)
        if n < 40:
            assert row["summary_cosine"] == pytest.approx(0.9 - n / 100, abs=1e-6)
        if n >= 10:
            assert row["source_cosine"] == pytest.approx(0.1 + n / 100, abs=1e-6)


def chunk_texts(content: str, size: int = 800, overlap: int = 120) -> list[str]:
    step = size - overlap
    return [content[start : start + size] for start in range(0, max(len(content) - overlap, 1), step)]


def long_content(name: str, chunks: int) -> str:
    """Return a text of exactly ``chunks`` different chunks."""
    length = 680 * (chunks - 1) + 500
    return "".join(f"〔{name}{n:06}〕" for n in range(length))[:length]


def test_many_chunks_of_one_event_are_one_place_in_the_route(open_library: OpenLibrary) -> None:
    """retrieval.md Q1, faults.md BL-18: 12 best chunks of A leave B the second place of the source route."""
    embedder = flat()
    memory = open_library(embedder=embedder)
    text = long_content("A", 12)
    pieces = chunk_texts(text)
    assert len(pieces) == 12
    embedder.table |= {piece: at(0.99 - n / 100) for n, piece in enumerate(reversed(pieces))}
    embedder.table["《A》"] = at(0.10)
    others = [placed(embedder, f"m{n:02}", at(0.8 - n / 100), at(0.3 - n / 1000)) for n in range(38)]
    b = placed(embedder, "B", at(0.95), at(0.5))
    memory.save_many([Event(id="A", summary="《A》", content=text, written_at=START), b, *others])
    rows = rows_of(memory.search(SYMBOLS, explain=True))
    assert (rows["A"]["summary_rank"], rows["A"]["source_rank"]) == (40, 1)
    assert (rows["B"]["summary_rank"], rows["B"]["source_rank"]) == (1, 2)
    assert rows["A"]["rrf"] == pytest.approx(1 / 100 + 1 / 61, abs=1e-12)
    assert rows["B"]["rrf"] == pytest.approx(1 / 61 + 1 / 62, abs=1e-12)
    assert rows["A"]["source_cosine"] == pytest.approx(0.99, abs=1e-6)
    assert (rows["A"]["chunk_start"], rows["A"]["chunk_end"]) == (680 * 11, len(text))


def test_sixty_chunks_of_one_event_do_not_crowd_out_forty_others(open_library: OpenLibrary) -> None:
    """retrieval.md Q1, faults.md BL-18: up to 40 means 40 different events."""
    embedder = flat()
    memory = open_library(embedder=embedder)
    text = long_content("A", 60)
    embedder.table |= {piece: at(0.9) for piece in chunk_texts(text)} | {"《A》": at(-0.9)}
    singles = [placed(embedder, f"s{n:02}", at(-0.1 - n / 100), at(0.5 - n / 1000)) for n in range(45)]
    memory.save_many([Event(id="A", summary="《A》", content=text, written_at=START), *singles])
    rows = rows_of(memory.search(SYMBOLS, explain=True))
    ranked = {row["source_rank"]: name for name, row in rows.items() if row["source_rank"] is not None}
    assert ranked == {1: "A"} | {n + 2: f"s{n:02}" for n in range(39)}


def test_an_event_without_chunks_is_in_the_summary_route_only(open_library: OpenLibrary) -> None:
    """retrieval.md Q1, S6: an empty text has no source route; an unchunked one neither, and says so."""
    embedder = flat()
    memory = open_library(embedder=embedder)
    memory.save(placed(embedder, "empty", at(0.5), None))
    memory.save_many([placed(embedder, "old", at(0.4), at(1.0))], chunks=False)
    memory.save(placed(embedder, "whole", at(0.3), at(0.2)))
    result = memory.search(SYMBOLS, explain=True)
    rows = rows_of(result)
    for name, summary_rank in (("empty", 1), ("old", 2)):
        row = rows[name]
        assert row["summary_rank"] == summary_rank
        assert (row["source_rank"], row["source_cosine"], row["chunk_start"], row["chunk_end"]) == (None, None, None, None)
        assert row["rrf"] == pytest.approx(1 / (60 + summary_rank), abs=1e-12)
    assert rows["whole"]["source_rank"] == 1
    shown = {each["id"]: each for each in result.to_dict()["results"]}
    assert shown["empty"]["routes"] == ["summary"]
    assert shown["empty"]["notices"] == []
    assert shown["old"]["routes"] == ["summary"]
    assert shown["old"]["notices"] == ["sourceChunksMissing"]
    assert shown["whole"]["routes"] == ["summary", "source"]


def test_an_event_of_the_source_route_alone_says_so(open_library: OpenLibrary) -> None:
    """retrieval.md Q1, Q4: an event outside the summary route's 40 gets the source route's share only."""
    embedder = flat()
    memory = open_library(embedder=embedder)
    memory.save_many([placed(embedder, f"s{n:02}", at(0.9 - n / 1000), None) for n in range(40)])
    memory.save(placed(embedder, "deep", at(-0.5), at(0.9)))
    result = memory.search(SYMBOLS, explain=True)
    row = rows_of(result)["deep"]
    assert (row["summary_rank"], row["source_rank"]) == (None, 1)
    assert row["rrf"] == pytest.approx(1 / 61, abs=1e-12)
    shown = {each["id"]: each for each in result.to_dict()["results"]}
    assert shown["deep"]["routes"] == ["source"]
    assert shown["s00"]["routes"] == ["summary"]


# -- Q2: filters before the cut ------------------------------------------------------------------------------------------


def crowd(embedder: TableEmbedder, count: int = 300, **fields: Any) -> list[Event]:
    return [placed(embedder, f"x{n:03}", at(0.99), at(0.99), **fields) for n in range(count)]


def test_a_filter_on_an_entity_finds_the_301st(open_library: OpenLibrary) -> None:
    """retrieval.md Q2, faults.md BL-23: the entity filter applies before the 40 are chosen, by name and by id."""
    embedder = flat()
    memory = open_library(embedder=embedder)
    memory.save_many(crowd(embedder, concepts=("X",)))
    memory.save(placed(embedder, "y", at(-0.5), at(-0.5), concepts=("Y",), persons=("Yin",)))
    for label, name in (("Concept", "Y"), ("Person", "Yin")):
        node = next(each for each in memory.search(name, label=label, limit=8).results if each.name == name)  # type: ignore[union-attr]
        for entity in (name, node.id):
            result = memory.search(SYMBOLS, entity=entity, explain=True, session=f"{label} {entity}")
            assert ids(result.results) == ["y"]
            assert (rows_of(result)["y"]["summary_rank"], rows_of(result)["y"]["source_rank"]) == (1, 1)


def test_a_filter_on_dates_finds_the_301st(open_library: OpenLibrary) -> None:
    """retrieval.md Q2, faults.md BL-23: the date filter applies before the 40 are chosen."""
    embedder = flat()
    memory = open_library(embedder=embedder)
    memory.save_many(crowd(embedder))
    memory.save(placed(embedder, "y", at(-0.5), at(-0.5), written_at=START - timedelta(days=400)))
    assert ids(memory.search(SYMBOLS, written_to=START - timedelta(days=1)).results) == ["y"]


def test_hidden_events_take_no_place(open_library: OpenLibrary) -> None:
    """retrieval.md Q2: archived, forgotten and revoked events are out before the 40 are chosen; superseded ones stay."""
    embedder = flat()
    memory = open_library(embedder=embedder)
    memory.save_many(crowd(embedder, 60))
    memory.save(placed(embedder, "y", at(0.1), at(0.1)))
    memory.save(placed(embedder, "z", at(0.0), at(0.0)))
    hide: list[Callable[[str], None]] = [memory.forget, memory.archive, memory.revoke]
    for n in range(60):
        hide[n % 3](f"x{n:03}")
    memory.supersede("y", by="z")
    result = memory.search(SYMBOLS, explain=True)
    assert ids(result.results) == ["y", "z"]
    assert rows_of(result)["y"]["summary_rank"] == 1
    assert result.results[0].notices == ("superseded",)  # type: ignore[union-attr]
    memory.restore("x007")
    assert ids(memory.search(SYMBOLS).results) == ["x007"]


def test_delivered_events_take_no_place_and_all_are_drained(open_library: OpenLibrary) -> None:
    """retrieval.md Q2, Q8, V6, faults.md BL-23: 120 relevant events come 4 at a time, then an empty answer that says why."""
    embedder = flat()
    memory = open_library(embedder=embedder)
    memory.save_many(crowd(embedder, 120))
    delivered: list[str] = []
    for call in range(30):
        result = memory.search(SYMBOLS, explain=True)
        rows = rows_of(result)
        assert len(result.results) == 4
        assert len([row for row in rows.values() if row["summary_rank"] is not None]) == min(40, 120 - 4 * call)
        assert not set(rows) & set(delivered)
        delivered += ids(result.results)
    assert sorted(delivered) == [f"x{n:03}" for n in range(120)]
    last = memory.search(SYMBOLS)
    assert (last.results, last.cursor, last.concepts) == ((), None, ())
    assert {"emptyIsNotAbsence", "deliveredExcluded"} <= set(codes(last))


def test_several_entities_mean_all_of_them(open_library: OpenLibrary) -> None:
    """retrieval.md Q2, Q18: entity is a string or a list; several, concepts and persons mixed, mean all."""
    memory = open_library()
    memory.save_many(
        [
            Event(id="both", summary="1", concepts=("图", "库"), persons=("Ann",)),
            Event(id="one", summary="2", concepts=("图",), persons=("Ann",)),
            Event(id="none", summary="3", persons=("Bo",)),
        ]
    )

    def found(entity: Any) -> list[str]:
        return sorted(ids(memory.search(entity=entity, session=repr(entity)).results))

    assert found("图") == ["both", "one"]
    assert found(["图"]) == ["both", "one"]
    assert found(["图", "库"]) == ["both"]
    assert found(("Ann", "图")) == ["both", "one"]
    assert found(["Ann", "库"]) == ["both"]
    assert found(["Bo", "图"]) == []
    assert found("nobody") == []


def test_filters_combine(open_library: OpenLibrary) -> None:
    """retrieval.md Q2: question, entity and both ends of the date hold at the same time."""
    embedder = flat()
    memory = open_library(embedder=embedder)
    for n in range(10):
        name = "图" if n % 2 else "库"
        event = placed(embedder, f"e{n}", at(0.5), at(0.5), concepts=(name,), written_at=START + timedelta(days=n))
        memory.save(event)
    first, last = (START + timedelta(days=3)).date(), (START + timedelta(days=7)).date()
    result = memory.search(SYMBOLS, entity="图", written_from=first, written_to=last)
    assert ids(result.results) == ["e7", "e5", "e3"]


# -- Q3: exact -----------------------------------------------------------------------------------------------------------


def test_cosines_two_millionths_apart_are_told_apart(open_library: OpenLibrary) -> None:
    """retrieval.md Q3: the 40 are the true top 40, however close they lie."""
    embedder = flat()
    memory = open_library(embedder=embedder)
    order = np.random.default_rng(7).permutation(120)
    memory.save_many([placed(embedder, f"e{n:03}", at(0.5 - n * 2e-6), at(0.5 - (119 - n) * 2e-6)) for n in order])
    rows = rows_of(memory.search(SYMBOLS, explain=True))
    assert {n: f"e{n - 1:03}" for n in range(1, 41)} == {
        row["summary_rank"]: name for name, row in rows.items() if row["summary_rank"] is not None
    }
    assert {n: f"e{120 - n:03}" for n in range(1, 41)} == {
        row["source_rank"]: name for name, row in rows.items() if row["source_rank"] is not None
    }


def test_the_length_of_a_vector_does_not_matter(open_library: OpenLibrary) -> None:
    """retrieval.md Q1, Q3: similarity is the cosine, so a long vector gains nothing."""
    embedder = flat()
    memory = open_library(embedder=embedder)
    memory.save(placed(embedder, "long", (500.0, 500.0), (500.0, 500.0)))
    memory.save(placed(embedder, "short", (0.002, 0.001), (0.002, 0.001)))
    embedder.table[SYMBOLS] = (30.0, 0.0)
    result = memory.search(SYMBOLS, explain=True)
    assert ids(result.results) == ["short", "long"]
    assert rows_of(result)["long"]["summary_cosine"] == pytest.approx(math.sqrt(0.5), abs=1e-6)
    assert rows_of(result)["short"]["source_cosine"] == pytest.approx(2 / math.sqrt(5), abs=1e-6)


# -- Q4: fusion ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("k", [60, 0, 7])
def test_fusion_by_hand(open_library: OpenLibrary, k: int) -> None:
    """retrieval.md Q4: sum of 1/(k + rank), rank from 1, k = 60 by default."""
    embedder = flat()
    config = Config(retrieval=RetrievalConfig(rrf_k=k)) if k != 60 else Config()
    memory = open_library(embedder=embedder, config=config)
    cosines = {"a": (0.9, 0.1), "b": (0.8, 0.7), "c": (0.7, 0.9), "d": (0.6, 0.8)}
    memory.save_many([placed(embedder, name, at(one), at(two)) for name, (one, two) in cosines.items()])
    ranks = {"a": (1, 4), "b": (2, 3), "c": (3, 1), "d": (4, 2)}
    result = memory.search(SYMBOLS, explain=True)
    for name, row in rows_of(result).items():
        assert (row["summary_rank"], row["source_rank"]) == ranks[name]
        expected = 1 / (k + ranks[name][0]) + 1 / (k + ranks[name][1])
        assert row["rrf"] == pytest.approx(expected, abs=1e-12)
        assert (row["coverage"], row["fused"]) == (0, pytest.approx(expected, abs=1e-12))
    for each in result.results:
        assert each.rank_score == pytest.approx(rows_of(result)[each.id]["fused"], abs=1e-9)  # type: ignore[union-attr]


# -- Q5: coverage --------------------------------------------------------------------------------------------------------


def covered(memory: Memory, question: str, *, session: str | None = None) -> tuple[dict[str, float], dict[str, float]]:
    """Return coverage by event and weight by term."""
    result = memory.search(question, explain=True, session=session or f"covered {question[:40]}")
    rows = rows_of(result)
    assert all(0 <= row["coverage"] <= 1 for row in rows.values())
    return {name: row["coverage"] for name, row in rows.items()}, terms_of(result)


def test_coverage_by_hand(memory: Memory) -> None:
    """retrieval.md Q5: rarity-weighted, saturated shares over title, summary, names and text; absent terms in the divisor."""
    memory.save_many(
        [
            Event(id="a", title="red", summary="blue sky", content="red red green", concepts=("fox",), persons=("Kim",)),
            Event(id="b", summary="blue", content="blue blue"),
            Event(id="c", summary="grey", content="stone"),
        ]
    )
    # n = 3; lengths: a = 1 + 2 + 3 + 1 + 1 = 8, b = 3, c = 2; mean 13/3
    # df: red 1, blue 2, fox 1, kim 1, zebra 0
    mean = 13 / 3
    weights = {"red": weight(3, 1), "blue": weight(3, 2), "fox": weight(3, 1), "kim": weight(3, 1), "zebra": weight(3, 0)}
    whole = sum(weights.values())
    a = weights["red"] * saturated(3, 8, mean) + weights["blue"] * saturated(1, 8, mean)
    a += (weights["fox"] + weights["kim"]) * saturated(1, 8, mean)
    result = memory.search("red blue fox Kim zebra", explain=True)
    rows = rows_of(result)
    assert terms_of(result) == {term: pytest.approx(value, abs=1e-9) for term, value in weights.items()}
    assert rows["a"]["coverage"] == pytest.approx(a / whole, abs=1e-9)
    assert rows["b"]["coverage"] == pytest.approx(weights["blue"] * saturated(3, 3, mean) / whole, abs=1e-9)
    assert rows["c"]["coverage"] == 0
    # the same by numbers worked out on paper
    assert weights["red"] == pytest.approx(0.980829253, abs=1e-9)
    assert weights["blue"] == pytest.approx(0.470003629, abs=1e-9)
    assert weights["zebra"] == pytest.approx(2.079441542, abs=1e-9)
    assert rows["b"]["coverage"] == pytest.approx(0.470003629 * 3 / 3.923076923 / 5.491932930, abs=1e-8)
    for each in rows.values():
        assert each["fused"] == pytest.approx(each["rrf"] + 8 / 61 * each["coverage"], abs=1e-9)


def test_coverage_counts_the_candidates_of_this_call_only(memory: Memory) -> None:
    """retrieval.md Q5: rarity and mean length are those of the filtered, undelivered candidates."""
    memory.save_many([Event(id=f"x{n}", summary="tin", content="cat cat dog", concepts=("X",)) for n in range(9)])
    memory.save(Event(id="y", summary="tin", content="cat", concepts=("Y",)))
    shares, weights = {}, {}
    for session in ("one", "two"):
        result = memory.search("cat dog", entity="Y", explain=True, session=session)
        shares, weights = {name: row["coverage"] for name, row in rows_of(result).items()}, terms_of(result)
    assert weights == {"cat": pytest.approx(weight(1, 1), abs=1e-9), "dog": pytest.approx(weight(1, 0), abs=1e-9)}
    expected = weight(1, 1) * saturated(1, 3, 3.0) / (weight(1, 1) + weight(1, 0))  # tin, cat, y: three terms
    assert shares == {"y": pytest.approx(expected, abs=1e-9)}


def test_terms_of_two_fields_never_make_a_bigram(memory: Memory) -> None:
    """retrieval.md Q5: title, summary, names and text are covered, but a bigram never spans two of them."""
    memory.save(Event(id="split", title="图", summary="书", content="册", concepts=("画",)))
    memory.save(Event(id="joined", summary="图书", content="册画"))
    result = memory.search("图书 书册", explain=True)
    assert result.explanation is not None
    found = {term.term: term.candidates for term in result.explanation.terms}
    assert found == {"图书": 1, "图": 2, "书": 2, "书册": 0, "册": 2}


@pytest.mark.parametrize("weight_of_coverage", [0.0, 8 / 61, 2.0])
def test_the_weight_of_coverage(open_library: OpenLibrary, weight_of_coverage: float) -> None:
    """retrieval.md Q5: fused is RRF + weight * coverage; weight 0 leaves pure RRF."""
    embedder = flat(question="cat")
    memory = open_library(embedder=embedder, config=Config(retrieval=RetrievalConfig(coverage_weight=weight_of_coverage)))
    memory.save(placed(embedder, "near", at(0.9), at(0.9), content="dog"))
    memory.save(placed(embedder, "cats", at(0.1), at(0.1), content="a cat"))
    result = memory.search("cat", explain=True)
    rows = rows_of(result)
    assert rows["cats"]["coverage"] > 0
    for row in rows.values():
        assert row["fused"] == pytest.approx(row["rrf"] + weight_of_coverage * row["coverage"], abs=1e-9)
    assert ids(result.results)[0] == ("near" if weight_of_coverage == 0 else "cats")


@pytest.mark.parametrize(
    ("question", "expected"),
    [
        ("如何提高检索质量", "如何 何提 提高 高检 检索 索质 质量 如 提 高 检 索 质 量"),
        ("图书的馆", "图书 书的 的馆 图 书 馆"),
        ("图", "图"),
        ("ひらがな", "ひら らが がな"),
        ("カタカナ", "カタ タカ カナ"),
        ("ｶﾀｶﾅ", "カタ タカ カナ"),
        ("검색품질", "검색 색품 품질"),
        ("กขคง", "กข ขค คง"),
        ("the cat and the dog", "cat dog"),
        ("cat CAT cat ｃａｔ", "cat"),
        ("running deployments", "run deploy"),
        ("Neo4j部署", "neo4j 部署 部 署"),
    ],
)
def test_terms_of_a_question(memory: Memory, question: str, expected: str) -> None:
    """retrieval.md Q5, Q19, faults.md BL-24: words folded, stemmed and without stop words; bigrams and single Han characters."""
    memory.save(Event(id="a", summary="tin", content="ore"))
    _, weights = covered(memory, question)
    assert set(weights) == set(expected.split())


@pytest.mark.parametrize(
    ("question", "match"),
    [
        ("检索质量", "怎样提高检索质量呢"),
        ("ひらがな", "これはひらがなです"),
        ("カタカナ", "ﾊﾝｶｸのｶﾀｶﾅ"),
        ("검색", "좋은검색품질"),
        ("ค้นหา", "ระบบค้นหาข้อมูล"),
        ("ຄົ້ນຫາ", "ລະບົບຄົ້ນຫາຂໍ້ມູນ"),
        ("ស្វែងរក", "ប្រព័ន្ធស្វែងរកទិន្នន័យ"),
        ("ရှာဖွေ", "အချက်ရှာဖွေရေး"),
        ("Neo4j部署v2.3", "昨天用neo4j完成"),
        ("Neo4j部署v2.3", "在部署之前"),
        ("Straße", "die STRASSE hier"),
        ("ＮＥＯ４Ｊ", "neo4j"),
        ("deployments", "we deployed it"),
        ("библиотеки", "в библиотеке"),
        ("Café", "Cafe\u0301 noir"),
        ("𠮷野家", "昨天的𠮷野家店"),
        ("人々", "町の人々が"),
        ("हिन्दी", "यह हिन्दी है"),
        ("كتاب", "هذا كتاب جديد"),
        ("λόγος", "ΛΌΓΟΣ αυτός"),
        ("①", "1 one"),
        ("finance", "the ﬁnance desk"),
        ("İstanbul", "in İSTANBUL today"),
        ("株式会社", "これは㍿だ"),
        ("ガラス", "ｶﾞﾗｽの"),
        ("한국", "\u1112\u1161\u11ab\u1100\u116e\u11a8 사람"),
        ("don't panic", "PANIC button"),
        ("v2", "release-v2.3"),
        ("3.14", "pi is 3.14159"),
        ("snake", "snake_case"),
    ],
)
def test_terms_match_across_scripts(open_library: OpenLibrary, question: str, match: str) -> None:
    """retrieval.md Q5, Q19, faults.md BL-24: folding, stems and runs match; the other text does not."""
    memory = open_library()
    memory.save(Event(id="match", summary="‖", content=match))
    memory.save(Event(id="other", summary="‖", content="zz 猫"))
    shares, _ = covered(memory, question)
    assert shares["match"] > 0
    assert shares["other"] == 0


def test_a_text_covers_all_terms_of_itself(memory: Memory) -> None:
    """retrieval.md Q5, faults.md BL-24: a mixed question finds every one of its terms in its own text."""
    question = "Neo4j部署v2.3：ひらがな 검색 ค้นหา Straße e\u0301tude 图书馆"
    memory.save(Event(id="same", summary="‖", content=question))
    memory.save(Event(id="other", summary="‖", content="zz"))
    result = memory.search(question, explain=True)
    assert result.explanation is not None
    assert result.explanation.terms
    assert {term.candidates for term in result.explanation.terms} == {1}


def test_no_match_inside_a_longer_latin_word(memory: Memory) -> None:
    """retrieval.md Q5: matching is by term, never by substring of a longer Latin word."""
    memory.save(Event(id="inside", summary="‖", content="concatenate catalog scatter"))
    memory.save(Event(id="beside", summary="‖", content="concatenate,cat;scatter"))
    memory.save(Event(id="between", summary="‖", content="一只cat在这里"))
    shares, _ = covered(memory, "cat")
    assert shares["inside"] == 0
    assert shares["beside"] > 0
    assert shares["between"] > 0


def test_chinese_coverage_ranks_three_texts(open_library: OpenLibrary) -> None:
    """retrieval.md Q5, faults.md BL-24: more of the question first, with equal vectors and times."""
    question = "如何提高检索质量"
    embedder = flat(question=question)
    memory = open_library(embedder=embedder)
    texts = {"c": "检索质量", "b": "提高一下", "a": "今天天晴"}
    memory.save_many([placed(embedder, name, at(0.5), at(0.5), content=text) for name, text in texts.items()])
    result = memory.search(question, explain=True)
    rows = rows_of(result)
    assert rows["c"]["coverage"] > rows["b"]["coverage"] > rows["a"]["coverage"] == 0
    assert list(rows) == ["c", "b", "a"]


@pytest.mark.parametrize("question", [SYMBOLS, "的", "🚀", "the", "、。", "你 我 他", "。\u0301"])
def test_a_question_without_terms_is_left_to_the_vectors(open_library: OpenLibrary, question: str) -> None:
    """retrieval.md Q5, faults.md BL-24: no terms, no coverage, no error."""
    embedder = flat(question=question)
    memory = open_library(embedder=embedder)
    memory.save(placed(embedder, "a", at(0.2), at(0.2), content="的 the 🚀 你我"))
    memory.save(placed(embedder, "b", at(0.9), at(0.9), content="b"))
    result = memory.search(question, explain=True)
    assert ids(result.results) == ["b", "a"]
    assert terms_of(result) == {}
    assert {row["coverage"] for row in rows_of(result).values()} == {0.0}


def test_events_without_terms_divide_nothing_by_zero(open_library: OpenLibrary) -> None:
    """retrieval.md Q5, faults.md BL-24: texts of punctuation only, and no candidates at all."""
    memory = open_library()
    assert memory.search("cat", explain=True).results == ()
    memory.save_many([Event(id=f"p{n}", summary="‖", content="。" * (n + 1)) for n in range(3)])
    shares, weights = covered(memory, "cat dog")
    assert shares == {"p0": 0.0, "p1": 0.0, "p2": 0.0}
    assert weights == {term: pytest.approx(weight(3, 0), abs=1e-9) for term in ("cat", "dog")}


def test_coverage_among_almost_wordless_candidates(memory: Memory) -> None:
    """retrieval.md Q5: a mean length below one term divides like any other, as BM25's formula says."""
    memory.save(Event(id="word", summary="！", content="cat"))
    memory.save_many([Event(id=f"none{n}", summary="！", content="。" * n) for n in range(3)])
    shares, _ = covered(memory, "cat")
    assert shares == {"word": pytest.approx(saturated(1, 1, 1 / 4), abs=1e-9), "none0": 0, "none1": 0, "none2": 0}


def test_repetition_does_not_raise_coverage_above_one(memory: Memory) -> None:
    """retrieval.md Q5, faults.md BL-24: a word 1,000 times, in the text and in the question."""
    memory.save(Event(id="much", summary="cat", content="cat " * 1000))
    memory.save(Event(id="once", summary="cat", content="dog"))
    shares, weights = covered(memory, "cat " * 400)
    assert set(weights) == {"cat"}
    assert 0 < shares["once"] < shares["much"] < 1
    mean = (1001 + 2) / 2
    assert shares["much"] == pytest.approx(saturated(1001, 1001, mean), abs=1e-9)
    assert shares["once"] == pytest.approx(saturated(1, 2, mean), abs=1e-9)


def test_coverage_changes_with_an_updated_event(memory: Memory) -> None:
    """retrieval.md Q5, S5: after an update the new text alone is covered."""
    memory.save(Event(id="a", summary="tin", content="cat"))
    assert covered(memory, "cat", session="1")[0]["a"] > 0
    memory.save(Event(id="a", summary="tin", content="dog"))
    assert covered(memory, "cat", session="2")[0]["a"] == 0
    assert covered(memory, "dog", session="3")[0]["a"] > 0


# -- Q6: duplicates ------------------------------------------------------------------------------------------------------


def test_equal_texts_are_merged_into_the_best_ranked(open_library: OpenLibrary) -> None:
    """retrieval.md Q6: the best-ranked stays, the others are its duplicates and take no slot."""
    embedder = flat()
    memory = open_library(embedder=embedder)
    for name, cosine in (("low", 0.3), ("best", 0.9), ("mid", 0.6)):
        memory.save(placed(embedder, name, at(cosine), at(0.5), content="同样的原文"))
    for n in range(4):
        memory.save(placed(embedder, f"other{n}", at(0.2 - n / 100), at(0.2 - n / 100)))
    result = memory.search(SYMBOLS, explain=True)
    rows = rows_of(result)
    assert {name: row["duplicate_of"] for name, row in rows.items() if row["duplicate_of"]} == {"low": "best", "mid": "best"}
    assert ids(result.results)[0] == "best"
    assert len(result.results) == 4
    assert not {"low", "mid"} & set(ids(result.results))
    for name in ("low", "mid"):
        assert (rows[name]["mmr_step"], rows[name]["mmr_score"], rows[name]["delivered"]) == (None, None, False)
        assert rows[name]["fused"] is not None


def test_only_exactly_equal_texts_are_duplicates(memory: Memory) -> None:
    """retrieval.md Q6, faults.md BL-06: empty texts, another normal form, a line end or a space make two events."""
    texts = ["", "", "Café", "Cafe\u0301", "line", "line\n", "line\r\n", " line"]
    memory.save_many([Event(id=f"e{n}", summary=f"s{n}", content=text) for n, text in enumerate(texts)])
    result = memory.search(SYMBOLS, explain=True)
    assert [row["duplicate_of"] for row in rows_of(result).values()] == [None] * 8
    assert sorted(each for batch in drained(memory, query_text=SYMBOLS) for each in batch) == [f"e{n}" for n in range(8)]


def test_a_hidden_or_filtered_event_has_no_duplicates(open_library: OpenLibrary) -> None:
    """retrieval.md Q2, Q6: only candidates are merged, so the second stands for a first that is hidden or filtered out."""
    embedder = flat()
    memory = open_library(embedder=embedder)
    memory.save(placed(embedder, "first", at(0.9), at(0.5), content="同样的原文"))
    memory.save(placed(embedder, "second", at(0.1), at(0.5), content="同样的原文", concepts=("图",)))
    assert ids(memory.search(SYMBOLS, entity="图", session="1").results) == ["second"]
    memory.archive("first")
    assert ids(memory.search(SYMBOLS, session="2").results) == ["second"]
    memory.restore("first")
    assert ids(memory.search(SYMBOLS, session="3").results) == ["first"]


# -- Q7, Q17: diversity --------------------------------------------------------------------------------------------------

COPIES: dict[str, tuple[float, ...]] = {
    "a1": (0.9, math.sqrt(0.19), 0, 0, 0),
    "a2": (0.9, math.sqrt(0.19), 0, 0, 0),
    "a3": (0.9, math.sqrt(0.19), 0, 0, 0),
    "d": (0.8, 0, 0.6, 0, 0),
    "e": (0.7, 0, 0, math.sqrt(0.51), 0),
    "f": (0.6, 0, 0, 0, 0.8),
}
"""Cosines with the question .9 to .6; among each other products of those, but 1 among the copies."""


def diverse(open_library: OpenLibrary, lambda_: float | None, vectors: Mapping[str, tuple[float, ...]] | None = None) -> Memory:
    vectors = vectors if vectors is not None else COPIES
    size = len(next(iter(vectors.values()), (1, 0)))
    embedder = TableEmbedder({SYMBOLS: (1.0, *[0.0] * (size - 1))}, dimension=size)
    config = Config() if lambda_ is None else Config(retrieval=RetrievalConfig(mmr_lambda=lambda_))
    memory = open_library(embedder=embedder, config=config)
    for n, (name, vector) in enumerate(vectors.items()):
        memory.save(placed(embedder, name, vector, vector, written_at=START - timedelta(hours=n)))
    return memory


@pytest.mark.parametrize(
    ("lambda_", "expected"),
    [(None, ["a1", "f", "e", "d"]), (0.85, ["a1", "f", "e", "d"]), (1, ["a1", "a2", "a3", "d"]), (0, ["a1", "f", "e", "d"])],
)
def test_diversity_by_hand(open_library: OpenLibrary, lambda_: float | None, expected: list[str]) -> None:
    """retrieval.md Q7, Q17, faults.md BL-21: worked out on paper for lambda .85, 1 and 0; delivered in MMR's order."""
    result = diverse(open_library, lambda_).search(SYMBOLS, explain=True)
    assert ids(result.results) == expected
    rows = rows_of(result)
    assert [rows[name]["mmr_step"] for name in expected] == [1, 2, 3, 4]
    if lambda_ in (None, 0.85):
        penalties = {"a1": 0.0, "f": 0.54, "e": 0.63, "d": 0.72}
        relevance = {"a1": 1.0, "f": 61 / 66, "e": 61 / 65, "d": 61 / 64}
        for name, penalty in penalties.items():
            assert rows[name]["mmr_penalty"] == pytest.approx(penalty, abs=1e-6)
            assert rows[name]["mmr_score"] == pytest.approx(0.85 * relevance[name] - 0.15 * penalty, abs=1e-6)


def test_lambda_zero_takes_the_least_similar(open_library: OpenLibrary) -> None:
    """retrieval.md Q7, Q17, faults.md BL-21: lambda 0 begins with the most relevant, then negative cosines attract."""
    vectors = {
        "best": (0.96, 0.28),
        "copy": (0.8, 0.6),
        "side": (0.0, 1.0),
        "back": (-0.6, -0.8),
        "under": (0.28, -0.96),
    }
    result = diverse(open_library, 0, vectors).search(SYMBOLS, explain=True)
    # to best: copy .936, side .28, back -.8, under 0; then to back too: copy -.96, side -.8, under .6
    assert ids(result.results) == ["best", "back", "side", "under"]
    rows = rows_of(result)
    assert [rows[name]["mmr_penalty"] for name in ids(result.results)] == pytest.approx([0, -0.8, 0.28, 0.6], abs=1e-6)
    assert rows["back"]["mmr_score"] == pytest.approx(0.8, abs=1e-6)


def test_a_negative_cosine_raises_the_score(open_library: OpenLibrary) -> None:
    """retrieval.md Q17: the penalty is the largest cosine, negative ones included, and 0 for the first."""
    vectors = {"a": (0.6, 0.8), "b": (0.28, 0.96), "c": (0.0, -1.0)}
    result = diverse(open_library, None, vectors).search(SYMBOLS, explain=True)
    rows = rows_of(result)
    assert ids(result.results) == ["a", "c", "b"]
    assert rows["c"]["mmr_score"] == pytest.approx(0.85 * 61 / 63 + 0.15 * 0.8, abs=1e-6)
    assert rows["a"]["mmr_score"] == pytest.approx(0.85, abs=1e-9)


@pytest.mark.parametrize("lambda_", [0, 0.85, 1])
@pytest.mark.parametrize("count", [0, 1, 3, 4, 6])
def test_as_many_as_there_are_up_to_four(open_library: OpenLibrary, lambda_: float, count: int) -> None:
    """retrieval.md Q7, Q8, faults.md BL-21: min(4, available), no repeats, no crash, all vectors equal."""
    memory = diverse(open_library, lambda_, {f"e{n}": (0.6, 0.8) for n in range(count)})
    assert ids(memory.search(SYMBOLS).results) == [f"e{n}" for n in range(min(4, count))]


def test_equal_scores_go_by_fused_score_then_date_then_id(open_library: OpenLibrary) -> None:
    """retrieval.md Q17, Q12: lambda 0 with equal penalties takes the higher fused score; equal ones the newer, then the id."""
    embedder = TableEmbedder({SYMBOLS: (1.0, 0.0, 0.0)}, dimension=3)
    memory = open_library(embedder=embedder, config=Config(retrieval=RetrievalConfig(mmr_lambda=0)))
    turned = {"first": (1.0, 0.0, 0.0), "left": (0.6, 0.8, 0.0), "right": (0.6, -0.8, 0.0), "up": (0.6, 0.0, 0.8)}
    sources = {"first": 1.0, "left": 0.1, "right": 0.2, "up": 0.3}
    for name, vector in turned.items():
        source = (sources[name], math.sqrt(1 - sources[name] ** 2), 0.0)
        memory.save(placed(embedder, name, vector, source))
    result = memory.search(SYMBOLS, explain=True)
    rows = rows_of(result)
    # summary ranks by id: left 2, right 3, up 4; source ranks up 2, right 3, left 4; left and up mirror each other
    assert rows["left"]["fused"] == rows["up"]["fused"] > rows["right"]["fused"]
    assert ids(result.results)[:2] == ["first", "left"]


@pytest.mark.parametrize("lambda_", [-0.1, 1.1, math.nan, math.inf, "0.85", None, True])
def test_a_lambda_out_of_range_is_refused(lambda_: Any) -> None:
    """retrieval.md Q7, faults.md BL-21, api.md: a config is checked when built."""
    with pytest.raises(InvalidRequest, match="mmr_lambda"):
        RetrievalConfig(mmr_lambda=lambda_)


# -- Q8, Q9, Q10, Q11 ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("limit", range(1, 9))
@pytest.mark.parametrize("question", [SYMBOLS, None])
def test_at_most_four_are_delivered(memory: Memory, limit: int, question: str | None) -> None:
    """retrieval.md Q8, Q15: limits 1 to 8 are accepted; more than 4 means 4."""
    memory.save_many(numbered(10, concepts=("图",)))
    arguments = {"query_text": question, "entity": "图", "limit": limit}
    wanted = min(limit, 4)
    first = memory.search(**arguments)  # type: ignore[arg-type]
    again = memory.tools.call("memory_database_search", {key: value for key, value in arguments.items() if value is not None})
    assert len(first.results) == wanted
    assert len(again["results"]) == min(wanted, 10 - wanted)
    assert first.chain_remaining == 20 - wanted


def test_without_a_question_newest_first(memory: Memory) -> None:
    """retrieval.md Q9, Q12, Q18: an entity or a date alone lists newest written first, then by id, with a null rankScore."""
    hours = {"b": 5, "a": 5, "B": 5, "old": 1, "new": 9, "é": 5}
    for name, hour in hours.items():
        memory.save(Event(id=name, summary=name, content=name, concepts=("图",), written_at=START + timedelta(hours=hour)))
    expected = ["new", "B", "a", "b", "é", "old"]
    for n, arguments in enumerate(({"entity": "图"}, {"written_from": "2026-01-01"}, {"written_to": "2027-01-01"})):
        batches = drained(memory, session=f"s{n}", **arguments)
        assert [each for batch in batches for each in batch] == expected
        assert [len(batch) for batch in batches] == [4, 2, 0]
    shown = memory.search(entity="图").to_dict()["results"][0]
    assert (shown["rankScore"], shown["routes"]) == (None, [])


def test_one_call_embeds_the_question_once_and_nothing_else(memory: Memory, embedder: TableEmbedder) -> None:
    """retrieval.md Q10, S9: no reranking or planning model; the question goes to embed_query unchanged."""
    memory.save_many(numbered(20, concepts=("图",)))
    documents = len(embedder.documents)
    result = memory.search("  Ｓummary 7 \n", entity="图", explain=True)
    memory.expand(result.cursor, result.concepts[0].id)  # type: ignore[arg-type]
    assert embedder.queries == ["  Ｓummary 7 \n"]
    assert len(embedder.documents) == documents


def test_scores_are_not_called_confidence(memory: Memory) -> None:
    """retrieval.md Q11: rankScore is the only score of a result."""
    memory.save_many(numbered(3))
    answer = memory.search("summary").to_dict()
    names = {key for each in answer["results"] for key in each}
    assert [name for name in names if "core" in name.lower()] == ["rankScore"]
    assert "confidence" not in json.dumps(list(names)).lower()


# -- Q12: ties -----------------------------------------------------------------------------------------------------------

PAIRS = {
    f"{pair}{half}": (0.9 - pair / 10, 0.4 + pair / 10 if pair < 2 else 0.3 - pair / 100) for pair in range(6) for half in "yx"
}
"""Six pairs of equal vectors and times; pairs 0 and 1 stand in mirror ranks of the two routes."""


def save_pairs(memory: Memory, embedder: TableEmbedder, order: Iterable[str]) -> None:
    for name in order:
        one, two = PAIRS[name]
        memory.save(placed(embedder, name, at(one), at(two)))


def test_ties_do_not_depend_on_the_order_of_saving(open_library: OpenLibrary) -> None:
    """retrieval.md Q12, faults.md BL-20: by date, newest first, then by id, whatever was saved first."""
    answers = []
    names = list(PAIRS)
    for n, order in enumerate((names, names[::-1], names[1::2] + names[::2])):
        embedder = flat()
        memory = open_library(embedder=embedder, namespace=f"library {n}")
        save_pairs(memory, embedder, order)
        result = memory.search(SYMBOLS, explain=True)
        rows = rows_of(result)
        assert rows["0x"]["fused"] == pytest.approx(1 / 61 + 1 / 63, abs=1e-12)
        assert rows["1x"]["fused"] == pytest.approx(1 / 63 + 1 / 61, abs=1e-12)
        assert list(rows)[:4] == ["0x", "1x", "0y", "1y"]
        answers.append((ids(result.results), list(rows.items())))
        for session in range(30):
            assert ids(memory.search(SYMBOLS, session=f"s{session}").results) == ids(result.results)
    assert answers[0] == answers[1] == answers[2]


SCRIPT = """
import json, sys
from tests.conformance.test_search import PAIRS, SYMBOLS, flat, save_pairs
import workbench
answers = []
for address in ("sqlite://", "sqlite:///" + sys.argv[1]):
    embedder = flat()
    with workbench.open_memory(address, embedder=embedder) as memory:
        save_pairs(memory, embedder, set(PAIRS))
        answers.append([[each.id for each in memory.search(SYMBOLS).results] for _ in range(3)])
print(json.dumps(answers))
"""


def test_ties_do_not_depend_on_the_hash_seed(tmp_path: Path) -> None:
    """retrieval.md Q12, faults.md BL-20: fresh processes with other hash seeds, both stores, sets as insertion order."""
    answers = []
    for seed in ("1", "2", "3"):
        path = str(tmp_path / f"{seed}.db").lstrip("/")
        environment = os.environ | {"PYTHONHASHSEED": seed}
        done = subprocess.run(
            [sys.executable, "-W", "error", "-c", SCRIPT, "/" + path], env=environment, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
        answers.append(json.loads(done.stdout))
    assert answers[0][0] == answers[0][1]
    assert answers[0] == answers[1] == answers[2]
    assert sorted(each for batch in answers[0][0] for each in batch) == sorted(PAIRS)


def test_ties_at_the_fortieth_place_are_stable(open_library: OpenLibrary) -> None:
    """retrieval.md Q12, S10, faults.md BL-20: of 45 equal events the newest, then the first by code point, make the 40."""
    embedder = flat()
    memory = open_library(embedder=embedder)
    names = [f"{letter}{n}" for letter in "zBaé" for n in range(11)] + ["newest"]
    events = [
        placed(embedder, name, at(0.5), at(0.5), written_at=START + timedelta(microseconds=name == "newest")) for name in names
    ]
    memory.save_many([events[n] for n in np.random.default_rng(3).permutation(45)])
    rows = rows_of(memory.search(SYMBOLS, explain=True))
    expected = ["newest", *sorted(name for name in names if name != "newest")][:40]
    assert list(rows) == expected
    assert [rows[name]["summary_rank"] for name in expected] == list(range(1, 41))
    assert [rows[name]["source_rank"] for name in expected] == list(range(1, 41))


# -- Q13: the explanation ------------------------------------------------------------------------------------------------


def test_the_explanation_has_all_columns_and_the_whole_decision(open_library: OpenLibrary) -> None:
    """retrieval.md Q13, api.md: every candidate with ranks, cosines, chunk, scores, duplicate, MMR and delivery."""
    embedder = flat(question="cat")
    memory = open_library(embedder=embedder)
    text = long_content("A", 3)
    embedder.table |= {piece: at(0.5 + n / 10) for n, piece in enumerate(chunk_texts(text))} | {"《A》": at(0.9)}
    memory.save(Event(id="A", summary="《A》", content=text))
    memory.save(placed(embedder, "copy", at(0.2), at(0.6), content=text))
    for n in range(6):
        memory.save(placed(embedder, f"e{n}", at(0.5 - n / 20), at(0.5 - n / 20), content=f"cat {n}"))
    result = memory.search("cat", explain=True)
    explanation = result.explanation
    assert explanation is not None
    frame = explanation.to_polars()
    assert frame.columns == COLUMNS
    rows = rows_of(result)
    assert set(rows) == {"A", "copy", *[f"e{n}" for n in range(6)]}
    delivered = ids(result.results)
    assert [name for name, row in rows.items() if row["delivered"]] == [name for name in rows if name in delivered]
    assert [rows[name]["mmr_step"] for name in delivered] == [1, 2, 3, 4]
    assert rows["copy"]["duplicate_of"] == "A"
    span = chunk_texts(text)
    assert text[rows["A"]["chunk_start"] : rows["A"]["chunk_end"]] == span[2]
    assert (rows["e0"]["chunk_start"], rows["e0"]["chunk_end"]) == (0, 5)
    for each in result.results:
        assert each.rank_score == pytest.approx(rows[each.id]["fused"], abs=1e-9)  # type: ignore[union-attr]
    assert len(explanation.steps) == 4
    assert [term.term for term in explanation.terms] == ["cat"]


def test_the_explanation_is_the_same_frame_for_any_number_of_rows(open_library: OpenLibrary) -> None:
    """retrieval.md Q13, faults.md BL-52, BL-53: declared types for 0, 1 and many rows, in polars and pandas."""
    import pandas as pd
    import polars as pl

    memory = open_library()
    results = [memory.search("cat", explain=True, session="none")]
    memory.save(Event(id="a", summary="s"))
    results.append(memory.search("cat", explain=True, session="one"))
    memory.save_many(numbered(90))
    results.append(memory.search("summary 7", explain=True, session="many"))
    results.append(memory.search(written_from="2000-01-01", explain=True, session="listing"))
    frames = [result.explanation.to_polars() for result in results if result.explanation is not None]
    assert [frame.height > 0 for frame in frames] == [False, True, True, True]
    assert frames[2].height >= 40
    kinds = dict.fromkeys(COLUMNS, pl.Float64) | {"event_id": pl.String, "duplicate_of": pl.String, "delivered": pl.Boolean}
    kinds |= dict.fromkeys(("summary_rank", "source_rank", "chunk_start", "chunk_end", "mmr_step"), pl.Int64)
    assert [dict(frame.schema) for frame in frames] == [kinds] * 4
    pandas_frames = [result.explanation.to_pandas() for result in results if result.explanation is not None]
    assert all(list(frame.columns) == COLUMNS for frame in pandas_frames)
    types = [frame.dtypes.to_dict() for frame in pandas_frames]
    assert types[0] == types[1] == types[2] == types[3]
    assert object not in types[0].values()
    whole = pandas_frames[1]
    assert whole["source_rank"].isna().all()
    assert whole["duplicate_of"].isna().all()
    assert pd.api.types.is_integer_dtype(whole["source_rank"])
    assert pd.api.types.is_float_dtype(whole["coverage"])
    assert pd.api.types.is_bool_dtype(whole["delivered"])
    assert pd.api.types.is_string_dtype(whole["event_id"])
    whole.loc[0, "coverage"] = 0.5
    whole.loc[0, "duplicate_of"] = "b"
    assert whole.sort_values("coverage").loc[0, "coverage"] == 0.5
    assert [row["event_id"] for row in frames[3].to_dicts()][:1] == ids(results[3].results)[:1]


def test_pandas_and_polars_say_the_same(memory: Memory) -> None:
    """retrieval.md Q13, faults.md BL-52: missing stays missing and no value changes between the two frames."""
    memory.save_many([*numbered(9), Event(id="empty", summary="summary", content="")])
    explanation = memory.search("summary 7", explain=True).explanation
    assert explanation is not None
    pandas_frame, rows = explanation.to_pandas(), explanation.to_polars().to_dicts()
    for name in COLUMNS:
        values = [None if missing else value for value, missing in zip(pandas_frame[name], pandas_frame[name].isna(), strict=True)]
        assert values == [row[name] for row in rows]


def test_asking_for_the_explanation_changes_nothing(memory: Memory) -> None:
    """retrieval.md Q13: the same results, notices, concepts and later calls with and without it."""
    memory.save_many(numbered(30, concepts=("图", "库")))

    def course(session: str, explain: bool) -> list[Any]:
        answers = [memory.search("summary 7", session=session, explain=explain)]
        answers.append(memory.search(entity="图", session=session, explain=explain))
        first = answers[0]
        assert first.cursor is not None
        answers.append(memory.expand(first.cursor, first.concepts[0].id, session=session, explain=explain))
        assert all((answer.explanation is not None) == explain for answer in answers)
        return [answer.to_dict() | {"cursor": answer.cursor is not None} for answer in answers]

    assert course("plain", False) == course("explained", True)


def test_a_listing_can_be_explained(memory: Memory) -> None:
    """retrieval.md Q13, api.md: without a question every score is null."""
    memory.save_many(numbered(6, concepts=("图",)))
    result = memory.search(entity="图", explain=True)
    rows = rows_of(result)
    assert [name for name, row in rows.items() if row["delivered"]] == ids(result.results) == ["e006", "e005", "e004", "e003"]
    nothing = [name for name in COLUMNS if name not in ("event_id", "delivered", "duplicate_of")]
    assert {row[name] for row in rows.values() for name in nothing} == {None}
    assert terms_of(result) == {}


# -- Q14: nodes ----------------------------------------------------------------------------------------------------------


def test_names_are_searched_by_label(open_library: OpenLibrary) -> None:
    """retrieval.md Q14, api.md: nodes by the cosine of their names, and the delivery history is untouched."""
    embedder = flat({"图": at(0.9), "库": at(0.5), "猫": at(-0.5), "Ann": at(0.3), "Bo": at(0.8)})
    memory = open_library(embedder=embedder)
    memory.save(Event(id="a", summary="1", concepts=("库", "图"), persons=("Ann",)))
    memory.save(Event(id="b", summary="2", concepts=("图", "猫"), persons=("Bo", "Ann")))
    before = ids(memory.search(SYMBOLS, session="control").results)
    answer = memory.search(SYMBOLS, label="Concept").to_dict()
    assert set(answer) == {"operation", "label", "results"}
    assert (answer["operation"], answer["label"]) == ("search", "Concept")
    assert [(each["name"], each["eventCount"]) for each in answer["results"]] == [("图", 2), ("库", 1), ("猫", 1)]
    assert [each["similarity"] for each in answer["results"]] == pytest.approx([0.9, 0.5, -0.5], abs=1e-6)
    assert all(set(each) == {"id", "name", "similarity", "eventCount"} for each in answer["results"])
    people = memory.search(SYMBOLS, label="Person", limit=1)
    assert [each.name for each in people.results] == ["Bo"]  # type: ignore[union-attr]
    assert (people.cursor, people.concepts) == (None, ())
    assert ids(memory.search(SYMBOLS).results) == before
    assert ids(memory.search(SYMBOLS, entity=answer["results"][0]["id"], session="by id").results) == before


def test_a_node_search_keeps_the_session_as_it_is(memory: Memory) -> None:
    """retrieval.md Q14: cursors and delivered ids survive any number of name searches."""
    memory.save_many(numbered(10, concepts=("图",)))
    first = memory.search("summary")
    assert first.cursor is not None
    for _ in range(40):
        assert memory.search("图", label="Concept").results
    more = memory.expand(first.cursor, first.concepts[0].id)
    assert not set(ids(first.results)) & set(ids(more.results))
    assert more.chain_remaining == 12


def test_node_ties_do_not_depend_on_the_order_of_saving(open_library: OpenLibrary) -> None:
    """retrieval.md Q12, Q14: equal names are found in the same order each time."""
    memory = open_library(embedder=flat({name: at(0.5) for name in "abcdefghij"}))
    memory.save(Event(id="1", summary="1", concepts=tuple("jihgfedcba")))
    found = [ids(memory.search(SYMBOLS, label="Concept", limit=8).results) for _ in range(5)]
    assert found == [found[0]] * 5
    assert len(found[0]) >= 4


# -- Q15, Q16: refusals and calls without a model ------------------------------------------------------------------------

REFUSED: list[dict[str, Any]] = [
    {},
    {"query_text": ""},
    {"query_text": None, "limit": 4},
    {"query_text": "问" * 2001},
    {"query_text": "cat", "limit": 0},
    {"query_text": "cat", "limit": 9},
    {"query_text": "cat", "limit": -1},
    {"query_text": "cat", "limit": True},
    {"query_text": "cat", "limit": 2.0},
    {"query_text": "cat", "limit": "4"},
    {"query_text": "cat", "label": "Topic"},
    {"query_text": "cat", "label": "event"},
    {"query_text": 7},
    {"query_text": ["cat"]},
    {"query_text": "备注\ud83d结束"},
    {"query_text": "cat\0"},
    {"query_text": "cat", "entity": 7},
    {"query_text": "cat", "entity": ["图", 7]},
    {"query_text": "cat", "entity": "图\ud800"},
    {"query_text": "cat", "written_from": "yesterday"},
    {"query_text": "cat", "written_to": "2026-02-30"},
    {"query_text": "cat", "written_to": 20260101},
    {"label": "Concept"},
    {"query_text": "  ", "label": "Person"},
]


@pytest.mark.parametrize("arguments", REFUSED, ids=[json.dumps(each)[:60] for each in REFUSED])
def test_refused_with_a_clear_error(memory: Memory, embedder: TableEmbedder, arguments: dict[str, Any]) -> None:
    """retrieval.md Q15, faults.md BL-01: refused before the embedder is asked, and nothing is delivered."""
    memory.save_many(numbered(4, concepts=("图",)))
    with pytest.raises(InvalidRequest) as caught:
        memory.search(**arguments)
    assert len(str(caught.value)) > 20
    assert caught.value.code == "invalid_request"
    assert embedder.queries == []
    assert len(memory.search(entity="图").results) == 4


TOOL_REFUSED: list[dict[str, Any]] = [
    {},
    {"operation": "delete", "query_text": "cat"},
    {"operation": "", "query_text": "cat"},
    {"operation": 1, "query_text": "cat"},
    {"query_text": "cat", "topk": 3},
    {"query_text": "cat", "session": "other"},
    {"query_text": "cat", "explain": True, "Limit": 3},
    {"query_text": "cat", "cursor": "c"},
    {"operation": "search", "query_text": "cat", "event_id": "e001"},
    {"operation": "read", "event_id": "e001", "query_text": "cat"},
    {"operation": "read"},
    {"operation": "expand", "cursor": "c"},
    {"operation": "nearby", "event_id": "e001"},
    {"query_text": "cat", "limit": "4"},
    {"query_text": "cat", "limit": 4.0},
    {"query_text": "cat", "reset_seen": "yes"},
    {"query_text": {"text": "cat"}},
    {"query_text": "cat", "label": "Topic"},
    {"query_text": "cat", "label": 1},
    {"query_text": "cat", "limit": 9},
    {"query_text": "问" * 2001},
    {"operation": "search"},
    {"operation": "search", "query_text": " "},
]


@pytest.mark.parametrize("arguments", TOOL_REFUSED, ids=[json.dumps(each)[:60] for each in TOOL_REFUSED])
def test_the_tool_refuses_unknown_operations_and_arguments(memory: Memory, arguments: dict[str, Any]) -> None:
    """retrieval.md Q15: an unknown operation or argument, or one of another operation, is refused by the tool."""
    memory.save_many(numbered(4, concepts=("图",)))
    with pytest.raises(InvalidRequest) as caught:
        memory.tools.call("memory_database_search", arguments)
    assert len(str(caught.value)) > 20
    assert len(memory.tools.call("memory_database_search", {"entity": "图"})["results"]) == 4


def test_an_unknown_argument_of_search_is_refused(memory: Memory) -> None:
    """retrieval.md Q15: Python refuses an unknown keyword by itself; an unknown tool is refused by the tools."""
    with pytest.raises(TypeError):
        memory.search("cat", topk=3)  # type: ignore[call-arg]
    with pytest.raises(InvalidRequest):
        memory.tools.call("memory_search", {"query_text": "cat"})


@pytest.mark.parametrize("question", ["问" * 2000, "🚀" * 2000, "e\u0301" * 1000])
def test_a_question_of_2000_code_points_is_accepted(memory: Memory, question: str) -> None:
    """retrieval.md Q15: the limit is 2,000 code points, not bytes or UTF-16 units."""
    memory.save(Event(id="a", summary="s"))
    assert ids(memory.search(question).results) == ["a"]


BLANK = ["", "   ", "\n\n\n", "\u3000\u3000", "\u200b", "\t\u200b\ufeff"]


@pytest.mark.parametrize("question", BLANK)
def test_a_blank_question_is_no_question(memory: Memory, embedder: TableEmbedder, question: str) -> None:
    """retrieval.md Q16, Q15, S8, faults.md BL-07: a listing with a filter, refused without one, and never a vector search."""
    memory.save_many(numbered(5, concepts=("图",)))
    result = memory.search(question, entity="图")
    assert ids(result.results) == ["e005", "e004", "e003", "e002"]
    assert result.results[0].rank_score is None  # type: ignore[union-attr]
    with pytest.raises(InvalidRequest):
        memory.search(question)
    with pytest.raises(InvalidRequest):
        memory.search(question, label="Concept")
    assert embedder.queries == []


class Absent:
    """An embedder that must not be used."""

    model, dimension = "absent", 3

    def embed_documents(self, texts: Sequence[str]) -> NDArray[np.float32]:
        raise AssertionError("no documents were to be embedded")

    def embed_query(self, text: str) -> NDArray[np.float32]:
        raise AssertionError("no question was to be embedded")


class Changing(TableEmbedder):
    """An embedder that can turn into another model, as when a host exchanges it behind one object."""


@pytest.mark.parametrize("other", [{"model": "other"}, {"dimension": 8}, {"model": "other", "dimension": 8}])
def test_what_needs_no_vector_works_with_another_model(open_library: OpenLibrary, store_kind: str, other: dict[str, Any]) -> None:
    """retrieval.md Q16, S4, faults.md BL-12: listing and reading work, what needs a vector is refused with both names."""
    embedder = Changing(dimension=16)
    memory = open_library(embedder=embedder)
    memory.save_many(numbered(3, concepts=("图",), persons=("Ann",)))
    if store_kind == "sqlite-memory":
        for name, value in other.items():
            setattr(embedder, name, value)
    else:
        memory.close()
        memory = open_library(embedder=TableEmbedder(**{"dimension": 16} | other))
    assert ids(memory.search(entity="图").results) == ["e003", "e002", "e001"]
    assert ids(memory.search(written_to="2026-12-31", session="2").results) == ["e003", "e002", "e001"]
    assert memory.read("e001").text == "content number 1"
    for call in (
        lambda: memory.search("cat"),
        lambda: memory.search("cat", label="Concept"),
        lambda: memory.save(Event(summary="new")),
    ):
        with pytest.raises(ModelMismatch, match=r"(?i)re-?embed") as caught:
            call()
        if "model" in other:
            assert "table" in str(caught.value)
            assert "other" in str(caught.value)
        if "dimension" in other:
            assert "16" in str(caught.value)
            assert "8" in str(caught.value)


def test_what_needs_no_vector_asks_no_embedder(open_library: OpenLibrary, store_kind: str, embedder: TableEmbedder) -> None:
    """retrieval.md Q16, F1: entity and date listing, expand, nearby and read call no embedder."""
    memory = open_library()
    memory.save_many([Event(id=f"b_ch1_e{n}", summary=f"s{n}", content=f"t{n}", concepts=("图",)) for n in range(9)])
    if store_kind == "sqlite-file":
        memory.close()
        memory = open_library(embedder=Absent())
    asked = len(embedder.documents)
    first = memory.search(entity="图", limit=1)
    assert first.cursor is not None
    assert memory.expand(first.cursor, first.concepts[0].id, limit=1).results
    assert memory.nearby(first.cursor, ids(first.results)[0]).results
    assert memory.read("b_ch1_e3").text == "t3"
    assert memory.search(written_from="2000-01-01").results
    assert (embedder.queries, len(embedder.documents)) == ([], asked)


# -- JSON ----------------------------------------------------------------------------------------------------------------


def instant(text: str) -> datetime:
    assert text.endswith("Z")
    return datetime.fromisoformat(text)


def test_the_json_of_an_answer_is_that_of_api_md(memory: Memory, clock: Clock) -> None:
    """api.md, retrieval.md Q18, V4, C1: names, types and nesting exactly, and plain JSON."""
    moment = datetime(2025, 5, 6, 7, 8, 9, 123456, tzinfo=UTC)
    memory.save_many(
        [
            Event(id="a", title="标题", summary="摘要", content="原文 cat", concepts=("图",), written_at=moment),
            Event(id="b", summary="另一摘要", content="x" * 130, concepts=("图", "库"), written_at=moment.replace(microsecond=0)),
        ]
    )
    answer = memory.search("cat").to_dict()
    assert json.loads(json.dumps(answer)) == answer
    assert list(answer) == ["operation", "results", "cursor", "concepts", "chainRemaining", "notices"]
    assert (answer["operation"], answer["chainRemaining"]) == ("search", 18)
    assert isinstance(answer["cursor"], str)
    shown = {each["id"]: each for each in answer["results"]}
    fields = ["id", "title", "summary", "writtenAt", "contentLength", "excerpt", "routes", "rankScore", "notices"]
    assert [list(each) for each in answer["results"]] == [fields] * 2
    assert (shown["a"]["title"], shown["a"]["summary"], shown["a"]["contentLength"]) == ("标题", "摘要", 6)
    assert shown["a"]["excerpt"] == {"text": "原文 cat", "range": [0, 6]}
    assert instant(shown["a"]["writtenAt"]) == moment
    assert instant(shown["b"]["writtenAt"]) == moment.replace(microsecond=0)
    assert isinstance(shown["a"]["rankScore"], float)
    offered = {each["name"]: each for each in answer["concepts"]}
    assert set(offered) == {"图", "库"}
    assert all(set(each) == {"id", "name", "eventIds"} for each in answer["concepts"])
    assert sorted(offered["图"]["eventIds"]) == ["a", "b"]
    assert offered["库"]["eventIds"] == ["b"]
    assert [each["code"] for each in answer["notices"]] == ["verifySummary", "noCausality"]
    assert all(set(each) == {"code", "message"} and each["message"] for each in answer["notices"])


def test_the_json_of_the_tool_is_the_same(memory: Memory) -> None:
    """api.md: tools.call returns what to_dict gives, for search, expand, nearby, read and labels."""
    memory.save_many([Event(id=f"b_ch1_e{n}", summary=f"s{n}", content=f"t{n}", concepts=("图",)) for n in range(9)])

    def asked(**arguments: Any) -> dict[str, Any]:
        return memory.tools.call("memory_database_search", arguments, session="tool")

    def bare(answer: dict[str, Any]) -> dict[str, Any]:
        return answer | {"cursor": answer["cursor"] is not None}

    one, two = asked(query_text="cat", limit=2), memory.search("cat", limit=2)
    assert bare(one) == bare(two.to_dict())
    concept = one["concepts"][0]["id"]
    assert two.cursor is not None
    grown = asked(operation="expand", cursor=one["cursor"], concept_id=concept, limit=1)
    assert grown["operation"] == "expand"
    assert bare(grown) == bare(memory.expand(two.cursor, concept, limit=1).to_dict())
    beside = asked(operation="nearby", cursor=one["cursor"], event_id=one["results"][0]["id"])
    assert beside["operation"] == "nearby"
    assert bare(beside) == bare(memory.nearby(two.cursor, one["results"][0]["id"]).to_dict())
    read = asked(operation="read", event_id="b_ch1_e3")
    assert read == {"operation": "read", "id": "b_ch1_e3", "text": "t3", "range": [0, 2], "contentLength": 2}
    names = asked(query_text="图", label="Concept")
    assert names == memory.search("图", label="Concept").to_dict()


def test_the_json_of_an_empty_answer(memory: Memory) -> None:
    """api.md, retrieval.md C1, V6: no cursor, no concepts, and a notice that an empty answer shows no absence."""
    answer = memory.search("cat").to_dict()
    assert (answer["results"], answer["cursor"], answer["concepts"]) == ([], None, [])
    assert [each["code"] for each in answer["notices"]] == ["emptyIsNotAbsence"]
    assert isinstance(answer["chainRemaining"], int)


def test_a_date_and_a_datetime_are_told_apart(memory: Memory) -> None:
    """retrieval.md Q2: a bare date includes its day at the upper end, an instant does not include itself."""
    moment = datetime(2025, 3, 1, tzinfo=UTC)
    memory.save(Event(id="a", summary="s", written_at=moment))

    def found(**arguments: Any) -> list[str]:
        return ids(memory.search(**arguments, session=repr(arguments)).results)

    assert found(written_to=date(2025, 3, 1)) == ["a"]
    assert found(written_to="2025-03-01") == ["a"]
    assert found(written_to=moment) == []
    assert found(written_to="2025-03-01T00:00:00Z") == []
    assert found(written_from=moment) == ["a"]
    assert found(written_from="2025-03-01") == ["a"]
    assert found(written_from="2025-03-02") == []
