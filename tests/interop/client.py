"""A client of the `nats-rpc-v1` profile on nats-py and PyJWT, written from SPEC.md alone.

    client.py --creds planner.creds.json call math math/add '{"a": 2, "b": 3}'
    client.py --creds planner.creds.json notify math log/append '["hello"]'
    client.py --creds planner.creds.json stream math math/count '{"to": 100}'
    client.py --creds planner.creds.json batch math '[{"jsonrpc":"2.0","method":"math/add","params":[1,2],"id":1}]'

Prints one line of JSON with the outcome, and never accepts an answer that does not verify. With one of the
adversarial options it misbehaves on purpose and reports the first thing that comes back, so that a test can see how
the service defends itself. With `--commands` alone it reads commands from standard input, each a JSON array of
arguments on a line of its own, and answers each with one line.

Exit codes: 0 a result, or sent; 1 a bug; 2 wrong usage or credentials; 10 denied by policy; 20 no usable answer
(no responders, timeout, forbidden by the broker, not connected); 21 another signed error; 22 an unsigned
hint; 23 an answer that does not verify; 24 a stream that was lost.
"""

from __future__ import annotations

import argparse
import asyncio
import dataclasses
import json
import os
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import nats.errors
from nats.aio.client import Client as NatsClient
from nats.aio.msg import Msg

import credentials
import nats_rpc_v1 as rpc
import streams

EXIT = {
    "result": 0,
    "sent": 0,
    "denied": 10,
    "no_responders": 20,
    "timeout": 20,
    "forbidden": 20,
    "not_connected": 20,
    "error": 21,
    "hint": 22,
    "unverifiable": 23,
    "lost": 24,
}
STALE, REPLAYED, PERMISSION_DENIED = -32011, -32012, -32002
HINTS = {-32010, -32014, -32015}


class RawHeaders(dict):
    """The headers that nats-py parsed, with the raw bytes: a map cannot show that a header came twice."""

    raw: bytes = b""

    def lines(self) -> list[tuple[str, str]]:
        """Every header line, with names as received."""
        found = []
        for line in self.raw.split(b"\r\n")[1:]:
            name, colon, value = line.partition(b":")
            if colon:
                found.append((name.decode("latin-1"), value.strip().decode("latin-1")))
        return found

    def status(self) -> str:
        """The status of the first line, `""` if there is none."""
        return self.raw.split(b"\r\n", 1)[0].removeprefix(b"NATS/1.0").strip().decode("latin-1")


class RawNatsClient(NatsClient):
    """nats-py, keeping the raw header blocks."""

    async def _process_headers(self, headers: bytes) -> RawHeaders | None:  # type: ignore[override]
        if not headers:
            return None
        kept = RawHeaders(await super()._process_headers(headers) or {})
        kept.raw = bytes(headers)
        return kept


@dataclass(frozen=True)
class Got:
    """The outcome of one delivery to the inbox."""

    outcome: str
    report: dict[str, Any]

    @property
    def is_final(self) -> bool:
        """Whether it ends the wait (§9.1): neither signed `stale` and `replayed` nor forgeries do."""
        return self.outcome != "unverifiable" and self.code not in (STALE, REPLAYED)

    @property
    def code(self) -> int | None:
        """The code, if it is one of §14; `None` if the application chose it."""
        return None if "application_error" in self.report else self.report.get("code")


class Clock:
    """This machine's clock, and how far each service's clock is ahead of it according to verified answers (§8.1)."""

    def __init__(self) -> None:
        self.error_ms = 0
        self._offsets: dict[str, int] = {}

    def own_ms(self) -> int:
        """The time according to this machine."""
        return time.time_ns() // 1_000_000 + self.error_ms

    def of(self, audience: str, own_ms: int) -> int:
        """The service's time, as far as it is known."""
        return own_ms + 1000 * self._offsets.get(audience, 0)

    def learn(self, audience: str, iat: int, sent_ms: int) -> int | None:
        """Moves the offset into the interval that a verified answer allows; returns it instead if it exceeds W."""
        now_s, sent_s = self.own_ms() // 1000, sent_ms // 1000
        least, most = iat - now_s, iat - min(sent_s, now_s)
        offset = min(max(self._offsets.get(audience, 0), least), most)
        if abs(offset) > rpc.WINDOW_S:
            return offset
        self._offsets[audience] = offset
        return None


