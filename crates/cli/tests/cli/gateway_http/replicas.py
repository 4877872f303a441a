"""A client of MCP that nobody here wrote, at replicas behind a balancer: calls, questions to people, and calls that are cancelled.

Usage: replicas.py MODE ROUNDS URL
Prints a JSON object of how many there were of each. Whatever does not come back ends it with an error.
"""

import asyncio
import json
import sys

import anyio
from mcp import Client
from mcp.types import ElicitResult

MODE, ROUNDS, URL = sys.argv[1], int(sys.argv[2]), sys.argv[3]


async def accept(context, params):
    return ElicitResult(action="accept", content={"size": "large"})


async def main():
    found = {"calls": 0, "asked": 0, "cancelled": 0}
    async with Client(URL, mode=MODE, elicitation_callback=accept) as client:
        await client.list_tools()
        for round in range(ROUNDS):
            result = await client.call_tool("t_add", {"a": round, "b": 1})
            assert result.structured_content == {"sum": round + 1}, result
            found["calls"] += 1
            if round % 4 == 0:
                result = await client.call_tool("t_ask", {})
                assert "large" in result.content[0].text, result
                found["asked"] += 1
            if round % 16 == 0:
                with anyio.move_on_after(0.5) as scope:
                    await client.call_tool("t_wait", {})
                assert scope.cancelled_caught
                found["cancelled"] += 1
    print(json.dumps(found))


asyncio.run(main())
