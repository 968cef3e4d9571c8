"""What a store must do, and the records that pass its door.

A store keeps rows and decides in single transactions. It computes no vector and ranks nothing: ``stores.index`` and
``retrieval`` do that alike for all stores. A library has a revision that every committed write raises by one.
"""

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from workbench.core.chunking import Span
from workbench.core.errors import ModelMismatch
from workbench.core.event import Event, StoredEvent, normalise_name
from workbench.core.stores.term_blobs import Row as TermRow
from workbench.core.text import TermCounts

Floats = NDArray[np.float32]
ENTITY_LABELS = ("Concept", "Person")
EntityKey = tuple[str, str]
"""A label of ``ENTITY_LABELS`` and a normalised name."""


@dataclass(frozen=True, slots=True)
class Recipe:
    """How a library's vectors were made (S4, S11). All None in a library that holds no vectors yet."""

    model: str | None = None
    dimension: int | None = None
    chunker: str | None = None


@dataclass(frozen=True, slots=True)
class Library:
    """A namespace's record: its revision and its recipe."""

    namespace: str
    revision: int
    recipe: Recipe


@dataclass(frozen=True, slots=True)
class Embedded:
    """Everything computed from an event's texts before a transaction opens (S3).

    ``spans`` is None for an event kept without chunks (S6). ``vectors`` has one unit row per span; the row of a span
    without a visible character is all zeros, and such a chunk is stored without a vector (S8).
    """

    summary: Floats
    spans: tuple[Span, ...] | None
    vectors: Floats
    terms: TermCounts


@dataclass(frozen=True, slots=True)
class Prepared:
    """An event ready to be written, with its vectors. A restored one brings visibility and adoptions along; where they are
    None a new event is visible and an updated one keeps its own.
    """

    event: Event
    embedded: Embedded
    visibility: str | None = None
    superseded_by: str | None = None
    adoptions: int | None = None


@dataclass(frozen=True, slots=True)
class EmbeddedName:
    """An entity name with its unit vector. ``id`` is given only for a restored one; else the store numbers it."""

    label: str
    key: str
    name: str
    vector: Floats
    id: str | None = None


@dataclass(frozen=True, slots=True)
class EventRows:
    """Changed events as columns, one entry per event, and their embedded chunks grouped in the same order.

    ``keys`` tell rows apart that hold the same id, as only a damaged store does.
    """

    keys: list[int]
    ids: list[str]
    written: NDArray[np.int64]
    visible: NDArray[np.bool_]
    text_hashes: list[bytes]
    summaries: Floats
    chunk_counts: NDArray[np.int64]
    chunk_starts: NDArray[np.int64]
    chunk_ends: NDArray[np.int64]
    chunks: Floats
    mention_events: NDArray[np.int64]
    mention_entities: NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class EntityRows:
    """Changed entities; ``numbers`` is what ``EventRows.mention_entities`` refers to."""

    numbers: list[int]
    ids: list[str]
    labels: list[str]
    keys: list[str]
    vectors: Floats


@dataclass(frozen=True, slots=True)
class Changes:
    """All that changed after a revision, read in one transaction. ``whole`` says that it is everything there is."""

    library: Library
    whole: bool
    events: EventRows
    entities: EntityRows
    removed: list[str]


@dataclass(frozen=True, slots=True)
class Passage:
    """What evidence needs of one event: its fields, the head of its text, and the concepts it mentions."""

    id: str
    title: str
    summary: str
    written: int
    visibility: str
    chunked: bool
    length: int
    head: str
    concepts: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class Page:
    """A piece of one event's text with the whole text's length."""

    text: str
    length: int
    visibility: str


@dataclass(frozen=True, slots=True)
class LibraryStats:
    """Counts of a library. ``events`` counts hidden ones too; ``unchunked`` counts those of S6."""

    namespace: str
    revision: int
    model: str | None
    dimension: int | None
    chunker: str | None
    events: int
    visible: int
    chunks: int
    concepts: int
    persons: int
    unchunked: int


@dataclass(frozen=True, slots=True)
class Problem:
    """One finding of ``verify``. ``code`` is a stable string; ``event_id`` is None where it concerns no single event."""

    code: str
    event_id: str | None
    message: str


Route = Literal["summary", "source"]


class Nearest(Protocol):
    """A store's own approximate vector index, for a library whose vectors shall stay in the store."""

    above: int
    """From how many chunks on the library is searched so."""

    def chunks(self) -> int:
        """Return how many chunks the library has."""

    def changes(self, since: int) -> Changes | None:
        """Return what :meth:`Store.changes` does, the vectors of events and chunks left out: their rows have no column."""

    def nearest(self, route: Route, query: Floats, limit: int) -> tuple[list[str], bool]:
        """Return the events of about the ``limit`` nearest summaries or chunks, and whether there are no more.

        :param route: what is compared.
        :param query: unit vector, shape (dimension,).
        :param limit: how many neighbours to look for in the whole store.
        :return: ids of this library, nearest first, hidden ones too; an id may repeat.
        """

    def vectors(self, event_ids: Sequence[str]) -> Mapping[str, tuple[Floats, Floats]]:
        """Return the summary vector, shape (dimension,), and the chunk vectors, shape (chunks, dimension), of those events."""


