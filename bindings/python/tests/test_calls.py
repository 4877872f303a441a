"""Calls, notifications and batches, of both clients."""

import asyncio
import dataclasses
import enum
import typing

import pytest
import sealwire
from conftest import beginning, opened, run, until


def test_a_call_by_name_and_by_position(stage):
    async def main():
        async with opened(stage) as bus:
            assert await bus.call("site", "site/add", a=2, b=3) == 5
            assert await bus.call("site", "site/add", params=[2, 0.5]) == 2.5
            assert await bus.call("site", "site/add", params={"a": 1, "b": 1}, result=float) == 2.0
            assert await bus.call("site", "site/nothing") is None

    run(main)
    with sealwire.SyncClient(stage.creds()) as bus:
        assert bus.call("site", "site/add", a=2, b=3) == 5
        assert bus.call("site", "site/add", params=[2, 0.5], result=float) == 2.5


def test_values_arrive_as_they_were_sent(stage):
    values = [
        None,
        True,
        0,
        -1,
        2**53,
        2**63,
        1.5,
        1e308,
        "",
        'Zürich \U0001f600 \u2028 "\\',
        [],
        {},
        {"a": [{"b": None}]},
    ]

    async def main():
        async with opened(stage) as bus:
            for value in values:
                echoed = await bus.call("site", "site/echo", params=[value])
                assert echoed == value and type(echoed) is type(value)

    run(main)


class Colour(enum.Enum):
    RED = "red"


@dataclasses.dataclass
class Point:
    x: int
    y: int = 0
    colour: "Colour | None" = None


class Named(typing.TypedDict):
    name: str


def test_a_result_is_decoded_as_its_type(stage):
    import pydantic

    class Model(pydantic.BaseModel):
        x: int
        tags: list[str] = []

    async def main():
        async with opened(stage) as bus:

            async def echo(value, kind):
                return await bus.call("site", "site/echo", params=[value], result=kind)

            assert await echo({"x": 1, "colour": "red"}, Point) == Point(1, 0, Colour.RED)
            assert await echo(Point(1, 2, Colour.RED), Point) == Point(1, 2, Colour.RED)
            assert await echo([{"name": "a"}], list[Named]) == [{"name": "a"}]
            assert await echo(Model(x=1, tags=["a"]), Model) == Model(x=1, tags=["a"])
            assert await echo(None, int | None) is None
            for value, kind in [
                ("1", int),
                (1.0, int),
                (True, int),
                ({"y": 1}, Point),
                ({}, Model),
                (1, str),
                ([1], list[str]),
            ]:
                with pytest.raises(sealwire.DecodeError) as caught:
                    await echo(value, kind)
                assert isinstance(caught.value, ValueError) and not caught.value.outcome_unknown

    run(main)


def test_what_is_no_json_is_refused_before_anything_is_sent(stage):
    async def main():
        async with opened(stage) as bus:
            for value in [float("nan"), float("inf"), b"bytes", object(), {"a": {1, (2,)}.__iter__()}]:
                with pytest.raises(sealwire.InvalidRequest):
                    await bus.call("site", "site/note", params=[value])
            with pytest.raises((sealwire.InvalidRequest, UnicodeEncodeError)):
                await bus.call("site", "site/note", params=["\ud800"])
            with pytest.raises(sealwire.InvalidRequest, match="given twice"):
                await bus.call("site", "site/note", params=["x"], text="y")
            assert await bus.call("site", "site/notes") == []

    run(main)


def test_a_notification_arrives(stage):
    async def main():
        async with opened(stage) as bus:
            await bus.notify("site", "site/note", params=["from asyncio"])

            async def arrived():
                return "from asyncio" in await bus.call("site", "site/notes")

            await until(arrived)

    run(main)
    with sealwire.SyncClient(stage.creds()) as bus:
        bus.notify("site", "site/note", params=["from a thread"])


def test_a_batch_answers_each_of_its_calls(stage):
    def fill(batch):
        calls = (
            batch.call("site/add", a=1, b=2, result=float),
            batch.call("secret/open"),
            batch.call("site/echo", params=["x"], result=int),
        )
        batch.notify("site/note", params=["batched"])
        return calls

    def check(calls):
        added, denied, other = calls
        assert added.result() == 3.0
        with pytest.raises(sealwire.Denied):
            denied.result()
        with pytest.raises(sealwire.DecodeError):
            other.result()

    async def main():
        async with opened(stage) as bus:
            batch = bus.batch("site")
            calls = fill(batch)
            with pytest.raises(sealwire.InvalidRequest, match="not sent"):
                calls[0].result()
            assert len(batch) == 4 and await batch.send() == list(calls)
            check(calls)
            with pytest.raises(sealwire.InvalidRequest, match="1 to 50"):
                await bus.batch("site").send()

    run(main)
    with sealwire.SyncClient(stage.creds()) as bus:
        batch = bus.batch("site")
        calls = fill(batch)
        batch.send()
        check(calls)


