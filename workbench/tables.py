"""Events in tables: CSV and Parquet, one event per row below a header of field names."""

import contextlib
import csv
import functools
import importlib
import json
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from workbench.core.errors import InvalidRequest
from workbench.core.event import Event
from workbench.rows import LISTS, Fault, Row, checked, columns_of, event_of, reading, refuse_constant

_CELL_LIMIT = 2**31 - 1
_FLAGS = {"true": True, "false": False}
_ROWS = 512
_UNREADABLE = object()


def csv_rows(path: Path) -> Iterator[Row]:
    """Return the rows of a CSV file. A cell of names is a JSON array or separated by ``;``; an empty cell gives nothing."""
    with reading(path), path.open(encoding="utf-8-sig", errors="surrogateescape", newline="") as file, _long_cells():
        records = _csv_records(file)
        for line, header in records:
            try:
                columns = columns_of(_cells(header))
            except InvalidRequest as error:
                yield Fault(path.name, line, error.message)
                return
            for line, cells in records:
                yield checked(path.name, line, functools.partial(_event_of_cells, columns, cells))


def _csv_records(file: Iterable[str]) -> Iterator[tuple[int, list[str] | None]]:
    """Yield each record with the line where it begins, None for one with broken quotes. Blank ones are passed over."""
    reader = csv.reader(file, strict=True)
    while True:
        line = reader.line_num + 1
        try:
            cells = next(reader)
        except StopIteration:
            return
        except csv.Error:
            yield line, None
            continue
        if any(cells):
            yield line, cells


def _cells(cells: list[str] | None) -> list[str]:
    if cells is None:
        raise InvalidRequest("is no valid CSV; check its quotes")
    try:
        "".join(cells).encode()
    except UnicodeEncodeError:
        raise InvalidRequest("is no valid UTF-8") from None
    return cells


@contextlib.contextmanager
def _long_cells() -> Iterator[None]:
    before = csv.field_size_limit(_CELL_LIMIT)
    try:
        yield
    finally:
        csv.field_size_limit(before)


def _event_of_cells(columns: Sequence[str], record: list[str] | None) -> Event:
    cells = _cells(record)
    if len(cells) != len(columns):
        raise InvalidRequest(f"has {len(cells)} cells, and the header has {len(columns)}")
    return event_of({name: _from_cell(name, cell) for name, cell in zip(columns, cells, strict=True) if cell})


def _from_cell(name: str, cell: str) -> Any:
    if name == "critical":
        return _FLAGS.get(cell.strip().lower(), cell)
    if name not in LISTS:
        return cell
    if not cell.lstrip().startswith("["):
        return [part for each in cell.split(";") if (part := each.strip())]
    try:
        return json.loads(cell, parse_constant=refuse_constant)
    except (ValueError, RecursionError):
        raise InvalidRequest(f"{name} begins with [ and is no JSON array") from None


def parquet_rows(path: Path) -> Iterator[Row]:
    """Return the rows of a Parquet file, counted from 1. A null gives nothing."""
    with reading(path):
        table = _table(path)
        header = next(table)
        try:
            columns = columns_of(header)
        except InvalidRequest as error:
            yield Fault(path.name, None, error.message)
            return
        for number, values in enumerate(table, 1):
            yield checked(path.name, number, functools.partial(_event_of_values, columns, values))


def _table(path: Path) -> Iterator[Sequence[Any]]:
    """Return the rows of a Parquet file after its column names."""
    for module, read in (("pyarrow", _arrow_table), ("polars", _polars_table)):
        with contextlib.suppress(ModuleNotFoundError):
            importlib.import_module(module)
            return read(path)
    raise InvalidRequest("reading Parquet needs pyarrow or polars; install the lab extra (pip install 'retrieval-workbench[lab]').")


def _arrow_table(path: Path) -> Iterator[Sequence[Any]]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        with pq.ParquetFile(path) as file:
            yield file.schema_arrow.names
            for batch in file.iter_batches(batch_size=_ROWS):
                yield from zip(*map(_arrow_values, batch.columns), strict=True)
    except pa.ArrowException:
        raise InvalidRequest(f"{path.name!r} is no readable Parquet file; write it again.") from None


def _arrow_values(column: Any) -> list[Any]:
    """Return a column as Python values; times are cut off below the microsecond, and what no Python value can hold is marked."""
    import pyarrow as pa

    if pa.types.is_timestamp(column.type):
        unit = "us" if column.type.unit == "ns" else column.type.unit
        column = column.cast(pa.timestamp(unit, "UTC" if column.type.tz else None), safe=False)
    try:
        values: list[Any] = column.to_pylist()
    except (ValueError, OverflowError):
        values = [_arrow_value(scalar) for scalar in column]
    return values


def _arrow_value(scalar: Any) -> Any:
    try:
        return scalar.as_py()
    except (ValueError, OverflowError):
        return _UNREADABLE


def _polars_table(path: Path) -> Iterator[Sequence[Any]]:
    import polars as pl

    try:
        frame = pl.read_parquet(path)
    except pl.exceptions.PolarsError:
        raise InvalidRequest(f"{path.name!r} is no readable Parquet file; write it again.") from None
    yield frame.columns
    yield from frame.iter_rows()


def _event_of_values(columns: Sequence[str], values: Sequence[Any]) -> Event:
    row = {name: value for name, value in zip(columns, values, strict=True) if value is not None}
    for name, value in row.items():
        if value is _UNREADABLE:
            raise InvalidRequest(f"{name} is no valid UTF-8, or a time out of range")
    return event_of(row)
