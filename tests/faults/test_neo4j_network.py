"""The network between a library and its Neo4j server: lost answers, cut and silent connections (faults.md BL-30, BL-44, BL-47)."""

import random
import secrets
import signal
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

import workbench
from tests.children import ModelEmbedder, assert_made_by, assert_whole, fill, made, numbered_model, snapshot
from tests.proxy import Fate, Proxy
from tests.support import START, Clock, ids
from tools.neo4j.server import Endpoint
from workbench import Event, Memory, StoreUnavailable
from workbench.core.stores import neo4j_connection, neo4j_writes

Opener = Callable[..., Memory]


@pytest.fixture
def proxy(neo4j_server: Endpoint) -> Iterator[Proxy]:
    with Proxy(neo4j_server.address) as proxy:
        yield proxy


@pytest.fixture
def opened(neo4j_server: Endpoint) -> Iterator[Opener]:
    """Return a function that opens a library of this test, at the server itself unless an address is given."""
    own, memories = f"network-{secrets.token_hex(6)}", list[Memory]()

    def open_(address: str = neo4j_server.address, *, namespace: str = "library", **options: Any) -> Memory:
        settings: dict[str, Any] = {"embedder": numbered_model(0), "clock": Clock(), "auth": neo4j_server.auth} | options
        memories.append(workbench.open_memory(address, namespace=f"{own} {namespace}", **settings))
        return memories[-1]

    yield open_
    for memory in memories:
        memory.close()


def content(memory: Memory) -> tuple[object, ...]:
    """Return all that a library holds and how often it was written, but not its name."""
    library, *rest = snapshot(memory)
    return library.revision, library.recipe, *rest  # type: ignore[attr-defined]


def breaking(proxy: Proxy, *fates: Fate) -> None:
    """Let the next COMMITs meet these fates, and pass on all others."""
    first = proxy.commits + 1
    coming = dict(enumerate(fates, first))
    proxy.fate = lambda number: coming.get(number, "pass")


def save_two(memory: Memory) -> None:
    for number in range(2):
        memory.save(Event(summary=f"numbered {number}", concepts=(f"new {number}",)))


OPERATIONS: dict[str, Callable[[Memory], object]] = {
    "save": lambda memory: memory.save(made("new", 2)),
    "save without ids": save_two,
    "update": lambda memory: memory.save(made("e1", 5)),
    "save_many": lambda memory: memory.save_many([made(f"e{number}", 4) for number in range(5)], batch_size=3),
    "reembed": lambda memory: memory.reembed(numbered_model(1)),
    "forget": lambda memory: memory.forget("e1"),
    "supersede": lambda memory: memory.supersede("e1", by="e2"),
}


# -- a COMMIT whose answer is lost ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("fate", ["lost", "done", "late"])
@pytest.mark.parametrize("operation", OPERATIONS)
def test_a_change_whose_answer_is_lost_is_made_once(proxy: Proxy, opened: Opener, operation: str, fate: Fate) -> None:
    """faults BL-30, retrieval.md S3: cut before, after or during the COMMIT, it is looked up, and all is as if nothing had been."""
    memory, twin = opened(proxy.address), opened(namespace="twin")
    for each in (memory, twin):
        fill(each)
    begun = proxy.commits
    breaking(proxy, fate)
    for each in (memory, twin):
        OPERATIONS[operation](each)
    assert proxy.commits > begun
    assert proxy.connections > 1
    assert content(memory) == content(twin)
    assert memory.verify() == []
    assert memory.save(Event(summary="next", written_at=START)) == twin.save(Event(summary="next", written_at=START))


@pytest.mark.parametrize("fate", ["lost", "done", "late"])
def test_a_library_whose_creation_is_not_answered_is_there_once(proxy: Proxy, opened: Opener, fate: Fate) -> None:
    """faults BL-30: opening is a write of its own, with the same doubt."""
    breaking(proxy, fate)
    with opened(proxy.address) as memory:
        fill(memory)
        assert proxy.connections > 1
        assert set(assert_whole(memory, numbered_model(0))) == {"e0", "e1", "e2"}


