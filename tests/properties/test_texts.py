"""Properties of texts: whatever Unicode a host brings is kept, cut and read back exactly (retrieval.md S1, S7, F1, S11)."""

import itertools
import json
import unicodedata
from itertools import pairwise

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from tests.children import spans_in
from tests.support import START, OpenLibrary, TableEmbedder, ids
from workbench import Config, Event, InvalidRequest, Memory, RetrievalConfig

_numbers = itertools.count()

TRAPS = (
    "\ufeff",
    "\r",
    "\r\n",
    "\n",
    "\u200b",
    "\u200d",
    "\u200f",
    "\u0301",
    "é",
    "e\u0301",
    "가",
    unicodedata.normalize("NFD", "각"),
    "\U0001f469\u200d\U0001f469\u200d\U0001f467\u200d\U0001f466",
    "🏳️\u200d🌈",
    "𠮷",
    "\ufffe",
    "\uffff",
    "\U0010ffff",
    "\ufdd0",
    "\ue000",
    "\ufffd",
    "\x01",
    "\x85",
    "\u2028",
    "ﬁ",
    "ß",
    "İ",
    "中文",
    "'",
    '"',
    "%",
    "\\u0000",
)
CHARACTERS = st.characters(codec="utf-8", exclude_characters="\0")
TEXTS = st.lists(st.one_of(st.sampled_from(TRAPS), st.text(CHARACTERS, max_size=12)), max_size=30).map("".join)
LONG_TEXTS = st.builds(lambda text, times: text * times, TEXTS.filter(bool), st.integers(1, 60)).map(lambda text: text[:4000])
VISIBLE = TEXTS.map(lambda text: f"{text}x{text}")
NAMES = st.lists(VISIBLE, max_size=4).map(tuple)
QUICK = settings(
    max_examples=25,
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
"""The library outlives the examples on purpose: each has an id of its own, and they pile up as in life."""


def new_id() -> str:
    return f"id {next(_numbers)}"


def read_in_pages(memory: Memory, event_id: str, limit: int) -> str:
    """Read a whole text page by page and assert that ranges, total and next agree (F1)."""
    text, start = "", 0
    while True:
        page = memory.read(event_id, start=start, limit=limit)
        assert page.range == (start, start + len(page.text))
        assert len(page.text) <= limit
        text += page.text
        if page.next is None:
            assert len(text) == page.content_length
            return text
        assert page.next == page.range[1] < page.content_length
        start = page.next


@QUICK
@given(title=TEXTS, summary=VISIBLE, content=LONG_TEXTS, concepts=NAMES, persons=NAMES, tags=NAMES, padding=TEXTS)
@example(title="\ufeff", summary="x", content="\ufeff\r\n\r", concepts=("e\u0301", "é"), persons=(), tags=("\ufffe x",), padding="")
def test_every_text_of_an_event_survives(
    memory: Memory,
    title: str,
    summary: str,
    content: str,
    concepts: tuple[str, ...],
    persons: tuple[str, ...],
    tags: tuple[str, ...],
    padding: str,
) -> None:
    """retrieval.md S1 and S7: any Unicode text but NUL and lone surrogates survives save, get, events, read and update exactly."""
    event = Event(
        id=f"{padding[:200]}{new_id()}",
        title=title,
        summary=summary,
        content=content,
        concepts=concepts,
        persons=persons,
        tags=tags,
        written_at=START,
    )
    assert (event.title, event.summary, event.content) == (title, summary, content)
    assert memory.save(event) == event
    assert event.id is not None
    assert memory.get(event.id).event == event
    assert read_in_pages(memory, event.id, 10_000) == content
    answer = memory.tools.call("memory_database_search", {"operation": "read", "event_id": event.id, "limit": 10_000})
    assert json.loads(json.dumps(answer))["text"] == content[:10_000]
    assert memory.save(event.replace(content=title)).content == title
    assert memory.get(event.id).event.content == title


@QUICK
@given(content=LONG_TEXTS)
@example(content="é" * 799)
@example(content="\r\n" * 400)
@example(content=" " * 801)
def test_chunks_cover_the_text_and_overlap_exactly(memory: Memory, embedder: TableEmbedder, content: str) -> None:
    """retrieval.md S1, faults BL-02: slices of 800 every 680 code points, in order, to the very end; each is what was embedded."""
    event_id = new_id()
    embedder.documents.clear()
    memory.save(Event(id=event_id, summary="a summary", content=content))
    spans = spans_in(memory, event_id) or []
    assert memory.get(event_id).chunk_count == len(spans)
    assert spans[0][0] == 0
    assert spans[-1][1] == len(content)
    assert all(end - start == 800 for start, end in spans[:-1])
    assert all(
        after[0] == before[0] + 680 and before[1] - after[0] == 120 and after[1] > before[1] for before, after in pairwise(spans)
    )
    embedded = embedder.documents[0][1:] if embedder.documents else []
    chunks = [content[start:end] for start, end in spans]
    assert [chunk for chunk in chunks if chunk in embedded] == embedded
    assert all(_invisible(chunk) for chunk in chunks if chunk not in embedded)


def _invisible(text: str) -> bool:
    return all(char.isspace() or unicodedata.category(char) in ("Cc", "Cf", "Zs", "Zl", "Zp") for char in text)


@QUICK
@given(content=TEXTS, size=st.integers(1, 40), data=st.data())
def test_chunks_of_any_size_cover_and_overlap(open_library: OpenLibrary, content: str, size: int, data: st.DataObject) -> None:
    """retrieval.md S1: with any size and overlap of the config, spans cover the text without a gap and none lies in another."""
    overlap = data.draw(st.integers(0, size - 1))
    config = Config(retrieval=RetrievalConfig(chunk_size=size, chunk_overlap=overlap))
    with open_library(config=config, namespace=new_id()) as memory:
        memory.save(Event(id="e", summary="a summary", content=content))
        spans = spans_in(memory, "e") or []
        assert (spans == []) == (content == "")
        if spans:
            assert (spans[0][0], spans[-1][1]) == (0, len(content))
            assert all(end - start == size for start, end in spans[:-1])
            assert 0 < spans[-1][1] - spans[-1][0] <= size
        assert all(before[1] - after[0] == overlap and after[1] > before[1] for before, after in pairwise(spans))
        assert memory.verify() == []


@QUICK
@given(content=LONG_TEXTS, limit=st.integers(1, 10_000), start=st.integers(0, 4100))
@example(content="\ufeff" + "👩\u200d👩" * 20, limit=1, start=0)
def test_pages_of_any_size_add_up_to_the_text(memory: Memory, content: str, limit: int, start: int) -> None:
    """retrieval.md F1 and F2, faults BL-03: any page is the exact slice; beyond the end is refused; all pages are the text."""
    event_id = new_id()
    memory.save_many([Event(id=event_id, summary="a summary", content=content)], chunks=False)
    assert read_in_pages(memory, event_id, max(limit, len(content) // 50, 1)) == content
    if start > len(content):
        with pytest.raises(InvalidRequest):
            memory.read(event_id, start=start, limit=limit)
    else:
        page = memory.read(event_id, start=start, limit=limit)
        assert page.text == content[start : start + limit]
        assert page.next == (start + limit if start + limit < len(content) else None)


@QUICK
@given(content=LONG_TEXTS, start=st.integers(0, 3999), length=st.integers(1, 60))
def test_excerpts_are_exact_for_any_text_and_question(memory: Memory, content: str, start: int, length: int) -> None:
    """retrieval.md V1, faults BL-02 and BL-03: whatever is asked of whatever text, `content[start:end] == excerpt`, at most 120."""
    event_id = new_id()
    memory.save(Event(id=event_id, summary=f"the summary of {event_id}", content=content))
    question = content[start : start + length] + f" the summary of {event_id}"
    for result in memory.search(question, session=event_id).results:
        excerpt, whole = result.excerpt, memory.get(result.id).event.content  # type: ignore[union-attr]
        if excerpt is not None:
            assert whole[excerpt.range[0] : excerpt.range[1]] == excerpt.text
            assert len(excerpt.text) <= 120
            assert excerpt.text.encode()


@QUICK
@given(name=VISIBLE, other=VISIBLE)
@example(name="İ x", other="i̇ x")
@example(name="ΐ\u0345 ŉ ǰ", other="ß")
@example(name="¨ x\u00a0 y", other="ﷺ")
def test_a_name_is_found_by_itself(open_library: OpenLibrary, name: str, other: str) -> None:
    """retrieval.md Q2, faults BL-06: an event is found by any of its names as it gave them, and names of one key are one node."""
    with open_library(namespace=new_id()) as memory:
        memory.save(Event(id="a", summary="a", content="a", concepts=(name,), persons=(other,)))
        memory.save(Event(id="b", summary="b", content="b", concepts=(name, other)))
        assert sorted(ids(memory.search(entity=name, session="1").results)) == ["a", "b"]
        assert set(ids(memory.search(entity=other, session="2").results)) == {"a", "b"}
        assert memory.get("a").event.concepts == (name,)
        assert memory.stats().concepts == len(memory.get("b").event.concepts)
        assert memory.verify() == []


@QUICK
@given(text=TEXTS, bad=st.one_of(st.just("\0"), st.integers(0xD800, 0xDFFF).map(chr)), rest=TEXTS)
def test_nul_and_lone_surrogates_are_refused_wherever_they_stand(memory: Memory, text: str, bad: str, rest: str) -> None:
    """retrieval.md S7, faults BL-01: in every field, at any place, with a message that can be printed."""
    for field in ("title", "summary", "content", "id"):
        with pytest.raises(InvalidRequest) as caught:
            memory.save(Event(**{"summary": "a summary"} | {field: text + bad + rest}))  # type: ignore[arg-type]
        assert field in str(caught.value)
        assert str(caught.value).encode()
    with pytest.raises(InvalidRequest):
        memory.search(text + bad + rest)
    assert memory.events() == []


@QUICK
@given(given_ids=st.lists(TEXTS.map(lambda text: f"{text[:200]}x"), unique=True, min_size=2, max_size=12))
def test_ids_order_by_code_point(open_library: OpenLibrary, given_ids: list[str]) -> None:
    """retrieval.md S10: whatever ids a host gives, events of one time come in the order of their code points, and none is lost."""
    with open_library(namespace=new_id()) as memory:
        memory.save_many(Event(id=each, summary="a summary", written_at=START) for each in given_ids)
        assert ids(stored.event for stored in memory.events()) == sorted(given_ids)
        assert ids(memory.search(written_from=START).results) == sorted(given_ids)[:4]
