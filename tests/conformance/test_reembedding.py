"""Re-embedding: retrieval.md section 3 (E1 to E5), and what it means for cursors (C5). Every store passes this unchanged."""

import contextlib
import sqlite3
import threading
from collections.abc import Callable, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from tests.children import ModelEmbedder, assert_made_by, snapshot, spans_in
from tests.conformance.test_saving import LASTING, text_of
from tests.support import START, OpenLibrary, TableEmbedder, ids, numbered
from workbench import (
    CursorInvalid,
    EmbeddingFailed,
    Event,
    InvalidRequest,
    Memory,
    ModelMismatch,
    WorkbenchError,
)


class WatchedEmbedder(ModelEmbedder):
    """Calls ``before`` with the number of each call, from 1, before it answers."""

    def __init__(
        self, model: str = "new", *, dimension: int = 24, before: Callable[[int], object] = lambda _: None, slow: float = 0.0
    ) -> None:
        super().__init__(model, dimension=dimension, seconds=slow)
        self.before, self.calls = before, 0

    def embed_documents(self, texts: Sequence[str]) -> NDArray[np.float32]:
        self.calls += 1
        self.before(self.calls)
        return super().embed_documents(texts)


def others() -> list[Event]:
    """Return enough events for several embedding batches, of all sorts: long, short, blank, with and without names."""
    events = numbered(60, concepts=("shared",))
    longer = [event.replace(content=text_of(40 * place), persons=(f"p{place}",)) for place, event in enumerate(events)]
    return [*longer, Event(id="blank", summary="blank", content=" \n" * 500, written_at=START)]


def filled(memory: Memory) -> Memory:
    """Fill a library: with events of :func:`others`, two never chunked, and some of every visibility."""
    memory.save_many(others())
    memory.save_many(
        [Event(id=f"old{n}", summary=f"old {n}", content=text_of(900), written_at=START) for n in (1, 2)], chunks=False
    )
    memory.archive("e003")
    memory.forget("e004")
    memory.revoke("e005")
    memory.supersede("e006", by="e007")
    return memory


@pytest.fixture
def library(open_library: OpenLibrary) -> Memory:
    """Return a filled library of the store under test, made by the model ``old``."""
    return filled(open_library(embedder=ModelEmbedder("old")))


def batches_of(memory: Memory) -> int:
    """Return how many embedding calls a re-embedding takes, and change nothing: it is interrupted after the last of them."""
    counted, before = WatchedEmbedder(), snapshot(memory)
    summaries = {stored.event.summary for stored in memory.events(limit=1000)}

    def interrupt_at_the_end() -> bool:
        if summaries <= set(chain.from_iterable(counted.documents)):
            raise KeyboardInterrupt
        return False

    with pytest.raises(KeyboardInterrupt):
        memory.reembed(counted, cancel=interrupt_at_the_end)
    assert snapshot(memory) == before
    assert counted.calls >= 3
    return counted.calls


# -- E1 ------------------------------------------------------------------------------------------------------------------


def test_everything_is_replaced_by_the_new_model(library: Memory) -> None:
    """retrieval.md E1: summaries, names and chunks of all events, hidden ones and those never chunked too; the model record."""
    before = {stored.event.id: stored for stored in library.events(limit=1000)}
    new = WatchedEmbedder("new", dimension=24)
    report = library.reembed(new)
    assert not report.cancelled
    assert_made_by(library, new)
    assert library.verify() == []
    stats = library.stats()
    assert (stats.model, stats.dimension, stats.unchunked) == ("new", 24, 0)
    after = {stored.event.id: stored for stored in library.events(limit=1000)}
    assert list(after) == list(before)
    for event_id, stored in after.items():
        old = before[event_id]
        assert (stored.event, stored.visibility, stored.superseded_by) == (old.event, old.visibility, old.superseded_by)
        assert stored.chunk_count == (2 if old.chunk_count is None else old.chunk_count)
    assert spans_in(library, "old1") == [(0, 800), (680, 900)]


def test_the_new_embedder_is_used_from_then_on(library: Memory) -> None:
    """retrieval.md S4 and E4: after re-embedding, saves and searches by the new model work, and find by it."""
    new = WatchedEmbedder("new", dimension=24)
    library.reembed(new)
    assert library.search("summary 9", explain=True).results
    assert new.queries == ["summary 9"]
    library.save(Event(id="more", summary="more"))
    assert_made_by(library, new)


