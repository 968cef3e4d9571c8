"""Faults of text, Unicode and offsets: faults.md part A, as far as saving, reading and excerpts go."""

import json
import unicodedata
from itertools import chain, pairwise
from typing import Any

import pytest

from tests.children import snapshot, spans_in
from tests.support import START, OpenLibrary, TableEmbedder, ids, numbered
from workbench import Event, InvalidRequest, Memory

LONE = json.loads('"备注\\ud83d结束"')
"""Half of a surrogate pair, as a JSON parser lets it through."""


def excerpts(memory: Memory, question: str, session: str = "default") -> dict[str, tuple[str, tuple[int, int]]]:
    """Search, assert V1 of every excerpt and V5 of every reference to one, and return text and range by event."""
    found = {}
    for result in memory.search(question, session=session).results:
        excerpt, reference = result.excerpt, result.quote_ref  # type: ignore[union-attr]
        if excerpt is not None:
            start, end = excerpt.range
            assert memory.get(result.id).event.content[start:end] == excerpt.text
            assert 0 <= end - start <= 120
            found[result.id] = (excerpt.text, (start, end))
        else:
            assert reference is not None
            found[result.id] = found[reference.id]  # of this answer, for the session is new
            assert reference.range == found[reference.id][1]
            assert found[reference.id][0] in memory.get(result.id).event.content
    return found


# -- BL-01 ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("field", ["content", "summary", "title", "concepts", "persons", "tags", "id"])
def test_a_lone_surrogate_is_refused_at_the_border_and_its_neighbours_are_saved(
    memory: Memory, embedder: TableEmbedder, field: str
) -> None:
    """faults BL-01, retrieval.md S7: the error names the field; events 1 and 3 are saved; nothing later stumbles over it."""
    rows: list[dict[str, Any]] = [
        {"id": f"e{number}", "summary": f"summary {number}", "content": f"text {number}"} for number in (1, 2, 3)
    ]
    rows[1] |= {field: [LONE] if field in ("concepts", "persons", "tags") else LONE}
    events, refused = [], []
    for row in rows:
        try:
            events.append(Event(**row))
        except InvalidRequest as error:
            refused.append(str(error))
    assert list(memory.save_many(events).saved) == ["e1", "e3"]
    (message,) = refused
    assert field in message
    assert message.encode()
    assert "备注" not in message
    assert sorted(ids(memory.search("summary").results)) == ["e1", "e3"]
    assert memory.read("e1").text == "text 1"
    memory.reembed()
    assert memory.verify() == []
    assert "\ud83d" not in "".join(chain.from_iterable(embedder.documents))


@pytest.mark.parametrize(
    "arguments",
    [
        {"query_text": LONE},
        {"query_text": "fine", "entity": LONE},
        {"query_text": "fine", "entity": ["fine", LONE]},
        {"query_text": "fine", "written_from": LONE},
        {"query_text": LONE, "label": "Concept"},
        {"operation": "read", "event_id": LONE},
        {"operation": "expand", "cursor": LONE, "concept_id": "concept_1"},
        {"operation": LONE},
    ],
    ids=lambda each: "+".join(each),
)
def test_a_lone_surrogate_in_a_question_is_refused_without_a_call(
    memory: Memory, embedder: TableEmbedder, arguments: dict[str, Any]
) -> None:
    """faults BL-01: in the query too; no bare UnicodeEncodeError, no call to the embedder, and nothing is delivered by it."""
    memory.save_many(numbered(2))
    with pytest.raises(InvalidRequest) as caught:
        memory.tools.call("memory_database_search", arguments)
    assert str(caught.value).encode()
    assert embedder.queries == []
    assert len(memory.search("summary").results) == 2


# -- BL-02 ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("length", [800, 801, 1480, 1481, 2000])
def test_offsets_of_a_repetitive_text_are_its_own(memory: Memory, embedder: TableEmbedder, length: int) -> None:
    """faults BL-02, retrieval.md S1: spans come from counting, never from looking for the chunk's words."""
    content = ("同一句话。" * 401)[:length]
    memory.save(Event(id="e", summary="a summary", content=content))
    spans = spans_in(memory, "e") or []
    known = {800: [(0, 800)], 801: [(0, 800), (680, 801)], 2000: [(0, 800), (680, 1480), (1360, 2000)]}
    assert spans == known.get(length, spans)
    assert all(after[0] - before[0] == 680 and before[1] - after[0] == 120 for before, after in pairwise(spans))
    assert all(after[1] > before[1] for before, after in pairwise(spans))
    assert (spans[0][0], spans[-1][1]) == (0, length)
    assert sorted(chain.from_iterable(embedder.documents)) == sorted(["a summary", *(content[start:end] for start, end in spans)])


