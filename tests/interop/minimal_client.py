"""A client of the `nats-rpc-v1` profile, written from docs/spec/client.md alone, whose sections it cites. Usage:
    minimal_client.py CREDENTIALS SERVICE METHOD PARAMS TIMEOUT_MS
Prints one line of JSON with the outcome, and exits with 0 for a result. Never shows an answer that does not verify."""

import asyncio
import contextlib
import hmac
import json
import os
import sys
import time
from base64 import urlsafe_b64decode, urlsafe_b64encode
from hashlib import sha256
from urllib.parse import urlsplit

import nats
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

ORDER_8 = int.from_bytes(bytes.fromhex("26e8958fc2b227b045c3f489f2ef98f0d5dfac05d3c63339b13802886d53fc05"), "little")
HINTS = {b'{"jsonrpc":"2.0","error":{"code":%d,"message":"%s"},"id":null}' % (code, name): code for code, name in
         [(-32010, b"unauthenticated"), (-32014, b"overloaded"), (-32015, b"too large")]}


def check(holds, why):
    if not holds:
        raise ValueError(why)


def b64(data: bytes) -> str:  # §4
    return urlsafe_b64encode(data).rstrip(b"=").decode()


def unb64(text: str) -> bytes:
    data = urlsafe_b64decode(text + "=" * (-len(text) % 4))
    check(text and b64(data) == text, "not canonical base64url")
    return data


def digest(data: bytes) -> str:
    return b64(sha256(data).digest())


def parse(part: str) -> dict:  # no member twice; only what is written as a plain integer becomes an `int`
    pairs = lambda members: check(len(dict(members)) == len(members), "a member twice") or dict(members)  # noqa: E731
    integer = lambda digits: int(digits) if digits.isdigit() and int(digits) < 2**53 else None  # noqa: E731
    return json.loads(unb64(part).decode(), object_pairs_hook=pairs, parse_int=integer)


def public_key(x: str) -> Ed25519PublicKey:  # §5.3
    y, p = int.from_bytes(unb64(x), "little") % 2**255, 2**255 - 19
    check(y < p and y not in (0, 1, p - 1, ORDER_8, p - ORDER_8), "a key for which anybody could sign")
    return Ed25519PublicKey.from_public_bytes(unb64(x))


class Call:
    """One signed request, and how to tell its answer from everything else. `key` is that of the credentials."""

    def __init__(self, key, token, audience, subject, reply, payload, now_ms, timeout_ms=None, nonce=None):  # §6
        self.key, self.audience, self.reply, iat = key, audience, reply, now_ms // 1000
        claims = {"aud": audience, "to": subject, "rto": reply, "iat": iat, "exp": iat + 30,
                  "jti": b64(nonce or os.urandom(16)), "ath": digest(token.encode()), "dig": digest(payload)}
        claims |= {} if timeout_ms is None else {"tmo": min(timeout_ms + now_ms - iat * 1000, 600_000)}
        parts = {"alg": key["alg"], "kid": key["kid"], "typ": "nats-rpc-v1+jwt"}, claims
        text = ".".join(b64(json.dumps(part, separators=(",", ":")).encode()) for part in parts)
        if key["alg"] == "HS256":  # §5.2; RFC 5869 with one block
            extracted = hmac.digest(bytes(32), unb64(key["secret"]), "sha256")
            self.derived = hmac.digest(extracted, f"nats-rpc-v1|{audience}|{key['kid']}\x01".encode(), "sha256")
            signature = hmac.digest(self.derived, text.encode(), "sha256")
        else:
            signature = Ed25519PrivateKey.from_private_bytes(unb64(key["seed"])).sign(text.encode())
        self.proof = f"{text}.{b64(signature)}"

    def verify(self, subject, headers, payload, pinned):
        """The nine conditions of §12; raises unless all hold. `pinned` has the service's keys by their `kid`."""
        proofs = [value for name, value in headers.items() if name.lower() == "authentication-info"]
        check(len(proofs) == 1 and proofs[0].startswith("NatsRpc "), "1: not one header of this form")
        first, second, signature = proofs[0].removeprefix("NatsRpc ").split(".")
        head, claims, signed = parse(first), parse(second), f"{first}.{second}".encode()
        check(head.keys() == {"alg", "kid", "typ"} and head["typ"] == "nats-rpc-v1-reply+jwt", "2: another header")
        kids = [self.key["kid"]] if self.key["alg"] == "HS256" else pinned
        check(head["alg"] == self.key["alg"] and head["kid"] in kids, "3: another key or algorithm")
        if head["alg"] == "HS256":
            mac = hmac.digest(self.derived, signed, "sha256")
            check(hmac.compare_digest(mac, unb64(signature)), "4: the signature does not hold")
        else:
            pinned[head["kid"]].verify(unb64(signature), signed)  # 4
        check(claims.keys() == {"iss", "to", "iat", "req", "dig"} and type(claims["iat"]) is int, "5: other claims")
        check(claims["to"] == subject == self.reply, "6: for another subject")
        check(claims["req"] == digest(self.proof.encode()), "7: to another request")
        check(claims["iss"] == self.audience, "8: from another service")
        check(claims["dig"] == digest(payload), "9: with another payload")

    def judge(self, call_id, subject, headers, payload, pinned) -> dict:
        """What has arrived: the result or error of this call, a hint (§13), or nothing of the kind."""
        if payload in HINTS and not headers or not payload and headers.get("Status") == "503":
            return {"outcome": "hint", "code": HINTS.get(payload, 503)}
        try:
            self.verify(subject, headers, payload, pinned)
            response = json.loads(payload.decode())
            check(response["jsonrpc"] == "2.0" and ("result" in response) != ("error" in response), "no response")
            check(response["id"] in (call_id, None if "error" in response else call_id), "to another call")
            if "result" in response:
                return {"outcome": "result", "result": response["result"]}
            code, message, own = response["error"]["code"], response["error"]["message"], "application_error" in response
            kind = "application error" if own else "copy refused" if code in (-32011, -32012) else "error"  # §14, §9.1
            return {"outcome": kind, "code": code, "message": message}
        except Exception as error:  # whatever is wrong with it, it is no answer
            return {"outcome": "unverifiable", "why": str(error) or type(error).__name__}


