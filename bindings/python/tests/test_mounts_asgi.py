"""ASGI applications as methods of a service: requests, answers, and what callers and applications may try."""

import asyncio
import contextlib
import contextvars
import json
import logging
import socket
import subprocess
import threading
import time
import warnings

import pytest
import sealwire
from conftest import SOON, opened, run, until
from sealwire import _asgi, _openapi, _places

fastapi = pytest.importorskip("fastapi")
pydantic = pytest.importorskip("pydantic")
routing = pytest.importorskip("starlette.routing")


@contextlib.asynccontextmanager
async def mounted(stage, app, agent="ann", **options):
    """A service whose methods below `site` are those of an application, and a client."""
    service = sealwire.Service(stage.folder / "sealwire.toml")
    service.mount_asgi("site", app, **options)
    async with service, opened(stage, agent) as bus:
        yield bus


def document(**operations):
    """An OpenAPI document: of each operation, the path, and what else is to be said."""
    paths = {}
    for name, (path, about) in operations.items():
        verb = about.pop("verb", "get")
        paths.setdefault(path, {})[verb] = {"operationId": name, **about}
    return {"openapi": "3.1.0", "info": {"title": "t", "version": "1"}, "paths": paths}


def param(place, name, kind="string", **more):
    return {"in": place, "name": name, "required": place == "path", "schema": {"type": kind}, **more}


async def empty(receive):
    while (await receive())["type"] != "http.disconnect":
        pass


def plain(handle):
    """An application that knows nothing of `lifespan`."""

    async def app(scope, receive, send):
        if scope["type"] != "http":
            raise NotImplementedError
        await handle(scope, receive, send)

    return app


async def answer(send, value, status=200, fields=((b"content-type", b"application/json"),)):
    body = value if isinstance(value, bytes) else json.dumps(value).encode()
    await send({"type": "http.response.start", "status": status, "headers": list(fields)})
    await send({"type": "http.response.body", "body": body})


def shop():
    """An application as people write them."""
    app = fastapi.FastAPI()

    class Order(pydantic.BaseModel):
        product: str
        number: int = 1
        tags: list[str] = []
        note: str | None = None

    @app.get("/items/{item}", operation_id="item")
    def item(item: int, shelf: str = "a", full: bool = False, x_color: str = fastapi.Header("red")):
        """Finds an item."""
        return {"item": item, "shelf": shelf, "full": full, "color": x_color}

    @app.post("/orders/{customer}", operation_id="order")
    async def order(customer: str, order: Order):
        if order.number < 1:
            raise fastapi.HTTPException(409, "nothing to buy")
        return {"customer": customer, **order.model_dump()}

    @app.put("/list", operation_id="list")
    async def put_list(values: list[int]):
        return sum(values)

    @app.delete("/items/{item}", operation_id="remove", status_code=204)
    async def remove(item: int):
        return None

    @app.get("/words", operation_id="words", response_class=fastapi.responses.PlainTextResponse)
    async def words(text: str):
        return text + "\n"

    @app.get("/fail/{status}", operation_id="fail")
    async def fail(status: int):
        raise fastapi.HTTPException(status, {"why": "because"})

    @app.get("/parts", operation_id="parts")
    async def parts(to: int, ends: bool = True):
        async def events():
            for number in range(to):
                yield f'data: {{"n": {number}}}\n\n'
            if ends:
                yield "data: [DONE]\n\n"

        return fastapi.responses.StreamingResponse(events(), media_type="text/event-stream")

    @app.get("/broken", operation_id="broken")
    async def broken():
        raise RuntimeError("secret words")

    return app


def test_operations_are_methods(stage):
    async def main():
        async with mounted(stage, shop()) as bus:
            call = lambda method, **params: bus.call("site", f"site/{method}", params=params)
            assert await call("item", item=5) == {"item": 5, "shelf": "a", "full": False, "color": "red"}
            found = await call("item", item=-5, shelf="ü &=/", full=True, **{"x-color": "blue"})
            assert found == {"item": -5, "shelf": "ü &=/", "full": True, "color": "blue"}
            assert (await bus.call("site", "site/item", params=[7, "b"]))["shelf"] == "b"
            assert await call("order", customer="c", product="lamp", tags=["x"]) == {
                "customer": "c",
                "product": "lamp",
                "number": 1,
                "tags": ["x"],
                "note": None,
            }
            assert await call("list", body=[1, 2, 3]) == 6
            assert await call("remove", item=1) is None
            assert await call("words", text="a b") == "a b\n"
            for method, params in [
                ("item", {}),
                ("item", {"item": "5"}),
                ("item", {"item": 5.0}),
                ("item", {"item": 2**63}),
                ("item", {"item": 5, "shelf": 1}),
                ("item", {"item": 5, "other": 1}),
                ("item", {"item": 5, "shelf": "x" * 4097}),
                ("order", {"customer": "c", "product": "lamp", "number": "1"}),
                ("order", {"customer": "c", "product": "lamp", "extra": 1}),
                ("order", {"customer": "c"}),
                ("list", {"body": [1, "2"]}),
                ("list", {}),
            ]:
                with pytest.raises(sealwire.InvalidParams):
                    await call(method, **params)
            methods = {each.name: each for each in (await bus.discover("site")).methods}
            assert "site/broken" in methods
            item, order = methods["site/item"], methods["site/order"]
            assert "Finds an item." in item.description and item.params["properties"]["item"]["type"] == "integer"
            assert order.params["required"] == ["customer", "product"]
            assert order.params["properties"]["tags"]["items"] == {"type": "string"}

    run(main)


