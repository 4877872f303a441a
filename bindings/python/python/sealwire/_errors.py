"""What can go wrong, as exceptions, and whether a call may have run all the same.

Never carries a token, a key or the content of an answer.
"""

from __future__ import annotations

import json
from typing import Any

__all__ = [
    "ApprovalRequired",
    "Busy",
    "Cancelled",
    "CallerError",
    "ClockError",
    "Closed",
    "Conflict",
    "ConfigError",
    "ConnectError",
    "ConnectionLost",
    "CredentialsError",
    "DecodeError",
    "Denied",
    "Disconnected",
    "Error",
    "Forbidden",
    "ForkedError",
    "InvalidParams",
    "InvalidRequest",
    "MethodNotFound",
    "NobodyListens",
    "Overloaded",
    "ProtocolError",
    "Quota",
    "RpcError",
    "ServeError",
    "StreamLost",
    "TaskError",
    "TaskWorking",
    "Timeout",
    "TokenError",
    "TooLarge",
    "Unsigned",
    "Unverifiable",
    "ValidationFailed",
]


class Error(Exception):
    """A call, a notification or a batch has no result, or a service cannot be served.

    The text says what to do. Decisions in code are made by the class and by the attributes below.
    """

    #: The kind of error, such as ``"connection_lost"``; ``"remote"`` if the service answered with an error.
    kind: str = "error"
    #: Whether the call may have run, or may still, although this says nothing about its result. Repeat it only if that
    #: does no harm.
    outcome_unknown: bool = False
    #: The id of the last message that was sent, as in the service's log.
    message_id: str | None = None
    #: After how many seconds the service wants the call to be made again, if it has said so.
    retry_after: float | None = None
    #: The code of the service's error object, if it answered with one.
    code: int | None = None
    #: ``data`` of the service's error object.
    data: Any = None
    #: Whether it came from somebody else: a handler that lets it through does not mean it for its own caller.
    _received = False

    def __init__(self, text: str = "") -> None:
        super().__init__(text)

    def __reduce__(self) -> tuple[Any, ...]:
        # Exceptions travel between processes, for example out of a pool of them.
        return _restored, (type(self), self.args, dict(self.__dict__))


class CredentialsError(Error, ValueError):
    """The credentials file cannot be used."""

    kind = "credentials"


class TokenError(Error):
    """There is no valid access token. Nothing was sent."""

    kind = "token"


class ConnectError(Error, ConnectionError):
    """The first connection to the broker failed."""

    kind = "connect"


class Disconnected(Error, ConnectionError):
    """There was no connection to the broker until the deadline. Nothing was sent."""

    kind = "disconnected"


class ConnectionLost(Error, ConnectionError):
    """The connection to the broker was lost during the call, and perhaps the answer with it."""

    kind = "connection_lost"


class StreamLost(Error, ConnectionError):
    """A stream broke off. What came before was genuine."""

    kind = "stream_lost"


class Timeout(Error, TimeoutError):
    """No answer came before the deadline, or the service says that the deadline has passed (``-32003``)."""

    kind = "timeout"


class NobodyListens(Error, ConnectionError):
    """The broker says that no replica of the service listens on ``subject``. It does not sign that."""

    kind = "no_responders"
    subject: str = ""


class Unsigned(Error):
    """An unsigned refusal, which anybody could have written."""

    kind = "hint"


class Unverifiable(Error):
    """Something came in place of an answer that cannot be trusted, and no genuine answer before the deadline."""

    kind = "unverifiable"


class ProtocolError(Error):
    """The service signed an answer that the protocol does not allow."""

    kind = "protocol"


class Forbidden(Error, PermissionError):
    """The broker does not let this user use ``subject``."""

    kind = "forbidden"
    subject: str = ""


class InvalidRequest(Error, ValueError):
    """The request cannot be sent as it is. The program is at fault."""

    kind = "invalid"


class TooLarge(Error, ValueError):
    """The message is larger than the broker accepts, or the result larger than the caller does."""

    kind = "too_large"


class DecodeError(Error, ValueError):
    """The result does not have the requested type, and the call was executed; or a part of a stream does not."""

    kind = "decode"


class Busy(Error):
    """Too many calls or streams are under way already. Nothing was sent."""

    kind = "busy"


class Closed(Error):
    """The client is closed."""

    kind = "closed"


