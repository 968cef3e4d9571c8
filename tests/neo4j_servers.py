"""Neo4j servers for tests: one of each release for the whole run, and any number of a test's own.

A shared server belongs to the process that controls the run, and ends with it, however that ends. Workers of pytest-xdist ask that
process for it; the first test that needs it has it started.
"""

import contextlib
import os
import shutil
import threading
from collections.abc import Iterator, Mapping
from multiprocessing import AuthenticationError
from multiprocessing.connection import Client, Listener
from pathlib import Path
from typing import Any, NoReturn, Protocol

import pytest

from tools.neo4j.choice import DEFAULT, choose, given, is_required
from tools.neo4j.errors import ServerFailed, Unavailable
from tools.neo4j.server import Endpoint, Neo4jServer

INPUT = "neo4j_desk"
Answer = Endpoint | Unavailable | ServerFailed


class Desk:
    """Has a server of each release started when it is first asked for, and remembers what came of it."""

    def __init__(self) -> None:
        self._answers: dict[str, Answer] = {}
        self._servers: list[Neo4jServer] = []
        self._lock = threading.Lock()
        self._closed = False
        self._listener: Listener | None = None
        self._thread: threading.Thread | None = None
        self._key = os.urandom(16)

    def ask(self, series: str, folder: Path) -> Answer:
        """Return where the server of a release answers; it is started in this folder if it does not run yet."""
        with self._lock:
            if self._closed:
                return ServerFailed("the run is over")
            if series not in self._answers:
                self._answers[series] = self._opened(series, folder)
            return self._answers[series]

    def _opened(self, series: str, folder: Path) -> Answer:
        """Return the server that was given by its address, which stands in for the default release, or one started here."""
        try:
            endpoint = given() if series == DEFAULT else None
            if endpoint is not None:
                return endpoint
            server = Neo4jServer(choose(series), folder)
            self._servers.append(server)
            return server.start().endpoint
        except (Unavailable, ServerFailed) as error:
            return error
        except Exception as error:  # a worker waits for the answer, whatever it is
            return ServerFailed(f"{type(error).__name__}: {error}")

    def counter(self) -> tuple[str, int, str]:
        """Return where and with which key workers reach this desk; it listens from the first call on."""
        if self._listener is None:
            self._listener = Listener(("127.0.0.1", 0), authkey=self._key)
            self._thread = threading.Thread(target=self._attend, args=(self._listener,), name="neo4j desk", daemon=True)
            self._thread.start()
        host, port = self._listener.address
        return str(host), int(port), self._key.hex()

    def _attend(self, listener: Listener) -> None:
        """Answer one worker after the other until somebody asks for nothing."""
        question: Any = ""
        while question is not None:
            with contextlib.suppress(OSError, EOFError, AuthenticationError), listener.accept() as connection:
                question = connection.recv()
                if question is not None:
                    connection.send(self.ask(*question))

    def close(self) -> None:
        """Stop the servers and remove their data, also one that is still on its way; a download is not waited for."""
        self._closed = True
        self._kill()
        if self._lock.acquire(timeout=30):
            self._lock.release()
            self._leave()
        self._kill()
        for server in self._servers:
            shutil.rmtree(server.plan.folder, ignore_errors=True)

    def _kill(self) -> None:
        for server in self._servers:
            server.kill()

    def _leave(self) -> None:
        if self._listener is not None and self._thread is not None:
            with Client(self._listener.address, authkey=self._key) as connection:
                connection.send(None)
            self._thread.join(30)
            self._listener.close()


class Window:
    """The desk as a worker sees it."""

    def __init__(self, host: str, port: int, key: str) -> None:
        self._address, self._key = (host, port), bytes.fromhex(key)

    def ask(self, series: str, folder: Path) -> Answer:
        with Client(self._address, authkey=self._key) as connection:
            connection.send((series, folder))
            answer: Answer = connection.recv()
            return answer


class Asked(Protocol):
    """A desk or a window: who is asked for a shared server."""

    def ask(self, series: str, folder: Path) -> Answer: ...


ASKED = pytest.StashKey[Asked]()


def pytest_configure(config: pytest.Config) -> None:
    inputs: Mapping[str, Any] | None = getattr(config, "workerinput", None)
    config.stash[ASKED] = Desk() if inputs is None else Window(*inputs[INPUT])


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    """Tell a worker where the desk is."""
    node.workerinput[INPUT] = node.config.stash[ASKED].counter()


def pytest_unconfigure(config: pytest.Config) -> None:
    asked = config.stash.get(ASKED, None)
    if isinstance(asked, Desk):
        asked.close()


@pytest.fixture(scope="session")
def neo4j_server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Endpoint:
    """Return the run's server of the default release, without authentication unless it was given by its address."""
    return _shared(DEFAULT, request.config, tmp_path_factory)


@pytest.fixture(scope="session")
def neo4j_server_2026(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Endpoint:
    """Return the run's server of the newest release, without authentication."""
    return _shared("2026", request.config, tmp_path_factory)


@contextlib.contextmanager
def own_server(
    folder: Path,
    *,
    series: str = DEFAULT,
    password: str | None = None,
    settings: Mapping[str, str] | None = None,
) -> Iterator[Neo4jServer]:
    """Yield a running server of the test's own, to be stopped, killed and started again; it ends with the block.

    :param folder: where its data is kept, such as ``tmp_path``.
    :param series: which release: "5.26" or "2026".
    :param password: turns authentication on, for the user ``neo4j``.
    :param settings: further settings of ``neo4j.conf``.
    """
    try:
        recipe = choose(series)
    except Unavailable as reason:
        do_without(reason)
    with Neo4jServer(recipe, folder, password=password, settings=settings) as server:
        yield server


def do_without(reason: Unavailable) -> NoReturn:
    """Skip the test, or fail where servers are required."""
    if is_required():
        pytest.fail(f"{reason} (WORKBENCH_REQUIRE_NEO4J is set)", pytrace=False)
    pytest.skip(str(reason))


def _shared(series: str, config: pytest.Config, folders: pytest.TempPathFactory) -> Endpoint:
    base = folders.getbasetemp()
    run = base.parent if hasattr(config, "workerinput") else base
    answer = config.stash[ASKED].ask(series, run / f"neo4j-{series}")
    if isinstance(answer, Unavailable):
        do_without(answer)
    if isinstance(answer, ServerFailed):
        raise answer
    return answer
