"""A FastMCP server as it is, whose tools are methods of a service. Each can be called once its definition is approved:

    sealwire tools approve --name tools -- python mounted_tools.py stdio

With `stdio`, this program is the same server for that command. What a model would read of a tool is what was approved,
and a tool that says something else since then is refused.

Prints:
    {'result': 5}
    planner
"""

import asyncio
import sys

from fastmcp import Context, FastMCP

import sealwire

server = FastMCP("calculator")


@server.tool
def add(a: int, b: int) -> int:
    """Adds two numbers."""
    return a + b


@server.tool
def who(ctx: Context) -> str:
    """Says who calls."""
    return ctx.request_context.meta["dev.sealwire/caller"]["agent"]


async def main():
    service = sealwire.Service("sealwire.toml")
    service.mount_mcp("tools", server)
    async with service, sealwire.Client("planner.creds.json") as bus:
        print(await bus.call("math", "tools/add", a=2, b=3))
        print((await bus.call("math", "tools/who"))["result"])


if sys.argv[1:] == ["stdio"]:
    server.run(show_banner=False)
else:
    asyncio.run(main())
