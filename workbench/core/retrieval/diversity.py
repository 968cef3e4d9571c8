"""Maximal Marginal Relevance (Q7, Q17)."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from workbench.core.errors import InvalidRequest

_DIGITS = 9


@dataclass(frozen=True, slots=True)
class MMRStep:
    """One choice: the place chosen and, for all places still open before it, penalty and score (NaN for the others)."""

    chosen: int
    relevance: NDArray[np.float64]
    penalties: NDArray[np.float64]
    scores: NDArray[np.float64]


def maximal_marginal_relevance(
    relevance: Sequence[float] | NDArray[np.float64], similarity: NDArray[np.float64], *, lambda_: float = 0.85, limit: int = 4
) -> list[MMRStep]:
    """Choose up to ``limit`` places, each by ``lambda * relevance - (1 - lambda) * penalty``.

    Carbonell and Goldstein, SIGIR 1998. The penalty is the largest similarity to a place already chosen, negative ones
    included, and 0 for the first. Equal scores go to the earlier place, so the caller's order breaks ties.

    :param relevance: of each place, from 0 to 1, shape (n,); the places stand in order of preference, so that lambda 0
        begins with the most relevant too.
    :param similarity: cosines between places, shape (n, n).
    :param lambda_: 1 is relevance alone, 0 is difference alone.
    :param limit: how many at most.
    :return: one step per choice, in order.
    :raises InvalidRequest: if lambda is outside 0 to 1 or a value is not finite.
    """
    if not 0 <= lambda_ <= 1:
        raise InvalidRequest(f"lambda is {lambda_!r}; Maximal Marginal Relevance needs a value between 0 and 1.")
    wanted = np.asarray(relevance, np.float64)
    if not (np.isfinite(wanted).all() and np.isfinite(similarity).all()):
        raise InvalidRequest("relevance and similarity must be finite.")
    open_, steps = np.ones(wanted.size, bool), list[MMRStep]()
    penalties = np.zeros(wanted.size)
    while open_.any() and len(steps) < limit:
        scores = np.where(open_, np.round(lambda_ * wanted - (1 - lambda_) * penalties, _DIGITS), np.nan)
        chosen = int(np.nanargmax(scores))
        steps.append(MMRStep(chosen, wanted, np.where(open_, penalties, np.nan), scores))
        open_[chosen] = False
        penalties = similarity[chosen].copy() if len(steps) == 1 else np.maximum(penalties, similarity[chosen])
    return steps
