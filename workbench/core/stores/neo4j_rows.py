"""Nodes of a Neo4j library read as the records of ``base``, and the seals by which a half-visible commit is told from a whole one.

Neo4j reads what is committed, property by property: while a commit is being applied, a reader may meet some new and some old
properties of one node. A single property is never torn. So a node that is ever updated carries a hash of what belongs together in
it, and a reader that finds another one reads again.
"""

import hashlib
import json
import struct
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from workbench.core.chunking import Span
from workbench.core.errors import StoreUnavailable
from workbench.core.event import Event, StoredEvent, from_micros, normalise_name
from workbench.core.stores.base import (
    Embedded,
    EmbeddedName,
    EntityRows,
    EventRows,
    Floats,
    Library,
    Passage,
    Prepared,
    Recipe,
    text_hash,
)
from workbench.core.stores.term_blobs import Row as TermRow
from workbench.core.stores.term_blobs import pack, unpack
from workbench.core.text import TermCounts

Fields = Mapping[str, Any]
Link = tuple[int, Any, str]
"""Position, what stands there, and how the event spells it."""
SHOWN = ("visible", "superseded")
SEALED = (
    *("key", "changed", "id", "title", "summary", "length", "textHash", "chunked", "chunks", "concepts", "persons", "tags", "kind"),
    *(
        "eventType",
        "temporalStatus",
        "critical",
        "visibility",
        "supersededBy",
        "adoptions",
        "written",
        "occurredFrom",
        "occurredTo",
    ),
)
"""The fields of an event that belong together."""
_ENTITY_SEALED = ("key", "changed", "id", "nameKey", "name")
_KEY_BYTES = 2_000
"""An index takes no value of more than 8 kB; a longer name is known by its beginning and its hash."""
_TERMS = struct.Struct("<II")


# -- seals ---------------------------------------------------------------------------------------------------------------


def _hash(*parts: bytes) -> str:
    digest = hashlib.blake2b(digest_size=8)
    for part in parts:
        digest.update(part)
    return digest.hexdigest()


def _json(values: Iterable[object]) -> bytes:
    return json.dumps(list(values), default=bytes.hex).encode()


def event_seal(fields: Fields, parts: Sequence[str]) -> str:
    """Return the seal of an event's fields and of the seals of its vectors and terms."""
    return _hash(_json([*map(fields.get, SEALED), *parts]))


def vector_seal(summary: Floats, spans: Sequence[Span], vectors: Sequence[Floats | None]) -> str:
    """Return the seal of an event's summary vector and chunks; a chunk without a vector has None or zeros."""
    nothing = np.empty(0, np.float32)
    shown = [vector if vector is not None and vector.any() else nothing for vector in vectors]
    return _hash(_json([summary.size, spans]), summary.tobytes(), *(vector.tobytes() for vector in shown))


def terms_seal(packed: bytes) -> str:
    """Return the seal of an event's packed terms."""
    return _hash(packed)


def entity_seal(fields: Fields, vector: Floats) -> str:
    """Return the seal of an entity's fields and vector."""
    return _hash(_json(map(fields.get, _ENTITY_SEALED)), vector.tobytes())


def recipe_mark(recipe: Recipe) -> int:
    """Return a number that is equal for equal recipes."""
    return int(_hash(_json([recipe.model, recipe.dimension, recipe.chunker]))[:12], 16)


# -- terms and names -----------------------------------------------------------------------------------------------------


def packed_terms(terms: TermCounts) -> bytes:
    """Return an event's terms as one value, which no reader can meet half-changed."""
    keys, counts = pack(terms)
    return _TERMS.pack(terms.length, len(keys)) + keys + counts


def term_row(event_id: str, packed: bytes) -> TermRow:
    """Return packed terms as ``frequencies_in`` takes them."""
    total, size = _TERMS.unpack_from(packed)
    border = _TERMS.size + size
    return event_id, total, packed[_TERMS.size : border], packed[border:]


def name_key(key: str) -> str:
    """Return under which value a normalised name is indexed. No name holds NUL, so a shortened one equals no other."""
    encoded = key.encode()
    if len(encoded) <= _KEY_BYTES:
        return key
    return f"{encoded[: _KEY_BYTES // 2].decode(errors='ignore')}\0{hashlib.blake2b(encoded, digest_size=32).hexdigest()}"


def full_key(fields: Fields) -> str:
    """Return the normalised name of an entity's fields."""
    key: str = fields["nameKey"]
    return normalise_name(fields["name"]) if "\0" in key else key


# -- rows ----------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class LibraryRow:
    """A library's record. ``last`` counts what carries its revision: events, names, removals."""

    library: Library
    last: tuple[int, int, int]
    whole: bool


def library_row(namespace: str, fields: Fields | None) -> LibraryRow:
    """Return the record of a library, an empty one where there is none."""
    if fields is None:
        return LibraryRow(Library(namespace, 0, Recipe()), (0, 0, 0), True)
    recipe = Recipe(fields["model"], fields["dimension"], fields["chunker"])
    revision, events, names, removals, mark = fields["last"]
    whole = revision == fields["revision"] and mark == recipe_mark(recipe)
    return LibraryRow(Library(namespace, fields["revision"], recipe), (events, names, removals), whole)


