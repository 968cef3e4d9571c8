"""What a search costs beyond the bare matrix products, and what saving, opening and holding a library cost.

One process and run per size: the floor is ``summaries @ q`` and ``chunks @ q`` in NumPy on the same matrices, timed in turn
with the searches. The embedding call is replaced by a table look-up. Texts are shuffled sentences of the project's samples,
Chinese and English in turn: short turns of one chunk, or long records of seven; the questions are the samples' own; vectors are
random directions, so the two routes hardly overlap and nearly 80 candidates are ranked, the most there can be.

    python -m benchmarks.latency [--sizes 5882 20000 100000] [--store neo4j]
"""

import argparse
import gc
import hashlib
import itertools
import json
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

import workbench
from benchmarks.record import run_record, write_result
from workbench import fixtures

DIMENSION = 384
SHAPES = {"turns": (1, 160), "records": (7, 680 * 7 + 100)}
"""Chunks and code points of an event."""
CONCEPTS = 50


class RandomEmbedder:
    """A random direction for each text, the same one for the same text; a question's is kept."""

    model, dimension = "random", DIMENSION

    def __init__(self) -> None:
        self._kept: dict[str, NDArray[np.float32]] = {}

    def embed_documents(self, texts: Sequence[str]) -> NDArray[np.float32]:
        generator = np.random.default_rng(int.from_bytes(hashlib.blake2b(texts[0].encode(), digest_size=8).digest(), "little"))
        return generator.standard_normal((len(texts), DIMENSION), np.float32)

    def embed_query(self, text: str) -> NDArray[np.float32]:
        if text not in self._kept:
            self._kept[text] = self.embed_documents([text])[0]
        return self._kept[text]


def texts(generator: np.random.Generator, count: int, length: int) -> list[str]:
    """Return texts of shuffled sentences from the project's samples, in turn from the novella and from the memories."""
    sentences = [
        [part for event in fixtures.load_events(name) for part in re.findall(r"[^。！？.!?\n]+[。！？.!?\n]+", event.content)]
        for name in fixtures.PARTS
    ]
    made = []
    for number in range(count):
        pool, text = sentences[number % 2], ""
        while len(text) < length:
            text += pool[generator.integers(len(pool))]
        made.append(text[:length])
    return made


def events(count: int, length: int, seed: int) -> list[workbench.Event]:
    """Return made-up events."""
    generator = np.random.default_rng(seed)
    return [
        workbench.Event(
            summary=text[50:170],
            title=text[:20].strip(),
            content=text,
            concepts=[f"concept {number % CONCEPTS}", f"topic {number % 7}"],
            written_at=workbench.core.event.from_micros(1_700_000_000_000_000 + number * 3_600_000_000),
        )
        for number, text in enumerate(texts(generator, count, length))
    ]


def timed(call: Callable[[], object]) -> float:
    """Return the milliseconds that a call takes."""
    begin = time.perf_counter()
    call()
    return (time.perf_counter() - begin) * 1e3


def quantiles(samples: Sequence[float]) -> dict[str, float]:
    """Return the median and the 95th percentile."""
    return {"p50": round(statistics.median(samples), 2), "p95": round(sorted(samples)[int(len(samples) * 0.95)], 2)}


def search_calls(memory: workbench.Memory, questions: Sequence[str]) -> dict[str, Callable[[int], object]]:
    """Return each kind of search as a function of the round."""
    for place in range(160):  # fill a session with delivered ids
        memory.search(questions[place % len(questions)], session="used")
    return {
        "plain": lambda place: memory.search(questions[place % len(questions)], reset_seen=True, session="plain"),
        "filtered": lambda place: memory.search(
            questions[place % len(questions)],
            entity=f"concept {place % CONCEPTS}",
            written_from="2023-12-01",
            reset_seen=True,
            session="filtered",
        ),
        "excluded": lambda place: memory.search(questions[place % len(questions)], session="used"),
    }


def measure_calls(calls: Mapping[str, Callable[[int], object]], rounds: int) -> dict[str, list[float]]:
    """Time calls in turn, so that the machine's drift meets them alike."""
    samples: dict[str, list[float]] = {name: [] for name in calls}
    for place in range(rounds + 3):
        for name, call in calls.items():
            took = timed(lambda call=call, place=place: call(place))  # type: ignore[misc]
            if place >= 3:
                samples[name].append(took)
    return samples


