"""Calls that outlive their callers: each is found again by its key, also by another process of the same agent.

Never ends a call because nobody waits for it any more.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any, Literal, TypeVar, overload

from . import _bridge, _errors, _request
from ._request import Progress, Seconds

if TYPE_CHECKING:
    from ._client import Client
    from ._core import Connection, TaskQuestions
    from ._sync import SyncClient

T = TypeVar("T")

#: No task runs longer, and is kept longer: a week each, in seconds.
_LONGEST_WAIT = 14 * 24 * 3600.0


@dataclasses.dataclass(frozen=True)
class TaskStatus:
    """How a task is. Times are seconds since 1970, by the service's clock."""

    #: ``absent``: the service knows no such task of this agent, or none any more. ``working``. ``completed``: it has a
    #: result. ``failed``: it has an error, the method's own. ``cancelled``: by its caller; what it did until then is
    #: done. ``unknown``: it had begun, and was stopped, or its replica died. ``not_kept``: it was executed, and its
    #: outcome was too large to be kept, or found no room.
    state: Literal["absent", "working", "completed", "failed", "cancelled", "unknown", "not_kept"]
    #: When it began.
    started: int | None
    #: When it is stopped at the latest.
    limit: int | None
    #: When it had ended.
    ended: int | None
    #: Until when it is known, once it has ended.
    expires: int | None
    #: For how many seconds after its end it is known.
    keep: int | None
    #: What the method has said last of how far it is.
    progress: Progress | None
    #: Whether it runs and is to end, because it was cancelled.
    is_cancelling: bool
    #: After how many seconds it may be worth asking again.
    retry_after: float
    _outcome: tuple[bool, Any] = dataclasses.field(repr=False)

    @overload
    def result(self, result: type[T], /) -> T: ...

    @overload
    def result(self, result: Any = None, /) -> Any: ...

    def result(self, result: Any = None, /) -> Any:
        """The result of the method, as a value of the type `result` if one is given. Raises the method's own error, or
        `TaskError` if there is no outcome, or none yet."""
        failed, payload = self._outcome
        if failed:
            raise _errors.of(payload)
        return _request.decoded(payload, result)


def _status(told: dict[str, Any]) -> TaskStatus:
    if told["progress"] is not None:
        told["progress"] = Progress(*told["progress"])
    return TaskStatus(**told)


class _Handle:
    """By what a task is found."""

    def __init__(self, service: str, method: str, key: str, deadline: Seconds | None) -> None:
        self._named, self._deadline = (service, method, key), deadline

    def __repr__(self) -> str:
        return f"<sealwire.{type(self).__name__} {self.key!r} of {self.service} {self.method}>"

    @property
    def service(self) -> str:
        """The service."""
        return self._named[0]

    @property
    def method(self) -> str:
        """The method."""
        return self._named[1]

    @property
    def key(self) -> str:
        """By which its caller, and nobody else, finds it again: the idempotency key. Keep it beyond this process."""
        return self._named[2]

    def _questions(self, connection: Connection, client: Client | SyncClient) -> TaskQuestions:
        return connection.task(*self._named, client._options(deadline=self._deadline))


class Task(_Handle):
    """A call that outlives its caller. Made by `Client.detach` and `Client.task`. Dropping it, and cancelling those who
    wait for it, does not end the call."""

    def __init__(self, client: Client, service: str, method: str, key: str, deadline: Seconds | None) -> None:
        super().__init__(service, method, key, deadline)
        self._client = client
        # What cannot be a task is an error at once.
        self._asked()

    async def status(self) -> TaskStatus:
        """How it is. An error says nothing about the task."""
        bridge, questions = self._asked()
        return _status(await bridge.run(questions.status))

    @overload
    async def wait(self, *, result: type[T], timeout: Seconds | None = None) -> T: ...

    @overload
    async def wait(self, *, result: Any = None, timeout: Seconds | None = None) -> Any: ...

    async def wait(self, *, result: Any = None, timeout: Seconds | None = None) -> Any:
        """Waits for its result, as a value of the type `result` if one is given, for `timeout` seconds or as long as it
        takes. Raises the method's own error; `TaskWorking`, a `TimeoutError`, if it still runs then; `TaskError` if
        there is no outcome. The service is asked with pauses of up to 2 s, or as long as it wishes, and again if it
        could not be asked."""
        bridge, questions = self._asked()
        return _status(await bridge.run(questions.wait, _most(timeout))).result(result)

    async def cancel(self) -> TaskStatus:
        """Has the service end it, at once or within seconds, and returns how it was just before. `wait` tells when it
        has. What it did until then is done."""
        bridge, questions = self._asked()
        return _status(await bridge.run(questions.cancel))

    def _asked(self) -> tuple[_bridge.Bridge, TaskQuestions]:
        connection, bridge = self._client._there()
        return bridge, self._questions(connection, self._client)


class SyncTask(_Handle):
    """As `Task`. Made by `SyncClient.detach` and `SyncClient.task`."""

    def __init__(self, client: SyncClient, service: str, method: str, key: str, deadline: Seconds | None) -> None:
        super().__init__(service, method, key, deadline)
        self._client = client
        self._asked()

    def status(self) -> TaskStatus:
        """As `Task.status`."""
        return _status(_bridge.waiter().run(self._asked().status))

    @overload
    def wait(self, *, result: type[T], timeout: Seconds | None = None) -> T: ...

    @overload
    def wait(self, *, result: Any = None, timeout: Seconds | None = None) -> Any: ...

    def wait(self, *, result: Any = None, timeout: Seconds | None = None) -> Any:
        """As `Task.wait`."""
        return _status(_bridge.waiter().run(self._asked().wait, _most(timeout))).result(result)

    def cancel(self) -> TaskStatus:
        """As `Task.cancel`."""
        return _status(_bridge.waiter().run(self._asked().cancel))

    def _asked(self) -> TaskQuestions:
        return self._questions(self._client._there(), self._client)


def _most(timeout: Seconds | None) -> float:
    return _LONGEST_WAIT if timeout is None else _request.seconds(timeout)


__all__ = ["SyncTask", "Task", "TaskStatus"]
