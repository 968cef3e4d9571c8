"""The facade that ties a store, an embedder, sessions and the clock together (api.md)."""

import re
import threading
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, date, datetime
from functools import cached_property
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Self, cast
from urllib.parse import urlsplit

from workbench.core.chunking import Chunker, FixedChunker
from workbench.core.config import Config
from workbench.core.embedders.base import Embedder
from workbench.core.errors import InvalidRequest, NotFound
from workbench.core.event import Event, StoredEvent, check_id, check_text, is_blank, written_range
from workbench.core.results import Reading, SearchResult
from workbench.core.retrieval.neighbours import NEARBY_LIMIT
from workbench.core.retrieval.sessions import Filters, Sessions
from workbench.core.searching import Searcher
from workbench.core.stores.base import LibraryStats, Problem, Store
from workbench.core.stores.index import VectorIndex
from workbench.core.writing import ReembedReport, SaveReport, Writer, cancel_check, progress_bar

if TYPE_CHECKING:
    from workbench.core.tools import Tools

LABELS = ("Event", "Person", "Concept")
SERVER_SCHEMES = ("neo4j", "neo4j+s", "neo4j+ssc", "bolt", "bolt+s", "bolt+ssc")
_SHOWN = ("visible", "superseded")
_LARGEST = 2**53
"""No text, page or batch is longer; a store can count to it."""


def now_utc() -> datetime:
    """Return the present time in UTC: the default clock."""
    return datetime.now(UTC)


def open_memory(
    address: str,
    *,
    namespace: str = "default",
    embedder: Embedder | None = None,
    auth: tuple[str, str] | None = None,
    database: str | None = None,
    config: Config | None = None,
    chunker: Chunker | None = None,
    clock: Callable[[], datetime] | None = None,
    read_only: bool = False,
) -> "Memory":
    """Open a library, and create it where it does not exist.

    :param address: ``sqlite:///relative/file.db``, ``sqlite:////absolute/file.db`` or ``sqlite://`` (private, in memory);
        ``neo4j://host:7687`` or ``bolt://…`` for a server, with ``+s`` for TLS and ``+ssc`` for TLS with any certificate.
    :param namespace: the library inside the store; nothing crosses it.
    :param embedder: what makes vectors; None means the bundled offline model, loaded when a call first needs it.
    :param auth: user and password for a server; None where it asks for none, and for a file.
    :param database: of a server; None means the user's own. A file has none.
    :param config: all constants.
    :param chunker: for experiments: a callable text -> spans with a ``name``; None means the config's 800/120.
    :param clock: returns the present time, aware; None means the machine's, in UTC.
    :param read_only: never write, not even to create or migrate.
    :return: the open library, a context manager.
    :raises InvalidRequest: if an argument can not be used.
    :raises StoreUnavailable: if the store can not be opened.
    """
    check_id(namespace, "namespace")
    config = config or Config()
    if not isinstance(config, Config):
        raise InvalidRequest("config must be a workbench.Config.")
    if embedder is not None and not all(callable(getattr(embedder, name, None)) for name in ("embed_documents", "embed_query")):
        raise InvalidRequest("embedder must have embed_documents and embed_query, such as those of workbench.embedders.")
    if chunker is not None:
        if not callable(chunker):
            raise InvalidRequest("chunker must be a callable text -> sequence of (start, end), with a name.")
        check_id(getattr(chunker, "name", None), "the chunker's name, by which the library records how it was cut,")
    store = _open_store(address, namespace=namespace, auth=auth, database=database, read_only=read_only)
    fixed = FixedChunker(config.retrieval.chunk_size, config.retrieval.chunk_overlap)
    return Memory(store, embedder=embedder, config=config, chunker=chunker or fixed, clock=clock or now_utc)


