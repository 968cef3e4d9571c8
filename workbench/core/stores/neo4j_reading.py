"""What changed in a Neo4j library, read until it is of one moment.

Queries see commits as they are applied, so a long reading may hold some new rows and some old ones. Three things tell: the seal of
each node, its ``changed``, which no row may have beyond the library's revision, and the library's count of what its last write
touched. Earlier writes are applied as a whole, for a writer holds the library's lock until its own are. What a hand has changed
fits no seal; it is taken as it is when it reads the same again a little later.
"""

import itertools
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import neo4j

from workbench.core.errors import StoreUnavailable
from workbench.core.stores import neo4j_queries as queries
from workbench.core.stores.base import ENTITY_LABELS, Changes, Library
from workbench.core.stores.neo4j_connection import Connection
from workbench.core.stores.neo4j_rows import (
    EntityRow,
    EventRow,
    LibraryRow,
    entity_columns,
    entity_row,
    event_columns,
    event_row,
    library_row,
)

Row = TypeVar("Row")
Removal = tuple[str, int]
_PAUSES = (0.0, 0.005, 0.01, 0.02, 0.05)
"""Seconds before a reading is repeated; the last one from then on."""
_LONG = 0.02
"""A pause that no commit outlasts without anything to be seen of it."""
_SECONDS = 20.0
"""How long a library may go on changing under its reader."""


def rows(result: neo4j.Result) -> list[Any]:
    """Return the records of a result as lists."""
    return result.values()


def maps(result: neo4j.Result) -> list[dict[str, Any]]:
    """Return the records of a result as dictionaries."""
    return [dict(record) for record in result]


def pauses() -> Iterator[float]:
    """Yield how long to wait before each repetition, until it is enough."""
    begin = time.monotonic()
    for pause in itertools.chain(_PAUSES, itertools.repeat(_PAUSES[-1])):
        if time.monotonic() - begin > _SECONDS:
            return
        yield pause


def restless() -> StoreUnavailable:
    """Return what to say of a library that never stands still."""
    return StoreUnavailable("the library kept changing while it was being read. Retry when fewer writers are busy.", retryable=True)


def read_whole(read: Callable[[], Row], whole: Callable[[Row], bool]) -> Row:
    """Return what is read once it is of one version, or once it reads the same again after a pause."""
    found = read()
    for pause in pauses():
        if whole(found):
            return found
        time.sleep(pause)
        before, found = found, read()
        if before == found and pause >= _LONG:
            return found
    raise restless()


def read_library(connection: Connection, namespace: str) -> LibraryRow:
    """Return a library's record, all of one version."""

    def read() -> LibraryRow:
        found = connection.read(queries.LIBRARY, maps, namespace=namespace)
        return library_row(namespace, found[0]["fields"] if found else None)

    return read_whole(read, lambda row: row.whole)


def read_settled_library(connection: Connection, namespace: str) -> Library:
    """Return a library's record once every event of its last write can be read."""

    def read() -> tuple[LibraryRow, bool]:
        found = connection.read(queries.SETTLED_LIBRARY, maps, namespace=namespace)
        row = library_row(namespace, found[0]["fields"] if found else None)
        return row, row.whole and (not found or found[0]["events"] == row.last[0])

    return read_whole(read, lambda found: found[1])[0].library


@dataclass(slots=True)
class _Reading:
    """One pass over all that changed after a revision, with the library's record before and after it."""

    since: int
    records: list[LibraryRow] = field(default_factory=list)
    events: dict[str, EventRow] = field(default_factory=dict)
    entities: dict[str, EntityRow] = field(default_factory=dict)
    removals: list[Removal] = field(default_factory=list)

    def prints(self) -> object:
        """Return what is equal for two passes that saw the same."""
        nodes = (self.events, self.entities)
        return self.since, [{node: row.print for node, row in own.items()} for own in nodes], sorted(self.removals)


