"""Session state as retrieval.md section 6 and H6 state it, at exact borders and under threads, on every store."""

import asyncio
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from tests.support import START, Clock, OpenLibrary, TableEmbedder, ids, numbered
from workbench import CursorInvalid, EmbeddingFailed, Event, InvalidRequest, Memory, NotFound, SearchResult, WorkbenchError

JUST_UNDER = {"minutes": 14, "seconds": 59, "microseconds": 999_999}
HEAD = "".join(chr(0x4E00 + 7 * n) for n in range(120))


def library(memory: Memory, count: int) -> None:
    """Save neighbours of one chapter that share a concept and have one of their own."""
    memory.save_many(
        [
            Event(
                id=f"b_ch1_e{n:03}",
                summary=f"summary {n}",
                content=f"content {n}",
                concepts=("图", f"k{n}"),
                written_at=START + timedelta(hours=n),
            )
            for n in range(1, count + 1)
        ]
    )


def twins(*names: str) -> list[Event]:
    """Return events whose excerpts are equal and whose texts are not."""
    return [Event(id=name, summary=f"s {name}", content=f"{HEAD}—{name}", concepts=(f"k {name}",)) for name in names]


def listed(memory: Memory, session: str = "default", **arguments: Any) -> list[str]:
    """Return what a listing of the shared concept delivers."""
    return ids(memory.search(**{"entity": "图"} | arguments, session=session).results)


def knows(memory: Memory, session: str) -> bool:
    """Return whether a session still holds that everything was delivered to it. Counts as a use."""
    return not listed(memory, session)


def concept(result: SearchResult, name: str = "图") -> str:
    return next(each.id for each in result.concepts if each.name == name)


def alive(memory: Memory, result: SearchResult, *, session: str = "default") -> str:
    """Return ``alive`` or the reason why a result's cursor is broken, delivering nothing when all of ``k…`` is delivered."""
    assert result.cursor is not None
    own = next(each for each in result.concepts if each.name.startswith("k"))
    try:
        memory.expand(result.cursor, own.id, session=session)
    except CursorInvalid as error:
        return error.reason
    return "alive"


class Moody(TableEmbedder):
    """An embedder whose questions fail on demand."""

    mood = "well"

    def embed_query(self, text: str) -> NDArray[np.float32]:
        if self.mood == "raises":
            raise RuntimeError("provider down")
        if self.mood == "short":
            return np.ones(self.dimension - 1, np.float32)
        if self.mood == "NaN":
            return np.full(self.dimension, np.nan, np.float32)
        if self.mood == "zero":
            return np.zeros(self.dimension, np.float32)
        return super().embed_query(text)


# -- H1: 15 minutes ------------------------------------------------------------------------------------------------------


def test_an_id_is_excluded_for_15_minutes_exactly(memory: Memory, clock: Clock) -> None:
    """retrieval.md H1, H6: in force at 14:59.999999, free at 15:00."""
    library(memory, 3)
    assert listed(memory) == ["b_ch1_e003", "b_ch1_e002", "b_ch1_e001"]
    clock.forward(**JUST_UNDER)
    assert listed(memory) == []
    clock.forward(microseconds=1)
    assert listed(memory) == ["b_ch1_e003", "b_ch1_e002", "b_ch1_e001"]


def test_each_id_has_its_own_15_minutes(memory: Memory, clock: Clock) -> None:
    """retrieval.md H1: counted from the delivery of each id; an empty call renews nothing."""
    library(memory, 3)
    assert listed(memory, limit=1) == ["b_ch1_e003"]
    clock.forward(minutes=5)
    assert listed(memory, limit=1) == ["b_ch1_e002"]
    clock.forward(minutes=5)
    assert listed(memory, limit=1) == ["b_ch1_e001"]
    assert listed(memory) == []
    clock.forward(minutes=5)
    assert listed(memory) == ["b_ch1_e003"]
    clock.forward(minutes=5)
    assert listed(memory) == ["b_ch1_e002"]
    clock.forward(minutes=5, microseconds=-1)
    assert listed(memory) == []
    clock.forward(microseconds=1)
    assert listed(memory) == ["b_ch1_e001"]


