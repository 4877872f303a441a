"""Loops, threads, forks, signals and ends: what has hurt users of other packages with a core of their own."""

import asyncio
import concurrent.futures
import gc
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
import warnings

import pytest
import sealwire
from conftest import SOON, beginning, opened, run, until
from sealwire import _bridge


def script(stage, text, *, expect=0):
    """Runs a program of its own, and returns what it printed."""
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(text)],
        env={**os.environ, "SEALWIRE_CREDS": str(stage.creds())},
        capture_output=True,
        text=True,
        timeout=2 * SOON,
    )
    assert done.returncode == expect, done.stdout + done.stderr
    assert "Fatal" not in done.stderr and "Traceback" not in done.stderr, done.stderr
    return done.stdout


def test_a_forked_child_gets_an_error_at_once(stage):
    printed = script(
        stage,
        """
        import asyncio, os, sys, time, sealwire

        bus = sealwire.SyncClient()
        assert bus.call("site", "site/add", a=1, b=1) == 2
        child = os.fork()
        if child == 0:
            began, codes = time.monotonic(), 0
            attempts = [
                lambda: bus.call("site", "site/add", a=1, b=1),
                lambda: bus.stats(),
                lambda: sealwire.SyncClient().open(),
                lambda: asyncio.run(sealwire.Client().open()),
                lambda: bus.close(),
            ]
            for attempt in attempts:
                try:
                    attempt()
                    codes = 1
                except sealwire.ForkedError as error:
                    assert isinstance(error, RuntimeError) and "after the fork" in str(error)
            del bus, attempts
            assert time.monotonic() - began < 60
            sys.exit(codes)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        print(bus.call("site", "site/add", a=2, b=2))
        bus.close()
        """,
    )
    assert printed == "4.0\n"


def test_a_child_that_was_forked_before_the_first_use_may_connect(stage):
    printed = script(
        stage,
        """
        import os, sealwire

        child = os.fork()
        with sealwire.SyncClient() as bus:
            assert bus.call("site", "site/add", a=1, b=1) == 2
        if child:
            assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
            print("both")
        """,
    )
    assert printed == "both\n"


def test_two_loops_in_two_threads(stage):
    def work(number):
        async def main():
            async with opened(stage) as bus:
                for n in range(50):
                    assert await bus.call("site", "site/add", a=n, b=number) == n + number
                return number

        return run(main)

    with concurrent.futures.ThreadPoolExecutor(3) as threads:
        assert list(threads.map(work, range(3))) == [0, 1, 2]


def test_a_client_belongs_to_its_loop(stage):
    async def main():
        async with opened(stage) as bus:

            def elsewhere():
                async def call():
                    await bus.call("site", "site/nothing")

                with pytest.raises(RuntimeError, match="another event loop"):
                    asyncio.run(call())

            await asyncio.to_thread(elsewhere)
            with pytest.raises(RuntimeError, match="open already"):
                await bus.open()

    run(main)


def test_a_loop_that_is_closed_with_calls_under_way(stage):
    loop = asyncio.new_event_loop()

    async def begin():
        bus = await sealwire.Client(stage.creds()).open()
        call = asyncio.create_task(bus.call("site", "site/sleep", params=[1_000]))
        await asyncio.sleep(0.2)
        return bus, call

    bus, call = loop.run_until_complete(begin())
    mailbox = bus._bridge.mailbox
    loop.close()
    # The answer comes while there is no loop; then the loop is gone.
    deadline = time.monotonic() + SOON
    while mailbox.under_way():
        assert time.monotonic() < deadline
        time.sleep(0.05)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        # Nobody will ever finish the task, which asyncio would log.
        call._log_destroy_pending = False
        del bus, call, loop, begin
        gc.collect()

    async def main():
        async with opened(stage) as bus:
            assert await bus.call("site", "site/add", a=1, b=1) == 2

    run(main)