def test_an_excerpt_whose_words_occur_fifty_times_has_its_own_range(memory: Memory) -> None:
    """faults BL-02, retrieval.md V1: `content[start:end] == excerpt`, also where the same words occur again and again."""
    memory.save(Event(id="a", summary="第一", content=("无关的内容在这里。" * 9 + "重复的证据！") * 50))
    memory.save(Event(id="b", summary="第二", content="重复的证据！" * 50))
    memory.save(Event(id="c", summary="第三", content="前言。" * 300 + "重复的证据！" * 50))
    found = excerpts(memory, "重复的证据")
    assert set(found) == {"a", "b", "c"}
    assert all("重复的证据" in text for text, _ in found.values())
    explanation = memory.search("重复的证据", session="other", explain=True).explanation
    assert explanation is not None
    for row in explanation.to_polars().to_dicts():
        assert (row["chunk_start"], row["chunk_end"]) in (spans_in(memory, row["event_id"]) or [])


# -- BL-03 ---------------------------------------------------------------------------------------------------------------

FAMILY = "\U0001f469\u200d\U0001f469\u200d\U0001f467\u200d\U0001f466"
MIXED = (
    "\ufeff"
    + "a" * 797
    + FAMILY
    + "e\u0301"
    + "𠮷" * 300
    + "\u200fשלום\u200e עולם\u200f"
    + "一行\r\n又一行\r第三行\n\r\n"
    + FAMILY * 2
    + "\x85\u2028\u2029\ufffe\U0010ffff\ufeff"
)


def test_a_text_of_every_trap_is_kept_and_counted_by_code_points(memory: Memory, embedder: TableEmbedder) -> None:
    """faults BL-03, retrieval.md S1 and F1: BOM, CR and LF count one each; pages of any size add up to the text."""
    assert len(FAMILY) == 7
    memory.save(Event(id="e", summary="a summary", content=MIXED))
    assert memory.get("e").event.content == MIXED
    assert next(iter(memory.events())).event.content == MIXED
    for limit in (1, 7, 1600, 10_000):
        text, start = "", 0
        while True:
            page = memory.read("e", start=start, limit=limit)
            assert page.range == (start, start + len(page.text))
            assert (page.content_length, len(page.text) <= limit) == (len(MIXED), True)
            text += page.text
            if page.next is None:
                break
            start = page.next
        assert text == MIXED
    chunks = [MIXED[start:end] for start, end in spans_in(memory, "e") or []]
    assert [len(chunk) for chunk in chunks] == [800, len(MIXED) - 680]
    assert sorted(chain.from_iterable(embedder.documents)) == sorted(["a summary", *chunks])


@pytest.mark.parametrize("question", ["a", "𠮷𠮷", "שלום", "又一行", "第三行", "nothing of it", FAMILY])
def test_excerpts_of_such_a_text_are_exact(memory: Memory, question: str) -> None:
    """faults BL-03, retrieval.md V1 and V3: ranges stay exact, at most 120 long, without U+FFFD or half a character."""
    memory.save(Event(id="e", summary="a summary", content=MIXED))
    text, (start, end) = excerpts(memory, question)["e"]
    assert "\ufffd" not in text
    assert text.encode()
    if FAMILY in MIXED[max(0, start - 7) : end + 7]:
        for place in range(len(MIXED)):
            if MIXED.startswith(FAMILY, place):
                assert not place < start < place + 7
                assert not place < end < place + 7


def test_every_line_end_and_byte_order_mark_counts_one(memory: Memory) -> None:
    """faults BL-03: no line end is folded and no mark stripped, in any text of an event."""
    for number, text in enumerate(["\r\n", "\r", "\n", "\n\r", "\ufeff", "\ufffe", "\u2028", "\x85", "\x1c", "\x0b\x0c"]):
        event = Event(
            id=f"e{number}{text}",
            title=f"{text}title{text}",
            summary=f"{text}summary{text}",
            content=f"{text}content{text}{text}",
            tags=(f"{text}tag{text}",),
            concepts=(f"{text}concept {number}{text}",),
            persons=(f"{text}person {number}{text}",),
            written_at=START,
        )
        assert memory.save(event) == event
        assert memory.get(event.id or "").event == event
        assert memory.read(event.id or "").text == event.content
        assert ids(memory.search(entity=event.concepts[0], session=str(number)).results) == [event.id]
    assert memory.verify() == []


# -- BL-06 ---------------------------------------------------------------------------------------------------------------


