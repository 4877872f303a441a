"""Services in Python, called from Python: methods, types, contexts, streams, threads and errors. One service has all
methods."""

import asyncio
import contextlib
import dataclasses
import logging
import threading
import time
import typing

import pydantic

import pytest
import sealwire
from conftest import in_thread, opened, run, until

#: Clients with which handlers make calls: one of the service's loop, and one for threads.
buses = []

#: Each test registers its methods here, and the first one starts the service.
METHODS = []


def methods(build):
    METHODS.append(build)


@pytest.fixture(scope="module", autouse=True)
def service(stage):
    """The service, and a client in its loop."""
    service = sealwire.Service(stage.folder / "sealwire.toml", version="1.2.3", description="A test.")
    for build in METHODS:
        build(service)

    @contextlib.asynccontextmanager
    async def served():
        async with service, sealwire.Client(stage.creds()) as bus:
            buses.append(bus)
            yield service

    with in_thread(served()):
        yield service
    assert service.state == "stopped"


@methods
def build_functions_are_method(service):
    @service.method("site/add")
    async def add(ctx: sealwire.Ctx, a: float, b: float) -> float:
        """Adds.

        Further words.
        """
        assert isinstance(ctx, sealwire.Ctx)
        return a + b

    @service.method("site/greet", description="Greets somebody.", examples=[({"name": "x"}, "hello x")])
    def greet(name: str, greeting: str = "hello", mark: str | None = None) -> str:
        return f"{greeting} {name}{mark or ''} {threading.current_thread() is threading.main_thread()}"

    @service.method("site/named")
    async def named(*, first: int, second: int = 2):
        return [first, second]

    @service.method("site/nothing")
    async def nothing() -> None:
        pass


def test_functions_are_methods(stage, service):
    async def main():
        async with opened(stage) as bus:
            assert service.state == "ready"
            call = lambda method, **options: bus.call("site", f"site/{method}", **options)
            assert await call("add", a=1, b=2) == await call("add", params=[1, 2]) == 3.0
            assert await call("greet", name="you") == "hello you False"
            assert await call("greet", name="you", greeting=None, mark="!") == "hello you! False"
            assert await call("greet", params=["you", "hi"]) == "hi you False"
            assert await call("named", first=1) == [1, 2] and await call("nothing") is None
            methods = {method.name: method for method in (await bus.discover("site")).methods}
            assert (
                methods["site/add"].description == "Adds." and methods["site/greet"].description == "Greets somebody."
            )
            assert methods["site/add"].params["properties"]["a"] == {"type": "number"}
            assert methods["site/greet"].params["required"] == ["name"]
            assert methods["site/add"].result == {"type": "number"}
            assert methods["site/greet"].document["examples"]
            for method, params, text in [
                ("add", {"a": 1}, "parameter `b` is missing"),
                ("add", [1], "parameter `b` is missing"),
                ("add", [1, 2, 3], "3 values, and the method takes 2"),
                ("add", {"a": 1, "b": 2, "c": 3}, "a parameter is unknown: there are `a`, `b`"),
                ("add", {"a": 1, "b": "2"}, "parameter `b` must be a number, and is a string"),
                ("add", {"a": 1, "b": True}, "parameter `b` must be a number, and is true"),
                ("add", {"a": 1, "b": None}, "parameter `b` must be a number, and is null"),
                ("greet", {"name": 5}, "parameter `name` must be a string"),
                ("named", [1], "by name"),
                ("nothing", [1], "1 values, and the method takes 0"),
            ]:
                with pytest.raises(sealwire.InvalidParams) as caught:
                    await call(method, params=params)
                assert text in caught.value.message, caught.value

    run(main)


@dataclasses.dataclass
class Address:
    city: str
    zip: int | None = None


class Order(pydantic.BaseModel):
    product: str
    number: int = pydantic.Field(ge=1)


