"""Saving and re-embedding: all vectors first, then one transaction (sections 2 and 3)."""

import contextlib
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import partial

import numpy as np

from workbench.core.chunking import Chunker, Span, spans_of, visible_spans
from workbench.core.embedders.base import Embedder, embed_documents, signature
from workbench.core.errors import Conflict, EmbeddingFailed, InvalidRequest, WorkbenchError
from workbench.core.event import Event, normalise_name
from workbench.core.stores.base import Embedded, EmbeddedName, EntityKey, Floats, Prepared, Recipe, Store, mismatch
from workbench.core.text import count_terms

Progress = Callable[[int], None]
Finish = Callable[[Prepared], Prepared]
Save = Callable[[list[Event]], list[Event]]
_EMBED_BATCH = 64
_ATTEMPTS = 20
_SUSPICIOUS = 3
"""After so many failures in a row the embedder is asked for a harmless text, to tell bad events from an endpoint that is down."""


@dataclass(frozen=True, slots=True)
class SaveReport:
    """What ``save_many`` did: ids in the order of saving, and for each refused event its id (or None) and the error."""

    saved: tuple[str, ...]
    failed: tuple[tuple[str | None, WorkbenchError], ...]


@dataclass(frozen=True, slots=True)
class ReembedReport:
    """What ``reembed`` did. When ``cancelled``, nothing was changed."""

    model: str
    dimension: int
    events: int
    chunks: int
    names: int
    cancelled: bool = False


@dataclass(frozen=True, slots=True)
class Plan:
    """An event with its spans and the texts to embed for it: the summary, then each visible chunk."""

    event: Event
    spans: tuple[Span, ...] | None
    visible: tuple[bool, ...]

    @property
    def visible_ordinals(self) -> list[int]:
        """Return the ordinals of the chunks that are embedded (S8)."""
        return [ordinal for ordinal, shown in enumerate(self.visible) if shown]

    @property
    def texts(self) -> list[str]:
        """Return what is embedded: the summary, then each chunk with a visible character."""
        chunks = zip(self.spans or (), self.visible, strict=True)
        return [self.event.summary, *(self.event.content[start:end] for (start, end), shown in chunks if shown)]

    def embedded(self, vectors: Floats) -> Embedded:
        """Return the event's vectors, spans and terms; ``vectors`` are those of ``texts``."""
        chunks = np.zeros((len(self.visible), vectors.shape[1]), np.float32)
        chunks[np.array(self.visible, bool)] = vectors[1:]
        event = self.event
        terms = count_terms(event.title, event.summary, *event.concepts, *event.persons, event.content)
        return Embedded(vectors[0], self.spans, chunks, terms)


def _plan(event: Event, chunker: Chunker | None) -> Plan:
    if chunker is None:
        return Plan(event, None, ())
    spans = tuple(spans_of(chunker, event.content))
    return Plan(event, spans, tuple(visible_spans(event.content, spans)))


def names_of(events: Iterable[Event]) -> dict[EntityKey, str]:
    """Return the entities that events name, each with its first spelling."""
    names: dict[EntityKey, str] = {}
    for event in events:
        for label, own in (("Concept", event.concepts), ("Person", event.persons)):
            for name in own:
                names.setdefault((label, normalise_name(name)), name)
    return names


