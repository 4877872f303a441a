"""Access tokens from a function of the program.

Never calls it twice at a time, never in a thread of the runtime, and never shows what it has raised to anybody but the
log."""

from __future__ import annotations

import asyncio
import inspect
import logging
import threading
from collections.abc import Awaitable, Callable
from typing import Any, Union, cast

from . import _bridge, _errors
from ._core import Mailbox, TokenFunction, TokenQuestion

#: Returns an access token each time that it is called.
TokenSource = Union[Callable[[], str], Callable[[], Awaitable[str]]]

_logger = logging.getLogger("sealwire.client")

#: How long a coroutine may take, in seconds: the runtime waits no longer.
_MOST_S = 10.0
#: How long the thread of a plain function sleeps if nothing wakes it, in seconds.
_NAP_S = 3600.0


def given(token: str | TokenSource, bridge: _bridge.Bridge | None) -> str | TokenFunction:
    """A token, or whom the runtime asks for one; `bridge` is that of the loop, if there is one."""
    if isinstance(token, str):
        return token
    if not callable(token):
        raise TypeError(f"an access token is text, or a function that returns it, and not {type(token).__name__}")
    if not any(map(inspect.iscoroutinefunction, (token, type(token).__call__))):
        mailbox = Mailbox(False)
        function = TokenFunction(mailbox, 0)
        threading.Thread(target=_ask, args=(token, mailbox), name="sealwire-token", daemon=True).start()
        return function
    if bridge is None:
        raise TypeError("nobody awaits the token source of a `SyncClient`: give a plain function")
    return _awaited(cast("Callable[[], Awaitable[Any]]", token), bridge)


def _awaited(source: Callable[[], Awaitable[Any]], bridge: _bridge.Bridge) -> TokenFunction:
    loop = asyncio.get_running_loop()
    tasks: set[asyncio.Task[None]] = set()

    def take(question: TokenQuestion | None) -> None:
        if question is None:
            bridge.unlisten(listener)
            return
        task = loop.create_task(_await(source, question))
        tasks.add(task)
        task.add_done_callback(tasks.discard)

    listener = bridge.listen(take)
    return TokenFunction(bridge.mailbox, listener)


async def _await(source: Callable[[], Awaitable[Any]], question: TokenQuestion) -> None:
    try:
        _give(question, await asyncio.wait_for(source(), _MOST_S))
    except BaseException as error:
        _fail(question, error)
        if not isinstance(error, Exception):
            raise


def _ask(source: Callable[[], Any], mailbox: Mailbox) -> None:
    while True:
        try:
            mailbox.wait(_NAP_S)
        except _errors.Closed:
            # The interpreter ends.
            return
        for _, _, question in mailbox.take():
            if question is None:
                return
            try:
                _give(question, source())
            except BaseException as error:
                _fail(question, error)


def _give(question: TokenQuestion, token: Any) -> None:
    if isinstance(token, str):
        question.give(token)
        return
    if inspect.iscoroutine(token):
        token.close()
    question.fail(f"the token source has returned {type(token).__name__} instead of text")


def _fail(question: TokenQuestion, error: BaseException) -> None:
    if not isinstance(error, asyncio.CancelledError):
        _logger.error("the token source has failed", exc_info=error)
    question.fail(f"the token source has raised {type(error).__name__}")
