"""A server of MCP in the process of a service: each of its tools is a method, under the rules of kind `mcp`.

Never calls a tool whose definition is not the one that was approved, and never lets two calls share a session.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from typing import Any

from . import _core, _json, _method
from ._asgi import dependency
from ._ctx import Ctx
from ._definitions import Definition, Pins, named_params, read, standing
from ._errors import Error, RpcError, ServeError
from ._method import RESULT, Method
from ._places import Places

_logger = logging.getLogger("sealwire.mounts")

#: The error code of a tool that says that it has failed.
_TOOL_ERROR = 1
#: The longest message that is taken from a tool, in characters, and the longest result, in characters of JSON.
_MOST_MESSAGE, _MOST_RESULT = 1_000, 1 << 20
#: How old what the server lists may be when a tool is called, in seconds.
_LISTED_S = 1.0
#: The most pages, entries and characters of a list.
_MOST_PAGES, _MOST_ENTRIES, _MOST_LISTED = 100, 1_000, 8 << 20
#: How long a server may take to start, if that is longer than a call may, in seconds.
_START_S = 60.0
#: How long a tool may go on at the end of the service, in seconds.
_END_S = 10.0
#: After how many turns of the loop without a note there is none left: a session hands one over within a few.
_TURNS = 16

#: What callers of MCP are asked, and what they say that they can take.
_ELICIT, _WHOLE = "elicitation/create", "mcp/result"


class ServerError(RpcError):
    """An error of the server: whatever its code, it has no meaning of the protocol."""


class Mount:
    """A server, and the methods that its tools are."""

    def __init__(
        self, prefix: str, server: Any, pins: Pins, revision: str | None, timeout: float, in_flight: int
    ) -> None:
        if in_flight < 1 or not 0 < timeout <= 3600:
            raise ValueError("`in_flight` must be at least 1, and `timeout` at most 3600 s")
        try:
            fastmcp: Any = importlib.import_module("fastmcp")
            sdk: Any = importlib.import_module("mcp.server.mcpserver")
        except ImportError:
            raise ImportError("this needs fastmcp: pip install 'sealwire[fastmcp]'") from None
        # Anything else would be an address, or a program to start.
        if not isinstance(server, (fastmcp.FastMCP, sdk.MCPServer)):
            raise TypeError("the server must be a `FastMCP` of fastmcp, or an `MCPServer` of mcp")
        self.prefix, self._server, self._pins, self._timeout = prefix, server, pins, timeout
        self._mode = "legacy" if revision is None else revision
        self._make: Callable[..., Any] = fastmcp.Client
        self._client()
        self._places = Places(in_flight)
        self._tasks: set[asyncio.Task[Any]] = set()
        self._listed: dict[str, Definition] = {}
        self._listed_at = float("-inf")
        self._listing: asyncio.Lock | None = None

    def known(self) -> list[Method]:
        """The methods of the approved tools, as far as the file says."""
        return self._methods(self._pins.definitions(self.prefix), set())

    @contextlib.asynccontextmanager
    async def served(self, taken: Iterable[str]) -> AsyncIterator[list[Method]]:
        """Starts the server, and ends it. What stands for all its tools are methods, without those whose names are
        taken."""
        self._listing, self._listed_at = asyncio.Lock(), float("-inf")
        async with contextlib.AsyncExitStack() as stack:
            # Its lifespan lasts as long as one client is there.
            try:
                patience = max(self._timeout, _START_S)
                await asyncio.wait_for(stack.enter_async_context(self._client()), patience)
                listed = await asyncio.wait_for(self._current(), patience)
            except Exception as error:
                raise ServeError(f"the server below `{self.prefix}` could not start: {type(error).__name__}") from error
            for name, definition in listed.items():
                state = definition.fault or standing(self._pins.lock(), self.prefix, definition)
                if state != "approved":
                    _logger.warning("the tool `%s` of `%s` cannot be called: %s", name[:256], self.prefix, state)
            try:
                yield self._methods({**listed, **self._pins.definitions(self.prefix)}, set(map(_in_subject, taken)))
            finally:
                for task in self._tasks:
                    task.cancel()
                if self._tasks:
                    await asyncio.wait(list(self._tasks), timeout=_END_S)

    def _methods(self, definitions: Mapping[str, Definition], taken: set[str]) -> list[Method]:
        methods = []
        for name, definition in definitions.items():
            method = f"{self.prefix}/{name}"
            fault = definition.fault or _core.name_fault(method)
            if fault is None and _in_subject(method) in taken:
                fault = f"`{method}` is taken"
            if fault is not None:
                _logger.warning("the tool `%s` of `%s` is left out: %s", name[:256], self.prefix, fault)
                continue
            taken.add(_in_subject(method))
            # What nobody has approved is shown to nobody.
            is_approved = standing(self._pins.lock(), self.prefix, definition) == "approved"
            methods.append(
                _method.of_values(
                    method,
                    self._handler(name),
                    RESULT,
                    params=named_params(definition.arguments),
                    params_schema=definition.arguments if is_approved else None,
                    result_schema=definition.result if is_approved else None,
                    by_name=True,
                    description=definition.description if is_approved else None,
                    extensions={"x-mcp": definition.handed_on} if is_approved else None,
                    idempotent=None,
                    hidden=not is_approved,
                )
            )
        return methods

    def _handler(self, name: str) -> Callable[[Ctx, Any], Awaitable[Any]]:
        async def handle(ctx: Ctx, params: Any) -> Any:
            try:
                return await asyncio.wait_for(self._answer(ctx, name, params), self._timeout)
            except asyncio.TimeoutError:
                raise dependency(f"no answer within {self._timeout:g} s") from None

        return handle

    async def _answer(self, ctx: Ctx, name: str, params: Any) -> Any:
        if params and not isinstance(params, dict):
            raise RpcError(-32602, "the tool takes its parameters by name")
        agent = ctx.caller.agent
        await self._places.take(agent)
        task = asyncio.get_running_loop().create_task(self._call(ctx, name, params or {}))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        # One that was given up keeps its place until it has ended.
        task.add_done_callback(lambda _: self._places.give(agent))
        try:
            return await asyncio.shield(task)
        finally:
            task.cancel()
            task.add_done_callback(lambda task: task.cancelled() or task.exception())

    async def _call(self, ctx: Ctx, name: str, arguments: dict[str, Any]) -> Any:
        definition = (await self._current()).get(name)
        if definition is None:
            raise dependency("the server has no such tool now")
        state = standing(self._pins.lock(), self.prefix, definition)
        if state != "approved":
            raise dependency("the tool's definition is not approved", {"tool": state})
        if definition.fault is not None:
            raise dependency(definition.fault)
        mismatch = definition.mismatch(definition.arguments, arguments)
        if mismatch is not None:
            raise RpcError(-32602, mismatch)
        caller = {"agent": ctx.caller.agent, "subject": ctx.caller.subject}
        meta = {"dev.sealwire/caller": caller, **({"traceparent": ctx.traceparent} if ctx.traceparent else {})}
        notes = _Notes(ctx)
        try:
            async with self._client(ctx, notes) as client:
                result = await client.call_tool_mcp(name, arguments, progress_handler=notes.progress, meta=meta)
                await notes.settle()
            return _outcome(ctx, definition, result.model_dump(mode="json", by_alias=True, exclude_unset=True))
        except Error:
            raise
        except BaseException as error:
            if isinstance(error, (asyncio.CancelledError, KeyboardInterrupt)):
                raise
            said: Any = getattr(error, "error", None)
            if isinstance(getattr(said, "code", None), int):
                raise ServerError(said.code, str(said.message)[:_MOST_MESSAGE], said.data) from None
            _logger.error("the tool `%s` of `%s` has failed", name, self.prefix, exc_info=error)
            raise dependency(f"it has raised {type(error).__name__}") from None

    async def _current(self) -> dict[str, Definition]:
        """What the server lists, at most a moment old."""
        assert self._listing is not None
        async with self._listing:
            if time.monotonic() - self._listed_at > _LISTED_S:
                try:
                    async with self._client() as client:
                        self._listed = await _list(client, self._listed)
                except Exception as error:
                    _logger.error("the tools of `%s` cannot be listed", self.prefix, exc_info=error)
                    raise dependency("its tools cannot be listed") from None
                self._listed_at = time.monotonic()
            return self._listed

    def _client(self, ctx: Ctx | None = None, notes: _Notes | None = None) -> Any:
        """A session of its own, so that no call sees what another one has left in it."""
        options: dict[str, Any] = {"mode": self._mode, "log_handler": notes.log if notes else _ignore}
        if ctx is not None and ctx.takes_frames and ctx.is_capable_of(_ELICIT) is not False:
            options["elicitation_handler"] = _ask(ctx)
        return self._make(self._server, **options)


def _in_subject(method: str) -> str:
    return method.replace("/", ".")


async def _list(client: Any, before: Mapping[str, Definition]) -> dict[str, Definition]:
    """All tools of a server, by name. What it has said before is not read again."""
    listed: dict[str, Definition] = {}
    known = {each.source: each for each in before.values()}
    cursor, size = None, 0
    for _ in range(_MOST_PAGES):
        page = await client.list_tools_mcp(cursor=cursor, cache_mode="bypass")
        for tool in page.tools:
            text = tool.model_dump_json(by_alias=True, exclude_unset=True)
            size += len(text)
            if size > _MOST_LISTED or len(listed) >= _MOST_ENTRIES:
                raise ValueError("it lists too many tools")
            definition = known.get(text) or read(text)
            if definition.name in listed:
                definition = definition.unusable("the server lists two tools of this name")
            listed[definition.name] = definition
        cursor = page.next_cursor
        if not cursor:
            return listed
    raise ValueError("it lists its tools on too many pages")


def _outcome(ctx: Ctx, definition: Definition, result: dict[str, Any]) -> Any:
    """The result of a tool as the result of a call."""
    content = {"content": result.get("content")}
    if "structuredContent" in result:
        content["structuredContent"] = result["structuredContent"]
    is_whole = ctx.is_capable_of(_WHOLE) is True
    if is_whole:
        content = {name: each for name, each in result.items() if name not in ("isError", "resultType")}
    if result.get("isError"):
        texts = (each.get("text") for each in result.get("content") or [] if isinstance(each, dict))
        text = next((each for each in texts if isinstance(each, str)), "")
        _written(content)
        raise RpcError(_TOOL_ERROR, text[:_MOST_MESSAGE] or "the tool failed", content)
    if definition.result is None:
        return _written(content)
    if "structuredContent" not in result:
        raise RpcError(-32603, "the result of the tool: `structuredContent` is missing")
    mismatch = definition.mismatch(definition.result, result["structuredContent"])
    if mismatch is not None:
        raise RpcError(-32603, f"the result of the tool: {mismatch}")
    return _written(content if is_whole else result["structuredContent"])


def _written(value: Any) -> _json.Text:
    text = _json.write(value)
    if len(text) > _MOST_RESULT:
        raise dependency("its result has more than 1 MiB")
    flaw = _core.json_flaw(text)
    if flaw is not None:
        raise dependency(f"its result {flaw[1]}")
    return _json.Text(text)


async def _ignore(_message: Any) -> None:
    """What a tool says while it is not called is for nobody."""


class _Notes:
    """What a tool says while it runs. The session hands it over in a task of its own, perhaps after the result."""

    def __init__(self, ctx: Ctx) -> None:
        self._ctx = ctx
        self._begun = self._under_way = 0
        self._ended = asyncio.Event()

    async def progress(self, done: float, total: float | None, message: str | None) -> None:
        self._begun += 1
        self._ctx.progress(done, total, message)

    async def log(self, message: Any) -> None:
        self._begun += 1
        self._under_way += 1
        try:
            await self._ctx.notify(
                "notifications/message", message.model_dump(mode="json", by_alias=True, exclude_unset=True)
            )
        finally:
            self._under_way -= 1
            self._ended.set()

    async def settle(self) -> None:
        """Waits until all that was said before the result is on its way."""
        seen = -1
        while seen != self._begun:
            seen = self._begun
            for _ in range(_TURNS):
                await asyncio.sleep(0)
            while self._under_way:
                self._ended.clear()
                await self._ended.wait()


def _ask(ctx: Ctx) -> Callable[..., Awaitable[Any]]:
    """Asks the caller what the tool wants to know. What is no answer is a `cancel`."""

    async def ask(_message: str, _kind: Any, params: Any, _context: Any) -> Any:
        types: Any = importlib.import_module("fastmcp.client.elicitation")
        answer: Any = None
        if getattr(params, "mode", "form") == "form":
            asked = params.model_dump(mode="json", by_alias=True, exclude_unset=True)
            with contextlib.suppress(Error):
                answer = await ctx.ask(_ELICIT, asked)
        if not isinstance(answer, dict) or answer.get("action") not in ("accept", "decline", "cancel"):
            answer = {"action": "cancel"}
        content = answer.get("content") if answer["action"] == "accept" else None
        return types.ElicitResult(action=answer["action"], content=content)

    return ask
