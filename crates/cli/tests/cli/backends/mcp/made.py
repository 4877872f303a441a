"""A server made with the package that it is told: mcp or fastmcp. Nothing in it knows of Sealwire.

Usage: made.py PACKAGE                        over stdio
       made.py PACKAGE PORT OPTION...         over HTTP; `earlier`: without revision 2026-07-28; `stateless`; `json`
"""

import asyncio
import os
import sys
import time
from typing import Annotated

from pydantic import BaseModel, Field

if sys.argv[1] == "mcp":
    from mcp.server import MCPServer
    from mcp.server.mcpserver import Context, Elicit, Resolve

    server, how = MCPServer("made"), {}
else:
    from fastmcp import Context, FastMCP

    server, how = FastMCP("made"), {"show_banner": False}


class Size(BaseModel):
    size: str


@server.tool()
def add(a: int, b: int) -> int:
    """Adds."""
    return a + b


@server.tool()
async def count(to: int, ctx: Context) -> str:
    """Counts."""
    for n in range(1, to + 1):
        await ctx.report_progress(n, to, f"at {n}")
    return "there"


@server.tool()
async def hang(file: str) -> str:
    """Never ends, and writes into a file when it begins and when it is cancelled."""
    with open(file, "w", encoding="utf-8") as begun:
        begun.write("begun")
    try:
        await asyncio.sleep(3600)
    except asyncio.CancelledError:
        with open(file, "w", encoding="utf-8") as ended:
            ended.write("cancelled")
        raise
    return ""


@server.tool()
async def block() -> str:
    """Never ends, and nothing else of the server goes on meanwhile."""
    time.sleep(3600)
    return ""


@server.tool()
def leave() -> str:
    """Ends the process."""
    os._exit(3)


if sys.argv[1] == "mcp":

    async def ask(ctx: Context) -> Elicit[Size]:
        return Elicit("Which size?", Size)

    @server.tool()
    async def order(size: Annotated[Size, Resolve(ask)]) -> str:
        """Orders, when it knows the size."""
        return size.size

    @server.tool()
    async def where(region: Annotated[str, Field(json_schema_extra={"x-mcp-header": "Region"})]) -> str:
        """Says where it runs."""
        return region


@server.tool()
async def choose(ctx: Context) -> str:
    """Asks while it runs, as libraries did before revision 2026-07-28."""
    if sys.argv[1] == "mcp":
        answer = await ctx.elicit("Which size?", Size)
    else:
        answer = await ctx.elicit("Which size?", response_type=Size)
    return answer.data.size


@server.tool()
async def large() -> str:
    """Says more than may be."""
    return "x" * (2 << 20)


@server.tool()
async def grow(ctx: Context) -> str:
    """Has another description from now on."""
    server.remove_tool("add")
    server.add_tool(add, description="Adds, and more.")
    if "earlier" in sys.argv:
        await ctx.session.send_tool_list_changed()
    else:
        await ctx.notify_tools_changed()
    return ""


@server.tool()
async def forget() -> str:
    """Ends all sessions."""
    asyncio.get_running_loop().call_later(0.05, app.forget)
    return ""


class App:
    """The server over HTTP, as one of an earlier revision if it is told to be."""

    def __init__(self):
        wanted = {"stateless_http": "stateless" in sys.argv, "json_response": "json" in sys.argv}
        made = server.streamable_http_app if sys.argv[1] == "mcp" else server.http_app
        self.app = made(**wanted)

    def forget(self):
        server.session_manager._server_instances.clear()

    async def __call__(self, scope, receive, send):
        version = dict(scope.get("headers", ())).get(b"mcp-protocol-version")
        if "earlier" in sys.argv and version == b"2026-07-28":
            await send({"type": "http.response.start", "status": 400, "headers": [(b"content-type", b"text/plain")]})
            await send({"type": "http.response.body", "body": b"Bad Request: Unsupported protocol version"})
        else:
            await self.app(scope, receive, send)


if len(sys.argv) == 2:
    server.run("stdio", **how)
else:
    import uvicorn

    app = App()
    uvicorn.run(app, port=int(sys.argv[2]), log_level="warning")
