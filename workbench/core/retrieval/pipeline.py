"""From two recalled routes to the delivered events: section 4 of retrieval.md, read from top to bottom.

Everything here is pure. ``recall_candidates`` needs the vectors, ``rank`` only what is known of at most 80 candidates, so
a laboratory recalls once and ranks a thousand times.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from workbench.core.config import RetrievalConfig
from workbench.core.retrieval.coverage import Frequencies, coverage, rarity
from workbench.core.retrieval.diversity import MMRStep, maximal_marginal_relevance
from workbench.core.retrieval.fusion import reciprocal_rank_fusion
from workbench.core.retrieval.recall import COSINE_DIGITS, Blocks, Floats, Mask, recall

_SCORE_DIGITS = 12


class Candidate(NamedTuple):
    """One event that a route recalled, or that a listing offers.

    Ranks count from 1 and are None outside the route's best. Cosines are exact and rounded; they and ``chunk``, the row of
    the best chunk, are None where the event has no such vector or there is no question.
    """

    row: int
    id: str
    written: int
    text_hash: bytes
    summary_rank: int | None = None
    summary_cosine: float | None = None
    source_rank: int | None = None
    source_cosine: float | None = None
    chunk: int | None = None

    @property
    def routes(self) -> tuple[str, ...]:
        """Return the routes that recalled it."""
        ranks = (("summary", self.summary_rank), ("source", self.source_rank))
        return tuple(name for name, rank in ranks if rank is not None)


class Ranked(NamedTuple):
    """A candidate with everything that was decided about it (Q13)."""

    candidate: Candidate
    rrf: float | None = None
    coverage: float | None = None
    fused: float | None = None
    duplicate_of: str | None = None
    mmr_step: int | None = None
    mmr_penalty: float | None = None
    mmr_score: float | None = None
    delivered: bool = False

    @property
    def id(self) -> str:
        """Return the event's id."""
        return self.candidate.id


@dataclass(frozen=True, slots=True)
class Decision:
    """The whole ranking of one call: all candidates best first, the delivered ones in order, MMR, and the terms' weights.

    The steps of MMR speak of the candidates that are no duplicates, in their order.
    """

    candidates: tuple[Ranked, ...]
    delivered: tuple[Ranked, ...]
    steps: tuple[MMRStep, ...] = ()
    weights: NDArray[np.float64] | None = None


@dataclass(frozen=True, slots=True)
class Columns:
    """What recall reads: matrices and columns with one row per event, and the chunks in blocks."""

    summaries: Floats
    chunks: Floats
    blocks: Blocks
    ids: Sequence[str]
    written: NDArray[np.int64]
    text_hashes: Sequence[bytes]


def recall_candidates(columns: Columns, query: Floats, *, mask: Mask, config: RetrievalConfig) -> list[Candidate]:
    """Return the union of the two routes' true best (Q1 to Q3), the summary route's first, each by rank."""
    found = recall(columns.summaries, columns.chunks, columns.blocks, query, mask=mask, k=config.candidates)
    rows = found.rows.tolist()
    ids, written = [columns.ids[row] for row in rows], columns.written[found.rows].tolist()

    def route(cosines: list[float]) -> list[int]:
        places = [place for place, cosine in enumerate(cosines) if cosine == cosine]  # without those that have no vector (NaN)
        return sorted(places, key=lambda place: (-cosines[place], -written[place], ids[place]))[: config.candidates]

    summary, source, chunks = found.summary.tolist(), found.source.tolist(), found.chunks.tolist()
    by_summary, by_source = route(summary), route(source)
    summary_rank = {place: rank for rank, place in enumerate(by_summary, start=1)}
    source_rank = {place: rank for rank, place in enumerate(by_source, start=1)}
    return [
        Candidate(
            rows[place],
            ids[place],
            written[place],
            columns.text_hashes[rows[place]],
            summary_rank.get(place),
            summary[place],
            source_rank.get(place),
            source[place] if chunks[place] >= 0 else None,
            chunks[place] if chunks[place] >= 0 else None,
        )
        for place in summary_rank | source_rank
    ]