def _open_store(address: str, *, namespace: str, auth: object, database: object, read_only: bool) -> Store:
    scheme, separator, rest = address.partition("://") if isinstance(address, str) else ("", "", "")
    if separator and scheme == "sqlite":
        from workbench.core.stores.sqlite import SQLiteStore

        if auth is not None or database is not None:
            raise InvalidRequest("auth and database belong to a server; a sqlite:// address takes neither.")
        path = _sqlite_path(rest)
        if path is None and read_only:
            raise InvalidRequest("a private library in memory is empty when opened; read_only makes no sense for it.")
        return SQLiteStore(path, namespace=namespace, read_only=read_only)
    if separator and scheme in SERVER_SCHEMES:
        address, above = _server(address)
        credentials, name = _credentials(auth), _database(database)

        from workbench.core.stores.neo4j import Neo4jStore

        return Neo4jStore(
            address, namespace=namespace, auth=credentials, database=name, read_only=read_only, approximate_above=above
        )
    raise InvalidRequest(
        "the address must begin with sqlite:// or neo4j://, such as sqlite:///demo/memory.db or neo4j://host:7687."
    )


def _sqlite_path(rest: str) -> Path | None:
    if rest in ("", "/:memory:"):
        return None
    if not rest.startswith("/") or rest == "/" or "?" in rest or "\0" in rest:
        raise InvalidRequest("a sqlite address is sqlite:///relative/file.db or sqlite:////absolute/file.db, without options.")
    return Path(rest[1:])


def _server(address: str) -> tuple[str, int | None]:
    """Return the address of a server without its option, and the option: ``?approximate_above=<chunks>`` (docs/scaling.md).

    No message repeats the address, for it may hold a password.
    """
    try:
        parts = urlsplit(address)
        usable = bool(parts.hostname) and parts.port != 0
    except ValueError:
        usable = False
    if "@" in address:
        raise InvalidRequest("an address holds no user and no password; give auth=(user, password) instead.")
    if not usable:
        raise InvalidRequest("the address of a server is neo4j://host:port or bolt://host:port.")
    if parts.path or parts.fragment:
        raise InvalidRequest("the address of a server ends with its port; give the name of a database as database=.")
    option = re.fullmatch(r"approximate_above=([0-9]{1,12})", parts.query)
    if parts.query and option is None:
        raise InvalidRequest("the only option of a server's address is ?approximate_above=<number of chunks>.")
    return address.partition("?")[0], int(option[1]) if option else None


def _credentials(auth: object) -> tuple[str, str] | None:
    if auth is None:
        return None
    if not isinstance(auth, tuple | list) or len(auth) != 2 or not all(isinstance(each, str) and each for each in auth):
        raise InvalidRequest("auth must be (user, password), two strings, or None.")
    return auth[0], auth[1]


def _database(database: object) -> str | None:
    if database is not None:
        check_id(database, "database")
    return cast("str | None", database)


