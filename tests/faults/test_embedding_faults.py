"""Faults of content and embedding calls: faults.md part B, through embedders that misbehave in Python."""

import time
import traceback
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from tests.children import ModelEmbedder, assert_made_by, snapshot
from tests.conformance.test_saving import LASTING, text_of
from tests.support import START, OpenLibrary, TableEmbedder, ids, numbered
from workbench import CursorInvalid, EmbeddingFailed, Event, InvalidRequest, Memory, ModelMismatch, NotFound

BLANKS = ["", "   ", "\n\n\n", "\u3000\u3000", "\u200b"]
SECRET = "sk-secret-0123456789"


class Misbehaving(TableEmbedder):
    """Embeds well until ``documents_by`` or ``query_by`` says what to answer instead, given the good answer."""

    documents_by: Callable[[NDArray[np.float32]], Any] | None = None
    query_by: Callable[[NDArray[np.float32]], Any] | None = None
    calls = 0

    def embed_documents(self, texts: Sequence[str]) -> Any:
        self.calls += 1
        rows = super().embed_documents(texts)
        return rows if self.documents_by is None else self.documents_by(rows)

    def embed_query(self, text: str) -> Any:
        self.calls += 1
        row = super().embed_query(text)
        return row if self.query_by is None else self.query_by(row)


@pytest.fixture
def misbehaving() -> Misbehaving:
    return Misbehaving()


@pytest.fixture
def library(open_library: OpenLibrary, misbehaving: Misbehaving) -> Memory:
    """Return a library of five events whose embedder can be made to misbehave."""
    memory = open_library(embedder=misbehaving)
    memory.save_many(numbered(5, concepts=("shared",), persons=("p",)))
    return memory


def big() -> Event:
    """Return an event of four chunks and three names."""
    return Event(id="big", summary="big", content=text_of(2500), concepts=("x", "y"), persons=("z",), written_at=START)


# -- BL-07 ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("blank", BLANKS, ids=ascii)
def test_a_blank_question_is_no_question(library: Memory, misbehaving: Misbehaving, blank: str) -> None:
    """faults BL-07, retrieval.md Q16 and Q15: with a filter it lists by written time, without one it is refused; never embedded."""
    calls = misbehaving.calls
    with pytest.raises(InvalidRequest):
        library.search(blank)
    result = library.search(blank, entity="shared")
    assert ids(result.results) == ["e005", "e004", "e003", "e002"]
    assert [each.rank_score for each in result.results] == [None] * 4  # type: ignore[union-attr]
    assert misbehaving.calls == calls


@pytest.mark.parametrize("blank", BLANKS, ids=ascii)
def test_a_blank_memory_is_refused_and_never_embedded(library: Memory, misbehaving: Misbehaving, blank: str) -> None:
    """faults BL-07 as retrieval.md S8 reads it: a blank summary is an error; a blank text is kept and not sent."""
    before, calls = snapshot(library), misbehaving.calls
    with pytest.raises(InvalidRequest):
        library.save(Event(summary=blank, content=blank))
    assert (snapshot(library), misbehaving.calls) == (before, calls)
    library.save(Event(id="blank text", summary="a summary", content=blank))
    assert misbehaving.documents[calls:] == [["a summary"]]


# -- BL-09 ---------------------------------------------------------------------------------------------------------------


def test_a_very_long_event_is_saved_searched_and_read_in_time(memory: Memory) -> None:
    """faults BL-09, retrieval.md V2 and F1: 200,000 code points, a summary of 9,000, 300 names; no quadratic time."""
    content = "".join(chr(0x4E00 + (number * number) % 6000) for number in range(199_000)) + "独角兽出现在末尾" + "完" * 992
    names = tuple(f"名{number}" for number in range(300))
    begun = time.monotonic()
    memory.save(Event(id="long", summary="很长的摘要" * 1800, content=content, concepts=names))
    memory.save_many(numbered(3))
    (result,) = [each for each in memory.search("独角兽").results if each.id == "long"]
    excerpt = result.excerpt  # type: ignore[union-attr]
    assert excerpt is not None
    start, end = excerpt.range
    assert content[start:end] == excerpt.text
    assert end <= 32_000
    assert "continueWithRead" in result.notices  # type: ignore[union-attr]
    pages, start = [], 0
    while True:
        page = memory.read("long", start=start, limit=10_000)
        pages.append(page.text)
        if page.next is None:
            break
        start = page.next
    assert "".join(pages) == content
    assert memory.get("long").chunk_count == 294
    assert memory.verify() == []
    assert time.monotonic() - begun < 20