def test_search_expand_and_nearby_exclude_alike(memory: Memory, clock: Clock) -> None:
    """retrieval.md H1: all three exclude what any of them delivered, at both sides of the border."""
    library(memory, 4)

    def one(name: str) -> SearchResult:
        result = memory.search(entity=name)
        assert len(result.results) == 1
        return result

    one("k1")
    clock.forward(seconds=1)
    second = one("k2")
    assert ids(memory.nearby(str(second.cursor), "b_ch1_e002", before=1, after=1).results) == ["b_ch1_e003"]
    assert listed(memory) == ["b_ch1_e004"]
    assert memory.expand(str(second.cursor), concept(second, "k2")).results == ()
    clock.forward(minutes=14, seconds=58, microseconds=999_999)
    assert listed(memory) == []
    assert memory.nearby(str(second.cursor), "b_ch1_e002").results == ()
    clock.forward(microseconds=1)
    assert ids(memory.nearby(str(second.cursor), "b_ch1_e002").results) == ["b_ch1_e001"]
    clock.forward(microseconds=-1)
    assert listed(memory) == []


def test_expand_delivers_again_what_has_aged(memory: Memory, clock: Clock) -> None:
    """retrieval.md H1, C2: an id older than 15 minutes may come back by expand while the cursor lives."""
    library(memory, 2)
    assert listed(memory, limit=1) == ["b_ch1_e002"]
    clock.forward(seconds=1)
    late = memory.search(entity="图", limit=1)
    assert ids(late.results) == ["b_ch1_e001"]
    clock.forward(minutes=14, seconds=58, microseconds=999_999)
    assert memory.expand(str(late.cursor), concept(late)).results == ()
    clock.forward(microseconds=1)
    assert ids(memory.expand(str(late.cursor), concept(late)).results) == ["b_ch1_e002"]


# -- H2: one session is serial, a failing call leaves no trace -----------------------------------------------------------

FAILING: dict[str, Callable[[Memory, SearchResult], object]] = {
    "bad limit": lambda memory, first: memory.search("cat", limit=0),
    "no question": lambda memory, first: memory.search(),
    "long question": lambda memory, first: memory.search("问" * 2001),
    "bad date": lambda memory, first: memory.search(entity="图", written_from="2026-13-01"),
    "bad label": lambda memory, first: memory.search("cat", label="Topic"),
    "unknown cursor": lambda memory, first: memory.expand("nonsense", concept(first)),
    "unoffered concept": lambda memory, first: memory.expand(str(first.cursor), "concept_999"),
    "bad expand limit": lambda memory, first: memory.expand(str(first.cursor), concept(first), limit=9),
    "nearby of an unknown event": lambda memory, first: memory.nearby(str(first.cursor), "b_ch1_e999"),
    "nearby without the form": lambda memory, first: memory.nearby(str(first.cursor), "plain"),
    "nearby before": lambda memory, first: memory.nearby(str(first.cursor), ids(first.results)[0], before=11),
    "reset elsewhere": lambda memory, first: memory.tools.call(
        "memory_database_search",
        {"operation": "expand", "cursor": first.cursor, "concept_id": concept(first), "reset_seen": True},
    ),
    "read of nothing": lambda memory, first: memory.read("nothing"),
    "bad search with reset": lambda memory, first: memory.search("cat", limit=99, reset_seen=True),
    "nothing asked with reset": lambda memory, first: memory.search(reset_seen=True),
    "reset for names": lambda memory, first: memory.search("cat", label="Thing", reset_seen=True),
}