@dataclass(frozen=True, slots=True)
class TextRow:
    """An event's fields and text. ``whole`` says that all of it is of one version."""

    fields: Fields
    content: str
    whole: bool

    def event(self) -> Event:
        """Return the event."""
        return event_of(self.fields, self.content)

    def stored(self) -> StoredEvent:
        """Return the event with what the library knows of it."""
        fields = self.fields
        chunks = fields["chunks"] if fields["chunked"] else None
        return StoredEvent(self.event(), fields["visibility"], fields["supersededBy"], fields["adoptions"], chunks)


def text_row(fields: Fields, content: str) -> TextRow:
    """Return a row with its seals checked."""
    return TextRow(fields, content, _fields_whole(fields) and _text_whole(fields, content))


def _fields_whole(fields: Fields) -> bool:
    seals = fields["seals"]
    return seals is not None and len(seals) == 3 and event_seal(fields, seals[1:]) == seals[0]


def _text_whole(fields: Fields, content: str) -> bool:
    return (text_hash(content), len(content)) == (fields["textHash"], fields["length"])


def _links(found: Iterable[Sequence[Any]]) -> tuple[Link, ...]:
    return tuple((position, target, name) for position, target, name in sorted(found, key=lambda link: link[0]))


def _spelled(links: Iterable[Link]) -> list[str]:
    return [name for _, _, name in links]


@dataclass(frozen=True, slots=True)
class PassageRow:
    """What evidence needs of an event, and whether all of it is of one version."""

    passage: Passage
    whole: bool


def passage_row(fields: Fields, head: str, size: int, concepts: Iterable[Sequence[Any]], limit: int) -> PassageRow:
    """Return a row with its seals checked; of a text longer than ``limit`` only the length is compared."""
    links = _links(concepts)
    whole = _fields_whole(fields) and size == fields["length"] and _spelled(links) == fields["concepts"]
    if whole and size <= limit:
        whole = _text_whole(fields, head)
    passage = Passage(
        id=fields["id"],
        title=fields["title"],
        summary=fields["summary"],
        written=fields["written"],
        visibility=fields["visibility"],
        chunked=fields["chunked"],
        length=size,
        head=head[:limit],
        concepts=tuple((target, name) for _, target, name in links),
    )
    return PassageRow(passage, whole)


@dataclass(frozen=True, slots=True)
class EventRow:
    """An event with vectors, chunks and links, text and terms where asked for. ``print`` tells two readings apart."""

    node: str
    fields: Fields
    summary: Floats
    ordinals: tuple[int, ...]
    spans: tuple[Span, ...]
    vectors: tuple[Floats | None, ...]
    links: tuple[Link, ...]
    content: str | None
    terms: bytes | None
    whole: bool
    print: str

    @property
    def changed(self) -> int:
        """Return the revision that last changed the event."""
        changed: int = self.fields["changed"]
        return changed

    def prepared(self, dimension: int) -> Prepared:
        """Return the event as a dump has it."""
        if self.content is None or self.terms is None or self.summary.size != dimension:
            raise damaged()
        vectors = np.zeros((len(self.spans), dimension), np.float32)
        for place, vector in enumerate(self.vectors):
            if vector is not None and vector.size == dimension:
                vectors[place] = vector
        fields, (_, _, keys, counts) = self.fields, term_row("", self.terms)
        spans = self.spans if fields["chunked"] else None
        embedded = Embedded(self.summary, spans, vectors[: len(spans or ())], unpack(keys, counts))
        event = event_of(fields, self.content)
        return Prepared(event, embedded, fields["visibility"], fields["supersededBy"], fields["adoptions"])


def event_row(node: str, fields: Fields, parts: Fields) -> EventRow:
    """Return an event as ``CHANGES``, ``DUMP`` or ``LIGHT_CHANGES`` has it, with its seals checked."""
    content, embedding = parts.get("content"), parts.get("embedding")
    terms = parts["terms"][0] if parts.get("terms") else None
    summary, links = floats(embedding), _links(parts["links"])
    sources = sorted(parts["sources"], key=lambda source: source[0])
    ordinals, spans = tuple(source[0] for source in sources), tuple((start, end) for _, start, end, _ in sources)
    vectors = tuple(None if vector is None else floats(vector) for *_, vector in sources)
    seal, names = vector_seal(summary, spans, vectors), [*fields["concepts"], *fields["persons"]]
    whole = _fields_whole(fields) and len(spans) == fields["chunks"] and _spelled(links) == names
    if whole and "embedding" in parts:
        whole = seal == fields["seals"][1]
    if whole and "content" in parts:
        whole = _text_whole(fields, content or "") and terms is not None and terms_seal(terms) == fields["seals"][2]
    seen = _hash(_json([*map(fields.get, SEALED), seal, links]), text_hash(content or ""), terms or b"")
    return EventRow(node, fields, summary, ordinals, spans, vectors, links, content, terms, whole, seen)


