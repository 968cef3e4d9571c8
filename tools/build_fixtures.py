"""Bring the fixtures' derived parts up to date: the ranges in questions.jsonl and the embeddings in vectors.db.

Run after editing a text or a question: ``python tools/build_fixtures.py``. It needs the ``offline`` extra.
"""

import json
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

from workbench import demo, fixtures, open_memory
from workbench.core.embedders import CachedEmbedder, E5Embedder


def fill_ranges(folder: Path) -> None:
    """Write each quote's range into questions.jsonl; a quote must occur exactly once in its event."""
    contents = {event.id: event.content for event in fixtures.load_events()}
    path, lines = folder / "questions.jsonl", []
    for line in path.read_text("utf-8").splitlines():
        question = json.loads(line)
        for evidence in question["evidence"]:
            content, quote = contents[evidence["event_id"]], evidence["quote"]
            if content.count(quote) != 1:
                sys.exit(f"{question['id']}: the quote occurs {content.count(quote)} times in {evidence['event_id']}")
            evidence["start"] = content.index(quote)
            evidence["end"] = evidence["start"] + len(quote)
        lines.append(json.dumps(question, ensure_ascii=False))
    path.write_text("\n".join(lines) + "\n", "utf-8")


def embed(folder: Path) -> None:
    """Write vectors.db anew: whatever saving the events and asking the questions embeds."""
    with TemporaryDirectory() as scratch:
        fresh = Path(scratch) / "vectors.db"
        with CachedEmbedder(E5Embedder(), fresh) as cached, open_memory("sqlite://", embedder=cached) as memory:
            report = memory.save_many([*fixtures.load_events(), demo.OWN_EVENT], progress=True)
            assert not report.failed, report.failed
            for text in [question.text for question in fixtures.load_questions()] + list(demo.QUESTIONS):
                cached.embed_query(text)
        (folder / "vectors.db").write_bytes(fresh.read_bytes())


if __name__ == "__main__":
    fill_ranges(fixtures.directory())
    embed(fixtures.directory())
