"""The figures that are published are the figures that were measured."""

import re

import pytest

from benchmarks import report


def test_the_tables_are_what_the_results_say() -> None:
    text = report.README.read_text("utf-8")
    assert report.written(text) == text, "run `python -m benchmarks.report`"


@pytest.mark.parametrize("name", report.TABLES)
def test_every_table_is_published(name: str) -> None:
    text = report.README.read_text("utf-8")
    assert re.search(rf"<!-- begin {name} -->\n\|", text)


@pytest.mark.parametrize("name", ["quality", "latency", "peers", "neo4j"])
def test_every_result_has_its_record(name: str) -> None:
    """Versions, platform, constants in force, state of the code, time and command: enough to repeat it."""
    record = report.result(name)["record"]
    assert {"workbench", "python", "numpy", "platform", "cores", "git", "at", "command", "config"} <= set(record)
    assert record["command"].startswith("python -m benchmarks.")
    assert "/" not in record["command"].replace("python -m", "")
