"""What a call costs, in one run: `bindings/python/wheel measure WHEEL`. It needs the command, which the wheel has.

  - a caller at 1 and at 64 calls in flight, beside a client in pure Python (tests/interop/minimal_client.py), in turns
  - a service whose method is `return a + b`, under the load of `sealwire bench`
  - a million calls, and the memory before and after

Never compares figures of different runs. Fails if one of the gates below does not hold.
"""

import asyncio
import contextlib
import json
import os
import pathlib
import resource
import shutil
import socket
import subprocess
import sys
import tempfile
import time

import sealwire

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "tests/interop"))

import minimal_client
import nats

CALLS = int(os.environ.get("SEALWIRE_MEASURE_CALLS", "1000000"))
MOST_CPU_US, LEAST_TIMES, LEAST_PER_SECOND, MOST_GROWTH_MIB = 90, 3, 8_000, 16

SERVICE = """
import sealwire
service = sealwire.Service("sealwire.toml")

@service.method("math/add")
async def add(a: float, b: float) -> float:
    return a + b

service.run()
"""

LIMITS = """
[limits]
agent_per_second = 1000000
agent_burst = 1000000
agent_in_flight = 4096

[replay]
skew_s = 1
per_agent = 4000000
total = 8000000
"""


def command(*arguments, **options):
    return subprocess.Popen([sys.executable, "-m", "sealwire", *arguments], **options)


@contextlib.contextmanager
def running(*arguments, program=None, **options):
    process = (
        command(*arguments, **options)
        if program is None
        else subprocess.Popen([sys.executable, "-c", program], **options)
    )
    try:
        yield process
    finally:
        process.terminate()
        try:
            process.wait(60)
        except subprocess.TimeoutExpired:
            process.kill()


def listening(port):
    """Waits until the broker is there: the first one on a machine is fetched."""
    for _ in range(600):
        try:
            return socket.create_connection(("127.0.0.1", port), 1).close()
        except OSError:
            time.sleep(0.1)
    sys.exit("no broker within a minute")


class PurePython:
    """The smallest client that keeps every rule of docs/spec/client.md, with one inbox for all calls."""

    def __init__(self, path):
        self.creds = json.loads(path.read_text())
        told = subprocess.run(
            self.creds["token_command"], cwd=path.parent, check=True, stdout=subprocess.PIPE, text=True
        )
        self.token = told.stdout.strip()
        self.waiting, self.number = {}, 0

    async def __aenter__(self):
        self.nc = await nats.connect(self.creds["nats"]["urls"])
        self.inbox = f"_INBOX.{self.creds['agent']}.{os.urandom(8).hex()}"
        await self.nc.subscribe(f"{self.inbox}.*", cb=self.arrived)
        return self

    async def __aexit__(self, *_):
        await self.nc.close()

    async def arrived(self, message):
        self.waiting.pop(message.subject).set_result(message)

    async def call(self, service, method, **params):
        self.number += 1
        reply = f"{self.inbox}.{self.number}"
        body = {"jsonrpc": "2.0", "method": method, "params": params, "id": str(self.number)}
        payload = json.dumps(body, separators=(",", ":")).encode()
        subject = f"rpc.v1.{service}.{self.creds['agent']}"
        audience = f"{self.creds['environment']}/{service}"
        now_ms = time.time_ns() // 1_000_000
        call = minimal_client.Call(self.creds["key"], self.token, audience, subject, reply, payload, now_ms, 10_000)
        self.waiting[reply] = asyncio.get_running_loop().create_future()
        headers = {"Authorization": f"NatsRpc {self.token}~{call.proof}"}
        waiting = self.waiting[reply]
        await self.nc.publish(subject, payload, reply, headers)
        got = await waiting
        judged = call.judge(body["id"], got.subject, got.headers or {}, got.data, {})
        assert judged["outcome"] == "result", judged
        return judged["result"]


async def load(bus, in_flight, seconds):
    """Calls a second, and microseconds of this process for each."""
    ends = time.monotonic() + seconds
    calls = 0

    async def caller():
        nonlocal calls
        while time.monotonic() < ends:
            assert await bus.call("math", "math/add", a=2, b=3) == 5
            calls += 1

    began, cpu = time.monotonic(), time.process_time()
    await asyncio.gather(*(caller() for _ in range(in_flight)))
    took, used = time.monotonic() - began, time.process_time() - cpu
    return calls / took, used / calls * 1e6


