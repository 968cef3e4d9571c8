"""One library prepared for measuring: recalled once per question, then ranked and excerpted in any variation."""

import hashlib
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from benchmarks.locomo import Library, Question
from benchmarks.quality_forms import Extract, Floats, Form, Matter, full_terms, ranking_by
from workbench.core.chunking import FixedChunker, Span
from workbench.core.config import RetrievalConfig
from workbench.core.embedders import Embedder
from workbench.core.embedders.base import embed_documents, embed_query
from workbench.core.event import to_micros
from workbench.core.retrieval.coverage import Frequencies, rarity
from workbench.core.retrieval.evidence import choose_excerpt
from workbench.core.retrieval.pipeline import Columns, Decision, rank, recall_candidates
from workbench.core.retrieval.recall import Blocks
from workbench.core.text import Keys, QueryTerms, TermCounts, TermFinder, query_terms, sentence_starts

CONFIG = RetrievalConfig()
UNIT = 61
"""Weights are told in 1/61, the value of a first rank."""

READINGS = ("delivered, then the rest by fused score", "fused score", "delivered only")


class Run:
    """A library with its vectors, its candidates for every question and its terms by extraction."""

    def __init__(self, library: Library, embedder: Embedder) -> None:
        self.library, events = library, library.events
        self.ids = [event.id or "" for event in events]
        cut = FixedChunker(CONFIG.chunk_size, CONFIG.chunk_overlap)
        spans = [cut(event.content) for event in events]
        self.spans = [span for own in spans for span in own]
        self.chunks = [event.content[start:end] for event, own in zip(events, spans, strict=True) for start, end in own]
        self.starts = np.cumsum([0, *map(len, spans)])
        assert all(spans), "an event without text has no block"
        rows = np.arange(len(events))
        self.columns = Columns(
            embed_documents(embedder, [event.summary for event in events], what="summaries"),
            embed_documents(embedder, self.chunks, what="chunks"),
            Blocks(rows, self.starts, rows),
            self.ids,
            np.array([to_micros(event.written_at) if event.written_at else 0 for event in events]),
            [hashlib.sha256(event.content.encode()).digest() for event in events],
        )
        self.queries = [embed_query(embedder, question.text) for question in library.questions]
        everything = np.ones(len(events), bool)
        self.candidates = [recall_candidates(self.columns, query, mask=everything, config=CONFIG) for query in self.queries]
        self.halves = np.array([half(library.name, question) for question in library.questions])
        self._terms: dict[Extract, tuple[list[TermCounts], list[TermCounts]]] = {}

    def decide(self, number: int, matter: Matter, form: Form, weight: float) -> Decision:
        """Return the product's decision with the coverage of ``form``; the weight counts in 1/61."""
        with ranking_by(form, matter):
            return rank(
                self.candidates[number],
                frequencies=matter.frequencies,
                lengths=matter.lengths,
                similarity=self._similarity,
                config=RetrievalConfig(coverage_weight=weight / UNIT),
                limit=CONFIG.limit,
            )

    def matter(self, number: int, extract: Extract) -> Matter:
        """Return the terms of a question in its candidates and their chunks."""
        events, chunks = self._counted(extract)
        keys = np.unique(extract(self.library.questions[number].text))
        rows = np.array([each.row for each in self.candidates[number]])
        owned = [np.arange(self.starts[row], self.starts[row + 1]) for row in rows]
        own_chunks = [chunks[place] for places in owned for place in places]
        own_events = [events[row] for row in rows]
        return Matter(
            keys,
            _frequencies(keys, own_events),
            np.array([each.length for each in own_events]),
            _frequencies(keys, own_chunks),
            np.array([each.length for each in own_chunks]),
            np.repeat(np.arange(rows.size), [places.size for places in owned]),
        )

    def _counted(self, extract: Extract) -> tuple[list[TermCounts], list[TermCounts]]:
        if extract not in self._terms:
            events = self.library.events
            texts = ["\n".join([each.content, each.title, each.summary, *each.concepts, *each.persons]) for each in events]
            self._terms[extract] = [_count(extract(text)) for text in texts], [_count(extract(text)) for text in self.chunks]
        return self._terms[extract]

    def _similarity(self, rows: Sequence[int]) -> Floats:
        chosen = self.columns.summaries[list(rows)].astype(np.float64)
        product: Floats = chosen @ chosen.T
        return product

    def rankings(self, extract: Extract, form: Form, weights: Sequence[float], reading: str = READINGS[0]) -> Floats:
        """Return recall_any@4, reciprocal rank and hit@1, shape (weights, questions, 3)."""
        figures = np.zeros((len(weights), len(self.library.questions), 3))
        for number, question in enumerate(self.library.questions):
            matter = self.matter(number, extract)
            for place, weight in enumerate(weights):
                figures[place, number] = _found(self.decide(number, matter, form, weight), question, reading)
        return figures

    def excerpts(self, *, weigh: str = "idf", inside_chunk: bool = False) -> Floats:
        """Return per question and gold event: half, touched, share of the evidence shown, begins at a sentence."""
        cases = []
        for number, question in enumerate(self.library.questions):
            matter, terms = self.matter(number, full_terms), _by_key(query_terms(question.text))
            weights = rarity(matter.frequencies) if weigh == "idf" else np.ones(matter.keys.size)
            for event_id, gold in question.gold.items():
                text, chunk = self.library.events[self.ids.index(event_id)].content, self._best_chunk(number, event_id)
                shown = _excerpt(text, terms, weights, chunk, inside_chunk)
                seen = sum(max(0, min(shown[1], end) - max(shown[0], start)) for start, end in gold)
                whole = bool(sentence_starts(text, shown[0], shown[0] + 1))
                cases.append((self.halves[number], seen > 0, seen / sum(end - start for start, end in gold), whole))
        return np.array(cases, float)

    def _best_chunk(self, number: int, event_id: str) -> Span:
        row = self.ids.index(event_id)
        own = self.columns.chunks[self.starts[row] : self.starts[row + 1]].astype(np.float64)
        best: Span = self.spans[self.starts[row] + int(np.argmax(np.round(own @ self.queries[number].astype(np.float64), 6)))]
        return best


