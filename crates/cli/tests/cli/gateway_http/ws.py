"""JSON-RPC over WebSocket as the package `websockets` speaks it, with the gateway at the address of the first argument. Prints one
JSON object."""

import asyncio
import json
import sys

from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed, InvalidStatus

GATEWAY = sys.argv[1].replace("http", "ws", 1) + "/rpc/tools/ws"


def call(id, method, params):
    return json.dumps({"jsonrpc": "2.0", "id": id, "method": method, "params": params})


async def ask(socket, text):
    await socket.send(text)
    return json.loads(await socket.recv())


async def plain():
    async with connect(GATEWAY) as socket:
        found = {
            "subprotocol": socket.subprotocol,
            "added": (await ask(socket, call(1, "math/add", [2, 3])))["result"],
            "text": (await ask(socket, call("ä", "text/echo", {"text": "a b"}))),
            "denied": (await ask(socket, call(2, "bank/balance", {"account": "ann"})))["error"]["code"],
            "broken": await ask(socket, "{"),
            "none": (await ask(socket, '{"jsonrpc": "2.0", "id": 3, "method": 7}'))["error"]["code"],
        }
        await socket.send('{"jsonrpc": "2.0", "method": "log/append", "params": {"msg": "told"}}')
        batch = [json.loads(call(id, "math/add", [id, 1])) for id in (5, 6)]
        batch.append({"jsonrpc": "2.0", "method": "log/append", "params": {"msg": "told, too"}})
        answers = await ask(socket, json.dumps(batch))
        found["batch"] = sorted(answer["result"] for answer in answers)
        # Several at a time, a slow one first.
        await socket.send(call("slow", "job/run", {"steps": 50}))
        for id in range(20):
            await socket.send(call(id, "math/add", [id, id]))
        answers = [json.loads(await socket.recv()) for _ in range(20)]
        found["several"] = all(answer["result"] == 2 * answer["id"] for answer in answers)
        found["in use"] = await ask(socket, call("slow", "math/add", [1, 1]))
        found["last"] = json.loads(await socket.recv())
        # One is cancelled, and one that is not there.
        await socket.send(call("job", "job/run", {"steps": 5999}))
        await asyncio.sleep(1)
        found["unknown"] = await ask(socket, call("c", "rpc.cancel", {"id": 99}))
        await socket.send('{"jsonrpc": "2.0", "method": "rpc.cancel", "params": {"id": "job"}}')
        answer = json.loads(await socket.recv())
        found["cancelled"] = [answer["id"], answer["error"]["code"]]
        found["after"] = (await ask(socket, call("job", "math/add", [1, 1])))["result"]
        # Nobody answers an answer.
        await socket.send('{"jsonrpc": "2.0", "id": "ask-1", "result": true}')
        found["quiet"] = (await ask(socket, call(1, "math/add", [1, 2])))["result"]
    return found


async def parts():
    async with connect(GATEWAY, subprotocols=["jsonrpc", "parts.sealwire.dev"]) as socket:
        found = {"subprotocol": socket.subprotocol}

        async def until(id):
            said = []
            while not said or said[-1].get("id") != id:
                said.append(json.loads(await socket.recv()))
            return said

        await socket.send(call("me", "text/echo", {"text": "one by one"}))
        found["words"] = await until("me")
        await socket.send(call(2, "job/run", {"steps": 2}))
        found["job"] = await until(2)
        await socket.send(call(3, "rpc.listen", {"method": "clock/ticks", "params": {}}))
        found["ticks"] = [json.loads(await socket.recv()) for _ in range(2)]
        await socket.send('{"jsonrpc": "2.0", "method": "rpc.cancel", "params": {"id": 3}}')
        found["ended"] = (await until(3))[-1]["error"]["code"]
        found["denied"] = (await ask(socket, call(4, "bank/balance", {"account": "ann"})))["error"]["code"]
        found["wrong"] = (await ask(socket, call(5, "rpc.listen", {"name": "clock/ticks"})))["error"]["code"]
        # Two at a time: what each says has its id.
        await socket.send(call("a", "text/echo", {"text": "1 2 3"}))
        await socket.send(call("b", "text/echo", {"text": "4 5 6"}))
        said, ends = [], 0
        while ends < 2:
            said.append(json.loads(await socket.recv()))
            ends += "id" in said[-1]
        found["two"] = {
            id: [one["params"]["result"] for one in said if one.get("params", {}).get("id") == id] for id in ("a", "b")
        }
    return found


async def closed(message):
    async with connect(GATEWAY) as socket:
        try:
            await socket.send(message)
            await socket.recv()
        except ConnectionClosed as error:
            return error.rcvd.code


async def refused(**options):
    try:
        async with connect(GATEWAY, **options):
            return None
    except InvalidStatus as error:
        return error.response.status_code


async def main():
    found = {
        "plain": await plain(),
        "parts": await parts(),
        "binary": await closed(b"{}"),
        "large": await closed(" " * (1 << 20)),
        "fragments": await closed([" " * (100 << 10)] * 2),
        "foreign": await refused(origin="https://evil.example"),
        "page": await refused(origin="http://localhost:3000"),
    }
    print(json.dumps(found))


asyncio.run(main())
