"""Methods as tools of CrewAI: ``pip install 'sealwire[crewai]'``."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

# CrewAI cannot be installed beside the others.
from crewai.tools import BaseTool  # type: ignore[import-not-found, unused-ignore]  # pyright: ignore
from crewai.tools.tool_failure import ToolFailure  # type: ignore[import-not-found, unused-ignore]  # pyright: ignore
from pydantic import BaseModel, ConfigDict, PrivateAttr, create_model

from . import _tools
from ._sync import SyncClient

if TYPE_CHECKING:
    from typing_extensions import Unpack

__all__ = ["OutcomeUnknown", "tools"]


class OutcomeUnknown(BaseException):
    """A call may have run; its `__cause__` says more. Ends the crew.

    No ``except Exception`` takes it: CrewAI runs a tool that raises such a one again, up to six times."""


def tools(
    bus: SyncClient,
    services: str | Iterable[str],
    **options: Unpack[_tools.ToolOptions],
) -> list[BaseTool]:
    """What the agent may call now, for ``Agent(tools=…)``."""
    found = _tools.Tools(bus, services, **options)
    return [_Tool.of(tool) for tool in found.listed_waiting()]


class _Arguments(BaseModel):
    """Any arguments: the service checks them."""

    model_config = ConfigDict(extra="allow")


class _Tool(BaseTool):  # type: ignore[misc, unused-ignore]
    _tool: _tools.Tool = PrivateAttr()

    @classmethod
    def of(cls, tool: _tools.Tool) -> BaseTool:
        schema: type[BaseModel] = create_model(tool.name, __base__=_Arguments)
        schema.model_config["json_schema_extra"] = dict(tool.params)
        made = cls(name=tool.name, description=tool.description, args_schema=schema)
        # A method is called each time that the agent calls it.
        made.cache_function = lambda *_: False
        made._tool = tool
        return made

    def _run(self, /, **arguments: Any) -> Any:
        try:
            return self._tool.call_waiting(arguments).text
        except _tools.Refused as error:
            return ToolFailure(message=str(error))
        except Exception as error:
            if _tools.may_have_run(error):
                raise OutcomeUnknown(str(error)) from error
            raise
