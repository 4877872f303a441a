"""Judges every vector in tests/vectors by SPEC.md, and checks its worked examples and the minimal client.

Written from SPEC.md alone, as a check of both SPEC.md and the vectors. Exits 0 only if everything is as expected.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import re
import sys
from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

import minimal_client
import nats_rpc_v1 as rpc
from judge import Service
from nats_rpc_v1 import Refused

ROOT = Path(__file__).resolve().parents[2]
SPECIFICATION = ["SPEC.md", "docs/spec/client.md", "docs/spec/service.md", "docs/spec/extensions.md"]


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
        vector["proof_claims"]["jti"],
        vector["proof_claims"].get("win"),
    )


def pinned(vectors: dict[str, Any]) -> dict[str, Ed25519PublicKey]:
    """The service's public keys by their ids."""
    keys = vectors["service_keys"]
    return {key["kid"]: Ed25519PublicKey.from_public_bytes(rpc.unb64(key["jwk"]["x"])) for key in keys}


def judge_reply(vectors: dict[str, Any], vector: dict[str, Any]) -> str:
    """Judges an answer as a client does by §12."""
    request = sent(vectors, next(other for other in vectors["vectors"] if other["name"] == vector["answers"]))
    try:
        rpc.take_answer(request, vector["subject"], lines_of(vector), vector["payload"].encode(), pinned(vectors).get)
    except Refused:
        return "refused by client"
    return "accept"


def named(vectors: dict[str, Any], name: str) -> dict[str, Any]:
    return next(vector for vector in vectors["vectors"] if name in (vector["name"], vector["name"].split()[0]))


def judge_frame(vectors: dict[str, Any], vector: dict[str, Any]) -> str:
    """Judges a frame as a client does by §25.4, after the earlier frames."""
    stream = rpc.Stream(sent(vectors, named(vectors, vector["answers"])))
    for name in vector["after"]:
        take(vectors, stream, named(vectors, name))
    return take(vectors, stream, vector)


def take(vectors: dict[str, Any], stream: rpc.Stream, vector: dict[str, Any]) -> str:
    arrived = (stream.request, vector["subject"], lines_of(vector), vector["payload"].encode(), pinned(vectors).get)
    try:
        return stream.take(*rpc.take_frame(*arrived))[0]
    except rpc.Lost:
        return "lost"
    except Refused:
        pass
    try:
        rpc.take_answer(*arrived)
    except Refused:
        return "refused by client"
    # Once there was a frame, only an `end` frame is an answer.
    return "accept" if stream.replica is None else "ignored"


def judge_control(vectors: dict[str, Any], vector: dict[str, Any]) -> str:
    """Judges control as a service does by §25.3, after earlier control; all calls that take frames are under way."""
    service, replica, now_ms = Service(vectors), vectors["replica"], vectors["clock"] * 1000
    for request in vectors["vectors"]:
        if request["kind"] == "request" and request["expect"] == "accept" and "win" in request["proof_claims"]:
            service.open_call(replica, request["subject"], lines_of(request))
    got = ""
    for message in [*(named(vectors, name) for name in vector["after"]), vector]:
        got = service.control(replica, message["subject"], lines_of(message), message["payload"].encode(), now_ms)
    return got


def check_all(vectors: dict[str, Any], report: Report) -> None:
    now_ms = vectors["clock"] * 1000
    for vector in vectors["vectors"]:
        if vector["kind"] == "reply":
            got = judge_reply(vectors, vector)
        elif vector["kind"] == "frame":
            got = judge_frame(vectors, vector)
        elif vector["kind"] == "control":
            got = judge_control(vectors, vector)
        else:
            payload = vector["payload"].encode()
            got = Service(vectors).judge(vector["subject"], vector["reply"], lines_of(vector), payload, now_ms)
        report.equal(vector["name"], got, vector["expect"])


def check_presences(vectors: dict[str, Any], report: Report) -> None:
    """Judges what replicas say about themselves, as the one who asked does by §18."""
    for vector in vectors["presences"]:
        payload = vector["payload"].encode()
        got = "believe"
        try:
            lines = lines_of(vector)
            rpc.believe_presence(
                vectors["service"], vector["nonce"], vector["subject"], lines, payload, pinned(vectors).get
            )
        except Refused:
            got = "disbelieve"
        report.equal(vector["name"], got, vector["expect"])
        if vector["expect"] == "believe":
            check_signing_by_service(vectors, vector, report)


