"""A FastAPI application as it is, whose operations are methods: the bus is its only way in, and it opens no port.

Each operation is a method `shop/NAME`, with the parameters that its document declares. Who calls is proved, and in the
request's state; no header says so.

Prints:
    planner bought 2 lamp
    error 1: status 409 {'status': 409, 'body': {'detail': 'there is no such shelf'}}
    {'n': 0} {'n': 1} {'n': 2}
"""

import asyncio
import json

import fastapi
import pydantic

import sealwire

app = fastapi.FastAPI()


class Order(pydantic.BaseModel):
    product: str
    number: int = 1


@app.post("/orders/{shelf}", operation_id="buy")
async def buy(shelf: str, order: Order, request: fastapi.Request) -> str:
    if shelf != "a":
        raise fastapi.HTTPException(409, "there is no such shelf")
    caller = request.state.sealwire.caller
    return f"{caller.agent} bought {order.number} {order.product}"


@app.get("/count", operation_id="count")
async def count(to: int):
    async def events():
        for n in range(to):
            yield f"data: {json.dumps({'n': n})}\n\n"
        yield "data: [DONE]\n\n"

    return fastapi.responses.StreamingResponse(events(), media_type="text/event-stream")


service = sealwire.Service("sealwire.toml")
service.mount_asgi("shop", app)


async def main():
    async with service, sealwire.Client("planner.creds.json") as bus:
        print(await bus.call("math", "shop/buy", shelf="a", product="lamp", number=2))
        try:
            await bus.call("math", "shop/buy", shelf="z", product="lamp")
        except sealwire.RpcError as error:
            print(f"error {error.code}: {error.message} {error.data}")
        async with bus.stream("math", "shop/count", to=3) as parts:
            print(*[part async for part in parts])


asyncio.run(main())
