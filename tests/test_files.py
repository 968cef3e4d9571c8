"""Events from files (api.md Command line; retrieval.md S5, S7; faults BL-52, BL-53)."""

import csv
import json
import sys
from collections.abc import Callable, Iterable
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import workbench
from workbench import Event
from workbench.files import SUMMARY_LIMIT, Fault, read_events

SECRET = "Geheimnis"
TEXTS = {
    "crlf": "one\r\ntwo\rthree\n",
    "bom": "\ufeffbegins with a mark",
    "zwj": "family 👨\u200d👩\u200d👧 and e\u0301",
    "separators": "a\u2028b\u2029c\x85d\x0be\x1cf",
    "quotes": 'say ""twice"", then ; and , and\ttab\n\n',
    "blank ends": "  \n text \t\n ",
}


def lines(path: Path, *rows: bytes | dict[str, Any]) -> Path:
    path.write_bytes(b"\n".join(row if isinstance(row, bytes) else json.dumps(row, ensure_ascii=False).encode() for row in rows))
    return path


def write_csv(path: Path, header: Iterable[str], *rows: Iterable[str], encoding: str = "utf-8") -> Path:
    with path.open("w", newline="", encoding=encoding) as file:
        csv.writer(file).writerows([list(header), *(list(row) for row in rows)])
    return path


def faults(path: Path) -> list[Fault]:
    return [row for row in read_events(path) if isinstance(row, Fault)]


def events(path: Path) -> list[Event]:
    return [row for row in read_events(path) if isinstance(row, Event)]


def only(path: Path) -> Event:
    rows = list(read_events(path))
    assert len(rows) == 1
    assert isinstance(rows[0], Event), rows[0]
    return rows[0]


# -- JSON lines ----------------------------------------------------------------------------------------------------------

BAD_LINES: dict[str, tuple[bytes, str]] = {
    "no json": (b'{"summary": "Geheimnis"', "is no valid JSON at column"),
    "text after the object": (b'{"summary": "Geheimnis"} x', "is no valid JSON at column 26"),
    "no object": (b'["Geheimnis"]', "is no JSON object"),
    "a number as title": (b'{"summary": "Geheimnis", "title": 7}', "title must be a string"),
    "null as title": (b'{"summary": "Geheimnis", "title": null}', "title must be a string"),
    "a string as list": (b'{"summary": "s", "concepts": "Geheimnis"}', "concepts must be a list"),
    "a number in a list": (b'{"summary": "s", "tags": ["Geheimnis", 1]}', "tags[1] must be a string"),
    "a word as flag": (b'{"summary": "s", "critical": "Geheimnis"}', "critical must be true or false"),
    "a number as flag": (b'{"summary": "s", "critical": 1}', "critical must be true or false"),
    "unknown key": (b'{"summary": "Geheimnis", "importance": 3}', "'importance' is no field of an event"),
    "no summary": (b'{"content": "Geheimnis"}', "summary is missing"),
    "blank summary": ('{"summary": "\u200b", "content": "Geheimnis"}'.encode(), "Event.summary is blank"),
    "bad date": (b'{"summary": "s", "written_at": "Geheimnis"}', "written_at is no RFC 3339 time"),
    "a number as date": (b'{"summary": "s", "occurredFrom": 1700000000}', "occurred_from must be a date or time as a string"),
    "dates reversed": (
        b'{"summary": "Geheimnis", "occurred_from": "2026-03-02", "occurred_to": "2026-03-01"}',
        "occurred_from lies after occurred_to",
    ),
    "invalid utf-8": (b'{"summary": "Geheimnis \xff"}', "is no valid UTF-8 at byte 23"),
    "surrogate": (rb'{"summary": "Geheimnis \ud800"}', "Event.summary holds a lone surrogate at 10"),
    "surrogate in a list": (rb'{"summary": "s", "persons": ["Geheimnis \udfff"]}', "Event.persons holds a lone surrogate"),
    "nul": (rb'{"summary": "Geheimnis \u0000"}', "Event.summary holds a NUL"),
    "key twice": (b'{"summary": "s", "title": "Geheimnis", "title": "b"}', "gives the key 'title' twice"),
    "key in both spellings": (b'{"summary": "s", "eventType": "plan", "event_type": "plan"}', "gives the key 'event_type' twice"),
    "nan": (b'{"summary": "Geheimnis", "critical": NaN}', "holds NaN"),
    "infinity": (b'{"summary": "Geheimnis", "critical": -Infinity}', "holds -Infinity"),
    "unknown kind": (b'{"summary": "s", "kind": "Geheimnis"}', "Event.kind is not known"),
    "blank id": (b'{"summary": "Geheimnis", "id": " "}', "Event.id has 1 code points"),
    "long id": (b'{"summary": "Geheimnis", "id": "' + b"x" * 257 + b'"}', "Event.id has 257 code points"),
    "nested too deep": (b'{"summary": ' + b"[" * 100_000, "is no valid JSON"),
    "a number too long": (b'{"summary": ' + b"1" * 5_000 + b"}", "is no valid JSON"),
}


