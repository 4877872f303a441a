"""Judges every vector in tests/vectors as SPEC.md says, and checks the worked example in SPEC.md.

Written from SPEC.md alone, as a second opinion on it and on the vectors. Exits 0 only if everything is as expected.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import re
import sys
from pathlib import Path
from typing import Any

import jwt
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

import nats_rpc_v1 as rpc
from nats_rpc_v1 import Refused

ROOT = Path(__file__).resolve().parents[2]
TOKEN68 = re.compile(r"[A-Za-z0-9\-._~+/]+=*")
TOKEN_KID = re.compile(r"[A-Za-z0-9._:-]{1,64}")
REFUSED_TOKEN_HEADERS = {"crit", "jwk", "jku", "x5u", "x5c", "zip", "enc", "b64"}
TOKEN_LEEWAY_S = 5
TOKEN_LIFE_S = 3600


class Answer(Exception):
    """How a judgement ends other than with `accept`."""

    def __init__(self, outcome: str, why: str) -> None:
        super().__init__(f"{outcome}: {why}")
        self.outcome = outcome


def unauthenticated(why: str) -> Answer:
    return Answer("unauthenticated", why)


class Service:
    """The judgement of §10, with a guard that lives as long as this object."""

    def __init__(self, vectors: dict[str, Any]) -> None:
        self.audience: str = vectors["service"]
        self.service = self.audience.split("/")[1]
        self.prefix: str = vectors["prefix"]
        self.issuer: str = vectors["issuer"]
        self.window: int = vectors["window_s"]
        self.skew: int = vectors["skew_s"]
        self.fence = 0
        self.seen: set[tuple[str, str]] = set()
        self.ring: dict[str, dict[str, Any]] = {}
        for record in vectors["agent_keys"]:
            if record["alg"] == "HS256":
                key = rpc.derive(bytes.fromhex(record["master_hex"]), self.audience, record["kid"])
                assert key.hex() == record["service_key_hex"], "the vectors' derived key"
                jkt = None
            else:
                key = Ed25519PublicKey.from_public_bytes(rpc.unb64(record["jwk"]["x"]))
                jkt = rpc.thumbprint(record["jwk"]["x"])
            self.ring[record["kid"]] = {"owner": record["owner"], "alg": record["alg"], "key": key, "jkt": jkt}
        self.token_keys = {
            key["kid"]: (key["alg"], Ed25519PublicKey.from_public_bytes(rpc.unb64(key["x"])))
            for key in vectors["token_keys"]["keys"]
        }

    def judge(
        self, subject: str, reply: str, headers: list[tuple[str, str]], payload: bytes, now_ms: int
    ) -> str:
        """`accept`, or what the message gets instead."""
        try:
            self._judge(subject, reply, headers, payload, now_ms)
        except Answer as answer:
            return answer.outcome
        return "accept"

    def _judge(
        self, subject: str, reply: str, headers: list[tuple[str, str]], payload: bytes, now_ms: int
    ) -> None:
        agent = self._reply_rule(subject, reply)
        token, proof, method_subject = self._shape(subject, headers, payload)
        try:
            kid, record = self._record(proof, agent)
            claims = self._claims(proof, record, subject, reply, token, payload)
        except Refused as refused:
            raise unauthenticated(str(refused)) from refused
        self._window(claims, now_ms // 1000)
        try:
            self._token(token, kid, record, now_ms // 1000)
        except Refused as refused:
            raise unauthenticated(str(refused)) from refused
        nonce = (record["owner"], claims["jti"])
        if nonce in self.seen:
            raise Answer("replayed", "the nonce was seen")
        self.seen.add(nonce)
        self._body(payload, method_subject, reply)
        deadline = claims["iat"] * 1000 + claims["tmo"] if "tmo" in claims else claims["exp"] * 1000
        if now_ms >= min(claims["exp"] * 1000, deadline):
            raise Answer("timeout", "the deadline passed")

    def _reply_rule(self, subject: str, reply: str) -> str:
        tokens = subject.split(".")
        place = len(self.prefix.split(".")) + 1
        agent = tokens[place] if len(tokens) > place else ""
        if reply:
            rest = reply.removeprefix(f"_INBOX.{agent}.")
            legal = all(token and token not in ("*", ">") for token in rest.split(".")) and is_visible(rest)
            if not rpc.NAME.fullmatch(agent) or rest == reply or not legal:
                raise Answer("dropped", "the reply subject is not the agent's")
        return agent

    def _shape(
        self, subject: str, headers: list[tuple[str, str]], payload: bytes
    ) -> tuple[str, str, str | None]:
        if len(payload) > 192 * 1024:
            raise Answer("too large", "payload")
        if len(headers) > 32 or sum(len(name) + len(value) for name, value in headers) > 16384:
            raise unauthenticated("headers over their limit")
        values = [value for name, value in headers if name.lower() == "authorization"]
        if len(values) != 1:
            raise unauthenticated("not exactly one authorization header")
        value = values[0]
        credentials = value.removeprefix(rpc.SCHEME)
        if len(value) > 8192 or credentials == value or not TOKEN68.fullmatch(credentials):
            raise unauthenticated("the authorization header's form")
        if credentials.count("~") != 1:
            raise unauthenticated("not one tilde")
        token, proof = credentials.split("~")
        tokens = subject.split(".")
        head = [*self.prefix.split("."), self.service]
        if not is_visible(subject) or any(token in ("", "*", ">") for token in tokens):
            raise unauthenticated("not a subject")
        if tokens[: len(head)] != head or len(tokens) == len(head):
            raise unauthenticated("not a subject of this service")
        if not rpc.NAME.fullmatch(tokens[len(head)]):
            raise unauthenticated("not an agent's name")
        rest = tokens[len(head) + 1 :]
        return token, proof, ".".join(rest) if rest else None

    def _record(self, proof: str, agent: str) -> tuple[str, dict[str, Any]]:
        header, _, _ = rpc.split_jws(proof)
        if set(header) != {"alg", "kid", "typ"} or header["typ"] != rpc.REQUEST_TYP:
            raise Refused("not the header of a request's proof")
        kid = header["kid"]
        if not isinstance(kid, str) or not rpc.KID.fullmatch(kid) or kid not in self.ring:
            raise Refused("no such key")
        record = self.ring[kid]
        if record["alg"] != header["alg"] or record["owner"] != agent:
            raise Refused("another algorithm or owner")
        return kid, record

    def _claims(
        self, proof: str, record: dict[str, Any], subject: str, reply: str, token: str, payload: bytes
    ) -> dict[str, Any]:
        if not rpc.verify(proof, record["key"], record["alg"]):
            raise Refused("the signature does not hold")
        claims = rpc.parse_object(rpc.unb64(proof.split(".")[1]))
        required = {"aud", "to", "rto", "iat", "exp", "jti", "ath", "dig"}
        if not required <= set(claims) <= required | {"tmo", "idk"}:
            raise Refused("claims are missing, or unknown")
        if not all(isinstance(claims[name], str) for name in ("aud", "to", "rto", "jti", "ath", "dig")):
            raise Refused("a claim of another type")
        if not is_nonce(claims["jti"]):
            raise Refused("the nonce is not 16 bytes")
        if not rpc.is_integer(claims["iat"]) or not rpc.is_integer(claims["exp"]):
            raise Refused("a time that is not an integer")
        if "tmo" in claims and not (rpc.is_integer(claims["tmo"]) and 1 <= claims["tmo"] <= rpc.MAX_TMO_MS):
            raise Refused("`tmo` is out of range")
        if "idk" in claims and not (isinstance(claims["idk"], str) and re.fullmatch(r"[ -~]{1,128}", claims["idk"])):
            raise Refused("`idk` is not an idempotency key")
        expected = {
            "dig": rpc.digest(payload),
            "aud": self.audience,
            "to": subject,
            "rto": reply,
            "ath": rpc.digest(token.encode("ascii")),
        }
        for name, value in expected.items():
            if claims[name] != value:
                raise Refused(f"`{name}` is another")
        if claims["exp"] <= claims["iat"] or claims["exp"] - claims["iat"] > self.window:
            raise Refused("the window is malformed")
        return claims

    def _window(self, claims: dict[str, Any], now: int) -> None:
        if not (claims["iat"] <= now + self.skew and now < claims["exp"] and claims["iat"] > self.fence):
            raise Answer("stale", "outside the window")

    def _token(self, token: str, kid: str, record: dict[str, Any], now: int) -> None:
        if len(token) > 4096:
            raise Refused("the token is too large")
        header, body, _ = rpc.split_jws(token)
        if REFUSED_TOKEN_HEADERS & set(header):
            raise Refused("a header parameter that is not allowed")
        token_kid = header.get("kid")
        if not isinstance(token_kid, str) or not TOKEN_KID.fullmatch(token_kid) or token_kid not in self.token_keys:
            raise Refused("no such token key")
        alg, key = self.token_keys[token_kid]
        if header.get("alg") != alg or header.get("typ") not in ("at+jwt", "application/at+jwt"):
            raise Refused("the token's algorithm or type")
        # The library checks signature, issuer and audience; its clock cannot be set, so times are checked here.
        try:
            jwt.decode(
                token,
                key,
                algorithms=[alg],
                audience=self.audience,
                issuer=self.issuer,
                options={
                    "require": ["exp", "iat", "iss", "sub", "aud", "jti"],
                    "verify_exp": False,
                    "verify_iat": False,
                    "verify_nbf": False,
                },
            )
        except jwt.PyJWTError as error:
            raise Refused(f"the token: {error}") from error
        claims = rpc.parse_object(body)
        times = [claims["exp"], claims["iat"], claims.get("nbf", 0)]
        if not all(rpc.is_integer(time) for time in times):
            raise Refused("a time that is not an integer")
        exp, iat, nbf = times
        if now >= exp + TOKEN_LEEWAY_S or iat > now + TOKEN_LEEWAY_S or nbf > now + TOKEN_LEEWAY_S:
            raise Refused("the token is not valid now")
        if exp - iat > TOKEN_LIFE_S:
            raise Refused("the token lives too long")
        sub = claims["sub"]
        if not isinstance(sub, str) or not 1 <= len(sub) <= 128 or not sub.isprintable():
            raise Refused("`sub`")
        if not isinstance(claims["iss"], str) or not isinstance(claims["jti"], str) or not claims["jti"]:
            raise Refused("`iss` or `jti`")
        roles = claims.get("roles", [])
        if not isinstance(roles, list) or not all(isinstance(role, str) for role in roles):
            raise Refused("`roles`")
        if actor(claims) != record["owner"]:
            raise Refused("the actor is not the key's owner")
        if "cnf" in claims:
            cnf = claims["cnf"]
            if not isinstance(cnf, dict) or not cnf or not set(cnf) <= {"kid", "jkt"}:
                raise Refused("`cnf` has other members")
            if cnf.get("kid", kid) != kid or ("jkt" in cnf and cnf["jkt"] != record["jkt"]):
                raise Refused("`cnf` names another key")

    def _body(self, payload: bytes, method_subject: str | None, reply: str) -> None:
        try:
            body = rpc.parse_json(payload)
        except Refused as refused:
            duplicate = "twice" in str(refused)
            raise Answer("invalid request" if duplicate else "parse error", str(refused)) from refused
        if depth(body) > 64:
            raise Answer("parse error", "too deep")
        if isinstance(body, list) and (not 1 <= len(body) <= 50 or method_subject is not None):
            raise Answer("invalid request", "the batch")
        if isinstance(body, dict) and method_subject is not None:
            if str(body.get("method")).replace("/", ".") != method_subject:
                raise Answer("invalid request", "the subject names another method")
        if not isinstance(body, (dict, list)):
            raise Answer("invalid request", "neither object nor array")
        if not reply and (isinstance(body, list) or "id" in body):
            raise Answer("not executed", "nobody could be told")


def actor(claims: dict[str, Any]) -> str:
    """`act.sub` if there is an actor, else `sub`; at most four actors."""
    if "act" not in claims:
        return claims["sub"]
    act, count = claims["act"], 1
    name = act.get("sub") if isinstance(act, dict) else None
    while True:
        if not isinstance(act, dict) or not isinstance(act.get("sub"), str) or count > 4:
            raise Refused("`act`")
        if "act" not in act:
            return name
        act, count = act["act"], count + 1


def is_visible(text: str) -> bool:
    return all(0x21 <= ord(char) <= 0x7E for char in text)


def is_nonce(text: str) -> bool:
    try:
        return len(text) == 22 and len(rpc.unb64(text)) == 16
    except Refused:
        return False


def depth(value: Any) -> int:
    """The nesting of containers; the outermost is 1."""
    deepest, pending = 0, [(value, 1)]
    while pending:
        item, level = pending.pop()
        if isinstance(item, (dict, list)):
            deepest = max(deepest, level)
            pending.extend((child, level + 1) for child in (item.values() if isinstance(item, dict) else item))
    return deepest


def lines_of(vector: dict[str, Any]) -> list[tuple[str, str]]:
    if vector.get("header_list") is not None:
        return [(name, value) for name, value in vector["header_list"]]
    return list(vector["headers"].items())


def sent(vectors: dict[str, Any], vector: dict[str, Any]) -> rpc.Request:
    """The request as its sender remembers it, rebuilt from a vector."""
    token, proof = vector["headers"]["Authorization"].removeprefix(rpc.SCHEME).split("~")
    header = vector["proof_header"]
    record = next(record for record in vectors["agent_keys"] if record["kid"] == header["kid"])
    secret = bytes.fromhex(record["master_hex"] if record["alg"] == "HS256" else record["seed_hex"])
    key = rpc.ProofKey(header["kid"], header["alg"], secret)
    return rpc.Request(
        vector["subject"],
        vector["reply"],
        vector["payload"].encode(),
        vectors["service"],
        token,
        proof,
        header["alg"],
        header["kid"],
        key.for_service(vectors["service"]),
        vector["proof_claims"]["iat"],
    )


def judge_reply(vectors: dict[str, Any], vector: dict[str, Any]) -> str:
    """The client's judgement of §12."""
    pins = {
        key["kid"]: Ed25519PublicKey.from_public_bytes(rpc.unb64(key["jwk"]["x"])) for key in vectors["service_keys"]
    }
    request = sent(vectors, next(other for other in vectors["vectors"] if other["name"] == vector["answers"]))
    try:
        rpc.take_answer(request, vector["subject"], lines_of(vector), vector["payload"].encode(), pins.get)
    except Refused:
        return "refused by client"
    return "accept"


