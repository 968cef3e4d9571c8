"""The project's own small texts, with judgements: a novella in scenes, the memories of a working life, graded questions.

Everything was written for this project; ``data/fixtures/README.md`` says what is in it.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from workbench.core.embedders import Embedder
from workbench.core.embedders.cached import CachedEmbedder
from workbench.core.errors import InvalidRequest
from workbench.core.event import Event, parse_time

PARTS = ("novella", "memories")
MODEL = "multilingual-e5-small-q4"
"""What made the shipped vectors."""
KINDS = ("literal", "paraphrase", "relation", "two_events", "time", "unanswerable")
SCENE_BORDER = "* * *"
_TIMES = ("written_at", "occurred_from", "occurred_to")


@dataclass(frozen=True, slots=True)
class Evidence:
    """Where an answer stands: ``content[start:end]`` of the event, in code points; ``quote`` repeats that text."""

    event_id: str
    start: int
    end: int
    quote: str


@dataclass(frozen=True, slots=True)
class Question:
    """A graded question. ``require`` says whether any one piece of evidence answers it or all are needed."""

    id: str
    part: str
    text: str
    kind: str
    require: str
    evidence: tuple[Evidence, ...]


def directory() -> Path:
    """Return the folder of the fixtures: inside the installed package, else in the checkout."""
    package = Path(__file__).parent
    installed = package / "_fixtures"
    return installed if installed.is_dir() else package.parent / "data" / "fixtures"


def load_events(*parts: str) -> list[Event]:
    """Return the events of the named parts, of all parts by default, in their own order.

    :param *parts: of ``PARTS``.
    :return: the events, with ids and written times.
    :raises InvalidRequest: if a part is not known.
    """
    return [event for part in _known(parts) for event in _EVENTS[part](directory())]


def load_questions(*parts: str) -> list[Question]:
    """Return the graded questions about the named parts, about all by default.

    :param *parts: of ``PARTS``.
    :return: the questions, unanswerable ones too.
    :raises InvalidRequest: if a part is not known.
    """
    wanted = _known(parts)
    rows = _rows(directory() / "questions.jsonl")
    questions = (Question(**row | {"evidence": tuple(Evidence(**each) for each in row["evidence"])}) for row in rows)
    return [question for question in questions if question.part in wanted]


def load_projects() -> dict[str, str]:
    """Return the known grouping of the memories: event id to project."""
    projects: dict[str, str] = json.loads((directory() / "projects.json").read_text("utf-8"))
    return projects


def embedder(inner: Embedder | None = None) -> CachedEmbedder:
    """Return the shipped embeddings of the fixtures and their questions: multilingual E5 without a model.

    :param inner: what embeds a text that is not among them; None means that such a text is an error.
    :return: the embedder, to be closed.
    """
    return CachedEmbedder(inner, directory() / "vectors.db", read_only=True)


def _known(parts: tuple[str, ...]) -> tuple[str, ...]:
    for part in parts:
        if part not in PARTS:
            raise InvalidRequest(f"there is no such part; use {' or '.join(PARTS)}.")
    return parts or PARTS


def _rows(path: Path) -> Iterator[dict[str, Any]]:
    for line in path.read_text("utf-8").splitlines():
        yield json.loads(line)


def _event(row: dict[str, Any]) -> Event:
    return Event(**row | {name: parse_time(row[name], name) for name in _TIMES if row.get(name)})


def _memories(folder: Path) -> Iterator[Event]:
    return (_event(row) for row in _rows(folder / "memories.jsonl"))


def _novella(folder: Path) -> Iterator[Event]:
    rows = _rows(folder / "novella" / "scenes.jsonl")
    texts = (text for chapter in sorted((folder / "novella").glob("ch*.md")) for text in scenes(chapter.read_text("utf-8")))
    return (_event(row | {"content": text}) for row, text in zip(rows, texts, strict=True))


def scenes(chapter: str) -> list[str]:
    """Return the scenes of a chapter file: what stands between its heading and the marked borders, without blank ends."""
    body = chapter.partition("\n")[2] if chapter.startswith("# ") else chapter
    return [scene.strip("\n") for scene in body.split(f"\n{SCENE_BORDER}\n")]


_EVENTS = {"novella": _novella, "memories": _memories}