@pytest.mark.parametrize("name", FAILING)
def test_a_refused_call_leaves_no_trace(memory: Memory, name: str) -> None:
    """retrieval.md H2, H4, H6: ids, excerpts and cursors are as before, also when reset_seen was asked."""
    library(memory, 9)
    memory.save_many(twins("a", "b"))
    first = memory.search(entity="图", limit=3)
    memory.search(entity="k a")
    with pytest.raises(WorkbenchError):
        FAILING[name](memory, first)
    assert alive(memory, first) == "alive"
    assert listed(memory) == [f"b_ch1_e{n:03}" for n in (6, 5, 4, 3)]
    assert memory.search(entity="k b").results[0].quote_ref is not None  # type: ignore[union-attr]


@pytest.mark.parametrize("reset", [False, True])
@pytest.mark.parametrize("mood", ["raises", "short", "NaN", "zero"])
def test_a_failing_embedder_leaves_no_trace(open_library: OpenLibrary, mood: str, reset: bool) -> None:
    """retrieval.md H2, H6, faults.md BL-10: the failed search delivered nothing, and its reset_seen is undone."""
    embedder = Moody()
    memory = open_library(embedder=embedder)
    library(memory, 9)
    memory.save_many(twins("a", "b"))
    first = memory.search(entity="图", limit=3)
    memory.search(entity="k a")
    embedder.mood = mood
    with pytest.raises(EmbeddingFailed):
        memory.search("content 7", reset_seen=reset)
    embedder.mood = "well"
    assert alive(memory, first) == "alive"
    assert listed(memory) == [f"b_ch1_e{n:03}" for n in (6, 5, 4, 3)]
    assert memory.search(entity="k b").results[0].quote_ref is not None  # type: ignore[union-attr]


def test_a_failing_call_is_no_use_of_the_session(open_library: OpenLibrary) -> None:
    """retrieval.md H2, H3, H6: it changes neither the order of the least recently used nor which sessions there are."""
    embedder = Moody()
    memory = open_library(embedder=embedder)
    library(memory, 3)
    for n in range(32):
        assert len(listed(memory, f"s{n}")) == 3
    embedder.mood = "raises"
    for session in ("s0", "brand new", "another"):
        with pytest.raises(EmbeddingFailed):
            memory.search("cat", session=session)
        with pytest.raises(InvalidRequest):
            memory.search("cat", limit=0, session=session)
        with pytest.raises(CursorInvalid):
            memory.expand("nonsense", "concept_1", session=session)
        with pytest.raises(EmbeddingFailed):
            memory.search("cat", session=session, reset_seen=True)
    assert all(knows(memory, f"s{n}") for n in range(1, 32))
    assert knows(memory, "s0")


def test_a_failing_call_does_not_renew_its_session(open_library: OpenLibrary) -> None:
    """retrieval.md H2, H3: the session of a failed call is still the least recently used, and goes first."""
    embedder = Moody()
    memory = open_library(embedder=embedder)
    library(memory, 3)
    for n in range(32):
        listed(memory, f"s{n}")
    embedder.mood = "raises"
    with pytest.raises(EmbeddingFailed):
        memory.search("cat", session="s0")
    with pytest.raises(EmbeddingFailed):
        memory.search("cat", session="s0", reset_seen=True)
    listed(memory, "s32")
    assert not knows(memory, "s0")


def test_sixteen_threads_of_one_session_are_as_if_serial(memory: Memory) -> None:
    """retrieval.md H2, faults.md BL-25: disjoint deliveries of at most 4, and the union is that of serial calls."""
    library(memory, 100)
    for question in ("content 7 summary", None):
        serial = [ids(memory.search(question, entity="图", session=f"serial {question}").results) for _ in range(16)]
        start = threading.Barrier(16)

        def call(_: int, question: str | None = question, start: threading.Barrier = start) -> list[str]:
            start.wait(timeout=20)
            return ids(memory.search(question, entity="图", session=f"parallel {question}").results)

        with ThreadPoolExecutor(16) as pool:
            batches = list(pool.map(call, range(16)))
        delivered = [each for batch in batches for each in batch]
        assert [len(batch) for batch in batches] == [4] * 16
        assert len(set(delivered)) == len(delivered)
        assert sorted(batches) == sorted(serial)