def check_all(vectors: dict[str, Any], report: "Report") -> None:
    now_ms = vectors["clock"] * 1000
    for vector in vectors["vectors"]:
        if vector["kind"] == "reply":
            got = judge_reply(vectors, vector)
        else:
            payload = vector["payload"].encode()
            got = Service(vectors).judge(vector["subject"], vector["reply"], lines_of(vector), payload, now_ms)
        report.equal(vector["name"], got, vector["expect"])


def check_signing(vectors: dict[str, Any], report: "Report") -> None:
    """Signing what a good vector says must give its bytes: HMAC and Ed25519 are both deterministic."""
    for vector in vectors["vectors"]:
        if vector["expect"] != "accept" or vector["kind"] != "request":
            continue
        old, claims = sent(vectors, vector), vector["proof_claims"]
        record = next(record for record in vectors["agent_keys"] if record["kid"] == old.kid)
        secret = bytes.fromhex(record["master_hex"] if old.alg == "HS256" else record["seed_hex"])
        new = rpc.seal(
            key=rpc.ProofKey(old.kid, old.alg, secret),
            token=old.token,
            audience=old.audience,
            subject=old.subject,
            reply=old.reply,
            payload=old.payload,
            now_ms=claims["iat"] * 1000,
            timeout_ms=claims.get("tmo"),
            idempotency_key=claims.get("idk"),
            nonce=rpc.unb64(claims["jti"]),
        )
        report.equal(f"signing {vector['name']}", new.authorization, vector["headers"]["Authorization"])