def test_answers_become_results_and_errors(stage, caplog):
    async def main():
        async with mounted(stage, shop()) as bus:
            for status in (400, 404, 409, 429, 499):
                with pytest.raises(sealwire.RpcError) as caught:
                    await bus.call("site", "site/fail", status=status)
                error = caught.value
                assert (error.code, error.message, error.is_application) == (1, f"status {status}", True)
                assert error.data == {"status": status, "body": {"detail": {"why": "because"}}}
            for status in (401, 407, 500, 503):
                with pytest.raises(sealwire.RpcError) as caught:
                    await bus.call("site", "site/fail", status=status)
                assert caught.value.code == -32004 and caught.value.data is None
            # FastAPI checks what the declared types do not say.
            with pytest.raises(sealwire.RpcError) as caught:
                await bus.call("site", "site/order", customer="c", product="lamp", number=0)
            assert caught.value.data["status"] == 409
            with caplog.at_level(logging.ERROR, "sealwire.mounts"), pytest.raises(sealwire.RpcError) as caught:
                await bus.call("site", "site/broken")
            assert caught.value.code == -32004 and "secret" not in str(caught.value)
            assert "secret words" in caplog.text

    run(main)


def test_streams_of_events(stage):
    async def main():
        async with mounted(stage, shop()) as bus:
            async with bus.stream("site", "site/parts", to=300) as parts:
                assert [part["n"] async for part in parts] == list(range(300))
                assert await parts.result() is None
            # A caller that takes no parts gets all of them.
            assert await bus.call("site", "site/parts", to=3) == [{"n": 0}, {"n": 1}, {"n": 2}]
            with pytest.raises(sealwire.RpcError) as caught:
                await bus.call("site", "site/parts", to=1, ends=False)
            assert caught.value.code == -32004

    run(main)


@pytest.mark.parametrize("piece", [1, 7, 1 << 20])
def test_events_are_read_however_they_are_cut(piece):
    from sealwire._events import Reader

    text = (
        b"\xef\xbb\xbf: x\r\ndata: a\r\ndata:b\r\n\r\nevent: error\rid: 5\rdata: {}\r\rdata\n\nevent: lost\n\ndata: cut"
    )
    reader, events = Reader(), []
    for place in range(0, len(text), piece):
        events += reader.read(text[place : place + piece])
    assert [(each.kind, each.data) for each in events] == [("", "a\nb"), ("error", "{}"), ("", "")]


secret = contextvars.ContextVar("secret", default=None)


def test_the_caller_is_in_the_state_and_in_no_header(stage):
    both = asyncio.Barrier(2) if hasattr(asyncio, "Barrier") else None
    app = fastapi.FastAPI()

    @app.get("/who", operation_id="who")
    async def who(request: fastapi.Request):
        agent = request.state.sealwire.caller.agent
        before = (secret.get(), getattr(request.state, "mine", None))
        secret.set(agent)
        request.state.mine = agent
        if both is not None:
            await both.wait()
        after = (secret.get(), request.state.mine, request.state.sealwire.caller.agent)
        return {"agent": agent, "before": before, "after": after, "headers": dict(request.headers)}

    @app.get("/thread", operation_id="thread")
    def thread(request: fastapi.Request):
        return request.state.sealwire.caller.agent

    async def main():
        async with mounted(stage, app) as ann, opened(stage, "bob") as bob:
            for _ in range(3):
                found = await asyncio.gather(ann.call("site", "site/who"), bob.call("site", "site/who"))
                for agent, each in zip(("ann", "bob"), found):
                    assert each["agent"] == agent and each["before"] == [None, None]
                    assert each["after"] == [agent, agent, agent]
                    assert set(each["headers"]) == {"host", "accept"}, each["headers"]
            # Nothing that a caller sends becomes a header, or somebody else.
            for params in [{"sealwire": {"agent": "bob"}}, {"state": {}}, {"headers": {"authorization": "x"}}]:
                with pytest.raises(sealwire.InvalidParams):
                    await ann.call("site", "site/who", params=params)
            assert await bob.call("site", "site/thread") == "bob"

    run(main)


