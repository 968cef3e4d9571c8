"""The pure functions of a ranking, by hand (retrieval.md Q4 to Q7, Q17, C3) and the constants they take."""

import dataclasses
import math
from typing import Any

import numpy as np
import pytest

import workbench
from workbench import CatalogConfig, Config, InvalidRequest, RetrievalConfig, SessionConfig
from workbench.core.retrieval.coverage import Saturation, coverage, rarity
from workbench.core.retrieval.diversity import maximal_marginal_relevance
from workbench.core.retrieval.fusion import reciprocal_rank_fusion
from workbench.core.retrieval.neighbours import around, place_of
from workbench.core.retrieval.recall import margin


def test_reciprocal_rank_fusion_by_hand() -> None:
    """retrieval.md Q4: the sum of 1 / (60 + rank), ranks from 1; an id that a route lacks gets nothing from it."""
    fused = reciprocal_rank_fusion([["a", "b", "c"], ["c", "a"]])
    assert fused == {"a": 1 / 61 + 1 / 62, "b": 1 / 62, "c": 1 / 63 + 1 / 61}
    assert reciprocal_rank_fusion([], k=0) == {}


@pytest.mark.parametrize(("rankings", "k"), [([["a", "a"]], 60), ([["a"]], -1)])
def test_a_ranking_that_is_none_is_refused(rankings: list[list[str]], k: int) -> None:
    """retrieval.md Q4, faults BL-18: an event stands in a route once."""
    with pytest.raises(InvalidRequest):
        reciprocal_rank_fusion(rankings, k=k)


def test_coverage_by_hand() -> None:
    """retrieval.md Q5: rarity among the candidates, saturated frequency, divided by the weights of all terms."""
    frequencies, lengths = np.array([[2, 0, 0], [1, 1, 0]]), np.array([10, 30])
    weights = rarity(frequencies)
    by_hand = [math.log(1 + 0.5 / 2.5), math.log(1 + 1.5 / 1.5), math.log(1 + 2.5 / 0.5)]
    assert weights == pytest.approx(by_hand)
    norms = [1.2 * (0.25 + 0.75 * length / 20) for length in (10, 30)]
    shares = [by_hand[0] * 2 / (2 + norms[0]), by_hand[0] / (1 + norms[1]) + by_hand[1] / (1 + norms[1])]
    assert coverage(frequencies, lengths, weights) == pytest.approx([share / sum(by_hand) for share in shares])


def test_coverage_without_terms_candidates_or_lengths() -> None:
    """retrieval.md Q5, faults BL-24: nothing divides by zero."""
    assert coverage(np.zeros((2, 0), int), np.array([3, 4]), np.zeros(0)).tolist() == [0, 0]
    assert coverage(np.zeros((0, 3), int), np.zeros(0, int), np.ones(3)).tolist() == []
    assert coverage(np.zeros((2, 1), int), np.zeros(2, int), np.ones(1)).tolist() == [0, 0]
    assert coverage(np.array([[10**6]]), np.array([1]), np.ones(1), saturation=Saturation(k1=0.1))[0] <= 1


def test_mmr_by_hand() -> None:
    """retrieval.md Q7, Q17: relevance against the largest cosine to those chosen; negative cosines count."""
    similarity = np.array([[1, 0.9, -0.5], [0.9, 1, 0.2], [-0.5, 0.2, 1]])
    steps = maximal_marginal_relevance([1.0, 0.95, 0.6], similarity, lambda_=0.7, limit=3)
    assert [step.chosen for step in steps] == [0, 2, 1]
    assert steps[1].penalties[1:] == pytest.approx([0.9, -0.5])
    assert steps[1].scores[1:] == pytest.approx([0.7 * 0.95 - 0.3 * 0.9, 0.7 * 0.6 + 0.3 * 0.5])
    assert steps[2].penalties[1] == pytest.approx(0.9)


@pytest.mark.parametrize(("weight", "order"), [(1.0, [0, 1, 2, 3]), (0.0, [0, 3, 2, 1])])
def test_mmr_at_its_extremes(weight: float, order: list[int]) -> None:
    """retrieval.md Q7, faults BL-21: 1 is relevance alone; 0 takes the most relevant, then whatever differs most."""
    similarity = np.array([[1, 0.9, 0.5, 0.1], [0.9, 1, 0.4, 0.2], [0.5, 0.4, 1, 0.3], [0.1, 0.2, 0.3, 1]])
    assert [step.chosen for step in maximal_marginal_relevance([1, 0.9, 0.8, 0.1], similarity, lambda_=weight)] == order


@pytest.mark.parametrize("weight", [-0.1, 1.1, math.nan])
def test_an_mmr_weight_out_of_range_is_refused(weight: float) -> None:
    """retrieval.md Q7, faults BL-21."""
    with pytest.raises(InvalidRequest):
        maximal_marginal_relevance([1.0], np.ones((1, 1)), lambda_=weight)
    with pytest.raises(InvalidRequest):
        RetrievalConfig(mmr_lambda=weight)


