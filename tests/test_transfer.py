"""Export, restore and import (api.md Command line; retrieval.md S3 to S6; faults BL-52)."""

import base64
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import workbench
from tests.support import START, Clock, TableEmbedder, numbered
from workbench import Event, Memory, transfer
from workbench.core.stores.base import Prepared
from workbench.transfer import ImportReport, export_library, import_file

Open = Callable[..., Memory]
LONG = "长文 with words, 👨\u200d👩\u200d👧 and e\u0301.\r\n" * 40


class NoEmbedder:
    """Fails the test when it is asked for anything."""

    model, dimension = "table", 16

    def embed_documents(self, texts: Sequence[str]) -> np.ndarray[Any, Any]:
        raise AssertionError("a restore calls no embedder")

    def embed_query(self, text: str) -> np.ndarray[Any, Any]:
        raise AssertionError("a restore calls no embedder")


@pytest.fixture
def library(tmp_path: Path, clock: Clock) -> Iterator[Open]:
    """Return a function that opens a library by name."""
    opened: list[Memory] = []

    def open_(name: str, **options: Any) -> Memory:
        settings: dict[str, Any] = {"clock": clock, "embedder": TableEmbedder()} | options
        opened.append(workbench.open_memory(f"sqlite:///{tmp_path / name}.db", **settings))
        return opened[-1]

    yield open_
    for memory in opened:
        memory.close()


def fill(memory: Memory) -> None:
    """Save events of every kind: hidden, superseded by a later one, adopted, never chunked, blank, with odd ids."""
    memory.save_many(
        [
            Event(
                id="旧/1", title="T", summary="old", content=LONG, concepts=("Heron", "图书室"), persons=("林知夏",), tags=("x",)
            ),
            Event(
                id="event_7",
                summary="number",
                content="\ufeffmark",
                concepts=("HERON",),
                written_at=datetime(2020, 1, 1, tzinfo=UTC),
            ),
            Event(id="👩\u200d🚀 x", summary="later", content=" \n", persons=("Bram",), critical=True, kind="active"),
            Event(id="gone", summary="forgotten", content="secret", event_type="plan", occurred_from=START, occurred_to=START),
            Event(id="put", summary="archived", content=""),
        ]
    )
    memory.save_many([Event(id="flat", summary="never chunked", content="text", written_at=START)], chunks=False)
    memory.supersede("旧/1", by="👩\u200d🚀 x")
    memory.supersede("event_7", by="put")
    memory.forget("gone")
    memory.archive("put")
    library, _, rows = memory.store.dump()
    (adopted,) = [row for row in rows if row.event.id == "flat"]
    memory.store.write([Prepared(adopted.event, adopted.embedded, adoptions=3)], [], library.recipe)


def everything(memory: Memory) -> list[Any]:
    return [*memory.events(0, 1000), memory.stats().model, memory.stats().concepts, memory.store.names(), memory.verify()]


def test_a_restored_library_is_the_same_and_its_export_too(library: Open, tmp_path: Path) -> None:
    """S3, S6, F2: vectors, ids, entity ids, visibility, links and adoptions; no embedder is called."""
    first, second = library("first"), library("second", embedder=NoEmbedder())
    fill(first)
    assert export_library(first, tmp_path / "a.jsonl") == 6
    assert import_file(second, tmp_path / "a.jsonl") == ImportReport(6, 0, ())
    assert everything(second) == everything(first)
    assert second.get("flat").adoptions == 3
    assert second.get("flat").chunk_count is None
    export_library(second, tmp_path / "b.jsonl")
    assert (tmp_path / "b.jsonl").read_bytes() == (tmp_path / "a.jsonl").read_bytes()


def test_a_restored_library_answers_alike_and_numbers_on(library: Open, tmp_path: Path) -> None:
    first, second = library("first"), library("second")
    fill(first)
    export_library(first, tmp_path / "a.jsonl")
    import_file(second, tmp_path / "a.jsonl")
    for memory in (first, second):
        memory.save(Event(summary="new", content="x", concepts=("新",)))
    answers = [memory.search("words", explain=True) for memory in (first, second)]
    assert answers[0].results == answers[1].results
    assert answers[0].explanation == answers[1].explanation
    assert second.get("event_8").event.summary == "new"
    assert second.store.names() == first.store.names()


