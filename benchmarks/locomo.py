"""Read LoCoMo (Maharana et al., ACL 2024) as judged libraries: one per conversation, a session or a turn as one event.

The data is read from a path and never copied. A session's content is its date and its turns as ``speaker: text`` lines,
with ``[shares caption]`` where a picture was sent; its summary is the shipped one. A turn's content is the session's date
and its own line; its summary is the line. Category 5 is unanswerable and left out; so is a question without usable evidence.
"""

import json
import re
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from workbench.core.chunking import Span
from workbench.core.event import Event

UNANSWERABLE = 5
_TURN = re.compile(r"D(\d+):0*(\d+)")


@dataclass(frozen=True, slots=True)
class Question:
    """A question and its judgement: per gold event the spans of its content that hold the evidence."""

    text: str
    gold: dict[str, tuple[Span, ...]]
    category: str = ""


@dataclass(frozen=True, slots=True)
class Library:
    """Events that are searched together, with their questions."""

    name: str
    events: tuple[Event, ...]
    questions: tuple[Question, ...]


def read_locomo(path: Path, *, unit: str = "session") -> list[Library]:
    """Return one library per conversation.

    :param path: of the released JSON, or a part of it.
    :param unit: what is one event, ``session`` or ``turn``.
    """
    return [_library(record, unit) for record in json.loads(path.read_text(encoding="utf-8"))]


def _library(record: dict[str, Any], unit: str) -> Library:
    conversation, name = record["conversation"], record["sample_id"]
    events: list[Event] = []
    places: dict[str, tuple[str, Span]] = {}
    for number in _session_numbers(conversation):
        date = conversation[f"session_{number}_date_time"]
        turns = conversation[f"session_{number}"]
        lines = [_line(turn) for turn in turns]
        base = f"{name}_ch{number:02d}"
        written = _moment(date)
        if unit == "session":
            events.append(
                _event(f"{base}_e01", "\n".join([date, *lines]), record["session_summary"][f"session_{number}_summary"], written)
            )
        offset = len(date) + 1
        for order, (turn, line) in enumerate(zip(turns, lines, strict=True), start=1):
            if unit == "turn":
                event_id = f"{base}_e{order:02d}"
                events.append(_event(event_id, f"{date}\n{line}", line, written + timedelta(seconds=order)))
                places[turn["dia_id"]] = (event_id, (len(date) + 1, len(date) + 1 + len(line)))
            else:
                places[turn["dia_id"]] = (f"{base}_e01", (offset, offset + len(line)))
            offset += len(line) + 1
    return Library(name, tuple(events), tuple(_questions(record["qa"], places)))


def _session_numbers(conversation: dict[str, Any]) -> list[int]:
    found = (re.fullmatch(r"session_(\d+)", key) for key in conversation)
    return sorted(int(match[1]) for match in found if match)


def _line(turn: dict[str, Any]) -> str:
    caption = f" [shares {turn['blip_caption']}]" if turn.get("blip_caption") else ""
    return f"{turn['speaker']}: {turn['text']}{caption}"


def _moment(date: str) -> datetime:
    return datetime.strptime(date, "%I:%M %p on %d %B, %Y").replace(tzinfo=UTC)


def _event(event_id: str, content: str, summary: str, written: datetime) -> Event:
    return Event(id=event_id, content=content, summary=summary, written_at=written)


def _questions(records: list[dict[str, Any]], places: dict[str, tuple[str, Span]]) -> list[Question]:
    questions = []
    for record in records:
        if record["category"] == UNANSWERABLE:
            continue
        gold: dict[str, tuple[Span, ...]] = {}
        for session, turn in _TURN.findall(" ".join(record["evidence"])):
            if place := places.get(f"D{session}:{turn}"):
                gold[place[0]] = (*gold.get(place[0], ()), place[1])
        if gold:
            questions.append(Question(record["question"], gold, str(record["category"])))
    return questions