def check_replay_and_time(vectors: dict[str, Any], report: "Report") -> None:
    v1, now_ms = vectors["vectors"][0], vectors["clock"] * 1000
    arguments = (v1["subject"], v1["reply"], lines_of(v1), v1["payload"].encode())
    service = Service(vectors)
    report.equal("V1 for the first time", service.judge(*arguments, now_ms), "accept")
    report.equal("V1 for the second time", service.judge(*arguments, now_ms), "replayed")
    iat, exp = v1["proof_claims"]["iat"], v1["proof_claims"]["exp"]
    for name, clock_ms, expected in [
        ("V1 at the earliest", (iat - 5) * 1000, "accept"),
        ("V1 too early", (iat - 5) * 1000 - 1, "stale"),
        ("V1 just before its deadline", iat * 1000 + 4999, "accept"),
        ("V1 at its deadline", iat * 1000 + 5000, "timeout"),
        ("V1 in its last millisecond", exp * 1000 - 1, "timeout"),
        ("V1 at exp", exp * 1000, "stale"),
    ]:
        report.equal(name, Service(vectors).judge(*arguments, clock_ms), expected)
    restarted = Service(vectors)
    restarted.fence = iat
    report.equal("V1 behind the fence", restarted.judge(*arguments, now_ms), "stale")


