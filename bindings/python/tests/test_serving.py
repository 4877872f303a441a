"""Services that are started, checked, filled and ended: each test has one of its own."""

import asyncio
import base64
import contextlib
import json
import signal
import subprocess
import sys
import textwrap
import threading
import typing

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

import pytest
import sealwire
from conftest import SOON, opened, run, until


@contextlib.asynccontextmanager
async def served(stage, build, **options):
    """A service with the methods that `build` registers, and a client."""
    service = sealwire.Service(stage.folder / "sealwire.toml", **options)
    build(service)
    async with service:
        async with opened(stage) as bus:
            yield bus, service


def test_policies_are_checked_against_the_code(stage, tmp_path):
    service = sealwire.Service(stage.folder / "sealwire.toml")

    @service.method("site/transfer")
    async def transfer(to: str, amount: int) -> int:
        return amount

    policy = stage.folder / "policies/policy.toml"
    before = policy.read_text()
    try:
        assert service.check() == []
        policy.write_text(
            '[rule.small]\nagents = ["ann"]\nallow = ["site/transfer"]\nwhen.params.amount = { max = 100 }\n'
        )
        service.check()

        async def main():
            async with service, opened(stage) as bus:
                assert await bus.call("site", "site/transfer", to="bob", amount=100) == 100
                for params in [
                    {"to": "bob", "amount": 101},
                    {"to": "bob", "amount": "100"},
                    ["bob", 101],
                    ["bob", 100.0],
                ]:
                    with pytest.raises((sealwire.Denied, sealwire.InvalidParams)):
                        await bus.call("site", "site/transfer", params=params)

        run(main)
        policy.write_text(
            '[rule.small]\nagents = ["ann"]\nallow = ["site/transfer"]\nwhen.params.amuont = { max = 100 }\n'
        )
        with pytest.raises(sealwire.ConfigError, match="amuont"):
            service.check()

        async def never():
            async with service:
                pass

        with pytest.raises(sealwire.ConfigError, match="amuont") as caught:
            asyncio.run(never())
        assert isinstance(caught.value, ValueError) and caught.value.kind == "config" and service.state == "stopped"
    finally:
        policy.write_text(before)
    with pytest.raises(sealwire.ConfigError):
        sealwire.Service(tmp_path / "none.toml").check()


def test_topics(stage):
    async def main():
        service = sealwire.Service(stage.folder / "sealwire.toml")
        news = service.topic("site/news", description="What is new.")
        prices = service.topic("site/prices", keyed=True)
        strict = service.topic("site/strict", room=1, when_full="end")

        async with service, opened(stage) as bus:
            async with bus.subscribe("site", "site/news") as items, bus.subscribe("site", "site/prices") as newest:
                waiting = [asyncio.create_task(anext(items)), asyncio.create_task(anext(newest))]

                async def subscribed():
                    return news.subscribers == prices.subscribers == 1

                await until(subscribed)
                news.publish({"n": 1})
                prices.publish(["lamp", 25], key="lamp")
                assert await asyncio.gather(*waiting) == [{"n": 1}, ["lamp", 25]]
            for wrong in [lambda: news.publish(5), lambda: news.publish({}, key="x"), lambda: prices.publish({})]:
                with pytest.raises(ValueError):
                    wrong()
            assert strict.subscribers == 0
        with pytest.raises(ValueError, match="when_full"):
            service.topic("site/other", when_full="wait")

    run(main)


def test_registrations_that_cannot_work_are_refused_at_once():
    service = sealwire.Service()

    async def method(a: int):
        pass

    async def parts():
        yield 1

    service.method("a/b")(method)
    for register, reason in [
        (lambda: service.method("a/b")(method), "already"),
        (lambda: service.method("rpc.x")(method), "reserved"),
        (lambda: service.method("not a name")(method), "name"),
        (lambda: service.method("a/c", idempotent="soon")(method), "length of time"),
    ]:
        with pytest.raises(ValueError, match=reason):
            register()

    def with_args(*args):
        pass

    def mixed(a, *, b):
        pass

    def untypeable(a: typing.Callable[[], int]):
        pass

    for register, reason in [
        (lambda: service.method("a/c")(parts), "@service.stream"),
        (lambda: service.stream("a/c")(method), "@service.method"),
        (lambda: service.method("a/c")(with_args), "name each parameter"),
        (lambda: service.method("a/c")(mixed), "by name only"),
    ]:
        with pytest.raises(TypeError, match=reason):
            register()


def test_serving_inside_another_program(stage):
    service = sealwire.Service(stage.folder / "sealwire.toml")

    @service.method("site/add")
    async def add(a: float, b: float) -> float:
        return a + b

    begun = []

    @service.method("site/slow")
    async def slow() -> str:
        begun.append(True)
        await asyncio.sleep(1)
        return "finished"

    async def has_begun():
        return bool(begun)

    async def main():
        with pytest.raises(RuntimeError, match="not running"):
            await service.ready()
        serving = asyncio.create_task(service.serve())
        await asyncio.sleep(0)
        await service.ready()
        with pytest.raises(RuntimeError, match="running"):
            await service.serve()
        with pytest.raises(RuntimeError, match="before"):
            service.method("site/late")(add)
        async with opened(stage) as bus:
            under_way = asyncio.create_task(bus.call("site", "site/slow"))
            await until(has_begun)
            serving.cancel()
            assert await under_way == "finished"
            with pytest.raises(asyncio.CancelledError):
                await serving
            with pytest.raises(sealwire.NobodyListens):
                await bus.call("site", "site/add", a=1, b=2)
        assert service.state == "stopped"
        # It can be served again.
        async with service, opened(stage) as bus:
            assert await bus.call("site", "site/add", a=1, b=2) == 3.0

    run(main)