@methods
def build_types_of_parameters(service):
    @service.method("site/ship")
    async def ship(
        to: Address,
        orders: list[Order],
        kind: typing.Literal["air", "sea"],
        tags: typing.Annotated[list[str], "words"] = [],
    ) -> list[typing.Any]:
        return [to.city, to.zip, [order.number for order in orders], kind, tags]


def test_types_of_parameters(stage):
    async def main():
        async with opened(stage) as bus:
            ship = lambda **changes: bus.call(
                "site",
                "site/ship",
                params={"to": {"city": "Bern"}, "orders": [{"product": "a", "number": 2}], "kind": "air", **changes},
            )
            assert await ship() == ["Bern", None, [2], "air", []]
            assert await ship(to={"city": "Bern", "zip": 3000}, tags=["x"]) == ["Bern", 3000, [2], "air", ["x"]]
            for changes in [
                {"to": {"city": "Bern", "more": 1}},
                {"to": {}},
                {"orders": [{"product": "a", "number": "2"}]},
                {"orders": [{"product": "a", "number": 0}]},
                {"kind": "rail"},
                {"tags": "x"},
            ]:
                with pytest.raises(sealwire.InvalidParams):
                    await ship(**changes)
            found = {method.name: method for method in (await bus.discover("site")).methods}
            params = found["site/ship"].params["properties"]
            assert params["kind"] == {"enum": ["air", "sea"]} and params["tags"]["description"] == "words"
            assert params["to"]["required"] == ["city"]

    run(main)


seen = []


@methods
def build_what_a_handler_knows(service):
    @service.method("site/know")
    async def know(ctx: sealwire.Ctx) -> None:
        seen.append(ctx)
        seen.append((ctx.caller, ctx.permit, ctx.method, ctx.message_id, ctx.idempotency_key, ctx.takes_frames))
        seen.append((ctx.remaining, ctx.is_cancelled, ctx.is_capable_of("x"), ctx.traceparent))
        seen.append((ctx.may_call("site/know"), ctx.may_call("secret/open"), ctx.may_call("nothing/there")))

    @service.method("secret/open")
    async def secret():
        return "the secret"


def test_what_a_handler_knows_of_its_call(stage):
    async def main():
        async with opened(stage) as bus:
            receipt = sealwire.Receipt()
            await bus.call("site", "site/know", idempotency_key="k", receipt=receipt, deadline=5)
            caller, permit, method, message_id, key, frames = seen[1]
            assert (caller.agent, caller.subject, caller.delegated, caller.roles) == ("ann", "ann", False, {"worker"})
            assert (caller.key, caller.algorithm, caller.issuer) == ("ann.k1", "HS256", "https://issuer.test")
            assert caller.expires_at > time.time() and isinstance(caller.claims, dict)
            assert "worker" in permit.rule and permit.revision
            assert (method, message_id, key, frames) == ("site/know", receipt.message_id, "k", False)
            remaining, *rest = seen[2]
            assert 0 < remaining <= 5 and rest == [False, None, None]
            assert seen[3] == (True, False, False)
            assert repr(seen[0]) == "<Ctx of site/know for ann>"
            with pytest.raises(sealwire.Denied):
                await bus.call("site", "secret/open")

    run(main)


@methods
def build_errors_of_handlers(service):
    @service.method("site/own")
    async def own(code: int):
        raise sealwire.RpcError(code, "as we say", {"why": [1]})

    @service.method("site/invalid")
    def invalid():
        raise sealwire.InvalidParams("the account is closed")

    @service.method("site/crash")
    async def crash():
        raise KeyError("a secret of the service")

    @service.method("site/crash-in-thread")
    def crash_in_thread():
        return {}["a secret of the service"]

    @service.method("site/unwritable")
    async def unwritable():
        return object()

    @service.method("site/unfit")
    async def unfit():
        return float("nan")

    @service.method("site/surrogate")
    async def surrogate():
        return "\ud800"

    @service.method("site/upstream")
    async def upstream(ctx: sealwire.Ctx, pass_on: bool):
        try:
            await ctx.using(buses[0]).call("site", "site/own", code=1001)
        except sealwire.RpcError as error:
            if pass_on:
                raise sealwire.RpcError(error.code, error.message) from None
            raise

    @service.method("site/exits")
    async def exits():
        await asyncio.sleep(0)
        raise asyncio.CancelledError