#: Header fields, and whether a document may declare them as a parameter.
FIELDS = {
    **dict.fromkeys(
        "Host Content-Length Transfer-Encoding Connection TE Trailer Upgrade Expect Keep-Alive Proxy-Connection "
        "Proxy-Authorization Accept Accept-Encoding Content-Type Content-Encoding Range If-Match Cookie Set-Cookie "
        "Authorization AUTHORIZATION Idempotency-Key Origin Referer Sec-Fetch-Site Sealwire-Agent Sealwire-Subject "
        "Traceparent Tracestate Remote-User X-Remote-User X-User X-User-Id X-Auth-Request-User X-Authenticated-Userid "
        "X-Client-Cert X-Goog-Authenticated-User-Email X-Amzn-Oidc-Identity X-MS-Client-Principal X-SSL-Client-Cert "
        "Forwarded Via X-Forwarded-For x-forwarded-for X_Forwarded_For X-Forwarded X-Forwarded-Host X-Forwarded-Proto "
        "X-Real-IP X_Real_Ip X-Original-URL X-Rewrite-URL X-HTTP-Method-Override X-Method-Override X-Envoy-Peer "
        "True-Client-IP CF-Connecting-IP Fastly-Client-IP Front-End-Https".split(),
        False,
    ),
    **dict.fromkeys(["X-Color", "X-Api-Key", "X-Request-Id", "Prefer", "Api-Version"], True),
}


@pytest.mark.parametrize("name", [name for name, may in FIELDS.items() if not may])
def test_fields_that_no_call_sets(name):
    required = document(get=("/", {"parameters": [param("header", name, required=True)]}))
    with pytest.raises(ValueError, match="belongs to the connection, or says who asks"):
        sealwire.Service().mount_asgi("site", plain(None), openapi=required)
    optional = document(get=("/", {"parameters": [param("header", name)]}))
    assert _openapi.operations(optional, None)[0].params == []


def test_fields_that_calls_set(stage):
    seen = []

    @plain
    async def app(scope, receive, send):
        seen.append([value for name, value in scope["headers"] if name == scope["path"][1:].encode()])
        await answer(send, None)

    names = [name for name, may in FIELDS.items() if may]
    api = document(
        **{name: (f"/{name.lower()}", {"parameters": [param("header", name, required=True)]}) for name in names}
    )

    async def main():
        async with mounted(stage, app, openapi=api) as bus:
            for name in names:
                await bus.call("site", f"site/{name}", params=["some value"])
                assert seen.pop() == [b"some value"]
                for value in ["a\r\nb: c", "a\nb", "a\rb", "a\0b", "a\x7f", " a", "a ", "a\x85"]:
                    with pytest.raises(sealwire.InvalidParams):
                        await bus.call("site", f"site/{name}", params=[value])
                assert seen == []

    run(main)


#: What a caller may write for a part of the path; None if it is refused.
IN_PATH = {
    "a": "/a/x",
    "a b": "/a%20b/x",
    "ü": "/%C3%BC/x",
    "a.b": "/a.b/x",
    ".a": "/.a/x",
    "a;b=c": "/a%3Bb%3Dc/x",
    "a&b=c+d": "/a%26b%3Dc%2Bd/x",
    "@:!": "/%40%3A%21/x",
    **dict.fromkeys(
        ["", ".", "..", "...", "..;", ".;a", "/", "a/b", "../b", "..\\b", "\\", "%", "%2f", "%2F..", "%2e%2e", "%00"]
        + ["a?b", "?", "#", "a#b", "a\r\nb", "\n", "\0", "a\0", "\t", "\x7f", "\x85", "x" * 4097]
    ),
}

#: The same for a value in the query.
IN_QUERY = {
    "": "q=",
    "a&b=c": "q=a%26b%3Dc",
    "a;b": "q=a%3Bb",
    "..": "q=..",
    "a/../b?c#d": "q=a%2F..%2Fb%3Fc%23d",
    "%2f": "q=%252f",
    "a\r\nHost: b": "q=a%0D%0AHost%3A%20b",
    "+": "q=%2B",
    "\u2028": "q=%E2%80%A8",
    "a\0": None,
    "x" * 4097: None,
}


