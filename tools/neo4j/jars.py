"""Neo4j without installing it: Maven fetches its jars, and a small launcher runs them."""

import fcntl
import hashlib
import os
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tools.neo4j.errors import ServerFailed, Unavailable
from tools.neo4j.java import Java, find_java
from tools.neo4j.server import Plan

SOURCES = Path(__file__).parent
CACHE = SOURCES.parents[1] / ".cache" / "neo4j"
COMPILER = "org.eclipse.jdt.internal.compiler.batch.Main"
OPENED = ("java.nio", "java.io", "sun.nio.ch", "java.lang")
"""Packages of Java that Neo4j looks into, and that Java keeps closed otherwise."""
PATIENCE = 900.0
"""Seconds that a download may take."""


@dataclass(frozen=True)
class Jars:
    """Runs the jars of a directory with a Java."""

    java: Java
    directory: Path
    sign: str = "READY bolt://"

    def command(self, plan: Plan) -> list[str]:
        """Return the launcher's command."""
        settings = [f"{name}={value}" for name, value in plan.settings.items()]
        paths = f"{self.directory}{os.pathsep}{self.directory / '*'}"
        run = [str(self.java.executable), *_flags(self.java), f"-Xmx{plan.settings['server.memory.heap.max_size']}", "-cp", paths]
        return [*run, "Launcher", str(plan.folder), str(plan.port), *settings]

    def environment(self, plan: Plan) -> dict[str, str]:
        """Return the password, which no list of processes shows here."""
        return {} if plan.password is None else {"WORKBENCH_LAUNCHER_PASSWORD": plan.password}

    def kill(self, plan: Plan, process: subprocess.Popen[bytes]) -> None:  # noqa: ARG002
        """Kill the Java."""
        process.kill()


def jars_of(version: str, minimum: int) -> Jars:
    """Return a way to run a version that needs Java ``minimum`` or newer; its jars are fetched if they are not there yet.

    :raises Unavailable: if there is no such Java, no Maven, or the jars can not be fetched.
    """
    java = find_java(minimum)
    if java is None:
        raise Unavailable(f"there is no Java {minimum} or newer")
    return Jars(java, fetched(version, java))


def fetched(version: str, java: Java, cache: Path = CACHE) -> Path:
    """Return the directory that holds a version's jars and the compiled launcher, and fill it first if it is not there.

    A directory is moved to its place when it is whole. Another process that wants the same waits for this one.

    :raises Unavailable: if the jars can not be fetched.
    """
    place = cache / f"{version}-{_digest(SOURCES / 'pom.xml', SOURCES / 'Launcher.java')}"
    if not place.exists():
        with _locked(cache / "lock"):
            if not place.exists():
                partial = cache / "partial"
                shutil.rmtree(partial, ignore_errors=True)
                _copy_jars(version, java, partial)
                _compile(java, partial)
                partial.rename(place)
    return place


def _copy_jars(version: str, java: Java, directory: Path) -> None:
    maven = shutil.which("mvn")
    if maven is None:
        raise Unavailable("there is no mvn (Maven)")
    arguments = [f"-Dneo4j.version={version}", f"-DoutputDirectory={directory}", "dependency:copy-dependencies"]
    command = [maven, "--batch-mode", "--quiet", "--file", str(SOURCES / "pom.xml"), *arguments]
    try:
        subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            env=os.environ | {"JAVA_HOME": str(java.home)},
            timeout=PATIENCE,
            check=True,
        )
    except subprocess.TimeoutExpired:
        raise Unavailable(f"mvn did not fetch Neo4j {version} within {PATIENCE:g} seconds") from None
    except subprocess.CalledProcessError as error:
        raise Unavailable(f"mvn can not fetch Neo4j {version} ({_complaint(error.output)})") from None


def _complaint(output: bytes) -> str:
    """Return the first error that Maven reports, shortened to a line of a message."""
    lines = output.decode("utf-8", errors="replace").splitlines()
    return next((line for line in lines if "[ERROR]" in line), "without a word").strip()[:300]


def _compile(java: Java, directory: Path) -> None:
    command = [str(java.executable), "-cp", str(directory / "*"), COMPILER, "-17", "-d", str(directory)]
    done = subprocess.run([*command, str(SOURCES / "Launcher.java")], capture_output=True, text=True, check=False)
    if done.returncode:
        raise ServerFailed(f"the launcher does not compile:\n{done.stdout}{done.stderr}")


def _flags(java: Java) -> Sequence[str]:
    opened = [f"--add-opens=java.base/{package}=ALL-UNNAMED" for package in OPENED]
    if java.version >= 24:  # which warns of what Neo4j's libraries do
        opened += ["--enable-native-access=ALL-UNNAMED", "--sun-misc-unsafe-memory-access=allow"]
    return ["-XX:+UseSerialGC", "-Xms128m", *opened]


def _digest(*files: Path) -> str:
    return hashlib.blake2b(b"".join(file.read_bytes() for file in files), digest_size=4).hexdigest()


@contextmanager
def _locked(file: Path) -> Iterator[None]:
    """Hold a lock that no other process has, and that the system takes back should this one be killed."""
    file.parent.mkdir(parents=True, exist_ok=True)
    with file.open("wb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
