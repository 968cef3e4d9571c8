"""The tools over the Model Context Protocol: the SDK's own client against a server in a process of its own."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

import workbench
from workbench import Event, InvalidRequest, Memory

pytest.importorskip("mcp", reason="the MCP server needs the extra mcp")

import anyio
from mcp import Client, StdioServerParameters, stdio_client, types

from workbench.mcp import build_server

TOOL = "memory_database_search"
STRICT = ("-X", "dev", "-W", "error")
SECRET = "secretsecret"


@pytest.fixture
def library(tmp_path: Path) -> str:
    address = f"sqlite:///{tmp_path / 'library.db'}"
    with workbench.open_memory(address, embedder=workbench.embedders.HashingEmbedder()) as memory:
        memory.save_many(
            Event(title=f"第 {number} 条", summary=f"Neo4j 部署 {number}", content=f"正文 {number // 2}", concepts=("Neo4j",))
            for number in range(6)
        )
    return address


def command(library: str, *more: str) -> list[str]:
    return [*STRICT, "-m", "workbench", "mcp", "--library", library, "--embedder", "hashing", *more]


def use(library: str, log: Path, *tasks: Callable[[Client], Awaitable[None]], more: tuple[str, ...] = ()) -> None:
    """Run each task with a connection of its own, one after the other, all connections open to the end."""

    async def run() -> None:
        server = StdioServerParameters(command=sys.executable, args=command(library, *more))
        with log.open("w+", encoding="utf-8") as errors:
            await nested(server, errors, list(tasks))

    async def nested(server: StdioServerParameters, errors: Any, left: list[Callable[[Client], Awaitable[None]]]) -> None:
        async with Client(stdio_client(server, errors)) as client:
            await left[0](client)
            if left[1:]:
                await nested(server, errors, left[1:])

    anyio.run(run)
    assert log.read_text(encoding="utf-8") == ""


def text(answer: types.CallToolResult) -> str:
    (block,) = answer.content
    assert isinstance(block, types.TextContent)
    return block.text


def ids(answer: types.CallToolResult) -> list[str]:
    return [each["id"] for each in answer.structured_content["results"]]


def test_two_connections_are_two_sessions_of_one_library(library: str, tmp_path: Path) -> None:
    """H1, H2, V5: each connection has its own history; what one got, the other still gets."""
    got: list[list[str]] = []

    async def first(client: Client) -> None:
        found = await client.call_tool(TOOL, {"query_text": "Neo4j 部署"})
        then = await client.call_tool(TOOL, {"query_text": "Neo4j 部署", "limit": None})
        got.append(ids(found))
        assert not set(ids(found)) & set(ids(then))
        assert "原文[0,4)：正文" in text(found)
        assert "已排除本会话交付过的" in text(then)

    async def second(client: Client) -> None:
        got.append(ids(await client.call_tool(TOOL, {"query_text": "Neo4j 部署"})))

    use(library, tmp_path / "log", first, second)
    assert got[0] == got[1]
    assert got[0]


def test_a_client_sees_the_schema_and_reads_both_forms_of_an_answer(library: str, tmp_path: Path) -> None:
    """F1, C2, api.md: the JSON beside the text of the chosen language."""

    async def task(client: Client) -> None:
        (tool,) = (await client.list_tools()).tools
        with workbench.open_memory("sqlite://") as memory:
            (schema,) = memory.tools.schemas()
        assert (tool.name, tool.description) == (TOOL, schema["function"]["description"])
        assert tool.input_schema == schema["function"]["parameters"]
        found = await client.call_tool(TOOL, {"query_text": "Neo4j", "limit": 1})
        assert text(found).startswith("Events delivered: 1\n")
        onward = {"cursor": found.structured_content["cursor"], "concept_id": found.structured_content["concepts"][0]["id"]}
        assert len(ids(await client.call_tool(TOOL, {"operation": "expand", **onward}))) == 3
        read = await client.call_tool(TOOL, {"operation": "read", "event_id": "event_3", "limit": 2})
        assert read.structured_content["next"] == 2
        assert text(read).endswith("\n正文")

    use(library, tmp_path / "log", task, more=("--locale", "en"))


def test_an_error_is_a_tools_error_with_code_and_message(library: str, tmp_path: Path) -> None:
    """Q15, F2, C8: the model can see what was wrong, and no value is repeated."""

    async def task(client: Client) -> None:
        for tool, arguments, code, named in (
            (TOOL, {"query_text": "Neo4j", "session": SECRET}, "invalid_request", "session"),
            (TOOL, {"operation": "read", "event_id": SECRET}, "not_found", "event"),
            (TOOL, {"operation": "expand", "cursor": SECRET, "concept_id": "c"}, "cursor_invalid", "cursor"),
            (TOOL, {}, "invalid_request", "query_text"),
            ("no_such_tool", {}, "invalid_request", TOOL),
        ):
            answer = await client.call_tool(tool, arguments)
            assert answer.is_error
            error = answer.structured_content["error"]
            assert (error["code"], error["retryable"]) == (code, False)
            assert named in error["message"]
            assert text(answer) == f"{code}: {error['message']}"
            assert SECRET not in text(answer)
            assert error.get("reason") == ("unknown" if code == "cursor_invalid" else None)

    use(library, tmp_path / "log", task)


# -- without the SDK's client ----------------------------------------------------------------------------------------------

_HELLO = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "test", "version": "1"}}
_PRINTING = """
import sys, workbench, workbench.mcp

