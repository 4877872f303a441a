"""A tool that speaks JSON-RPC over standard input and output, put behind the bus by a service.

The tool knows nothing of Sealwire: it reads a request per line and prints an answer per line. `sealwire serve stdio`
does the same without a line of Python; here the service is the program's own, and adds what it likes. Run without
arguments, this file is service and caller; with the argument `tool` it is the tool.

Prints:
    {'text': 'Sealwire', 'length': 8}
    refused: text/shout: the tool has no such method (2)
"""

import asyncio
import json
import sys

import sealwire


def tool():
    for line in sys.stdin:
        request = json.loads(line)
        answer = {"jsonrpc": "2.0", "id": request["id"]}
        if request["method"] == "text/measure":
            text = request["params"]["text"]
            answer["result"] = {"text": text, "length": len(text)}
        else:
            answer["error"] = {"code": -32601, "message": "Method not found"}
        print(json.dumps(answer), flush=True)


class Tool:
    """The child process. One request at a time: the answers are read in order."""

    def __init__(self, process):
        self.process, self.lock, self.id = process, asyncio.Lock(), 0

    @classmethod
    async def start(cls):
        pipe = asyncio.subprocess.PIPE
        return cls(await asyncio.create_subprocess_exec(sys.executable, __file__, "tool", stdin=pipe, stdout=pipe))

    async def ask(self, method, params):
        async with self.lock:
            self.id += 1
            request = {"jsonrpc": "2.0", "id": self.id, "method": method, "params": params}
            self.process.stdin.write(json.dumps(request).encode() + b"\n")
            await self.process.stdin.drain()
            answer = json.loads(await self.process.stdout.readline())
        if "error" in answer:
            # Only what this says reaches the caller, whatever the tool has printed.
            raise sealwire.RpcError(2, f"{method}: the tool has no such method")
        return answer["result"]

    async def stop(self):
        self.process.stdin.close()
        await self.process.wait()


async def main():
    service = sealwire.Service("sealwire.toml")
    child = await Tool.start()

    @service.method("text/measure")
    async def measure(text: str) -> dict[str, str | int]:
        return await child.ask("text/measure", {"text": text})

    @service.method("text/shout")
    async def shout(text: str) -> dict[str, str]:
        return await child.ask("text/shout", {"text": text})

    async with service, sealwire.Client("planner.creds.json") as bus:
        print(await bus.call("math", "text/measure", text="Sealwire"))
        try:
            await bus.call("math", "text/shout", text="Sealwire")
        except sealwire.RpcError as error:
            print(f"refused: {error}")
    await child.stop()


if sys.argv[1:] == ["tool"]:
    tool()
else:
    asyncio.run(main())