def half(name: str, question: Question) -> int:
    """Return 0 for the tuning half and 1 for the reporting half."""
    return hashlib.blake2b(f"{name}\n{question.text}".encode(), digest_size=8).digest()[0] & 1


def _found(decision: Decision, question: Question, reading: str) -> tuple[float, float, float]:
    delivered = [each.id for each in decision.delivered]
    fused = [each.id for each in decision.candidates if each.duplicate_of is None]
    order = {READINGS[0]: list(dict.fromkeys([*delivered, *fused])), READINGS[1]: fused, READINGS[2]: delivered}[reading]
    gold = set(question.gold) | {each.duplicate_of for each in decision.candidates if each.id in question.gold}
    first = next((rank for rank, event_id in enumerate(order, start=1) if event_id in gold), 0)
    return float(0 < first <= CONFIG.limit), 1 / first if first else 0.0, float(first == 1)


def _by_key(terms: QueryTerms) -> QueryTerms:
    """Return a question's terms in the order of their keys, which is that of ``Matter.keys``."""
    order = np.argsort(terms.keys)
    return QueryTerms(tuple(terms.terms[place] for place in order), terms.keys[order])


def _excerpt(text: str, terms: QueryTerms, weights: Floats, chunk: Span, inside_chunk: bool) -> Span:
    length, window, finder = CONFIG.excerpt_length, CONFIG.excerpt_window, TermFinder(terms)
    if not inside_chunk:
        return choose_excerpt(text[: window + 1], finder=finder, weights=weights, chunk=chunk, length=length, window=window).range
    start, end = choose_excerpt(text[chunk[0] : chunk[1]], finder=finder, weights=weights, chunk=None, length=length).range
    return chunk[0] + start, chunk[0] + end


def _count(keys: Keys) -> TermCounts:
    distinct, counts = np.unique(keys, return_counts=True)
    return TermCounts(distinct, counts.astype(np.uint32))


def _frequencies(keys: Keys, texts: Sequence[TermCounts]) -> Frequencies:
    table: NDArray[np.int64] = np.zeros((len(texts), keys.size), np.int64)
    for row, terms in enumerate(texts):
        if terms.keys.size and keys.size:
            places = np.minimum(np.searchsorted(terms.keys, keys), terms.keys.size - 1)
            table[row] = np.where(terms.keys[places] == keys, terms.counts[places], 0)
    return table
