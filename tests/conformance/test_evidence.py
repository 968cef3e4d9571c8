"""Evidence as retrieval.md section 5 and V7 state it: exact excerpts, whole clusters, quotes and notices, on every store."""

import math
import random
import re
from collections.abc import Iterable, Sequence
from datetime import timedelta
from typing import Any

import pytest
import regex

from tests.support import START, Clock, OpenLibrary, TableEmbedder, ids
from workbench import Config, Event, Memory, NotFound, RetrievalConfig, SearchResult, SessionConfig

FAMILY = "👩‍👩‍👧‍👦"
CLUSTERS = {
    "combining mark": "e\u0301",
    "many marks": "a\u0300\u0316\u0323\u0308",
    "family": FAMILY,
    "flag": "🇨🇳",
    "CRLF": "\r\n",
    "jamo": "\u1112\u1161\u11ab",
    "skin tone": "👍🏽",
    "keycap": "1\ufe0f\u20e3",
    "devanagari": "नि",
    "thai": "กำ",
    "tag flag": "🏴\U000e0067\U000e0062\U000e0073\U000e0063\U000e0074\U000e007f",
}


def at(cosine: float) -> tuple[float, float]:
    return (cosine, math.sqrt(1 - cosine * cosine))


def borders(text: str) -> set[int]:
    """Return all grapheme cluster borders of a text."""
    return {0} | {match.end() for match in regex.finditer(r"\X", text)}


def chunk_spans(text: str, size: int = 800, overlap: int = 120) -> list[tuple[int, int]]:
    """Return the spans of S1."""
    spans, start = [], 0
    while True:
        spans.append((start, min(start + size, len(text))))
        if spans[-1][1] == len(text):
            return spans
        start += size - overlap


def excerpt_of(result: SearchResult, event_id: str | None = None) -> Any:
    """Return an event's excerpt; the first result's by default."""
    found = [each for each in result.results if event_id in (None, each.id)]
    return found[0].excerpt  # type: ignore[union-attr]


def quotes(result: SearchResult) -> dict[str, tuple[str, tuple[int, int]] | None]:
    """Return each result's quote reference, None where the excerpt is given."""
    answer = {}
    for each in result.to_dict()["results"]:
        assert ("excerpt" in each) != ("quoteRef" in each)
        quote = each.get("quoteRef")
        assert quote is None or set(quote) == {"id", "range"}
        answer[each["id"]] = (quote["id"], tuple(quote["range"])) if quote else None
    return answer


def check_exact(memory: Memory, result: SearchResult, *, length: int = 120) -> None:
    """Assert V1, V3 and V7 for every result of an answer."""
    for each in result.results:
        content = memory.get(each.id).event.content
        assert each.content_length == len(content)  # type: ignore[union-attr]
        excerpt = each.excerpt  # type: ignore[union-attr]
        if excerpt is None:
            continue
        start, end = excerpt.range
        assert 0 <= start <= end <= len(content)
        assert content[start:end] == excerpt.text
        assert len(excerpt.text) <= length
        assert bool(excerpt.text) == bool(content)
        excerpt.text.encode()


def pinned(
    embedder: TableEmbedder, event_id: str, content: str, *, best: int | None = None, question: str = "needle", **fields: Any
) -> Event:
    """Return an event whose chunk number ``best`` is nearest to the question."""
    size = embedder.dimension
    axis = [1.0, *[0.0] * (size - 1)]
    embedder.table[question] = axis
    for number, (start, end) in enumerate(chunk_spans(content) if content else []):
        cosine = 0.9 if number == best else 0.1
        embedder.table[content[start:end]] = [cosine, math.sqrt(1 - cosine**2), *[0.0] * (size - 2)]
    return Event(id=event_id, summary=f"《{event_id}》", content=content, **fields)


