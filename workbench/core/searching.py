"""Search, expand, nearby and name search: the pipeline between an index, a store, an embedder and a session.

A call takes one view of the library, decides on it, and fetches texts for what it delivers. Should an event have been hidden
between the two, the call starts again on a newer view: nothing hidden is ever shown.
"""

import contextlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

import numpy as np
from numpy.typing import NDArray

from workbench.core.config import Config
from workbench.core.embedders.base import Embedder, embed_query, signature
from workbench.core.errors import Conflict, InvalidRequest
from workbench.core.event import from_micros, normalise_name
from workbench.core.nearest import gather, propose
from workbench.core.results import (
    APPROXIMATE,
    NO_CAUSALITY,
    VERIFY_SUMMARY,
    NodeResult,
    Notice,
    OfferedConcept,
    QuoteRef,
    Result,
    SearchResult,
    chain_limit,
    delivered_excluded,
    empty_is_not_absence,
)
from workbench.core.retrieval.coverage import rarity
from workbench.core.retrieval.evidence import Excerpt, choose_excerpt
from workbench.core.retrieval.explanation import Explanation, explain
from workbench.core.retrieval.neighbours import around, number_order, place_of
from workbench.core.retrieval.pipeline import Candidate, Decision, Ranked, list_newest, rank, recall_candidates
from workbench.core.retrieval.recall import Floats, Mask, best_chunk_of, rounded_cosines
from workbench.core.retrieval.sessions import Cursor, Filters, Origin, Quote, Sessions, Turn, broken
from workbench.core.stores.base import Passage, Recipe, Store, mismatch
from workbench.core.stores.index import Vanished, VectorIndex, View
from workbench.core.text import QueryTerms, TermFinder, query_terms

_VIEWS = 5
_NO_TERMS = QueryTerms((), np.empty(0, np.uint64))
_EXCLUSIONS = {
    "entity": ("实体筛选", "the entity filter"),
    "date": ("写入日期筛选", "the written date filter"),
    "concept": ("概念入口", "the concept"),
    "place": ("同章相邻", "neighbours of one chapter"),
}


@dataclass(frozen=True, slots=True)
class _Decided:
    """A decision with the question's terms and how often each candidate has them."""

    decision: Decision
    terms: QueryTerms
    frequencies: NDArray[np.int64]
    finder: TermFinder
    exact: bool = True


