"""An embedder without a model: signed feature hashing of terms (Weinberger et al., ICML 2009).

For tests and tiny machines. It sees shared words, not meaning.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from workbench.core.errors import InvalidRequest
from workbench.core.text import TERMS_VERSION, count_terms


class HashingEmbedder:
    """Map each term to one signed coordinate; deterministic on every machine.

    :param dimension: length of the vectors, at least 8.
    :raises InvalidRequest: if the dimension is smaller.
    """

    def __init__(self, dimension: int = 256) -> None:
        if isinstance(dimension, bool) or not isinstance(dimension, int) or dimension < 8:
            raise InvalidRequest(f"HashingEmbedder dimension is {dimension!r}; give a whole number of at least 8.")
        self.dimension = dimension
        self.model = f"hashing-{dimension}-v{TERMS_VERSION}"

    def embed_documents(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """Return an (n, dimension) float32 array of unit rows."""
        return np.array([self.embed_query(text) for text in texts], np.float32).reshape(len(texts), self.dimension)

    def embed_query(self, text: str) -> NDArray[np.float32]:
        """Return a (dimension,) float32 unit vector. A text without terms points along the first coordinate."""
        terms = count_terms(text)
        mixed = terms.keys * np.uint64(0x9E3779B97F4A7C15)
        mixed ^= mixed >> np.uint64(32)
        signs = np.where((mixed >> np.uint64(31)) & np.uint64(1), 1.0, -1.0)
        vector = np.zeros(self.dimension)
        np.add.at(vector, (mixed % np.uint64(self.dimension)).astype(np.int64), signs * np.sqrt(terms.counts))
        norm = float(np.linalg.norm(vector))
        if norm == 0.0:
            vector[0] = norm = 1.0
        return (vector / norm).astype(np.float32)