def test_the_end_of_a_loop_gives_up_what_is_under_way(stage):
    loop = asyncio.new_event_loop()
    bridge = loop.run_until_complete(_bridge_of())
    mailbox = bridge.mailbox
    sealwire_connection = loop.run_until_complete(_opened(stage))
    number, future = bridge.begin(sealwire_connection._connection.call, "liar", "liar/silence", "null", _options())
    assert mailbox.under_way() == 1
    mailbox.close()
    assert mailbox.under_way() == 0
    with pytest.raises(sealwire.Closed):
        bridge.begin(sealwire_connection._connection.call, "liar", "liar/silence", "null", _options())
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        future.cancel()
        del sealwire_connection
        gc.collect()
    loop.close()


async def _bridge_of():
    return _bridge.bridge()


async def _opened(stage):
    return await sealwire.Client(stage.creds()).open()


def _options():
    from sealwire import _request

    return _request.PLAIN


def test_calls_that_nobody_awaits_are_not_sent_or_given_up(stage):
    async def main():
        async with opened(stage) as bus:
            call = bus.call("site", "site/note", params=["never"])
            with pytest.warns(RuntimeWarning, match="never awaited"):
                del call
                gc.collect()
            before = await bus.call("site", "site/cancelled")
            begun = await beginning(bus)
            running = bus.call("site", "site/sleep", params=[60_000], deadline=90)
            future = running.send(None)
            assert future is not None
            await until(begun)
            running.close()

            async def cancelled():
                return await bus.call("site", "site/cancelled") == before + 1

            await until(cancelled)
            assert "never" not in await bus.call("site", "site/notes")

    run(main)


def test_an_unclosed_client_is_reported(stage):
    async def main():
        bus = await sealwire.Client(stage.creds()).open()
        with pytest.warns(ResourceWarning, match="unclosed"):
            del bus
            gc.collect()

    run(main)


def run_in(loop, main):
    """What `asyncio.Runner` does, which Python 3.10 does not have."""
    try:
        loop.run_until_complete(asyncio.wait_for(main(), 3 * SOON))
        loop.run_until_complete(loop.shutdown_asyncgens())
    finally:
        loop.close()


def test_uvloop(stage):
    import uvloop

    async def main():
        assert type(asyncio.get_running_loop()).__module__.startswith("uvloop")
        async with opened(stage) as bus:
            sums = await asyncio.gather(*(bus.call("site", "site/add", a=n, b=n) for n in range(100)))
            assert sums == [2 * n for n in range(100)]
            async with bus.stream("site", "site/count", params=[100]) as parts:
                assert [part async for part in parts] == list(range(1, 101))

    run_in(uvloop.new_event_loop(), main)


class WatchesNothing(asyncio.SelectorEventLoop):
    """As the default loop of Windows, which can watch no file."""

    def add_reader(self, fd, callback, *args):
        if callback.__name__ == "_drain":
            raise NotImplementedError
        return super().add_reader(fd, callback, *args)


def test_a_loop_that_can_watch_no_file(stage):
    async def main():
        async with opened(stage) as bus:
            sums = await asyncio.gather(*(bus.call("site", "site/add", a=n, b=n) for n in range(100)))
            assert sums == [2 * n for n in range(100)]

    run_in(WatchesNothing(), main)

    deadline = time.monotonic() + SOON
    while any(thread.name == "sealwire-mailbox" for thread in threading.enumerate()):
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_ctrl_c_ends_a_waiting_call(stage):
    with sealwire.SyncClient(stage.creds()) as bus:
        before, begun = bus.call("site", "site/cancelled"), bus.call("site", "site/begun")

        def interrupt():
            with sealwire.SyncClient(stage.creds()) as other:
                until_then = time.monotonic() + SOON
                while other.call("site", "site/begun") == begun and time.monotonic() < until_then:
                    time.sleep(0.05)
            os.kill(os.getpid(), signal.SIGINT)

        thread = threading.Thread(target=interrupt)
        thread.start()
        with pytest.raises(KeyboardInterrupt):
            bus.call("site", "site/sleep", params=[300_000], deadline=400)
        thread.join()
        deadline = time.monotonic() + SOON
        while bus.call("site", "site/cancelled") != before + 1:
            assert time.monotonic() < deadline
            time.sleep(0.05)