@dataclass(slots=True)
class Searcher:
    """Answers questions about one open library."""

    store: Store
    index: VectorIndex
    sessions: Sessions
    config: Config
    clock: Callable[[], datetime]
    embedder: Callable[[], Embedder]

    def search(
        self, question: str | None, filters: Filters, *, limit: int, session: str, reset: bool, explain: bool
    ) -> SearchResult:
        """Search anew: the beginning of a chain (section 4)."""
        with self.sessions.turn(session, self.clock) as turn:
            if reset:
                turn.reset()
            vectors: dict[Recipe, Floats | None] = {}  # a library that was re-embedded meanwhile needs the question anew

            def attempt(view: View) -> SearchResult:
                recipe = view.library.recipe
                if recipe not in vectors:
                    vectors[recipe] = self._question_vector(view, question)
                origin = Origin(question, vectors[recipe], filters, recipe.model, recipe.dimension)
                return self._rank_and_deliver(
                    turn, view, origin, chain=(), pool=None, limit=limit, explain=explain, operation="search"
                )

            return self._on_fresh_view(attempt)

    def expand(self, token: str, concept_id: str, *, limit: int, session: str, explain: bool) -> SearchResult:
        """Walk from a cursor's concept to the events that mention it (C2)."""
        with self.sessions.turn(session, self.clock) as turn:

            def attempt(view: View) -> SearchResult:
                cursor = self._cursor(turn, view, token)
                if concept_id not in cursor.concepts:
                    raise InvalidRequest("this cursor does not offer that concept; take one of the concepts of its answer.")
                pool = view.mentioning(view.entities(concept_id, ""))
                return self._rank_and_deliver(
                    turn, view, cursor.origin, chain=cursor.chain, pool=pool, limit=limit, explain=explain, operation="expand"
                )

            return self._on_fresh_view(attempt)

    def nearby(self, token: str, event_id: str, *, before: int, after: int, session: str) -> SearchResult:
        """Deliver the records next to an event of the chain, in number order (C3, C7)."""
        with self.sessions.turn(session, self.clock) as turn:

            def attempt(view: View) -> SearchResult:
                cursor = self._cursor(turn, view, token)
                place = place_of(event_id)
                if place is None:
                    raise InvalidRequest("the id has no form *_ch<chapter>_e<record>, so it has no neighbours; use read instead.")
                if event_id not in cursor.chain:
                    raise InvalidRequest("the event was not delivered in this cursor's chain; take one of its events.")
                near = around(view.chapter(place.prefix, place.chapter), event_id, before=before, after=after)
                return self._deliver_near(turn, view, cursor, near)

            return self._on_fresh_view(attempt)

    def names(self, question: str, label: str, *, limit: int) -> SearchResult:
        """Search concepts or persons by name vector; those without a visible event do not show (Q14)."""
        view = self.index.current()
        vector = self._question_vector(view, question)
        counts = view.event_counts()
        own = [number for number in np.flatnonzero(counts).tolist() if view.entity(number)[1] == label]
        if vector is None or not own:
            return SearchResult("search", (), label=label)
        cosines = rounded_cosines(view.entity_vectors[own], vector)
        best = sorted(zip(own, cosines.tolist(), strict=True), key=lambda pair: (-pair[1], view.entity(pair[0])[0]))[:limit]
        spelled = self.store.spellings([view.entity(number)[0] for number, _ in best])
        found = ((view.entity(number)[0], cosine, int(counts[number])) for number, cosine in best)
        nodes = [NodeResult(each, spelled[each], cosine, count) for each, cosine, count in found if each in spelled]
        return SearchResult("search", tuple(nodes), label=label)

    # -- one call ----------------------------------------------------------------------------------------------------

    def _on_fresh_view(self, attempt: Callable[[View], SearchResult]) -> SearchResult:
        for _ in range(_VIEWS):
            with contextlib.suppress(Vanished):
                return attempt(self.index.current())
        raise Conflict("events kept disappearing while they were being read; nothing was delivered. Retry.")

    def _question_vector(self, view: View, question: str | None) -> Floats | None:
        """Embed the question, unless there is none or nothing that it could find (Q16)."""
        recipe = view.library.recipe
        if question is None or recipe.model is None:
            return None
        embedder = self.embedder()
        mismatch(recipe, Recipe(*signature(embedder)))
        return embed_query(embedder, question)

    def _cursor(self, turn: Turn, view: View, token: str) -> Cursor:
        """Return the cursor after checking that all it rests on still stands (C5)."""
        cursor, recipe = turn.cursor(token), view.library.recipe
        if (cursor.origin.model, cursor.origin.dimension) != (recipe.model, recipe.dimension):
            raise broken("model_changed")
        if not all(view.exists_once(event_id) for event_id in cursor.chain):
            raise broken("ambiguous_id")
        if not all(view.shown(event_id) for event_id in cursor.chain):
            raise broken("event_gone")
        return cursor

    def _rank_and_deliver(
        self,
        turn: Turn,
        view: View,
        origin: Origin,
        *,
        chain: tuple[str, ...],
        pool: Mask | None,
        limit: int,
        explain: bool,
        operation: str,
    ) -> SearchResult:
        room = self.config.session.chain_limit - len(chain)
        mask, excluded = self._mask(turn, view, origin.filters, pool)
        decided = self._decide(view, origin, mask, min(limit, room))
        delivery = _Delivery(self, turn, view, decided, origin, chain, operation)
        notices = [delivered_excluded(excluded)] if excluded else []
        if room < min(limit, self.config.retrieval.limit):
            notices.append(chain_limit(room))
        if not decided.exact:
            notices.append(APPROXIMATE)
        applied = [name for name, on in (("entity", origin.filters.entities), ("date", any(origin.filters.written))) if on]
        explanation = _explanation(view, decided) if explain else None
        return delivery.answer(notices, [*applied, *(["concept"] if pool is not None else [])], explanation)

    def _mask(self, turn: Turn, view: View, filters: Filters, pool: Mask | None) -> tuple[Mask, int]:
        """Return which events may be recalled, and how many were left out as delivered (Q2, H1)."""
        mask = view.visible.copy() if pool is None else view.visible & pool
        low, high = filters.written
        if low is not None:
            mask &= view.columns.written >= low
        if high is not None:
            mask &= view.columns.written < high
        for entity in filters.entities:
            mask &= view.mentioning(view.entities(entity, normalise_name(entity)))
        rows = [row for row in map(view.row, turn.delivered_ids()) if row is not None]
        excluded = int(np.count_nonzero(mask[rows]))
        mask[rows] = False
        return mask, excluded

    def _decide(self, view: View, origin: Origin, mask: Mask, limit: int) -> _Decided:
        if origin.question is None or origin.vector is None:
            found = list_newest(view.columns, mask=mask, limit=limit, pool=self.config.retrieval.candidates)
            return _Decided(found, _NO_TERMS, np.empty((len(found.candidates), 0), np.int64), TermFinder(_NO_TERMS))
        candidates, summaries, exact = self._recall(view, origin.vector, mask)
        terms = query_terms(origin.question)
        frequencies, lengths = self.index.frequencies([each.id for each in candidates], terms.keys)

        def similarity(rows: Sequence[int]) -> NDArray[np.float64]:
            chosen = summaries(rows).astype(np.float64)
            return chosen @ chosen.T

        decision = rank(
            candidates, frequencies=frequencies, lengths=lengths, similarity=similarity, config=self.config.retrieval, limit=limit
        )
        return _Decided(decision, terms, frequencies, TermFinder(terms), exact)

    def _recall(self, view: View, vector: Floats, mask: Mask) -> tuple[list[Candidate], Callable[[Sequence[int]], Floats], bool]:
        """Return the best of both routes, how to get their summary vectors, and whether they are the true best."""
        config = self.config.retrieval
        if view.nearest is None:
            candidates = recall_candidates(view.columns, vector, mask=mask, config=config)
            return candidates, lambda rows: view.columns.summaries[list(rows)], True
        rows, exact = propose(view, view.nearest, vector, mask=mask, k=config.candidates)
        sample = gather(view, view.nearest, rows)
        return sample.candidates(vector, config=config), sample.summaries, exact

    def _deliver_near(self, turn: Turn, view: View, cursor: Cursor, near: Sequence[str]) -> SearchResult:
        room = self.config.session.chain_limit - len(cursor.chain)
        held = set(turn.delivered_ids())
        fresh = [event_id for event_id in near if event_id not in held]
        cut = min(self.config.retrieval.limit, room)
        chosen = sorted(fresh[:cut], key=number_order)
        origin, terms = cursor.origin, query_terms(cursor.origin.question or "")
        candidates = _neighbours(view, chosen, origin.vector)
        frequencies, _ = self.index.frequencies(chosen, terms.keys)
        decision = Decision(candidates, candidates, weights=rarity(frequencies))
        delivery = _Delivery(
            self, turn, view, _Decided(decision, terms, frequencies, TermFinder(terms)), origin, cursor.chain, "nearby"
        )
        left_out = sorted((event_id for event_id in near if event_id in held), key=number_order)
        notices = [delivered_excluded(len(left_out), left_out)] if left_out else []
        if room < min(len(fresh), self.config.retrieval.limit):
            notices.append(chain_limit(room))
        return delivery.answer(notices, ["place"], None)


