"""The way to a Neo4j server: its driver, bounded retries, and its errors in our words.

A read is an auto-commit query, one round trip, tried again by hand. A write is one managed transaction, which the driver may run
again; when the connection breaks during COMMIT, nobody knows the outcome, and the transaction function is run once more to look.
"""

import contextlib
import os
import ssl
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import neo4j
from neo4j import exceptions
from tenacity import Retrying, retry_if_exception, stop_after_delay, wait_random_exponential

from workbench.core.errors import Conflict, InvalidRequest, ReadOnly, StoreUnavailable, WorkbenchError

Value = TypeVar("Value")
Work = Callable[[neo4j.ManagedTransaction], Value]

PATIENCE = 30.0
"""Seconds for which a server that has answered before may be away: it may be restarting, or electing a leader."""
FIRST_PATIENCE = 5.0
"""Seconds for which a server that never answered is tried."""
CONNECT_SECONDS = 5.0
WRITE_SECONDS = 600.0
"""After this the server ends a transaction, so that no writer that went silent keeps the others waiting for ever."""
_RETRY_DELAY, _RETRY_GROWTH = 0.1, 1.2
"""Seconds before a write is run again, and their growth: the driver's own doubling would sleep on long after a server is back."""
_LOOKS = 4
"""How often a transaction is run when its COMMIT was not answered."""
_FETCH = 500
_QUIET = (neo4j.NotificationDisabledClassification.UNRECOGNIZED, neo4j.NotificationDisabledClassification.SCHEMA)
"""An empty database knows no label yet, and two openers may create one constraint: neither is worth a note."""
_PARENTS: list[neo4j.Driver] = []
"""Drivers of the process that this one was forked from, kept for ever."""


class Connection:
    """A driver for one store. Safe to share between threads; a forked child gets a driver of its own.

    :param address: of the server, checked.
    :param auth: user and password, or None.
    :param database: its name, or None for the user's own.
    :param read_only: let any member of a cluster answer, and write nothing.
    :raises InvalidRequest: if the driver can not use the address.
    """

    def __init__(self, address: str, *, auth: tuple[str, str] | None, database: str | None, read_only: bool) -> None:
        self._address, self._auth, self._database, self._read_only = address, auth, database, read_only
        self._lock = threading.Lock()
        self._closed = self._answered = False
        self._calls = 0
        self._connect()

    def _connect(self) -> None:
        """Make a driver, which connects when it is first used."""
        try:
            self._driver = neo4j.GraphDatabase.driver(
                self._address,
                auth=self._auth,
                connection_timeout=CONNECT_SECONDS,
                connection_acquisition_timeout=2 * CONNECT_SECONDS,
                max_transaction_retry_time=PATIENCE,
                initial_retry_delay=_RETRY_DELAY,
                retry_delay_multiplier=_RETRY_GROWTH,
                notifications_disabled_classifications=_QUIET,
                telemetry_disabled=True,
                user_agent="retrieval-workbench",
            )
        except (exceptions.ConfigurationError, ValueError):
            raise InvalidRequest("the driver can not use this address; see docs/neo4j.md for those that it takes.") from None
        self._bookmarks = neo4j.GraphDatabase.bookmark_manager()
        self._process = os.getpid()
        self._finalizer = weakref.finalize(self, _close, self._driver, self._process)

    def _current(self) -> neo4j.Driver:
        with self._lock:
            if self._closed:
                raise _closed()
            if self._process != os.getpid():  # the parent goes on with its sockets: they are neither used nor closed here
                self._finalizer.detach()
                _PARENTS.append(self._driver)
                self._calls = 0
                self._connect()
            self._calls += 1
            return self._driver

    @contextlib.contextmanager
    def _session(self) -> Iterator[neo4j.Session]:
        driver = self._current()
        try:
            with driver.session(
                database=self._database,
                default_access_mode=neo4j.READ_ACCESS if self._read_only else neo4j.WRITE_ACCESS,
                bookmark_manager=self._bookmarks,
                fetch_size=_FETCH,
            ) as session:
                yield session
        finally:
            with self._lock:
                self._calls -= 1
                last = self._closed and not self._calls
            if last:
                self._finalizer()

    def read(self, query: str, consume: Callable[[neo4j.Result], Value], /, **parameters: object) -> Value:
        """Run a query outside of any transaction and return what ``consume`` makes of its result.

        :param query: a constant of ``neo4j_queries``.
        :param consume: reads the result; it may be called again with another one.
        :param **parameters: of the query.
        :return: what ``consume`` returned.
        :raises StoreUnavailable: if the server can not be asked.
        """

        def attempt() -> Value:
            with self._session() as session:
                value = consume(session.run(query, parameters))
            self._answered = True
            return value

        with self._translated(ReadOnly):
            return self._retrying(_passing)(attempt)

    def write(self, work: Work[Value]) -> Value:
        """Run a function inside a write transaction and return what it returns.

        :param work: decides and writes; run again it finds out whether it was done already.
        :return: what it returned.
        :raises ReadOnly: if the user or the server may not write.
        :raises StoreUnavailable: if the server can not be asked, or it stayed unknown whether the change was made.
        """
        if self._read_only:
            raise ReadOnly("this library was opened with read_only=True; open it without to change it.")
        bounded, doubt = neo4j.unit_of_work(timeout=WRITE_SECONDS)(_refusing(work)), list[exceptions.IncompleteCommit]()
        with self._translated(ReadOnly):
            while True:
                try:
                    with self._session() as session:
                        value = session.execute_write(bounded)
                    self._answered = True
                    return value
                except exceptions.IncompleteCommit as error:
                    doubt.append(error)
                    if self._closed or len(doubt) == _LOOKS:
                        raise
                except (exceptions.DriverError, exceptions.Neo4jError, StoreUnavailable):
                    if doubt:
                        raise doubt[0] from None
                    raise

    def administer(self, query: str, /) -> None:
        """Run a statement on the schema.

        :param query: a constant of ``neo4j_queries``.
        :raises StoreUnavailable: if it can not be carried out.
        """

        def attempt() -> None:
            with self._session() as session:
                session.run(query).consume()

        end = time.monotonic() + FIRST_PATIENCE  # what another opener makes at this moment is there then; what lasts is in the way

        def again(error: BaseException) -> bool:
            return _passing(error) or (_code(error) in _SCHEMA_RACES and time.monotonic() < end)

        with self._translated(_no_right_to_set_up):
            self._retrying(again)(attempt)

    def _retrying(self, again: Callable[[BaseException], bool]) -> Retrying:
        return Retrying(
            retry=retry_if_exception(lambda error: not self._closed and again(error)),
            stop=stop_after_delay(PATIENCE if self._answered else FIRST_PATIENCE),
            wait=wait_random_exponential(multiplier=0.05, max=2.0),
            reraise=True,
        )

    @contextlib.contextmanager
    def _translated(self, forbidden: Callable[[str], WorkbenchError]) -> Iterator[None]:
        """Turn the driver's errors into ours; its own words stay out, for they may hold values and addresses."""
        try:
            yield
        except (exceptions.DriverError, exceptions.Neo4jError, OSError) as error:
            if self._closed and not isinstance(error, exceptions.IncompleteCommit):
                raise _closed() from None
            raise _translation(error, forbidden) from None

    def close(self) -> None:
        """Close the driver, which no call may be using then: the last one does it. Closing twice does nothing."""
        with self._lock:
            self._closed = True
            idle = not self._calls
        if idle:
            self._finalizer()


