"""Every constant of the requirements, as frozen dataclasses with the specs' names (api.md, Opening a library)."""

import math
from dataclasses import dataclass, field, fields

from workbench.core.errors import InvalidRequest


def _whole(owner: object, name: str, *, least: int = 1) -> None:
    value = getattr(owner, name)
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise InvalidRequest(f"{type(owner).__name__}.{name} is {value!r}; give a whole number of at least {least}.")


def _real(owner: object, name: str, *, least: float = 0.0, most: float = math.inf) -> None:
    value = getattr(owner, name)
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if not number or not math.isfinite(value) or not least <= value <= most:
        bounds = f"between {least:g} and {most:g}" if math.isfinite(most) else f"of at least {least:g}"
        raise InvalidRequest(f"{type(owner).__name__}.{name} is {value!r}; give a finite number {bounds}.")


@dataclass(frozen=True, slots=True)
class RetrievalConfig:
    """Constants of retrieval.md sections 2, 4, 5 and 7. Lengths are code points.

    :raises InvalidRequest: if a value is out of its range.
    """

    chunk_size: int = 800
    chunk_overlap: int = 120
    candidates: int = 40
    rrf_k: int = 60
    coverage_weight: float = 8 / 61
    mmr_lambda: float = 0.85
    limit: int = 4
    max_limit: int = 8
    question_limit: int = 2000
    excerpt_length: int = 120
    excerpt_window: int = 32_000
    read_limit: int = 10_000
    read_default: int = 1_600

    def __post_init__(self) -> None:
        for each in fields(self):
            if each.name not in ("chunk_overlap", "rrf_k", "coverage_weight", "mmr_lambda"):
                _whole(self, each.name)
        _whole(self, "chunk_overlap", least=0)
        _whole(self, "rrf_k", least=0)
        _real(self, "coverage_weight")
        _real(self, "mmr_lambda", most=1.0)
        if self.chunk_overlap >= self.chunk_size:
            raise InvalidRequest(
                f"RetrievalConfig.chunk_overlap is {self.chunk_overlap}; it must be below chunk_size ({self.chunk_size})."
            )
        if self.limit > self.max_limit:
            raise InvalidRequest(f"RetrievalConfig.limit is {self.limit}; it must not exceed max_limit ({self.max_limit}).")
        if self.read_default > self.read_limit:
            raise InvalidRequest(
                f"RetrievalConfig.read_default is {self.read_default}; it must not exceed read_limit ({self.read_limit})."
            )


@dataclass(frozen=True, slots=True)
class SessionConfig:
    """Constants of retrieval.md section 6 and of the cursors (C4, C5).

    :raises InvalidRequest: if a value is out of its range.
    """

    ttl_seconds: float = 900
    max_ids: int = 640
    max_excerpts: int = 640
    max_sessions: int = 32
    max_cursors: int = 32
    chain_limit: int = 20

    def __post_init__(self) -> None:
        _real(self, "ttl_seconds")
        for name in ("max_ids", "max_excerpts", "max_sessions", "max_cursors", "chain_limit"):
            _whole(self, name)


@dataclass(frozen=True, slots=True)
class CatalogConfig:
    """Constants of catalog.md. Lengths are code points, budgets are estimated tokens.

    :raises InvalidRequest: if a value is out of its range.
    """

    enabled: bool = True
    batch_size: int = 12
    candidate_limit: int = 12
    title_limit: int = 120
    description_limit: int = 400
    section_title_limit: int = 80
    paragraph_limit: int = 600
    paragraphs_per_chapter: int = 8
    sources_per_paragraph: int = 12
    input_tokens: int = 20_000
    call_timeout_seconds: float = 120
    attempts: int = 3
    retry_waits_seconds: tuple[float, ...] = (30, 60)
    history_batches: int = 2
    history_window_seconds: float = 600
    directory_tokens: int = 400
    expand_tokens: int = 2_400
    recall_tokens: int = 900
    page_size: int = 9

    def __post_init__(self) -> None:
        for each in fields(self):
            if each.name not in ("enabled", "call_timeout_seconds", "retry_waits_seconds", "history_window_seconds"):
                _whole(self, each.name)
        _real(self, "call_timeout_seconds")
        _real(self, "history_window_seconds")
        if len(self.retry_waits_seconds) < self.attempts - 1 or any(
            not math.isfinite(wait) or wait < 0 for wait in self.retry_waits_seconds
        ):
            raise InvalidRequest(
                f"CatalogConfig.retry_waits_seconds is {self.retry_waits_seconds!r}; give a finite wait for each of the "
                f"{self.attempts - 1} retries."
            )


@dataclass(frozen=True, slots=True)
class Config:
    """All constants in force. A run record prints them."""

    retrieval: RetrievalConfig = field(default_factory=RetrievalConfig)
    session: SessionConfig = field(default_factory=SessionConfig)
    catalog: CatalogConfig = field(default_factory=CatalogConfig)

    def __post_init__(self) -> None:
        for name, kind in (("retrieval", RetrievalConfig), ("session", SessionConfig), ("catalog", CatalogConfig)):
            if not isinstance(getattr(self, name), kind):
                raise InvalidRequest(f"Config.{name} must be a {kind.__name__}.")
