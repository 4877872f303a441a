"""Each error as its class: a test for each row of the table in docs/python.md."""

import asyncio
import contextlib
import json
import pickle
import traceback

import pytest
import sealwire
from conftest import Proxy, beginning, opened, run, until
from sealwire import _core, _errors


def caught(kind, coroutine):
    """The error of a call, which is of this class and says whether the call may have run."""

    async def wait():
        with pytest.raises(kind) as found:
            await coroutine
        error = found.value
        assert type(error) is kind and isinstance(error, sealwire.Error) and str(error)
        again = pickle.loads(pickle.dumps(error))
        assert type(again) is kind and str(again) == str(error) and again.__dict__ == error.__dict__
        return error

    return wait()


def test_every_kind_of_the_library_has_its_class():
    assert set(_core.error_kinds()) == set(_errors._BY_KIND)
    assert len(set(_errors.__all__)) == len(_errors.__all__)
    for name in _errors.__all__:
        assert getattr(sealwire, name) is getattr(_errors, name) and name in sealwire.__all__


def test_credentials_that_cannot_be_used(stage, tmp_path, monkeypatch):
    async def main():
        missing = await caught(sealwire.CredentialsError, sealwire.Client(tmp_path / "none.json").open())
        assert isinstance(missing, ValueError) and missing.kind == "credentials" and not missing.outcome_unknown
        monkeypatch.delenv("SEALWIRE_CREDS", raising=False)
        assert "SEALWIRE_CREDS" in str(await caught(sealwire.CredentialsError, sealwire.Client().open()))
        readable = tmp_path / "readable.json"
        readable.write_text(stage.creds().read_text())
        readable.chmod(0o644)
        secret = json.loads(readable.read_text())["key"]["secret"]
        error = await caught(sealwire.CredentialsError, sealwire.Client(readable).open())
        assert secret not in "".join(traceback.format_exception(error))
        monkeypatch.setenv("SEALWIRE_CREDS", str(stage.creds()))
        async with sealwire.Client() as bus:
            assert await bus.call("site", "site/nothing") is None

    run(main)


def test_no_token(stage, tmp_path):
    async def main():
        path = stage.changed(tmp_path, token_file=str(tmp_path / "none.jwt"))
        async with sealwire.Client(path) as bus:
            error = await caught(sealwire.TokenError, bus.call("site", "site/nothing"))
            assert error.kind == "token" and not error.outcome_unknown

    run(main)


def test_no_broker(stage, tmp_path):
    async def main():
        path = stage.changed(tmp_path, nats={"urls": [f"nats://127.0.0.1:{stage.unused_port}"]})
        error = await caught(sealwire.ConnectError, sealwire.Client(path).open())
        assert isinstance(error, ConnectionError) and not error.outcome_unknown

    run(main)


def test_a_connection_that_is_lost_during_a_call_and_not_there_for_the_next(stage, tmp_path):
    async def main():
        async with Proxy(stage.url) as proxy:
            nats = json.loads(stage.creds().read_text())["nats"]
            path = stage.changed(tmp_path, nats={**nats, "urls": [proxy.address]})
            async with sealwire.Client(path) as bus, opened(stage) as other:
                begun = await beginning(other)
                call = asyncio.create_task(
                    caught(sealwire.ConnectionLost, bus.call("site", "site/sleep", params=[60_000], deadline=90))
                )
                await until(begun)
                await proxy.cut()
                error = await call
                assert isinstance(error, ConnectionError) and error.outcome_unknown and error.message_id
                error = await caught(sealwire.Disconnected, bus.call("site", "site/nothing", deadline=0.3))
                assert isinstance(error, ConnectionError) and not error.outcome_unknown and not bus.is_connected

    run(main)


def test_a_stream_that_breaks_off(stage):
    async def main():
        async with opened(stage) as bus:
            async with bus.stream("liar", "liar/cut") as parts:
                assert await anext(parts) == 1
                error = await caught(sealwire.StreamLost, anext(parts))
                assert isinstance(error, ConnectionError) and error.outcome_unknown
                assert await caught(sealwire.StreamLost, parts.result())

    run(main)


def test_no_answer_in_time(stage):
    async def main():
        async with opened(stage) as bus:
            error = await caught(sealwire.Timeout, bus.call("liar", "liar/silence", deadline=0.3))
            assert isinstance(error, TimeoutError) and error.outcome_unknown and error.kind == "timeout"
            error = await caught(sealwire.Timeout, bus.call("liar", "liar/code", params=[-32003, None]))
            assert isinstance(error, TimeoutError) and error.outcome_unknown and error.code == -32003

    run(main)


def test_nobody_listens(stage):
    async def main():
        async with opened(stage) as bus:
            error = await caught(sealwire.NobodyListens, bus.call("nobody", "some/method"))
            assert isinstance(error, ConnectionError) and error.outcome_unknown and error.subject == "rpc.v1.nobody.ann"

    run(main)


