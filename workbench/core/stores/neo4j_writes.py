"""Records of ``base`` written into a Neo4j library: one transaction for each change, under the library's lock.

The lock makes the writers of a namespace take turns, so what a writer reads after taking it is whole, and stays so until it ends.
"""

import itertools
import re
import secrets
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Generic, TypeVar

import neo4j

from workbench.core.errors import Conflict, InvalidRequest, NotFound, StoreUnavailable
from workbench.core.event import Event, from_micros, to_micros
from workbench.core.stores import neo4j_queries as queries
from workbench.core.stores.base import (
    ENTITY_LABELS,
    Embedded,
    EmbeddedName,
    EntityKey,
    Prepared,
    Recipe,
    entity_keys,
    mismatch,
    text_hash,
)
from workbench.core.stores.neo4j_connection import Connection
from workbench.core.stores.neo4j_rows import (
    Fields,
    entity_seal,
    event_seal,
    full_key,
    name_key,
    packed_terms,
    recipe_mark,
    terms_seal,
    vector_seal,
)

Item = TypeVar("Item")
Value = TypeVar("Value")
_BATCH = 500
"""Rows of one query: few enough for the server to hold beside all that the transaction has written."""
_PAGE = 2_000
KEPT_WRITES = 256
"""How many of the last writes a library remembers, for a writer that lost the answer to one."""


class _Done(Exception):
    """The change was made by an earlier run, whose answer was lost."""


class _Rows(list[Any]):
    """Parameters that the driver does not spell out for its log: that took a fifth of the time of a write."""

    def __repr__(self) -> str:
        return f"{len(self)} rows"


class Stale(Exception):
    """The library is not what the change rests on; nothing is written."""


def new_library() -> dict[str, object]:
    """Return the properties of a library without content."""
    numbers = dict.fromkeys(("nextEvent", "nextConcept", "nextPerson", "nextKey"), 1)
    last = [0, 0, 0, 0, recipe_mark(Recipe())]
    return {"revision": 0, "schema": queries.SCHEMA, "last": last, "lastWrites": []} | numbers


@dataclass(slots=True)
class Change:
    """A write transaction that holds a library's lock; :meth:`close` raises the revision."""

    transaction: neo4j.ManagedTransaction
    namespace: str
    token: int
    library: dict[str, Any]
    changed_events: int = 0
    changed_names: int = 0

    @property
    def revision(self) -> int:
        """Return the revision that this change makes."""
        return int(self.library["revision"]) + 1

    @property
    def recipe(self) -> Recipe:
        """Return how the library's vectors are made."""
        return Recipe(self.library["model"], self.library["dimension"], self.library["chunker"])

    def run(self, query: str, /, **parameters: object) -> list[Any]:
        """Run a query inside the transaction and return its records as lists."""
        quiet = {name: _Rows(value) if isinstance(value, list) else value for name, value in parameters.items()}
        return self.transaction.run(query, quiet | {"namespace": self.namespace}).values()

    def run_batches(self, query: str, rows: Sequence[object], /, name: str = "rows") -> None:
        """Run a query for rows, some hundred at a time."""
        for some in batches(rows, _BATCH):
            self.run(query, **{name: some})

    def record(self, recipe: Recipe) -> None:
        """Note the recipe; one without a chunker keeps the known one."""
        self.library |= {"model": recipe.model, "dimension": recipe.dimension, "chunker": recipe.chunker or self.recipe.chunker}

    def take_keys(self, count: int) -> Iterator[int]:
        """Return numbers that no node of the library has."""
        first = self.library["nextKey"]
        self.library["nextKey"] += count
        return iter(range(first, first + count))

    def close(self) -> None:
        """Write the library's record; this is the last query."""
        last = [self.revision, self.changed_events, self.changed_names, 0, recipe_mark(self.recipe)]
        fields = self.library | {"revision": self.revision, "last": last}
        self.run(queries.UNLOCK, token=self.token, kept=KEPT_WRITES - 1, fields=fields)


