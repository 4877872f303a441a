"""Methods as tools of the OpenAI Agents SDK: ``pip install 'sealwire[openai-agents]'``."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from agents import FunctionTool, Tool
from agents.tool_context import ToolContext

from . import _tools
from ._client import Client

if TYPE_CHECKING:
    from typing_extensions import Unpack

__all__ = ["tools"]


async def tools(
    bus: Client,
    services: str | Iterable[str],
    **options: Unpack[_tools.ToolOptions],
) -> list[Tool]:
    """What the agent may call now, for ``Agent(tools=…)``."""
    found = _tools.Tools(bus, services, **options)
    return [_made(tool) for tool in await found.listed()]


def _made(tool: _tools.Tool) -> Tool:
    async def run(_ctx: ToolContext[Any], text: str) -> str:
        # The ids of calls are the model's, and there is none of the run: nothing tells a repetition from a new call.
        try:
            return (await tool.call(_tools.arguments_of(text))).text
        except _tools.Refused as error:
            return f"error: {error}"

    return FunctionTool(
        name=tool.name,
        description=tool.description,
        params_json_schema=tool.params,
        on_invoke_tool=run,
        # Strict schemas forbid most of what bounds a parameter.
        strict_json_schema=False,
    )