async def compare(creds):
    """Both clients in turns, so that both see the same machine."""
    found = {}
    async with sealwire.Client(creds) as own, PurePython(creds) as pure:
        await own.wait_for("math", limit=60)
        for in_flight in (1, 64):
            runs = {"sealwire": [], "pure Python": []}
            for _ in range(3):
                for name, bus in (("sealwire", own), ("pure Python", pure)):
                    runs[name].append(await load(bus, in_flight, 3))
            for name, each in runs.items():
                rate, cpu = sorted(each)[1][0], sorted(cpu for _, cpu in each)[1]
                found[name, in_flight] = rate, cpu
                print(
                    f"| {name}, {in_flight} in flight | {rate:,.0f} calls/s | {cpu:.0f} us of its CPU a call |",
                    flush=True,
                )
    return found


async def many(creds, calls):
    """Makes many calls, and returns by how many MiB the process has grown after the first tenth."""

    def resident():
        return int(pathlib.Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize() / 2**20

    async with sealwire.Client(creds) as bus:
        done, before = 0, None

        async def caller():
            nonlocal done, before
            while done < calls:
                done += 1
                await bus.call("math", "math/add", a=2, b=3)
                if before is None and done > calls // 10:
                    before = resident()

        began = time.monotonic()
        await asyncio.gather(*(caller() for _ in range(64)))
        grown = resident() - before
        print(
            f"| {calls:,} calls in {time.monotonic() - began:.0f} s | {grown:+.1f} MiB after the first tenth |",
            flush=True,
        )
        return grown


def bench(creds, pid):
    """Calls a second that a service answers, and its CPU for each."""
    arguments = [
        "bench",
        "--creds",
        creds,
        "math",
        "math/add",
        "[2,3]",
        "--duration",
        "10s",
        "--wait",
        "60s",
        "--pid",
        f"service={pid}",
        "--json",
    ]
    done = command(*arguments, stdout=subprocess.PIPE)
    told = json.loads(done.communicate()[0])
    return told


def main():
    with tempfile.TemporaryDirectory() as scratch:
        folder = pathlib.Path(scratch)
        with socket.create_server(("127.0.0.1", 0)) as server:
            port = str(server.getsockname()[1])
        init = ["init", "try", "--language", "none", "--service", "math", "--port", port]
        assert command(*init, cwd=folder, stdout=subprocess.DEVNULL).wait() == 0
        folder = folder / "try"
        creds = folder / "planner.creds.json"
        config = folder / "sealwire.toml"
        # With its own memory of nonces, as large as they need: a stream at the broker has a share for each agent.
        config.write_text(config.read_text().split("[replay]")[0] + LIMITS)
        # The limits of the generated policy and rules stay as they are; only rates are lifted.
        quiet = {"stdout": subprocess.DEVNULL, "cwd": folder, "env": {**os.environ, "RUST_LOG": "warn"}}
        with running("nats-server", "--port", port, **quiet):
            listening(int(port))
            with running("serve", "demo", **quiet):
                found = asyncio.run(compare(creds))
                grown = asyncio.run(many(creds, CALLS))
            with running(program=SERVICE, **quiet) as service:
                told = bench(creds, service.pid)
        shutil.rmtree(folder, ignore_errors=True)
    rate = told["calls_per_s"]
    cpu = told["cpu_us"]["service"]
    print(f"| a service in Python, 64 in flight | {rate:,.0f} calls/s | {cpu:.0f} us of its CPU a call |")
    own, pure = found["sealwire", 64], found["pure Python", 64]
    gates = {
        f"{own[1]:.0f} us a call, {MOST_CPU_US} at most": own[1] <= MOST_CPU_US,
        f"{pure[1] / own[1]:.1f} times less CPU than pure Python, {LEAST_TIMES} at least": pure[1]
        >= LEAST_TIMES * own[1],
        f"{rate:,.0f} calls/s of a trivial service, {LEAST_PER_SECOND:,} at least": rate >= LEAST_PER_SECOND,
        f"{grown:+.1f} MiB in {CALLS:,} calls, {MOST_GROWTH_MIB} at most": grown <= MOST_GROWTH_MIB,
    }
    for gate, holds in gates.items():
        print("holds:" if holds else "DOES NOT HOLD:", gate)
    sys.exit(not all(gates.values()))


main()