@dataclass(frozen=True, slots=True)
class VectorRow:
    """An event's vectors, and whether they are of one version; two are equal if their prints are."""

    id: str
    summary: Floats = field(compare=False)
    chunks: Floats = field(compare=False)
    whole: bool
    print: str


def vector_row(event_id: str, seals: Sequence[str] | None, embedding: Sequence[float] | None, sources: Iterable[Any]) -> VectorRow:
    """Return a row of ``VECTORS`` with its seal checked."""
    summary, ordered = floats(embedding), sorted(sources, key=lambda source: source[0])
    vectors = [None if vector is None else floats(vector) for *_, vector in ordered]
    seal = vector_seal(summary, [(start, end) for _, start, end, _ in ordered], vectors)
    chunks = np.array([vector for vector in vectors if vector is not None], np.float32).reshape(-1, summary.size)
    return VectorRow(event_id, summary, chunks, seals is not None and seals[1:2] == [seal], seal)


@dataclass(frozen=True, slots=True)
class EntityRow:
    """A concept or person with its vector."""

    node: str
    label: str
    fields: Fields
    vector: Floats
    whole: bool
    print: str

    @property
    def changed(self) -> int:
        """Return the revision that last changed the entity."""
        changed: int = self.fields["changed"]
        return changed

    def name(self) -> EmbeddedName:
        """Return the entity as a dump has it."""
        return EmbeddedName(self.label, full_key(self.fields), self.fields["name"], self.vector, self.fields["id"])


def entity_row(node: str, label: str, fields: Fields) -> EntityRow:
    """Return a concept or person as ``CHANGES`` has it, with its seal checked."""
    vector = floats(fields["embedding"])
    seal = entity_seal(fields, vector)
    return EntityRow(node, label, fields, vector, seal == fields["seal"], seal)


# -- columns -------------------------------------------------------------------------------------------------------------


def floats(values: Sequence[float] | None) -> Floats:
    """Return a list of floats as the vector that was stored."""
    return np.array(() if values is None else values, np.float32)


def _matrix(vectors: Sequence[Floats], dimension: int) -> Floats:
    matrix = np.empty((len(vectors), dimension), np.float32)
    for place, vector in enumerate(vectors):
        if vector.size != dimension:
            raise damaged()
        matrix[place] = vector
    if not np.isfinite(matrix).all():
        raise damaged()
    return matrix


def damaged() -> StoreUnavailable:
    """Return what to say of a vector or a node that can not be used."""
    return StoreUnavailable(
        "a stored vector is damaged; see `memory.verify()`, then re-embed or restore the library.", retryable=False
    )


def event_columns(rows: Sequence[EventRow], entities: set[int] | None, dimension: int) -> EventRows:
    """Return events as columns.

    :param rows: in the order of the columns.
    :param entities: which links may lead to; None means any.
    :param dimension: of the library.
    :return: the columns; only chunks with a vector count.
    """
    embedded = [(row, place) for row in rows for place, vector in enumerate(row.vectors) if vector is not None]
    spans = _integers([row.spans[place] for row, place in embedded], 2)
    links = _integers(
        [(at, key) for at, row in enumerate(rows) for _, key, _ in row.links if entities is None or key in entities], 2
    )
    return EventRows(
        keys=[hash(row.node) for row in rows],
        ids=[row.fields["id"] for row in rows],
        written=np.array([row.fields["written"] for row in rows], np.int64),
        visible=np.array([row.fields["visibility"] in SHOWN for row in rows], bool),
        text_hashes=[row.fields["textHash"] for row in rows],
        summaries=_matrix([row.summary for row in rows], dimension),
        chunk_counts=np.array([sum(vector is not None for vector in row.vectors) for row in rows], np.int64),
        chunk_starts=spans[:, 0].copy(),
        chunk_ends=spans[:, 1].copy(),
        chunks=_matrix([row.vectors[place] for row, place in embedded], dimension),  # type: ignore[misc]
        mention_events=links[:, 0].copy(),
        mention_entities=links[:, 1].copy(),
    )


def _integers(rows: Sequence[tuple[int, int]], width: int) -> NDArray[np.int64]:
    return np.array(rows, np.int64).reshape(-1, width)


def entity_columns(rows: Sequence[EntityRow], dimension: int) -> EntityRows:
    """Return entities as columns."""
    return EntityRows(
        [row.fields["key"] for row in rows],
        [row.fields["id"] for row in rows],
        [row.label for row in rows],
        [full_key(row.fields) for row in rows],
        _matrix([row.vector for row in rows], dimension),
    )


def event_of(fields: Fields, content: str) -> Event:
    """Return the event of its fields and text."""
    begin, end = fields["occurredFrom"], fields["occurredTo"]
    return Event(
        id=fields["id"],
        title=fields["title"],
        summary=fields["summary"],
        content=content,
        concepts=tuple(fields["concepts"]),
        persons=tuple(fields["persons"]),
        tags=tuple(fields["tags"]),
        kind=fields["kind"],
        event_type=fields["eventType"],
        temporal_status=fields["temporalStatus"],
        occurred_from=None if begin is None else from_micros(begin),
        occurred_to=None if end is None else from_micros(end),
        critical=fields["critical"],
        written_at=from_micros(fields["written"]),
    )
