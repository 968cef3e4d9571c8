"""The SQLite file: its schema and migrations, its connections, and its errors in our words.

WAL lets readers go on beside one writer. Every write begins with ``BEGIN IMMEDIATE``, so no transaction that has read is
ever upgraded, which is where two processes deadlock. Waiting for a lock is bounded by ``BUSY_SECONDS``.
"""

import contextlib
import ctypes
import os
import sqlite3
import struct
import threading
import time
import weakref
from collections.abc import Iterator
from pathlib import Path

from workbench.core.errors import InvalidRequest, NotFound, ReadOnly, StoreUnavailable, WorkbenchError
from workbench.core.stores.term_blobs import repack

APPLICATION_ID = 0x57424E43
"""Marks a file as a library of the workbench (the bytes ``WBNC``)."""
BUSY_SECONDS = 30.0
PAGE_SIZE = 8192
CACHE_KIB = 16_384
"""Pages that a connection keeps: 78 long term lists took 0.43 ms to read again, and 0.60 ms with the 2 MB of SQLite."""
_BUSY_PAUSE = 0.02

MIGRATIONS: tuple[str, ...] = (
    """
    CREATE TABLE library (
        key INTEGER PRIMARY KEY, namespace TEXT NOT NULL UNIQUE, revision INTEGER NOT NULL DEFAULT 0,
        model TEXT, dimension INTEGER, chunker TEXT,
        next_event INTEGER NOT NULL DEFAULT 1, next_concept INTEGER NOT NULL DEFAULT 1, next_person INTEGER NOT NULL DEFAULT 1
    );
    CREATE TABLE event (
        key INTEGER PRIMARY KEY, library INTEGER NOT NULL REFERENCES library, id TEXT NOT NULL, changed INTEGER NOT NULL,
        written INTEGER NOT NULL, visibility TEXT NOT NULL, superseded_by TEXT, adoptions INTEGER NOT NULL DEFAULT 0,
        chunked INTEGER NOT NULL, length INTEGER NOT NULL, text_hash BLOB NOT NULL,
        kind TEXT NOT NULL, event_type TEXT NOT NULL, temporal_status TEXT NOT NULL, occurred_from INTEGER,
        occurred_to INTEGER, critical INTEGER NOT NULL, concepts TEXT NOT NULL, persons TEXT NOT NULL, tags TEXT NOT NULL,
        title TEXT NOT NULL, summary TEXT NOT NULL, summary_vector BLOB NOT NULL, content TEXT NOT NULL
    );
    CREATE UNIQUE INDEX event_id ON event (library, id);
    CREATE INDEX event_changed ON event (library, changed);
    CREATE INDEX event_written ON event (library, written, id);
    CREATE TABLE event_terms (
        event INTEGER PRIMARY KEY REFERENCES event ON DELETE CASCADE, total INTEGER NOT NULL, keys BLOB NOT NULL,
        counts BLOB NOT NULL
    );
    CREATE TABLE chunk (
        event INTEGER NOT NULL REFERENCES event ON DELETE CASCADE, ordinal INTEGER NOT NULL, start INTEGER NOT NULL,
        "end" INTEGER NOT NULL, vector BLOB
    );
    CREATE UNIQUE INDEX chunk_ordinal ON chunk (event, ordinal);
    CREATE TABLE entity (
        key INTEGER PRIMARY KEY, library INTEGER NOT NULL REFERENCES library, label TEXT NOT NULL, id TEXT NOT NULL,
        name_key TEXT NOT NULL, name TEXT NOT NULL, vector BLOB NOT NULL, changed INTEGER NOT NULL
    );
    CREATE UNIQUE INDEX entity_name ON entity (library, label, name_key);
    CREATE UNIQUE INDEX entity_id ON entity (library, id);
    CREATE TABLE mention (
        event INTEGER NOT NULL REFERENCES event ON DELETE CASCADE, position INTEGER NOT NULL,
        entity INTEGER NOT NULL REFERENCES entity, name TEXT NOT NULL, PRIMARY KEY (event, position)
    ) WITHOUT ROWID;
    CREATE TABLE removal (library INTEGER NOT NULL, id TEXT NOT NULL, changed INTEGER NOT NULL);
    CREATE INDEX removal_changed ON removal (library, changed);
    CREATE TRIGGER event_removed AFTER DELETE ON event BEGIN
        UPDATE library SET revision = revision + 1 WHERE key = OLD.library;
        INSERT INTO removal SELECT OLD.library, OLD.id, revision FROM library WHERE key = OLD.library;
    END;
    """,
    "UPDATE event_terms SET keys = packed_keys(keys, counts), counts = packed_counts(keys, counts);",
)
"""Script ``n`` brings a file from version n to n + 1; the file's version is its ``user_version``."""


