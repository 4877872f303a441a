"""A service of the `nats-rpc-v1` profile with two methods, written from SPEC.md, for tests of clients.

    service.py FOLDER --url nats://127.0.0.1:4222

Makes throw-away keys, writes `planner.creds.json` (HMAC) and `scout.creds.json` (Ed25519) into FOLDER, prints `ready`
once it is subscribed, and serves `math/add` and, to nobody, `admin/reset`. It connects as the user `svc`, and the
agents as users with their own names, all with the password `interop`.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import time
from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

import nats_rpc_v1 as rpc
from client import RawHeaders, RawNatsClient
from judge import Service

ENVIRONMENT, SERVICE, ISSUER = "dev", "math", "https://issuer.example"
AUDIENCE = f"{ENVIRONMENT}/{SERVICE}"
SERVICE_KID = f"svc:{AUDIENCE}:1"
CODES = {
    "stale": -32011,
    "overloaded": -32014,
    "replayed": -32012,
    "invalid request": -32600,
    "parse error": -32700,
    "timeout": -32003,
}
HINTS = {
    "unauthenticated": b'{"jsonrpc":"2.0","error":{"code":-32010,"message":"unauthenticated"},"id":null}',
    "too large": b'{"jsonrpc":"2.0","error":{"code":-32015,"message":"too large"},"id":null}',
}


def set_up(folder: Path, url: str, service_key: Ed25519PrivateKey) -> dict[str, Any]:
    """Makes keys and credentials, and returns what the judge needs, in the form of the vectors."""
    issuer = Ed25519PrivateKey.generate()
    records = [new_agent(folder, url, "planner", "HS256", issuer, service_key)]
    records.append(new_agent(folder, url, "scout", "EdDSA", issuer, service_key))
    return {
        "service": AUDIENCE,
        "prefix": "rpc.v1",
        "issuer": ISSUER,
        "window_s": 30,
        "skew_s": 5,
        "agent_keys": records,
        "token_keys": {"keys": [{"kid": "issuer-1", "alg": "EdDSA", "x": public(issuer)}]},
    }


def public(key: Ed25519PrivateKey) -> str:
    return rpc.b64(key.public_key().public_bytes_raw())


def new_agent(
    folder: Path, url: str, agent: str, alg: str, issuer: Ed25519PrivateKey, service_key: Ed25519PrivateKey
) -> dict[str, Any]:
    """Writes the agent's credentials file and returns its key record."""
    kid, secret, now = f"{agent}.k1", os.urandom(32), int(time.time())
    claims = {
        "iss": ISSUER,
        "sub": agent,
        "aud": AUDIENCE,
        "iat": now,
        "exp": now + 900,
        "jti": f"{agent}-1",
        "roles": ["calc"],
        "cnf": {"kid": kid},
    }
    path = folder / f"{agent}.creds.json"
    path.touch(mode=0o600)
    path.write_text(
        json.dumps(
            {
                "version": 1,
                "environment": ENVIRONMENT,
                "agent": agent,
                "key": {"kid": kid, "alg": alg, "secret" if alg == "HS256" else "seed": rpc.b64(secret)},
                "token": rpc.sign({"alg": "EdDSA", "kid": "issuer-1", "typ": "at+jwt"}, claims, issuer),
                "nats": {"urls": [url], "user": agent, "password": "interop"},
                "service_keys": {SERVICE: [{"kid": SERVICE_KID, "x": public(service_key)}]},
            }
        )
    )
    record = {"kid": kid, "owner": agent, "alg": alg}
    if alg == "HS256":
        return {**record, "service_key_hex": rpc.derive(secret, AUDIENCE, kid).hex()}
    return {**record, "jwk": {"x": public(Ed25519PrivateKey.from_private_bytes(secret))}}


def execute(body: Any) -> Any:
    """The response, or the responses; `None` if there are none."""
    if isinstance(body, list):
        responses = [response for entry in body if (response := execute(entry)) is not None]
        return responses or None
    outcome = {"error": {"code": -32002, "message": "permission denied"}}
    if not isinstance(body, dict) or body.get("jsonrpc") != "2.0" or not isinstance(body.get("method"), str):
        return {"jsonrpc": "2.0", "error": {"code": -32600, "message": "invalid request"}, "id": None}
    if body["method"] == "math/add":
        params = body.get("params", [])
        try:
            a, b = (params["a"], params["b"]) if isinstance(params, dict) else params
            outcome = {"result": a + b}
        except (KeyError, TypeError, ValueError):
            outcome = {"error": {"code": -32602, "message": "invalid params"}}
    return {"jsonrpc": "2.0", **outcome, "id": body["id"]} if "id" in body else None


def seal(service: Service, key: Ed25519PrivateKey, authorization: str, reply: str, answer: Any) -> tuple[str, bytes]:
    """The value of `Authentication-Info`, and the payload (§12)."""
    payload = json.dumps(answer).encode()
    proof = authorization.split("~")[1]
    kid = rpc.split_jws(proof)[0]["kid"]
    record = service.ring[kid]
    signing_key = record["key"] if record["alg"] == "HS256" else key
    header = {"alg": record["alg"], "kid": kid if record["alg"] == "HS256" else SERVICE_KID, "typ": rpc.REPLY_TYP}
    claims = {
        "iss": AUDIENCE,
        "to": reply,
        "iat": int(time.time()),
        "req": rpc.digest(proof.encode()),
        "dig": rpc.digest(payload),
    }
    return rpc.SCHEME + rpc.sign(header, claims, signing_key), payload


async def serve(folder: Path, url: str) -> None:
    key = Ed25519PrivateKey.generate()
    service = Service(set_up(folder, url, key))
    connection = RawNatsClient()
    await connection.connect(url, user="svc", password="interop")

    async def handle(message: Any) -> None:
        lines = message.headers.lines() if isinstance(message.headers, RawHeaders) else []
        got = service.judge(message.subject, message.reply, lines, message.data, time.time_ns() // 1_000_000)
        if not message.reply or got in ("dropped", "not executed"):
            return
        if got in HINTS:
            await connection.publish(message.reply, HINTS[got])
            return
        answer = execute(json.loads(message.data)) if got == "accept" else None
        if got != "accept":
            error: dict[str, Any] = {"code": CODES[got], "message": got}
            if got == "stale":
                error["data"] = {"server_time": int(time.time())}
            answer = {"jsonrpc": "2.0", "error": error, "id": None}
        if answer is not None:
            authorization = next(value for name, value in lines if name.lower() == "authorization")
            value, payload = seal(service, key, authorization, message.reply, answer)
            await connection.publish(message.reply, payload, headers={"Authentication-Info": value})

    await connection.subscribe(f"rpc.v1.{SERVICE}.>", queue="q", cb=handle)
    await connection.flush()
    print("ready", flush=True)
    await asyncio.Event().wait()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--url", required=True)
    arguments = parser.parse_args()
    asyncio.run(serve(arguments.folder, arguments.url))