@pytest.mark.parametrize("fates", [("lost", "lost", "lost"), ("lost", "done"), ("lost", "late"), ("lost", "lost", "done")])
def test_several_broken_connections_in_a_row_are_survived(proxy: Proxy, opened: Opener, fates: tuple[Fate, ...]) -> None:
    """faults BL-30: the retry may break like the first attempt; no id is passed over or given twice."""
    memory = opened(proxy.address)
    memory.save(Event(summary="first"))
    breaking(proxy, *fates)
    assert memory.save(Event(summary="second", concepts=("new",))).id == "event_2"
    assert memory.save(Event(summary="third", concepts=("new",))).id == "event_3"
    assert sorted(ids(each.event for each in memory.events())) == ["event_1", "event_2", "event_3"]
    assert memory.stats().concepts == 1
    assert memory.verify() == []


def test_a_connection_that_always_breaks_is_given_up_and_said_to_be_unknown(proxy: Proxy, opened: Opener) -> None:
    """faults BL-30: attempts are bounded, and the error leaves no doubt that there is doubt."""
    memory = opened(proxy.address)
    fill(memory)
    before = content(memory)
    begun = proxy.commits
    proxy.fate = lambda _: "lost"
    with pytest.raises(StoreUnavailable, match="Look for it before you repeat it") as caught:
        memory.save(made("new", 2))
    assert not caught.value.retryable
    assert 1 < proxy.commits - begun <= 5
    proxy.fate = lambda _: "pass"
    assert content(memory) == before
    memory.save(made("new", 2))
    assert assert_whole(memory, numbered_model(0))["new"] == 2


@pytest.mark.parametrize("fate", ["lost", "done"])
@pytest.mark.parametrize("operation", ["save", "save without ids", "reembed", "forget"])
def test_a_server_that_never_comes_back_leaves_the_outcome_unknown(
    proxy: Proxy, opened: Opener, monkeypatch: pytest.MonkeyPatch, operation: str, fate: Fate
) -> None:
    """faults BL-30 and BL-47: within the bound the error says that nobody knows; no COMMIT is sent again; all or nothing."""
    monkeypatch.setattr(neo4j_connection, "PATIENCE", 1.0)
    memory, other = opened(proxy.address), opened()
    fill(memory)
    before = content(other)
    breaking(proxy, fate)
    seen, proxy.afterwards = proxy.commits, proxy.shut
    begin = time.monotonic()
    with pytest.raises(StoreUnavailable, match="Look for it before you repeat it") as caught:
        OPERATIONS[operation](memory)
    assert time.monotonic() - begin < 20
    assert not caught.value.retryable
    assert proxy.commits == seen + 1
    assert (content(other) != before) is (fate == "done")
    assert other.verify() == []
    proxy.afterwards = lambda: None
    proxy.open()
    assert content(memory) == content(other)
    if operation != "reembed":  # whose model the library may have by now
        memory.save(made("e0", 7))
    assert memory.verify() == []


def test_a_batch_of_unknown_outcome_is_reported_as_such(proxy: Proxy, opened: Opener, monkeypatch: pytest.MonkeyPatch) -> None:
    """retrieval.md S5: on failure save_many says which events are saved, which are not, and of which nobody knows."""
    monkeypatch.setattr(neo4j_connection, "PATIENCE", 1.0)
    monkeypatch.setattr(neo4j_connection, "FIRST_PATIENCE", 1.0)
    memory = opened(proxy.address)
    breaking(proxy, "pass", "done")
    proxy.afterwards = proxy.shut
    report = memory.save_many([made(f"e{number}", 0) for number in range(6)], batch_size=2)
    assert report.saved == ("e0", "e1")
    assert [event_id for event_id, _ in report.failed] == ["e2", "e3", "e4", "e5"]
    assert [error.retryable for _, error in report.failed] == [False, False, True, True]
    proxy.open()
    assert set(assert_whole(memory, numbered_model(0))) == {"e0", "e1", "e2", "e3"}


