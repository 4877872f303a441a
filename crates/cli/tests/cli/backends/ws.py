"""A server that knows nothing of Sealwire: JSON-RPC 2.0 over a WebSocket, with the package `websockets`. Well-behaved, or not, as asked."""

import asyncio
import json
import ssl
import sys

from websockets.asyncio.server import serve

cancelled, connections = [], []


async def converse(ws):
    connections.append(ws)
    if ws.request.path == "/closes":
        return await ws.close(1011, "not today")
    asked = asyncio.get_running_loop().create_future()

    async def say(**message):
        await ws.send(json.dumps({"jsonrpc": "2.0", **message}))

    async def ticks():
        number = 0
        while True:
            await asyncio.sleep(0.02)
            number += 1
            await say(method="tick", params={"n": number})

    async def run(message):
        method, params, id = message.get("method"), message.get("params"), message.get("id")
        if method is None:
            asked.set_result(message.get("result", message.get("error")))
        elif method == "echo":
            await say(id=id, result=params)
        elif method == "later":
            await asyncio.sleep(params[0] % 7 / 200)
            await say(id=id, result=params)
        elif method == "who":
            await say(id=id, result=message.get("caller"))
        elif method == "shown":
            await say(id=id, result={name.lower(): value for name, value in ws.request.headers.raw_items()})
        elif method == "refuse":
            await say(id=id, error={"code": -32050, "message": "not today", "data": {"day": "Monday"}})
        elif method == "job":
            await say(method="rpc.progress", params={"id": id, "progress": 1, "total": 2})
            for n in range(params[0]):
                await say(method="rpc.part", params={"id": id, "result": n})
            await say(method="job/began", params={"id": id, "by": "me"})
            await say(id=id, result="done")
        elif method == "ask":
            await say(method="which", params={"id": id}, id="q1")
            await say(id=id, result=await asked)
        elif method == "wait":
            await say(method="rpc.part", params={"id": id, "result": "waiting"})
        elif method == "rpc.cancel":
            cancelled.append(params["id"])
        elif method == "cancelled":
            await say(id=id, result=cancelled)
        elif method == "connections":
            await say(id=id, result=len(connections))
        elif method == "form":
            text = params["text"].replace("ID", str(id))
            await ws.send(text.encode() if params.get("bytes") else text)
        elif method == "fragments":
            await ws.send(iter(['{"jsonrpc":"2.0",', f'"id":{id},', '"result":1}']))
        elif method == "frames":
            # An answer in two parts, and between them frames that add nothing to it, and pings.
            empty, pings = params
            begun, rest = b'{"jsonrpc":"2.0",', b'"id":%s,"result":1}' % json.dumps(id).encode()
            ping = b"\x89\x7d" + 125 * b"p"
            between = [b"\x00\x00" * (empty // (pings + 1))] * (pings + 1)
            ws.transport.write(b"\x01%c" % len(begun) + begun + ping.join(between) + b"\x80%c" % len(rest) + rest)
        elif method == "closes":
            await ws.close(1013, "later\x1b[2J")
        elif method == "breaks":
            ws.transport.abort()
        elif method == "large":
            await ws.send(json.dumps({"jsonrpc": "2.0", "id": id, "result": "x" * (1 << 20)}))
        elif method == "noise":
            while True:
                await ws.send("noise " * params[0])
        elif method == "pings":
            for number in range(1_000_000):
                await ws.ping(b"%d" % number)
        elif id is not None:
            await say(error={"code": -32601, "message": "Method not found"}, id=id)

    ticking = asyncio.create_task(ticks()) if "--ticks" in sys.argv else None
    tasks = set()
    try:
        async for raw in ws:
            task = asyncio.create_task(run(json.loads(raw)))
            tasks.add(task)
            task.add_done_callback(tasks.discard)
    finally:
        if ticking:
            ticking.cancel()


async def main():
    tls = None
    if len(sys.argv) > 3 and sys.argv[2].endswith(".pem"):
        tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        tls.load_cert_chain(sys.argv[2], sys.argv[3])
    subprotocols = ["rpc"] if "--ticks" in sys.argv else None
    async with serve(converse, "127.0.0.1", int(sys.argv[1]), ssl=tls, subprotocols=subprotocols) as server:
        print("listening", flush=True)
        await server.serve_forever()


asyncio.run(main())