class Memory:
    """One open library. Safe to share between threads; several processes may open the same one."""

    def __init__(
        self, store: Store, *, embedder: Embedder | None, config: Config, chunker: Chunker, clock: Callable[[], datetime]
    ) -> None:
        self.config = config
        self._store, self._embedder, self._lock = store, embedder, threading.Lock()
        self._writer = Writer(store, chunker, clock)
        self._searcher = Searcher(store, VectorIndex(store), Sessions(config.session), config, clock, self._needed_embedder)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """Release the store. Closing twice does nothing; any other call afterwards raises StoreUnavailable."""
        self._store.close()

    @property
    def read_only(self) -> bool:
        """Return whether the library was opened without the right to change it."""
        return self._store.read_only

    @property
    def store(self) -> Store:
        """Return the store, for what moves whole libraries."""
        return self._store

    @property
    def writer(self) -> Writer:
        """Return what prepares and writes events, for what moves whole libraries."""
        return self._writer

    @property
    def embedder(self) -> Embedder:
        """Return the embedder in use; the bundled model where none was given.

        :raises ModelUnavailable: if none was given and none is installed.
        """
        return self._needed_embedder()

    def _needed_embedder(self) -> Embedder:
        with self._lock:
            if self._embedder is None:
                from workbench.core.embedders import E5Embedder

                self._embedder = E5Embedder()
            return self._embedder

    # -- events ------------------------------------------------------------------------------------------------------

    def save(self, event: Event) -> Event:
        """Save one event, whole or not at all; an existing id is updated (S1 to S5).

        :param event: what to remember.
        :return: the event with its id and written time.
        :raises InvalidRequest: if it is no event.
        :raises EmbeddingFailed: if a vector can not be had; nothing is written.
        :raises ModelMismatch: if the library was made by another model or chunker.
        """
        if not isinstance(event, Event):
            raise InvalidRequest(f"save takes a workbench.Event, not {type(event).__name__}.")
        return self._writer.save([event], self._needed_embedder())[0]

    def save_many(
        self, events: Iterable[Event], *, batch_size: int = 64, progress: bool = False, chunks: bool = True
    ) -> SaveReport:
        """Save events in batches, each in one transaction; an event that can not be saved fails alone (S5).

        :param events: any number, also a generator.
        :param batch_size: events per embedding call and transaction.
        :param progress: show a bar on the error stream.
        :param chunks: False keeps events as an old library had them, found by summary only (S6).
        :return: the ids saved, and the errors of the events that were not.
        :raises InvalidRequest: if ``batch_size`` is no positive whole number.
        """
        _whole(batch_size, "batch_size", 1)
        total = len(events) if isinstance(events, Sequence) else None
        with progress_bar(progress, "saving", total) as step:
            return self._writer.save_many(events, self._needed_embedder(), batch_size=batch_size, chunks=chunks, progress=step)

    def get(self, event_id: str) -> StoredEvent:
        """Return an event with what the library knows of it; hidden ones too (F2).

        :param event_id: of any event.
        :return: the event, its visibility, successor, adoptions, and chunk count (None: never chunked).
        :raises NotFound: if there is no such event.
        """
        check_id(event_id, "event_id")
        stored = self._store.get(event_id)
        if stored is None:
            raise _not_found()
        return stored

    def events(self, offset: int = 0, limit: int = 100) -> list[StoredEvent]:
        """Return a page of all events, hidden ones too, by written time, then id.

        :param offset: how many to pass over.
        :param limit: how many to return at most.
        :return: the page, empty beyond the end.
        :raises InvalidRequest: if offset or limit is out of range.
        """
        return self._store.events(_whole(offset, "offset", 0), _whole(limit, "limit", 1))

    def forget(self, event_id: str) -> None:
        """Hide an event for good reason: it is gone from every answer, and only a restore brings it back.

        :param event_id: of the event.
        :raises NotFound: if there is no such event.
        """
        self._set_visibility(event_id, "forgotten")

    def archive(self, event_id: str) -> None:
        """Put an event away: it is gone from every answer until it is restored.

        :param event_id: of the event.
        :raises NotFound: if there is no such event.
        """
        self._set_visibility(event_id, "archived")

    def revoke(self, event_id: str) -> None:
        """Take an event back, as what should never have been remembered; a restore undoes it.

        :param event_id: of the event.
        :raises NotFound: if there is no such event.
        """
        self._set_visibility(event_id, "revoked")

    def restore(self, event_id: str) -> None:
        """Make an event visible again.

        :param event_id: of the event.
        :raises NotFound: if there is no such event.
        """
        self._set_visibility(event_id, "visible")

    def supersede(self, event_id: str, *, by: str) -> None:
        """Mark an event as replaced by a later one. It stays readable, with a notice.

        :param event_id: of the event that is replaced.
        :param by: the id of the later one.
        :raises NotFound: if one of the two does not exist.
        :raises InvalidRequest: if an event would supersede itself, directly or in a circle.
        """
        check_id(by, "by")
        self._set_visibility(event_id, "superseded", by)

    def _set_visibility(self, event_id: str, visibility: str, by: str | None = None) -> None:
        check_id(event_id, "event_id")
        self._store.set_visibility(event_id, visibility, by)

    def reembed(self, embedder: Embedder | None = None, *, progress: bool = False, cancel: object = None) -> ReembedReport:
        """Compute all vectors anew, then replace vectors, chunks and the model record at once (section 3).

        :param embedder: the new one, used from then on; None means the present one.
        :param progress: show a bar on the error stream.
        :param cancel: a ``threading.Event`` or a callable that returns True to stop between embedding batches.
        :return: what was done; when cancelled, nothing was.
        :raises EmbeddingFailed: if a vector can not be had; nothing is changed.
        """
        chosen, stop = embedder or self._needed_embedder(), cancel_check(cancel)
        with progress_bar(progress, "re-embedding", self._store.stats().events) as step:
            report = self._writer.reembed(chosen, progress=step, cancelled=stop)
        if not report.cancelled:
            with self._lock:
                self._embedder = chosen
        return report

    def stats(self) -> LibraryStats:
        """Return counts and the recorded model."""
        return self._store.stats()

    def verify(self) -> list[Problem]:
        """Check every row: gaps, wrong lengths, orphans, bad vectors. Empty when all is well."""
        return self._store.verify()

    # -- retrieval ---------------------------------------------------------------------------------------------------

    def search(
        self,
        query_text: str | None = None,
        *,
        entity: str | Sequence[str] | None = None,
        written_from: str | date | datetime | None = None,
        written_to: str | date | datetime | None = None,
        label: str = "Event",
        limit: int | None = None,
        session: str = "default",
        reset_seen: bool = False,
        explain: bool = False,
    ) -> SearchResult:
        """Find events by a question, by filters, or both (sections 4 to 6).

        :param query_text: the question; None or blank lists by the filters alone, newest written first.
        :param entity: a concept or person by id or name; several mean all of them.
        :param written_from: from this UTC day or instant, inclusive.
        :param written_to: to this UTC day inclusive, or before this instant.
        :param label: ``Concept`` or ``Person`` searches names instead of events.
        :param limit: 1 to 8; more than 4 means 4, and so does None.
        :param session: the host's id of the conversation.
        :param reset_seen: clear the session's delivery history and cursors first.
        :param explain: hand out the whole decision as ``explanation``.
        :return: at most 4 new events with evidence, a cursor and notices.
        :raises InvalidRequest: if there is neither question nor filter, or an argument is out of range.
        :raises ModelMismatch: if the library was made by another model.
        :raises EmbeddingFailed: if the question can not be embedded.
        """
        question = self._question(query_text)
        filters = Filters(_entities(entity), written_range(written_from, written_to))
        limit = self._limit(limit)
        if label not in LABELS:
            raise InvalidRequest(f"label is not known; use one of {', '.join(LABELS)}.")
        if label != "Event":
            if question is None:
                raise InvalidRequest(f"a search for label {label} needs query_text.")
            if filters != Filters() or reset_seen:
                raise InvalidRequest(f"a search for label {label} takes no entity, no dates and no reset_seen.")
            return self._searcher.names(question, label, limit=limit)
        if question is None and filters == Filters():
            raise InvalidRequest("give query_text, entity, written_from or written_to; one of them at least.")
        check_id(session, "session")
        return self._searcher.search(question, filters, limit=limit, session=session, reset=reset_seen, explain=explain)

    def read(self, event_id: str, *, start: int = 0, limit: int | None = None) -> Reading:
        """Read an event's text (F1). It needs no cursor and no model and takes no delivery slot.

        :param event_id: of a visible event.
        :param start: first code point.
        :param limit: 1 to 10,000 code points; None means 1,600.
        :return: the text with its range, and where to read on.
        :raises NotFound: if there is no such visible event.
        :raises InvalidRequest: if start or limit is out of range.
        """
        check_id(event_id, "event_id")
        config = self.config.retrieval
        start = _whole(start, "start", 0)
        length = config.read_default if limit is None else _whole(limit, "limit", 1, config.read_limit)
        page = self._store.page(event_id, start, length)
        if page is None or page.visibility not in _SHOWN:
            raise _not_found()
        if start > page.length:
            raise InvalidRequest(f"start is {start}, beyond the text's end at {page.length}.")
        end = start + len(page.text)
        notices = ("superseded",) if page.visibility == "superseded" else ()
        return Reading(event_id, page.text, (start, end), page.length, end if end < page.length else None, notices)

    def expand(
        self, cursor: str, concept_id: str, *, limit: int | None = None, session: str = "default", explain: bool = False
    ) -> SearchResult:
        """Follow a concept of an answer to the other events that mention it, ranked by the original question (C2).

        :param cursor: of an answer of this session.
        :param concept_id: one of that answer's concepts.
        :param limit: 1 to 8, None means 4; at most 4 are new, and never more than the chain has left.
        :param session: the host's id of the conversation.
        :param explain: hand out the whole decision.
        :return: like a search.
        :raises CursorInvalid: with the reason why the cursor can not be used.
        :raises InvalidRequest: if the cursor does not offer the concept.
        """
        check_text(cursor, "cursor")
        check_id(concept_id, "concept_id")
        check_id(session, "session")
        return self._searcher.expand(cursor, concept_id, limit=self._limit(limit), session=session, explain=explain)

    def nearby(self, cursor: str, event_id: str, *, before: int = 2, after: int = 2, session: str = "default") -> SearchResult:
        """Deliver the records next to an event of the cursor's chain, in number order (C3).

        :param cursor: of an answer of this session.
        :param event_id: of the form ``*_ch<chapter>_e<record>``, delivered in the cursor's chain.
        :param before: 0 to 10 records before it.
        :param after: 0 to 10 records after it.
        :param session: the host's id of the conversation.
        :return: like a search, without scores.
        :raises CursorInvalid: with the reason why the cursor can not be used.
        :raises InvalidRequest: if the id has no such form or was not delivered in the chain.
        """
        check_text(cursor, "cursor")
        check_id(event_id, "event_id")
        check_id(session, "session")
        _whole(before, "before", 0, NEARBY_LIMIT)
        _whole(after, "after", 0, NEARBY_LIMIT)
        return self._searcher.nearby(cursor, event_id, before=before, after=after, session=session)

    @cached_property
    def tools(self) -> "Tools":
        """Return the tools that a language model sees."""
        from workbench.core.tools import Tools

        return Tools(self)

    def _question(self, query_text: str | None) -> str | None:
        if query_text is None:
            return None
        check_text(query_text, "query_text")
        if len(query_text) > self.config.retrieval.question_limit:
            raise InvalidRequest(
                f"query_text has {len(query_text)} code points; {self.config.retrieval.question_limit} are allowed. Shorten it."
            )
        return None if is_blank(query_text) else query_text

    def _limit(self, limit: int | None) -> int:
        most = self.config.retrieval.limit
        return most if limit is None else min(_whole(limit, "limit", 1, self.config.retrieval.max_limit), most)


def _not_found() -> NotFound:
    return NotFound("there is no such event, or it is no longer visible; check the id.")


def _entities(entity: object) -> tuple[str, ...]:
    if entity is None or (isinstance(entity, str) and is_blank(entity)):
        return ()
    entities = (entity,) if isinstance(entity, str) else tuple(entity) if isinstance(entity, Sequence) else None
    if entities is None:
        raise InvalidRequest("entity must be an id or a name, or a list of them.")
    for each in entities:
        check_text(each, "entity")
        if is_blank(each):
            raise InvalidRequest("entity holds a blank name; leave it out.")
    return entities


def _whole(value: object, name: str, least: int, most: int | None = None) -> int:
    """Return a checked whole number; one without an upper bound is cut to what any store can count to."""
    if isinstance(value, bool) or not isinstance(value, int) or value < least or (most is not None and value > most):
        bounds = f"of at least {least}" if most is None else f"from {least} to {most:,}"
        raise InvalidRequest(f"{name} must be a whole number {bounds}.")
    return min(value, _LARGEST)
