"""Methods as tools of language models: what the adapters of all frameworks share.

Never runs a call again whose outcome is unknown, and never hands a model more than its bounds allow.
"""

from __future__ import annotations

import asyncio
import collections
import contextlib
import copy
import dataclasses
import hashlib
import logging
import re
import threading
import time
import uuid
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, TypedDict

from . import _errors, _json
from ._client import Client
from ._errors import ApprovalRequired, Busy, DecodeError, Disconnected, Error, InvalidRequest, Quota, RpcError, TooLarge
from ._request import Catalogue, MethodInfo, Seconds
from ._sync import SyncClient

_logger = logging.getLogger("sealwire.tools")

#: The most tools of one list. Models take no more.
MOST_TOOLS = 128
#: The longest description, in characters.
MOST_DESCRIPTION = 4096
#: The largest schema of parameters, in characters of JSON, and its parts: those that it refers to count each time.
MOST_SCHEMA, MOST_PARTS = 16384, 2048
#: How deep a schema may be nested, with what it refers to.
MOST_DEPTH = 64
#: How much of a result a model reads by default, in characters.
MOST_RESULT = 65536
#: Calls of unknown outcome that are remembered, so that nobody repeats them.
MOST_UNKNOWN = 1024
#: The most calls that people have to approve, and whose keys are remembered.
MOST_PENDING = 1024
#: How long a list of tools counts as recent, in seconds.
RECENT_S = 10.0
#: The longest name that all models take.
MOST_NAME = 64

#: Controls of terminals and of the direction of text, and invisible tags.
_UNSEEN = re.compile("[\0-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\U000e0000-\U000e007f]")
#: Names of tools, and of parameters, that all models take.
_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}\Z")
_PARAM = re.compile(r"[A-Za-z0-9_.-]{1,64}\Z")


class Refused(Exception):
    """An error that the model may read and react to."""


@dataclasses.dataclass(frozen=True)
class Answer:
    """What a call has returned."""

    #: For the model.
    text: str
    #: The value, or the text if that had to be cut.
    value: Any


class ToolOptions(TypedDict, total=False):
    """How the methods of services become tools."""

    #: Only these methods; all that the agent may call by default.
    methods: Iterable[str] | None
    #: How long a call may take; 60 s by default.
    deadline: Seconds
    #: How much of a result the model reads, in characters.
    max_result: int


class Tools:
    """The tools of one or more services, and what is known of their calls."""

    def __init__(
        self,
        bus: Client | SyncClient,
        services: str | Iterable[str],
        *,
        methods: Iterable[str] | None = None,
        deadline: Seconds = 60.0,
        max_result: int = MOST_RESULT,
    ) -> None:
        self.bus = bus
        self.services = [services] if isinstance(services, str) else list(dict.fromkeys(services))
        if not self.services:
            raise InvalidRequest("no service is named: give its name, or a list of names")
        if isinstance(methods, str):
            raise InvalidRequest(f"`methods` is a list of names: [{methods!r}]")
        if max_result < 1:
            raise InvalidRequest("`max_result` must be at least 1")
        self.methods = None if methods is None else frozenset(methods)
        self.deadline, self.max_result = deadline, max_result
        self.unknown: collections.OrderedDict[str, BaseException] = collections.OrderedDict()
        #: The idempotency keys of calls that people have to approve.
        self.pending: collections.OrderedDict[str, str] = collections.OrderedDict()
        self.lock = threading.Lock()
        self._asking = asyncio.Lock()
        self._last: tuple[float, list[Tool]] | None = None

    def asynchronous(self) -> Client:
        """The client, for those who await."""
        if isinstance(self.bus, Client):
            return self.bus
        raise TypeError("these tools are of a `SyncClient`, which nobody can await: give a `sealwire.Client`")

    def waiting(self) -> SyncClient:
        """The client, for those who wait."""
        if isinstance(self.bus, SyncClient):
            return self.bus
        raise TypeError("these tools are of a `Client`, which has to be awaited: give a `sealwire.SyncClient`")

    async def listed(self) -> list[Tool]:
        """Asks the services."""
        bus = self.asynchronous()
        return self._made(await asyncio.gather(*(bus.discover(service) for service in self.services)))

    async def recent(self) -> list[Tool]:
        """The same; services are not asked more often than every `RECENT_S`."""
        async with self._asking:
            if self._last is None or time.monotonic() - self._last[0] > RECENT_S:
                self._last = time.monotonic(), await self.listed()
            return self._last[1]

    def listed_waiting(self) -> list[Tool]:
        """As `listed`, with a `SyncClient`."""
        bus = self.waiting()
        return self._made([bus.discover(service) for service in self.services])

    def _made(self, catalogues: Iterable[Catalogue]) -> list[Tool]:
        found = [
            (service, method)
            for service, catalogue in zip(self.services, catalogues)
            for method in catalogue.methods
            if self._is_tool(method)
        ]
        if len(found) > MOST_TOOLS:
            raise TooLarge(
                f"{len(found)} methods are offered, and a model takes {MOST_TOOLS} tools: name those that it needs, "
                "`methods=[…]`"
            )
        made = []
        for name, (service, method) in names(found, len(self.services) > 1).items():
            params, why = parameters(method.params)
            if method.task == "required":
                params, why = None, "it can be called as a task only, and no model waits for one"
            if params is None:
                _logger.warning("%s of %s is no tool: %s", shown(method.name), service, why)
                continue
            origin = f"Method {shown(method.name)} of the service {service}."
            about = shown(method.description or "", MOST_DESCRIPTION) or origin
            made.append(Tool(self, name, about, params, service, method.name, method.is_idempotent))
        return made

    def _is_tool(self, method: MethodInfo) -> bool:
        # No tool call can use a subscription, nor a request that MCP clients make by themselves.
        mcp = method.document.get("x-mcp")
        if method.is_subscription or (isinstance(mcp, dict) and "request" in mcp):
            return False
        return self.methods is None or method.name in self.methods


