"""The embedder protocol and the checks that every vector passes before anything uses it (S2, S4, S7)."""

import operator
from collections.abc import Callable, Sequence
from typing import Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import ArrayLike, NDArray

from workbench.core.errors import EmbeddingFailed, InvalidRequest, ModelUnavailable, WorkbenchError
from workbench.core.event import check_id, check_text

Vectors = NDArray[np.float32]
"""Rows of unit length, shape (n, dimension)."""

_SMALLEST_NORM = 1e-30
_UNIT_TOLERANCE = 1e-7
"""How far from 1 the norm of a float32 row may be: rounding a unit row to float32 moves it by less."""


@runtime_checkable
class Embedder(Protocol):
    """What turns texts into vectors (LangChain's method names). Texts arrive unchanged (S9)."""

    @property
    def model(self) -> str:
        """Return the name under which the library records the model."""

    @property
    def dimension(self) -> int:
        """Return the length of a vector."""

    def embed_documents(self, texts: Sequence[str]) -> ArrayLike:
        """Return an (n, dimension) float32 array for n texts."""

    def embed_query(self, text: str) -> ArrayLike:
        """Return a (dimension,) float32 array for one question."""


def signature(embedder: Embedder) -> tuple[str, int]:
    """Return the embedder's model and dimension, checked so that a library can record and compare them (S4).

    :param embedder: what to ask.
    :return: the model's name and the length of a vector.
    :raises EmbeddingFailed: if it can not say, or says what is no name or no positive whole number.
    """
    try:
        model, dimension = embedder.model, embedder.dimension
        check_id(model, "the embedder's model")
        dimension = operator.index(dimension)
    except WorkbenchError as error:
        raise (
            error if isinstance(error, EmbeddingFailed | ModelUnavailable) else _unusable(f"has no usable model name: {error}")
        ) from None
    except Exception as error:
        raise _foreign(error, "its model and dimension") from None
    if dimension < 1:
        raise _unusable(f"states dimension {dimension}; a vector has at least one value")
    return model, dimension


def embed_documents(embedder: Embedder, texts: Sequence[str], *, what: str, parts: Callable[[int], str] | None = None) -> Vectors:
    """Return one unit vector per text.

    :param embedder: what to ask.
    :param texts: any number of texts; none means nothing is embedded.
    :param what: what the texts are, for the error message; never their content.
    :param parts: names one text by its place, for the error message.
    :return: float32, shape (len(texts), embedder.dimension), rows of length 1.
    :raises EmbeddingFailed: if the embedder raises a foreign error, or returns anything but that many usable vectors.
    :raises WorkbenchError: one of the workbench's own errors that the embedder raised, unchanged.
    """
    try:
        answer = embedder.embed_documents(list(texts)) if texts else None
        dimension = embedder.dimension
    except WorkbenchError:
        raise
    except Exception as error:
        raise _foreign(error, what) from None
    if answer is None and not texts:
        return np.empty((0, dimension), np.float32)
    return unit_vectors(_array(answer, what), count=len(texts), dimension=dimension, what=what, parts=parts)


def embed_query(embedder: Embedder, text: str) -> Vectors:
    """Return the unit vector of a question.

    :param embedder: what to ask.
    :param text: the question.
    :return: float32, shape (embedder.dimension,), of length 1.
    :raises EmbeddingFailed: if the embedder raises a foreign error or returns no usable vector.
    :raises WorkbenchError: one of the workbench's own errors that the embedder raised, unchanged.
    """
    what = "the question"
    try:
        answer = embedder.embed_query(text)
        dimension = embedder.dimension
    except WorkbenchError:
        raise
    except Exception as error:
        raise _foreign(error, what) from None
    row = _array(answer, what)
    vector: Vectors = unit_vectors(row[None] if row.ndim == 1 else row, count=1, dimension=dimension, what=what)[0]
    return vector


