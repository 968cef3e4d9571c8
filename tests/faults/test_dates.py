"""Dates and time zones (faults.md BL-48): one meaning of a bare date, whatever the host's time zone is."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from datetime import UTC, date, datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest

from tests.support import TableEmbedder, ids
from workbench import Event, InvalidRequest, Memory, open_memory

ZONES = ("UTC", "Asia/Shanghai", "Asia/Kathmandu", "America/St_Johns")
DAY = "2025-03-01"
WRITTEN: dict[str, datetime] = {
    "before": datetime(2025, 2, 28, 23, 59, 59, 999_999, tzinfo=UTC),
    "first": datetime(2025, 3, 1, tzinfo=UTC),
    "naive noon": datetime(2025, 3, 1, 12),  # read as UTC (S7)
    "last": datetime(2025, 3, 1, 23, 59, 59, 999_999, tzinfo=UTC),
    "after": datetime(2025, 3, 2, tzinfo=UTC),
    "shanghai midnight": datetime(2025, 3, 1, tzinfo=timezone(timedelta(hours=8))),  # 2025-02-28T16:00Z
    "st johns midnight": datetime(2025, 3, 1, tzinfo=timezone(-timedelta(hours=3, minutes=30))),  # 2025-03-01T03:30Z
    "kathmandu evening": datetime(2025, 3, 1, 23, 59, 59, tzinfo=timezone(timedelta(hours=5, minutes=45))),  # 18:14:59Z
    "dst gap": datetime(2025, 3, 9, 2, 30),  # no such local time in St. John's, but a plain one in UTC
    "dst fold": datetime(2025, 11, 2, 1, 30, fold=1),  # twice there, once in UTC
    "year 1": datetime(1, 1, 1, tzinfo=UTC),
    "year 9999": datetime(9999, 12, 31, 23, 59, 59, 999_999, tzinfo=UTC),
}
IN_DAY = {"first", "naive noon", "last", "st johns midnight", "kathmandu evening"}
FROM_DAY = {*IN_DAY, "after", "dst gap", "dst fold", "year 9999"}
TO_DAY = {*IN_DAY, "before", "shanghai midnight", "year 1"}
FIRST, LAST = date(1, 1, 1), date(9999, 12, 31)
EAST = timezone(timedelta(hours=8))

QUESTIONS: list[tuple[str, Any, Any, set[str]]] = [
    ("a day as text", DAY, DAY, IN_DAY),
    ("a day as date", date(2025, 3, 1), date(2025, 3, 1), IN_DAY),
    ("text and date", DAY, date(2025, 3, 1), IN_DAY),
    ("date and text", date(2025, 3, 1), DAY, IN_DAY),
    ("from a day", DAY, None, FROM_DAY),
    ("to a day", None, DAY, TO_DAY),
    ("from a date", date(2025, 3, 1), None, FROM_DAY),
    ("to a date", None, date(2025, 3, 1), TO_DAY),
    ("instants", "2025-03-01T00:00:00Z", "2025-03-02T00:00:00Z", IN_DAY),
    ("aware instants", datetime(2025, 3, 1, tzinfo=UTC), datetime(2025, 3, 2, tzinfo=UTC), IN_DAY),
    ("naive instants", datetime(2025, 3, 1), datetime(2025, 3, 2), IN_DAY),
    ("naive and aware", datetime(2025, 3, 1), datetime(2025, 3, 2, tzinfo=UTC), IN_DAY),
    ("aware and naive", datetime(2025, 3, 1, 8, tzinfo=EAST), datetime(2025, 3, 2), IN_DAY),
    ("naive text", "2025-03-01T00:00:00", "2025-03-02T00:00:00", IN_DAY),
    ("offsets as text", "2025-03-01T08:00:00+08:00", "2025-03-01T20:30:00-03:30", IN_DAY),
    ("date and instant", DAY, datetime(2025, 3, 2, tzinfo=UTC), IN_DAY),
    ("naive instant and date", datetime(2025, 3, 1), DAY, IN_DAY),
    ("upper instant is exclusive", None, datetime(2025, 3, 1, tzinfo=UTC), TO_DAY - IN_DAY),
    ("upper instant of the last", DAY, datetime(2025, 3, 1, 23, 59, 59, 999_999, tzinfo=UTC), IN_DAY - {"last"}),
    ("lower instant is inclusive", datetime(2025, 3, 1, 23, 59, 59, 999_999, tzinfo=UTC), DAY, {"last"}),
    ("a microsecond", "2025-02-28T23:59:59.999999Z", "2025-03-01T00:00:00Z", {"before"}),
    ("one instant", datetime(2025, 3, 1, tzinfo=UTC), datetime(2025, 3, 1, tzinfo=UTC), set()),
    ("the day of the gap", "2025-03-09", "2025-03-09", {"dst gap"}),
    ("the hour of the gap", "2025-03-09T02:30:00Z", "2025-03-09T02:30:01Z", {"dst gap"}),
    ("the day of the fold", date(2025, 11, 2), date(2025, 11, 2), {"dst fold"}),
    ("the hour of the fold", "2025-11-02T01:30:00Z", "2025-11-02T01:30:01Z", {"dst fold"}),
    ("year 1", "0001-01-01", "0001-01-01", {"year 1"}),
    ("year 1 as date", FIRST, FIRST, {"year 1"}),
    ("year 9999", "9999-12-31", "9999-12-31", {"year 9999"}),
    ("year 9999 as date", LAST, LAST, {"year 9999"}),
    ("all of time", FIRST, LAST, set(WRITTEN)),
    ("all of time as text", "0001-01-01", "9999-12-31", set(WRITTEN)),
    ("all of time as instants", datetime.min, datetime.max, set(WRITTEN) - {"year 9999"}),
    ("the end of time", datetime.max, None, {"year 9999"}),
    ("the last day, upper", None, "9999-12-30", set(WRITTEN) - {"year 9999"}),
    ("the first day, lower", "0001-01-02", None, set(WRITTEN) - {"year 1"}),
]


def fill(memory: Memory) -> None:
    memory.save_many(
        [
            Event(id=name, summary=f"s {name}", content=f"content {name}", concepts=("图",), written_at=moment)
            for name, moment in WRITTEN.items()
        ]
    )


def drained(memory: Memory, session: str, **arguments: Any) -> list[str]:
    found: list[str] = []
    while batch := ids(memory.search(**arguments, session=session).results):
        found += batch
    return found


def answers(memory: Memory) -> dict[str, list[str]]:
    """Return what a listing and a search find for every question, and the order of all events."""
    found = {}
    for name, low, high, _ in QUESTIONS:
        for kind, question in (("listing", None), ("search", "content")):
            arguments = {"query_text": question, "written_from": low, "written_to": high}
            found[f"{kind}: {name}"] = drained(memory, f"{kind} {name}", **arguments)
    found["events"] = [stored.event.id or "" for stored in memory.events()]
    found["json"] = [each["writtenAt"] for each in memory.search(written_from=DAY, written_to=DAY).to_dict()["results"]]
    return found


def everything(directory: Path) -> dict[str, dict[str, list[str]]]:
    """Return the answers of both stores in this process."""
    found = {}
    for kind, address in (("memory", "sqlite://"), ("file", f"sqlite:///{directory / f'dates-{os.getpid()}.db'}")):
        with open_memory(address, embedder=TableEmbedder()) as memory:
            fill(memory)
            found[kind] = answers(memory)
    return found


@pytest.fixture(scope="module")
def by_zone(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Return each zone's answers, from a fresh process whose local time really is that zone's."""
    script = (
        "import json, pathlib, sys, time\n"
        "from tests.faults.test_dates import everything\n"
        "print(json.dumps([list(time.localtime(1740787200)[:5]), everything(pathlib.Path(sys.argv[1]))]))"
    )
    running = {
        zone: subprocess.Popen(
            [sys.executable, "-W", "error", "-c", script, str(tmp_path_factory.mktemp("dates"))],
            env=os.environ | {"TZ": zone},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for zone in ZONES
    }
    found = {}
    for zone, process in running.items():
        out, err = process.communicate(timeout=120)
        assert process.returncode == 0, err
        found[zone] = json.loads(out)
    return found


def test_the_processes_lived_in_their_zones(by_zone: dict[str, Any]) -> None:
    """faults.md BL-48: the test itself is sound: 2025-03-01T00:00Z reads differently on each host."""
    assert {zone: local for zone, (local, _) in by_zone.items()} == {
        "UTC": [2025, 3, 1, 0, 0],
        "Asia/Shanghai": [2025, 3, 1, 8, 0],
        "Asia/Kathmandu": [2025, 3, 1, 5, 45],
        "America/St_Johns": [2025, 2, 28, 20, 30],
    }


@pytest.mark.parametrize("zone", ZONES)
@pytest.mark.parametrize("kind", ["memory", "file"])
def test_a_day_is_the_same_everywhere(by_zone: dict[str, Any], zone: str, kind: str) -> None:
    """retrieval.md Q2, S7, Q9, faults.md BL-48: UTC days, both ends, naive read as UTC; search and listing agree."""
    found = by_zone[zone][1][kind]
    for name, _, _, expected in QUESTIONS:
        assert (name, set(found[f"listing: {name}"])) == (name, expected)
        assert (name, set(found[f"search: {name}"])) == (name, expected)
        newest_first = sorted(expected, key=lambda each: (as_utc(WRITTEN[each]), each), reverse=True)
        assert (name, found[f"listing: {name}"]) == (name, newest_first)
    assert found["events"] == sorted(WRITTEN, key=lambda each: (as_utc(WRITTEN[each]), each))
    assert found == by_zone["UTC"][1]["memory"]


def as_utc(moment: datetime) -> datetime:
    return moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment.astimezone(UTC)


@pytest.fixture
def memory() -> Iterator[Memory]:
    with open_memory("sqlite://", embedder=TableEmbedder()) as library:
        fill(library)
        yield library


@pytest.mark.parametrize(
    ("low", "high"),
    [
        ("2025-03-02", "2025-03-01"),
        (date(2025, 3, 2), "2025-03-01"),
        (datetime(2025, 3, 2, tzinfo=UTC), "2025-03-01"),
        ("2025-03-01T00:00:01Z", datetime(2025, 3, 1, tzinfo=UTC)),
        (LAST, FIRST),
        (datetime.max, datetime.min),
    ],
)
def test_from_after_to_is_empty_or_refused(memory: Memory, low: Any, high: Any) -> None:
    """retrieval.md V6, faults.md BL-48: error or empty, the same for search and listing, and nothing is delivered."""
    outcomes = []
    for question in (None, "content"):
        try:
            result = memory.search(question, written_from=low, written_to=high)
        except InvalidRequest as error:
            outcomes.append(error.code)
        else:
            outcomes.append(f"{len(result.results)} {[notice.code for notice in result.notices]}")
    assert outcomes in (["invalid_request"] * 2, ["0 ['emptyIsNotAbsence']"] * 2)
    assert set(drained(memory, "default", written_from=FIRST)) == set(WRITTEN)


@pytest.mark.parametrize(
    "wrong",
    [
        "yesterday",
        "2025",
        "2025-03",
        "2025-13-01",
        "2025-02-29",
        "2025-3-1",
        "20250301T",
        "2025-03-01T25:00:00Z",
        "2025-03-01T00:00:00+99:00",
        "10000-01-01",
        "0000-01-01",
        "２０２５-03-01",
        "2025-03-01\0",
        "2025-03-01 Z",
        1740787200,
        1740787200.0,
        True,
        ["2025-03-01"],
        b"2025-03-01",
        timedelta(days=1),
    ],
    ids=repr,
)
@pytest.mark.parametrize("end", ["written_from", "written_to"])
def test_what_is_no_date_is_refused(memory: Memory, end: str, wrong: Any) -> None:
    """retrieval.md Q15, faults.md BL-48: a clear error that names the argument, never a guess."""
    with pytest.raises(InvalidRequest, match=end):
        memory.search("content", **{end: wrong})
    assert set(drained(memory, "default", written_from=FIRST)) == set(WRITTEN)


@pytest.mark.parametrize(
    "edge",
    [
        "0001-01-01T00:00:00+14:00",
        "9999-12-31T23:59:59-12:00",
        datetime(1, 1, 1, tzinfo=timezone(timedelta(hours=14))),
        datetime(9999, 12, 31, 23, 59, tzinfo=timezone(-timedelta(hours=12))),
    ],
    ids=repr,
)
def test_an_instant_beyond_the_years_of_utc(memory: Memory, edge: Any) -> None:
    """retrieval.md Q15, S7, faults.md BL-48: a clear refusal or a sensible bound, no OverflowError."""
    for end in ("written_from", "written_to"):
        session = f"{end} {edge}"
        try:
            found = set(drained(memory, session, **{end: edge}))
        except InvalidRequest:
            with pytest.raises(InvalidRequest, match=end):
                memory.search(**{end: edge})
            continue
        low = str(edge).startswith("0001")
        assert found == (set(WRITTEN) if low == (end == "written_from") else set())
    if isinstance(edge, datetime):
        with pytest.raises(InvalidRequest, match="written_at"):
            Event(summary="s", written_at=edge)


def test_the_tool_takes_the_same_dates(memory: Memory) -> None:
    """retrieval.md Q2, api.md: what a model writes as text means the same as in Python."""
    for name, low, high, expected in QUESTIONS:
        asked = {key: value for key, value in (("written_from", low), ("written_to", high)) if isinstance(value, str)}
        if len(asked) != (low is not None) + (high is not None):
            continue
        found: set[str] = set()
        while batch := memory.tools.call("memory_database_search", asked, session=name)["results"]:
            found |= {each["id"] for each in batch}
        assert (name, found) == (name, expected)


def test_written_at_comes_back_in_utc(memory: Memory) -> None:
    """retrieval.md S7, api.md: naive is UTC, every offset is converted, and no microsecond is lost."""
    for name, moment in WRITTEN.items():
        stored = memory.get(name).event.written_at
        assert stored == as_utc(moment)
        assert stored is not None
        assert stored.utcoffset() == timedelta(0)
    shown = memory.search(entity="图", written_from="2025-02-28", written_to="2025-02-28").to_dict()["results"]
    assert [datetime.fromisoformat(each["writtenAt"]) for each in shown] == [
        as_utc(WRITTEN["before"]),
        as_utc(WRITTEN["shanghai midnight"]),
    ]
    assert all(each["writtenAt"].endswith("Z") for each in shown)


def test_this_process_is_not_moved() -> None:
    """faults.md BL-48: using the library sets no time zone for its host."""
    before = (time.tzname, time.timezone, os.environ.get("TZ"))
    with open_memory("sqlite://", embedder=TableEmbedder()) as library:
        fill(library)
        assert drained(library, "zone", written_from=DAY, written_to=DAY)
    assert (time.tzname, time.timezone, os.environ.get("TZ")) == before
