"""Access tokens from functions of the program: who asks them, how often, and what becomes of their errors."""

import asyncio
import functools
import gc
import json
import secrets
import threading
import time

import jwt

import pytest
import sealwire
from conftest import SOON, opened, run, until
from sealwire import _token


@pytest.fixture
def minted(stage):
    """Tokens of the stage's issuer for `ann`."""
    key = json.loads((stage.folder / "token-key.json").read_text())

    def minted(seconds=600, **claims):
        now = int(time.time())
        known = {"iss": key["iss"], "sub": "ann", "aud": "test/site", "roles": ["worker"], "jti": secrets.token_hex()}
        claims = {**known, "iat": now, "exp": now + seconds, **claims}
        return jwt.encode(claims, jwt.PyJWK(key).key, "EdDSA", {"kid": key["kid"], "typ": "at+jwt"})

    return minted


@pytest.fixture
def creds(stage, tmp_path):
    """Credentials whose own token cannot be had."""
    return stage.changed(tmp_path, token_file="/none")


class Source:
    """A function that returns tokens, and counts."""

    def __init__(self, answer):
        self.answer, self.asked, self.threads = answer, 0, set()

    def __call__(self):
        self.asked += 1
        self.threads.add(threading.current_thread().name)
        return self.answer()

    async def awaited(self):
        return self()


def both(answer):
    """A plain function and a coroutine that return what `answer` does, with their counters."""
    plain, awaited = Source(answer), Source(answer)
    return [(plain, plain), (awaited.awaited, awaited)]


async def gone():
    """Whether no thread waits for questions any more."""
    return not any(thread.name == "sealwire-token" for thread in threading.enumerate())


def test_a_function_is_asked_once_for_many_calls(creds, minted):
    async def main():
        for function, source in both(minted):
            async with sealwire.Client(creds, token=function) as bus:
                sums = await asyncio.gather(*(bus.call("site", "site/add", a=n, b=n) for n in range(50)))
                assert sums == [2 * n for n in range(50)]
                assert source.asked == 1
                listeners = bus._bridge._listeners
            await until(gone)

            async def unlistened(listeners=listeners):
                return not listeners

            del bus
            await until(unlistened)
            is_plain = function is source
            assert source.threads == {"sealwire-token" if is_plain else threading.current_thread().name}

    run(main)
    source = Source(minted)
    with sealwire.SyncClient(creds, token=source) as bus:
        assert [bus.call("site", "site/add", a=n, b=n) for n in range(5)] == [0, 2, 4, 6, 8]
        assert source.asked == 1 and source.threads == {"sealwire-token"}
    # Its roles are those of the call.
    with sealwire.SyncClient(creds, token=functools.partial(minted, roles=[])) as bus, pytest.raises(sealwire.Denied):
        bus.call("site", "site/nothing")
    with sealwire.SyncClient(creds, token=minted()) as bus:
        bus.call("site", "site/nothing")


def test_a_token_is_renewed_before_it_expires(creds, minted):
    async def main():
        for function, source in both(lambda: minted(seconds=5)):
            async with sealwire.Client(creds, token=function) as bus:
                began = time.monotonic()
                while source.asked < 2:
                    await bus.call("site", "site/nothing")
                    assert time.monotonic() - began < SOON
                    await asyncio.sleep(0.1)

    run(main)


def test_a_function_that_fails_fails_the_call_and_is_asked_again(creds, minted, caplog):
    async def main():
        for make in range(2):
            failures = [KeyError("hidden"), SystemExit("hidden")][: 2 - make]

            def answer(failures=failures):
                if failures:
                    raise failures.pop(0)
                return minted()

            function, source = both(answer)[make]
            async with sealwire.Client(creds, token=function) as bus:
                with pytest.raises(sealwire.TokenError, match="the token source has raised KeyError") as caught:
                    await bus.call("site", "site/nothing")
                assert not caught.value.outcome_unknown and "hidden" not in str(caught.value)

                async def works(bus=bus):
                    try:
                        await bus.call("site", "site/nothing")
                    except sealwire.TokenError:
                        return False
                    return True

                # A second passes between two questions.
                await until(works)
                assert source.asked == 3 - make

    run(main)
    assert [record.name for record in caplog.records] == ["sealwire.client"] * 3
    assert "hidden" in caplog.text and "Traceback" in caplog.text


