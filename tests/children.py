"""Processes that tests start, watch and kill, and what is used to judge the library that they leave behind.

``python -m tests.children <task> <arguments>`` runs one of ``TASKS``; :func:`running` starts it and ends it with the test.
A process that kills its workers does so by their id, and starts each by a fork: that is far quicker than a new interpreter.
"""

import contextlib
import gc
import json
import os
import random
import resource
import select
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

import workbench
from tests.support import START, TableEmbedder
from workbench import Event, Memory

ROOT = Path(__file__).parents[1]
VERSIONS = 10_000
"""More versions than a single worker ever writes of one event."""


# -- judging a library ---------------------------------------------------------------------------------------------------


class ModelEmbedder(TableEmbedder):
    """Gives every model its own vectors, so that a vector tells which model made it; slow if asked to be."""

    def __init__(self, model: str = "model-0", *, dimension: int = 16, seconds: float = 0.0) -> None:
        super().__init__(dimension=dimension, model=model)
        self.seconds = seconds

    def vector(self, text: str) -> NDArray[np.float32]:
        return super().vector(f"{self.model}\n{text}")

    def embed_documents(self, texts: Sequence[str]) -> NDArray[np.float32]:
        time.sleep(self.seconds)
        return super().embed_documents(texts)


def numbered_model(number: int, *, seconds: float = 0.0) -> ModelEmbedder:
    """Return one of a row of models; even and odd ones differ in their dimension too."""
    return ModelEmbedder(f"model-{number}", dimension=8 + 8 * (number % 2), seconds=seconds)


