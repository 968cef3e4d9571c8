"""Neo4j's own vector indexes, for libraries whose vectors stay on the server (docs/scaling.md)."""

import threading
from collections.abc import Mapping, Sequence
from typing import Any

from workbench.core.errors import StoreUnavailable
from workbench.core.stores import neo4j_queries as queries
from workbench.core.stores.base import Changes, Floats, Route
from workbench.core.stores.neo4j_connection import Connection
from workbench.core.stores.neo4j_reading import read_changes, read_whole, rows
from workbench.core.stores.neo4j_rows import SHOWN, VectorRow, vector_row

_NEAREST = {"summary": queries.NEAREST_SUMMARIES, "source": queries.NEAREST_SOURCES}


class Neo4jNearest:
    """See :class:`~workbench.core.stores.base.Nearest`. The indexes are made when they are first needed.

    :param connection: to the server.
    :param namespace: of the library.
    :param above: from how many chunks on the library is searched so.
    :param read_only: whether the indexes may not be made.
    """

    def __init__(self, connection: Connection, namespace: str, *, above: int, read_only: bool) -> None:
        self.above = above
        self._connection, self._namespace, self._read_only = connection, namespace, read_only
        self._lock, self._ready = threading.Lock(), False

    def _rows(self, query: str, /, **parameters: object) -> list[Any]:
        return self._connection.read(query, rows, namespace=self._namespace, **parameters)

    def chunks(self) -> int:
        """See :meth:`Nearest.chunks`."""
        return int(self._rows(queries.EVENT_COUNTS, shown=list(SHOWN))[0][2])

    def changes(self, since: int) -> Changes | None:
        """See :meth:`Nearest.changes`."""
        return read_changes(self._connection, self._namespace, since, vectors=False)

    def nearest(self, route: Route, query: Floats, limit: int) -> tuple[list[str], bool]:
        """See :meth:`Nearest.nearest`."""
        self._prepare()
        found = self._rows(_NEAREST[route], query=query.tolist(), limit=limit)
        return [event_id for namespace, event_id in found if namespace == self._namespace], len(found) < limit

    def vectors(self, event_ids: Sequence[str]) -> Mapping[str, tuple[Floats, Floats]]:
        """See :meth:`Nearest.vectors`."""

        def read() -> list[VectorRow]:
            return [vector_row(*row) for row in self._rows(queries.VECTORS, ids=list(event_ids))]

        return {row.id: (row.summary, row.chunks) for row in read_whole(read, lambda found: all(row.whole for row in found))}

    def _prepare(self) -> None:
        """Make the indexes where they are missing, and wait until they are filled."""
        with self._lock:
            if self._ready:
                return
            present = {name for (name,) in self._rows(queries.VECTOR_INDEX_NAMES)}
            missing = [statement for name, statement in queries.VECTOR_INDEXES.items() if name not in present]
            if missing and self._read_only:
                raise StoreUnavailable(
                    "the database has no vector indexes yet; let a host open the library once with approximate_above and without "
                    "read_only, and search.",
                    retryable=False,
                )
            for statement in (*missing, queries.AWAIT_INDEXES):
                self._connection.administer(statement)
            self._ready = True
