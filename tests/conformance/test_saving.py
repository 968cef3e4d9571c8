"""Saving, looking after and checking events: retrieval.md sections 2 and 9, api.md Events. Every store passes this unchanged."""

import contextlib
import math
import sqlite3
import threading
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, date, datetime, timedelta, timezone
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import workbench
from tests.children import assert_made_by, snapshot, spans_in
from tests.conftest import STORES
from tests.support import START, Clock, OpenLibrary, TableEmbedder, ids, numbered
from workbench import (
    Config,
    EmbeddingFailed,
    Event,
    InvalidRequest,
    Memory,
    ModelMismatch,
    NotFound,
    ReadOnly,
    RetrievalConfig,
    SaveReport,
    StoreUnavailable,
    WorkbenchError,
)

LASTING = tuple(kind for kind in STORES if kind != "sqlite-memory")
"""Stores that can be opened a second time."""
SURROGATES_AND_NUL = ("\ud83d", "\udc00", "\0")
SPANS = {
    0: [],
    1: [(0, 1)],
    799: [(0, 799)],
    800: [(0, 800)],
    801: [(0, 800), (680, 801)],
    1480: [(0, 800), (680, 1480)],
    1481: [(0, 800), (680, 1480), (1360, 1481)],
    2000: [(0, 800), (680, 1480), (1360, 2000)],
}


