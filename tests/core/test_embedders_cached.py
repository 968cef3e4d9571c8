"""The cache of vectors on disk: what it keeps, what it refuses, and several processes at once."""

import gc
import hashlib
import shutil
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.servers import holds_after_fork
from tests.support import TableEmbedder
from workbench.core.embedders import CachedEmbedder, Embedder, HashingEmbedder, cache_file
from workbench.core.embedders.base import embed_documents, embed_query
from workbench.core.errors import EmbeddingFailed, InvalidRequest, ModelMismatch, StoreUnavailable

MEMORY = "a private memory that must not be in the file"
WRITER = """
import sys
from workbench.core.embedders import CachedEmbedder, HashingEmbedder
path, first, last, step = sys.argv[1], *map(int, sys.argv[2:5])
print("ready", flush=True)
sys.stdin.readline()
with CachedEmbedder(HashingEmbedder(64), path) as cached:
    for start in range(first, last, step):
        cached.embed_documents([f"text {number}" for number in range(start, start + step)])
        print(start, flush=True)
"""
READER = """
import sys
from workbench.core.embedders import CachedEmbedder
print(CachedEmbedder(None, sys.argv[1]).embed_documents(["text 0"]).shape)
"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "vectors.db"


@pytest.fixture
def inner() -> TableEmbedder:
    return TableEmbedder()


def filled(path: Path, inner: Embedder, texts: Sequence[str] = ("one", "two", "three")) -> Path:
    with CachedEmbedder(inner, path) as cached:
        cached.embed_documents(texts)
        cached.embed_query(texts[0])
    return path


def beside(path: Path) -> list[str]:
    return sorted(each.name for each in path.parent.iterdir())


def edit(path: Path, statement: str, *values: object) -> None:
    connection = sqlite3.connect(path)
    with connection:
        connection.execute(statement, values)
    connection.close()


def test_only_what_is_missing_is_asked_for_once(path: Path, inner: TableEmbedder) -> None:
    """retrieval.md S2: order and repeats are the caller's; the inner embedder sees each new text once, in one call."""
    with CachedEmbedder(inner, path) as cached:
        assert isinstance(cached, Embedder)
        first = cached.embed_documents(["b", "a", "b"])
        second = cached.embed_documents(["c", "b", "", "a", "c", ""])
        cached.embed_documents(["a"])
        assert cached.embed_documents([]).shape == (0, 16)
    assert inner.documents == [["b", "a"], ["c", ""]]
    expected = embed_documents(inner, ["c", "b", "", "a", "c", ""], what="x")
    assert second.tobytes() == expected.tobytes()
    assert np.array_equal(first, second[[1, 3, 1]])


def test_a_question_is_not_a_document(path: Path, inner: TableEmbedder) -> None:
    """retrieval.md S9: asymmetric models give the same text two vectors."""

    class Asymmetric(TableEmbedder):
        def embed_query(self, text: str) -> Any:
            return -super().embed_query(text)

    inner = Asymmetric()
    with CachedEmbedder(inner, path) as cached:
        document, question = cached.embed_documents(["a"])[0], cached.embed_query("a")
        assert np.array_equal(document, -question)
        assert np.array_equal(cached.embed_query("a"), question)
        assert np.array_equal(cached.embed_documents(["a"])[0], document)
    assert (inner.documents, inner.queries) == ([["a"]], ["a"])


def test_models_do_not_mix(path: Path) -> None:
    """retrieval.md S4: the same text under two models, in one file."""
    first, second = TableEmbedder(model="first"), TableEmbedder(model="second", dimension=8)
    for embedder in (first, second, first, second):
        with CachedEmbedder(embedder, path) as cached:
            assert cached.embed_documents(["a"]).shape == (1, embedder.dimension)
            assert (cached.model, cached.dimension) == (embedder.model, embedder.dimension)
    assert (len(first.documents), len(second.documents)) == (1, 1)


def test_vectors_come_back_with_the_bits_that_were_stored(path: Path, inner: TableEmbedder) -> None:
    """retrieval.md S4: also through the checks that every vector passes."""
    texts = [f"text {number}" for number in range(1200)]
    with CachedEmbedder(inner, path) as cached:
        new = cached.embed_documents(texts)
    with CachedEmbedder(None, path) as cached:
        assert cached.embed_documents(texts).tobytes() == new.tobytes()
        assert embed_documents(cached, texts, what="x").tobytes() == new.tobytes()
        digest = hashlib.blake2b(texts[7].encode(), digest_size=32).digest()
    connection = sqlite3.connect(path)
    ((stored,),) = connection.execute("SELECT vector FROM vectors WHERE digest = ?", (digest,)).fetchall()
    connection.close()
    assert stored == new[7].astype("<f4").tobytes()