class ClockError(Error):
    """This machine's clock differs from the service's by more than can be allowed for."""

    kind = "clock"
    #: What to add to this machine's clock to get the service's, in seconds.
    offset_s: int = 0


class TaskError(Error):
    """A task has no outcome."""

    kind = "task"
    #: Why: ``"absent"``, ``"working"``, ``"cancelled"``, ``"unknown"`` or ``"not_kept"``; see `TaskStatus`.
    state: str = ""


class TaskWorking(TaskError, TimeoutError):
    """A task has no outcome yet. It still runs, whoever has stopped waiting for it."""


class ConfigError(Error, ValueError):
    """The configuration, a file that it names or a policy cannot be used, or does not fit the methods."""

    kind = "config"


class ServeError(Error):
    """The broker or another replica prevents serving, or accepted work was not finished in time."""

    kind = "serve"


class CallerError(Error):
    """The caller cannot be asked, or has not given what was asked for. For handlers."""

    kind = "caller"


class RpcError(Error):
    """The service answered with an error.

    A handler raises it to answer with one: ``raise sealwire.RpcError(1001, "no such account")``. Choose codes outside
    -32768..-32000. An error that was received from another service is not passed on by itself: nobody meant it for this
    caller."""

    kind = "remote"
    #: The error object's ``message``, as the service wrote it.
    message: str
    #: Whether the application chose the code, with a meaning of its own. Otherwise the code means what the protocol
    #: says.
    is_application: bool = True

    def __init__(self, code: int, message: str, data: Any = None) -> None:
        super().__init__(f"{message} ({code})")
        self.code = code
        self.message = message
        self.data = data


class _Refusal(RpcError):
    """An error whose code stands for its class."""

    def __init__(self, message: str, data: Any = None) -> None:
        super().__init__(self._CODE, message, data)
        self.is_application = False

    _CODE = 0


class Denied(_Refusal, PermissionError):
    """The service's policy does not allow the call, or people have denied it (``-32002``)."""

    _CODE = -32002
    #: The id of the request for approval that people have denied, if that is why.
    approval: str | None = None


class ApprovalRequired(_Refusal, PermissionError):
    """People have to approve the call first (``-32018``). It has not run. The same call, sent again once they have,
    runs once; `wait_approval` does that."""

    _CODE = -32018
    #: The request's id, by which those who decide know it.
    approval: str | None = None
    #: The approvals that it needs, each with ``approval``, its name; ``roles``, who gives it; ``count``, how many have
    #: to; and ``have``, how many have.
    needs: list[dict[str, Any]]
    #: Approvals after this time, in seconds since 1970, come too late.
    deadline: float | None = None

    def __init__(self, message: str, data: Any = None) -> None:
        super().__init__(message, data)
        self.needs = []


class MethodNotFound(_Refusal, LookupError):
    """The service has no such method (``-32601``)."""

    _CODE = -32601


class InvalidParams(_Refusal, ValueError):
    """The parameters do not fit the method (``-32602``)."""

    _CODE = -32602


class ValidationFailed(_Refusal, ValueError):
    """The application rejects well-formed parameters (``-32001``)."""

    _CODE = -32001


class Quota(_Refusal):
    """The caller's quota is used up (``-32013``)."""

    _CODE = -32013
    #: Which one, if the service says so.
    scope: str | None = None


class Overloaded(_Refusal):
    """The service sheds load (``-32014``)."""

    _CODE = -32014


class Cancelled(_Refusal):
    """The call was cancelled (``-32016``)."""

    _CODE = -32016


class Conflict(_Refusal):
    """The idempotency key was used before, and there is no outcome to return; or the call has begun before under its
    approval (``-32017``)."""

    _CODE = -32017
    #: Why: ``"running"``, ``"unknown"``, ``"cancelled"`` (a task), ``"other_params"`` or ``"not_kept"``.
    idempotency: str | None = None
    #: The id of the request for approval under which it has begun, if that is why.
    approval: str | None = None


class ForkedError(Error, RuntimeError):
    """This process was forked from one that used Sealwire already. Connect after the fork, or start workers with
    ``spawn``."""

    kind = "forked"

    def __init__(self, text: str = "") -> None:
        super().__init__(
            text
            or "this process was forked from one that used sealwire already, whose threads it lacks: connect after "
            "the fork, or start processes with the method `spawn` or `forkserver`"
        )