class Client:
    """One connection, one inbox subscription, one call at a time."""

    def __init__(self, creds: credentials.Credentials, clock: Clock, reconnects: bool = False) -> None:
        self.creds = creds
        self._reconnects = reconnects
        self._clock = clock
        # When each request was signed, by reply subject.
        self._signed_ms: dict[str, int] = {}
        self._nats = RawNatsClient()
        self._inbox = f"{creds.inbox_prefix}.{creds.agent}.{os.urandom(8).hex()}"
        self._sent = 0
        self._arrivals: asyncio.Queue[Msg | str] = asyncio.Queue(maxsize=256)

    async def __aenter__(self) -> Client:
        async def on_error(error: Exception) -> None:
            if "permissions violation" in str(error).lower():
                self._keep(str(error))

        async def on_reconnect() -> None:
            self._keep("reconnected")

        await self._nats.connect(
            **self.creds.connect_options(),
            error_cb=on_error,
            reconnected_cb=on_reconnect,
            allow_reconnect=self._reconnects,
            max_reconnect_attempts=-1,
            reconnect_time_wait=0.1,
            connect_timeout=5,
        )

        async def on_message(message: Msg) -> None:
            self._keep(message)

        await self._nats.subscribe(f"{self._inbox}.*", cb=on_message)
        await self._nats.flush()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._nats.close()

    def _keep(self, arrival: Msg | str) -> None:
        # A full queue means that the inbox is flooded; what does not fit counts as lost on the way.
        if not self._arrivals.full():
            self._arrivals.put_nowait(arrival)

    def seal(
        self,
        service: str,
        payload: bytes,
        *,
        method: str | None = None,
        reply: str | None = None,
        timeout_ms: int,
        age_ms: int = 0,
        audience: str | None = None,
        idempotency_key: str | None = None,
        window: int | None = None,
    ) -> rpc.Request:
        """Signs a message for the service; with a `method` it goes to that method's subject.

        Unless `reply` says otherwise (`""` for none), the answer comes to a fresh subject of this client's inbox.
        """
        subject = f"{self.creds.prefix}.{service}.{self.creds.agent}"
        if method is not None:
            subject += "." + method.replace("/", ".")
        self._sent += 1
        own_ms = self._clock.own_ms()
        request = rpc.seal(
            key=self.creds.key,
            token=self.creds.access_token(),
            audience=audience or f"{self.creds.environment}/{service}",
            subject=subject,
            reply=f"{self._inbox}.{self._sent}" if reply is None else reply,
            payload=payload,
            now_ms=self._clock.of(f"{self.creds.environment}/{service}", own_ms) - age_ms,
            timeout_ms=timeout_ms + age_ms,
            idempotency_key=idempotency_key,
            window=window,
        )
        self._signed_ms[request.reply] = own_ms
        return request

    async def publish(self, request: rpc.Request, headers: dict[str, str] | None = None) -> None:
        """Publishes the message unchanged."""
        if headers is None:
            headers = {"Authorization": request.authorization}
        await self._nats.publish(request.subject, request.payload, reply=request.reply, headers=headers or None)
        # The broker's objections to this publication arrive before its answer to a ping.
        await self._nats.flush()

    async def control(
        self, request: rpc.Request, replica: str | None, counter: int, op: str, payload: bytes, **more: int | str
    ) -> None:
        """Signs and publishes control of a call (§25.2). Nothing answers it."""
        service, token = request.audience.split("/")[1], self.creds.access_token()
        subject = rpc.control_subject(self.creds.prefix, service, self.creds.agent, replica, request.nonce)
        authorization = rpc.seal_control(
            key=self.creds.key,
            token=token,
            request=request,
            subject=subject,
            payload=payload,
            now_ms=self._clock.of(request.audience, self._clock.own_ms()),
            counter=counter,
            op=op,
            **more,
        )
        try:
            await self._nats.publish(subject, payload, headers={"Authorization": authorization})
        except nats.errors.Error:
            # Counts as lost on the way: what matters is sent again.
            pass

    async def stream(self, request: rpc.Request, timeout_ms: int, wishes: streams.Wishes) -> Got:
        """Takes the frames of a call, or its ordinary answer, whichever comes (§25.4)."""
        call = streams.StreamCall(request, wishes, self.control)
        until = time.monotonic() + timeout_ms / 1000 + 2
        got = Got("timeout", {})
        try:
            while call.response is None and (call.is_leased or time.monotonic() < until):
                arrival = await self._arrival(0.05)
                if arrival == "reconnected":
                    call.reconnected()
                elif isinstance(arrival, Msg) and arrival.subject == request.reply:
                    answer = await self._frame_or_answer(call, request, arrival)
                    if answer is not None:
                        got = answer
                        break
                await call.tick()
        except (rpc.Lost, rpc.Refused) as lost:
            await call.give_up()
            return Got("lost", {**call.report(), "why": str(lost)})
        if call.response is not None:
            try:
                got = signed(rpc.parse_json(call.response))
            except rpc.Refused as refused:
                got = Got("lost", {"why": f"the response: {refused}"})
        elif got.outcome in ("hint", "no_responders"):
            # A hint is not signed: the method may be running.
            await call.give_up()
        return Got(got.outcome, {**call.report(), **got.report})

    async def _frame_or_answer(self, call: streams.StreamCall, request: rpc.Request, message: Msg) -> Got | None:
        lines = message.headers.lines() if isinstance(message.headers, RawHeaders) else []
        pinned = self.creds.service_keys.get(request.audience.split("/")[1], {})
        if call.stream is not None:
            try:
                frame = rpc.take_frame(request, message.subject, lines, message.data, pinned.get)
            except rpc.Refused:
                pass
            else:
                await call.frame(*frame)
                return None
            if call.stream.replica is not None:
                # Once there was a frame, only an `end` frame is an answer.
                call.refused += 1
                return None
        got = self.judge(request, message)
        return got if got.is_final else None

    async def _arrival(self, seconds: float) -> Msg | str | None:
        try:
            return await asyncio.wait_for(self._arrivals.get(), seconds)
        except asyncio.TimeoutError:
            return None

    async def next(self, request: rpc.Request, until: float) -> Got | None:
        """The next delivery that concerns the request, judged; `None` at the time `until`."""
        while True:
            try:
                arrival = await asyncio.wait_for(self._arrivals.get(), until - time.monotonic())
            except asyncio.TimeoutError:
                return None
            if isinstance(arrival, str):
                if f'"{request.subject}"' in arrival:
                    return Got("forbidden", {"message": arrival})
            elif arrival.subject == request.reply:
                return self.judge(request, arrival)

    async def answer(self, request: rpc.Request, timeout_ms: int) -> Got:
        """Waits for a final outcome; at the deadline, returns the best outcome so far."""
        until = time.monotonic() + timeout_ms / 1000
        best = Got("timeout", {})
        while (got := await self.next(request, until)) is not None:
            if got.is_final:
                return got
            if best.outcome in ("timeout", "unverifiable"):
                best = got
        return best

    def judge(self, request: rpc.Request, message: Msg) -> Got:
        """Accepts an answer by §12, or says what it is instead."""
        headers = message.headers if isinstance(message.headers, RawHeaders) else RawHeaders()
        if headers.status().startswith("503") and not message.data:
            return Got("no_responders", {})
        lines = headers.lines()
        if not any(name.lower() == "authentication-info" for name, _ in lines):
            return unsigned(message.data)
        pinned = self.creds.service_keys.get(request.audience.split("/")[1], {})
        try:
            iat = rpc.take_answer(request, message.subject, lines, message.data, pinned.get)
            # It is verified, so its time can be trusted, whatever else it says.
            apart = self._clock.learn(request.audience, iat, self._signed_ms[request.reply])
            body = rpc.parse_json(message.data)
        except rpc.Refused as refused:
            return Got("unverifiable", {"why": str(refused)})
        got = signed(body)
        if apart is not None and got.code == STALE:
            got.report["clocks_differ_s"] = apart
        return got


