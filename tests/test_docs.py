"""The documentation is a tested artefact: what it shows runs, and what it names exists.

A ``python`` block runs in its document's namespace, and what it prints stands in the ``text`` block below it. Each ``workbench``
line of an ``sh`` or ``console`` block runs, with the hashing embedder where none is named; in a ``console`` block the lines below
``$ …`` are what it prints. A block with a file name after its language is that file.

``python -m tests.test_docs`` writes the ``text`` blocks anew after an edit of the sample texts. Read the difference.
"""

import ast
import contextlib
import dataclasses
import inspect
import io
import json
import os
import re
import shlex
import socket
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Callable, Iterator
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest

import workbench
from tools.neo4j.server import Endpoint
from workbench import Event, RetrievalConfig, SessionConfig, WorkbenchError, cli
from workbench.core import event as rules
from workbench.core.retrieval.explanation import COLUMNS
from workbench.core.retrieval.sessions import _MESSAGES
from workbench.core.stores.sqlite_file import MIGRATIONS

ROOT = Path(__file__).parent.parent
READMES = ("README.md", "README.zh.md")
DOCS = tuple(f"docs/{path.name}" for path in sorted((ROOT / "docs").glob("*.md")))
DOCUMENTS = (*READMES, "CONTRIBUTING.md", *DOCS)

_BLOCK = re.compile(r"^```(\w+)(?: (\S+))?\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_SHOWN = ("text", "mermaid", "cypher")
_PLAYGROUND = "neo4j://127.0.0.1:7687"
"""What ``make neo4j`` starts; the tests' own server stands in for it, and where there is none such lines are only parsed."""
_TARGETS = re.findall(r"^([a-z]+):.*?##", (ROOT / "Makefile").read_text("utf-8"), re.MULTILINE)
_ROOMS = r"(?:docs|tests|workbench|core|benchmarks|notebooks|data|tools|\.ci)"


@dataclasses.dataclass(frozen=True, slots=True)
class Block:
    """A fenced block with the line on which its content begins, and where that content stands in the document."""

    language: str
    name: str | None
    content: str
    line: int
    place: tuple[int, int]


def read(document: str) -> str:
    return (ROOT / document).read_text("utf-8")


def blocks(document: str) -> list[Block]:
    text = read(document)
    found = [
        Block(match[1], match[2], match[3], text.count("\n", 0, match.start(3)) + 1, match.span(3))
        for match in _BLOCK.finditer(text)
    ]
    assert text.count("```") == 2 * len(found), f"{document} has a fence that is no block of a known form"
    return found


def prose(document: str) -> str:
    """Return a document without its blocks."""
    return _BLOCK.sub("", read(document))


# -- running -------------------------------------------------------------------------------------------------------------


def run_python(document: str, block: Block, namespace: dict[str, Any]) -> str:
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        exec(compile("\n" * (block.line - 1) + block.content, document, "exec"), namespace)
    return printed.getvalue()


def run_workbench(arguments: list[str], *, status: int) -> str:
    """Run a command and return what it prints, errors first, without progress bars. One that needs a network or model is parsed."""
    if {"--help", "--version"} & set(arguments):
        with contextlib.redirect_stdout(io.StringIO()) as printed, pytest.raises(SystemExit):
            cli.main(arguments)
        return printed.getvalue()
    if "--embedder" not in arguments and arguments[0] not in ("verify", "copy"):
        arguments = [*arguments, "--embedder", "hashing"]
    if "--embedder" in arguments and arguments[arguments.index("--embedder") + 1] != "hashing":
        cli._parser().parse_args(arguments)
        return ""
    if arguments[0] == "mcp":
        command = [sys.executable, "-m", "workbench", *arguments]
        return subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=True).stdout
    with contextlib.redirect_stdout(io.StringIO()) as printed, contextlib.redirect_stderr(io.StringIO()) as errors:
        assert cli.main(arguments) == status, f"workbench {shlex.join(arguments)}: {errors.getvalue()}"
    told = [line for line in errors.getvalue().splitlines(keepends=True) if "━" not in line and line.strip()]
    return "".join(told) + printed.getvalue()