def test_restoring_twice_gives_the_same_library(library: Open, tmp_path: Path) -> None:
    first, second = library("first"), library("second")
    fill(first)
    export_library(first, tmp_path / "a.jsonl")
    import_file(second, tmp_path / "a.jsonl")
    second.restore("gone")
    import_file(second, tmp_path / "a.jsonl")
    assert everything(second) == everything(first)


def test_an_empty_library_can_be_exported_and_restored(library: Open, tmp_path: Path) -> None:
    assert export_library(library("first"), tmp_path / "a.jsonl") == 0
    second = library("second")
    assert import_file(second, tmp_path / "a.jsonl") == ImportReport(0, 0, ())
    assert second.stats().model is None


def test_an_export_is_known_by_its_beginning_not_by_its_name(library: Open, tmp_path: Path) -> None:
    fill(first := library("first"))
    export_library(first, tmp_path / "copy.backup")
    assert import_file(library("second"), tmp_path / "copy.backup").saved == 6


# -- another recipe ------------------------------------------------------------------------------------------------------


def test_another_model_is_refused_with_the_way_out(library: Open, tmp_path: Path) -> None:
    """S4: the error names both, and says how to embed anew."""
    fill(first := library("first"))
    export_library(first, tmp_path / "a.jsonl")
    second = library("second", embedder=TableEmbedder(model="other"))
    second.save(Event(summary="s"))
    with pytest.raises(workbench.ModelMismatch, match=r"'other'.*'table'.*--embed"):
        import_file(second, tmp_path / "a.jsonl")
    assert second.stats().events == 1


def test_embedding_anew_keeps_events_and_visibility(library: Open, tmp_path: Path) -> None:
    fill(first := library("first"))
    export_library(first, tmp_path / "a.jsonl")
    second = library("second", embedder=TableEmbedder(model="other", dimension=8))
    assert import_file(second, tmp_path / "a.jsonl", embed=True) == ImportReport(6, 0, ())
    states = [(each.event, each.visibility, each.superseded_by) for each in second.events()]
    assert states == [(each.event, each.visibility, each.superseded_by) for each in first.events()]
    assert (second.stats().model, second.stats().unchunked, second.verify()) == ("other", 0, [])
    revision = second.stats().revision
    assert import_file(second, tmp_path / "a.jsonl", embed=True) == ImportReport(0, 6, ())
    assert second.stats().revision == revision


# -- damage --------------------------------------------------------------------------------------------------------------


def coded(values: Sequence[float]) -> str:
    return base64.b64encode(np.array(values, "<f4").tobytes()).decode()


UNIT = [1.0] + [0.0] * 15
DAMAGE: dict[str, tuple[dict[str, Any], str]] = {
    "bad base64": ({"summary_vector": "!!"}, "summary_vector is no base64"),
    "cut base64": ({"summary_vector": coded(UNIT)[:-3]}, "summary_vector is no base64"),
    "half a float": ({"summary_vector": base64.b64encode(b"12345").decode()}, "summary_vector is no base64"),
    "wrong length": ({"summary_vector": coded(UNIT[:-1])}, "summary_vector has 15 values, and the library's dimension is 16"),
    "nan": ({"summary_vector": coded([float("nan"), *UNIT[1:]])}, "summary_vector is not of unit length"),
    "infinite": ({"vectors": [coded([float("inf"), *UNIT[1:]])]}, "vectors[0] is not of unit length"),
    "zero": ({"summary_vector": coded([0.0] * 16)}, "summary_vector is not of unit length"),
    "no unit": ({"vectors": [coded([0.5, *UNIT[1:]])]}, "vectors[0] is not of unit length"),
    "gap": ({"spans": [[1, 16]]}, "spans are out of order, leave the text or miss visible text"),
    "end missing": ({"spans": [[0, 3]]}, "spans are out of order"),
    "beyond the text": ({"spans": [[0, 99]]}, "spans are out of order"),
    "no pair": ({"spans": [[0, 1, 2]]}, "spans must be pairs"),
    "spans without vectors": ({"vectors": None}, "spans and vectors must be of one length"),
    "too many vectors": ({"vectors": [coded(UNIT)] * 2}, "spans and vectors must be of one length"),
    "a missing vector": ({"vectors": [None]}, "vectors lacks one for a span with visible text"),
    "unknown visibility": ({"visibility": "gone"}, "visibility is not valid"),
    "superseded by nothing": ({"visibility": "superseded"}, "superseded_by must name another event"),
    "superseded by itself": ({"visibility": "superseded", "superseded_by": "e002"}, "superseded_by must name another event"),
    "negative adoptions": ({"adoptions": -1}, "adoptions is too small"),
    "no id": ({"id": None}, "id and written_at must not be null"),
    "unknown name": ({"concepts": ["nobody"]}, "the first line does not hold"),
    "unknown key": ({"importance": 1}, "'importance' is no field"),
    "a number as text": ({"content": 5}, "content must be a string"),
}