@dataclass(frozen=True, slots=True)
class _Delivery:
    """The last part of a call: from chosen candidates to evidence, cursor and notices."""

    searcher: Searcher
    turn: Turn
    view: View
    decided: _Decided
    origin: Origin
    chain: tuple[str, ...]
    operation: str

    def answer(self, notices: list[Notice], applied: Sequence[str], explanation: Explanation | None) -> SearchResult:
        """Return the answer and record what it delivers."""
        chosen, config = self.decided.decision.delivered, self.searcher.config
        passages = self.searcher.store.passages([each.id for each in chosen], config.retrieval.excerpt_window + 1)
        if any(each.id not in passages for each in chosen):
            raise Vanished
        results = tuple(self._result(each, passages[each.id]) for each in chosen)
        chain = (*self.chain, *(each.id for each in chosen))
        remaining = config.session.chain_limit - len(chain)
        if not results:
            names = [_EXCLUSIONS[name] for name in applied]
            named = [(notice.zh.rstrip("。"), notice.en.rstrip(".")) for notice in notices]
            notices.append(empty_is_not_absence([*names, *named]))
            return SearchResult(self.operation, (), chain_remaining=remaining, notices=tuple(notices), explanation=explanation)
        concepts = _offered(passages, [each.id for each in chosen])
        cursor = self.turn.new_cursor(self.origin, chain, [concept.id for concept in concepts])
        return SearchResult(
            self.operation,
            results,
            cursor=cursor.token,
            concepts=concepts,
            chain_remaining=remaining,
            notices=(VERIFY_SUMMARY, NO_CAUSALITY, *notices),
            explanation=explanation,
        )

    def _result(self, chosen: Ranked, passage: Passage) -> Result:
        excerpt = self._excerpt(chosen, passage)
        quote = self._known_quote(chosen.id, excerpt)
        self.turn.deliver(
            chosen.id, None if quote else excerpt.text, Quote(chosen.id, excerpt.range, self.view.text_hash(chosen.id) or b"")
        )
        window = self.searcher.config.retrieval.excerpt_window
        marks = (
            ("sourceChunksMissing", not passage.chunked),
            ("continueWithRead", passage.length > window),
            ("superseded", passage.visibility == "superseded"),
        )
        return Result(
            id=passage.id,
            title=passage.title,
            summary=passage.summary,
            written_at=from_micros(passage.written),
            content_length=passage.length,
            excerpt=None if quote else excerpt,
            quote_ref=QuoteRef(quote.event_id, quote.range) if quote else None,
            routes=chosen.candidate.routes,
            rank_score=chosen.fused,
            notices=tuple(code for code, on in marks if on),
        )

    def _known_quote(self, event_id: str, excerpt: Excerpt) -> Quote | None:
        """Return where the session saw this excerpt, if that event still shows the same text."""
        quote = self.turn.quote(event_id, excerpt.text)
        return quote if quote and self.view.text_hash(quote.event_id) == quote.text_hash else None

    def _excerpt(self, chosen: Ranked, passage: Passage) -> Excerpt:
        weights = self.decided.decision.weights
        return choose_excerpt(
            passage.head,
            finder=self.decided.finder,
            weights=weights if weights is not None else np.empty(0),
            chunk=self.view.span(chosen.candidate.chunk),
            length=self.searcher.config.retrieval.excerpt_length,
            window=self.searcher.config.retrieval.excerpt_window,
        )


