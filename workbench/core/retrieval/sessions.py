"""Session state: what was delivered, which excerpts, which cursors (section 6, C1 to C8, H6).

A call runs inside :meth:`Sessions.turn`, which serialises the calls of one session. It notes what it delivers and
puts that into the session's state only when the call succeeds, so a call that fails leaves no trace, not even in the
order of eviction. Times are handed in; this module reads no clock.
"""

import contextlib
import secrets
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import TypeVar

from workbench.core.chunking import Span
from workbench.core.config import SessionConfig
from workbench.core.errors import CursorInvalid
from workbench.core.retrieval.recall import Floats

Value = TypeVar("Value")


@dataclass(frozen=True, slots=True)
class Filters:
    """The filters of a search, as they are kept for its follow-ups. ``written`` is a half-open range of microseconds."""

    entities: tuple[str, ...] = ()
    written: tuple[int | None, int | None] = (None, None)


@dataclass(frozen=True, slots=True)
class Origin:
    """What a chain keeps of its first search: question, its vector and model, filters (C2, C5)."""

    question: str | None
    vector: Floats | None
    filters: Filters
    model: str | None
    dimension: int | None


@dataclass(frozen=True, slots=True)
class Cursor:
    """A place in a chain: all events delivered on the path to it, and the concepts that its own events offer."""

    token: str
    made: datetime
    origin: Origin
    chain: tuple[str, ...]
    concepts: frozenset[str]


@dataclass(frozen=True, slots=True)
class Quote:
    """Where an excerpt was delivered first, and the hash of the text that it was cut from."""

    event_id: str
    range: Span
    text_hash: bytes


@dataclass(frozen=True, slots=True)
class _Delivered:
    quote: Quote
    at: datetime


@dataclass(slots=True)
class SessionState:
    """One session's history. Entries age on their own and the oldest go first."""

    ids: OrderedDict[str, datetime] = field(default_factory=OrderedDict)
    excerpts: OrderedDict[str, _Delivered] = field(default_factory=OrderedDict)
    cursors: OrderedDict[str, Cursor] = field(default_factory=OrderedDict)


@dataclass(frozen=True, slots=True)
class _Retired:
    session: str
    reason: str
    made: datetime


_MESSAGES = {
    "expired": "the cursor is older than its time allows; search again",
    "evicted": "the cursor gave way to newer ones; search again",
    "reset": "the session was reset after this cursor was made; search again",
    "unknown": "there is no such cursor; take the one of the last answer",
    "foreign_session": "the cursor belongs to another session; use one of this session",
    "model_changed": "the library was re-embedded with another model after this cursor was made; search again",
    "event_gone": "an event that the cursor rests on was removed or is no longer visible; search again",
    "ambiguous_id": "an id that the cursor rests on stands for several events; repair the library and search again",
}


def broken(reason: str) -> CursorInvalid:
    """Return the error for a broken cursor; ``reason`` is one of C8."""
    return CursorInvalid(f"{_MESSAGES[reason]}.", reason=reason)


