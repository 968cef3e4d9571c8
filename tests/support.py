"""What many tests use: a clock to move by hand, embedders with chosen vectors, and short ways to make events."""

import hashlib
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta

import numpy as np
from numpy.typing import NDArray

from workbench import Event, Memory

START = datetime(2026, 3, 1, 9, 0, tzinfo=UTC)
OpenLibrary = Callable[..., Memory]
"""Opens the test's library; opened again without ``fresh`` it is the same one where the store lasts."""


class Clock:
    """A clock that stands still until it is moved (H5)."""

    def __init__(self, now: datetime = START) -> None:
        self.now = now

    def __call__(self) -> datetime:
        return self.now

    def forward(self, **parts: float) -> None:
        self.now += timedelta(**parts)


class TableEmbedder:
    """Gives each text the vector of a table, and any other text a random direction of its own; counts and records calls."""

    def __init__(self, table: Mapping[str, Sequence[float]] | None = None, *, dimension: int = 16, model: str = "table") -> None:
        self.table, self.dimension, self.model = dict(table or {}), dimension, model
        self.documents: list[list[str]] = []
        self.queries: list[str] = []
        self._lock = threading.Lock()

    def vector(self, text: str) -> NDArray[np.float32]:
        if text in self.table:
            return np.array(self.table[text], np.float32)
        seed = int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little")
        return np.random.default_rng(seed).standard_normal(self.dimension).astype(np.float32)

    def embed_documents(self, texts: Sequence[str]) -> NDArray[np.float32]:
        with self._lock:
            self.documents.append(list(texts))
        return np.array([self.vector(text) for text in texts], np.float32).reshape(len(texts), self.dimension)

    def embed_query(self, text: str) -> NDArray[np.float32]:
        with self._lock:
            self.queries.append(text)
        return self.vector(text)


def numbered(count: int, **fields: object) -> list[Event]:
    """Return events e001, e002, … with their own summaries and texts, an hour apart, oldest first."""
    return [
        Event(
            **{  # type: ignore[arg-type]
                "id": f"e{number:03}",
                "summary": f"summary {number}",
                "content": f"content number {number}",
                "written_at": START - timedelta(days=30) + timedelta(hours=number),
            }
            | fields
        )
        for number in range(1, count + 1)
    ]


def ids(results: Iterable[object]) -> list[str]:
    """Return the ids of results, in order."""
    return [result.id for result in results]  # type: ignore[attr-defined]
