"""The form of an exported library: JSON lines with everything that the library knows, vectors too.

The first line is ``{"format": "workbench-library", "version": 1, "events": <count>, "recipe": {"model", "dimension", "chunker"},
"entities": [{"label", "id", "name", "vector"}]}``. Each further line is one event: its fields, ``visibility``, ``superseded_by``,
``adoptions``, ``summary_vector``, and ``spans`` with their ``vectors``. Both are null where it was never chunked (S6), and a
vector is null where its span has no visible character (S8). A vector is the base64 of little-endian float32.
"""

import base64
import functools
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import numpy as np

from workbench.core.chunking import Span, spans_of, visible_spans
from workbench.core.errors import InvalidRequest
from workbench.core.event import VISIBILITIES, Event, check_id, check_text, is_blank, normalise_name, rfc3339
from workbench.core.stores.base import ENTITY_LABELS, EmbeddedName, EntityKey, Floats, Prepared, Recipe
from workbench.core.writing import Plan, names_of
from workbench.rows import FIELDS, TIMES, event_model, parse_object, validated

if TYPE_CHECKING:
    from pydantic import BaseModel

FORMAT = "workbench-library"
VERSION = 1
_MARK = re.compile(rb'(?:\xef\xbb\xbf)?\s*\{\s*"format"\s*:\s*"workbench-library"')
_MARK_WITHIN = 200
_COUNT_WIDTH = 12
_NORM_SLACK = 1e-3


@dataclass(frozen=True, slots=True)
class Header:
    """The first line. ``faults`` says which of its names are damaged; they are missing from ``names``."""

    events: int
    recipe: Recipe
    names: Mapping[EntityKey, EmbeddedName]
    faults: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Restored:
    """An event's line: the event with what the library knew of it, and its vectors as written."""

    event: Event
    visibility: str
    superseded_by: str | None
    adoptions: int
    summary_vector: str
    spans: list[list[int]] | None
    vectors: list[str | None] | None


def is_export(path: Path) -> bool:
    """Return whether a file begins like an exported library, whatever its name."""
    with path.open("rb") as file:
        return _MARK.match(file.read(_MARK_WITHIN)) is not None


# -- writing -------------------------------------------------------------------------------------------------------------


def header_line(recipe: Recipe, names: Sequence[EmbeddedName], events: int) -> bytes:
    """Return the first line. It has the same length for any number of events, so that it can be written again at the end."""
    head = {"format": FORMAT, "version": VERSION, "events": 0}
    body = {
        "recipe": {"model": recipe.model, "dimension": recipe.dimension, "chunker": recipe.chunker},
        "entities": [
            {"label": each.label, "id": each.id, "name": each.name, "vector": _coded(each.vector)}
            for each in sorted(names, key=lambda each: (each.label, each.id or ""))
        ],
    }
    counted = _json(head)[:-2] + f"{events:>{_COUNT_WIDTH}}"
    return f"{counted},{_json(body)[1:]}\n".encode()


def event_line(prepared: Prepared) -> bytes:
    """Return the line of an event."""
    event, embedded = prepared.event, prepared.embedded
    row = {name: getattr(event, name) for name in FIELDS}
    row |= {name: rfc3339(moment) for name in TIMES if (moment := row[name]) is not None}
    row |= {"visibility": prepared.visibility, "superseded_by": prepared.superseded_by, "adoptions": prepared.adoptions}
    chunked = embedded.spans is not None
    vectors = [_coded(vector) if vector.any() else None for vector in embedded.vectors] if chunked else None
    row |= {"summary_vector": _coded(embedded.summary), "spans": embedded.spans, "vectors": vectors}
    return f"{_json(row)}\n".encode()


def _json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))


def _coded(vector: Floats) -> str:
    return base64.b64encode(np.ascontiguousarray(vector, "<f4").tobytes()).decode()


# -- reading -------------------------------------------------------------------------------------------------------------


def read_header(line: bytes) -> Header:
    """Return what the first line says.

    :param line: the first of the file.
    :return: its names with their vectors, and what is damaged among them.
    :raises InvalidRequest: if it is damaged or of a newer version.
    """
    row = parse_object(line)
    if isinstance(version := row.get("version"), int) and version > VERSION:
        raise InvalidRequest(f"has format version {version}, and this workbench knows {VERSION}; upgrade the workbench")
    fields = validated(row, _models().header)
    recipe = Recipe(**fields["recipe"])
    names: dict[EntityKey, EmbeddedName] = {}
    faults = []
    for place, entity in enumerate(fields["entities"]):
        try:
            name = _name(entity, recipe)
            names[name.label, name.key] = name
        except InvalidRequest as error:
            faults.append(f"entities[{place}]: {error.message}")
    return Header(fields["events"], recipe, names, tuple(faults))


def _name(entity: dict[str, Any], recipe: Recipe) -> EmbeddedName:
    fields = validated(entity, _models().entity)
    name = fields["name"]
    check_id(fields["id"], "id")
    check_text(name, "name")
    if is_blank(name):
        raise InvalidRequest("name is blank")
    return EmbeddedName(fields["label"], normalise_name(name), name, _vector(fields["vector"], recipe, "vector"), fields["id"])


