"""What is remembered: the event, its stored form and the rules a text must keep (retrieval.md sections 1 and 2)."""

import unicodedata
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime, timedelta

from workbench.core.errors import InvalidRequest

KINDS = ("conversation", "active")
EVENT_TYPES = (
    "decision",
    "plan",
    "change",
    "cancellation",
    "release",
    "task_completed",
    "migration",
    "incident",
    "meeting",
    "collaboration",
    "other",
)
TEMPORAL_STATUSES = ("occurred", "planned", "cancelled", "disputed", "current", "unknown")
VISIBILITIES = ("visible", "superseded", "archived", "forgotten", "revoked")
ID_LIMIT = 256
"""Longest id, in code points (S7)."""

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_INVISIBLE = frozenset({"Cc", "Cf", "Zs", "Zl", "Zp"})


@dataclass(frozen=True, slots=True)
class Event:
    """One remembered happening.

    ``id`` and ``written_at`` may be None until saved. Offsets into ``content`` are code points.
    Lists given for ``concepts``, ``persons`` and ``tags`` become tuples; a name that repeats is kept once.

    :raises InvalidRequest: if a field breaks S7, or an enumerated field has an unknown value.
    """

    id: str | None = None
    title: str = ""
    summary: str = ""
    content: str = ""
    concepts: Sequence[str] = ()
    persons: Sequence[str] = ()
    tags: Sequence[str] = ()
    kind: str = "conversation"
    event_type: str = "other"
    temporal_status: str = "unknown"
    occurred_from: datetime | None = None
    occurred_to: datetime | None = None
    critical: bool = False
    written_at: datetime | None = None

    def __post_init__(self) -> None:
        if self.id is not None:
            check_id(self.id)
        for name in ("title", "summary", "content"):
            check_text(getattr(self, name), f"Event.{name}")
        if is_blank(self.summary):
            raise InvalidRequest("Event.summary is blank; give one visible character or more.")
        for name in ("concepts", "persons", "tags"):
            object.__setattr__(self, name, _names(getattr(self, name), f"Event.{name}"))
        for name, known in (("kind", KINDS), ("event_type", EVENT_TYPES), ("temporal_status", TEMPORAL_STATUSES)):
            if getattr(self, name) not in known:
                raise InvalidRequest(f"Event.{name} is not known; use one of {', '.join(known)}.")
        if not isinstance(self.critical, bool):
            raise InvalidRequest("Event.critical must be True or False.")
        for name in ("occurred_from", "occurred_to", "written_at"):
            moment = getattr(self, name)
            if moment is not None:
                object.__setattr__(self, name, as_utc(moment, f"Event.{name}"))
        if self.occurred_from and self.occurred_to and self.occurred_from > self.occurred_to:
            raise InvalidRequest("Event.occurred_from lies after occurred_to; swap them or correct one.")

    def replace(self, **changes: object) -> "Event":
        """Return a copy with some fields changed, checked like a new event."""
        return replace(self, **changes)  # type: ignore[arg-type]


@dataclass(frozen=True, slots=True)
class StoredEvent:
    """An event with what the library knows of it. ``chunk_count`` is None where it was never chunked (S6)."""

    event: Event
    visibility: str
    superseded_by: str | None
    adoptions: int
    chunk_count: int | None


def is_blank(text: str) -> bool:
    """Return whether no character of ``text`` is visible: white space, controls and formats count as nothing (S8)."""
    return not text or (text.isspace() or all(unicodedata.category(char) in _INVISIBLE for char in text))


def check_text(text: object, field: str) -> None:
    """Refuse what no store, embedder or JSON can carry unchanged (S7).

    :param text: what was given.
    :param field: what it is, for the message.
    :raises InvalidRequest: if ``text`` is no string or holds a lone surrogate or NUL; the message names ``field``.
    """
    if not isinstance(text, str):
        raise InvalidRequest(f"{field} must be a string, not {type(text).__name__}.")
    if "\0" in text:
        raise InvalidRequest(f"{field} holds a NUL character at {text.index(chr(0))}; remove it.")
    if not text.isascii():
        try:
            text.encode("utf-8")
        except UnicodeEncodeError as error:
            raise InvalidRequest(
                f"{field} holds a lone surrogate at {error.start}; it is no valid Unicode text. Decode it correctly or remove it."
            ) from None