def _close(driver: neo4j.Driver, process: int) -> None:
    if os.getpid() == process:
        with contextlib.suppress(exceptions.DriverError, OSError):
            driver.close()


def _closed() -> StoreUnavailable:
    return StoreUnavailable("the library is closed; open it again.", retryable=False)


# -- errors --------------------------------------------------------------------------------------------------------------

_SCHEMA_RACES = (
    "Neo.ClientError.Schema.EquivalentSchemaRuleAlreadyExists",
    "Neo.ClientError.Schema.ConstraintAlreadyExists",
    "Neo.ClientError.Schema.IndexAlreadyExists",
    "Neo.ClientError.Schema.ConstraintWithNameAlreadyExists",
    "Neo.ClientError.Schema.IndexWithNameAlreadyExists",
)
_NO_WRITE = (
    "Neo.ClientError.General.ForbiddenOnReadOnlyDatabase",
    "Neo.ClientError.General.WriteOnReadOnlyAccessDatabase",
    "Neo.ClientError.Statement.AccessMode",
)
_REASONS: tuple[tuple[str, str, bool], ...] = (
    (
        "Neo.ClientError.Security.CredentialsExpired",
        "the user's password has expired; change it on the server (ALTER CURRENT USER SET PASSWORD …) and open the library again.",
        False,
    ),
    (
        "Neo.ClientError.Security.AuthenticationRateLimit",
        "the server takes no log-in of this user for some seconds, after several with a wrong password. Wait, then retry.",
        True,
    ),
    ("Neo.ClientError.Security", "the server refused the log-in; check the user and password given as auth.", False),
    ("Neo.ClientError.Database.DatabaseNotFound", "the server has no database of this name; check database=.", False),
    ("Neo.ClientError.Database", "the server can not use this database; check database=.", False),
    (
        "Neo.ClientError.Statement.SemanticError",
        "the server can not run this in this database; check database=, which can not be the server's own, named system.",
        False,
    ),
    ("Neo.TransientError.Database.DatabaseUnavailable", "the database is stopped or starting; retry when it is online.", True),
    ("Neo.TransientError.General.DatabaseUnavailable", "the database is stopped or starting; retry when it is online.", True),
    ("Neo.ClientError.Transaction.TransactionTimedOut", "the server ended a transaction that took too long. Retry.", True),
    ("Neo.ClientError.Transaction.LockAcquisitionTimeout", "another writer kept the library locked. Retry.", True),
    ("Neo.ClientError.Cluster.NotALeader", "no member of the cluster takes writes at present; retry.", True),
    (
        "Neo.DatabaseError.Schema.ConstraintCreationFailed",
        "the database holds nodes that claim one id or one name, such as two Concepts with equal namespace and nameKey, so its "
        "constraints can not be made. Merge or delete those nodes, or choose another database.",
        False,
    ),
    (
        "Neo.ClientError.Schema.ConstraintValidationFailed",
        "another program wrote a node of the same id or name at the same time; nothing was written. Retry.",
        True,
    ),
    (
        "Neo.ClientError.Schema",
        "the database has an index or constraint of its own where the library needs one; drop it, or choose another database.",
        False,
    ),
)


