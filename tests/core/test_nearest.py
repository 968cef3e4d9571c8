"""Search where the vectors stay in the store: with a perfect index it equals exact search, with a poor one it says so.

The index here is a plain one over a SQLite library; the servers' own are tested with their stores.
"""

import dataclasses
from collections.abc import Mapping, Sequence

import numpy as np
import pytest
from numpy.typing import NDArray

from tests.support import START, OpenLibrary, TableEmbedder, ids, numbered
from workbench import Event, Memory
from workbench.core import nearest as nearest_module
from workbench.core.stores.base import Changes, Floats, Prepared, Route, Store


class PlainIndex:
    """Looks at every vector of a library, but finds only every n-th event."""

    def __init__(self, store: Store, *, above: int = 0, every: int = 1) -> None:
        self.store, self.above, self.every = store, above, every
        self.asked: list[tuple[Route, int]] = []
        self.fetched: list[int] = []

    def rows(self) -> dict[str, Prepared]:
        return {str(row.event.id): row for row in self.store.dump()[2]}

    def chunks(self) -> int:
        return self.store.stats().chunks

    def changes(self, since: int) -> Changes | None:
        changes = self.store.changes(since)
        if changes is None:
            return None
        events = dataclasses.replace(changes.events, summaries=changes.events.summaries[:, :0], chunks=changes.events.chunks[:, :0])
        return dataclasses.replace(changes, events=events)

    def nearest(self, route: Route, query: Floats, limit: int) -> tuple[list[str], bool]:
        self.asked.append((route, limit))
        found = []
        for event_id, row in self.rows().items():
            vectors = row.embedded.summary[None] if route == "summary" else embedded(row)
            found += [(-float(vector @ query), event_id) for vector in vectors]
        return [event_id for _, event_id in sorted(found)[:limit]][:: self.every], limit >= len(found)

    def vectors(self, event_ids: Sequence[str]) -> Mapping[str, tuple[Floats, Floats]]:
        self.fetched.append(len(event_ids))
        rows = self.rows()
        return {each: (rows[each].embedded.summary, embedded(rows[each])) for each in event_ids if each in rows}


def embedded(row: Prepared) -> NDArray[np.float32]:
    return row.embedded.vectors[row.embedded.vectors.any(axis=1)]


def library(open_library: OpenLibrary, **options: object) -> Memory:
    memory = open_library(embedder=TableEmbedder(), **options)
    if not memory.stats().events:
        events = numbered(90, concepts=("pump",), persons=("Ada",))
        long = [each.replace(content="几段文字。" * 400, concepts=()) for each in numbered(30)]
        named = [Event(id=f"log_ch1_e{n:02}", summary=f"entry {n}", content="日志" * 500, written_at=START) for n in range(1, 9)]
        memory.save_many([*events, *(each.replace(id=f"long{each.id}") for each in long), *named, Event(id="bare", summary="bare")])
        memory.save_many([Event(id="flat", summary="flat", content="never chunked")], chunks=False)
        memory.forget("e004")
    return memory


@pytest.fixture
def pair(open_library: OpenLibrary) -> tuple[Memory, Memory, PlainIndex]:
    """Return a library searched exactly, the same one searched through an index, and the index."""
    exact, other = library(open_library, namespace="a"), library(open_library, namespace="b")
    index = PlainIndex(other.store)
    other.store.nearest = index
    return exact, other, index


