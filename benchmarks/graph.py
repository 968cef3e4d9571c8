"""The library on a Neo4j server: what a search costs beside the embedded store, and beside what the server itself offers.

One process and run per size, all in turn so that the machine's drift meets them alike:

* ``floor``: the bare NumPy products, and ``round trip``: ``RETURN 1`` on the same server;
* ``sqlite``, ``neo4j``: ``Memory.search`` on the same library in both stores, plain, with filters and with exclusions;
* ``cypher cosine``: exact cosine of every chunk computed by the server, the best chunk of each event, top 40;
* ``graphrag hybrid``: ``HybridRetriever`` of the neo4j-graphrag package, vector and full-text index over the same chunks.

The quality of each on the project's sample texts, and on LoCoMo sessions with ``--locomo PATH``. A server is started, unless
``WORKBENCH_NEO4J_URL`` names one.

    python -m benchmarks.latency --store neo4j [--locomo PATH] [--cache FILE]
"""

import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import neo4j
import numpy as np
from neo4j_graphrag.indexes import create_fulltext_index, create_vector_index
from neo4j_graphrag.retrievers import HybridRetriever

import workbench
from benchmarks.latency import DIMENSION, SHAPES, RandomEmbedder, events, measure_calls, quantiles, search_calls
from benchmarks.locomo import Library, read_locomo
from benchmarks.peers import LIMIT, chunks_of, fixture_libraries, measure
from benchmarks.record import run_record, write_result
from tools.neo4j.choice import choose, given
from tools.neo4j.server import Endpoint, Neo4jServer
from workbench import fixtures
from workbench.copying import copy_library
from workbench.core import nearest
from workbench.core.embedders import CachedEmbedder, E5Embedder, Embedder

COSINES = """
MATCH (s:EventSource {namespace: $namespace})
WHERE s.embedding IS NOT NULL
WITH s.eventId AS id, max(vector.similarity.cosine(s.embedding, $query)) AS score
RETURN id ORDER BY score DESC, id LIMIT 40
"""
ADD_CHUNKS = """
UNWIND $rows AS row
CREATE (:BenchmarkChunk {event: row.event, text: row.text, embedding: row.embedding})
"""
REMOVE_CHUNKS = "MATCH (c:BenchmarkChunk) CALL (c) { DELETE c } IN TRANSACTIONS OF 5000 ROWS"
REMOVE_LIBRARY = "MATCH (n {namespace: $namespace}) CALL (n) { DETACH DELETE n } IN TRANSACTIONS OF 2000 ROWS"
VECTORS, WORDS = "benchmark_vectors", "benchmark_words"
Search = Callable[[str], list[str]]


@contextmanager
def running_server() -> Iterator[Endpoint]:
    """Yield the server that the environment names, or one of our own with an empty database."""
    if (endpoint := given()) is not None:
        yield endpoint
        return
    with tempfile.TemporaryDirectory() as folder, Neo4jServer(choose(), Path(folder)) as server:
        yield server.endpoint


class Asked:
    """An embedder under neo4j-graphrag's interface."""

    def __init__(self, embedder: Embedder) -> None:
        self._embedder = embedder

    def embed_query(self, text: str) -> list[float]:
        return np.asarray(self._embedder.embed_query(text)).tolist()  # type: ignore[no-any-return]


@contextmanager
def hybrid(driver: neo4j.Driver, library: Library, embedder: Embedder) -> Iterator[Search]:
    """Yield neo4j-graphrag's hybrid search over the chunks of a library, events of the best chunks."""
    chunks = chunks_of(library)
    vectors = np.asarray(embedder.embed_documents([text for _, text in chunks]), np.float32)
    for start in range(0, len(chunks), 2000):
        rows = [
            {"event": event, "text": text, "embedding": vector.tolist()}
            for (event, text), vector in zip(chunks[start : start + 2000], vectors[start : start + 2000], strict=True)
        ]
        driver.execute_query(ADD_CHUNKS, rows=rows)
    create_vector_index(driver, VECTORS, "BenchmarkChunk", "embedding", vectors.shape[1], "cosine")
    create_fulltext_index(driver, WORDS, "BenchmarkChunk", ["text"])
    driver.execute_query("CALL db.awaitIndexes(600)")
    retriever = HybridRetriever(driver, VECTORS, WORDS, Asked(embedder), ["event"])  # type: ignore[arg-type]

    def search(question: str) -> list[str]:
        words = "".join(char if char.isalnum() else " " for char in question)  # else Lucene reads operators into it
        found = retriever.get_search_results(query_text=words, query_vector=Asked(embedder).embed_query(question), top_k=20)
        return list(dict.fromkeys(record["node"]["event"] for record in found.records))[:LIMIT]

    yield search
    for name in (VECTORS, WORDS):
        driver.execute_query(f"DROP INDEX {name}")
    with driver.session() as session:
        session.run(REMOVE_CHUNKS).consume()