def test_without_an_embedder_the_present_one_does_it(open_library: OpenLibrary) -> None:
    """api.md: `reembed(embedder=None)`; E1: also where only chunks are missing."""
    embedder = ModelEmbedder("old")
    memory = filled(open_library(embedder=embedder))
    before = snapshot(memory)
    memory.reembed()
    assert memory.stats().unchunked == 0
    assert_made_by(memory, embedder)
    changed = [(old, new) for old, new in zip(before[2], snapshot(memory)[2], strict=True) if old != new]  # type: ignore[call-overload]
    assert {old[0].id for old, _ in changed} == {"old1", "old2"}


def test_texts_of_unchunked_events_are_found_by_source_afterwards(library: Memory) -> None:
    """retrieval.md S6 and E1: re-embedding adds the chunks, and the notice is gone."""
    question = text_of(900)[680:]
    found = library.search("old 1", explain=True, session="before").results
    assert {result.notices for result in found if result.id == "old1"} == {("sourceChunksMissing",)}  # type: ignore[union-attr]
    library.reembed(WatchedEmbedder("new"))
    found = library.search(question, session="after").results
    (result,) = [result for result in found if result.id in ("old1", "old2")][:1]
    assert "source" in result.routes  # type: ignore[union-attr]
    assert result.notices == ()  # type: ignore[union-attr]


def test_an_empty_library_is_re_embedded(memory: Memory) -> None:
    """retrieval.md E1: there is nothing to do, and no text is sent."""
    new = WatchedEmbedder("new")
    report = memory.reembed(new)
    assert (report.events, report.chunks, report.cancelled, new.documents) == (0, 0, False, [])
    memory.save(Event(summary="first"))
    assert_made_by(memory, new)


def test_the_report_counts_what_is_stored(library: Memory) -> None:
    """retrieval.md E1, faults BL-14: reported counts equal the rows written."""
    report = library.reembed(WatchedEmbedder("new"))
    stats = library.stats()
    assert (report.model, report.dimension) == (stats.model, stats.dimension)
    assert (report.events, report.chunks, report.names) == (stats.events, stats.chunks, stats.concepts + stats.persons)


# -- E2 ------------------------------------------------------------------------------------------------------------------


def test_a_failure_at_any_batch_changes_nothing(library: Memory) -> None:
    """retrieval.md E2, faults BL-16: a failed request leaves vectors, chunks and model record to the last bit; search goes on."""
    batches = batches_of(library)
    before = snapshot(library)
    for at in range(1, batches + 1):

        def fail(call: int, at: int = at) -> None:
            if call == at:
                raise TimeoutError("no answer")

        failing = WatchedEmbedder("new", before=fail)
        with pytest.raises(EmbeddingFailed):
            library.reembed(failing)
        assert failing.calls == at
        assert snapshot(library) == before
    assert library.search("summary 9").results
    library.save(Event(id="e001", summary="changed", written_at=START))
    new = WatchedEmbedder("new")
    library.reembed(new)
    assert new.calls == batches
    assert_made_by(library, new)


@pytest.mark.parametrize("wrong", ["too few", "one", "too many", "none", "zero", "nan", "wide", "nothing"])
def test_a_wrong_answer_in_the_middle_changes_nothing(library: Memory, wrong: str) -> None:
    """retrieval.md E2 and S7, faults BL-10 and BL-14: so does an answer that is no set of usable vectors."""

    class Wrong(WatchedEmbedder):
        def embed_documents(self, texts: Sequence[str]) -> Any:
            rows = super().embed_documents(texts)
            if self.calls != 2:
                return rows
            broken = {
                "too few": rows[:-1],
                "one": rows[:1],
                "too many": np.vstack([rows, rows[:1]]),
                "none": rows[:0],
                "zero": np.vstack([rows[:-1], rows[-1:] * 0]),
                "nan": np.vstack([rows[:-1], rows[-1:] * np.nan]),
                "wide": np.ones((len(texts), self.dimension + 1), np.float32),
                "nothing": None,
            }
            return broken[wrong]

    before = snapshot(library)
    with pytest.raises(EmbeddingFailed):
        library.reembed(Wrong("new"))
    assert snapshot(library) == before
    assert library.search("summary 9").results


