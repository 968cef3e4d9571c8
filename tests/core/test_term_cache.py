"""The terms of recent candidates: never stale, never more than the limit."""

from collections.abc import Sequence

import pytest

from tests.support import OpenLibrary
from workbench import Event
from workbench.core.stores.term_blobs import Row
from workbench.core.stores.term_cache import _ROW_BYTES, TermCache


class Shelf:
    """Rows of a made-up store, and what was asked of it."""

    def __init__(self) -> None:
        self.version, self.asked = 1, list[list[str]]()

    def __call__(self, event_ids: Sequence[str]) -> list[Row]:
        self.asked.append(list(event_ids))
        return [(each, self.version, b"12345678", b"12") for each in event_ids if each != "none"]


def test_only_what_is_missing_is_fetched() -> None:
    cache, shelf = TermCache(), Shelf()
    assert [row[0] for row in cache.rows(["a", "b", "none"], shelf)] == ["a", "b"]
    assert sorted(row[0] for row in cache.rows(["c", "a", "none"], shelf)) == ["a", "c"]
    assert cache.rows(["a", "b"], shelf) == [("a", 1, b"12345678", b"12"), ("b", 1, b"12345678", b"12")]
    assert shelf.asked == [["a", "b", "none"], ["c", "none"]]


@pytest.mark.parametrize("changed", [["a"], None])
def test_a_changed_event_is_fetched_again(changed: list[str] | None) -> None:
    cache, shelf = TermCache(), Shelf()
    cache.rows(["a"], shelf)
    shelf.version = 2
    cache.drop(changed)
    assert cache.rows(["a"], shelf)[0][1] == 2


def test_a_row_fetched_while_its_event_changed_is_not_kept() -> None:
    cache, shelf = TermCache(), Shelf()

    def overtaken(event_ids: Sequence[str]) -> list[Row]:
        rows = shelf(event_ids)
        shelf.version = 2
        cache.drop(["a"])
        return rows

    assert cache.rows(["a"], overtaken)[0][1] == 1
    assert cache.rows(["a"], shelf)[0][1] == 2


def test_the_least_recently_used_leave_first() -> None:
    cache, shelf = TermCache(limit=3 * (_ROW_BYTES + 10)), Shelf()
    cache.rows(["a", "b", "c"], shelf)
    cache.rows(["a"], shelf)
    cache.rows(["d"], shelf)
    cache.rows(["a", "c", "d"], shelf)
    cache.rows(["b"], shelf)
    assert shelf.asked == [["a", "b", "c"], ["d"], ["b"]]
    assert TermCache(limit=5).rows(["a"], shelf)[0][0] == "a"


def test_a_text_changed_by_another_process_counts_at_once(open_library: OpenLibrary, store_kind: str) -> None:
    """retrieval.md Q5: coverage is that of the text as it is; another opener's write is seen by the next search."""
    one = open_library()
    other = one if store_kind == "sqlite-memory" else open_library()
    one.save_many([Event(id=f"e{n}", summary=f"note {n}", content=f"lantern {n}" if n else "harbour") for n in range(3)])

    def coverage() -> float | None:
        found = one.search("lantern", explain=True, reset_seen=True).explanation
        assert found is not None
        return next(row.coverage for row in found.rows if row.event_id == "e0")

    assert coverage() == 0
    other.save(Event(id="e0", summary="note 0", content="a lantern, a lantern"))
    first = coverage()
    assert first is not None
    assert first > 0
    other.save(Event(id="e0", summary="note 0", content="a lantern"))
    assert coverage() != first