def measure_search(memory: workbench.Memory, questions: Sequence[str], rounds: int) -> dict[str, dict[str, float]]:
    """Time the floor and each kind of search."""
    columns = memory._searcher.index.current().columns
    query = np.random.default_rng(1).standard_normal(DIMENSION).astype(np.float32)
    calls = {"floor": lambda _: (columns.summaries @ query, columns.chunks @ query), **search_calls(memory, questions)}
    samples = measure_calls(calls, rounds)
    figures = {name: quantiles(values) for name, values in samples.items()}
    for name in ("plain", "filtered", "excluded"):
        above = [value - floor for value, floor in zip(samples[name], samples["floor"], strict=True)]
        figures[name]["above floor p50"] = round(statistics.median(above), 2)
    return figures


def resident_bytes() -> int:
    """Return the process's resident memory."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmRSS"):
            return int(line.split()[1]) * 1024
    return 0


def measure_opening(address: str, chunks: int) -> dict[str, float]:
    """Open the library and answer one listing, which loads the index; memory is what that adds to the process."""
    gc.collect()
    before, begin = resident_bytes(), time.perf_counter()
    with workbench.open_memory(address, embedder=RandomEmbedder(), read_only=True) as memory:
        memory.search(written_from="2023-01-01")
        seconds = time.perf_counter() - begin
        gc.collect()
        per_chunk = (resident_bytes() - before) / chunks
    return {
        "seconds": round(seconds, 2),
        "bytes per chunk": round(per_chunk),
        "of its vector": round(per_chunk / (4 * DIMENSION), 2),
    }


def measure(shape: str, size: int, rounds: int) -> dict[str, object]:
    """Return all figures for a library of ``size`` chunks."""
    per_event, length = SHAPES[shape]
    count = round(size / per_event)
    made = events(count, length, seed=size)
    with tempfile.TemporaryDirectory() as folder:
        address = f"sqlite:///{folder}/library.db"
        with workbench.open_memory(address, embedder=RandomEmbedder()) as memory:
            begin = time.perf_counter()
            report = memory.save_many(made)
            seconds = time.perf_counter() - begin
            assert not report.failed
            chunks = memory.stats().chunks
            questions = [question.text for question in fixtures.load_questions()]
            search = measure_search(memory, questions, rounds)
        del made
        opened = subprocess.run(
            [sys.executable, "-m", "benchmarks.latency", "--open", address, str(chunks)], capture_output=True, text=True, check=True
        )
    saved = {"chunks per second": round(chunks / seconds), "events per second": round(count / seconds)}
    return {
        "shape": shape,
        "chunks": chunks,
        "events": count,
        "search ms": search,
        "save": saved,
        "open": json.loads(opened.stdout),
    }


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--store", choices=("sqlite", "neo4j"), default="sqlite", help="neo4j: see benchmarks/graph.py")
    parser.add_argument("--sizes", type=int, nargs="+", help="in chunks (default: 5882 20000, and 100000 for sqlite)")
    parser.add_argument("--locomo", type=Path, help="with --store neo4j: a LoCoMo JSON file, for the quality of each")
    parser.add_argument("--cache", type=Path, default=Path("build/vectors.db"), help="where LoCoMo's vectors are kept")
    parser.add_argument("--rounds", type=int, default=60)
    parser.add_argument("--open", nargs=2, metavar=("ADDRESS", "CHUNKS"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.open:
        print(json.dumps(measure_opening(options.open[0], int(options.open[1]))))
        return
    if options.store == "neo4j":
        from benchmarks import graph

        graph.run(options.sizes or [5_882, 20_000], options.rounds, options.locomo, options.cache)
        return
    results = []
    for shape, size in itertools.product(SHAPES, options.sizes or [5_882, 20_000, 100_000]):
        result = measure(shape, size, options.rounds)
        results.append(result)
        print(json.dumps(result, indent=1), flush=True)
    write_result("latency", {"record": run_record(dimension=DIMENSION, rounds=options.rounds), "sizes": results})


if __name__ == "__main__":
    main()