def _code(error: BaseException) -> str:
    return (error.code if isinstance(error, exceptions.Neo4jError) else None) or ""


def _passing(error: BaseException) -> bool:
    """Return whether the same query may succeed a little later."""
    if _caused_by(error, ssl.SSLError) or _code(error) in _NO_WRITE or "OutOfMemory" in _code(error):
        return False
    return isinstance(error, exceptions.DriverError | exceptions.Neo4jError) and error.is_retryable()


def _refusing(work: Work[Value]) -> Work[Value]:
    """Let a refusal to write end the driver's retries: a database that is read-only stays so."""

    def refusing(transaction: neo4j.ManagedTransaction) -> Value:
        try:
            return work(transaction)
        except exceptions.Neo4jError as error:
            if error.is_retryable() and not _passing(error):
                raise _translation(error, ReadOnly) from None
            raise

    return refusing


def _translation(error: Exception, forbidden: Callable[[str], WorkbenchError]) -> WorkbenchError:
    code = _code(error)
    if code in _NO_WRITE:
        return forbidden("this database can only be read; nothing was written.")
    if code == "Neo.ClientError.Security.Forbidden":
        return forbidden("the user lacks the right to do this; ask the server's administrator for it.")
    if "OutOfMemory" in code:
        return StoreUnavailable(
            "the server has not enough memory for so large a transaction; nothing was written. Save fewer events at once, or give "
            "it more memory.",
            retryable=True,
        )
    for beginning, reason, retryable in _REASONS:
        if code.startswith(beginning):
            return (Conflict if "ConstraintValidation" in beginning else StoreUnavailable)(reason, retryable=retryable)
    if code:
        return StoreUnavailable(
            f"the server answered {code}; nothing was written. Check its log and the room on its disk.",
            retryable=_passing(error),
        )
    return _unreachable(error)


def _unreachable(error: Exception) -> StoreUnavailable:
    if isinstance(error, exceptions.IncompleteCommit):
        return StoreUnavailable(
            "the connection broke while a change was being committed, and the server did not come back to tell whether it was "
            "made. Look for it before you repeat it.",
            retryable=False,
        )
    if _caused_by(error, ssl.SSLError):
        return StoreUnavailable(
            "no encrypted connection: the server speaks no TLS, or its certificate is not trusted. A server without TLS has "
            "bolt:// or neo4j://, one with its own certificate bolt+ssc:// or neo4j+ssc://.",
            retryable=False,
        )
    if isinstance(error, exceptions.UnsupportedServerProduct):
        return StoreUnavailable("the server is too old or no Neo4j server; version 5.26 or newer is needed.", retryable=False)
    return StoreUnavailable(
        "the server does not answer; check that it runs and that host and port are right. One that wants encryption has "
        "bolt+s:// or neo4j+s://.",
        retryable=True,
    )


def _no_right_to_set_up(reason: str) -> StoreUnavailable:
    return StoreUnavailable(
        f"the database has no library yet, and its constraints can not be made: {reason} Let a user who may make constraints and "
        "indexes open the library once.",
        retryable=False,
    )


def _caused_by(error: BaseException | None, kind: type[BaseException]) -> bool:
    """Return whether an error of this kind lies below another one."""
    if error is None or isinstance(error, kind):
        return error is not None
    group: tuple[Any, ...] = getattr(error, "exceptions", ())
    return any(_caused_by(each, kind) for each in (error.__cause__, *group))
