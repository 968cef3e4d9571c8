"""A name as only a hidden event spelled it shows nowhere (retrieval.md Q2, Q14, C1; faults: hidden text that still shows)."""

import json

import pytest

from tests.support import TableEmbedder
from workbench import Event, InvalidRequest, Memory, open_memory


@pytest.mark.parametrize("hide", ["forget", "archive", "revoke"])
@pytest.mark.parametrize("first", [True, False], ids=["hidden before", "hidden after"])
def test_the_spelling_of_a_hidden_event_shows_nowhere(memory: Memory, hide: str, first: bool) -> None:
    """retrieval.md Q14, C1: names are one whatever their case and width, and are shown as a visible event spells them."""
    memory.save(Event(id="h", summary="hidden", concepts=["SeCrEt Ｐｌａｎ"], persons=["DR EVIL"]))
    if first:
        getattr(memory, hide)("h")
    memory.save(Event(id="v", summary="visible", concepts=["secret plan"], persons=["dr evil"]))
    if not first:
        getattr(memory, hide)("h")
    answer = memory.search("visible")
    shown = [
        answer.to_dict(),
        memory.tools.render(answer),
        memory.search("secret plan", label="Concept").to_dict(),
        memory.search("dr evil", label="Person").to_dict(),
    ]
    text = json.dumps(shown, ensure_ascii=False)
    assert "secret plan" in text
    assert "dr evil" in text
    assert "SeCrEt" not in text
    assert "DR EVIL" not in text


def test_an_event_that_is_saved_again_is_shown_as_it_spells_now(memory: Memory) -> None:
    """retrieval.md S5, C1."""
    memory.save(Event(id="a", summary="a", concepts=["Foo BAR"]))
    memory.save(Event(id="a", summary="a", concepts=["foo bar"]))
    assert [concept.name for concept in memory.search("a").concepts] == ["foo bar"]
    assert [node.name for node in memory.search("foo", label="Concept").results] == ["foo bar"]  # type: ignore[union-attr]


def test_what_is_no_embedder_is_refused_when_opening() -> None:
    """api.md, Opening a library: the error says what an embedder is."""
    with pytest.raises(InvalidRequest, match="embed_documents"):
        open_memory("sqlite://", embedder="hashing")  # type: ignore[arg-type]
    open_memory("sqlite://", embedder=TableEmbedder()).close()
