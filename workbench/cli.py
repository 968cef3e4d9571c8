"""The command line: ``workbench`` or ``python -m workbench``.

Exit codes: 0, 1 (failed, with the error's message on the error stream), 2 (wrong usage), 130 (Ctrl-C).
"""

import argparse
import contextlib
import dataclasses
import io
import os
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from workbench._version import __version__
from workbench.core.embedders.base import Embedder, embed_documents, embed_query
from workbench.core.errors import InvalidRequest, StoreUnavailable, WorkbenchError
from workbench.core.memory import LABELS, Memory, open_memory
from workbench.core.results import one_line
from workbench.core.stores.base import Recipe, mismatch

DEFAULT_LIBRARY = "sqlite:///demo/memory.db"
LIBRARY_VARIABLE = "WORKBENCH_LIBRARY"
KEY_VARIABLE = "WORKBENCH_API_KEY"
AUTH_VARIABLE = "WORKBENCH_NEO4J_AUTH"
"""Holds ``user:password`` for libraries on a server."""
INTERRUPTED = 130

EMBEDDERS = ("e5", "hashing", "openai")

_NOTHING_ASKED = "give a question, --entity, --from or --to"
_FILE_ADDRESS = "sqlite:///"
_HASHING = re.compile(r"hashing-(\d+)-v\d+")
"""The recorded name of the embedder that needs no model: such a library is asked with it unless told otherwise."""
_WORDS = {
    "zh": {
        "imported": "{source}：存入 {saved} 个事件，已有 {unchanged} 个，有误 {faults} 处。",
        "copied": "已复制 {copied} 个事件，已有 {unchanged} 个；摘要值 {digest}。",
        "exported": "已导出 {count} 个事件到 {path}。",
        "reembedded": "已重新向量化 {events} 个事件、{chunks} 个分块、{names} 个名称；模型 {model}，{dimension} 维。",
        "sound": "没有发现问题。",
        "answers": "嵌入模型可用：{model}，{dimension} 维。",
        "interrupted": "已中断；已提交的内容保留，重新运行同一命令可继续。",
    },
    "en": {
        "imported": "{source}: {saved} events saved, {unchanged} already there, {faults} faults.",
        "copied": "{copied} events copied, {unchanged} already there; digest {digest}.",
        "exported": "{count} events written to {path}.",
        "reembedded": "Embedded {events} events, {chunks} chunks and {names} names anew; model {model}, dimension {dimension}.",
        "sound": "No problem found.",
        "answers": "The embedder answers: {model}, dimension {dimension}.",
        "interrupted": "Interrupted; what was committed stays. Run the same command again to go on.",
    },
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command and return its exit code; wrong usage and ``--help`` leave by SystemExit, as argparse does.

    :param arguments: without the program's name; None means those of the process.
    :return: 0, 1 or 130.
    """
    for stream, errors in ((sys.stdout, "backslashreplace"), (sys.stdin, "surrogateescape")):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors=errors)
    options = _parser().parse_args(arguments)
    try:
        status: int = options.run(options)
        sys.stdout.flush()
    except (WorkbenchError, ImportError) as error:
        print(f"{type(error).__name__}: {error}", *getattr(error, "__notes__", ()), sep="\n", file=sys.stderr)
        return 1
    except BrokenPipeError:
        _forget_output()
        return 1
    except KeyboardInterrupt:
        print(f"\n{_WORDS[options.locale]['interrupted']}", file=sys.stderr)
        return INTERRUPTED
    return status


def _forget_output() -> None:
    """Let Python's last flush go nowhere: whoever read the output is gone."""
    with contextlib.suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


# -- the commands --------------------------------------------------------------------------------------------------------


def _demo(options: argparse.Namespace) -> int:
    from workbench import demo

    with _embedder(options) as embedder:
        return demo.run(library=options.library, locale=options.locale, embedder=embedder)


def _import(options: argparse.Namespace) -> int:
    from workbench.transfer import import_file

    for path in options.path:
        if not Path(path).exists():
            raise InvalidRequest(f"there is no file {path!r}; check the path.")
    failed = False
    with _library(options) as memory:
        for path in options.path:
            report = import_file(memory, path, embed=options.embed, progress=True)
            print(*report.faults, sep="\n", end="\n" if report.faults else "", file=sys.stderr)
            counts = {"saved": report.saved, "unchanged": report.unchanged, "faults": len(report.faults)}
            _say(options, "imported", source=path, **counts)
            failed = failed or bool(report.faults)
    return int(failed)


def _export(options: argparse.Namespace) -> int:
    from workbench.transfer import export_library

    with _library(options, read_only=True) as memory:
        count = export_library(memory, options.path, overwrite=options.overwrite, progress=True)
    _say(options, "exported", count=count, path=options.path)
    return 0


def _copy(options: argparse.Namespace) -> int:
    from workbench.copying import copy_library

    _refuse_missing(options.source)
    to_namespace = options.namespace if options.to_namespace is None else options.to_namespace
    with (
        _opened(options, options.source, namespace=options.namespace, read_only=True) as source,
        _opened(options, options.target, namespace=to_namespace) as target,
    ):
        report = copy_library(source, target, progress=True)
    _say(options, "copied", **dataclasses.asdict(report))
    return 0


def _search(options: argparse.Namespace) -> int:
    from workbench.search_prompt import Conversation, Filters, converse

    question = " ".join(options.question)
    filters = Filters(tuple(options.entity), options.written_from, options.written_to, options.label, options.limit)
    asked = bool(question or options.entity or options.written_from or options.written_to)
    follow_ups = [name for name in ("expand", "nearby", "read") if getattr(options, name) is not None]
    goes_on = _goes_on(options, follow_ups)
    if not (asked or goes_on or follow_ups == ["read"]):
        options.parser.error(_NOTHING_ASKED)
    if options.start is not None and options.read is None:
        options.parser.error("--start belongs to --read")
    with _library(options, read_only=True) as memory:
        conversation = Conversation(memory, options.locale, filters, options.json, options.explain)
        if asked:
            conversation.search(question or None)
        for name in follow_ups:
            extra = [options.start or 0] if name == "read" else []
            getattr(conversation, name)(getattr(options, name), *extra)
        succeeded = not goes_on or converse(conversation)
    if not (conversation.answers or sys.stdin.isatty()):
        options.parser.error(_NOTHING_ASKED)
    return 0 if succeeded else 1


def _goes_on(options: argparse.Namespace, follow_ups: Sequence[str]) -> bool:
    """Return whether commands follow: typed at a terminal, or from a pipe."""
    if options.once or options.json or follow_ups or sys.stdin is None or sys.stdin.closed:
        return False
    return sys.stdout.isatty() or not sys.stdin.isatty()


def _reembed(options: argparse.Namespace) -> int:
    with _library(options, must_exist=True) as memory:
        report = memory.reembed(progress=True)
    _say(options, "reembedded", **dataclasses.asdict(report))
    return 0


def _verify(options: argparse.Namespace) -> int:
    with _embedder(options) as embedder, _open(options, None, read_only=True, must_exist=True) as memory:
        problems = memory.verify()
        for problem in problems:
            print(": ".join(one_line(part) for part in (problem.code, problem.event_id, problem.message) if part))
        if not problems:
            _say(options, "sound")
        if embedder is not None:
            _try(embedder, memory)
            _say(options, "answers", model=embedder.model, dimension=embedder.dimension)
    return 1 if problems else 0


def _try(embedder: Embedder, memory: Memory) -> None:
    """Embed two texts and a question, and compare the model with the library's."""
    embed_documents(embedder, ["记忆", "memory"], what="two test texts")
    embed_query(embedder, "记忆 memory")
    mismatch(memory.store.library().recipe, Recipe(embedder.model, embedder.dimension))


def _mcp(options: argparse.Namespace) -> int:
    from workbench import mcp

    with _library(options, must_exist=True) as memory:
        mcp.serve(memory, locale=options.locale)
    return 0


def _stats(options: argparse.Namespace) -> int:
    with _library(options, read_only=True) as memory:
        for name, value in dataclasses.asdict(memory.stats()).items():
            print(f"{name}: {'-' if value is None else value}")
    return 0


def _say(options: argparse.Namespace, what: str, **values: object) -> None:
    print(_WORDS[options.locale][what].format(**values))


# -- opening -------------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def _library(options: argparse.Namespace, *, read_only: bool = False, must_exist: bool = False) -> Iterator[Memory]:
    with _embedder(options) as embedder:
        with _open(options, embedder, read_only=read_only, must_exist=must_exist or read_only) as memory:
            made_by = _HASHING.fullmatch(memory.store.library().recipe.model or "")
            if embedder is not None or made_by is None:
                yield memory
                return
        from workbench.core.embedders import HashingEmbedder

        with _open(options, HashingEmbedder(int(made_by[1])), read_only=read_only) as memory:
            yield memory


def _open(options: argparse.Namespace, embedder: Embedder | None, *, read_only: bool, must_exist: bool = False) -> Memory:
    address = options.library or os.environ.get(LIBRARY_VARIABLE) or DEFAULT_LIBRARY
    if must_exist:
        _refuse_missing(address)
    return _opened(options, address, namespace=options.namespace, embedder=embedder, read_only=read_only)


def _opened(options: argparse.Namespace, address: str, **arguments: Any) -> Memory:
    """Open a library; one on a server with the database of the options and the user of the environment."""
    if not address.startswith("sqlite:"):
        user, separator, password = os.environ.get(AUTH_VARIABLE, "").partition(":")
        arguments |= {"database": options.database, "auth": (user, password) if separator else None}
    return open_memory(address, **arguments)


def _refuse_missing(address: str) -> None:
    if address.startswith(_FILE_ADDRESS) and not Path(address.removeprefix(_FILE_ADDRESS)).exists():
        raise StoreUnavailable(f"there is no library at {address}; check the address.", retryable=False)


@contextlib.contextmanager
def _embedder(options: argparse.Namespace) -> Iterator[Embedder | None]:
    """Yield the chosen embedder; None means the library's default, which is loaded only when a call needs it."""
    from workbench.core import embedders

    if options.embedder != "openai" and (options.base_url or options.model):
        options.parser.error("--base-url and --model belong to --embedder openai")
    if options.embedder == "openai":
        if not (options.base_url and options.model):
            options.parser.error("--embedder openai needs --base-url and --model")
        with embedders.OpenAIEmbedder(options.base_url, options.model, os.environ.get(KEY_VARIABLE)) as embedder:
            yield embedder
    else:
        offline: dict[str, Callable[[], Embedder]] = {"e5": embedders.E5Embedder, "hashing": embedders.HashingEmbedder}
        yield offline[options.embedder]() if options.embedder else None


# -- the options ---------------------------------------------------------------------------------------------------------


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="workbench", description="Remember events, find them again with verbatim evidence, follow up.", allow_abbrev=False
    )
    parser.add_argument("--version", action="version", version=f"workbench {__version__}")
    commands = parser.add_subparsers(title="commands", required=True, metavar="COMMAND")
    for name, (run, add, about) in _COMMANDS.items():
        command = commands.add_parser(name, help=about, description=about[:1].upper() + about[1:] + ".", allow_abbrev=False)
        command.set_defaults(run=run, parser=command)
        add(command)
        shared = command.add_argument_group("library and model")
        if run is not _copy:  # which names two libraries and embeds nothing
            _add_library(shared, bare_embedder=run is _verify)
        shared.add_argument(
            "--namespace", default="default", metavar="NAME", help="the library in the store (default: %(default)s)"
        )
        shared.add_argument(
            "--database", metavar="NAME", help=f"of a Neo4j server (default: the user's own); ${AUTH_VARIABLE} holds user:password"
        )
        shared.add_argument("--locale", choices=tuple(_WORDS), default="zh", help="language of the output (default: %(default)s)")
    return parser