@pytest.mark.parametrize(
    ("fate", "others", "known"), [("lost", 3, True), ("lost", 4, False), ("done", 2, True), ("done", 3, False)]
)
def test_what_others_write_meanwhile_does_not_mislead_the_look(
    proxy: Proxy, opened: Opener, monkeypatch: pytest.MonkeyPatch, fate: Fate, others: int, known: bool
) -> None:
    """faults BL-30: as long as the library remembers a write it is never made twice; beyond, the outcome is called unknown."""
    monkeypatch.setattr(neo4j_writes, "KEPT_WRITES", 3)
    memory, other = opened(proxy.address), opened()
    fill(memory)
    breaking(proxy, fate)
    proxy.afterwards = lambda: [other.save(made("e1", 10 + number)) for number in range(others)]
    if known:
        memory.save(made("e1", 5))
        assert other.get("e1").event == made("e1", 9 + others if fate == "done" else 5)
    else:
        with pytest.raises(StoreUnavailable, match="Look for it before you repeat it") as caught:
            memory.save(made("e1", 5))
        assert not caught.value.retryable
        assert other.get("e1").event == made("e1", 9 + others)
    assert other.store.library().revision == 1 + others + (fate == "done" or known)
    assert_whole(memory, numbered_model(0))


def test_a_stale_re_embedding_whose_answer_is_lost_takes_what_others_saved_along(proxy: Proxy, opened: Opener) -> None:
    """retrieval.md E3: the first attempt was not made, and by the second one the library had moved on."""
    memory, other = opened(proxy.address), opened()
    fill(memory)
    breaking(proxy, "lost")
    proxy.afterwards = lambda: other.save(made("e1", 5))
    memory.reembed(numbered_model(1))
    assert assert_whole(memory, numbered_model(1)) == {"e0": 0, "e1": 5, "e2": 2}


def test_eight_threads_save_over_a_connection_that_keeps_breaking(proxy: Proxy, opened: Opener) -> None:
    """faults BL-25, BL-30, BL-42: every save succeeds, each id is given once, a concept that all bring is one node."""
    chance, lock = random.Random(7), threading.Lock()

    def fate(_: int) -> Fate:
        with lock:
            return chance.choice(["pass", "pass", "lost", "done"])

    memory = opened(proxy.address, embedder=ModelEmbedder())
    memory.save(Event(id="first", summary="first"))
    proxy.fate = fate

    def save(thread: int) -> list[tuple[str, str]]:
        names = ("检索", "Search", "ＳＥＡＲＣＨ", f"own {thread}")
        made_here = [Event(summary=f"{thread} {turn}", concepts=names) for turn in range(5)]
        return [(event.summary, str(memory.save(event).id)) for event in made_here]

    with ThreadPoolExecutor(8) as threads:
        saved = dict(pair for each in threads.map(save, range(8)) for pair in each)
    proxy.fate = lambda _: "pass"
    assert proxy.commits > 45
    assert len(set(saved.values())) == 40
    stored = {each.event.summary: each.event.id for each in memory.events()}
    assert stored == saved | {"first": "first"}
    assert (memory.stats().events, memory.stats().concepts) == (41, 10)
    assert memory.verify() == []
    assert_made_by(memory, ModelEmbedder())


# -- connections that break at other times -------------------------------------------------------------------------------


def test_idle_connections_that_were_cut_are_replaced(proxy: Proxy, opened: Opener) -> None:
    """faults BL-47: a firewall drops what is idle; the next read and the next write go on without a word."""
    memory = opened(proxy.address)
    fill(memory)
    for turn in range(3, 6):
        proxy.cut()
        made_so_far = proxy.connections
        assert len(memory.search("summary", session=str(turn)).results) == 3
        proxy.cut()
        memory.save(made("e1", turn))
        assert proxy.connections >= made_so_far + 2
    assert assert_whole(memory, numbered_model(0)) == {"e0": 0, "e1": 5, "e2": 2}