def test_the_text_is_not_in_the_file(path: Path, inner: TableEmbedder) -> None:
    filled(path, inner, [MEMORY])
    assert MEMORY.encode() not in path.read_bytes()
    assert inner.model.encode() in path.read_bytes()


def test_closing_leaves_one_compact_file(path: Path) -> None:
    """The file can be shipped as it is: no log beside it, and little besides the vectors in it."""
    filled(path, TableEmbedder(dimension=384), [f"text {number}" for number in range(1500)])
    assert beside(path) == ["vectors.db"]
    assert path.stat().st_size < 1.3 * 1500 * 384 * 4


# Without an embedder


def test_a_file_answers_without_an_embedder(path: Path, inner: TableEmbedder) -> None:
    with CachedEmbedder(None, filled(path, inner)) as cached:
        assert (cached.model, cached.dimension) == ("table", 16)
        assert np.array_equal(embed_documents(cached, ["two", "one"], what="x"), embed_documents(inner, ["two", "one"], what="x"))
        assert np.array_equal(embed_query(cached, "one"), embed_query(inner, "one"))


def test_a_miss_without_an_embedder_is_counted(path: Path, inner: TableEmbedder) -> None:
    with CachedEmbedder(None, filled(path, inner)) as cached:
        with pytest.raises(EmbeddingFailed, match=r"2 of 3 different texts are not in the cache.*'table'") as caught:
            cached.embed_documents([MEMORY, "one", MEMORY, "four"])
        with pytest.raises(EmbeddingFailed, match="1 of 1 different texts"):
            cached.embed_query("two")
    assert MEMORY not in str(caught.value)
    assert not caught.value.retryable


def test_a_shipped_file_in_a_read_only_directory_stays_alone(path: Path, inner: TableEmbedder) -> None:
    filled(path, inner)
    before = path.read_bytes()
    path.chmod(0o444)
    path.parent.chmod(0o555)
    try:
        with CachedEmbedder(None, path) as cached, CachedEmbedder(None, path) as other:
            assert np.array_equal(cached.embed_documents(["one"]), other.embed_documents(["one"]))
            assert beside(path) == ["vectors.db"]
    finally:
        path.parent.chmod(0o755)
    assert beside(path) == ["vectors.db"]
    assert path.read_bytes() == before


def test_without_an_embedder_exactly_one_model_must_be_there(path: Path) -> None:
    with CachedEmbedder(HashingEmbedder(8), path):
        pass
    with pytest.raises(StoreUnavailable, match="holds 0 models"):
        CachedEmbedder(None, path)
    for name in ("first", "second"):
        filled(path, TableEmbedder(model=name))
    with pytest.raises(StoreUnavailable, match=r"holds 2 models \(first, second\)"):
        CachedEmbedder(None, path)


def test_a_file_that_is_not_there_is_not_made_read_only(path: Path, inner: TableEmbedder) -> None:
    for embedder in (None, inner):
        with pytest.raises(StoreUnavailable, match="missing or empty"):
            CachedEmbedder(embedder, path, read_only=True)
    assert beside(path) == []


def test_read_only_asks_but_keeps_nothing(path: Path, inner: TableEmbedder) -> None:
    before = filled(path, inner).read_bytes()
    inner.documents.clear()
    with CachedEmbedder(inner, path, read_only=True) as cached:
        for _ in range(2):
            assert cached.embed_documents(["one", "new"]).shape == (2, 16)
    assert inner.documents == [["new"], ["new"]]
    assert path.read_bytes() == before
    wrong = TableEmbedder(dimension=8)
    with CachedEmbedder(wrong, path, read_only=True) as cached, pytest.raises(ModelMismatch, match=r"length 8.*holds 16"):
        cached.embed_documents(["new"])


def test_a_log_that_a_writer_left_or_still_writes_is_read(path: Path, inner: TableEmbedder, tmp_path: Path) -> None:
    """A live or killed writer's last rows lie in the log, which must not be overlooked."""
    with CachedEmbedder(inner, path) as writing:
        writing.embed_documents(["one"])
        with CachedEmbedder(None, path) as cached:
            assert np.array_equal(cached.embed_documents(["one"]), writing.embed_documents(["one"]))
        copy = tmp_path / "copy" / "vectors.db"
        copy.parent.mkdir()
        for end in ("", "-wal"):
            shutil.copy(f"{path}{end}", f"{copy}{end}")
    with CachedEmbedder(inner, copy) as cached:
        cached.embed_documents(["one"])
    assert inner.documents == [["one"]]
    assert beside(copy) == ["vectors.db"]