@pytest.mark.parametrize("at", [1, 2])
@pytest.mark.parametrize("interruption", [KeyboardInterrupt, SystemExit, GeneratorExit])
def test_an_interruption_changes_nothing(library: Memory, at: int, interruption: type[BaseException]) -> None:
    """retrieval.md E2, faults BL-16 (Ctrl-C): it passes through and leaves everything as it was."""

    def interrupt(call: int) -> None:
        if call == at:
            raise interruption

    before = snapshot(library)
    with pytest.raises(interruption):
        library.reembed(WatchedEmbedder("new", before=interrupt))
    assert snapshot(library) == before
    library.save(Event(summary="more"))
    assert library.verify() == []


@pytest.mark.parametrize("what", ["model", "dimension"])
def test_a_failed_first_probe_changes_nothing(library: Memory, what: str) -> None:
    """retrieval.md E2, faults BL-16: an embedder that can not even say what it is has failed, and no model has changed."""

    def probe(_: object) -> str:
        raise ConnectionError("refused, key sk-secret")

    unreachable = type("Unreachable", (TableEmbedder,), {what: property(probe, lambda self, value: None)})()
    before = snapshot(library)
    with pytest.raises(WorkbenchError) as caught:
        library.reembed(unreachable)
    assert "sk-secret" not in str(caught.value)
    assert snapshot(library) == before
    assert library.search("summary 9").results


# -- E3 ------------------------------------------------------------------------------------------------------------------


def meddle(memory: Memory, number: int) -> None:
    """Change the library in every way that a host can."""
    event = Event(
        id=f"during {number}", summary=f"saved during batch {number}", content=text_of(1000 + number), concepts=("during",)
    )
    memory.save(event.replace(written_at=START))
    memory.save(Event(id="e010", summary=f"changed in batch {number}", content=text_of(700 + number), concepts=(f"n{number}",)))
    memory.save(Event(id="old1", summary="no longer unchunked", content=f"text {number}"))
    memory.save_many([Event(id=f"bare {number}", summary="bare", content=text_of(900))], chunks=False)
    for call, event_id in zip(
        (memory.forget, memory.archive, memory.revoke), (f"e02{number}", f"e03{number}", f"e04{number}"), strict=True
    ):
        call(event_id)
    memory.restore("e004")


def in_a_thread(call: Callable[[], object]) -> None:
    """Run a call in another thread and wait for it; its error, if any, is this one's."""
    failures: list[BaseException] = []

    def run() -> None:
        try:
            call()
        except BaseException as error:
            failures.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(20)
    assert not thread.is_alive()
    if failures:
        raise failures[0]


@pytest.mark.parametrize("times", [1, 3])
@pytest.mark.parametrize("who", ["another thread", "another open library"])
def test_what_happens_meanwhile_is_neither_lost_nor_left_with_old_vectors(
    open_library: OpenLibrary, store_kind: str, who: str, times: int
) -> None:
    """retrieval.md E3: events saved, changed or hidden while it runs."""
    memory = filled(open_library(embedder=ModelEmbedder("old")))
    lasting = store_kind in LASTING
    other = open_library(embedder=ModelEmbedder("old")) if who == "another open library" and lasting else memory
    new = WatchedEmbedder("new", before=lambda call: in_a_thread(lambda: meddle(other, call)) if call <= times else None)
    assert not memory.reembed(new).cancelled
    assert memory.verify() == []
    assert_made_by(memory, new)
    assert memory.stats().unchunked == 0
    for number in range(1, times + 1):
        assert memory.get(f"during {number}").event.content == text_of(1000 + number)
        assert (memory.get(f"during {number}").chunk_count, memory.get(f"bare {number}").chunk_count) == (2, 2)
        states = [memory.get(f"e0{tens}{number}").visibility for tens in (2, 3, 4)]
        assert states == ["forgotten", "archived", "revoked"]
        assert ids(memory.search(entity=f"n{number}", session=f"n{number}").results) == (["e010"] if number == times else [])
    assert memory.get("e010").event.summary == f"changed in batch {times}"
    assert memory.get("e010").event.content == text_of(700 + times)
    assert memory.get("old1").event.content == f"text {times}"
    assert memory.get("e004").visibility == "visible"
    assert {f"during {number}" for number in range(1, times + 1)} <= set(ids(memory.search(entity="during", session="d").results))
    assert memory.search("saved during batch 1", session="q").results


