"""Threads, processes, kills and files that can not be used: faults.md part D (BL-25, BL-28, BL-30) and BL-44, on a SQLite file."""

import contextlib
import json
import os
import shutil
import sqlite3
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import workbench
from tests import children
from tests.children import (
    OPERATIONS,
    Fuse,
    ModelEmbedder,
    address_of,
    assert_made_by,
    assert_whole,
    fill,
    finish,
    made,
    next_line,
    numbered_model,
    run,
    running,
    say,
    snapshot,
)
from tests.conformance.test_saving import text_of
from tests.support import START, Clock, ids, numbered
from workbench import CursorInvalid, Event, Memory, ReadOnly, StoreUnavailable, WorkbenchError
from workbench.core.stores import sqlite_file
from workbench.core.stores.term_blobs import unpack


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "library.db"


@pytest.fixture
def filled(path: Path) -> Path:
    """Return the path of a closed library of three events."""
    with workbench.open_memory(address_of(path), embedder=numbered_model(0)) as memory:
        fill(memory)
    return path


def opened(path: Path, **options: object) -> Memory:
    return workbench.open_memory(address_of(path), **{"embedder": numbered_model(0)} | options)  # type: ignore[arg-type]


def model_of(path: Path) -> ModelEmbedder:
    """Return the embedder whose model a library records."""
    with opened(path) as memory:
        return numbered_model(int((memory.stats().model or "model-0").rpartition("-")[2]))


# -- BL-25: threads ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["file", "memory"])
def test_eight_threads_save_one_id(path: Path, kind: str) -> None:
    """faults BL-25 as retrieval.md S5 reads it: one id is one event; every save succeeds, and the one that stays is whole."""
    with workbench.open_memory(address_of(path) if kind == "file" else "sqlite://", embedder=ModelEmbedder()) as memory:
        meet = threading.Barrier(8, timeout=20)

        def save(version: int) -> Event:
            meet.wait()
            return [memory.save(made("e", version + 10 * turn)) for turn in range(5)][-1]

        with ThreadPoolExecutor(8) as threads:
            saved = list(threads.map(save, range(8)))
        assert memory.stats().events == 1
        assert memory.get("e").event in saved
        assert_whole(memory, ModelEmbedder())


@pytest.mark.parametrize("kind", ["file", "memory"])
def test_eight_threads_save_without_ids_and_share_new_names(path: Path, kind: str) -> None:
    """faults BL-25 and BL-42: no two saves take the same next id, and a concept that all bring at once is one node."""
    with workbench.open_memory(address_of(path) if kind == "file" else "sqlite://", embedder=ModelEmbedder()) as memory:
        meet = threading.Barrier(8, timeout=20)

        def save(number: int) -> list[str]:
            meet.wait()
            names = ("检索", "Search", "ＳＥＡＲＣＨ", f"own {number}")
            return [memory.save(Event(summary=f"{number} {turn}", concepts=names)).id or "" for turn in range(10)]

        with ThreadPoolExecutor(8) as threads:
            given = [event_id for each in threads.map(save, range(8)) for event_id in each]
        assert len(set(given)) == 80 == memory.stats().events
        assert memory.stats().concepts == 10
        assert memory.verify() == []
        assert_made_by(memory, ModelEmbedder())


@pytest.mark.parametrize("kind", ["file", "memory"])
def test_all_calls_work_from_threads_that_did_not_open_the_library(path: Path, kind: str) -> None:
    """faults BL-25: no "object created in another thread", whatever the mix; close waits for nobody and breaks nobody's data."""
    with workbench.open_memory(address_of(path) if kind == "file" else "sqlite://", embedder=ModelEmbedder()) as memory:
        memory.save_many(numbered(30, concepts=("shared",)))

        def mixed(number: int) -> int:
            for turn in range(8):
                memory.save(made(f"t{number}", turn))
                assert memory.search("summary", session=f"{number} {turn}").results
                assert memory.read("e001").text == "content number 1"
                memory.archive(f"e0{10 + number}")
                memory.restore(f"e0{10 + number}")
                assert len(memory.events()) >= 30
                assert memory.stats().events >= 30
            return len(memory.verify())

        with ThreadPoolExecutor(8) as threads:
            assert list(threads.map(mixed, range(8))) == [0] * 8
        assert memory.stats().events == 38