@pytest.mark.parametrize("operation", ["search", "save", "save_many", "reembed", "verify", "events"])
def test_connections_cut_in_the_middle_of_anything_change_nothing(proxy: Proxy, opened: Opener, operation: str) -> None:
    """faults BL-30 and BL-47: cut again and again, each call answers as if nothing had been, and nothing is half there."""
    memory, chance, done = opened(proxy.address), random.Random(operation), threading.Event()
    expected, model = {"e0": 0, "e1": 1, "e2": 2}, 0
    fill(memory)

    def call(turn: int) -> None:
        nonlocal model
        if operation == "search":
            assert len(memory.search("summary", session=str(turn)).results) == 3
        elif operation == "save":
            memory.save(made(f"e{turn % 3}", turn))
            expected[f"e{turn % 3}"] = turn
        elif operation == "save_many":
            report = memory.save_many([made(f"e{each}", turn) for each in range(5)], batch_size=2)
            assert report.failed == ()
            expected.update(dict.fromkeys(report.saved, turn))
        elif operation == "reembed":
            model += 1
            memory.reembed(numbered_model(model))
        elif operation == "verify":
            assert memory.verify() == []
        else:
            assert ids(each.event for each in memory.events()) == ["e0", "e1", "e2"]

    def cut() -> None:
        while not done.wait(chance.uniform(0.02, 0.3)):
            proxy.cut()

    cutter = threading.Thread(target=cut)
    cutter.start()
    try:
        begin, turn = time.monotonic(), 2
        while time.monotonic() - begin < 2:
            turn += 1
            call(turn)
    finally:
        done.set()
        cutter.join()
    assert proxy.connections > 2
    assert assert_whole(memory, numbered_model(model)) == expected


def test_a_writer_that_falls_silent_does_not_keep_the_others_out(
    proxy: Proxy, opened: Opener, monkeypatch: pytest.MonkeyPatch
) -> None:
    """faults BL-28: the server ends its transaction after the bound, lock and all, and its own retry is made after the others."""
    silent, other, reached = opened(proxy.address), opened(), threading.Event()
    fill(silent)

    def fate(_: int) -> Fate:
        proxy.fate = lambda _: "pass"
        reached.set()
        time.sleep(12)
        return "lost"

    proxy.fate = fate
    monkeypatch.setattr(neo4j_connection, "WRITE_SECONDS", 1.0)
    with ThreadPoolExecutor(1) as threads:
        saving = threads.submit(silent.save, made("e1", 5))
        assert reached.wait(20)
        monkeypatch.setattr(neo4j_connection, "WRITE_SECONDS", 60.0)
        begin = time.monotonic()
        other.save(made("e1", 4))
        assert 0.3 < time.monotonic() - begin < 9
        assert not saving.done()
        assert saving.result(40) == made("e1", 5)
    assert assert_whole(other, numbered_model(0))["e1"] == 5


def test_an_answer_that_is_late_is_waited_for(proxy: Proxy, opened: Opener) -> None:
    """faults BL-47: slowness is no failure, for a read as for a COMMIT, and nothing is done twice."""
    memory = opened(proxy.address)
    fill(memory)
    for call in (lambda: memory.search("summary", session="x").results, lambda: memory.save(made("new", 2))):
        proxy.hold()
        threading.Timer(1.0, proxy.release).start()
        begin = time.monotonic()
        assert call()
        assert 0.9 < time.monotonic() - begin < 20
    assert proxy.connections == 1
    assert memory.store.library().revision == 2


