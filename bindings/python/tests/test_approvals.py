"""Calls that people approve first, against a service in Python."""

import asyncio
import json
import subprocess
import uuid

import pytest
import sealwire
import sealwire._tools
from conftest import SOON, in_thread, opened, run, until

POLICY = """
[method."site/transfer"]
params = [{ name = "amount", type = "integer" }]
[role.worker]
allow = ["site/transfer", "rpc.approvals", "rpc.approval", "rpc.approve"]
[agent."tess"]
roles = ["treasurer"]
[role.treasurer]
from = "files"
allow = ["rpc.approvals", "rpc.approval", "rpc.approve"]
[approval.treasurer]
from = ["treasurer"]
within = "10m"
[rule.large]
everyone = true
deny = ["site/transfer"]
unless_approved = "treasurer"
when.params.amount = { min = 100 }
"""


@pytest.fixture(scope="module")
def tess(stage):
    """The command `sealwire approvals` of a treasurer, whose key is an Ed25519 key."""

    def command(*arguments):
        done = subprocess.run(
            stage.command(*arguments), stdout=subprocess.PIPE, text=True, timeout=2 * SOON, cwd=stage.folder
        )
        assert done.returncode == 0, (arguments, done.stdout)
        return done.stdout

    url = json.loads(stage.creds().read_text())["nats"]["urls"][0]
    key = json.loads((stage.folder / "service-key.json").read_text())
    command("keys", "new-agent", "tess", "--alg", "eddsa", "--service", "test/site=ring.json", "--url", url)
    command("keys", "pin", "tess.creds.json", "--service", "site", "--kid", key["kid"], "--x", key["x"], "--only")
    bound = ["--subject", "tess", "--cnf-kid", "tess.k1", "--out", "tess.jwt", "--role", "treasurer"]
    command("token", "issue", "--key", "token-key.json", "--audience", "test/site", *bound)

    def approvals(word, request):
        """What is signed is the digest of what is shown."""
        as_tess = ["--creds", "tess.creds.json", "--wait", "60s", "--json", "site", request]
        seen = json.loads(command("approvals", "show", *as_tess))
        command("approvals", word, *as_tess, "--digest", seen["digest"])

    return approvals


@pytest.fixture(scope="module")
def site(stage):
    (stage.folder / "policies/policy.toml").write_text(POLICY)
    service = sealwire.Service(stage.folder / "sealwire.toml")
    ran = []

    @service.method("site/transfer", idempotent="1h", task="1h")
    async def transfer(amount: int) -> int:
        ran.append(amount)
        return amount

    with in_thread(service):
        yield ran


def test_who_does_not_wait_learns_what_is_needed(stage, site):
    async def main():
        async with opened(stage) as bus:
            assert await bus.call("site", "site/transfer", amount=99) == 99
            with pytest.raises(sealwire.ApprovalRequired) as caught:
                await bus.call("site", "site/transfer", amount=100)
            error = caught.value
            assert isinstance(error, (PermissionError, sealwire.RpcError)) and not error.outcome_unknown
            assert error.approval.startswith("ann.") and error.code == -32018 and error.retry_after == 2.0
            assert error.needs == [{"approval": "treasurer", "roles": ["treasurer"], "count": 1, "have": 0}]
            asked = (await bus.call("site", "rpc.approvals"))["approvals"]
            assert [(one["id"], one["deadline"]) for one in asked] == [(error.approval, error.deadline)]
            with pytest.raises(sealwire.ApprovalRequired) as caught:
                await bus.call("site", "site/transfer", amount=100, wait_approval=1)
            assert caught.value.approval == error.approval and 100 not in site

    run(main)


async def pending(bus):
    """The id of the one request of this agent that waits, once there is one."""
    found = []

    async def there():
        asked = (await bus.call("site", "rpc.approvals"))["approvals"]
        found[:] = [one["id"] for one in asked if one["state"] == "pending"]
        return found

    await until(there)
    return found[0]


def test_a_call_waits_until_somebody_has_decided(stage, site, tess):
    async def main():
        async with opened(stage, "bob") as bus:

            async def decided(amount, word):
                call = asyncio.ensure_future(bus.call("site", "site/transfer", amount=amount, wait_approval=2 * SOON))
                request = await pending(bus)
                await asyncio.to_thread(tess, word, request)
                return request, (await asyncio.gather(call, return_exceptions=True))[0]

            _, result = await decided(200, "approve")
            assert result == 200 and site.count(200) == 1
            request, error = await decided(201, "deny")
            assert type(error) is sealwire.Denied and error.approval == request and not error.outcome_unknown
            with pytest.raises(sealwire.Conflict) as caught:
                await bus.call("site", "site/transfer", amount=200, wait_approval=5)
            assert caught.value.approval and caught.value.outcome_unknown and caught.value.idempotency is None
            assert site.count(200) == 1 and 201 not in site
            with pytest.raises(sealwire.InvalidRequest):
                await bus.call("site", "site/transfer", amount=200, wait_approval=5, on_progress=print)

    run(main)


def test_a_task_begins_once_it_is_approved(stage, site, tess):
    async def main():
        key = str(uuid.uuid4())
        async with opened(stage, "bob") as bus:
            begin = lambda amount, key, **options: bus.detach(
                "site", "site/transfer", amount=amount, idempotency_key=key, **options
            )
            with pytest.raises(sealwire.ApprovalRequired):
                await begin(500, key)
            waiting = asyncio.ensure_future(begin(500, key, wait_approval=2 * SOON))
            request = await pending(bus)
            # Whoever waits for people may leave: the next one has the same request.
            waiting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waiting
            assert (await bus.task("site", "site/transfer", key).status()).state == "absent" and 500 not in site
            waiting = asyncio.ensure_future(begin(500, key, wait_approval=2 * SOON))
            assert await pending(bus) == request
            await asyncio.to_thread(tess, "approve", request)
            task = await waiting
            assert await task.wait(result=int, timeout=SOON) == 500
            # It is known now: nobody is asked again.
            assert await (await begin(500, key)).wait() == 500 and site.count(500) == 1
            waiting = asyncio.ensure_future(begin(501, str(uuid.uuid4()), wait_approval=2 * SOON))
            await asyncio.to_thread(tess, "deny", await pending(bus))
            with pytest.raises(sealwire.Denied):
                await waiting
            assert 501 not in site

    run(main)


def test_threads_wait_as_well(stage, site):
    with sealwire.SyncClient(stage.creds()) as bus:
        with pytest.raises(sealwire.ApprovalRequired) as caught:
            bus.call("site", "site/transfer", amount=300, wait_approval=1)
        assert caught.value.needs[0]["approval"] == "treasurer"


def test_a_model_calls_again_once_it_is_approved(stage, site, tess):
    async def main():
        async with opened(stage, "bob") as bus:
            [tool] = await sealwire._tools.Tools(bus, "site", methods=["site/transfer"]).listed()
            assert tool.is_idempotent

            async def refused():
                with pytest.raises(sealwire._tools.Refused) as caught:
                    await tool.call({"amount": 400})
                assert "has not run" in str(caught.value) and "exactly the same arguments" in str(caught.value)
                return caught.value.__cause__.approval

            request = await refused()
            assert await refused() == request
            await asyncio.to_thread(tess, "approve", request)
            assert (await tool.call({"amount": 400})).value == 400 and site.count(400) == 1
            # Made once more, it is another call.
            assert await refused() != request

    run(main)
