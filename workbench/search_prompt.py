"""A search with its follow-ups at the command line: one session, its answers for a person or as JSON, and the prompt."""

import contextlib
import importlib
import json
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass

from workbench.core.errors import InvalidRequest, WorkbenchError
from workbench.core.event import normalise_name
from workbench.core.memory import Memory
from workbench.core.results import OfferedConcept, Reading, SearchResult, one_line
from workbench.core.retrieval.explanation import Explanation

_WORDS = {
    "zh": {
        "hint": "可继续：read ID [START]、expand 概念、nearby ID、new 问题、explain、help、quit",
        "help": (
            "read ID [START]   读原文，从 START 起（默认 0）\n"
            "expand 概念       沿答案给出的概念（id 或名称）追查\n"
            "nearby ID         交付 ID 前后相邻的记录\n"
            "new 问题          重新检索，沿用命令行的筛选；本会话交付过的不再交付\n"
            "explain           上一次检索的排序依据\n"
            "quit              退出"
        ),
        "unknown": "没有这个命令；输入 help 查看。",
        "nothing": "上一个答案没有可解释的排序。",
    },
    "en": {
        "hint": "Go on with: read ID [START], expand CONCEPT, nearby ID, new QUESTION, explain, help, quit",
        "help": (
            "read ID [START]   read the original text, from START (0 by default)\n"
            "expand CONCEPT    follow a concept of the answer, by id or name\n"
            "nearby ID         deliver the records around ID\n"
            "new QUESTION      search anew with the filters of the command line; what was delivered is not delivered again\n"
            "explain           why the last search ranked as it did\n"
            "quit              leave"
        ),
        "unknown": "There is no such command; type help.",
        "nothing": "The last answer has no ranking to explain.",
    },
}
_READ = re.compile(r"(\S.*?)(?:\s+([0-9]{1,12}))?")
_CONTROL = {code: 0x2400 + code for code in range(32) if chr(code) not in "\t\n"} | dict.fromkeys(range(127, 160), 0xFFFD)
_WIDE = 200


@dataclass(frozen=True, slots=True)
class Filters:
    """What every search of a conversation shares."""

    entity: tuple[str, ...] = ()
    written_from: str | None = None
    written_to: str | None = None
    label: str = "Event"
    limit: int = 4


@dataclass(slots=True)
class Conversation:
    """One session with a library: each call prints its answer, and the next may follow it up.

    :param memory: the library.
    :param locale: ``zh`` or ``en``.
    :param filters: of every search.
    :param as_json: print the JSON of api.md, one line per answer.
    :param explain: print the ranking of every answer, too.
    """

    memory: Memory
    locale: str
    filters: Filters = Filters()
    as_json: bool = False
    explain: bool = False
    answers: int = 0
    _cursor: str | None = None
    _concepts: Sequence[OfferedConcept] = ()
    _explanation: Explanation | None = None

    def search(self, question: str | None) -> None:
        """Search anew."""
        filters = self.filters
        answer = self.memory.search(
            question,
            entity=filters.entity or None,
            written_from=filters.written_from,
            written_to=filters.written_to,
            label=filters.label,
            limit=filters.limit,
            explain=True,
        )
        self._cursor, self._concepts = None, ()
        self._show(answer)

    def expand(self, concept: str) -> None:
        """Follow a concept of the last answer that delivered something, by its id or name."""
        named = [each.id for each in self._concepts if normalise_name(each.name) == normalise_name(concept)]
        offered = any(each.id == concept for each in self._concepts)
        concept_id = concept if offered or not named else named[0]
        self._show(self.memory.expand(self._needed_cursor(), concept_id, limit=self.filters.limit, explain=True))

    def nearby(self, event_id: str) -> None:
        """Deliver the records around an event of the chain."""
        self._show(self.memory.nearby(self._needed_cursor(), event_id))

    def read(self, event_id: str, start: int = 0) -> None:
        """Read an event's text."""
        self._print(self.memory.read(event_id, start=start))

    def why(self) -> None:
        """Print the ranking of the last answer."""
        if self._explanation is None:
            print(_WORDS[self.locale]["nothing"])
        else:
            print_explanation(self._explanation)

    def _needed_cursor(self) -> str:
        if self._cursor is None:
            raise InvalidRequest("there is no answer to follow up; search first.")
        return self._cursor

    def _show(self, answer: SearchResult) -> None:
        self._explanation = answer.explanation
        if answer.cursor is not None:
            self._cursor, self._concepts = answer.cursor, answer.concepts
        self._print(answer)
        if self.explain and not self.as_json:
            self.why()

    def _print(self, answer: SearchResult | Reading) -> None:
        self.answers += 1
        if self.as_json:
            print(self._json(answer))
        else:
            print(shown(self.memory.tools.render(answer, locale=self.locale)))

    def _json(self, answer: SearchResult | Reading) -> str:
        body = answer.to_dict()
        if self.explain and isinstance(answer, SearchResult) and answer.explanation is not None:
            body["explanation"] = _explained(answer.explanation)
        return json.dumps(body, ensure_ascii=sys.stdout.encoding.lower() not in ("utf-8", "utf8"), allow_nan=False)


