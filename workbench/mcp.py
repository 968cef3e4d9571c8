"""The tools over the Model Context Protocol: a server on the official SDK, package ``mcp`` 2 (the extra ``mcp``).

A connection is a session: its id is made when the connection begins, and no argument of a model reaches it. What a tool
answers goes out twice, as text in the server's language and as the JSON of api.md. An error is a tool's error with its code
and message; of an unexpected exception nothing but its type is told, and that to the log only.
"""

import contextlib
import logging
import secrets
import signal
import sys
import threading
from collections.abc import AsyncIterator, Iterator, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

import workbench
from workbench.core.errors import WorkbenchError
from workbench.core.memory import Memory
from workbench.core.rendering import check_locale

if TYPE_CHECKING:
    from mcp import types
    from mcp.server import Server, ServerRequestContext

_log = logging.getLogger(__name__)


def serve(memory: Memory, *, locale: str = "zh") -> None:
    """Serve a library's tools over standard input and output until the input ends.

    Standard output carries the protocol and nothing else. The library stays open when the input ends; Ctrl-C ends the
    process.

    :param memory: the library to serve.
    :param locale: the language of the text that a model is shown, ``zh`` or ``en``.
    :raises InvalidRequest: if the locale is not known.
    :raises ImportError: if the SDK is not installed.
    """
    server = build_server(memory, locale=locale)
    import anyio
    from mcp.server.stdio import stdio_server

    async def run() -> None:
        # The SDK diverts the descriptor; a print that Python still buffers would go to the wire after all.
        async with stdio_server() as (incoming, outgoing):
            with contextlib.redirect_stdout(sys.stderr):
                await server.run(incoming, outgoing, server.create_initialization_options())

    with _ends_at_interrupt():
        anyio.run(run)


@contextlib.contextmanager
def _ends_at_interrupt() -> Iterator[None]:
    """Let Ctrl-C end the process at once; the SDK waits for input in a way that a KeyboardInterrupt does not end."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGINT, signal.SIG_DFL)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before or signal.SIG_DFL)


def build_server(memory: Memory, *, locale: str = "zh") -> "Server[str]":
    """Return the server, for a transport of the host's choice; its lifespan gives each connection a session.

    :param memory: the library to serve.
    :param locale: the language of the text that a model is shown, ``zh`` or ``en``.
    :return: a server of the SDK.
    :raises InvalidRequest: if the locale is not known.
    :raises ImportError: if the SDK is not installed.
    """
    check_locale(locale)
    try:
        import anyio.to_thread
        from mcp import types
        from mcp.server import Server
    except ImportError as error:
        raise ImportError("serving needs version 2 of the package mcp; install it with: pip install 'mcp>=2,<3'") from error

    async def list_tools(_: "ServerRequestContext[str]", __: "types.PaginatedRequestParams | None") -> "types.ListToolsResult":
        return types.ListToolsResult(tools=[_tool(schema["function"]) for schema in memory.tools.schemas()])

    async def call_tool(context: "ServerRequestContext[str]", asked: "types.CallToolRequestParams") -> "types.CallToolResult":
        call = partial(_call, memory, asked.name, asked.arguments or {}, session=context.lifespan_context, locale=locale)
        return await anyio.to_thread.run_sync(call)

    return Server(
        "workbench", version=workbench.__version__, lifespan=_connection, on_list_tools=list_tools, on_call_tool=call_tool
    )


@contextlib.asynccontextmanager
async def _connection(_: "Server[str]") -> AsyncIterator[str]:
    """Yield the session id of one connection."""
    yield f"mcp-{secrets.token_urlsafe(16)}"


def _tool(function: Mapping[str, Any]) -> "types.Tool":
    from mcp import types

    return types.Tool(
        name=function["name"],
        description=function["description"],
        input_schema=function["parameters"],
        annotations=types.ToolAnnotations(read_only_hint=True, open_world_hint=False),
    )


def _call(memory: Memory, name: str, arguments: Mapping[str, Any], *, session: str, locale: str) -> "types.CallToolResult":
    """Call a tool and return its answer or its error; runs in a worker thread and raises nothing."""
    try:
        answer = memory.tools.call(name, arguments, session=session)
        return _result(memory.tools.render(answer, locale=locale), answer)
    except WorkbenchError as error:
        told = {"code": error.code, "message": error.message, "retryable": error.retryable}
        reason = getattr(error, "reason", None)
        return _result(f"{error.code}: {error.message}", {"error": told | ({"reason": reason} if reason else {})}, is_error=True)
    except Exception as error:
        _log.error("a call of a tool failed with %s", type(error).__name__)
        told = {
            "code": "internal_error",
            "message": "the call failed inside the server; retry or ask its operator.",
            "retryable": False,
        }
        return _result(f"{told['code']}: {told['message']}", {"error": told}, is_error=True)


def _result(text: str, structured: Mapping[str, Any], *, is_error: bool = False) -> "types.CallToolResult":
    from mcp import types

    content: list[types.ContentBlock] = [types.TextContent(type="text", text=text)]
    return types.CallToolResult(content=content, structured_content=dict(structured), is_error=is_error)
