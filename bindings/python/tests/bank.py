"""A service with whatever a tool of a model can meet."""

import asyncio
import collections
import contextlib

import sealwire
from conftest import SOON, in_thread

POLICY = """
[role.worker]
allow = ["site/add", "site/pay", "site/slow", "site/long", "site/odd", "site/say", "site/ticks", "site/self",
         "site/film"]

[rule.small-transfers]
roles = ["worker"]
allow = ["site/transfer"]
when.params.amount = { min = 1, max = 100 }
"""


class Bank:
    """Which methods have run how often."""

    def __init__(self):
        self.ran = collections.Counter()

    async def has_run(self, method):
        """Waits until a method has begun."""
        while not self.ran[method]:
            await asyncio.sleep(0.01)


def build(service, bank):
    @service.method("site/add")
    async def add(a: float, b: float) -> float:
        """Adds two numbers."""
        bank.ran["add"] += 1
        return a + b

    @service.method("site/transfer")
    async def transfer(to: str, amount: int) -> dict:
        """Transfers an amount."""
        bank.ran["transfer"] += 1
        if to == "nobody":
            raise sealwire.RpcError(1001, "no such account", {"account": to})
        return {"to": to, "amount": amount}

    @service.method("site/pay", idempotent="1h")
    async def pay(amount: int) -> int:
        """Pays."""
        bank.ran["pay"] += 1
        return bank.ran["pay"]

    @service.method("site/slow")
    async def slow() -> None:
        """Waits until it is cancelled."""
        bank.ran["slow"] += 1
        try:
            await asyncio.sleep(10 * SOON)
        except asyncio.CancelledError:
            bank.ran["cancelled"] += 1
            raise

    @service.method("site/long")
    async def long(length: int) -> list:
        return ["x" * length]

    @service.method("site/odd")
    async def odd() -> dict:
        return {"text": "a\0b\x1b[31m\u202ec\U000e0041", "list": [1, None, "\x9b"]}

    @service.method("site/say")
    async def say() -> str:
        return "plain\0 words\n"

    # Names that frameworks use for arguments of their own.
    @service.method("site/self")
    def own(config: str, run_manager: str, ctx_: str = "", callbacks: str = "", input: str = "") -> list:
        return [config, run_manager, ctx_, callbacks, input]

    @service.method("site/hidden")
    async def hidden() -> None: ...

    # No model waits for it.
    @service.method("site/film", idempotent="1h", task="1h", only_as_task=True)
    async def film() -> None: ...

    @service.subscription("site/ticks")
    def ticks():
        yield 1


@contextlib.contextmanager
def opened(stage):
    """The service, beside the test."""
    (stage.folder / "policies/policy.toml").write_text(POLICY)
    bank = Bank()
    service = sealwire.Service(stage.folder / "sealwire.toml")
    build(service, bank)
    with in_thread(service):
        yield bank
