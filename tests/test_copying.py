"""Moving a library from one store to another, and the digest by which the two are compared."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import timedelta

import pytest

import workbench
from tests.support import START, Clock, OpenLibrary, TableEmbedder, numbered
from tests.test_transfer import fill
from workbench import Conflict, Event, InvalidRequest, Memory, ModelMismatch
from workbench.copying import copy_library, library_digest


@pytest.fixture(params=["the same store", "from SQLite", "to SQLite"])
def pair(
    request: pytest.FixtureRequest, open_library: OpenLibrary, store_kind: str, clock: Clock
) -> Iterator[tuple[Memory, Memory]]:
    """Return a filled library and an empty one, in one store or one of them in memory."""
    if request.param == "the same store":
        source, target = open_library(namespace="house"), open_library(namespace="new house")
        fill(source)
        yield source, target
        return
    with workbench.open_memory("sqlite://", embedder=TableEmbedder(), clock=clock) as beside:
        here = open_library(namespace="house")
        source, target = (beside, here) if request.param == "from SQLite" else (here, beside)
        fill(source)
        yield source, target


def everything(memory: Memory) -> object:
    _, names, rows = memory.store.dump()
    named = {name.id: (name.label, name.key, name.name, name.vector.tobytes()) for name in names}
    return named, [
        (row.event, row.visibility, row.superseded_by, row.adoptions, row.embedded.spans, row.embedded.vectors.tobytes())
        for row in rows
    ]


def test_a_copy_holds_everything(pair: tuple[Memory, Memory]) -> None:
    source, target = pair
    report = copy_library(source, target)
    assert (report.copied, report.unchanged) == (6, 0)
    assert everything(target) == everything(source)
    assert report.digest == library_digest(source.store) == library_digest(target.store)
    assert target.verify() == []
    again = copy_library(source, target)
    assert (again.copied, again.unchanged, again.digest) == (0, 6, report.digest)


def test_a_copy_answers_alike(pair: tuple[Memory, Memory]) -> None:
    """Ids, order, scores, excerpts, and the spelling of names."""
    source, target = pair
    copy_library(source, target)
    for question in ("later", "number", "T"):
        one, other = (memory.search(question, explain=True, reset_seen=True) for memory in pair)
        assert one.results == other.results
        assert one.explanation == other.explanation
    assert source.search("heron", label="Concept").results == target.search("heron", label="Concept").results


def test_a_stopped_copy_goes_on(pair: tuple[Memory, Memory], monkeypatch: pytest.MonkeyPatch) -> None:
    """What was committed before is not written again; an event that changed meanwhile is."""
    source, target = pair
    source.save_many(numbered(300))
    write, calls = target.store.write, list[int]()

    def cut(*arguments: object) -> object:
        calls.append(len(arguments[0]))  # type: ignore[arg-type]
        if len(calls) == 2:
            raise KeyboardInterrupt
        return write(*arguments)  # type: ignore[arg-type]

    with monkeypatch.context() as patched:
        patched.setattr(target.store, "write", cut)
        with pytest.raises(KeyboardInterrupt):
            copy_library(source, target)
    source.save(Event(id="e001", summary="changed since", written_at=START - timedelta(days=40)))
    report = copy_library(source, target)
    assert (report.copied, report.unchanged) == (306 - calls[0] + 1, calls[0] - 1)
    assert everything(target) == everything(source)


def test_a_target_with_other_events_is_refused_untouched(pair: tuple[Memory, Memory]) -> None:
    source, target = pair
    target.save(Event(id="mine", summary="mine"))
    before = everything(target)
    with pytest.raises(InvalidRequest, match="1 events that the source does not have; nothing was copied"):
        copy_library(source, target)
    assert everything(target) == before


def test_a_target_of_another_model_is_refused(pair: tuple[Memory, Memory], open_library: OpenLibrary) -> None:
    other = open_library(namespace="other", embedder=TableEmbedder(model="another"))
    other.save(Event(id="gone", summary="x"))
    before = everything(other)
    with pytest.raises(ModelMismatch):
        copy_library(pair[0], other)
    assert everything(other) == before


def test_a_copy_that_somebody_writes_into_is_no_copy(pair: tuple[Memory, Memory], monkeypatch: pytest.MonkeyPatch) -> None:
    source, target = pair
    write = target.store.write

    def meddled(*arguments: object) -> object:
        written = write(*arguments)  # type: ignore[arg-type]
        target.forget("flat")
        return written

    monkeypatch.setattr(target.store, "write", meddled)
    with pytest.raises(Conflict, match="does not equal its source"):
        copy_library(source, target)


@pytest.mark.parametrize(
    "change",
    [
        lambda row: replace(row, event=row.event.replace(title="other")),
        lambda row: replace(row, event=row.event.replace(concepts=("heron",))),
        lambda row: replace(row, event=row.event.replace(written_at=row.event.written_at + timedelta(microseconds=1))),
        lambda row: replace(row, visibility="visible", superseded_by=None),
        lambda row: replace(row, adoptions=9),
        lambda row: replace(row, embedded=replace(row.embedded, summary=row.embedded.summary[::-1].copy())),
        lambda row: replace(row, embedded=replace(row.embedded, vectors=-row.embedded.vectors)),
        lambda row: replace(row, embedded=replace(row.embedded, spans=None, vectors=row.embedded.vectors[:0])),
    ],
)
def test_the_digest_tells_any_change(pair: tuple[Memory, Memory], change: Callable[[object], object]) -> None:
    source, target = pair
    digest = copy_library(source, target).digest
    library, _, rows = target.store.dump()
    (row,) = [each for each in rows if each.event.id == "event_7"]
    target.store.write([change(row)], [], library.recipe)  # type: ignore[list-item]
    assert library_digest(target.store) != digest


def test_an_empty_library_is_copied(open_library: OpenLibrary) -> None:
    report = copy_library(open_library(namespace="a"), open_library(namespace="b"))
    assert (report.copied, report.unchanged) == (0, 0)