def test_closing_while_others_work_ends_in_clear_errors(path: Path) -> None:
    """faults BL-44 and BL-25: a call that meets a library being closed succeeds or says so; what was acknowledged is there."""
    memory = opened(path)
    saved: list[str] = []
    strange: list[BaseException] = []

    def save(number: int) -> None:
        for turn in range(1000):
            try:
                saved.append(memory.save(made(f"e{number}-{turn}", turn)).id or "")
                memory.search("summary", session=str(number), reset_seen=True)
            except StoreUnavailable:
                return
            except BaseException as error:
                strange.append(error)
                return

    threads = [threading.Thread(target=save, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    while len(saved) < 8:
        time.sleep(0.001)
    memory.close()
    for thread in threads:
        thread.join(20)
        assert not thread.is_alive()
    assert strange == []
    with opened(path) as again:
        assert set(saved) <= set(assert_whole(again, numbered_model(0)))


# -- BL-28: processes ----------------------------------------------------------------------------------------------------


def test_two_processes_save_while_a_third_searches(path: Path) -> None:
    """faults BL-28: all 400 events are there, each id given once; no lock error reaches a caller."""
    with opened(path, embedder=ModelEmbedder()) as memory:
        memory.save_many(numbered(3))
        with (
            running("search_on", path) as reader,
            running("save_numbered", path, "a", 200) as first,
            running("save_numbered", path, "b", 200) as second,
        ):
            assert [next_line(each) for each in (reader, first, second)] == ["open"] * 3
            for each in (first, second):
                say(each)
            printed = [line.split() for each in (first, second) for line in finish(each)]
            say(reader, "stop")
            (searches,) = finish(reader)
        assert int(searches) > 0
        assert len({event_id for _, _, event_id in printed}) == 400
        for prefix, number, event_id in printed:
            assert memory.get(event_id).event.content == f"content {prefix} {number}"
        assert memory.stats().events == 403
        assert memory.stats().concepts == 3
        assert memory.verify() == []
        assert len(memory.search("summary").results) == 4


def test_a_write_waits_for_another_process_and_a_read_does_not(filled: Path) -> None:
    """faults BL-28: a process that holds a write transaction for 2 s delays a save, fails none, and delays no search."""
    with opened(filled) as memory, running("hold", filled, 2) as holder:
        assert next_line(holder) == "held"
        begun = time.monotonic()
        assert len(memory.search("summary").results) == 3
        assert memory.read("e0").text
        assert memory.verify() == []
        assert time.monotonic() - begun < 1
        with opened(filled, read_only=True) as reader:
            assert reader.stats().events == 3
            assert time.monotonic() - begun < 1
        memory.save(made("new", 2))
        assert 0.5 < time.monotonic() - begun < 20
        assert memory.get("new").event == made("new", 2)
        finish(holder)


def test_a_lock_that_is_not_freed_in_time_is_a_clear_error(filled: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """faults BL-28: beyond the bound the error is explicit and retryable, and the write is absent, not half there."""
    monkeypatch.setattr(sqlite_file, "BUSY_SECONDS", 0.2)
    with opened(filled) as memory:
        before = snapshot(memory)
        calls: list[Callable[[], object]] = [
            lambda: memory.save(made("new", 2)),
            lambda: memory.forget("e1"),
            lambda: memory.reembed(numbered_model(1)),
            lambda: opened(filled, namespace="another"),
        ]
        with contextlib.closing(sqlite3.connect(filled, isolation_level=None)) as other:
            other.execute("BEGIN IMMEDIATE")
            for call in calls:
                with pytest.raises(StoreUnavailable) as caught:
                    call()
                assert caught.value.retryable
            report = memory.save_many([made("new", 2), made("e1", 4)])
            assert list(report.saved) == []
            assert [event_id for event_id, _ in report.failed] == ["new", "e1"]
            assert snapshot(memory) == before
        assert memory.save(made("new", 2)) == made("new", 2)
        assert memory.verify() == []


def test_processes_that_create_one_library_at_once_all_open_it(tmp_path: Path) -> None:
    """faults BL-28: opening is a write of its own; no "database is locked", no half-made schema, no file taken for a stranger's."""
    rounds = 12
    with contextlib.ExitStack() as stack:
        others = [stack.enter_context(running("open_together", tmp_path / "new")) for _ in range(4)]
        assert [next_line(each) for each in others] == ["ready"] * 4
        for number in range(rounds):
            for each in others:
                say(each, str(number))
            assert [next_line(each) for each in others] == ["opened"] * 4
        for each in others:
            say(each)
        failures = [json.loads(line) for each in others for line in finish(each)]
    assert failures == [[]] * 4
    for number in range(rounds):
        with opened(tmp_path / f"new{number}") as memory:
            assert (memory.events(), memory.verify()) == ([], [])


def test_a_library_opens_at_any_moment_of_another_process(path: Path) -> None:
    """faults BL-28: whatever another process does just then, saving, closing or copying its log, opening succeeds."""
    with running("save_and_close", path) as writer:
        assert next_line(writer) == "ready"
        begun, seen = time.monotonic(), [0]
        while time.monotonic() - begun < 2:
            with opened(path, embedder=ModelEmbedder(), read_only=bool(seen[-1] and len(seen) % 4)) as memory:
                seen.append(memory.stats().events)
        say(writer)
        (rounds,) = finish(writer)
    assert seen == sorted(seen)
    assert seen[-1] <= 3 * int(rounds)
    with opened(path, embedder=ModelEmbedder()) as memory:
        assert memory.stats().events == 3 * int(rounds)
        assert memory.verify() == []


@pytest.mark.parametrize("lock", ["IMMEDIATE", "EXCLUSIVE"])
@pytest.mark.parametrize("begun", [False, True], ids=["an empty file", "a file without tables"])
def test_a_file_that_another_is_just_creating_is_waited_for(path: Path, lock: str, begun: bool) -> None:
    """faults BL-28: an opener that comes while another makes the schema waits its turn, as any writer does."""
    with contextlib.closing(sqlite3.connect(path, isolation_level=None, check_same_thread=False)) as other:
        if begun:
            other.execute("PRAGMA user_version = 0")
        other.execute(f"BEGIN {lock}")
        release = threading.Timer(0.5, other.execute, ["ROLLBACK"])
        release.start()
        begin = time.monotonic()
        try:
            with opened(path) as memory:
                memory.save(made("e0", 0))
                assert time.monotonic() - begin > 0.3
                assert memory.verify() == []
        finally:
            release.join()


def test_threads_that_create_one_library_at_once_all_open_it(tmp_path: Path) -> None:
    """faults BL-25 and BL-28: likewise within one process."""
    meet = threading.Barrier(6, timeout=20)

    def create(number: int) -> None:
        for turn in range(6):
            meet.wait()
            with opened(tmp_path / f"new{turn}", namespace=f"n{number % 2}") as memory:
                memory.save(Event(summary=f"of {number}"))

    with ThreadPoolExecutor(6) as threads:
        assert list(threads.map(create, range(6))) == [None] * 6
    for turn in range(6):
        for name in ("n0", "n1"):
            with opened(tmp_path / f"new{turn}", namespace=name) as memory:
                assert (memory.stats().events, memory.verify()) == (3, [])


def test_another_process_sees_a_write_at_its_next_call(path: Path) -> None:
    """api.md: several processes may open one library: saves, updates and hidden events of one are seen by the other at once."""
    with opened(path) as writer, opened(path) as reader:
        writer.save_many(numbered(3, concepts=("shared",)))
        assert ids(reader.search(entity="shared", session="1").results) == ["e003", "e002", "e001"]
        writer.archive("e002")
        assert ids(reader.search(entity="shared", session="2").results) == ["e003", "e001"]
        writer.save(Event(id="e001", summary="changed", concepts=("other",), written_at=START))
        assert ids(reader.search(entity="shared", session="3").results) == ["e003"]
        assert reader.search("changed", session="4").results[0].summary == "changed"  # type: ignore[union-attr]


# -- BL-30: killed at any moment -----------------------------------------------------------------------------------------


def survive(path: Path, mode: str, kills: int, seed: int) -> int:
    """Have a worker killed again and again and check what it leaves each time; return how many kills met work in progress."""
    met = 0
    with running("kill_loop", path, mode, kills, seed) as killer:
        for _ in range(kills):
            outcome = json.loads(next_line(killer))
            assert outcome["killed"]
            acknowledged = [line.split() for line in outcome["acknowledged"]]
            embedder = model_of(path)
            with opened(path, embedder=embedder) as memory:
                found = assert_whole(memory, embedder)
                for event_id, version in acknowledged:
                    if event_id == "model":
                        assert int(embedder.model.rpartition("-")[2]) >= int(version)
                    else:
                        assert found[event_id] >= int(version)
                memory.save(made("between", 1))  # no manual repair is needed: the next write works
            met += bool(acknowledged)
            say(killer)
        finish(killer)
    return met


@pytest.mark.parametrize(("mode", "seed"), [("save", 1), ("save_many", 2), ("reembed", 3), ("all", 4)])
def test_a_library_survives_being_killed(path: Path, mode: str, seed: int) -> None:
    """faults BL-30, retrieval.md S3 and E1: it opens, verify is empty, each event is whole, each acknowledged save is there."""
    with opened(path) as memory:
        fill(memory)
    assert survive(path, mode, 4, seed) >= 1


@pytest.mark.slow
@pytest.mark.parametrize(("mode", "kills", "seed"), [("save", 8, 11), ("save_many", 8, 12), ("reembed", 8, 13), ("all", 16, 14)])
def test_a_library_survives_being_killed_many_times(path: Path, mode: str, kills: int, seed: int) -> None:
    """faults BL-30, retrieval.md S3 and E1: likewise over and over on one library, beginning with a file that does not exist."""
    assert survive(path, mode, kills, seed) >= 3


@pytest.mark.parametrize("operation", OPERATIONS)
def test_killed_before_every_single_statement_it_is_all_or_nothing(filled: Path, tmp_path: Path, operation: str) -> None:
    """faults BL-30: killed after the event, between chunks, after the links, before the commit: all or nothing; the retry works."""
    copy = tmp_path / "copy.db"
    with opened(filled) as memory:
        before = snapshot(memory)
    outcomes, points = set(), 0
    with running("fault_points", filled, copy, operation) as killer:
        while ("exit 0", True) not in outcomes:
            outcome = next_line(killer)
            with opened(copy) as memory:
                done = snapshot(memory) != before
                outcomes.add((outcome, done))
                assert memory.verify() == []
                if not done:
                    OPERATIONS[operation](memory)
            embedder = model_of(copy)
            with opened(copy, embedder=embedder) as memory:
                assert memory.verify() == []
                if operation == "forget":
                    assert memory.get("e1").visibility == "forgotten"
                elif done or points % 8 == 0:
                    assert assert_whole(memory, embedder) == {"e0": 0, "e1": 1, "e2": 2} | CHANGED[operation]
            points += 1
            say(killer)
        finish(killer)
    assert outcomes == {("killed", False), ("exit 0", True)}
    assert points > 4


CHANGED: dict[str, dict[str, int]] = {
    "save": {"new": 2},
    "update": {"e1": 5},
    "save_many": {"e0": 4, "new": 2},
    "reembed": {},
    "forget": {},
}


@pytest.mark.parametrize("operation", OPERATIONS)
@pytest.mark.parametrize("kind", ["file", "memory"])
@pytest.mark.parametrize("error", [sqlite3.OperationalError, KeyboardInterrupt], ids=["disk error", "interrupt"])
def test_failing_at_every_single_statement_it_is_all_or_nothing(
    path: Path, operation: str, kind: str, error: type[BaseException], monkeypatch: pytest.MonkeyPatch
) -> None:
    """faults BL-30: an error of the disk or Ctrl-C at any statement leaves nothing behind, and the open library goes on working."""

    def blow() -> None:
        raise error("broken")

    fuse = Fuse(0, blow)
    monkeypatch.setattr(sqlite3, "connect", fuse.connect(sqlite3.connect))
    embedder = numbered_model(0)
    with workbench.open_memory(address_of(path) if kind == "file" else "sqlite://", embedder=embedder) as memory:
        fill(memory)
        before = snapshot(memory)
        for point in range(1, 500):
            fuse.point, fuse.count, fuse.lit = point, 0, True
            failed = failure_of(lambda: OPERATIONS[operation](memory))
            fuse.lit = False
            if fuse.count < point:
                break
            assert failed is (StoreUnavailable if issubclass(error, Exception) else error)
            assert snapshot(memory) == before
        assert point > 4
        assert failed is None
        assert snapshot(memory) != before
        assert memory.verify() == []


def failure_of(call: Callable[[], object]) -> type[BaseException] | None:
    """Return the type of the error that a call raised or reported."""
    try:
        answer = call()
    except (WorkbenchError, KeyboardInterrupt) as error:
        return type(error)
    failed = answer.failed if isinstance(answer, workbench.SaveReport) else ()
    return type(failed[0][1]) if failed else None


def pages_of(path: Path) -> list[bytes]:
    whole = path.read_bytes()
    return [whole[start : start + sqlite_file.PAGE_SIZE] for start in range(0, len(whole), sqlite_file.PAGE_SIZE)]


@pytest.mark.parametrize("read_only", [False, True], ids=["to write", "read only"])
def test_killed_while_the_log_is_copied_into_the_file_nothing_is_lost(filled: Path, tmp_path: Path, read_only: bool) -> None:
    """faults BL-30: SQLite copies a log page by page, the first page first; a kill in between leaves a file that the log mends."""
    with opened(filled) as memory:
        memory.save_many(numbered(30, content=text_of(2000)))
        expected = snapshot(memory)
        log = filled.with_name("library.db-wal").read_bytes()
        short = pages_of(filled)
    done = pages_of(filled)
    assert len(done) > len(short) + 10
    copy = tmp_path / "copy.db"
    for copied in (0, 1, 2, len(short), len(short) + 1, len(done) - 1, len(done)):
        copy.write_bytes(b"".join(done[:copied] + short[copied:]))
        copy.with_name("copy.db-wal").write_bytes(log)
        copy.with_name("copy.db-shm").unlink(missing_ok=True)
        with opened(copy, read_only=read_only) as memory:
            assert snapshot(memory) == expected
            assert memory.verify() == []


def test_an_unusable_vector_of_the_last_chunk_leaves_no_orphan_and_the_retry_works(path: Path) -> None:
    """faults BL-30: the corrected retry meets no "already exists"."""

    class Spoiling(ModelEmbedder):
        spoil = True

        def embed_documents(self, texts):  # type: ignore[no-untyped-def]
            rows = super().embed_documents(texts)
            if self.spoil:
                rows[-1] = 0
            return rows

    embedder = Spoiling()
    with opened(path, embedder=embedder) as memory:
        before = snapshot(memory)
        with pytest.raises(workbench.EmbeddingFailed):
            memory.save(Event(id="e", summary="a summary", content=text_of(2000)))
        assert snapshot(memory) == before
    embedder.spoil = False
    with opened(path, embedder=embedder) as memory:
        memory.save(Event(id="e", summary="a summary", content=text_of(2000)))
        assert (memory.get("e").chunk_count, memory.verify()) == (3, [])


# -- disks, rights and files ---------------------------------------------------------------------------------------------


def test_a_full_disk_is_a_clear_error_and_loses_nothing(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """faults BL-28 and BL-30: SQLITE_FULL, for real: what was acknowledged is there, the rest absent, and with room it goes on."""
    room = {"pages": 40}
    monkeypatch.setattr(sqlite3, "connect", children.limited(sqlite3.connect, lambda: room["pages"]))
    embedder = numbered_model(0)
    with opened(path, embedder=embedder) as memory:
        saved: list[str] = []

        def save_on() -> None:
            for number in range(1000):
                memory.save(made(f"e{number}", number))
                saved.append(f"e{number}")

        with pytest.raises(StoreUnavailable, match="full") as caught:
            save_on()
        assert caught.value.retryable
        assert saved
        assert set(assert_whole(memory, embedder)) == set(saved)
        room["pages"] += 8
        report = memory.save_many([made(f"f{number}", number) for number in range(60)], batch_size=4)
        assert set(assert_whole(memory, embedder)) == {*saved, *report.saved}
        assert {event_id for event_id, _ in report.failed} == {f"f{number}" for number in range(60)} - set(report.saved)
        assert report.saved
        assert all(isinstance(error, StoreUnavailable) for _, error in report.failed)
        before = snapshot(memory)
        with pytest.raises(StoreUnavailable, match="full"):
            memory.save(Event(id="e0", summary="s", content=text_of(200_000)))
        assert snapshot(memory) == before
        room["pages"] = 100_000
        memory.save(Event(id="e0", summary="s", content=text_of(200_000)))
        memory.reembed(numbered_model(1))
        assert memory.verify() == []


def test_a_full_disk_during_re_embedding_changes_nothing(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """retrieval.md E2, S3: the one transaction that does not fit is not half there; the old model goes on."""
    room = {"pages": 100_000}
    monkeypatch.setattr(sqlite3, "connect", children.limited(sqlite3.connect, lambda: room["pages"]))
    with opened(path) as memory:
        memory.save_many([Event(id=f"e{n}", summary=f"s {n}", content=text_of(9000 + n)) for n in range(8)], chunks=False)
        before = snapshot(memory)
        room["pages"] = 1  # no page more than there are
        with pytest.raises(StoreUnavailable, match="full"):
            memory.reembed(ModelEmbedder("model-9", dimension=2048))
        assert snapshot(memory) == before
        assert memory.search("s 1").results
        assert_made_by(memory, numbered_model(0))


def test_a_file_that_may_not_grow_is_a_clear_error_and_loses_nothing(filled: Path) -> None:
    """faults BL-28 and BL-30: in a process whose files have a size limit, a save fails by name; the acknowledged ones are there."""
    *saved, error = run("small_disk", filled, filled.stat().st_size + 100_000)
    assert error == "StoreUnavailable"
    assert saved
    with opened(filled) as memory:
        found = assert_whole(memory, numbered_model(0))
        assert set(saved) | {"e0", "e1", "e2"} == set(found)
        memory.save(made("after", 0))


@pytest.fixture
def public() -> Iterator[Path]:
    """Return a folder that every user can enter, with a library in it."""
    folder = Path(tempfile.mkdtemp(prefix="workbench-test-"))
    folder.chmod(0o755)
    with opened(folder / "library.db") as memory:
        fill(memory)
    (folder / "library.db").chmod(0o644)
    yield folder
    folder.chmod(0o755)
    shutil.rmtree(folder)


def as_nobody(path: Path, task: str, *, read_only: bool = False) -> list[str]:
    """Do something without the rights of root, and assert that the library's bytes stayed the same."""
    before = {each.name: each.read_bytes() for each in path.parent.iterdir()} if path.parent.exists() else {}
    modes = {each: each.stat().st_mode for each in (path, path.parent) if each.exists()}
    if os.getuid() != 0:
        path.parent.chmod(path.parent.stat().st_mode & ~0o222)
    printed = run("nobody", path, task, int(read_only))
    for each, mode in modes.items():
        each.chmod(mode)
    assert {name: (path.parent / name).read_bytes() for name in before} == before
    return printed


def test_a_folder_without_the_right_to_write(public: Path) -> None:
    """api.md Errors: a library that can not be made or written there is StoreUnavailable; reading it, read only, works."""
    assert as_nobody(public / "new.db", "save") == ["StoreUnavailable"]
    assert as_nobody(public / "sub" / "new.db", "save") == ["StoreUnavailable"]
    assert not (public / "new.db").exists()
    assert as_nobody(public / "library.db", "save")[-1] == "StoreUnavailable"
    assert as_nobody(public / "library.db", "look", read_only=True) == ["open", "3", "3", "0"]
    assert as_nobody(public / "library.db", "save", read_only=True) == ["open", "ReadOnly"]
    assert sorted(each.name for each in public.iterdir()) == ["library.db"]


def test_a_file_without_the_right_to_read(public: Path) -> None:
    """api.md Errors: a file that may not be read is StoreUnavailable, read only or not."""
    (public / "library.db").chmod(0o000)
    assert as_nobody(public / "library.db", "look") == ["StoreUnavailable"]
    assert as_nobody(public / "library.db", "look", read_only=True) == ["StoreUnavailable"]


def test_a_folder_that_may_not_be_entered(public: Path) -> None:
    """api.md Errors: a path behind a folder that may not be entered is StoreUnavailable."""
    (public / "shut").mkdir()
    shutil.copy(public / "library.db", public / "shut" / "library.db")
    (public / "shut").chmod(0o000)
    for read_only in (False, True):
        assert as_nobody(public / "shut" / "library.db", "look", read_only=read_only) == ["StoreUnavailable"]
    (public / "shut").chmod(0o755)


def zero_page(path: Path, table: str) -> None:
    """Overwrite the first page of a table with zeros."""
    with contextlib.closing(sqlite3.connect(path)) as connection:
        (page,) = connection.execute("SELECT rootpage FROM sqlite_master WHERE name = ?", (table,)).fetchone()
        (size,) = connection.execute("PRAGMA page_size").fetchone()
    overwrite(path, (page - 1) * size, bytes(size))


def foreign(path: Path, script: str) -> None:
    path.unlink(missing_ok=True)
    with contextlib.closing(sqlite3.connect(path)) as connection:
        connection.executescript(script)


def overwrite(path: Path, start: int, content: bytes) -> None:
    with path.open("r+b") as file:
        file.seek(start)
        file.write(content)


UNUSABLE: dict[str, Callable[[Path], object]] = {
    "garbage": lambda path: path.write_bytes(bytes(range(256)) * 64),
    "a few bytes of garbage": lambda path: path.write_bytes(b"garbage"),
    "two bytes": lambda path: path.write_bytes(b"\0\0"),
    "zeros": lambda path: path.write_bytes(bytes(8192)),
    "a text": lambda path: path.write_text("Dear diary,\n" * 100),
    "cut in half": lambda path: path.write_bytes(path.read_bytes()[: path.stat().st_size // 2]),
    "only the header": lambda path: path.write_bytes(path.read_bytes()[:100]),
    "a damaged header": lambda path: overwrite(path, 0, b"SQLate format 3"),
    "a zeroed first page": lambda path: overwrite(path, 0, bytes(8192)),
    "a newer version": lambda path: set_version(path, 999),
    "another program's": lambda path: foreign(path, "CREATE TABLE contact (name); INSERT INTO contact VALUES ('Ann')"),
    "another program's with a version like ours": lambda path: foreign(
        path, "CREATE TABLE contact (name); PRAGMA user_version = 1"
    ),
    "another program's without a table yet": lambda path: foreign(path, "PRAGMA application_id = 1196444487"),
    "another program's without a table yet, with a version like ours": lambda path: foreign(
        path, "PRAGMA application_id = 1196444487; PRAGMA user_version = 1"
    ),
}


def set_version(path: Path, version: int) -> None:
    with contextlib.closing(sqlite3.connect(path)) as connection:
        connection.execute(f"PRAGMA user_version = {version}")


@pytest.mark.parametrize("read_only", [False, True], ids=["to write", "read only"])
@pytest.mark.parametrize("kind", UNUSABLE)
def test_a_file_that_is_no_library_of_ours_is_refused_and_left_alone(filled: Path, kind: str, read_only: bool) -> None:
    """api.md Errors: StoreUnavailable that says what to do, not worth a retry; not a byte of the file changes."""
    UNUSABLE[kind](filled)
    before = filled.read_bytes()
    with pytest.raises(StoreUnavailable) as caught, opened(filled, read_only=read_only) as memory:
        memory.stats()
    assert not caught.value.retryable
    assert len(str(caught.value)) > 20
    assert filled.read_bytes() == before
    assert {each.name for each in filled.parent.iterdir()} <= {filled.name, f"{filled.name}-shm", f"{filled.name}-wal"}


DAMAGED: dict[str, Callable[[Path], object]] = {
    "library": lambda path: zero_page(path, "library"),
    "event": lambda path: zero_page(path, "event"),
    "chunk": lambda path: zero_page(path, "chunk"),
    "event_id": lambda path: zero_page(path, "event_id"),
    "entity": lambda path: zero_page(path, "entity"),
    "mention": lambda path: zero_page(path, "mention"),
    "event_terms": lambda path: zero_page(path, "event_terms"),
}


@pytest.mark.parametrize("part", DAMAGED)
def test_a_damaged_page_ends_in_clear_errors_and_is_left_alone(filled: Path, part: str) -> None:
    """api.md Errors: a damaged page is StoreUnavailable where it is met, or a problem of verify's; never a strange error."""
    DAMAGED[part](filled)
    before = filled.read_bytes()
    problems: list[object] = []
    calls: list[Callable[[Memory], object]] = [
        lambda memory: problems.extend(memory.verify()),
        lambda memory: memory.stats(),
        lambda memory: memory.events(),
        lambda memory: memory.get("e1"),
        lambda memory: memory.read("e1"),
        lambda memory: memory.search("summary"),
        lambda memory: memory.search(entity="shared"),
        lambda memory: snapshot(memory),
    ]
    try:
        memory = opened(filled)
    except StoreUnavailable as error:
        problems.append(error)
        calls = []
    for call in calls:
        try:
            call(memory)
        except (StoreUnavailable, workbench.NotFound) as error:
            problems.append(error)
    if calls:
        memory.close()
    assert problems
    assert filled.read_bytes() == before


def test_a_folder_as_path_is_refused(tmp_path: Path) -> None:
    """api.md Errors: a directory is no library."""
    (tmp_path / "folder").mkdir()
    for read_only in (False, True):
        with pytest.raises(StoreUnavailable):
            opened(tmp_path / "folder", read_only=read_only)
    assert list((tmp_path / "folder").iterdir()) == []


def test_a_path_below_a_file_is_refused(filled: Path) -> None:
    """api.md Errors: a file is no folder."""
    before = filled.read_bytes()
    for read_only in (False, True):
        with pytest.raises(StoreUnavailable):
            opened(filled / "sub" / "library.db", read_only=read_only)
    assert filled.read_bytes() == before


@pytest.mark.parametrize(
    "address",
    [
        "",
        "library.db",
        "sqlite:",
        "sqlite:/library.db",
        "sqlite:///",
        "sqlite://host/library.db",
        "file:library.db",
        "mysql://h/d",
        None,
        5,
    ],
)
def test_an_address_that_is_none_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, address: Any) -> None:
    """api.md: addresses read as SQLAlchemy's; what is none is an InvalidRequest, and no file appears."""
    monkeypatch.chdir(tmp_path)
    with pytest.raises(workbench.InvalidRequest):
        workbench.open_memory(address)
    assert list(tmp_path.iterdir()) == []


def test_the_other_name_of_a_private_library_makes_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """api.md: addresses read as SQLAlchemy's, where `sqlite:///:memory:` means what `sqlite://` does; it is no file's name."""
    monkeypatch.chdir(tmp_path)
    with contextlib.suppress(workbench.InvalidRequest), workbench.open_memory("sqlite:///:memory:") as memory:
        assert memory.events() == []
    assert list(tmp_path.iterdir()) == []


def test_a_name_that_is_too_long_is_refused(tmp_path: Path) -> None:
    """api.md Errors: what the file system refuses is StoreUnavailable."""
    for read_only in (False, True):
        with pytest.raises(StoreUnavailable):
            opened(tmp_path / ("x" * 300), read_only=read_only)


def test_a_missing_file_is_not_made_for_a_reader(tmp_path: Path) -> None:
    """api.md: read_only creates nothing, neither the file nor its folder."""
    for missing in (tmp_path / "none.db", tmp_path / "sub" / "none.db"):
        with pytest.raises(StoreUnavailable):
            opened(missing, read_only=True)
    assert list(tmp_path.iterdir()) == []


def test_an_empty_file_becomes_a_library(path: Path) -> None:
    """api.md: open and create; a file of no bytes, such as `touch` or a temporary file makes, is nobody's."""
    path.touch()
    with pytest.raises(StoreUnavailable):
        opened(path, read_only=True)
    assert path.stat().st_size == 0
    with opened(path) as memory:
        memory.save(made("e0", 0))
        assert memory.verify() == []


def test_folders_on_the_way_to_a_new_library_are_made(tmp_path: Path) -> None:
    """api.md: `sqlite:///demo/memory.db` opens and creates; odd characters in a path mean themselves."""
    for name in ("demo", "mit Leerzeichen", "记忆", "100%", "a#b", "a&b=c", "%41"):
        place = tmp_path / name / f"{name}.db"
        with opened(place) as memory:
            memory.save(made("e0", 0))
        assert place.exists()
        with opened(place, read_only=True) as memory:
            assert memory.get("e0").event == made("e0", 0)


def test_a_relative_address_is_relative_to_where_it_was_opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """api.md: `sqlite:///relative/file.db`; a program that changes its directory keeps its library."""
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    monkeypatch.chdir(tmp_path / "a")
    with workbench.open_memory("sqlite:///library.db", embedder=numbered_model(0)) as memory:
        fill(memory)
        monkeypatch.chdir(tmp_path / "b")
        with ThreadPoolExecutor(4) as threads:
            assert set(threads.map(lambda number: memory.get(f"e{number % 3}").visibility, range(16))) == {"visible"}
        rows = memory.store.dump()[2]
        next(rows)  # one connection is busy, so the next call needs another
        assert memory.stats().events == 3
        rows.close()  # type: ignore[attr-defined]
    assert (tmp_path / "a" / "library.db").exists()
    assert list((tmp_path / "b").iterdir()) == []


# -- older versions ------------------------------------------------------------------------------------------------------

STEP = """
CREATE TABLE added (event INTEGER PRIMARY KEY REFERENCES event, note TEXT NOT NULL);
INSERT INTO added SELECT key, 'migrated' FROM event;
ALTER TABLE event ADD COLUMN made_up INTEGER NOT NULL DEFAULT 7;
"""


def looked_at(path: Path, sql: str) -> list[tuple[object, ...]]:
    with contextlib.closing(sqlite3.connect(path)) as connection:
        return connection.execute(sql).fetchall()


def test_an_old_file_is_brought_forward(filled: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """api.md: an older file is migrated when opened; its data is intact; twice is once; an older program refuses it."""
    with opened(filled) as memory:
        before = snapshot(memory)
    old = len(sqlite_file.MIGRATIONS)
    scripts = (*sqlite_file.MIGRATIONS, STEP, "CREATE TABLE another (x);\n")
    with monkeypatch.context() as newer:
        newer.setattr(sqlite_file, "MIGRATIONS", scripts)
        with pytest.raises(StoreUnavailable, match="version"):
            opened(filled, read_only=True)
        assert looked_at(filled, "PRAGMA user_version") == [(old,)]
        for _ in range(2):
            with opened(filled) as memory:
                assert snapshot(memory) == before
                assert_whole(memory, numbered_model(0))
        assert looked_at(filled, "PRAGMA user_version") == [(old + 2,)]
        assert looked_at(filled, "SELECT note, made_up FROM added JOIN event ON event.key = added.event") == [("migrated", 7)] * 3
        with opened(filled) as memory:
            memory.save(made("new", 2))
        with opened(filled, read_only=True) as memory:
            assert memory.stats().events == 4
        with opened(filled.with_name("fresh.db")) as memory:
            fill(memory)
        assert looked_at(filled.with_name("fresh.db"), "PRAGMA user_version") == [(old + 2,)]
    kept = filled.read_bytes()
    with pytest.raises(StoreUnavailable, match="upgrade"):
        opened(filled)
    assert filled.read_bytes() == kept


def test_a_file_of_version_1_answers_as_before(path: Path) -> None:
    """Version 1 kept every term key as 8 bytes; migrated, the library ranks and scores as it did."""

    def answers() -> list[object]:
        with opened(path, embedder=ModelEmbedder()) as memory:
            found = [memory.search(text, reset_seen=True) for text in ("记忆检索 memory", "\U00020000的部署 plan")]
            return [[str(each) for each in result.results] for result in found]

    with opened(path, embedder=ModelEmbedder()) as memory:
        memory.save_many(
            [Event(summary=text, content=text * 9) for text in ("记忆检索的方案", "a memory plan", "\U00020000的部署", "x")]
        )
    before = answers()
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as old:
        for event, keys, counts in old.execute("SELECT event, keys, counts FROM event_terms").fetchall():
            terms = unpack(keys, counts)
            blobs = terms.keys.astype("<u8").tobytes(), terms.counts.astype("<u2").tobytes()
            old.execute("UPDATE event_terms SET keys = ?, counts = ? WHERE event = ?", (*blobs, event))
        old.execute("PRAGMA user_version = 1")
    assert answers() == before
    assert looked_at(path, "PRAGMA user_version") == [(len(sqlite_file.MIGRATIONS),)]


@pytest.mark.parametrize(
    "bad",
    [
        "INSERT INTO nowhere VALUES (1);\n",
        "CREATE TABLE added (x);\n",
        "SELECT RAISE(ABORT, 'no');\n",
        "NONSENSE;\n",
        "CREATE TABLE cut (",
    ],
)
def test_a_migration_that_fails_is_rolled_back(filled: Path, monkeypatch: pytest.MonkeyPatch, bad: str) -> None:
    """api.md Errors: a migration is one transaction: a failing script leaves the old version, data intact, and a clear error."""
    old = len(sqlite_file.MIGRATIONS)
    tables = looked_at(filled, "SELECT sql FROM sqlite_master ORDER BY name")
    with monkeypatch.context() as newer:
        newer.setattr(sqlite_file, "MIGRATIONS", (*sqlite_file.MIGRATIONS, STEP, bad))
        for _ in range(2):
            with pytest.raises(StoreUnavailable):
                opened(filled)
    assert looked_at(filled, "PRAGMA user_version") == [(old,)]
    assert looked_at(filled, "SELECT sql FROM sqlite_master ORDER BY name") == tables
    with opened(filled) as memory:
        assert_whole(memory, numbered_model(0))


def test_several_openers_migrate_once(filled: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """faults BL-28: openers that meet an old file at the same moment all get a library, migrated once."""
    monkeypatch.setattr(sqlite_file, "MIGRATIONS", (*sqlite_file.MIGRATIONS, STEP))
    meet = threading.Barrier(6, timeout=20)

    def look(_: int) -> int:
        meet.wait()
        with opened(filled) as memory:
            return memory.stats().events

    with ThreadPoolExecutor(6) as threads:
        assert list(threads.map(look, range(6))) == [3] * 6
    assert looked_at(filled, "SELECT count(*) FROM added") == [(3,)]


def test_a_namespace_of_an_old_file_is_migrated_with_the_others(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """retrieval.md section 1: one file holds many namespaces; migrating one loses none of the others."""
    for name in ("a", "b"):
        with opened(path, namespace=name) as memory:
            fill(memory)
    monkeypatch.setattr(sqlite_file, "MIGRATIONS", (*sqlite_file.MIGRATIONS, STEP))
    for name in ("a", "b", "c"):
        with opened(path, namespace=name) as memory:
            assert memory.stats().events == (0 if name == "c" else 3)
            assert memory.verify() == []


# -- BL-44: the life of a library ----------------------------------------------------------------------------------------


def test_a_dropped_reference_is_no_warning(path: Path) -> None:
    """faults BL-44: dropping the last reference, or leaving one at the end, warns of nothing under -W error and loses nothing."""
    assert run("drop_reference", path) == ["done"]
    with opened(path, embedder=ModelEmbedder()) as memory:
        assert set(assert_whole(memory, ModelEmbedder())) == {"e0", "e1"}


def test_a_fork_can_use_the_library_on_both_sides(path: Path) -> None:
    """faults BL-44: fork, then use: both processes save and search, and neither breaks the other or the file."""
    assert run("fork_and_use", path) == ["0 0 42"]
    with opened(path, embedder=ModelEmbedder()) as memory:
        assert len(assert_whole(memory, ModelEmbedder())) == 42


def test_a_library_in_memory_says_that_it_stays_behind_a_fork() -> None:
    """faults BL-44: what can not work on the far side of a fork says so there, and goes on here."""
    assert run("fork_in_memory") == ["7 before"]


def test_closing_leaves_one_file(filled: Path) -> None:
    """faults BL-44: after the last close the library is its one file, ready to be copied."""
    with opened(filled) as memory, opened(filled) as other:
        memory.save(made("new", 2))
        assert other.get("new").event == made("new", 2)
    assert [each.name for each in filled.parent.iterdir()] == [filled.name]


def test_reopening_starts_sessions_afresh(filled: Path) -> None:
    """retrieval.md H6: session state is kept in the process; a reopened library delivers anew and knows no old cursor."""
    clock = Clock()
    with opened(filled, clock=clock) as memory:
        found = memory.search("summary")
        assert len(found.results) == 3
        assert memory.search("summary").results == ()
    with opened(filled, clock=clock) as memory:
        with pytest.raises(CursorInvalid) as caught:
            memory.expand(found.cursor or "", found.concepts[0].id)
        assert caught.value.reason == "unknown"
        assert ids(memory.search("summary").results) == ids(found.results)


def test_an_entry_is_in_force_for_less_than_fifteen_minutes(filled: Path) -> None:
    """retrieval.md H6 and H1: in force while its age is under 15 minutes; a clock that steps back makes no age negative."""
    clock = Clock()
    with opened(filled, clock=clock) as memory:
        assert len(memory.search("summary").results) == 3
        clock.forward(minutes=-60)
        assert memory.search("summary").results == ()
        clock.forward(minutes=60, seconds=899.999)
        assert memory.search("summary").results == ()
        clock.forward(seconds=0.001)
        assert len(memory.search("summary").results) == 3


def test_read_only_refuses_to_write_and_leaves_the_bytes(filled: Path) -> None:
    """api.md: read_only never writes, not even to create a namespace."""
    before = filled.read_bytes()
    with opened(filled, read_only=True, namespace="not there") as memory:
        assert (memory.events(), memory.stats().events, memory.verify()) == ([], 0, [])
        assert memory.search(entity="shared").results == ()
        with pytest.raises(ReadOnly):
            memory.save(made("new", 2))
    with opened(filled, read_only=True) as memory:
        assert_whole(memory, numbered_model(0))
        for operation in OPERATIONS.values():
            assert failure_of(lambda operation=operation: operation(memory)) is ReadOnly  # type: ignore[misc]
    assert filled.read_bytes() == before