@dataclass(slots=True)
class Attempts(Generic[Value]):
    """One change, however often its transaction is run: it is made once."""

    namespace: str
    decide: Callable[[Change], Value]
    token: int = field(default_factory=lambda: secrets.randbits(62))
    made: list[tuple[int, Value]] = field(default_factory=list)

    def __call__(self, transaction: neo4j.ManagedTransaction) -> Value:
        """Make the change, unless an earlier run made it.

        :param transaction: a new one.
        :return: what the decision returned.
        :raises StoreUnavailable: if it can not be known any more.
        """
        change = self._begun(transaction)
        value = self.decide(change)
        change.close()
        self.made.append((change.revision, value))
        return value

    def _begun(self, transaction: neo4j.ManagedTransaction) -> Change:
        where = {"namespace": self.namespace, "token": self.token}
        found = transaction.run(queries.LOCK, where).values()
        if not found:  # removed by hand since the library was opened
            transaction.run(queries.CREATE_LIBRARY, where | {"fields": new_library()}).consume()
            found = transaction.run(queries.LOCK, where).values()
        library, done = found[0]
        if done:
            raise _Done
        if self.made and library["revision"] - self.made[0][0] >= KEPT_WRITES:
            raise StoreUnavailable(
                "the answer to a change was lost, and too much was written since to tell whether it was made. Look for it before "
                "you repeat it.",
                retryable=False,
            )
        return Change(transaction, self.namespace, self.token, library)


def make_change(connection: Connection, namespace: str, decide: Callable[[Change], Value]) -> Value:
    """Run a decision inside a write transaction under the library's lock.

    :param connection: to the server.
    :param namespace: of the library.
    :param decide: reads and writes by the change it is given; it may be called again with another one.
    :return: what it returned.
    :raises Conflict: if another program writes the same nodes without the lock.
    """
    attempts = Attempts(namespace, decide)
    try:
        return connection.write(attempts)
    except _Done:
        return attempts.made[-1][1]


def batches(items: Sequence[Item], size: int) -> Iterator[Sequence[Item]]:
    """Yield items in groups."""
    for start in range(0, len(items), size):
        yield items[start : start + size]


# -- saving --------------------------------------------------------------------------------------------------------------


def write(change: Change, events: Sequence[Prepared], names: Sequence[EmbeddedName], recipe: Recipe) -> list[Event]:
    """See :meth:`Store.write`."""
    mismatch(change.recipe, recipe)
    change.record(recipe)
    _reserve(change, "Event", (prepared.event.id for prepared in events))
    for label in ENTITY_LABELS:
        _reserve(change, label, (name.id for name in names if name.label == label))
    _write_names(change, events, names)
    numbered = _numbered(change, events)
    _write_events(change, _merged(numbered))
    return [prepared.event for prepared in numbered]


def _reserve(change: Change, label: str, ids: Iterable[str | None]) -> None:
    """Let the numbering go on after the ids that a host or a copy brings along."""
    numbers = [int(match[1]) for each in ids if each and (match := re.fullmatch(rf"{label.lower()}_([1-9][0-9]{{0,14}})", each))]
    change.library[f"next{label}"] = max([change.library[f"next{label}"], *(number + 1 for number in numbers)])


def _next_ids(change: Change, label: str, count: int, taken: Callable[[list[str]], set[str]]) -> list[str]:
    """Return the next free ``<label>_<n>``; a number is never given twice, and one that a host used is skipped."""
    found: list[str] = []
    while len(found) < count:
        first = change.library[f"next{label}"]
        change.library[f"next{label}"] += count - len(found)
        some = [f"{label.lower()}_{number}" for number in range(first, change.library[f"next{label}"])]
        occupied = taken(some)
        found += [each for each in some if each not in occupied]
    return found


