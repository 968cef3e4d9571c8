"""Query-term coverage: how much of a question's terms a candidate covers, from 0 to 1 (Q5)."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Frequencies = NDArray[np.int64]
"""How often each of the question's terms occurs in each candidate, shape (candidates, terms)."""


@dataclass(frozen=True, slots=True)
class Saturation:
    """BM25's constants (Robertson and Zaragoza 2009): ``k1`` saturates the frequency, ``b`` normalises the length."""

    k1: float = 1.2
    b: float = 0.75


SATURATION = Saturation()


def rarity(frequencies: Frequencies) -> NDArray[np.float64]:
    """Return each term's weight among the candidates of one call: ``ln(1 + (n - df + .5) / (df + .5))``.

    :param frequencies: shape (candidates, terms).
    :return: shape (terms,); a term that no candidate has weighs most.
    """
    found = np.count_nonzero(frequencies, axis=0)
    weights: NDArray[np.float64] = np.log(1 + (frequencies.shape[0] - found + 0.5) / (found + 0.5))
    return weights


def coverage(
    frequencies: Frequencies, lengths: NDArray[np.int64], weights: NDArray[np.float64], *, saturation: Saturation = SATURATION
) -> NDArray[np.float64]:
    """Return the share of the question's term weight that each candidate covers.

    :param frequencies: shape (candidates, terms).
    :param lengths: term occurrences of each candidate, shape (candidates,).
    :param weights: of the terms, shape (terms,); terms that nobody has belong to the divisor.
    :param saturation: BM25's constants.
    :return: shape (candidates,), each from 0 to below 1; zeros for a question without terms.
    """
    total = float(weights.sum())
    if not frequencies.size or total == 0:
        return np.zeros(len(lengths))
    mean = float(lengths.mean()) or 1.0
    norm = saturation.k1 * (1 - saturation.b + saturation.b * lengths / mean)
    shares: NDArray[np.float64] = frequencies / (frequencies + norm[:, None]) @ weights / total
    return shares
