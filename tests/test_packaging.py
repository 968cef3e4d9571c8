"""The package as a stranger gets it: light to import, whole as a wheel."""

import json
import os
import subprocess
import sys
import venv
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
SMOKE = """
import json
import workbench
from workbench import embedders, fixtures

with workbench.open_memory("sqlite:///smoke.db", embedder=fixtures.embedder()) as memory:
    assert not memory.save_many(fixtures.load_events()).failed
    answer = memory.search("谁半夜敲钟通知洪水要来？", explain=True)
    reading = memory.read(answer.results[0].id, limit=10)
    tools = memory.tools.call("memory_database_search", {"query_text": "谁半夜敲钟通知洪水要来？", "reset_seen": True})
    assert memory.verify() == []
print(json.dumps([len(answer.results), len(reading.text), len(tools["results"]), len(answer.explanation.rows) > 4]))
"""


def run(code: str, python: str = sys.executable, cwd: Path | None = None) -> str:
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(
        [python, "-W", "error", "-c", code], capture_output=True, text=True, cwd=cwd, env=environment, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_importing_loads_numpy_and_the_standard_library_only() -> None:
    """Driver, HTTP client, validation and frames come when they are first used."""
    code = """
import sys
before = set(sys.modules)
import workbench
names = {name.split(".")[0] for name in set(sys.modules) - before}
print(sorted(name for name in names if name not in sys.stdlib_module_names and not name.startswith("_")))
"""
    assert run(code).strip() == "['numpy', 'workbench']"


def test_every_exported_name_is_there() -> None:
    code = "import workbench; print(all(hasattr(workbench, name) for name in workbench.__all__))"
    assert run(code).strip() == "True"


def test_a_search_needs_no_frame_library() -> None:
    code = (
        SMOKE.replace('"sqlite:///smoke.db"', '"sqlite://"')
        + "import sys; print(sorted({'pandas', 'polars', 'matplotlib', 'ipywidgets'} & set(sys.modules)))"
    )
    assert run(code).splitlines() == ["[4, 10, 4, true]", "[]"]


@pytest.mark.slow
def test_a_wheel_installs_without_extras_and_works(tmp_path: Path) -> None:
    """Built from the tree, installed into an empty environment; the smoke run saves, searches, reads and calls a tool."""
    build = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(tmp_path), str(ROOT)]
    subprocess.run(build, check=True, capture_output=True)
    (wheel,) = tmp_path.glob("*.whl")
    names = zipfile.ZipFile(wheel).namelist()
    assert "workbench/py.typed" in names
    assert "workbench/_fixtures/vectors.db" in names
    assert not [name for name in names if name.startswith(("tests/", "benchmarks/", "notebooks/"))]
    venv.create(tmp_path / "empty", with_pip=True)
    python = str(tmp_path / "empty" / "bin" / "python")
    subprocess.run([python, "-m", "pip", "install", "--quiet", str(wheel)], check=True, capture_output=True)
    assert json.loads(run(SMOKE, python, tmp_path)) == [4, 10, 4, True]
    command = str(tmp_path / "empty" / "bin" / "workbench")
    listed = subprocess.run(
        [command, "stats", "--library", "sqlite:///smoke.db"], capture_output=True, text=True, cwd=tmp_path, check=True
    )
    assert "107" in listed.stdout
