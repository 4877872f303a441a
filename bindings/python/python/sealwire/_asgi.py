"""An ASGI application in the process of a service: a request for each call, and what its answer means for the caller.

Never takes half an answer for a whole one, and never tells the application who calls in a header.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import hashlib
import itertools
import json
import logging
import re
import sys
import typing
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, MutableMapping
from typing import Any

from . import _core, _json, _openapi
from ._ctx import Ctx
from ._errors import Error, RpcError, ServeError
from ._events import MOST_BYTES, Event, Reader, Useless, Waste
from ._method import Method
from ._openapi import Operation, Request
from ._places import Places

#: An application of ASGI 3.
ASGIApp = Callable[
    [
        MutableMapping[str, Any],
        Callable[[], Awaitable[MutableMapping[str, Any]]],
        Callable[[MutableMapping[str, Any]], Awaitable[None]],
    ],
    Awaitable[None],
]

_logger = logging.getLogger("sealwire.mounts")

_DEPENDENCY, _REFUSED = -32004, 1

#: The longest head of an answer, in bytes, and the most fields in it.
_MOST_HEAD, _MOST_FIELDS = 16 * 1024, 100
#: The longest body of a refusal that the caller gets, in characters.
_MOST_WORDS = 16 * 1024
#: How much of a stream is read at a time, in bytes.
_PIECE = 64 * 1024
#: How long the application may go on with a request that nobody waits for, in seconds.
_GRACE_S = 1.0
#: How long it may take to start, and to end with what it still does, in seconds.
_START_S, _END_S = 60.0, 10.0

_ASGI = {"version": "3.0", "spec_version": "2.4"}
#: What stands for a parameter when it is looked for which route serves an operation.
_PROBES = ("x", "0", "1970-01-01", "00000000-0000-4000-8000-000000000000")


def dependency(reason: str, data: Any = None) -> RpcError:
    """The application has failed. The reason is logged, and not sent."""
    return RpcError(_DEPENDENCY, reason, data)


@dataclasses.dataclass(frozen=True)
class _Route:
    """A route of the application."""

    #: Its path, with `{}` for each parameter.
    shape: str
    endpoint: Any
    #: Whether everything below the path belongs to it.
    is_open: bool

    def serves(self, template: str) -> bool:
        """Whether it is the route of an operation with this path."""
        return _shape(template).startswith(self.shape) if self.is_open else _shape(template) == self.shape


def _shape(template: str) -> str:
    return re.sub(r"\{[^{}]*\}", "{}", template)


class Mount:
    """An application, and the methods that its operations are."""

    def __init__(
        self,
        app: ASGIApp,
        openapi: Mapping[str, Any] | None,
        operations: Mapping[str, str] | Iterable[str] | None,
        timeout: float,
        in_flight: int,
    ) -> None:
        if in_flight < 1 or not 0 < timeout <= 3600:
            raise ValueError("`in_flight` must be at least 1, and `timeout` at most 3600 s")
        if openapi is None:
            describe: Any = getattr(app, "openapi", None)
            if not callable(describe):
                raise TypeError("the application does not describe itself: give its OpenAPI document as `openapi`")
            openapi = typing.cast("Mapping[str, Any]", describe())
        # As it will be in JSON, and whatever the application does with its own.
        document = json.loads(json.dumps(openapi, default=str))
        self.operations = _openapi.operations(document, operations)
        self._patterns = _openapi.patterns(document)
        self._app, self._timeout, self._places = app, timeout, Places(in_flight)
        self._tasks: set[asyncio.Task[None]] = set()
        self._state: dict[str, Any] = {}
        self._own = {each.name: self._route_of(each) for each in self.operations}

    def known(self) -> list[Method]:
        """Methods that nobody has registered yet: none."""
        return []

    def handler(self, operation: Operation) -> Callable[[Ctx, Any], Awaitable[Any]]:
        """What serves the calls of an operation."""

        async def handle(ctx: Ctx, params: Any) -> Any:
            request = operation.fill(params)
            self._check_route(operation, request)
            agent, exchange = ctx.caller.agent, Exchange(ctx, operation, request)
            try:
                return await asyncio.wait_for(
                    self._answer(agent, exchange, _scope(ctx, operation, request)), self._timeout
                )
            except asyncio.TimeoutError:
                raise dependency(f"no answer within {self._timeout:g} s") from None

        return handle

    async def _answer(self, agent: str, exchange: Exchange, scope: dict[str, Any]) -> Any:
        await self._places.take(agent)
        # A state of its own: what one request adds, no other sees.
        scope["state"] = {**self._state, **scope["state"]}
        task = asyncio.get_running_loop().create_task(exchange.run(self._app, scope))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        # One that was given up keeps its place until it has ended.
        task.add_done_callback(lambda _: self._places.give(agent))
        try:
            return await exchange.outcome
        finally:
            exchange.leave(task)

    def _check_route(self, operation: Operation, request: Request) -> None:
        """A value must not lead to another operation, which may be one that the caller must not call, or that nobody
        may: `me` as the id in `/users/{id}`, where there is `/users/me`."""
        if not operation.has_path_params():
            return
        others = (
            pattern
            for (verb, template), pattern in self._patterns.items()
            if verb == request.verb and template != operation.template and pattern.fullmatch(request.path)
        )
        # Where the document says two things of every path, the application decides.
        anything = operation.probe({"string": "\0", "integer": "-918273645", "boolean": "true"})
        own = self._own[operation.name]
        if not all(each.fullmatch(anything) for each in others) or (
            own is not None and self._route(request.verb, request.path) != own
        ):
            raise _openapi.wrong("a parameter would make the path that of another operation")

    def _route_of(self, operation: Operation) -> _Route | None:
        """The route that serves an operation, if the application has routes."""
        if self._routed() is None:
            return None
        for text in _PROBES:
            path = operation.probe({"string": text, "integer": "0", "boolean": "true"})
            route = self._route(operation.verb, path)
            if route is not None and route.serves(operation.template):
                return route
        raise ValueError(
            f"the application has no route for {operation.verb} {operation.template}, or another one before it"
        )

    def _routed(self) -> Any:
        """The application with its routes, if it is one of Starlette or FastAPI."""
        app: Any = self._app
        # Middleware around it.
        for _ in range(32):
            if not hasattr(app, "routes") and hasattr(app, "app"):
                app = app.app
        routes = getattr(app, "routes", None)
        return app if routes is not None and all(hasattr(each, "matches") for each in routes) else None

    def _route(self, verb: str, path: str) -> _Route | None:
        """The route that serves a path."""
        app = self._routed()
        # A path that begins like this is one without it.
        root = str(getattr(app, "root_path", None) or "")
        scope: dict[str, Any] = {"type": "http", "method": verb, "path": path, "root_path": root, "headers": []}
        # Those of routers that were included, too.
        flat = getattr(sys.modules.get("fastapi.routing"), "iter_route_contexts", iter)
        routes: Any = list(flat(app.routes)) if app is not None else None
        shape = ""
        for _ in range(32):
            found = _first(routes or [], scope)
            if found is None:
                return None
            route, child = found
            routes = getattr(route, "routes", None)
            if not routes:
                is_open = getattr(route, "endpoint", None) is None
                shape += str(getattr(route, "path", "") if is_open else getattr(route, "path_format", ""))
                return _Route(_shape(shape), getattr(route, "endpoint", None) or child.get("endpoint"), is_open)
            shape += str(getattr(route, "path", ""))
            scope = {**scope, **child}
        return None

    @contextlib.asynccontextmanager
    async def served(self, _taken: Iterable[str]) -> AsyncIterator[list[Method]]:
        """Starts the application, and ends it. Its methods are known before."""
        self._state = {}
        lifespan, is_at_once = Lifespan(self._app, self._state), False
        await lifespan.start()
        try:
            yield []
        except asyncio.CancelledError:
            is_at_once = True
            raise
        finally:
            if not is_at_once:
                await self._end()
                await lifespan.end()
            for task in list(self._tasks):
                task.cancel()
            lifespan.cancel()

    async def _end(self) -> None:
        if self._tasks:
            await asyncio.wait(list(self._tasks), timeout=_END_S)


def _first(routes: Iterable[Any], scope: dict[str, Any]) -> tuple[Any, Mapping[str, Any]] | None:
    for route in routes:
        try:
            # What it notes in the scope is nobody's.
            match, child = route.matches(dict(scope))
        except Exception:
            return None
        if match.name == "FULL":
            return route, child
    return None


def _scope(ctx: Ctx, operation: Operation, request: Request) -> dict[str, Any]:
    fields = [(b"host", b"localhost")]
    fields.append((b"accept", b"*/*" if operation.is_text else b"application/json, text/event-stream"))
    if request.body is not None:
        fields += [(b"content-type", b"application/json"), (b"content-length", str(len(request.body)).encode())]
    if ctx.traceparent is not None:
        fields.append((b"traceparent", ctx.traceparent.encode()))
    if ctx.idempotency_key is not None:
        fields.append((b"idempotency-key", _idempotency_key(ctx).encode()))
    return {
        "type": "http",
        "asgi": dict(_ASGI),
        "http_version": "1.1",
        "method": request.verb,
        "scheme": "http",
        "path": request.path,
        "raw_path": request.raw_path,
        "query_string": request.query,
        "root_path": "",
        "headers": fields + request.fields,
        "client": None,
        "server": ("localhost", None),
        "state": {"sealwire": ctx},
        "extensions": {},
    }


def _idempotency_key(ctx: Ctx) -> str:
    """A key that no other caller can produce."""
    digest = hashlib.sha256()
    for part in (ctx.caller.agent, ctx.caller.subject, ctx.method, ctx.idempotency_key or ""):
        digest.update(len(part.encode()).to_bytes(8, "little") + part.encode())
    return digest.hexdigest()[:32]


def _bytes(value: Any) -> bytes:
    if not isinstance(value, (bytes, bytearray, memoryview)):
        raise TypeError(f"{type(value).__name__} in place of bytes")
    return bytes(value)


class _Disconnected(OSError):
    """Nobody waits for the answer any more."""


class Exchange:
    """One request and its answer."""

    def __init__(self, ctx: Ctx, operation: Operation, request: Request) -> None:
        self.outcome: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._ctx, self._operation = ctx, operation
        self._request: bytes | None = request.body or b""
        self._gone = asyncio.Event()
        self._status: int | None = None
        self._media = ""
        self._events: Reader | None = None
        self._body = bytearray()
        self._waste = Waste()
        #: All parts, for a caller that takes no frames; None if they are too many.
        self._parts: list[str] | None = []
        self._held = 0
        #: Whether the answer has come to its end, and whether its stream has said that it does.
        self._is_over = self._is_done = False

    def leave(self, task: asyncio.Task[None]) -> None:
        """Nobody waits for the outcome any more. What the application does beyond its answer is its own; without an
        answer, it has a moment to end."""
        loop = asyncio.get_running_loop()
        if self._is_over:
            return
        if self._is_done:
            # Its stream has said its last; what else it does with the answer takes no time.
            loop.call_later(_GRACE_S, self._gone.set)
        else:
            self._gone.set()
        loop.call_later(2 * _GRACE_S if self._is_done else _GRACE_S, lambda: self._is_over or task.cancel())

    async def run(self, app: ASGIApp, scope: dict[str, Any]) -> None:
        """Lets the application answer."""
        try:
            await app(scope, self._receive, self._send)
            self._fail("it has returned without a whole answer")
        except asyncio.CancelledError:
            self._fail("it was cancelled")
            raise
        except KeyboardInterrupt:
            self._fail("it was interrupted")
            raise
        except BaseException as error:
            # What an application says because nobody listens is no news.
            level = logging.DEBUG if self._gone.is_set() and not self._is_over else logging.ERROR
            _logger.log(level, "%s %s has failed", self._operation.verb, self._operation.template, exc_info=error)
            self._fail(f"it has raised {type(error).__name__}")

    def _fail(self, reason: str, data: Any = None) -> None:
        self._end(dependency(reason, data))

    def _end(self, outcome: Any) -> None:
        if not self.outcome.done():
            if isinstance(outcome, Exception):
                self.outcome.set_exception(outcome)
            else:
                self.outcome.set_result(outcome)
        # Whoever has given up does not look any more.
        if self.outcome.done() and not self.outcome.cancelled():
            self.outcome.exception()

    async def _receive(self) -> MutableMapping[str, Any]:
        if self._request is not None and not self._gone.is_set():
            body, self._request = self._request, None
            return {"type": "http.request", "body": body, "more_body": False}
        await self._gone.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message: MutableMapping[str, Any]) -> None:
        if self._gone.is_set() and not self._is_over:
            raise _Disconnected("nobody waits for the answer any more")
        try:
            kind = message["type"]
            if kind == "http.response.start" and self._status is None:
                self._start(message)
            elif kind == "http.response.body" and self._status is not None and not self._is_over:
                body, has_more = _bytes(message.get("body", b"")), bool(message.get("more_body", False))
                await self._take(body, has_more)
                if has_more:
                    # However often it sends, others have their turn.
                    await asyncio.sleep(0)
            else:
                raise RuntimeError(f"the message {str(kind)[:40]!r} is not for now")
        except (KeyError, TypeError, ValueError, AttributeError, RuntimeError, Useless) as error:
            # Once there is a whole answer, it stands.
            self._fail(f"its answer cannot be used: {error}")
            self._give_up()
            raise RuntimeError(f"this is no answer: {error}") from None
        except Error as error:
            self._end(error if isinstance(error, RpcError) else dependency(f"a part cannot be sent: {error}"))
            self._give_up()
            raise _Disconnected("the answer is of no use to the caller") from None

    def _give_up(self) -> None:
        if not self._is_over:
            self._gone.set()

    def _start(self, message: MutableMapping[str, Any]) -> None:
        status, fields = message["status"], itertools.islice(message.get("headers", ()), _MOST_FIELDS + 1)
        if isinstance(status, bool) or not isinstance(status, int) or not 200 <= status <= 599:
            raise ValueError("its status is no whole number from 200 to 599")
        pairs = [(_bytes(name).lower(), _bytes(value)) for name, value in fields]
        if len(pairs) > _MOST_FIELDS or sum(len(name) + len(value) + 4 for name, value in pairs) > _MOST_HEAD:
            raise ValueError("its head is too long")
        self._status = int(status)
        media = next((value for name, value in pairs if name == b"content-type"), b"")
        self._media = _openapi.media_type(media.decode("latin-1"))
        if 300 <= status <= 399:
            raise dependency(f"status {status}: redirects are not followed")
        if any(name == b"content-encoding" and value.lower() != b"identity" for name, value in pairs):
            raise dependency("its answer is encoded, which it was not asked for")
        if 200 <= status <= 299 and self._media == "text/event-stream":
            self._events = Reader()

    async def _take(self, body: bytes, has_more: bool) -> None:
        if not body and has_more:
            self._waste.add(1, 0)
        if self.outcome.done():
            # A stream that has ended by `[DONE]`; some servers add an empty piece.
            self._waste.add(1, len(body))
        elif self._events is not None:
            for place in range(0, len(body), _PIECE):
                for event in self._events.read(body[place : place + _PIECE]):
                    if not self._is_done:
                        await self._event(event)
        elif len(self._body) + len(body) <= MOST_BYTES:
            self._body += body
        elif 200 <= (self._status or 0) <= 299:
            raise dependency("its answer has more than 1 MiB")
        else:
            self._end(self._refusal(None))
            raise _Disconnected("the answer is longer than anybody reads")
        if not has_more:
            self._is_over = True
            if self._events is not None:
                self._fail("its stream has ended without `[DONE]`")
            elif not self.outcome.done():
                self._end(self._whole())
            # Work of the application beyond the answer is its own.
            self._gone.set()

    def _whole(self) -> Any:
        """The outcome, once all of the body is there."""
        if not 200 <= (self._status or 0) <= 299:
            return self._refusal(bytes(self._body))
        try:
            text = bytes(self._body).removeprefix(b"\xef\xbb\xbf").decode()
            if self._operation.is_text:
                return text
            return _value(text) if text.strip() else None
        except UnicodeDecodeError:
            return dependency("its answer is not UTF-8", {"answer": "it is not UTF-8"})
        except RpcError as error:
            return error

    def _refusal(self, body: bytes | None) -> RpcError:
        status = self._status or 0
        # 401 and 407 are about credentials, which are not the caller's doing.
        if not 400 <= status <= 499 or status in (401, 407):
            return dependency(f"status {status}")
        data: dict[str, Any] = {"status": status}
        if body is not None and _openapi.is_json(self._media) and len(body) <= _MOST_WORDS:
            with contextlib.suppress(RpcError, ValueError):
                data["body"] = _json.read(_value(body.removeprefix(b"\xef\xbb\xbf").decode()).text)
        return RpcError(_REFUSED, f"status {status}", data)

    async def _event(self, event: Event) -> None:
        """Passes on an event."""
        data = event.data.removeprefix("\ufeff")
        if data.strip() == "[DONE]":
            self._is_done = True
            self._end(self._all())
            return
        if event.kind == "error":
            said: Any = None
            with contextlib.suppress(RpcError, ValueError):
                if len(data) <= _MOST_WORDS:
                    said = _json.read(_value(data).text)
            raise RpcError(_REFUSED, "the stream has failed", said)
        part = _json.Text(_json.write(data)) if self._operation.is_text else _value(data)
        if self._ctx.takes_frames:
            await self._ctx.send(part)
        elif self._parts is None or self._held + len(part.text) >= MOST_BYTES:
            # Nobody gets it any more.
            self._parts = None
            self._waste.add(1, len(part.text))
        else:
            self._parts.append(part.text)
            self._held += len(part.text) + 1

    def _all(self) -> Any:
        """The result of a stream of parts."""
        if self._ctx.takes_frames:
            return None
        if self._parts is None:
            return dependency("its parts have more than 1 MiB together")
        return _json.Text(f"[{','.join(self._parts)}]")


def _value(text: str) -> _json.Text:
    """JSON that an application has written, read strictly."""
    flaw = _core.json_flaw(text)
    if flaw is None:
        return _json.Text(text)
    is_no_json, why = flaw
    strict = "a member is there twice, a string is not Unicode, or it is nested too deeply"
    raise dependency(f"its answer {why}", {"answer": "it is not JSON" if is_no_json else strict})


class Lifespan:
    """Start and end of an application, each of which it is told once."""

    def __init__(self, app: ASGIApp, state: dict[str, Any]) -> None:
        self._app, self._state = app, state
        self._asked: asyncio.Queue[str] = asyncio.Queue()
        self._said: asyncio.Queue[tuple[str, str]] = asyncio.Queue()
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Raises `ServeError` if the application cannot start."""
        self._task = asyncio.get_running_loop().create_task(self._run())
        self._asked.put_nowait("lifespan.startup")
        said = await self._next(_START_S)
        if said is None or said[0] == "lifespan.startup.failed":
            self.cancel()
        if said is None:
            raise ServeError(f"the application has not started within {_START_S:g} s")
        kind, message = said
        if kind == "lifespan.startup.failed":
            raise ServeError(f"the application could not start: {message[:1000]}")

    async def end(self) -> None:
        """Tells it to end, and waits for a while."""
        if self._task is not None and not self._task.done():
            self._asked.put_nowait("lifespan.shutdown")
            if await self._next(_END_S) is None:
                _logger.error("the application has not ended within %g s", _END_S)

    def cancel(self) -> None:
        """Ends it at once."""
        if self._task is not None:
            self._task.cancel()

    async def _next(self, limit: float) -> tuple[str, str] | None:
        try:
            return await asyncio.wait_for(self._said.get(), limit)
        except asyncio.TimeoutError:
            return None

    async def _run(self) -> None:
        scope = {"type": "lifespan", "asgi": dict(_ASGI), "state": self._state}
        numbers = itertools.count()

        async def receive() -> MutableMapping[str, Any]:
            return {"type": await self._asked.get()}

        async def send(message: MutableMapping[str, Any]) -> None:
            # Once for the start, and once for the end.
            if next(numbers) < 2:
                self._said.put_nowait((str(message["type"]), str(message.get("message", ""))))

        try:
            await self._app(scope, receive, send)
        except asyncio.CancelledError:
            raise
        except BaseException as error:
            # Before it has said anything, this is how an application without a lifespan says so.
            level = logging.ERROR if next(numbers) else logging.DEBUG
            _logger.log(level, "the application has ended its `lifespan`", exc_info=error)
        self._said.put_nowait(("over", ""))