def text_of(length: int) -> str:
    """Return a text without two equal pieces."""
    return "".join(f"{number:04}." for number in range(length // 5 + 1))[:length]


class SpoiledEmbedder(TableEmbedder):
    """Embeds well, but for each call that holds a spoiled text it raises or makes that text's vector what it is told."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.spoil: str | None = None
        self.vector_of_spoiled: Sequence[float] | None = None

    def embed_documents(self, texts: Sequence[str]) -> NDArray[np.float32]:
        rows = super().embed_documents(texts)
        for place, text in enumerate(texts):
            if text == self.spoil:
                if self.vector_of_spoiled is None:
                    raise RuntimeError("the endpoint hiccups")
                rows[place] = self.vector_of_spoiled
        return rows


def refusal(call: Callable[[], object]) -> type[BaseException] | None:
    """Return how a call was refused: by an error raised, or by a report without a single saved event."""
    try:
        answer = call()
    except WorkbenchError as error:
        return type(error)
    if isinstance(answer, SaveReport) and answer.failed:
        assert not answer.saved
        (kind,) = {type(error) for _, error in answer.failed}
        return kind
    return None


# -- S1: the text and its chunks -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("length", SPANS)
def test_a_text_is_cut_into_overlapping_chunks(memory: Memory, embedder: TableEmbedder, length: int) -> None:
    """retrieval.md S1: chunks of 800 that overlap by 120; the last may be shorter; an empty text has none."""
    content = text_of(length)
    memory.save(Event(id="e", summary="a summary", content=content))
    assert memory.get("e").event.content == content
    assert memory.get("e").chunk_count == len(SPANS[length]) == memory.stats().chunks
    assert spans_in(memory, "e") == SPANS[length]
    assert sorted(chain.from_iterable(embedder.documents)) == sorted(
        ["a summary", *(content[start:end] for start, end in SPANS[length])]
    )
    assert memory.verify() == []


def test_chunk_sizes_come_from_the_config(open_library: OpenLibrary) -> None:
    """retrieval.md section 1: every constant is a field of the config; api.md: chunk_size, chunk_overlap."""
    memory = open_library(config=Config(retrieval=RetrievalConfig(chunk_size=10, chunk_overlap=4)))
    memory.save(Event(id="e", summary="a summary", content=text_of(23)))
    assert spans_in(memory, "e") == [(0, 10), (6, 16), (12, 22), (18, 23)]


# -- S2, S9: what is embedded, and how -----------------------------------------------------------------------------------


def test_summary_names_and_chunks_go_to_one_embedder_unchanged(memory: Memory, embedder: TableEmbedder) -> None:
    """retrieval.md S2 and S9: one embedder for all; documents by embed_documents, unchanged, and no query."""
    content = "\ufeff 原文\r\n" + text_of(900) + "  "
    summary, concept, person = "  Summary, 摘要 \n", " Ｎeo4j ", "Zoë\u0301"
    memory.save(Event(id="e", summary=summary, content=content, concepts=[concept], persons=[person]))
    chunks = [content[:800], content[680:]]
    assert sorted(chain.from_iterable(embedder.documents)) == sorted([summary, concept, person, *chunks])
    assert embedder.queries == []
    assert_made_by(memory, embedder)


def test_the_question_goes_to_embed_query_unchanged(memory: Memory, embedder: TableEmbedder) -> None:
    """retrieval.md S9: the question to `embed_query`."""
    memory.save(Event(summary="a summary"))
    before = len(embedder.documents)
    memory.search("  Ｗhat?\u0301\r\n")
    assert embedder.queries == ["  Ｗhat?\u0301\r\n"]
    assert len(embedder.documents) == before


# -- S3, S7: all or nothing ----------------------------------------------------------------------------------------------

WHOLE = Event(
    id="e",
    title="new",
    summary="the summary",
    content=text_of(1500),
    concepts=("a concept",),
    persons=("a person",),
    written_at=START,
)
PARTS = (
    "the summary",
    "a concept",
    "a person",
    *(WHOLE.content[start:end] for start, end in SPANS[1481][:2]),
    WHOLE.content[1360:],
)


@pytest.mark.parametrize("exists", [False, True], ids=["new", "update"])
@pytest.mark.parametrize(
    "vector",
    [None, [0.0] * 16, [math.nan] + [1.0] * 15, [1.0] * 15 + [math.inf]],
    ids=["raises", "zero", "nan", "inf"],
)
def test_a_failed_part_leaves_nothing_of_the_event(open_library: OpenLibrary, exists: bool, vector: Sequence[float] | None) -> None:
    """retrieval.md S3 and S7, faults BL-10, BL-30: a vector that can not be had leaves the library as it was; a retry works."""
    embedder = SpoiledEmbedder()
    memory = open_library(embedder=embedder)
    memory.save_many(numbered(2, concepts=("old",)))
    if exists:
        memory.save(Event(id="e", title="old", summary="older", content="old text", concepts=("old",), written_at=START))
    before = snapshot(memory)
    embedder.vector_of_spoiled = vector
    for part in PARTS:
        embedder.spoil = part
        with pytest.raises(EmbeddingFailed):
            memory.save(WHOLE)
        assert snapshot(memory) == before
    embedder.spoil = None
    assert memory.save(WHOLE) == WHOLE
    assert memory.get("e").event == WHOLE
    assert memory.get("e").chunk_count == 3
    assert memory.verify() == []


def test_a_vector_of_the_wrong_length_is_refused(open_library: OpenLibrary) -> None:
    """retrieval.md S7: a vector of the wrong length is refused with both lengths named, and nothing is written."""

    class Wide(TableEmbedder):
        width = 0

        def embed_documents(self, texts: Sequence[str]) -> NDArray[np.float32]:
            return np.ones((len(texts), self.width), np.float32)

    embedder = Wide()
    memory = open_library(embedder=embedder)
    before = snapshot(memory)
    for width in (15, 17, 1):
        embedder.width = width
        with pytest.raises(EmbeddingFailed, match=rf"\b{width}\b.*\b16\b|\b16\b.*\b{width}\b"):
            memory.save(WHOLE)
    assert snapshot(memory) == before


def test_no_transaction_is_open_while_the_embedder_works(open_library: OpenLibrary) -> None:
    """retrieval.md S3, faults BL-28: vectors come before the transaction, so that others read and write meanwhile."""
    looks: list[str] = []

    class Nosy(TableEmbedder):
        left = 0

        def embed_documents(self, texts: Sequence[str]) -> NDArray[np.float32]:
            if self.left and threading.current_thread() is threading.main_thread():
                self.left -= 1
                other = threading.Thread(target=look, daemon=True)
                other.start()
                other.join(10)
                assert not other.is_alive()
            return super().embed_documents(texts)

    def look() -> None:
        memory.save(Event(id=f"other {len(looks)}", summary="saved meanwhile"))
        looks.append(memory.get("e001").event.summary)

    embedder = Nosy()
    memory = open_library(embedder=embedder)
    memory.save_many(numbered(2))
    for call in (lambda: memory.save(WHOLE), lambda: memory.save_many([*numbered(2), WHOLE]), memory.reembed):
        embedder.left = 1
        call()
    assert looks == ["summary 1"] * 3
    assert memory.stats().events == 6
    assert memory.verify() == []


# -- S4: the model record ------------------------------------------------------------------------------------------------


def test_the_library_records_model_and_dimension(memory: Memory) -> None:
    """retrieval.md S4: the model's name and dimension are recorded with the first save."""
    assert (memory.stats().model, memory.stats().dimension) == (None, None)
    memory.save(Event(summary="first"))
    assert (memory.stats().model, memory.stats().dimension) == ("table", 16)


@pytest.mark.parametrize(("model", "dimension"), [("other", 16), ("table", 32), ("other", 32)])
def test_another_model_or_dimension_is_refused(memory: Memory, embedder: TableEmbedder, model: str, dimension: int) -> None:
    """retrieval.md S4: a save or search by another model is refused with an error that names both and says how to re-embed."""
    memory.save_many(numbered(3, concepts=("a concept",)))
    before = snapshot(memory)
    embedder.model, embedder.dimension = model, dimension
    calls: list[Callable[[], object]] = [
        lambda: memory.save(Event(summary="more")),
        lambda: memory.search("summary"),
        lambda: memory.search("a concept", label="Concept"),
    ]
    for call in calls:
        with pytest.raises(ModelMismatch, match=r"re-?embed") as caught:
            call()
        for named in {"table", model} if model != "table" else {"16", str(dimension)}:
            assert named in str(caught.value)
    assert refusal(lambda: memory.save_many(numbered(5))) is ModelMismatch
    assert snapshot(memory) == before


@pytest.mark.parametrize("store_kind", LASTING)
def test_a_reopened_library_knows_its_model(open_library: OpenLibrary) -> None:
    """retrieval.md S4, Q16: the record lasts; what needs no vector works with another model, too."""
    with open_library() as memory:
        memory.save_many(numbered(3, concepts=("a concept",)))
    memory = open_library(embedder=TableEmbedder(dimension=8, model="other"))
    with pytest.raises(ModelMismatch):
        memory.save(Event(summary="more"))
    with pytest.raises(ModelMismatch):
        memory.search("summary")
    assert ids(memory.search(entity="a concept").results) == ["e003", "e002", "e001"]
    assert memory.read("e001").text == "content number 1"
    assert (memory.stats().model, memory.stats().dimension) == ("table", 16)


UNUSABLE_NAMES: tuple[Any, ...] = ("", " ", "\u200b", None, 7, "bad\ud83d", "bad\0name")


def test_a_model_without_a_usable_name_is_refused(open_library: OpenLibrary) -> None:
    """retrieval.md S4 and S7: what can not be recorded and compared is no model name; no bare UnicodeEncodeError (faults BL-01)."""
    embedder = TableEmbedder()
    memory = open_library(embedder=embedder)
    before = snapshot(memory)
    for model in UNUSABLE_NAMES:
        embedder.model = model
        for call in (lambda: memory.save(Event(summary="first")), lambda: memory.save_many(numbered(1)), memory.reembed):
            assert refusal(call) is EmbeddingFailed
    assert snapshot(memory) == before


def test_a_dimension_that_is_a_numpy_integer_is_recorded_as_a_number(open_library: OpenLibrary) -> None:
    """retrieval.md S4: the dimension is recorded, as a number that equals the next one; embedders read it from an array's shape."""
    embedder = TableEmbedder()
    embedder.dimension = np.int64(16)  # type: ignore[assignment]
    memory = open_library(embedder=embedder)
    memory.save(Event(summary="first"))
    assert memory.stats().dimension == 16
    memory.save(Event(id="e", summary="second"))
    assert memory.verify() == []
    embedder.dimension = 16
    assert memory.search("second").results


# -- S5: updates and bulk ------------------------------------------------------------------------------------------------


def test_an_update_replaces_everything_of_the_event(memory: Memory, embedder: TableEmbedder) -> None:
    """retrieval.md S5: saving an existing id replaces its fields, chunks, links and vectors."""
    old = Event(id="e", title="Old", summary="old summary", content=text_of(2000), concepts=("gone", "stays"), persons=("Ann",))
    memory.save(old)
    new = Event(
        id="e",
        title="New",
        summary="new summary",
        content="new text",
        concepts=("stays", "comes"),
        persons=("Bo",),
        tags=("t",),
        kind="active",
        event_type="release",
        temporal_status="occurred",
        occurred_from=START,
        occurred_to=START + timedelta(days=1),
        critical=True,
        written_at=START + timedelta(microseconds=1),
    )
    assert memory.save(new) == new
    assert memory.get("e").event == new
    assert (memory.get("e").chunk_count, spans_in(memory, "e")) == (1, [(0, 8)])
    assert (memory.stats().events, memory.stats().chunks) == (1, 1)
    for name, found in {"gone": [], "Ann": [], "stays": ["e"], "comes": ["e"], "Bo": ["e"]}.items():
        assert ids(memory.search(entity=name, session=name).results) == found
    explained = memory.search(old.content[680:1480], session="x", explain=True).explanation
    assert explained is not None
    assert explained.to_polars()["source_cosine"].to_list()[0] < 0.99
    assert_made_by(memory, embedder)
    assert memory.verify() == []


@pytest.mark.parametrize("hide", ["forget", "archive", "revoke"])
def test_an_update_of_a_hidden_event_keeps_one_event(memory: Memory, hide: str) -> None:
    """retrieval.md S5: an existing id is an update, hidden or not."""
    memory.save(Event(id="e", summary="old", content="old text"))
    getattr(memory, hide)("e")
    memory.save(Event(id="e", summary="new", content="new text"))
    assert memory.stats().events == 1
    assert memory.get("e").event.summary == "new"
    assert memory.verify() == []


def test_saving_the_same_event_again_changes_nothing(memory: Memory) -> None:
    """retrieval.md S5: an update with the same fields leaves the same event, chunks and links."""
    memory.save(WHOLE)
    before = snapshot(memory)[1:]
    memory.save(WHOLE)
    assert snapshot(memory)[1:] == before


def test_bulk_saving_batches_the_embedding_calls(memory: Memory, embedder: TableEmbedder) -> None:
    """retrieval.md S5, api.md: `batch_size` events go in one embedding call and one transaction; a generator will do."""
    report = memory.save_many((event for event in numbered(10, concepts=("shared",))), batch_size=4)
    assert list(report.saved) == ids(numbered(10))
    assert list(report.failed) == []
    assert len(embedder.documents) == 3
    assert ids(stored.event for stored in memory.events()) == ids(numbered(10))


def test_bulk_saving_of_nothing(memory: Memory, embedder: TableEmbedder) -> None:
    """retrieval.md S5: no events, no call, an empty report."""
    report = memory.save_many([])
    assert (list(report.saved), list(report.failed), embedder.documents) == ([], [], [])


def test_a_senseless_batch_size_is_refused(memory: Memory) -> None:
    """api.md: a request that breaks a stated rule is an InvalidRequest."""
    sizes: tuple[Any, ...] = (0, -1, True, 2.5, "4", None)
    for size in sizes:
        with pytest.raises(InvalidRequest):
            memory.save_many(numbered(1), batch_size=size)
    assert memory.events() == []


@pytest.mark.parametrize("batch_size", [1, 2, 64])
@pytest.mark.parametrize("vector", [None, [0.0] * 16], ids=["raises", "zero"])
def test_one_bad_event_does_not_spoil_its_batch(open_library: OpenLibrary, batch_size: int, vector: Sequence[float] | None) -> None:
    """api.md, S5, faults BL-01 and BL-09: a batch never fails for one event's sake; the bad one is in `.failed`."""
    embedder = SpoiledEmbedder()
    embedder.spoil, embedder.vector_of_spoiled = "content number 3", vector
    memory = open_library(embedder=embedder)
    report = memory.save_many(numbered(6), batch_size=batch_size)
    assert sorted(report.saved) == ["e001", "e002", "e004", "e005", "e006"]
    ((event_id, error),) = report.failed
    assert (event_id, type(error)) == ("e003", EmbeddingFailed)
    assert ids(stored.event for stored in memory.events()) == ["e001", "e002", "e004", "e005", "e006"]
    assert memory.verify() == []


def test_two_bad_events_in_one_batch(open_library: OpenLibrary) -> None:
    """api.md: every bad event of a batch is in `.failed`, every good one is saved (S5)."""

    class Poisoned(TableEmbedder):
        def embed_documents(self, texts: Sequence[str]) -> NDArray[np.float32]:
            if {"summary 2", "summary 5"} & set(texts):
                raise ValueError("too long")
            return super().embed_documents(texts)

    memory = open_library(embedder=Poisoned())
    report = memory.save_many(numbered(7))
    assert sorted(report.saved) == ["e001", "e003", "e004", "e006", "e007"]
    assert sorted(event_id or "" for event_id, _ in report.failed) == ["e002", "e005"]
    assert memory.stats().events == 5


@pytest.mark.parametrize("retryable", [True, False])
@pytest.mark.parametrize("bad", [[3], [2, 3, 4, 5, 6]], ids=["one", "five in a row"])
def test_events_refused_in_the_workbenchs_own_words_spoil_no_other(
    open_library: OpenLibrary, bad: list[int], retryable: bool
) -> None:
    """api.md, S5: also where the embedder raises EmbeddingFailed itself, and several bad events fail with the same words."""

    class Strict(TableEmbedder):
        def embed_documents(self, texts: Sequence[str]) -> NDArray[np.float32]:
            if {f"summary {number}" for number in bad} & set(texts):
                raise EmbeddingFailed("a text is longer than the model takes; shorten it.", retryable=retryable)
            return super().embed_documents(texts)

    memory = open_library(embedder=Strict())
    report = memory.save_many(numbered(8))
    assert sorted(event_id or "" for event_id, _ in report.failed) == [f"e00{number}" for number in bad]
    assert sorted(report.saved) == [f"e00{number}" for number in range(1, 9) if number not in bad]


def test_what_is_no_event_is_reported_and_the_others_are_saved(memory: Memory) -> None:
    """api.md: a bad event is in `.failed`, the others are saved; S7: with a clear error."""
    report = memory.save_many([numbered(2)[0], None, "text", numbered(2)[1]])  # type: ignore[list-item]
    assert list(report.saved) == ["e001", "e002"]
    assert [type(error) for _, error in report.failed] == [InvalidRequest, InvalidRequest]
    with pytest.raises(InvalidRequest):
        memory.save("text")  # type: ignore[arg-type]


def test_an_embedder_that_is_down_is_asked_a_bounded_number_of_times(open_library: OpenLibrary) -> None:
    """retrieval.md S5, faults BL-17 and BL-38: every event is reported; the calls stay within one per batch and one per event."""

    class Down(TableEmbedder):
        calls = 0

        def embed_documents(self, texts: Sequence[str]) -> NDArray[np.float32]:
            self.calls += 1
            raise ConnectionError("refused")

    embedder = Down()
    memory = open_library(embedder=embedder)
    report = memory.save_many(numbered(20), batch_size=5)
    assert list(report.saved) == []
    assert [event_id for event_id, _ in report.failed] == ids(numbered(20))
    assert embedder.calls <= 24
    assert memory.events() == []


def test_the_last_of_two_with_one_id_in_a_batch_wins(memory: Memory) -> None:
    """retrieval.md S5: an existing id is an update, within a batch too."""
    first = Event(id="e", summary="first", content=text_of(2000), concepts=("gone",), written_at=START)
    second = Event(id="e", summary="second", content="short", written_at=START)
    for batch_size in (1, 64):
        memory.save_many([first, second], batch_size=batch_size)
        assert memory.get("e").event == second
        assert memory.stats().chunks == 1
        assert memory.search(entity="gone", session=str(batch_size)).results == ()
    assert memory.verify() == []


def test_bulk_saving_shows_progress_on_the_error_stream_only_when_asked(memory: Memory, capsys: pytest.CaptureFixture[str]) -> None:
    """retrieval.md S5: it shows progress."""
    memory.save_many(numbered(3))
    assert capsys.readouterr() == ("", "")
    memory.save_many(numbered(3), progress=True)
    shown = capsys.readouterr()
    assert (shown.out, "3" in shown.err) == ("", True)


def test_a_source_of_events_that_breaks_leaves_the_full_batches(memory: Memory) -> None:
    """retrieval.md S5: batches are transactions; an interrupted one leaves none of its events and those before it whole."""

    def broken() -> Iterator[Event]:
        yield from numbered(5)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        memory.save_many(broken(), batch_size=2)
    assert ids(stored.event for stored in memory.events()) == ["e001", "e002", "e003", "e004"]
    assert memory.verify() == []


# -- S6: events never chunked --------------------------------------------------------------------------------------------


def test_an_unchunked_event_is_found_by_its_summary_and_says_so(memory: Memory) -> None:
    """retrieval.md S6: it is marked, still found by its summary, and a hit says that its chunks are missing."""
    content = text_of(900)
    assert list(memory.save_many([Event(id="old", summary="from an old library", content=content)], chunks=False).saved) == ["old"]
    memory.save(Event(id="empty", summary="with an empty text"))
    assert (memory.get("old").chunk_count, memory.get("empty").chunk_count) == (None, 0)
    assert (memory.stats().unchunked, memory.stats().chunks) == (1, 0)
    assert memory.verify() == []
    results = {result.id: result for result in memory.search("from an old library").results}
    assert (results["old"].routes, results["old"].notices) == (("summary",), ("sourceChunksMissing",))  # type: ignore[union-attr]
    assert results["empty"].notices == ()  # type: ignore[union-attr]
    assert memory.read("old", limit=10_000).text == content


def test_saving_an_unchunked_event_again_chunks_it(memory: Memory) -> None:
    """retrieval.md S5 and S6: an update brings chunks where there were none, and can take them away again."""
    event = Event(id="e", summary="a summary", content=text_of(900))
    memory.save_many([event], chunks=False)
    memory.save(event)
    assert (memory.get("e").chunk_count, memory.stats().unchunked) == (2, 0)
    memory.save_many([event], chunks=False)
    assert (memory.get("e").chunk_count, memory.stats().unchunked, memory.stats().chunks) == (None, 1, 0)
    assert memory.verify() == []


def test_names_of_unchunked_events_are_embedded_and_chunks_are_not(memory: Memory, embedder: TableEmbedder) -> None:
    """retrieval.md S2 and S6: only the text's chunks are left out."""
    memory.save_many([Event(id="e", summary="a summary", content="text", concepts=("c",), persons=("p",))], chunks=False)
    assert sorted(chain.from_iterable(embedder.documents)) == ["a summary", "c", "p"]
    assert ids(memory.search(entity=["c", "p"]).results) == ["e"]


def test_a_library_begun_without_chunks_takes_any_chunker(memory: Memory) -> None:
    """retrieval.md S6 and S11: what was never chunked records no way of chunking, and the first chunks do."""
    memory.save_many(numbered(1), chunks=False)
    memory.save_many(numbered(2)[1:])
    assert memory.verify() == []
    assert (memory.stats().events, memory.stats().unchunked) == (2, 1)


# -- S7, S8: what is refused ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("field", ["id", "title", "summary", "content", "concepts", "persons", "tags"])
def test_surrogates_and_nul_are_refused_in_every_text(field: str) -> None:
    """retrieval.md S7, faults BL-01: refused with an error that names the field, before there is an event to be written."""
    for bad in SURROGATES_AND_NUL:
        for text in (f"before{bad}after", bad, f"{bad}after"):
            value = [text] if field in ("concepts", "persons", "tags") else text
            with pytest.raises(InvalidRequest, match=field):
                Event(**{"summary": "a summary"} | {field: value})  # type: ignore[arg-type]
            with pytest.raises(InvalidRequest, match=field):
                Event(id="e", summary="a summary").replace(**{field: value})


def test_surrogates_and_nul_are_refused_in_every_argument(memory: Memory) -> None:
    """retrieval.md S7: in any text, of whatever call."""
    memory.save(Event(id="e", summary="a summary"))
    before = snapshot(memory)
    calls: list[Callable[[str], object]] = [
        memory.get,
        memory.read,
        memory.forget,
        memory.archive,
        memory.revoke,
        memory.restore,
        lambda text: memory.supersede(text, by="e"),
        lambda text: memory.supersede("e", by=text),
        memory.search,
        lambda text: memory.search(entity=text),
        lambda text: memory.search(entity=["fine", text]),
        lambda text: memory.search("fine", session=text),
        lambda text: memory.search(text, label="Concept"),
        lambda text: memory.tools.call("memory_database_search", {"query_text": text}),
        lambda text: memory.tools.call("memory_database_search", {"operation": "read", "event_id": text}),
        lambda text: workbench.open_memory("sqlite://", namespace=text),
    ]
    for bad in SURROGATES_AND_NUL:
        for call in calls:
            with pytest.raises(InvalidRequest):
                call(f"before{bad}after")
    assert snapshot(memory) == before


BLANKS = ["", " ", "\n\n\n", "\t", "\u3000\u3000", "\u00a0", "\u200b", "\ufeff", "\u200b\ufeff \u200f\u2060", "\x01\x85", "\u2028"]


@pytest.mark.parametrize("blank", BLANKS, ids=ascii)
def test_a_blank_summary_is_refused(blank: str) -> None:
    """retrieval.md S7 and S8, faults BL-07: no visible character is blank; there is no such event, so nothing is stored."""
    with pytest.raises(InvalidRequest, match="summary"):
        Event(summary=blank, content="some text")


def test_a_blank_content_is_kept_like_any_text_and_not_embedded(memory: Memory, embedder: TableEmbedder) -> None:
    """retrieval.md S8: an empty or white-space content is kept; its chunk has no vector, and that is no fault to verify."""
    for number, blank in enumerate(BLANKS):
        event_id, summary = f"e{number}", f"summary {number}"
        memory.save(Event(id=event_id, summary=summary, content=blank))
        assert memory.get(event_id).event.content == blank
        assert memory.get(event_id).chunk_count == (1 if blank else 0)
        assert embedder.documents[-1] == [summary]
        assert memory.read(event_id).text == blank
        found = {result.id: result for result in memory.search(summary, session=event_id).results}
        assert found[event_id].routes == ("summary",)  # type: ignore[union-attr]
    assert memory.verify() == []


def test_a_blank_chunk_between_others_is_stored_without_a_vector(memory: Memory, embedder: TableEmbedder) -> None:
    """retrieval.md S8: only chunks with a visible character are embedded; the others are kept and are no fault."""
    content = "a" * 100 + "\n" * 1300 + "\u200b" * 600 + "z"
    memory.save(Event(id="e", summary="a summary", content=content))
    assert spans_in(memory, "e") == [(0, 800), (680, 1480), (1360, 2001)]
    assert sorted(chain.from_iterable(embedder.documents)) == sorted(["a summary", content[:800], content[1360:]])
    assert memory.verify() == []
    assert_made_by(memory, embedder)


BAD_IDS: tuple[Any, ...] = ("", " ", "\u3000", "\u200b", "x" * 257, "😀" * 257, 7, b"e", ("e",))
GOOD_IDS = ("x", "x" * 256, "😀" * 256, " padded ", "a\nb", "名前", "\ufeffe", "100%_'\";--")


def test_an_id_that_is_blank_or_too_long_is_refused(memory: Memory) -> None:
    """retrieval.md S7: blank, or longer than 256 code points."""
    for event_id in BAD_IDS:
        with pytest.raises(InvalidRequest, match="id"):
            memory.save(Event(id=event_id, summary="a summary"))
        for call in (memory.get, memory.read, memory.forget, memory.restore):
            with pytest.raises(InvalidRequest):
                call(event_id)
    assert memory.events() == []


def test_any_other_id_is_kept_exactly(memory: Memory) -> None:
    """retrieval.md S7: up to 256 code points; an id is kept as the host gave it."""
    for number, event_id in enumerate(GOOD_IDS):
        assert memory.save(Event(id=event_id, summary=f"summary {number}", content=str(number))).id == event_id
        assert memory.get(event_id).event.id == event_id
        assert memory.read(event_id).id == event_id
        assert event_id in ids(memory.search(f"summary {number}", session=str(number)).results)
    assert sorted(stored.event.id or "" for stored in memory.events()) == sorted(GOOD_IDS)


def test_ids_that_only_look_alike_are_different_events(memory: Memory) -> None:
    """retrieval.md S5, S10: an id is the same only if its code points are."""
    alike = ["e", "E", " e", "e ", "ｅ", "\u00e9", "e\u0301", "e\u200b", "e\ufeff"]
    memory.save_many(Event(id=each, summary=f"number {number}") for number, each in enumerate(alike))
    assert memory.stats().events == len(alike)
    assert [memory.get(each).event.summary for each in alike] == [f"number {number}" for number in range(len(alike))]


@pytest.mark.parametrize(
    "fields",
    [
        {"title": None},
        {"summary": 5},
        {"content": b"bytes"},
        {"concepts": "one string"},
        {"concepts": [""]},
        {"persons": ["\u200b\ufeff"]},
        {"tags": [5]},
        {"tags": None},
        {"kind": "dream"},
        {"event_type": "party"},
        {"temporal_status": "maybe"},
        {"critical": "yes"},
        {"written_at": "2026-03-01"},
        {"written_at": date(2026, 3, 1)},
        {"occurred_from": 5},
        {"occurred_from": START, "occurred_to": START - timedelta(seconds=1)},
        {"written_at": datetime.max.replace(tzinfo=timezone(timedelta(hours=-1)))},
        {"occurred_to": datetime.min.replace(tzinfo=timezone(timedelta(hours=1)))},
    ],
    ids=repr,
)
def test_a_field_that_breaks_its_rule_is_refused(fields: dict[str, Any]) -> None:
    """retrieval.md S7, api.md Events: refused with a clear error that names the field; there is no such event."""
    with pytest.raises(InvalidRequest, match=next(iter(fields))):
        Event(**{"summary": "a summary"} | fields)


def test_times_are_kept_in_utc_to_the_microsecond(memory: Memory) -> None:
    """retrieval.md S7: a naive datetime is read as UTC; api.md: all times are aware UTC datetimes."""
    east = timezone(timedelta(hours=5, minutes=45))
    moments = {
        "naive": (datetime(2026, 3, 1, 9, 30, 0, 123456), datetime(2026, 3, 1, 9, 30, 0, 123456, UTC)),
        "east": (datetime(2026, 3, 1, 9, 30, tzinfo=east), datetime(2026, 3, 1, 3, 45, tzinfo=UTC)),
        "first": (datetime.min, datetime.min.replace(tzinfo=UTC)),
        "last": (datetime.max, datetime.max.replace(tzinfo=UTC)),
        "before 1970": (datetime(1969, 12, 31, 23, 59, 59, 999999), datetime(1969, 12, 31, 23, 59, 59, 999999, UTC)),
    }
    for name, (given, kept) in moments.items():
        memory.save(Event(id=name, summary="a summary", written_at=given, occurred_from=given, occurred_to=given))
        event = memory.get(name).event
        assert (event.written_at, event.occurred_from, event.occurred_to) == (kept, kept, kept)
        assert all(each is not None and each.utcoffset() == timedelta(0) for each in (event.written_at, event.occurred_from))
    assert ids(stored.event for stored in memory.events()) == ["first", "before 1970", "east", "naive", "last"]


def test_the_written_time_defaults_to_the_clock(memory: Memory, clock: Clock) -> None:
    """api.md: `written_at` defaults to the clock; H5: the clock is injected."""
    assert memory.save(Event(id="a", summary="a summary")).written_at == START
    clock.forward(hours=1)
    memory.save_many([Event(id="b", summary="a summary")])
    assert memory.get("b").event.written_at == START + timedelta(hours=1)
    clock.now = datetime(2026, 3, 1, 12, 0)  # a host's clock may be naive: UTC
    assert memory.save(Event(id="c", summary="a summary")).written_at == START + timedelta(hours=3)
    clock.now = datetime(2026, 3, 1, 21, 0, tzinfo=timezone(timedelta(hours=8)))
    written = memory.save(Event(id="d", summary="a summary")).written_at
    assert written is not None
    assert (written, written.utcoffset()) == (START + timedelta(hours=4), timedelta(0))


def test_without_a_clock_the_present_is_written(open_library: OpenLibrary) -> None:
    """api.md: `clock=None`, default: now in UTC."""
    before = datetime.now(UTC)
    written = open_library(clock=None).save(Event(summary="a summary")).written_at
    assert written is not None
    assert before <= written <= datetime.now(UTC)


def test_lists_become_tuples_and_a_repeated_name_is_kept_once() -> None:
    """api.md Events: frozen; names are nodes, so a name that repeats is one (faults BL-06)."""
    event = Event(summary="a summary", concepts=["AI 项目", "ＡＩ　项目", "other"], tags=["x"])
    assert (event.concepts, event.tags) == (("AI 项目", "other"), ("x",))
    with pytest.raises(AttributeError):
        event.title = "changed"  # type: ignore[misc]


# -- S10: order ----------------------------------------------------------------------------------------------------------


def test_events_come_by_written_time_then_id_by_code_point(memory: Memory) -> None:
    """api.md, retrieval.md S10: ids order by code point, in every store (UTF-16 and locale orders differ)."""
    by_code_point = ["A", "B", "Z", "a", "e10", "e9", "é", "あ", "中", "\ue000", "ｚ", "\uffee", "😀", "\U0010fffd"]
    assert by_code_point == sorted(by_code_point)
    memory.save_many(Event(id=each, summary="a summary", written_at=START) for each in reversed(by_code_point))
    memory.save(Event(id="zzz", summary="a summary", written_at=START - timedelta(seconds=1)))
    memory.save(Event(id="!", summary="a summary", written_at=START + timedelta(seconds=1)))
    listed = ["zzz", *by_code_point, "!"]
    assert ids(stored.event for stored in memory.events()) == listed
    paged = [memory.events(offset=offset, limit=3) for offset in range(0, len(listed), 3)]
    assert ids(stored.event for page in paged for stored in page) == listed
    newest = ids(memory.search(written_from=START, written_to=START + timedelta(microseconds=1)).results)
    assert newest == by_code_point[:4]


def test_pages_of_events(memory: Memory) -> None:
    """api.md: `events(offset=0, limit=100)`, every event, hidden too."""
    assert memory.events() == []
    memory.save_many(numbered(105))
    memory.forget("e002")
    assert len(memory.events()) == 100
    assert ids(stored.event for stored in memory.events(100)) == ["e101", "e102", "e103", "e104", "e105"]
    assert ids(stored.event for stored in memory.events(1, 2)) == ["e002", "e003"]
    assert memory.events(limit=1000)[1].visibility == "forgotten"
    assert memory.events(105) == memory.events(10_000) == []


def test_a_senseless_page_is_refused(memory: Memory) -> None:
    """api.md Errors: an argument out of range is an InvalidRequest."""
    pages: tuple[Any, ...] = (-1, True, 1.0, None, "9")
    for page in pages:
        with pytest.raises(InvalidRequest):
            memory.events(offset=page)
    for page in (0, *pages):
        with pytest.raises(InvalidRequest):
            memory.events(limit=page)


def test_a_huge_number_is_no_crash(memory: Memory) -> None:
    """api.md Errors: only WorkbenchErrors; a page beyond the end is empty, a read beyond it refused (F2)."""
    memory.save_many(numbered(3))
    for huge in (2**31, 2**63 - 1, 2**63, 10**30):
        assert memory.events(offset=huge) == []
        assert len(memory.events(limit=huge)) == 3
        assert len(memory.events(2, huge)) == 1
        with pytest.raises(InvalidRequest):
            memory.read("e001", start=huge)
        with pytest.raises(InvalidRequest):
            memory.tools.call("memory_database_search", {"operation": "read", "event_id": "e001", "start": huge})


# -- S11: other chunkers -------------------------------------------------------------------------------------------------


class Cut:
    """A chunker that is told what to return for a text."""

    def __init__(self, cut: Callable[[str], Any], name: str = "cut") -> None:
        self.cut, self.name = cut, name

    def __call__(self, text: str, /) -> Any:
        return self.cut(text)


def by_line(text: str) -> list[tuple[int, int]]:
    spans, start = [], 0
    for line in text.splitlines(keepends=True):
        if line.strip():
            spans.append((start, start + len(line.rstrip())))
        start += len(line)
    return spans


def test_a_chunker_of_ones_own(open_library: OpenLibrary, embedder: TableEmbedder) -> None:
    """retrieval.md S11, api.md: spans in order, within the text, covering every visible character; gaps may be blank."""
    memory = open_library(chunker=Cut(by_line, "by line"))
    content = "\n first line  \n\n\n第二行\r\nthird"
    memory.save(Event(id="e", summary="a summary", content=content))
    spans = spans_in(memory, "e")
    assert spans is not None
    assert [content[start:end] for start, end in spans] == [" first line", "第二行", "third"]
    assert sorted(chain.from_iterable(embedder.documents)) == sorted(["a summary", " first line", "第二行", "third"])
    assert memory.get("e").chunk_count == 3
    memory.save(Event(id="empty", summary="a summary"))
    assert memory.get("empty").chunk_count == 0
    assert memory.verify() == []
    assert memory.stats().chunker == "by line"


BROKEN_SPANS: tuple[Any, ...] = (
    [],
    [(0, 3)],
    [(1, 10)],
    [(0, 4), (6, 10)],
    [(0, 11)],
    [(-1, 10)],
    [(0, 5), (5, 5), (5, 10)],
    [(5, 10), (0, 5)],
    [(0, 10), (0, 10)],
    [(0, 6), (8, 4), (4, 10)],
    [(10, 0)],
    None,
    5,
    ["ab"],
    [(0, 10, 20)],
    [(0, None)],
)


def test_spans_that_break_the_rules_are_refused(open_library: OpenLibrary) -> None:
    """retrieval.md S11 and S7: spans must be in order, within the text and cover every visible character; nothing is written."""
    told: dict[str, Any] = {}
    memory = open_library(chunker=Cut(lambda text: told["spans"] if text == "0123456789" else [(0, len(text))]))
    bad = Event(id="bad", summary="a summary", content="0123456789")
    for spans in BROKEN_SPANS:
        told["spans"] = spans
        before = snapshot(memory)
        with pytest.raises(InvalidRequest):
            memory.save(bad)
        assert snapshot(memory) == before
        report = memory.save_many([*numbered(2), bad, *numbered(3)[2:]])
        assert sorted(report.saved) == ["e001", "e002", "e003"]
        assert [event_id for event_id, _ in report.failed] == ["bad"]
    assert memory.verify() == []


def test_a_chunker_that_raises_spoils_one_event(open_library: OpenLibrary) -> None:
    """api.md: a batch never fails for one event's sake (S5, S11)."""

    def raising(text: str) -> list[tuple[int, int]]:
        if "2" in text:
            raise ZeroDivisionError("a bug in an experiment")
        return [(0, len(text))]

    memory = open_library(chunker=Cut(raising))
    report = memory.save_many(numbered(3))
    assert sorted(report.saved) == ["e001", "e003"]
    assert [event_id for event_id, _ in report.failed] == ["e002"]


def test_a_chunker_without_a_usable_name_is_refused(open_library: OpenLibrary) -> None:
    """retrieval.md S11: the library records the chunker's name, so there must be one that can be recorded (S7)."""
    for name in UNUSABLE_NAMES:
        with pytest.raises(InvalidRequest):
            open_library(chunker=Cut(by_line, name)).save(Event(summary="a summary", content="text"))


def test_another_way_of_chunking_is_refused(open_library: OpenLibrary) -> None:
    """retrieval.md S11: the way of chunking is recorded; saving with another is refused with the same advice."""
    chunker = Cut(by_line, "by line")
    memory = open_library(chunker=chunker)
    memory.save_many(numbered(2))
    before = snapshot(memory)
    chunker.name = "by something else"
    with pytest.raises(ModelMismatch, match=r"re-?embed") as caught:
        memory.save(Event(summary="more", content="text"))
    assert "by line" in str(caught.value)
    assert "by something else" in str(caught.value)
    assert refusal(lambda: memory.save_many(numbered(3))) is ModelMismatch
    assert snapshot(memory) == before
    assert memory.search("summary 1").results
    assert not memory.reembed().cancelled
    memory.save(Event(summary="more", content="text"))
    assert memory.stats().chunker == "by something else"


@pytest.mark.parametrize("store_kind", LASTING)
@pytest.mark.parametrize(("size", "overlap"), [(400, 120), (800, 100)])
def test_other_sizes_are_another_way_of_chunking(open_library: OpenLibrary, size: int, overlap: int) -> None:
    """retrieval.md S11: the chunker's name, size and overlap are recorded."""
    with open_library() as memory:
        memory.save(Event(id="e", summary="a summary", content=text_of(900)))
    memory = open_library(config=Config(retrieval=RetrievalConfig(chunk_size=size, chunk_overlap=overlap)))
    with pytest.raises(ModelMismatch, match=r"re-?embed"):
        memory.save(Event(summary="more", content="text"))
    memory.reembed()
    memory.save(Event(id="more", summary="more", content="text"))
    assert (spans_in(memory, "e") or [])[0] == (0, size)
    assert memory.verify() == []


# -- visibility ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("call", "state"), [("forget", "forgotten"), ("archive", "archived"), ("revoke", "revoked")])
def test_hidden_events_are_gone_from_every_answer_and_come_back(memory: Memory, call: str, state: str) -> None:
    """api.md, retrieval.md Q2 and F2: hidden from search, listing and read, shown to the host; restore undoes it."""
    memory.save_many(numbered(3, concepts=("c",)))
    getattr(memory, call)("e002")
    getattr(memory, call)("e002")  # twice is once
    assert memory.get("e002").visibility == state
    assert [stored.visibility for stored in memory.events()] == ["visible", state, "visible"]
    assert sorted(ids(memory.search("summary 2").results)) == ["e001", "e003"]
    assert ids(memory.search(entity="c", session="list").results) == ["e003", "e001"]
    with pytest.raises(NotFound) as hidden:
        memory.read("e002")
    with pytest.raises(NotFound) as unknown:
        memory.read("no such event")
    assert str(hidden.value) == str(unknown.value)
    assert (memory.stats().events, memory.verify()) == (3, [])
    memory.restore("e002")
    assert memory.get("e002").visibility == "visible"
    assert memory.read("e002").text == "content number 2"
    assert ids(memory.search(entity="c", session="again").results) == ["e003", "e002", "e001"]


def test_a_superseded_event_reads_normally_with_a_notice(memory: Memory) -> None:
    """api.md, retrieval.md F2: superseded events stay, with the notice `superseded`, and name their successor."""
    memory.save_many(numbered(3))
    assert memory.get("e001").superseded_by is None
    memory.supersede("e001", by="e003")
    stored = memory.get("e001")
    assert (stored.visibility, stored.superseded_by) == ("superseded", "e003")
    reading = memory.read("e001")
    assert (reading.text, reading.notices) == ("content number 1", ("superseded",))
    found = {result.id: result for result in memory.search("summary 1").results}
    assert found["e001"].notices == ("superseded",)  # type: ignore[union-attr]
    assert found["e003"].notices == ()  # type: ignore[union-attr]
    memory.restore("e001")
    stored = memory.get("e001")
    assert (stored.visibility, stored.superseded_by) == ("visible", None)
    assert memory.read("e001").notices == ()


def test_supersession_has_a_real_successor_and_no_circle(memory: Memory) -> None:
    """api.md: `supersede(event_id, by=…)`: unknown ids are NotFound, an event can not supersede itself; nothing changes."""
    memory.save_many(numbered(3))
    memory.supersede("e001", by="e002")
    before = snapshot(memory)
    with pytest.raises(NotFound):
        memory.supersede("e002", by="nobody")
    with pytest.raises(NotFound):
        memory.supersede("nobody", by="e001")
    with pytest.raises(InvalidRequest):
        memory.supersede("e003", by="e003")
    with pytest.raises(InvalidRequest):
        memory.supersede("e002", by="e001")
    assert snapshot(memory) == before


def test_unknown_events(memory: Memory) -> None:
    """api.md Errors: an unknown id is NotFound, which is a KeyError too, with a message; nothing changes."""
    memory.save_many(numbered(1))
    before = snapshot(memory)
    for call in (memory.get, memory.read, memory.forget, memory.archive, memory.revoke, memory.restore):
        with pytest.raises(NotFound) as caught:
            call("nobody")
        assert isinstance(caught.value, KeyError)
        assert (caught.value.code, caught.value.retryable, " " in str(caught.value)) == ("not_found", False, True)
    assert snapshot(memory) == before


def test_get_tells_everything(memory: Memory) -> None:
    """api.md: `get` returns the event, .visibility, .superseded_by, .adoptions, .chunk_count."""
    saved = memory.save(WHOLE)
    stored = memory.get("e")
    assert stored.event == saved == WHOLE
    assert (stored.visibility, stored.superseded_by, stored.adoptions, stored.chunk_count) == ("visible", None, 0, 3)
    assert memory.events() == [stored]


# -- ids -----------------------------------------------------------------------------------------------------------------


def test_ids_are_numbered_and_never_used_twice(memory: Memory) -> None:
    """api.md: ids default to event_<n>; a host's own ids are stepped over."""
    assert memory.save(Event(summary="a")).id == "event_1"
    assert list(memory.save_many([Event(summary="b"), Event(summary="c")]).saved) == ["event_2", "event_3"]
    memory.forget("event_3")
    memory.save(Event(id="event_5", summary="a host's"))
    memory.save(Event(id="event_07", summary="no number of ours"))
    given = [memory.save(Event(summary=f"more {number}")).id for number in range(4)]
    assert len({*given, "event_1", "event_2", "event_3", "event_5", "event_07"}) == 9
    assert memory.get("event_5").event.summary == "a host's"
    assert memory.get("event_3").event.summary == "c"
    assert memory.stats().events == 9


def test_numbered_ids_meet_no_host_id_of_the_same_batch(memory: Memory) -> None:
    """api.md: an event without an id is a new one, whatever ids its batch brings along."""
    memory.save_many([Event(summary="mine"), Event(id="event_1", summary="host's"), Event(id="event_2", summary="host's, too")])
    assert memory.stats().events == 3
    assert sorted(stored.event.summary for stored in memory.events()) == ["host's", "host's, too", "mine"]


def test_strange_numbers_in_host_ids_do_not_stop_the_numbering(memory: Memory) -> None:
    """api.md: ids default to event_<n>, never colliding with a host's."""
    numbers = ("0", "-1", "1.0", "１２", "1" * 100, "9223372036854775807", "9223372036854775806", "999999999999999")
    given: list[str | None] = []
    for number in numbers:
        memory.save(Event(id=f"event_{number}", summary=f"a host's {number}"))
        given += [memory.save(Event(summary="numbered")).id for _ in range(3)]
    assert len(set(given)) == len(given)
    assert all(memory.get(f"event_{number}").event.summary == f"a host's {number}" for number in numbers)
    assert memory.stats().events == len(numbers) + len(given)


def test_a_failed_save_gives_no_id_to_two_events(open_library: OpenLibrary) -> None:
    """api.md, retrieval.md S3: numbering goes on after a failure."""
    embedder = SpoiledEmbedder()
    embedder.spoil = "bad"
    memory = open_library(embedder=embedder)
    first = memory.save(Event(summary="a")).id
    with pytest.raises(EmbeddingFailed):
        memory.save(Event(summary="bad"))
    second = memory.save(Event(summary="b")).id
    assert first != second
    assert memory.stats().events == 2


@pytest.mark.parametrize("store_kind", LASTING)
def test_numbering_goes_on_in_a_reopened_library(open_library: OpenLibrary) -> None:
    """api.md: event_<n> is never used again."""
    with open_library() as memory:
        memory.save(Event(summary="a"))
        memory.forget("event_1")
    assert open_library().save(Event(summary="b")).id == "event_2"


# -- namespaces ----------------------------------------------------------------------------------------------------------


def test_namespaces_do_not_see_each_other(open_library: OpenLibrary) -> None:
    """retrieval.md section 1: a namespace is one library inside a store; nothing crosses it."""
    ours, theirs = (
        open_library(namespace="ours"),
        open_library(namespace="theirs", embedder=TableEmbedder(dimension=8, model="else")),
    )
    ours.save_many([Event(id="e", summary="ours", content="our text", concepts=("shared", "only ours"), written_at=START)])
    theirs.save_many([Event(id="e", summary="theirs", content=text_of(900), concepts=("shared",), written_at=START)])
    theirs.save(Event(summary="numbered", concepts=("shared",)))
    assert ours.save(Event(summary="numbered")).id == "event_1"
    assert (ours.get("e").event.summary, theirs.get("e").event.summary) == ("ours", "theirs")
    assert (ours.stats().model, theirs.stats().model) == ("table", "else")
    assert (ours.stats().events, ours.stats().chunks, ours.stats().concepts) == (2, 1, 2)
    assert (theirs.stats().events, theirs.stats().chunks, theirs.stats().concepts) == (2, 2, 1)
    assert sorted(ids(ours.search("ours").results)) == ["e", "event_1"]
    assert [each.summary for each in ours.search(entity="shared", session="s").results] == ["ours"]  # type: ignore[union-attr]
    assert [each.event_count for each in ours.search("shared", label="Concept").results if each.name == "shared"] == [1]  # type: ignore[union-attr]
    before = snapshot(ours)
    theirs.forget("e")
    theirs.save(Event(id="e", summary="changed"))
    theirs.reembed(TableEmbedder(dimension=4, model="another"))
    assert snapshot(ours) == before
    assert ours.read("e").text == "our text"
    assert (ours.verify(), theirs.verify()) == ([], [])


def test_namespaces_that_only_look_alike_are_different(open_library: OpenLibrary) -> None:
    """retrieval.md section 1: nothing crosses a namespace, be its name nearly the same."""
    names = ["n", "N", "n ", "ｎ", "n%", "n_", "n'; DROP TABLE event; --", "\u00e9", "e\u0301"]
    opened = {name: open_library(namespace=name) for name in names}
    for name, memory in opened.items():
        memory.save(Event(id="e", summary=f"of {name}"))
    for name, memory in opened.items():
        assert [stored.event.summary for stored in memory.events()] == [f"of {name}"]
    assert open_library(namespace="n2").events() == []


def test_a_namespace_that_is_no_name_is_refused(open_library: OpenLibrary) -> None:
    """api.md Errors: an argument that breaks a rule is an InvalidRequest."""
    for name in ("x" * 257, *UNUSABLE_NAMES):
        with pytest.raises(InvalidRequest):
            open_library(namespace=name)


# -- stats and verify ----------------------------------------------------------------------------------------------------


def test_stats_count_what_there_is(memory: Memory) -> None:
    """api.md: `stats` holds model, dimension, events, chunks, concepts, persons, unchunked."""
    empty = memory.stats()
    assert (empty.events, empty.chunks, empty.concepts, empty.persons, empty.unchunked) == (0, 0, 0, 0, 0)
    memory.save(Event(id="a", summary="a", content=text_of(2000), concepts=("x", "y"), persons=("p",)))
    memory.save(Event(id="b", summary="b", concepts=("y", "Ｙ", "z"), persons=("P", "x")))
    memory.save_many([Event(id="c", summary="c", content="text")], chunks=False)
    memory.archive("b")
    stats = memory.stats()
    assert (stats.events, stats.chunks, stats.concepts, stats.persons, stats.unchunked) == (3, 3, 3, 2, 1)
    assert (stats.model, stats.dimension) == ("table", 16)


def test_a_sound_library_has_no_problems(memory: Memory) -> None:
    """api.md: `verify` is an integrity check; S8: a chunk without a visible character is no fault."""
    assert memory.verify() == []
    memory.save_many(numbered(3, concepts=("c",), persons=("p",)))
    memory.save(Event(id="blank", summary="s", content=" " * 3000))
    memory.save_many([Event(id="old", summary="s", content="text")], chunks=False)
    memory.supersede("e001", by="e002")
    memory.revoke("e003")
    assert memory.verify() == []


NAN = f"unhex_('{np.full(16, np.nan, '<f4').tobytes().hex()}')"
DAMAGES = {
    "gap: a chunk in the middle is gone": ("e", "DELETE FROM chunk WHERE event = 1 AND ordinal = 1"),
    "gap: the last chunk is gone": ("e", "DELETE FROM chunk WHERE event = 1 AND ordinal = 2"),
    "gap: the first chunk is gone": ("e", "DELETE FROM chunk WHERE event = 1 AND ordinal = 0"),
    "gap: all chunks are gone": ("e", "DELETE FROM chunk WHERE event = 1"),
    "gap: a chunk begins too late": ("e", "UPDATE chunk SET start = 820 WHERE event = 1 AND ordinal = 1"),
    "gap: the last chunk ends too early": ("e", 'UPDATE chunk SET "end" = 1499 WHERE event = 1 AND ordinal = 2'),
    "gap: a chunk leaves the text": ("e", 'UPDATE chunk SET "end" = 9999 WHERE event = 1 AND ordinal = 2'),
    "gap: a chunk is upside down": ("e", 'UPDATE chunk SET start = "end", "end" = start WHERE event = 1 AND ordinal = 1'),
    "wrong length: the text is cut": ("e", "UPDATE event SET content = substr(content, 1, 100) WHERE key = 1"),
    "wrong length: the record is wrong": ("e", "UPDATE event SET length = length + 1 WHERE key = 1"),
    "another text of the same length": ("e", "UPDATE event SET content = upper(replace(content, '.', 'x')) WHERE key = 1"),
    "orphan: a chunk without an event": (None, "DELETE FROM event WHERE key = 3; INSERT INTO chunk VALUES (3, 0, 0, 1, NULL)"),
    "orphan: a link without an event": (None, "INSERT INTO mention VALUES (77, 0, 1, 'c')"),
    "orphan: a link without an entity": (None, "INSERT INTO mention VALUES (1, 9, 77, 'c')"),
    "orphan: a link lost its entity": (None, "DELETE FROM entity WHERE name = 'c'"),
    "a link is gone": ("e", "DELETE FROM mention WHERE event = 1 AND position = 0"),
    "a successor is gone": ("e", "UPDATE event SET visibility = 'superseded', superseded_by = 'nobody' WHERE key = 1"),
    "bad vector: a summary's is zero": ("e", "UPDATE event SET summary_vector = zeroblob(64) WHERE key = 1"),
    "bad vector: a summary's is NaN": ("e", f"UPDATE event SET summary_vector = {NAN} WHERE key = 1"),
    "bad vector: a summary's is too short": ("e", "UPDATE event SET summary_vector = substr(summary_vector, 1, 60) WHERE key = 1"),
    "bad vector: a summary's is empty": ("e", "UPDATE event SET summary_vector = x'' WHERE key = 1"),
    "bad vector: a chunk's is missing": ("e", "UPDATE chunk SET vector = NULL WHERE event = 1 AND ordinal = 1"),
    "bad vector: a chunk's is zero": ("e", "UPDATE chunk SET vector = zeroblob(64) WHERE event = 1 AND ordinal = 1"),
    "bad vector: a chunk's is NaN": ("e", f"UPDATE chunk SET vector = {NAN} WHERE event = 1 AND ordinal = 2"),
    "bad vector: a chunk's is too long": ("e", "UPDATE chunk SET vector = zeroblob(68) WHERE event = 1 AND ordinal = 0"),
    "bad vector: a concept's is zero": (None, "UPDATE entity SET vector = zeroblob(64) WHERE name = 'c'"),
    "bad vector: a person's is too short": (None, "UPDATE entity SET vector = substr(vector, 1, 4) WHERE name = 'p'"),
    "another dimension is recorded": ("e", "UPDATE library SET dimension = 17"),
    "chunks of an event never chunked": ("e", "UPDATE event SET chunked = 0 WHERE key = 1"),
}  # fmt: skip


def damaged(path: Path, script: str) -> None:
    """Change a library's rows by hand."""
    with contextlib.closing(sqlite3.connect(path)) as connection:
        connection.create_function("unhex_", 1, bytes.fromhex)
        connection.executescript(script)


@pytest.mark.parametrize("store_kind", ["sqlite-file"])
@pytest.mark.parametrize("damage", DAMAGES)
def test_verify_finds_every_kind_of_damage(open_library: OpenLibrary, tmp_path: Path, damage: str) -> None:
    """api.md, S1, S3, S7: `verify` finds gaps, wrong lengths, orphans and bad vectors, and names the event where it is one's."""
    with open_library() as memory:
        memory.save(Event(id="e", summary="a summary", content=text_of(1500), concepts=("c",), persons=("p",)))
        memory.save(Event(id="fine", summary="another", content=text_of(900), concepts=("d",), persons=("p",)))
        memory.save(Event(id="spare", summary="a third"))
    event_id, script = DAMAGES[damage]
    assert open_library().verify() == []
    damaged(tmp_path / "library.db", script)
    problems = open_library(read_only=True).verify()
    assert problems
    if event_id is not None:
        assert event_id in {problem.event_id for problem in problems}
    assert all(problem.code and " " in problem.message for problem in problems)
    if damage != "another dimension is recorded":
        assert "fine" not in {problem.event_id for problem in problems}


@pytest.mark.parametrize("store_kind", ["sqlite-file"])
def test_verify_checks_its_own_namespace_only(open_library: OpenLibrary, tmp_path: Path) -> None:
    """retrieval.md section 1: nothing crosses a namespace, damage neither."""
    for name in ("sound", "damaged"):
        with open_library(namespace=name) as memory:
            memory.save(Event(id="e", summary="a summary", content="text", concepts=("c",)))
    damaged(tmp_path / "library.db", "UPDATE event SET length = 99 WHERE key = 2; UPDATE entity SET vector = x'00' WHERE key = 2")
    assert open_library(namespace="sound").verify() == []
    assert open_library(namespace="damaged").verify() != []


@pytest.mark.parametrize("store_kind", ["sqlite-file"])
@pytest.mark.parametrize("damage", [name for name in DAMAGES if "vector" in name or "dimension" in name])
def test_damaged_rows_end_in_a_clear_error_or_an_answer_without_nan(open_library: OpenLibrary, tmp_path: Path, damage: str) -> None:
    """api.md Errors, faults BL-10: a damaged row is no bare ValueError, and no NaN score is returned."""
    with open_library() as memory:
        memory.save(Event(id="e", summary="a summary", content=text_of(1500), concepts=("c",), persons=("p",)))
        memory.save(Event(id="fine", summary="another", content=text_of(900), concepts=("d",), persons=("p",)))
    damaged(tmp_path / "library.db", DAMAGES[damage][1])
    memory = open_library()
    with contextlib.suppress(WorkbenchError):
        assert all(math.isfinite(each.rank_score or 0.0) for each in memory.search("a summary").results)  # type: ignore[union-attr]
    assert memory.get("fine").event.content == text_of(900)
    assert memory.read("e", limit=10_000).text == text_of(1500)


# -- closed and read only ------------------------------------------------------------------------------------------------

CALLS: dict[str, Callable[[Memory], object]] = {
    "save": lambda memory: memory.save(Event(summary="more")),
    "save_many": lambda memory: memory.save_many(numbered(2)),
    "forget": lambda memory: memory.forget("e001"),
    "archive": lambda memory: memory.archive("e001"),
    "revoke": lambda memory: memory.revoke("e001"),
    "restore": lambda memory: memory.restore("e001"),
    "supersede": lambda memory: memory.supersede("e001", by="e002"),
    "reembed": lambda memory: memory.reembed(),
    "get": lambda memory: memory.get("e001"),
    "events": lambda memory: memory.events(),
    "stats": lambda memory: memory.stats(),
    "verify": lambda memory: memory.verify(),
    "search": lambda memory: memory.search("summary"),
    "list": lambda memory: memory.search(entity="c"),
    "names": lambda memory: memory.search("c", label="Concept"),
    "read": lambda memory: memory.read("e001"),
    "tools": lambda memory: memory.tools.call("memory_database_search", {"query_text": "summary"}),
}
WRITES = ("save", "save_many", "forget", "archive", "revoke", "restore", "supersede", "reembed")


def test_a_closed_library_says_so(memory: Memory) -> None:
    """api.md, faults BL-44: close is idempotent; every later call gives our own clear error."""
    memory.save_many(numbered(2, concepts=("c",)))
    found = memory.search("summary")
    cursor, concept = found.cursor or "", found.concepts[0].id
    memory.close()
    memory.close()
    follow_up: dict[str, Callable[[Memory], object]] = {
        "expand": lambda memory: memory.expand(cursor, concept),
        "nearby": lambda memory: memory.nearby(cursor, "x_ch1_e1"),
    }
    refusals = {name: refusal(lambda call=call: call(memory)) for name, call in (CALLS | follow_up).items()}  # type: ignore[misc]
    assert refusals == dict.fromkeys(refusals, StoreUnavailable)


def test_the_context_manager_closes_and_lets_an_error_through(open_library: OpenLibrary) -> None:
    """api.md, faults BL-44: an exception inside passes unchanged, and the library is closed."""
    memory = open_library()

    def use() -> None:
        with memory as entered:
            entered.save(Event(summary="a summary"))
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        use()
    with pytest.raises(StoreUnavailable):
        memory.stats()


@pytest.mark.parametrize("store_kind", LASTING)
def test_a_read_only_library_is_read_and_never_written(open_library: OpenLibrary) -> None:
    """api.md: `read_only`: a write is refused with ReadOnly, everything else works, and nothing changes."""
    with open_library() as memory:
        memory.save_many(numbered(2, concepts=("c",)))
        before = snapshot(memory)
    memory = open_library(read_only=True)
    refusals = {name: refusal(lambda call=call: call(memory)) for name, call in CALLS.items()}  # type: ignore[misc]
    assert refusals == {name: ReadOnly if name in WRITES else None for name in CALLS}
    assert snapshot(memory) == before


@pytest.mark.parametrize("store_kind", LASTING)
def test_a_read_only_library_sees_what_others_write(open_library: OpenLibrary) -> None:
    """api.md: several processes may open one library; a reader sees the next write."""
    writer = open_library()
    writer.save_many(numbered(1))
    reader = open_library(read_only=True)
    assert ids(reader.search("summary").results) == ["e001"]
    writer.save_many(numbered(2))
    writer.archive("e001")
    assert ids(reader.search("summary", session="again").results) == ["e002"]


def test_a_dump_that_is_under_way_disturbs_no_other_call(memory: Memory) -> None:
    """api.md: one Memory for all callers, whatever store; a copy being made must not break the library."""
    memory.save_many(numbered(3))
    _, _, rows = memory.store.dump()
    first = next(rows)
    assert memory.get("e002").event.id == "e002"
    assert memory.stats().events == 3
    assert ids([first.event, *(each.event for each in rows)]) == ["e001", "e002", "e003"]
    memory.save_many(numbered(4))
    assert (memory.stats().events, memory.verify()) == (4, [])