def test_an_idempotency_key_runs_a_call_once(stage):
    async def main():
        async with opened(stage) as bus:
            first = [await bus.call("site", "site/pay", params=[1], idempotency_key="k1") for _ in range(3)]
            assert len(set(first)) == 1
            assert await bus.call("site", "site/pay", params=[1], idempotency_key="k2", idempotent=True) == first[0] + 1
            with pytest.raises(sealwire.Conflict) as caught:
                await bus.call("site", "site/pay", params=[2], idempotency_key="k1")
            assert (caught.value.idempotency, caught.value.outcome_unknown) == ("other_params", False)
            assert (await bus.call("site", "site/who", idempotency_key="seen"))[3] == "seen"

    run(main)


def test_a_cancelled_task_cancels_the_call_at_the_service(stage):
    async def main():
        async with opened(stage) as bus:
            before = await bus.call("site", "site/cancelled")
            begun = await beginning(bus)
            task = asyncio.create_task(bus.call("site", "site/sleep", params=[60_000], deadline=100))
            await until(begun)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            # On a busy machine, it may not have begun when it is given up.
            attempts = 0
            for seconds in [0.3, 3, 20]:
                attempts += 1
                begun = await beginning(bus)
                with pytest.raises(asyncio.TimeoutError):
                    await asyncio.wait_for(bus.call("site", "site/sleep", params=[60_000], deadline=100), seconds)
                if await begun():
                    break
            begun = await beginning(bus)
            kept = asyncio.create_task(bus.call("site", "site/sleep", params=[1_000], detached=True))
            await until(begun)
            kept.cancel()

            async def both():
                cancelled = await bus.call("site", "site/cancelled") - before
                return 2 <= cancelled <= 1 + attempts

            await until(both)
            # Longer than the one that is kept takes.
            await asyncio.sleep(1.5)
            assert await both()

    run(main)


def test_a_receipt_has_the_proofs(stage):
    async def main():
        async with opened(stage) as bus:
            receipt = sealwire.Receipt()
            assert (receipt.message_id, receipt.request, receipt.answer) == (None, None, None)
            await bus.call("site", "site/nothing", receipt=receipt)
            assert receipt.message_id and receipt.message_id in repr(receipt)
            assert receipt.request.count(".") == 2 and receipt.answer.count(".") == 2
            other = sealwire.Receipt()
            with pytest.raises(sealwire.RpcError) as caught:
                await bus.call("site", "site/boom", receipt=other)
            assert caught.value.message_id == other.message_id != receipt.message_id

    run(main)


def test_calls_on_behalf_of_somebody_are_made_with_that_token(stage):
    token = (stage.folder / "alice.jwt").read_text()

    async def main():
        async with opened(stage) as bus:
            for_alice = bus.acting_for(token)
            # The stage's policy says nothing of delegated calls, so they are denied.
            with pytest.raises(sealwire.Denied):
                await for_alice.call("site", "site/who")
            assert (await bus.call("site", "site/who"))[:3] == ["ann", "ann", False]
            with pytest.raises(sealwire.TokenError):
                await bus.acting_for("no token").call("site", "site/who")

    run(main)


def test_discovery_lists_what_the_policy_allows(stage):
    async def main():
        async with opened(stage) as bus:
            catalogue = await bus.discover("site")
            methods = {method.name: method for method in catalogue.methods}
            assert catalogue.title == "test/site" and "secret/open" not in methods
            assert methods["site/count"].is_stream and methods["site/ticks"].is_subscription
            assert methods["site/pay"].is_idempotent and not methods["site/add"].is_idempotent

    run(main)
    with sealwire.SyncClient(stage.creds()) as bus:
        assert bus.discover("site").title == "test/site"


def test_waiting_for_a_service(stage):
    async def main():
        async with opened(stage) as bus:
            await bus.wait_for("site")
            with pytest.raises(sealwire.NobodyListens):
                await bus.wait_for("nobody", limit=0.3)

    run(main)


def test_many_calls_at_once(stage):
    async def main():
        async with opened(stage) as bus:
            sums = await asyncio.gather(*(bus.call("site", "site/add", a=n, b=n) for n in range(500)))
            assert sums == [2 * n for n in range(500)]
            assert bus.is_connected and bus.stats().pending == 0

    run(main)