def concepts_of(memory: Memory) -> list[str]:
    """Return the names of the library's concepts, the nearest to a question first."""
    return [node.name for node in memory.search("x", label="Concept", limit=8).results]  # type: ignore[union-attr]


@pytest.mark.parametrize(
    "spellings",
    [
        ("ＡＩ　项目", "ai 项目", "AI  项目", " AI 项目\n"),
        ("Caf\u00e9", "Cafe\u0301", "CAFÉ"),
        ("ﬁle", "FILE", "ｆｉｌｅ"),
        ("①", "1"),
    ],
    ids=ascii,
)
def test_spellings_that_differ_in_width_case_and_space_are_one_concept(memory: Memory, spellings: tuple[str, ...]) -> None:
    """faults BL-06, catalog.md section 1: NFKC, trimmed, white space collapsed, case-folded; shown in its first form."""
    for number, spelling in enumerate(spellings):
        memory.save(Event(id=f"e{number}", summary=f"number {number}", concepts=(spelling,), written_at=START))
    assert concepts_of(memory) == [spellings[0]]
    assert (memory.stats().concepts, memory.verify()) == (1, [])
    for number, spelling in enumerate(spellings):
        assert memory.get(f"e{number}").event.concepts == (spelling,)
        found = memory.search(entity=spelling, session=spelling).results
        assert len(found) == len(spellings)
    together = memory.save(Event(summary="all at once", concepts=spellings))
    assert together.concepts == (spellings[0],)


@pytest.mark.parametrize(
    "names", [("🚀", "🧪"), ("——", "……"), ("한국어", "일본어"), ("москва", "минск"), ("C", "C++", "C#"), ("。", "！")], ids=ascii
)
def test_names_without_latin_letters_stay_what_they_are(memory: Memory, names: tuple[str, ...]) -> None:
    """faults BL-06: no name vanishes or falls together with another because only letters count."""
    for number, name in enumerate(names):
        memory.save(Event(id=f"e{number}", summary=f"number {number}", concepts=(name,), persons=(name,)))
    assert sorted(concepts_of(memory)) == sorted(names)
    for number, name in enumerate(names):
        assert ids(memory.search(entity=name, session=name).results) == [f"e{number}"]


@pytest.mark.parametrize("names", [("版本发布", "版本\u200b发布", "\u200f版本发布"), ("Straße", "STRASSE", "strasse")], ids=ascii)
def test_marks_and_sharp_s_are_treated_alike_everywhere(memory: Memory, names: tuple[str, ...]) -> None:
    """faults BL-06: whatever the rule for zero-width marks and ß is, listing, filter and one event's own names follow the same."""
    alike = {}
    for number, name in enumerate(names):
        memory.save(Event(id=f"e{number}", summary=f"number {number}", concepts=(name,)))
    for name in names:
        alike[name] = set(ids(memory.search(entity=name, session=name).results))
        assert f"e{names.index(name)}" in alike[name]
    assert memory.stats().concepts == len({frozenset(each) for each in alike.values()})
    assert len(Event(summary="all", concepts=names).concepts) == memory.stats().concepts


@pytest.mark.parametrize("name", ["\u200b\ufeff", "", " ", "\u200f", "\u2060\u00ad"], ids=ascii)
@pytest.mark.parametrize("field", ["concepts", "persons"])
def test_a_name_with_nothing_visible_is_refused(memory: Memory, field: str, name: str) -> None:
    """faults BL-06, retrieval.md S8: neither U+200B nor U+FEFF is white space to Python, and both are invisible."""
    before = snapshot(memory)
    with pytest.raises(InvalidRequest, match=field):
        memory.save(Event(summary="a summary", **{field: ("fine", name)}))  # type: ignore[arg-type]
    assert snapshot(memory) == before


def test_composed_and_decomposed_texts_are_two_events(open_library: OpenLibrary) -> None:
    """faults BL-06, retrieval.md Q6: only exactly the same text is a duplicate; NFC and NFD bodies are not."""
    memory = open_library()
    composed = "Le café des élèves à Besançon"
    decomposed = unicodedata.normalize("NFD", composed)
    memory.save_many([Event(id="nfc", summary="one", content=composed), Event(id="nfd", summary="two", content=decomposed)])
    result = memory.search("café", explain=True)
    assert sorted(ids(result.results)) == ["nfc", "nfd"]
    assert result.explanation is not None
    assert result.explanation.to_polars()["duplicate_of"].to_list() == [None, None]
    assert (memory.read("nfc").text, memory.read("nfd").text) == (composed, decomposed)