@dataclass(slots=True)
class Writer:
    """Prepares and writes events of one open library."""

    store: Store
    chunker: Chunker
    clock: Callable[[], datetime]

    def recipe(self, embedder: Embedder, *, chunks: bool = True) -> Recipe:
        """Return how this writer makes vectors."""
        return Recipe(*signature(embedder), self.chunker.name if chunks else None)

    def save(
        self, events: Sequence[Event], embedder: Embedder, *, chunks: bool = True, finish: Finish = lambda prepared: prepared
    ) -> list[Event]:
        """Save events in one transaction, all or none.

        :param events: new ones, or changed ones of known ids.
        :param embedder: what makes the vectors.
        :param chunks: False leaves the texts unchunked (S6).
        :param finish: what a copy adds to each event before it is written: visibility and adoptions.
        :return: the events with ids and written times.
        :raises EmbeddingFailed: if a vector can not be had; nothing is written.
        :raises ModelMismatch: if the library was made in another way (S4, S11).
        """
        recipe = self.recipe(embedder, chunks=chunks)
        mismatch(self.store.library().recipe, recipe)
        now = self.clock()
        dated = [event if event.written_at else event.replace(written_at=now) for event in events]
        plans = [_plan(event, self.chunker if chunks else None) for event in dated]
        names = names_of(dated)
        known = self.store.known_names(list(names))
        missing = {key: name for key, name in names.items() if key not in known}
        prepared, embedded_names = _embed(plans, missing, embedder)
        return self.store.write([finish(each) for each in prepared], embedded_names, recipe)

    def save_many(
        self,
        events: Iterable[Event],
        embedder: Embedder,
        *,
        batch_size: int,
        chunks: bool = True,
        progress: Progress = lambda _: None,
        finish: Finish = lambda prepared: prepared,
    ) -> SaveReport:
        """Save events batch by batch. An event that can not be saved fails alone (S5)."""
        save = partial(self.save, embedder=embedder, chunks=chunks, finish=finish)
        report = _Report()
        try:
            for batch in _batches(events, batch_size):
                self._save_batch([event for event in batch if report.accepts(event)], save, embedder, report)
                progress(len(batch))
        except BaseException as error:
            error.add_note(f"Saved before this: {', '.join(report.saved) or 'nothing'}.")
            raise
        return SaveReport(tuple(report.saved), tuple(report.failed))

    def _save_batch(self, events: list[Event], save: Save, embedder: Embedder, report: "_Report") -> None:
        if report.outage is None and events:
            try:
                report.saved += _ids(save(events))
                return
            except (EmbeddingFailed, InvalidRequest):
                self._save_each(events, save, embedder, report)
            except WorkbenchError as error:
                report.failed += [(event.id, error) for event in events]
        elif report.outage is not None:
            report.failed += [(event.id, report.outage) for event in events]

    def _save_each(self, events: Sequence[Event], save: Save, embedder: Embedder, report: "_Report") -> None:
        """Find out which events spoil their batch. An endpoint that is down is not asked once more for each of the rest."""
        in_a_row = 0
        for event in events:
            try:
                if report.outage is not None:
                    raise report.outage
                report.saved += _ids(save([event]))
                in_a_row = 0
            except WorkbenchError as error:
                report.failed.append((event.id, error))
                in_a_row += 1
                if in_a_row == _SUSPICIOUS and isinstance(error, EmbeddingFailed):
                    report.outage = _outage(embedder)

    def reembed(self, embedder: Embedder, *, progress: Progress, cancelled: Callable[[], bool]) -> ReembedReport:
        """Compute all vectors anew, then replace vectors, chunks and the recipe in one transaction (E1 to E5).

        Events that change meanwhile are computed again before the transaction, so none keeps an old vector (E3).

        :param embedder: what makes the new vectors.
        :param progress: told how many events each batch brought.
        :param cancelled: asked between batches.
        :return: what was done.
        :raises EmbeddingFailed: if a vector can not be had; nothing is changed.
        :raises Conflict: if the library kept changing faster than it could be embedded.
        """
        embedded: dict[str, Embedded] = {}
        names: dict[EntityKey, EmbeddedName] = {}
        recipe, seen = self.recipe(embedder), 0
        for _ in range(_ATTEMPTS):
            library, events = self.store.texts(seen)
            listed = {(label, key): name for label, key, name in self.store.names() if (label, key) not in names}
            for batch in _weighed((_plan(event, self.chunker) for event in events), listed):
                if cancelled():
                    return _cancelled(recipe)
                prepared, own_names = _embed(*batch, embedder)
                embedded |= {each.event.id: each.embedded for each in prepared if each.event.id}
                names |= {(name.label, name.key): name for name in own_names}
                progress(len(prepared))
            if cancelled():
                return _cancelled(recipe)
            seen = library.revision
            if self.store.replace_vectors(embedded, list(names.values()), recipe, expected_revision=seen):
                chunks = sum(len(each.spans or ()) for each in embedded.values())
                return _replaced(recipe, len(embedded), chunks, len(names))
        raise Conflict(
            "the library kept changing while it was being re-embedded; nothing was replaced. Retry when fewer writers are busy."
        )


def _outage(embedder: Embedder) -> EmbeddingFailed | None:
    """Return why the embedder answers nobody, or None where it embeds a harmless text and so only dislikes some events."""
    try:
        embed_documents(embedder, ["ok"], what="a probe")
    except EmbeddingFailed as error:
        return error
    return None


def _replaced(recipe: Recipe, events: int, chunks: int, names: int) -> ReembedReport:
    assert recipe.model is not None
    assert recipe.dimension is not None
    return ReembedReport(recipe.model, recipe.dimension, events, chunks, names)


