"""What a handler knows of the call that it serves, and how it speaks to the caller meanwhile.

Never lets a handler see a call that no policy allowed.
"""

from __future__ import annotations

import dataclasses
import json
import time
from typing import Any, ClassVar

from . import _bridge, _json, _request, _types
from ._client import Client
from ._core import ServedCall
from ._sync import SyncClient


@dataclasses.dataclass(frozen=True)
class Caller:
    """Who calls, as the service has verified it."""

    #: The owner of the key that signed the call.
    agent: str
    #: On whose behalf: the agent itself unless `delegated`.
    subject: str
    #: Whether the agent calls on behalf of somebody else.
    delegated: bool
    #: The roles of the token.
    roles: frozenset[str]
    #: The id of the key that signed the call.
    key: str
    #: `HS256` or `EdDSA`.
    algorithm: str
    #: `jti` of the token.
    token_id: str = dataclasses.field(repr=False)
    #: `iss` of the token.
    issuer: str
    #: `exp` of the token: seconds since the Unix epoch.
    expires_at: int
    #: Every claim of the token to which the protocol gives no meaning.
    claims: dict[str, Any] = dataclasses.field(repr=False)


@dataclasses.dataclass(frozen=True)
class Permit:
    """Which rule allowed the call."""

    #: The rule; None if no rule has a name for it.
    rule: str | None
    #: The revision of the policy.
    revision: str


@dataclasses.dataclass(frozen=True)
class AttachmentRef:
    """A parameter whose bytes the caller still has: `await ctx.attachment(document)` fetches them."""

    #: The digest: base64url of SHA-256.
    sha256: str
    size: int
    #: According to the caller.
    media_type: str

    #: How policies and callers see it.
    __sealwire_kind__: ClassVar[dict[str, Any]] = {
        "type": "object",
        "members": [
            {"name": name, "optional": False, "description": None, "type": kind}
            for name, kind in (("sha256", "string"), ("size", "integer"), ("type", "string"))
        ],
    }
    __sealwire_schema__: ClassVar[dict[str, Any]] = {
        "type": "object",
        "properties": {"sha256": {"type": "string"}, "size": {"type": "integer"}, "type": {"type": "string"}},
        "required": ["sha256", "size", "type"],
        "additionalProperties": False,
    }

    @staticmethod
    def __sealwire_decode__(value: Any, where: str) -> AttachmentRef:
        if not isinstance(value, dict) or set(value) != {"sha256", "size", "type"}:
            raise _types.Mismatch(f"{where} must be an attachment: an object with `sha256`, `size` and `type`")
        return AttachmentRef(
            _types._str(value["sha256"], f"{where}.sha256"),
            _types._int(value["size"], f"{where}.size"),
            _types._str(value["type"], f"{where}.type"),
        )

    def _named(self) -> str:
        return json.dumps({"sha256": self.sha256, "size": self.size, "type": self.media_type})


