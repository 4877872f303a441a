"""The agent `planner` calls the service `math`."""

import asyncio

import sealwire


async def main() -> None:
    async with sealwire.Client("planner.creds.json") as bus:
        await bus.wait_for("math")  # it may have just been started
        print(await bus.call("math", "math/add", a=2, b=3))


if __name__ == "__main__":
    asyncio.run(main())