def unsigned(data: bytes) -> Got:
    """A hint if it looks like one, otherwise nothing to be believed (§13)."""
    try:
        body = rpc.parse_object(data)
        code = body["error"]["code"]
    except (rpc.Refused, KeyError, TypeError):
        return Got("unverifiable", {"why": "not signed"})
    if code not in HINTS:
        return Got("unverifiable", {"why": "not signed"})
    return Got("hint", {"code": code, "signed": False})


def signed(body: Any) -> Got:
    """A verified payload."""
    if isinstance(body, list):
        return Got("result", {"responses": body, "signed": True})
    if not isinstance(body, dict) or body.get("jsonrpc") != "2.0" or ("result" in body) == ("error" in body):
        return Got("unverifiable", {"why": "signed, but not a JSON-RPC response"})
    # §6.1: the outcome is that of an earlier call with the same idempotency key.
    mark = {"idempotent_replay": True} if body.get("idempotent_replay") is True else {}
    if "result" in body:
        return Got("result", {"result": body["result"], "id": body.get("id"), "signed": True, **mark})
    error = body["error"]
    report = {"code": error["code"], "message": error["message"], "id": body.get("id"), "signed": True, **mark}
    if "data" in error:
        report["data"] = error["data"]
    # §14: the application chose the code, which means nothing here.
    if body.get("application_error") is True:
        return Got("error", {**report, "application_error": True})
    return Got("denied" if error["code"] == PERMISSION_DENIED else "error", report)


