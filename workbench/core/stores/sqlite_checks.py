"""What ``verify`` looks for in a SQLite library: gaps, wrong lengths, orphans, bad vectors."""

import json
import sqlite3
from collections.abc import Iterator

import numpy as np

from workbench.core.event import is_blank
from workbench.core.stores.base import Problem, Recipe, entity_keys, text_hash

_NORM_SLACK = 1e-3

_ROWS = (
    ("orphan_chunk", "a chunk belongs to no event", "SELECT DISTINCT event FROM chunk WHERE event NOT IN (SELECT key FROM event)"),
    ("orphan_link", "a link belongs to no event", "SELECT DISTINCT event FROM mention WHERE event NOT IN (SELECT key FROM event)"),
    (
        "orphan_link",
        "a link leads to no entity",
        "SELECT DISTINCT entity FROM mention WHERE entity NOT IN (SELECT key FROM entity)",
    ),
    ("orphan_terms", "terms belong to no event", "SELECT event FROM event_terms WHERE event NOT IN (SELECT key FROM event)"),
)


def problems(connection: sqlite3.Connection, library: int, recipe: Recipe) -> list[Problem]:
    """Return everything wrong with a library's rows."""
    found = [Problem("damaged_file", None, "the file's pages are damaged; restore it") for _ in _damage(connection)]
    for code, message, sql in _ROWS:
        found += [Problem(code, None, message) for _ in connection.execute(sql)]
    events = (
        "SELECT key, id, content, length, text_hash, chunked, summary_vector, concepts, persons FROM event "
        "WHERE library = ? ORDER BY key"
    )
    for key, event_id, content, length, digest, chunked, vector, *names in connection.execute(events, (library,)):
        messages = [*_text(content, length, digest), *_vector(vector, recipe, "summary")]
        messages += _chunks(connection, key, content, recipe) if chunked else _unchunked(connection, key)
        messages += _links(connection, key, *map(json.loads, names))
        found += [Problem(code, event_id, message) for code, message in messages]
        if connection.execute("SELECT 1 FROM event_terms WHERE event = ?", (key,)).fetchone() is None:
            found.append(Problem("missing_terms", event_id, "the event has no terms; save it again"))
    gone = (
        "SELECT id FROM event WHERE library = ?1 AND superseded_by IS NOT NULL "
        "AND superseded_by NOT IN (SELECT id FROM event WHERE library = ?1)"
    )
    found += [
        Problem("missing_successor", each, "the event that supersedes it is gone")
        for (each,) in connection.execute(gone, (library,))
    ]
    for name, vector in connection.execute("SELECT id, vector FROM entity WHERE library = ?", (library,)):
        found += [Problem(code, None, f"{name}: {message}") for code, message in _vector(vector, recipe, "name")]
    return found


def _damage(connection: sqlite3.Connection) -> Iterator[str]:
    for (line,) in connection.execute("PRAGMA quick_check"):
        if line != "ok":
            yield line


def _text(content: str, length: int, digest: bytes) -> Iterator[tuple[str, str]]:
    if len(content) != length:
        yield "wrong_length", f"the text has {len(content)} code points, and {length} are recorded"
    if text_hash(content) != digest:
        yield "wrong_hash", "the text is not the one whose hash is recorded"


def _links(connection: sqlite3.Connection, key: int, concepts: list[str], persons: list[str]) -> Iterator[tuple[str, str]]:
    linked = "SELECT label, name_key FROM mention JOIN entity ON entity.key = mention.entity WHERE event = ? ORDER BY position"
    if connection.execute(linked, (key,)).fetchall() != entity_keys(concepts, persons):
        yield "missing_link", "the links are not those of the event's concepts and persons"


def _vector(blob: bytes, recipe: Recipe, what: str) -> Iterator[tuple[str, str]]:
    if len(blob) != 4 * (recipe.dimension or 0):
        yield "wrong_dimension", f"the {what} vector has {len(blob) // 4} values, and the library's dimension is {recipe.dimension}"
        return
    norm = float(np.linalg.norm(np.frombuffer(blob, "<f4").astype(np.float64)))
    if not abs(norm - 1) < _NORM_SLACK:
        yield "bad_vector", f"the {what} vector is not of unit length"


def _unchunked(connection: sqlite3.Connection, key: int) -> Iterator[tuple[str, str]]:
    if connection.execute("SELECT 1 FROM chunk WHERE event = ?", (key,)).fetchone():
        yield "unexpected_chunk", "the event counts as never chunked, yet has chunks"


def _chunks(connection: sqlite3.Connection, key: int, content: str, recipe: Recipe) -> Iterator[tuple[str, str]]:
    reached = 0
    rows = connection.execute('SELECT ordinal, start, "end", vector FROM chunk WHERE event = ? ORDER BY ordinal', (key,))
    for expected, (ordinal, start, end, vector) in enumerate(rows):
        if ordinal != expected:
            yield "missing_chunk", f"chunk {expected} is missing"
            return
        if not 0 <= start < end <= len(content) or not is_blank(content[reached:start]):
            yield "gap", f"chunk {ordinal} leaves text uncovered or lies outside it"
        reached = max(reached, end)
        if vector is None and not is_blank(content[start:end]):
            yield "missing_vector", f"chunk {ordinal} has no vector"
        elif vector is not None:
            yield from _vector(vector, recipe, f"chunk {ordinal}")
    if not is_blank(content[reached:]):
        yield "gap", "the end of the text has no chunk"