def test_threads_that_never_end_hold_up_only_themselves(stage):
    release, begun = threading.Event(), []

    def build(service):
        @service.method("site/stuck")
        def stuck():
            begun.append(True)
            release.wait(60)

        @service.method("site/add")
        async def add(a: int, b: int) -> int:
            return a + b

        @service.method("site/quick")
        def quick() -> int:
            return 1

    async def main():
        async with served(stage, build, threads=2) as (bus, _):
            stuck = [asyncio.create_task(bus.call("site", "site/stuck", deadline=60)) for _ in range(2)]

            async def all_begun():
                return len(begun) == 2

            await until(all_begun)
            assert await bus.call("site", "site/add", a=1, b=2) == 3
            with pytest.raises(sealwire.Timeout):
                await bus.call("site", "site/quick", deadline=0.5)
            release.set()
            await asyncio.gather(*stuck)
            assert await bus.call("site", "site/quick") == 1

    run(main)


def test_a_service_ends_by_signals(stage):
    program = textwrap.dedent(
        """
        import asyncio, sys, sealwire
        service = sealwire.Service(sys.argv[1])

        @service.method("site/slow")
        async def slow(seconds: float) -> str:
            print("begun", flush=True)
            await asyncio.sleep(seconds)
            return "finished"

        service.run()
        print("left", flush=True)
        """
    )
    start = lambda: subprocess.Popen(
        [sys.executable, "-c", program, str(stage.folder / "sealwire.toml")],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )

    async def main():
        async with opened(stage) as bus:
            for name in ["SIGTERM", "SIGINT"]:
                with start() as process:
                    await bus.wait_for("site", limit=SOON)
                    call = asyncio.create_task(bus.call("site", "site/slow", seconds=1))
                    assert await asyncio.to_thread(process.stdout.readline) == "begun\n"
                    process.send_signal(getattr(signal, name))
                    assert await call == "finished"
                    assert await asyncio.to_thread(process.wait, SOON) == 0
                    assert process.stdout.read() == "left\n"
            # The second signal does not wait.
            with start() as process:
                await bus.wait_for("site", limit=SOON)
                call = asyncio.create_task(bus.call("site", "site/slow", seconds=100, deadline=200))
                assert await asyncio.to_thread(process.stdout.readline) == "begun\n"
                process.send_signal(signal.SIGTERM)
                await asyncio.sleep(0.5)
                assert process.poll() is None
                process.send_signal(signal.SIGTERM)
                assert await asyncio.to_thread(process.wait, SOON) == 1
                call.cancel()
                await asyncio.wait([call])
                assert "a second signal" in process.stderr.read()

    run(main)


def test_keys_that_no_service_shares(stage, tmp_path):
    """A client with an Ed25519 key, and a service with one."""

    def typed(*arguments):
        subprocess.run(stage.command(*arguments), cwd=tmp_path, check=True, stdout=subprocess.DEVNULL, timeout=SOON)

    typed("init", "signed", "--language", "none", "--service", "signed", "--url", stage.url)
    folder = tmp_path / "signed"
    config, file = folder / "sealwire.toml", folder / "eve.creds.json"
    typed("keys", "new-agent", "eve", "--config", config, "--role", "user", "--alg", "eddsa", "--out", file)
    service = sealwire.Service(config)

    @service.method("site/who")
    async def who(ctx: sealwire.Ctx):
        return [ctx.caller.agent, ctx.caller.algorithm]

    @service.stream("site/count")
    def count(to: int):
        yield from range(to)

    async def main():
        async with service:
            async with sealwire.Client(file) as bus:
                receipt = sealwire.Receipt()
                assert await bus.call("signed", "site/who", receipt=receipt) == ["eve", "EdDSA"]
                assert receipt.request and receipt.answer
                async with bus.stream("signed", "site/count", to=100) as parts:
                    assert [part async for part in parts] == list(range(100))
                with pytest.raises(sealwire.Denied):
                    await bus.call("signed", "rpc.explain", params={"method": "site/who", "agent": "eve"})
            # Answers count under the pinned key only.
            creds = json.loads(file.read_text())
            (pinned,) = creds["service_keys"]["signed"]
            other = Ed25519PrivateKey.generate().public_key().public_bytes_raw()
            pinned["x"] = base64.urlsafe_b64encode(other).rstrip(b"=").decode()
            file.write_text(json.dumps(creds))
            async with sealwire.Client(file) as bus:
                with pytest.raises(sealwire.Unverifiable) as caught:
                    await bus.call("signed", "site/who", deadline=2)
                assert caught.value.outcome_unknown

    run(main)
