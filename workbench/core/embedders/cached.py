"""Vectors on disk, so that no text is embedded twice: one SQLite file for any number of threads and processes.

A row's key is the model, the role (document or query) and BLAKE2b-256 of the text's UTF-8; the text is not stored. Vectors
come back with the bits that were stored.
"""

import hashlib
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

import numpy as np
from numpy.typing import NDArray

from workbench.core.embedders import base
from workbench.core.embedders.base import Embedder, Vectors
from workbench.core.embedders.cache_file import CacheFile
from workbench.core.errors import EmbeddingFailed
from workbench.core.event import check_text


class CachedEmbedder:
    """Answer from a file, and ask ``inner`` only for what the file lacks: all of it in one call, each text once.

    ``close()`` leaves a single file, ready to be shipped. ``inner`` stays open; it is its owner's to close.

    :param inner: the embedder to ask. None: the file is opened read-only, must hold one model, and a miss is an error; the
        file may lie in a read-only directory and must not be written meanwhile.
    :param path: the SQLite file; made if it does not exist, unless read-only.
    :param read_only: never write: what the file lacks is asked for but not kept.
    :raises StoreUnavailable: if the file can not be opened, is no such cache, or ``inner`` is None and it holds no or several
        models. A file that is refused is left as it is.
    """

    def __init__(self, inner: Embedder | None, path: str | os.PathLike[str], *, read_only: bool = False) -> None:
        self._inner = inner
        self._file = CacheFile(Path(path), read_only=read_only or inner is None)
        try:
            self._model = self._only_model() if inner is None else inner.model
        except BaseException:
            self.close()
            raise

    def __repr__(self) -> str:
        return f"CachedEmbedder({self._inner!r}, {str(self._file.path)!r}, read_only={self._file.read_only})"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """Close the file; where nobody else has it open, nothing but the file is left. A second call does nothing."""
        self._file.close()

    @property
    def model(self) -> str:
        """Return the inner embedder's model, or the one recorded in the file."""
        return self._model

    @property
    def dimension(self) -> int:
        """Return the length of a vector: as recorded for the model, else as the inner embedder says."""
        recorded = self._file.dimension(self._model)
        if recorded is not None:
            return recorded
        assert self._inner is not None
        return self._inner.dimension

    def embed_documents(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """Return one unit vector per text.

        :param texts: texts to find again; none means nothing is embedded.
        :return: float32, shape (len(texts), dimension), rows of length 1, in the order of the texts.
        :raises InvalidRequest: if a text is no string, or holds NUL or a lone surrogate.
        :raises EmbeddingFailed: if the inner embedder fails or gives unusable vectors, or texts are missing and there is none.
        :raises ModelMismatch: if its vectors are not as long as the file records for the model.
        :raises StoreUnavailable: if the file can not be read or written, or holds a damaged row.
        """
        checked = base.check_texts(texts)
        if not checked:
            return np.empty((0, self.dimension), np.float32)
        return self._answer(checked, "document", _documents)

    def embed_query(self, text: str) -> NDArray[np.float32]:
        """Return the unit vector of a question.

        :param text: the question.
        :return: float32, shape (dimension,), of length 1.
        :raises InvalidRequest: as :meth:`embed_documents` does, like the others.
        :raises EmbeddingFailed: likewise.
        :raises ModelMismatch: likewise.
        :raises StoreUnavailable: likewise.
        """
        check_text(text, "the question")
        vector: Vectors = self._answer([text], "query", _query)[0]
        return vector

    def _answer(self, texts: list[str], role: str, embed: Callable[[Embedder, list[str]], Vectors]) -> Vectors:
        digests = [hashlib.blake2b(text.encode(), digest_size=32).digest() for text in texts]
        found = self._file.find(self._model, role, set(digests))
        missing = {digest: text for digest, text in zip(digests, texts, strict=True) if digest not in found}
        if missing:
            rows = embed(self._asked(len(missing), len(set(digests))), list(missing.values()))
            found |= self._keep(role, dict(zip(missing, rows, strict=True)))
        return np.stack([found[digest] for digest in digests])

    def _asked(self, missing: int, wanted: int) -> Embedder:
        if self._inner is None:
            raise EmbeddingFailed(
                f"{missing} of {wanted} different texts are not in the cache {self._file.path.name}, and there is no embedder "
                f"to ask; open the cache with an embedder of the model {self._model!r}.",
                retryable=False,
            )
        return self._inner

    def _keep(self, role: str, rows: dict[bytes, Vectors]) -> dict[bytes, Vectors]:
        if not self._file.read_only:
            return self._file.add(self._model, role, rows)
        length = next(iter(rows.values())).size
        self._file.check_length(self._model, length, self._file.dimension(self._model) or length)
        return rows

    def _only_model(self) -> str:
        names = self._file.models()
        if len(names) != 1:
            raise self._file.unusable(f"holds {len(names)} models ({', '.join(names)}). Give the embedder that is meant.")
        return names[0]


def _documents(embedder: Embedder, texts: list[str]) -> Vectors:
    return base.embed_documents(embedder, texts, what="the texts that the cache lacks")


def _query(embedder: Embedder, texts: list[str]) -> Vectors:
    return base.embed_query(embedder, texts[0])[None]