def shown(text: str) -> str:
    """Return ``text`` as it may go to a terminal: with pictures in place of control characters. Elsewhere it stays as it is."""
    return text.replace("\r\n", "\n").translate(_CONTROL) if sys.stdout.isatty() else text


# -- the prompt ----------------------------------------------------------------------------------------------------------


def converse(conversation: Conversation) -> bool:
    """Obey commands from the terminal, or from a pipe until it ends; return whether all of a pipe's succeeded."""
    commands: dict[str, Callable[[str], None]] = {
        "read": lambda rest: _read(conversation, rest),
        "expand": conversation.expand,
        "nearby": conversation.nearby,
        "new": conversation.search,
        "explain": lambda _: conversation.why(),
        "help": lambda _: print(_WORDS[conversation.locale]["help"]),
    }
    failed = False
    for line in _lines(conversation.locale):
        word, _, rest = line.strip().partition(" ")
        if word in ("quit", "exit"):
            break
        try:
            if word not in commands:
                raise InvalidRequest(_WORDS[conversation.locale]["unknown"])
            commands[word](rest.strip())
        except WorkbenchError as error:
            print(f"{type(error).__name__}: {error}", file=sys.stderr)
            failed = True
    return not failed or sys.stdin.isatty()


def _read(conversation: Conversation, rest: str) -> None:
    match = _READ.fullmatch(rest)
    if match is None:
        raise InvalidRequest("read takes the id of an event, and where to start.")
    conversation.read(match[1], int(match[2] or 0))


def _lines(locale: str) -> Iterator[str]:
    """Yield the lines that somebody types, or those of a pipe."""
    asked = sys.stdin.isatty()
    if asked:
        with contextlib.suppress(ImportError):
            importlib.import_module("readline")
        print(_WORDS[locale]["hint"])
    while True:
        try:
            line = input("> ") if asked else sys.stdin.readline()
        except (EOFError, OSError):
            return
        if not asked and not line:
            return
        if line.strip():
            yield line


# -- the explanation -----------------------------------------------------------------------------------------------------


def print_explanation(explanation: Explanation) -> None:
    """Print every candidate of a search with what placed it, and the question's terms with their weights (Q13)."""
    from rich.console import Console
    from rich.table import Table

    console = Console(markup=False, emoji=False, highlight=False, width=None if sys.stdout.isatty() else _WIDE)
    table = Table(*_HEADINGS, title="candidates")
    table.columns[1].overflow = "fold"
    for place, row in enumerate(explanation.rows, 1):
        cells = [_cell(getattr(row, name)) for _, name in _COLUMNS]
        table.add_row(str(place), one_line(row.event_id), *cells)
    console.print(table)
    terms = Table("term", "weight", "candidates", title="terms")
    for term in explanation.terms:
        terms.add_row(term.term, f"{term.weight:.4f}", str(term.candidates))
    console.print(terms)


_COLUMNS = (
    ("summary\nrank", "summary_rank"),
    ("summary\ncosine", "summary_cosine"),
    ("source\nrank", "source_rank"),
    ("source\ncosine", "source_cosine"),
    ("rrf", "rrf"),
    ("coverage", "coverage"),
    ("fused", "fused"),
    ("mmr\nstep", "mmr_step"),
    ("mmr\npenalty", "mmr_penalty"),
    ("mmr\nscore", "mmr_score"),
    ("delivered", "delivered"),
    ("duplicate of", "duplicate_of"),
)
_HEADINGS = ("rank", "event", *(heading for heading, _ in _COLUMNS))


def _cell(value: object) -> str:
    if isinstance(value, bool):
        return "✓" if value else ""
    if isinstance(value, float):
        return f"{value:.4f}"
    return "" if value is None else one_line(str(value))


def _explained(explanation: Explanation) -> dict[str, object]:
    return {"candidates": [asdict(row) for row in explanation.rows], "terms": [asdict(term) for term in explanation.terms]}