def rank(
    candidates: Sequence[Candidate],
    *,
    frequencies: Frequencies,
    lengths: NDArray[np.int64],
    similarity: Callable[[Sequence[int]], NDArray[np.float64]],
    config: RetrievalConfig,
    limit: int,
) -> Decision:
    """Fuse, cover, merge duplicates and choose (Q4 to Q8).

    :param candidates: the recalled events.
    :param frequencies: of the question's terms in each candidate, shape (candidates, terms).
    :param lengths: term occurrences of each candidate, shape (candidates,).
    :param similarity: for rows of events, the cosines of their summaries with each other.
    :param config: the constants in force.
    :param limit: how many to deliver at most.
    :return: the decision; its candidates are ordered by fused score, then Q12.
    """
    weights = rarity(frequencies)
    covered = np.round(coverage(frequencies, lengths, weights), _SCORE_DIGITS).tolist()
    rrf = reciprocal_rank_fusion(_rankings(candidates), k=config.rrf_k)
    fused = [
        round(rrf[each.id] + config.coverage_weight * share, _SCORE_DIGITS) for each, share in zip(candidates, covered, strict=True)
    ]
    order = sorted(range(len(candidates)), key=lambda place: (-fused[place], -candidates[place].written, candidates[place].id))
    duplicates = duplicates_of([candidates[place] for place in order])
    open_ = [place for place, original in zip(order, duplicates, strict=True) if original is None]
    steps = _choose([candidates[place].row for place in open_], [fused[place] for place in open_], similarity, config, limit)
    marks = _marks(steps, open_)
    ranked = tuple(
        Ranked(candidates[place], rrf[candidates[place].id], covered[place], fused[place], original, *marks.get(place, ()))
        for place, original in zip(order, duplicates, strict=True)
    )
    delivered = sorted((each for each in ranked if each.delivered), key=lambda each: each.mmr_step or 0)
    return Decision(ranked, tuple(delivered), tuple(steps), weights)


def _rankings(candidates: Sequence[Candidate]) -> list[list[str]]:
    by_summary = sorted((each.summary_rank, each.id) for each in candidates if each.summary_rank is not None)
    by_source = sorted((each.source_rank, each.id) for each in candidates if each.source_rank is not None)
    return [[event_id for _, event_id in ranking] for ranking in (by_summary, by_source)]


def duplicates_of(ordered: Sequence[Candidate]) -> list[str | None]:
    """Return for each candidate the better one with the same text, or None; empty texts are never the same (Q6)."""
    first: dict[bytes, str] = {}
    originals = [first.setdefault(each.text_hash, each.id) if each.text_hash else each.id for each in ordered]
    return [None if original == each.id else original for each, original in zip(ordered, originals, strict=True)]


def _choose(
    rows: Sequence[int],
    fused: Sequence[float],
    similarity: Callable[[Sequence[int]], NDArray[np.float64]],
    config: RetrievalConfig,
    limit: int,
) -> list[MMRStep]:
    """Run MMR over candidates given best first, their scores scaled to 0..1 by the largest."""
    if not rows:
        return []
    relevance = np.array(fused) / max(fused)
    return maximal_marginal_relevance(relevance, np.round(similarity(rows), COSINE_DIGITS), lambda_=config.mmr_lambda, limit=limit)


def _marks(steps: Sequence[MMRStep], open_: Sequence[int]) -> dict[int, tuple[int | None, float, float, bool]]:
    """Return step, penalty, score and whether delivered for each place: of its own step, or of the last for those left over."""
    marks: dict[int, tuple[int | None, float, float, bool]] = {}
    for step in steps[-1:]:
        for place, penalty, score in zip(open_, step.penalties.tolist(), step.scores.tolist(), strict=True):
            marks[place] = None, penalty, score, False
    for count, step in enumerate(steps, start=1):
        chosen = step.chosen
        marks[open_[chosen]] = count, float(step.penalties[chosen]), float(step.scores[chosen]), True
    return marks


def list_newest(columns: Columns, *, mask: Mask, limit: int, pool: int) -> Decision:
    """Return the newest written events first, for a call without a question (Q9); duplicates merged like in a ranking (Q6).

    :param columns: the library.
    :param mask: which events pass the filters.
    :param limit: how many to deliver at most.
    :param pool: how many to look at first; more are looked at while duplicates leave places free.
    :return: the decision, without scores.
    """
    rows = np.flatnonzero(mask)
    written = columns.written[rows]
    while True:
        newest = rows if rows.size <= pool else rows[written >= np.partition(written, -pool)[-pool]]
        listed = [Candidate(row, columns.ids[row], int(columns.written[row]), columns.text_hashes[row]) for row in newest.tolist()]
        listed.sort(key=lambda each: (-each.written, each.id))
        duplicates = duplicates_of(listed)
        chosen = {each.id for each in [each for each, original in zip(listed, duplicates, strict=True) if original is None][:limit]}
        if len(chosen) == limit or newest.size == rows.size:
            ranked = tuple(
                Ranked(each, duplicate_of=original, delivered=each.id in chosen)
                for each, original in zip(listed, duplicates, strict=True)
            )
            return Decision(ranked, tuple(each for each in ranked if each.delivered))
        pool *= 2
