"""What the tests share: the stage that the Rust side has set up, and a proxy with which connections are cut.

Never waits without a limit.
"""

import asyncio
import contextlib
import faulthandler
import json
import os
import pathlib
import signal
import subprocess
import threading
import time

import pytest
import sealwire

# A test that hangs shows where.
faulthandler.dump_traceback_later(380, exit=True)

# What is started in the background ignores Ctrl-C, and Python with it.
signal.signal(signal.SIGINT, signal.default_int_handler)

#: Long enough for anything that should happen at once, on a machine under full load.
SOON = 60.0


class Stage:
    """Files and addresses of the stage."""

    def __init__(self):
        self.folder = pathlib.Path(os.environ["SEALWIRE_STAGE"])
        self.url = os.environ["SEALWIRE_STAGE_URL"]
        self.unused_port = int(os.environ["SEALWIRE_STAGE_UNUSED_PORT"])
        self._command = os.environ["SEALWIRE_STAGE_COMMAND"]

    def command(self, *arguments):
        """The command `sealwire` with these arguments, where it is built."""
        if not pathlib.Path(self._command).exists():
            assert os.environ.get("CI") != "true", f"{self._command} is built with all tests"
            pytest.skip("the command is not built")
        return [self._command, *map(str, arguments)]

    @contextlib.contextmanager
    def policy(self, text):
        """Other policies, for as long as this lasts."""
        file = self.folder / "policies/policy.toml"
        before = file.read_text()
        file.write_text(text)
        try:
            yield
        finally:
            file.write_text(before)

    def call(self, method, params):
        """Calls a method of `site` by the command: its exit code, and what it prints."""
        command = self.command("call", "--creds", self.creds(), "--json", "site", method, json.dumps(params))
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, timeout=2 * SOON)
        return done.returncode, done.stdout

    def creds(self, agent="ann"):
        return self.folder / f"{agent}.creds.json"

    def changed(self, tmp_path, agent="ann", **changes):
        """A credentials file with some members changed."""
        document = json.loads(self.creds(agent).read_text())
        document.update(changes)
        if "token_file" not in changes and "token" not in changes:
            document["token_file"] = str(self.folder / f"{agent}.jwt")
        path = tmp_path / "changed.creds.json"
        path.touch(mode=0o600)
        path.write_text(json.dumps(document))
        return path


@pytest.fixture(scope="session")
def stage():
    return Stage()


def run(main):
    """Runs a test in a loop of its own. If the machine stood still for seconds, the service's replay guard can vouch
    for nothing meanwhile, so that the test is run again."""
    for _ in range(4):
        try:
            return asyncio.run(asyncio.wait_for(main(), 3 * SOON))
        except sealwire.Overloaded as error:
            overloaded = error
            time.sleep(3)
    raise overloaded


@contextlib.contextmanager
def in_thread(manager):
    """Enters an asynchronous context manager in a loop and a thread of its own, and gives what that gives."""
    entered, ready = [], threading.Event()

    async def main():
        async with manager as value:
            stop = asyncio.Event()
            entered.extend((value, asyncio.get_running_loop(), stop))
            ready.set()
            await stop.wait()

    thread = threading.Thread(target=lambda: asyncio.run(main()))
    thread.start()
    assert ready.wait(2 * SOON)
    value, loop, stop = entered
    yield value
    loop.call_soon_threadsafe(stop.set)
    thread.join(2 * SOON)
    assert not thread.is_alive()


@pytest.fixture(scope="module")
def bank(stage):
    """A service with whatever a tool of a model can meet."""
    import bank

    with bank.opened(stage) as found:
        yield found


@contextlib.asynccontextmanager
async def opened(stage, agent="ann", **options):
    async with sealwire.Client(stage.creds(agent), **options) as bus:
        yield bus


class Proxy:
    """Between a client and the broker: connections can be cut and refused."""

    def __init__(self, url):
        self.host, self.port = url.removeprefix("nats://").split(":")
        self.server = None
        self.writers = set()

    async def __aenter__(self):
        self.server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.address = f"nats://127.0.0.1:{self.server.sockets[0].getsockname()[1]}"
        return self

    async def __aexit__(self, *_):
        await self.cut()

    async def cut(self):
        """Cuts all connections, and takes no more."""
        self.server.close()
        for writer in list(self.writers):
            writer.transport.abort()

    async def _serve(self, reader, writer):
        there, to = await asyncio.open_connection(self.host, int(self.port))
        self.writers |= {writer, to}
        await asyncio.gather(self._copy(reader, to), self._copy(there, writer))

    async def _copy(self, reader, writer):
        with contextlib.suppress(OSError):
            while data := await reader.read(65536):
                writer.write(data)
                await writer.drain()
        writer.close()


async def beginning(bus, runs=1):
    """An asynchronous condition: so many more runs of `site/sleep` than now have begun."""
    before = await bus.call("site", "site/begun")

    async def begun():
        return await bus.call("site", "site/begun") >= before + runs

    return begun


async def until(condition, limit=SOON):
    """Waits until an asynchronous condition holds."""

    async def wait():
        while not await condition():
            await asyncio.sleep(0.02)

    await asyncio.wait_for(wait(), limit)