def test_threads_that_search_expand_and_look_nearby(memory: Memory) -> None:
    """retrieval.md H1, H2, faults.md BL-25: the three operations mixed on one session deliver each event once."""
    library(memory, 100)
    first = memory.search("content", entity="图")
    middle = ids(first.results)[0]
    start = threading.Barrier(16)

    def call(n: int) -> list[str]:
        start.wait(timeout=20)
        found: list[str] = []
        for _ in range(3):
            if n % 3 == 0:
                found += ids(memory.search("summary", entity="图").results)
            elif n % 3 == 1:
                found += ids(memory.expand(str(first.cursor), concept(first)).results)
            else:
                found += ids(memory.nearby(str(first.cursor), middle, before=10, after=10).results)
        return found

    with ThreadPoolExecutor(16) as pool:
        delivered = [each for batch in pool.map(call, range(16)) for each in batch] + ids(first.results)
    assert len(set(delivered)) == len(delivered)
    rest = []
    while batch := listed(memory):
        rest += batch
    assert sorted(delivered + rest) == [f"b_ch1_e{n:03}" for n in range(1, 101)]


def test_sixteen_tasks_of_one_session(memory: Memory) -> None:
    """retrieval.md H2, faults.md BL-25: asyncio tasks that call from worker threads deliver each event once."""
    library(memory, 64)

    async def course() -> list[SearchResult]:
        calls = [asyncio.to_thread(memory.search, "content", entity="图") for _ in range(16)]
        return await asyncio.gather(*calls)

    delivered = [each for result in asyncio.run(course()) for each in ids(result.results)]
    assert sorted(delivered) == [f"b_ch1_e{n:03}" for n in range(1, 65)]


class Meeting(TableEmbedder):
    """An embedder whose questions wait until as many others have come."""

    def __init__(self, parties: int) -> None:
        super().__init__()
        self.barrier = threading.Barrier(parties)

    def embed_query(self, text: str) -> NDArray[np.float32]:
        self.barrier.wait(timeout=20)
        return super().embed_query(text)


def test_many_sessions_do_not_block_one_another(open_library: OpenLibrary) -> None:
    """retrieval.md H2, faults.md BL-25: 16 sessions are inside the embedder at the same time, and see only their own history."""
    memory = open_library(embedder=Meeting(16))
    library(memory, 12)
    with ThreadPoolExecutor(16) as pool:
        for expected in (4, 4, 4, 0):
            batches = list(pool.map(lambda n: ids(memory.search("content", session=f"s{n}").results), range(16)))
            assert [len(batch) for batch in batches] == [expected] * 16
            assert batches == [batches[0]] * 16


class Gate(TableEmbedder):
    """An embedder whose questions wait at a gate."""

    def __init__(self) -> None:
        super().__init__()
        self.entered, self.open = threading.Event(), threading.Event()

    def embed_query(self, text: str) -> NDArray[np.float32]:
        self.entered.set()
        assert self.open.wait(timeout=20)
        return super().embed_query(text)


def test_a_slow_question_holds_up_its_own_session_only(open_library: OpenLibrary) -> None:
    """retrieval.md H2: calls of one session commit in order; other sessions, reads and saves go on meanwhile."""
    embedder = Gate()
    memory = open_library(embedder=embedder)
    library(memory, 8)
    with ThreadPoolExecutor(2) as pool:
        try:
            slow = pool.submit(lambda: ids(memory.search("content").results))
            assert embedder.entered.wait(timeout=20)
            waiting = pool.submit(lambda: listed(memory))
            assert len(listed(memory, "other")) == 4
            assert memory.read("b_ch1_e001").text == "content 1"
            memory.save(Event(id="new", summary="new"))
            assert threading.Event().wait(0.2) is False
            assert not waiting.done()
            assert not slow.done()
        finally:
            embedder.open.set()
        first, second = slow.result(timeout=20), waiting.result(timeout=20)
    assert len(first) == 4
    assert second == [each for each in sorted((f"b_ch1_e{n:03}" for n in range(1, 9)), reverse=True) if each not in first][:4]


