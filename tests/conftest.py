"""Fixtures for all tests. Every library that a test opens is closed after it."""

import hashlib
import secrets
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import workbench
from tests.support import Clock, OpenLibrary, TableEmbedder
from tools.neo4j.server import Endpoint
from workbench import InvalidRequest
from workbench.core.event import ID_LIMIT, check_id

pytest_plugins = ["tests.neo4j_servers"]

SERVERS = {"neo4j": "neo4j_server", "neo4j-2026": "neo4j_server_2026"}
"""Stores on a server, with the fixtures that start it; each test has namespaces of its own there."""
STORES = ("sqlite-file", "sqlite-memory", *SERVERS)
OF_A_FILE = ("test_ambiguous_id",)
"""Tests that damage a SQLite file by hand; tests/core/test_neo4j_store.py does the like to a database."""


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    def fits(item: pytest.Item) -> bool:
        kind = item.callspec.params.get("store_kind") if isinstance(item, pytest.Function) and hasattr(item, "callspec") else None
        return kind not in SERVERS or getattr(item, "originalname", None) not in OF_A_FILE

    left_out = [item for item in items if not fits(item)]
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if fits(item)]


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def embedder() -> TableEmbedder:
    return TableEmbedder()


@pytest.fixture(params=STORES)
def store_kind(request: pytest.FixtureRequest) -> str:
    """Return each kind of store in turn: the conformance suite runs on all."""
    kind: str = request.param
    return kind


def own_namespace(prefix: str, name: object) -> object:
    """Return a namespace that no other test has; what is no name stays what it is."""
    try:
        check_id(name)
    except InvalidRequest:
        return name
    own = f"{prefix} {name}"
    return own if len(own) <= ID_LIMIT else f"{prefix} {hashlib.blake2b(own.encode()).hexdigest()}"


@pytest.fixture
def library_options(store_kind: str, tmp_path: Path, request: pytest.FixtureRequest) -> Callable[[dict[str, Any]], dict[str, Any]]:
    """Return a function that adds the address of the store under test to the options of ``open_memory``."""
    if store_kind in SERVERS:
        server: Endpoint = request.getfixturevalue(SERVERS[store_kind])
        prefix = f"test-{secrets.token_hex(6)}"

        def on_server(options: dict[str, Any]) -> dict[str, Any]:
            namespace = own_namespace(prefix, options.get("namespace", "default"))
            return options | {"address": server.address, "auth": server.auth, "namespace": namespace}

        return on_server
    address = "sqlite://" if store_kind == "sqlite-memory" else f"sqlite:///{tmp_path / 'library.db'}"
    return lambda options: options | {"address": address}


@pytest.fixture
def open_library(
    library_options: Callable[[dict[str, Any]], dict[str, Any]], clock: Clock, embedder: TableEmbedder
) -> Iterator[OpenLibrary]:
    """Return a function that opens a library of the store under test, with the test's clock and embedder unless told otherwise."""
    opened: list[workbench.Memory] = []

    def open_(**options: Any) -> workbench.Memory:
        memory = workbench.open_memory(**library_options({"clock": clock, "embedder": embedder} | options))
        opened.append(memory)
        return memory

    yield open_
    for memory in opened:
        memory.close()


@pytest.fixture
def memory(open_library: OpenLibrary) -> workbench.Memory:
    """Return an empty library of the store under test."""
    return open_library()