def secret(path: str) -> str:  # §20
    with open(path) as file:
        status = os.fstat(file.fileno())
        check(not status.st_mode & 0o077 and status.st_uid in (0, os.getuid()), "others can use a file of secrets")
        return file.read()


async def main(path: str, service: str, method: str, params: str, timeout_ms: int) -> dict:
    creds = json.loads(secret(path))
    key, bus, agent = creds["key"], creds["nats"], creds["agent"]
    known = set("version environment agent key token token_file nats service_keys prefix inbox_prefix".split())
    check(creds["version"] == 1 and creds.keys() <= known and bus.keys() <= {"urls", "user", "password"}, "new members")
    for url in map(urlsplit, bus["urls"]):
        safe = url.scheme == "tls" or url.scheme == "nats" and url.hostname in ("127.0.0.1", "::1")
        check(safe and "@" not in url.netloc, "an address that a password must not go to")
    pinned = {pin["kid"]: public_key(pin["x"]) for pin in creds.get("service_keys", {}).get(service, [])}
    check(("token" in creds) != ("token_file" in creds) and (pinned or "secret" in key), "not one token, or no pin")
    token = (creds.get("token") or secret(os.path.join(os.path.dirname(path), creds["token_file"]))).strip()
    nc = await nats.connect(bus["urls"], user=bus.get("user"), password=bus.get("password"), allow_reconnect=False)
    inbox = f"{creds.get('inbox_prefix', '_INBOX')}.{agent}.{os.urandom(8).hex()}"
    arrivals = await nc.subscribe(f"{inbox}.*")
    payload = json.dumps({"jsonrpc": "2.0", "method": method, "params": json.loads(params), "id": "1"}).encode()
    subject, audience = f"{creds.get('prefix', 'rpc.v1')}.{service}.{agent}", f"{creds['environment']}/{service}"
    call = Call(key, token, audience, subject, f"{inbox}.1", payload, time.time_ns() // 1_000_000, timeout_ms)
    check(len(payload) + len(token) + len(call.proof) + 38 <= nc.max_payload, "more than the broker takes")  # §6
    await nc.publish(subject, payload, call.reply, {"Authorization": f"NatsRpc {token}~{call.proof}"})
    until, outcome = time.monotonic() + timeout_ms / 1000, {"outcome": "timeout"}
    with contextlib.suppress(nats.errors.TimeoutError):
        while outcome["outcome"] in ("timeout", "unverifiable", "copy refused"):
            got = await arrivals.next_msg(until - time.monotonic())
            seen = call.judge("1", got.subject, got.headers or {}, got.data, pinned)
            outcome = seen if seen["outcome"] != "unverifiable" or outcome["outcome"] != "copy refused" else outcome
    await nc.close()
    return outcome


if __name__ == "__main__":
    shown = asyncio.run(main(*sys.argv[1:5], int(sys.argv[5])))
    print(json.dumps(shown))
    sys.exit(shown["outcome"] != "result")