def test_a_failure_among_threads_leaves_no_trace(open_library: OpenLibrary) -> None:
    """retrieval.md H2: calls that fail between others of the same session take nothing from them."""
    embedder = TableEmbedder({"bad": [float("nan")] * 16})
    memory = open_library(embedder=embedder)
    library(memory, 40)

    def call(n: int) -> list[str]:
        if n % 2:
            with pytest.raises(EmbeddingFailed):
                memory.search("bad", entity="图")
            return []
        return ids(memory.search("content", entity="图").results)

    with ThreadPoolExecutor(16) as pool:
        delivered = [each for batch in pool.map(call, range(20)) for each in batch]
    assert sorted(delivered) == [f"b_ch1_e{n:03}" for n in range(1, 41)]


class Meddling(TableEmbedder):
    """An embedder during whose questions something else happens to the library."""

    meanwhile: Callable[[], object] = staticmethod(lambda: None)

    def embed_query(self, text: str) -> NDArray[np.float32]:
        answer = super().embed_query(text)
        self.meanwhile()
        return answer


@pytest.mark.parametrize("hide", ["forget", "archive", "revoke"])
def test_what_is_hidden_during_the_question_is_not_delivered(open_library: OpenLibrary, hide: str) -> None:
    """retrieval.md Q2, H2, F2: visibility is that of the delivery, and the place is filled by the next best."""
    embedder = Meddling()
    memory = open_library(embedder=embedder)
    library(memory, 9)
    best = ids(memory.search("summary 7", session="before").results)[0]
    embedder.meanwhile = lambda: getattr(memory, hide)(best)
    result = memory.search("summary 7")
    assert best not in ids(result.results)
    assert len(result.results) == 4
    assert best not in {event for each in result.concepts for event in each.event_ids}
    memory.restore(best)
    assert best in listed(memory) + listed(memory)


def test_what_changes_during_the_question_is_quoted_exactly(open_library: OpenLibrary) -> None:
    """retrieval.md V1, H2: an update between recall and delivery leaves an exact excerpt of the text that is there."""
    embedder = Meddling()
    memory = open_library(embedder=embedder)
    for n, content in enumerate(("short", "", "needle " * 400, "图" * 3000)):
        memory.save(Event(id="a", summary="summary 7", content="x" * 1500 + " needle " + "y" * 1500))
        embedder.meanwhile = lambda content=content: memory.save(Event(id="a", summary="summary 7", content=content))  # type: ignore[misc]
        (result,) = memory.search("summary 7 needle", session=str(n)).results
        assert result.excerpt is not None  # type: ignore[union-attr]
        start, end = result.excerpt.range  # type: ignore[union-attr]
        assert memory.get("a").event.content == content
        assert content[start:end] == result.excerpt.text  # type: ignore[union-attr]
        assert result.content_length == len(content)  # type: ignore[union-attr]


@pytest.mark.parametrize("other", [{"model": "other"}, {"dimension": 8}])
def test_reembedding_during_the_question(open_library: OpenLibrary, other: dict[str, Any]) -> None:
    """retrieval.md C5, E4, S4: an answer whose cursor breaks, or a clear error that leaves no trace; never a mixture."""
    embedder = Meddling()
    memory = open_library(embedder=embedder)
    library(memory, 9)
    embedder.meanwhile = lambda: memory.reembed(TableEmbedder(**other))
    try:
        result = memory.search("summary 7")
    except WorkbenchError:
        assert len(listed(memory)) == 4
    else:
        assert ids(result.results)[0] == "b_ch1_e007"
        assert alive(memory, result) == "model_changed"
    assert ids(memory.search("summary 7", session="after").results)[0] == "b_ch1_e007"


