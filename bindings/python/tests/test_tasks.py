"""Calls that outlive their callers, against a service made with the library. A task of `site/work` goes on until its
key is noted."""

import asyncio
import contextlib
import dataclasses
import json
import subprocess
import sys
import textwrap
import uuid

import pytest
import sealwire
from conftest import SOON, opened, run, until

#: Begins a task under this key, says so, and waits for it.
CALLER = textwrap.dedent(
    """
    import asyncio, sys, sealwire

    async def main():
        async with sealwire.Client(sys.argv[1]) as bus:
            task = await bus.detach("site", "site/work", params=["well"], idempotency_key=sys.argv[2])
            print(task.key, flush=True)
            await task.wait()

    asyncio.run(main())
    """
)


@contextlib.contextmanager
def caller(stage, key, agent="ann"):
    """A process whose task has begun."""
    command = [sys.executable, "-c", CALLER, str(stage.creds(agent)), key]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout.readline() == f"{key}\n"
            yield process
        finally:
            process.kill()


async def end(bus, task):
    """Lets a task end."""
    await bus.call("site", "site/note", params=[task.key])


def test_a_task_outlives_a_process_that_is_killed_and_is_found_by_the_next(stage):
    async def main():
        key = f"film {uuid.uuid4()}"
        async with opened(stage) as bus, opened(stage, "bob") as other:
            begun = await bus.call("site", "site/begun")
            with caller(stage, key) as process:
                process.kill()
                assert process.wait(SOON) != 0
                task = bus.task("site", "site/work", key)
                assert (task.service, task.method, task.key) == ("site", "site/work", key) and key in repr(task)

                async def tells():
                    nonlocal status
                    status = await task.status()
                    return status.progress is not None

                status = None
                await until(tells)
                assert (status.state, status.progress) == ("working", sealwire.Progress(0.5, 1.0, "at it"))
                assert status.keep == 3600 and status.limit == status.started + 3600 and status.retry_after > 0
                assert status.ended is status.expires is None and not status.is_cancelling
                with pytest.raises(sealwire.TaskWorking):
                    status.result()
                # Another agent finds nothing, although it knows the key.
                foreign = other.task("site", "site/work", key)
                assert (await foreign.status()).state == (await foreign.cancel()).state == "absent"
                with pytest.raises(sealwire.TaskError) as caught:
                    await foreign.wait()
                error = caught.value
                assert type(error) is sealwire.TaskError and error.state == "absent" and error.kind == "task"
                assert not error.outcome_unknown and not isinstance(error, TimeoutError)

                await end(bus, task)
                assert await task.wait(result=str, timeout=SOON) == "well"
                status = await task.status()
                assert status.state == "completed" and status.result(str) == "well"
                assert status.expires == status.ended + 3600 and status.ended >= status.started
                assert dataclasses.replace(status) == status and "well" not in repr(status)
                # Begun again, it is the same task.
                again = await bus.detach("site", "site/work", params=["well"], idempotency_key=key)
                assert await again.wait() == await bus.call("site", "site/work", params=["well"], idempotency_key=key)
                with pytest.raises(sealwire.Conflict) as caught:
                    await bus.detach("site", "site/work", params=["other"], idempotency_key=key)
                assert caught.value.idempotency == "other_params"
                assert await bus.call("site", "site/begun") == begun + 1

    run(main)


def test_who_stops_waiting_leaves_the_task_alone(stage):
    async def main():
        async with opened(stage) as bus:
            task = await bus.detach("site", "site/work", params=["well"])
            with pytest.raises(sealwire.TaskWorking) as caught:
                await task.wait(timeout=0.3)
            error = caught.value
            assert isinstance(error, TimeoutError) and error.state == "working" and error.outcome_unknown
            waiting = asyncio.create_task(task.wait())

            async def asks():
                return bus.stats().pending > 0

            await until(asks)
            waiting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waiting
            with pytest.raises(asyncio.TimeoutError):
                await asyncio.wait_for(task.wait(), 0.2)
            assert (await task.status()).state == "working"
            await end(bus, task)
            assert await task.wait(result=str) == "well"

    run(main)


def test_a_task_that_is_cancelled(stage):
    async def main():
        async with opened(stage) as bus:
            before = await bus.call("site", "site/cancelled")
            task = await bus.detach("site", "site/work", params=["well"])
            told = await task.cancel()
            assert told.state == "working" and told.is_cancelling
            with pytest.raises(sealwire.TaskError) as caught:
                await task.wait(timeout=SOON)
            assert caught.value.state == "cancelled" and caught.value.outcome_unknown
            assert await bus.call("site", "site/cancelled") == before + 1
            assert (await task.cancel()).state == "cancelled"
            with pytest.raises(sealwire.Conflict) as conflict:
                await bus.call("site", "site/work", params=["well"], idempotency_key=task.key)
            assert conflict.value.idempotency == "cancelled"

    run(main)


