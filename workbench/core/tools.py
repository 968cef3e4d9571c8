"""What a language model sees of a library: tools as JSON Schema, calls in plain JSON, answers as text (api.md, Retrieval).

The tools are a table; a further one is a further row (and, if its answer has a form of its own, a renderer for it).
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from workbench.core.database_search import DATABASE_SEARCH
from workbench.core.errors import InvalidRequest
from workbench.core.event import check_id
from workbench.core.rendering import render
from workbench.core.results import Reading, SearchResult
from workbench.core.tool_arguments import Tool

if TYPE_CHECKING:
    from workbench.core.memory import Memory

TOOLS: tuple[Tool, ...] = (DATABASE_SEARCH,)
"""Every tool that a model is offered, in the order in which it is told of them."""


class Tools:
    """The tools of one open library.

    :param memory: the library that they search.
    """

    def __init__(self, memory: "Memory") -> None:
        self._memory = memory
        self._tools = {tool.name: tool for tool in TOOLS}

    def schemas(self) -> list[dict[str, Any]]:
        """Return the function tools as JSON Schema, with the bounds of the library's config."""
        return [tool.schema(self._memory.config) for tool in self._tools.values()]

    def call(self, name: str, arguments: Mapping[str, Any], *, session: str = "default") -> dict[str, Any]:
        """Call a tool as a model asked for it.

        :param name: the tool's name.
        :param arguments: the JSON object that the model gave. An explicit null is an argument left out.
        :param session: the host's id of the conversation; never from the model, which is refused an argument of that name.
        :return: plain JSON (api.md).
        :raises InvalidRequest: if the tool, an argument or its type is not as the schema says.
        :raises WorkbenchError: whatever else the library raises, unchanged.
        """
        tool = self._tools.get(name) if isinstance(name, str) else None
        if tool is None:
            raise InvalidRequest(f"there is no such tool; use one of {', '.join(self._tools)}.")
        check_id(session, "session")
        return tool.parse(arguments, self._memory.config).answer(self._memory, session)

    def render(self, result: SearchResult | Reading | Mapping[str, Any], *, locale: str = "zh") -> str:
        """Return an answer as the text that a model is shown.

        :param result: the object, or the dict that :meth:`call` returned; both give the same text.
        :param locale: ``zh`` or ``en``.
        :return: lines of text; :func:`workbench.core.rendering.render` says what they guarantee.
        :raises InvalidRequest: if the locale is not known or ``result`` is no answer.
        """
        return render(result, locale=locale)