class Turned(TableEmbedder):
    """Another model: other vectors for the same texts."""

    def vector(self, text: str) -> NDArray[np.float32]:
        return super().vector(f"{self.model} {text}")


@pytest.mark.parametrize("dimension", [16, 8])
def test_reembedding_and_hiding_during_the_question(open_library: OpenLibrary, dimension: int) -> None:
    """retrieval.md C5, E4, S4, Q3: a vector of the old model never ranks vectors of the new one, also when a call starts over."""
    embedder = Meddling()
    memory = open_library(embedder=embedder)
    library(memory, 9)
    best = ids(memory.search("summary 7", session="before").results)[0]

    def meanwhile() -> None:
        memory.forget(best)
        memory.reembed(Turned(model="other", dimension=dimension))

    embedder.meanwhile = meanwhile
    try:
        result = memory.search("summary 7", explain=True)
    except WorkbenchError:
        assert len(listed(memory)) == 4
        return
    fresh = memory.search("summary 7", session="fresh", explain=True)
    assert result.explanation is not None
    assert fresh.explanation is not None
    assert result.explanation.rows == fresh.explanation.rows
    assert best not in ids(result.results)


# -- H3: how much is kept ------------------------------------------------------------------------------------------------


def test_640_ids_are_kept_and_the_oldest_go_first(memory: Memory) -> None:
    """retrieval.md H3: all 640 stay excluded; the 641st lets the first delivered go, and so on."""
    memory.save_many(numbered(640, concepts=("图",)))
    order = []
    for _ in range(160):
        order += listed(memory)
    assert order == [f"e{n:03}" for n in range(640, 0, -1)]
    assert listed(memory) == []
    memory.save(Event(id="z", summary="z", concepts=("图",), written_at=START))
    assert listed(memory) == ["z"]
    for expected in order[:6]:
        assert listed(memory) == [expected]
    assert listed(memory, "other")[0] == "z"


@pytest.mark.parametrize(("others", "kept"), [(639, True), (640, False)])
def test_640_excerpts_are_kept(memory: Memory, others: int, kept: bool) -> None:
    """retrieval.md H3, V5: the excerpt is known after 639 others and dropped after 640."""
    memory.save_many([*numbered(others, concepts=("图",)), *twins("a", "b")])
    assert memory.search(entity="k a").results[0].excerpt is not None  # type: ignore[union-attr]
    seen = 0
    while batch := listed(memory):
        seen += len(batch)
    assert seen == others
    (result,) = memory.search(entity="k b").results
    assert (result.quote_ref is not None) == kept  # type: ignore[union-attr]


@pytest.mark.parametrize(("sessions", "kept"), [(32, True), (33, False)])
def test_32_sessions_are_kept(memory: Memory, sessions: int, kept: bool) -> None:
    """retrieval.md H3, faults.md BL-25: the 33rd session lets the least recently used go, which may see its events again."""
    library(memory, 3)
    for n in range(sessions):
        assert len(listed(memory, f"s{n}")) == 3
    assert knows(memory, "s0") == kept


def test_the_least_recently_used_session_goes(memory: Memory) -> None:
    """retrieval.md H3, H6: an empty call counts as a use."""
    library(memory, 3)
    for n in range(32):
        listed(memory, f"s{n}")
    assert knows(memory, "s0")
    listed(memory, "s32")
    assert knows(memory, "s0")
    assert knows(memory, "s2")
    assert not knows(memory, "s1")


@pytest.mark.parametrize("operation", ["search", "expand", "nearby"])
def test_every_operation_is_a_use(memory: Memory, operation: str) -> None:
    """retrieval.md H3, H6: search, expand and nearby each renew their session, with results or without."""
    library(memory, 6)
    first = memory.search(entity="图", session="s0")
    for n in range(1, 32):
        listed(memory, f"s{n}")
    for _ in range(2):
        if operation == "search":
            memory.search("content", session="s0")
        elif operation == "expand":
            memory.expand(str(first.cursor), concept(first), session="s0")
        else:
            memory.nearby(str(first.cursor), "b_ch1_e003", before=9, after=9, session="s0")
        listed(memory, "one more")
    assert knows(memory, "s0")