def cosines(driver: neo4j.Driver, namespace: str, embedder: Embedder) -> Search:
    """Return exact cosine over chunks, computed by the server."""

    def search(question: str) -> list[str]:
        query = np.asarray(embedder.embed_query(question)).tolist()
        with driver.session(default_access_mode=neo4j.READ_ACCESS) as session:
            return [record["id"] for record in session.run(COSINES, {"namespace": namespace, "query": query})][:LIMIT]

    return search


@contextmanager
def both_stores(server: Endpoint, made: Sequence[workbench.Event], embedder: Embedder) -> Iterator[dict[str, workbench.Memory]]:
    """Yield the same library in a SQLite file and on the server."""
    with ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory())
        one = stack.enter_context(workbench.open_memory(f"sqlite:///{folder}/library.db", embedder=embedder))
        namespace = f"benchmark-{time.time_ns()}"
        other = stack.enter_context(workbench.open_memory(server.address, namespace=namespace, embedder=embedder, auth=server.auth))
        assert not one.save_many(made).failed
        copy_library(one, other)
        yield {"sqlite": one, "neo4j": other}


def measure_size(server: Endpoint, driver: neo4j.Driver, shape: str, size: int, rounds: int) -> dict[str, Any]:
    """Return the milliseconds of every kind of search on a library of so many chunks, and the rates of writing and loading."""
    per_event, length = SHAPES[shape]
    embedder = RandomEmbedder()
    made = events(round(size / per_event), length, seed=size)
    questions = [question.text for question in fixtures.load_questions()]
    with both_stores(server, made, embedder) as stores:
        namespace = stores["neo4j"].stats().namespace
        library = Library("benchmark", tuple(stores["sqlite"].get(f"event_{n + 1}").event for n in range(len(made))), ())
        with hybrid(driver, library, embedder) as search_hybrid:
            calls: dict[str, Callable[[int], object]] = {}
            for name, memory in stores.items():
                calls |= {f"{name} {kind}": call for kind, call in search_calls(memory, questions).items()}
            search_cypher = cosines(driver, namespace, embedder)
            calls["round trip"] = lambda _: round_trip(driver)
            slow: dict[str, Callable[[int], object]] = {
                "cypher cosine": lambda place: search_cypher(questions[place % len(questions)]),
                "graphrag hybrid": lambda place: search_hybrid(questions[place % len(questions)]),
            }
            samples = measure_calls(calls, rounds) | measure_calls(slow, min(rounds, 20))
            figures = {name: quantiles(values) for name, values in samples.items()}
            for kind in ("plain", "filtered", "excluded"):
                paired = zip(samples[f"neo4j {kind}"], samples[f"sqlite {kind}"], samples["round trip"], strict=True)
                trips = [(graph - embedded) / trip for graph, embedded, trip in paired]
                figures[f"neo4j {kind}"]["round trips above sqlite p50"] = round(statistics.median(trips), 2)
        begin = time.perf_counter()
        with workbench.open_memory(
            server.address, namespace=namespace, embedder=embedder, auth=server.auth, read_only=True
        ) as cold:
            cold.search(written_from="2023-01-01")
            opened = time.perf_counter() - begin
        chunks = stores["neo4j"].stats().chunks
        begin = time.perf_counter()
        with workbench.open_memory(server.address, namespace=f"{namespace}-saved", embedder=embedder, auth=server.auth) as saved:
            report = saved.save_many(made[: max(1, round(5_000 / per_event))])
            rate = saved.stats().chunks / (time.perf_counter() - begin)
            assert not report.failed
    remove(server, namespace, f"{namespace}-saved")
    return {
        "shape": shape,
        "chunks": chunks,
        "events": len(made),
        "search ms": figures,
        "open and load s": round(opened, 2),
        "chunks saved per second": round(rate),
    }


def round_trip(driver: neo4j.Driver) -> object:
    """Ask the server for nothing."""
    with driver.session(default_access_mode=neo4j.READ_ACCESS) as session:
        return session.run("RETURN 1").consume()


def measure_quality(server: Endpoint, driver: neo4j.Driver, library: Library, embedder: Embedder) -> dict[str, list[Any]]:
    """Return each pipeline's (recall_any@4, reciprocal rank, hit@1) and milliseconds per question."""
    with both_stores(server, library.events, embedder) as stores, hybrid(driver, library, embedder) as search_hybrid:
        memory = stores["neo4j"]
        namespace = memory.stats().namespace
        pipelines: dict[str, Search] = {
            "workbench on neo4j": lambda question: [each.id for each in memory.search(question, reset_seen=True).results],
            "cypher cosine": cosines(driver, namespace, embedder),
            "graphrag hybrid": search_hybrid,
        }
        measured = {name: list(measure(search, library.questions, embedder)) for name, search in pipelines.items()}
    remove(server, namespace)
    return measured