# --- Misbehaving on purpose ----------------------------------------------------------------------------------------


def tampered(request: rpc.Request, what: str) -> rpc.Request:
    """The message as a man in the middle would change it; the proof stays as it was."""
    if what == "payload":
        return dataclasses.replace(request, payload=request.payload + b" ")
    if what == "subject":
        return dataclasses.replace(request, subject=request.subject + ".math.add")
    if what == "reply":
        return dataclasses.replace(request, reply=request.reply + "9")
    head, _, signature = request.token.rpartition(".")
    flipped = ("B" if signature[0] == "A" else "A") + signature[1:]
    return dataclasses.replace(request, token=f"{head}.{flipped}")


def as_arrays(request: rpc.Request) -> rpc.Request:
    """The same values under a good signature, but as arrays, which some libraries read as if they were objects."""
    header, body, _ = rpc.split_jws(request.proof)
    parts = [list(header.values()), list(rpc.parse_object(body).values())]
    signing_input = ".".join(rpc.b64(json.dumps(part).encode()) for part in parts)
    signature = rpc.sign_bytes(signing_input.encode("ascii"), request.key)
    return dataclasses.replace(request, proof=f"{signing_input}.{rpc.b64(signature)}")


def wrongly_keyed(creds: credentials.Credentials) -> credentials.Credentials:
    """The same key id, another key."""
    return dataclasses.replace(creds, key=dataclasses.replace(creds.key, secret=os.urandom(32)))


def two_headers(request: rpc.Request) -> dict[str, str]:
    """Two headers that a case-insensitive reader would confuse."""
    return {"Authorization": request.authorization, "authorization": request.authorization}


# --- Command line --------------------------------------------------------------------------------------------------


def attached(arguments: argparse.Namespace) -> dict[str, bytes]:
    """The attachments of a call (§25.6), by the names of their parameters."""
    names = (text.partition("=") for text in getattr(arguments, "attach", []))
    return {name: Path(path).read_bytes() for name, _, path in names}


