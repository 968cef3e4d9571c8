"""Killed servers, killed clients, many writers and large libraries on a real Neo4j server (faults.md part D and BL-42)."""

import contextlib
import json
import secrets
import threading
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import neo4j
import pytest

import workbench
from tests.children import ModelEmbedder, assert_made_by, assert_whole, fill, finish, made, next_line, numbered_model, say
from tests.neo4j_children import running
from tests.support import START, ids
from tools.neo4j.server import Endpoint, Neo4jServer
from workbench import Event, Memory, ModelMismatch, StoreUnavailable

SPELLINGS = ("RAG", "rag", "ＲＡＧ", "Ｒａｇ", " rag ", "rAG")


@pytest.fixture
def options(neo4j_server: Endpoint) -> dict[str, Any]:
    """Return how to open a library of this test on the shared server."""
    return {"address": neo4j_server.address, "auth": neo4j_server.auth, "namespace": f"faults-{secrets.token_hex(6)}"}


def opened(options: Mapping[str, Any], **more: Any) -> Memory:
    return workbench.open_memory(**{"embedder": numbered_model(0)} | dict(options) | more)


def asked(options: Mapping[str, Any], query: str) -> list[Any]:
    """Return the first column of what the server answers, asked without the workbench."""
    with neo4j.GraphDatabase.driver(options["address"], auth=options["auth"]) as driver:
        return [record[0] for record in driver.execute_query(query, {"namespace": options["namespace"]}).records]


def model_of(memory: Memory) -> int:
    return int((memory.stats().model or "model-0").rpartition("-")[2])


# -- the server is killed ------------------------------------------------------------------------------------------------


class Worker:
    """Does one thing again and again in a thread of its own, and keeps what was tried and what was acknowledged.

    :param address: of the server.
    :param memory: a library of events whose fields follow from their ids and versions.
    :param other: one of events that the library gives ids to.
    """

    def __init__(self, address: str, memory: Memory, other: Memory) -> None:
        self.address, self.memory, self.other = address, memory, other
        self.turn, self.model, self.done, self.outages = 2, 0, 0, 0
        self.versions = {"e0": 0, "e1": 1, "e2": 2}
        self.tried, self.numbered = set[str](), dict[str, str]()
        self.strange: list[BaseException] = []

    @contextlib.contextmanager
    def busy(self, mode: str) -> Iterator[None]:
        stop = threading.Event()
        thread = threading.Thread(target=self._run, args=(mode, stop), daemon=True)
        thread.start()
        try:
            yield
        finally:
            stop.set()
            thread.join(120)
        assert not thread.is_alive()
        assert self.strange == []

    def _run(self, mode: str, stop: threading.Event) -> None:
        while not stop.is_set() and not self.strange:
            self.turn += 1
            try:
                getattr(self, mode)()
                self.done += 1
            except StoreUnavailable:  # so it was not acknowledged
                self.outages += 1
            except BaseException as error:
                self.strange.append(error)

    def save(self) -> None:
        name, summary = f"e{self.turn % 5}", f"summary {self.turn}"
        self.memory.save(made(name, self.turn))
        self.versions[name] = self.turn
        self.tried.add(summary)
        saved = self.other.save(Event(summary=summary, content=f"content {self.turn}", concepts=(f"concept {self.turn % 7}",)))
        self.numbered[str(saved.id)] = summary

    def save_many(self) -> None:
        report = self.memory.save_many([made(f"e{each}", self.turn) for each in range(15)], batch_size=5)
        self.versions |= dict.fromkeys(report.saved, self.turn)
        assert all(isinstance(error, StoreUnavailable) for _, error in report.failed)
        if report.failed:
            raise report.failed[0][1]

    def reembed(self) -> None:
        self.memory.reembed(numbered_model(self.model + 1))
        self.model += 1

    def search(self) -> None:
        found = self.memory.search("summary", session=f"{self.turn}", explain=True)
        assert sorted(ids(found.results)) == ["e0", "e1", "e2"]

    def check(self) -> None:
        """Assert that nothing acknowledged is missing and nothing is there twice, and that the open library goes on working."""
        model = model_of(self.memory)
        assert model in (self.model, self.model + 1)
        with workbench.open_memory(self.address, embedder=numbered_model(model)) as fresh:
            found = assert_whole(fresh, numbered_model(model))
        assert set(self.versions) <= set(found)
        assert all(self.versions.get(name, 0) <= version <= self.turn for name, version in found.items())
        stored = {str(each.event.id): each.event.summary for each in self.other.events(limit=10_000)}
        assert self.numbered.items() <= stored.items()
        assert len(set(stored.values())) == len(stored)
        assert set(stored.values()) <= self.tried
        assert self.other.verify() == []
        if model != self.model:
            self.model = model + 1
            self.memory.reembed(numbered_model(self.model))
        assert self.memory.search("summary", session=f"check {self.turn}").results


