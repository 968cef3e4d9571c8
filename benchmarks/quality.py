"""How good are ranking and excerpts, what does each part of the coverage add, and which weight follows from a stated rule?

Corpora: LoCoMo conversations, each its own library, with a session or a turn as one event; the project's novella and memories.
Only answerable questions count. recall_any@4 is the share of questions with a gold event among the four delivered; MRR and
hit@1 count the first gold event in the delivered order followed by the rest by fused score. Every ranking is the product's own
(``recall_candidates`` once per question, ``rank`` for every form and weight).

The rule, stated before measuring: questions are split by BLAKE2b of library name and question text into a tuning and a
reporting half. The objective is the mean over two corpora (LoCoMo sessions, novella) of (recall_any@4 + MRR) / 2 on the tuning
half. Among the weights within .005 of the best, the one nearest to 8/61 is taken. How sure that is stands beside it: the paired
difference of the objective to 8/61 with its standard error. Where a window begins is chosen by the mean touch rate of the two
corpora on the tuning half, and at a sentence or turn where that loses nothing.

    python -m benchmarks.quality [--locomo PATH] [--cache FILE] [--out FILE]
"""

import argparse
import hashlib
import json
from collections.abc import Sequence
from contextlib import ExitStack, nullcontext
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.locomo import Library, Question, read_locomo
from benchmarks.quality_forms import (
    BEGINS,
    FUNCTION_SETS,
    Extract,
    Floats,
    Form,
    beginning,
    bigram_terms,
    full_terms,
    idf,
    long_stop_list,
    most_occurrences,
    plain,
    plain_terms,
    saturated,
    scaled_to_best,
    unseen_bigrams_out,
    with_best_chunk,
)
from benchmarks.quality_runs import CONFIG, READINGS, UNIT, Run
from benchmarks.record import RESULTS, run_record
from workbench import fixtures
from workbench.core.embedders import CachedEmbedder, E5Embedder, Embedder

WEIGHTS = (0, 1, 2, 4, 6, 8, 12, 16, 24)
START, TOLERANCE = 8, 0.005
PRODUCT = "+ single Han characters (the product)"
STEPS: dict[str, tuple[Extract, Form]] = {
    "plain coverage": (plain_terms, plain),
    "+ IDF": (plain_terms, idf),
    "+ stems": (bigram_terms, idf),
    "+ saturation": (bigram_terms, saturated),
    PRODUCT: (full_terms, saturated),
    "+ best single chunk": (full_terms, with_best_chunk),
}
OTHERS: dict[str, tuple[Extract, Form]] = {
    "longer stop list": (long_stop_list, saturated),
    "unseen bigrams out of the divisor": (full_terms, unseen_bigrams_out),
    "scaled to the best candidate": (full_terms, scaled_to_best),
}
SESSIONS, TURNS, DECIDING = "locomo sessions", "locomo turns", ("locomo sessions", "novella")
Runs = dict[str, list[Run]]
Figures = dict[str, dict[str, Floats]]
"""By form and corpus: shape (weights, questions, 3)."""


def fixture_library(part: str) -> Library:
    """Return a part of the fixtures with its answerable questions."""
    questions = []
    for each in fixtures.load_questions(part):
        gold: dict[str, tuple[tuple[int, int], ...]] = {}
        for found in each.evidence:
            gold[found.event_id] = (*gold.get(found.event_id, ()), (found.start, found.end))
        if gold:
            questions.append(Question(each.text, gold, each.kind))
    return Library(part, tuple(fixtures.load_events(part)), tuple(questions))


def prepare(locomo: Path | None, cache: Path, stack: ExitStack) -> Runs:
    """Return every corpus as its prepared libraries."""
    shipped = stack.enter_context(fixtures.embedder())
    runs = {part: [Run(fixture_library(part), shipped)] for part in fixtures.PARTS}
    if locomo:
        cache.parent.mkdir(parents=True, exist_ok=True)
        embedder: Embedder = stack.enter_context(CachedEmbedder(E5Embedder(), cache))
        for name, unit in ((SESSIONS, "session"), (TURNS, "turn")):
            runs[name] = [Run(library, embedder) for library in read_locomo(locomo, unit=unit)]
    return runs


