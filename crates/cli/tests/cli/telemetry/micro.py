"""A micro service made with nats-py: micro.py URL. It knows nothing of Sealwire."""

import asyncio
import sys

import nats
import nats.micro


async def take(request):
    await request.respond(request.data)


async def fail(request):
    raise ValueError("no\x1b[2J")


async def main():
    client = await nats.connect(sys.argv[1], user="other", password="pw", inbox_prefix=b"_INBOX.other")
    service = await nats.micro.add_service(client, name="orders", version="1.2.3", metadata={"team": "a\"b"})
    # Two endpoints of one name, as ADR-32 allows.
    for group, handler in [("eu", take), ("us", take), ("bad", fail)]:
        await service.add_group(name=group).add_endpoint(name="place", handler=handler)
    for group in ["eu", "eu", "us", "bad"]:
        await client.request(f"{group}.place", b"1", timeout=30)
    print("ready", flush=True)
    await asyncio.Event().wait()


asyncio.run(main())