def test_a_question_that_is_too_long_is_refused_without_a_call(library: Memory, misbehaving: Misbehaving) -> None:
    """faults BL-09, retrieval.md Q15: a question over 2,000 code points is refused; one of 2,000 is answered."""
    calls = misbehaving.calls
    with pytest.raises(InvalidRequest, match=r"2,?000"):
        library.search("问" * 20_000)
    with pytest.raises(InvalidRequest):
        library.search("😀" * 2001)
    assert misbehaving.calls == calls
    assert library.search("😀" * 2000).results


PARTS = {
    "summary": "big",
    "concept": "y",
    "person": "z",
    "first chunk": text_of(2500)[:800],
    "second chunk": text_of(2500)[680:1480],
    "last chunk": text_of(2500)[2040:],
}


def complaint(library: Memory, misbehaving: Misbehaving, part: str) -> str:
    """Return the error for an event of which one part has a NaN vector."""

    def spoil(rows: NDArray[np.float32]) -> NDArray[np.float32]:
        rows[misbehaving.documents[-1].index(PARTS[part]), 3] = np.nan
        return rows

    misbehaving.documents_by = spoil
    with pytest.raises(EmbeddingFailed) as caught:
        library.save(big())
    return str(caught.value)


def test_the_error_names_the_part_that_can_not_be_embedded(library: Memory, misbehaving: Misbehaving) -> None:
    """faults BL-09: if a part can not be embedded the error names the part, and the event is all or nothing; no content in it."""
    before = snapshot(library)
    complaints = {part: complaint(library, misbehaving, part) for part in PARTS}
    assert snapshot(library) == before
    assert all("big" in message for message in complaints.values())
    assert not any(text[:20] in message for message in complaints.values() for text in (text_of(2500), text_of(2500)[680:]))
    assert len(set(complaints.values())) == len(PARTS)


def test_an_over_long_text_spoils_its_own_event_only(open_library: OpenLibrary) -> None:
    """faults BL-09: one item over the model's limit raises; every other item of the batch is saved."""

    class Narrow(TableEmbedder):
        def embed_documents(self, texts: Sequence[str]) -> NDArray[np.float32]:
            if any(len(text) > 512 for text in texts):
                raise ValueError("maximum context length is 512")
            return super().embed_documents(texts)

    memory = open_library(embedder=Narrow())
    events = numbered(6)
    events[2] = events[2].replace(summary="s" * 9000)
    report = memory.save_many(events)
    assert sorted(report.saved) == ["e001", "e002", "e004", "e005", "e006"]
    assert [event_id for event_id, _ in report.failed] == ["e003"]


# -- BL-10 and BL-14: answers that are no vectors ------------------------------------------------------------------------