def test_other_threads_run_while_one_waits(stage):
    counted = 0

    def count():
        nonlocal counted
        while not done.is_set():
            counted += 1
            time.sleep(0.001)

    done = threading.Event()
    thread = threading.Thread(target=count)
    with sealwire.SyncClient(stage.creds()) as bus:
        thread.start()
        bus.call("site", "site/sleep", params=[500])
        done.set()
        thread.join()
        assert counted > 50


def test_a_thread_that_holds_the_interpreter_only_delays(stage):
    """A tokio thread that waited for the interpreter would keep the connection from being read."""

    def hold():
        deadline = time.monotonic() + 1.5
        while time.monotonic() < deadline:
            sum(range(1000))

    async def main():
        async with opened(stage) as bus:
            held = asyncio.create_task(asyncio.to_thread(hold))
            for n in range(20):
                assert await bus.call("site", "site/add", a=n, b=1, deadline=SOON) == n + 1
            await held

    run(main)


def test_many_threads_share_a_client(stage):
    with sealwire.SyncClient(stage.creds()) as bus, concurrent.futures.ThreadPoolExecutor(16) as threads:
        sums = list(threads.map(lambda n: bus.call("site", "site/add", a=n, b=n), range(300)))
        assert sums == [2 * n for n in range(300)]


@pytest.mark.parametrize("ending", ["pass", "sys.exit(0)", "raise SystemExit"])
def test_the_interpreter_ends_with_calls_under_way(stage, ending):
    began = time.monotonic()
    script(
        stage,
        f"""
        import asyncio, sys, threading, time, sealwire

        bus = sealwire.SyncClient().open()

        def call():
            try:
                bus.call("liar", "liar/silence", deadline=500)
            except sealwire.Closed as error:
                assert error.outcome_unknown

        for _ in range(4):
            threading.Thread(target=call, daemon=True).start()

        async def main():
            other = await sealwire.Client().open()
            for _ in range(4):
                asyncio.create_task(other.call("liar", "liar/silence", deadline=500))
            await asyncio.sleep(0.3)

        asyncio.run(main())
        {ending}
        """,
    )
    # Not at the calls' deadline.
    assert time.monotonic() - began < 100


def test_memory_does_not_grow_with_calls(stage):
    """`wheel/measure.py` makes a million; here it is shown that a call leaves nothing behind."""
    import tracemalloc

    async def main():
        async with opened(stage) as bus:

            async def calls(number):
                for _ in range(number // 50):
                    await asyncio.gather(*(bus.call("site", "site/add", a=1, b=1) for _ in range(50)))

            # Fewer than an agent may make at once, all in all: a released client makes them within a second.
            await calls(300)
            gc.collect()
            tracemalloc.start()
            try:
                first, _ = tracemalloc.get_traced_memory()
                await calls(1_200)
                gc.collect()
                last, _ = tracemalloc.get_traced_memory()
            finally:
                tracemalloc.stop()
            assert last - first < 60_000, (first, last)
            assert not bus._bridge._pending and bus._bridge.mailbox.under_way() == 0

    run(main)


def test_lines_of_the_library_reach_logging(stage, caplog):
    import logging

    with caplog.at_level(logging.DEBUG, logger="sealwire"):

        async def main():
            async with opened(stage) as bus:
                await bus.call("site", "site/nothing")

                async def logged():
                    return any("call finished" in record.message for record in caplog.records)

                await until(logged)

        run(main)
    assert {record.name.split(".")[0] for record in caplog.records if "call finished" in record.message} == {"sealwire"}