def check_program(words: list[str]) -> None:
    """Check a command line of another program by what it names."""
    program, *arguments = words
    if program == "make":
        assert set(arguments) <= {*_TARGETS, "PYTEST_ARGS=", "LOCALE=en"}, words
    elif program == ".ci/run":
        assert (ROOT / program).exists()
    elif program.startswith(".venv/bin/"):
        paths = [each for each in arguments if "/" in each]
        assert all((ROOT / path).exists() for path in paths), words
    elif program == "pip":
        named = {extra for each in arguments for group in re.findall(r"\[(.*?)\]", each) for extra in group.split(",")}
        assert named <= extras(), words
    else:
        pytest.fail(f"the docs name a program that no test knows: {program}")


def extras() -> set[str]:
    return set(tomllib.loads(read("pyproject.toml"))["project"]["optional-dependencies"])


def run_line(line: str) -> str:
    words, status = shlex.split(line, comments=True), 1 if line.endswith("# exits with 1") else 0
    if not words:
        return ""
    if words[0] == "export":
        name, _, value = words[1].partition("=")
        assert name in (cli.LIBRARY_VARIABLE, cli.KEY_VARIABLE)
        os.environ[name] = value
        return ""
    if words[0] == "workbench":
        if _PLAYGROUND in (*words, os.environ[cli.LIBRARY_VARIABLE]):  # there is no server
            cli._parser().parse_args(words[1:])
            return ""
        return run_workbench(words[1:], status=status)
    check_program(words)
    return ""


def run_console(block: Block) -> None:
    first, *parts = re.split(r"^\$ ", block.content, flags=re.MULTILINE)
    assert not first, f"line {block.line}: a console block begins with a command"
    for part in parts:
        command, _, expected = part.partition("\n")
        assert run_line(command) == expected, command


def run(document: str, server: str | None) -> Iterator[tuple[Block, str]]:
    """Run a document's blocks in the present folder, and yield each ``text`` block with what was printed before it.

    :param document: its path.
    :param server: stands in for ``_PLAYGROUND``; without one, Python blocks that name it are left out.
    """
    namespace: dict[str, Any] = {"__name__": "documentation"}
    printed = ""
    for written in blocks(document):
        block = dataclasses.replace(written, content=written.content.replace(_PLAYGROUND, server or _PLAYGROUND))
        if block.language == "text":
            yield block, printed
            printed = ""
            continue
        assert not printed, f"{document}: a block above line {block.line} prints what is not shown: {printed!r}"
        if block.name:
            Path(block.name).parent.mkdir(parents=True, exist_ok=True)
            Path(block.name).write_text(block.content, "utf-8")
        elif block.language == "python" and _PLAYGROUND not in block.content:
            printed = run_python(document, block, namespace)
        elif block.language == "console":
            run_console(block)
        elif block.language == "sh":
            for line in block.content.replace("\\\n", " ").splitlines():
                run_line(line)
        elif block.language == "python":
            compile(block.content, document, "exec")
        elif block.language == "json":
            json.loads(block.content)
        else:
            assert block.language in _SHOWN, f"{document}:{block.line}: nobody runs {block.language}"
    assert not printed, f"{document}: the last block prints what is not shown"


@pytest.fixture
def server(request: pytest.FixtureRequest) -> str | None:
    """Return the address of a server to stand in for the one of ``make neo4j``, or None where none is to be had."""
    try:
        endpoint: Endpoint = request.getfixturevalue("neo4j_server")
    except pytest.skip.Exception:
        return None
    return endpoint.address


@pytest.fixture
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, server: str | None) -> None:
    """Work in an empty folder, without a network but that server, a terminal or an address from outside."""

    def only_server(real: Callable[..., Any], port_of: Callable[..., object]) -> Callable[..., Any]:
        def guarded(*arguments: Any, **options: Any) -> Any:
            if server is None or not server.endswith(f":{port_of(*arguments)}"):
                raise AssertionError("the documentation must run without a network")
            return real(*arguments, **options)

        return guarded

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(socket.socket, "connect", only_server(socket.socket.connect, lambda _, where: where[1]))
    monkeypatch.setattr(socket, "getaddrinfo", only_server(socket.getaddrinfo, lambda _, port, *rest: port))
    monkeypatch.setattr(sys, "stdin", io.StringIO())
    for name, value in ((cli.LIBRARY_VARIABLE, ""), (cli.KEY_VARIABLE, ""), (cli.AUTH_VARIABLE, ""), ("COLUMNS", "120")):
        monkeypatch.setenv(name, value)


