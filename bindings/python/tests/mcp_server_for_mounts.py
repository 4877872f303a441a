"""A server of MCP that a test mounts, and that `sealwire tools` asks as a program."""

import asyncio
import contextlib
import os

import pydantic
from fastmcp import Context, FastMCP

#: What is going on: the lifespan, and calls that were cancelled.
seen = []


@contextlib.asynccontextmanager
async def lifespan(_):
    seen.append("start")
    yield {"pool": "shared"}
    seen.append("end")


server = FastMCP("for mounts", lifespan=lifespan)


class Point(pydantic.BaseModel):
    x: float
    y: float = 1e16


@server.tool
def add(a: int, b: int = 2) -> int:
    """Adds “two” numbers."""
    return a + b


@server.tool(annotations={"readOnlyHint": True, "title": "Who"}, tags={"x"})
async def who(ctx: Context) -> dict:
    meta = ctx.request_context.meta or {}
    before = await ctx.get_state("mine")
    await ctx.set_state("mine", "set")
    return {"caller": meta.get("dev.sealwire/caller"), "before": before, "pool": ctx.lifespan_context["pool"]}


@server.tool
def move(point: Point, names: list[str] | None = None, far: bool = False) -> Point:
    return point


@server.tool(output_schema=None)
def words(text: str, times: int = 1) -> str:
    return text * times


@server.tool
def fails(text: str):
    raise ValueError(text)


@server.tool
async def works(steps: int, ctx: Context) -> str:
    for step in range(steps):
        await ctx.report_progress(step + 1, steps, "working")
    await ctx.info("half way")
    return "done"


@server.tool
async def asks(question: str, ctx: Context) -> str:
    answer = await ctx.elicit(question, response_type=bool)
    return f"{answer.action} {getattr(answer, 'data', None)}"


@server.tool
async def sleeps(seconds: float) -> str:
    seen.append("asleep")
    try:
        await asyncio.sleep(seconds)
    except asyncio.CancelledError:
        seen.append("cancelled")
        raise
    return "slept"


@server.tool
def lies() -> int:
    return "no number"


def later(extra: str = "") -> str:
    """Is added later."""
    return extra


if __name__ == "__main__":
    if os.environ.get("WITH_LATER"):
        server.tool(later)
    server.run(show_banner=False)