def check_news(vectors: dict[str, Any], report: Report) -> None:
    """Judges what is published about approvals, as those who listen do by §6.3."""
    for vector in vectors["news"]:
        got, lines = "believe", lines_of(vector)
        try:
            payload = vector["payload"].encode()
            rpc.believe_news(vectors["service"], vector["subject"], lines, payload, pinned(vectors).get)
        except Refused:
            got = "disbelieve"
        report.equal(vector["name"], got, vector["expect"])
        if vector["expect"] == "believe":
            check_signing_by_service(vectors, vector, report)


def check_signing_by_service(vectors: dict[str, Any], vector: dict[str, Any], report: Report) -> None:
    key = Ed25519PrivateKey.from_private_bytes(bytes.fromhex(vectors["service_keys"][0]["seed_hex"]))
    signed = rpc.sign(vector["proof_header"], vector["proof_claims"], key)
    report.equal(f"signing {vector['name']}", signed, rpc.proof_of(lines_of(vector)))


def check_signing(vectors: dict[str, Any], report: Report) -> None:
    """Signing the claims of a good vector must give its bytes: HMAC and Ed25519 are both deterministic."""
    for vector in vectors["vectors"]:
        if vector["expect"] == "accept" and vector["kind"] == "control":
            check_signing_control(vectors, vector, report)
        if vector["expect"] == "accept" and vector["kind"] == "frame":
            check_signing_frame(vectors, vector, report)
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
            window=claims.get("win"),
            traceparent=claims.get("tp"),
            capabilities=claims.get("cap"),
            task_ms=claims.get("det"),
            nonce=rpc.unb64(claims["jti"]),
        )
        report.equal(f"signing {vector['name']}", new.authorization, vector["headers"]["Authorization"])


def check_signing_control(vectors: dict[str, Any], vector: dict[str, Any], report: Report) -> None:
    request, claims = sent(vectors, named(vectors, vector["controls"])), vector["proof_claims"]
    record = next(record for record in vectors["agent_keys"] if record["kid"] == vector["proof_header"]["kid"])
    secret = bytes.fromhex(record["master_hex"] if record["alg"] == "HS256" else record["seed_hex"])
    signed = rpc.seal_control(
        key=rpc.ProofKey(record["kid"], record["alg"], secret),
        token=vector["headers"]["Authorization"].removeprefix(rpc.SCHEME).split("~")[0],
        request=request,
        subject=vector["subject"],
        payload=vector["payload"].encode(),
        now_ms=claims["iat"] * 1000,
        counter=claims["ctr"],
        op=claims["op"],
        **{name: claims[name] for name in ("ack", "win", "tmo", "ask") if name in claims},
    )
    report.equal(f"signing {vector['name']}", signed, vector["headers"]["Authorization"])


def check_signing_frame(vectors: dict[str, Any], vector: dict[str, Any], report: Report) -> None:
    key: bytes | Ed25519PrivateKey
    if vector["proof_header"]["alg"] == "HS256":
        key = bytes.fromhex(vectors["agent_keys"][0]["service_key_hex"])
    else:
        key = Ed25519PrivateKey.from_private_bytes(bytes.fromhex(vectors["service_keys"][0]["seed_hex"]))
    signed = rpc.sign(vector["proof_header"], vector["proof_claims"], key)
    report.equal(f"signing {vector['name']}", signed, rpc.proof_of(lines_of(vector)))


def check_replay_and_time(vectors: dict[str, Any], report: Report) -> None:
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
    report.equal("V1 behind the fence", restarted.judge(*arguments, now_ms), "overloaded")
    report.equal("V1 behind a fence that is past", restarted.judge(*arguments, (iat + 6) * 1000), "stale")


def check_mutations(vectors: dict[str, Any], report: Report) -> None:
    """V1, V6, F2 and C1 are refused if any single character is changed."""
    v1, v6 = vectors["vectors"][0], next(v for v in vectors["vectors"] if v["name"].startswith("V6"))
    now_ms, tried = vectors["clock"] * 1000, 0
    accepted: list[tuple[str, ...]] = []

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
    f2, c1 = named(vectors, "F2"), named(vectors, "C1")
    value = f2["headers"]["Authentication-Info"]
    for other in mutants(value):
        tried += 1
        if (got := judge_frame(vectors, {**f2, "headers": {"Authentication-Info": other}})) != "refused by client":
            accepted.append((got, other))
    for other in mutants(c1["headers"]["Authorization"]):
        tried += 1
        if (got := judge_control(vectors, {**c1, "headers": {"Authorization": other}})) != "dropped":
            accepted.append((got, other))
    report.equal(f"{tried} messages with one character changed, accepted", accepted, [])
    report.equal("nonces burnt by them", len(service.seen), 0)


def proof_in(vectors: dict[str, Any], name: str) -> str:
    """The text of a vector's proof."""
    return lines_of(named(vectors, name))[0][1].removeprefix(rpc.SCHEME).split("~")[-1]


