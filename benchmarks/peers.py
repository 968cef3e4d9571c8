"""The same questions and the same vectors through other pipelines, side by side.

* ``workbench``: ``Memory.search`` as shipped.
* ``langchain mmr``: LangChain's in-memory vector store over chunks, MMR with its own defaults (fetch 20, lambda .5), events of
  the chunks it returns, at most four.
* ``langchain mmr .85``: the same, 40 fetched, lambda .85.
* ``bm25s + numpy``: BM25 over whole events (bm25s; Han as single characters and bigrams) and a NumPy cosine over chunks, best
  chunk per event, fused by ranks; top four, no diversity.

All get the vectors of one cache, so quality differs by ranking alone; the time of the embedding call is left out of all. The
sample texts of the project by default, LoCoMo sessions with ``--locomo PATH`` (needs the offline model or a warm cache).

    python -m benchmarks.peers [--locomo PATH] [--cache FILE]
"""

import argparse
import statistics
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from pathlib import Path

import bm25s
import numpy as np
from langchain_core.documents import Document
from langchain_core.embeddings import Embeddings
from langchain_core.vectorstores import InMemoryVectorStore

import workbench
from benchmarks.locomo import Library, Question, read_locomo
from benchmarks.record import run_record, write_result
from workbench import fixtures
from workbench.core.chunking import FixedChunker
from workbench.core.embedders import CachedEmbedder, E5Embedder, Embedder
from workbench.core.text import count_terms, query_terms

LIMIT = 4
Search = Callable[[str], list[str]]


class Vectors(Embeddings):
    """The benchmark's vectors under LangChain's interface."""

    def __init__(self, embedder: Embedder) -> None:
        self._embedder = embedder

    def embed_documents(self, texts: list[str]) -> list[list[float]]:
        return np.asarray(self._embedder.embed_documents(texts)).tolist()  # type: ignore[no-any-return]

    def embed_query(self, text: str) -> list[float]:
        return np.asarray(self._embedder.embed_query(text)).tolist()  # type: ignore[no-any-return]


def fixture_libraries() -> list[Library]:
    """Return the novella and the memories with their answerable questions."""
    return [
        Library(
            part,
            tuple(fixtures.load_events(part)),
            tuple(
                Question(each.text, {gold.event_id: ((gold.start, gold.end),) for gold in each.evidence}, each.kind)
                for each in fixtures.load_questions(part)
                if each.evidence
            ),
        )
        for part in fixtures.PARTS
    ]


def chunks_of(library: Library) -> list[tuple[str, str]]:
    """Return the id and text of every chunk; an event without one gives its summary."""
    cut = FixedChunker()
    return [
        (event.id or "", event.content[start:end] or event.summary)
        for event in library.events
        for start, end in cut(event.content) or [(0, 0)]
    ]


def events_of(found: Iterable[Document]) -> list[str]:
    """Return the events of chunks, each once, four at most."""
    return list(dict.fromkeys(str(document.metadata["event"]) for document in found))[:LIMIT]


def through_workbench(library: Library, embedder: Embedder, stack: ExitStack) -> Search:
    """Return the product's search."""
    memory = stack.enter_context(workbench.open_memory("sqlite://", embedder=embedder))
    assert not memory.save_many(library.events).failed
    return lambda question: [result.id for result in memory.search(question, reset_seen=True).results]


def through_langchain(library: Library, embedder: Embedder, *, fetch: int, weight: float) -> Search:
    """Return LangChain's in-memory store with MMR over chunks."""
    store = InMemoryVectorStore(Vectors(embedder))
    store.add_documents([Document(page_content=text, metadata={"event": event}) for event, text in chunks_of(library)])
    return lambda question: events_of(store.max_marginal_relevance_search(question, k=LIMIT, fetch_k=fetch, lambda_mult=weight))