def test_errors_of_handlers(stage, caplog):
    async def main():
        async with opened(stage) as bus:

            async def error(kind, method, **params):
                with pytest.raises(kind) as caught:
                    await bus.call("site", f"site/{method}", **params)
                assert "secret" not in str(caught.value) + str(caught.value.data) and "Traceback" not in str(
                    caught.value
                )
                return caught.value

            own = await error(sealwire.RpcError, "own", code=1001)
            assert (own.code, own.message, own.data, own.is_application) == (1001, "as we say", {"why": [1]}, True)
            # A handler cannot speak for the service's own checks.
            own = await error(sealwire.RpcError, "own", code=-32002)
            assert type(own) is sealwire.RpcError and own.is_application and not own.outcome_unknown
            assert (await error(sealwire.InvalidParams, "invalid")).message == "the account is closed"
            for method in ["crash", "crash-in-thread", "unwritable", "unfit", "surrogate", "exits"]:
                failed = await error(sealwire.RpcError, method)
                assert (failed.code, failed.message, failed.data) == (-32603, "Internal error", None), method
            # What another service said is passed on only if the handler says so.
            kept = await error(sealwire.RpcError, "upstream", pass_on=False)
            assert (kept.code, kept.data) == (-32004, None) and "as we say" not in str(kept)
            assert (await error(sealwire.RpcError, "upstream", pass_on=True)).code == 1001

    with caplog.at_level(logging.ERROR, logger="sealwire.service"):
        run(main)
    logged = [record for record in caplog.records if record.name == "sealwire.service"]
    assert any("a secret of the service" in str(record.exc_info[1]) and "crash" in record.message for record in logged)


closed = []


@methods
def build_streams_and_subscrip(service):
    @service.stream("site/count")
    async def count(to: int):
        try:
            for number in range(1, to + 1):
                yield number
        finally:
            closed.append("count")

    @service.stream("site/count-in-thread")
    def count_in_thread(to: int):
        try:
            yield from range(1, to + 1)
        finally:
            closed.append("thread")

    @service.stream("site/breaks")
    async def breaks():
        yield 1
        raise sealwire.RpcError(7, "broken")

    @service.stream("site/crashes")
    def crashes():
        yield 1
        raise KeyError("a secret")

    @service.subscription("site/ticks")
    async def ticks(to: int):
        for tick in range(to):
            yield {"tick": tick}

    @service.method("site/job")
    async def job(ctx: sealwire.Ctx, steps: int) -> int:
        for step in range(steps):
            ctx.progress(step + 1, steps, "working")
            await ctx.notify("site/step", {"step": step})
            await ctx.send(f"part {step}")
        return steps

    @service.method("site/job-in-thread")
    def job_in_thread(ctx: sealwire.SyncCtx, steps: int) -> int:
        for step in range(steps):
            ctx.progress(step + 1, steps)
            ctx.notify("site/step", {"step": step})
            ctx.send(f"part {step}")
        return steps