def test_unsigned_refusals_and_forged_answers(stage):
    async def main():
        async with opened(stage) as bus:
            hint = await caught(sealwire.Unsigned, bus.call("liar", "liar/hint"))
            # It is reported at the deadline; on a busy machine, it may not have come by then.
            for deadline in [0.5, 5, 50]:
                with contextlib.suppress(sealwire.Timeout):
                    forged = await caught(sealwire.Unverifiable, bus.call("liar", "liar/unsigned", deadline=deadline))
                    break
            wrong = await caught(sealwire.ProtocolError, bus.call("liar", "liar/protocol"))
            assert hint.outcome_unknown and forged.outcome_unknown and wrong.outcome_unknown
            assert (hint.kind, forged.kind, wrong.kind) == ("hint", "unverifiable", "protocol")
            async with bus.stream("liar", "liar/frames") as parts:
                assert (await caught(sealwire.ProtocolError, anext(parts))).outcome_unknown

    run(main)


def test_what_the_broker_forbids(stage):
    async def main():
        async with opened(stage) as bus:
            error = await caught(sealwire.Forbidden, bus.call("vault", "vault/open"))
            assert (
                isinstance(error, PermissionError) and error.subject == "rpc.v1.vault.ann" and not error.outcome_unknown
            )

    run(main)


def test_requests_that_cannot_be_sent(stage):
    async def main():
        async with opened(stage) as bus:
            for options in [
                {"deadline": 0},
                {"deadline": 10_000},
                {"idempotency_key": ""},
                {"deadline": float("nan")},
                {"deadline": -1},
            ]:
                error = await caught(sealwire.InvalidRequest, bus.call("site", "site/nothing", **options))
                assert isinstance(error, ValueError) and not error.outcome_unknown
            await caught(sealwire.InvalidRequest, bus.call("not a name", "site/nothing"))
            await caught(sealwire.InvalidRequest, bus.call("site", "not a name"))
            await caught(sealwire.InvalidRequest, bus.call("site", "site/echo", params="text"))
            error = await caught(sealwire.TooLarge, bus.call("site", "site/echo", params=["x" * (1 << 20)]))
            assert isinstance(error, ValueError) and not error.outcome_unknown
            async with bus.stream("site", "site/large", params=[1_000_000], max_bytes=900_000) as parts:
                assert (await caught(sealwire.TooLarge, parts.result())).kind == "result_too_large"

    run(main)


def test_too_much_under_way(stage):
    async def main():
        async with opened(stage, in_flight=1) as bus, opened(stage) as other:
            begun = await beginning(other)
            first = asyncio.create_task(bus.call("site", "site/sleep", params=[60_000], deadline=90))
            await until(begun)
            assert not (await caught(sealwire.Busy, bus.call("site", "site/nothing", deadline=0.2))).outcome_unknown
            # Three of these are more than the parameters of one loop may have in all.
            large = [asyncio.create_task(bus.call("site", "site/echo", params=["x" * 90_000_000])) for _ in range(3)]
            await asyncio.wait(large, return_when=asyncio.FIRST_EXCEPTION)
            errors = [task.exception() for task in large if task.done()]
            assert [type(error) for error in errors] == [sealwire.Busy] and "256 MiB" in str(errors[0])
            for task in large:
                task.cancel()
            first.cancel()
        async with opened(stage) as bus:
            calls = [asyncio.create_task(bus.call("liar", "liar/silence", deadline=20)) for _ in range(16_384)]
            await asyncio.sleep(0)
            error = await caught(sealwire.Busy, bus.call("site", "site/nothing"))
            assert "16384" in str(error) and not error.outcome_unknown
            for call in calls:
                call.cancel()
            await asyncio.gather(*calls, return_exceptions=True)
            assert await bus.call("site", "site/nothing") is None

    run(main)


def test_a_client_that_is_closed(stage):
    async def main():
        bus = sealwire.Client(stage.creds())
        assert not (await caught(sealwire.Closed, bus.call("site", "site/nothing"))).outcome_unknown
        await bus.open()
        begun = await beginning(bus)
        call = asyncio.create_task(
            caught(sealwire.Closed, bus.call("site", "site/sleep", params=[60_000], deadline=90))
        )
        await until(begun)
        await bus.close()
        assert (await call).outcome_unknown
        await caught(sealwire.Closed, bus.call("site", "site/nothing"))
        await bus.close()

    run(main)


def test_a_clock_that_is_wrong(stage):
    async def main():
        async with opened(stage) as bus:
            error = await caught(sealwire.ClockError, bus.call("liar", "liar/stale", idempotent=True, deadline=20))
            assert 400 <= error.offset_s <= 600 and error.code == -32011

    run(main)


