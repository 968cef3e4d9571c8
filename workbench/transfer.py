"""Moving events between files and a library: import of any known file, export and restoring of whole libraries.

Both directions may be stopped anywhere. An export appears under its name only when it is whole, and an import that is started
again goes on where it stopped: what the library has already is not saved twice.
"""

import contextlib
import hashlib
import itertools
import os
import secrets
from collections import Counter
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import BinaryIO, TypeVar, cast

from workbench.core.errors import EmbeddingFailed, InvalidRequest, ModelMismatch, NotFound, StoreUnavailable
from workbench.core.event import Event
from workbench.core.memory import Memory
from workbench.core.results import one_line
from workbench.core.stores.base import Prepared, Recipe, Store, mismatch
from workbench.core.writing import Finish, Progress, names_of, progress_bar
from workbench.files import read_events
from workbench.library_file import Header, Restored, event_line, header_line, is_export, prepare, read_header, read_line
from workbench.rows import FIELDS, Fault, Row, reading

_BATCH = 64
_RESTORE_BATCH = 256
_PAGE = 500
_HOPELESS = 8
"""When this many events fail one after another before any is saved, the embedder is at fault, not the events."""

Value = TypeVar("Value")


@dataclass(frozen=True, slots=True)
class ImportReport:
    """What an import did: events saved, events that the library had already, and what was wrong in the file."""

    saved: int
    unchanged: int
    faults: tuple[Fault, ...]


# -- export --------------------------------------------------------------------------------------------------------------


def export_library(memory: Memory, path: str | Path, *, overwrite: bool = False, progress: bool = False) -> int:
    """Write the whole library, hidden events and vectors too, as it is at one moment.

    :param memory: what to write.
    :param path: the file, which appears only when it is whole and on the disk.
    :param overwrite: replace a file of that name.
    :param progress: show a bar on the error stream.
    :return: how many events were written.
    :raises InvalidRequest: if there is such a file and ``overwrite`` is False.
    :raises StoreUnavailable: if the library can not be read or the file not written.
    """
    with _replaced(Path(path).resolve(), overwrite) as file, progress_bar(progress, "exporting", memory.stats().events) as step:
        library, names, rows = memory.store.dump()
        with contextlib.closing(cast("Generator[Prepared, None, None]", rows)) as events:
            file.write(header_line(library.recipe, names, 0))
            count = sum(_written(file, each, step) for each in events)
        file.seek(0)
        file.write(header_line(library.recipe, names, count))
    return count


def _written(file: BinaryIO, prepared: Prepared, step: Progress) -> int:
    file.write(event_line(prepared))
    step(1)
    return 1


