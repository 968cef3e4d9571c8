"""Session state: what was delivered, which excerpts, which cursors (section 6, C1 to C8, H6).

A call runs inside :meth:`Sessions.turn`, which serialises the calls of one session. It works on a copy of the session's
state that takes the place of the old one only when the call succeeds, so a call that fails leaves no trace, not even in
the order of eviction. Times are handed in; this module reads no clock.
"""

import contextlib
import secrets
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from datetime import datetime
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

    def copy(self) -> "SessionState":
        """Return a copy that can be changed without changing this one."""
        return SessionState(self.ids.copy(), self.excerpts.copy(), self.cursors.copy())


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
    """One call's view of its session: reads the history in force, and gathers what the call delivers."""

    def __init__(self, sessions: "Sessions", session: str, state: SessionState, now: datetime) -> None:
        self.now, self.state = now, state
        self.retired: dict[str, _Retired] = {}
        self._sessions, self._session = sessions, session

    def reset(self) -> None:
        """Forget ids, excerpts and cursors (H4); undone when the call fails."""
        self._retire(self.state.cursors.values(), "reset")
        self.state = SessionState()

    def delivered_ids(self) -> list[str]:
        """Return the ids that are excluded now (H1)."""
        return [event_id for event_id, at in self.state.ids.items() if self._sessions.in_force(at, self.now)]

    def cursor(self, token: str) -> Cursor:
        """Return a cursor of this session.

        :param token: as an answer gave it.
        :return: the cursor.
        :raises CursorInvalid: with the reason of C8, if it is not in force here.
        """
        cursor = self.state.cursors.get(token)
        if cursor is None:
            raise broken(self._sessions.why_missing(token, self._session, self.now))
        if not self._sessions.in_force(cursor.made, self.now):
            raise broken("expired")
        return cursor

    def quote(self, event_id: str, excerpt: str) -> Quote | None:
        """Return where this excerpt was delivered before, or None; an event never refers to itself (V7)."""
        known = self.state.excerpts.get(excerpt)
        if known is None or not self._sessions.in_force(known.at, self.now) or known.quote.event_id == event_id:
            return None
        return known.quote

    def deliver(self, event_id: str, excerpt: str | None, quote: Quote) -> None:
        """Record one delivered event, and its excerpt unless that was sent as a reference (None) or is empty."""
        _put(self.state.ids, event_id, self.now, self._sessions.config.max_ids)
        if excerpt:
            _put(self.state.excerpts, excerpt, _Delivered(quote, self.now), self._sessions.config.max_excerpts)

    def new_cursor(self, origin: Origin, chain: Iterable[str], concepts: Iterable[str]) -> Cursor:
        """Record and return a cursor; the oldest gives way beyond the limit (C5)."""
        cursor = Cursor(secrets.token_urlsafe(12), self.now, origin, tuple(chain), frozenset(concepts))
        self._retire(_put(self.state.cursors, cursor.token, cursor, self._sessions.config.max_cursors), "evicted")
        return cursor

    def _retire(self, cursors: Iterable[Cursor], reason: str) -> None:
        self.retired.update({cursor.token: _Retired(self._session, reason, cursor.made) for cursor in cursors})


def _put(entries: "OrderedDict[str, Value]", key: str, value: Value, limit: int) -> list[Value]:
    """Set an entry as the newest and return what the limit drops, oldest first."""
    entries[key] = value
    entries.move_to_end(key)
    return [entries.popitem(last=False)[1] for _ in range(len(entries) - limit)]


class Sessions:
    """All sessions of one open library. State lives in the process; reopening starts afresh (H6)."""

    def __init__(self, config: SessionConfig) -> None:
        self.config = config
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
            turn = Turn(self, session, state.copy() if state else SessionState(), clock())
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
        for token, retired in turn.retired.items():
            _put(self._retired, token, retired, self._retired_limit())
        self._states[session] = turn.state
        self._states.move_to_end(session)
        while len(self._states) > self.config.max_sessions:
            oldest, dropped = self._states.popitem(last=False)
            for cursor in dropped.cursors.values():
                _put(self._retired, cursor.token, _Retired(oldest, "evicted", cursor.made), self._retired_limit())

    def _retired_limit(self) -> int:
        return self.config.max_sessions * self.config.max_cursors

    def in_force(self, at: datetime, now: datetime) -> bool:
        """Return whether an entry made at ``at`` still counts; a clock that steps back makes no age negative (H6)."""
        return max((now - at).total_seconds(), 0.0) < self.config.ttl_seconds

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
