"""Streams, subscriptions, progress, questions and attachments, of both clients."""

import asyncio
import gc
import os

import pytest
import sealwire
from conftest import SOON, opened, run, until


def test_parts_in_order_and_then_the_result(stage):
    async def main():
        async with opened(stage) as bus:
            async with bus.stream("site", "site/count", params=[1_000], item=int) as parts:
                assert parts.message_id is None or isinstance(parts.message_id, str)
                assert [part async for part in parts] == list(range(1, 1_001))
                assert await parts.result() is None and parts.message_id
            async with bus.stream("site", "site/job", params=[3]) as parts:
                assert [part async for part in parts] == ["part 1", "part 2", "part 3"]
                assert await parts.result(dict[str, int]) == {"steps": 3}
            # Without parts, there is only the result. Parts that nobody takes are skipped.
            assert await bus.stream("site", "site/add", a=1, b=2).result(float) == 3.0
            assert await bus.stream("site", "site/job", params=[2]).result() == {"steps": 2}
            # A method may be called like any other.
            assert await bus.call("site", "site/count", params=[3]) == [1, 2, 3]

    run(main)
    with sealwire.SyncClient(stage.creds()) as bus:
        with bus.stream("site", "site/count", params=[1_000], item=int) as parts:
            assert list(parts) == list(range(1, 1_001))
            assert parts.result() is None
        assert bus.stream("site", "site/job", params=[2]).result() == {"steps": 2}


def test_progress_and_notifications_come_in_order_among_the_parts(stage):
    seen = []

    async def main():
        async with opened(stage) as bus:

            async def progress(told):
                seen.append((told.done, told.total, told.message))

            options = {"on_progress": progress, "on_notification": lambda note: seen.append((note.method, note.params))}
            async with bus.stream("site", "site/job", params=[2], **options) as parts:
                async for part in parts:
                    seen.append(part)
            steps = [("site/step", {"step": 1}), "part 1", ("site/step", {"step": 2}), "part 2"]
            assert [each for each in seen if each in steps] == steps
            assert (2.0, 2.0, "working") in seen
            seen.clear()
            assert await bus.call("site", "site/job", params=[2], **options) == {"steps": 2}
            assert ("site/step", {"step": 2}) in seen and (2.0, 2.0, "working") in seen

    run(main)
    with sealwire.SyncClient(stage.creds()) as bus:
        seen.clear()
        bus.call("site", "site/job", params=[2], on_progress=seen.append)
        assert seen[-1] == sealwire.Progress(2.0, 2.0, "working")


def test_questions_are_answered_or_refused(stage):
    async def main():
        async with opened(stage) as bus:

            async def confirm(question):
                assert question.method == "user/confirm"
                await asyncio.sleep(0)
                return {"yes": question.params["question"]}

            def refuse(_):
                raise sealwire.RpcError(42, "I do not say")

            def fail(_):
                raise KeyError("a secret of the caller")

            ask = lambda handler: bus.call("site", "site/ask", params=["really?"], on_ask=handler)
            assert await ask(confirm) == {"answer": {"yes": "really?"}}
            assert await ask(lambda question: True) == {"answer": True}
            assert "I do not say (42)" in (await ask(refuse))["error"]
            failed = (await ask(fail))["error"]
            assert "-32603" in failed and "secret" not in failed
            unwritable = (await ask(lambda _: object()))["error"]
            assert "-32603" in unwritable
            # Without a handler, nothing is given.
            assert "-32601" in (await bus.stream("site", "site/ask", params=["really?"]).result())["error"]
            assert "takes no frames" in (await bus.call("site", "site/ask", params=["really?"]))["error"]

    run(main)
    with sealwire.SyncClient(stage.creds()) as bus:
        assert bus.call("site", "site/ask", params=["x"], on_ask=lambda question: 5) == {"answer": 5}


def test_a_stream_that_fails(stage):
    async def main():
        async with opened(stage) as bus:
            async with bus.stream("site", "site/breaks") as parts:
                assert [await anext(parts), await anext(parts)] == [1, 2]
                with pytest.raises(sealwire.RpcError) as caught:
                    await anext(parts)
                assert (caught.value.code, caught.value.data) == (7, {"after": 2})
            with pytest.raises(sealwire.Denied):
                async for _ in bus.stream("site", "secret/open"):
                    pass
            with pytest.raises(sealwire.InvalidRequest, match="window"):
                await anext(bus.stream("site", "site/count", params=[1], window=5_000))
            async with bus.stream("site", "site/count", params=[2], item=str) as parts:
                with pytest.raises(sealwire.DecodeError) as caught:
                    await anext(parts)
                assert caught.value.outcome_unknown

    run(main)