def test_streams_and_subscriptions(stage):
    async def main():
        async with opened(stage) as bus:
            for method in ["site/count", "site/count-in-thread"]:
                async with bus.stream("site", method, params=[2_000]) as parts:
                    assert [part async for part in parts] == list(range(1, 2_001))
                    assert await parts.result() is None
                assert await bus.call("site", method, params=[3]) == [1, 2, 3]
                closed.clear()
                async with bus.stream("site", method, params=[10**9], deadline=60, window=2) as parts:
                    assert await anext(parts) == 1

                async def is_closed():
                    return len(closed) == 1

                await until(is_closed)
            async with bus.stream("site", "site/breaks") as parts:
                assert await anext(parts) == 1
                with pytest.raises(sealwire.RpcError, match="broken"):
                    await anext(parts)
            async with bus.stream("site", "site/crashes") as parts:
                assert await anext(parts) == 1
                with pytest.raises(sealwire.RpcError) as caught:
                    await anext(parts)
                assert caught.value.code == -32603 and "secret" not in str(caught.value)
            async with bus.subscribe("site", "site/ticks", params=[3]) as ticks:
                assert [tick async for tick in ticks] == [{"tick": 0}, {"tick": 1}, {"tick": 2}]
            for method in ["site/job", "site/job-in-thread"]:
                notes, progress = [], []
                options = {"on_notification": notes.append, "on_progress": progress.append}
                async with bus.stream("site", method, params=[3], **options) as parts:
                    assert [part async for part in parts] == ["part 0", "part 1", "part 2"]
                    assert await parts.result(int) == 3
                assert notes[-1] == sealwire.Notification("site/step", {"step": 2}) and progress[-1].done == 3.0
                assert await bus.call("site", method, params=[2]) == 2
            methods = {method.name: method for method in (await bus.discover("site")).methods}
            assert methods["site/count"].is_stream and methods["site/ticks"].is_subscription

    run(main)


@methods
def build_questions_and_attach(service):
    @service.method("site/ask")
    async def ask(ctx: sealwire.Ctx, question: str):
        try:
            return await ctx.ask("user/confirm", {"question": question}, result=bool)
        except sealwire.CallerError as error:
            return f"unasked: {error}"
        except sealwire.RpcError as error:
            return ["refused", error.code]
        except sealwire.DecodeError:
            return "no bool"

    @service.method("site/ask-in-thread")
    def ask_in_thread(ctx: sealwire.SyncCtx, question: str):
        return ctx.ask("user/confirm", {"question": question})

    @service.method("site/store")
    async def store(ctx: sealwire.Ctx, document: sealwire.AttachmentRef) -> list[typing.Any]:
        content = await ctx.attachment(document)
        return [len(content), document.size, document.media_type]

    @service.method("site/store-in-thread")
    def store_in_thread(ctx: sealwire.SyncCtx, document: sealwire.AttachmentRef) -> int:
        return len(ctx.attachment(document))


def test_questions_and_attachments(stage):
    async def main():
        async with opened(stage) as bus:
            ask = lambda handler: bus.call("site", "site/ask", params=["?"], on_ask=handler)

            def refuse(_):
                raise sealwire.RpcError(9, "no")

            assert await ask(lambda question: question.params == {"question": "?"}) is True
            assert await ask(refuse) == ["refused", 9] and await ask(lambda _: "yes") == "no bool"
            assert "cannot be asked" in await bus.call("site", "site/ask", params=["?"])
            assert await bus.call("site", "site/ask-in-thread", params=["?"], on_ask=lambda _: 5) == 5
            document = sealwire.Attachment.bytes("text/plain", b"x" * 250_000)
            assert await bus.call("site", "site/store", document=document) == [250_000, 250_000, "text/plain"]
            assert await bus.call("site", "site/store-in-thread", params=[document]) == 250_000
            for wrong in ["text", {"sha256": "x"}, {"sha256": "x", "size": 1, "type": 5}]:
                with pytest.raises(sealwire.InvalidParams):
                    await bus.call("site", "site/store", params=[wrong])

    run(main)


begun, events = [], []


@methods
def build_calls_that_nobody_wa(service):
    @service.method("site/wait")
    async def wait():
        begun.append("wait")
        try:
            await asyncio.sleep(100)
        except asyncio.CancelledError:
            events.append("cancelled")
            raise

    @service.method("site/tidy")
    async def tidy(ctx: sealwire.Ctx):
        begun.append("tidy")
        await ctx.cancelled()
        await asyncio.sleep(0.2)
        events.append("tidied")

    @service.method("site/compute")
    def compute(ctx: sealwire.SyncCtx):
        begun.append("compute")
        while not ctx.is_cancelled:
            time.sleep(0.01)
        events.append("computed")


