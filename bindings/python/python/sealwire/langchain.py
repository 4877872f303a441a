"""Methods as tools of LangChain and LangGraph: ``pip install 'sealwire[langchain]'``."""

from __future__ import annotations

from collections.abc import Coroutine, Iterable
from typing import TYPE_CHECKING, Any, overload

from langchain_core.callbacks import AsyncCallbackManagerForToolRun, CallbackManagerForToolRun
from langchain_core.runnables import RunnableConfig
from langchain_core.tools import BaseTool, ToolException
from pydantic import PrivateAttr

from . import _tools
from ._client import Client
from ._sync import SyncClient

if TYPE_CHECKING:
    from typing_extensions import Unpack

__all__ = ["tools"]


@overload
def tools(
    bus: SyncClient,
    services: str | Iterable[str],
    **options: Unpack[_tools.ToolOptions],
) -> list[BaseTool]: ...


@overload
def tools(
    bus: Client,
    services: str | Iterable[str],
    **options: Unpack[_tools.ToolOptions],
) -> Coroutine[Any, Any, list[BaseTool]]: ...


def tools(
    bus: Client | SyncClient,
    services: str | Iterable[str],
    **options: Unpack[_tools.ToolOptions],
) -> list[BaseTool] | Coroutine[Any, Any, list[BaseTool]]:
    """What the agent may call now. Those of a `Client`, which are to be awaited, are for ``ainvoke``; those of a
    `SyncClient` for ``invoke``."""
    found = _tools.Tools(bus, services, **options)
    if isinstance(bus, SyncClient):
        return [_Tool.of(tool) for tool in found.listed_waiting()]

    async def ask() -> list[BaseTool]:
        return [_Tool.of(tool) for tool in await found.listed()]

    return ask()


class _Tool(BaseTool):
    _tool: _tools.Tool = PrivateAttr()

    @classmethod
    def of(cls, tool: _tools.Tool) -> BaseTool:
        made = cls(name=tool.name, description=tool.description, args_schema=tool.params, handle_tool_error=True)
        made._tool = tool
        return made

    def _to_args_and_kwargs(self, tool_input: Any, tool_call_id: str | None) -> tuple[tuple[Any, ...], dict[str, Any]]:
        # As they are: by name, they could be taken for what LangChain itself passes.
        if not isinstance(tool_input, dict):
            raise ToolException("the arguments are not a JSON object")
        return (tool_input, tool_call_id), {}

    def _run(
        self,
        arguments: dict[str, Any],
        id: str | None,
        config: RunnableConfig,
        run_manager: CallbackManagerForToolRun | None = None,
    ) -> str:
        try:
            return self._tool.call_waiting(arguments, *_known(id, config, run_manager)).text
        except _tools.Refused as error:
            raise ToolException(str(error)) from error

    async def _arun(
        self,
        arguments: dict[str, Any],
        id: str | None,
        config: RunnableConfig,
        run_manager: AsyncCallbackManagerForToolRun | None = None,
    ) -> str:
        try:
            return (await self._tool.call(arguments, *_known(id, config, run_manager))).text
        except _tools.Refused as error:
            raise ToolException(str(error)) from error


def _known(id: str | None, config: RunnableConfig, manager: Any) -> tuple[str | None, str | None]:
    # The task of a graph has the same name when it is repeated or resumed, and no other has it.
    place = (config or {}).get("configurable", {}).get("checkpoint_ns")
    call = f"{place}/{id}" if place and id else None
    parent = getattr(manager, "parent_run_id", None)
    return call, None if parent is None else str(parent)