def test_32_cursors_are_kept_per_session(memory: Memory) -> None:
    """retrieval.md C5, C8: the 33rd cursor of a session lets its oldest go; another session's cursors are not counted."""
    library(memory, 33)
    other = memory.search(entity="k1", session="other")
    results = [memory.search(entity=f"k{n}") for n in range(1, 33)]
    assert [alive(memory, each) for each in results] == ["alive"] * 32
    results.append(memory.search(entity="k33"))
    assert [alive(memory, each) for each in results] == ["evicted"] + ["alive"] * 32
    assert alive(memory, other, session="other") == "alive"


# -- H4: reset -----------------------------------------------------------------------------------------------------------


def test_reset_clears_ids_excerpts_and_cursors_of_one_session(memory: Memory) -> None:
    """retrieval.md H4, H6, C8: before the search, for this session only."""
    library(memory, 5)
    memory.save_many(twins("a", "b"))
    mine, theirs = memory.search(entity="图"), memory.search(entity="图", session="other")
    memory.search(entity="k a")
    memory.search(entity="k a", session="other")
    again = memory.search(entity="图", reset_seen=True)
    assert ids(again.results) == ids(mine.results)
    assert "deliveredExcluded" not in [notice.code for notice in again.notices]
    assert alive(memory, mine) == "reset"
    assert alive(memory, again) == "alive"
    assert alive(memory, theirs, session="other") == "alive"
    assert listed(memory, "other") == ["b_ch1_e001"]
    assert memory.search(entity="k b").results[0].excerpt is not None  # type: ignore[union-attr]
    assert memory.search(entity="k b", session="other").results[0].quote_ref is not None  # type: ignore[union-attr]


def test_reset_of_an_empty_answer_holds(memory: Memory) -> None:
    """retrieval.md H4, C1: a search that finds nothing does not fail, so its reset stands."""
    library(memory, 3)
    first = memory.search(entity="图")
    assert memory.search(entity="nobody", reset_seen=True).results == ()
    assert alive(memory, first) == "reset"
    assert len(listed(memory)) == 3


@pytest.mark.parametrize("operation", ["read", "expand", "nearby"])
@pytest.mark.parametrize("value", [True, False])
def test_reset_is_refused_elsewhere(memory: Memory, operation: str, value: bool) -> None:
    """retrieval.md H4: reset_seen is valid for search only."""
    library(memory, 6)
    first = memory.search(entity="图")
    arguments: dict[str, Any] = {"operation": operation, "reset_seen": value}
    arguments |= {"event_id": "b_ch1_e003"} if operation != "expand" else {"concept_id": concept(first)}
    arguments |= {"cursor": first.cursor} if operation != "read" else {}
    with pytest.raises(InvalidRequest, match="reset_seen"):
        memory.tools.call("memory_database_search", arguments)
    assert alive(memory, first) == "alive"
    del arguments["reset_seen"]
    assert memory.tools.call("memory_database_search", arguments)["operation"] == operation


def test_reset_by_the_tool(memory: Memory) -> None:
    """retrieval.md H4, seed: reset_seen is an argument of the model's search."""
    library(memory, 3)
    asked = {"query_text": "content", "reset_seen": True}
    answers = [memory.tools.call("memory_database_search", asked, session="tool") for _ in range(3)]
    assert [len(answer["results"]) for answer in answers] == [3, 3, 3]
    assert memory.tools.call("memory_database_search", {"query_text": "content"}, session="tool")["results"] == []


# -- H5, H6: the clock, life of the state --------------------------------------------------------------------------------