def test_no_value_is_more_than_itself(stage):
    seen = []

    @plain
    async def app(scope, receive, send):
        seen.append((scope["path"], scope["raw_path"].decode(), scope["query_string"].decode()))
        await answer(send, None)

    api = document(
        path=("/{p}/x", {"parameters": [param("path", "p")]}),
        query=("/q", {"parameters": [param("query", "q", required=True)]}),
    )

    async def main():
        async with mounted(stage, app, openapi=api) as bus:
            for value, raw in IN_PATH.items():
                if raw is None:
                    with pytest.raises(sealwire.InvalidParams):
                        await bus.call("site", "site/path", p=value)
                else:
                    await bus.call("site", "site/path", p=value)
                    assert seen.pop() == (f"/{value}/x", raw, "")
                assert seen == [], value
            for value, raw in IN_QUERY.items():
                if raw is None:
                    with pytest.raises(sealwire.InvalidParams):
                        await bus.call("site", "site/query", q=value)
                else:
                    await bus.call("site", "site/query", q=value)
                    assert seen.pop() == ("/q", "/q", raw)
                assert seen == [], value

    run(main)


def test_no_value_leads_to_another_route(stage):
    reached = []
    app = fastapi.FastAPI()
    inner = fastapi.APIRouter(prefix="/users")

    def route(name):
        async def endpoint():
            reached.append(name)

        return endpoint

    def user(user: str):
        reached.append("user")

    def two(a: str, b: str):
        reached.append(a + b)

    def thing(thing: str):
        reached.append("thing")

    # Routes that the document shows, and routes that it hides.
    app.get("/users/me", operation_id="me")(route("me"))
    app.get("/users/root", include_in_schema=False)(route("root"))
    inner.get("/admin", include_in_schema=False)(route("admin"))
    inner.get("/{user}", operation_id="user")(user)
    app.include_router(inner)
    sub = fastapi.FastAPI()
    sub.get("/hidden")(route("hidden"))
    app.mount("/users/sub", sub)
    app.get("/things/{number:int}", include_in_schema=False)(route("number"))
    app.get("/things/{thing}", operation_id="thing")(thing)

    async def main():
        async with mounted(stage, app) as bus:
            for method, name in [
                ("user", "me"),
                ("user", "root"),
                ("user", "admin"),
                ("thing", "5"),
            ]:
                with pytest.raises(sealwire.InvalidParams, match="another operation"):
                    await bus.call("site", f"site/{method}", params=[name])
            assert reached == []
            await bus.call("site", "site/user", user="ann")
            await bus.call("site", "site/user", user="sub")
            await bus.call("site", "site/thing", thing="lamp")
            await bus.call("site", "site/me")
            assert reached == ["user", "user", "thing", "me"]

        # A path that begins like the root path of the application is one without it.
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            rooted = fastapi.FastAPI(root_path="/api")
        rooted.get("/secret", include_in_schema=False)(route("secret"))
        rooted.get("/{a}/{b}", operation_id="two")(two)
        reached.clear()
        async with mounted(stage, rooted) as bus:
            with pytest.raises(sealwire.InvalidParams, match="another operation"):
                await bus.call("site", "site/two", params=["api", "secret"])
            await bus.call("site", "site/two", params=["apis", "secret"])
            assert reached == ["apissecret"]

        # Without routes to look at, what the document says of other operations.
        @plain
        async def any_app(scope, receive, send):
            reached.append(scope["path"])
            await answer(send, None)

        api = document(
            user=("/users/{u}", {"parameters": [param("path", "u")]}),
            other=("/users/{other}/x", {"parameters": [param("path", "other")]}),
            me=("/users/me", {}),
            blank=("/users/a%20b", {}),
        )
        reached.clear()
        async with mounted(stage, any_app, openapi=api, operations=["user"]) as bus:
            for name in ["me", "a b"]:
                with pytest.raises(sealwire.InvalidParams, match="another operation"):
                    await bus.call("site", "site/user", u=name)
            await bus.call("site", "site/user", u="you")
            assert reached == ["/users/you"]

    run(main)