def _offered(passages: Mapping[str, Passage], order: Sequence[str]) -> tuple[OfferedConcept, ...]:
    names: dict[str, str] = {}
    events: dict[str, list[str]] = {}
    for event_id in order:
        for concept_id, name in passages[event_id].concepts:
            names[concept_id] = name
            events.setdefault(concept_id, []).append(event_id)
    return tuple(OfferedConcept(concept_id, names[concept_id], tuple(own)) for concept_id, own in events.items())


def _neighbours(view: View, event_ids: Sequence[str], vector: Floats | None) -> tuple[Ranked, ...]:
    """Return events of a view with their best chunks."""
    columns, rows = view.columns, [row for row in map(view.row, event_ids) if row is not None]
    if vector is None:
        chunks: list[int | None] = [None] * len(rows)
    elif view.nearest is None:
        chunks = [best_chunk_of(columns.chunks, columns.blocks, row, vector) for row in rows]
    else:
        sample = gather(view, view.nearest, np.array(sorted(rows), np.int64))
        chunks = [sample.best_chunk(row, vector) for row in rows]
    return tuple(
        Ranked(Candidate(row, columns.ids[row], int(columns.written[row]), columns.text_hashes[row], chunk=chunk))
        for row, chunk in zip(rows, chunks, strict=True)
    )


def _explanation(view: View, decided: _Decided) -> Explanation:
    decision = decided.decision
    spans = [view.span(each.candidate.chunk) for each in decision.candidates]
    found = np.count_nonzero(decided.frequencies, axis=0)
    return explain(decision, spans, decided.terms.terms, found.tolist(), approximate=not decided.exact)