#: Exactly the kinds of the library.
_BY_KIND: dict[str, type[Error]] = {
    "credentials": CredentialsError,
    "connect": ConnectError,
    "invalid": InvalidRequest,
    "token": TokenError,
    "busy": Busy,
    "disconnected": Disconnected,
    "too_large": TooLarge,
    "forbidden": Forbidden,
    "no_responders": NobodyListens,
    "hint": Unsigned,
    "timeout": Timeout,
    "connection_lost": ConnectionLost,
    "unverifiable": Unverifiable,
    "protocol": ProtocolError,
    "remote": RpcError,
    "clock": ClockError,
    "decode": DecodeError,
    "stream_lost": StreamLost,
    "result_too_large": TooLarge,
    "ended": StreamLost,
    "cancelled": Cancelled,
    "closed": Closed,
    "task": TaskError,
}

#: The words that services use beside those.
_OF_SERVICES: dict[str, type[Error]] = {
    "config": ConfigError,
    "serve": ServeError,
    "frame": CallerError,
    "ask": CallerError,
    "attachment": CallerError,
}

#: The codes of the protocol that have a class of their own.
_BY_CODE: dict[int, type[Error]] = {
    -32003: Timeout,
    **{
        refusal._CODE: refusal
        for refusal in (
            Denied,
            MethodNotFound,
            InvalidParams,
            ValidationFailed,
            Quota,
            Overloaded,
            Cancelled,
            Conflict,
            ApprovalRequired,
        )
    },
}


def of(failure: tuple[Any, ...]) -> Error:
    """The exception for a failure of the library: `Failure::to_tuple` in failure.rs."""
    kind, text, outcome_unknown, message_id, rpc, detail, last = failure
    found = _BY_KIND.get(kind) or _OF_SERVICES.get(kind, Error)
    if kind == "remote" and rpc is not None and not rpc[3]:
        found = _BY_CODE.get(rpc[0], RpcError)
    elif kind == "task":
        found = _of_task(detail)
    error = found.__new__(found, text)
    Exception.__init__(error, text)
    error.kind = kind
    error.outcome_unknown = outcome_unknown
    error.message_id = message_id
    error._received = True
    if rpc is not None:
        _take_rpc(error, *rpc)
    elif isinstance(error, _Refusal):
        # Cancelled by this program, and not confirmed by the service.
        error.code, error.message = None, text
    if isinstance(error, (Forbidden, NobodyListens)):
        error.subject = detail or ""
    elif isinstance(error, ClockError):
        error.offset_s = detail or 0
    elif isinstance(error, TaskError):
        error.state = detail or ""
    if last is not None:
        error.__context__ = of(last)
    return error


def _of_task(state: object) -> type[TaskError]:
    return TaskWorking if state == "working" else TaskError


def _take_rpc(error: Error, code: int, message: str, data: str | None, is_application: bool) -> None:
    error.code = code
    error.data = None if data is None else json.loads(data)
    if isinstance(error, ApprovalRequired):
        error.needs = []
    if isinstance(error, RpcError):
        error.message = message
        error.is_application = is_application
    if is_application or not isinstance(error.data, dict):
        return
    after = error.data.get("retry_after_ms")
    if isinstance(after, (int, float)) and not isinstance(after, bool) and code in (-32013, -32014, -32018):
        error.retry_after = after / 1000
    if isinstance(error, Quota):
        error.scope = _text(error.data.get("scope"))
    elif isinstance(error, Conflict):
        error.idempotency = _text(error.data.get("idempotency"))
    if isinstance(error, (Denied, Conflict, ApprovalRequired)):
        error.approval = _text(error.data.get("approval"))
    if isinstance(error, ApprovalRequired):
        needs, deadline = error.data.get("needs"), error.data.get("deadline")
        error.needs = [need for need in needs if isinstance(need, dict)] if isinstance(needs, list) else []
        error.deadline = deadline if isinstance(deadline, (int, float)) and not isinstance(deadline, bool) else None


def _text(value: object) -> str | None:
    return value if isinstance(value, str) else None


def _restored(cls: type[Error], args: tuple[Any, ...], state: dict[str, Any]) -> Error:
    error = cls.__new__(cls, *args)
    Exception.__init__(error, *args)
    error.__dict__.update(state)
    return error