@dataclasses.dataclass(frozen=True, eq=False)
class Tool:
    """One method."""

    tools: Tools
    #: For models: 1 to 64 of ``A-Z a-z 0-9 _ -``.
    name: str
    description: str
    #: The JSON Schema of an object, without references.
    params: dict[str, Any]
    service: str
    method: str
    is_idempotent: bool

    async def call(self, arguments: Mapping[str, Any], call: str | None = None, run: str | None = None) -> Answer:
        """Calls the method. Raises `Refused` for what the model may read, and every other error as it is.

        `call` is what the framework itself calls this call, unique for all times: if the framework makes it again, an
        idempotent method does not run again, and no other method is called again after an unknown outcome. `run` is
        what the framework runs; other calls may belong to it."""
        bus = self.tools.asynchronous()
        with self._attempt(arguments, call, run) as options:
            return self._answer(await bus.call(self.service, self.method, params=dict(arguments), **options))

    def call_waiting(self, arguments: Mapping[str, Any], call: str | None = None, run: str | None = None) -> Answer:
        """As `call`, with a `SyncClient`."""
        bus = self.tools.waiting()
        with self._attempt(arguments, call, run) as options:
            return self._answer(bus.call(self.service, self.method, params=dict(arguments), **options))

    @contextlib.contextmanager
    def _attempt(self, arguments: Mapping[str, Any], call: str | None, run: str | None) -> Iterator[dict[str, Any]]:
        """Around a call, whose options it gives; makes its errors what a framework takes."""
        known, options = self._begin(arguments, call, run)
        try:
            yield options
            self._settle(arguments, options, None)
        except BaseException as error:
            self._settle(arguments, options, error)
            readable = self._failed(error, known)
            if readable is None:
                raise
            raise Refused(readable) from error

    def _begin(
        self, arguments: Mapping[str, Any], call: str | None, run: str | None
    ) -> tuple[str | None, dict[str, Any]]:
        """By what the call is known if its outcome is not, and its options."""
        options: dict[str, Any] = {"deadline": self.tools.deadline}
        if self.is_idempotent:
            # A model's id of a call is no key: some count from zero in each conversation.
            new = uuid.uuid4().hex if call is None else self._digest(call)
            with self.tools.lock:
                options["idempotency_key"] = self.tools.pending.get(self._meaning(arguments), new)
            if call is not None:
                return None, options
        known = None
        if call is not None:
            known = self._digest(call)
        elif run is not None:
            known = self._digest(run, repr(arguments))
        with self.tools.lock:
            error = None if known is None else self.tools.unknown.get(known)
        if error is not None:
            raise copy.copy(error)
        return known, options

    def _settle(self, arguments: Mapping[str, Any], options: dict[str, Any], error: BaseException | None) -> None:
        """Keeps the key of a call that people have to approve: under another one, what the model calls then would be
        another call, and they would be asked anew. Until it has a result; and if they have denied it, or nobody knows
        what it did, it is still the same call."""
        key = options.get("idempotency_key")
        if key is None:
            return
        meaning, pending = self._meaning(arguments), self.tools.pending
        with self.tools.lock:
            if isinstance(error, ApprovalRequired):
                pending[meaning] = key
                if len(pending) > MOST_PENDING:
                    pending.popitem(last=False)
            elif error is None or not (may_have_run(error) or getattr(error, "approval", None)):
                pending.pop(meaning, None)

    def _meaning(self, arguments: Mapping[str, Any]) -> str:
        return self._digest(repr(sorted(arguments.items())))

    def _digest(self, *parts: str) -> str:
        text = "\0".join((self.service, self.method, *parts))
        return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:43]

    def _answer(self, result: Any) -> Answer:
        value = seen(result)
        text = value if isinstance(value, str) else _json.write(value)
        most = self.tools.max_result
        if len(text) <= most:
            return Answer(text, value)
        text = f"{text[:most]}\n[cut: these are the first {most} of {len(text)} characters]"
        return Answer(text, text)

    def _failed(self, error: BaseException, known: str | None) -> str | None:
        """What the model may read of an error. What it may not read, and may have run, is remembered."""
        readable = told(error)
        if readable is not None:
            return shown(readable, self.tools.max_result)
        if known is not None and may_have_run(error):
            kept = copy.copy(error) if isinstance(error, Error) else _errors.of(_GIVEN_UP)
            with self.tools.lock:
                self.tools.unknown[known] = kept
                if len(self.tools.unknown) > MOST_UNKNOWN:
                    self.tools.unknown.popitem(last=False)
        return None


