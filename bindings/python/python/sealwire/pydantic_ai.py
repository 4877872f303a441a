"""Methods as tools of Pydantic AI: ``pip install 'sealwire[pydantic-ai]'``."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from pydantic_ai import RunContext, Tool, ToolFailed
from pydantic_ai.toolsets import AbstractToolset, FunctionToolset

from . import _tools
from ._client import Client

if TYPE_CHECKING:
    from typing_extensions import Unpack

__all__ = ["tools", "toolset"]


async def tools(
    bus: Client,
    services: str | Iterable[str],
    **options: Unpack[_tools.ToolOptions],
) -> list[Tool[Any]]:
    """What the agent may call now, for ``Agent(tools=…)``."""
    found = _tools.Tools(bus, services, **options)
    return [_made(tool) for tool in await found.listed()]


def toolset(
    bus: Client,
    services: str | Iterable[str],
    *,
    id: str | None = None,
    **options: Unpack[_tools.ToolOptions],
) -> AbstractToolset[Any]:
    """The same, for ``Agent(toolsets=[…])``: each run has what the agent may call then."""
    found = _tools.Tools(bus, services, **options)
    found.asynchronous()
    return _Toolset(found, id)


class _Toolset(FunctionToolset[Any]):
    def __init__(self, found: _tools.Tools, id: str | None) -> None:
        super().__init__(id=id)
        self._found = found

    async def for_run(self, ctx: RunContext[Any]) -> AbstractToolset[Any]:
        return FunctionToolset([_made(tool) for tool in await self._found.recent()], id=self.id)


def _made(tool: _tools.Tool) -> Tool[Any]:
    async def run(ctx: RunContext[Any], /, **arguments: Any) -> Any:
        # A durable run that is resumed has the same ids and steps.
        ids = (ctx.run_id, ctx.run_step, ctx.tool_call_id)
        call = None if None in ids else "/".join(map(str, ids))
        try:
            return (await tool.call(arguments, call)).text
        except _tools.Refused as error:
            raise ToolFailed(str(error)) from error

    made: Tool[Any] = Tool.from_schema(run, tool.name, tool.description, tool.params, takes_ctx=True)
    return made
