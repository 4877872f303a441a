"""The client for programs without an event loop. Any number of threads may share one.

Never holds up other threads of Python while it waits, and lets Ctrl-C end a wait at once.
"""

from __future__ import annotations

import logging
import uuid
import warnings
from collections import deque
from types import TracebackType
from typing import Any, Generic, TypeVar, cast, overload

from . import _bridge, _errors, _json, _log, _request, _token
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
from ._task import SyncTask
from ._token import TokenSource

T = TypeVar("T")
I = TypeVar("I")

_logger = logging.getLogger("sealwire.client")


class SyncClient:
    """An agent's connection to the services of its environment, which waits::

        with sealwire.SyncClient("planner.creds.json") as bus:
            print(bus.call("math", "math/add", a=2, b=3))

    See `Client` for everything else: the methods are the same.
    """

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
        self._defaults: dict[str, Any] = {}
        self._is_view = False

    def open(self) -> SyncClient:
        """Connects, once. `with` does it as well, and so does the first call."""
        if self._connection is None:
            _log.start()
            credentials = _request.credentials(self._credentials)
            token = None if self._token is None else _token.given(self._token, None)
            self._connection = cast(Connection, _bridge.waiter().run(connect, credentials, token, *self._settings))
        return self

    def close(self) -> None:
        """Ends the connection. Calls of other threads are cancelled at their services, and fail with `Closed`."""
        connection, self._connection = self._connection, None
        if connection is not None and not self._is_view:
            _bridge.waiter().run(connection.close)

    def __enter__(self) -> SyncClient:
        return self.open()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if not self._is_view:
            self.close()

    def __del__(self, _warn: Any = warnings.warn) -> None:
        if getattr(self, "_connection", None) is not None and not self._is_view:
            _warn(f"unclosed {self!r}", ResourceWarning, source=self)

    def __repr__(self) -> str:
        state = "open" if self._connection is not None else "not open"
        return f"<sealwire.SyncClient {state}>"

    def __getstate__(self) -> Any:
        raise TypeError("a client cannot be pickled: it holds a key and a connection")

    @property
    def is_connected(self) -> bool:
        """Whether the connection is up, as far as is known."""
        return self._connection is not None and self._connection.is_connected()

    def stats(self) -> ClientStats:
        """What the client is doing and has seen so far."""
        return ClientStats(**self._there().stats())

    def acting_for(self, token: str | TokenSource) -> SyncClient:
        """As `Client.acting_for`."""
        return self._view(tokens=self._there().tokens(_token.given(token, None)))

    def _view(self, **defaults: Any) -> SyncClient:
        view = SyncClient.__new__(SyncClient)
        view.__dict__.update(self.__dict__)
        view._connection = self._there()
        view._is_view = True
        view._defaults = {**self._defaults, **defaults}
        return view

    def _there(self) -> Connection:
        if self._connection is None:
            if self._is_view:
                raise Closed("the client is closed")
            self.open()
        return cast(Connection, self._connection)

    @overload
    def call(
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
    def call(
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

    def call(
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
        """As `Client.call`. An exception while it waits, such as `KeyboardInterrupt`, cancels the call at the
        service."""
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
            stream: SyncCallStream[Any] = SyncCallStream(
                self, False, service, method, text, options, None, on_progress, on_notification, on_ask
            )
            with stream as parts:
                return parts.result(result)
        options = self._options(
            deadline=deadline,
            idempotency_key=idempotency_key,
            idempotent=idempotent,
            detached=detached,
            wait_approval=wait_approval,
            receipt=receipt,
        )
        return decoded(_bridge.waiter().run(self._there().call, service, method, text, options), result)

    def notify(
        self, service: str, method: str, /, *, params: Any = None, deadline: Seconds | None = None, **named: Any
    ) -> None:
        """As `Client.notify`."""
        text, attached = _json.write_params(params, named)
        options = self._options(deadline=deadline, attached=attached)
        _bridge.waiter().run(self._there().notify, service, method, text, options)

    def detach(
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
    ) -> SyncTask:
        """As `Client.detach`."""
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
        _bridge.waiter().run(self._there().detach, service, method, text, options)
        return SyncTask(self, service, method, key, deadline)

    def task(self, service: str, method: str, key: str, /, *, deadline: Seconds | None = None) -> SyncTask:
        """As `Client.task`."""
        return SyncTask(self, service, method, key, deadline)

    def batch(
        self,
        service: str,
        /,
        *,
        deadline: Seconds | None = None,
        idempotent: bool = False,
        receipt: Receipt | None = None,
    ) -> SyncBatch:
        """As `Client.batch`."""
        return SyncBatch(self, service, self._options(deadline=deadline, idempotent=idempotent, receipt=receipt))

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
    ) -> SyncCallStream[Any]:
        """As `Client.stream`, for `with` and `for`."""
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
        return SyncCallStream(self, False, service, method, text, options, item, on_progress, on_notification, on_ask)

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
    ) -> SyncSubscription[Any]:
        """As `Client.subscribe`, for `with` and `for`."""
        text, attached = _json.write_params(params, named)
        options = self._options(window=window, lease=lease, receipt=receipt, attached=attached)
        return SyncSubscription(self, True, service, method, text, options, item, None, on_notification, on_ask)

    def discover(self, service: str, /, *, deadline: Seconds | None = None) -> Catalogue:
        """As `Client.discover`."""
        options = self._options(deadline=deadline)
        return _request.catalogue(_bridge.waiter().run(self._there().discover, service, options))

    def wait_for(self, service: str, /, *, limit: Seconds = 30.0) -> None:
        """As `Client.wait_for`."""
        _bridge.waiter().run(self._there().wait_for, service, _request.seconds(limit))

    def _options(self, **options: Any) -> _request.Options:
        return _request.options(self._defaults, **options)


class SyncBatch(Entries):
    """A batch that is put together. Made by `SyncClient.batch`."""

    def __init__(self, client: SyncClient, service: str, options: _request.Options) -> None:
        super().__init__()
        self._client, self._service, self._options = client, service, options

    def send(self) -> list[BatchCall[Any]]:
        """As `Batch.send`."""
        connection = self._client._there()
        return self._take(_bridge.waiter().run(connection.batch, self._service, self._entries, self._options))


class SyncCallStream(Generic[I]):
    """As `CallStream`, for `with` and `for`. One thread at a time takes its parts, and answers the questions among
    them."""

    def __init__(
        self,
        client: SyncClient,
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
        self._end: tuple[bool, Any] | None = None
        self._missed = 0

    @property
    def message_id(self) -> str | None:
        """The id of its message, as in the service's log; None until it is sent."""
        return None if self._parts is None else self._parts.message_id()

    def __iter__(self) -> SyncCallStream[I]:
        return self

    def __next__(self) -> I:
        parts = self._begin()
        while True:
            while self._ready:
                part = self._ready.popleft()
                if part[0] == 0:
                    return cast(I, decoded(part[3], self._hint, is_part=True))
                self._handle(parts, part)
            if self._end is not None:
                if self._end[0]:
                    raise self._error()
                raise StopIteration
            self._more(parts, False)

    def result(self, result: Any = None, /) -> Any:
        """As `CallStream.result`."""
        parts = self._begin()
        while True:
            while self._ready:
                part = self._ready.popleft()
                if part[0] != 0:
                    self._handle(parts, part)
            if self._end is not None:
                break
            self._more(parts, True)
        if self._end[0]:
            raise self._error()
        return decoded(self._end[1], result)

    def cancel(self) -> bool:
        """As `CallStream.cancel`."""
        if self._parts is None or self._end is not None:
            return True
        self._end = (True, None)
        self._ready.clear()
        return cast(bool, _bridge.waiter().run(self._parts.cancel))

    def __enter__(self) -> SyncCallStream[I]:
        self._begin()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.cancel()

    def _begin(self) -> CallParts:
        if self._parts is None:
            connection = self._client._there()
            begin = connection.subscribe if self._is_subscription else connection.stream
            takes_notes = self._on_progress is not None or self._on_notification is not None
            self._parts = begin(*self._request, takes_notes, self._on_ask is not None)
        return self._parts

    def _more(self, parts: CallParts, skip: bool) -> None:
        ready, end, self._missed = _bridge.waiter().run(parts.pull, skip)
        self._ready.extend(ready)
        if end is not None:
            self._end = end

    def _handle(self, parts: CallParts, part: tuple[int, int, str, str]) -> None:
        kind, number, method, text = part
        if kind == 1:
            _request.notified(part, self._on_progress, self._on_notification)
            return
        assert self._on_ask is not None
        try:
            parts.answer(number, _json.write(self._on_ask(Question(method, _json.read(text)))))
        except RpcError as error:
            parts.answer(number, None, _request.error_object(error))
        except Exception:
            # The other side learns only that it failed.
            _logger.exception("the handler of the question %s failed", method)
            parts.answer(number, None, (-32603, "Internal error", None))

    def _error(self) -> BaseException:
        assert self._end is not None
        payload = self._end[1]
        return Closed("the stream was cancelled") if payload is None else _errors.of(payload)


class SyncSubscription(SyncCallStream[I]):
    """As `Subscription`, for `with` and `for`."""

    @property
    def missed(self) -> int:
        """As `Subscription.missed`."""
        return self._missed


__all__ = ["SyncBatch", "SyncCallStream", "SyncClient", "SyncSubscription"]
