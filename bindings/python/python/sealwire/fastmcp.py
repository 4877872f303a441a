"""Methods as tools of any FastMCP server: ``pip install 'sealwire[fastmcp]'``."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from fastmcp.exceptions import ToolError
from fastmcp.server import dependencies, providers
from fastmcp.tools import Tool
from fastmcp.tools.base import ToolResult
from fastmcp.utilities.versions import VersionSpec
from pydantic import PrivateAttr

from . import _tools
from ._client import Client
from ._errors import Error

if TYPE_CHECKING:
    from typing_extensions import Unpack

__all__ = ["Provider"]


class Provider(providers.Provider):
    """What the agent of `bus` may call, as tools of a server::

    mcp = FastMCP("tools", providers=[sealwire.fastmcp.Provider(bus, ["demo"])])

    Whoever may use the server may use them: the services see the agent."""

    def __init__(
        self,
        bus: Client,
        services: str | Iterable[str],
        **options: Unpack[_tools.ToolOptions],
    ) -> None:
        super().__init__()
        self._found = _tools.Tools(bus, services, **options)
        self._found.asynchronous()

    async def _list_tools(self) -> Sequence[Tool]:
        return [_Tool.of(tool) for tool in await self._found.recent()]

    async def _get_tool(self, name: str, version: VersionSpec | None = None) -> Tool | None:
        return next((tool for tool in await self._list_tools() if tool.name == name), None)


class _Tool(Tool):
    _tool: _tools.Tool = PrivateAttr()

    @classmethod
    def of(cls, tool: _tools.Tool) -> Tool:
        made = cls(name=tool.name, description=tool.description, parameters=tool.params)
        made._tool = tool
        return made

    async def run(self, arguments: dict[str, Any]) -> ToolResult:
        # FastMCP's own words for what is no `ToolError` ask to try again, and its middleware does so by the cause.
        try:
            answer = await self._tool.call(arguments, _request_id())
        except _tools.Refused as error:
            raise ToolError(str(error)) from None
        except Error as error:
            may = "; the call may have run: find out before it is made again" if error.outcome_unknown else ""
            raise ToolError(f"{error}{may}") from None
        value = answer.value
        return ToolResult(answer.text, value if isinstance(value, dict) else {"result": value})


def _request_id() -> str | None:
    try:
        context = dependencies.get_context()
        return f"{context.session_id}/{context.request_id}"
    except RuntimeError:
        # Called by the program itself.
        return None