@pytest.fixture
def exported(library: Open, tmp_path: Path) -> list[bytes]:
    """Return the lines of an exported library of three events."""
    first = library("first")
    first.save_many(numbered(3, concepts=("Heron",)))
    export_library(first, tmp_path / "a.jsonl")
    return (tmp_path / "a.jsonl").read_bytes().splitlines(keepends=True)


@pytest.mark.parametrize("kind", DAMAGE)
def test_a_damaged_line_is_reported_and_left_out(kind: str, exported: list[bytes], library: Open, tmp_path: Path) -> None:
    """S7: nothing bad gets in, the rest does."""
    change, message = DAMAGE[kind]
    exported[2] = json.dumps(json.loads(exported[2]) | change).encode() + b"\n"
    (tmp_path / "b.jsonl").write_bytes(b"".join(exported))
    second = library("second", embedder=NoEmbedder())
    report = import_file(second, tmp_path / "b.jsonl")
    assert [(fault.line, message in fault.message) for fault in report.faults] == [(3, True)], report.faults
    assert [each.event.id for each in second.events()] == ["e001", "e003"]
    assert second.verify() == []


def test_a_missing_field_is_reported(exported: list[bytes], library: Open, tmp_path: Path) -> None:
    row = json.loads(exported[2])
    del row["title"], row["adoptions"]
    for gone in ("title", "adoptions"):
        exported[2] = json.dumps(row | ({"adoptions": 0} if gone == "title" else {"title": ""})).encode() + b"\n"
        (tmp_path / "b.jsonl").write_bytes(b"".join(exported))
        (fault,) = import_file(library(gone), tmp_path / "b.jsonl").faults
        assert fault.message == f"{gone} is missing"


def test_a_cut_file_is_reported_wherever_it_was_cut(exported: list[bytes], library: Open, tmp_path: Path) -> None:
    whole = b"".join(exported)
    count = "holds {} events, and its first line counts 3; it was cut or changed"
    for name, text, saved, faults in (
        ("between", b"".join(exported[:3]), 2, [(None, count.format(2))]),
        ("within", whole[:-9], 2, [(4, "is no valid JSON at column")]),
        ("header only", exported[0], 0, [(None, count.format(0))]),
    ):
        (tmp_path / "b.jsonl").write_bytes(text)
        report = import_file(library(name), tmp_path / "b.jsonl")
        assert report.saved == saved
        assert [
            (fault.line, fault.message.startswith(message)) for fault, (_, message) in zip(report.faults, faults, strict=True)
        ] == [(line, True) for line, _ in faults]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"version": 2}, "has format version 2, and this workbench knows 1; upgrade"),
        ({"recipe": {"model": "m"}}, "recipe is missing"),
        ({"events": "3"}, "events must be a whole number"),
        (None, "is no valid JSON"),
    ],
)
def test_a_damaged_first_line_refuses_the_file(
    change: dict[str, Any] | None, message: str, exported: list[bytes], library: Open, tmp_path: Path
) -> None:
    row = json.loads(exported[0])
    exported[0] = json.dumps(row | change).encode() + b"\n" if change else exported[0][:200] + b"\n"
    (tmp_path / "b.jsonl").write_bytes(b"".join(exported))
    with pytest.raises(workbench.InvalidRequest, match=message) as caught:
        import_file(second := library("second"), tmp_path / "b.jsonl")
    assert str(caught.value).startswith("b.jsonl:1: ")
    assert second.stats().events == 0


