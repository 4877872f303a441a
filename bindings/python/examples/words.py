"""What a language model does, with words from a list: text in parts, progress, and how much it took.

A method may send parts on the way to a result of its own, and tell how far it is.

Prints:
    the bus carries every word
    5 words
    progress: 5.0 of 5.0
"""

import asyncio

import sealwire

service = sealwire.Service("sealwire.toml")


@service.method("text/generate")
async def generate(ctx: sealwire.Ctx, prompt: str) -> dict[str, int]:
    words = f"the bus carries every {prompt}".split()
    for number, word in enumerate(words, 1):
        await ctx.send(word)
        ctx.progress(number, len(words))
    return {"words": len(words)}


async def main():
    async with service, sealwire.Client("planner.creds.json") as bus:
        told = []
        async with bus.stream("math", "text/generate", prompt="word", item=str, on_progress=told.append) as parts:
            print(*[word async for word in parts])
            print((await parts.result())["words"], "words")
        print(f"progress: {told[-1].done} of {told[-1].total}")


asyncio.run(main())