def _write_names(change: Change, events: Sequence[Prepared], names: Sequence[EmbeddedName]) -> None:
    """Create the entities that the events mention and the library lacks."""
    wanted = list(dict.fromkeys(key for prepared in events for key in entity_keys(prepared.event.concepts, prepared.event.persons)))
    given, known = {(name.label, name.key): name for name in names}, known_names(change.run, wanted)
    missing = [given.get(key) for key in wanted if key not in known]
    fresh = [name for name in missing if name is not None]
    if len(fresh) < len(missing):
        raise Conflict("a name was removed while the event was being prepared; nothing was saved. Retry.")
    ids, keys = _entity_ids(change, fresh), change.take_keys(len(fresh))
    rows: dict[str, list[Fields]] = {label: [] for label in ENTITY_LABELS}
    for name, entity_id, key in zip(fresh, ids, keys, strict=True):
        fields = {"key": key, "changed": change.revision, "id": entity_id, "nameKey": name_key(name.key), "name": name.name}
        rows[name.label].append(_entity_row(fields, name))
    change.run_batches(queries.CREATE_CONCEPTS, rows["Concept"])
    change.run_batches(queries.CREATE_PERSONS, rows["Person"])
    change.changed_names += len(fresh)


def _entity_row(fields: dict[str, Any], name: EmbeddedName) -> dict[str, object]:
    return {"fields": fields | {"seal": entity_seal(fields, name.vector)}, "embedding": name.vector.tolist()}


def known_names(run: Callable[..., list[Any]], keys: Sequence[EntityKey]) -> set[EntityKey]:
    """Return those of some keys that the library has.

    :param run: runs a query and returns its records as lists.
    :param keys: what to look for.
    :return: a part of ``keys``.
    """
    full = {(label, name_key(key)): (label, key) for label, key in keys}
    concepts, persons = ([key for own, key in full if own == label] for label in ENTITY_LABELS)
    found = run(queries.KNOWN_NAMES, concepts=concepts, persons=persons) if full else []
    return {full[label, key] for label, key in found}


def _entity_ids(change: Change, names: Sequence[EmbeddedName]) -> list[str]:
    """Return an id for each new name: the one that it brings along where it is free, else the next."""

    def taken(ids: list[str]) -> set[str]:
        return {each for (each,) in change.run(queries.TAKEN_IDS, ids=ids)} if ids else set()

    occupied, ids = taken([name.id for name in names if name.id]), list[str | None]()
    for name in names:
        ids.append(name.id if name.id and name.id not in occupied else None)
        occupied.add(name.id or "")
    for label in ENTITY_LABELS:
        places = [place for place, name in enumerate(names) if name.label == label and ids[place] is None]
        fresh = _next_ids(change, label, len(places), lambda some: taken(some) | occupied)
        for place, entity_id in zip(places, fresh, strict=True):
            ids[place] = entity_id
    return [each for each in ids if each is not None]


def _numbered(change: Change, events: Sequence[Prepared]) -> list[Prepared]:
    """Return events with ids."""

    def taken(ids: list[str]) -> set[str]:
        return {fields["id"] for (fields,) in change.run(queries.EVENT_STATES, ids=ids)} | brought

    brought = {prepared.event.id for prepared in events if prepared.event.id}
    fresh = iter(_next_ids(change, "Event", sum(prepared.event.id is None for prepared in events), taken))
    return [
        prepared if prepared.event.id else replace(prepared, event=prepared.event.replace(id=next(fresh))) for prepared in events
    ]


def _merged(events: Sequence[Prepared]) -> dict[str, Prepared]:
    """Return the last of the events of each id, with what an earlier one said of its visibility and adoptions."""
    merged: dict[str, Prepared] = {}
    for prepared in events:
        event_id = str(prepared.event.id)
        earlier = merged.get(event_id, prepared)
        states = ("visibility", "superseded_by", "adoptions")
        kept = {name: value if (value := getattr(prepared, name)) is not None else getattr(earlier, name) for name in states}
        merged[event_id] = replace(prepared, **kept)
    return merged


