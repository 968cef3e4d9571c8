"""Events as files: JSONL, CSV, Parquet, and plain text or Markdown with one event per file.

A row that can not be read is a :class:`Fault` with its line; the rows around it are read all the same.
"""

import functools
import itertools
import re
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from workbench.core.errors import InvalidRequest
from workbench.core.event import Event, is_blank
from workbench.rows import Fault, Row, checked, event_of, parse_object, reading
from workbench.tables import csv_rows, parquet_rows

__all__ = ["SUMMARY_LIMIT", "TEXT_SUFFIXES", "Fault", "Row", "event_of_text", "read_events"]

TEXT_SUFFIXES = (".txt", ".md", ".markdown")
SUMMARY_LIMIT = 200
"""Longest summary taken from a text file, in user-perceived characters."""

_WINDOW = 8 * SUMMARY_LIMIT
_HEADING = re.compile(r" {0,3}#{1,6}[ \t]+(\S.*?)(?:[ \t]+#+)?[ \t]*")
_FENCES = ("```", "~~~")
_FRONT_MATTER = re.compile(r"\A---\n.*?\n---(?:\n|\Z)", re.DOTALL)


def read_events(path: str | Path) -> Iterator[Row]:
    """Return the events of a file or folder one by one, and a fault for each row that is none.

    ``.jsonl`` and ``.ndjson`` hold one JSON object per line, ``.csv`` and ``.parquet`` one event per row; keys are the fields of
    :class:`Event`, or their camelCase names of api.md. A cell of a CSV lists names as a JSON array or separated by ``;``.
    ``.txt``, ``.md`` and ``.markdown`` are one event each, with the exact text as ``content``, and a folder is searched for them.

    :param path: the file or folder.
    :return: an iterator that reads as it goes.
    :raises InvalidRequest: if there is no such file, its form is not known or it can not be read at all.
    """
    path = Path(path)
    if path.is_dir():
        return _folder(path)
    if not path.is_file():
        raise InvalidRequest(f"there is no file {path.name!r}; check the path.")
    reader = _READERS.get(path.suffix.lower())
    if reader is None:
        raise InvalidRequest(f"{path.name!r} has no known form; its name must end in one of {', '.join(_READERS)}.")
    return reader(path)


def _json_rows(path: Path) -> Iterator[Row]:
    with reading(path), path.open("rb") as file:
        for number, line in enumerate(file, 1):
            if line.strip():
                yield checked(path.name, number, functools.partial(_event_of_line, line))


def _event_of_line(line: bytes) -> Event:
    return event_of(parse_object(line))


def _folder(path: Path) -> Iterator[Row]:
    found = {each.relative_to(path): each for each in path.rglob("*") if each.suffix.lower() in TEXT_SUFFIXES and each.is_file()}
    shown = sorted(name for name in found if not any(part.startswith(".") for part in name.parts))
    if not shown:
        raise InvalidRequest(f"the folder holds no file whose name ends in {', '.join(TEXT_SUFFIXES)}.")
    return (_text_row(found[name], name.as_posix()) for name in shown)


def _text_rows(path: Path) -> Iterator[Row]:
    yield _text_row(path, path.name)


def _text_row(path: Path, source: str) -> Row:
    try:
        with reading(path):
            text = path.read_bytes()
        return event_of_text(text.decode("utf-8"), path.stem)
    except UnicodeDecodeError as error:
        return Fault(source, text.count(b"\n", 0, error.start) + 1, "is no valid UTF-8")
    except InvalidRequest as error:
        return Fault(source, None, error.message)


def event_of_text(content: str, name: str) -> Event:
    """Return the event of a plain text or Markdown file, written when it is saved.

    :param content: the exact text.
    :param name: the title of a text without a Markdown heading.
    :return: an event whose summary is the first paragraph that is no heading, cut to ``SUMMARY_LIMIT``.
    :raises InvalidRequest: if no character is visible, or the text breaks a rule of events (S7).
    """
    text = re.sub("\r\n?", "\n", content.removeprefix("\ufeff"))
    lines = _FRONT_MATTER.sub("", text).split("\n")
    heading = _heading(lines)
    summary = _first_paragraph(lines) or heading or _first_paragraph(text.split("\n"))
    return Event(title=heading or name, summary=_cut(summary), content=content)


def _heading(lines: Iterable[str]) -> str:
    fenced = False
    for line in lines:
        if line.lstrip().startswith(_FENCES):
            fenced = not fenced
        elif not fenced and (match := _HEADING.fullmatch(line[:_WINDOW])):
            return match[1]
    return ""


def _first_paragraph(lines: Iterable[str]) -> str:
    def between(line: str) -> bool:
        return is_blank(line) or line.lstrip().startswith(_FENCES) or _HEADING.fullmatch(line[:_WINDOW]) is not None

    body = itertools.dropwhile(between, lines)
    return " ".join(" ".join(itertools.takewhile(lambda line: not between(line), body)).split())


def _cut(text: str) -> str:
    import regex

    match = regex.match(rf"\X{{0,{SUMMARY_LIMIT}}}", text[:_WINDOW])
    head = match[0] if match else ""
    return text if len(head) == len(text) else f"{head.rstrip()}…"


_READERS: dict[str, Callable[[Path], Iterator[Row]]] = {
    ".jsonl": _json_rows,
    ".ndjson": _json_rows,
    ".csv": csv_rows,
    ".parquet": parquet_rows,
    **dict.fromkeys(TEXT_SUFFIXES, _text_rows),
}