def wait_for(count: Any, more: int, seconds: float = 90.0) -> None:
    """Wait until a count has risen."""
    goal, deadline = count() + more, time.monotonic() + seconds
    while count() < goal:
        assert time.monotonic() < deadline, "nothing goes on"
        time.sleep(0.01)


# -- the client is killed ------------------------------------------------------------------------------------------------


def survive(options: Mapping[str, Any], mode: str, kills: int, seed: int) -> int:
    """Have a worker killed again and again and check what it leaves each time; return how many kills met work in progress."""
    met = 0
    with opened(options) as memory, running("kill_loop", options, mode, kills, seed) as killer:
        for _ in range(kills):
            outcome = json.loads(next_line(killer))
            assert outcome["killed"]
            begin, current = time.monotonic(), model_of(memory)
            with opened(options, embedder=numbered_model(current)) as fresh:
                fresh.save(made("between", 1))
                assert time.monotonic() - begin < 15, "the dead left a lock behind"
                found = assert_whole(fresh, numbered_model(current))
            for event_id, version in (line.split() for line in outcome["acknowledged"]):
                assert (current if event_id == "model" else found[event_id]) >= int(version)
            met += bool(outcome["acknowledged"])
            say(killer)
        finish(killer)
    return met


# -- many writers --------------------------------------------------------------------------------------------------------


def assert_one_concept(options: Mapping[str, Any], saved: list[str]) -> None:
    """Assert that all those events are there, each once, and that one concept is mentioned by all."""
    assert len(set(saved)) == len(saved)
    assert sorted(asked(options, "MATCH (e:Event {namespace: $namespace}) RETURN e.id")) == sorted(saved)
    assert asked(options, "MATCH (c:Concept {namespace: $namespace}) RETURN c.nameKey") == ["rag"]
    mentions = "MATCH (:Event {namespace: $namespace})-[m:MENTIONS]->(:Concept {namespace: $namespace}) RETURN m.name"
    assert len(asked(options, mentions)) == len(saved)
    with opened(options, embedder=ModelEmbedder(), read_only=True) as memory:
        assert memory.verify() == []
        assert_made_by(memory, ModelEmbedder())
        library, names, events = memory.store.dump()
        (name,) = names
        assert name.name in SPELLINGS
        assert library.revision == len(saved)
        assert len(list(events)) == len(saved)


def test_sixteen_threads_bring_one_new_concept_in_many_spellings(options: dict[str, Any]) -> None:
    """faults BL-42 and BL-25: one node per key whatever the case and width, and every event is there once."""
    meet = threading.Barrier(16, timeout=30)
    with opened(options, embedder=ModelEmbedder()) as memory:

        def save(thread: int) -> list[str]:
            meet.wait()
            events = [Event(summary=f"{thread} {turn}", concepts=(SPELLINGS[(thread + turn) % 6],)) for turn in range(4)]
            return [str(memory.save(event).id) for event in events]

        with ThreadPoolExecutor(16) as threads:
            saved = [event_id for each in threads.map(save, range(16)) for event_id in each]
    assert sorted(saved, key=lambda each: int(each[6:])) == [f"event_{number}" for number in range(1, 65)]
    assert_one_concept(options, saved)