def test_mmr_of_few_or_equal_candidates() -> None:
    """retrieval.md Q7, Q8: never more than asked, never fewer than there are, no repeats; NaN is refused (faults BL-10)."""
    assert maximal_marginal_relevance([], np.zeros((0, 0))) == []
    assert [step.chosen for step in maximal_marginal_relevance([1.0] * 6, np.ones((6, 6)), limit=4)] == [0, 1, 2, 3]
    with pytest.raises(InvalidRequest):
        maximal_marginal_relevance([math.nan], np.ones((1, 1)))


@pytest.mark.parametrize("dimension", [8, 384, 3072])
def test_single_precision_stays_within_its_margin(dimension: int) -> None:
    """retrieval.md Q3: two single-precision cosines of a pair never lie further apart than the margin assumes."""
    generator = np.random.default_rng(dimension)
    rows = generator.standard_normal((2_000, dimension))
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    narrow = rows.astype(np.float32)
    exact = narrow.astype(np.float64) @ narrow[0].astype(np.float64)
    assert np.abs(narrow @ narrow[0] - exact).max() < margin(dimension) / 2


def test_places_of_ids() -> None:
    """retrieval.md C3: same prefix and chapter, neighbours by number; other forms have no place."""
    first = place_of("a_b_ch03_e06")
    assert first is not None
    assert (first.prefix, first.chapter, first.record) == ("a_b", 3, 6)
    for other in ("event_123", "x_ch1_e", "x_ch1_e1 ", "x_ch_e1", "x_ch1_e１", "_ch1"):
        assert place_of(other) is None
    chapter = [f"x_ch1_e{number}" for number in range(1, 8)]
    assert around(chapter, "x_ch1_e4", before=1, after=3) == ["x_ch1_e3", "x_ch1_e5", "x_ch1_e6", "x_ch1_e7"]


def test_the_constants_are_the_requirements() -> None:
    """api.md: names and defaults, exactly; frozen."""
    assert dataclasses.asdict(RetrievalConfig()) == {
        "chunk_size": 800, "chunk_overlap": 120, "candidates": 40, "rrf_k": 60, "coverage_weight": 8 / 61, "mmr_lambda": 0.85,
        "limit": 4, "max_limit": 8, "question_limit": 2000, "excerpt_length": 120, "excerpt_window": 32_000, "read_limit": 10_000,
        "read_default": 1_600,
    }  # fmt: skip
    assert dataclasses.asdict(SessionConfig()) == {
        "ttl_seconds": 900, "max_ids": 640, "max_excerpts": 640, "max_sessions": 32, "max_cursors": 32, "chain_limit": 20,
    }  # fmt: skip
    assert (CatalogConfig().batch_size, CatalogConfig().retry_waits_seconds, CatalogConfig().page_size) == (12, (30, 60), 9)
    with pytest.raises(dataclasses.FrozenInstanceError):
        Config().retrieval = RetrievalConfig()  # type: ignore[misc]


BAD: list[tuple[type, dict[str, Any]]] = [
    (RetrievalConfig, {"chunk_size": 0}),
    (RetrievalConfig, {"chunk_overlap": 800}),
    (RetrievalConfig, {"chunk_overlap": -1}),
    (RetrievalConfig, {"candidates": True}),
    (RetrievalConfig, {"rrf_k": -1}),
    (RetrievalConfig, {"coverage_weight": math.inf}),
    (RetrievalConfig, {"limit": 9}),
    (RetrievalConfig, {"limit": 2.0}),
    (RetrievalConfig, {"read_default": 20_000}),
    (SessionConfig, {"ttl_seconds": -1}),
    (SessionConfig, {"max_ids": 0}),
    (CatalogConfig, {"batch_size": 0}),
    (CatalogConfig, {"retry_waits_seconds": (30,)}),
    (Config, {"retrieval": None}),
]


@pytest.mark.parametrize(("kind", "fields"), BAD, ids=lambda value: str(value)[:60])
def test_constants_out_of_range_are_refused(kind: type, fields: dict[str, Any]) -> None:
    """api.md: a config is checked when built, and the message names the field."""
    with pytest.raises(InvalidRequest, match=next(iter(fields))):
        kind(**fields)


@pytest.mark.parametrize(
    "address", ["", "memory.db", "sqlite:", "sqlite://relative.db", "sqlite:///", "postgres://x", "sqlite:///a?mode=ro", None]
)
def test_an_address_that_is_none_is_refused(address: Any) -> None:
    """api.md: the message shows how an address looks and never repeats what may hold a password."""
    with pytest.raises(InvalidRequest, match="sqlite"):
        workbench.open_memory(address)