ROWS: dict[str, Callable[[NDArray[np.float32]], Any]] = {
    "zero": lambda rows: rows * 0,
    "one zero": lambda rows: np.vstack([rows[:-1], rows[-1:] * 0]),
    "NaN": lambda rows: np.where(np.arange(rows.size).reshape(rows.shape) == 3, np.nan, rows),
    "infinite": lambda rows: np.where(np.arange(rows.size).reshape(rows.shape) == 3, np.inf, rows),
    "1e400 in a list": lambda rows: [[float("1e400"), *row[1:]] for row in rows.tolist()],
    "1e-200": lambda rows: np.full(rows.shape, 1e-200),
    "integers": lambda rows: np.ones(rows.shape, np.int64),
    "a list of integers": lambda rows: [[1] * rows.shape[1]] * len(rows),
    "booleans": lambda rows: np.ones(rows.shape, bool),
    "strings": lambda rows: [[str(value) for value in row] for row in rows.tolist()],
    "complex": lambda rows: rows.astype(np.complex128),
    "None in a row": lambda rows: [[None, *row[1:]] for row in rows.tolist()],
    "ragged": lambda rows: [row[: len(row) - number % 2] for number, row in enumerate(rows.tolist())],
    "one text": lambda rows: rows[0],
    "too deep": lambda rows: rows[None],
    "too short": lambda rows: rows[:, :-1],
    "too long": lambda rows: np.hstack([rows, rows[:, :1]]),
    "transposed": lambda rows: rows.T,
    "no columns": lambda rows: rows[:, :0],
    "n - 1": lambda rows: rows[:-1],
    "1 for n": lambda rows: rows[:1],
    "n + 1": lambda rows: np.vstack([rows, rows[:1]]),
    "none": lambda rows: rows[:0],
    "an empty list": lambda rows: [],
    "None": lambda rows: None,
    "an error object": lambda rows: {"error": {"message": f"bad key {SECRET}"}},
    "a generator": lambda rows: (row for row in rows),
    "a text": lambda rows: "vectors",
    "a number": lambda rows: 1.0,
}


def test_what_is_no_set_of_vectors_is_refused_on_save(library: Memory, misbehaving: Misbehaving) -> None:
    """faults BL-10 and BL-14, retrieval.md S7: an embedding error, no row changed; no warning; the retry works."""
    before = snapshot(library)
    refused = {}
    for name, wrong in ROWS.items():
        misbehaving.documents_by = wrong
        report = library.save_many([big(), *numbered(7)[5:]])
        assert list(report.saved) == []
        refused[name] = {type(error) for _, error in report.failed}
        with pytest.raises(EmbeddingFailed) as caught:
            library.save(big())
        assert SECRET not in str(caught.value)
        with pytest.raises(EmbeddingFailed):
            library.reembed()
        assert snapshot(library) == before
    assert refused == {name: {EmbeddingFailed} for name in ROWS}
    misbehaving.documents_by = None
    library.save(big())
    assert_made_by(library, misbehaving)
    assert library.verify() == []


FOR_LISTS = ("one zero", "ragged", "n - 1", "1 for n", "n + 1", "one text", "transposed", "too deep")
"""Those of ``ROWS`` that spoil no answer to a single text."""


def test_what_is_no_vector_is_refused_as_a_question(library: Memory, misbehaving: Misbehaving) -> None:
    """faults BL-10, retrieval.md S7, H2: a bad query vector is a clear error and delivers nothing; no NaN score ever."""
    for name, wrong in ROWS.items():
        if name not in FOR_LISTS:
            misbehaving.query_by = lambda row, wrong=wrong: _first(wrong(row[None]))
            with pytest.raises(EmbeddingFailed):
                library.search("summary")
            with pytest.raises(EmbeddingFailed):
                library.search("shared", label="Concept")
    misbehaving.query_by = None
    assert len(library.search("summary").results) == 4


def _first(answer: Any) -> Any:
    """Return the question's vector out of an answer for a list of texts."""
    return answer[0] if isinstance(answer, list | np.ndarray) and len(answer) else answer


def test_vectors_of_any_length_and_float_kind_are_taken(library: Memory, misbehaving: Misbehaving) -> None:
    """retrieval.md S7, faults BL-10: finite and not zero is enough: the length is divided out without a warning."""
    kinds: list[Callable[[NDArray[np.float32]], Any]] = [
        lambda rows: rows.astype(np.float64) * 1e30,
        lambda rows: rows.astype(np.float64) * 1e300,
        lambda rows: rows.astype(np.float64) * 1e-20,
        lambda rows: (rows / 8).astype(np.float16),
        lambda rows: rows.astype(">f8"),
        lambda rows: rows.tolist(),
        lambda rows: [tuple(row) for row in rows],
        lambda rows: np.asfortranarray(rows),
        lambda rows: np.repeat(rows, 2, axis=0)[::2],
    ]
    for number, kind in enumerate(kinds):
        misbehaving.documents_by = kind
        library.save(big().replace(id=f"big{number}", concepts=(f"x{number}",)))
        library.search("summary", session=str(number))
    misbehaving.documents_by = None
    assert library.verify() == []
    library.forget("big3")  # half precision is not exact enough for the next line
    library.save(big().replace(id="big3", concepts=()))
    result = library.search("big", session="q", explain=True)
    assert result.explanation is not None
    assert np.isfinite(result.explanation.to_polars()["fused"].to_numpy()).all()


