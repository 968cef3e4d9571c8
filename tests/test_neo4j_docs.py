"""docs/neo4j.md: every query runs on the sample memories and finds what it is for, and the tables say what the server has."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import neo4j
import pytest

import workbench
from tests.neo4j_servers import own_server
from workbench import Memory, NotFound, fixtures
from workbench.core.stores import neo4j_queries

TEXT = (Path(__file__).parents[1] / "docs" / "neo4j.md").read_text("utf-8")
PARAMETERS = {"namespace": "default", "id": "event_51", "name": "quaylight", "from": "quaylight", "to": "skerry point"}
ROWS = {
    "What was written about a concept, through time": 3,
    "The chunks of an event": 1,
    "What shares most concepts with an event": 3,
    "Who appears together": 3,
    "What a person is concerned with": 1,
    "How two concepts are connected": 1,
    "What replaced what": 1,
    "How much was written, month by month": 3,
    "Orphans: names that no event mentions any more": 1,
    "Summaries nearest to an event's, by Neo4j's own vector index": 3,
}
"""How many rows each query gives at least on the sample memories."""


def sections() -> dict[str, list[str]]:
    """Return the queries below each heading."""
    parts = re.split(r"^### (.+)$", TEXT, flags=re.MULTILINE)[1:]
    return {title: re.findall(r"```cypher\n(.*?)```", body, re.DOTALL) for title, body in zip(parts[::2], parts[1::2], strict=True)}


@pytest.fixture(scope="module")
def graph(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Memory, neo4j.Driver]]:
    """Return the sample memories on a server of their own, one superseded, one name left without an event."""
    with (
        own_server(tmp_path_factory.mktemp("neo4j-docs")) as server,
        fixtures.embedder() as embedder,
        workbench.open_memory(server.address, embedder=embedder) as memory,
        neo4j.GraphDatabase.driver(server.address, auth=server.auth) as driver,
    ):
        memory.save_many(fixtures.load_events("memories"))
        memory.supersede("event_19", by="event_51")
        last = memory.get("event_62").event
        memory.save(last.replace(concepts=(), persons=()))
        yield memory, driver


def person(driver: neo4j.Driver) -> str:
    found = driver.execute_query("MATCH (p:Person)<-[:INVOLVES]-(e)-[:MENTIONS]->() RETURN p.nameKey AS name ORDER BY name LIMIT 1")
    return str(found.records[0]["name"])


@pytest.mark.parametrize("title", ROWS)
def test_a_query_finds_what_it_is_for(graph: tuple[Memory, neo4j.Driver], title: str) -> None:
    _, driver = graph
    parameters = PARAMETERS | ({"name": person(driver)} if "person" in title else {})
    records: list[Any] = []
    for query in sections()[title]:
        result = driver.execute_query(query, parameters)
        driver.execute_query("CALL db.awaitIndexes(60)")
        assert result.summary.gql_status_objects[0].gql_status.startswith("0")
        records = result.records
    assert len(records) >= ROWS[title]
    assert all(value is not None for record in records for value in record.values())


def test_every_query_of_the_page_is_tried() -> None:
    assert set(sections()) == {*ROWS, "Deleting an event for good"}
    assert len(ROWS) >= 10


def test_an_event_deleted_by_hand_is_noticed(graph: tuple[Memory, neo4j.Driver]) -> None:
    """And leaves nothing behind that verify would report."""
    memory, driver = graph
    question = next(each for each in fixtures.load_questions("memories") if each.evidence).text
    first, second = (result.id for result in memory.search(question, reset_seen=True).results[:2])
    (query,) = sections()["Deleting an event for good"]
    driver.execute_query(query, namespace="default", id=first)
    with pytest.raises(NotFound):
        memory.get(first)
    assert memory.search(question, reset_seen=True).results[0].id == second
    assert memory.verify() == []


def test_the_deletion_is_the_one_of_the_store() -> None:
    def plain(query: str) -> str:
        return " ".join(query.split())

    assert plain(sections()["Deleting an event for good"][0]) == plain(neo4j_queries.DELETE_EVENT)


def test_the_table_has_every_label_and_property(graph: tuple[Memory, neo4j.Driver]) -> None:
    _, driver = graph
    table = dict(re.findall(r"^\| `(\w+)`(.*)$", TEXT, re.MULTILINE)) | {
        "Person": re.findall(r"^\| `Concept`, `Person`(.*)$", TEXT, re.MULTILINE)[0]
    }
    found = driver.execute_query(
        "MATCH (n) UNWIND labels(n) AS label UNWIND keys(n) AS key RETURN label, collect(DISTINCT key) AS keys"
    )
    quiet = {"namespace", "key", "changed", "id", "nextEvent", "nextConcept", "nextPerson", "nextKey", "schema"}
    for record in found.records:
        missing = [key for key in record["keys"] if key not in quiet and f"`{key}`" not in table[record["label"]]]
        assert missing == [], record["label"]