def check_mutations(vectors: dict[str, Any], report: "Report") -> None:
    """No single changed character of V1 or V6 is accepted."""
    v1, v6 = vectors["vectors"][0], next(v for v in vectors["vectors"] if v["name"].startswith("V6"))
    now_ms, accepted, tried = vectors["clock"] * 1000, [], 0

    def mutants(text: str) -> list[str]:
        return [text[:i] + chr(ord(text[i]) ^ bit) + text[i + 1 :] for i in range(len(text)) for bit in (1, 2)]

    service = Service(vectors)
    value = v1["headers"]["Authorization"]
    offers = [(v1["subject"], v1["reply"], other, v1["payload"]) for other in mutants(value)]
    offers += [(other, v1["reply"], value, v1["payload"]) for other in mutants(v1["subject"])]
    offers += [(v1["subject"], other, value, v1["payload"]) for other in mutants(v1["reply"])]
    offers += [(v1["subject"], v1["reply"], value, other) for other in mutants(v1["payload"])]
    for subject, reply, header, payload in offers:
        tried += 1
        got = service.judge(subject, reply, [("Authorization", header)], payload.encode(), now_ms)
        if got not in ("unauthenticated", "dropped"):
            accepted.append((got, subject, reply, header, payload))
    name, value = next(iter(v6["headers"].items()))
    for header, payload in [(other, v6["payload"]) for other in mutants(value)] + [
        (value, other) for other in mutants(v6["payload"])
    ]:
        tried += 1
        if judge_reply(vectors, {**v6, "headers": {name: header}, "payload": payload}) == "accept":
            accepted.append(("accept", header, payload))
    report.equal(f"{tried} messages with one character changed, accepted", accepted, [])
    report.equal("nonces burnt by them", len(service.seen), 0)


