"""An application made with FastAPI, which knows nothing of Sealwire: JSON-RPC 2.0, streams of events, plain requests."""

import asyncio
import json
import sys
from pathlib import Path

import uvicorn
from fastapi import FastAPI, HTTPException, Request
from fastapi.responses import JSONResponse, PlainTextResponse, Response, StreamingResponse

app = FastAPI()
folder = Path(sys.argv[2])


def note(name: str) -> None:
    folder.joinpath(name).write_text(name)


def shown(request: Request) -> dict:
    return {name: value for name, value in request.headers.items() if name not in ("host", "user-agent")}


@app.get("/livez")
def livez() -> dict:
    if folder.joinpath("unwell").exists():
        raise HTTPException(503)
    return {}


@app.post("/rpc")
async def rpc(request: Request) -> Response:
    call = await request.json()
    if isinstance(call, list):
        return await batch(call, request)
    method, params = call["method"], call.get("params", {})

    def answer(**outcome) -> JSONResponse:
        return JSONResponse({"jsonrpc": "2.0", "id": call["id"], **outcome})

    if method == "add":
        # By position or by name.
        return answer(result=sum(params if isinstance(params, list) else params.values()))
    if method == "slow":
        # Only a batch is.
        return answer(result=params)
    if method == "shown":
        return answer(result=shown(request))
    if method == "refuse":
        return answer(error={"code": params["code"], "message": "not today", "data": {"day": "Monday"}})
    if method == "leave":
        import os

        os._exit(3)
    if method == "hang":
        note("hang-begun")
        while not await request.is_disconnected():
            await asyncio.sleep(0.02)
        note("hang-cancelled")
    if method == "report":

        async def events():
            def message(method, **params):
                return "data: " + json.dumps({"jsonrpc": "2.0", "method": method, "params": params}) + "\n\n"

            yield ": on its way\n\n"
            yield message("rpc.progress", progress=1, total=2, message="half")
            yield message("rpc.part", result={"half": 1})
            yield message("report/note", text="nearly")
            done = {"jsonrpc": "2.0", "id": call["id"], "result": {"halves": 2}}
            yield "event: message\r\ndata: " + json.dumps(done) + "\r\n\r\n"

        return StreamingResponse(events(), media_type="text/event-stream")
    return answer(error={"code": -32601, "message": "no such method"})


async def batch(calls: list, request: Request) -> Response:
    head = request.headers
    post = {"calls": len(calls), "bytes": len(await request.body()), "params": [call.get("params") for call in calls]}
    post |= {"agent": head.get("sealwire-agent"), "key": head.get("authorization"), "accept": head.get("accept")}
    with folder.joinpath("posts").open("a") as posts:
        posts.write(json.dumps(post) + "\n")
    methods = [call["method"] for call in calls]
    for method in ("busy", "page"):
        if method in methods:
            error = {"jsonrpc": "2.0", "id": None, "error": {"code": 7, "message": "busy"}}
            return JSONResponse(error) if method == "busy" else PlainTextResponse("oops", status_code=502)
    while "slow" in methods and not folder.joinpath("go").exists():
        if await request.is_disconnected():
            note("batch-cancelled")
            return Response()
        await asyncio.sleep(0.02)
    answers = []
    for call in calls:
        answer = {"jsonrpc": "2.0", "id": call["id"], "result": call.get("params")}
        if call["method"] == "refuse":
            answer = {"jsonrpc": "2.0", "id": call["id"], "error": {"code": 7, "message": "not today"}}
        answers += {"lost": [], "twice": [answer, answer], "garbled": [{"id": call["id"]}]}.get(call["method"], [answer])
    answers.append({"jsonrpc": "2.0", "id": 10**9, "result": "whose?"})
    # Done, and then refused.
    return JSONResponse(list(reversed(answers)), status_code=401 if "expired" in methods else 200)


@app.get("/rpc/stream")
async def stream(method: str, id: str, params: str = "{}") -> Response:
    given = json.loads(params)

    async def events():
        try:
            for n in range(1, given["to"] + 1):
                yield f"data: {json.dumps({'n': n})}\n\n"
            if method == "hang":
                note("stream-begun")
                while True:
                    await asyncio.sleep(0.02)
                    yield ": still there\n\n"
            if method == "fail":
                yield 'event: error\ndata: {"why": "dry"}\n\n'
            if method == "responses":
                for n in range(2):
                    yield "data: " + json.dumps({"jsonrpc": "2.0", "id": int(id), "result": n}) + "\n\n"
            if method != "cut":
                yield "data: [DONE]\n\n"
        finally:
            if method == "hang":
                note("stream-cancelled")

    return StreamingResponse(events(), media_type="text/event-stream")


@app.get("/weather/{city}")
def weather(city: str, request: Request, units: str | None = None) -> dict:
    if city == "Atlantis":
        raise HTTPException(404, detail="no such city")
    return {"city": city, "units": units, "query": request.url.query, "tag": request.headers.get("x-tag")}


@app.get("/weather/{city}/secret")
def secret(city: str) -> dict:
    return {"secret": city}


@app.post("/orders/{number}", status_code=201)
async def order(number: int, request: Request) -> dict:
    return {"number": number, "body": await request.json()}


@app.delete("/orders/{number}", status_code=204)
def cancel(number: int) -> None:
    pass


@app.get("/words")
def words() -> Response:
    return PlainTextResponse("some words\n")


@app.get("/status/{status}")
def status(status: int) -> Response:
    return JSONResponse({"detail": "as asked"}, status_code=status)


uvicorn.run(app, host="127.0.0.1", port=int(sys.argv[1]), log_level="error")
