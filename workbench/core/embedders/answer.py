"""Reading the answer of an OpenAI-compatible embeddings call. Nothing in it is believed unchecked (BL-10, BL-14)."""

import base64
import binascii
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from workbench.core.errors import EmbeddingFailed


def read_vectors(answer: Mapping[str, Any], inputs: Sequence[object]) -> NDArray[np.float64]:
    """Return the vectors of an answer in the order of the inputs, not yet normalised.

    :param answer: the JSON object that the endpoint sent.
    :param inputs: what was asked, one per vector; only their ``str`` is used, in messages.
    :return: shape (len(inputs), length).
    :raises EmbeddingFailed: if there is not exactly one vector of floating point numbers for each input, all of one length.
    """
    listed = answer.get("data")
    if not isinstance(listed, list):
        raise _broken("sent no list named data")
    if len(listed) != len(inputs):
        raise _broken(f"returned {len(listed)} vectors for {len(inputs)} inputs")
    rows: dict[int, NDArray[np.float64]] = {}
    for item in listed:
        place = _place(item, len(inputs))
        if place in rows:
            raise _broken(f"returned two vectors with the index of {inputs[place]}")
        rows[place] = _components(item.get("embedding"), str(inputs[place]))
    lengths = {row.size for row in rows.values()}
    if len(lengths) > 1:
        raise _broken(f"returned vectors of unequal length, from {min(lengths)} to {max(lengths)}")
    return np.stack([rows[place] for place in range(len(inputs))])


def _place(item: object, count: int) -> int:
    place = item.get("index") if isinstance(item, dict) else None
    if isinstance(place, bool) or not isinstance(place, int) or not 0 <= place < count:
        raise _broken(f"returned a vector whose index is no whole number from 0 to {count - 1}")
    return place


def _components(value: object, what: str) -> NDArray[np.float64]:
    row = _decoded(value) if isinstance(value, str) else _numbers(value)
    if row is None or not row.size:
        raise _broken(f"returned something other than floating point numbers for {what}")
    return row


def _numbers(value: object) -> NDArray[np.float64] | None:
    """Return a list of JSON numbers as an array, None for anything else.

    JavaScript writes 0 for 0.0, so an integer passes beside a float; a vector of integers alone is no embedding.
    """
    if not isinstance(value, list) or float not in (kinds := set(map(type, value))) or not kinds <= {float, int}:
        return None
    try:
        return np.array(value, np.float64)
    except OverflowError:
        return None


def _decoded(value: str) -> NDArray[np.float64] | None:
    """Return the little-endian float32 numbers in a base64 string, None where it holds no such."""
    try:
        raw = base64.b64decode(value, validate=True)
    except (binascii.Error, ValueError):
        return None
    return np.frombuffer(raw, "<f4").astype(np.float64) if len(raw) % 4 == 0 else None


def _broken(fault: str) -> EmbeddingFailed:
    return EmbeddingFailed(
        f"the embedding endpoint {fault}; nothing was embedded. Check that base_url and model name an embedding model.",
        retryable=False,
    )
