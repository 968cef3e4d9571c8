"""The embedded store: one SQLite file holds any number of namespaces."""

import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from workbench.core.errors import NotFound
from workbench.core.event import Event, StoredEvent
from workbench.core.stores import sqlite_checks
from workbench.core.stores.base import (
    ENTITY_LABELS,
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
    mismatch,
)
from workbench.core.stores.sqlite_file import SQLiteFile
from workbench.core.stores.sqlite_rows import (
    EVENT_COLUMNS,
    SHOWN,
    embedded_of,
    entity_rows,
    event_of,
    event_rows,
    known_entities,
    marks,
    name_of,
    passage_of,
    stored_events,
)
from workbench.core.stores.sqlite_writes import blob, check_successor, record, reserve_ids, write_embedded, write_event, write_names
from workbench.core.stores.term_blobs import Row as TermRow


class SQLiteStore:
    """A :class:`~workbench.core.stores.base.Store` in a SQLite file.

    :param path: the file, or None for a private library in memory.
    :param namespace: the library in it.
    :param read_only: open without ever writing.
    :raises StoreUnavailable: if the file can not be used.
    """

    def __init__(self, path: Path | None, *, namespace: str, read_only: bool = False) -> None:
        self.read_only = read_only
        self.nearest: Nearest | None = None
        self._namespace = namespace
        self._file = SQLiteFile(path, read_only=read_only)
        if not read_only:
            with self._file.writing() as connection:
                connection.execute("INSERT OR IGNORE INTO library (namespace) VALUES (?)", (namespace,))

    def _library(self, connection: sqlite3.Connection) -> tuple[int, Library]:
        row = connection.execute(
            "SELECT key, revision, model, dimension, chunker FROM library WHERE namespace = ?", (self._namespace,)
        ).fetchone()
        key, revision, *recipe = row or (-1, 0, None, None, None)
        return key, Library(self._namespace, revision, Recipe(*recipe))

    def library(self) -> Library:
        """See :meth:`Store.library`."""
        with self._file.reading() as connection:
            return self._library(connection)[1]

    # -- reading the index's changes ---------------------------------------------------------------------------------

    def changes(self, since: int) -> Changes | None:
        """See :meth:`Store.changes`."""
        with self._file.reading() as connection:
            key, library = self._library(connection)
            if library.revision == since:
                return None
            whole = since <= 0 or since > library.revision
            since = 0 if whole else since
            dimension = library.recipe.dimension or 0
            removed = connection.execute("SELECT id FROM removal WHERE library = ? AND changed > ?", (key, since)).fetchall()
            entities = entity_rows(connection, key, since, dimension)
            events = event_rows(connection, key, since, dimension)
            return Changes(library, whole, events, entities, [] if whole else [event_id for (event_id,) in removed])

    def known_names(self, keys: Sequence[EntityKey]) -> set[EntityKey]:
        """See :meth:`Store.known_names`."""
        with self._file.reading() as connection:
            library, _ = self._library(connection)
            return set(known_entities(connection, library, keys))

    def passages(self, event_ids: Sequence[str], head: int) -> Mapping[str, Passage]:
        """See :meth:`Store.passages`."""
        sql = (
            "SELECT key, id, title, summary, written, visibility, chunked, length, substr(content, 1, ?) FROM event "
            f"WHERE library = ? AND id IN ({marks(event_ids)}) AND {SHOWN}"
        )
        concepts = (
            "SELECT entity.id, mention.name FROM mention JOIN entity ON entity.key = mention.entity "
            "WHERE mention.event = ? AND entity.label = 'Concept' ORDER BY mention.position"
        )
        with self._file.reading() as connection:
            library, _ = self._library(connection)
            rows = connection.execute(sql, (head, library, *event_ids)).fetchall()
            mentioned = [connection.execute(concepts, row[:1]).fetchall() for row in rows]
            return {row[1]: passage_of(row, own) for row, own in zip(rows, mentioned, strict=True)}

    def spellings(self, entity_ids: Sequence[str]) -> dict[str, str]:
        """See :meth:`Store.spellings`."""
        sql = (
            "SELECT id, name FROM (SELECT entity.id, mention.name, row_number() OVER "
            "(PARTITION BY entity.key ORDER BY written, event.id, position) AS place FROM entity "
            "JOIN mention ON mention.entity = entity.key JOIN event ON event.key = mention.event "
            f"WHERE entity.library = ? AND entity.id IN ({marks(entity_ids)}) AND {SHOWN}) WHERE place = 1"
        )
        with self._file.reading() as connection:
            library, _ = self._library(connection)
            return dict(connection.execute(sql, (library, *entity_ids)).fetchall())

    def page(self, event_id: str, start: int, limit: int) -> Page | None:
        """See :meth:`Store.page`."""
        sql = "SELECT substr(content, ?, ?), length, visibility FROM event WHERE library = ? AND id = ?"
        with self._file.reading() as connection:
            library, _ = self._library(connection)
            row = connection.execute(sql, (start + 1, limit, library, event_id)).fetchone()
            return Page(*row) if row else None

    def terms(self, event_ids: Sequence[str]) -> list[TermRow]:
        """See :meth:`Store.terms`."""
        sql = (
            "SELECT event.id, total, keys, counts FROM event JOIN event_terms ON event_terms.event = event.key "
            f"WHERE library = ? AND id IN ({marks(event_ids)})"
        )
        with self._file.reading() as connection:
            library, _ = self._library(connection)
            return connection.execute(sql, (library, *event_ids)).fetchall()

    # -- events ------------------------------------------------------------------------------------------------------

    def get(self, event_id: str) -> StoredEvent | None:
        """See :meth:`Store.get`."""
        with self._file.reading() as connection:
            library, _ = self._library(connection)
            rows = stored_events(connection, "library = ? AND id = ?", (library, event_id))
            return rows[0] if rows else None

    def events(self, offset: int, limit: int) -> list[StoredEvent]:
        """See :meth:`Store.events`."""
        with self._file.reading() as connection:
            library, _ = self._library(connection)
            return stored_events(connection, "library = ? ORDER BY written, id LIMIT ? OFFSET ?", (library, limit, offset))

    def write(self, events: Sequence[Prepared], names: Sequence[EmbeddedName], recipe: Recipe) -> list[Event]:
        """See :meth:`Store.write`."""
        with self._file.writing() as connection:
            key, library = self._library(connection)
            mismatch(library.recipe, recipe)
            revision = library.revision + 1
            record(connection, key, revision, recipe)
            reserve_ids(connection, key, "Event", (prepared.event.id for prepared in events))
            for label in ENTITY_LABELS:
                reserve_ids(connection, key, label, (name.id for name in names if name.label == label))
            entities = write_names(connection, key, revision, names, events)
            return [write_event(connection, key, revision, prepared, entities) for prepared in events]

    def set_visibility(self, event_id: str, visibility: str, superseded_by: str | None = None) -> None:
        """See :meth:`Store.set_visibility`."""
        with self._file.writing() as connection:
            library, _ = self._library(connection)
            if superseded_by is not None:
                check_successor(connection, library, event_id, superseded_by)
            connection.execute("UPDATE library SET revision = revision + 1 WHERE key = ?", (library,))
            changed = connection.execute(
                "UPDATE event SET visibility = ?, superseded_by = ?, changed = (SELECT revision FROM library WHERE key = ?) "
                "WHERE library = ? AND id = ?",
                (visibility, superseded_by, library, library, event_id),
            )
            if changed.rowcount != 1:
                raise NotFound(f"there is no event {event_id!r}; check the id.")

    # -- re-embedding ------------------------------------------------------------------------------------------------

    def texts(self, since: int) -> tuple[Library, Iterator[Event]]:
        """See :meth:`Store.texts`."""
        with self._file.reading() as connection:
            key, library = self._library(connection)
        return library, self._texts(key, since)

    def _texts(self, library: int, since: int) -> Iterator[Event]:
        last = 0
        sql = f"SELECT key, {EVENT_COLUMNS} FROM event WHERE library = ? AND changed > ? AND key > ? ORDER BY key LIMIT 64"
        while True:
            with self._file.reading() as connection:
                rows = connection.execute(sql, (library, since, last)).fetchall()
            if not rows:
                return
            yield from (event_of(row[1:]) for row in rows)
            last = rows[-1][0]

    def names(self) -> list[tuple[str, str, str]]:
        """See :meth:`Store.names`."""
        with self._file.reading() as connection:
            library, _ = self._library(connection)
            return connection.execute(
                "SELECT label, name_key, name FROM entity WHERE library = ? ORDER BY key", (library,)
            ).fetchall()

    def replace_vectors(
        self, embedded: Mapping[str, Embedded], names: Sequence[EmbeddedName], recipe: Recipe, *, expected_revision: int
    ) -> bool:
        """See :meth:`Store.replace_vectors`."""
        with self._file.writing() as connection:
            key, library = self._library(connection)
            if library.revision != expected_revision:
                return False
            revision = library.revision + 1
            record(connection, key, revision, recipe)
            connection.executemany(
                "UPDATE entity SET vector = ?, changed = ? WHERE library = ? AND label = ? AND name_key = ?",
                [(blob(name.vector), revision, key, name.label, name.key) for name in names],
            )
            for event, event_id in connection.execute("SELECT key, id FROM event WHERE library = ?", (key,)).fetchall():
                own = embedded[event_id]
                connection.execute(
                    "UPDATE event SET summary_vector = ?, chunked = ?, changed = ? WHERE key = ?",
                    (blob(own.summary), own.spans is not None, revision, event),
                )
                write_embedded(connection, event, own)
            return True

    def dump(self) -> tuple[Library, list[EmbeddedName], Iterator[Prepared]]:
        """See :meth:`Store.dump`."""
        rows = self._dump()
        if self._file.private:  # its one connection can not be held while the caller goes on
            rows = (row for row in list(rows))
        library, names = next(rows)
        return library, names, rows

    def _dump(self) -> Iterator[Any]:
        """Yield the record with the names, then each event, all inside one read transaction."""
        with self._file.reading() as connection:
            key, library = self._library(connection)
            names = "SELECT label, name_key, name, vector, id FROM entity WHERE library = ? ORDER BY key"
            yield library, [name_of(row) for row in connection.execute(names, (key,)).fetchall()]
            events = f"SELECT key, chunked, summary_vector, {EVENT_COLUMNS} FROM event WHERE library = ? ORDER BY written, id"
            for event, chunked, summary, *row in connection.execute(events, (key,)):
                embedded = embedded_of(connection, event, bool(chunked), np.frombuffer(summary, "<f4"))
                yield Prepared(event_of(row), embedded, *row[-3:])

    # -- the whole ---------------------------------------------------------------------------------------------------

    def stats(self) -> LibraryStats:
        """See :meth:`Store.stats`."""
        with self._file.reading() as connection:
            key, library = self._library(connection)

            def count(sql: str) -> int:
                return int(connection.execute(sql, (key,)).fetchone()[0])

            recipe = library.recipe
            return LibraryStats(
                namespace=library.namespace,
                revision=library.revision,
                model=recipe.model,
                dimension=recipe.dimension,
                chunker=recipe.chunker,
                events=count("SELECT count(*) FROM event WHERE library = ?"),
                visible=count(f"SELECT count(*) FROM event WHERE library = ? AND {SHOWN}"),
                chunks=count("SELECT count(*) FROM chunk JOIN event ON event.key = chunk.event WHERE library = ?"),
                concepts=count("SELECT count(*) FROM entity WHERE library = ? AND label = 'Concept'"),
                persons=count("SELECT count(*) FROM entity WHERE library = ? AND label = 'Person'"),
                unchunked=count("SELECT count(*) FROM event WHERE library = ? AND NOT chunked"),
            )

    def verify(self) -> list[Problem]:
        """See :meth:`Store.verify`."""
        with self._file.reading() as connection:
            key, library = self._library(connection)
            return sqlite_checks.problems(connection, key, library.recipe)

    def close(self) -> None:
        """See :meth:`Store.close`."""
        self._file.close()
