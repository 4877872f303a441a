"""A server of the Model Context Protocol over stdio, made with the package mcp, with a resource that its tool `touch` changes.

Usage: sdk.py modern|legacy
"""
import sys

import anyio
import mcp.types as types
from mcp.server.lowlevel import Server
from mcp.server.mcpserver import Context, MCPServer
from mcp.server.stdio import stdio_server

URI = "note://one"


def modern():
    server = MCPServer("notes")

    @server.resource(URI)
    def note() -> str:
        return "text"

    @server.tool()
    async def touch(ctx: Context) -> str:
        await ctx.notify_resource_updated(URI)
        return "done"

    server.run("stdio")


async def legacy():
    subscribed = set()

    async def list_resources(ctx, params):
        return types.ListResourcesResult(resources=[types.Resource(uri=URI, name="one")])

    async def read_resource(ctx, params):
        return types.ReadResourceResult(contents=[types.TextResourceContents(uri=URI, text="text")])

    async def list_tools(ctx, params):
        return types.ListToolsResult(tools=[types.Tool(name="touch", input_schema={"type": "object"})])

    async def call_tool(ctx, params):
        for uri in subscribed:
            await ctx.session.send_resource_updated(uri)
        return types.CallToolResult(content=[types.TextContent(type="text", text="done")])

    async def subscribe(ctx, params):
        subscribed.add(str(params.uri))
        return types.EmptyResult()

    async def unsubscribe(ctx, params):
        subscribed.discard(str(params.uri))
        return types.EmptyResult()

    server = Server(
        "notes",
        on_list_resources=list_resources,
        on_read_resource=read_resource,
        on_list_tools=list_tools,
        on_call_tool=call_tool,
        on_subscribe_resource=subscribe,
        on_unsubscribe_resource=unsubscribe,
    )
    async with stdio_server() as (read, write):
        await server.run(read, write, server.create_initialization_options())


if sys.argv[1] == "modern":
    modern()
else:
    anyio.run(legacy)