@pytest.mark.usefixtures("elsewhere")
@pytest.mark.parametrize("document", DOCUMENTS)
def test_every_block_runs_and_prints_what_is_shown(document: str, server: str | None) -> None:
    for block, printed in run(document, server):
        assert printed == block.content, f"{document}:{block.line}"


def test_the_documents_have_blocks() -> None:
    """A change of the fences' form must not leave every block unread."""
    assert {"README.md", "CONTRIBUTING.md", "docs/formats.md", "docs/hosting.md", "docs/tuning.md"} <= set(DOCUMENTS)
    languages = [block.language for document in DOCUMENTS for block in blocks(document)]
    assert languages.count("python") >= 12
    assert languages.count("console") >= 4


# -- naming --------------------------------------------------------------------------------------------------------------


def subcommands() -> list[str]:
    with contextlib.redirect_stdout(io.StringIO()) as printed, pytest.raises(SystemExit):
        cli.main(["--help"])
    return re.findall(r"^    ([a-z]+) ", printed.getvalue(), re.MULTILINE)


@pytest.mark.parametrize("document", READMES)
def test_a_readme_names_every_command_and_target(document: str) -> None:
    assert len(subcommands()) >= 8
    assert len(_TARGETS) >= 11
    text = read(document)
    wanted = [*(f"workbench {name}" for name in subcommands()), *(f"make {name}" for name in _TARGETS)]
    assert [each for each in wanted if each not in text] == []


def test_a_readme_names_every_extra_for_users() -> None:
    for document in READMES:
        rows = set(re.findall(r"^\| `(\w+)` \|", prose(document), re.MULTILINE))
        assert rows == extras() - {"bench", "dev"}


def test_every_exported_name_is_in_some_document() -> None:
    text = "\n".join(map(read, DOCUMENTS))
    assert [name for name in workbench.__all__ if not re.search(rf"\b{name}\b", text)] == []
    offered = workbench.embedders.__all__
    assert [name for name in offered if not re.search(rf"\b{name}\b", read("README.md") + read("docs/hosting.md"))] == []


def rows(document: str, heading: str) -> dict[str, list[str]]:
    """Return the rows of the tables below a heading, by the first code span of their first cell."""
    section = re.split(r"^#+ ", read(document), flags=re.MULTILINE)
    own = next(part for part in section if part.startswith(f"{heading}\n"))
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in own.splitlines() if line.startswith("| `")]
    return {row[0].split("`")[1]: row for row in cells}


@pytest.mark.parametrize("config", [RetrievalConfig, SessionConfig])
def test_the_tuning_guide_has_every_field_with_its_default(config: type[RetrievalConfig | SessionConfig]) -> None:
    told = rows("docs/tuning.md", config.__name__)
    defaults = {field.name: field.default for field in dataclasses.fields(config)}
    assert list(told) == list(defaults)
    for name, row in told.items():
        assert float(Fraction(row[1].strip("`").replace("_", ""))) == pytest.approx(defaults[name], abs=0), name
        assert all(row[2:]), f"{name} says nothing about what it does"


def test_the_tuning_guide_has_every_column_of_an_explanation() -> None:
    table = "\n".join(" ".join(row) for row in rows("docs/tuning.md", "How to read an explanation").values())
    assert [name for name in COLUMNS if f"`{name}`" not in table] == []


def test_the_formats_have_every_field_of_an_event() -> None:
    told = rows("docs/formats.md", "The fields of an event")
    fields = {field.name: field.default for field in dataclasses.fields(Event)}
    assert list(told) == list(fields)
    for name in ("title", "content", "kind", "event_type", "temporal_status"):
        assert ast.literal_eval(told[name][3].strip("`")) == fields[name]
    for name, known in (("kind", rules.KINDS), ("event_type", rules.EVENT_TYPES), ("temporal_status", rules.TEMPORAL_STATUSES)):
        assert re.findall(r"`(\w+)`", told[name][4]) == list(known)
    text = read("docs/formats.md")
    assert all(f"`{name}`" in text for name in rules.VISIBILITIES)


