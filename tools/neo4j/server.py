"""A Neo4j server of one's own: it can be stopped, killed and started again with the same data at the same address."""

import contextlib
import os
import random
import socket
import subprocess
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import Protocol, Self

from tools.neo4j.errors import ServerFailed

USER = "neo4j"
SETTINGS = {
    "server.memory.heap.max_size": "512m",
    "server.memory.pagecache.size": "256m",
    "dbms.usage_report.enabled": "false",
    "client.allow_telemetry": "false",
    "db.logs.query.enabled": "OFF",
    "server.logs.debug.enabled": "false",
    "db.tx_log.preallocate": "false",
}
"""Settings of every server: little memory, little disk, nothing reported, nothing logged."""
PORTS = range(20_000, 30_000)
"""Below the ports that systems give to outgoing connections, one of which could else hold a port while its server is down."""


@dataclass(frozen=True)
class Endpoint:
    """Where a server answers, as whom to speak to it, and the version that it says it has."""

    address: str
    auth: tuple[str, str] | None
    version: str


@dataclass(frozen=True)
class Plan:
    """What a server is started with, each time alike."""

    folder: Path
    port: int
    password: str | None
    settings: Mapping[str, str]


class Recipe(Protocol):
    """A way to run a server of one version as a child process that ends when its standard input does."""

    @property
    def sign(self) -> str:
        """What the server prints once it answers."""

    def command(self, plan: Plan) -> list[str]:
        """Return the command that runs the server."""

    def environment(self, plan: Plan) -> dict[str, str]:
        """Return the variables that the command needs beside those of this process."""

    def kill(self, plan: Plan, process: subprocess.Popen[bytes]) -> None:
        """End the server at once, as a crash would."""


class Neo4jServer:
    """A server that ends with the process that started it, however that ends; as a context manager it runs within the block.

    :param recipe: how to run it, from :func:`tools.neo4j.choice.choose`.
    :param folder: where its data and the log of its last start are kept; made if missing.
    :param port: the port of the loopback; a free one when 0.
    :param password: turns authentication on, for the user ``neo4j``; eight characters or more.
    :param settings: further settings of ``neo4j.conf``, such as ``server.databases.default_to_read_only``.
    :param patience: how many seconds a start or a stop may take.
    """

    def __init__(
        self,
        recipe: Recipe,
        folder: Path,
        *,
        port: int = 0,
        password: str | None = None,
        settings: Mapping[str, str] | None = None,
        patience: float = 120.0,
    ) -> None:
        self.recipe, self.patience = recipe, patience
        self.plan = Plan(folder.absolute(), port or free_port(), password, SETTINGS | dict(settings or {}))
        self._process: subprocess.Popen[bytes] | None = None
        self._version: str | None = None

    @property
    def address(self) -> str:
        """Where it answers while it runs."""
        return f"bolt://127.0.0.1:{self.plan.port}"

    @property
    def auth(self) -> tuple[str, str] | None:
        """The user and password, or None without authentication."""
        return None if self.plan.password is None else (USER, self.plan.password)

    @property
    def version(self) -> str:
        """The version that the server gave when it last started; asking before that is an error."""
        if self._version is None:
            raise ServerFailed("the server has not been started; call start() first")
        return self._version

    @property
    def endpoint(self) -> Endpoint:
        """Address, user, password and version in one."""
        return Endpoint(self.address, self.auth, self.version)

    @property
    def log(self) -> Path:
        """What the server printed since it was last started."""
        return self.plan.folder / "server.log"

    @property
    def pid(self) -> int | None:
        """The id of the child process, or None when there is none."""
        return None if self._process is None else self._process.pid

    def start(self) -> Self:
        """Start the server and wait until it answers.

        :raises ServerFailed: if it ends or is not ready in time; nothing is left running then.
        """
        if self._process is not None:
            raise ServerFailed(f"the server at {self.address} is running already; call stop() or restart()")
        self.plan.folder.mkdir(parents=True, exist_ok=True)
        with self.log.open("wb") as log:
            self._process = subprocess.Popen(
                self.recipe.command(self.plan),
                cwd=self.plan.folder,
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=os.environ | self.recipe.environment(self.plan),
                start_new_session=True,  # a Ctrl-C in the terminal is for whoever uses the server
            )
        try:
            self._await_sign(self._process)
            self._version = version_at(self.address, self.auth)
        except BaseException:
            self.kill()
            raise
        return self

    def stop(self) -> None:
        """Let the server shut down cleanly; one that is not running stays so."""
        if self._process is None:
            return
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            self._process.wait(self.patience)
        except subprocess.TimeoutExpired:
            self.kill()
            raise ServerFailed(f"the server at {self.address} did not stop and was killed; {self._said()}") from None
        self._process = None

    def kill(self) -> None:
        """End the server at once, as a crash would; one that is not running stays so."""
        process, self._process = self._process, None
        if process is None:
            return
        assert process.stdin is not None
        self.recipe.kill(self.plan, process)
        process.wait(self.patience)
        process.stdin.close()

    def restart(self, *, settings: Mapping[str, str] | None = None) -> Self:
        """Stop the server, if it runs, and start it with the same data at the same address.

        :param settings: take the place of the further settings, from now on.
        """
        self.stop()
        if settings is not None:
            self.plan = replace(self.plan, settings=SETTINGS | dict(settings))
        return self.start()

    def wait(self) -> None:
        """Wait until the server ends by itself."""
        if self._process is not None:
            self._process.wait()

    def __enter__(self) -> Self:
        return self if self._process is not None else self.start()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.stop()

    def _await_sign(self, process: subprocess.Popen[bytes]) -> None:
        deadline = time.monotonic() + self.patience
        while self.recipe.sign.encode() not in self.log.read_bytes():
            if process.poll() is not None:
                raise ServerFailed(f"the server ended while it started (status {process.returncode}); {self._said()}")
            if time.monotonic() > deadline:
                raise ServerFailed(f"the server was not ready after {self.patience:g} seconds; {self._said()}")
            time.sleep(0.05)

    def _said(self, lines: int = 30) -> str:
        """Return the end of the server's log, for a message."""
        said = self.log.read_text("utf-8", errors="replace").splitlines()[-lines:]
        return f"the end of {self.log}:\n" + "\n".join(said) if said else f"{self.log} is empty"


def version_at(address: str, auth: tuple[str, str] | None) -> str:
    """Return the version of the server at an address.

    :raises ServerFailed: if none answers there.
    """
    from neo4j import GraphDatabase
    from neo4j.exceptions import DriverError, Neo4jError

    try:
        with GraphDatabase.driver(address, auth=auth) as driver:
            return driver.get_server_info().agent.removeprefix("Neo4j/")
    except (DriverError, Neo4jError, ValueError) as error:
        raise ServerFailed(f"no Neo4j server can be used at {address} ({type(error).__name__})") from error


def free_port() -> int:
    """Return a port of the loopback on which nobody listens, drawn at random so that two processes hardly draw the same."""
    for port in random.SystemRandom().sample(PORTS, 100):
        with contextlib.suppress(OSError), socket.create_server(("127.0.0.1", port)):
            return port
    raise ServerFailed(f"there is no free port between {PORTS.start} and {PORTS.stop}")


def is_taken(port: int) -> bool:
    """Return whether somebody listens on a port of the loopback."""
    try:
        with socket.create_server(("127.0.0.1", port)):
            return False
    except OSError:
        return True
