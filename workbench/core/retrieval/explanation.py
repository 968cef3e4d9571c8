"""The whole decision of one call as a frame, step by step (Q13)."""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

import numpy as np

from workbench.core.retrieval.pipeline import Decision

if TYPE_CHECKING:
    import pandas as pd
    import polars as pl


@dataclass(frozen=True, slots=True)
class ExplanationRow:
    """One candidate. Ranks count from 1 and are None outside the route's best; the chunk is its best one, as code points."""

    event_id: str
    summary_rank: int | None
    summary_cosine: float | None
    source_rank: int | None
    source_cosine: float | None
    chunk_start: int | None
    chunk_end: int | None
    rrf: float | None
    coverage: float | None
    fused: float | None
    duplicate_of: str | None
    mmr_step: int | None
    mmr_penalty: float | None
    mmr_score: float | None
    delivered: bool


COLUMNS = tuple(field.name for field in fields(ExplanationRow))
_TEXT = ("event_id", "duplicate_of")
_WHOLE = ("summary_rank", "source_rank", "chunk_start", "chunk_end", "mmr_step")


@dataclass(frozen=True, slots=True)
class TermWeight:
    """One of the question's terms, its weight in this call, and how many candidates have it."""

    term: str
    weight: float
    candidates: int


@dataclass(frozen=True, slots=True)
class Step:
    """One step of MMR: who was chosen, and for each event still open its relevance, penalty and score."""

    number: int
    chosen: str
    scores: tuple[tuple[str, float, float, float], ...]


@dataclass(frozen=True, slots=True)
class Explanation:
    """Every candidate best first, the MMR steps, the question's terms with their weights, and whether recall was approximate.

    For an event still open at the last step, ``mmr_penalty`` and ``mmr_score`` are those of that step.
    """

    rows: tuple[ExplanationRow, ...]
    steps: tuple[Step, ...]
    terms: tuple[TermWeight, ...]
    approximate: bool = False

    def to_pandas(self) -> "pd.DataFrame":
        """Return the candidates as a pandas frame with declared types, the same for any number of rows.

        :return: a row per candidate, columns as in api.md.
        :raises ImportError: if pandas is not installed (the ``lab`` extra has it).
        """
        import pandas as pd

        types = {name: _pandas_type(name) for name in COLUMNS}
        return pd.DataFrame({name: pd.array(self._column(name), dtype=types[name]) for name in COLUMNS})

    def to_polars(self) -> "pl.DataFrame":
        """Return the candidates as a polars frame with declared types, the same for any number of rows.

        :return: a row per candidate, columns as in api.md.
        :raises ImportError: if polars is not installed (the ``lab`` extra has it).
        """
        import polars as pl

        kinds = {"text": pl.String, "whole": pl.Int64, "flag": pl.Boolean, "real": pl.Float64}
        schema = {name: kinds[_kind(name)] for name in COLUMNS}
        return pl.DataFrame({name: self._column(name) for name in COLUMNS}, schema=schema)

    def _column(self, name: str) -> list[Any]:
        return [getattr(row, name) for row in self.rows]


def _kind(name: str) -> str:
    if name in _TEXT:
        return "text"
    if name in _WHOLE:
        return "whole"
    return "flag" if name == "delivered" else "real"


def _pandas_type(name: str) -> Any:
    import pandas as pd

    text = pd.StringDtype("python", na_value=pd.NA)
    return {"text": text, "whole": pd.Int64Dtype(), "flag": pd.BooleanDtype(), "real": pd.Float64Dtype()}[_kind(name)]


def explain(
    decision: Decision,
    spans: Sequence[tuple[int, int] | None],
    terms: Sequence[str],
    found: Sequence[int],
    *,
    approximate: bool = False,
) -> Explanation:
    """Return the decision for people.

    :param decision: what the pipeline decided.
    :param spans: each candidate's best chunk, in the decision's order.
    :param terms: the question's terms.
    :param found: how many candidates have each term.
    :param approximate: whether an approximate index proposed the candidates.
    :return: the explanation.
    """
    rows = []
    for each, span in zip(decision.candidates, spans, strict=True):
        own, (start, end) = each.candidate, span or (None, None)
        recalled = (own.summary_rank, own.summary_cosine, own.source_rank, own.source_cosine, start, end)
        scores = (each.rrf, each.coverage, each.fused, each.duplicate_of)
        rows.append(ExplanationRow(own.id, *recalled, *scores, each.mmr_step, each.mmr_penalty, each.mmr_score, each.delivered))
    weights = decision.weights if decision.weights is not None else np.zeros(len(terms))
    listed = tuple(TermWeight(term, float(weight), int(count)) for term, weight, count in zip(terms, weights, found, strict=True))
    return Explanation(tuple(rows), _steps(decision), listed, approximate)


def _steps(decision: Decision) -> tuple[Step, ...]:
    ids = [each.id for each in decision.candidates if each.duplicate_of is None]
    steps = []
    for number, step in enumerate(decision.steps, start=1):
        columns = zip(ids, step.relevance.tolist(), step.penalties.tolist(), step.scores.tolist(), strict=True)
        still_open = tuple(row for row in columns if row[-1] == row[-1])  # the score of one chosen before is NaN
        steps.append(Step(number, ids[step.chosen], still_open))
    return tuple(steps)