def errors() -> list[type[WorkbenchError]]:
    offered = [getattr(workbench, name) for name in workbench.__all__]
    return [each for each in offered if inspect.isclass(each) and issubclass(each, WorkbenchError) and each is not WorkbenchError]


def test_the_hosting_guide_has_every_error() -> None:
    told = rows("docs/hosting.md", "Errors")
    assert {name: row[1:3] for name, row in told.items()} == {
        each.__name__: [f"`{each.code}`", f"`{each.retryable}`"] for each in errors()
    }
    assert [reason for reason in _MESSAGES if f"`{reason}`" not in told["CursorInvalid"][3]] == []


def test_the_architecture_has_every_module_and_table() -> None:
    told = {*rows("docs/architecture.md", "The rooms")}
    folder = ROOT / "workbench"
    modules = {path for path in folder.rglob("*.py") if path.name != "__init__.py" or path.parent == folder}
    real = {str(path.relative_to(folder if folder / "core" in path.parents else ROOT)) for path in modules}
    assert told - {"workbench/py.typed"} == real
    tables = re.findall(r"CREATE TABLE (\w+)", "".join(MIGRATIONS))
    assert list(rows("docs/architecture.md", "The SQLite file")) == tables


def anchors(document: Path) -> set[str]:
    """Return the anchors of a document's headings, as GitHub makes them."""
    headings = re.findall(r"^#+ (.+)$", _BLOCK.sub("", document.read_text("utf-8")), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("document", DOCUMENTS)
def test_links_lead_somewhere(document: str) -> None:
    for target in re.findall(r"\]\(([^)\s]+)\)", prose(document)):
        name, _, anchor = target.partition("#")
        path = (ROOT / document).parent / name if name else ROOT / document
        assert not target.startswith("http"), "nothing here needs the network"
        assert path.exists(), f"{document} links to {target}"
        assert not anchor or anchor in anchors(path), f"{document} links to {target}"


@pytest.mark.parametrize("document", DOCUMENTS)
def test_paths_that_are_named_exist(document: str) -> None:
    for path in re.findall(rf"`({_ROOMS}/[\w./-]+)`", prose(document)):
        homes = (ROOT, ROOT / "workbench")
        assert any((home / path).exists() for home in homes), f"{document} names {path}"


@pytest.mark.parametrize("document", DOCUMENTS)
def test_no_path_of_a_machine_is_shown(document: str) -> None:
    assert not re.search(r"(?<![\w/])/(?:home|root|tmp|work|Users|usr)/", read(document))


def test_the_readmes_say_the_same() -> None:
    english, chinese = READMES
    levels = [[len(mark) for mark in re.findall(r"^(#+) ", prose(document), re.MULTILINE)] for document in READMES]
    assert levels[0] == levels[1]
    codes = [[(block.language, block.name, block.content) for block in blocks(document)] for document in READMES]
    assert codes[0] == codes[1]
    tables = [len(re.findall(r"^\|", prose(document), re.MULTILINE)) for document in READMES]
    assert tables[0] == tables[1]
    links = [sorted(re.findall(r"\]\(([^)]+)\)", prose(document))) for document in READMES]
    assert [link for link in links[0] if link != chinese] == [link for link in links[1] if link != english]
    spans = [sorted(set(re.findall(r"`([^`]+)`", prose(document)))) for document in READMES]
    assert spans[0] == spans[1]


# -- writing anew --------------------------------------------------------------------------------------------------------


def renew(document: str) -> bool:
    """Write what the blocks of a document print into its ``text`` blocks; return whether something changed."""
    text, shift = read(document), 0
    for block, printed in run(document, None):
        start, end = block.place
        text = text[: start + shift] + printed + text[end + shift :]
        shift += len(printed) - (end - start)
    changed = text != read(document)
    (ROOT / document).write_text(text, "utf-8")
    return changed


if __name__ == "__main__":
    for document in (each for each in DOCUMENTS if _PLAYGROUND not in read(each).partition("```python")[2]):
        with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
            print(document, "changed" if renew(document) else "as it was")
