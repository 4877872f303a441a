"""What all clients share: how a request is put together, and what is made of an answer.

Never waits, and never sends anything.
"""

from __future__ import annotations

import dataclasses
import datetime
import os
from collections.abc import Callable, Iterable
from typing import Any, Union

from . import _json, _trace, _types
from ._core import Attachment, Credentials, Options, Receipt, Tokens
from ._errors import CredentialsError, DecodeError, InvalidRequest, RpcError, _Refusal

#: A length of time: seconds, or a `timedelta`.
Seconds = Union[float, int, datetime.timedelta]

#: How credentials are given: a file, what was read from one, or nothing for the file that `$SEALWIRE_CREDS` names.
Creds = Union[str, "os.PathLike[str]", Credentials, None]

#: The protocol's longest deadline, in seconds.
_FOREVER_S = 1e9

PLAIN = Options()


@dataclasses.dataclass(frozen=True)
class Progress:
    """How far a method is."""

    #: How much is done.
    done: float
    #: Of how much, if that is known.
    total: float | None = None
    #: A few words.
    message: str | None = None


@dataclasses.dataclass(frozen=True)
class Notification:
    """A notification of a running method."""

    method: str
    params: Any


@dataclasses.dataclass(frozen=True)
class Question:
    """A question that a running method asks its caller."""

    method: str
    params: Any


@dataclasses.dataclass(frozen=True)
class MethodInfo:
    """A method that the agent may call."""

    name: str
    #: What it does, in its author's words.
    description: str | None
    #: The parameters by name, as the JSON Schema (2020-12) of an object, narrowed to what the policy allows.
    params: dict[str, Any]
    #: The JSON Schema of the result.
    result: Any
    #: Whether the result comes in parts.
    is_stream: bool
    #: Whether this is a subscription, which has no result.
    is_subscription: bool
    #: Whether a call with an idempotency key runs only once.
    is_idempotent: bool
    #: ``optional`` if it may be called as a task, ``required`` if in no other way; None if it may not.
    task: str | None
    #: The method's whole OpenRPC object.
    document: dict[str, Any] = dataclasses.field(repr=False)


@dataclasses.dataclass(frozen=True)
class Catalogue:
    """What a service lets the agent call."""

    #: The service's audience, such as `dev/math`.
    title: str
    #: Changes when the service's policy does.
    version: str
    methods: list[MethodInfo]


@dataclasses.dataclass(frozen=True)
class ClientStats:
    """What a client is doing and has seen since it was connected."""

    #: Whether the connection is up, as far as is known.
    connected: bool
    #: Calls that are waiting for an answer.
    pending: int
    #: Streams that are open: 256 at most.
    streams: int
    #: Frames of streams that were accepted.
    frames_taken: int
    #: Messages in place of frames that were refused: unsigned, forged, altered, misdirected, beyond the window.
    frames_refused: int
    #: Messages in place of an answer that were refused: unsigned, forged, altered, misdirected.
    unverifiable: int
    #: Messages for calls and streams that no longer waited or never existed, and frames that had come before.
    late: int
    #: How often the connection was lost.
    disconnects: int


def seconds(value: Seconds) -> float:
    """A length of time in seconds."""
    return value.total_seconds() if isinstance(value, datetime.timedelta) else float(value)


def credentials(given: Creds) -> Credentials:
    """Reads the credentials, unless they were read before."""
    if isinstance(given, Credentials):
        return given
    path = given if given is not None else os.environ.get("SEALWIRE_CREDS")
    if path is None:
        raise CredentialsError("no credentials: name the file, or set SEALWIRE_CREDS")
    return Credentials.load(path)


def options(
    defaults: dict[str, Any],
    *,
    deadline: Seconds | None = None,
    lease: Seconds | None = None,
    task_limit: Seconds | None = None,
    wait_approval: Seconds | None = None,
    attached: Iterable[Attachment] = (),
    **others: Any,
) -> Options:
    """The options of one request, over those of its client."""
    all_options = dict(defaults)
    cap = all_options.pop("latest", None)
    if cap is not None:
        # A call that is made while another one is served does not outlive it.
        left = max(cap(), 0.001)
        deadline = left if deadline is None else min(seconds(deadline), left)
    if deadline is not None:
        all_options["deadline"] = seconds(deadline)
    if lease is not None:
        all_options["lease"] = seconds(lease)
    if task_limit is not None:
        all_options["task_limit"] = seconds(task_limit)
    if wait_approval is not None:
        all_options["wait_approval"] = seconds(wait_approval)
    if attached:
        all_options["attached"] = list(attached)
    trace = _trace.current(all_options.get("trace"))
    if trace is not None:
        all_options["trace"] = trace
    all_options.update((name, value) for name, value in others.items() if value is not None and value is not False)
    if not all_options:
        return PLAIN
    try:
        return Options(**all_options)
    except (ValueError, OverflowError) as error:
        raise InvalidRequest(str(error)) from None


def decoded(text: str, hint: Any, *, is_part: bool = False) -> Any:
    """A result or a part as a value of the requested type."""
    try:
        return _types.decode_text(text, hint)
    except ValueError as error:
        what = "a part of the stream" if is_part else "the result"
        wrong = DecodeError(f"{what} is not of type {_types._named(hint)}: {_types._reason(error)}")
        wrong.outcome_unknown = is_part
        raise wrong from None


def catalogue(text: str) -> Catalogue:
    """What `rpc.discover` says."""
    document = decoded(text, None)
    return Catalogue(
        title=document["info"]["title"],
        version=document["info"]["version"],
        methods=[
            MethodInfo(
                name=method["name"],
                description=method.get("description"),
                params=method.get("x-params", {}),
                result=method.get("result", {}).get("schema"),
                is_stream=bool(method.get("x-stream")),
                is_subscription=bool(method.get("x-subscription")),
                is_idempotent=bool(method.get("x-idempotent")),
                task=_task_mode(method.get("x-task")),
                document=method,
            )
            for method in document["methods"]
        ],
    )


def _task_mode(said: object) -> str | None:
    return said if isinstance(said, str) and said in ("optional", "required") else None


def error_object(error: RpcError) -> tuple[int, str, str | None]:
    """An error as it is sent: `(code, message, data)`."""
    code = error.code if error.code is not None else -32603
    data = None if error.data is None else _json.write(error.data)
    return code, error.message, data


def notified(part: tuple[int, int, str, str], on_progress: Any, on_notification: Any) -> Any:
    """Hands a notification to its handler, whose result is returned: it may have to be awaited."""
    _, _, method, text = part
    if method == "rpc.progress" and on_progress is not None:
        told = _json.read(text)
        return on_progress(Progress(told.get("progress", 0), told.get("total"), told.get("message")))
    if on_notification is not None:
        return on_notification(Notification(method, _json.read(text)))
    return None


#: Handlers of what comes while a call runs.
OnProgress = Callable[[Progress], Any]
OnNotification = Callable[[Notification], Any]
OnAsk = Callable[[Question], Any]

__all__ = [
    "Attachment",
    "Catalogue",
    "ClientStats",
    "Creds",
    "Credentials",
    "MethodInfo",
    "Notification",
    "OnAsk",
    "OnNotification",
    "OnProgress",
    "Options",
    "Progress",
    "Question",
    "Receipt",
    "Seconds",
    "Tokens",
    "_Refusal",
    "catalogue",
    "credentials",
    "decoded",
    "error_object",
    "notified",
    "options",
    "seconds",
]