@pytest.mark.parametrize("store_kind", ["sqlite-file"])
def test_an_event_removed_meanwhile_stays_removed(open_library: OpenLibrary, tmp_path: Path) -> None:
    """retrieval.md E3: events removed while it runs; no call removes a row, but a hand in the file may."""
    memory = filled(open_library(embedder=ModelEmbedder("old")))

    def remove(call: int) -> None:
        if call == 2:
            with contextlib.closing(sqlite3.connect(tmp_path / "library.db")) as connection, connection:
                connection.execute("PRAGMA foreign_keys = ON")
                connection.execute("DELETE FROM event WHERE id IN ('e001', 'e060')")

    new = WatchedEmbedder("new", before=remove)
    memory.reembed(new)
    assert {"e001", "e060"} & {stored.event.id for stored in memory.events(limit=1000)} == set()
    assert memory.verify() == []
    assert_made_by(memory, new)


@pytest.mark.parametrize("store_kind", LASTING)
def test_a_save_that_began_before_and_ends_after_leaves_no_old_vector(open_library: OpenLibrary) -> None:
    """retrieval.md E3 and S4: vectors computed by the old model are refused once the new one rules; nothing of them is written."""
    memory = filled(open_library(embedder=ModelEmbedder("old")))
    new = WatchedEmbedder("new")
    late = WatchedEmbedder("old", dimension=16, before=lambda _: memory.reembed(new))
    other = open_library(embedder=late)
    with pytest.raises(ModelMismatch):
        other.save(Event(id="late", summary="too late"))
    assert "late" not in {stored.event.id for stored in memory.events(limit=1000)}
    assert_made_by(memory, new)
    assert memory.verify() == []


def test_the_library_answers_while_it_is_re_embedded(library: Memory) -> None:
    """retrieval.md E1 and E2: until the one transaction, searches are answered from the old vectors."""
    answers: list[list[str]] = []
    question = "summary 9"
    expected = ids(library.search(question, session="before").results)
    new = WatchedEmbedder(
        before=lambda call: in_a_thread(lambda: answers.append(ids(library.search(question, session=f"s{call}").results)))
    )
    library.reembed(new)
    assert len(answers) >= 3
    assert answers == [expected] * len(answers)


# -- E4 ------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("model", "dimension"), [("new", 16), ("old", 24), ("new", 24)])
def test_old_cursors_break_with_model_changed(library: Memory, model: str, dimension: int) -> None:
    """retrieval.md E4, C5 and C8: after a change of model or dimension an old cursor breaks and says why; a new search works."""
    found = library.search("summary 9")
    assert found.cursor
    library.reembed(WatchedEmbedder(model, dimension=dimension))
    follow_ups: list[Callable[[], object]] = [
        lambda: library.expand(found.cursor or "", found.concepts[0].id),
        lambda: library.nearby(found.cursor or "", found.results[0].id),
    ]
    for follow_up in follow_ups:
        with pytest.raises(CursorInvalid) as caught:
            follow_up()
        assert caught.value.reason == "model_changed"
    again = library.search("summary 9", reset_seen=True)
    assert library.expand(again.cursor or "", again.concepts[0].id).results


def test_old_cursors_live_on_when_the_model_stays(library: Memory) -> None:
    """retrieval.md C5: a cursor breaks when model or dimension changed; re-embedding by the same changes neither."""
    found = library.search("summary 9")
    library.reembed()
    assert library.expand(found.cursor or "", found.concepts[0].id).results


@pytest.mark.parametrize("store_kind", LASTING)
def test_other_open_libraries_notice_the_new_model(open_library: OpenLibrary) -> None:
    """retrieval.md E4 and S4: there, the old model is refused, old cursors break, and what needs no vector works."""
    memory, other = filled(open_library(embedder=ModelEmbedder("old"))), open_library(embedder=ModelEmbedder("old"))
    found = other.search("summary 9")
    memory.reembed(WatchedEmbedder("new", dimension=24))
    with pytest.raises(ModelMismatch, match=r"old.*new|new.*old"):
        other.search("summary 9")
    with pytest.raises(ModelMismatch):
        other.save(Event(summary="more"))
    with pytest.raises(CursorInvalid) as caught:
        other.expand(found.cursor or "", found.concepts[0].id)
    assert caught.value.reason == "model_changed"
    assert other.search(entity="shared", session="list").results
    assert other.read("e001").content_length == 0
    other.reembed(WatchedEmbedder("old", dimension=16))
    assert other.search("summary 9", session="again").results


# -- E5 ------------------------------------------------------------------------------------------------------------------


