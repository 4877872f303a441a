"""Methods by name and by position, and an error of the application.

Parameters may be given either way, whatever the method does: the type hints say which there are. A method that will not
work with well-formed parameters says so with an error of its own: any code outside -32768..-32000, a text, and data.

Prints:
    42.0
    42.0
    4.0
    refused: a square root of -1.0 is no real number (1001), {'smallest': 0}
    refused: Invalid params: parameter `b` must be a number, and is a string (-32602)
    refused: Method not found (-32601)
"""

import asyncio
import math

import sealwire

service = sealwire.Service("sealwire.toml")


@service.method("math/multiply")
async def multiply(a: float, b: float) -> float:
    """Multiplies two numbers."""
    return a * b


@service.method("math/root")
async def root(number: float) -> float:
    """The square root of a number."""
    if number < 0:
        raise sealwire.RpcError(1001, f"a square root of {number} is no real number", {"smallest": 0})
    return math.sqrt(number)


async def main():
    async with service, sealwire.Client("planner.creds.json") as bus:
        print(await bus.call("math", "math/multiply", a=6, b=7))
        print(await bus.call("math", "math/multiply", params=[6, 7]))
        print(await bus.call("math", "math/root", number=16))
        for method, params in [("math/root", [-1]), ("math/multiply", {"a": 1, "b": "2"}), ("math/divide", [1, 2])]:
            try:
                await bus.call("math", method, params=params)
            except sealwire.RpcError as error:
                print(f"refused: {error}" + (f", {error.data}" if error.data else ""))


asyncio.run(main())
