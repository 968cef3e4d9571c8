"""Write the tables of benchmarks/README.md from benchmarks/results/*.json: ``python -m benchmarks.report``.

A table stands between ``<!-- begin NAME -->`` and ``<!-- end NAME -->``. A test fails where a table is not what the results say.
"""

import json
import re
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from benchmarks.record import RESULTS

README = Path(__file__).parent / "README.md"
PRODUCT = "+ single Han characters (the product)"
FORMS = ("plain coverage", "+ IDF", "+ stems", "+ saturation", PRODUCT, "+ best single chunk")
CORPORA = ("locomo sessions", "locomo turns", "novella", "memories")


def result(name: str) -> Any:
    """Return a stored result."""
    return json.loads((RESULTS / f"{name}.json").read_text("utf-8"))


def table(head: Iterable[str], rows: Iterable[Iterable[object]]) -> str:
    """Return a Markdown table."""
    cells = [list(map(str, head)), *(list(map(str, row)) for row in rows)]
    lines = ["| " + " | ".join(row) + " |" for row in cells]
    return "\n".join([lines[0], "| --- " + "| --: " * (len(cells[0]) - 1) + "|", *lines[1:]])


def three(figures: Iterable[float]) -> str:
    """Return recall_any@4 / MRR / hit@1."""
    return " / ".join(f"{value:.3f}".removeprefix("0") for value in figures)


def curve(name: str, part: str) -> dict[tuple[str, int], list[float]]:
    """Return a form's figures by corpus and weight."""
    return {(row["corpus"], row["weight"]): row[part] for row in result("quality")["curves"] if row["form"] == name}


def weights() -> str:
    """The weight's curve on every corpus, all questions."""
    own = curve(PRODUCT, "all")
    steps = sorted({weight for _, weight in own})
    return table(["weight × 61", *CORPORA], [[step, *(three(own[corpus, step]) for corpus in CORPORA)] for step in steps])


def rule() -> str:
    """The objective of the rule on both halves, and the paired difference to 8/61 with its standard error."""
    own = result("quality")["rule"][PRODUCT]
    rows = [
        [
            step,
            f"{own['objective'][step]:.4f}",
            f"{own['difference to 8/61'][step]:+.4f} ± {own['its standard error'][step]:.4f}",
            f"{own['objective on the reporting half'][step]:.4f}",
        ]
        for step in own["objective"]
    ]
    return table(["weight × 61", "tuning half", "difference to 8", "reporting half"], rows)


def parts() -> str:
    """What each part of the coverage adds, LoCoMo sessions and the novella, at 4/61 and 8/61."""
    rows = []
    for form in FORMS:
        own = curve(form, "all")
        both = [own[corpus, step] for corpus in ("locomo sessions", "novella") for step in (4, 8)]
        rows.append([form, *map(three, both)])
    none = curve(PRODUCT, "all")
    rows.insert(0, ["RRF alone", *(three(none[corpus, 0]) for corpus in ("locomo sessions", "novella") for _ in (4, 8))])
    return table(["form", "sessions at 4", "sessions at 8", "novella at 4", "novella at 8"], rows)


def conversations() -> str:
    """Each conversation by itself, a session as one event."""
    rows = [row for row in result("quality")["libraries"] if row["corpus"] == "locomo sessions"]
    return table(["conversation", "questions", "at 4", "at 8", "at 16"], [
        [row["library"], row["questions"], three(row["4"]), three(row["8"]), three(row["16"])] for row in rows
    ])  # fmt: skip


def excerpts() -> str:
    """How often the excerpt touches the evidence of a given gold event, the share shown, and how often it begins a sentence."""
    own = result("quality")["excerpts"]
    variants = list(dict.fromkeys(row["variant"] for row in own))
    by = {(row["variant"], row["corpus"]): row["all"] for row in own}
    rows = [
        [variant, *(three(by[variant, corpus]) for corpus in ("locomo sessions", "novella", "memories"))] for variant in variants
    ]
    return table(["window", "LoCoMo sessions", "novella", "memories"], rows)