def check_id(event_id: object, field: str = "Event.id") -> None:
    """Refuse an id that is no text, blank, or longer than 256 code points (S7).

    :param event_id: what was given.
    :param field: what it is, for the message.
    :raises InvalidRequest: naming ``field``.
    """
    check_text(event_id, field)
    assert isinstance(event_id, str)
    if is_blank(event_id) or len(event_id) > ID_LIMIT:
        raise InvalidRequest(f"{field} has {len(event_id)} code points; give 1 to {ID_LIMIT}, one of them visible.")


def _names(values: object, field: str) -> tuple[str, ...]:
    if isinstance(values, str) or not isinstance(values, Iterable):
        raise InvalidRequest(f"{field} must be a list of strings.")
    names = tuple(values)
    for name in names:
        check_text(name, field)
        if is_blank(name):
            raise InvalidRequest(f"{field} holds a blank name; leave it out.")
    first: dict[str, str] = {}
    for name in names:
        first.setdefault(normalise_name(name), name)
    return tuple(first.values())


def normalise_name(name: str) -> str:
    """Return the key under which names are one: NFKC, trimmed, white space collapsed, case-folded (catalog.md 1)."""
    folded = unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", name).casefold())
    return " ".join(folded.split())


def as_utc(moment: object, field: str) -> datetime:
    """Return ``moment`` in UTC; a naive one is read as UTC (S7).

    :param moment: what was given.
    :param field: what it is, for the message.
    :return: the same instant, aware.
    :raises InvalidRequest: if it is no datetime or leaves the years 1 to 9999 in UTC.
    """
    if not isinstance(moment, datetime):
        raise InvalidRequest(f"{field} must be a datetime, not {type(moment).__name__}.")
    try:
        return moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment.astimezone(UTC)
    except OverflowError:
        raise InvalidRequest(f"{field} leaves the years 1 to 9999 in UTC; give another time.") from None


def to_micros(moment: datetime) -> int:
    """Return microseconds since 1970 in UTC, exactly."""
    return (moment - _EPOCH) // timedelta(microseconds=1)


def from_micros(micros: int) -> datetime:
    """Return the UTC datetime of :func:`to_micros`."""
    return _EPOCH + timedelta(microseconds=micros)


def rfc3339(moment: datetime) -> str:
    """Return an RFC 3339 string with ``Z``, with microseconds only where there are some."""
    return moment.astimezone(UTC).isoformat().replace("+00:00", "Z")


def parse_time(value: object, field: str) -> datetime:
    """Return the UTC datetime of a datetime or an RFC 3339 string.

    :param value: what was given.
    :param field: what it is, for the message.
    :return: the instant, aware.
    :raises InvalidRequest: if it is neither.
    """
    if isinstance(value, str):
        try:
            value = datetime.fromisoformat(value)
        except ValueError:
            raise InvalidRequest(f"{field} is no RFC 3339 time such as 2026-03-01T09:30:00Z.") from None
    return as_utc(value, field)


DAY_MICROS = 86_400_000_000


def written_range(written_from: object, written_to: object) -> tuple[int | None, int | None]:
    """Return the half-open range of written microseconds that two bounds mean (Q2).

    A bare date is that day in UTC, whatever the host's time zone: its first instant as ``written_from``, its last one
    as ``written_to``. An instant is inclusive as ``written_from`` and exclusive as ``written_to``.

    :param written_from: a date, a datetime or an ISO string of either; None or a blank string for no bound.
    :param written_to: likewise.
    :return: ``(from, to)``, None where open.
    :raises InvalidRequest: if a bound can not be read or the range is reversed.
    """
    low, _ = _bound(written_from, "written_from")
    high, day = _bound(written_to, "written_to")
    if high is not None and day:
        high += DAY_MICROS
    if low is not None and high is not None and low > high:
        raise InvalidRequest("written_from lies after written_to; swap them or leave one out.")
    return low, high


def _date_or_time(text: str) -> date:
    try:
        return date.fromisoformat(text)
    except ValueError:
        return datetime.fromisoformat(text)


def _bound(value: object, field: str) -> tuple[int | None, bool]:
    if value is None or (isinstance(value, str) and is_blank(value)):
        return None, False
    if isinstance(value, str):
        try:
            value = _date_or_time(value)
        except ValueError:
            raise InvalidRequest(f"{field} is no date such as 2026-03-01 and no RFC 3339 time.") from None
    if isinstance(value, date) and not isinstance(value, datetime):
        return to_micros(datetime(value.year, value.month, value.day, tzinfo=UTC)), True
    return to_micros(as_utc(value, field)), False