def halves_of(runs: Sequence[Run]) -> Floats:
    return np.concatenate([run.halves for run in runs])


def measure_forms(runs: Runs) -> Figures:
    """Return the figures of every form on every corpus; the other forms are left out for turns, where they cost most."""
    figures: Figures = {}
    for name, (extract, form) in (STEPS | OTHERS).items():
        corpora = [corpus for corpus in runs if corpus != TURNS or name in STEPS]
        figures[name] = {
            corpus: np.concatenate([run.rankings(extract, form, WEIGHTS) for run in runs[corpus]], axis=1) for corpus in corpora
        }
    return figures


def apply_rule(own: dict[str, Floats], runs: Runs) -> dict[str, Any]:
    """Return the rule's weight for one form, with every weight's objective and its paired difference to the start."""
    tuned, reported = (
        [own[corpus][:, halves_of(runs[corpus]) == number, :2].mean(axis=2) for corpus in DECIDING] for number in (0, 1)
    )
    objective, seen = (np.mean([each.mean(axis=1) for each in part], axis=0) for part in (tuned, reported))
    near = [weight for weight, value in zip(WEIGHTS, objective, strict=True) if value >= objective.max() - TOLERANCE]
    differences = [each - each[WEIGHTS.index(START)] for each in tuned]
    errors = np.sqrt(sum(each.var(axis=1) / each.shape[1] for each in differences)) / len(tuned)
    return {
        "weight": min(near, key=lambda weight: (abs(weight - START), weight)),
        "objective": by_weight(objective),
        "difference to 8/61": by_weight(np.mean([each.mean(axis=1) for each in differences], axis=0)),
        "its standard error": by_weight(errors),
        "objective on the reporting half": by_weight(seen),
    }


def by_weight(values: Floats) -> dict[int, float]:
    return dict(zip(WEIGHTS, values.round(4).tolist(), strict=True))


def means(figures: Floats) -> list[float]:
    return [round(float(value), 3) for value in figures.mean(axis=0)]


def curves(figures: Figures, runs: Runs) -> list[dict[str, Any]]:
    """Return one row per form, corpus and weight: recall_any@4, MRR and hit@1 of all questions and of each half."""
    rows = []
    for form, own in figures.items():
        for corpus, table in own.items():
            halves = halves_of(runs[corpus])
            for weight, each in zip(WEIGHTS, table, strict=True):
                parts = {"all": means(each), "tuning": means(each[halves == 0]), "reporting": means(each[halves == 1])}
                rows.append({"form": form, "corpus": corpus, "weight": weight, **parts})
    return rows


def by_conversation(figures: Figures, runs: Runs, weights: Sequence[int]) -> list[dict[str, Any]]:
    """Return the product form's figures per library."""
    rows = []
    for corpus in runs:
        borders = np.cumsum([0, *(len(run.library.questions) for run in runs[corpus])])
        for run, start, end in zip(runs[corpus], borders, borders[1:], strict=False):
            own = {str(weight): means(figures[PRODUCT][corpus][WEIGHTS.index(weight), start:end]) for weight in weights}
            rows.append({"corpus": corpus, "library": run.library.name, "questions": int(end - start), **own})
    return rows


def measure_excerpts(runs: Runs) -> list[dict[str, Any]]:
    """Return per variant and corpus: touch rate, share of the evidence shown, share that begins at a sentence or turn."""
    variants: dict[str, tuple[Any, dict[str, Any]]] = {
        "inside the best chunk": (nullcontext, {"inside_chunk": True}),
        "most distinct terms": (nullcontext, {"weigh": "distinct"}),
        "the product": (nullcontext, {}),
        **{f"begins {name}": ((lambda begin=begin: beginning(begin)), {}) for name, begin in BEGINS.items()},
        "of equal windows most occurrences": (most_occurrences, {}),
    }
    rows = []
    for name, (varied, options) in variants.items():
        for corpus in [corpus for corpus in runs if corpus != TURNS]:
            with varied():
                cases = np.concatenate([run.excerpts(**options) for run in runs[corpus]])
            parts = {"all": cases, "tuning": cases[cases[:, 0] == 0], "reporting": cases[cases[:, 0] == 1]}
            rows.append(
                {"variant": name, "corpus": corpus, "cases": len(cases), **{key: means(part[:, 1:]) for key, part in parts.items()}}
            )
    return rows


