"""Terms: folding, scripts, stems, keys (retrieval.md Q5, Q19)."""

import unicodedata
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from workbench.core.text import (
    FUNCTION_CHARACTERS,
    STOP_WORDS,
    TERMS_VERSION,
    count_terms,
    fold,
    query_terms,
    sentence_starts,
    stem,
    term_positions,
)

TEXTS = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=60)


@pytest.mark.parametrize(
    ("text", "terms"),
    [
        ("如何提高检索质量", "如 如何 何提 提 提高 高 高检 检 检索 索 索质 质 质量 量"),
        ("Neo4j部署v2.3", "neo4j 部 部署 署 v2 3"),
        ("The deployments were deployed", "deploy"),
        ("ＡＢＣ　１２", "abc 12"),
        ("Cafe\u0301 Café", "café"),
        ("日本語の食べ物", "日 日本 本 本語 語 語の の食 食 食べ べ物 物"),
        ("ｶﾞﾗｽ", "ガラ ラス"),
        ("한국어 말", "한국 국어 말"),
        ("สวัสดี", "สว วั ัส สด ดี"),
        ("မြန်မာ", "မြ ြန န် ်မ မာ"),
        ("ищущие ищу", "ищущ ищ"),
        ("don't it's", ""),
        ("？！… 🚀 的", ""),
        ("𠮷野家", "𠮷 𠮷野 野 野家 家"),
    ],
)
def test_the_terms_of_each_script(text: str, terms: str) -> None:
    """retrieval.md Q5 and Q19, faults BL-24."""
    assert " ".join(query_terms(text).terms) == terms


def test_function_characters_count_in_pairs_only() -> None:
    """retrieval.md Q5: the pair keeps them, the single character is left out."""
    assert query_terms("我的书").terms == ("我的", "的书", "书")
    assert all(not query_terms(char).terms for char in FUNCTION_CHARACTERS)
    assert all(not query_terms(word).terms for word in STOP_WORDS)


def test_a_lone_character_is_a_term() -> None:
    """retrieval.md Q5, Q19: a run of one kana, hangul or Thai character would have no pair."""
    assert query_terms("か 한 ก").terms == ("か", "한", "ก")


def test_a_word_is_no_part_of_a_longer_one() -> None:
    """retrieval.md Q5: matching is by term, never by substring."""
    assert not np.isin(query_terms("cat").keys, count_terms("concatenate catalogue").keys).any()


@pytest.mark.parametrize(
    ("word", "stemmed"), [("running", "run"), ("v2", "v2"), ("naïve", "naïve"), ("книги", "книг"), ("běžící", "běžící")]
)
def test_words_are_stemmed_by_script_where_it_is_plain(word: str, stemmed: str) -> None:
    """retrieval.md Q5: else unstemmed."""
    assert stem(word) == stemmed


@given(TEXTS)
def test_folding_keeps_or_maps_every_position(text: str) -> None:
    """retrieval.md V1: a place in the folded text leads back to the source that it was folded from."""
    folded = fold(text)
    if folded.starts is None or folded.ends is None:
        assert len(folded.text) == len(text)
        return
    assert len(folded.text) == len(folded.starts) == len(folded.ends)
    assert (np.diff(folded.starts) >= 0).all()
    assert all(0 <= start < end <= len(text) for start, end in zip(folded.starts, folded.ends, strict=True))


@given(TEXTS)
def test_composed_and_decomposed_texts_have_the_same_terms(text: str) -> None:
    """retrieval.md Q5: terms are NFKC-folded."""
    composed, apart = count_terms(unicodedata.normalize("NFC", text)), count_terms(unicodedata.normalize("NFD", text))
    assert composed.keys.tolist() == apart.keys.tolist()
    assert composed.counts.tolist() == apart.counts.tolist()


@given(st.lists(TEXTS, max_size=4))
def test_counts_add_up_over_the_fields(fields: list[str]) -> None:
    """retrieval.md Q5: no term spans two fields, so together they have what each has."""
    together = count_terms(*fields)
    assert together.length == sum(count_terms(field).length for field in fields)
    assert (np.diff(together.keys.astype(object)) > 0).all()


@given(TEXTS)
def test_every_occurrence_lies_in_the_text(text: str) -> None:
    found = term_positions(fold(text).text)
    assert (found.starts < found.ends).all()
    assert ((found.starts >= 0) & (found.ends <= len(fold(text).text))).all()


def test_stemming_is_safe_in_many_threads() -> None:
    """retrieval.md H2: sessions search in parallel; a Snowball stemmer holds the word it works on."""
    words = [
        f"{root}{ending}" for root in ("deploy", "relation", "nation", "hop", "oper") for ending in ("s", "ed", "ing", "ational")
    ]
    alone = {word: stem(word) for word in words}
    with ThreadPoolExecutor(8) as threads:
        for _ in range(20):
            assert dict(zip(words * 20, threads.map(stem, words * 20), strict=True)) == alone


def test_keys_are_part_of_the_file_format() -> None:
    """A change of these numbers needs a migration of every store and a new TERMS_VERSION."""
    assert TERMS_VERSION == 1
    assert query_terms("检 检索 deploy").keys.tolist() == [26816, 56237260066, 32034, 9720654063428654002]


@pytest.mark.parametrize(
    ("text", "starts"),
    [
        ("一。二！“三？”四", [0, 2, 4, 8]),
        ("One. Two! 3.5 is no end. Three", [0, 5, 10, 25]),
        ("a\nb\r\n\nc", [0, 2, 6]),
        ("", []),
    ],
)
def test_sentences_begin_after_their_ends(text: str, starts: list[int]) -> None:
    """retrieval.md V2: an excerpt starts at a sentence or turn where that loses nothing."""
    assert sentence_starts(text, 0, len(text)) == starts