def check_specification(vectors: dict[str, Any], report: Report) -> None:
    """Every block that the specification marks with `check` agrees with the vectors and the arithmetic."""
    v1, v6 = vectors["vectors"][0], next(v for v in vectors["vectors"] if v["name"].startswith("V6"))
    token, proof = v1["headers"]["Authorization"].removeprefix(rpc.SCHEME).split("~")
    answer = v6["headers"]["Authentication-Info"].removeprefix(rpc.SCHEME)
    record = vectors["agent_keys"][0]
    # HKDF and HMAC are written out here, so that the derivation is not checked against itself.
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

    def decoded(text: str) -> str:
        return shown(text, 0) + shown(text, 1) + part(text, 2)

    pair = vectors["agent_keys"][2]
    seed = Ed25519PrivateKey.from_private_bytes(bytes.fromhex(pair["seed_hex"]))

    def ed25519(text: str) -> str:
        """The signature of the same header and claims but for the algorithm."""
        header = rpc.b64(shown(text, 0).replace('"HS256"', '"EdDSA"').encode())
        return rpc.b64(seed.sign(f"{header}.{part(text, 1)}".encode()))

    values = {
        "key": record["master_hex"] + key.hex(),
        "key.info": record["info"],
        "key.prk": prk.hex(),
        "v1.payload": v1["payload"],
        "v1.payload.sha256": sha(v1["payload"]),
        "v1.dig": rpc.digest(v1["payload"].encode()),
        "v1.token": token,
        "v1.token.header": shown(token, 0),
        "v1.token.claims": shown(token, 1),
        "v1.token.sha256": sha(token),
        "v1.ath": rpc.digest(token.encode()),
        "v1.proof": decoded(proof),
        "v1.proof.input": proof.rsplit(".", 1)[0],
        "v1.proof.mac": mac(proof),
        "v1.proof.sha256": sha(proof),
        "v6": v6["payload"] + decoded(answer),
        "v6.payload.sha256": sha(v6["payload"]),
        "v6.proof.input": answer.rsplit(".", 1)[0],
        "v6.proof.mac": mac(answer),
        "ed25519": rpc.b64(seed.private_bytes_raw()) + pair["jwk"]["x"] + ed25519(proof) + ed25519(answer),
    }
    acc = bytes.fromhex(sha(proof_in(vectors, "V9")))
    for name in ("V9", "F1", "F2", "F3", "C1"):
        vector, text, low = named(vectors, name), proof_in(vectors, name), name.lower()
        values[f"{low}.proof.claims"] = shown(text, 1)
        if name in ("F1", "C1"):
            values[f"{low}.proof.header"] = shown(text, 0)
        if name == "V9":
            values["v9.proof.sha256"] = sha(text)
            continue
        values[f"{low}.proof.signature"] = part(text, 2)
        assert rpc.unb64(part(text, 2)).hex() == mac(text)
        if name in ("F2", "F3"):
            acc = hashlib.sha256(acc + hashlib.sha256(vector["payload"].encode()).digest()).digest()
            values[f"{low}.payload"], values[f"{low}.acc"] = vector["payload"], acc.hex()
    assert rpc.b64(acc) == named(vectors, "F3")["proof_claims"]["acc"]
    assert rpc.unb64(part(proof, 2)).hex() == values["v1.proof.mac"]
    assert rpc.unb64(part(answer, 2)).hex() == values["v6.proof.mac"]
    text = "".join((ROOT / page).read_text(encoding="utf-8") for page in SPECIFICATION)
    blocks = re.findall(r"<!-- check: ([a-z0-9.]+) -->\n```[a-z]*\n(.*?)\n```", text, re.DOTALL)
    for name, block in blocks:
        # The line breaks are only for print.
        report.equal(f"SPEC.md {name}", block.replace("\n", ""), values.get(name))
    report.equal("SPEC.md has every block", sorted(name for name, _ in blocks), sorted(values))
    for name, length in [
        ("Payload of 59 bytes", len(v1["payload"])),
        ("363 characters", len(token)),
        ("427 ASCII bytes", len(proof.rsplit(".", 1)[0])),
        ("The proof has 471 characters", len(proof)),
        ("843 bytes", len(v1["headers"]["Authorization"])),
        ("The MAC input of the answer, of 315 bytes", len(answer.rsplit(".", 1)[0])),
        ("367 bytes", len(v6["headers"]["Authentication-Info"])),
        ("proof of 566 characters", len(proof_in(vectors, "V9"))),
        ("header value has 410 bytes", len(named(vectors, "F1")["headers"]["Authentication-Info"])),
        ("header value has 478 bytes", len(named(vectors, "F3")["headers"]["Authentication-Info"])),
        ("892 bytes", len(named(vectors, "C1")["headers"]["Authorization"])),
    ]:
        said = re.search(r"\d+", name)
        report.equal(f"SPEC.md says {name}", (name in text, said and int(said.group())), (True, length))
    for record in vectors["agent_keys"][:2]:
        derived = rpc.derive(bytes.fromhex(record["master_hex"]), vectors["service"], record["kid"])
        report.equal(f"derived key {record['kid']}", derived.hex(), record["service_key_hex"])
    report.equal("x of the Ed25519 key", rpc.b64(seed.public_key().public_bytes_raw()), pair["jwk"]["x"])
    report.equal("its thumbprint", rpc.thumbprint(pair["jwk"]["x"]), pair["kid"])
    report.equal("SPEC.md shows both", pair["jwk"]["x"] in text and pair["kid"] in text, True)


