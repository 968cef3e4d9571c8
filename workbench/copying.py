"""Moving house: a library copied from one store to another, stopped and gone on with at will, and compared by a digest."""

import contextlib
import hashlib
import itertools
from collections.abc import Generator, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import cast

from workbench.core.errors import Conflict, InvalidRequest
from workbench.core.memory import Memory
from workbench.core.stores.base import EmbeddedName, EntityKey, Prepared, Recipe, Store, mismatch
from workbench.core.writing import names_of, progress_bar
from workbench.library_file import event_line, header_line

_BATCH = 256
_PAGE = 500


@dataclass(frozen=True, slots=True)
class CopyReport:
    """What a copy did: events written, events that were there already, and the digest that both libraries have."""

    copied: int
    unchanged: int
    digest: str


def copy_library(source: Memory, target: Memory, *, progress: bool = False) -> CopyReport:
    """Copy a whole library as it is at one moment: texts, vectors, links, ids, visibility and adoptions, hidden events too.

    Stopped anywhere, a second call goes on: events that the target has in the same form are not written again.

    :param source: what to copy.
    :param target: an empty library, or one that holds nothing but events of the source.
    :param progress: show a bar on the error stream.
    :return: what was done.
    :raises InvalidRequest: if the target holds other events.
    :raises ModelMismatch: if the target's vectors were made in another way.
    :raises Conflict: if the copy does not equal the source at the end, as when somebody writes to the target meanwhile.
    """
    present = _event_digests(target.store)
    _check_target(present, source)
    with progress_bar(progress, "copying", source.stats().events) as step, _dumped(source.store) as (recipe, names, rows):
        mismatch(target.store.library().recipe, recipe)
        digest, copied, unchanged = _Digest(recipe, names), 0, 0
        while batch := list(itertools.islice(rows, _BATCH)):
            lines = [digest.add(each) for each in batch]
            fresh = [each for each, line in zip(batch, lines, strict=True) if present.get(str(each.event.id)) != line]
            if fresh:
                target.store.write(fresh, [digest.names[key] for key in names_of(each.event for each in fresh)], recipe)
            copied, unchanged = copied + len(fresh), unchanged + len(batch) - len(fresh)
            step(len(batch))
    if library_digest(target.store) != digest.value():
        raise Conflict("the copy does not equal its source; see that nobody writes to the target, and copy again to go on.")
    return CopyReport(copied, unchanged, digest.value())


def _check_target(present: Mapping[str, bytes], source: Memory) -> None:
    """Refuse a target with events that the source does not have."""
    foreign = set(present)
    for offset in itertools.count(0, _PAGE):
        page = source.events(offset, _PAGE) if foreign else []
        foreign.difference_update(str(each.event.id) for each in page)
        if not page:
            break
    if foreign:
        raise InvalidRequest(
            f"the target holds {len(foreign)} events that the source does not have; nothing was copied. "
            "Copy into an empty library, such as another namespace (`--to-namespace`)."
        )


def library_digest(store: Store) -> str:
    """Return 64 hexadecimal digits that are equal exactly for libraries of equal content, whatever their stores.

    It covers the recipe and, of every event, all that an export holds, its entities' ids and vectors included. Revisions,
    numbering and names that no event mentions any more do not count.
    """
    with _dumped(store) as (recipe, names, rows):
        digest = _Digest(recipe, names)
        for prepared in rows:
            digest.add(prepared)
    return digest.value()


def _event_digests(store: Store) -> dict[str, bytes]:
    with _dumped(store) as (recipe, names, rows):
        digest = _Digest(recipe, names)
        return {str(prepared.event.id): digest.add(prepared) for prepared in rows}


@contextlib.contextmanager
def _dumped(store: Store) -> Iterator[tuple[Recipe, list[EmbeddedName], Iterator[Prepared]]]:
    library, names, rows = store.dump()
    with contextlib.closing(cast("Generator[Prepared, None, None]", rows)) as events:
        yield library.recipe, names, events


class _Digest:
    """The digest of a library under way; each event's covers what it says and the entities that it mentions."""

    def __init__(self, recipe: Recipe, names: Iterable[EmbeddedName]) -> None:
        self.names: dict[EntityKey, EmbeddedName] = {(name.label, name.key): name for name in names}
        self._recipe, self._events = recipe, list[bytes]()

    def add(self, prepared: Prepared) -> bytes:
        """Return the event's own digest."""
        mentioned = [self.names[key] for key in names_of([prepared.event])]
        line = hashlib.blake2b(event_line(prepared) + header_line(self._recipe, mentioned, 1), digest_size=32).digest()
        self._events.append(line)
        return line

    def value(self) -> str:
        """Return the digest of all events so far, in any order."""
        return hashlib.blake2b(b"".join(sorted(self._events)), digest_size=32).hexdigest()