@pytest.mark.parametrize("few", [400, 0])
def test_with_a_perfect_index_answers_are_those_of_exact_search(
    pair: tuple[Memory, Memory, PlainIndex], monkeypatch: pytest.MonkeyPatch, few: int
) -> None:
    """Filters, exclusions, expand, nearby and newest-first listing included; with few events passing, exactness is claimed."""
    monkeypatch.setattr(nearest_module, "EXACT_EVENTS", few)
    exact, other, index = pair
    for number in range(12):
        for filters in ({}, {"entity": "pump"}, {"written_from": "2026-02-01"}):
            ours, theirs = (memory.search(f"question {number}", explain=True, **filters) for memory in (other, exact))  # type: ignore[arg-type]
            assert ours.results == theirs.results
            assert ours.explanation is not None
            assert theirs.explanation is not None
            assert ours.explanation.rows == theirs.explanation.rows
            said = "approximate" in [notice.code for notice in ours.notices]
            assert ours.explanation.approximate is said is (few == 0 and bool(theirs.explanation.rows))
            assert not theirs.explanation.approximate
    assert bool(index.asked) is (few == 0)
    for memory in (exact, other):
        memory.forget("e007")
    ours, theirs = (memory.search("entry 3", reset_seen=True) for memory in (other, exact))
    assert ours.results == theirs.results
    first = next(each for each in ids(ours.results) if each.startswith("log_"))
    steps = [
        (memory.nearby(answer.cursor or "", first, after=2), memory.search(written_from="2026-02-01", reset_seen=True))
        for memory, answer in ((other, ours), (exact, theirs))
    ]
    assert [answer.results for answer in steps[0]] == [answer.results for answer in steps[1]]


def test_what_the_index_misses_is_said_and_the_rest_is_exact(
    pair: tuple[Memory, Memory, PlainIndex], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(nearest_module, "EXACT_EVENTS", 0)
    exact, other, index = pair
    index.every = 3
    ours, theirs = (memory.search("some question", explain=True).explanation for memory in (other, exact))
    assert ours is not None
    assert theirs is not None
    assert ours.approximate
    cosines = {row.event_id: row.summary_cosine for row in theirs.rows}
    both = [row for row in ours.rows if row.event_id in cosines]
    assert len(both) > 10
    assert all(row.summary_cosine == cosines[row.event_id] for row in both)


def test_more_is_asked_for_until_enough_pass(pair: tuple[Memory, Memory, PlainIndex], monkeypatch: pytest.MonkeyPatch) -> None:
    """Retrieval.md Q2: filters come before the best 40, however few pass."""
    monkeypatch.setattr(nearest_module, "EXACT_EVENTS", 0)
    monkeypatch.setattr(nearest_module, "OVERSAMPLING", 0.01)
    exact, other, index = pair
    for memory in (exact, other):
        memory.save_many([Event(id=f"rare{n}", summary=f"rare {n}", content=f"x {n}", concepts=("rare",)) for n in range(3)])
    ours, theirs = (memory.search("a question", entity="rare").results for memory in (other, exact))
    assert ids(ours) == ids(theirs)
    assert len(ours) == 3
    limits = [limit for route, limit in index.asked if route == "summary"]
    assert limits == sorted(limits)
    assert limits[-1] >= 130


def test_an_event_changed_between_view_and_vectors_is_looked_at_again(pair: tuple[Memory, Memory, PlainIndex]) -> None:
    _, other, index = pair
    fetch, meddled = index.vectors, list[int]()

    def vectors(event_ids: Sequence[str]) -> Mapping[str, tuple[Floats, Floats]]:
        if not meddled:
            meddled.append(1)
            other.save(Event(id="e001", summary="summary 1", content="longer " * 400))
        return fetch(event_ids)

    index.vectors = vectors  # type: ignore[method-assign]
    found = other.search("summary 1", explain=True).explanation
    assert found is not None
    assert next(row for row in found.rows if row.event_id == "e001").chunk_end is not None
    assert len(index.fetched) == 2


def test_a_library_goes_over_when_it_grows(open_library: OpenLibrary) -> None:
    """Below the limit the vectors are in memory and nothing is approximate; above it they are not."""
    memory = open_library()
    index = PlainIndex(memory.store, above=20)
    memory.store.nearest = index
    memory.save_many(numbered(20))
    memory.search("x")
    assert memory._searcher.index.current().columns.chunks.shape == (20, 16)
    memory.save(Event(id="one more", summary="one more", content="text"))
    memory.search("x")
    memory.search("x")
    assert memory._searcher.index.current().columns.chunks.shape == (21, 0)
    assert index.fetched