def latency() -> str:
    """What a search costs above the bare products of the same matrices, in milliseconds."""
    rows = []
    for size in result("latency")["sizes"]:
        search = size["search ms"]
        kinds = [
            f"{search[kind]['p50']:.2f} (+{search[kind]['above floor p50']:.2f})" for kind in ("plain", "filtered", "excluded")
        ]
        rows.append([size["shape"], f"{size['chunks']:,}", f"{search['floor']['p50']:.2f}", *kinds])
    return table(["events are", "chunks", "floor p50", "search p50", "with filters", "with exclusions"], rows)


def library() -> str:
    """Saving without a model, opening with the index, and resident memory."""
    rows = [
        [
            size["shape"],
            f"{size['chunks']:,}",
            size["save"]["chunks per second"],
            f"{size['open']['seconds']:.2f} s",
            size["open"]["bytes per chunk"],
            size["open"]["of its vector"],
        ]
        for size in result("latency")["sizes"]
    ]
    return table(["events are", "chunks", "chunks saved per second", "open and load", "bytes per chunk", "of its vector"], rows)


def peers() -> str:
    """The same questions and vectors through other pipelines."""
    rows = [
        [corpus, name, *figures.values()] for corpus, own in result("peers")["corpora"].items() for name, figures in own.items()
    ]
    return table(["corpus", "pipeline", "recall_any@4", "MRR@4", "hit@1", "p50 ms"], rows)


KINDS = ("plain", "filtered", "excluded")


def server() -> str:
    """A search on a Neo4j server beside the same one on the embedded store, and the difference in round trips."""
    rows = []
    for size in result("neo4j")["sizes"]:
        search = size["search ms"]
        pairs = [
            f"{search[f'sqlite {kind}']['p50']:.2f} → {search[f'neo4j {kind}']['p50']:.2f} "
            f"(+{search[f'neo4j {kind}']['round trips above sqlite p50']:.1f})"
            for kind in KINDS
        ]
        others = [f"{search[name]['p50']:.1f}" for name in ("cypher cosine", "graphrag hybrid")]
        rows.append([size["shape"], f"{size['chunks']:,}", f"{search['round trip']['p50']:.2f}", *pairs, *others])
    head = ["events are", "chunks", "round trip", "plain", "with filters", "with exclusions", "Cypher cosine", "graphrag hybrid"]
    return table(head, rows)


def server_library() -> str:
    """Saving on a server without a model, and opening with the index."""
    rows = [
        [size["shape"], f"{size['chunks']:,}", size["chunks saved per second"], f"{size['open and load s']:.2f} s"]
        for size in result("neo4j")["sizes"]
    ]
    return table(["events are", "chunks", "chunks saved per second", "open and load"], rows)


def server_quality() -> str:
    """What the pipelines on a server find."""
    rows = [
        [corpus, name, *figures.values()] for corpus, own in result("neo4j")["quality"].items() for name, figures in own.items()
    ]
    return table(["corpus", "pipeline", "recall_any@4", "MRR@4", "hit@1", "p50 ms"], rows)


def approximate() -> str:
    """The share of the exact answer that is found where the server's vector index proposes the candidates."""
    own = result("neo4j")["approximate"]
    shares = [f"{share:.3f}" for share in own["recall"].values()]
    times = [f"{own['ms'][name]['p50']:.1f}" for name in ("exact", "approximate")]
    head = ["chunks", "questions", *own["recall"], "exact ms", "approximate ms"]
    return table(head, [[f"{own['chunks']:,}", own["questions"], *shares, *times]])


TABLES: dict[str, Callable[[], str]] = {
    each.__name__: each
    for each in (
        weights,
        rule,
        parts,
        conversations,
        excerpts,
        latency,
        library,
        peers,
        server,
        server_library,
        server_quality,
        approximate,
    )
}


def written(text: str) -> str:
    """Return a text with every table brought up to date."""
    for name, make in TABLES.items():
        begin, end = f"<!-- begin {name} -->", f"<!-- end {name} -->"
        pattern = re.compile(f"{begin}.*?{end}", re.DOTALL)
        text = pattern.sub(lambda _, begin=begin, end=end, make=make: f"{begin}\n{make()}\n{end}", text)  # type: ignore[misc]
    return text


if __name__ == "__main__":
    README.write_text(written(README.read_text("utf-8")), "utf-8")