def check_specification(vectors: dict[str, Any], report: "Report") -> None:
    """Every block of SPEC.md that is marked `check` holds what the vectors and the arithmetic give."""
    v1, v6 = vectors["vectors"][0], next(v for v in vectors["vectors"] if v["name"].startswith("V6"))
    token, proof = v1["headers"]["Authorization"].removeprefix(rpc.SCHEME).split("~")
    answer = v6["headers"]["Authentication-Info"].removeprefix(rpc.SCHEME)
    record = vectors["agent_keys"][0]
    # HKDF and HMAC by hand here, so that the derivation is not checked with itself.
    prk = hmac.new(bytes(32), bytes.fromhex(record["master_hex"]), "sha256").digest()
    key = hmac.new(prk, record["info"].encode() + b"\x01", "sha256").digest()

    def part(text: str, index: int) -> str:
        return text.split(".")[index]

    def shown(text: str, index: int) -> str:
        return rpc.unb64(part(text, index)).decode()

    def sha(text: str) -> str:
        return hashlib.sha256(text.encode()).hexdigest()

    def mac(text: str) -> str:
        return hmac.new(key, text.rsplit(".", 1)[0].encode(), "sha256").hexdigest()

    values = {
        "key.ikm": record["master_hex"],
        "key.info": record["info"],
        "key.prk": prk.hex(),
        "key.derived": key.hex(),
        "v1.payload": v1["payload"],
        "v1.payload.sha256": sha(v1["payload"]),
        "v1.dig": rpc.digest(v1["payload"].encode()),
        "v1.token": token,
        "v1.token.header": shown(token, 0),
        "v1.token.claims": shown(token, 1),
        "v1.token.sha256": sha(token),
        "v1.ath": rpc.digest(token.encode()),
        "v1.proof.header": shown(proof, 0),
        "v1.proof.claims": shown(proof, 1),
        "v1.proof.input": proof.rsplit(".", 1)[0],
        "v1.proof.mac": mac(proof),
        "v1.proof.signature": part(proof, 2),
        "v1.proof.sha256": sha(proof),
        "v6.payload": v6["payload"],
        "v6.payload.sha256": sha(v6["payload"]),
        "v6.proof.header": shown(answer, 0),
        "v6.proof.claims": shown(answer, 1),
        "v6.proof.input": answer.rsplit(".", 1)[0],
        "v6.proof.mac": mac(answer),
        "v6.proof.signature": part(answer, 2),
    }
    assert rpc.unb64(values["v1.proof.signature"]).hex() == values["v1.proof.mac"]
    assert rpc.unb64(values["v6.proof.signature"]).hex() == values["v6.proof.mac"]
    text = (ROOT / "SPEC.md").read_text(encoding="utf-8")
    blocks = re.findall(r"<!-- check: ([a-z0-9.]+) -->\n```[a-z]*\n(.*?)\n```", text, re.DOTALL)
    for name, block in blocks:
        # Line breaks are for print.
        report.equal(f"SPEC.md {name}", block.replace("\n", ""), values.get(name))
    report.equal("SPEC.md has every block", sorted(name for name, _ in blocks), sorted(values))
    for name, length in [
        ("payload of 59 bytes", len(v1["payload"])),
        ("363 characters", len(token)),
        ("427 ASCII bytes", len(proof.rsplit(".", 1)[0])),
        ("471 characters of the proof", len(proof)),
        ("843 bytes", len(v1["headers"]["Authorization"])),
        ("payload of 35 bytes", len(v6["payload"])),
        ("MAC input of 315 bytes", len(answer.rsplit(".", 1)[0])),
        ("367 bytes", len(v6["headers"]["Authentication-Info"])),
    ]:
        said = re.search(r"\d+", name)
        report.equal(f"SPEC.md says {name}", (name in text, said and int(said.group())), (True, length))
    ed25519 = vectors["agent_keys"][2]
    seed = Ed25519PrivateKey.from_private_bytes(bytes.fromhex(ed25519["seed_hex"]))
    report.equal("x of the Ed25519 key", rpc.b64(seed.public_key().public_bytes_raw()), ed25519["jwk"]["x"])
    report.equal("its thumbprint", rpc.thumbprint(ed25519["jwk"]["x"]), ed25519["kid"])
    report.equal("SPEC.md shows both", ed25519["jwk"]["x"] in text and ed25519["kid"] in text, True)


class Report:
    """Counts, and prints what differs."""

    def __init__(self) -> None:
        self.passed = 0
        self.failed = 0

    def equal(self, name: str, got: Any, expected: Any) -> None:
        if got == expected:
            self.passed += 1
        else:
            self.failed += 1
            print(f"FAILED {name}\n  expected {expected!r}\n  got      {got!r}")


def main() -> int:
    vectors = json.loads((ROOT / "tests/vectors/nats-rpc-v1.json").read_text(encoding="utf-8"))
    report = Report()
    check_all(vectors, report)
    report.equal("number of vectors", len(vectors["vectors"]), 51)
    check_signing(vectors, report)
    check_replay_and_time(vectors, report)
    check_mutations(vectors, report)
    check_specification(vectors, report)
    print(f"{report.passed} passed, {report.failed} failed")
    return 1 if report.failed else 0


if __name__ == "__main__":
    sys.exit(main())
