"""Search through Neo4j's own vector indexes: what it proposes is ordered exactly, and the answer says so (Q3)."""

from collections.abc import Iterator

import numpy as np
import pytest

import workbench
from tests.neo4j_servers import own_server
from tests.support import Clock, TableEmbedder, ids, numbered
from tools.neo4j.server import Endpoint
from workbench import Event, InvalidRequest, Memory, StoreUnavailable
from workbench.core import nearest

COUNT = 700
"""More than are compared exactly anyway."""


class Clustered(TableEmbedder):
    """Puts texts near one of twenty directions, as real ones lie near their subjects."""

    def vector(self, text: str) -> np.ndarray[tuple[int, ...], np.dtype[np.float32]]:
        own = super().vector(text)
        subject = super().vector(f"subject {sum(map(ord, text)) % 20}")
        near: np.ndarray[tuple[int, ...], np.dtype[np.float32]] = subject + 0.4 * own
        return near


@pytest.fixture(scope="module", params=["5.26", "2026"])
def libraries(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Endpoint, Memory, Memory]]:
    """Return a server with a library, opened for exact and for approximate search."""
    with own_server(tmp_path_factory.mktemp("nearest"), series=request.param) as server:
        opened = [
            workbench.open_memory(f"{server.address}{option}", embedder=Clustered(dimension=32), clock=Clock())
            for option in ("", f"?approximate_above={COUNT - 1}")
        ]
        events = numbered(COUNT, concepts=("pump",))
        opened[0].save_many(
            [each.replace(content=f"{each.content} " + "几段文字。" * (300 if n % 9 == 0 else 1)) for n, each in enumerate(events)]
        )
        opened[0].forget("e004")
        yield server.endpoint, opened[0], opened[1]
        for memory in opened:
            memory.close()


def test_most_of_the_exact_answer_is_found_and_its_scores_are_exact(libraries: tuple[Endpoint, Memory, Memory]) -> None:
    """And the notice and the explanation say that recall was approximate."""
    _, exact, approximate = libraries
    shares = []
    for number in range(20):
        ours, theirs = (memory.search(f"question {number}", explain=True, reset_seen=True) for memory in (approximate, exact))
        assert ours.explanation is not None
        assert theirs.explanation is not None
        assert ours.explanation.approximate
        assert "approximate" in [notice.code for notice in ours.notices]
        assert "approximate" not in [notice.code for notice in theirs.notices]
        known = {row.event_id: row for row in theirs.explanation.rows}
        both = [row for row in ours.explanation.rows if row.event_id in known]
        assert [row.summary_cosine for row in both] == [known[row.event_id].summary_cosine for row in both]
        assert [row.source_cosine for row in both] == [known[row.event_id].source_cosine for row in both]
        shares.append(len(both) / len(known))
    assert np.mean(shares) > 0.8


def test_the_vectors_stay_on_the_server(libraries: tuple[Endpoint, Memory, Memory]) -> None:
    for memory, width in zip(libraries[1:], (32, 0), strict=True):
        memory.search("anything")
        columns = memory._searcher.index.current().columns
        assert columns.chunks.shape[1] == columns.summaries.shape[1] == width


def test_filters_and_exclusions_come_before_the_best_forty(libraries: tuple[Endpoint, Memory, Memory]) -> None:
    """retrieval.md Q2: with few events passing, all are compared, and the answer is the exact one."""
    _, exact, approximate = libraries
    filters = {"entity": "pump", "written_from": "2026-02-20"}
    for number in range(3):
        ours, theirs = (memory.search(f"question {number}", session="filtered", **filters) for memory in (approximate, exact))  # type: ignore[arg-type]
        assert ours.results == theirs.results
    delivered: list[str] = []
    for _ in range(12):
        delivered += ids(approximate.search("question 1", session="goes on").results)
    assert len(set(delivered)) == 48
    assert "e004" not in delivered


def test_a_write_is_seen_by_the_next_search(libraries: tuple[Endpoint, Memory, Memory]) -> None:
    _, exact, approximate = libraries
    exact.save(Event(id="later", summary="a later note", content="later"))
    found = approximate.search("a later note", explain=True, reset_seen=True).explanation
    assert found is not None
    assert next(row for row in found.rows if row.event_id == "later").summary_cosine == 1
    exact.forget("later")
    assert "later" not in ids(approximate.search("a later note", reset_seen=True).results)


def test_one_who_may_not_write_is_told_what_is_missing(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(nearest, "EXACT_EVENTS", 0)
    with own_server(tmp_path_factory.mktemp("no indexes")) as server:
        with workbench.open_memory(server.address, embedder=TableEmbedder()) as memory:
            memory.save_many(numbered(3))
        address = f"{server.address}?approximate_above=2"
        with (
            workbench.open_memory(address, embedder=TableEmbedder(), read_only=True) as memory,
            pytest.raises(StoreUnavailable, match="no vector indexes yet"),
        ):
            memory.search("anything")
        with workbench.open_memory(address, embedder=TableEmbedder()) as memory:
            assert len(memory.search("anything").results) == 3
        with workbench.open_memory(address, embedder=TableEmbedder(), read_only=True) as memory:
            assert len(memory.search("anything").results) == 3


@pytest.mark.parametrize("option", ["?approximate_above=", "?approximate_above=-1", "?above=3", "?approximate_above=3&x=1", "?"])
def test_another_option_is_refused(option: str) -> None:
    with pytest.raises((InvalidRequest, StoreUnavailable), match=r"approximate_above|does not answer"):
        workbench.open_memory(f"bolt://127.0.0.1:1{option}")
