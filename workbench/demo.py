"""The main job on a real text in one command: build a library, ask it, follow up, read on."""

import time
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from workbench import fixtures
from workbench.core.embedders import Embedder
from workbench.core.embedders.cached import CachedEmbedder
from workbench.core.errors import InvalidRequest, ModelUnavailable
from workbench.core.event import Event
from workbench.core.memory import Memory, open_memory
from workbench.core.results import Result, SearchResult
from workbench.core.retrieval.explanation import ExplanationRow

if TYPE_CHECKING:
    from rich.console import Console

DEFAULT_LIBRARY = "sqlite:///demo/memory.db"
QUESTIONS = (
    "黄铜钥匙是用来开什么的？",
    "图书室的钥匙为什么放心托给街坊一把？",
    "Why was the Quaylight release moved, and when did it go out?",
    "谁半夜敲钟通知洪水要来？",
)
"""The last one is followed up: through a concept, to the neighbours, on in the text."""

OWN_EVENT = Event(
    id="note_1",
    title="周五不发布",
    summary="和苏可约定：周五不发布，紧急修复除外。",
    content="苏可：上次周五发布，周六全组都在值班。\n我：那就定下来，周五不发布。紧急修复除外，但要两个人点头。\n苏可：写进发布清单。",
    concepts=("release policy",),
    persons=("苏可",),
    kind="active",
    event_type="decision",
    critical=True,
    written_at=datetime(2026, 5, 12, 9, 30, tzinfo=UTC),
)
"""A note of one's own, as the quickstart saves it."""

_WORDS = {
    "zh": {
        "library": "正在把示例文本存入 {library}：一部中篇小说和一段工作生活的记忆。",
        "shipped": "这台机器没有内置离线模型，改用随附的向量；要用自己的模型：workbench --help 的 --embedder。",
        "live": "第一章现场向量化；其余文本取随附的向量，由同一模型事先算好。",
        "built": "{events} 个事件、{chunks} 个原文分块，用时 {seconds:.1f} 秒；模型 {model}。",
        "question": "问：",
        "original": "原文",
        "why": "为什么排在这里：",
        "ranks": "摘要路第 {summary}，原文路第 {source}；"
        "RRF {rrf:.4f} + 覆盖 {coverage:.2f}×{weight:.3f} = {fused:.4f}；MMR 得分 {mmr:.3f}",
        "none": "—",
        "expand": "沿概念「{concept}」追查（同一游标，不再调用模型）",
        "nearby": "{id} 的前后记录",
        "read": "继续阅读 {id} 的原文，从 {start} 起",
        "next": "接着可以试试：",
        "again": "workbench search 黄铜钥匙是用来开什么的？",
        "listed": "workbench search --entity Quaylight --once    （按实体列出，不需要模型）",
        "ask": "workbench search    （交互：read、expand、nearby、explain）",
        "notebook": "jupyter lab notebooks/01_quickstart.ipynb",
    },
    "en": {
        "library": "Saving the sample texts to {library}: a Chinese novella and the memories of a working life.",
        "shipped": "There is no bundled offline model for this machine; the shipped embeddings serve instead. "
        "To bring a model: workbench --help, at --embedder.",
        "live": "Chapter one is embedded now; the other texts take their shipped vectors, made by the same model.",
        "built": "{events} events, {chunks} chunks of original text in {seconds:.1f} s; model {model}.",
        "question": "Q: ",
        "original": "original",
        "why": "why it ranks here: ",
        "ranks": "summary route #{summary}, source route #{source}; "
        "RRF {rrf:.4f} + coverage {coverage:.2f}×{weight:.3f} = {fused:.4f}; MMR score {mmr:.3f}",
        "none": "—",
        "expand": "Following the concept “{concept}” (same cursor, no model is called again)",
        "nearby": "The records around {id}",
        "read": "Reading on in {id} from {start}",
        "next": "Try next:",
        "again": "workbench search --locale en 'Why was the Quaylight release moved?'",
        "listed": "workbench search --locale en --entity Quaylight --once    (a listing, which needs no model)",
        "ask": "workbench search    (interactive: read, expand, nearby, explain)",
        "notebook": "jupyter lab notebooks/01_quickstart.ipynb",
    },
}
_READ_ON = 240
_LIVE = "gauge_ch01_"


