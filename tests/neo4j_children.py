"""Processes that use a library on a Neo4j server, to be watched and killed: the like of :mod:`tests.children`.

``python -m tests.neo4j_children <task> <options of open_memory as JSON> <arguments>`` runs one of ``TASKS``.
"""

import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import workbench
from tests.children import ROOT, VERSIONS, ModelEmbedder, finish, made, numbered_model
from workbench import Event, Memory

Options = Mapping[str, Any]


@contextlib.contextmanager
def running(task: str, options: Options, *arguments: object) -> Iterator[subprocess.Popen[str]]:
    """Yield a process that runs a task; it is killed, if it still runs, when the block ends."""
    command = [sys.executable, "-W", "error", "-m", "tests.neo4j_children", task, json.dumps(options), *map(str, arguments)]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, cwd=ROOT, stdin=pipe, stdout=pipe, stderr=pipe, text=True) as process:
        try:
            yield process
        finally:
            if process.poll() is None:
                process.kill()


def run(task: str, options: Options, *arguments: object) -> list[str]:
    """Run a task to its end and return the lines that it printed."""
    with running(task, options, *arguments) as process:
        return finish(process)


def opened(options: Options, **more: Any) -> Memory:
    return workbench.open_memory(**{"embedder": ModelEmbedder()} | dict(options) | more)


def work(options: Options, mode: str, number: int, acknowledge: Callable[[str], object]) -> None:
    """Save or re-embed without end, acknowledging what came back: an id with its version, or a model."""
    embedder = numbered_model(0)
    with opened(options, embedder=embedder) as memory:
        stats = memory.stats()
        embedder.model, embedder.dimension = stats.model or embedder.model, stats.dimension or embedder.dimension
        current = int(embedder.model.rpartition("-")[2])
        acknowledge("open")
        for version in range(number * VERSIONS, (number + 1) * VERSIONS):
            if mode == "reembed":
                current += 1
                memory.reembed(numbered_model(current))
                acknowledge(f"model {current}")
            else:
                report = memory.save_many([made(f"e{each}", version) for each in range(7)], batch_size=3)
                for each in report.saved:
                    acknowledge(f"{each} {version}")


# -- tasks ---------------------------------------------------------------------------------------------------------------


def kill_loop(options: Options, mode: str, kills: str, seed: str) -> None:
    """Kill a worker on one library again and again, each time at a moment drawn anew; print what it acknowledged."""
    moments = random.Random(int(seed))
    opened(options).close()  # loads all that is loaded when first used, so that a fork need not
    for number in range(int(kills)):
        reading, writing = os.pipe()
        worker = os.fork()
        if not worker:
            os.close(reading)
            work(options, mode, number, lambda line: os.write(writing, f"{line}\n".encode()))  # noqa: B023
            os._exit(0)
        os.close(writing)
        heard = os.read(reading, 5) if number % 4 else b""  # one in four may be killed while it opens
        time.sleep(moments.uniform(0.0, 0.6))
        os.kill(worker, signal.SIGKILL)
        _, status = os.waitpid(worker, 0)
        with os.fdopen(reading, "rb") as pipe:
            acknowledged = (heard + pipe.read()).decode().splitlines()[1:]
        print(json.dumps({"killed": os.WIFSIGNALED(status), "acknowledged": acknowledged}), flush=True)
        sys.stdin.readline()


def save_together(options: Options, prefix: str, threads: str, turns: str, names: str) -> None:
    """Save events without ids from many threads, all mentioning one concept in one of several spellings; print the ids."""
    spellings = json.loads(names)
    with opened(options) as memory, ThreadPoolExecutor(int(threads)) as pool:
        memory.stats()
        print("open", flush=True)
        sys.stdin.readline()

        def save(thread: int) -> list[str]:
            events = [
                Event(summary=f"{prefix} {thread} {turn}", concepts=(spellings[(thread + turn) % len(spellings)],))
                for turn in range(int(turns))
            ]
            return [str(memory.save(event).id) for event in events]

        print(json.dumps([event_id for each in pool.map(save, range(int(threads))) for event_id in each]), flush=True)


TASKS: dict[str, Callable[..., None]] = {task.__name__: task for task in (kill_loop, save_together)}


if __name__ == "__main__":
    TASKS[sys.argv[1]](json.loads(sys.argv[2]), *sys.argv[3:])
