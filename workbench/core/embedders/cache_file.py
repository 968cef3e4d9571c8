"""The SQLite file of :class:`~workbench.core.embedders.cached.CachedEmbedder`: its format, its transactions, its errors."""

import os
import sqlite3
import threading
import weakref
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

import numpy as np

from workbench.core.embedders.base import Vectors, unit_vectors
from workbench.core.errors import EmbeddingFailed, ModelMismatch, StoreUnavailable

_APPLICATION_ID = 0x57424543  # "WBEC"
_FORMAT = 1
_MAGIC = b"SQLite format 3\0"
_BUSY_SECONDS = 30.0
_LOOKUP = 500

_CREATE = (
    "CREATE TABLE IF NOT EXISTS models (id INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE, dimension INTEGER NOT NULL)",
    "CREATE TABLE IF NOT EXISTS vectors (model INTEGER NOT NULL REFERENCES models, role TEXT NOT NULL, digest BLOB NOT NULL,"
    " vector BLOB NOT NULL, UNIQUE (model, role, digest))",
    f"PRAGMA application_id = {_APPLICATION_ID}",
    f"PRAGMA user_version = {_FORMAT}",
)
_MODELS = "SELECT name FROM models ORDER BY id"
_MODEL = "SELECT id, dimension FROM models WHERE name = ?"
_ADD_MODEL = "INSERT OR IGNORE INTO models (name, dimension) VALUES (?, ?)"
_FIND = "SELECT digest, vector FROM vectors WHERE model = ? AND role = ? AND digest IN ({marks})"
_ADD = "INSERT OR IGNORE INTO vectors (model, role, digest, vector) VALUES (?, ?, ?, ?)"


