"""What waits for the runtime: futures of an event loop, or a thread.

Never calls into a loop from another thread, unless the loop can watch no file.
"""

from __future__ import annotations

import asyncio
import itertools
import threading
import weakref
from collections.abc import Callable
from typing import Any

from . import _errors
from ._core import Mailbox

#: Begins a piece of work whose result arrives in the mailbox under the number.
Begin = Callable[..., None]

#: How long a thread waits before it looks for signals, such as Ctrl-C.
SLICE_S = 0.1


class Bridge:
    """The results for one event loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._pending: dict[int, asyncio.Future[Any]] = {}
        self._listeners: dict[int, Callable[[Any], None]] = {}
        self._numbers = itertools.count(1)
        self._create_future = loop.create_future
        try:
            self.mailbox = Mailbox(True)
            loop.add_reader(self.mailbox.fileno(), self._drain)
        except (NotImplementedError, OSError):
            # Windows' default loop, for example: a thread tells it, once for as much as there is.
            self.mailbox = Mailbox(False)
            arguments = (weakref.ref(loop), weakref.ref(self), self.mailbox)
            threading.Thread(target=_tell, args=arguments, name="sealwire-mailbox", daemon=True).start()

    async def run(self, begin: Begin, *args: Any) -> Any:
        """Begins a piece of work, and returns its result or raises its error. Cancelling this gives it up."""
        number = next(self._numbers)
        future = self._create_future()
        self._pending[number] = future
        try:
            begin(self.mailbox, number, *args)
            return await future
        except BaseException:
            # Also when nobody awaits this any more, and when the loop is closed.
            if self._pending.pop(number, None) is not None:
                self.mailbox.cancel(number)
            raise

    def begin(self, begin: Begin, *args: Any) -> tuple[int, asyncio.Future[Any]]:
        """The same, as a future that goes on whoever awaits it, and the number to `drop` it by."""
        number = next(self._numbers)
        future = self._create_future()
        self._pending[number] = future
        try:
            begin(self.mailbox, number, *args)
        except BaseException:
            del self._pending[number]
            raise
        return number, future

    def drop(self, number: int) -> None:
        """Gives up what `begin` has begun."""
        future = self._pending.pop(number, None)
        if future is not None:
            future.cancel()
            self.mailbox.cancel(number)

    def listen(self, listener: Callable[[Any], None]) -> int:
        """A number under which the runtime leaves what nobody has asked for."""
        number = next(self._numbers)
        self._listeners[number] = listener
        return number

    def unlisten(self, number: int) -> None:
        """Ends `listen`."""
        self._listeners.pop(number, None)

    def _drain(self) -> None:
        pop = self._pending.pop
        for number, failed, payload in self.mailbox.take():
            future = pop(number, None)
            if future is None:
                listener = self._listeners.get(number)
                if listener is not None:
                    listener(payload)
            elif not future.done():
                if failed:
                    future.set_exception(_errors.of(payload))
                else:
                    future.set_result(payload)


def _tell(loop: Any, bridge: Any, mailbox: Mailbox) -> None:
    while True:
        try:
            arrived = mailbox.wait(SLICE_S)
        except _errors.Closed:
            # The interpreter ends.
            return
        running, to = loop(), bridge()
        if running is None or to is None:
            return
        if arrived:
            taken = threading.Event()

            def drain(to: Bridge = to, taken: threading.Event = taken) -> None:
                to._drain()
                taken.set()

            try:
                running.call_soon_threadsafe(drain)
            except RuntimeError:
                # The loop is closed.
                mailbox.close()
                return
            while not taken.wait(1) and not running.is_closed():
                pass
        elif running.is_closed():
            mailbox.close()
            return
        del running, to


_bridges: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, Bridge] = weakref.WeakKeyDictionary()


def bridge() -> Bridge:
    """The bridge of the running loop."""
    loop = asyncio.get_running_loop()
    found = _bridges.get(loop)
    if found is None:
        found = _bridges[loop] = Bridge(loop)
    return found


class Waiter:
    """The results for one thread without an event loop."""

    def __init__(self) -> None:
        self.mailbox = Mailbox(False)
        self._numbers = itertools.count(1)
        self._arrived: dict[int, tuple[bool, Any]] = {}
        self._expected: set[int] = set()

    def run(self, begin: Begin, *args: Any) -> Any:
        """Begins a piece of work, and returns its result or raises its error. Other threads run meanwhile."""
        number = next(self._numbers)
        begin(self.mailbox, number, *args)
        self._expected.add(number)
        try:
            # The interpreter handles signals between two waits: Ctrl-C ends this at once.
            while number not in self._arrived:
                if self.mailbox.wait(SLICE_S):
                    for each, failed, payload in self.mailbox.take():
                        if each in self._expected:
                            self._arrived[each] = (failed, payload)
            failed, payload = self._arrived.pop(number)
        except BaseException:
            self.mailbox.cancel(number)
            self._arrived.pop(number, None)
            raise
        finally:
            self._expected.discard(number)
        if failed:
            raise _errors.of(payload)
        return payload


_threads = threading.local()


def waiter() -> Waiter:
    """The waiter of this thread."""
    found: Waiter | None = getattr(_threads, "waiter", None)
    if found is None:
        found = _threads.waiter = Waiter()
    return found