def test_five_candidates_with_equal_and_opposite_vectors_rank_without_a_warning(open_library: OpenLibrary) -> None:
    """faults BL-10: MMR over five candidates, two of them alike and two opposite, gives finite scores in a total order."""
    axis = [1.0] + [0.0] * 15
    table = {
        f"summary {number}": [sign * each for each in axis] for number, sign in zip(range(1, 6), (1, 1, -1, -1, 1), strict=True)
    }
    memory = open_library(embedder=TableEmbedder(table | {"question": axis}))
    memory.save_many(numbered(5, content=""))
    result = memory.search("question", explain=True)
    assert ids(result.results)[0] == "e005"
    assert result.explanation is not None
    frame = result.explanation.to_polars()
    assert np.isfinite(frame["fused"].to_numpy()).all()
    assert all(np.isfinite(score) for score in frame["mmr_score"].drop_nulls().to_list())


@pytest.mark.parametrize("wrong", ["n - 1", "n + 1", "none", "NaN"])
def test_a_wrong_answer_in_the_middle_of_a_re_embedding(open_library: OpenLibrary, wrong: str) -> None:
    """faults BL-14 and BL-16: also in the middle of re-embedding: no event, chunk or record row changes."""
    old = ModelEmbedder("old")
    memory = open_library(embedder=old)
    memory.save_many(numbered(150, concepts=("shared",)))
    before = snapshot(memory)
    new = Misbehaving(model="new", dimension=24)
    new.documents_by = lambda rows: ROWS[wrong](rows) if new.calls == 3 else rows
    with pytest.raises(EmbeddingFailed):
        memory.reembed(new)
    assert new.calls == 3
    assert snapshot(memory) == before
    assert_made_by(memory, old)
    assert memory.search("summary").results


# -- BL-12 ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("model", ["small", "large"])
def test_a_changed_dimension_never_looks_like_nothing_remembered(open_library: OpenLibrary, store_kind: str, model: str) -> None:
    """faults BL-12, retrieval.md S4, E4: refused with both sizes and the models named; after re-embedding all works."""
    small, large = ModelEmbedder("small", dimension=384), ModelEmbedder(model, dimension=1024)
    memory = open_library(embedder=small)
    memory.save_many(numbered(10, concepts=("shared",)))
    found = memory.search("summary")
    if store_kind in LASTING:
        other = open_library(embedder=large)
    else:  # a library that can not be opened again: its embedder changes under it
        small.model, small.dimension = model, 1024
        other = memory
    for call in (lambda: other.search("summary"), lambda: other.save(Event(summary="more"))):
        with pytest.raises(ModelMismatch, match=r"re-?embed") as caught:
            call()
        for named in ("384", "1024", "small", model):
            assert named in str(caught.value)
    assert ids(other.search(entity="shared", session="list").results) == ["e010", "e009", "e008", "e007"]
    assert other.read("e001").text == "content number 1"
    assert other.stats().events == 10
    other.reembed(large)
    with pytest.raises(CursorInvalid) as broken:
        memory.expand(found.cursor or "", found.concepts[0].id)
    assert broken.value.reason == "model_changed"
    assert other.search("summary", session="new").results
    other.save(Event(summary="more"))
    assert_made_by(other, large)


