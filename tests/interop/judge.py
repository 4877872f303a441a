"""What a service of the `nats-rpc-v1` profile does with a message up to its method, written from SPEC.md §10.

Knows the order of the checks and the name of each refusal. Has no policy, no rate limit and no socket.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

import jwt
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

import nats_rpc_v1 as rpc
from nats_rpc_v1 import Refused

TOKEN68 = re.compile(r"[A-Za-z0-9\-._~+/]+=*")
TOKEN_KID = re.compile(r"[A-Za-z0-9._:-]{1,64}")
IDENTIFIER = re.compile(r"[!-~]{1,128}")
ROLE = re.compile(r"[A-Za-z0-9_.:/-]{1,64}")
TOKEN_LEEWAY_S = 5
TOKEN_LIFE_S = 3600


class Answer(Exception):
    """A judgement other than `accept`."""

    def __init__(self, outcome: str, why: str) -> None:
        super().__init__(f"{outcome}: {why}")
        self.outcome = outcome


def unauthenticated(why: str) -> Answer:
    return Answer("unauthenticated", why)


@dataclass
class Call:
    """What control messages for a call under way are checked against."""

    request: str
    speaks_for: tuple[str, str, str | None]
    counter: int = 0


class Service:
    """Judges messages by §10, with a guard that lives as long as this object."""

    def __init__(self, vectors: dict[str, Any]) -> None:
        self.audience: str = vectors["service"]
        self.service = self.audience.split("/")[1]
        self.prefix: str = vectors["prefix"]
        self.issuer: str = vectors["issuer"]
        self.window: int = vectors["window_s"]
        self.skew: int = vectors["skew_s"]
        self.fence = 0
        self.seen: set[tuple[str, str]] = set()
        self.calls: dict[tuple[str, str, str], Call] = {}
        self.ring: dict[str, dict[str, Any]] = {}
        for record in vectors["agent_keys"]:
            key: bytes | Ed25519PublicKey
            if record["alg"] == "HS256":
                # The derived key, as a service holds it; checking the derivation takes the master key.
                key = bytes.fromhex(record["service_key_hex"])
                jkt = None
            else:
                key = Ed25519PublicKey.from_public_bytes(rpc.unb64(record["jwk"]["x"]))
                jkt = rpc.thumbprint(record["jwk"]["x"])
            self.ring[record["kid"]] = {"owner": record["owner"], "alg": record["alg"], "key": key, "jkt": jkt}
        self.token_keys = {
            key["kid"]: (key["alg"], Ed25519PublicKey.from_public_bytes(rpc.unb64(key["x"])))
            for key in vectors["token_keys"]["keys"]
        }

    def judge(self, subject: str, reply: str, headers: list[tuple[str, str]], payload: bytes, now_ms: int) -> str:
        """`accept`, or the refusal that the message gets instead."""
        try:
            self._judge(subject, reply, headers, payload, now_ms)
        except Answer as answer:
            return answer.outcome
        return "accept"

    def _judge(self, subject: str, reply: str, headers: list[tuple[str, str]], payload: bytes, now_ms: int) -> None:
        service, agent, method_subject = self._subjects(subject, reply)
        token, proof = self._shape(service, headers, payload)
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
        self._body(payload, method_subject, reply, not {"win", "det"}.isdisjoint(claims))
        deadline = claims["iat"] * 1000 + claims["tmo"] if "tmo" in claims else claims["exp"] * 1000
        if now_ms >= min(claims["exp"] * 1000, deadline):
            raise Answer("timeout", "the deadline passed")

    def _subjects(self, subject: str, reply: str) -> tuple[str, str, str | None]:
        """The service, agent and method that the subject names, if the reply rule holds too."""
        if not is_plain_subject(subject) or not subject.startswith(f"{self.prefix}."):
            raise Answer("dropped", "not a subject")
        service, _, rest = subject.removeprefix(f"{self.prefix}.").partition(".")
        agent, _, method = rest.partition(".")
        if not rpc.NAME.fullmatch(service) or not rpc.NAME.fullmatch(agent):
            raise Answer("dropped", "the subject names no service or no agent")
        if method and (len(method) > 128 or not rpc.METHOD.fullmatch(method)):
            raise Answer("dropped", "the subject's method is none")
        inbox = f"_INBOX.{agent}."
        if reply and not (reply.startswith(inbox) and is_plain_subject(reply)):
            raise Answer("dropped", "the reply subject is not the agent's")
        return service, agent, method or None

    def open_call(self, replica: str, subject: str, headers: list[tuple[str, str]]) -> None:
        """Registers a call that this replica runs, so that it can be controlled. Its request was judged before."""
        token, proof = dict(headers)["Authorization"].removeprefix(rpc.SCHEME).split("~")
        claims = rpc.parse_object(rpc.unb64(proof.split(".")[1]))
        agent = subject.removeprefix(f"{self.prefix}.").split(".")[1]
        self.calls[replica, agent, claims["jti"]] = Call(rpc.digest(proof.encode("ascii")), speaks_for(token))

    def control(self, replica: str, subject: str, headers: list[tuple[str, str]], payload: bytes, now_ms: int) -> str:
        """`accept`, or `dropped` (§25.3)."""
        try:
            self._control(replica, subject, headers, payload, now_ms // 1000)
        except (Answer, Refused):
            return "dropped"
        return "accept"

    def _control(self, replica: str, subject: str, headers: list[tuple[str, str]], payload: bytes, now: int) -> None:
        head = f"{self.prefix}-ctl.{self.service}."
        tokens = subject.removeprefix(head).split(".")
        if not is_plain_subject(subject) or not subject.startswith(head) or len(tokens) != 3:
            raise Refused("not a subject of control")
        agent, addressed, nonce = tokens
        if not rpc.NAME.fullmatch(agent) or addressed not in (replica, "all"):
            raise Refused("for another replica")
        call = self.calls.get((replica, agent, nonce))
        if call is None:
            raise Refused("no such call")
        token, proof = self._shape(self.service, headers, payload)
        kid, record = self._record(proof, agent, rpc.CONTROL_TYP)
        if not rpc.verify(proof, record["key"], record["alg"]):
            raise Refused("the signature does not hold")
        claims = rpc.parse_object(rpc.unb64(proof.split(".")[1]))
        check_control(claims)
        if claims["aud"] != self.audience or claims["to"] != subject or claims["req"] != call.request:
            raise Refused("about another call")
        if not 0 < claims["exp"] - claims["iat"] <= self.window:
            raise Refused("the window is malformed")
        if not (claims["iat"] <= now + self.skew and now < claims["exp"]):
            raise Refused("outside the window")
        if claims["ath"] != rpc.digest(token.encode("ascii")) or claims["dig"] != rpc.digest(payload):
            raise Refused("another token or payload")
        self._token(token, kid, record, now)
        if speaks_for(token) != call.speaks_for:
            raise Refused("for somebody else")
        if payload and claims["op"] != "answer":
            raise Refused("content where there is none")
        if claims["ctr"] <= call.counter:
            raise Refused("an old counter")
        call.counter = claims["ctr"]

    def _shape(self, service: str, headers: list[tuple[str, str]], payload: bytes) -> tuple[str, str]:
        if len(payload) > 192 * 1024:
            raise Answer("too large", "payload")
        if len(headers) > 32 or sum(len(f"{name}: {value}\r\n".encode()) for name, value in headers) > 16384:
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
        if service != self.service:
            raise unauthenticated("another service")
        token, proof = credentials.split("~")
        return token, proof

    def _record(self, proof: str, agent: str, typ: str = rpc.REQUEST_TYP) -> tuple[str, dict[str, Any]]:
        header, _, _ = rpc.split_jws(proof)
        if set(header) != {"alg", "kid", "typ"} or header["typ"] != typ:
            raise Refused("not the header of such a proof")
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
        if not required <= set(claims) <= required | {"tmo", "idk", "win", "tp", "cap", "det"}:
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
        if "win" in claims and not (rpc.is_integer(claims["win"]) and 1 <= claims["win"] <= 1024 and "tmo" in claims):
            raise Refused("`win` is out of range, or without `tmo`")
        if "tp" in claims and not is_traceparent(claims["tp"]):
            raise Refused("`tp` is no traceparent")
        if "cap" in claims and not are_capabilities(claims["cap"]):
            raise Refused("`cap` is no list of names")
        if "det" in claims:
            if not (rpc.is_integer(claims["det"]) and 1 <= claims["det"] <= rpc.MAX_DET_MS):
                raise Refused("`det` is out of range")
            if "idk" not in claims or "win" in claims:
                raise Refused("`det` without `idk`, or with `win`")
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
        if not (claims["iat"] <= now + self.skew and now < claims["exp"]):
            raise Answer("stale", "outside the window")
        if claims["iat"] <= self.fence or now <= self.fence:
            recent = now <= self.fence + self.skew
            raise Answer("overloaded" if recent else "stale", "behind the fence")

    def _token(self, token: str, kid: str, record: dict[str, Any], now: int) -> None:
        if len(token) > 4096:
            raise Refused("the token is too large")
        header, body, _ = rpc.split_jws(token)
        if set(header) != {"alg", "kid", "typ"}:
            raise Refused("a header parameter is missing, or not allowed")
        token_kid = header["kid"]
        if not isinstance(token_kid, str) or not TOKEN_KID.fullmatch(token_kid) or token_kid not in self.token_keys:
            raise Refused("no such token key")
        alg, key = self.token_keys[token_kid]
        if header["alg"] != alg or header["typ"] not in ("at+jwt", "application/at+jwt"):
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
        if depth(claims) > 16 or not all_integers(claims):
            raise Refused("nesting, or a number that is not an integer")
        exp, iat, nbf = claims["exp"], claims["iat"], claims.get("nbf", 0)
        if not all(rpc.is_integer(time) for time in (exp, iat, nbf)):
            raise Refused("a time that is not a number")
        if now >= exp + TOKEN_LEEWAY_S or iat > now + TOKEN_LEEWAY_S or nbf > now + TOKEN_LEEWAY_S:
            raise Refused("the token is not valid now")
        if not 0 < exp - iat <= TOKEN_LIFE_S:
            raise Refused("the token lives too long")
        if not is_identifier(claims["sub"]) or not is_identifier(claims["jti"]) or not isinstance(claims["iss"], str):
            raise Refused("`sub`, `jti` or `iss`")
        roles = claims.get("roles", [])
        if not isinstance(roles, list) or len(roles) > 64 or not all(is_role(role) for role in roles):
            raise Refused("`roles`")
        if actor(claims) != record["owner"]:
            raise Refused("the actor is not the key's owner")
        if "cnf" in claims:
            cnf = claims["cnf"]
            if not isinstance(cnf, dict) or not cnf or not set(cnf) <= {"kid", "jkt"}:
                raise Refused("`cnf` has other members")
            if cnf.get("kid", kid) != kid or ("jkt" in cnf and cnf["jkt"] != record["jkt"]):
                raise Refused("`cnf` names another key")

    def _body(self, payload: bytes, method_subject: str | None, reply: str, is_for_one_call: bool) -> None:
        try:
            body = rpc.parse_json(payload)
        except Refused as refused:
            duplicate = "twice" in str(refused)
            raise Answer("invalid request" if duplicate else "parse error", str(refused)) from refused
        if depth(body) > 64:
            raise Answer("parse error", "too deep")
        if isinstance(body, list) and (not 1 <= len(body) <= 50 or method_subject is not None):
            raise Answer("invalid request", "the batch")
        named = str(body.get("method")).replace("/", ".") if isinstance(body, dict) else None
        if method_subject not in (None, named):
            raise Answer("invalid request", "the subject names another method")
        if not isinstance(body, (dict, list)):
            raise Answer("invalid request", "neither object nor array")
        if is_for_one_call and (isinstance(body, list) or "id" not in body):
            raise Answer("invalid request", "a window or a task, and no call")
        if not reply and (isinstance(body, list) or "id" in body):
            raise Answer("not executed", "nobody could be told")


def speaks_for(token: str) -> tuple[str, str, str | None]:
    """Issuer, subject and actor of a token that was verified, or will be."""
    claims = rpc.parse_object(rpc.unb64(token.split(".")[1]))
    return claims["iss"], claims["sub"], actor(claims) if "act" in claims else None


# The claims of each operation besides the common ones: required, optional.
OPERATIONS: dict[str, tuple[set[str], set[str]]] = {
    "ack": ({"ack"}, {"win", "tmo"}),
    "again": (set(), {"ack"}),
    "cancel": (set(), set()),
    "answer": ({"ask"}, set()),
}


def check_control(claims: dict[str, Any]) -> None:
    """Checks the grammar of §25.2."""
    common = {"aud", "to", "iat", "exp", "ath", "dig", "req", "ctr", "op"}
    op = claims.get("op")
    if not isinstance(op, str) or op not in OPERATIONS:
        raise Refused("no such operation")
    required, optional = OPERATIONS[op]
    if not common | required <= set(claims) <= common | required | optional:
        raise Refused("claims are missing, or unknown")
    if not all(isinstance(claims[name], str) for name in {"aud", "to", "ath", "dig", "req", "ask"} & set(claims)):
        raise Refused("a claim of another type")
    if not all(rpc.is_integer(claims[name]) for name in {"iat", "exp", "ctr", "ack", "win", "tmo"} & set(claims)):
        raise Refused("not an integer")
    for name, most in [("ctr", rpc.MAX_INTEGER), ("win", 1024), ("tmo", rpc.MAX_TMO_MS)]:
        if not 1 <= claims.get(name, 1) <= most:
            raise Refused(f"`{name}` is out of range")


def is_traceparent(value: Any) -> bool:
    found = re.fullmatch(r"00-([0-9a-f]{32})-([0-9a-f]{16})-[0-9a-f]{2}", value) if isinstance(value, str) else None
    return found is not None and all(part.strip("0") for part in found.groups())


def are_capabilities(value: Any) -> bool:
    name = "[A-Za-z0-9._:/-]{1,64}"
    return isinstance(value, str) and re.fullmatch(f"{name}(?: {name}){{0,15}}", value) is not None


def actor(claims: dict[str, Any]) -> str:
    """`act.sub` if there is an actor, else `sub`; at most four actors."""
    names: list[str] = [claims["sub"]]
    holder = claims
    while "act" in holder:
        holder = holder["act"]
        if not isinstance(holder, dict) or not set(holder) <= {"sub", "iss", "act"} or len(names) > 4:
            raise Refused("`act`")
        if not is_identifier(holder.get("sub")) or holder.get("iss", claims["iss"]) != claims["iss"]:
            raise Refused("`act`")
        names.append(holder["sub"])
    if names[1:2] == names[:1]:
        # Nobody acts on behalf of a namesake.
        raise Refused("`act`")
    return names[1] if len(names) > 1 else names[0]


def is_identifier(value: Any) -> bool:
    return isinstance(value, str) and IDENTIFIER.fullmatch(value) is not None


def is_role(value: Any) -> bool:
    return isinstance(value, str) and ROLE.fullmatch(value) is not None


def all_integers(value: Any) -> bool:
    """Whether every number in it is an integer in range."""
    pending = [value]
    while pending:
        item = pending.pop()
        if isinstance(item, (dict, list)):
            pending.extend(item.values() if isinstance(item, dict) else item)
        elif isinstance(item, (int, float)) and not isinstance(item, bool) and not rpc.is_integer(item):
            return False
    return True


def is_plain_subject(text: str) -> bool:
    legal = len(text) <= 512 and all(0x21 <= ord(char) <= 0x7E for char in text)
    return legal and all(token not in ("", "*", ">") for token in text.split("."))


def is_nonce(text: str) -> bool:
    try:
        return len(text) == 22 and len(rpc.unb64(text)) == 16
    except Refused:
        return False


def depth(value: Any) -> int:
    """The nesting depth of containers; the outermost is 1."""
    deepest, pending = 0, [(value, 1)]
    while pending:
        item, level = pending.pop()
        if isinstance(item, (dict, list)):
            deepest = max(deepest, level)
            pending.extend((child, level + 1) for child in (item.values() if isinstance(item, dict) else item))
    return deepest
