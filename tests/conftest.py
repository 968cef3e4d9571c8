"""Fixtures for all tests. Every library that a test opens is closed after it."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import workbench
from tests.support import Clock, OpenLibrary, TableEmbedder

STORES = ("sqlite-file", "sqlite-memory")


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


@pytest.fixture
def open_library(store_kind: str, tmp_path: Path, clock: Clock, embedder: TableEmbedder) -> Iterator[OpenLibrary]:
    """Return a function that opens a library of the store under test, with the test's clock and embedder unless told otherwise."""
    opened: list[workbench.Memory] = []

    def open_(**options: Any) -> workbench.Memory:
        address = "sqlite://" if store_kind == "sqlite-memory" else f"sqlite:///{tmp_path / 'library.db'}"
        chosen: dict[str, Any] = {"clock": clock, "embedder": embedder} | options
        memory = workbench.open_memory(address, **chosen)
        opened.append(memory)
        return memory

    yield open_
    for memory in opened:
        memory.close()


@pytest.fixture
def memory(open_library: OpenLibrary) -> workbench.Memory:
    """Return an empty library of the store under test."""
    return open_library()
