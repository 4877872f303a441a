"""A call that outlives its caller: one program begins it, and another one of the same agent waits for it.

The key is all that the second program needs. Whoever begins the call again with the same key and parameters, because it
does not know whether the first time was successful, has the same task.

Prints:
    begun: film-17
    a.mov is rendered
    the other one: cancelled
"""

import asyncio

import sealwire

service = sealwire.Service("sealwire.toml")


@service.method("video/render", idempotent="24h", task="6h")
async def render(ctx: sealwire.Ctx, film: str) -> str:
    """Renders a film."""
    for frame in range(1, 4):
        ctx.progress(frame, 3, "frames")
        await asyncio.sleep(0.2)
    return f"{film} is rendered"


async def main():
    async with service:
        async with sealwire.Client("planner.creds.json") as first:
            task = await first.detach("math", "video/render", film="a.mov", idempotency_key="film-17")
            print("begun:", task.key)

        async with sealwire.Client("planner.creds.json") as second:
            print(await second.task("math", "video/render", "film-17").wait(result=str))

            other = await second.detach("math", "video/render", film="b.mov")
            await other.cancel()
            try:
                await other.wait(timeout=60)
            except sealwire.TaskError as error:
                print("the other one:", error.state)


asyncio.run(main())
