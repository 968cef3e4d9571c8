"""The server store: a Neo4j database holds any number of namespaces, as a graph that can be walked by hand (docs/neo4j.md)."""

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

import neo4j

from workbench.core.errors import StoreUnavailable
from workbench.core.event import Event, StoredEvent
from workbench.core.stores import neo4j_checks, neo4j_writes
from workbench.core.stores import neo4j_queries as queries
from workbench.core.stores.base import (
    Changes,
    Embedded,
    EmbeddedName,
    EntityKey,
    Library,
    LibraryStats,
    Nearest,
    Page,
    Passage,
    Prepared,
    Problem,
    Recipe,
)
from workbench.core.stores.neo4j_connection import Connection
from workbench.core.stores.neo4j_nearest import Neo4jNearest
from workbench.core.stores.neo4j_reading import (
    Gathered,
    gather,
    maps,
    read_changes,
    read_library,
    read_settled_library,
    read_whole,
    rows,
)
from workbench.core.stores.neo4j_rows import SHOWN, PassageRow, TextRow, full_key, passage_row, term_row, text_row
from workbench.core.stores.term_blobs import Row as TermRow

Value = TypeVar("Value")
_PAGE = 64
_BEYOND = 2**30
"""No text is so long; Cypher's ``substring`` takes nothing above twice that."""