class _Context:
    """What both kinds of handlers know."""

    def __init__(self, call: ServedCall) -> None:
        self._call = call
        self._caller: Caller | None = None

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {self.method} for {self.caller.agent}>"

    @property
    def caller(self) -> Caller:
        """Who calls."""
        if self._caller is None:
            known = self._call.caller()
            known["roles"] = frozenset(known["roles"])
            known["claims"] = _json.read(known["claims"])
            self._caller = Caller(**known)
        return self._caller

    @property
    def permit(self) -> Permit:
        """Which rule of which policy revision allowed this call."""
        return Permit(*self._call.permit())

    @property
    def method(self) -> str:
        """The name under which the method was called."""
        return self._call.name()

    @property
    def message_id(self) -> str:
        """The message's id, as in every line of the log."""
        return self._call.message_id()

    @property
    def idempotency_key(self) -> str | None:
        """The caller's idempotency key, if it sent one."""
        return self._call.idempotency_key()

    @property
    def traceparent(self) -> str | None:
        """The caller's W3C `traceparent`, if it sent one. No decision depends on it."""
        return self._call.traceparent()

    @property
    def remaining(self) -> float:
        """How many seconds are left until the caller stops waiting. Of a task, that is put off while it runs."""
        return max(0.0, self._call.deadline_ms() / 1000 - time.time())

    @property
    def is_task(self) -> bool:
        """Whether the call is a task, for which nobody waits."""
        return self._call.is_task()

    @property
    def takes_frames(self) -> bool:
        """Whether the caller accepts parts, notifications and questions while its call runs."""
        return self._call.takes_frames()

    @property
    def is_cancelled(self) -> bool:
        """Whether nobody waits for the method any more. For handlers that compute for long without awaiting."""
        return self._call.is_cancelled()

    def is_capable_of(self, name: str) -> bool | None:
        """Whether the caller says that it can do this; None if it says nothing of the kind. Only its word."""
        return self._call.is_capable_of(name)

    def may_call(self, method: str, params: Any = None) -> bool:
        """Whether the policy in force would allow the caller another call now."""
        return self._call.may_call(method, _json.write(params))

    def progress(self, done: float, total: float | None = None, message: str | None = None) -> None:
        """Tells the caller how far the method is. Does nothing if the caller accepts no frames. Of a task, the last is
        kept for whoever asks, with the first 100 characters of `message`, about once a second."""
        self._call.progress(done, total, message)

    def _defaults(self, token: Any) -> dict[str, Any]:
        # A task has no deadline of its own: what it calls ends with it, or by its own.
        defaults: dict[str, Any] = {} if self.is_task else {"latest": lambda: self.remaining}
        if self.traceparent is not None:
            defaults["trace"] = (self.traceparent, None, None)
        if token is not None:
            defaults["tokens"] = token
        return defaults


class Ctx(_Context):
    """What an `async def` handler knows of the call that it serves. It is the first parameter of a handler, or no
    parameter at all."""

    def __init__(self, call: ServedCall, bridge: _bridge.Bridge) -> None:
        super().__init__(call)
        self._bridge = bridge

    async def send(self, part: Any) -> None:
        """Sends a part of the result. Waits while the caller has no room; does nothing if it accepts no frames."""
        await self._bridge.run(self._call.send, _json.write(part))

    async def notify(self, method: str, params: Any) -> None:
        """Sends a notification; `params` is a mapping or a list. Does nothing if the caller accepts no frames."""
        await self._bridge.run(self._call.notify, method, _json.write(params))

    async def ask(self, method: str, params: Any, *, result: Any = None) -> Any:
        """Asks the caller a question, and waits for its answer. Raises `CallerError`, or the caller's own
        `RpcError`."""
        return _request.decoded(await self._bridge.run(self._call.ask, method, _json.write(params)), result)

    async def attachment(self, document: AttachmentRef) -> bytes:
        """Fetches the bytes of an argument, once their size and digest are verified. Raises `CallerError`."""
        fetched: bytes = await self._bridge.run(self._call.attachment, document._named())
        return fetched

    async def cancelled(self) -> None:
        """Waits until nobody waits for the method any more. A handler that uses this is not cancelled at once then: it
        gets a second to clean up."""
        await self._bridge.run(self._call.cancelled)

    def using(self, bus: Client, *, token: str | None = None) -> Client:
        """`bus` for calls that are part of this one: they belong to its trace, and end with its deadline. With `token`,
        they are made on behalf of whom it names: the service's own agent must be its actor."""
        return bus._view(**self._defaults(None if token is None else bus._there()[0].tokens(token)))


class SyncCtx(_Context):
    """What a plain `def` handler, which runs in a thread, knows of the call that it serves."""

    def send(self, part: Any) -> None:
        """As `Ctx.send`."""
        _bridge.waiter().run(self._call.send, _json.write(part))

    def notify(self, method: str, params: Any) -> None:
        """As `Ctx.notify`."""
        _bridge.waiter().run(self._call.notify, method, _json.write(params))

    def ask(self, method: str, params: Any, *, result: Any = None) -> Any:
        """As `Ctx.ask`."""
        return _request.decoded(_bridge.waiter().run(self._call.ask, method, _json.write(params)), result)

    def attachment(self, document: AttachmentRef) -> bytes:
        """As `Ctx.attachment`."""
        fetched: bytes = _bridge.waiter().run(self._call.attachment, document._named())
        return fetched

    def using(self, bus: SyncClient, *, token: str | None = None) -> SyncClient:
        """As `Ctx.using`."""
        return bus._view(**self._defaults(None if token is None else bus._there().tokens(token)))