def test_calls_that_nobody_waits_for(stage):
    async def main():
        async with opened(stage) as bus:
            for method, event in [("wait", "cancelled"), ("tidy", "tidied"), ("compute", "computed")]:
                task = asyncio.create_task(bus.call("site", f"site/{method}", deadline=100))

                async def runs(method=method):
                    return method in begun

                await until(runs)
                task.cancel()

                async def seen():
                    return event in events

                await until(seen)
            # And the deadline, unless it comes before the method has begun.
            for deadline in [0.5, 5, 50]:
                begun.clear()
                events.clear()
                with pytest.raises(sealwire.Timeout):
                    await bus.call("site", "site/wait", deadline=deadline)
                if begun:
                    break

            async def cancelled():
                return events == ["cancelled"]

            await until(cancelled)

    run(main)


paid = []


@methods
def build_idempotent_methods_r(service):
    @service.method("site/pay", idempotent="24h")
    def pay(amount: int) -> int:
        paid.append(amount)
        return len(paid)


def test_idempotent_methods_run_once(stage):
    async def main():
        async with opened(stage) as bus:
            assert [await bus.call("site", "site/pay", amount=5, idempotency_key="a") for _ in range(3)] == [1, 1, 1]
            assert await bus.call("site", "site/pay", amount=5, idempotency_key="b") == 2
            with pytest.raises(sealwire.Conflict):
                await bus.call("site", "site/pay", amount=6, idempotency_key="a")
            found = {method.name: method for method in (await bus.discover("site")).methods}
            assert paid == [5, 5] and found["site/pay"].is_idempotent

    run(main)


@methods
def build_calls_that_are_part_(service):
    @service.method("site/who")
    async def who(ctx: sealwire.Ctx):
        # Whose deadline it is: without one of their own, calls have 10 s.
        return [ctx.caller.agent, ctx.caller.subject, ctx.traceparent, ctx.remaining < 9]

    @service.method("site/through")
    async def through(ctx: sealwire.Ctx, token: str | None = None):
        return await ctx.using(buses[0], token=token).call("site", "site/who")

    @service.method("site/through-thread")
    def through_thread(ctx: sealwire.SyncCtx):
        return ctx.using(buses[1]).call("site", "site/who")


def test_calls_that_are_part_of_a_call(stage):
    async def main():
        async with opened(stage) as bus:
            with sealwire.SyncClient(stage.creds()) as sync_bus:
                buses[1:] = [sync_bus]
                parent = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
                traced = bus._view(trace=(parent, None, None))
                assert (await traced.call("site", "site/who"))[2] == parent
                for method in ["site/through", "site/through-thread"]:
                    assert await traced.call("site", method, deadline=8) == ["ann", "ann", parent, True]
                # On behalf of somebody, both must be allowed, and the stage's policy says nothing of that.
                token = (stage.folder / "alice.jwt").read_text()
                with pytest.raises(sealwire.RpcError) as caught:
                    await bus.call("site", "site/through", token=token)
                assert caught.value.code == -32004

    run(main)


@methods
def build_methods_from_descrip(service):
    async def anything(ctx, params):
        return {"got": params}

    def in_thread(ctx, params):
        return [ctx.caller.agent, params]

    params = [{"name": "to", "type": "string", "optional": False, "description": "whom"}]
    service.add("site/any", anything, description="Takes anything.")
    service.add(
        "site/declared",
        in_thread,
        params=params,
        params_schema={"type": "object", "properties": {"to": {"type": "string"}}},
    )

    async def parts(ctx, params):
        yield params

    service.add("site/parts", parts, answers="stream")


def test_methods_from_descriptions(stage):
    async def main():
        async with opened(stage) as bus:
            for params in [None, [1], {"a": {"b": 1}}]:
                assert await bus.call("site", "site/any", params=params) == {"got": params}
            assert await bus.call("site", "site/declared", to="x") == ["ann", {"to": "x"}]
            assert await bus.call("site", "site/parts", params=[1]) == [[1]]

    run(main)