class Neo4jStore:
    """A :class:`~workbench.core.stores.base.Store` in a Neo4j database.

    Opening prepares an empty database, and writes nothing in one that has the library.

    :param address: of the server, checked.
    :param namespace: the library in it.
    :param auth: user and password, or None where the server asks for none.
    :param database: its name, or None for the user's own.
    :param read_only: open without ever writing.
    :param approximate_above: from how many chunks on vectors stay on the server and its vector index proposes candidates.
    :raises StoreUnavailable: if the database can not be used.
    """

    def __init__(
        self,
        address: str,
        *,
        namespace: str,
        auth: tuple[str, str] | None = None,
        database: str | None = None,
        read_only: bool = False,
        approximate_above: int | None = None,
    ) -> None:
        self.read_only = read_only
        self.nearest: Nearest | None = None
        self._namespace = namespace
        self._connection = Connection(address, auth=auth, database=database, read_only=read_only)
        if approximate_above is not None:
            self.nearest = Neo4jNearest(self._connection, namespace, above=approximate_above, read_only=read_only)
        try:
            self._open()
        except BaseException:
            self.close()
            raise

    def _open(self) -> None:
        ((schema, own),) = self._read(queries.OPENING, rows)
        if schema is not None and schema > queries.SCHEMA:
            raise StoreUnavailable(
                f"the database has schema version {schema}, and this workbench knows {queries.SCHEMA}; upgrade the workbench.",
                retryable=False,
            )
        if self.read_only or own:
            return
        if schema is None:
            for statement in (*queries.SET_UP, queries.AWAIT_INDEXES):
                self._connection.administer(statement)
        fields = neo4j_writes.new_library()
        self._connection.write(lambda transaction: self._create(transaction, fields))

    def _create(self, transaction: neo4j.ManagedTransaction, fields: Mapping[str, object]) -> None:
        transaction.run(queries.CREATE_LIBRARY, {"namespace": self._namespace, "fields": fields}).consume()

    def _read(self, query: str, consume: Callable[[neo4j.Result], Value], /, **parameters: object) -> Value:
        return self._connection.read(query, consume, namespace=self._namespace, **parameters)

    def _read_rows(self, query: str, /, **parameters: object) -> list[Any]:
        return self._read(query, rows, **parameters)

    def _change(self, decide: Callable[[neo4j_writes.Change], Value]) -> Value:
        return neo4j_writes.make_change(self._connection, self._namespace, decide)

    def library(self) -> Library:
        """See :meth:`Store.library`."""
        return read_library(self._connection, self._namespace).library

    # -- reading for search ------------------------------------------------------------------------------------------

    def changes(self, since: int) -> Changes | None:
        """See :meth:`Store.changes`."""
        return read_changes(self._connection, self._namespace, since)

    def known_names(self, keys: Sequence[EntityKey]) -> set[EntityKey]:
        """See :meth:`Store.known_names`."""
        return neo4j_writes.known_names(self._read_rows, keys)

    def passages(self, event_ids: Sequence[str], head: int) -> Mapping[str, Passage]:
        """See :meth:`Store.passages`."""

        def read() -> list[PassageRow]:
            # twice as many units: a server might count a character beyond the Basic Multilingual Plane as two
            found = self._read(queries.PASSAGES, maps, ids=list(event_ids), units=2 * head)
            return [passage_row(**each, limit=head) for each in found]

        found = read_whole(read, _all_whole)
        return {row.passage.id: row.passage for row in reversed(found) if row.passage.visibility in SHOWN}

    def spellings(self, entity_ids: Sequence[str]) -> Mapping[str, str]:
        """See :meth:`Store.spellings`."""
        found = self._read_rows(queries.SPELLINGS, ids=list(entity_ids), shown=list(SHOWN))
        return {entity_id: names[0] for entity_id, names in found if names}

    def page(self, event_id: str, start: int, limit: int) -> Page | None:
        """See :meth:`Store.page`."""
        found = self._read_rows(queries.PAGE, id=event_id, start=min(start, _BEYOND), limit=min(limit, _BEYOND))
        if not found:
            return None
        text, size, length, visibility = found[0]
        if size == length:
            return Page(text, length, visibility)
        stored = self.get(event_id)  # the text was being replaced, or the server counts other units than code points
        if stored is None:
            return None
        return Page(stored.event.content[start : start + limit], len(stored.event.content), stored.visibility)

    def terms(self, event_ids: Sequence[str]) -> list[TermRow]:
        """See :meth:`Store.terms`."""
        ((found,),) = self._read_rows(queries.TERMS, ids=list(event_ids))
        return [term_row(event_id, packed) for event_id, packed in found]

    # -- events ------------------------------------------------------------------------------------------------------

    def _texts_of(self, query: str, /, **parameters: object) -> list[TextRow]:
        def read() -> list[TextRow]:
            return [text_row(fields, content) for fields, content in self._read_rows(query, **parameters)]

        return read_whole(read, _all_whole)

    def get(self, event_id: str) -> StoredEvent | None:
        """See :meth:`Store.get`."""
        found = self._texts_of(queries.EVENT, id=event_id)
        return found[0].stored() if found else None

    def events(self, offset: int, limit: int) -> list[StoredEvent]:
        """See :meth:`Store.events`."""
        return [row.stored() for row in self._texts_of(queries.EVENT_PAGE, offset=offset, limit=limit)]

    def write(self, events: Sequence[Prepared], names: Sequence[EmbeddedName], recipe: Recipe) -> list[Event]:
        """See :meth:`Store.write`."""
        return self._change(lambda change: neo4j_writes.write(change, events, names, recipe))

    def set_visibility(self, event_id: str, visibility: str, superseded_by: str | None = None) -> None:
        """See :meth:`Store.set_visibility`."""
        self._change(lambda change: neo4j_writes.set_visibility(change, event_id, visibility, superseded_by))

    # -- re-embedding ------------------------------------------------------------------------------------------------

    def texts(self, since: int) -> tuple[Library, Iterator[Event]]:
        """See :meth:`Store.texts`."""
        return read_settled_library(self._connection, self._namespace), self._texts(since)

    def _texts(self, since: int) -> Iterator[Event]:
        last = 0
        while found := self._texts_of(queries.TEXTS, since=since, after=last, limit=_PAGE):
            yield from (row.event() for row in found)
            last = found[-1].fields["key"]

    def names(self) -> list[tuple[str, str, str]]:
        """See :meth:`Store.names`."""
        found = sorted(self._read_rows(queries.NAMES), key=lambda row: row[1]["key"])
        return [(label, full_key(fields), fields["name"]) for label, fields in found]

    def replace_vectors(
        self, embedded: Mapping[str, Embedded], names: Sequence[EmbeddedName], recipe: Recipe, *, expected_revision: int
    ) -> bool:
        """See :meth:`Store.replace_vectors`."""
        try:
            self._change(lambda change: neo4j_writes.replace_vectors(change, embedded, names, recipe, expected_revision))
        except neo4j_writes.Stale:
            return False
        return True

    def _everything(self) -> Gathered:
        return gather(self._connection, self._namespace, 0, query=queries.DUMP)

    def dump(self) -> tuple[Library, list[EmbeddedName], Iterator[Prepared]]:
        """See :meth:`Store.dump`."""
        gathered = self._everything()
        dimension = gathered.library.recipe.dimension or 0
        events = sorted(gathered.events.values(), key=lambda row: (row.fields["written"], row.fields["id"]))
        names = [row.name() for row in gathered.sorted_entities()]
        return gathered.library, names, (row.prepared(dimension) for row in events)

    # -- the whole ---------------------------------------------------------------------------------------------------

    def stats(self) -> LibraryStats:
        """See :meth:`Store.stats`."""
        library = self.library()
        ((events, visible, chunks, unchunked),) = self._read_rows(queries.EVENT_COUNTS, shown=list(SHOWN))
        (concepts,), (persons,) = self._read_rows(queries.NAME_COUNTS)
        return LibraryStats(
            namespace=library.namespace,
            revision=library.revision,
            model=library.recipe.model,
            dimension=library.recipe.dimension,
            chunker=library.recipe.chunker,
            events=events,
            visible=visible,
            chunks=chunks,
            concepts=concepts,
            persons=persons,
            unchunked=unchunked,
        )

    def verify(self) -> list[Problem]:
        """See :meth:`Store.verify`."""
        orphans = [label for (label,) in self._read_rows(queries.ORPHANS)]
        missing: list[str] = []
        with contextlib.suppress(StoreUnavailable):  # a user who may not see the schema can not check it
            present = {name for (name,) in self._read_rows(queries.CONSTRAINT_NAMES)}
            missing = [name for name in queries.CONSTRAINTS if name not in present]
        return neo4j_checks.problems(self._everything(), orphans, missing)

    def close(self) -> None:
        """See :meth:`Store.close`."""
        self._connection.close()


def _all_whole(found: Sequence[Any]) -> bool:
    return all(row.whole for row in found)