class Printing(workbench.embedders.HashingEmbedder):
    def embed_query(self, text):
        print("a stray line")
        return super().embed_query(text)

with workbench.open_memory(sys.argv[1], embedder=Printing()) as memory:
    workbench.mcp.serve(memory)
    memory.stats()
"""


def talk(arguments: list[str], *messages: dict[str, Any]) -> tuple[list[dict[str, Any]], subprocess.CompletedProcess[str]]:
    """Send messages, wait for the answers to those with an id, end the input, and return the answers and how it ended."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    pipe = subprocess.PIPE
    with subprocess.Popen(
        [sys.executable, *arguments], stdin=pipe, stdout=pipe, stderr=pipe, encoding="utf-8", env=environment
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        answers = []
        for message in messages:
            process.stdin.write(json.dumps({"jsonrpc": "2.0", **message}) + "\n")
            process.stdin.flush()
            if "id" in message:
                answers.append(json.loads(process.stdout.readline()))
        out, errors = process.communicate(timeout=20)
    return answers, subprocess.CompletedProcess(arguments, process.returncode, out, errors)


def test_standard_output_carries_the_protocol_only_and_the_end_of_input_ends_the_server(library: str) -> None:
    call = {"name": TOOL, "arguments": {"query_text": "Neo4j"}}
    answers, ended = talk(
        [*STRICT, "-c", _PRINTING, library],
        {"id": 1, "method": "initialize", "params": _HELLO},
        {"method": "notifications/initialized"},
        {"id": 2, "method": "tools/call", "params": call},
    )
    assert [answer["id"] for answer in answers] == [1, 2]
    assert answers[1]["result"]["structuredContent"]["results"]
    assert (ended.returncode, ended.stdout) == (0, "")
    assert ended.stderr == "a stray line\n"


def test_a_server_that_nobody_speaks_to_ends_without_a_word(library: str) -> None:
    answers, ended = talk(command(library))
    assert (answers, ended.returncode, ended.stdout, ended.stderr) == ([], 0, "", "")


def test_a_library_that_can_not_be_opened_is_told_on_the_error_stream() -> None:
    _, ended = talk(command("postgres://nowhere"))
    assert (ended.returncode, ended.stdout) == (1, "")
    assert ended.stderr.startswith("InvalidRequest: the address must begin with sqlite://")
    assert "Traceback" not in ended.stderr


@pytest.mark.skipif(sys.platform == "win32", reason="there is no SIGINT to send")
def test_an_interrupt_ends_a_waiting_server(library: str) -> None:
    arguments = [sys.executable, *command(library)]
    with subprocess.Popen(arguments, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(json.dumps({"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": _HELLO}) + "\n")
        process.stdin.flush()
        assert process.stdout.readline()
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=20) == -signal.SIGINT


# -- in this process -------------------------------------------------------------------------------------------------------


def in_process(memory: Memory, *calls: tuple[str, dict[str, Any]]) -> list[types.CallToolResult]:
    async def run() -> list[types.CallToolResult]:
        async with Client(build_server(memory)) as client:
            return [await client.call_tool(*call) for call in calls]

    return anyio.run(run)


def test_an_unexpected_exception_tells_nothing_of_itself(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """api.md, Errors: no provider text, key or event content is in a message."""

    def fail(*_: object, **__: object) -> None:
        raise RuntimeError(SECRET)

    with workbench.open_memory("sqlite://", embedder=workbench.embedders.HashingEmbedder()) as memory:
        monkeypatch.setattr(memory, "search", fail)
        (answer,) = in_process(memory, (TOOL, {"query_text": "anything"}))
    assert answer.is_error
    assert answer.structured_content["error"]["code"] == "internal_error"
    assert SECRET not in text(answer) + caplog.text
    assert "RuntimeError" in caplog.text


def test_each_connection_to_one_server_is_a_session() -> None:
    """H2."""
    with workbench.open_memory("sqlite://", embedder=workbench.embedders.HashingEmbedder()) as memory:
        memory.save(Event(id="one", summary="The only one"))
        call = (TOOL, {"query_text": "The only one"})
        assert [ids(answer) for answer in in_process(memory, call, call)] == [["one"], []]
        assert [ids(answer) for answer in in_process(memory, call)] == [["one"]]


def test_an_unknown_locale_is_refused_before_anything_is_served() -> None:
    with workbench.open_memory("sqlite://") as memory, pytest.raises(InvalidRequest, match="zh, en"):
        workbench.mcp.serve(memory, locale="de")
