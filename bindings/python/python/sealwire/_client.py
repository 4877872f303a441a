"""The client for asyncio.

Never lets a cancelled task leave its call running, unless the call is detached.
"""

from __future__ import annotations

import asyncio
import copy
import inspect
import logging
import uuid
import warnings
import weakref
from collections import deque
from types import TracebackType
from typing import Any, Generic, TypeVar, cast, overload

from . import _bridge, _errors, _json, _log, _request, _token, _trace
from ._batch import BatchCall, Entries
from ._core import CallParts, Connection, Receipt, connect
from ._errors import Closed, RpcError
from ._request import (
    Catalogue,
    ClientStats,
    Creds,
    OnAsk,
    OnNotification,
    OnProgress,
    Question,
    Seconds,
    decoded,
)
from ._task import Task
from ._token import TokenSource

T = TypeVar("T")
I = TypeVar("I")

_logger = logging.getLogger("sealwire.client")


class Client:
    """An agent's connection to the services of its environment::

        async with sealwire.Client("planner.creds.json") as bus:
            print(await bus.call("math", "math/add", a=2, b=3))

    It belongs to the event loop in which it is opened, and reconnects by itself. Without a file, `$SEALWIRE_CREDS`
    names it.

    `token`, an access token or a function that returns one, takes the place of the file's. The function is called
    before the first call and before each token expires, once at a time: an ``async def`` in the loop, any other
    function in a thread of its own.

    `deadline` is that of calls which set no other. `in_flight` calls may be under way; more wait for their turn. For
    `validity` seconds after signing a service may accept a message."""

    def __init__(
        self,
        credentials: Creds = None,
        *,
        token: str | TokenSource | None = None,
        deadline: Seconds = 10.0,
        in_flight: int = 1024,
        validity: int = 30,
    ) -> None:
        self._credentials, self._token = credentials, token
        self._settings = (_request.seconds(deadline), in_flight, validity)
        self._connection: Connection | None = None
        self._bridge: _bridge.Bridge | None = None
        self._loop: weakref.ref[asyncio.AbstractEventLoop] | None = None
        self._defaults: dict[str, Any] = {}
        self._is_view = False

    async def open(self) -> Client:
        """Connects, once. `async with` does it as well."""
        if self._connection is not None:
            raise RuntimeError("the client is open already")
        _log.start()
        bridge = _bridge.bridge()
        credentials = _request.credentials(self._credentials)
        token = None if self._token is None else _token.given(self._token, bridge)
        self._connection = await bridge.run(connect, credentials, token, *self._settings)
        self._bridge, self._loop = bridge, weakref.ref(asyncio.get_running_loop())
        return self

    async def close(self) -> None:
        """Ends the connection. Calls under way are cancelled at their services, and fail with `Closed`."""
        connection, self._connection = self._connection, None
        if connection is not None and self._bridge is not None and not self._is_view:
            await self._bridge.run(connection.close)

    async def __aenter__(self) -> Client:
        return self if self._is_view else await self.open()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if not self._is_view:
            await self.close()

    def __del__(self, _warn: Any = warnings.warn) -> None:
        if getattr(self, "_connection", None) is not None and not self._is_view:
            _warn(f"unclosed {self!r}", ResourceWarning, source=self)

    def __repr__(self) -> str:
        state = "open" if self._connection is not None else "not open"
        return f"<sealwire.Client {state}>"

    def __getstate__(self) -> Any:
        raise TypeError("a client cannot be pickled: it holds a key and a connection")

    @property
    def is_connected(self) -> bool:
        """Whether the connection is up, as far as is known."""
        return self._connection is not None and self._connection.is_connected()

    def stats(self) -> ClientStats:
        """What the client is doing and has seen so far."""
        return ClientStats(**self._there()[0].stats())

    def acting_for(self, token: str | TokenSource) -> Client:
        """The same connection with another access token, or a function that returns one: for an agent that acts on
        behalf of others, each of whom has a token that names the agent as its actor. Policies must allow both of
        them."""
        connection, bridge = self._there()
        return self._view(tokens=connection.tokens(_token.given(token, bridge)))

    def _view(self, **defaults: Any) -> Client:
        view = copy.copy(self)
        view._is_view = True
        view._defaults = {**self._defaults, **defaults}
        return view

    def __copy__(self) -> Client:
        new = Client.__new__(Client)
        new.__dict__.update(self.__dict__)
        return new

    def _there(self) -> tuple[Connection, _bridge.Bridge]:
        connection, bridge, loop = self._connection, self._bridge, self._loop
        if connection is None or bridge is None or loop is None:
            raise Closed("the client is not open: use `async with sealwire.Client(...) as bus`")
        if loop() is not asyncio.get_running_loop():
            raise RuntimeError(
                "the client belongs to another event loop: open one in each loop, or use sealwire.SyncClient"
            )
        return connection, bridge

    @overload
    async def call(
        self,
        service: str,
        method: str,
        /,
        *,
        result: type[T],
        params: Any = None,
        deadline: Seconds | None = None,
        idempotency_key: str | None = None,
        idempotent: bool = False,
        detached: bool = False,
        wait_approval: Seconds | None = None,
        receipt: Receipt | None = None,
        on_progress: OnProgress | None = None,
        on_notification: OnNotification | None = None,
        on_ask: OnAsk | None = None,
        **named: Any,
    ) -> T: ...

    @overload
    async def call(
        self,
        service: str,
        method: str,
        /,
        *,
        result: Any = None,
        params: Any = None,
        deadline: Seconds | None = None,
        idempotency_key: str | None = None,
        idempotent: bool = False,
        detached: bool = False,
        wait_approval: Seconds | None = None,
        receipt: Receipt | None = None,
        on_progress: OnProgress | None = None,
        on_notification: OnNotification | None = None,
        on_ask: OnAsk | None = None,
        **named: Any,
    ) -> Any: ...

    async def call(
        self,
        service: str,
        method: str,
        /,
        *,
        result: Any = None,
        params: Any = None,
        deadline: Seconds | None = None,
        idempotency_key: str | None = None,
        idempotent: bool = False,
        detached: bool = False,
        wait_approval: Seconds | None = None,
        receipt: Receipt | None = None,
        on_progress: OnProgress | None = None,
        on_notification: OnNotification | None = None,
        on_ask: OnAsk | None = None,
        **named: Any,
    ) -> Any:
        """Calls a method and returns its result, as a value of the type `result` if one is given.

        Parameters are given by name (``a=2, b=3``), or as `params`: a list by position, a mapping by name. The latter
        also takes names that are options here. `sealwire.Attachment` is a parameter like others.

        `deadline`: how long the whole call may take, in seconds; 10 by default. `idempotent`: running it twice does no
        harm, so it is sent again where that may help. `idempotency_key`: by which the service recognizes repetitions.
        `detached`: it goes on if nobody waits for it any more. `receipt` receives the proofs of request and answer. The
        handlers receive what the method sends while it runs.

        `wait_approval`: for how many seconds to wait for people, if they have to approve the call first. Meanwhile it
        is sent again every few seconds, each time with the whole deadline. It fails with `Denied` if they deny it, and
        with `ApprovalRequired` if nobody has decided in time. Not with attachments and the handlers.

        Cancelling the task cancels the call at the service; it may have run all the same.
        """
        text, attached = _json.write_params(params, named)
        if attached or on_progress is not None or on_notification is not None or on_ask is not None:
            options = self._options(
                deadline=deadline,
                idempotency_key=idempotency_key,
                idempotent=idempotent,
                wait_approval=wait_approval,
                receipt=receipt,
                attached=attached,
            )
            stream: CallStream[Any] = CallStream(
                self, False, service, method, text, options, None, on_progress, on_notification, on_ask
            )
            async with stream as parts:
                return await parts.result(result)
        connection, bridge = self._there()
        is_plain = deadline is None and idempotency_key is None and wait_approval is None and receipt is None
        if is_plain and not idempotent and not detached:
            options = self._options() if self._defaults or _trace.current() else _request.PLAIN
        else:
            options = self._options(
                deadline=deadline,
                idempotency_key=idempotency_key,
                idempotent=idempotent,
                detached=detached,
                wait_approval=wait_approval,
                receipt=receipt,
            )
        return decoded(await bridge.run(connection.call, service, method, text, options), result)

    async def notify(
        self, service: str, method: str, /, *, params: Any = None, deadline: Seconds | None = None, **named: Any
    ) -> None:
        """Sends a notification. Nothing tells whether it is executed, or even accepted. Returns once the broker has
        it."""
        connection, bridge = self._there()
        text, attached = _json.write_params(params, named)
        options = self._options(deadline=deadline, attached=attached)
        await bridge.run(connection.notify, service, method, text, options)

    async def detach(
        self,
        service: str,
        method: str,
        /,
        *,
        params: Any = None,
        deadline: Seconds | None = None,
        idempotency_key: str | None = None,
        task_limit: Seconds | None = None,
        wait_approval: Seconds | None = None,
        receipt: Receipt | None = None,
        **named: Any,
    ) -> Task:
        """Begins a call that outlives its caller, a task, and returns once it has begun::

            task = await bus.detach("video", "video/render", film="a.mov", idempotency_key="film-17")
            # Here, or in another process of the same agent:
            url = await bus.task("video", "video/render", "film-17").wait(result=str)

        The service runs it on when this process has ended, for `task_limit` seconds at most, and keeps its outcome.
        Begun again with the same `idempotency_key` and parameters, it is the same task; without a key of its own, a
        process cannot find it again if the answer is lost. `deadline` is for the beginning, and for each question
        about it later. `wait_approval` waits for people first, as for `call`.

        Cancelling this may leave the call begun, which goes on."""
        text, attached = _json.write_params(params, named)
        key = uuid.uuid4().hex if idempotency_key is None else idempotency_key
        options = self._options(
            deadline=deadline,
            idempotency_key=key,
            task_limit=task_limit,
            wait_approval=wait_approval,
            receipt=receipt,
            attached=attached,
        )
        connection, bridge = self._there()
        await bridge.run(connection.detach, service, method, text, options)
        return Task(self, service, method, key, deadline)

    def task(self, service: str, method: str, key: str, /, *, deadline: Seconds | None = None) -> Task:
        """A task that was begun before, perhaps by another process of the same agent. Nothing is asked yet: each
        question about it may take `deadline` seconds."""
        return Task(self, service, method, key, deadline)

    def batch(
        self,
        service: str,
        /,
        *,
        deadline: Seconds | None = None,
        idempotent: bool = False,
        receipt: Receipt | None = None,
    ) -> Batch:
        """Several calls and notifications in one message, at most 50::

        batch = bus.batch("math")
        sum, product = batch.call("math/add", a=2, b=3), batch.call("math/mul", a=2, b=3)
        await batch.send()
        print(sum.result(), product.result())
        """
        return Batch(self, service, self._options(deadline=deadline, idempotent=idempotent, receipt=receipt))

    def stream(
        self,
        service: str,
        method: str,
        /,
        *,
        item: type[I] | Any = None,
        params: Any = None,
        deadline: Seconds | None = None,
        idempotency_key: str | None = None,
        idempotent: bool = False,
        window: int | None = None,
        max_bytes: int | None = None,
        receipt: Receipt | None = None,
        on_progress: OnProgress | None = None,
        on_notification: OnNotification | None = None,
        on_ask: OnAsk | None = None,
        **named: Any,
    ) -> CallStream[Any]:
        """Calls a method that sends parts of its result while it runs::

            async with bus.stream("writer", "writer/tell", text="a story") as words:
                async for word in words:
                    print(word)
                print(await words.result(int))

        Nothing is sent before it is entered or iterated. Leaving the block early cancels the call, and waits until the
        service confirms that. Each part is decoded as an `item`. `window` frames may be under way beyond what was
        taken: a slow reader slows the method down. The result may have `max_bytes`, 16 MiB by default."""
        text, attached = _json.write_params(params, named)
        options = self._options(
            deadline=deadline,
            idempotency_key=idempotency_key,
            idempotent=idempotent,
            window=window,
            max_bytes=max_bytes,
            receipt=receipt,
            attached=attached,
        )
        return CallStream(self, False, service, method, text, options, item, on_progress, on_notification, on_ask)

    def subscribe(
        self,
        service: str,
        method: str,
        /,
        *,
        item: type[I] | Any = None,
        params: Any = None,
        lease: Seconds | None = None,
        window: int | None = None,
        receipt: Receipt | None = None,
        on_notification: OnNotification | None = None,
        on_ask: OnAsk | None = None,
        **named: Any,
    ) -> Subscription[Any]:
        """Subscribes to what a method pushes::

            async with bus.subscribe("demo", "clock/ticks") as ticks:
                async for tick in ticks:
                    print(tick)

        It is held under a `lease` of 60 s, which is renewed for as long as somebody holds it. It ends when the service
        says so, for example when that is stopped."""
        text, attached = _json.write_params(params, named)
        options = self._options(window=window, lease=lease, receipt=receipt, attached=attached)
        return Subscription(self, True, service, method, text, options, item, None, on_notification, on_ask)

    async def discover(self, service: str, /, *, deadline: Seconds | None = None) -> Catalogue:
        """The methods of a service that this agent may call, with their parameters as JSON Schemas."""
        connection, bridge = self._there()
        options = self._options(deadline=deadline)
        return _request.catalogue(await bridge.run(connection.discover, service, options))

    async def wait_for(self, service: str, /, *, limit: Seconds = 30.0) -> None:
        """Waits until somebody listens to calls of this service: one that has just started does not yet, for some
        seconds."""
        connection, bridge = self._there()
        await bridge.run(connection.wait_for, service, _request.seconds(limit))

    def _options(self, **options: Any) -> _request.Options:
        return _request.options(self._defaults, **options)