class Store(Protocol):
    """Durable storage of one namespace. All methods may be called from any thread; each is one transaction."""

    read_only: bool
    nearest: Nearest | None
    """None where every library's vectors are held in memory, and search is exact."""

    def library(self) -> Library:
        """Return the record of this namespace."""

    def changes(self, since: int) -> Changes | None:
        """Return what changed after revision ``since`` (0: everything), or None if nothing did."""

    def known_names(self, keys: Sequence[EntityKey]) -> set[EntityKey]:
        """Return those of ``keys`` that the library has with a vector."""

    def write(self, events: Sequence[Prepared], names: Sequence[EmbeddedName], recipe: Recipe) -> list[Event]:
        """Insert or replace events with chunks, vectors and links, all or none (S3, S5).

        :param events: with written times and vectors.
        :param names: those that the library may lack.
        :param recipe: how the vectors were made.
        :return: the events with ids.
        :raises ModelMismatch: if the library's recipe is another one.
        :raises Conflict: if a name is neither known nor given.
        """

    def set_visibility(self, event_id: str, visibility: str, superseded_by: str | None = None) -> None:
        """Change an event's visibility.

        :param event_id: of the event.
        :param visibility: the new one.
        :param superseded_by: its successor, for ``superseded``.
        :raises NotFound: if there is no such event, or no such successor.
        :raises InvalidRequest: if an event would, directly or in a circle, supersede itself.
        """

    def get(self, event_id: str) -> StoredEvent | None:
        """Return an event, hidden or not, or None."""

    def events(self, offset: int, limit: int) -> list[StoredEvent]:
        """Return a page of all events, hidden ones too, by written time, then id."""

    def passages(self, event_ids: Sequence[str], head: int) -> Mapping[str, Passage]:
        """Return what evidence needs of visible events, texts cut after ``head`` code points."""

    def spellings(self, entity_ids: Sequence[str]) -> Mapping[str, str]:
        """Return how the first visible event that names an entity, by written time, then id, spells it.

        An entity without such an event is left out.
        """

    def page(self, event_id: str, start: int, limit: int) -> Page | None:
        """Return ``content[start:start + limit]`` of an event, or None."""

    def terms(self, event_ids: Sequence[str]) -> list[TermRow]:
        """Return the packed terms of those events, in any order."""

    def texts(self, since: int) -> tuple[Library, Iterator[Event]]:
        """Return the record, and all events changed after revision ``since``, hidden ones too."""

    def names(self) -> list[tuple[str, str, str]]:
        """Return label, normalised name and name of every entity."""

    def replace_vectors(
        self, embedded: Mapping[str, Embedded], names: Sequence[EmbeddedName], recipe: Recipe, *, expected_revision: int
    ) -> bool:
        """Replace all vectors, chunks and the recipe in one transaction (E1); False, and nothing, if the revision moved on."""

    def dump(self) -> tuple[Library, list[EmbeddedName], Iterator[Prepared]]:
        """Return everything of the library for a copy: names, then events by written time, with vectors and visibility.

        The three are of one moment, which the iterator holds until it ends or is closed.
        """

    def stats(self) -> LibraryStats:
        """Return the library's counts."""

    def verify(self) -> list[Problem]:
        """Return what is wrong in the stored rows, empty when all is well."""

    def close(self) -> None:
        """Release everything; further calls raise StoreUnavailable. Closing twice does nothing."""


def entity_keys(concepts: Sequence[str], persons: Sequence[str]) -> list[EntityKey]:
    """Return the entities that an event links to: concepts first, each once."""
    labelled = [("Concept", name) for name in concepts] + [("Person", name) for name in persons]
    return [(label, normalise_name(name)) for label, name in labelled]


def mismatch(recorded: Recipe, asked: Recipe) -> None:
    """Refuse vectors that were made in another way than the library's (S4, S11).

    A part that is None on either side is not compared: an empty library takes any, and a question needs no chunker.

    :param recorded: the library's recipe.
    :param asked: the one of this call.
    :raises ModelMismatch: naming both sides and the way out.
    """

    def differ(ours: object, theirs: object) -> bool:
        return ours is not None and theirs is not None and ours != theirs

    if differ(recorded.model, asked.model) or differ(recorded.dimension, asked.dimension):
        ours = f"the embedding model {recorded.model!r} of dimension {recorded.dimension}"
        theirs = f"{asked.model!r} of dimension {asked.dimension}"
    elif differ(recorded.chunker, asked.chunker):
        ours, theirs = f"the chunker {recorded.chunker!r}", f"{asked.chunker!r}"
    else:
        return
    raise ModelMismatch(
        f"the library was made with {ours}, and this call brings {theirs}. Open it with the former, or re-embed it with "
        "`memory.reembed()` (`workbench reembed`)."
    )


def text_hash(content: str) -> bytes:
    """Return 16 bytes that are equal exactly for equal texts (Q6); none for the empty text."""
    return hashlib.blake2b(content.encode(), digest_size=16).digest() if content else b""