def measure_functions(runs: Runs) -> list[dict[str, Any]]:
    """Return what other sets of function characters do on the Chinese corpora."""
    weights = (4, 8, 16)
    rows = []
    for name, extract in FUNCTION_SETS.items():
        for corpus in fixtures.PARTS:
            table, halves = runs[corpus][0].rankings(extract, saturated, weights), runs[corpus][0].halves
            for weight, each in zip(weights, table, strict=True):
                rows.append(
                    {"characters": name, "corpus": corpus, "weight": weight, "tuning": means(each[halves == 0]), "all": means(each)}
                )
    return rows


def check_readings(runs: Runs) -> dict[str, list[float]]:
    """Return LoCoMo sessions by RRF alone under each reading of the order: what the harness is checked against."""
    return {
        reading: means(np.concatenate([run.rankings(full_terms, saturated, [0], reading)[0] for run in runs[SESSIONS]]))
        for reading in READINGS
    }


def data_hashes(locomo: Path | None) -> dict[str, str]:
    folder = fixtures.directory()
    files = sorted(path for path in folder.rglob("*") if path.suffix in (".jsonl", ".md"))
    joined = b"".join(path.read_bytes() for path in files)
    hashes = {"fixtures": hashlib.sha256(joined).hexdigest()}
    return hashes | ({"locomo": hashlib.sha256(locomo.read_bytes()).hexdigest()} if locomo else {})


def print_table(title: str, rows: Sequence[dict[str, Any]]) -> None:
    """Print rows of one shape as a Markdown table."""
    print(f"\n{title}\n\n| {' | '.join(rows[0])} |\n|{' --- |' * len(rows[0])}")
    for row in rows:
        print(f"| {' | '.join(' / '.join(map(str, each)) if isinstance(each, list) else str(each) for each in row.values())} |")


def main() -> None:
    """Measure, print Markdown tables and write the JSON."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--locomo", type=Path, help="a LoCoMo JSON file; without it only the fixtures are measured")
    parser.add_argument("--cache", type=Path, default=Path("build/vectors.db"), help="where LoCoMo's vectors are kept")
    parser.add_argument("--out", type=Path, default=RESULTS / "quality.json")
    options = parser.parse_args()
    with ExitStack() as stack:
        runs = prepare(options.locomo, options.cache, stack)
    figures = measure_forms(runs)
    counts = {
        corpus: {
            "events": sum(len(run.ids) for run in own),
            "questions": len(halves_of(own)),
            "tuning": int((halves_of(own) == 0).sum()),
        }
        for corpus, own in runs.items()
    }
    rules = {form: apply_rule(own, runs) for form, own in figures.items()} if options.locomo else {}
    shown = sorted({4, START, round(CONFIG.coverage_weight * UNIT), *([rules[PRODUCT]["weight"]] if rules else [])})
    result: dict[str, Any] = {
        "record": run_record(
            data=data_hashes(options.locomo), counts=counts, weights_in="1/61", figures=["recall_any@4", "MRR", "hit@1"]
        ),
        "rule": rules,
        "readings": check_readings(runs) if options.locomo else {},
        "curves": curves(figures, runs),
        "libraries": by_conversation(figures, runs, shown),
        "excerpts": measure_excerpts(runs),
        "function_characters": measure_functions(runs),
    }
    told = [row for row in result["curves"] if row["form"] == PRODUCT or row["weight"] in (2, 4, START)]
    for corpus in runs:
        print_table(f"{corpus}: recall_any@4 / MRR / hit@1", [row for row in told if row["corpus"] == corpus])
    print_table("Libraries: recall_any@4 / MRR / hit@1 by weight", result["libraries"])
    print_table("Excerpts: touched / share shown / begins at a sentence or turn", result["excerpts"])
    print_table("Function characters", result["function_characters"])
    for form, rule in rules.items():
        print(f"\n{form}: the rule takes {rule['weight']}/61; {json.dumps(rule)}")
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(json.dumps(result, indent=1, ensure_ascii=False) + "\n", "utf-8")


if __name__ == "__main__":
    main()
