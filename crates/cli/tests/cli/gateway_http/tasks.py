"""An unchanged client of MCP that has tasks: calls a tool and prints what it got, as a JSON object.

Usage: tasks.py fastmcp|mcp TOOL ARGUMENTS ADDRESS
fastmcp with its package for tasks; mcp with an extension as its users write them.
"""

import asyncio
import json
import sys
from typing import ClassVar, Literal

import mcp_types
from mcp import Client
from mcp.client.extension import ClientExtension, ResultClaim
from pydantic import ConfigDict, Field

CLIENT, TOOL, ARGUMENTS, ADDRESS = sys.argv[1], sys.argv[2], json.loads(sys.argv[3]), sys.argv[4]


def said(result, seen):
    return {
        "client": CLIENT,
        "seen": seen,
        "result": [result.is_error is True, result.structured_content, [block.text for block in result.content]],
    }


async def of_fastmcp():
    from fastmcp import Client as FastClient
    from fastmcp_tasks import call_tool_task

    async with FastClient(ADDRESS) as client:
        if TOOL != "cancel":
            return said(await client.call_tool(TOOL, ARGUMENTS, raise_on_error=False), [])
        task = await call_tool_task(client, "site_count", ARGUMENTS, raise_on_error=False)
        before = await task.status()
        await task.cancel()
        ended = await task.wait(timeout=60)
        return {"client": CLIENT, "seen": [before.status, ended.status]}


class Created(mcp_types.Result):
    model_config = ConfigDict(populate_by_name=True)
    result_type: Literal["task"] = Field(alias="resultType")
    task_id: str = Field(alias="taskId")
    status: str
    status_message: str | None = Field(default=None, alias="statusMessage")


class Found(mcp_types.Result):
    model_config = ConfigDict(populate_by_name=True)
    status: str
    status_message: str | None = Field(default=None, alias="statusMessage")
    poll_interval_ms: int | None = Field(default=None, alias="pollIntervalMs")
    result: dict | None = None
    error: dict | None = None


class Params(mcp_types.RequestParams):
    model_config = ConfigDict(populate_by_name=True)
    task_id: str = Field(serialization_alias="taskId")


class Get(mcp_types.Request[Params, Literal["tasks/get"]]):
    name_param: ClassVar[str | None] = "taskId"
    method: Literal["tasks/get"] = "tasks/get"
    params: Params


class Tasks(ClientExtension):
    identifier = "io.modelcontextprotocol/tasks"

    def __init__(self):
        self.seen = []

    def claims(self):
        return [ResultClaim(result_type="task", model=Created, resolve=self.resolve)]

    async def resolve(self, created, context):
        self.seen.append([created.status, created.status_message])
        while True:
            found = await context.session.send_request(Get(params=Params(task_id=created.task_id)), Found)
            if [found.status, found.status_message] not in self.seen:
                self.seen.append([found.status, found.status_message])
            if found.status == "completed":
                return mcp_types.CallToolResult.model_validate(found.result)
            if found.status != "working":
                raise RuntimeError(f"{found.status}: {found.error}")
            await asyncio.sleep(found.poll_interval_ms / 1000)


async def of_mcp():
    tasks = Tasks()
    async with Client(ADDRESS, mode="2026-07-28", extensions=[tasks]) as client:
        return said(await client.call_tool(TOOL, ARGUMENTS), tasks.seen)


print(json.dumps(asyncio.run(of_fastmcp() if CLIENT == "fastmcp" else of_mcp())))