def _cancelled(recipe: Recipe) -> ReembedReport:
    return replace(_replaced(recipe, 0, 0, 0), cancelled=True)


@dataclass(slots=True)
class _Report:
    saved: list[str] = field(default_factory=list)
    failed: list[tuple[str | None, WorkbenchError]] = field(default_factory=list)
    outage: WorkbenchError | None = None

    def accepts(self, event: object) -> bool:
        if isinstance(event, Event):
            return True
        self.failed.append((None, InvalidRequest(f"save_many takes events, not {type(event).__name__}.")))
        return False


def _ids(events: Iterable[Event]) -> list[str]:
    return [event.id for event in events if event.id is not None]


def _batches(events: Iterable[Event], size: int) -> Iterator[list[Event]]:
    batch: list[Event] = []
    for event in events:
        batch.append(event)
        if len(batch) == size:
            yield batch
            batch = []
    if batch:
        yield batch


def _weighed(plans: Iterable[Plan], names: dict[EntityKey, str]) -> Iterator[tuple[list[Plan], dict[EntityKey, str]]]:
    """Yield work for one embedding batch each: the names first, then events until their texts fill a batch."""
    entries = list(names.items())
    for start in range(0, len(entries), _EMBED_BATCH):
        yield [], dict(entries[start : start + _EMBED_BATCH])
    batch: list[Plan] = []
    for plan in plans:
        batch.append(plan)
        if sum(len(each.texts) for each in batch) >= _EMBED_BATCH:
            yield batch, {}
            batch = []
    if batch:
        yield batch, {}


def _embed(plans: Sequence[Plan], names: dict[EntityKey, str], embedder: Embedder) -> tuple[list[Prepared], list[EmbeddedName]]:
    """Embed everything that the plans and names need, in one call."""
    parts = [plan.texts for plan in plans]
    texts = [text for part in parts for text in part] + list(names.values())
    labels = [(plan, place) for plan, part in zip(plans, parts, strict=True) for place in range(len(part))]
    vectors = embed_documents(embedder, texts, what=_what(plans, names), parts=lambda place: _part(labels, place))
    prepared, start = [], 0
    for plan, part in zip(plans, parts, strict=True):
        prepared.append(Prepared(plan.event, plan.embedded(vectors[start : start + len(part)])))
        start += len(part)
    named = [
        EmbeddedName(label, key, name, vector) for ((label, key), name), vector in zip(names.items(), vectors[start:], strict=True)
    ]
    return prepared, named


def _part(labels: Sequence[tuple[Plan, int]], place: int) -> str:
    """Return which text of a batch stands at a place, without its content."""
    if place >= len(labels):
        owners = {plan.event.id or "a new event" for plan, _ in labels}
        return f"name {place - len(labels) + 1} of the new names of {owners.pop() if len(owners) == 1 else f'{len(owners)} events'}"
    plan, number = labels[place]
    part = "the summary" if number == 0 else f"chunk {plan.visible_ordinals[number - 1]}"
    return f"{part} of {plan.event.id or 'a new event'}"


def _what(plans: Sequence[Plan], names: dict[EntityKey, str]) -> str:
    if len(plans) == 1:
        plan = plans[0]
        return f"the summary, {sum(plan.visible)} chunks and {len(names)} names of {plan.event.id or 'a new event'}"
    return f"{len(plans)} events and {len(names)} names"


@contextlib.contextmanager
def progress_bar(shown: bool, title: str, total: int | None) -> Iterator[Progress]:
    """Yield a function that moves a bar on the terminal's error stream, or does nothing where none is wanted."""
    if not shown:
        yield lambda _: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
    from rich.progress import Progress as Bar

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Bar(*columns, console=Console(stderr=True)) as bar:
        task = bar.add_task(title, total=total)
        yield lambda steps: bar.advance(task, steps)


def cancel_check(cancel: object) -> Callable[[], bool]:
    """Return a function that says whether to stop: from an event (``is_set``), a callable, or None for never.

    :param cancel: what the caller gave.
    :return: the check.
    :raises InvalidRequest: if ``cancel`` is something else.
    """
    if cancel is None:
        return lambda: False
    if isinstance(cancel, threading.Event):
        return cancel.is_set
    if callable(cancel):
        return lambda: bool(cancel())
    raise InvalidRequest("cancel must be a threading.Event or a callable that returns True to stop.")
