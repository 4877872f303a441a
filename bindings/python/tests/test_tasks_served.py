"""Methods in Python as tasks, at replicas that are processes of their own."""

import asyncio
import contextlib
import pathlib
import signal
import subprocess
import sys
import uuid

import pytest
import sealwire
from conftest import SOON, opened, run, until

#: For how many seconds a replica has a task before it says again that it runs.
LEASE = 5


@pytest.fixture(scope="module", autouse=True)
def shared(stage):
    """Replicas have one store, and are given up soon. One that stops has time."""
    config = stage.folder / "sealwire.toml"
    more = f'guard = "shared"\nanswer_within_ms = 1000\n[limits]\ntask_lease_s = {LEASE}\ndrain_s = 60\n'
    config.write_text(config.read_text() + more)


class Replica:
    """A process that serves."""

    def __init__(self, stage):
        program = pathlib.Path(__file__).with_name("replica_with_tasks.py")
        command = [sys.executable, program, stage.folder / "sealwire.toml", stage.creds("bob")]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        self.said = []

    async def says(self, *lines):
        """Waits until it has said all of these."""
        while not set(lines) <= set(self.said):
            line = await asyncio.wait_for(asyncio.to_thread(self.process.stdout.readline), 2 * SOON)
            assert line, f"it ended: {self.said}"
            self.said.append(line.strip())

    async def ends(self):
        """What it says until it ends, after SIGTERM."""
        rest = await asyncio.to_thread(self.process.stdout.read)
        self.said += rest.splitlines()
        return await asyncio.to_thread(self.process.wait, SOON)


@contextlib.asynccontextmanager
async def replica(stage):
    """A replica that takes calls."""
    started = Replica(stage)
    try:
        await started.says("ready")
        yield started
    finally:
        started.process.kill()
        await asyncio.to_thread(started.process.communicate)


def test_tasks_run_on_while_their_replica_drains_and_are_cancelled_from_another(stage):
    async def main():
        async with replica(stage) as first, opened(stage) as bus:
            begin = lambda name, **options: bus.detach("site", f"site/{name}", name=name, **options)
            work, watch, thread = await begin("work", seconds=3600), await begin("watch"), await begin("thread")
            # It calls another method for longer than a replica has a task.
            outer = await bus.detach("site", "site/calls", seconds=LEASE + 1)
            await first.says("began work", "began watch", "began thread", "began inner")
            assert (await work.status()).limit == (await work.status()).started + 3600
            with pytest.raises(sealwire.RpcError, match="task"):
                await bus.call("site", "site/watch", name="watch")
            async with replica(stage) as second:
                first.process.send_signal(signal.SIGTERM)
                await first.says("draining")

                async def first_takes_none():
                    # The broker may give it a few more until it knows.
                    short = await begin("again", seconds=0)
                    return await short.wait(result=int, timeout=SOON) == second.process.pid

                await until(first_takes_none)
                for task in (work, watch, thread):
                    # The other replica asks for it.
                    assert (await task.cancel()).is_cancelling
                    with pytest.raises(sealwire.TaskError) as caught:
                        await task.wait(timeout=SOON)
                    assert caught.value.state == "cancelled"
                inner, remaining = await outer.wait(timeout=SOON)
                assert inner == ["inner", False] and 0 < remaining <= LEASE
                assert await first.ends() == 0
                said = [line for line in first.said if line.startswith("cancelled")]
                assert sorted(said) == ["cancelled thread", "cancelled watch True", "cancelled work"]
                await second.says("began again")
                assert {line for line in second.said if line.startswith("began")} == {"began again"}

    run(main)


def test_what_a_replica_that_is_killed_leaves_behind(stage):
    async def main():
        once, twice = str(uuid.uuid4()), str(uuid.uuid4())
        async with opened(stage) as bus:
            begin = lambda method, key, **options: bus.detach(
                "site", f"site/{method}", name=method, seconds=3600, idempotency_key=key, **options
            )
            async with replica(stage) as first:
                lost, rerun = await begin("work", once), await begin("again", twice)
                await first.says("began work", "began again")
                first.process.kill()
                await asyncio.to_thread(first.process.wait, SOON)
            async with replica(stage) as second:
                for task in (lost, rerun):
                    with pytest.raises(sealwire.TaskError) as caught:
                        await task.wait(timeout=2 * SOON)
                    assert caught.value.state == "unknown" and caught.value.outcome_unknown
                # Begun again, only the method that allows it runs once more.
                assert (await (await begin("work", once)).status()).state == "unknown"
                again = await begin("again", twice)
                await second.says("began again")
                assert (await again.status()).state == "working" and "began work" not in second.said
                await again.cancel()
                with pytest.raises(sealwire.TaskError) as caught:
                    await rerun.wait(timeout=SOON)
                assert caught.value.state == "cancelled"

    run(main)


def test_declarations_that_cannot_be_are_refused_at_once(stage):
    service = sealwire.Service(stage.folder / "sealwire.toml")

    async def method(a: int):
        pass

    for options, reason in [
        ({"task": "6h"}, "idempotent="),
        ({"rerun_if_lost": True}, "idempotent="),
        ({"idempotent": "24h", "only_as_task": True}, "task="),
        ({"idempotent": "24h", "task": "soon"}, "length of time"),
    ]:
        with pytest.raises(ValueError, match=reason):
            service.method("a/b", **options)(method)
        with pytest.raises(ValueError, match=reason):
            service.add("a/b", method, **options)
    service.method("a/b", idempotent="24h", task="30d")(method)
    with pytest.raises(sealwire.ConfigError):
        asyncio.run(service.serve())