def test_interrupted_while_the_server_is_silent_the_library_goes_on(proxy: Proxy, opened: Opener) -> None:
    """faults BL-44: Ctrl-C during a search or a COMMIT leaves no connection behind that answers the wrong question."""
    memory, other = opened(proxy.address), opened()
    fill(memory)
    main = threading.get_ident()

    def interrupted(call: Callable[[], object]) -> None:
        timers = [threading.Timer(0.5, signal.pthread_kill, (main, signal.SIGINT)), threading.Timer(1.0, proxy.release)]
        for timer in timers:
            timer.start()
        with pytest.raises(KeyboardInterrupt):
            call()
        for timer in timers:
            timer.join()

    for turn in range(2):
        proxy.hold()
        interrupted(lambda: memory.search("summary", session=f"held {turn}"))  # noqa: B023
        assert len(memory.search("summary", session=f"after {turn}").results) == 3
    begun = proxy.commits

    def silent(_: int) -> Fate:
        proxy.hold()
        return "pass"

    proxy.fate = silent
    interrupted(lambda: memory.save(made("new", 2)))
    proxy.fate = lambda _: "pass"
    assert proxy.commits == begun + 1
    assert other.get("new").event == made("new", 2)
    assert set(assert_whole(memory, numbered_model(0))) == {"e0", "e1", "e2", "new"}
    saved = memory.save(Event(summary="next"))
    assert other.get(str(saved.id)).event == saved


def test_closed_while_a_commit_is_not_answered_the_answer_is_heard(proxy: Proxy, opened: Opener) -> None:
    """faults BL-44 and BL-30: closing waits for nobody and takes the connection from nobody; the next call is refused."""
    memory, other = opened(proxy.address), opened()
    fill(memory)
    reached = threading.Event()

    def fate(_: int) -> Fate:
        proxy.hold()
        reached.set()
        return "pass"

    proxy.fate = fate
    with ThreadPoolExecutor(1) as threads:
        saving = threads.submit(memory.save, made("new", 2))
        assert reached.wait(20)
        begin = time.monotonic()
        memory.close()
        assert time.monotonic() - begin < 2
        with pytest.raises(StoreUnavailable, match="closed"):
            memory.get("new")
        assert not saving.done()
        proxy.release()
        assert saving.result(20) == made("new", 2)
    assert other.get("new").event == made("new", 2)
    assert other.verify() == []


@pytest.mark.parametrize("operation", ["search", "save"])
def test_a_call_through_an_outage_goes_on_as_soon_as_the_server_is_back(proxy: Proxy, opened: Opener, operation: str) -> None:
    """faults BL-47: server down, then up: within the bound the call waits, not much longer than it must; nothing is reopened."""
    memory = opened(proxy.address)
    fill(memory)
    proxy.shut()
    back = threading.Timer(4.5, proxy.open)
    back.start()
    begin = time.monotonic()
    if operation == "search":
        assert len(memory.search("summary").results) == 3
    else:
        memory.save(made("new", 2))
    assert 4.0 < time.monotonic() - begin < 7.5
    assert len(assert_whole(memory, numbered_model(0))) == (3 if operation == "search" else 4)


def test_an_outage_beyond_the_bound_is_a_clear_error_and_no_longer(
    proxy: Proxy, opened: Opener, monkeypatch: pytest.MonkeyPatch
) -> None:
    """faults BL-47: bounded retry and a distinct message; what failed is retryable, recorded nowhere, and works afterwards."""
    monkeypatch.setattr(neo4j_connection, "PATIENCE", 0.4)
    monkeypatch.setattr(neo4j_connection, "FIRST_PATIENCE", 0.4)
    memory = opened(proxy.address)
    fill(memory)
    before = content(memory)
    proxy.shut()
    calls: list[Callable[[], object]] = [
        lambda: memory.search("summary"),
        lambda: memory.read("e1"),
        lambda: memory.save(made("new", 2)),
        lambda: memory.forget("e1"),
        lambda: memory.reembed(numbered_model(1)),
        memory.verify,
        memory.stats,
        lambda: opened(proxy.address),
    ]
    for call in calls:
        begin = time.monotonic()
        with pytest.raises(StoreUnavailable, match="does not answer") as caught:
            call()
        assert caught.value.retryable
        assert time.monotonic() - begin < 15
    proxy.open()
    assert content(memory) == before
    assert len(memory.search("summary").results) == 3