def test_a_damaged_name_costs_only_the_events_that_mention_it(exported: list[bytes], library: Open, tmp_path: Path) -> None:
    header, row = json.loads(exported[0]), json.loads(exported[3])
    header["entities"][0]["vector"] = coded([0.0] * 16)
    exported[0], exported[3] = json.dumps(header).encode() + b"\n", json.dumps(row | {"concepts": []}).encode() + b"\n"
    (tmp_path / "b.jsonl").write_bytes(b"".join(exported))
    report = import_file(library("second"), tmp_path / "b.jsonl")
    assert [fault.line for fault in report.faults] == [1, 2, 3]
    assert report.faults[0].message == "entities[0]: vector is not of unit length"
    assert report.saved == 1


def test_a_successor_that_was_left_out_is_reported(exported: list[bytes], library: Open, tmp_path: Path) -> None:
    exported[1] = json.dumps(json.loads(exported[1]) | {"visibility": "superseded", "superseded_by": "e002"}).encode() + b"\n"
    exported[2] = b"{}\n"
    (tmp_path / "b.jsonl").write_bytes(b"".join(exported))
    report = import_file(library("second"), tmp_path / "b.jsonl")
    assert [str(fault) for fault in report.faults][1:] == ["b.jsonl:2: is superseded by an event that the library does not have"]


# -- writing the file ----------------------------------------------------------------------------------------------------


def test_an_export_does_not_overwrite_unless_asked(library: Open, tmp_path: Path) -> None:
    memory, path = library("first"), tmp_path / "a.jsonl"
    path.write_text("mine")
    with pytest.raises(workbench.InvalidRequest, match="--overwrite"):
        export_library(memory, path)
    assert path.read_text() == "mine"
    export_library(memory, path, overwrite=True)
    assert path.read_bytes().startswith(b'{"format":"workbench-library","version":1,"events":')