@contextlib.contextmanager
def _replaced(path: Path, overwrite: bool) -> Iterator[BinaryIO]:
    """Yield a file that takes the place of ``path`` when all went well, and leaves nothing otherwise."""
    if path.exists() and not overwrite:
        raise InvalidRequest(f"{path.name!r} is there already; choose another name, or ask to overwrite it (`--overwrite`).")
    part = path.with_name(f".{path.name}.{secrets.token_hex(4)}.part")
    try:
        with part.open("xb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        part.replace(path)
        _sync_folder(path.parent)
    except OSError as error:
        raise StoreUnavailable(
            f"{path.name!r} can not be written ({type(error).__name__}); check its folder and the room on the disk.",
            retryable=False,
        ) from None
    finally:
        part.unlink(missing_ok=True)


def _sync_folder(folder: Path) -> None:
    if os.name == "posix":
        number = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(number)
        finally:
            os.close(number)


# -- import --------------------------------------------------------------------------------------------------------------


def import_file(memory: Memory, path: str | Path, *, embed: bool = False, progress: bool = False) -> ImportReport:
    """Save the events of a file or folder; an exported library is recognised and restored.

    :param memory: where to.
    :param path: what :func:`workbench.files.read_events` reads, or an exported library of any name.
    :param embed: embed the texts of an exported library anew.
    :param progress: show a bar on the error stream.
    :return: what was done. Rows that can not be read are in ``faults``, the others are saved.
    :raises InvalidRequest: if the file can not be read at all.
    :raises WorkbenchError: if the library or the embedder fails; what was saved stays, and a second call goes on from there.
    """
    path = Path(path)
    with reading(path):
        export = path.is_file() and is_export(path)
    if export:
        return import_library(memory, path, embed=embed, progress=progress)
    work = _Import(memory, path.name)
    with progress_bar(progress, "importing", None) as step:
        for batch in _batches(work.good(read_events(path)), _BATCH, lambda event: event.id):
            work.save(batch)
            step(len(batch))
    return work.report()


def import_library(memory: Memory, path: str | Path, *, embed: bool = False, progress: bool = False) -> ImportReport:
    """Restore an exported library into an empty library, or one of the same recipe.

    Vectors, ids, links, entity ids, visibility and adoptions are kept, and no embedder is called. A line that is damaged is
    reported and left out.

    :param memory: where to.
    :param path: the export.
    :param embed: save the events with the library's own embedder, into a library of any recipe. Entity ids are not kept.
    :param progress: show a bar on the error stream.
    :return: what was done.
    :raises InvalidRequest: if the first line is damaged.
    :raises ModelMismatch: if the library was made in another way and ``embed`` is False.
    """
    path = Path(path)
    work = _Import(memory, path.name)
    with reading(path), path.open("rb") as file:
        header = _header(path, file.readline())
        work.faults += [Fault(path.name, 1, fault) for fault in header.faults]
        with progress_bar(progress, "importing", header.events) as step:
            (_embed_anew if embed else _restore)(work, header, file, step)
    return work.report()


def _header(path: Path, line: bytes) -> Header:
    try:
        return read_header(line)
    except InvalidRequest as error:
        raise InvalidRequest(f"{path.name}:1: {error.message}; nothing was imported.") from None


def _restore(work: "_Import", header: Header, file: Iterable[bytes], step: Progress) -> None:
    """Write the events as they are in the file, batch by batch, each in one transaction."""
    store, recipe = work.memory.store, header.recipe
    _check_recipe(store, recipe)
    rows = ((line, work.attempt(line, prepare, row, header)) for line, row in work.restored(header, file))
    usable = ((line, each) for line, each in rows if each is not None)
    successors: list[tuple[int, str]] = []
    while batch := list(itertools.islice(usable, _RESTORE_BATCH)):
        names = [header.names[key] for key in names_of(each.event for _, each in batch)]
        store.write([each for _, each in batch], names, recipe)
        work.saved += len(batch)
        successors += [(line, each.superseded_by) for line, each in batch if each.superseded_by is not None]
        step(len(batch))
    for line, successor in successors:
        if store.get(successor) is None:
            work.fault(line, "is superseded by an event that the library does not have")


def _check_recipe(store: Store, recipe: Recipe) -> None:
    try:
        mismatch(store.library().recipe, recipe)
    except ModelMismatch as error:
        raise ModelMismatch(f"{error.message} Or embed its texts anew while importing it (`workbench import --embed`).") from None


def _embed_anew(work: "_Import", header: Header, file: Iterable[bytes], step: Progress) -> None:
    """Save the events with the library's own embedder, each at once with the visibility and adoptions that the file says."""
    for batch in _batches(work.restored(header, file), _BATCH, lambda row: row[1].event.id):
        rows = {row.event.id: row for _, row in batch}

        def finish(prepared: Prepared, rows: Mapping[str | None, Restored] = rows) -> Prepared:
            row = rows[prepared.event.id]
            return replace(prepared, visibility=row.visibility, superseded_by=row.superseded_by, adoptions=row.adoptions)

        work.save([row.event for _, row in batch], finish)
        for line, row in batch:
            work.set_visibility(line, row)
        step(len(batch))


def _batches(rows: Iterable[Value], size: int, id_of: Callable[[Value], str | None]) -> Iterator[list[Value]]:
    """Yield rows in groups within which no id repeats, so that the later of two rows of one id is the one that stays."""
    batch: list[Value] = []
    ids: set[str] = set()
    for row in rows:
        event_id = id_of(row)
        if len(batch) == size or event_id in ids:
            yield batch
            batch, ids = [], set()
        batch.append(row)
        if event_id is not None:
            ids.add(event_id)
    if batch:
        yield batch


@dataclass(slots=True)
class _Import:
    """One import under way."""

    memory: Memory
    source: str
    saved: int = 0
    unchanged: int = 0
    faults: list[Fault] = field(default_factory=list)
    _nameless: Counter[bytes] | None = None

    def report(self) -> ImportReport:
        return ImportReport(self.saved, self.unchanged, tuple(self.faults))

    def fault(self, line: int | None, message: str) -> None:
        self.faults.append(Fault(self.source, line, message))

    def good(self, rows: Iterable[Row]) -> Iterator[Event]:
        """Yield the events among rows, and keep the faults."""
        for row in rows:
            if isinstance(row, Event):
                yield row
            else:
                self.faults.append(row)

    def attempt(self, line: int, read: Callable[..., Value], *arguments: object) -> Value | None:
        """Return what ``read`` returns, or None and a fault for the line."""
        try:
            return read(*arguments)
        except (InvalidRequest, NotFound) as error:
            self.fault(line, error.message)
            return None

    def restored(self, header: Header, file: Iterable[bytes]) -> Iterator[tuple[int, Restored]]:
        """Yield the events of an export with their lines, and report what is damaged or missing."""
        count = 0
        for number, line in enumerate(file, 2):
            count += 1
            if (row := self.attempt(number, read_line, line)) is not None:
                yield number, row
        if count != header.events:
            self.fault(None, f"holds {count} events, and its first line counts {header.events}; it was cut or changed")

    def save(self, events: Sequence[Event], finish: Finish = lambda prepared: prepared) -> None:
        """Save those of a batch that the library does not have yet.

        :param events: without a repeated id.
        :param finish: what is added to each before it is written.
        :raises WorkbenchError: if not an event but the library or the embedder is at fault.
        """
        fresh = [event for event in events if not self._known(event)]
        self.unchanged += len(events) - len(fresh)
        if not fresh:
            return
        report = self.memory.writer.save_many(fresh, self.memory.embedder, batch_size=_BATCH, finish=finish)
        self.saved += len(report.saved)
        hopeless = not self.saved and len(report.failed) >= _HOPELESS
        for event_id, error in report.failed:
            if hopeless or error.retryable or not isinstance(error, EmbeddingFailed | InvalidRequest):
                error.add_note(f"Events saved before: {self.saved}. Import the same file again to go on from there.")
                raise error
            self.fault(None, f"{one_line(event_id or 'an event without id')}: {error.message}")

    def set_visibility(self, line: int, row: Restored) -> None:
        """Give a saved event the visibility of its line."""
        store, event_id = self.memory.store, str(row.event.id)
        stored = store.get(event_id)
        if stored is not None and (stored.visibility, stored.superseded_by) != (row.visibility, row.superseded_by):
            self.attempt(line, store.set_visibility, event_id, row.visibility, row.superseded_by)

    def _known(self, event: Event) -> bool:
        """Return whether the library has the event already; one without an id is known by all its other fields."""
        if event.id is None:
            return self._known_nameless(_fingerprint(event, dated=event.written_at is not None))
        stored = self.memory.store.get(event.id)
        if stored is None or stored.chunk_count is None:
            return False
        return stored.event == (event if event.written_at else event.replace(written_at=stored.event.written_at))

    def _known_nameless(self, fingerprint: bytes) -> bool:
        if self._nameless is None:
            pages = (self.memory.events(offset, _PAGE) for offset in itertools.count(0, _PAGE))
            stored = (each.event for page in itertools.takewhile(len, pages) for each in page)
            self._nameless = Counter(_fingerprint(event, dated=dated) for event in stored for dated in (True, False))
        self._nameless[fingerprint] -= 1
        return self._nameless[fingerprint] >= 0


def _fingerprint(event: Event, *, dated: bool) -> bytes:
    left_out = ("id",) if dated else ("id", "written_at")
    fields = [getattr(event, name) for name in FIELDS if name not in left_out]
    return hashlib.blake2b(repr(fields).encode(), digest_size=16).digest()