def test_documents_that_cannot_be_mounted_are_refused_at_once():
    app = plain(None)
    body = lambda schema, media="application/json", **more: {
        "requestBody": {"required": True, "content": {media: {"schema": schema}}, **more}
    }
    for api, reason in [
        ({"swagger": "2.0"}, "OpenAPI 3"),
        ({"openapi": "3.0.0", "paths": {}}, "no operation"),
        ({"openapi": "3.0.0", "paths": {"/": {"get": {}}}}, "operationId"),
        (document(get=("/", {"parameters": [param("cookie", "c", required=True)]})), "would be in a cookie"),
        (document(get=("/", {"parameters": [param("query", "q", "array", required=True)]})), "a part of a text"),
        (document(get=("/", {"parameters": [param("query", "q", "number", required=True)]})), "a part of a text"),
        (document(get=("/{a}", {})), "no parameter"),
        (document(get=("/", {"parameters": [param("path", "a")]})), "not in the path"),
        (document(get=("/a%2f{a}", {"parameters": [param("path", "a")]})), "beside a parameter"),
        (document(get=("/", {"parameters": [param("query", "a"), param("header", "a", required=True)]})), "two of its"),
        (document(get=("/", body({"type": "object"}))), "a body with GET"),
        (document(up=("/", {"verb": "post", **body({}, "multipart/form-data")})), "not JSON"),
        (document(get=("/", {"responses": {"200": {"content": {"image/png": {}}}}})), "neither JSON nor a text"),
        (document(get=("/", {"parameters": [{"$ref": "http://x/y"}]})), "leads out"),
        (document(get=("/", {"parameters": [{"$ref": "#/a/b"}]})), "leads nowhere"),
        (document(**{"a b": ("/", {})}), "name"),
        (document(**{"x": ("/", {}), "y": ("/y", {"operationId": "x"})}), "two operations"),
    ]:
        service = sealwire.Service()
        with pytest.raises(ValueError, match=reason):
            service.mount_asgi("site", app, openapi=api)
        assert service._methods == []
    service = sealwire.Service()
    with pytest.raises(TypeError, match="openapi"):
        service.mount_asgi("site", app)
    with pytest.raises(ValueError, match="no operation 'z'"):
        service.mount_asgi("site", app, openapi=document(x=("/", {})), operations=["x", "z"])
    with pytest.raises(ValueError, match="several"):
        service.mount_asgi("site", app, openapi=document(x=("/", {})), operations="x")
    # Routes that are not there, and one that another covers.
    starlette = pytest.importorskip("starlette.applications")
    routes = [routing.Route("/a/{b}", lambda _: None), routing.Route("/a/c", lambda _: None)]
    for path in ["/nowhere", "/a/c"]:
        with pytest.raises(ValueError, match="no route"):
            service.mount_asgi("site", starlette.Starlette(routes=routes), openapi=document(x=(path, {})))
    service.mount_asgi("site", app, openapi=document(x=("/", {}), y=("/y", {})), operations={"x": "first"})
    assert [each.name for each in service._methods] == ["site/first"]
    with pytest.raises(ValueError, match="already"):
        service.mount_asgi("site", app, openapi=document(first=("/", {})))


async def is_refused(bus, method, data=None, **options):
    """Whether a call gets -32004, and nothing of what went wrong."""
    with pytest.raises(sealwire.RpcError) as caught:
        await bus.call("site", f"site/{method}", **options)
    assert (caught.value.code, caught.value.data) == (-32004, data), caught.value