def test_a_failed_export_leaves_nothing(library: Open, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    memory, folder = library("first"), tmp_path / "out"
    fill(memory)
    folder.mkdir()

    def full(_: Prepared) -> bytes:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(transfer, "event_line", full)
    with pytest.raises(workbench.StoreUnavailable, match=r"can not be written \(OSError\)"):
        export_library(memory, folder / "a.jsonl")
    with pytest.raises(workbench.StoreUnavailable, match=r"can not be written \(FileNotFoundError\)"):
        export_library(memory, tmp_path / "nowhere" / "a.jsonl")
    assert list(folder.iterdir()) == []
    memory.save(Event(summary="the library is free again"))


KILLED = """
import sys, time, workbench
from workbench import transfer
line, seen = transfer.event_line, []
def slow(prepared):
    seen.append(prepared)
    if len(seen) > 2:
        print("half", flush=True)
        time.sleep(60)
    return line(prepared)
transfer.event_line = slow
transfer.export_library(workbench.open_memory(sys.argv[1], read_only=True), sys.argv[2], overwrite=True)
"""


def test_a_killed_export_leaves_the_old_file(library: Open, tmp_path: Path) -> None:
    """A crash at any moment leaves no half export under the name, and the next one works."""
    memory, path = library("first"), tmp_path / "a.jsonl"
    fill(memory)
    export_library(memory, path)
    before = path.read_bytes()
    command = [sys.executable, "-c", KILLED, f"sqlite:///{tmp_path / 'first.db'}", str(path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"half\n"
        os.kill(process.pid, signal.SIGKILL)
    assert path.read_bytes() == before
    export_library(memory, path, overwrite=True)
    assert path.read_bytes() == before


# -- rows into a library -------------------------------------------------------------------------------------------------


def rows(path: Path, *events: dict[str, Any]) -> Path:
    path.write_text("".join(json.dumps(event) + "\n" for event in events))
    return path


def test_importing_rows_twice_saves_nothing_twice(library: Open, tmp_path: Path, clock: Clock) -> None:
    """S5: also rows without an id, and texts, which are dated by the clock."""
    memory = library("first")
    path = rows(
        tmp_path / "a.jsonl",
        {"id": "a", "summary": "1"},
        {"summary": "2"},
        {"summary": "2"},
        {"summary": "3", "writtenAt": "2020-01-01"},
    )
    (tmp_path / "note.md").write_text("# A note\n\nText.")
    assert import_file(memory, path) == ImportReport(4, 0, ())
    assert import_file(memory, tmp_path / "note.md") == ImportReport(1, 0, ())
    memory.forget("a")
    before = everything(memory)
    clock.forward(hours=1)
    assert import_file(memory, path) == ImportReport(0, 4, ())
    assert import_file(memory, tmp_path / "note.md") == ImportReport(0, 1, ())
    assert everything(memory) == before


def test_the_last_row_of_an_id_stays_however_often_it_is_imported(library: Open, tmp_path: Path) -> None:
    memory = library("first")
    path = rows(tmp_path / "a.jsonl", *({"id": "a", "summary": f"version {number}"} for number in (1, 2, 1, 3)))
    for _ in range(2):
        import_file(memory, path)
        assert memory.get("a").event.summary == "version 3"


def test_an_event_that_was_never_chunked_is_completed_by_an_import(library: Open, tmp_path: Path) -> None:
    """S6."""
    memory = library("first")
    memory.save_many([Event(id="a", summary="s", content="text")], chunks=False)
    assert import_file(memory, rows(tmp_path / "a.jsonl", {"id": "a", "summary": "s", "content": "text"})).saved == 1
    assert memory.get("a").chunk_count == 1


class FailingEmbedder(TableEmbedder):
    """Fails for texts that hold a word, or always after some calls."""

    def __init__(self, word: str | None = None, *, calls: int | None = None) -> None:
        super().__init__()
        self.word, self.calls, self.asked = word, calls, 0

    def embed_documents(self, texts: Sequence[str]) -> Any:
        self.asked += 1
        if self.calls is not None and len(self.documents) >= self.calls:
            raise workbench.EmbeddingFailed("the endpoint is down.")
        if self.word is not None and any(self.word in text for text in texts):
            raise workbench.EmbeddingFailed("the endpoint refuses a text.", retryable=False)
        return super().embed_documents(texts)


def test_an_event_that_can_not_be_embedded_is_reported_and_the_rest_saved(library: Open, tmp_path: Path) -> None:
    """S5: a bad event fails alone."""
    memory = library("first", embedder=FailingEmbedder("bad"))
    report = import_file(memory, rows(tmp_path / "a.jsonl", {"summary": "1"}, {"id": "x", "summary": "bad"}, {"summary": "2"}))
    assert (report.saved, [str(fault) for fault in report.faults]) == (2, ["a.jsonl: x: the endpoint refuses a text."])


def test_an_endpoint_that_is_down_ends_the_import_and_the_next_goes_on(library: Open, tmp_path: Path) -> None:
    path = rows(tmp_path / "a.jsonl", *({"summary": f"summary {number}"} for number in range(150)))
    memory = library("first", embedder=FailingEmbedder(calls=1))
    with pytest.raises(workbench.EmbeddingFailed, match="down") as caught:
        import_file(memory, path)
    assert caught.value.__notes__ == ["Events saved before: 64. Import the same file again to go on from there."]
    again = library("first")
    assert import_file(again, path) == ImportReport(86, 64, ())
    assert again.stats().events == 150


def test_an_embedder_that_refuses_everything_is_not_asked_for_every_event(library: Open, tmp_path: Path) -> None:
    embedder = FailingEmbedder("summary")
    with pytest.raises(workbench.EmbeddingFailed):
        import_file(
            library("first", embedder=embedder), rows(tmp_path / "a.jsonl", *({"summary": f"summary {n}"} for n in range(500)))
        )
    assert embedder.asked <= 66  # a batch, each of its events, and one harmless text