def body_of(arguments: argparse.Namespace) -> bytes:
    """The payload, written once; these bytes are signed and published."""
    if arguments.body is not None:
        return arguments.body.encode()
    if arguments.command == "batch":
        return arguments.entries.encode()
    request: dict[str, Any] = {"jsonrpc": "2.0", "method": arguments.method}
    if arguments.params is not None:
        request["params"] = json.loads(arguments.params)
    for name, data in attached(arguments).items():
        reference = {"sha256": rpc.digest(data), "size": len(data), "type": "application/octet-stream"}
        request.setdefault("params", {})[name] = reference
    if arguments.command in ("call", "stream"):
        request["id"] = 1
    return json.dumps(request, separators=(",", ":"), ensure_ascii=False).encode()


def belongs(got: Got, arguments: argparse.Namespace) -> Got:
    """A verified response must also be a response to this body (§12)."""
    if got.report.get("signed") and arguments.command in ("call", "stream") and "responses" not in got.report:
        if got.report["id"] == 1 or (got.report["id"] is None and got.outcome != "result"):
            return got
        return Got("unverifiable", {"why": "the response has another id"})
    if got.outcome == "result" and ("responses" in got.report) != (arguments.command == "batch"):
        return Got("unverifiable", {"why": "the response has another form than the request"})
    return got


async def run(arguments: argparse.Namespace, clock: Clock) -> Got:
    """Executes the command line."""
    clock.error_ms = arguments.clock_ahead_s * 1000
    creds = credentials.load(arguments.creds)
    if arguments.wrong_key:
        creds = wrongly_keyed(creds)
    timeout_ms, wants_reply = arguments.timeout_ms, arguments.command != "notify" or arguments.with_reply
    age_ms = 60_000 if arguments.stale else 0
    async with Client(creds, clock, reconnects=arguments.command == "stream") as client:
        request = client.seal(
            arguments.service,
            body_of(arguments),
            method=arguments.method if arguments.command != "batch" and arguments.method_subject else None,
            # With `--reply-to`, the proof is right: the reply rule is not about signatures.
            reply=arguments.reply_to if wants_reply else "",
            timeout_ms=timeout_ms,
            age_ms=age_ms,
            audience=arguments.audience,
            idempotency_key=arguments.idempotency_key,
            window=arguments.window if arguments.command == "stream" and arguments.window > 0 else None,
        )
        headers = None
        if arguments.no_header:
            headers = {}
        elif arguments.two_headers:
            headers = two_headers(request)
        if arguments.arrays:
            request = as_arrays(request)
        if arguments.tamper:
            request = tampered(request, arguments.tamper)
        await client.publish(request, headers)
        if arguments.command == "stream":
            wishes = streams.Wishes(
                cancel_after_items=arguments.cancel_after_items,
                cancel_after_s=None if arguments.cancel_after_ms is None else arguments.cancel_after_ms / 1000,
                lease_ms=timeout_ms if arguments.renew else None,
                answer=None if arguments.answer is None else json.loads(arguments.answer),
                attached={rpc.digest(data): data for data in attached(arguments).values()},
                lose=set(arguments.lose),
                lose_answers=arguments.lose_answers,
            )
            return belongs(await client.stream(request, timeout_ms, wishes), arguments)
        if not wants_reply:
            # Gives the broker a moment to object.
            return await client.next(request, time.monotonic() + 0.2) or Got("sent", {})
        misbehaves = any(
            (
                arguments.tamper,
                arguments.no_header,
                arguments.two_headers,
                arguments.stale,
                arguments.wrong_key,
                arguments.body,
                arguments.arrays,
            )
        )
        until = time.monotonic() + timeout_ms / 1000
        if misbehaves:
            return await client.next(request, until) or Got("timeout", {})
        got = belongs(await client.answer(request, timeout_ms), arguments)
        if arguments.command == "notify" and got.outcome == "timeout":
            # A notification gets only silence, unless the whole message was refused.
            got = Got("sent", {})
        if arguments.replay:
            await client.publish(request, headers)
            second = await client.next(request, until) or Got("timeout", {})
            return Got(second.outcome, {**second.report, "first": got.outcome})
        return got