@pytest.mark.parametrize("kind", BAD_LINES)
def test_a_bad_line_is_reported_with_its_number_and_the_good_ones_are_read(kind: str, tmp_path: Path) -> None:
    """S7, S5: nothing is coerced, and no message holds content."""
    bad, message = BAD_LINES[kind]
    path = lines(tmp_path / "rows.jsonl", {"summary": "first"}, b"", bad, {"summary": "last"})
    assert [event.summary for event in events(path)] == ["first", "last"]
    (fault,) = faults(path)
    assert (fault.source, fault.line) == ("rows.jsonl", 3)
    assert message in fault.message
    assert SECRET not in str(fault)
    assert str(fault).startswith("rows.jsonl:3: ")


def test_several_faults_of_one_line_are_told_together(tmp_path: Path) -> None:
    (fault,) = faults(lines(tmp_path / "a.jsonl", {"title": 1, "content": 2, "tags": 3, "critical": 4}))
    assert fault.message.count(";") == 3
    assert "and 2 more" in fault.message


def test_keys_may_be_written_as_in_python_or_as_in_json(tmp_path: Path) -> None:
    """api.md: eventType, temporalStatus, occurredFrom, occurredTo, writtenAt."""
    camel = {
        "eventType": "plan",
        "temporalStatus": "planned",
        "occurredFrom": "2026-03-01",
        "occurredTo": "2026-03-02T00:00:00+08:00",
    }
    snake = {
        "event_type": "plan",
        "temporal_status": "planned",
        "occurred_from": "2026-03-01T00:00:00Z",
        "occurred_to": "2026-03-01t16:00z",
    }
    rest = {"id": "事件/1", "summary": "s", "concepts": ["甲"], "persons": [], "tags": ["t"], "kind": "active", "critical": True}
    first, second = events(
        lines(tmp_path / "a.ndjson", rest | camel | {"writtenAt": "2026-03-05"}, rest | snake | {"written_at": "2026-03-05"})
    )
    assert first == second
    assert first.written_at == datetime(2026, 3, 5, tzinfo=UTC)
    assert first.occurred_to == datetime(2026, 3, 1, 16, tzinfo=UTC)
    assert first.critical


def test_null_is_no_id_and_no_date(tmp_path: Path) -> None:
    assert only(lines(tmp_path / "a.jsonl", {"id": None, "summary": "s", "written_at": None})) == Event(summary="s")


