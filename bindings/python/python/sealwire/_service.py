"""A service whose methods are functions in Python, under the same `sealwire.toml` and policies as any other.

Never sends the text of an exception: the caller gets an error object that was raised as `RpcError`, or learns only that
the method failed."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import logging
import os
import signal
import sys
import threading
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from types import TracebackType
from typing import Any, Literal, TypeVar

from . import _asgi, _bridge, _core, _json, _log, _mcp, _method, _request, _trace
from ._asgi import ASGIApp
from ._core import ServedCall, Stop
from ._ctx import Ctx, SyncCtx
from ._definitions import Pins
from ._errors import Error, RpcError, ServeError
from ._method import RESULT, STREAM, SUBSCRIPTION, Method
from ._request import Seconds, seconds

F = TypeVar("F", bound=Callable[..., Any])

_logger = logging.getLogger("sealwire.service")

#: Threads of handlers that are plain functions.
_THREADS = 32

_INVALID_PARAMS, _INTERNAL, _DEPENDENCY = -32602, -32603, -32004


class Topic:
    """A subscription to everything that is published from then on. Made by `Service.topic`."""

    def __init__(self, topic: _core.Topic, is_keyed: bool) -> None:
        self._topic, self._is_keyed = topic, is_keyed

    def publish(self, item: Any, *, key: str | None = None) -> None:
        """Publishes `item`, a mapping or a list, to all subscribers. Waits for none of them."""
        if self._is_keyed != (key is not None):
            raise ValueError("a keyed topic needs a `key` for each item, and any other takes none")
        self._topic.publish(_json.write(item), key or "")

    @property
    def subscribers(self) -> int:
        """How many subscribe at the moment."""
        return self._topic.subscribers()


class Service:
    """A service::

        service = sealwire.Service("sealwire.toml")

        @service.method("math/add")
        async def add(ctx: sealwire.Ctx, a: float, b: float) -> float:
            return a + b

        service.run()

    The type hints declare the parameters: policy files are checked against them, calls as well, and callers find them
    described. A handler may leave out `ctx`. A plain `def` runs in one of `threads` threads. `version` and
    `description` are for the tools of NATS."""

    def __init__(
        self,
        config: str | os.PathLike[str] = "sealwire.toml",
        *,
        threads: int = _THREADS,
        version: str | None = None,
        description: str | None = None,
    ) -> None:
        self._config = config
        self._threads = threads
        self._about = (version, description)
        self._methods: list[Method] = []
        self._topics: list[_core.Topic] = []
        self._mounts: list[_asgi.Mount | _mcp.Mount] = []
        self._stop: Stop | None = None
        self._serving: asyncio.Task[None] | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._state = "stopped"
        self._changed: asyncio.Event | None = None

    def method(
        self,
        name: str,
        /,
        *,
        description: str | None = None,
        examples: list[tuple[dict[str, Any], Any]] | None = None,
        idempotent: str | Seconds | None = None,
        rerun_if_lost: bool = False,
        task: str | Seconds | None = None,
        only_as_task: bool = False,
    ) -> Callable[[F], F]:
        """Registers a function as a method.

        `idempotent="24h"`: a call with an idempotency key runs once, in all replicas together, and gets the stored
        outcome if it comes again within that time; `rerun_if_lost` runs it again if nobody knows how the last run
        ended. `task="6h"`: it may be called by `Client.detach` as well, and runs on for that long at most when nobody
        waits for it; `only_as_task` refuses callers that wait. Without `description`, the first paragraph of the
        docstring tells callers what it does."""
        declared = _method.idempotence(name, idempotent, rerun_if_lost, task, only_as_task)
        return self._decorator(name, RESULT, description, examples, declared)

    def stream(
        self,
        name: str,
        /,
        *,
        description: str | None = None,
        examples: list[tuple[dict[str, Any], Any]] | None = None,
    ) -> Callable[[F], F]:
        """Registers a generator as a method whose result comes in parts. It is asked for the next part only while the
        caller has room, and closed if the call ends first. A caller that accepts no parts gets all of them as an
        array."""
        return self._decorator(name, STREAM, description, examples, None)

    def subscription(self, name: str, /, *, description: str | None = None) -> Callable[[F], F]:
        """Registers a generator as a subscription: each item, a mapping or a list, is sent as a notification until the
        caller cancels or its lease runs out."""
        return self._decorator(name, SUBSCRIPTION, description, None, None)

    def topic(
        self,
        name: str,
        /,
        *,
        room: int = 100,
        when_full: Literal["drop_oldest", "end"] = "drop_oldest",
        keyed: bool = False,
        description: str | None = None,
    ) -> Topic:
        """Registers a subscription to whatever is published on the topic that this returns. At most `room` items wait
        for each subscriber: then the oldest is dropped and the subscriber told, or its subscription ends. Of a `keyed`
        topic, only the latest item of each key waits."""
        if when_full not in ("drop_oldest", "end"):
            raise ValueError(f"`when_full` is `drop_oldest` or `end`, not {when_full!r}")
        self._check_new(name)
        topic = _core.Topic(name, room, when_full == "end", keyed, description)
        self._topics.append(topic)
        return Topic(topic, keyed)

    def add(
        self,
        name: str,
        function: Callable[..., Any],
        /,
        *,
        answers: Literal["result", "stream", "subscription"] = RESULT,
        params: list[dict[str, Any]] | None = None,
        params_schema: dict[str, Any] | None = None,
        result_schema: Any = None,
        by_name: bool = True,
        description: str | None = None,
        extensions: dict[str, Any] | None = None,
        idempotent: str | Seconds | None = None,
        rerun_if_lost: bool = False,
        task: str | Seconds | None = None,
        only_as_task: bool = False,
    ) -> None:
        """Registers a function that takes its parameters as they come: `function(ctx, params)`, with a mapping, a list
        or None.

        For methods that are made from a description. `params` declares them for policies, each as
        `{"name": "to", "type": "string", "optional": False, "description": None}`; `type` may be `string`, `integer`,
        `number`, `boolean`, `any`, `string list`, `integer list`, `boolean list`, or `object` with `members`."""
        self._check_new(name)
        self._methods.append(
            _method.of_values(
                name,
                function,
                answers,
                params=params,
                params_schema=params_schema,
                result_schema=result_schema,
                by_name=by_name,
                description=description,
                extensions=extensions,
                idempotent=_method.idempotence(name, idempotent, rerun_if_lost, task, only_as_task),
            )
        )

    def mount_asgi(
        self,
        prefix: str,
        app: ASGIApp,
        /,
        *,
        openapi: Mapping[str, Any] | None = None,
        operations: Mapping[str, str] | Iterable[str] | None = None,
        timeout: Seconds = 60,
        in_flight: int = 64,
    ) -> None:
        """Makes each operation of an ASGI application a method: ``service.mount_asgi("shop", fastapi_app)`` serves the
        operation `buy` as `shop/buy`, without a port.

        Names and parameters come from its OpenAPI document: that of `openapi`, or of the application itself.
        `operations` names those that become methods, all by default; a mapping gives them other names. Of a request,
        only declared parameters come from the caller; who calls is ``request.state.sealwire``, a `Ctx`. A request takes
        `timeout` seconds at most, and `in_flight` of them are under way at a time. Raises `ValueError` for what cannot
        be a method."""
        mount = _asgi.Mount(app, openapi, operations, seconds(timeout), in_flight)
        named = {f"{prefix}/{each.name}": each for each in mount.operations}
        if len(named) < len(mount.operations):
            raise ValueError("two operations have one name")
        for name in named:
            self._check_new(name)
            fault = _core.name_fault(name)
            if fault is not None:
                raise ValueError(f"{fault}: name it by `operations`, which may be a mapping")
        for name, each in named.items():
            self.add(
                name,
                mount.handler(each),
                params=[param.declaration() for param in each.params],
                params_schema=each.params_schema,
                result_schema=each.result_schema,
                by_name=False,
                description=each.description,
            )
        self._mounts.append(mount)

    def mount_mcp(
        self,
        prefix: str,
        server: Any,
        /,
        *,
        revision: str | None = None,
        timeout: Seconds = 60,
        in_flight: int = 64,
    ) -> None:
        """Makes each tool of an MCP server a method: ``service.mount_mcp("tools", fastmcp_server)`` serves the tool
        `add` as `tools/add`, in this process. `server` is a `FastMCP` of fastmcp or an `MCPServer` of mcp.

        A tool can be called once its definition is approved, in the `tools.lock.toml` beside the configuration, under
        the name of `prefix`: ``sealwire tools approve --name tools -- fastmcp run server.py``. Its arguments are
        checked against its `inputSchema`. Each call has a session of its own, in the newest revision of MCP with a
        handshake, or in `revision`. Who calls is `dev.sealwire/caller` in the `_meta` of the request. A call takes
        `timeout` seconds at most, and `in_flight` of them are under way at a time."""
        if any(isinstance(each, _mcp.Mount) and each.prefix == prefix for each in self._mounts):
            raise ValueError(f"there is another server below `{prefix}`")
        # Which tools it has is not known before the service starts.
        self._check_new(f"{prefix}/tool")
        fault = _core.name_fault(f"{prefix}/tool")
        if fault is not None:
            raise ValueError(fault)
        pins = Pins(self._config)
        self._mounts.append(_mcp.Mount(prefix, server, pins, revision, seconds(timeout), in_flight))

    def _decorator(
        self,
        name: str,
        answers: Literal["result", "stream", "subscription"],
        description: str | None,
        examples: list[tuple[dict[str, Any], Any]] | None,
        idempotent: dict[str, Any] | None,
    ) -> Callable[[F], F]:
        self._check_new(name)

        def register(function: F) -> F:
            self._methods.append(
                _method.of_function(
                    name,
                    function,
                    answers,
                    description=description,
                    examples=examples or [],
                    idempotent=idempotent,
                )
            )
            return function

        return register

    def _check_new(self, name: str) -> None:
        if self._serving is not None and not self._serving.done():
            raise RuntimeError("the service is running: register methods before")
        if any(each.name == name for each in self._methods):
            raise ValueError(f"`{name}` is registered already")

    def check(self) -> list[str]:
        """Checks configuration, files and policies against the methods, without connecting to anything. Returns the
        policies' warnings; raises `ConfigError`."""
        methods = [*self._methods, *(method for mount in self._mounts for method in mount.known())]
        return _core.check(self._config, [each.declared for each in methods], self._topics)

    @property
    def state(self) -> str:
        """`starting`, `ready`, `interrupted`, `draining` or `stopped`."""
        return self._state

    def run(self) -> None:
        """Serves until SIGTERM or Ctrl-C, then drains: finishes what was accepted, and leaves. A second signal ends it
        at once, with `ServeError`."""
        came = 0

        async def main() -> None:
            loop = asyncio.get_running_loop()
            signals = [signal.SIGINT, signal.SIGTERM]

            def end() -> None:
                nonlocal came
                came += 1
                self.stop()
                if came > 1 and self._serving is not None:
                    self._serving.cancel()

            if threading.current_thread() is threading.main_thread():
                for each in signals:
                    try:
                        loop.add_signal_handler(each, end)
                    except NotImplementedError:
                        signal.signal(each, lambda *_: loop.call_soon_threadsafe(end))
            await self.serve()

        try:
            asyncio.run(main())
        except asyncio.CancelledError:
            if came > 1:
                raise ServeError("ended by a second signal: accepted work was not finished") from None
            raise

    async def serve(self) -> None:
        """Serves in the running loop until `stop` is called. If its task is cancelled, it drains first; cancelled once
        more, it ends at once."""
        await self._start()
        assert self._serving is not None
        try:
            await asyncio.shield(self._serving)
        except asyncio.CancelledError:
            if self._serving.done():
                raise
            self.stop()
            try:
                await asyncio.shield(self._serving)
            except asyncio.CancelledError:
                self._serving.cancel()
                raise
            raise

    def stop(self) -> None:
        """Makes the service drain and end. From other threads: `loop.call_soon_threadsafe(service.stop)`."""
        if self._stop is not None:
            self._stop.stop()

    async def ready(self) -> None:
        """Waits until the service takes messages."""
        while self._state != "ready":
            if self._serving is None or self._changed is None:
                raise RuntimeError("the service is not running")
            if self._serving.done():
                self._serving.result()
                raise RuntimeError("the service has ended")
            self._changed.clear()
            await self._changed.wait()

    async def __aenter__(self) -> Service:
        """Starts it beside whatever else the loop does, and waits until it takes messages."""
        await self._start()
        try:
            await self.ready()
        except BaseException:
            await self._end()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self._end()

    async def _end(self) -> None:
        self.stop()
        if self._serving is not None:
            await self._serving

    async def _start(self) -> None:
        if self._serving is not None and not self._serving.done():
            raise RuntimeError("the service is running already")
        _log.start()
        self._stop, self._state, self._changed = Stop(), "starting", asyncio.Event()
        self._serving = asyncio.get_running_loop().create_task(_Serving(self, self._stop).run())
        # Whoever waits for it to be ready learns of its end.
        changed = self._changed
        self._serving.add_done_callback(lambda _: changed.set())

    def _is_now(self, state: str, why: str | None) -> None:
        self._state = state
        _logger.debug("%s%s", state, f": {why}" if why else "")
        if self._changed is not None:
            self._changed.set()