# What is refused


def test_unusable_vectors_are_not_stored(path: Path) -> None:
    """retrieval.md S7, faults BL-10: all or nothing; a sound answer later is stored."""
    inner = TableEmbedder({"bad": [0.0] * 16})
    with CachedEmbedder(inner, path) as cached:
        with pytest.raises(EmbeddingFailed, match="zero vector"):
            cached.embed_documents(["good", "bad"])
        with pytest.raises(EmbeddingFailed, match="zero vector"):
            cached.embed_query("bad")
        inner.table["bad"] = [1.0] * 16
        cached.embed_documents(["good", "bad"])
    assert inner.documents == [["good", "bad"]] * 2


def test_too_few_vectors_are_not_stored(path: Path) -> None:
    """faults BL-14."""

    class Lossy(TableEmbedder):
        def embed_documents(self, texts: Sequence[str]) -> Any:
            return super().embed_documents(texts)[:-1]

    with CachedEmbedder(Lossy(), path) as cached, pytest.raises(EmbeddingFailed, match="1 vectors for 2 texts"):
        cached.embed_documents(["a", "b"])
    with pytest.raises(StoreUnavailable, match="holds 0 models"):
        CachedEmbedder(None, path)


def test_another_dimension_under_the_same_name_is_refused(path: Path, inner: TableEmbedder) -> None:
    """faults BL-12: both numbers, and nothing stored."""
    filled(path, inner)
    before = path.read_bytes()
    with CachedEmbedder(TableEmbedder(dimension=8), path) as cached, pytest.raises(ModelMismatch, match=r"length 8.*holds 16"):
        cached.embed_documents(["four"])
    assert path.read_bytes() == before


def test_a_recorded_dimension_needs_no_probe(path: Path, inner: TableEmbedder) -> None:
    class Unreachable:
        model = "table"

        @property
        def dimension(self) -> int:
            raise EmbeddingFailed("no network")

        def embed_documents(self, texts: Sequence[str]) -> Any:
            raise EmbeddingFailed("no network")

        def embed_query(self, text: str) -> Any:
            raise EmbeddingFailed("no network")

    with CachedEmbedder(Unreachable(), filled(path, inner)) as cached:
        assert cached.dimension == 16
        assert embed_documents(cached, ["one"], what="x").shape == (1, 16)
        with pytest.raises(EmbeddingFailed, match="no network"):
            cached.embed_documents(["one", "four"])


@pytest.mark.parametrize("bad", ["x\ud83d", "x\0", 5])
def test_texts_that_can_not_be_hashed_are_refused(path: Path, inner: TableEmbedder, bad: Any) -> None:
    """retrieval.md S7."""
    with CachedEmbedder(inner, path) as cached:
        with pytest.raises(InvalidRequest, match="text 1"):
            cached.embed_documents(["a", bad])
        with pytest.raises(InvalidRequest, match="the question"):
            cached.embed_query(bad)
    assert not inner.documents


def foreign_database(path: Path) -> None:
    edit(path, "CREATE TABLE customers (name TEXT)")


def other_version(path: Path) -> None:
    filled(path, TableEmbedder())
    edit(path, "PRAGMA user_version = 2")


@pytest.mark.parametrize(
    "make",
    [
        lambda path: path.write_bytes(b"not a database, but somebody's notes"),
        lambda path: path.write_bytes(b"SQLite format 3\0" + b"\xff" * 4096),
        lambda path: path.write_bytes(b"x"),
        foreign_database,
        other_version,
    ],
)
def test_a_foreign_file_is_refused_and_left_alone(path: Path, inner: TableEmbedder, make: Any) -> None:
    make(path)
    before, neighbours = path.read_bytes(), beside(path)
    for embedder in (inner, None):
        with pytest.raises(StoreUnavailable, match=r"was not changed\. Give another path") as caught:
            CachedEmbedder(embedder, path)
        assert not caught.value.retryable
    assert (path.read_bytes(), beside(path)) == (before, neighbours)


