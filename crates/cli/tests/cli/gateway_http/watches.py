"""A client made with the package mcp that watches a resource, has it changed, and stops watching. Prints one JSON object.

Usage: watches.py REVISION ADDRESS
"""
import asyncio
import json
import sys

import anyio
from mcp import Client
from mcp.types import ResourceUpdatedNotification

VERSION, ADDRESS = sys.argv[1:]
URI = "note://one"


async def modern(client, found):
    async with client.listen(resource_subscriptions=[URI]) as listening:
        await client.call_tool("touch", {})
        with anyio.move_on_after(30):
            found["heard"].append(str((await anext(listening)).uri))
    await client.call_tool("touch", {})


async def legacy(client, found, heard):
    await client.subscribe_resource(URI)
    await client.call_tool("touch", {})
    with anyio.move_on_after(30):
        while not heard:
            await anyio.sleep(0.05)
    found["heard"] += heard
    heard.clear()
    await client.unsubscribe_resource(URI)
    await client.call_tool("touch", {})
    await anyio.sleep(1)
    found["after"] += heard


async def main():
    heard, found = [], {"heard": [], "after": []}

    async def handle(message):
        if isinstance(message, ResourceUpdatedNotification):
            heard.append(str(message.params.uri))

    mode = "auto" if VERSION == "2026-07-28" else "legacy"
    async with Client(ADDRESS, mode=mode, message_handler=handle) as client:
        assert client.protocol_version == VERSION, client.protocol_version
        found["announced"] = client.server_capabilities.resources.subscribe is True
        if mode == "legacy":
            await legacy(client, found, heard)
        else:
            await modern(client, found)
    print(json.dumps(found))


asyncio.run(main())
