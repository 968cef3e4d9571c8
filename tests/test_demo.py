"""The demo does the whole main job and says so in both languages."""

from pathlib import Path

import pytest

import workbench
from workbench import demo, fixtures


@pytest.mark.parametrize("locale", ["zh", "en"])
def test_the_demo_searches_and_follows_up(locale: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    library = f"sqlite:///{tmp_path / 'demo.db'}"
    with fixtures.embedder() as embedder:
        assert demo.run(library=library, locale=locale, embedder=embedder) == 0
        shown = "".join(capsys.readouterr().out.split())
        for question in demo.QUESTIONS:
            assert "".join(question.split()) in shown
        assert "RRF" in shown
        assert "workbenchsearch" in shown
        with workbench.open_memory(library, embedder=embedder, read_only=True) as memory:
            assert memory.stats().events == len(fixtures.load_events())
            assert memory.verify() == []


def test_the_demo_runs_twice_on_one_library(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Saving the same texts again updates them; the answers are the same."""
    library, shown = f"sqlite:///{tmp_path / 'demo.db'}", []
    with fixtures.embedder() as embedder:
        for _ in range(2):
            demo.run(library=library, locale="en", embedder=embedder)
            shown.append([line for line in capsys.readouterr().out.splitlines() if "chunks of original text" not in line])
    assert shown[0] == shown[1]


def test_an_unknown_locale_is_refused() -> None:
    with pytest.raises(workbench.InvalidRequest, match="zh or en"):
        demo.run(locale="fr")