@pytest.mark.parametrize("kept", [100, 4096, 16384, 40000])
def test_a_file_that_was_cut_short_is_refused_and_left_alone(path: Path, inner: TableEmbedder, kept: int) -> None:
    texts = [f"text {number}" for number in range(2000)]
    path.write_bytes(filled(path, inner, texts).read_bytes()[:kept])
    before = path.read_bytes()
    for embedder in (inner, None):
        with pytest.raises(StoreUnavailable, match=r"is damaged \(SQLITE_.*Remove it"), CachedEmbedder(embedder, path) as cached:
            cached.embed_documents(texts)
    assert (path.read_bytes(), beside(path)) == (before, ["vectors.db"])


def test_damage_inside_is_refused_and_left_alone(path: Path, inner: TableEmbedder) -> None:
    texts = [f"text {number}" for number in range(2000)]
    content = bytearray(filled(path, inner, texts).read_bytes())
    content[3 * 16384 :] = b"\xa5" * (len(content) - 3 * 16384)
    path.write_bytes(content)
    for embedder in (inner, None):
        with pytest.raises(StoreUnavailable, match="is damaged"), CachedEmbedder(embedder, path) as cached:
            cached.embed_documents(texts)
    assert path.read_bytes() == content


@pytest.mark.parametrize(
    ("vector", "words"),
    [
        (np.ones(15, "<f4").tobytes(), "not 16 float32 long"),
        (np.ones(17, "<f4").tobytes(), "not 16 float32 long"),
        (b"", "not 16 float32 long"),
        ("x" * 64, "not 16 float32 long"),
        (np.zeros(16, "<f4").tobytes(), "not of unit length"),
        (np.ones(16, "<f4").tobytes(), "not of unit length"),
        (np.full(16, np.nan, "<f4").tobytes(), "not of unit length"),
    ],
)
def test_a_damaged_row_is_refused(path: Path, inner: TableEmbedder, vector: Any, words: str) -> None:
    """retrieval.md S7: it is never delivered and never quietly replaced."""
    edit(filled(path, inner), "UPDATE vectors SET vector = ?", vector)
    for embedder in (inner, None):
        with CachedEmbedder(embedder, path) as cached, pytest.raises(StoreUnavailable, match=words):
            cached.embed_documents(["two"])


def test_a_path_that_can_hold_no_file_is_refused(tmp_path: Path, inner: TableEmbedder) -> None:
    with pytest.raises(StoreUnavailable, match="Give the path of a file"):
        CachedEmbedder(inner, tmp_path)
    with pytest.raises(StoreUnavailable, match="Check that its directory exists"):
        CachedEmbedder(inner, tmp_path / "missing" / "vectors.db")


