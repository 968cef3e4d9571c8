"""What ``verify`` looks for in a Neo4j library: gaps, wrong lengths, orphans, bad vectors, and what a hand has changed."""

from collections import Counter
from collections.abc import Iterator

import numpy as np

from workbench.core.event import is_blank
from workbench.core.stores.base import EntityKey, Floats, Problem, Recipe, entity_keys, text_hash
from workbench.core.stores.neo4j_reading import Gathered
from workbench.core.stores.neo4j_rows import EventRow, full_key, terms_seal

_NORM_SLACK = 1e-3
Finding = tuple[str, str]


def problems(gathered: Gathered, orphans: list[str], missing: list[str]) -> list[Problem]:
    """Return everything wrong with a library.

    :param gathered: all of it.
    :param orphans: labels of nodes that belong to no event.
    :param missing: names of constraints that the database lacks.
    :return: the findings.
    """
    recipe, events = gathered.library.recipe, gathered.sorted_events()
    found = [Problem("missing_constraint", None, f"the constraint {name} is gone; open the library anew") for name in missing]
    found += [Problem("orphan_chunk" if label == "EventSource" else "orphan_terms", None, _ORPHANS[label]) for label in orphans]
    ids = Counter(row.fields["id"] for row in events)
    found += [Problem("ambiguous_id", each, "several events claim this id") for each, count in ids.items() if count > 1]
    keys = {row.fields["key"]: (row.label, full_key(row.fields)) for row in gathered.entities.values()}
    for row in events:
        found += [Problem(code, row.fields["id"], message) for code, message in _event(row, recipe, keys)]
        successor = row.fields["supersededBy"]
        if successor is not None and successor not in ids:
            found.append(Problem("missing_successor", row.fields["id"], "the event that supersedes it is gone"))
    for entity in gathered.sorted_entities():
        messages = _vector(entity.vector, recipe, "name")
        found += [Problem(code, None, f"{entity.fields['id']}: {message}") for code, message in messages]
    return found


_ORPHANS = {"EventSource": "a chunk belongs to no event", "EventTerms": "terms belong to no event"}


def _event(row: EventRow, recipe: Recipe, entities: dict[int, EntityKey]) -> list[Finding]:
    content = row.content or ""
    found = [*_text(row, content), *_vector(row.summary, recipe, "summary"), *_terms(row)]
    found += _chunks(row, content, recipe) if row.fields["chunked"] else _unchunked(row)
    if [entities.get(key) for _, key, _ in row.links] != entity_keys(row.fields["concepts"], row.fields["persons"]):
        found.append(("missing_link", "the links are not those of the event's concepts and persons"))
    if not found and not row.whole:
        found.append(("changed_by_hand", "its properties are not those that were saved; save it again"))
    return found


def _text(row: EventRow, content: str) -> Iterator[Finding]:
    if len(content) != row.fields["length"]:
        yield "wrong_length", f"the text has {len(content)} code points, and {row.fields['length']} are recorded"
    if text_hash(content) != row.fields["textHash"]:
        yield "wrong_hash", "the text is not the one whose hash is recorded"


def _terms(row: EventRow) -> Iterator[Finding]:
    if row.terms is None:
        yield "missing_terms", "the event has no terms; save it again"
    elif row.fields["seals"] and terms_seal(row.terms) != row.fields["seals"][-1]:
        yield "wrong_terms", "the terms are not those that were saved; save the event again"


def _vector(vector: Floats, recipe: Recipe, what: str) -> Iterator[Finding]:
    if vector.size != (recipe.dimension or 0):
        yield "wrong_dimension", f"the {what} vector has {vector.size} values, and the library's dimension is {recipe.dimension}"
        return
    norm = float(np.linalg.norm(vector.astype(np.float64)))
    if not abs(norm - 1) < _NORM_SLACK:
        yield "bad_vector", f"the {what} vector is not of unit length"


def _unchunked(row: EventRow) -> Iterator[Finding]:
    if row.spans:
        yield "unexpected_chunk", "the event counts as never chunked, yet has chunks"


def _chunks(row: EventRow, content: str, recipe: Recipe) -> Iterator[Finding]:
    reached = 0
    for expected, (ordinal, (start, end), vector) in enumerate(zip(row.ordinals, row.spans, row.vectors, strict=True)):
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
