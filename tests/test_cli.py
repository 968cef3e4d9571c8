"""The command line (api.md Command line; ARCHITECTURE section 5)."""

import json
import os
import pty
import re
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import workbench
from tests.support import numbered
from workbench import Event, cli
from workbench.cli import main

COMMANDS = ("demo", "import", "export", "search", "reembed", "verify", "mcp", "stats")
Run = Callable[..., int]


@pytest.fixture
def address(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Return the address of a small library, which is also that of the environment."""
    where = f"sqlite:///{tmp_path / 'library.db'}"
    monkeypatch.setenv(cli.LIBRARY_VARIABLE, where)
    with workbench.open_memory(where, embedder=workbench.embedders.HashingEmbedder()) as memory:
        memory.save_many(
            [
                Event(
                    id="a_ch1_e1",
                    title="钥匙",
                    summary="黄铜钥匙开图书室的门",
                    content="钥匙\x1b[31m在门后。\r\n完",
                    concepts=("图书室",),
                ),
                Event(id="a_ch1_e2", summary="图书室的钟", content="半夜敲钟。", concepts=("图书室",), persons=("林知夏",)),
                Event(id="事件 3", summary="a brass key", content="The brass key opens the library. " * 100, concepts=("Library",)),
            ]
        )
    return where


@pytest.fixture
def run(address: str) -> Run:
    """Return ``main`` for that library, with the embedder that needs no model."""
    return lambda command, *arguments: main([command, *map(str, arguments), "--embedder", "hashing"])


def workbench_process(*arguments: str, stdin: str = "", **options: Any) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "workbench", *arguments],
        input=stdin,
        capture_output=True,
        text=True,
        encoding="utf-8",
        check=False,
        **options,
    )


# -- usage ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_help(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as left:
        main([command, "--help"])
    assert left.value.code == 0
    assert f"usage: workbench {command}" in (shown := capsys.readouterr().out)
    assert "--library" in shown
    assert "%" not in shown


HELP = """
import sys, workbench.cli
try:
    workbench.cli.main(["--help"])
finally:
    print(*sorted({"rich", "pydantic", "httpx", "pyarrow"} & set(sys.modules)))
"""


def test_the_help_lists_every_command_and_loads_nothing_heavy() -> None:
    shown = subprocess.run([sys.executable, "-c", HELP], capture_output=True, text=True, check=True).stdout
    assert all(f"    {command} " in shown for command in COMMANDS)
    assert shown.endswith("\n\n")


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["fly"],
        ["search", "--once"],
        ["search", "--json"],
        ["search"],
        ["search", "q", "--start", "5"],
        ["search", "q", "--limit", "many"],
        ["search", "q", "--label", "Thing"],
        ["import"],
        ["export"],
        ["stats", "--locale", "fr"],
        ["search", "q", "--embedder", "openai"],
        ["search", "q", "--embedder", "openai", "--model", "m"],
        ["search", "q", "--base-url", "http://localhost"],
        ["search", "q", "--api-key", "secret"],
    ],
)
def test_wrong_usage_is_exit_code_2(arguments: list[str], address: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as left:
        main(arguments)
    assert left.value.code == 2
    assert "usage: workbench" in capsys.readouterr().err


@pytest.mark.parametrize(
    "command", [["search", "q", "--once"], ["export", "out.jsonl"], ["verify"], ["stats"], ["reembed"], ["mcp"]]
)
def test_a_wrong_path_is_an_error_and_makes_no_file(
    command: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main([*command, "--library", "sqlite:///typo/library.db", "--embedder", "hashing"]) == 1
    shown = capsys.readouterr()
    assert re.match("StoreUnavailable: ('library.db' does not exist|there is no library at)", shown.err)
    assert list(tmp_path.iterdir()) == []


def test_without_an_address_the_demo_library_is_meant(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv(cli.LIBRARY_VARIABLE, raising=False)
    monkeypatch.chdir(tmp_path)
    workbench.open_memory(cli.DEFAULT_LIBRARY).close()
    assert main(["stats"]) == 0
    assert "events: 0\n" in capsys.readouterr().out


# -- search --------------------------------------------------------------------------------------------------------------


def test_search_prints_the_json_of_the_api(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    """api.md, Retrieval: one line, with exact texts."""
    assert run("search", "黄铜钥匙", "在哪里", "--json", "--limit", 2) == 0
    (line,) = capsys.readouterr().out.splitlines()
    answer = json.loads(line)
    assert list(answer) == ["operation", "results", "cursor", "concepts", "chainRemaining", "notices"]
    assert answer["results"][0]["id"] == "a_ch1_e1"
    assert answer["results"][0]["excerpt"]["text"] == "钥匙\x1b[31m在门后。\r\n完"
    assert len(answer["results"]) == 2


def test_follow_ups_run_in_the_session_of_the_search(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    """retrieval.md C2, C3, F1: one line each, in this order."""
    ask = ["search", "黄铜钥匙", "--limit", 1, "--json"]
    assert run(*ask, "--expand", "图书室", "--nearby", "a_ch1_e1", "--read", "事件 3", "--start", 10) == 0
    answers = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [answer["operation"] for answer in answers] == ["search", "expand", "nearby", "read"]
    assert [result["id"] for result in answers[1]["results"]] == ["a_ch1_e2"]
    assert answers[3]["range"] == [10, 1610]


def test_read_needs_no_question(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("search", "--read", "事件 3", "--json") == 0
    assert json.loads(capsys.readouterr().out)["operation"] == "read"


def test_filters_and_labels_reach_the_library(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("search", "--entity", "图书室", "--entity", "林知夏", "--to", "2999-01-01", "--json") == 0
    assert run("search", "--from", "2999-01-01", "--json") == 0
    assert run("search", "library", "--label", "Concept", "--json") == 0
    answers = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [[each["id"] for each in answer["results"]] for answer in answers[:2]] == [["a_ch1_e2"], []]
    assert answers[2]["label"] == "Concept"


def test_the_explanation_has_every_candidate_and_the_terms(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    """retrieval.md Q13."""
    assert run("search", "brass [key]", "--once", "--explain") == 0
    shown = capsys.readouterr().out
    assert all(word in shown for word in ("a_ch1_e1", "a_ch1_e2", "事件 3", "brass", "coverage", "penalty", "✓"))
    assert run("search", "brass key", "--json", "--explain") == 0
    explained = json.loads(capsys.readouterr().out)["explanation"]
    assert explained["candidates"][0]["event_id"] == "事件 3"
    assert [term["term"] for term in explained["terms"]] == ["brass", "key"]


def test_search_speaks_the_chosen_language(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    run("search", "钥匙", "--once")
    assert "本次交付" in capsys.readouterr().out
    run("search", "钥匙", "--once", "--locale", "en")
    assert "Events delivered" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["q", "--limit", "9", "--once"], "InvalidRequest: limit must be a whole number from 1 to 8."),
        (["q", "--from", "soon", "--once"], "InvalidRequest: written_from is no date"),
        (["--read", "nobody"], "NotFound: there is no such event"),
        (["黄铜钥匙", "--limit", "1", "--expand", "Library"], "InvalidRequest: this cursor does not offer that concept"),
        (["--entity", "nobody", "--expand", "图书室"], "InvalidRequest: there is no answer to follow up"),
        (["q\udcff", "--once"], "InvalidRequest: query_text holds a lone surrogate"),
    ],
)
def test_a_failure_is_exit_code_1_with_its_message(
    arguments: list[str], message: str, run: Run, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("search", *arguments) == 1
    shown = capsys.readouterr().err
    assert shown.startswith(message)
    assert "Traceback" not in shown


def test_another_model_is_refused_with_advice(
    address: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("workbench.core.embedders.hashing.TERMS_VERSION", 999)
    assert main(["search", "q", "--once", "--embedder", "hashing"]) == 1
    assert "workbench reembed" in capsys.readouterr().err


SCRIPT = """
explain
expand 图书室
nearby a_ch1_e1
read 事件 3 3290
read a_ch1_e2
new brass
help
"""


def test_commands_can_be_piped(address: str) -> None:
    """A pipe is obeyed until it ends; --once leaves it alone."""
    ask = ("search", "黄铜钥匙", "--limit", "1", "--embedder", "hashing")
    done = workbench_process(*ask, stdin=SCRIPT)
    assert (done.returncode, done.stderr) == (0, "")
    assert len(re.findall("本次", done.stdout)) == 4
    assert "事件 3 原文[3290,3300)" in done.stdout
    assert "半夜敲钟。" in done.stdout
    once = workbench_process(*ask, "--once", stdin=SCRIPT)
    assert len(re.findall("本次", once.stdout)) == 1


def test_a_failed_command_of_a_pipe_is_told_and_the_next_obeyed(address: str) -> None:
    done = workbench_process(
        "search", "--embedder", "hashing", stdin="fly\nexpand x\nread\nread nobody\nnew 钥匙\nquit\nread a_ch1_e2\n"
    )
    assert done.returncode == 1
    assert [line.partition(":")[0] for line in done.stderr.splitlines()] == ["InvalidRequest"] * 3 + ["NotFound"]
    assert "本次交付" in done.stdout
    assert "半夜敲钟。\n以下" not in done.stdout


def test_a_terminal_gets_a_prompt_and_no_control_characters(address: str) -> None:
    """What a memory says can not drive the terminal."""
    ours, theirs = pty.openpty()
    command = [sys.executable, "-m", "workbench", "search", "钥匙", "--embedder", "hashing"]
    with subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=theirs, env=os.environ | {"TERM": "dumb"}) as process:
        os.close(theirs)
        os.write(ours, b"read a_ch1_e1\nread nobody\nquit\n")
        shown = b""
        while True:
            try:
                piece = os.read(ours, 65_536)
            except OSError:
                break
            if not piece:
                break
            shown += piece
    os.close(ours)
    assert process.returncode == 0
    text = shown.decode()
    assert "可继续：read ID" in text
    assert "钥匙␛[31m在门后。" in text
    assert "NotFound" in text
    assert "\x1b[31m" not in text


def test_a_closed_pipe_is_no_traceback(address: str) -> None:
    command = [sys.executable, "-m", "workbench", "search", "钥匙", "--once", "--explain", "--embedder", "hashing"]
    with subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        errors = process.stderr.read()
    assert (process.returncode, errors) == (1, b"")


def test_output_in_ascii_stays_valid_json(address: str) -> None:
    done = workbench_process(
        "search", "钥匙", "--json", "--embedder", "hashing", env=os.environ | {"PYTHONIOENCODING": "ascii", "PYTHONUTF8": "0"}
    )
    assert done.stdout.isascii()
    assert json.loads(done.stdout)["results"][0]["title"] == "钥匙"


# -- import and export ---------------------------------------------------------------------------------------------------


def test_import_saves_good_rows_and_reports_bad_ones(run: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "a.jsonl").write_text('{"summary": "one"}\n{"summary": 2}\n{"summary": "three"}\n')
    (tmp_path / "b.md").write_text("# Note\n\nText")
    assert run("import", tmp_path / "a.jsonl", tmp_path / "b.md", "--locale", "en") == 1
    shown = capsys.readouterr()
    assert "a.jsonl:2: summary must be a string\n" in shown.err
    assert "importing" in shown.err
    assert [line.partition(": ")[2] for line in shown.out.splitlines()] == [
        "2 events saved, 0 already there, 1 faults.",
        "1 events saved, 0 already there, 0 faults.",
    ]
    assert run("import", tmp_path / "b.md") == 0
    assert "存入 0 个事件，已有 1 个，有误 0 处。" in capsys.readouterr().out


def test_a_missing_file_is_an_error_before_a_library_is_made(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["import", str(tmp_path / "none.jsonl"), "--library", f"sqlite:///{tmp_path / 'new.db'}"]) == 1
    assert capsys.readouterr().err.startswith("InvalidRequest: there is no file")
    assert list(tmp_path.iterdir()) == []


def test_an_export_is_restored_by_import_without_a_model(run: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out, copy = tmp_path / "out.jsonl", f"sqlite:///{tmp_path / 'copy.db'}"
    assert run("export", out) == 0
    assert "已导出 3 个事件" in capsys.readouterr().out
    assert run("export", out) == 1
    assert "--overwrite" in capsys.readouterr().err
    assert run("export", out, "--overwrite") == 0
    assert main(["import", str(out), "--library", copy]) == 0
    assert main(["export", str(tmp_path / "again.jsonl"), "--library", copy]) == 0
    assert (tmp_path / "again.jsonl").read_bytes() == out.read_bytes()
    assert main(["import", str(out), "--library", copy, "--namespace", "other", "--embed", "--embedder", "hashing"]) == 0
    capsys.readouterr()
    assert main(["stats", "--library", copy, "--namespace", "other"]) == 0
    assert "events: 3\n" in capsys.readouterr().out


def test_a_library_is_copied_and_gone_on_with(run: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source, target = f"sqlite:///{tmp_path / 'library.db'}", f"sqlite:///{tmp_path / 'copy.db'}"
    shown = []
    for _ in range(2):
        assert main(["copy", source, target, "--to-namespace", "new", "--locale", "en"]) == 0
        shown.append(capsys.readouterr().out)
    assert re.fullmatch(r"3 events copied, 0 already there; digest [0-9a-f]{64}\.\n", shown[0])
    assert shown[1] == shown[0].replace("3 events copied, 0", "0 events copied, 3")
    assert main(["copy", f"sqlite:///{tmp_path / 'typo.db'}", target]) == 1
    assert "there is no library at" in capsys.readouterr().err
    assert not (tmp_path / "typo.db").exists()
    assert main(["copy", target, source]) == 1
    assert "does not have; nothing was copied" in capsys.readouterr().err


SLOW = """
import sys, time
from workbench import cli, embedders
def slow(self, texts):
    print("embedding", flush=True)
    time.sleep(60)
embedders.HashingEmbedder.embed_documents = slow
sys.exit(cli.main(sys.argv[1:]))
"""


@pytest.mark.parametrize("command", ["import", "reembed"])
def test_ctrl_c_is_exit_code_130_and_changes_nothing(command: str, address: str, tmp_path: Path) -> None:
    """retrieval.md S3, E2."""
    (tmp_path / "a.jsonl").write_text('{"summary": "one"}\n')
    paths = [str(tmp_path / "a.jsonl")] if command == "import" else []
    with subprocess.Popen(
        [sys.executable, "-c", SLOW, command, *paths, "--embedder", "hashing", "--locale", "en"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.readline() == "embedding\n"
        process.send_signal(signal.SIGINT)
        errors = process.stderr.read()
    assert process.returncode == cli.INTERRUPTED
    assert "Interrupted; what was committed stays." in errors
    assert "Traceback" not in errors
    with workbench.open_memory(address, read_only=True) as memory:
        assert (memory.stats().events, memory.verify()) == (3, [])


# -- the other commands --------------------------------------------------------------------------------------------------


def test_verify_prints_problems_and_fails(run: Run, address: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["verify"]) == 0
    assert capsys.readouterr().out == "没有发现问题。\n"
    with sqlite3.connect(tmp_path / "library.db") as connection:
        connection.execute("UPDATE event SET length = 99 WHERE id = '事件 3'")
    connection.close()
    assert main(["verify"]) == 1
    assert capsys.readouterr().out.startswith("wrong_length: 事件 3: ")


def test_verify_tries_the_embedder_when_asked(
    run: Run, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert run("verify", "--locale", "en") == 0
    assert capsys.readouterr().out.startswith("No problem found.\nThe embedder answers: hashing-256")
    monkeypatch.setattr("workbench.core.embedders.hashing.HashingEmbedder.embed_query", lambda *_: [0.0] * 256)
    assert run("verify") == 1
    assert capsys.readouterr().err.startswith("EmbeddingFailed: ")


def test_verify_takes_the_offline_embedder_where_none_is_named(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("workbench.core.embedders.e5.E5Embedder", workbench.embedders.HashingEmbedder)
    assert main(["verify", "--embedder"]) == 0


def test_reembed_changes_the_model(run: Run, address: str, capsys: pytest.CaptureFixture[str]) -> None:
    with workbench.open_memory(address, embedder=workbench.embedders.HashingEmbedder(64)) as memory:
        memory.reembed()
    assert run("reembed", "--locale", "en") == 0
    shown = capsys.readouterr()
    assert "Embedded 3 events" in shown.out
    assert "dimension 256." in shown.out
    assert "re-embedding" in shown.err


def test_the_key_comes_from_the_environment_only(
    address: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    given: list[tuple[object, ...]] = []

    class Recorded(workbench.embedders.HashingEmbedder):
        def __init__(self, *arguments: object) -> None:
            super().__init__()
            given.append(arguments)

        def __enter__(self) -> "Recorded":
            return self

        def __exit__(self, *_: object) -> None:
            given.append(())

    monkeypatch.setattr("workbench.core.embedders.openai.OpenAIEmbedder", Recorded)
    monkeypatch.setenv(cli.KEY_VARIABLE, "secret")
    assert main(["verify", "--embedder", "openai", "--base-url", "http://localhost/v1", "--model", "m"]) == 0
    assert given == [("http://localhost/v1", "m", "secret"), ()]
    assert "secret" not in "".join(capsys.readouterr())


def test_demo_and_mcp_get_what_was_asked(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The demo writes into no library but its own unless one is named."""
    seen: list[object] = []

    def demo(**options: object) -> int:
        seen.append(options)
        return 0

    monkeypatch.setattr("workbench.demo.run", demo)
    monkeypatch.setattr("workbench.mcp.serve", lambda memory, *, locale: seen.append((memory.stats().events, locale)))
    assert main(["demo"]) == 0
    assert main(["demo", "--library", address, "--locale", "en"]) == 0
    assert main(["mcp"]) == 0
    assert seen == [
        {"library": None, "locale": "zh", "embedder": None},
        {"library": address, "locale": "en", "embedder": None},
        (3, "zh"),
    ]


def test_a_missing_extra_is_told(address: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setitem(sys.modules, "mcp", None)
    assert main(["mcp"]) == 1
    assert "pip install" in capsys.readouterr().err


def test_many_rows_show_their_progress_on_the_error_stream(
    address: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with workbench.open_memory(address, embedder=workbench.embedders.HashingEmbedder()) as memory:
        memory.save_many(numbered(100))
    assert main(["export", str(tmp_path / "out.jsonl")]) == 0
    assert "103/103" in capsys.readouterr().err
