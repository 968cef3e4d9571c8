"""The notebooks are executed, deterministic, and a check that can fail."""

import re
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest

from workbench import demo

ROOT = Path(__file__).parent.parent.parent
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))
UNSTABLE = re.compile(r"0x[0-9a-f]{6,}|model_id|%\||/home/|/root/|/tmp/|/work/|\d+(\.\d+)? ?m?s\b|it/s")


def faults(notebook: nbformat.NotebookNode) -> list[str]:
    """Return what keeps a notebook from being a regression test."""
    found, code = [], [cell for cell in notebook.cells if cell.cell_type == "code" and cell.source.strip()]
    if [cell.execution_count for cell in code] != list(range(1, len(code) + 1)):
        found.append("cells are not executed in order from 1")
    if sum(bool(cell.outputs) for cell in code) < len(code) / 2:
        found.append("outputs are cleared")
    for cell in code:
        for output in cell.outputs:
            if output.output_type == "error" or output.get("name") == "stderr":
                found.append("a cell ends in an error or writes to stderr")
            if UNSTABLE.search(str(output.get("text", "")) + str(output.get("data", ""))):
                found.append("an output changes by itself")
        if re.search(r"NBVAL|nbval-", cell.source) or set(cell.metadata.get("tags", [])):
            found.append("a cell is kept from validation")
    return found


def read(path: Path) -> nbformat.NotebookNode:
    notebook: nbformat.NotebookNode = nbformat.reads(path.read_text("utf-8"), as_version=4)  # type: ignore[no-untyped-call]
    return notebook


def run_nbval(notebook: Path) -> subprocess.CompletedProcess[str]:
    sanitizer = ROOT / "notebooks" / "sanitize.cfg"
    options = ["--nbval", "--nbval-sanitize-with", str(sanitizer), "-p", "no:cacheprovider", "-q", "--rootdir", str(notebook.parent)]
    command = [sys.executable, "-m", "pytest", "-c", str(notebook.parent / "none.ini"), *options, str(notebook)]
    (notebook.parent / "none.ini").write_text("[pytest]\n")
    return subprocess.run(command, capture_output=True, text=True, check=False, cwd=notebook.parent)


def test_there_are_notebooks() -> None:
    assert NOTEBOOKS


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_is_executed_and_stable(path: Path) -> None:
    assert faults(read(path)) == []


def test_a_notebook_with_cleared_outputs_is_rejected() -> None:
    notebook = read(NOTEBOOKS[0])
    for cell in notebook.cells:
        if cell.cell_type == "code":
            cell.outputs, cell.execution_count = [], None
    assert faults(notebook) == ["cells are not executed in order from 1", "outputs are cleared"]


PLANTED = {
    "a rank": (r"(gauge_ch01_e01 +)1 ", r"\g<1>2 "),
    "a digit of a score": (r"(0\.\d{5})\d( = 0\.\d{6})", r"\1x\2"),
    "a title": (r"过江到站(  \(2008)", r"过江到岸\1"),
}


@pytest.mark.slow
@pytest.mark.parametrize("what", PLANTED)
def test_a_planted_change_makes_the_notebook_fail(what: str, tmp_path: Path) -> None:
    text = (ROOT / "notebooks" / "01_quickstart.ipynb").read_text("utf-8")
    copy = tmp_path / "01_quickstart.ipynb"
    copy.write_text(text, "utf-8")
    assert run_nbval(copy).returncode == 0
    changed, count = re.subn(*PLANTED[what], text, count=1)
    assert count == 1
    copy.write_text(changed, "utf-8")
    assert run_nbval(copy).returncode == 1


def test_the_quickstart_saves_the_note_whose_vectors_are_shipped() -> None:
    source = "".join(cell.source for cell in read(ROOT / "notebooks" / "01_quickstart.ipynb").cells)
    assert repr(demo.OWN_EVENT.content)[1:-1] in source
    assert demo.OWN_EVENT.summary in source


def test_nothing_is_sanitised() -> None:
    """A pattern that is ever added needs its own test that a changed rank, score or title still fails."""
    lines = (ROOT / "notebooks" / "sanitize.cfg").read_text("utf-8").splitlines()
    assert all(line.startswith("#") or not line.strip() for line in lines)