def test_what_a_task_comes_to(stage):
    async def main():
        async with opened(stage) as bus:
            tasks = {}
            for how in ("fail", "large", "well"):
                tasks[how] = await bus.detach("site", "site/work", params=[how])
                await end(bus, tasks[how])
            with pytest.raises(sealwire.RpcError) as caught:
                await tasks["fail"].wait()
            error = caught.value
            assert type(error) is sealwire.RpcError and (error.code, error.data) == (7, {"how": "fail"})
            assert (await tasks["fail"].status()).state == "failed" and not error.outcome_unknown
            assert len(await tasks["large"].wait()) == 300_000
            with pytest.raises(sealwire.DecodeError):
                await tasks["well"].wait(result=int)
            # It runs for as long as its caller says, and its outcome is known for as long as the service does.
            short = await bus.detach("site", "site/work", params=["well"], task_limit=1)
            status = await short.status()
            assert status.limit is None or status.limit <= status.started + 2
            with pytest.raises(sealwire.TaskError) as caught:
                await short.wait(timeout=SOON)
            assert caught.value.state == "unknown" and caught.value.outcome_unknown
            brief = await bus.detach("site", "site/brief", params=["well"])
            await end(bus, brief)

            async def forgotten():
                return (await brief.status()).state == "absent"

            await until(forgotten)

    run(main)


def test_what_is_no_task_is_told_at_once(stage):
    async def main():
        async with opened(stage) as bus:
            begun = await bus.call("site", "site/begun")
            modes = {method.name: method.task for method in (await bus.discover("site")).methods}
            assert (modes["site/work"], modes["site/brief"], modes["site/pay"]) == ("optional", "required", None)
            with pytest.raises(sealwire.RpcError) as caught:
                await bus.detach("site", "site/pay", params=[1])
            assert (caught.value.code, caught.value.data) == (-32600, {"task": "forbidden"})
            with pytest.raises(sealwire.RpcError) as caught:
                await bus.call("site", "site/brief", params=["well"])
            assert (caught.value.code, caught.value.data) == (-32600, {"task": "required"})
            for named in [("site", "site/work", ""), ("site", "site/work", "k\n"), ("site", "no such", "k")]:
                with pytest.raises(sealwire.InvalidRequest):
                    bus.task(*named)
            with pytest.raises(sealwire.InvalidRequest):
                await bus.detach("site", "site/work", params=["well"], idempotency_key="")
            with pytest.raises(sealwire.InvalidRequest):
                await bus.detach("site", "site/work", document=sealwire.Attachment.bytes("text/plain", b"x"))
            with pytest.raises(sealwire.InvalidRequest):
                await bus.detach("site", "site/work", params=["well"], task_limit=-1)
            with pytest.raises(ValueError):
                await bus.task("site", "site/work", "k").wait(timeout=-1)
            with pytest.raises(sealwire.Denied):
                await bus.detach("site", "secret/open")
            with pytest.raises(sealwire.Denied):
                await bus.task("site", "secret/open", "k").status()
            with pytest.raises(sealwire.NobodyListens):
                await bus.task("nobody", "some/method", "k", deadline=0.5).status()
            assert await bus.call("site", "site/begun") == begun
        with pytest.raises(sealwire.Closed):
            bus.task("site", "site/work", "k")

    run(main)


def test_a_receipt_is_that_of_the_beginning(stage):
    async def main():
        async with opened(stage) as bus:
            receipt = sealwire.Receipt()
            task = await bus.detach("site", "site/work", params=["well"], receipt=receipt)
            proofs = receipt.message_id, receipt.request, receipt.answer
            assert all(proofs)
            await task.status()
            await end(bus, task)
            await task.wait()
            assert (receipt.message_id, receipt.request, receipt.answer) == proofs

    run(main)


def test_on_behalf_of_somebody_else_it_is_another_task(stage):
    async def main():
        async with opened(stage) as bus:
            task = await bus.detach("site", "site/work", params=["well"])
            # The policy lets nobody act for others: that is all that they learn.
            alice = bus.acting_for((stage.folder / "alice.jwt").read_text().strip())
            with pytest.raises(sealwire.Denied):
                await alice.task("site", "site/work", task.key).status()
            await task.cancel()

    run(main)


def test_threads_have_tasks_as_well(stage):
    with sealwire.SyncClient(stage.creds()) as bus:
        task = bus.detach("site", "site/work", params=["well"])
        found = bus.task("site", "site/work", task.key)
        assert found.status().state == "working" and type(found) is sealwire.SyncTask
        with pytest.raises(sealwire.TaskWorking):
            found.wait(timeout=0.1)
        bus.call("site", "site/note", params=[task.key])
        assert found.wait(result=str, timeout=SOON) == "well" == found.status().result(str)
        other = bus.detach("site", "site/work", params=["well"], idempotency_key=str(uuid.uuid4()))
        assert other.cancel().is_cancelling
        with pytest.raises(sealwire.TaskError) as caught:
            other.wait()
        assert caught.value.state == "cancelled"
        with pytest.raises(sealwire.InvalidRequest):
            bus.task("site", "site/work", "")


def test_the_command_finds_it_too(stage):
    key = str(uuid.uuid4())
    with sealwire.SyncClient(stage.creds()) as bus:
        bus.detach("site", "site/work", params=["well"], idempotency_key=key)
        bus.call("site", "site/note", params=[key])
    command = stage.command("task", "wait", "--creds", stage.creds(), "--json", "site", "site/work", key)
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, timeout=2 * SOON)
    assert (done.returncode, json.loads(done.stdout)) == (0, {"result": "well"})