class _Serving:
    """One run of a service."""

    def __init__(self, service: Service, stop: Stop) -> None:
        self._service, self._stop = service, stop
        self._methods = list(service._methods)
        self._tasks: dict[int, asyncio.Future[Any]] = {}
        self._bridge = _bridge.bridge()
        self._threads = concurrent.futures.ThreadPoolExecutor(service._threads, thread_name_prefix="sealwire-handler")
        self._loop = asyncio.get_running_loop()

    async def run(self) -> None:
        listener = self._bridge.listen(self._take)
        try:
            service = self._service
            async with contextlib.AsyncExitStack() as mounted:
                for mount in service._mounts:
                    taken = [each.name for each in self._methods]
                    self._methods += await mounted.enter_async_context(mount.served(taken))
                declared = [each.declared for each in self._methods]
                await self._bridge.run(
                    _core.serve, listener, service._config, declared, service._topics, service._about, self._stop
                )
        finally:
            self._bridge.unlisten(listener)
            for task in self._tasks.values():
                task.cancel()
            self._threads.shutdown(wait=False, cancel_futures=True)
            self._service._is_now("stopped", None)

    def _take(self, event: Any) -> None:
        if isinstance(event, ServedCall):
            self._begin(event)
        elif isinstance(event, int):
            # Nobody waits for it any more.
            task = self._tasks.get(event)
            if task is not None:
                task.cancel()
        else:
            self._service._is_now(*event)

    def _begin(self, call: ServedCall) -> None:
        number, method = call.number, self._methods[call.method]
        context = _trace.received(call.traceparent())
        task: asyncio.Future[Any]
        if method.is_async:
            task = context.run(self._task, method, call)
        else:
            work = self._call_in_thread if method.answers == RESULT else self._parts_in_thread
            task = self._loop.run_in_executor(self._threads, lambda: context.run(work, method, call))
        if not task.done():
            self._tasks[number] = task
            task.add_done_callback(lambda _: self._tasks.pop(number, None))

    def _task(self, method: Method, call: ServedCall) -> asyncio.Task[None]:
        run = self._call(method, call) if method.answers == RESULT else self._parts(method, call)
        if sys.version_info >= (3, 12):
            # A handler that awaits nothing is through at once.
            return asyncio.Task(run, loop=self._loop, eager_start=True)
        return self._loop.create_task(run)

    async def _call(self, method: Method, call: ServedCall) -> None:
        try:
            args, named = _bound(method, call)
            if method.takes_ctx:
                args.insert(0, Ctx(call, self._bridge))
            call.answer(_json.write(await method.function(*args, **named)))
        except BaseException as error:
            _fail(method, call, error)

    async def _parts(self, method: Method, call: ServedCall) -> None:
        try:
            args, named = _bound(method, call)
            if method.takes_ctx:
                args.insert(0, Ctx(call, self._bridge))
            parts: AsyncIterator[Any] = method.function(*args, **named)
            async with contextlib.aclosing(parts):  # type: ignore[type-var]
                async for part in parts:
                    if not call.offer(_json.write(part)) and not await self._bridge.run(call.room):
                        return
            call.answer("null")
        except BaseException as error:
            _fail(method, call, error)

    def _call_in_thread(self, method: Method, call: ServedCall) -> None:
        try:
            args, named = _bound(method, call)
            if method.takes_ctx:
                args.insert(0, SyncCtx(call))
            call.answer(_json.write(method.function(*args, **named)))
        except BaseException as error:
            _fail(method, call, error)

    def _parts_in_thread(self, method: Method, call: ServedCall) -> None:
        try:
            args, named = _bound(method, call)
            if method.takes_ctx:
                args.insert(0, SyncCtx(call))
            with contextlib.closing(method.function(*args, **named)) as parts:
                for part in parts:
                    if not call.offer(_json.write(part)) and not _bridge.waiter().run(call.room):
                        return
            call.answer("null")
        except BaseException as error:
            _fail(method, call, error)


class _WrongParams(Exception):
    """The parameters of a call do not fit its method; the text is for the caller."""


def _bound(method: Method, call: ServedCall) -> tuple[list[Any], dict[str, Any]]:
    try:
        return method.bind(call.params)
    except ValueError as error:
        raise _WrongParams(str(error)) from None


def _fail(method: Method, call: ServedCall, error: BaseException) -> None:
    """Answers with the error that a handler has raised. Only one that it has made for its caller is sent."""
    if isinstance(error, asyncio.CancelledError):
        # Nobody waits for it, or the handler has cancelled itself.
        call.fail(_INTERNAL, "cancelled")
        raise error
    if isinstance(error, RpcError) and not error._received:
        try:
            call.fail(*_request.error_object(error), isinstance(error, _mcp.ServerError))
            return
        except Exception as unwritable:
            error = unwritable
    elif isinstance(error, _WrongParams):
        call.fail(_INVALID_PARAMS, f"Invalid params: {error}")
        return
    _logger.error("the handler of `%s` failed", method.name, exc_info=error)
    call.fail(_DEPENDENCY if isinstance(error, Error) and error._received else _INTERNAL, type(error).__name__)
    if isinstance(error, (KeyboardInterrupt, SystemExit)):
        raise error
