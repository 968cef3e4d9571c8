"""The border that a file's rows pass: types, keys and rules are checked once, and a wrong row becomes a fault with its line.

Nothing is coerced, and no message holds what a file says.
"""

import contextlib
import functools
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields
from datetime import UTC, date, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from workbench.core.errors import InvalidRequest
from workbench.core.event import Event, parse_time

if TYPE_CHECKING:
    from pydantic import BaseModel

FIELDS = tuple(field.name for field in fields(Event))
LISTS = ("concepts", "persons", "tags")
TIMES = ("occurred_from", "occurred_to", "written_at")
_CAMEL = {
    "eventType": "event_type",
    "temporalStatus": "temporal_status",
    "occurredFrom": "occurred_from",
    "occurredTo": "occurred_to",
    "writtenAt": "written_at",
}
_BOM = b"\xef\xbb\xbf"
_KEY_SHOWN = 40
_FAULTS_SHOWN = 3
_EXPECTED = {
    "missing": "is missing",
    "string_type": "must be a string",
    "string_unicode": "holds a lone surrogate; it is no valid Unicode text",
    "list_type": "must be a list",
    "bool_type": "must be true or false",
    "int_type": "must be a whole number",
    "greater_than_equal": "is too small",
}


@dataclass(frozen=True, slots=True)
class Fault:
    """What is wrong in a file, and where: a line of text or a row of a table, from 1. None: no line is known."""

    source: str
    line: int | None
    message: str

    def __str__(self) -> str:
        return f"{self.source}: {self.message}" if self.line is None else f"{self.source}:{self.line}: {self.message}"


Row = Event | Fault


def checked(source: str, line: int | None, read: Callable[[], Event]) -> Row:
    """Return the event that ``read`` returns, or a fault in its place."""
    try:
        return read()
    except InvalidRequest as error:
        return Fault(source, line, error.message)


@functools.cache
def event_model() -> "type[BaseModel]":
    """Return the pydantic model of a row: strict, and without other keys than the fields of an event."""
    from pydantic import BeforeValidator, ConfigDict, create_model

    types: dict[str, Any] = dict.fromkeys(FIELDS, (str, "")) | dict.fromkeys(LISTS, (list[str], ()))
    types |= {"id": (str | None, None), "summary": (str, ...), "critical": (bool, False)}
    for name in TIMES:
        types[name] = (Annotated[datetime | None, BeforeValidator(functools.partial(_moment, name))], None)
    return create_model("EventRow", __config__=ConfigDict(strict=True, extra="forbid"), **types)


def _moment(field: str, value: object) -> datetime | None:
    if value is None or isinstance(value, datetime):
        return value
    if isinstance(value, date):
        return datetime(value.year, value.month, value.day, tzinfo=UTC)
    if not isinstance(value, str):
        raise InvalidRequest(f"{field} must be a date or time as a string")
    return parse_time(value.upper(), field)


def validated(row: dict[str, Any], model: "type[BaseModel]") -> dict[str, Any]:
    """Return the given fields of a row after checking their types.

    :param row: with canonical keys.
    :param model: what to check it against.
    :return: the fields that the row gives.
    :raises InvalidRequest: naming each field that is wrong, never its value.
    """
    from pydantic import ValidationError

    try:
        return model.model_validate(row).model_dump(exclude_unset=True)
    except ValidationError as error:
        faults = [_wrong(each) for each in error.errors(include_url=False, include_input=False)]
        more = [f"and {len(faults) - _FAULTS_SHOWN} more"] if len(faults) > _FAULTS_SHOWN else []
        raise InvalidRequest("; ".join(faults[:_FAULTS_SHOWN] + more)) from None


def _wrong(error: Any) -> str:
    kind, (name, *places) = error["type"], error["loc"]
    if kind == "value_error":
        return str(error["ctx"]["error"])
    if kind == "extra_forbidden":
        return f"{str(name)[:_KEY_SHOWN]!r} is no field of an event"
    place = "".join(f"[{each}]" for each in places if isinstance(each, int))
    return f"{name}{place} {_EXPECTED.get(kind, 'is not valid')}"


def event_of(row: dict[str, Any]) -> Event:
    """Return the event of a row.

    :param row: with canonical keys.
    :return: the event.
    :raises InvalidRequest: if a field is missing, unknown, of another type or breaks a rule of events (S7).
    """
    return Event(**validated(row, event_model()))


def parse_object(line: bytes) -> dict[str, Any]:
    """Return the JSON object of one line with camelCase field names made canonical.

    :param line: UTF-8, with or without a byte order mark.
    :return: the object.
    :raises InvalidRequest: if it is no UTF-8, no JSON, no object, gives a key twice or holds NaN.
    """
    try:
        value = json.loads(_decoded(line.removeprefix(_BOM)), object_pairs_hook=_unique, parse_constant=refuse_constant)
    except InvalidRequest:
        raise
    except json.JSONDecodeError as error:
        raise InvalidRequest(f"is no valid JSON at column {error.colno}") from None
    except (ValueError, RecursionError):
        raise InvalidRequest("is no valid JSON: a number is too long or it is nested too deep") from None
    if not isinstance(value, dict):
        raise InvalidRequest("is no JSON object")
    return value


def _decoded(text: bytes) -> str:
    try:
        return text.decode("utf-8")
    except UnicodeDecodeError as error:
        raise InvalidRequest(f"is no valid UTF-8 at byte {error.start}") from None


def _unique(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    row: dict[str, Any] = {}
    for key, value in pairs:
        name = _CAMEL.get(key, key)
        if name in row:
            raise InvalidRequest(f"gives the key {name[:_KEY_SHOWN]!r} twice")
        row[name] = value
    return row


def refuse_constant(name: str) -> None:
    """Refuse NaN and Infinity, which JSON does not have.

    :param name: as it was written.
    :raises InvalidRequest: naming it.
    """
    raise InvalidRequest(f"holds {name}, which is no JSON")


def columns_of(names: Sequence[str]) -> list[str]:
    """Return a header's columns as field names.

    :param names: as they were written, in camelCase too.
    :return: canonical names, in order.
    :raises InvalidRequest: if one is unknown or named twice.
    """
    columns = [_CAMEL.get(name.strip(), name.strip()) for name in names]
    for place, name in enumerate(columns):
        if name not in FIELDS:
            raise InvalidRequest(f"has the column {name[:_KEY_SHOWN]!r}, which is no field of an event")
        if name in columns[:place]:
            raise InvalidRequest(f"has the column {name!r} twice")
    return columns


@contextlib.contextmanager
def reading(path: Path) -> Iterator[None]:
    """Turn an error of the file system into ours."""
    try:
        yield
    except OSError as error:
        raise InvalidRequest(f"{path.name!r} can not be read ({type(error).__name__}); check it and its permissions.") from None