def _add_library(shared: "argparse._ArgumentGroup", *, bare_embedder: bool) -> None:
    default = f"(default: ${LIBRARY_VARIABLE}, else {DEFAULT_LIBRARY})"
    shared.add_argument("--library", metavar="ADDRESS", help=f"where the library is {default}")
    if bare_embedder:
        shared.add_argument("--embedder", choices=EMBEDDERS, nargs="?", const="e5", help="try this embedder, too (e5 if not named)")
    else:
        shared.add_argument(
            "--embedder",
            choices=EMBEDDERS,
            help="what makes vectors (default: the library's own where it is hashing, else e5, offline)",
        )
    shared.add_argument("--base-url", metavar="URL", help=f"of --embedder openai; its key is read from ${KEY_VARIABLE}")
    shared.add_argument("--model", metavar="NAME", help="of --embedder openai")


def _add_nothing(_: argparse.ArgumentParser) -> None:
    """Add no option of a command's own."""


def _add_import(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "path", nargs="+", metavar="PATH", help=".jsonl, .csv, .parquet, .txt or .md, a folder of texts, or an exported library"
    )
    parser.add_argument("--embed", action="store_true", help="embed the texts of an exported library anew")


def _add_copy(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("source", metavar="FROM", help="the address of the library to copy")
    parser.add_argument("target", metavar="TO", help="the address of an empty one, or of an unfinished copy")
    parser.add_argument("--to-namespace", metavar="NAME", help="the library in the target's store (default: that of --namespace)")


def _add_export(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("path", metavar="PATH", help="the file to write; it appears when it is whole")
    parser.add_argument("--overwrite", action="store_true", help="replace a file of that name")


def _add_search(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("question", nargs="*", metavar="QUESTION", help="may be left out where a filter is given")
    parser.add_argument("--entity", action="append", default=[], metavar="NAME", help="a concept or person, id or name; repeatable")
    parser.add_argument("--from", dest="written_from", metavar="DATE", help="written on this day or later")
    parser.add_argument("--to", dest="written_to", metavar="DATE", help="written on this day or earlier, or before this instant")
    parser.add_argument("--label", choices=LABELS, default="Event", help="what to search (default: %(default)s)")
    parser.add_argument("--limit", type=int, default=4, metavar="N", help="1 to 8; more than 4 means 4 (default: %(default)s)")
    parser.add_argument("--explain", action="store_true", help="show what placed each candidate")
    parser.add_argument("--json", action="store_true", help="print JSON, one line per answer, and leave")
    parser.add_argument("--once", action="store_true", help="leave after the answer; else a prompt or a pipe goes on")
    follow = parser.add_argument_group("follow-ups of the same session")
    follow.add_argument("--expand", metavar="CONCEPT", help="follow a concept of the answer, by id or name")
    follow.add_argument("--nearby", metavar="ID", help="deliver the records around an event of the answer")
    follow.add_argument("--read", metavar="ID", help="read an event's text")
    follow.add_argument("--start", type=int, metavar="N", help="where --read begins (default: 0)")


_COMMANDS: dict[str, tuple[Callable[[argparse.Namespace], int], Callable[[argparse.ArgumentParser], None], str]] = {
    "demo": (_demo, _add_nothing, "build a sample library, ask it, follow up and read on"),
    "import": (_import, _add_import, "save the events of files, or restore an exported library"),
    "export": (_export, _add_export, "write the whole library to a file, hidden events and vectors too"),
    "copy": (_copy, _add_copy, "copy a library to another store and compare the two"),
    "search": (_search, _add_search, "find events, then read on and follow up"),
    "reembed": (_reembed, _add_nothing, "compute all vectors anew, with --embedder if given"),
    "verify": (_verify, _add_nothing, "check every row of the library, and with --embedder the embedder"),
    "mcp": (_mcp, _add_nothing, "serve the tools over the Model Context Protocol (stdio)"),
    "stats": (_stats, _add_nothing, "show the library's counts and model"),
}