def test_leaving_early_cancels_and_waits(stage):
    async def main():
        async with opened(stage) as bus:
            async with bus.stream("site", "site/slowly", params=[100_000, 5], deadline=90) as parts:
                assert await anext(parts) == 1
            with pytest.raises(sealwire.Closed):
                await anext(parts)
            # The same with parts that have arrived and were not taken.
            async with bus.stream("site", "site/slowly", params=[100_000, 0], deadline=90) as parts:
                assert await anext(parts) == 1
                await asyncio.sleep(0.2)
                assert await anext(parts) == 2
            with pytest.raises(sealwire.Closed):
                await anext(parts)
            parts = bus.stream("site", "site/slowly", params=[100_000, 5], deadline=90)
            assert await anext(parts) == 1
            assert bus.stats().streams == 1
            assert await parts.cancel() is True
            # One that is only dropped is cancelled, too, even while somebody waits for the next part.
            parts = bus.stream("site", "site/slowly", params=[10, 60_000], deadline=90)
            with pytest.raises(asyncio.TimeoutError):
                await asyncio.wait_for(anext(parts), 0.2)
            del parts
            gc.collect()

            async def closed():
                return bus.stats().streams == 0

            await until(closed)

    run(main)
    with sealwire.SyncClient(stage.creds()) as bus:
        with bus.stream("site", "site/slowly", params=[100_000, 5], deadline=90) as parts:
            assert next(parts) == 1
        with pytest.raises(sealwire.Closed):
            next(parts)


def test_a_wait_that_is_cancelled_loses_no_part(stage):
    async def main():
        async with opened(stage) as bus:
            async with bus.stream("site", "site/slowly", params=[20, 60], deadline=90) as parts:
                got = []
                while len(got) < 20:
                    try:
                        got.append(await asyncio.wait_for(anext(parts), 0.05))
                    except asyncio.TimeoutError:
                        pass
                assert got == list(range(1, 21))

    run(main)


def test_a_slow_reader_slows_the_method_down(stage):
    async def main():
        async with opened(stage) as bus:
            async with bus.stream("site", "site/count", params=[1_000_000], window=2, deadline=90) as parts:
                assert await anext(parts) == 1
                await asyncio.sleep(0.5)
                # What has come is a window of frames, with 50 parts each, and never the million.
                assert len(parts._ready) < 2_000
                assert bus.stats().frames_taken < 50

    run(main)


def test_subscriptions(stage):
    async def main():
        async with opened(stage) as bus:
            async with bus.subscribe("site", "site/ticks", params=[3]) as ticks:
                assert [tick async for tick in ticks] == [{"tick": 1}, {"tick": 2}, {"tick": 3}]
                assert ticks.missed == 0 and await ticks.result() is None
            async with bus.subscribe("site", "site/forever", item=list[int], lease=5) as ticks:
                assert [await anext(ticks) for _ in range(5)] == [[0], [1], [2], [3], [4]]
            with pytest.raises(sealwire.InvalidRequest, match="lease"):
                await anext(bus.subscribe("site", "site/forever", lease=1))

            async def closed():
                return bus.stats().streams == 0

            await until(closed)

    run(main)
    with sealwire.SyncClient(stage.creds()) as bus:
        with bus.subscribe("site", "site/forever") as ticks:
            assert [next(ticks), next(ticks)] == [[0], [1]]


def test_a_client_may_be_closed_in_the_middle_of_a_stream(stage):
    async def main():
        async with opened(stage) as bus:
            parts = bus.subscribe("site", "site/forever")
            async with parts:
                await anext(parts)
                waiting = asyncio.create_task(_drain(parts))
                await asyncio.sleep(0.1)
                await bus.close()
                with pytest.raises(sealwire.Closed):
                    await asyncio.wait_for(waiting, SOON)

    run(main)


async def _drain(parts):
    async for _ in parts:
        pass


def test_attachments_are_parameters(stage, tmp_path):
    content = os.urandom(300_000)
    path = tmp_path / "document.pdf"
    path.write_bytes(content)
    document = sealwire.Attachment.file("application/pdf", path)
    assert document.size == 300_000 and len(document.sha256) == 43
    assert repr(document) == f"Attachment(sha256='{document.sha256}', size=300000)"

    async def main():
        async with opened(stage) as bus:
            expected = [300_000, "application/pdf", content[0]]
            assert await bus.call("site", "site/store", params=[document]) == expected
            small = sealwire.Attachment.bytes("text/plain", b"abc")
            assert await bus.call("site", "site/store", params=[small]) == [3, "text/plain", 97]
            batch = bus.batch("site")
            with pytest.raises(sealwire.InvalidRequest, match="attachments"):
                batch.call("site/store", params=[small])
            with pytest.raises(sealwire.InvalidRequest, match="attachments"):
                await bus.notify("site", "site/store", params=[small])
            path.write_bytes(content[:1000])
            with pytest.raises(sealwire.InvalidParams):
                await bus.call("site", "site/store", params=[document])

    run(main)
    with sealwire.SyncClient(stage.creds()) as bus:
        assert bus.call("site", "site/store", params=[sealwire.Attachment.bytes("text/plain", b"abc")])[0] == 3
    with pytest.raises(OSError):
        sealwire.Attachment.file("text/plain", tmp_path / "none")
    with pytest.raises(OSError):
        sealwire.Attachment.file("text/plain", tmp_path)