@dataclass(slots=True)
class Gathered:
    """All that changed after a revision, at one moment."""

    library: Library = field(init=False)
    events: dict[str, EventRow] = field(default_factory=dict)
    entities: dict[str, EntityRow] = field(default_factory=dict)
    removals: dict[str, int] = field(default_factory=dict)

    def add(self, reading: _Reading) -> None:
        """Take over a pass, and drop what was removed since it was read."""
        self.library = reading.records[-1].library
        self.events |= reading.events
        self.entities |= reading.entities
        self.removals |= dict(sorted(reading.removals, key=lambda removal: removal[1]))
        gone = [node for node, row in self.events.items() if row.changed < self.removals.get(row.fields["id"], 0)]
        for node in gone:
            del self.events[node]

    def whole(self, row: LibraryRow) -> bool:
        """Return whether all of a library's last write is here, and nothing of a later one."""
        revision = row.library.revision
        changed = [[each.changed for each in own.values()] for own in (self.events, self.entities)]
        changed.append(list(self.removals.values()))
        counts = tuple(own.count(revision) for own in changed)
        settled = all(each.whole for own in (self.events, self.entities) for each in own.values())
        return settled and counts == row.last and all(each <= revision for own in changed for each in own)

    def sorted_events(self) -> list[EventRow]:
        """Return the events in the order in which they were first saved."""
        return sorted(self.events.values(), key=lambda row: (row.fields["key"], row.node))

    def sorted_entities(self) -> list[EntityRow]:
        """Return the entities in the order in which they were first saved."""
        return sorted(self.entities.values(), key=lambda row: (row.fields["key"], row.node))


def gather(connection: Connection, namespace: str, since: int, *, query: str) -> Gathered:
    """Read all that changed after a revision until it is of one moment.

    :param connection: to the server.
    :param namespace: of the library.
    :param since: the revision; 0 for everything.
    :param query: ``CHANGES``, or another one of its form.
    :return: the rows with the record that they belong to.
    :raises StoreUnavailable: if the library never stands still.
    """
    gathered, after, last = Gathered(), since, None
    for pause in pauses():
        reading = _read(connection, namespace, after, query)
        gathered.add(reading)
        before, now = reading.records
        seen = reading.prints()
        if before == now and (gathered.whole(now) or (seen == last and pause >= _LONG)):
            return gathered
        after, last = max(since, before.library.revision - 1), seen
        time.sleep(pause)
    raise restless()


def _read(connection: Connection, namespace: str, since: int, query: str) -> _Reading:
    def consume(result: neo4j.Result) -> _Reading:
        reading = _Reading(since)
        for kind, node, fields, parts in result:
            if kind == "Event":
                reading.events[node] = event_row(node, fields, parts)
            elif kind in ENTITY_LABELS:
                reading.entities[node] = entity_row(node, kind, fields)
            elif kind == "Removal":
                reading.removals.append((fields["id"], fields["changed"]))
            else:
                reading.records.append(library_row(namespace, fields))
        missing = 2 - len(reading.records)
        reading.records += [library_row(namespace, None)] * missing
        return reading

    return connection.read(query, consume, namespace=namespace, since=since)


def read_changes(connection: Connection, namespace: str, since: int, *, vectors: bool = True) -> Changes | None:
    """Return what changed after a revision, or None if nothing did; ``vectors`` says whether those of events come along."""
    revision = read_library(connection, namespace).library.revision
    if revision == since:
        return None
    whole = since <= 0 or since > revision
    query = queries.CHANGES if vectors else queries.LIGHT_CHANGES
    return changes_of(gather(connection, namespace, 0 if whole else since, query=query), whole=whole, vectors=vectors)


def changes_of(gathered: Gathered, *, whole: bool, vectors: bool) -> Changes:
    """Return gathered rows as an index takes them."""
    dimension = gathered.library.recipe.dimension or 0
    entities: Sequence[EntityRow] = gathered.sorted_entities()
    known = {row.fields["key"] for row in entities} if whole else None
    events = event_columns(gathered.sorted_events(), known, dimension if vectors else 0)
    removed = [] if whole else list(gathered.removals)
    return Changes(gathered.library, whole, events, entity_columns(entities, dimension), removed)