class Turn:
    """One call's view of its session: reads the history in force, and gathers what the call delivers until it commits."""

    def __init__(self, sessions: "Sessions", session: str, state: SessionState, now: datetime) -> None:
        self.now = now
        self._sessions, self._session, self._state = sessions, session, state
        self._ids: list[str] = []
        self._excerpts: dict[str, Quote] = {}
        self._cursors: list[Cursor] = []
        self._retired: dict[str, _Retired] = {}

    def reset(self) -> None:
        """Forget ids, excerpts and cursors (H4); undone when the call fails."""
        self._retire(self._state.cursors.values(), "reset")
        self._state = SessionState()

    def delivered_ids(self) -> list[str]:
        """Return the ids that are excluded now (H1)."""
        return [event_id for event_id, at in self._state.ids.items() if self._sessions.in_force(at, self.now)]

    def cursor(self, token: str) -> Cursor:
        """Return a cursor of this session.

        :param token: as an answer gave it.
        :return: the cursor.
        :raises CursorInvalid: with the reason of C8, if it is not in force here.
        """
        cursor = self._state.cursors.get(token)
        if cursor is None:
            raise broken(self._sessions.why_missing(token, self._session, self.now))
        if not self._sessions.in_force(cursor.made, self.now):
            raise broken("expired")
        return cursor

    def quote(self, event_id: str, excerpt: str) -> Quote | None:
        """Return where this excerpt was delivered before, or None; an event never refers to itself (V7)."""
        known = self._state.excerpts.get(excerpt)
        quote = self._excerpts.get(excerpt) or (known.quote if known and self._sessions.in_force(known.at, self.now) else None)
        return None if quote is None or quote.event_id == event_id else quote

    def deliver(self, event_id: str, excerpt: str | None, quote: Quote) -> None:
        """Note one delivered event, and its excerpt unless that was sent as a reference (None) or is empty."""
        self._ids.append(event_id)
        if excerpt:
            self._excerpts[excerpt] = quote

    def new_cursor(self, origin: Origin, chain: Iterable[str], concepts: Iterable[str]) -> Cursor:
        """Note and return a cursor."""
        cursor = Cursor(secrets.token_urlsafe(12), self.now, origin, tuple(chain), frozenset(concepts))
        self._cursors.append(cursor)
        return cursor

    def commit(self) -> tuple[SessionState, dict[str, "_Retired"]]:
        """Put what was noted into the session's state; return the state and the cursors that gave way (H3, C5)."""
        config = self._sessions.config
        for event_id in self._ids:
            _put(self._state.ids, event_id, self.now, config.max_ids)
        for excerpt, quote in self._excerpts.items():
            _put(self._state.excerpts, excerpt, _Delivered(quote, self.now), config.max_excerpts)
        for cursor in self._cursors:
            self._retire(_put(self._state.cursors, cursor.token, cursor, config.max_cursors), "evicted")
        return self._state, self._retired

    def _retire(self, cursors: Iterable[Cursor], reason: str) -> None:
        self._retired.update({cursor.token: _Retired(self._session, reason, cursor.made) for cursor in cursors})


def _put(entries: "OrderedDict[str, Value]", key: str, value: Value, limit: int) -> list[Value]:
    """Set an entry as the newest and return what the limit drops, oldest first."""
    entries[key] = value
    entries.move_to_end(key)
    return [entries.popitem(last=False)[1] for _ in range(len(entries) - limit)]


class Sessions:
    """All sessions of one open library. State lives in the process; reopening starts afresh (H6)."""

    def __init__(self, config: SessionConfig) -> None:
        self.config = config
        self._ttl = timedelta(seconds=config.ttl_seconds)
        self._lock = threading.Lock()
        self._states: OrderedDict[str, SessionState] = OrderedDict()
        self._retired: OrderedDict[str, _Retired] = OrderedDict()
        self._locks: dict[str, tuple[threading.Lock, int]] = {}

    @contextlib.contextmanager
    def turn(self, session: str, clock: Callable[[], datetime]) -> Iterator[Turn]:
        """Run one call of a session: after those that began before, alone, and recorded only if nothing is raised (H2)."""
        with self._alone(session):
            with self._lock:
                state = self._states.get(session)
            turn = Turn(self, session, state or SessionState(), clock())
            yield turn
            with self._lock:
                self._commit(session, turn)

    @contextlib.contextmanager
    def _alone(self, session: str) -> Iterator[None]:
        with self._lock:
            lock, users = self._locks.get(session, (threading.Lock(), 0))
            self._locks[session] = lock, users + 1
        try:
            with lock:
                yield
        finally:
            with self._lock:
                lock, users = self._locks.pop(session)
                if users > 1:
                    self._locks[session] = lock, users - 1

    def _commit(self, session: str, turn: Turn) -> None:
        state, retired = turn.commit()
        self._states[session] = state
        self._states.move_to_end(session)
        while len(self._states) > self.config.max_sessions:
            oldest, dropped = self._states.popitem(last=False)
            retired |= {cursor.token: _Retired(oldest, "evicted", cursor.made) for cursor in dropped.cursors.values()}
        for token, cursor in retired.items():
            _put(self._retired, token, cursor, self._retired_limit())

    def _retired_limit(self) -> int:
        return self.config.max_sessions * self.config.max_cursors

    def in_force(self, at: datetime, now: datetime) -> bool:
        """Return whether an entry made at ``at`` still counts; a clock that steps back makes no age negative (H6)."""
        return now - at < self._ttl

    def why_missing(self, token: str, session: str, now: datetime) -> str:
        """Return the reason of C8 for a cursor that this session does not hold."""
        with self._lock:
            if any(token in state.cursors for name, state in self._states.items() if name != session):
                return "foreign_session"
            retired = self._retired.get(token)
        if retired is None:
            return "unknown"
        if retired.session != session:
            return "foreign_session"
        return retired.reason if self.in_force(retired.made, now) else "expired"