def stopping(at: int, stop: threading.Event) -> WatchedEmbedder:
    """Return an embedder during whose nth call somebody decides to stop."""
    return WatchedEmbedder("new", before=lambda call: stop.set() if call == at else None)


def test_cancelling_after_any_batch_changes_nothing(library: Memory) -> None:
    """retrieval.md E5: cancelled by an Event or a callable between embedding batches, cleanly: no further call, no change."""
    batches = batches_of(library)
    before = snapshot(library)
    for at in range(batches + 1):
        for by_callable in (False, True):
            stop = threading.Event()
            embedder = stopping(at, stop)
            if at == 0:
                stop.set()
            assert library.reembed(embedder, cancel=stop.is_set if by_callable else stop).cancelled
            assert embedder.calls == at
            assert snapshot(library) == before
    assert library.search("summary 9").results
    library.save(Event(id="more", summary="more"))
    assert library.verify() == []
    new = WatchedEmbedder("new")
    assert not library.reembed(new, cancel=threading.Event()).cancelled
    assert not library.reembed(new, cancel=lambda: False).cancelled
    assert_made_by(library, new)


@pytest.mark.parametrize("cancel", [True, "yes", 5, object()], ids=lambda each: type(each).__name__)
def test_what_can_not_cancel_is_refused(library: Memory, cancel: object) -> None:
    """retrieval.md E5, api.md: `cancel` is an event or a callable; anything else is an InvalidRequest before any work."""
    embedder = WatchedEmbedder("new")
    with pytest.raises(InvalidRequest):
        library.reembed(embedder, cancel=cancel)
    assert embedder.calls == 0


def test_a_cancel_callable_that_raises_changes_nothing(library: Memory) -> None:
    """retrieval.md E5: its error is the host's own and passes; nothing is changed."""

    def broken() -> bool:
        raise LookupError("the host's")

    before = snapshot(library)
    with pytest.raises(LookupError, match="the host's"):
        library.reembed(WatchedEmbedder("new"), cancel=broken)
    assert snapshot(library) == before


def test_progress_goes_to_the_error_stream_only_when_asked(library: Memory, capsys: pytest.CaptureFixture[str]) -> None:
    """retrieval.md E5: it reports progress."""
    library.reembed(WatchedEmbedder("new"))
    assert capsys.readouterr() == ("", "")
    library.reembed(WatchedEmbedder("newer"), progress=True)
    shown = capsys.readouterr()
    assert (shown.out, str(library.stats().events) in shown.err) == ("", True)


def test_twice_is_once(library: Memory) -> None:
    """retrieval.md E5: safe to run twice."""
    new = WatchedEmbedder("new")
    library.reembed(new)
    once = snapshot(library)[1:]
    library.reembed(new)
    library.reembed()
    assert snapshot(library)[1:] == once
    assert library.verify() == []


@pytest.mark.parametrize("same", [True, False], ids=["one model", "two models"])
def test_two_at_once_end_in_one_model(open_library: OpenLibrary, store_kind: str, same: bool) -> None:
    """retrieval.md E5 and E1: two runs at once are safe: all vectors are of the one model that is recorded."""
    memory = filled(open_library(embedder=ModelEmbedder("old")))
    other = open_library(embedder=ModelEmbedder("old")) if store_kind in LASTING else memory
    meet = threading.Barrier(2, timeout=20)

    def wait(call: int) -> None:
        if call == 2:
            meet.wait()

    first, second = WatchedEmbedder("new", before=wait), WatchedEmbedder("new" if same else "newer", dimension=24, before=wait)
    failures: list[BaseException] = []

    def run() -> None:
        try:
            other.reembed(second)
        except BaseException as error:
            failures.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    memory.reembed(first)
    thread.join(30)
    assert failures == []
    assert memory.verify() == []
    assert_made_by(memory, first if memory.stats().model == "new" else second)


def test_an_embedder_that_uses_one_buffer_again_and_again(library: Memory) -> None:
    """retrieval.md E1: vectors that are kept until the end are the library's own, not a view of the embedder's memory."""
    buffer = np.zeros((2000, 24), np.float32)

    class Thrifty(WatchedEmbedder):
        def embed_documents(self, texts: Sequence[str]) -> NDArray[np.float32]:
            rows = super().embed_documents(texts)
            buffer[: len(texts)] = rows / np.linalg.norm(rows, axis=1, keepdims=True)
            return buffer[: len(texts)]

    new = Thrifty("new")
    library.reembed(new)
    assert_made_by(library, new)