#: What is raised if a framework repeats a call that was given up: as `_errors.of` takes it.
_GIVEN_UP = ("cancelled", "the call was given up before, and may have run", True, None, None, None, None)


def may_have_run(error: BaseException) -> bool:
    """Whether the call may have run, or has run although nobody can read its result."""
    return not isinstance(error, Error) or error.outcome_unknown or isinstance(error, DecodeError)


def told(error: BaseException) -> str | None:
    """An error in words for the model, if it is certain that nothing was done, or the method itself says what was."""
    if not isinstance(error, Error):
        return None
    # As in `sealwire mcp`: only a copy that somebody else has made of the message could have run.
    if error.outcome_unknown and not isinstance(error, Quota):
        return None
    if isinstance(error, ApprovalRequired):
        needs = ", ".join(f"{need.get('approval')} ({need.get('have')} of {need.get('count')})" for need in error.needs)
        return (
            f"approval required: this call has not run. People have to approve it first: {needs}. The request "
            f"{error.approval} waits for them. Tell your user, and call again with exactly the same arguments once "
            "they have: it then runs once"
        )
    if isinstance(error, RpcError):
        text = error.message if error.code is None else f"{error.message} ({error.code})"
        if error.data is not None and error.is_application:
            text = f"{text}: {_json.write(seen(error.data))}"
        return text if error.retry_after is None else f"{text}: call again in {error.retry_after:g} s"
    # Everything else is for the program: a wrong file, a token that cannot be had, a closed client.
    return str(error) if isinstance(error, (Busy, Disconnected, InvalidRequest, TooLarge)) else None


def arguments_of(text: str) -> dict[str, Any]:
    """The arguments of a call, if the framework passes them as text."""
    try:
        arguments = _json.read(text or "{}")
    except (ValueError, RecursionError):
        arguments = None
    if not isinstance(arguments, dict):
        raise Refused("the arguments are not a JSON object")
    return arguments


def names(methods: Iterable[tuple[str, MethodInfo]], many: bool) -> dict[str, tuple[str, MethodInfo]]:
    """The methods by the names that models use: `tool_name` in crates/gateway/src/catalogue.rs has the rule."""
    by_name: dict[str, list[tuple[str, MethodInfo]]] = {}
    for service, method in methods:
        name = re.sub("[/.]", "_", method.name)
        name = f"{service}__{name}" if many else name
        if len(name) > MOST_NAME:
            name = _with_digest(name, service, method)
        by_name.setdefault(name, []).append((service, method))
    listed = [
        (name if len(alike) == 1 else _with_digest(name, service, method), service, method)
        for name, alike in by_name.items()
        for service, method in alike
    ]
    # Whoever forges the digest of another method has no tool, and neither has that one.
    uses = collections.Counter(name for name, _, _ in listed)
    named = {}
    for name, service, method in listed:
        if uses[name] > 1 or _NAME.match(name) is None:
            _logger.warning("%s of %s is no tool: it has no name of its own", shown(method.name), service)
        else:
            named[name] = service, method
    return named