# -- BL-16 ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("error", [TimeoutError, KeyboardInterrupt])
@pytest.mark.parametrize("at", [1, 4])
def test_two_hundred_events_survive_a_failed_re_embedding(
    open_library: OpenLibrary, store_kind: str, error: type[BaseException], at: int
) -> None:
    """faults BL-16, retrieval.md E2, E3: nothing is replaced; a save and a search during the run hold; the next run ends well."""
    memory = open_library(embedder=ModelEmbedder("old"))
    memory.save_many(numbered(200))
    other = open_library(embedder=ModelEmbedder("old")) if store_kind in LASTING else memory
    meanwhile: list[object] = []

    def step(rows: NDArray[np.float32]) -> NDArray[np.float32]:
        if new.calls == 1:
            meanwhile.append(other.save(Event(id="meanwhile", summary="saved during the run", written_at=START)))
            meanwhile.append(snapshot(memory))
            assert other.search("saved during the run").results
        if new.calls == at:
            raise error
        return rows

    new = Misbehaving(model="new", dimension=24)
    new.documents_by = step
    expected = EmbeddingFailed if issubclass(error, Exception) else error
    with pytest.raises(expected):
        memory.reembed(new)
    assert snapshot(memory) == meanwhile[1]
    assert_made_by(memory, ModelEmbedder("old"))
    new.documents_by = None
    assert memory.reembed(new).events == 201
    assert_made_by(memory, new)
    assert memory.get("meanwhile").event == meanwhile[0]


# -- BL-17 ---------------------------------------------------------------------------------------------------------------

CALLS: dict[str, Callable[[Memory], object]] = {
    "save": lambda memory: memory.save(big()),
    "search": lambda memory: memory.search("summary"),
    "reembed": lambda memory: memory.reembed(),
}


@pytest.mark.parametrize("call", CALLS)
def test_an_embedder_that_raises_is_not_asked_again_and_tells_no_secret(
    library: Memory, misbehaving: Misbehaving, call: str
) -> None:
    """faults BL-17, api.md Errors: one attempt at this level, nothing half-written, no provider text or key in the error."""

    def down(_: object) -> object:
        raise ConnectionError(f"401 for key {SECRET}: content number 1")

    before, calls = snapshot(library), misbehaving.calls
    misbehaving.documents_by = misbehaving.query_by = down
    with pytest.raises(EmbeddingFailed) as caught:
        CALLS[call](library)
    assert misbehaving.calls == calls + 1
    told = "".join(traceback.format_exception(caught.value)) + repr(caught.value)
    for line in (each for each in told.splitlines() if "raise ConnectionError" not in each):
        assert SECRET not in line
        assert "content number 1" not in line
    assert caught.value.code == "embedding_failed"
    assert snapshot(library) == before
    misbehaving.documents_by = misbehaving.query_by = None
    assert len(library.search("summary").results) == 4  # the failed search delivered nothing (H2)


@pytest.mark.parametrize("retryable", [True, False])
def test_an_error_of_our_own_passes_unchanged(library: Memory, misbehaving: Misbehaving, retryable: bool) -> None:
    """faults BL-17: what the embedder knows (401 is not worth a retry, 503 is) reaches the host."""
    known = EmbeddingFailed("the endpoint answered 503; retry later.", retryable=retryable)

    def down(_: object) -> object:
        raise known

    misbehaving.documents_by = misbehaving.query_by = down
    for call in CALLS.values():
        with pytest.raises(EmbeddingFailed) as caught:
            call(library)
        assert (str(caught.value), caught.value.retryable) == (str(known), retryable)


def test_without_an_answer_from_the_embedder_reading_and_listing_go_on(library: Memory, misbehaving: Misbehaving) -> None:
    """faults BL-12 and BL-17, retrieval.md Q16: what needs no vector asks no embedder."""

    def down(_: object) -> object:
        raise ConnectionError

    misbehaving.documents_by = misbehaving.query_by = down
    calls = misbehaving.calls
    assert ids(library.search(entity="shared").results) == ["e005", "e004", "e003", "e002"]
    found = library.search(written_to=START, session="dates")
    assert ids(library.expand(found.cursor or "", found.concepts[0].id, session="dates").results) == ["e001"]
    assert library.read("e001").text == "content number 1"
    library.forget("e001")
    with pytest.raises(NotFound):
        library.read("e001")
    library.restore("e001")
    assert (library.stats().events, library.verify(), misbehaving.calls) == (5, [], calls)