def test_applications_that_break_the_rules_cost_their_calls_only(stage):
    started, stopped = [], []
    start = {"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"application/json")]}
    body = {"type": "http.response.body", "body": b"1"}
    bad = {
        "returns": [],
        "no_body": [start],
        "half": [start, {**body, "more_body": True}],
        "no_start": [body],
        "two_starts": [start, start, body],
        "nonsense": [{"type": "nonsense"}],
        "no_type": [{}],
        "no_message": [None],
        "status_text": [{**start, "status": "200"}, body],
        "status_true": [{**start, "status": True}, body],
        "status_101": [{**start, "status": 101}, body],
        "headers_text": [{**start, "headers": [("a", "b")]}, body],
        "headers_number": [{**start, "headers": [(10**15, b"")]}, body],
        "headers_none": [{**start, "headers": None}, body],
        "headers_many": [{**start, "headers": [(b"a", b"b")] * 101}, body],
        "headers_long": [{**start, "headers": [(b"a", b"b" * 17_000)]}, body],
        "body_text": [start, {**body, "body": "1"}],
        "body_number": [start, {**body, "body": 10**15}],
        "redirect": [{**start, "status": 307}, body],
        "encoded": [{**start, "headers": [(b"content-encoding", b"gzip")]}, body],
        "large": [start, {**body, "body": b'"' + b"x" * (1 << 20) + b'"'}],
    }
    strict = "a member is there twice, a string is not Unicode, or it is nested too deeply"
    unusable = {
        "no_json": (b"NaN", "it is not JSON"),
        "cut": (b'{"a": 1', "it is not JSON"),
        "twice": (b'{"a":1,"a":2}', strict),
        "deep": (b"[" * 61 + b"]" * 61, strict),
        "latin": (b'"\xff"', "it is not UTF-8"),
    }

    @plain
    async def app(scope, receive, send):
        name = scope["path"][1:]
        started.append(name)
        try:
            if name in bad:
                for message in bad[name]:
                    await send(message)
            elif name in unusable:
                await answer(send, unusable[name][0])
            elif name == "twice_whole":
                await answer(send, 1)
                await answer(send, 2)
            elif name == "exits":
                raise SystemExit(3)
            elif name == "cancels":
                raise asyncio.CancelledError
            elif name == "never":
                await asyncio.Event().wait()
            elif name == "unbounded":
                await send(start)
                while True:
                    await send({**body, "body": b" " * 65536, "more_body": True})
            elif name == "empties":
                await send(start)
                while True:
                    await send({**body, "body": b"", "more_body": True})
            elif name == "comments":
                await send({**start, "headers": [(b"content-type", b"text/event-stream")]})
                while True:
                    await send({**body, "body": b": x\n" * 100, "more_body": True})
            elif name == "swallows":
                await send(start)
                while True:
                    with contextlib.suppress(OSError, RuntimeError):
                        await send({**body, "body": b" " * 65536, "more_body": True})
                    await asyncio.sleep(0)
            else:
                await answer(send, "good")
        finally:
            stopped.append(name)

    others = ["never", "unbounded", "empties", "comments", "swallows", "twice_whole", "exits", "cancels", "good"]
    api = document(**{name: (f"/{name}", {}) for name in [*bad, *unusable, *others]})

    async def main():
        async with mounted(stage, app, openapi=api, timeout=5, in_flight=40) as bus:
            for name in [*bad, "exits", "cancels", "unbounded", "empties", "comments", "swallows"]:
                await is_refused(bus, name)
                assert await bus.call("site", "site/good") == "good"
            for name, (_, said) in unusable.items():
                await is_refused(bus, name, {"answer": said})
            # A whole answer stands.
            assert await bus.call("site", "site/twice_whole") == 1
            began = time.monotonic()
            await is_refused(bus, "never")
            assert time.monotonic() - began < 5 + SOON

            # All of them end.
            async def all_ended():
                return sorted(started) == sorted(stopped)

            await until(all_ended)

    run(main)


def test_an_application_that_blocks_the_loop_delays_handlers_only(stage):
    @plain
    async def app(scope, receive, send):
        if scope["path"] == "/block":
            time.sleep(3)
        await answer(send, "done")

    api = document(block=("/block", {}), quick=("/quick", {}))
    ready, stop = threading.Event(), threading.Event()

    async def serve():
        async with mounted(stage, app, openapi=api):
            ready.set()
            await asyncio.to_thread(stop.wait)

    thread = threading.Thread(target=lambda: asyncio.run(serve()))
    thread.start()
    assert ready.wait(SOON)

    async def main():
        async with opened(stage) as bus:
            blocking = asyncio.create_task(bus.call("site", "site/block", deadline=60))
            quick = asyncio.create_task(bus.call("site", "site/quick", deadline=60))
            await asyncio.sleep(0.3)
            with pytest.raises(sealwire.Denied):
                await bus.call("site", "secret/open")
            assert not blocking.done()
            assert await asyncio.gather(blocking, quick) == ["done", "done"]

    try:
        run(main)
    finally:
        stop.set()
        thread.join(SOON)


def test_a_call_that_is_given_up_disconnects_the_application(stage, monkeypatch):
    begun, told, ended = [], [], []
    release = asyncio.Event()

    @plain
    async def app(scope, receive, send):
        name = scope["path"][1:]
        try:
            if name == "listens":
                assert (await receive())["type"] == "http.request"
                begun.append(name)
                told.append((await receive())["type"])
                with contextlib.suppress(OSError):
                    await answer(send, "too late")
                    told.append("sent")
            elif name == "sleeps":
                begun.append(name)
                await asyncio.sleep(1000)
            elif name == "stubborn":
                begun.append(name)
                while not release.is_set():
                    with contextlib.suppress(asyncio.CancelledError):
                        await release.wait()
            else:
                await answer(send, "good")
        finally:
            ended.append(name)

    api = document(**{name: (f"/{name}", {}) for name in ["listens", "sleeps", "stubborn", "good"]})

    async def main():
        async with mounted(stage, app, openapi=api, in_flight=3) as bus, opened(stage, "bob") as bob:

            async def give_up(name):
                before = begun.count(name)
                call = asyncio.create_task(bus.call("site", f"site/{name}", deadline=60))

                async def runs():
                    return begun.count(name) > before

                await until(runs)
                call.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await call

            async def has_ended(name):
                async def is_there():
                    return name in ended

                await until(is_there)

            await give_up("listens")
            await has_ended("listens")
            assert told == ["http.disconnect"]
            await give_up("sleeps")
            await has_ended("sleeps")
            # One that does not end keeps its place. One agent has half of them, and then waits for its own.
            for _ in range(2):
                await give_up("stubborn")
            assert ended.count("stubborn") == 0
            waiting = asyncio.create_task(bus.call("site", "site/good", deadline=60))
            assert await bob.call("site", "site/good") == "good"
            assert not waiting.done()
            monkeypatch.setattr(_places, "_MOST_WAITING", 1)
            await is_refused(bus, "good", {"queue": "full"})
            monkeypatch.undo()
            release.set()
            assert await waiting == "good"
            await has_ended("stubborn")

    run(main)


def test_agents_take_turns():
    async def main():
        places, served = _places.Places(4), []

        async def take(agent):
            await places.take(agent)
            served.append(agent)

        tasks = [asyncio.create_task(take(agent)) for agent in "aaaabbc"]
        await asyncio.sleep(0.01)
        assert sorted(served) == ["a", "a", "b", "b"]
        # Whoever gives up waiting takes nothing with it.
        tasks[3].cancel()
        await asyncio.sleep(0.01)
        places.give("a")
        await asyncio.sleep(0.01)
        assert served[4:] in (["a"], ["c"])
        for agent in "bb":
            places.give(agent)
            await asyncio.sleep(0.01)
        assert sorted(served) == sorted("aaabbc")
        for agent in "aac":
            places.give(agent)
        assert (places._free, places._held, places._waiting) == (4, {}, {})

    run(main)


def test_work_beyond_the_answer_goes_on(stage):
    done = asyncio.Event()

    @plain
    async def app(scope, receive, send):
        assert (await receive())["type"] == "http.request"
        await answer(send, "answered")
        assert (await receive())["type"] == "http.disconnect"
        await asyncio.sleep(2 * _asgi._GRACE_S)
        done.set()

    async def main():
        async with mounted(stage, app, openapi=document(get=("/", {}))) as bus:
            assert await bus.call("site", "site/get") == "answered"
            assert not done.is_set()
        # The service ends after it.
        assert done.is_set()

    run(main)


def test_start_and_end_of_an_application(stage, monkeypatch):
    said = []

    @contextlib.asynccontextmanager
    async def lifespan(app):
        said.append("start")
        yield {"pool": ["shared"]}
        said.append("end")

    app = fastapi.FastAPI(lifespan=lifespan)

    @app.get("/", operation_id="get")
    async def get(request: fastapi.Request):
        said.append("call")
        request.state.extra = 1
        return [request.state.pool, request.state.sealwire.caller.agent]

    async def main():
        service = sealwire.Service(stage.folder / "sealwire.toml")
        service.mount_asgi("site", app)
        for _ in range(2):
            async with service, opened(stage) as bus:
                assert await bus.call("site", "site/get") == [["shared"], "ann"]
                assert await bus.call("site", "site/get") == [["shared"], "ann"]
            assert said == ["start", "call", "call", "end"]
            said.clear()

        async def broken(scope, receive, send):
            await receive()
            await send({"type": "lifespan.startup.failed", "message": "no database"})

        async def never(scope, receive, send):
            await asyncio.Event().wait()

        monkeypatch.setattr(_asgi, "_START_S", 0.3)
        for application, reason in [(broken, "no database"), (never, "not started")]:
            failing = sealwire.Service(stage.folder / "sealwire.toml")
            failing.mount_asgi("site", application, openapi=document(get=("/", {})))
            with pytest.raises(sealwire.ServeError, match=reason):
                async with failing:
                    pass
            assert failing.state == "stopped"

    run(main)


BOUND = """
[role.worker]
allow = ["rpc.discover"]
[rule.orders]
roles = ["worker"]
allow = ["site/order"]
when.params.number = { max = 5 }
"""


def test_policies_bound_what_a_mounted_method_is_called_with(stage):
    async def main():
        with stage.policy(BOUND):
            async with mounted(stage, shop()) as bus:
                for number, code in [(5, 0), (6, 10)]:
                    for params in [
                        {"customer": "c", "product": "lamp", "number": number},
                        ["c", "lamp", number],
                    ]:
                        found, text = await asyncio.to_thread(stage.call, "site/order", params)
                        assert found == code, text
                assert (await asyncio.to_thread(stage.call, "site/item", {"item": 1}))[0] == 10
                with pytest.raises(sealwire.Denied):
                    await bus.call("site", "site/item", item=1)
                assert [each.name for each in (await bus.discover("site")).methods if each.name[:5] == "site/"] == [
                    "site/order"
                ]
        with stage.policy(BOUND.replace("params.number", "params.nubmer")):
            service = sealwire.Service(stage.folder / "sealwire.toml")
            service.mount_asgi("site", shop())
            with pytest.raises(sealwire.ConfigError, match="nubmer"):
                service.check()

    run(main)


#: The same application behind a backend, as an operator describes it.
BACKEND = """
[[backend]]
name = "shop"
kind = "http"
url = "http://127.0.0.1:{port}/"
timeout_s = 20

[[backend.method]]
name = "site/item"
params = [
  {{ name = "item", type = "integer" }},
  {{ name = "shelf", type = "string", optional = true }},
  {{ name = "full", type = "boolean", optional = true }},
  {{ name = "x-color", type = "string", optional = true }},
]
[backend.method.http]
path = "/items/{{item}}"
query = {{ shelf = "{{shelf}}", full = "{{full}}" }}
headers = {{ x-color = "{{x-color}}" }}

[[backend.method]]
name = "site/order"
params = [
  {{ name = "customer", type = "string" }},
  {{ name = "product", type = "string" }},
  {{ name = "number", type = "integer" }},
]
[backend.method.http]
verb = "POST"
path = "/orders/{{customer}}"
body = '{{"product": {{product}}, "number": {{number}}}}'

[[backend.method]]
name = "site/list"
params = [{{ name = "body", type = "integer[]" }}]
http = {{ verb = "PUT", path = "/list", body = "{{body}}" }}

[[backend.method]]
name = "site/remove"
params = [{{ name = "item", type = "integer" }}]
http = {{ verb = "DELETE", path = "/items/{{item}}" }}

[[backend.method]]
name = "site/words"
params = [{{ name = "text", type = "string" }}]
output = "text"
http = {{ path = "/words", query = {{ text = "{{text}}" }} }}

[[backend.method]]
name = "site/fail"
params = [{{ name = "status", type = "integer" }}]
http = {{ path = "/fail/{{status}}" }}

[[backend.method]]
name = "site/parts"
params = [{{ name = "to", type = "integer" }}, {{ name = "ends", type = "boolean", optional = true }}]
http = {{ path = "/parts", query = {{ to = "{{to}}", ends = "{{ends}}" }} }}

[[backend.method]]
name = "site/broken"
http = {{ path = "/broken" }}
"""


def test_an_application_has_the_same_methods_behind_a_backend(stage, tmp_path):
    uvicorn = pytest.importorskip("uvicorn")
    calls = [
        ("item", {"item": 5}),
        ("item", [5, "b", True, "blue"]),
        ("item", {"item": 5, "shelf": None}),
        ("item", {"item": 5, "x-color": "a\r\nb"}),
        ("item", {"item": 5, "x-color": " a"}),
        ("item", {"item": "5"}),
        ("item", {"item": 5.0}),
        ("item", {"item": 5, "other": 1}),
        ("item", {}),
        ("item", [5, "b", True, "blue", 1]),
        ("item", {"item": 5, "shelf": "a\0"}),
        ("item", {"item": 5, "shelf": "x" * 4097}),
        ("order", {"customer": "a b", "product": "lamp", "number": 2}),
        ("order", {"customer": "a b", "product": "lamp", "number": 0}),
        *(("order", {"customer": each, "product": "lamp", "number": 2}) for each in IN_PATH),
        ("list", {"body": [1, 2, 3]}),
        ("list", {"body": [1, "2"]}),
        ("remove", {"item": 1}),
        *(("words", {"text": each}) for each in IN_QUERY),
        *(("fail", {"status": each}) for each in (400, 401, 404, 407, 422, 500, 503)),
        ("parts", {"to": 3}),
        ("parts", {"to": 2000}),
        ("parts", {"to": 3, "ends": False}),
        ("broken", {}),
    ]

    async def outcomes(bus):
        found = []
        for method, params in calls:
            try:
                found.append(await bus.call("site", f"site/{method}", params=params))
            except sealwire.RpcError as error:
                found.append((type(error).__name__, error.code, error.message, error.data))
        return found

    async def main():
        with socket.socket() as listening:
            listening.bind(("127.0.0.1", 0))
            config = uvicorn.Config(shop(), log_level="critical", lifespan="off", ws="none")
            server = uvicorn.Server(config)
            server.capture_signals = contextlib.nullcontext
            serving = asyncio.create_task(server.serve([listening]))
            file = stage.folder / "behind.toml"
            port = listening.getsockname()[1]
            file.touch(mode=0o600)
            file.write_text((stage.folder / "sealwire.toml").read_text() + BACKEND.format(port=port))
            command = stage.command("serve", "--config", file)
            with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
                try:
                    async with opened(stage) as bus:
                        await bus.wait_for("site", limit=SOON)
                        behind = await outcomes(bus)
                except sealwire.NobodyListens:
                    process.terminate()
                    raise AssertionError(process.communicate()) from None
                finally:
                    process.terminate()
            server.should_exit = True
            await serving
        async with mounted(stage, shop(), operations=[*dict.fromkeys(method for method, _ in calls)]) as bus:
            here = await outcomes(bus)
        for (method, params), one, other in zip(calls, behind, here):
            assert one == other, (method, params)

    run(main)
