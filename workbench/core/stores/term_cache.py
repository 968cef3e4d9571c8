"""The stored terms of recent candidates, kept in memory so that questions about the same events do not fetch them again."""

import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence

from workbench.core.stores.term_blobs import Row

CACHE_BYTES = 16 << 20
"""The terms of about 25,000 short turns, or of 1,000 Chinese records of 5,000 characters, whatever the library's size."""
_ROW_BYTES = 300
"""What Python adds to a row."""


class TermCache:
    """Rows by event id, the least recently used leaving first. Thread-safe.

    A row may be kept only as long as its event stays as it is: :meth:`drop` is called for what changed, and rows that were being
    fetched meanwhile are not kept.

    :param limit: in bytes.
    """

    def __init__(self, limit: int = CACHE_BYTES) -> None:
        self._limit, self._size, self._drops = limit, 0, 0
        self._rows: OrderedDict[str, Row] = OrderedDict()
        self._lock = threading.Lock()

    def rows(self, event_ids: Sequence[str], fetch: Callable[[Sequence[str]], Sequence[Row]]) -> list[Row]:
        """Return the rows of events; ``fetch`` is asked for those that are not here."""
        with self._lock:
            drops, found = self._drops, [row for each in event_ids if (row := self._rows.get(each)) is not None]
            for row in found:
                self._rows.move_to_end(row[0])
        known = {row[0] for row in found}
        missing = [each for each in event_ids if each not in known]
        fetched = fetch(missing) if missing else []
        with self._lock:
            if drops == self._drops:
                self._keep(fetched)
        return [*found, *fetched]

    def _keep(self, rows: Iterable[Row]) -> None:
        for row in rows:
            self._forget(row[0])
            self._rows[row[0]] = row
            self._size += _size(row)
        while self._size > self._limit:
            self._size -= _size(self._rows.popitem(last=False)[1])

    def _forget(self, event_id: str) -> None:
        row = self._rows.pop(event_id, None)
        if row is not None:
            self._size -= _size(row)

    def drop(self, event_ids: Iterable[str] | None) -> None:
        """Forget events that have changed; None means all."""
        with self._lock:
            self._drops += 1
            if event_ids is None:
                self._rows.clear()
                self._size = 0
            for event_id in event_ids or ():
                self._forget(event_id)


def _size(row: Row) -> int:
    return _ROW_BYTES + len(row[2]) + len(row[3])
