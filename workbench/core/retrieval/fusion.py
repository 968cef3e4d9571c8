"""Reciprocal Rank Fusion (Q4)."""

from collections.abc import Sequence

from workbench.core.errors import InvalidRequest


def reciprocal_rank_fusion(rankings: Sequence[Sequence[str]], *, k: int = 60) -> dict[str, float]:
    """Fuse rankings by summing 1 / (k + rank), rank counted from 1.

    Cormack, Clarke and Buettcher, SIGIR 2009. An id that a ranking lacks gets nothing from it.

    :param rankings: one sequence of distinct ids per route, best first.
    :param k: the damping constant; larger flattens the difference between ranks.
    :return: id to fused score, in order of first appearance.
    :raises InvalidRequest: if k is negative or a ranking repeats an id.
    """
    if k < 0:
        raise InvalidRequest(f"k is {k}; Reciprocal Rank Fusion needs a k of at least 0.")
    fused: dict[str, float] = {}
    for number, ranking in enumerate(rankings):
        if len(set(ranking)) != len(ranking):
            raise InvalidRequest(f"ranking {number} repeats an id; each event may stand in a route once.")
        for rank, event_id in enumerate(ranking, start=1):
            fused[event_id] = fused.get(event_id, 0.0) + 1 / (k + rank)
    return fused
