"""A payment that happens once, however often it is sent, and that asks first if it is large.

With an idempotency key, the service knows a repetition and gives the outcome of the first run. `outcome_unknown` says
whether a call that failed may have run: with a key, call again; without one, find out first.

Prints:
    paid 50, the balance is 950
    paid 50, the balance is 950
    asked: 500 to bob?
    paid 500, the balance is 450
    refused: not confirmed (1002)
    another payment under the same key: other_params
"""

import asyncio
import dataclasses

import sealwire

service = sealwire.Service("sealwire.toml")


@dataclasses.dataclass
class Account:
    balance: int = 1_000


account = Account()


@service.method("bank/pay", idempotent="24h")
async def pay(ctx: sealwire.Ctx, to: str, amount: int) -> str:
    """Pays somebody, in cents."""
    if amount >= 100 and not await ctx.ask("user/confirm", {"text": f"{amount} to {to}?"}, result=bool):
        raise sealwire.RpcError(1002, "not confirmed")
    account.balance -= amount
    return f"paid {amount}, the balance is {account.balance}"


def confirm(question):
    print("asked:", question.params["text"])
    return True


async def main():
    async with service, sealwire.Client("planner.creds.json") as bus:
        for _ in range(2):
            print(await bus.call("math", "bank/pay", to="bob", amount=50, idempotency_key="order-17"))
        print(await bus.call("math", "bank/pay", to="bob", amount=500, idempotency_key="order-18", on_ask=confirm))
        try:
            await bus.call("math", "bank/pay", to="bob", amount=500, idempotency_key="order-19", on_ask=lambda _: False)
        except sealwire.RpcError as error:
            print(f"refused: {error}")
        try:
            await bus.call("math", "bank/pay", to="eve", amount=50, idempotency_key="order-17")
        except sealwire.Conflict as error:
            print(f"another payment under the same key: {error.idempotency}")


asyncio.run(main())