class CacheFile:
    """Unit vectors by model, role and digest, shared by threads and processes. Vectors are little-endian float32.

    :param path: the file; made if it is missing or empty, unless ``read_only``.
    :param read_only: open it as it lies; nothing is written, neither into it nor beside it.
    :raises StoreUnavailable: if it can not be opened or is no such file; then it is left as it is.
    """

    def __init__(self, path: Path, *, read_only: bool) -> None:
        self.path = path
        self.read_only = read_only
        self._lock = threading.RLock()
        self._process = os.getpid()
        self._connection: sqlite3.Connection | None = self._open()
        self._finalizer = weakref.finalize(self, self._connection.close)

    def close(self) -> None:
        """Close the file; the last one to close leaves it alone, without a log beside it. A second call does nothing."""
        with self._lock:
            self._connection = None
            self._finalizer()

    def models(self) -> list[str]:
        """Return the names of the models that have vectors here."""
        with self._using() as connection:
            return [name for (name,) in connection.execute(_MODELS)]

    def dimension(self, model: str) -> int | None:
        """Return the length of the model's vectors, None where there are none yet."""
        with self._using() as connection:
            row = connection.execute(_MODEL, (model,)).fetchone()
        return None if row is None else int(row[1])

    def find(self, model: str, role: str, digests: Collection[bytes]) -> dict[bytes, Vectors]:
        """Return the stored vectors of those digests that there are.

        :param model: the model's name.
        :param role: what the texts were embedded as.
        :param digests: of the texts.
        :return: digest to unit vector, in no order.
        :raises StoreUnavailable: if a row is damaged.
        """
        wanted, found = sorted(digests), dict[bytes, Vectors]()
        with self._using() as connection:
            known = connection.execute(_MODEL, (model,)).fetchone()
            for start in range(0, len(wanted) if known else 0, _LOOKUP):
                some = wanted[start : start + _LOOKUP]
                query = _FIND.format(marks=",".join("?" * len(some)))
                found |= self._checked(connection.execute(query, (known[0], role, *some)).fetchall(), known[1])
        return found

    def add(self, model: str, role: str, rows: Mapping[bytes, Vectors]) -> dict[bytes, Vectors]:
        """Store rows and return what is stored under their digests: where another process was faster, its row stands.

        :param model: the model's name.
        :param role: what the texts were embedded as.
        :param rows: digest to unit vector; at least one.
        :return: digest to stored vector.
        :raises ModelMismatch: if the file holds vectors of another length for the model.
        """
        length = next(iter(rows.values())).size
        with self._using() as connection, _transaction(connection):
            connection.execute(_ADD_MODEL, (model, length))
            number, dimension = connection.execute(_MODEL, (model,)).fetchone()
            self.check_length(model, length, dimension)
            connection.executemany(_ADD, ((number, role, digest, row.astype("<f4").tobytes()) for digest, row in rows.items()))
            return self.find(model, role, rows)

    def check_length(self, model: str, length: int, dimension: int) -> None:
        """Refuse vectors that are not as long as the file's.

        :param model: the model's name.
        :param length: of the embedder's vectors.
        :param dimension: of the file's vectors.
        :raises ModelMismatch: naming both lengths.
        """
        if length != dimension:
            raise ModelMismatch(
                f"the embedder {model!r} returned vectors of length {length}, but the cache {self.path.name} holds {dimension} "
                "for it; nothing was stored. Use another cache file, or give the two models different names."
            )

    def _checked(self, rows: list[tuple[bytes, bytes]], dimension: int) -> dict[bytes, Vectors]:
        """Return the vectors of rows; what was stored is of unit length, so a check must not change a bit of it."""
        if any(not isinstance(vector, bytes) or len(vector) != 4 * dimension for _, vector in rows):
            raise self.unusable(f"holds a vector that is not {dimension} float32 long. Remove it to start afresh.")
        stored = np.frombuffer(b"".join(vector for _, vector in rows), "<f4").reshape(len(rows), dimension).astype(np.float32)
        try:
            sound = np.array_equal(unit_vectors(stored, count=len(rows), dimension=dimension, what="the cache"), stored)
        except EmbeddingFailed:
            sound = False
        if not sound:
            raise self.unusable("holds a vector that is not of unit length. Remove it to start afresh.")
        return {digest: row for (digest, _), row in zip(rows, stored, strict=True)}

    @contextmanager
    def _using(self) -> Iterator[sqlite3.Connection]:
        """Hold the connection, and turn what SQLite raises into our own error."""
        with self._lock:
            if self._connection is None:
                raise StoreUnavailable(f"the cache {self.path.name} is closed; open it again.", retryable=False)
            if self._process != os.getpid():
                raise StoreUnavailable(
                    f"the cache {self.path.name} was opened before a fork; open it in each process.", retryable=False
                )
            try:
                yield self._connection
            except sqlite3.Error as error:
                raise self._failure(error) from None

    def _open(self) -> sqlite3.Connection:
        new = self._is_new()
        connection = None
        try:
            connection = self._connect()
            if not self.read_only:
                _prepare(connection, new=new)
            connection.execute(_MODELS).fetchone()
            connection.execute(_FIND.format(marks="?"), (0, "", b"")).fetchone()
        except sqlite3.Error as error:
            if connection is not None:
                connection.close()
            raise self._failure(error) from None
        return connection

    def _is_new(self) -> bool:
        """Return whether the file is still to be made. Its first bytes are read without SQLite, which might change it."""
        header = b""
        try:
            with self.path.open("rb") as file:
                header = file.read(100)
        except FileNotFoundError:
            pass
        except OSError as error:
            raise self.unusable(f"can not be read ({type(error).__name__}). Give the path of a file.") from None
        if not header:
            if self.read_only:
                raise self.unusable("is missing or empty, and can not be made read-only. Give an embedder, and read_only=False.")
            return True
        if not header.startswith(_MAGIC) or int.from_bytes(header[68:72], "big") != _APPLICATION_ID:
            raise self.unusable("is no cache of vectors; it was not changed. Give another path.")
        if int.from_bytes(header[60:64], "big") != _FORMAT:
            raise self.unusable("was made by another version of the workbench; it was not changed. Give another path.")
        return False

    def _connect(self) -> sqlite3.Connection:
        mode = "mode=rwc"
        if self.read_only:
            # A file that nobody writes is read as it lies; SQLite then makes no -shm or -wal beside it.
            mode = "mode=ro" if self._has_log() else "mode=ro&immutable=1"
        address = f"{self.path.absolute().as_uri()}?{mode}"
        return sqlite3.connect(address, timeout=_BUSY_SECONDS, isolation_level=None, check_same_thread=False, uri=True)

    def _has_log(self) -> bool:
        log = Path(f"{self.path}-wal")
        return log.exists() and log.stat().st_size > 0

    def _failure(self, error: sqlite3.Error) -> StoreUnavailable:
        name = getattr(error, "sqlite_errorname", type(error).__name__)
        if name.startswith(("SQLITE_BUSY", "SQLITE_LOCKED")):
            return StoreUnavailable(f"the cache {self.path.name} is held by another process; retry.")
        if name.startswith(("SQLITE_CORRUPT", "SQLITE_NOTADB", "SQLITE_ERROR")):
            return self.unusable(f"is damaged ({name}). Remove it to start afresh.")
        if name.startswith("SQLITE_READONLY") and not self.read_only:
            return self.unusable("can not be written. Open it with read_only=True, or make the file and its directory writable.")
        if self.read_only and self._has_log():
            return self.unusable(f"has an unfinished log beside it ({name}). Open it once without read_only and close it.")
        return self.unusable(f"can not be used ({name}). Check that its directory exists, can be written and has room.")

    def unusable(self, fault: str) -> StoreUnavailable:
        """Return an error that names the file."""
        return StoreUnavailable(f"the cache file {self.path} {fault}", retryable=False)


@contextmanager
def _transaction(connection: sqlite3.Connection) -> Iterator[None]:
    connection.execute("BEGIN IMMEDIATE")
    try:
        yield
        connection.execute("COMMIT")
    finally:
        if connection.in_transaction:
            connection.execute("ROLLBACK")


def _prepare(connection: sqlite3.Connection, *, new: bool) -> None:
    """Make the tables in one transaction, so that another process sees none or all of them; then turn on the log."""
    if new:
        connection.execute("PRAGMA page_size = 16384")
        with _transaction(connection):
            for statement in _CREATE:
                connection.execute(statement)
    with suppress(sqlite3.OperationalError):  # another process may be at it just now; either mode is correct
        connection.execute("PRAGMA journal_mode = WAL").fetchone()
    connection.execute("PRAGMA synchronous = NORMAL")
