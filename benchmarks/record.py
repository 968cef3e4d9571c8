"""The record that every benchmark stores beside its figures: what ran, on what, with which constants."""

import dataclasses
import json
import platform
import subprocess
import sys
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

import workbench

RESULTS = Path(__file__).parent / "results"


def run_record(**what: Any) -> dict[str, Any]:
    """Return versions, platform, constants in force, git state and time, with whatever the benchmark adds."""
    return {
        "workbench": workbench.__version__,
        "python": platform.python_version(),
        "numpy": metadata.version("numpy"),
        "platform": f"{platform.system()} {platform.machine()}",
        "cores": _cores(),
        "git": _git(),
        "at": datetime.now(UTC).isoformat(timespec="seconds"),
        "command": " ".join(["python", "-m", f"benchmarks.{Path(sys.argv[0]).stem}", *_without_paths(sys.argv[1:])]),
        "config": dataclasses.asdict(workbench.Config()),
        **what,
    }


def write_result(name: str, result: dict[str, Any]) -> None:
    """Write a result for people and tests to read."""
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / f"{name}.json").write_text(json.dumps(result, indent=1, ensure_ascii=False) + "\n", "utf-8")


def _without_paths(arguments: list[str]) -> list[str]:
    return [Path(each).name if "/" in each else each for each in arguments]


def _cores() -> int:
    import os

    return os.cpu_count() or 1


def _git() -> str:
    answer = subprocess.run(["git", "describe", "--always", "--dirty"], capture_output=True, text=True, check=False)
    return answer.stdout.strip() or "unknown"
