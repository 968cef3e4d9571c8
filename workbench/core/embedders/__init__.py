"""Embedders: bundled offline E5, OpenAI-compatible endpoints, hashing, and a cache on disk. Each loads on first use."""

from typing import TYPE_CHECKING, Any

from workbench.core.embedders.base import Embedder

if TYPE_CHECKING:
    from workbench.core.embedders.cached import CachedEmbedder
    from workbench.core.embedders.e5 import E5Embedder
    from workbench.core.embedders.hashing import HashingEmbedder
    from workbench.core.embedders.openai import OpenAIEmbedder

_ROOMS = {"CachedEmbedder": "cached", "E5Embedder": "e5", "HashingEmbedder": "hashing", "OpenAIEmbedder": "openai"}

__all__ = ["CachedEmbedder", "E5Embedder", "Embedder", "HashingEmbedder", "OpenAIEmbedder"]


def __getattr__(name: str) -> Any:
    if name not in _ROOMS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f"{__name__}.{_ROOMS[name]}"), name)