class SQLiteFile:
    """Connections to one library file, or to a private library in memory.

    :param path: the file, or None for a library in memory that ends with this object.
    :param read_only: open without ever writing.
    :raises StoreUnavailable: if it can not be opened, is no library, is damaged or comes from a newer version.
    """

    def __init__(self, path: Path | None, *, read_only: bool) -> None:
        self._path, self.read_only, self._immutable = path and path.absolute(), read_only, False
        self._idle: list[sqlite3.Connection] = []
        self._lock, self._writing = threading.Lock(), threading.RLock()
        self._closed, self._process = False, os.getpid()
        self._finalizer = weakref.finalize(self, _close_all, self._idle)
        with _translated():
            if self._path is not None:
                self._inspect(self._path)
            if not read_only:
                self._prepare()

    @property
    def private(self) -> bool:
        """Return whether the library lives in the memory of this object, in one connection."""
        return self._path is None

    def _inspect(self, path: Path) -> None:
        """Refuse a file that is not ours, before anything is written to it or beside it."""
        if not path.exists() or path.stat().st_size == 0:
            if self.read_only:
                raise _refused(path, "does not exist; open it without read_only to create it")
            path.parent.mkdir(parents=True, exist_ok=True)
            return
        self._check_header(path)
        try:
            application, version, tables = _identity(self._open_for_inspection())
        except sqlite3.DatabaseError:  # another process may have been writing just then; a locking reader sees no half of it
            application, version, tables = _identity(self._connect("ro"))
        if application != APPLICATION_ID and (application or version or tables):
            raise _refused(path, "is a SQLite file of another program; choose another path")
        known = len(MIGRATIONS)
        if version > known:
            raise _refused(path, f"has schema version {version}, and this workbench knows {known}; upgrade the workbench")
        if self.read_only and version < known:
            raise _refused(path, f"has schema version {version}, older than {known}; open it once without read_only to migrate it")

    def _check_header(self, path: Path) -> None:
        """Refuse what is no SQLite file, or shorter than its own header says (sqlite.org/fileformat2.html, section 1.3)."""
        with path.open("rb") as file:
            header = file.read(_HEADER.size)
        if len(header) < _HEADER.size or not header.startswith(b"SQLite format 3\0"):
            raise _refused(path, "is no SQLite file; choose another path")
        _, size, changes, pages, counted_at = _HEADER.unpack(header)
        short = changes == counted_at and path.stat().st_size < pages * (size if size > 1 else 65_536)
        if short and not self._log_has_content():  # a log that is not copied yet holds what is missing
            raise _refused(path, "is damaged: it is shorter than it says; restore it from a copy or an export")

    def _log_has_content(self) -> bool:
        assert self._path is not None
        log = self._path.with_name(self._path.name + "-wal")
        try:
            return log.stat().st_size > 0
        except FileNotFoundError:
            return False

    def _open_for_inspection(self) -> sqlite3.Connection:
        """Open without leaving a file of WAL beside the library; a log with content has to be read, though."""
        assert self._path is not None
        if self._log_has_content():
            return self._connect("ro")
        self._immutable = self.read_only and not os.access(self._path.parent, os.W_OK)  # there WAL can not keep its -shm file
        return self._connect("ro&immutable=1")

    def _connect(self, mode: str) -> sqlite3.Connection:
        if self._path is None:
            target = ":memory:"
        else:
            target = f"{self._path.absolute().as_uri()}?mode={mode}" + ("&immutable=1" if self._immutable else "")
        return sqlite3.connect(
            target, uri=True, timeout=BUSY_SECONDS, isolation_level=None, check_same_thread=False, cached_statements=256
        )

    def _prepare(self) -> None:
        """Create or migrate the schema in one transaction."""
        connection = self._checked_out()
        try:
            (version,) = connection.execute("PRAGMA user_version").fetchone()
            if version == 0:
                connection.execute(f"PRAGMA page_size = {PAGE_SIZE}")
            _enable_wal(connection)
            if version < len(MIGRATIONS):
                with _transaction(connection, "IMMEDIATE"):
                    _migrate(connection)
        finally:
            self._returned(connection)

    def _checked_out(self) -> sqlite3.Connection:
        with self._lock:
            self._check_process()
            if self._closed:
                raise StoreUnavailable("this library is closed; open it again.", retryable=False)
            if self._idle:
                return self._idle.pop()
        connection = self._connect("ro" if self.read_only else "rwc")
        try:
            connection.execute("PRAGMA foreign_keys = ON")
            connection.execute("PRAGMA synchronous = FULL")
            connection.execute(f"PRAGMA cache_size = -{CACHE_KIB}")
        except BaseException:
            connection.close()
            raise
        return connection

    def _check_process(self) -> None:
        if os.getpid() == self._process:
            return
        if self._path is None:
            raise StoreUnavailable(
                "a library in memory belongs to the process that opened it; use a file to share one.", retryable=False
            )
        self._process = os.getpid()
        _abandon(self._idle)

    def _returned(self, connection: sqlite3.Connection) -> None:
        with self._lock:
            if not self._closed:
                self._idle.append(connection)
                return
        connection.close()

    @contextlib.contextmanager
    def reading(self) -> Iterator[sqlite3.Connection]:
        """Yield a connection inside a read transaction: one consistent moment."""
        with self._connection("DEFERRED") as connection:
            yield connection

    @contextlib.contextmanager
    def writing(self) -> Iterator[sqlite3.Connection]:
        """Yield a connection inside a write transaction, which commits unless something is raised."""
        if self.read_only:
            raise ReadOnly("this library was opened with read_only=True; open it without to change it.")
        with self._writing, self._connection("IMMEDIATE") as connection:
            yield connection

    @contextlib.contextmanager
    def _connection(self, kind: str) -> Iterator[sqlite3.Connection]:
        alone = self._writing if self._path is None else contextlib.nullcontext()
        with alone, _translated():
            connection = self._checked_out()
            try:
                with _transaction(connection, kind):
                    yield connection
            finally:
                self._returned(connection)

    def close(self) -> None:
        """Close every connection. Closing twice does nothing."""
        with self._lock:
            self._closed = True
            if os.getpid() == self._process:
                _close_all(self._idle)