def parse(argv: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--creds", type=Path, required=True, help="credentials file, SPEC.md §20")
    parser.add_argument("--timeout-ms", type=int, default=5000, help="how long to wait, milliseconds (5000)")
    parser.add_argument("--method-subject", action="store_true", help="publish to the method's own subject")
    parser.add_argument("--idempotency-key", help="the claim `idk`")
    bad = parser.add_argument_group("misbehaviour, for tests")
    bad.add_argument("--tamper", choices=["payload", "subject", "reply", "token"], help="change this after signing")
    bad.add_argument("--replay", action="store_true", help="publish the same bytes again after the answer")
    bad.add_argument("--no-header", action="store_true", help="leave the authorization header out")
    bad.add_argument("--two-headers", action="store_true", help="send it twice, spelled differently")
    bad.add_argument("--stale", action="store_true", help="sign as a minute ago")
    bad.add_argument("--clock-ahead-s", type=int, default=0, help="take the time for so much later, seconds")
    bad.add_argument("--wrong-key", action="store_true", help="sign with another key under the same key id")
    bad.add_argument("--audience", help="sign for this audience instead")
    bad.add_argument("--arrays", action="store_true", help="write the proof's header and claims as arrays")
    bad.add_argument("--body", help="send exactly this instead of a well-formed request")
    bad.add_argument("--reply-to", metavar="SUBJECT", help="ask for the answer on any subject")
    commands = parser.add_subparsers(dest="command", required=True)
    for name in ("call", "notify", "stream"):
        command = commands.add_parser(name)
        command.add_argument("service")
        command.add_argument("method")
        command.add_argument("params", nargs="?", help="JSON, an object or an array")
        command.set_defaults(with_reply=False)
    commands.choices["notify"].add_argument("--with-reply", action="store_true", help="learn of refusals")
    stream = commands.choices["stream"]
    stream.add_argument("--window", type=int, default=32, help="frames beyond those acknowledged (32); 0 for none")
    stream.add_argument("--cancel-after-items", type=int, metavar="N", help="cancel when so many items were taken")
    stream.add_argument("--cancel-after-ms", type=int, metavar="MS", help="cancel after so long")
    stream.add_argument("--renew", action="store_true", help="renew the deadline, by as much as the first one")
    stream.add_argument("--answer", metavar="JSON", help="the result that questions are answered with")
    stream.add_argument("--attach", action="append", default=[], metavar="NAME=FILE", help="a large argument (§25.6)")
    stream.add_argument("--lose", type=int, action="append", default=[], metavar="SEQ", help="lose this frame, once")
    stream.add_argument("--lose-answers", type=int, default=0, metavar="N", help="lose the first answers on the way")
    batch = commands.add_parser("batch")
    batch.add_argument("service")
    batch.add_argument("entries", help="a JSON array of requests, sent as it is")
    return parser.parse_args(argv)


def perform(argv: list[str], clock: Clock) -> tuple[int, str]:
    """Runs one command: returns its exit code and the line to print."""
    arguments = parse(argv)
    started = time.monotonic()
    try:
        got = asyncio.run(run(arguments, clock))
    except FileNotFoundError:
        raise
    except (nats.errors.Error, OSError) as error:
        got = Got("not_connected", {"message": str(error)})
    elapsed = round((time.monotonic() - started) * 1000)
    code = EXIT[got.outcome]
    return code, json.dumps({"exit": code, "outcome": got.outcome, **got.report, "elapsed_ms": elapsed})


def main(argv: list[str]) -> int:
    # Kept from one command to the next.
    clock = Clock()
    try:
        if argv != ["--commands"]:
            code, line = perform(argv, clock)
            print(line)
            return code
        for command in sys.stdin:
            print(perform(json.loads(command), clock)[1], flush=True)
        return 0
    except (credentials.BadCredentials, json.JSONDecodeError, FileNotFoundError) as error:
        print(error, file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