def _write_events(change: Change, events: Mapping[str, Prepared]) -> None:
    """Insert or replace events with chunks, terms and links."""
    states = {
        fields["id"]: fields
        for some in batches(list(events), _PAGE)
        for (fields,) in change.run(queries.EVENT_STATES, ids=list(some))
    }
    keys = change.take_keys(len(events))
    for some in batches(list(events.items()), _BATCH):
        rows = [_event_row(change, prepared, states.get(event_id), next(keys)) for event_id, prepared in some]
        change.run(queries.WRITE_EVENTS, rows=rows)
    embedded = {event_id: prepared.embedded for event_id, prepared in events.items()}
    _write_sources(change, embedded, known=list(states))
    _write_terms(change, embedded)
    change.run_batches(queries.DELETE_LINKS, list(states), name="ids")
    _write_links(change, events)
    change.changed_events += len(events)


def _event_row(change: Change, prepared: Prepared, state: Fields | None, key: int) -> dict[str, object]:
    """Return an event's properties; visibility and adoptions are its own where it is known and nothing else is asked for."""
    event, known = prepared.event, state or {"key": key, "visibility": "visible", "supersededBy": None, "adoptions": 0}
    given = {"visibility": prepared.visibility, "supersededBy": prepared.superseded_by, "adoptions": prepared.adoptions}
    fields: dict[str, Any] = {name: known[name] for name in ("key", *given)}
    fields |= {name: value for name, value in given.items() if value is not None}
    fields |= {name: list(getattr(event, name)) for name in ("concepts", "persons", "tags")}
    fields |= {name: getattr(event, name) for name in ("id", "title", "summary", "kind", "critical")}
    moments = {"written": event.written_at, "occurredFrom": event.occurred_from, "occurredTo": event.occurred_to}
    fields |= {name: None if moment is None else to_micros(moment) for name, moment in moments.items()}
    fields |= {"eventType": event.event_type, "temporalStatus": event.temporal_status}
    fields |= {"length": len(event.content), "textHash": text_hash(event.content), "changed": change.revision}
    times = {name: None if fields[name] is None else from_micros(fields[name]) for name in moments}
    properties = fields | _embedded_fields(fields, prepared.embedded) | times | {"content": event.content}
    return {"fields": properties, "embedding": prepared.embedded.summary.tolist()}


def _embedded_fields(fields: Fields, embedded: Embedded) -> dict[str, object]:
    """Return what an event's vectors and terms say of it, sealed with its other fields."""
    spans = embedded.spans or ()
    chunks = {"chunked": embedded.spans is not None, "chunks": len(spans)}
    parts = [vector_seal(embedded.summary, spans, list(embedded.vectors)), terms_seal(packed_terms(embedded.terms))]
    return {**chunks, "seals": [event_seal({**fields, **chunks}, parts), *parts]}


def _write_sources(change: Change, events: Mapping[str, Embedded], known: Sequence[str]) -> None:
    """Write chunks over those that known events have, and delete what is left of these."""
    counts = [{"eventId": event_id, "chunks": len(events[event_id].spans or ())} for event_id in known]
    change.run_batches(queries.DELETE_SOURCES, counts)
    sources = (
        (event_id, ordinal, span, vector)
        for event_id, embedded in events.items()
        for ordinal, (span, vector) in enumerate(zip(embedded.spans or (), embedded.vectors, strict=True))
    )
    while some := list(itertools.islice(sources, _BATCH)):
        change.run(
            queries.WRITE_SOURCES,
            rows=[
                {
                    "eventId": event_id,
                    "ordinal": ordinal,
                    "start": start,
                    "end": end,
                    "embedding": vector.tolist() if vector.any() else None,
                }
                for event_id, ordinal, (start, end), vector in some
            ],
        )


def _write_terms(change: Change, events: Mapping[str, Embedded]) -> None:
    rows = [{"eventId": event_id, "terms": packed_terms(embedded.terms)} for event_id, embedded in events.items()]
    change.run_batches(queries.WRITE_TERMS, rows)