def quality_of(server: Endpoint, driver: neo4j.Driver, libraries: Sequence[Library], embedder: Embedder) -> dict[str, Any]:
    """Return each pipeline's means over all questions of some libraries."""
    measured = [measure_quality(server, driver, library, embedder) for library in libraries]
    figures = {}
    for name in measured[0]:
        quality = np.mean(np.concatenate([np.array(own[name][0]) for own in measured]), axis=0)
        times = [each for own in measured for each in own[name][1]]
        means = dict(zip(("recall_any@4", "MRR@4", "hit@1"), (round(float(value), 3) for value in quality), strict=True))
        figures[name] = means | {"p50 ms": round(statistics.median(times), 2)}
    return figures


def measure_approximate(server: Endpoint, libraries: Sequence[Library], embedder: Embedder) -> dict[str, Any]:
    """Return how much of the exact answer is found where the server's vector index proposes the candidates.

    All libraries are put into one; every question is asked of both ways.
    """
    made = [event.replace(id=f"{library.name}/{event.id}") for library in libraries for event in library.events]
    questions = list(dict.fromkeys(question.text for library in libraries for question in library.questions))
    found: dict[str, list[float]] = {"summary route": [], "source route": [], "delivered": [], "delivered in the same order": []}
    times: dict[str, list[float]] = {"exact": [], "approximate": []}
    with both_stores(server, made, embedder) as stores:
        namespace, chunks = stores["neo4j"].stats().namespace, stores["neo4j"].stats().chunks
        address = f"{server.address}?approximate_above=0"
        with workbench.open_memory(address, namespace=namespace, embedder=embedder, auth=server.auth) as memory:
            for question in questions:
                embedder.embed_query(question)
                answers = []
                for name, asked in (("exact", stores["neo4j"]), ("approximate", memory)):
                    begin = time.perf_counter()
                    answers.append(asked.search(question, explain=True, reset_seen=True))
                    times[name].append((time.perf_counter() - begin) * 1e3)
                for name, share in shares(*answers).items():
                    found[name].append(share)
        remove(server, namespace)
    return {
        "chunks": chunks,
        "events": len(made),
        "questions": len(questions),
        "oversampling": nearest.OVERSAMPLING,
        "recall": {name: round(float(np.mean(values)), 4) for name, values in found.items()},
        "ms": {name: quantiles(values) for name, values in times.items()},
    }


def shares(exact: workbench.SearchResult, approximate: workbench.SearchResult) -> dict[str, float]:
    """Return which share of an exact answer an approximate one has."""
    assert exact.explanation is not None
    assert approximate.explanation is not None
    figures = {}
    for route in ("summary", "source"):
        best, other = (
            {row.event_id for row in explanation.rows if getattr(row, f"{route}_rank") is not None}
            for explanation in (exact.explanation, approximate.explanation)
        )
        figures[f"{route} route"] = len(best & other) / max(len(best), 1)
    ids, other_ids = ([each.id for each in answer.results] for answer in (exact, approximate))
    figures["delivered"] = len(set(ids) & set(other_ids)) / max(len(ids), 1)
    figures["delivered in the same order"] = float(ids == other_ids)
    return figures


def remove(server: Endpoint, *namespaces: str) -> None:
    """Delete libraries from the server."""
    with neo4j.GraphDatabase.driver(server.address, auth=server.auth) as driver, driver.session() as session:
        for namespace in namespaces:
            session.run(REMOVE_LIBRARY, namespace=namespace).consume()


def run(sizes: Sequence[int], rounds: int, locomo: Path | None, cache: Path) -> None:
    """Measure everything and write the results."""
    corpora = {part.name: [part] for part in fixture_libraries()}
    with ExitStack() as stack:
        embedders: dict[str, Embedder] = dict.fromkeys(corpora, stack.enter_context(fixtures.embedder()))
        if locomo:
            cache.parent.mkdir(parents=True, exist_ok=True)
            corpora["locomo sessions"] = read_locomo(locomo)
            embedders["locomo sessions"] = stack.enter_context(CachedEmbedder(E5Embedder(), cache))
        server = stack.enter_context(running_server())
        driver = stack.enter_context(neo4j.GraphDatabase.driver(server.address, auth=server.auth))
        agent = driver.get_server_info().agent
        measured = [measure_size(server, driver, shape, size, rounds) for shape in SHAPES for size in sizes]
        quality = {name: quality_of(server, driver, libraries, embedders[name]) for name, libraries in corpora.items()}
        approximate = None
        if locomo:
            approximate = measure_approximate(server, read_locomo(locomo, unit="turn"), embedders["locomo sessions"])
    record = run_record(dimension=DIMENSION, rounds=rounds, server=agent)
    write_result("neo4j", {"record": record, "sizes": measured, "quality": quality, "approximate": approximate})