def test_a_path_may_hold_any_character(tmp_path: Path, inner: TableEmbedder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("a?mode=memory&b#c%20d é.db", "file:x.db", ":memory:"):
        with CachedEmbedder(None, filled(Path(name), inner)) as cached:
            assert cached.dimension == 16
        assert (tmp_path / name).exists()


def test_an_empty_file_is_filled(path: Path, inner: TableEmbedder) -> None:
    path.touch()
    assert CachedEmbedder(None, filled(path, inner)).dimension == 16


# Life cycle


def test_close_is_final_and_may_be_repeated(path: Path, inner: TableEmbedder) -> None:
    """faults BL-44: use after close is our own clear error."""
    cached = CachedEmbedder(inner, path)
    cached.close()
    cached.close()
    for call in (lambda: cached.embed_documents(["a"]), lambda: cached.embed_query("a"), lambda: cached.dimension):
        with pytest.raises(StoreUnavailable, match="is closed"):
            call()
    assert cached.model == "table"
    assert "vectors.db" in repr(cached)


@pytest.mark.filterwarnings("error::pytest.PytestUnraisableExceptionWarning")
def test_a_cache_that_nobody_closed_is_closed_all_the_same(path: Path, inner: TableEmbedder) -> None:
    """faults BL-44: no ResourceWarning, no log left."""
    cached = CachedEmbedder(inner, path)
    cached.embed_query("a")
    del cached
    gc.collect()
    assert beside(path) == ["vectors.db"]


def test_a_forked_process_must_open_its_own(path: Path, inner: TableEmbedder) -> None:
    """faults BL-44: SQLite forbids carrying a connection across a fork."""

    def refused() -> bool:
        try:
            cached.embed_query("a")
        except StoreUnavailable as error:
            return "before a fork" in str(error)
        return False

    with CachedEmbedder(inner, path) as cached:
        cached.embed_query("a")
        assert holds_after_fork(refused)
        assert np.array_equal(cached.embed_query("a"), embed_query(inner, "a"))


def test_a_writer_that_holds_the_file_too_long_is_named(path: Path, inner: TableEmbedder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache_file, "_BUSY_SECONDS", 0.05)
    with CachedEmbedder(inner, filled(path, inner)) as cached:
        other = sqlite3.connect(path)
        other.execute("BEGIN IMMEDIATE")
        assert cached.embed_documents(["one"]).shape == (1, 16)
        with pytest.raises(StoreUnavailable, match="held by another process") as caught:
            cached.embed_documents(["four"])
        assert caught.value.retryable
        other.close()
        assert cached.embed_documents(["four"]).shape == (1, 16)


# Several at once


def test_the_first_to_store_a_text_wins(path: Path) -> None:
    """Two that embed one text at the same time both answer what is stored, bit for bit."""

    class Overtaken(TableEmbedder):
        def embed_documents(self, texts: Sequence[str]) -> Any:
            filled(path, TableEmbedder({"a": [1.0] + [0.0] * 15}), ["a"])
            return super().embed_documents(texts)

    with CachedEmbedder(Overtaken({"a": [0.0] * 15 + [1.0]}), path) as cached:
        assert cached.embed_documents(["a"])[0][0] == 1.0


def test_threads_share_a_cache(path: Path) -> None:
    inner = TableEmbedder()
    answers: dict[int, Any] = {}

    def work(thread: int) -> None:
        answers[thread] = [
            cached.embed_documents([f"text {number + thread}" for number in range(start, start + 5)]) for start in range(0, 40, 5)
        ]

    with CachedEmbedder(inner, path) as cached:
        threads = [threading.Thread(target=work, args=(thread,)) for thread in range(6)]
        for each in threads:
            each.start()
        for each in threads:
            each.join()
    for thread in range(6):
        expected = embed_documents(inner, [f"text {number + thread}" for number in range(40)], what="x")
        assert np.concatenate(answers[thread]).tobytes() == expected.tobytes()


def start_writer(path: Path, first: int, last: int, step: int) -> "subprocess.Popen[str]":
    command = [sys.executable, "-W", "error", "-c", WRITER, str(path), str(first), str(last), str(step)]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    return process


def holds(path: Path, numbers: range) -> bool:
    texts = [f"text {number}" for number in numbers]
    with CachedEmbedder(None, path) as cached:
        return bool(np.array_equal(cached.embed_documents(texts), embed_documents(HashingEmbedder(64), texts, what="x")))


def test_several_processes_make_and_fill_one_file(path: Path) -> None:
    """Started together on a file that does not exist, with texts in common."""
    writers = [start_writer(path, first, first + 60, 5) for first in (0, 0, 30, 60)]
    for writer in writers:
        assert writer.stdin is not None
        writer.stdin.write("\n")
        writer.stdin.flush()
    for writer in writers:
        _, said = writer.communicate(timeout=60)
        assert (writer.returncode, said) == (0, "")
    assert holds(path, range(120))
    assert beside(path) == ["vectors.db"]
    connection = sqlite3.connect(path)
    assert connection.execute("SELECT count(*), count(DISTINCT digest) FROM vectors").fetchall() == [(120, 120)]
    assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
    connection.close()


def test_a_process_killed_while_writing_costs_nothing(path: Path) -> None:
    """retrieval.md S3: what it said to be stored is there, and the next one goes on without repair."""
    writer = start_writer(path, 0, 100_000, 4)
    assert writer.stdin is not None
    assert writer.stdout is not None
    writer.stdin.write("\n")
    writer.stdin.flush()
    done = [int(writer.stdout.readline()) for _ in range(12)]
    writer.kill()
    writer.communicate()
    assert done[-1] == 44
    assert holds(path, range(48))
    with CachedEmbedder(HashingEmbedder(64), path) as cached:
        cached.embed_documents(["one more"])
    assert beside(path) == ["vectors.db"]
    assert holds(path, range(48))


def test_another_process_sees_what_was_just_stored(path: Path) -> None:
    """api.md: several processes may use one file at once."""
    with CachedEmbedder(HashingEmbedder(64), path) as cached:
        cached.embed_documents(["text 0"])
        found = subprocess.run([sys.executable, "-c", READER, str(path)], capture_output=True, text=True, check=True)
        assert found.stdout.strip() == "(1, 64)"
