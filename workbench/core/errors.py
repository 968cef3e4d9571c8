"""The one exception tree (api.md, Errors).

A message says what was wrong and what to do. It never holds a key, a provider's words or the content of a memory.
"""

from typing import ClassVar


class WorkbenchError(Exception):
    """Base of every error that the workbench raises on purpose.

    ``code`` is a stable string for programs; ``retryable`` says whether the same call may succeed later.
    """

    code: ClassVar[str] = "workbench_error"
    retryable: bool = False

    def __init__(self, message: str, *, retryable: bool | None = None) -> None:
        super().__init__(message)
        self.message = message
        if retryable is not None:
            self.retryable = retryable

    def __str__(self) -> str:
        return self.message


class InvalidRequest(WorkbenchError, ValueError):
    """An argument, an event or a configuration breaks a stated rule."""

    code = "invalid_request"


class NotFound(WorkbenchError, KeyError):
    """There is no such event for this caller: unknown, archived, forgotten and revoked look alike (F2)."""

    code = "not_found"


class CursorInvalid(WorkbenchError):
    """A cursor can not be used; ``reason`` is one of the words of retrieval.md C8."""

    code = "cursor_invalid"

    def __init__(self, message: str, *, reason: str) -> None:
        super().__init__(message)
        self.reason = reason


class EmbeddingFailed(WorkbenchError):
    """The embedder failed or returned something that is no set of vectors; nothing was written."""

    code = "embedding_failed"
    retryable = True


class ModelMismatch(WorkbenchError):
    """The library was made by another embedding model, dimension or chunker (S4, S11)."""

    code = "model_mismatch"


class ModelUnavailable(WorkbenchError):
    """No model can be reached or none is installed; it costs no attempt (catalog.md B8)."""

    code = "model_unavailable"
    retryable = True


class Conflict(WorkbenchError):
    """Somebody else changed what this call rests on."""

    code = "conflict"
    retryable = True


class ResultRejected(WorkbenchError):
    """A consolidation result broke a rule, named by ``rule``."""

    code = "result_rejected"

    def __init__(self, message: str, *, rule: str) -> None:
        super().__init__(message)
        self.rule = rule


class StoreUnavailable(WorkbenchError):
    """The store can not be opened, read or written."""

    code = "store_unavailable"
    retryable = True


class ReadOnly(WorkbenchError):
    """A write was asked of a library opened with ``read_only=True``."""

    code = "read_only"