def _with_digest(name: str, service: str, method: MethodInfo) -> str:
    digest = hashlib.sha256(f"{service} {method.name}".encode("utf-8", "surrogatepass")).hexdigest()[:8]
    return f"{name[: MOST_NAME - 9]}_{digest}"


def shown(text: str, most: int = 200) -> str:
    """Text of a service, without what nobody sees, and cut."""
    text = _UNSEEN.sub("\ufffd", text[: most + 1])
    return text if len(text) <= most else f"{text[: most - 1]}…"


def seen(value: Any) -> Any:
    """A value of a service, without what nobody sees."""
    if isinstance(value, str):
        return _UNSEEN.sub("\ufffd", value)
    if isinstance(value, list):
        return [seen(each) for each in value]
    if isinstance(value, dict):
        return {seen(name): seen(each) for name, each in value.items()}
    return value


def parameters(schema: Any) -> tuple[dict[str, Any] | None, str]:
    """A schema that any framework can walk: an object's, without references. Or None, and why."""
    try:
        found = _Schema(schema).of(schema if isinstance(schema, dict) else {}, (), 0)
    except TooLarge as error:
        return None, str(error)
    found["type"] = "object"
    properties = found.setdefault("properties", {})
    if not isinstance(properties, dict) or not all(map(_PARAM.match, properties)):
        return None, "models do not take the names of its parameters"
    if len(_json.write(found)) > MOST_SCHEMA:
        return None, f"its schema has more than {MOST_SCHEMA} characters"
    return found, ""


#: Keywords whose members are schemas by name, lists of schemas, and schemas. Other arguments are taken as they are.
_NAMED = {"properties", "patternProperties", "dependentSchemas"}
_LISTS = {"anyOf", "oneOf", "allOf", "prefixItems"}
_SINGLE = {"items", "not", "if", "then", "else", "contains", "additionalProperties", "propertyNames"}
_SINGLE |= {"unevaluatedItems", "unevaluatedProperties", "contentSchema"}
#: What only says where something is.
_PLACES = {"$ref", "$dynamicRef", "$defs", "definitions", "$id", "$anchor", "$dynamicAnchor", "$schema"}
#: Of which kind the argument of a keyword must be. Others are left out, since whoever walks the schema relies on it.
_KINDS: dict[str, Any] = {
    **dict.fromkeys(_NAMED, dict),
    **dict.fromkeys((*_LISTS, "enum", "required", "examples"), list),
    **dict.fromkeys(("description", "title", "format", "pattern"), str),
    "type": (str, list),
}


class _Schema:
    """Puts what a schema refers to in its place."""

    def __init__(self, root: Any) -> None:
        self._root = root
        self._parts = 0

    def of(self, schema: Any, within: tuple[str, ...], depth: int) -> dict[str, Any]:
        """One schema; `within` are the references that have led to it."""
        self._parts += 1
        if self._parts > MOST_PARTS or depth > MOST_DEPTH:
            raise TooLarge("its schema is too large, or nested too deep")
        if not isinstance(schema, dict):
            # `false` admits nothing, and what is no schema says nothing.
            return {"not": {}} if schema is False else {}
        made: dict[str, Any] = {}
        reference = schema.get("$ref")
        # One that comes back to itself, or points elsewhere, admits anything: the service looks at the value anyway.
        if isinstance(reference, str) and reference not in within:
            made = self.of(self._target(reference), (*within, reference), depth + 1)
        for keyword, argument in schema.items():
            if keyword in _PLACES or not isinstance(argument, _KINDS.get(keyword, object)):
                continue
            if keyword == "description":
                made[keyword] = shown(str(argument), MOST_DESCRIPTION)
            elif keyword in _NAMED:
                made[keyword] = {seen(name): self.of(each, within, depth + 1) for name, each in argument.items()}
            elif keyword in _LISTS:
                made[keyword] = [self.of(each, within, depth + 1) for each in argument]
            elif keyword in _SINGLE and not isinstance(argument, bool):
                made[keyword] = self.of(argument, within, depth + 1)
            else:
                made[seen(keyword)] = seen(argument)
        return made

    def _target(self, reference: str) -> Any:
        if not reference.startswith("#"):
            return {}
        found = self._root
        for step in reference[1:].split("/")[1:]:
            step = step.replace("~1", "/").replace("~0", "~")
            if isinstance(found, dict):
                found = found.get(step)
            else:
                return {}
        return found
