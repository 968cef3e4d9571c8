"""The embedders under their public address: ``from workbench.embedders import E5Embedder``. Each loads on first use."""

from typing import TYPE_CHECKING, Any

from workbench.core import embedders as _rooms

if TYPE_CHECKING:
    from workbench.core.embedders import CachedEmbedder, E5Embedder, Embedder, HashingEmbedder, OpenAIEmbedder

__all__ = ["CachedEmbedder", "E5Embedder", "Embedder", "HashingEmbedder", "OpenAIEmbedder"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(_rooms, name)