class Batch(Entries):
    """A batch that is put together. Made by `Client.batch`."""

    def __init__(self, client: Client, service: str, options: _request.Options) -> None:
        super().__init__()
        self._client, self._service, self._options = client, service, options

    async def send(self) -> list[BatchCall[Any]]:
        """Sends the batch, and waits for the answers. Entries may run in any order, and each fails on its own."""
        connection, bridge = self._client._there()
        return self._take(await bridge.run(connection.batch, self._service, self._entries, self._options))


class CallStream(Generic[I]):
    """What a method sends while it runs, and then its result. Made by `Client.stream`."""

    def __init__(
        self,
        client: Client,
        is_subscription: bool,
        service: str,
        method: str,
        text: str,
        options: _request.Options,
        item: Any,
        on_progress: OnProgress | None,
        on_notification: OnNotification | None,
        on_ask: OnAsk | None,
    ) -> None:
        self._client, self._request = client, (service, method, text, options)
        self._is_subscription = is_subscription
        self._hint = item
        self._on_progress, self._on_notification, self._on_ask = on_progress, on_notification, on_ask
        self._parts: CallParts | None = None
        self._ready: deque[tuple[int, int, str, str]] = deque()
        self._pull: tuple[int, asyncio.Future[Any]] | None = None
        self._end: tuple[bool, Any] | None = None
        self._missed = 0
        self._answering: set[asyncio.Task[None]] = set()

    @property
    def message_id(self) -> str | None:
        """The id of its message, as in the service's log; None until it is sent."""
        return None if self._parts is None else self._parts.message_id()

    def __aiter__(self) -> CallStream[I]:
        return self

    async def __anext__(self) -> I:
        self._begin()
        while True:
            while self._ready:
                part = self._ready.popleft()
                if part[0] == 0:
                    return cast(I, decoded(part[3], self._hint, is_part=True))
                await self._notify(part)
            if self._end is not None:
                if self._end[0]:
                    raise self._error()
                raise StopAsyncIteration
            await self._more(False)

    async def result(self, result: Any = None, /) -> Any:
        """Waits for the result, as a value of the type `result` if one is given. Parts that were not taken are
        skipped."""
        self._begin()
        while True:
            while self._ready:
                part = self._ready.popleft()
                if part[0] != 0:
                    await self._notify(part)
            if self._end is not None:
                break
            await self._more(True)
        if self._end[0]:
            raise self._error()
        return decoded(self._end[1], result)

    async def cancel(self) -> bool:
        """Cancels the call, and waits up to 5 s until the service says that it has ended; False if it has not.
        Parts that were not taken are dropped."""
        if self._parts is None or self._end is not None:
            return True
        self._end = (True, None)
        self._ready.clear()
        self._stop_pulling()
        _, bridge = self._client._there()
        for task in self._answering:
            task.cancel()
        return cast(bool, await bridge.run(self._parts.cancel))

    async def __aenter__(self) -> CallStream[I]:
        self._begin()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._client._connection is None:
            self._stop_pulling()
            return
        await self.cancel()

    def __del__(self) -> None:
        if getattr(self, "_pull", None) is not None:
            self._stop_pulling()

    def _begin(self) -> None:
        if self._parts is None:
            connection, _ = self._client._there()
            begin = connection.subscribe if self._is_subscription else connection.stream
            takes_notes = self._on_progress is not None or self._on_notification is not None
            self._parts = begin(*self._request, takes_notes, self._on_ask is not None)

    async def _more(self, skip: bool) -> None:
        if self._pull is None:
            _, bridge = self._client._there()
            assert self._parts is not None
            number, future = bridge.begin(self._parts.pull, skip)
            self._pull = number, future
            # A stream that nobody holds any more is cancelled, although it waits for a part.
            here = weakref.ref(self)
            future.add_done_callback(lambda future: _take(here(), future))
        # If this is cancelled, what arrives is there for the next one who asks.
        await asyncio.wait((self._pull[1],))

    def _take(self, future: asyncio.Future[Any]) -> None:
        if self._pull is not None and self._pull[1] is future:
            self._pull = None
        error = future.exception()
        # What arrives after it was cancelled is dropped like what has waited.
        if self._end is not None:
            return
        if error is not None:
            self._end = (True, error)
            return
        parts, end, self._missed = future.result()
        for part in parts:
            if part[0] == 2:
                task = asyncio.get_running_loop().create_task(self._answer(part))
                self._answering.add(task)
                task.add_done_callback(self._answering.discard)
            else:
                self._ready.append(part)
        if end is not None:
            self._end = end

    def _stop_pulling(self) -> None:
        pull, self._pull = self._pull, None
        if pull is not None and self._client._bridge is not None:
            self._client._bridge.drop(pull[0])

    async def _notify(self, part: tuple[int, int, str, str]) -> None:
        told = _request.notified(part, self._on_progress, self._on_notification)
        if inspect.isawaitable(told):
            await told

    async def _answer(self, part: tuple[int, int, str, str]) -> None:
        _, number, method, text = part
        assert self._parts is not None and self._on_ask is not None
        try:
            answer = self._on_ask(Question(method, _json.read(text)))
            if inspect.isawaitable(answer):
                answer = await answer
            self._parts.answer(number, _json.write(answer))
        except RpcError as error:
            self._parts.answer(number, None, _request.error_object(error))
        except Exception:
            # The other side learns only that it failed.
            _logger.exception("the handler of the question %s failed", method)
            self._parts.answer(number, None, (-32603, "Internal error", None))

    def _error(self) -> BaseException:
        assert self._end is not None
        payload = self._end[1]
        if payload is None:
            return Closed("the stream was cancelled")
        if isinstance(payload, BaseException):
            return payload
        return _errors.of(payload)


def _take(stream: CallStream[Any] | None, future: asyncio.Future[Any]) -> None:
    if stream is not None and not future.cancelled():
        stream._take(future)


class Subscription(CallStream[I]):
    """What a service pushes until nobody listens any more. Made by `Client.subscribe`."""

    @property
    def missed(self) -> int:
        """How many notifications the service says it has left out so far, because they came faster than they were
        taken."""
        return self._missed


__all__ = ["Batch", "CallStream", "Client", "Subscription"]
