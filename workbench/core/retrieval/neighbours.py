"""Neighbours by place: ids of the form ``<prefix>_ch<chapter>_e<record>`` (C3, C7)."""

import re
from collections.abc import Sequence
from dataclasses import dataclass

NEARBY_LIMIT = 10
"""How many records before and after an event can be asked for (C3)."""
_FORM = re.compile(r"(?s)(.*)_ch([0-9]+)_e([0-9]+)")


@dataclass(frozen=True, slots=True)
class Place:
    """Where an id says that its record stands."""

    prefix: str
    chapter: int
    record: int


def place_of(event_id: str) -> Place | None:
    """Return the place that an id of the form states, numbers read as numbers, or None for another form."""
    match = _FORM.fullmatch(event_id)
    return Place(match[1], int(match[2]), int(match[3])) if match else None


def around(chapter: Sequence[str], event_id: str, *, before: int, after: int) -> list[str]:
    """Return the ids up to ``before`` places before and ``after`` places after, nearest first, the earlier of equals first.

    :param chapter: all visible ids of the chapter in number order, ``event_id`` among them.
    :param event_id: the one in the middle.
    :param before: how many places before it.
    :param after: how many places after it.
    :return: the ids, without the middle one.
    """
    middle = chapter.index(event_id)
    near = [place for place in range(middle - before, middle + after + 1) if place != middle and 0 <= place < len(chapter)]
    return [chapter[place] for place in sorted(near, key=lambda place: (abs(place - middle), place))]


def number_order(event_id: str) -> tuple[int, str]:
    """Return the sorting key of an id inside its chapter: record number, then id."""
    place = place_of(event_id)
    assert place is not None
    return place.record, event_id
