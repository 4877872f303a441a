"""An HTTP server made with FastAPI, whose endpoints call the bus: its users need no key, and it is one agent.

What the service refuses becomes a status of HTTP. Never answer "failed" if the outcome is unknown: the call may have
run.

Prints:
    200 {'sum': 5.0}
    422 the parameters
    400 {'detail': 'nothing is divided by zero'}
"""

import asyncio
import contextlib

import fastapi
import httpx

import sealwire

service = sealwire.Service("sealwire.toml")
bus = sealwire.Client("planner.creds.json")


@service.method("math/add")
async def add(a: float, b: float) -> float:
    return a + b


@service.method("math/divide")
async def divide(a: float, b: float) -> float:
    if b == 0:
        raise sealwire.RpcError(1004, "nothing is divided by zero")
    return a / b


@contextlib.asynccontextmanager
async def lifespan(_):
    async with bus:
        yield


app = fastapi.FastAPI(lifespan=lifespan)


@app.exception_handler(sealwire.Error)
async def refused(_, error):
    if error.outcome_unknown:
        return fastapi.responses.JSONResponse({"detail": "the outcome is unknown"}, 504)
    if isinstance(error, sealwire.Denied):
        return fastapi.responses.JSONResponse({"detail": "not allowed"}, 403)
    if isinstance(error, sealwire.RpcError) and error.is_application:
        return fastapi.responses.JSONResponse({"detail": error.message}, 400)
    return fastapi.responses.JSONResponse({"detail": "not possible"}, 502)


@app.get("/sum")
async def sum_of(a: float, b: float):
    return {"sum": await bus.call("math", "math/add", a=a, b=b, result=float)}


@app.get("/ratio")
async def ratio_of(a: float, b: float):
    return {"ratio": await bus.call("math", "math/divide", a=a, b=b, result=float)}


async def main():
    transport = httpx.ASGITransport(app)
    async with service, lifespan(app), httpx.AsyncClient(transport=transport, base_url="http://front") as browser:
        answer = await browser.get("/sum", params={"a": 2, "b": 3})
        print(answer.status_code, answer.json())
        answer = await browser.get("/sum", params={"a": "x", "b": 3})
        print(answer.status_code, "the parameters")
        answer = await browser.get("/ratio", params={"a": 1, "b": 0})
        print(answer.status_code, answer.json())


asyncio.run(main())
