"""Every requirement has a test that names it, and every number cited in the code exists."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
REQUIREMENTS = ROOT / "docs" / "requirements"
CITED = re.compile(r"\b[SEQVHFC]\d{1,2}\b")


def numbers(document: str) -> list[str]:
    """Return the requirement numbers that a document defines."""
    return re.findall(r"^- \*\*([A-Z]\d+)\*\*", (REQUIREMENTS / document).read_text("utf-8"), re.MULTILINE)


def sources(folder: str) -> str:
    return "\n".join(path.read_text("utf-8") for path in sorted((ROOT / folder).rglob("*.py")) if path != Path(__file__))


@pytest.mark.parametrize("number", numbers("retrieval.md"))
def test_every_requirement_is_named_by_a_test(number: str) -> None:
    assert re.search(rf"\b{number}\b", sources("tests")), f"no test names retrieval.md {number}"


def test_the_list_is_read_whole() -> None:
    """The numbers of each letter count up from 1 without a gap, so that the check above leaves none out."""
    found = numbers("retrieval.md")
    for letter in "SEQVHFC":
        own = sorted(int(number[1:]) for number in found if number[0] == letter)
        assert own == list(range(1, len(own) + 1)), letter
    assert len(found) == len(set(found)) > 50


def test_the_code_cites_numbers_that_exist() -> None:
    known = {*numbers("retrieval.md"), *numbers("catalog.md")}
    strange = set(CITED.findall(sources("workbench"))) - known - {"E5"}
    assert not strange