_HEADER = struct.Struct(">16sH6xI I 60x I")
"""Magic, page size, change counter, page count, and the change counter at which the page count was right."""


def _identity(connection: sqlite3.Connection) -> tuple[int, int, int]:
    """Return a file's application id, schema version and number of tables and indexes, and close the connection."""
    with contextlib.closing(connection):
        (application,) = connection.execute("PRAGMA application_id").fetchone()
        (version,) = connection.execute("PRAGMA user_version").fetchone()
        (tables,) = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
    return application, version, tables


def _refused(path: Path, why: str) -> StoreUnavailable:
    return StoreUnavailable(f"{path.name!r} {why}.", retryable=False)


def _abandon(connections: list[sqlite3.Connection]) -> None:
    """Keep connections of the parent process for ever: a forked child may neither use nor close them (sqlite.org/howtocorrupt)."""
    while connections:
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(connections.pop()))


def _close_all(connections: list[sqlite3.Connection]) -> None:
    while connections:
        connections.pop().close()


@contextlib.contextmanager
def _transaction(connection: sqlite3.Connection, kind: str) -> Iterator[None]:
    connection.execute(f"BEGIN {kind}")
    try:
        yield
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise


def _enable_wal(connection: sqlite3.Connection) -> None:
    """Switch to WAL; SQLite does not wait for this lock by itself when several processes open a new file at once."""
    deadline = time.monotonic() + BUSY_SECONDS
    while True:
        try:
            connection.execute("PRAGMA journal_mode = WAL")
            return
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode != sqlite3.SQLITE_BUSY or time.monotonic() > deadline:
                raise
            time.sleep(_BUSY_PAUSE)


def _migrate(connection: sqlite3.Connection) -> None:
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    for place, name in enumerate(("packed_keys", "packed_counts")):  # version 1 kept all keys as 8 bytes, sorted
        connection.create_function(name, 2, lambda keys, counts, place=place: repack(keys, counts)[place], deterministic=True)
    for script in MIGRATIONS[version:]:
        for statement in _statements(script):
            connection.execute(statement)
    connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
    connection.execute(f"PRAGMA user_version = {len(MIGRATIONS)}")


def _statements(script: str) -> Iterator[str]:
    """Yield the statements of a script; ``executescript`` would commit the transaction around them."""
    pending = ""
    for line in script.splitlines():
        pending += line + "\n"
        if sqlite3.complete_statement(pending):
            yield pending
            pending = ""
    if pending.strip():
        yield pending


_REASONS = (
    ("SQLITE_BUSY", f"another process kept the library locked for {BUSY_SECONDS:g} s; nothing was written. Retry.", True),
    ("SQLITE_LOCKED", "the library is locked; nothing was written. Retry.", True),
    ("SQLITE_FULL", "the disk is full; nothing was written. Free some space and retry.", True),
    (
        "SQLITE_READONLY",
        "the library's file or folder can not be written; check its permissions or open it with read_only=True.",
        False,
    ),
    ("SQLITE_CANTOPEN", "the library's file can not be opened; check its path and permissions.", False),
    ("SQLITE_PERM", "the library's file can not be opened; check its permissions.", False),
    ("SQLITE_CORRUPT", "the library's file is damaged; restore it from a copy or an export.", False),
    ("SQLITE_NOTADB", "the file is no SQLite library; choose another path.", False),
    ("SQLITE_IOERR", "reading or writing the library's file failed; check the disk and retry.", True),
)


@contextlib.contextmanager
def _translated() -> Iterator[None]:
    """Turn SQLite's errors into ours; its own words stay out, for they may hold values."""
    try:
        yield
    except (WorkbenchError, InvalidRequest, NotFound):
        raise
    except sqlite3.Error as error:
        name = getattr(error, "sqlite_errorname", None) or type(error).__name__
        for code, reason, retryable in _REASONS:
            if name.startswith(code):
                raise StoreUnavailable(reason, retryable=retryable) from None
        raise StoreUnavailable(f"the library answered {name}; nothing was written.", retryable=False) from None
    except OSError as error:
        raise StoreUnavailable(
            f"the library's file can not be reached ({type(error).__name__}); check its path.", retryable=False
        ) from None