def test_what_is_no_token_is_said(creds, minted):
    async def coroutine():
        return ""

    async def main():
        for wrong, said in [
            (None, "returned NoneType instead of text"),
            (b"bytes", "returned bytes instead of text"),
            ("no token", "something other than an access token"),
            ("x" * 100_000, "something other than an access token"),
            (minted(seconds=-60), "expired 60 s ago|expired 6. s ago"),
        ]:
            for function, _ in both(lambda wrong=wrong: wrong):
                async with sealwire.Client(creds, token=function) as bus:
                    with pytest.raises(sealwire.TokenError, match=said):
                        await bus.call("site", "site/nothing")
        async with sealwire.Client(creds, token=lambda: coroutine()) as bus:
            with pytest.raises(sealwire.TokenError, match="returned coroutine instead of text"):
                await bus.call("site", "site/nothing")

    run(main)
    with pytest.raises(TypeError, match="nobody awaits"):
        sealwire.SyncClient(creds, token=coroutine).open()
    with pytest.raises(TypeError, match="and not int"):
        sealwire.SyncClient(creds, token=5).open()


def test_a_slow_function_holds_up_only_calls_that_need_its_token(stage, creds, minted):
    async def main():
        goes_on = threading.Event()
        source = Source(lambda: goes_on.wait(2 * SOON) and minted())
        async with opened(stage) as other, sealwire.Client(creds, token=source) as bus:
            for _ in range(3):
                with pytest.raises(sealwire.TokenError, match="gave nothing"):
                    await bus.call("site", "site/nothing", deadline=0.5)
                assert await other.call("site", "site/add", a=1, b=1) == 2
            # Nobody waits for it any more, and it is not asked a second time.
            assert source.asked == 1
            waiting = asyncio.create_task(bus.call("site", "site/add", a=2, b=2))
            await asyncio.sleep(0.2)
            goes_on.set()
            assert await waiting == 4

    run(main)


def test_a_coroutine_that_hangs_is_cancelled(creds, minted, monkeypatch):
    monkeypatch.setattr(_token, "_MOST_S", 0.3)

    async def main():
        cancelled = asyncio.Event()

        async def hangs():
            try:
                await asyncio.sleep(10 * SOON)
            finally:
                cancelled.set()

        async with sealwire.Client(creds, token=hangs) as bus:
            with pytest.raises(sealwire.TokenError, match="raised TimeoutError"):
                await bus.call("site", "site/nothing")
            assert cancelled.is_set()

    run(main)


def test_functions_give_the_tokens_of_others(stage, minted):
    async def main():
        async with opened(stage) as bus:
            source = Source(lambda: minted(roles=[]))
            view = bus.acting_for(source)
            for _ in range(2):
                with pytest.raises(sealwire.Denied):
                    await view.call("site", "site/nothing")
            assert source.asked == 1
            await bus.call("site", "site/nothing")
            del view
            # What was raised refers to it.
            gc.collect()
            await until(gone)

    run(main)
    with sealwire.SyncClient(stage.creds()) as bus, pytest.raises(sealwire.Denied):
        bus.acting_for(lambda: minted(roles=[])).call("site", "site/nothing")


def test_a_client_that_cannot_be_opened_leaves_no_thread(stage, creds, minted):
    for options, error in [({"in_flight": -1}, OverflowError), ({"deadline": -1}, ValueError)]:
        with pytest.raises(error):
            sealwire.SyncClient(creds, token=minted, **options).open()
    closed = sealwire.Credentials.load(creds).urls([f"nats://127.0.0.1:{stage.unused_port}"])
    with pytest.raises(sealwire.ConnectError):
        sealwire.SyncClient(closed, token=minted).open()
    run(lambda: until(gone))
