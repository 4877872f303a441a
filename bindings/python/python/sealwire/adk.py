"""Methods as tools of Google's Agent Development Kit: ``pip install 'sealwire[adk]'``."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from google.adk.tools.base_tool import BaseTool
from google.adk.tools.tool_context import ToolContext
from google.genai.types import FunctionDeclaration

from . import _tools
from ._client import Client

if TYPE_CHECKING:
    from typing_extensions import Unpack

__all__ = ["tools"]


async def tools(
    bus: Client,
    services: str | Iterable[str],
    **options: Unpack[_tools.ToolOptions],
) -> list[BaseTool]:
    """What the agent may call now, for ``LlmAgent(tools=…)``."""
    found = _tools.Tools(bus, services, **options)
    return [_Tool(tool) for tool in await found.listed()]


class _Tool(BaseTool):
    def __init__(self, tool: _tools.Tool) -> None:
        super().__init__(name=tool.name, description=tool.description)
        self._tool = tool

    def _get_declaration(self) -> FunctionDeclaration:
        return FunctionDeclaration(
            name=self.name, description=self.description, parameters_json_schema=self._tool.params
        )

    async def run_async(self, *, args: dict[str, Any], tool_context: ToolContext) -> Any:
        id = tool_context.function_call_id
        call = None if id is None else f"{tool_context.session.id}/{tool_context.invocation_id}/{id}"
        try:
            return {"result": (await self._tool.call(args, call)).value}
        except _tools.Refused as error:
            return {"error": str(error)}