def run(*, library: str | None = None, locale: str = "zh", embedder: Embedder | None = None) -> int:
    """Run the demo.

    :param library: the address to build in; None means ``sqlite:///demo/memory.db``.
    :param locale: ``zh`` or ``en``, the language of the narration.
    :param embedder: None means the bundled offline model, and the shipped embeddings where there is none for this machine.
    :return: the exit code.
    :raises InvalidRequest: if the locale is not known.
    """
    if locale not in _WORDS:
        raise InvalidRequest("locale is not known; use zh or en.")
    from rich.console import Console

    console, words, library = Console(highlight=False), _WORDS[locale], library or DEFAULT_LIBRARY
    live = embedder or _offline(console, words)
    _build(library, live, console, words)
    with open_memory(library, embedder=live) as memory:
        answer = None
        for question in QUESTIONS:
            console.print(f"\n[bold]{words['question']}{question}[/bold]")
            answer = memory.search(question, session="demo", explain=True)
            _show(answer, memory, console, words, most=2)
        assert answer is not None
        _follow(answer, memory, console, words)
    console.print(f"\n{words['next']}")
    asks = (words["listed"],) if isinstance(live, CachedEmbedder) else (words["again"], words["ask"])
    for command in (*asks, words["notebook"]):
        console.print(f"  {command}", markup=False)
    return 0


def _offline(console: "Console", words: dict[str, str]) -> Embedder:
    from workbench.core.embedders import E5Embedder

    try:
        return E5Embedder()
    except ModelUnavailable:
        console.print(words["shipped"])
        return fixtures.embedder()


def _build(library: str, live: Embedder, console: "Console", words: dict[str, str]) -> None:
    console.print(words["library"].format(library=library))
    begin, events = time.perf_counter(), fixtures.load_events()
    first = [event for event in events if str(event.id).startswith(_LIVE)]
    with open_memory(library, embedder=live) as memory:
        _save(memory, first)
    with fixtures.embedder(live) as shipped:
        ready: Embedder = live
        if live.model == fixtures.MODEL:
            console.print(words["live"])
            ready = shipped
        with open_memory(library, embedder=ready) as memory:
            _save(memory, [event for event in events if event not in first])
            stats, seconds = memory.stats(), time.perf_counter() - begin
    console.print(words["built"].format(events=stats.events, chunks=stats.chunks, seconds=seconds, model=stats.model))


def _save(memory: Memory, events: Sequence[Event]) -> None:
    report = memory.save_many(events, batch_size=1, progress=True)
    for _, error in report.failed[:1]:
        raise error


def _show(answer: SearchResult, memory: Memory, console: "Console", words: dict[str, str], *, most: int) -> None:
    rows = {row.event_id: row for row in answer.explanation.rows} if answer.explanation else {}
    for number, result in enumerate(answer.results[:most], start=1):
        assert isinstance(result, Result)
        console.print(f" {number}. [cyan]{result.id}[/cyan]  {result.title}  [dim]{result.written_at:%Y-%m-%d}[/dim]")
        console.print(f"    {result.summary}", markup=False)
        _show_excerpt(result, console, words)
        if result.id in rows:
            console.print(f"    [dim]{words['why']}{_why(rows[result.id], memory, words)}[/dim]")


def _show_excerpt(result: Result, console: "Console", words: dict[str, str]) -> None:
    if result.excerpt is not None:
        text = " ".join(result.excerpt.text.split())
        console.print(
            f"    {words['original']}[{result.excerpt.start},{result.excerpt.end})  ", end="", style="green", markup=False
        )
        console.print(text, markup=False)


def _why(row: ExplanationRow, memory: Memory, words: dict[str, str]) -> str:
    return words["ranks"].format(
        summary=row.summary_rank or words["none"],
        source=row.source_rank or words["none"],
        rrf=row.rrf,
        coverage=row.coverage,
        weight=memory.config.retrieval.coverage_weight,
        fused=row.fused,
        mmr=row.mmr_score,
    )


def _follow(answer: SearchResult, memory: Memory, console: "Console", words: dict[str, str]) -> None:
    assert answer.cursor is not None
    first, concept = answer.results[0], answer.concepts[0]
    console.print(f"\n[bold]{words['expand'].format(concept=concept.name)}[/bold]")
    expanded = memory.expand(answer.cursor, concept.id, session="demo")
    _show(expanded, memory, console, words, most=2)
    console.print(f"\n[bold]{words['nearby'].format(id=first.id)}[/bold]")
    _show(memory.nearby(expanded.cursor or answer.cursor, first.id, session="demo"), memory, console, words, most=4)
    assert isinstance(first, Result)
    start = first.excerpt.end if first.excerpt else 0
    reading = memory.read(first.id, start=start, limit=_READ_ON)
    console.print(f"\n[bold]{words['read'].format(id=first.id, start=start)}[/bold]")
    console.print(f"    {' '.join(reading.text.split())}…", markup=False)