def test_two_processes_of_eight_threads_bring_one_new_concept(options: dict[str, Any]) -> None:
    """faults BL-42 and BL-28: likewise between processes, which share nothing but the server."""
    arguments = ("save_together", options)
    with running(*arguments, "a", 8, 4, json.dumps(SPELLINGS)) as one, running(*arguments, "b", 8, 4, json.dumps(SPELLINGS)) as two:
        assert [next_line(each) for each in (one, two)] == ["open", "open"]
        for each in (one, two):
            say(each)
        saved = [event_id for each in (one, two) for event_id in json.loads(finish(each)[0])]
    assert len(saved) == 64
    assert_one_concept(options, saved)


def test_sixteen_openers_of_one_empty_database_all_open_it(options: dict[str, Any]) -> None:
    """faults BL-42: opening makes constraints and the library; none of those that come at once fails, and there is one library."""
    meet = threading.Barrier(16, timeout=30)

    def create(number: int) -> str:
        meet.wait()
        with opened(options, embedder=ModelEmbedder()) as memory:
            return str(memory.save(Event(summary=f"of {number}", concepts=(SPELLINGS[number % 6],))).id)

    with ThreadPoolExecutor(16) as threads:
        saved = list(threads.map(create, range(16)))
    assert len(asked(options, "MATCH (l:Library {namespace: $namespace}) RETURN l.revision")) == 1
    assert_one_concept(options, saved)


def test_two_clients_re_embed_at_once_with_a_writer_beside_them(options: dict[str, Any]) -> None:
    """retrieval.md E3, faults BL-16: one model in the end, no vector of another, nothing lost that was acknowledged."""
    models = [numbered_model(number) for number in range(3)]
    begin, stop = threading.Barrier(3, timeout=30), threading.Event()
    acknowledged: dict[str, int] = {}
    with opened(options) as memory:
        fill(memory)
        memory.save_many([made(f"e{number}", 2) for number in range(3, 10)])

    def write() -> None:
        with contextlib.ExitStack() as stack:
            writers = [stack.enter_context(opened(options, embedder=model)) for model in models]
            begin.wait()
            for version in range(10, 10_000):
                if stop.is_set():
                    return
                for writer in writers:
                    with contextlib.suppress(ModelMismatch):
                        writer.save(made(f"e{version % 13}", version))
                        acknowledged[f"e{version % 13}"] = version
                time.sleep(0.05)

    def reembed(model: ModelEmbedder) -> int:
        with opened(options) as memory:
            begin.wait()
            return sum(not memory.reembed(model).cancelled for _ in range(3))

    with ThreadPoolExecutor(3) as threads:
        writing = threads.submit(write)
        re_embedding = [threads.submit(reembed, model) for model in models[1:]]
        try:
            assert [each.result(100) for each in re_embedding] == [3, 3]
        finally:
            stop.set()
        writing.result(30)
    assert acknowledged
    with opened(options) as memory:
        last = model_of(memory)
        assert last in (1, 2)
        found = assert_whole(memory, models[last])
        assert len(found) >= 10
        assert {name: found[name] for name in acknowledged} == acknowledged
    with opened(options, embedder=models[last]) as memory:
        assert memory.search("summary").results


# -- large libraries -----------------------------------------------------------------------------------------------------


def large(count: int, length: int) -> Iterator[Event]:
    """Yield events of different texts of a given length."""
    for number in range(count):
        sentence = f"Record {number} of the harbour, kept by hand {number % 97}. "
        yield Event(
            id=f"e{number:05}",
            summary=f"summary of record {number}",
            content=(sentence * (length // len(sentence) + 1))[:length],
            concepts=(f"topic {number % 50}", "harbour"),
            persons=(f"keeper {number % 97}",),
            written_at=START,
        )


def resident_bytes(server: Neo4jServer) -> int:
    """Return how much memory the server's process has ever had; 0 where it can not be seen."""
    status = Path(f"/proc/{server.pid}/status")
    lines = status.read_text().splitlines() if status.exists() else []
    return sum(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM:"))