def through_bm25(library: Library, embedder: Embedder) -> Search:
    """Return bm25s over events fused with a NumPy cosine over chunks."""
    ids = [event.id or "" for event in library.events]
    counted = [count_terms(event.title, event.summary, event.content) for event in library.events]
    corpus = [[str(key) for key, count in zip(own.keys, own.counts, strict=True) for _ in range(count)] for own in counted]
    index = bm25s.BM25()
    index.index(corpus, show_progress=False)
    chunks = chunks_of(library)
    matrix = np.asarray(embedder.embed_documents([text for _, text in chunks]), np.float32)

    def search(question: str) -> list[str]:
        keys = [str(key) for key in query_terms(question).keys]
        lexical, _ = index.retrieve([keys], corpus=ids, k=min(40, len(ids)), show_progress=False)
        cosines = matrix @ np.asarray(embedder.embed_query(question), np.float32)
        dense = list(dict.fromkeys(chunks[place][0] for place in np.argsort(-cosines)))[:40]
        scores: dict[str, float] = {}
        for ranking in (list(lexical[0]), dense):
            for rank, event_id in enumerate(ranking, start=1):
                scores[str(event_id)] = scores.get(str(event_id), 0.0) + 1 / (60 + rank)
        return sorted(scores, key=lambda event_id: (-scores[event_id], event_id))[:LIMIT]

    return search


def measure(
    search: Search, questions: Sequence[Question], embedder: Embedder
) -> tuple[list[tuple[float, float, float]], list[float]]:
    """Return (recall_any@4, reciprocal rank within the four, hit@1) and the milliseconds of each question."""
    quality, times = [], []
    for question in questions:
        begin = time.perf_counter()
        embedder.embed_query(question.text)
        embedded = time.perf_counter()
        found = search(question.text)
        times.append((time.perf_counter() - embedded - (embedded - begin)) * 1e3)
        first = next((rank for rank, event_id in enumerate(found, start=1) if event_id in question.gold), 0)
        quality.append((float(first > 0), 1 / first if first else 0.0, float(first == 1)))
    return quality, times


def compare(libraries: Sequence[Library], embedder: Embedder) -> dict[str, dict[str, float]]:
    """Return each pipeline's means over all questions."""
    pipelines: dict[str, Callable[[Library, ExitStack], Search]] = {
        "workbench": lambda library, stack: through_workbench(library, embedder, stack),
        "langchain mmr": lambda library, stack: through_langchain(library, embedder, fetch=20, weight=0.5),
        "langchain mmr .85": lambda library, stack: through_langchain(library, embedder, fetch=40, weight=0.85),
        "bm25s + numpy": lambda library, stack: through_bm25(library, embedder),
    }
    figures = {}
    for name, build in pipelines.items():
        quality: list[tuple[float, float, float]] = []
        times: list[float] = []
        for library in libraries:
            with ExitStack() as stack:
                own_quality, own_times = measure(build(library, stack), library.questions, embedder)
            quality += own_quality
            times += own_times
        recall, reciprocal, hit = np.mean(quality, axis=0)
        figures[name] = {
            "recall_any@4": round(float(recall), 3),
            "MRR@4": round(float(reciprocal), 3),
            "hit@1": round(float(hit), 3),
            "p50 ms": round(statistics.median(times), 2),
        }
    return figures


def main() -> None:
    """Run the comparison and print a table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--locomo", type=Path, help="a LoCoMo JSON file")
    parser.add_argument("--cache", type=Path, default=Path("build/vectors.db"), help="where LoCoMo's vectors are kept")
    options = parser.parse_args()
    corpora = {part.name: [part] for part in fixture_libraries()}
    with ExitStack() as stack:
        embedders: dict[str, Embedder] = dict.fromkeys(corpora, stack.enter_context(fixtures.embedder()))
        if options.locomo:
            options.cache.parent.mkdir(parents=True, exist_ok=True)
            corpora["locomo sessions"] = read_locomo(options.locomo)
            embedders["locomo sessions"] = stack.enter_context(CachedEmbedder(E5Embedder(), options.cache))
        results = {name: compare(libraries, embedders[name]) for name, libraries in corpora.items()}
    for name, figures in results.items():
        print(f"\n{name}: {sum(len(library.questions) for library in corpora[name])} questions\n")
        print("| pipeline | recall_any@4 | MRR@4 | hit@1 | p50 ms |\n| --- | --- | --- | --- | --- |")
        for pipeline, own in figures.items():
            print(f"| {pipeline} | {' | '.join(str(value) for value in own.values())} |")
    write_result("peers", {"record": run_record(), "corpora": results})


if __name__ == "__main__":
    main()