def padded(parts: Iterable[tuple[int, str]], length: int) -> str:
    """Return a text of ``length`` whose chunks all differ, with words at given places and no sentence ends."""
    text = list("".join(f"p{n:05} " for n in range(length // 7 + 1))[:length])
    for place, word in parts:
        text[place - 1 : place + len(word) + 1] = f" {word} "
    assert len(text) == length
    return "".join(text)


# -- V1, V2: what the excerpt shows --------------------------------------------------------------------------------------


def test_each_result_carries_summary_and_exact_excerpt(memory: Memory) -> None:
    """retrieval.md V1, faults.md BL-02, BL-03: content[start:end] == excerpt, at most 120 code points, also in repetitive text."""
    contents = [
        "",
        "short",
        "x" * 120,
        "x" * 121,
        "同一句话。" * 400,
        "needle " * 50,
        "\ufeff" + "a" * 797 + FAMILY + "e\u0301" + "𠮷" * 300 + "\u200f\u05d0\u05d1\u200f\r\n\r end",
        "\r\n" * 900,
        " \n " * 300,
        "𠮷" * 900,
    ]
    for length in (799, 800, 801, 1480, 1481):
        contents.append(("检索的证据" * 300)[:length])
    memory.save_many([Event(id=f"e{n:02}", summary=f"summary {n}", content=text) for n, text in enumerate(contents)])
    for question in ("needle 同一句话 检索", "summary", None):
        seen: list[str] = []
        while True:
            filters = {} if question else {"written_from": "2000-01-01"}
            result = memory.search(question, session=str(question), **filters)  # type: ignore[arg-type]
            check_exact(memory, result)
            for each in result.results:
                assert each.summary == memory.get(each.id).event.summary  # type: ignore[union-attr]
            if not result.results:
                break
            seen += ids(result.results)
        assert len(seen) >= len(contents) - 1


def test_without_a_question_the_head_of_the_text(memory: Memory) -> None:
    """retrieval.md V2: with no question, the first 120 code points."""
    text = "".join(chr(0x4E00 + n) for n in range(300))
    memory.save(Event(id="a", summary="s", content=text, concepts=("图",)))
    excerpt = excerpt_of(memory.search(entity="图"))
    assert (excerpt.text, excerpt.range) == (text[:120], (0, 120))


@pytest.mark.parametrize("best", [0, 1, 2])
def test_without_a_term_the_head_of_the_best_chunk(open_library: OpenLibrary, best: int) -> None:
    """retrieval.md V2: where no term occurs, the best chunk's first 120 code points."""
    embedder = TableEmbedder(dimension=2)
    memory = open_library(embedder=embedder)
    text = "".join(chr(0x4E00 + n) for n in range(1900))
    memory.save(pinned(embedder, "a", text, best=best))
    start = chunk_spans(text)[best][0]
    excerpt = excerpt_of(memory.search("needle"))
    assert (excerpt.text, excerpt.range) == (text[start : start + 120], (start, start + 120))


def test_without_chunks_the_head_of_the_text(memory: Memory) -> None:
    """retrieval.md V2, S6: an event that was never chunked and has no term shows its head."""
    memory.save_many([Event(id="a", summary="s", content="甲乙" * 200)], chunks=False)
    assert excerpt_of(memory.search("needle")).range == (0, 120)


def test_the_greatest_weight_of_distinct_terms_wins(open_library: OpenLibrary) -> None:
    """retrieval.md V2: two different terms beat one term five times; the best chunk does not outweigh them."""
    embedder = TableEmbedder(dimension=2)
    memory = open_library(embedder=embedder)
    five = [(40 + 10 * n, "needle") for n in range(5)]
    text = padded([*five, (1500, "needle"), (1560, "haystack")], 2500)
    memory.save(pinned(embedder, "a", text, best=0, question="needle haystack"))
    excerpt = excerpt_of(memory.search("needle haystack"))
    assert {"needle", "haystack"} <= set(excerpt.text.split())
    assert excerpt.start >= 1400


def test_a_rare_term_outweighs_two_common_ones(open_library: OpenLibrary) -> None:
    """retrieval.md V2, Q5: terms weigh by their rarity among the call's candidates."""
    embedder = TableEmbedder(dimension=2)
    memory = open_library(embedder=embedder)
    question = "tin ore gold"
    text = padded([(100, "tin"), (120, "ore"), (1500, "gold")], 2500)
    memory.save(pinned(embedder, "a", text, best=0, question=question))
    for n in range(30):
        memory.save(Event(id=f"x{n:02}", summary="tin ore", content=f"tin ore {n}"))
    result = memory.search(question, entity=None, explain=True)
    assert result.explanation is not None
    weights = {term.term: term.weight for term in result.explanation.terms}
    assert weights["gold"] > weights["tin"] + weights["ore"]
    assert "gold" in excerpt_of(result, "a").text.split()


def test_of_equal_windows_the_one_inside_the_best_chunk(open_library: OpenLibrary) -> None:
    """retrieval.md V2: equal weight in three chunks; the best chunk's window is taken, not the earliest."""
    for best, place in ((0, 300), (1, 1000), (2, 1700)):
        embedder = TableEmbedder(dimension=2)
        memory = open_library(embedder=embedder, namespace=f"best {best}")
        text = padded([(300, "needle"), (1000, "needle"), (1700, "needle")], 2100)
        memory.save(pinned(embedder, "a", text, best=best))
        result = memory.search("needle", explain=True)
        assert result.explanation is not None
        row = result.explanation.rows[0]
        excerpt = excerpt_of(result)
        assert (row.chunk_start, row.chunk_end) == chunk_spans(text)[best]
        assert row.chunk_start <= excerpt.start <= place < place + 6 <= excerpt.end <= row.chunk_end


@pytest.mark.parametrize("place", [681, 700, 1352, 1400, 1465, 1473])
def test_a_window_inside_the_best_chunk_wherever_the_term_stands_in_it(open_library: OpenLibrary, place: int) -> None:
    """retrieval.md V2: a term at the best chunk's edge is covered by windows inside it, so the earlier chunk's term loses."""
    embedder = TableEmbedder(dimension=2)
    memory = open_library(embedder=embedder)
    text = padded([(100, "needle"), (place, "needle")], 2100)
    assert chunk_spans(text)[1] == (680, 1480)
    memory.save(pinned(embedder, "a", text, best=1))
    excerpt = excerpt_of(memory.search("needle"))
    assert 680 <= excerpt.start <= place
    assert place + 6 <= excerpt.end <= 1480


def test_of_equal_windows_the_earliest(open_library: OpenLibrary) -> None:
    """retrieval.md V2: several equal windows inside the best chunk, or none inside it: the first in the text."""
    embedder = TableEmbedder(dimension=2)
    memory = open_library(embedder=embedder)
    inside = padded([(900, "needle"), (1100, "needle"), (1300, "needle")], 2100)
    outside = padded([(1600, "needle"), (1900, "needle")], 2101)
    memory.save(pinned(embedder, "inside", inside, best=1))
    memory.save(pinned(embedder, "outside", outside, best=0))
    result = memory.search("needle")
    assert [match.start() for match in re.finditer("needle", excerpt_of(result, "inside").text)]
    assert excerpt_of(result, "inside").start <= 900 < excerpt_of(result, "inside").end <= 1100
    assert excerpt_of(result, "outside").start <= 1600 < excerpt_of(result, "outside").end <= 1900


WORDS = ("needle", "haystack", "straw", "thread")


def coverage_of(text: str, span: tuple[int, int], weights: dict[str, float]) -> float:
    """Return the weight of the distinct words that stand whole between two places."""
    start, end = span
    inside = {
        match.group()
        for match in re.finditer(r"\w+", text)
        if start <= match.start() and match.end() <= end and match.group() in weights
    }
    return sum(weights[word] for word in sorted(inside))


@pytest.mark.parametrize("seed", range(12))
def test_no_other_window_covers_more(open_library: OpenLibrary, seed: int) -> None:
    """retrieval.md V2: brute force over all windows of a random text finds none of greater weight."""
    chance = random.Random(seed)
    memory = open_library(config=Config(retrieval=RetrievalConfig(excerpt_length=40)))
    question = " ".join(WORDS)
    for name in "abc":
        words = chance.choices([*WORDS, "sand", "gravel", "stone", "mud"], [2, 1, 1, 1, 12, 12, 12, 12], k=90)
        joints = chance.choices([" ", ", ", ". ", "\n", "。", "！ "], [10, 2, 1, 1, 1, 1], k=90)
        memory.save(Event(id=name, summary=f"s{name}", content="".join(map("".join, zip(words, joints, strict=True)))))
    result = memory.search(question, explain=True)
    assert result.explanation is not None
    weights = {word: term.weight for word in WORDS for term in result.explanation.terms if word.startswith(term.term)}
    assert len(weights) == len(WORDS)
    check_exact(memory, result, length=40)
    for each in result.results:
        text = memory.get(each.id).event.content
        most = max(coverage_of(text, (start, start + 40), weights) for start in range(len(text)))
        shown = each.excerpt  # type: ignore[union-attr]
        assert shown is not None
        assert coverage_of(text, shown.range, weights) == pytest.approx(most, abs=1e-9)


@pytest.mark.parametrize("seed", range(6))
def test_no_other_window_of_whole_clusters_covers_more(open_library: OpenLibrary, seed: int) -> None:
    """retrieval.md V2, V3, V7: among windows that split no cluster, none covers more than the excerpt."""
    chance = random.Random(seed)
    memory = open_library(config=Config(retrieval=RetrievalConfig(excerpt_length=30)))
    filling = ["sand", "mud", "🇨🇳🇫🇷", FAMILY, "👍🏽", "\r\n", "。"]
    for name in "abc":
        words = chance.choices([*WORDS, *filling], [1] * 4 + [3] * 7, k=60)
        memory.save(Event(id=name, summary=f"s{name}", content=" ".join(words)))
    result = memory.search(" ".join(WORDS), explain=True)
    assert result.explanation is not None
    weights = {word: term.weight for word in WORDS for term in result.explanation.terms if word.startswith(term.term)}
    check_exact(memory, result, length=30)
    for each in result.results:
        text = memory.get(each.id).event.content
        whole = sorted(borders(text))
        most = max(coverage_of(text, (s, e), weights) for s in whole for e in whole if s < e <= s + 30)
        shown = each.excerpt  # type: ignore[union-attr]
        assert shown is not None
        assert set(shown.range) <= borders(text)
        assert coverage_of(text, shown.range, weights) == pytest.approx(most, abs=1e-9)


def test_chinese_terms_choose_the_window(open_library: OpenLibrary) -> None:
    """retrieval.md V2, Q5: bigrams and characters weigh as terms; the window with the whole phrase wins."""
    embedder = TableEmbedder(dimension=2)
    memory = open_library(embedder=embedder)
    filler = "".join(chr(0x5000 + n) for n in range(2000))
    text = filler[:300] + "检。质" + filler[300:1200] + "检索质量" + filler[1200:]
    memory.save(pinned(embedder, "a", text, best=0, question="检索质量"))
    assert "检索质量" in excerpt_of(memory.search("检索质量")).text


def test_a_term_must_stand_whole_in_the_excerpt(open_library: OpenLibrary) -> None:
    """retrieval.md V2, Q5: a term inside a longer Latin word is no reason for a window."""
    embedder = TableEmbedder(dimension=2)
    memory = open_library(embedder=embedder)
    text = padded([(100, "concatenate"), (1700, "cat")], 2100)
    memory.save(pinned(embedder, "a", text, best=0, question="cat"))
    assert " cat " in f" {excerpt_of(memory.search('cat')).text} "


def test_a_word_longer_than_the_excerpt_does_no_harm(open_library: OpenLibrary) -> None:
    """retrieval.md V1, V2: no window holds a term of 150 letters, so the head of the best chunk is shown."""
    embedder = TableEmbedder(dimension=2)
    memory = open_library(embedder=embedder)
    word = "z" * 150
    memory.save(pinned(embedder, "a", padded([(1000, word)], 2100), best=2, question=word))
    result = memory.search(word)
    check_exact(memory, result)
    assert excerpt_of(result).start == 1360


# -- V2: the window of 32,000 --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("length", "place", "told"),
    [(32_000, 31_990, False), (32_001, 31_990, True), (40_000, 35_000, True), (40_000, 31_994, True)],
)
def test_the_first_32_000_code_points(open_library: OpenLibrary, length: int, place: int, told: bool) -> None:
    """retrieval.md V2, faults.md BL-09: only the first 32,000 code points are looked at; a longer text says to use read."""
    embedder = TableEmbedder(dimension=2)
    memory = open_library(embedder=embedder)
    text = padded([(place, "needle")], length)
    memory.save(pinned(embedder, "a", text, best=3))
    result = memory.search("needle")
    check_exact(memory, result)
    excerpt = excerpt_of(result)
    assert excerpt.end <= 32_000
    assert (excerpt.start <= place < place + 6 <= excerpt.end) == (place + 6 <= 32_000)
    if place + 6 > 32_000:
        assert excerpt.start == 3 * 680
    assert result.to_dict()["results"][0]["notices"] == (["continueWithRead"] if told else [])
    assert text[place : place + 6] == memory.read("a", start=place, limit=6).text == "needle"


@pytest.mark.parametrize(("word", "inside"), [("catalogue", 3), ("needle", 5)])
def test_a_word_that_the_window_cuts_is_no_other_word(open_library: OpenLibrary, word: str, inside: int) -> None:
    """retrieval.md V2, Q5: what is left of a longer word at the window's end is not the term that it looks like."""
    embedder = TableEmbedder(dimension=2)
    memory = open_library(embedder=embedder)
    question = {"catalogue": "cat", "needle": "needle"}[word]
    text = padded([(32_000 - inside, word)], 40_000)
    memory.save(pinned(embedder, "a", text, best=3, question=question))
    assert excerpt_of(memory.search(question)).start == 3 * 680


def test_a_best_chunk_beyond_the_window_is_not_quoted(open_library: OpenLibrary) -> None:
    """retrieval.md V2: the first excerpt lies within the first 32,000 code points, whichever chunk is best."""
    embedder = TableEmbedder(dimension=2)
    memory = open_library(embedder=embedder)
    text = "".join(chr(0x4E00 + n % 20_000) for n in range(40_000))
    for number in (46, 47, 50):  # 46 begins at 31,280 and ends at 32,080; 47 begins at 31,960
        memory.save(pinned(embedder, f"a{number}", chr(0x4DFF + number) + text, best=number))
        memory.search("needle", session=f"s{number}")
        result = memory.search("needle", session=f"t{number}")
        check_exact(memory, result)
        assert all(each.excerpt.end <= 32_000 for each in result.results)  # type: ignore[union-attr]
        assert all(each.notices == ("continueWithRead",) for each in result.results)  # type: ignore[union-attr]


# -- V3, V7: whole clusters ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("cluster", CLUSTERS.values(), ids=CLUSTERS)
def test_the_end_of_an_excerpt_splits_no_cluster(memory: Memory, cluster: str) -> None:
    """retrieval.md V3, V7, faults.md BL-03: the head of the text ends at a grapheme cluster border, and not needlessly early."""
    size = len(cluster)
    for shift in range(size):
        text = "a" * shift + cluster * 150
        memory.save(Event(id=f"e{shift}", summary="s", content=text, concepts=(f"k{shift}",)))
        result = memory.search(entity=f"k{shift}")
        check_exact(memory, result)
        excerpt = excerpt_of(result)
        assert excerpt.start == 0
        assert excerpt.end in borders(text)
        assert 120 - size < excerpt.end <= 120


@pytest.mark.parametrize("cluster", CLUSTERS.values(), ids=CLUSTERS)
def test_both_ends_around_a_term_split_no_cluster(memory: Memory, cluster: str) -> None:
    """retrieval.md V3, V7: a window in the middle of clusters begins and ends at borders and still shows the term."""
    for n, (before, after) in enumerate(((100, 100), (101, 100), (3, 200), (200, 1))):
        text = cluster * before + " needle " + cluster * after
        memory.save(Event(id=f"e{n}", summary="s", content=text, concepts=(f"k{n}",)))
        result = memory.search("needle", entity=f"k{n}", session=str(n))
        check_exact(memory, result)
        excerpt = excerpt_of(result, f"e{n}")
        assert set(excerpt.range) <= borders(text)
        assert "needle" in excerpt.text


@pytest.mark.parametrize("cluster", CLUSTERS.values(), ids=CLUSTERS)
def test_the_head_of_a_chunk_that_begins_inside_a_cluster(open_library: OpenLibrary, cluster: str) -> None:
    """retrieval.md V3, V7, S1: a chunk may begin inside a cluster, an excerpt may not."""
    embedder = TableEmbedder(dimension=2)
    memory = open_library(embedder=embedder)
    for shift in range(len(cluster)):
        text = "#" * (shift + 1) + cluster * (1300 // len(cluster)) + "#"
        assert len(chunk_spans(text)) == 2
        memory.save(pinned(embedder, f"e{shift}", text, best=1, concepts=(f"k{shift}",)))
        result = memory.search("needle", entity=f"k{shift}", session=str(shift))
        check_exact(memory, result)
        excerpt = excerpt_of(result, f"e{shift}")
        assert set(excerpt.range) <= borders(text)
        assert 680 - len(cluster) < excerpt.start < 680 + len(cluster)
        assert len(excerpt.text) > 120 - 2 * len(cluster)


@pytest.mark.parametrize("text", ["e" + "\u0301" * 400, "👩" + "\u200d👩" * 200, "\u0301" * 400])
def test_a_cluster_longer_than_the_excerpt_is_cut_exactly(memory: Memory, text: str) -> None:
    """retrieval.md V3, V7: where the text does not allow a border, the excerpt is still exact, not empty and within 120."""
    memory.save(Event(id="a", summary="s", content=text, concepts=("图",)))
    for result in (memory.search(entity="图"), memory.search("s", session="2")):
        check_exact(memory, result)
        assert excerpt_of(result).range[0] == 0


@pytest.mark.parametrize("filler", ["ﬁ", "İ", "ß", "㍿", "ｶﾞ", "①", "e\u0301", "ﷺ", "\u1112\u1161\u11ab", "…", "ΐ"])
@pytest.mark.parametrize("question", ["needle", "ﬁnance", "图书馆"])
def test_folding_that_changes_lengths_moves_no_range(open_library: OpenLibrary, filler: str, question: str) -> None:
    """retrieval.md V1, V2, Q5: terms are found in the folded text, the excerpt's range is that of the original."""
    memory = open_library()
    text = filler * 400 + f"。 {question.upper()}。 " + filler * 400
    memory.save(Event(id="a", summary="s", content=text))
    result = memory.search(question.replace("ﬁ", "fi"), explain=True)
    check_exact(memory, result)
    excerpt = excerpt_of(result)
    assert question.upper() in excerpt.text
    assert set(excerpt.range) <= borders(text)


def test_a_term_before_a_mark_keeps_its_mark(open_library: OpenLibrary) -> None:
    """retrieval.md V2, V3: a decomposed word at the window's very end is shown whole or not counted."""
    memory = open_library(config=Config(retrieval=RetrievalConfig(excerpt_length=20)))
    text = "straw " + "x" * 9 + " cafe\u0301" + " zz" * 30 + " straw cafe\u0301"
    memory.save(Event(id="a", summary="s", content=text))
    result = memory.search("straw café")
    check_exact(memory, result, length=20)
    excerpt = excerpt_of(result)
    assert set(excerpt.range) <= borders(text)
    assert {"straw", "cafe\u0301"} <= set(excerpt.text.split())


# -- V4, V6: notices -----------------------------------------------------------------------------------------------------


def test_every_delivery_says_what_it_does_not_prove(memory: Memory) -> None:
    """retrieval.md V4: summaries need checking, and shared concepts or neighbours prove neither cause nor order."""
    memory.save_many([Event(id=f"b_ch1_e{n}", summary=f"s{n}", content=f"t{n}", concepts=("图",)) for n in range(9)])
    first = memory.search("s", limit=1)
    assert first.cursor is not None
    answers = [first, memory.expand(first.cursor, first.concepts[0].id, limit=1)]
    answers.append(memory.nearby(first.cursor, ids(first.results)[0]))
    for answer in answers:
        assert answer.results
        told = {notice["code"]: notice["message"] for notice in answer.to_dict()["notices"]}
        assert {"verifySummary", "noCausality"} <= set(told)
        assert all(message.strip() for message in told.values())


def test_an_empty_answer_claims_no_absence_and_names_the_exclusions(memory: Memory) -> None:
    """retrieval.md V6: the notice of an empty answer says which exclusions applied."""
    memory.save_many([Event(id=f"e{n}", summary=f"s{n}", content=f"t{n}", concepts=("图",)) for n in range(3)])

    def told(**arguments: Any) -> dict[str, str]:
        answer = memory.search(**arguments).to_dict()
        assert (answer["results"], answer["cursor"], answer["concepts"]) == ([], None, [])
        notices = {notice["code"]: notice["message"] for notice in answer["notices"]}
        assert "emptyIsNotAbsence" in notices
        return notices

    plain = told(query_text="s", entity="nobody")
    dated = told(query_text="s", written_to="1999-01-01")
    assert "deliveredExcluded" not in plain
    assert plain["emptyIsNotAbsence"] != dated["emptyIsNotAbsence"]
    assert len(memory.search("s").results) == 3
    after = told(query_text="s")
    assert "deliveredExcluded" in after
    assert "3" in after["deliveredExcluded"]
    assert len(memory.search("s", session="other").results) == 3


def test_a_delivery_after_exclusions_says_so(memory: Memory) -> None:
    """retrieval.md V6, api.md: deliveredExcluded stands only where delivered ids were excluded."""
    memory.save_many([Event(id=f"e{n}", summary=f"s{n}", content=f"t{n}") for n in range(6)])
    first, second = memory.search("s"), memory.search("s")
    assert "deliveredExcluded" not in [notice.code for notice in first.notices]
    assert "deliveredExcluded" in [notice.code for notice in second.notices]
    assert "emptyIsNotAbsence" not in [notice.code for notice in second.notices]


# -- V5, V7: the same excerpt again --------------------------------------------------------------------------------------

HEAD = "".join(chr(0x4E00 + 7 * n) for n in range(120))


def twins(names: Sequence[str], *, head: str = HEAD, **fields: Any) -> list[Event]:
    """Return events with equal heads and different tails, each with a concept of its own name."""
    return [Event(id=name, summary=f"s {name}", content=f"{head}—{name}", concepts=(f"k {name}",), **fields) for name in names]


def shown(memory: Memory, name: str, **arguments: Any) -> tuple[str, tuple[int, int]] | None:
    """Return the quote reference with which a listing delivers an event; None where the text is given."""
    result = memory.search(entity=f"k {name}", **arguments)
    assert ids(result.results) == [name]
    check_exact(memory, result)
    return quotes(result)[name]


def test_a_repeated_excerpt_is_a_reference_to_the_earlier_one(memory: Memory) -> None:
    """retrieval.md V5, api.md: a quoteRef of id and range, rendered as 原文同; read always gives the text."""
    memory.save_many(twins(["a", "b", "c"]))
    first = memory.search(entity="k a")
    assert excerpt_of(first).text == HEAD
    second = memory.search(entity="k b")
    (result,) = second.results
    assert result.excerpt is None  # type: ignore[union-attr]
    assert (result.quote_ref.id, tuple(result.quote_ref.range)) == ("a", (0, 120))  # type: ignore[union-attr]
    assert second.to_dict()["results"][0]["quoteRef"] == {"id": "a", "range": [0, 120]}
    assert "原文同 a[0,120)" in memory.tools.render(second)
    assert "原文同 a[0,120)" in memory.tools.render(second.to_dict())
    assert HEAD not in memory.tools.render(second)
    assert memory.read("b", limit=120).text == HEAD
    assert memory.read("a").text == HEAD + "—a"
    assert shown(memory, "c") == ("a", (0, 120))


def test_the_same_excerpt_twice_in_one_answer(memory: Memory) -> None:
    """retrieval.md V7: the second is a quoteRef to the first of the answer."""
    memory.save_many(twins(["a", "b", "c"], written_at=START))
    answer = memory.search(written_from="2000-01-01")
    assert ids(answer.results) == ["a", "b", "c"]
    assert quotes(answer) == {"a": None, "b": ("a", (0, 120)), "c": ("a", (0, 120))}


def test_only_equal_texts_are_references(memory: Memory) -> None:
    """retrieval.md V5: another head, a longer or shorter one, or another normal form is given in full."""
    memory.save(twins(["a"])[0])
    memory.save(Event(id="short", summary="s", content=HEAD[:119], concepts=("k short",)))
    memory.save(Event(id="exact", summary="s", content=HEAD, concepts=("k exact",)))
    memory.save(Event(id="nfc", summary="s", content="Café", concepts=("k nfc",)))
    memory.save(Event(id="nfd", summary="s", content="Cafe\u0301", concepts=("k nfd",)))
    answers = {name: shown(memory, name) for name in ("a", "short", "exact", "nfc", "nfd")}
    assert answers == {"a": None, "short": None, "exact": ("a", (0, 120)), "nfc": None, "nfd": None}


def test_another_session_gets_the_text(memory: Memory) -> None:
    """retrieval.md V5, H2: references point only to what this session has been given."""
    memory.save_many(twins(["a", "b"]))
    assert shown(memory, "a") is None
    assert shown(memory, "b", session="other") is None
    assert shown(memory, "b") == ("a", (0, 120))


def test_references_in_expand_and_nearby(memory: Memory) -> None:
    """retrieval.md V5: every delivering call quotes by reference."""
    for n in range(1, 4):
        memory.save(Event(id=f"b_ch1_e{n}", summary=f"s{n}", content=f"{HEAD}—{n}", concepts=("图",), written_at=START))
    first = memory.search(entity="图", limit=1)
    assert first.cursor is not None
    grown = memory.expand(first.cursor, first.concepts[0].id, limit=1)
    beside = memory.nearby(first.cursor, "b_ch1_e1")
    assert len(grown.results) == len(beside.results) == 1
    assert set((quotes(grown) | quotes(beside)).values()) == {("b_ch1_e1", (0, 120))}


def test_references_age_like_ids(memory: Memory, clock: Clock) -> None:
    """retrieval.md V7, H6: in force while under 15 minutes old, counted from the delivery of the text itself."""
    memory.save_many(twins(["a", "b", "c", "d"]))
    assert shown(memory, "a") is None
    clock.forward(minutes=14, seconds=59, microseconds=999_999)
    assert shown(memory, "b") == ("a", (0, 120))
    clock.forward(microseconds=1)
    assert shown(memory, "c") is None
    assert shown(memory, "d") == ("c", (0, 120))


def test_never_a_reference_to_itself(open_library: OpenLibrary) -> None:
    """retrieval.md V7: an event delivered again, its id dropped but its excerpt kept, comes with its text."""
    memory = open_library(config=Config(session=SessionConfig(max_ids=1)))
    memory.save_many(twins(["a", "b"]))
    memory.save(Event(id="z", summary="z", content="z", concepts=("k z",)))
    assert shown(memory, "a") is None
    assert shown(memory, "z") is None
    assert shown(memory, "a") is None
    assert shown(memory, "b") == ("a", (0, 120))
    assert shown(memory, "a") in (None, ("b", (0, 120)))


def test_an_event_seen_again_after_a_reference_comes_with_its_text(open_library: OpenLibrary) -> None:
    """retrieval.md V7: the second of two twins, delivered again and again, never refers to itself."""
    memory = open_library(config=Config(session=SessionConfig(max_ids=1)))
    memory.save_many(twins(["a", "b"]))
    assert shown(memory, "a") is None
    for _ in range(3):
        assert shown(memory, "b") == ("a", (0, 120))
        assert shown(memory, "a") is None


@pytest.mark.parametrize("hide", ["forget", "archive", "revoke"])
def test_never_a_reference_to_a_hidden_event(memory: Memory, hide: str) -> None:
    """retrieval.md V7, V5, F2: what read no longer gives is not referred to; the text comes anew and is then referred to."""
    memory.save_many(twins(["a", "b", "c"]))
    assert shown(memory, "a") is None
    getattr(memory, hide)("a")
    with pytest.raises(NotFound):
        memory.read("a")
    assert shown(memory, "b") is None
    assert shown(memory, "c") == ("b", (0, 120))


def test_a_hidden_event_is_not_referred_to_within_one_answer(memory: Memory) -> None:
    """retrieval.md V7: the first of an answer stands in for the forgotten one that the session knew."""
    memory.save_many(twins(["a", "b", "c"], written_at=START))
    assert shown(memory, "a") is None
    memory.forget("a")
    assert quotes(memory.search(written_from="2000-01-01")) == {"b": None, "c": ("b", (0, 120))}


def test_a_reference_leads_to_the_quoted_text_after_an_update(memory: Memory) -> None:
    """retrieval.md V5: read of the referred range gives the quoted text, so an event whose text changed is no target."""
    memory.save_many(twins(["a", "b"]))
    assert shown(memory, "a") is None
    memory.save(Event(id="a", summary="s a", content="全新的原文。" * 60, concepts=("k a",)))
    quote = shown(memory, "b")
    if quote is not None:
        target, (start, end) = quote
        assert memory.read(target, start=start, limit=end - start).text == HEAD


def test_a_superseded_event_may_be_referred_to(memory: Memory) -> None:
    """retrieval.md V5, F2: a superseded event is still readable, so the reference holds what it promises."""
    memory.save_many(twins(["a", "b"]))
    assert shown(memory, "a") is None
    memory.supersede("a", by="b")
    quote = shown(memory, "b")
    assert quote == ("a", (0, 120))
    assert memory.read("a", limit=120).text == HEAD


def test_reset_forgets_the_excerpts(memory: Memory) -> None:
    """retrieval.md V5, H6: after reset_seen the text is given again."""
    memory.save_many(twins(["a", "b"]))
    assert shown(memory, "a") is None
    assert shown(memory, "b", reset_seen=True) is None


def test_references_stand_for_the_excerpt_of_the_question(open_library: OpenLibrary) -> None:
    """retrieval.md V5, V1: what is compared is the text that was delivered, not the events' heads."""
    embedder = TableEmbedder(dimension=2)
    memory = open_library(embedder=embedder)
    tail = "needle " + "".join(chr(0x6000 + 3 * n) for n in range(113))
    for name in ("a", "b"):
        memory.save(Event(id=name, summary=f"s {name}", content=f"{name * 300} {tail}", concepts=(f"k {name}",)))
    first = memory.search("needle", entity="k a")
    second = memory.search("needle", entity="k b")
    check_exact(memory, first)
    excerpt = excerpt_of(first)
    assert "needle" in excerpt.text
    if excerpt.text == tail:
        assert quotes(second) == {"b": ("a", tuple(excerpt.range))}
    else:
        assert quotes(second) == {"b": None}
        assert excerpt_of(second).text != excerpt.text


def test_old_excerpts_are_dropped_first(open_library: OpenLibrary, clock: Clock) -> None:
    """retrieval.md H3, V5: beyond max_excerpts the oldest excerpt goes, and its text may be delivered again."""
    memory = open_library(config=Config(session=SessionConfig(max_excerpts=3)))
    memory.save_many(twins(["a", "b", "c"]))
    memory.save_many([Event(id=f"z{n}", summary="z", content=f"z{n}", concepts=(f"k z{n}",)) for n in range(3)])
    assert shown(memory, "a") is None
    for n in range(2):
        clock.forward(seconds=1)
        assert shown(memory, f"z{n}") is None
    assert shown(memory, "b") == ("a", (0, 120))
    clock.forward(seconds=1)
    assert shown(memory, "z2") is None
    assert shown(memory, "c") is None


def test_an_excerpt_is_as_old_as_its_delivery(memory: Memory, clock: Clock) -> None:
    """retrieval.md V7, H1: each excerpt has its own 15 minutes."""
    memory.save_many([*twins(["a", "b"]), *twins(["x", "y"], head=HEAD[::-1])])
    assert shown(memory, "a") is None
    clock.forward(minutes=10)
    assert shown(memory, "x") is None
    clock.forward(minutes=5)
    assert shown(memory, "b") is None
    assert shown(memory, "y") == ("x", (0, 120))
    assert clock() - START == timedelta(minutes=15)