def made(event_id: str, version: int) -> Event:
    """Return an event whose every field follows from its id and version, so that half of one and half of another shows."""
    sentence = f"{event_id} in version {version} says so. "
    length = 700 + 700 * (version % 3)
    return Event(
        id=event_id,
        title=f"{event_id}/{version}",
        summary=f"summary of {event_id} in version {version}",
        content=(sentence * (length // len(sentence) + 1))[:length],
        concepts=("shared", concept_of(event_id, version)),
        persons=(f"person {version % 2}",),
        tags=(f"tag {version}",),
        written_at=START,
    )


def concept_of(event_id: str, version: int) -> str:
    """Return the concept that this event mentions in this version and no other event ever does."""
    return f"concept {event_id} {version % 3}"


def version_of(event: Event) -> int:
    return int(event.title.rpartition("/")[2])


def address_of(path: Path | str) -> str:
    return f"sqlite:///{path}"


def snapshot(memory: Memory) -> tuple[object, ...]:
    """Return everything that a library holds, to the last bit, as something that can be compared."""
    library, names, rows = memory.store.dump()
    return (
        library,
        [(each.label, each.key, each.name, each.id, each.vector.tobytes()) for each in names],
        [
            (
                each.event,
                each.visibility,
                each.superseded_by,
                each.adoptions,
                each.embedded.spans,
                each.embedded.summary.tobytes(),
                each.embedded.vectors.tobytes(),
                each.embedded.terms.keys.tobytes(),
                each.embedded.terms.counts.tobytes(),
            )
            for each in rows
        ],
    )


def spans_in(memory: Memory, event_id: str) -> list[tuple[int, int]] | None:
    """Return the chunks that the library holds of an event."""
    for each in list(memory.store.dump()[2]):
        if each.event.id == event_id:
            return None if each.embedded.spans is None else list(each.embedded.spans)
    raise AssertionError(f"there is no {event_id}")


def assert_made_by(memory: Memory, embedder: TableEmbedder) -> None:
    """Assert that every vector in the library is this embedder's, and that the library says so."""
    library, names, iterator = memory.store.dump()
    rows = list(iterator)
    if library.recipe.model is None:
        assert not names
        assert not rows
        return
    assert (library.recipe.model, library.recipe.dimension) == (embedder.model, embedder.dimension)
    for name in names:
        _assert_vector(name.vector, embedder, name.name)
    for each in rows:
        _assert_vector(each.embedded.summary, embedder, each.event.summary)
        for (start, end), vector in zip(each.embedded.spans or (), each.embedded.vectors, strict=True):
            text = each.event.content[start:end]
            if _visible(text):
                _assert_vector(vector, embedder, text)
            else:
                assert not vector.any()


def _visible(text: str) -> bool:
    return any(not char.isspace() and unicodedata.category(char) not in ("Cc", "Cf") for char in text)


def _assert_vector(vector: NDArray[np.float32], embedder: TableEmbedder, text: str) -> None:
    expected = embedder.vector(text).astype(np.float64)
    assert vector.shape == expected.shape
    np.testing.assert_allclose(vector, expected / np.linalg.norm(expected), atol=1e-5)


def assert_whole(memory: Memory, embedder: TableEmbedder) -> dict[str, int]:
    """Assert that every event of :func:`made` is whole, and return which version of each there is."""
    assert memory.verify() == []
    found: dict[str, int] = {}
    for stored in memory.events(limit=1000):
        event_id, version = stored.event.id, version_of(stored.event)
        assert event_id is not None
        assert stored.event == made(event_id, version)
        length = len(stored.event.content)
        assert stored.chunk_count == (1 if length <= 800 else 2 if length <= 1480 else 3)
        found[event_id] = version
    assert_made_by(memory, embedder)
    for event_id, version in found.items():
        for other in range(3):
            listed = memory.search(entity=[concept_of(event_id, other), "shared"], session=f"{event_id} {other} {version}")
            assert [each.id for each in listed.results] == ([event_id] if other == version % 3 else [])
    return found


# -- starting processes --------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def running(task: str, *arguments: object, flags: Sequence[str] = ("-W", "error")) -> Iterator[subprocess.Popen[str]]:
    """Yield a process that runs a task; it is killed, if it still runs, when the block ends."""
    command = [sys.executable, *flags, "-m", "tests.children", task, *map(str, arguments)]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, cwd=ROOT, stdin=pipe, stdout=pipe, stderr=pipe, text=True) as process:
        try:
            yield process
        finally:
            if process.poll() is None:
                process.kill()


def finish(process: subprocess.Popen[str], *, seconds: float = 60) -> list[str]:
    """Wait for a process, assert that it succeeded without a word of complaint, and return what it printed."""
    printed, complaints = process.communicate(timeout=seconds)
    assert (process.returncode, complaints) == (0, ""), f"ended with {process.returncode} and {complaints!r}"
    return printed.splitlines()


def run(task: str, *arguments: object) -> list[str]:
    """Run a task to its end and return the lines that it printed."""
    with running(task, *arguments) as process:
        return finish(process)


def next_line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().rstrip("\n")


def say(process: subprocess.Popen[str], line: str = "") -> None:
    assert process.stdin is not None
    process.stdin.write(line + "\n")
    process.stdin.flush()


# -- faults at a chosen statement ----------------------------------------------------------------------------------------


class Fuse:
    """Counts the statements that SQLite is given once lit, each row of a bulk statement too, and goes off at one of them.

    :param point: which statement, from 1; 0 never goes off.
    :param blow: what happens then, before the statement runs.
    """

    def __init__(self, point: int, blow: Callable[[], object]) -> None:
        self.point, self.blow, self.count, self.lit = point, blow, 0, False

    def step(self) -> None:
        if self.lit:
            self.count += 1
            if self.count == self.point:
                self.blow()

    def connect(self, real: Callable[..., sqlite3.Connection]) -> Callable[..., sqlite3.Connection]:
        """Return a stand-in for ``sqlite3.connect``."""
        fuse = self

        class Fused(sqlite3.Connection):
            def execute(self, sql: str, parameters: Any = (), /) -> sqlite3.Cursor:
                fuse.step()
                return super().execute(sql, parameters)

            def executemany(self, sql: str, rows: Iterable[Any], /) -> sqlite3.Cursor:
                return super().executemany(sql, fuse.stepping(rows))

        return lambda *arguments, **options: real(*arguments, factory=Fused, **options)

    def stepping(self, rows: Iterable[Any]) -> Iterator[Any]:
        for row in rows:
            self.step()
            yield row


def limited(real: Callable[..., sqlite3.Connection], pages: Callable[[], int]) -> Callable[..., sqlite3.Connection]:
    """Return a stand-in for ``sqlite3.connect`` on a disk that holds so many pages: beyond them SQLite reports SQLITE_FULL."""

    class Limited(sqlite3.Connection):
        def execute(self, sql: str, parameters: Any = (), /) -> sqlite3.Cursor:
            if sql.startswith("BEGIN"):
                super().execute(f"PRAGMA max_page_count = {pages()}").fetchone()
            return super().execute(sql, parameters)

    return lambda *arguments, **options: real(*arguments, factory=Limited, **options)


# -- tasks ---------------------------------------------------------------------------------------------------------------


def _print(line: str) -> None:
    print(line, flush=True)


def _warm_up() -> None:
    """Load all that is loaded when first used, so that a fork need not, and a process without rights can."""
    with tempfile.TemporaryDirectory() as folder:
        for address in ("sqlite://", address_of(f"{folder}/library.db")):
            with workbench.open_memory(address, embedder=numbered_model(0)) as memory:
                fill(memory)
                memory.search("summary")
                memory.reembed()
                memory.verify()


def _suicide() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def save_numbered(path: str, prefix: str, count: str) -> None:
    """Save events without ids one by one, printing the id of each once it is saved."""
    with workbench.open_memory(address_of(path), embedder=ModelEmbedder()) as memory:
        _print("open")
        sys.stdin.readline()
        for number in range(int(count)):
            event = Event(summary=f"{prefix} {number}", content=f"content {prefix} {number}", concepts=("shared", f"of {prefix}"))
            _print(f"{prefix} {number} {memory.save(event).id}")


def search_on(path: str) -> None:
    """Search until told to stop; print how often it was done and what the last listing held."""
    with workbench.open_memory(address_of(path), embedder=ModelEmbedder()) as memory:
        _print("open")
        rounds = 0
        while not _readable():
            result = memory.search("summary", session=f"s{rounds}")
            assert len(result.results) <= 4
            rounds += 1
        _print(str(rounds))


def _readable() -> bool:
    """Return whether a line, or the end, waits on standard input."""
    return bool(select.select([0], [], [], 0)[0])


def hold(path: str, seconds: str) -> None:
    """Keep a write transaction open for a while."""
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("BEGIN IMMEDIATE")
        _print("held")
        time.sleep(float(seconds))
        connection.execute("ROLLBACK")


def save_and_close(path: str) -> None:
    """Open a library, save much and close it, again and again until told to stop; print how often."""
    rounds = 0
    _print("ready")
    while not _readable():
        with workbench.open_memory(address_of(path), embedder=ModelEmbedder()) as memory:
            content = f"round {rounds} " * 1000
            memory.save_many(Event(id=f"e{rounds}-{each}", summary="a summary", content=content) for each in range(3))
        rounds += 1
    _print(str(rounds))


def open_together(path: str) -> None:
    """Open the same new libraries at the same moments as others do: a line with a number is the signal for one."""
    failures = []
    _print("ready")
    for line in iter(sys.stdin.readline, "\n"):
        try:
            workbench.open_memory(address_of(f"{path}{line.strip()}"), embedder=ModelEmbedder()).close()
        except workbench.WorkbenchError as error:
            failures.append(f"{type(error).__name__}: {error}")
        _print("opened")
    _print(json.dumps(failures))


def kill_loop(path: str, mode: str, kills: str, seed: str) -> None:
    """Kill a worker on the same library again and again, each time at a moment drawn anew; print what it acknowledged."""
    _warm_up()
    moments = random.Random(int(seed))
    for number in range(int(kills)):
        reading, writing = os.pipe()
        worker = os.fork()
        if not worker:
            os.close(reading)  # so that it ends with this process, should that be killed
            _work(path, mode, number, writing)
        os.close(writing)
        heard = os.read(reading, 5) if number % 6 else b""  # one in six may be killed while it opens
        if number % 2:  # and each second one has something to lose, however slow the machine is
            heard += os.read(reading, 4096)
        time.sleep(moments.uniform(0.0, 0.08))
        os.kill(worker, signal.SIGKILL)
        _, status = os.waitpid(worker, 0)
        with os.fdopen(reading, "rb") as pipe:
            acknowledged = (heard + pipe.read()).decode().splitlines()[1:]
        _print(json.dumps({"killed": os.WIFSIGNALED(status), "acknowledged": acknowledged}))
        sys.stdin.readline()


def _work(path: str, mode: str, number: int, output: int) -> None:
    """Save or re-embed until killed, acknowledging what came back."""
    embedder = numbered_model(0, seconds=0.001)
    with workbench.open_memory(address_of(path), embedder=embedder) as memory:
        stats = memory.stats()
        embedder.model, embedder.dimension = stats.model or embedder.model, stats.dimension or embedder.dimension
        current = int(embedder.model.rpartition("-")[2])
        os.write(output, b"open\n")
        for version in range(number * VERSIONS, (number + 1) * VERSIONS):
            if mode == "save" or (mode == "all" and version % 3 == 0):
                saved = [memory.save(made(f"e{version % 5}", version)).id]
            elif mode == "save_many" or (mode == "all" and version % 3 == 1):
                saved = list(memory.save_many([made(f"e{each}", version) for each in range(7)], batch_size=3).saved)
            else:
                current += 1
                memory.reembed(numbered_model(current, seconds=0.001))
                os.write(output, f"model {current}\n".encode())
                continue
            os.write(output, "".join(f"{each} {version}\n" for each in saved).encode())
    os._exit(0)


def fault_points(path: str, copy: str, operation: str) -> None:
    """Kill a worker at its first, second, third … statement, on a fresh copy of a library, until one gets through."""
    _warm_up()
    for point in range(1, 1000):
        for suffix in ("", "-wal", "-shm"):
            Path(copy + suffix).unlink(missing_ok=True)
        Path(copy).write_bytes(Path(path).read_bytes())
        worker = os.fork()
        if not worker:
            fuse = Fuse(point, _suicide)
            sqlite3.connect = fuse.connect(sqlite3.connect)  # type: ignore[assignment]
            memory = workbench.open_memory(address_of(copy), embedder=numbered_model(0))
            fuse.lit = True
            OPERATIONS[operation](memory)
            os._exit(0)
        _, status = os.waitpid(worker, 0)
        _print("killed" if os.WIFSIGNALED(status) else f"exit {os.WEXITSTATUS(status)}")
        sys.stdin.readline()
        if not os.WIFSIGNALED(status):
            return


OPERATIONS: dict[str, Callable[[Memory], object]] = {
    "save": lambda memory: memory.save(made("new", 2)),
    "update": lambda memory: memory.save(made("e1", 5)),
    "save_many": lambda memory: memory.save_many([made("e0", 4), made("new", 2)]),
    "reembed": lambda memory: memory.reembed(numbered_model(1)),
    "forget": lambda memory: memory.forget("e1"),
}
"""What a library of :func:`fill` is made to do while it is being killed or broken."""


def fill(memory: Memory) -> None:
    """Save three events: of one chunk, two and three."""
    memory.save_many([made(f"e{number}", number) for number in range(3)])


def small_disk(path: str, size: str) -> None:
    """Save until no file may grow beyond ``size`` bytes; print each id once saved, then the error."""
    with workbench.open_memory(address_of(path), embedder=numbered_model(0)) as memory:
        resource.setrlimit(resource.RLIMIT_FSIZE, (int(size), int(size)))
        for number in range(1000):
            try:
                _print(str(memory.save(made(f"e{number}", number)).id))
            except workbench.WorkbenchError as error:
                _print(type(error).__name__)
                return


def nobody(path: str, task: str, read_only: str) -> None:
    """Give up the rights of root, then open a library and use it; print each answer or error."""
    _warm_up()
    if os.getuid() == 0:
        os.setgroups([])
        os.setgid(65534)
        os.setuid(65534)
    try:
        with workbench.open_memory(address_of(path), embedder=numbered_model(0), read_only=bool(int(read_only))) as memory:
            _print("open")
            if task == "save":
                memory.save(made("new", 2))
                _print("saved")
            else:
                _print(str(memory.stats().events))
                _print(str(len(memory.search("summary").results)))
                _print(str(len(memory.verify())))
    except workbench.WorkbenchError as error:
        _print(type(error).__name__)


def drop_reference(path: str) -> None:
    """Drop the last reference to libraries in use without closing them."""
    for address in ("sqlite://", address_of(path)):
        memory = workbench.open_memory(address, embedder=ModelEmbedder())
        memory.save(made("e0", 0))
        memory.search("summary")
        del memory
        gc.collect()
    kept = workbench.open_memory(address_of(path), embedder=ModelEmbedder())
    kept.save(made("e1", 0))  # and one that is open when the interpreter ends
    _print("done")


def fork_and_use(path: str) -> None:
    """Use a library, fork, and go on using it on both sides at once."""
    memory = workbench.open_memory(address_of(path), embedder=ModelEmbedder())
    memory.save(made("before", 0))
    memory.search("summary")
    worker = os.fork()
    name = "parent" if worker else "child"
    for number in range(20):
        memory.save(made(f"{name}{number}", number))
        assert memory.search("summary", session=f"{name}{number}").results
        assert memory.get("before").event == made("before", 0)
    if not worker:
        memory.close()
        sys.exit(0)
    _, status = os.waitpid(worker, 0)
    memory.save(made("after", 0))
    _print(f"{os.waitstatus_to_exitcode(status)} {len(memory.verify())} {memory.stats().events}")
    memory.close()


def fork_in_memory() -> None:
    """Use a library in memory on the far side of a fork, where it can not work."""
    memory = workbench.open_memory("sqlite://", embedder=ModelEmbedder())
    memory.save(made("before", 0))
    worker = os.fork()
    if not worker:
        try:
            memory.get("before")
        except workbench.StoreUnavailable:
            os._exit(7)
        os._exit(8)
    _, status = os.waitpid(worker, 0)
    _print(f"{os.waitstatus_to_exitcode(status)} {memory.get('before').event.id}")
    memory.close()


TASKS: dict[str, Callable[..., None]] = {
    task.__name__: task
    for task in (
        save_numbered,
        search_on,
        hold,
        save_and_close,
        open_together,
        kill_loop,
        fault_points,
        small_disk,
        nobody,
        drop_reference,
        fork_and_use,
        fork_in_memory,
    )
}


if __name__ == "__main__":
    TASKS[sys.argv[1]](*sys.argv[2:])