def test_a_byte_order_mark_and_crlf_line_ends_are_no_fault(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(b'\xef\xbb\xbf{"summary": "a"}\r\n\r\n{"summary": "b"}\r\n')
    assert [event.summary for event in events(path)] == ["a", "b"]


# -- exact texts ---------------------------------------------------------------------------------------------------------


def as_jsonl(path: Path, text: str) -> Path:
    return lines(path / "a.jsonl", {"id": "x", "summary": "s", "content": text})


def as_csv(path: Path, text: str) -> Path:
    return write_csv(path / "a.csv", ["id", "summary", "content"], ["x", "s", text])


def as_csv_with_mark(path: Path, text: str) -> Path:
    return write_csv(path / "a.csv", ["content", "summary"], [text, "s"], encoding="utf-8-sig")


def as_parquet(path: Path, text: str) -> Path:
    pq.write_table(pa.table({"id": ["x"], "summary": ["s"], "content": [text]}), path / "a.parquet")
    return path / "a.parquet"


def as_text(path: Path, text: str) -> Path:
    (path / "a.txt").write_bytes(text.encode())
    return path / "a.txt"


@pytest.mark.parametrize("form", [as_jsonl, as_csv, as_csv_with_mark, as_parquet, as_text])
@pytest.mark.parametrize("name", TEXTS)
def test_a_text_arrives_exactly(form: Callable[[Path, str], Path], name: str, tmp_path: Path) -> None:
    """S1: byte for byte as text."""
    assert only(form(tmp_path, TEXTS[name])).content == TEXTS[name]


# -- CSV -----------------------------------------------------------------------------------------------------------------


def test_a_cell_lists_names_as_json_or_with_semicolons(tmp_path: Path) -> None:
    header = ["summary", "concepts", "persons", "tags", "critical", "writtenAt"]
    path = write_csv(
        tmp_path / "a.csv",
        header,
        ["s", '["a;b", "c"]', " 林知夏 ;Bram; ", "", "TRUE", "2026-03-01"],
        ["t", "", "", "x", "false", ""],
    )
    first, second = events(path)
    assert (first.concepts, first.persons, first.tags, first.critical) == (("a;b", "c"), ("林知夏", "Bram"), (), True)
    assert first.written_at == datetime(2026, 3, 1, tzinfo=UTC)
    assert second == Event(summary="t", tags=("x",))


def test_a_long_cell_is_no_fault_and_the_limit_of_the_host_stays(tmp_path: Path) -> None:
    limit = csv.field_size_limit()
    assert len(only(write_csv(tmp_path / "a.csv", ["summary", "content"], ["s", "字" * 200_000])).content) == 200_000
    assert csv.field_size_limit() == limit


BAD_RECORDS = {
    "too few cells": (b"s,Geheimnis", "has 2 cells, and the header has 3"),
    "quotes": (b's,"Geheimnis"x,', "is no valid CSV"),
    "invalid utf-8": (b"s,Geheimnis\xff,", "is no valid UTF-8"),
    "surrogate bytes": (b"s,Geheimnis\xed\xa0\x80,", "is no valid UTF-8"),
    "bad array": (b's,Geheimnis,"[1,"', "concepts begins with [ and is no JSON array"),
    "numbers in an array": (b"s,Geheimnis,[1]", "concepts[0] must be a string"),
    "no summary": (b",Geheimnis,", "summary is missing"),
}


@pytest.mark.parametrize("kind", BAD_RECORDS)
def test_a_bad_record_is_reported_with_the_line_where_it_begins(kind: str, tmp_path: Path) -> None:
    bad, message = BAD_RECORDS[kind]
    path = tmp_path / "a.csv"
    path.write_bytes(b'summary,content,concepts\nfirst,"two\r\nlines",\n' + bad + b"\n,,\nlast,,\n")
    assert [event.summary for event in events(path)] == ["first", "last"]
    (fault,) = faults(path)
    assert fault.line == 4
    assert message in fault.message
    assert SECRET not in fault.message


@pytest.mark.parametrize(
    ("header", "message"), [("summary,mood", "'mood', which is no field"), ("summary,eventType,event_type", "'event_type' twice")]
)
def test_a_wrong_header_is_one_fault(header: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text(f"{header}\n" + "a,b,c\n" * 3)
    (fault,) = read_events(path)
    assert isinstance(fault, Fault)
    assert fault.line == 1
    assert message in fault.message


def test_an_unclosed_quote_is_reported_where_it_opens(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text('summary\nfirst\n"never\nclosed\n')
    assert [event.summary for event in events(path)] == ["first"]
    assert [fault.line for fault in faults(path)] == [3]


@pytest.mark.parametrize("name", ["a.csv", "a.jsonl"])
def test_an_empty_file_has_no_rows(name: str, tmp_path: Path) -> None:
    (tmp_path / name).touch()
    assert list(read_events(tmp_path / name)) == []


# -- Parquet -------------------------------------------------------------------------------------------------------------

MOMENT = datetime(2026, 3, 1, 8, 30, 0, 123456, UTC)


@pytest.mark.parametrize("kind", [pa.timestamp("ns"), pa.timestamp("us", "UTC"), pa.timestamp("ns", "Asia/Shanghai"), pa.string()])
def test_times_of_any_kind_are_the_same_moment(kind: pa.DataType, tmp_path: Path) -> None:
    """Faults BL-52: no pandas time comes in, with pandas installed or not."""
    value = MOMENT.isoformat() if kind == pa.string() else MOMENT
    pq.write_table(pa.table({"summary": ["s"], "written_at": pa.array([value], kind)}), tmp_path / "a.parquet")
    written = only(tmp_path / "a.parquet").written_at
    assert (type(written), written) == (datetime, MOMENT)


def test_a_day_is_its_first_instant(tmp_path: Path) -> None:
    pq.write_table(pa.table({"summary": ["s"], "occurredFrom": [date(2026, 3, 1)]}), tmp_path / "a.parquet")
    assert only(tmp_path / "a.parquet").occurred_from == datetime(2026, 3, 1, tzinfo=UTC)


@pytest.mark.parametrize("hidden", [(), ("pyarrow",)])
def test_columns_empty_in_the_first_rows_lose_nothing(
    hidden: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Faults BL-53: 120 rows of nulls before the first value, through pyarrow and through polars."""
    for module in hidden:
        monkeypatch.setitem(sys.modules, module, None)
    schema: dict[str, Any] = {
        "summary": pl.String,
        "title": pl.String,
        "tags": pl.List(pl.String),
        "written_at": pl.Datetime("us", "UTC"),
        "critical": pl.Boolean,
    }
    blank = {"summary": "s", "title": None, "tags": None, "written_at": None, "critical": None}
    full = {"summary": "s", "title": "t", "tags": ["a", "b"], "written_at": MOMENT, "critical": True}
    pl.DataFrame([blank] * 120 + [full] * 30, schema=schema).write_parquet(tmp_path / "a.parquet")
    rows = list(read_events(tmp_path / "a.parquet"))
    assert rows[0] == Event(summary="s")
    assert rows[120:] == [Event(summary="s", title="t", tags=("a", "b"), written_at=MOMENT, critical=True)] * 30


def test_a_bad_row_of_a_table_is_reported_by_number(tmp_path: Path) -> None:
    strings = pa.array([b"first", b"Geheimnis \xff", b"last"], pa.binary()).view(pa.string())
    pq.write_table(pa.table({"summary": strings, "tags": [["a"], ["b"], [None]]}), tmp_path / "a.parquet")
    assert [event.summary for event in events(tmp_path / "a.parquet")] == ["first"]
    assert [str(fault) for fault in faults(tmp_path / "a.parquet")] == [
        "a.parquet:2: summary is no valid UTF-8, or a time out of range",
        "a.parquet:3: tags[0] must be a string",
    ]


@pytest.mark.parametrize(
    ("column", "message"),
    [
        (pa.array([7]), "title must be a string"),
        (pa.array([b"x"]), "title must be a string"),
        (pa.array([1.5]), "title must be a string"),
    ],
)
def test_a_column_of_another_type_is_not_coerced(column: pa.Array, message: str, tmp_path: Path) -> None:
    pq.write_table(pa.table({"summary": ["s"], "title": column}), tmp_path / "a.parquet")
    assert [fault.message for fault in faults(tmp_path / "a.parquet")] == [message]


def test_a_time_out_of_range_and_an_unknown_column_are_faults(tmp_path: Path) -> None:
    far = pa.array([2**62], pa.timestamp("us"))
    pq.write_table(pa.table({"summary": ["s"], "written_at": far}), tmp_path / "a.parquet")
    assert "written_at is no valid UTF-8, or a time out of range" in faults(tmp_path / "a.parquet")[0].message
    pq.write_table(pa.table({"summary": ["s"], "mood": ["x"]}), tmp_path / "b.parquet")
    assert "'mood'" in faults(tmp_path / "b.parquet")[0].message


@pytest.mark.parametrize("hidden", [(), ("pyarrow",)])
def test_a_damaged_table_is_refused(hidden: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in hidden:
        monkeypatch.setitem(sys.modules, module, None)
    (tmp_path / "a.parquet").write_bytes(b"PAR1 nothing")
    with pytest.raises(workbench.InvalidRequest, match="is no readable Parquet file"):
        list(read_events(tmp_path / "a.parquet"))


def test_without_a_reader_the_extra_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("pyarrow", "polars"):
        monkeypatch.setitem(sys.modules, module, None)
    (tmp_path / "a.parquet").touch()
    with pytest.raises(workbench.InvalidRequest, match=r"retrieval-workbench\[lab\]"):
        list(read_events(tmp_path / "a.parquet"))


# -- text and Markdown ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "text", "title", "summary"),
    [
        ("note.md", "# The title #\n\nFirst\nparagraph.\n\nSecond.", "The title", "First paragraph."),
        ("note.md", "\ufeff\r\n## 标题\r\n　　第一段\r\n\r\n第二段", "标题", "第一段"),
        ("note.md", "---\ndate: 2026\n---\nText before.\n# Later\n", "Later", "Text before."),
        ("note.md", "```\n# a comment\n```\n# Real", "Real", "Real"),
        ("note.md", "# Only a heading", "Only a heading", "Only a heading"),
        ("C# notes.md", "# C#\nx", "C#", "x"),
        ("diary.txt", "\n\n#hashtag is no heading\nnext", "diary", "#hashtag is no heading next"),
        ("日记.markdown", "今天", "日记", "今天"),
    ],
)
def test_title_and_summary_come_from_the_text(name: str, text: str, title: str, summary: str, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(text.encode())
    event = only(tmp_path / name)
    assert event == Event(title=title, summary=summary, content=text)


def test_a_long_summary_is_cut_between_characters(tmp_path: Path) -> None:
    family = "👨\u200d👩\u200d👧"
    (tmp_path / "a.txt").write_text(family * (SUMMARY_LIMIT + 1), "utf-8")
    assert only(tmp_path / "a.txt").summary == family * SUMMARY_LIMIT + "…"


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        (b"one\ntwo\nGeheimnis \xe4", "a.md:3: is no valid UTF-8"),
        (b" \n\t\n", "a.md: Event.summary is blank; give one visible character or more."),
        (b"a\0Geheimnis", "a.md: Event.summary holds a NUL character at 1; remove it."),
    ],
)
def test_a_text_that_is_no_event_is_a_fault(text: bytes, fault: str, tmp_path: Path) -> None:
    (tmp_path / "a.md").write_bytes(text)
    assert [str(row) for row in read_events(tmp_path / "a.md")] == [fault]


def test_a_folder_is_searched_for_texts(tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    (tmp_path / ".hidden").mkdir()
    for name in ("b.md", "sub/a.TXT", "c.jsonl", ".hidden/d.md", "sub/.e.md"):
        (tmp_path / name).write_text(f"text of {name}")
    (tmp_path / "sub/bad.txt").write_bytes(b"\xff")
    assert [str(row) if isinstance(row, Fault) else row.content for row in read_events(tmp_path)] == [
        "text of b.md",
        "text of sub/a.TXT",
        "sub/bad.txt:1: is no valid UTF-8",
    ]


@pytest.mark.parametrize(
    ("name", "message"), [("missing.jsonl", "there is no file"), ("a.docx", "has no known form"), ("empty", "holds no file")]
)
def test_what_can_not_be_read_at_all_is_refused(name: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "a.docx").touch()
    (tmp_path / "empty").mkdir()
    with pytest.raises(workbench.InvalidRequest, match=message):
        list(read_events(tmp_path / name))