def test_a_clock_that_steps_back_frees_nothing(memory: Memory, clock: Clock) -> None:
    """retrieval.md H6: no age is negative, so what was delivered stays delivered and a cursor stays alive."""
    library(memory, 5)
    first = memory.search(entity="图")
    for back in (timedelta(seconds=1), timedelta(hours=1), timedelta(days=400)):
        clock.now = START - back
        assert alive(memory, first) == "alive"
        assert not set(ids(first.results)) & set(listed(memory))
    clock.now = START + timedelta(**JUST_UNDER)
    assert not set(ids(first.results)) & set(listed(memory))
    assert alive(memory, first) == "alive"
    clock.now = START + timedelta(minutes=15)
    assert alive(memory, first) == "expired"
    assert set(ids(first.results)) <= set(listed(memory) + listed(memory))


def test_nothing_delivered_after_a_step_back_lasts_for_ever(memory: Memory, clock: Clock) -> None:
    """retrieval.md H1, H6: 15 minutes after the latest of all deliveries, by any count, everything is free again."""
    library(memory, 5)
    listed(memory, limit=2)
    clock.forward(hours=-1)
    assert listed(memory) == ["b_ch1_e003", "b_ch1_e002", "b_ch1_e001"]
    assert listed(memory) == []
    clock.forward(hours=1, minutes=15)
    assert len(listed(memory) + listed(memory)) == 5


def test_the_clock_alone_moves_time(memory: Memory, clock: Clock) -> None:
    """retrieval.md H5: an injected clock that stands still lets nothing expire; written_at is its time."""
    saved = memory.save(Event(id="a", summary="s", concepts=("图", "k1")))
    assert saved.written_at == clock()
    first = memory.search(entity="图")
    for _ in range(50):
        assert listed(memory) == []
    assert alive(memory, first) == "alive"


def test_reopening_starts_afresh(open_library: OpenLibrary, store_kind: str) -> None:
    """retrieval.md H6: state is kept in the process; a library opened again knows no delivery and no cursor."""
    memory = open_library()
    library(memory, 3)
    first = memory.search(entity="图")
    memory.close()
    again = open_library()
    if store_kind == "sqlite-memory":
        library(again, 3)
    assert alive(again, first) == "unknown"
    assert listed(again) == ids(first.results)


def test_namespaces_have_their_own_sessions(open_library: OpenLibrary) -> None:
    """retrieval.md section 1, H2: nothing crosses a namespace, also for a session of the same name."""
    one, two = open_library(namespace="one"), open_library(namespace="two")
    for memory in (one, two):
        library(memory, 3)
    first = one.search(entity="图")
    assert listed(two) == ids(first.results)
    assert alive(two, first) in ("unknown", "foreign_session")
    assert alive(one, first) == "alive"


def test_reading_and_looking_up_take_nothing(memory: Memory) -> None:
    """retrieval.md F1, Q14: read, get and name searches leave the delivery history as it is."""
    library(memory, 3)
    for n in range(1, 4):
        memory.read(f"b_ch1_e{n:03}")
        memory.get(f"b_ch1_e{n:03}")
    with pytest.raises(NotFound):
        memory.read("b_ch1_e999")
    memory.search("图", label="Concept")
    assert len(listed(memory)) == 3


@pytest.mark.parametrize("session", ["", "  ", "\u200b", "s" * 257, None, 7])
def test_a_session_id_that_can_not_be_one_is_refused(memory: Memory, session: Any) -> None:
    """retrieval.md section 1, S7: a session's id comes from the host; a blank or endless one is refused like any id."""
    library(memory, 3)
    with pytest.raises(InvalidRequest):
        memory.search(entity="图", session=session)
    assert len(listed(memory)) == 3


def sessions_by_hand(memory: Memory, names: Sequence[str]) -> list[int]:
    return [len(listed(memory, name)) for name in names]


def test_sessions_are_told_apart_by_their_exact_ids(memory: Memory) -> None:
    """retrieval.md H2: ids that only look alike are different sessions."""
    library(memory, 3)
    assert sessions_by_hand(memory, ["a", "A", " a", "ａ", "á", "a\u0301"]) == [3] * 6
    assert sessions_by_hand(memory, ["a", "A"]) == [0, 0]
