"""A research workbench for agent memory: remember events, find them again with verbatim evidence, follow up."""

from workbench import embedders
from workbench._version import __version__
from workbench.core.config import CatalogConfig, Config, RetrievalConfig, SessionConfig
from workbench.core.embedders import Embedder
from workbench.core.errors import (
    Conflict,
    CursorInvalid,
    EmbeddingFailed,
    InvalidRequest,
    ModelMismatch,
    ModelUnavailable,
    NotFound,
    ReadOnly,
    ResultRejected,
    StoreUnavailable,
    WorkbenchError,
)
from workbench.core.event import Event, StoredEvent
from workbench.core.memory import Memory, open_memory
from workbench.core.results import Reading, SearchResult
from workbench.core.retrieval.explanation import Explanation
from workbench.core.stores.base import LibraryStats, Problem
from workbench.core.writing import ReembedReport, SaveReport

__all__ = [
    "CatalogConfig",
    "Config",
    "Conflict",
    "CursorInvalid",
    "Embedder",
    "EmbeddingFailed",
    "Event",
    "Explanation",
    "InvalidRequest",
    "LibraryStats",
    "Memory",
    "ModelMismatch",
    "ModelUnavailable",
    "NotFound",
    "Problem",
    "ReadOnly",
    "Reading",
    "ReembedReport",
    "ResultRejected",
    "RetrievalConfig",
    "SaveReport",
    "SearchResult",
    "SessionConfig",
    "StoreUnavailable",
    "StoredEvent",
    "WorkbenchError",
    "__version__",
    "embedders",
    "open_memory",
]