def check_minimal_client(vectors: dict[str, Any], report: Report) -> None:
    """The client of docs/spec/client.md signs plain calls byte by byte, and takes exactly the answers that it should."""
    pinned = {key["kid"]: minimal_client.public_key(key["jwk"]["x"]) for key in vectors["service_keys"]}
    calls = {name: minimal_call(vectors, named(vectors, name)) for name in ("V1", "V4", "V5", "V8")}
    for name, call in calls.items():
        report.equal(f"minimal client, {name}", call.proof, proof_in(vectors, name))
    answers = [vector for vector in vectors["vectors"] if vector["kind"] == "reply"]
    answers = [vector for vector in answers if vector["answers"].split()[0] in calls and "header_list" not in vector]
    report.equal("answers for the minimal client", len(answers), MINIMAL_ANSWERS)
    for vector in answers:
        call, payload = calls[vector["answers"].split()[0]], vector["payload"].encode()
        got = call.judge(1, vector["subject"], vector["headers"], payload, pinned)
        kept = "refused by client" if got["outcome"] == "unverifiable" else "accept"
        report.equal(f"minimal client, {vector['name']}", kept, vector["expect"])
    # The eight points of §5.3, as five y with up to two signs; then two texts of y that are not below the prime.
    low = minimal_client.ORDER_8
    weak = [0, 1, PRIME - 1, low, PRIME - low]
    report.equal("order of the points of §5.3", [doubled(doubled(doubled(y))) for y in weak], [1] * 5)
    for number in [y + sign for y in [*weak, PRIME, PRIME + 1] for sign in (0, 2**255)]:
        try:
            minimal_client.public_key(rpc.b64(number.to_bytes(32, "little")))
            got = "taken"
        except ValueError:
            got = "refused"
        report.equal(f"minimal client, key {number:x}", got, "refused")


# To V1 and V5, whose claims part A has.
MINIMAL_ANSWERS = 14
PRIME = 2**255 - 19


def doubled(y: int) -> int:
    """The y of twice a point of Ed25519."""
    d = -121665 * pow(121666, -1, PRIME) % PRIME
    xx = (y * y - 1) * pow(d * y * y + 1, -1, PRIME)
    return (y * y + xx) * pow(1 - d * xx * y * y, -1, PRIME) % PRIME


def minimal_call(vectors: dict[str, Any], vector: dict[str, Any]) -> minimal_client.Call:
    """The call of a vector, signed by the minimal client with the vector's nonce."""
    claims, token = vector["proof_claims"], vector["headers"]["Authorization"].removeprefix(rpc.SCHEME).split("~")[0]
    record = next(record for record in vectors["agent_keys"] if record["kid"] == vector["proof_header"]["kid"])
    secret = {"secret": "master_hex", "seed": "seed_hex"}
    key = {name: rpc.b64(bytes.fromhex(record[field])) for name, field in secret.items() if field in record}
    return minimal_client.Call(
        {"kid": record["kid"], "alg": record["alg"], **key},
        token,
        vectors["service"],
        vector["subject"],
        vector["reply"],
        vector["payload"].encode(),
        claims["iat"] * 1000,
        claims.get("tmo"),
        rpc.unb64(claims["jti"]),
    )


class Report:
    """Counts the checks, and prints what differs."""

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
    report.equal("number of vectors", len(vectors["vectors"]), 208)
    report.equal("number of answers of replicas", len(vectors["presences"]), 23)
    report.equal("number of news of approvals", len(vectors["news"]), 20)
    check_presences(vectors, report)
    check_news(vectors, report)
    check_signing(vectors, report)
    check_replay_and_time(vectors, report)
    check_mutations(vectors, report)
    check_specification(vectors, report)
    check_minimal_client(vectors, report)
    print(f"{report.passed} passed, {report.failed} failed")
    return 1 if report.failed else 0


if __name__ == "__main__":
    sys.exit(main())