def read_line(line: bytes) -> Restored:
    """Return the event of a line, without looking at its vectors.

    :param line: any but the first.
    :return: the event, its state, and its vectors as written.
    :raises InvalidRequest: if the line is cut or damaged, or the event breaks a rule.
    """
    row = validated(parse_object(line), _models().event)
    if lacking := [name for name in FIELDS if name not in row]:
        raise InvalidRequest(f"{lacking[0]} is missing")
    event = Event(**{name: row.pop(name) for name in FIELDS})
    superseded_by = row["superseded_by"]
    if event.id is None or event.written_at is None:
        raise InvalidRequest("id and written_at must not be null")
    if (row["visibility"] == "superseded") != (superseded_by is not None) or superseded_by == event.id:
        raise InvalidRequest("superseded_by must name another event where visibility is superseded, and be null elsewhere")
    if superseded_by is not None:
        check_id(superseded_by, "superseded_by")
    return Restored(event, **row)


def prepare(restored: Restored, header: Header) -> Prepared:
    """Return the event ready to be written, with the vectors that the file holds.

    :param restored: what its line says.
    :param header: what the first line says.
    :return: the event with vectors, spans and terms.
    :raises InvalidRequest: if a vector or span is damaged, or the first line lacks a name that the event mentions.
    """
    event, recipe = restored.event, header.recipe
    if any(key not in header.names for key in names_of([event])):
        raise InvalidRequest("mentions a concept or person that the first line does not hold")
    summary = _vector(restored.summary_vector, recipe, "summary_vector")
    spans = _spans(restored, recipe)
    coded = restored.vectors or ()
    given = [_vector(text, recipe, f"vectors[{place}]") for place, text in enumerate(coded) if text is not None]
    plan = Plan(event, spans, tuple(text is not None for text in coded))
    embedded = plan.embedded(np.stack([summary, *given]))
    return Prepared(event, embedded, restored.visibility, restored.superseded_by, restored.adoptions)


def _vector(text: str, recipe: Recipe, what: str) -> Floats:
    try:
        vector = np.frombuffer(base64.b64decode(text, validate=True), "<f4").astype(np.float32)
    except ValueError:
        raise InvalidRequest(f"{what} is no base64 of float32 values") from None
    if vector.size != recipe.dimension:
        raise InvalidRequest(f"{what} has {vector.size} values, and the library's dimension is {recipe.dimension}")
    if not abs(float(np.linalg.norm(vector.astype(np.float64))) - 1) < _NORM_SLACK:
        raise InvalidRequest(f"{what} is not of unit length")
    return vector


def _spans(restored: Restored, recipe: Recipe) -> tuple[Span, ...] | None:
    spans, vectors, content = restored.spans, restored.vectors, restored.event.content
    if spans is None and vectors is None:
        return None
    if spans is None or vectors is None or len(spans) != len(vectors) or recipe.chunker is None:
        raise InvalidRequest("spans and vectors must be of one length, and the first line must name the chunker")
    if any(len(span) != 2 for span in spans):
        raise InvalidRequest("spans must be pairs of offsets")
    given = tuple((start, end) for start, end in spans)
    try:
        spans_of(_Recorded(given), content)
    except InvalidRequest:
        raise InvalidRequest("spans are out of order, leave the text or miss visible text") from None
    if any(shown and vector is None for shown, vector in zip(visible_spans(content, given), vectors, strict=True)):
        raise InvalidRequest("vectors lacks one for a span with visible text")
    return given


@dataclass(frozen=True, slots=True)
class _Recorded:
    """The chunker that would give recorded spans, so that they pass the checks of any chunker's (S11)."""

    spans: tuple[Span, ...]
    name: str = "recorded"

    def __call__(self, _: str, /) -> Sequence[Span]:
        return self.spans


@dataclass(frozen=True, slots=True)
class _Models:
    header: "type[BaseModel]"
    entity: "type[BaseModel]"
    event: "type[BaseModel]"


@functools.cache
def _models() -> _Models:
    from pydantic import ConfigDict, Field, create_model

    strict = ConfigDict(strict=True, extra="forbid")
    whole: Any = Annotated[int, Field(ge=0)]
    text: Any = str | None
    recipe = create_model("Recipe", __config__=strict, model=(text, ...), dimension=(whole | None, ...), chunker=(text, ...))
    header = create_model(
        "Header",
        __config__=strict,
        format=_one_of(FORMAT),
        version=(whole, ...),
        events=(whole, ...),
        recipe=(recipe, ...),
        entities=(list[dict[str, Any]], ...),
    )
    entity = create_model(
        "Entity", __config__=strict, label=_one_of(*ENTITY_LABELS), id=(str, ...), name=(str, ...), vector=(str, ...)
    )
    event = create_model(
        "RestoredEvent",
        __base__=event_model(),
        visibility=_one_of(*VISIBILITIES),
        superseded_by=(text, ...),
        adoptions=(whole, ...),
        summary_vector=(str, ...),
        spans=(list[list[int]] | None, ...),
        vectors=(list[str | None] | None, ...),
    )
    return _Models(header, entity, event)


def _one_of(*values: str) -> Any:
    return Literal[values], ...
