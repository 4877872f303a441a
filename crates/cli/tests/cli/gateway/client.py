"""Clients of MCP that nobody here wrote, against the server that the arguments start, or the one at an address. Prints a JSON object for
each.

Usage: client.py demo|list|ask|pay CLIENT[,CLIENT…] COMMAND…
CLIENT is fastmcp, or a mode of the package mcp: auto, legacy, or a revision. BEARER: the token to show at an address.
"""

import asyncio
import json
import os
import sys

import anyio
from mcp import Client, StdioServerParameters
from mcp.client.streamable_http import streamable_http_client
from mcp.shared._httpx_utils import create_mcp_http_client
from mcp.types import ElicitResult

TASK, CLIENTS, COMMAND = sys.argv[1], sys.argv[2].split(","), sys.argv[3:]
AT_ADDRESS = COMMAND[0].startswith("http")
BEARER = os.environ.get("BEARER")


async def accept(context, params):
    return ElicitResult(action="accept", content={"size": "large"})


async def of_mcp(mode):
    told, found = [], {"client": mode}

    async def progress(done, total, message):
        told.append([done, total, message])

    server = COMMAND[0] if AT_ADDRESS else StdioServerParameters(command=COMMAND[0], args=COMMAND[1:])
    if BEARER:
        http = create_mcp_http_client(headers={"Authorization": f"Bearer {BEARER}"})
        server = streamable_http_client(COMMAND[0], http_client=http)
    asking = {"elicitation_callback": accept} if TASK == "ask" else {}
    async with Client(server, mode=mode, **asking) as client:
        found["version"] = client.protocol_version
        found["tools"] = [tool.name for tool in (await client.list_tools()).tools]

        async def call(name, arguments, **how):
            result = await client.call_tool(name, arguments, **how)
            return [result.is_error is True, result.structured_content, [block.text for block in result.content]]

        if TASK == "ask":
            found["asked"] = await call("t_ask", {})
            found["resource"] = (await client.read_resource("test://one")).contents[0].text
            found["resources"] = [resource.uri for resource in (await client.list_resources()).resources]
            prompt = await client.get_prompt("p", {"topic": "cats"})
            found["prompt"] = prompt.messages[0].content.text
            return found
        if TASK == "pay":
            found["paid"] = await call("bank_transfer", {"to": "carol", "amount": 50})
            return found
        found["added"] = await call("math_add", {"a": 2, "b": 3})
        if TASK == "list":
            return found
        found["denied"] = await call("bank_transfer", {"to": "bob", "amount": 1000})
        found["parts"] = await call("text_echo", {"text": "one by one"}, progress_callback=progress)
        found["job"] = await call("job_run", {"steps": 3}, progress_callback=progress)
        found["progress"] = told
        with anyio.move_on_after(2) as scope:
            await client.call_tool("job_run", {"steps": 5999})
        found["cancelled"] = scope.cancelled_caught
        try:
            await client.call_tool("no_such", {})
        except Exception as error:
            found["unknown"] = str(error)
    return found


async def of_fastmcp():
    from fastmcp import Client as FastClient
    from fastmcp.client.transports import StdioTransport

    told, found = [], {"client": "fastmcp"}

    async def progress(done, total, message):
        told.append([done, total, message])

    server = COMMAND[0] if AT_ADDRESS else StdioTransport(COMMAND[0], COMMAND[1:], keep_alive=False)
    async with FastClient(server, auth=BEARER or None) as client:
        found["tools"] = [tool.name for tool in await client.list_tools()]
        if TASK == "pay":
            result = await client.call_tool("bank_transfer", {"to": "carol", "amount": 50}, raise_on_error=False)
            found["paid"] = [result.is_error is True, None, [block.text for block in result.content]]
            return found
        result = await client.call_tool("math_add", {"a": 2, "b": 3})
        found["added"] = [result.is_error is True, result.structured_content, [block.text for block in result.content]]
        result = await client.call_tool("bank_transfer", {"to": "bob", "amount": 1000}, raise_on_error=False)
        found["denied"] = [result.is_error is True, None, [block.text for block in result.content]]
        await client.call_tool("job_run", {"steps": 3}, progress_handler=progress)
        found["progress"] = told
    return found


for name in CLIENTS:
    print(json.dumps(asyncio.run(of_fastmcp() if name == "fastmcp" else of_mcp(name))), flush=True)