def _write_links(change: Change, events: Mapping[str, Prepared]) -> None:
    rows: dict[str, list[Fields]] = {label: [] for label in ENTITY_LABELS}
    for event_id, prepared in events.items():
        event = prepared.event
        keys = entity_keys(event.concepts, event.persons)
        for position, ((label, key), name) in enumerate(zip(keys, (*event.concepts, *event.persons), strict=True)):
            rows[label].append({"eventId": event_id, "nameKey": name_key(key), "position": position, "name": name})
    change.run_batches(queries.WRITE_MENTIONS, rows["Concept"])
    change.run_batches(queries.WRITE_INVOLVEMENTS, rows["Person"])


# -- visibility ----------------------------------------------------------------------------------------------------------


def set_visibility(change: Change, event_id: str, visibility: str, superseded_by: str | None) -> None:
    """See :meth:`Store.set_visibility`."""
    if superseded_by is not None:
        _check_successor(change, event_id, superseded_by)
    found = change.run(queries.EVENT_STATES, ids=[event_id])
    if not found:
        raise NotFound(f"there is no event {event_id!r}; check the id.")
    ((fields,),) = found[:1]
    state = {"visibility": visibility, "supersededBy": superseded_by, "changed": change.revision}
    parts = (fields["seals"] or [])[1:]
    change.run(queries.SET_STATE, id=event_id, fields=state | {"seals": [event_seal(fields | state, parts), *parts]})
    change.changed_events += len(found)


def _check_successor(change: Change, event_id: str, successor: str) -> None:
    """Refuse a successor that does not exist or that would close a circle."""
    seen = {event_id}
    current: str | None = successor
    while current is not None:
        if current in seen:
            raise InvalidRequest("an event can not, directly or in a circle, supersede itself; choose another successor.")
        seen.add(current)
        found = change.run(queries.SUCCESSOR, id=current)
        if not found and current == successor:
            raise NotFound(f"there is no event {successor!r} to supersede by; check the id.")
        current = found[0][0] if found else None


# -- re-embedding --------------------------------------------------------------------------------------------------------


def replace_vectors(
    change: Change, embedded: Mapping[str, Embedded], names: Sequence[EmbeddedName], recipe: Recipe, expected_revision: int
) -> None:
    """See :meth:`Store.replace_vectors`; the library is not touched when it is :class:`Stale`."""
    if change.library["revision"] != expected_revision:
        raise Stale
    change.record(recipe)
    _replace_names(change, names)
    events = _all_fields(change)
    if any(fields["id"] not in embedded for fields in events):
        raise Stale
    for some in batches(events, _BATCH):
        change.run(queries.WRITE_EVENTS, rows=[_embedded_row(change, fields, embedded[fields["id"]]) for fields in some])
    own = {fields["id"]: embedded[fields["id"]] for fields in events}
    _write_sources(change, own, known=list(own))
    seals = {fields["id"]: fields["seals"] for fields in events}  # texts stay, and so do most terms
    _write_terms(change, {each: new for each, new in own.items() if terms_seal(packed_terms(new.terms)) not in (seals[each] or ())})
    change.changed_events += len(events)


def _embedded_row(change: Change, fields: Fields, embedded: Embedded) -> dict[str, object]:
    changed = {"id": fields["id"], "changed": change.revision}
    return {"fields": changed | _embedded_fields({**fields, **changed}, embedded), "embedding": embedded.summary.tolist()}


def _replace_names(change: Change, names: Sequence[EmbeddedName]) -> None:
    given = {(name.label, name.key): name for name in names}
    rows: dict[str, list[Fields]] = {label: [] for label in ENTITY_LABELS}
    for label, fields in change.run(queries.NAMES):
        name = given.get((label, full_key(fields)))
        if name is not None:
            rows[label].append(_entity_row(fields | {"changed": change.revision}, name))
            change.changed_names += 1
    change.run_batches(queries.UPDATE_CONCEPTS, rows["Concept"])
    change.run_batches(queries.UPDATE_PERSONS, rows["Person"])


def _all_fields(change: Change) -> list[dict[str, Any]]:
    events: list[dict[str, Any]] = []
    while found := change.run(queries.EVENT_FIELDS, after=events[-1]["key"] if events else 0, limit=_PAGE):
        events += [fields for (fields,) in found]
    return events
