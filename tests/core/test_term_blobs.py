"""Stored terms: what is packed comes back, and wanted terms are counted as a plain count does (Q5)."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from workbench.core.stores.term_blobs import COUNT_LIMIT, frequencies_in, pack, unpack
from workbench.core.text import TermCounts, WantedKeys, count_terms, query_terms

TEXTS = st.text("的记忆检索ab1 é한글ไทย\U00020000\U0002a6d6かなx", max_size=60)


@given(TEXTS)
def test_packed_terms_come_back(text: str) -> None:
    terms = count_terms(text)
    again = unpack(*pack(terms))
    assert again.keys.tolist() == terms.keys.tolist()
    assert again.counts.tolist() == terms.counts.tolist()


def test_narrow_keys_take_half_the_room() -> None:
    """A pair of characters takes 4 bytes, a word or a character beyond the Basic Multilingual Plane 8."""
    for text, sizes in (("记", (4, 2)), ("memory", (8, 2)), ("\U00020000", (8, 2)), ("记忆", (12, 6))):
        assert tuple(map(len, pack(count_terms(text)))) == sizes


def test_a_count_is_stored_up_to_its_limit() -> None:
    keys, counts = pack(TermCounts(np.array([ord("记")], np.uint64), np.array([70_000], np.uint32)))
    assert unpack(keys, counts).counts.tolist() == [COUNT_LIMIT]


@given(st.lists(TEXTS, max_size=6), TEXTS)
def test_frequencies_are_those_of_a_plain_count(texts: list[str], question: str) -> None:
    """Also for events without a row, and whatever the order of rows."""
    keys, counted = query_terms(question).keys, [count_terms(text) for text in texts]
    rows = [(f"e{number}", terms.length, *pack(terms)) for number, terms in enumerate(counted)]
    found, lengths = frequencies_in(rows[::-1], [*(row[0] for row in rows), "absent"], keys)
    expected = [
        [dict(zip(terms.keys.tolist(), terms.counts.tolist(), strict=True)).get(key, 0) for key in keys.tolist()]
        for terms in counted
    ]
    assert found.tolist() == [*expected, [0] * keys.size]
    assert lengths.tolist() == [*(terms.length for terms in counted), 0]


@pytest.mark.parametrize("dtype", [np.uint32, np.uint64])
def test_wanted_keys_are_found_in_order_with_their_numbers(dtype: type) -> None:
    generator = np.random.default_rng(1)
    among = generator.integers(0, np.iinfo(dtype).max, 5_000, dtype)
    wanted = among[[70, 3, 4_999]]
    places, numbers = WantedKeys(wanted).find(np.concatenate([among, among[:4]]))
    assert places.tolist() == [3, 70, 4_999, 5_003]
    assert numbers.tolist() == [1, 0, 2, 1]
    assert WantedKeys(wanted[:0]).find(among)[0].size == 0