@pytest.mark.parametrize(
    ("code", "data", "kind", "base", "unknown"),
    [
        (-32002, None, sealwire.Denied, PermissionError, False),
        (-32002, {"outcome": "unknown"}, sealwire.Denied, PermissionError, True),
        (-32601, None, sealwire.MethodNotFound, LookupError, False),
        (-32602, None, sealwire.InvalidParams, ValueError, False),
        (-32001, None, sealwire.ValidationFailed, ValueError, False),
        (-32013, {"scope": "agent", "retry_after_ms": 1500}, sealwire.Quota, sealwire.RpcError, True),
        (-32014, {"retry_after_ms": 250}, sealwire.Overloaded, sealwire.RpcError, True),
        (-32016, None, sealwire.Cancelled, sealwire.RpcError, True),
        (-32017, {"idempotency": "running"}, sealwire.Conflict, sealwire.RpcError, True),
        (-32017, {"idempotency": "not_kept"}, sealwire.Conflict, sealwire.RpcError, False),
        (-32603, None, sealwire.RpcError, sealwire.Error, False),
        (-32004, ["x"], sealwire.RpcError, sealwire.Error, False),
        (-32015, None, sealwire.RpcError, sealwire.Error, False),
        (7, {"outcome": "unknown"}, sealwire.RpcError, sealwire.Error, False),
    ],
)
def test_an_error_of_the_service(stage, code, data, kind, base, unknown):
    async def main():
        async with opened(stage) as bus:
            error = await caught(kind, bus.call("liar", "liar/code", params=[code, data]))
            assert isinstance(error, base) and (error.code, error.message, error.data) == (code, "no", data)
            assert error.outcome_unknown is unknown and error.is_application == (code == 7) and error.message_id
            after = data.get("retry_after_ms") if isinstance(data, dict) else None
            assert error.retry_after == (after and after / 1000)
            assert getattr(error, "scope", None) == ("agent" if kind is sealwire.Quota else None)
            assert getattr(error, "idempotency", None) == (data["idempotency"] if kind is sealwire.Conflict else None)

    run(main)


def test_an_error_of_the_application_is_never_taken_for_a_refusal(stage):
    async def main():
        async with opened(stage) as bus:
            for code in [-32002, -32003, -32013, 1001]:
                error = await caught(
                    sealwire.RpcError, bus.call("site", "site/fail", params=[code, "as we say", {"outcome": "unknown"}])
                )
                assert (
                    error.is_application
                    and error.code == code
                    and not error.outcome_unknown
                    and error.retry_after is None
                )
            denied = await caught(sealwire.Denied, bus.call("site", "secret/open"))
            assert not denied.is_application and not denied.outcome_unknown
            internal = await caught(sealwire.RpcError, bus.call("site", "site/boom"))
            assert internal.code == -32603 and "secret" not in str(internal)

    run(main)


def test_a_repeated_call_says_what_became_of_the_attempts(stage):
    async def main():
        async with opened(stage) as bus:
            error = await caught(sealwire.Unsigned, bus.call("liar", "liar/repeated", idempotent=True))
            assert error.outcome_unknown and isinstance(error.__context__, sealwire.Denied)

    run(main)


def test_both_clients_raise_the_same(stage):
    with sealwire.SyncClient(stage.creds()) as bus:
        with pytest.raises(sealwire.Denied):
            bus.call("site", "secret/open")
        with pytest.raises(sealwire.Timeout) as caught:
            bus.call("liar", "liar/silence", deadline=0.3)
        assert caught.value.outcome_unknown and caught.value.message_id
        with pytest.raises(sealwire.InvalidRequest):
            bus.call("site", "site/nothing", deadline=-1)
    with pytest.raises(sealwire.CredentialsError):
        sealwire.SyncClient("/none").open()


def test_nothing_secret_is_shown_or_pickled(stage):
    text = stage.creds().read_text()
    secrets = [json.loads(text)["key"]["secret"], (stage.folder / "ann.jwt").read_text().strip()]
    credentials = sealwire.Credentials.load(stage.creds())
    assert repr(credentials) == "Credentials(environment='test', agent='ann')"
    assert (credentials.agent, credentials.environment, credentials.kid) == ("ann", "test", "ann.k1")

    async def main():
        async with sealwire.Client(credentials) as bus:
            receipt = sealwire.Receipt()
            await bus.call("site", "site/nothing", receipt=receipt)
            things = [
                credentials,
                bus,
                bus.acting_for(secrets[1]),
                receipt,
                bus._connection,
                bus.acting_for(secrets[1])._defaults,
            ]
            for thing in things:
                assert not any(secret in repr(thing) + str(thing) for secret in secrets)
            assert not any(secret in (receipt.request + receipt.answer) for secret in secrets)
            for thing in things[:3] + [bus._connection, sealwire.SyncClient(credentials)]:
                with pytest.raises(TypeError):
                    pickle.dumps(thing)

    run(main)