def unit_vectors(answer: ArrayLike, *, count: int, dimension: int, what: str, parts: Callable[[int], str] | None = None) -> Vectors:
    """Return ``answer`` as float32 rows of unit length after checking it.

    A row that is of unit length as float32 keeps its bits, so checking a second time changes nothing.

    :param answer: what an embedder gave.
    :param count: how many vectors there must be.
    :param dimension: how long each must be.
    :param what: what was embedded, for the error message; never its content.
    :param parts: names one vector by its place, for the error message.
    :return: float32, shape (count, dimension), rows of length 1.
    :raises EmbeddingFailed: if the number or length of the vectors is wrong, a value is no floating point number, not
        finite, or a vector is zero (also where its norm is too small to divide by).
    """
    rows = _array(answer, what)
    if rows.ndim != 2 or rows.shape[0] != count:
        got = rows.shape[0] if rows.ndim == 2 else f"an array of {rows.ndim} dimensions, no list of"
        raise _unusable(f"returned {got} vectors for {count} texts ({what})")
    if rows.shape[1] != dimension:
        raise _unusable(f"returned vectors of length {rows.shape[1]} for {what}, but states dimension {dimension}")
    if rows.dtype.kind != "f":
        raise _unusable(f"returned {rows.dtype} values for {what} in place of floating point numbers")
    finite = np.isfinite(rows).all(axis=1)
    if not finite.all():
        raise _unusable(f"returned a NaN or infinite value for {_part(parts, what, finite)}")
    return _normalised(rows, what, parts)


def _part(parts: Callable[[int], str] | None, what: str, good: NDArray[np.bool_]) -> str:
    """Return the name of the first vector that is not good."""
    return what if parts is None else parts(int(np.argmin(good)))


def _normalised(rows: NDArray[Any], what: str, parts: Callable[[int], str] | None) -> Vectors:
    with np.errstate(all="ignore"):
        narrow: Vectors = rows.astype(np.float32)
        off = ~(np.abs(_norms(narrow) - 1.0) <= _UNIT_TOLERANCE)
        wide = rows[off]
        peaks = np.abs(wide).max(axis=1, initial=0.0)
        scaled = (wide / peaks[:, None]).astype(np.float64)
        lengths = _norms(scaled)
        narrow[off] = scaled / lengths[:, None]
        good = np.ones(len(rows), bool)
        good[off] = peaks * lengths >= _SMALLEST_NORM
        if not good.all():
            raise _unusable(f"returned a zero vector for {_part(parts, what, good)}")
    return narrow


def _norms(rows: NDArray[Any]) -> NDArray[np.float64]:
    wide = rows.astype(np.float64)
    norms: NDArray[np.float64] = np.sqrt(np.einsum("ij,ij->i", wide, wide))
    return norms


def check_texts(texts: Sequence[str], what: str = "text") -> list[str]:
    """Return ``texts`` as a list after refusing what no embedder can take unchanged (S7).

    :param texts: what is to be embedded; a single string is refused, since its characters would be embedded one by one.
    :param what: what one text is called in the message, which adds its place.
    :return: the same texts.
    :raises InvalidRequest: if it is one string, or a text is no string or holds NUL or a lone surrogate.
    """
    if isinstance(texts, str):
        raise InvalidRequest("embed_documents takes a list of strings, not one string; use [text] or embed_query.")
    checked = list(texts)
    for place, text in enumerate(checked):
        check_text(text, f"{what} {place}")
    return checked


def _array(answer: ArrayLike | None, what: str) -> NDArray[Any]:
    try:
        return np.asarray(answer)
    except Exception:
        raise _unusable(f"returned vectors of unequal length, or no array of numbers, for {what}") from None


def _unusable(fault: str) -> EmbeddingFailed:
    return EmbeddingFailed(f"the embedder {fault}; nothing was saved. Check the embedder and its model.", retryable=False)


def _foreign(error: Exception, what: str) -> EmbeddingFailed:
    message = f"the embedder raised {type(error).__name__} for {what}; nothing was saved. Check it and retry."
    return EmbeddingFailed(message, retryable=isinstance(error, OSError))
