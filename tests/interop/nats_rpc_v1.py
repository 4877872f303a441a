"""The `nats-rpc-v1` profile, written from SPEC.md: encoding, keys, signing a request, accepting an answer.

Does no input or output, and knows nothing of the Rust implementation. Section numbers are those of SPEC.md.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import os
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import jwt
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

REQUEST_TYP = "nats-rpc-v1+jwt"
REPLY_TYP = "nats-rpc-v1-reply+jwt"
PRESENCE_TYP = "nats-rpc-v1-srv+jwt"
FRAME_TYP = "nats-rpc-v1-frame+jwt"
CONTROL_TYP = "nats-rpc-v1-ctl+jwt"
NEWS_TYP = "nats-rpc-v1-approval+jwt"
SCHEME = "NatsRpc "
MAX_INTEGER = 2**53 - 1
MAX_TMO_MS = 600_000
MAX_DET_MS = 604_800_000
WINDOW_S = 30

NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")
METHOD = re.compile(r"[A-Za-z0-9_-]+(?:[/.][A-Za-z0-9_-]+)*")
KID = re.compile(r"[A-Za-z0-9._:/-]{1,128}")
DIGEST = re.compile(r"[A-Za-z0-9_-]{43}")
BASE64URL = re.compile(r"[A-Za-z0-9_-]+")

_JWS = jwt.PyJWS()


class Refused(Exception):
    """The message is not valid. The text is for people; no caller of a service ever sees it."""


# --- Encoding (§4) -----------------------------------------------------------------------------------------------


def b64(data: bytes) -> str:
    """base64url without padding."""
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode("ascii")


def unb64(text: str) -> bytes:
    """The bytes of canonical, unpadded base64url. JWT libraries are more lenient, so this is checked here."""
    if not BASE64URL.fullmatch(text):
        raise Refused("not base64url")
    try:
        data = base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))
    except ValueError as error:
        raise Refused("not base64url") from error
    if b64(data) != text:
        raise Refused("base64url is not canonical")
    return data


def digest(data: bytes) -> str:
    """The digest in `ath`, `dig` and `req`."""
    return b64(hashlib.sha256(data).digest())


def _no_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    members = dict(pairs)
    if len(members) != len(pairs):
        raise Refused("a member name occurs twice")
    return members


def _never(text: str) -> Any:
    raise Refused(f"`{text[:20]}` is not JSON")


def _integer(text: str) -> int | float:
    # `-0` would become a plain 0; a number with a fraction or an exponent becomes a float anyway (§4).
    return -0.0 if text == "-0" else int(text)


def parse_json(data: bytes) -> Any:
    """Parses JSON in UTF-8 without a byte-order mark and without duplicate members."""
    if data.startswith(b"\xef\xbb\xbf"):
        raise Refused("a byte-order mark")
    try:
        return json.loads(
            data.decode("utf-8"),
            object_pairs_hook=_no_duplicates,
            parse_constant=_never,
            parse_int=_integer,
        )
    except (ValueError, RecursionError) as error:
        raise Refused("not JSON") from error


def parse_object(data: bytes) -> dict[str, Any]:
    """Parses one JSON object, as in every JOSE part."""
    value = parse_json(data)
    if not isinstance(value, dict):
        raise Refused("not a JSON object")
    return value


def is_integer(value: Any) -> bool:
    """Whether `value` came from plain digits and lies in range."""
    return type(value) is int and 0 <= value <= MAX_INTEGER


def split_jws(text: str) -> tuple[dict[str, Any], bytes, bytes]:
    """Header, payload and signature of a compact JWS, all canonical base64url. The signature is not checked."""
    parts = text.split(".")
    if len(parts) != 3:
        raise Refused("not three parts")
    header, payload, signature = (unb64(part) for part in parts)
    return parse_object(header), payload, signature


# --- Keys (§5) ---------------------------------------------------------------------------------------------------


def derive(master: bytes, audience: str, kid: str) -> bytes:
    """The HMAC key of one agent for one service (§5.2)."""
    if len(master) < 32:
        raise ValueError("a master key has at least 32 bytes")
    info = f"nats-rpc-v1|{audience}|{kid}".encode("ascii")
    return HKDF(algorithm=hashes.SHA256(), length=32, salt=None, info=info).derive(master)


def thumbprint(x: str) -> str:
    """The RFC 7638 thumbprint of an Ed25519 public key."""
    return digest(f'{{"crv":"Ed25519","kty":"OKP","x":"{x}"}}'.encode("ascii"))


def verify(text: str, key: bytes | Ed25519PublicKey, alg: str) -> bool:
    """Whether the signature of the compact JWS holds under this one key and algorithm."""
    try:
        _JWS.decode_complete(text, key, algorithms=[alg])
    except jwt.PyJWTError:
        return False
    return True


def sign(header: dict[str, Any], claims: dict[str, Any], key: bytes | Ed25519PrivateKey) -> str:
    """A compact JWS over the claims as compact JSON."""
    body = json.dumps(claims, separators=(",", ":"), ensure_ascii=False).encode("utf-8")
    return _JWS.encode(body, key, algorithm=header["alg"], headers=header)


def sign_bytes(signing_input: bytes, key: bytes | Ed25519PrivateKey) -> bytes:
    """A bare signature, for input that no JWT library would produce."""
    if isinstance(key, bytes):
        return hmac.new(key, signing_input, "sha256").digest()
    return key.sign(signing_input)


@dataclass(frozen=True)
class ProofKey:
    """The agent's key: an HMAC master key, or an Ed25519 private key."""

    kid: str
    alg: str
    secret: bytes = field(repr=False)

    def for_service(self, audience: str) -> bytes | Ed25519PrivateKey:
        """The key that signs proofs to that service."""
        if self.alg == "HS256":
            return derive(self.secret, audience, self.kid)
        return Ed25519PrivateKey.from_private_bytes(self.secret)


# --- Requests (§6) -----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Request:
    """A signed request, and what its answer is checked against."""

    subject: str
    reply: str
    payload: bytes
    audience: str
    token: str
    proof: str
    alg: str
    kid: str
    key: bytes | Ed25519PrivateKey = field(repr=False)
    nonce: str
    window: int | None = None

    @property
    def authorization(self) -> str:
        """The value of the `Authorization` header."""
        return f"{SCHEME}{self.token}~{self.proof}"


def seal(
    *,
    key: ProofKey,
    token: str,
    audience: str,
    subject: str,
    reply: str,
    payload: bytes,
    now_ms: int,
    timeout_ms: int | None = None,
    window_s: int = WINDOW_S,
    idempotency_key: str | None = None,
    window: int | None = None,
    traceparent: str | None = None,
    capabilities: str | None = None,
    task_ms: int | None = None,
    nonce: bytes | None = None,
) -> Request:
    """Signs one message. Only tests with fixed vectors pass a nonce."""
    iat = now_ms // 1000
    claims: dict[str, Any] = {
        "aud": audience,
        "to": subject,
        "rto": reply,
        "iat": iat,
        "exp": iat + window_s,
        "jti": b64(nonce if nonce is not None else os.urandom(16)),
        "ath": digest(token.encode("ascii")),
        "dig": digest(payload),
    }
    if timeout_ms is not None:
        # `tmo` counts from the truncated `iat`: the caller adds what has passed of this second (§6).
        claims["tmo"] = max(1, min(timeout_ms + now_ms - iat * 1000, MAX_TMO_MS))
    if idempotency_key is not None:
        claims["idk"] = idempotency_key
    if window is not None:
        claims["win"] = window
    if traceparent is not None:
        claims["tp"] = traceparent
    if capabilities is not None:
        claims["cap"] = capabilities
    if task_ms is not None:
        claims["det"] = max(1, min(task_ms + now_ms - iat * 1000, MAX_DET_MS))
    signing_key = key.for_service(audience)
    proof = sign({"alg": key.alg, "kid": key.kid, "typ": REQUEST_TYP}, claims, signing_key)
    return Request(subject, reply, payload, audience, token, proof, key.alg, key.kid, signing_key, claims["jti"], window)


def proof_of(header_lines: list[tuple[str, str]]) -> str:
    """The proof in an answer's one signature header."""
    values = [value for name, value in header_lines if name.lower() == "authentication-info"]
    if len(values) != 1:
        raise Refused(f"{len(values)} authentication-info headers")
    if not values[0].startswith(SCHEME):
        raise Refused("another scheme")
    return values[0][len(SCHEME) :]


# --- Answers (§12) -----------------------------------------------------------------------------------------------

PinnedKey = Callable[[str], "Ed25519PublicKey | None"]


def take_answer(
    request: Request,
    subject: str,
    header_lines: list[tuple[str, str]],
    payload: bytes,
    pinned: PinnedKey,
) -> int:
    """Checks the nine conditions of §12 and returns the answer's `iat`; the payload may be believed afterwards.

    `pinned` looks up a public key of the service that was asked. Raises `Refused` naming the condition.
    """
    claims = _signed_for(request, subject, header_lines, payload, pinned, REPLY_TYP, ANSWER_CLAIMS)
    return claims["iat"]


ANSWER_CLAIMS = {"iss", "to", "iat", "req", "dig"}


def _signed_for(
    request: Request,
    subject: str,
    header_lines: list[tuple[str, str]],
    payload: bytes,
    pinned: PinnedKey,
    typ: str,
    members: set[str],
    optional: set[str] = frozenset(),  # type: ignore[assignment]
) -> dict[str, Any]:
    """The claims of a proof of this type for this request, this subject and this payload."""
    proof = proof_of(header_lines)
    header, body, _ = split_jws(proof)
    if set(header) != {"alg", "kid", "typ"} or header["typ"] != typ:
        raise Refused("not the header of such a proof")
    kid = header["kid"]
    if not isinstance(kid, str):
        raise Refused("`kid` is not a string")

    # The request decides the algorithm and the key, never the answer.
    key: bytes | Ed25519PublicKey | None
    if request.alg == "HS256":
        key = request.key if kid == request.kid and isinstance(request.key, bytes) else None
    else:
        key = pinned(kid)
    if header["alg"] != request.alg or key is None:
        raise Refused("another algorithm or key than the request calls for")
    if not verify(proof, key, request.alg):
        raise Refused("the signature does not hold")

    claims = parse_object(body)
    if not members <= set(claims) <= members | optional or not is_integer(claims["iat"]):
        raise Refused("not the claims of such a proof")
    if claims["to"] != subject or claims["to"] != request.reply:
        raise Refused("`to` is another subject")
    if claims["req"] != digest(request.proof.encode("ascii")):
        raise Refused("`req` is another request")
    if claims["iss"] != request.audience:
        raise Refused("`iss` is another service")
    if claims["dig"] != digest(payload):
        raise Refused("`dig` is another payload")
    return claims


# --- Frames and control (§25) --------------------------------------------------------------------------------------

KINDS = {"open", "item", "note", "ask", "piece", "beat", "end"}
MAX_PIECES = 16 * 1024 * 1024


class Lost(Exception):
    """The stream is given up; its outcome is unknown."""


@dataclass(frozen=True)
class Frame:
    """A frame that was taken, or is waiting behind a gap."""

    seq: int
    kind: str
    payload: bytes
    proof: str
    acc: str | None


def take_frame(
    request: Request,
    subject: str,
    header_lines: list[tuple[str, str]],
    payload: bytes,
    pinned: PinnedKey,
) -> tuple[Frame, str, int]:
    """Checks what §25.4 requires of a frame apart from its order. Returns the frame, its replica and its `iat`."""
    if request.window is None:
        raise Refused("no frames were asked for")
    required = ANSWER_CLAIMS | {"seq", "knd", "rep"}
    claims = _signed_for(request, subject, header_lines, payload, pinned, FRAME_TYP, required, {"acc"})
    seq, kind, replica, acc = claims["seq"], claims["knd"], claims["rep"], claims.get("acc")
    if not is_integer(seq) or not isinstance(kind, str) or kind not in KINDS:
        raise Refused("`seq` or `knd`")
    if not isinstance(replica, str) or not NAME.fullmatch(replica) or replica == "all":
        raise Refused("`rep` is no replica")
    if (kind == "open") != (seq == 0 and kind != "beat"):
        raise Refused("`open` and the number 0 belong together")
    if (kind == "end") != ("acc" in claims) or (kind == "end" and not isinstance(acc, str)):
        raise Refused("`end` and `acc` belong together")
    if acc is not None and len(unb64(acc)) != 32:
        raise Refused("`acc` is no digest")
    if kind in ("open", "beat") and payload:
        raise Refused("a payload where there is none")
    return Frame(seq, kind, payload, proof_of(header_lines), acc), replica, claims["iat"]


class Stream:
    """The frames of one call: in order, each once, complete or not at all (§25.4). Knows no time and no bus."""

    def __init__(self, request: Request, max_held_bytes: int = 1 << 20) -> None:
        assert request.window is not None
        self.request = request
        self.replica: str | None = None
        self.next = 0
        self.ended = False
        self._digest = hashlib.sha256(request.proof.encode("ascii")).digest()
        self._limit = request.window
        self._held: dict[int, Frame] = {}
        self._max_held_bytes = max_held_bytes
        self._highest = -1
        self._latest_iat = -1
        self._lost: str | None = None

    @property
    def has_gap(self) -> bool:
        return self._highest >= self.next

    def allow(self, ack: int, window: int) -> None:
        """The service may use numbers up to `ack + window` from now on."""
        self._limit = max(self._limit, ack + window)

    def take(self, frame: Frame, replica: str, iat: int) -> tuple[str, list[Frame]]:
        """`accept` with the frames that are next, or `gap`, `alive` or `ignored`. Raises `Lost`."""
        if self._lost is not None:
            raise Lost(self._lost)
        try:
            return self._take(frame, replica, iat)
        except Lost as lost:
            self._lost = str(lost)
            self._held.clear()
            raise

    def _take(self, frame: Frame, replica: str, iat: int) -> tuple[str, list[Frame]]:
        if self.ended:
            return "ignored", []
        if self.replica is None:
            self.replica = replica
        if replica != self.replica:
            raise Lost("a frame of another replica")
        if frame.seq > self._limit + (1 if frame.kind == "end" else 0):
            raise Lost("a frame beyond the window")
        if frame.kind == "beat":
            if iat <= self._latest_iat:
                return "ignored", []
            self._latest_iat = iat
            self._highest = max(self._highest, frame.seq)
            return ("gap" if self.has_gap else "alive"), []
        if frame.seq < self.next:
            return "ignored", []
        held = self._held.get(frame.seq)
        if held is not None:
            if (held.kind, held.payload) != (frame.kind, frame.payload):
                raise Lost("two frames of one number")
            return "ignored", []
        self._latest_iat = max(self._latest_iat, iat)
        self._highest = max(self._highest, frame.seq)
        if frame.seq > self.next:
            if sum(len(held.payload) for held in self._held.values()) + len(frame.payload) > self._max_held_bytes:
                raise Lost("more bytes behind a gap than are held")
            self._held[frame.seq] = frame
            return "gap", []
        taken: list[Frame] = []
        following: Frame | None = frame
        while following is not None:
            self._in_order(following)
            taken.append(following)
            following = self._held.pop(self.next, None)
        return "accept", taken

    def _in_order(self, frame: Frame) -> None:
        self.next += 1
        if frame.kind != "open":
            self._digest = hashlib.sha256(self._digest + hashlib.sha256(frame.payload).digest()).digest()
        if frame.kind == "end":
            if frame.acc != b64(self._digest):
                raise Lost("the digest of all frames does not hold")
            self.ended = True
            self._held.clear()


def control_subject(prefix: str, service: str, agent: str, replica: str | None, call: str) -> str:
    """The subject for control of a call: of the replica that runs it, or of all while that is unknown."""
    return f"{prefix}-ctl.{service}.{agent}.{replica or 'all'}.{call}"


def seal_control(
    *,
    key: ProofKey,
    token: str,
    request: Request,
    subject: str,
    payload: bytes,
    now_ms: int,
    counter: int,
    op: str,
    window_s: int = WINDOW_S,
    **more: int | str,
) -> str:
    """The value of the `Authorization` header of a control message; `more` are the claims of its operation."""
    iat = now_ms // 1000
    if isinstance(lease_ms := more.get("tmo"), int):
        # Like the deadline of a request, it counts from the truncated `iat`.
        more["tmo"] = max(1, min(lease_ms + now_ms - iat * 1000, MAX_TMO_MS))
    claims: dict[str, Any] = {
        "aud": request.audience,
        "to": subject,
        "iat": iat,
        "exp": iat + window_s,
        "ath": digest(token.encode("ascii")),
        "dig": digest(payload),
        "req": digest(request.proof.encode("ascii")),
        "ctr": counter,
        "op": op,
        **more,
    }
    proof = sign({"alg": key.alg, "kid": key.kid, "typ": CONTROL_TYP}, claims, key.for_service(request.audience))
    return f"{SCHEME}{token}~{proof}"


# --- What replicas say about themselves (§18) ----------------------------------------------------------------------


def believe_presence(
    audience: str,
    nonce: str,
    subject: str,
    header_lines: list[tuple[str, str]],
    payload: bytes,
    pinned: PinnedKey,
) -> None:
    """Checks the conditions of §18 on an answer to the question that `nonce` was sent with. Raises `Refused`."""
    claims = _signed_by_service(header_lines, pinned, PRESENCE_TYP, {"iss", "sub", "to", "iat", "nonce", "dig"})
    expected = {
        "iss": audience,
        "sub": parse_object(payload).get("id"),
        "to": subject,
        "nonce": nonce,
        "dig": digest(payload),
    }
    _agree(claims, expected)


def believe_news(
    audience: str, subject: str, header_lines: list[tuple[str, str]], payload: bytes, pinned: PinnedKey
) -> None:
    """Checks what §6.3 says of news about an approval. They may come late, and again. Raises `Refused`."""
    claims = _signed_by_service(header_lines, pinned, NEWS_TYP, {"iss", "to", "iat", "dig"})
    _agree(claims, {"iss": audience, "to": subject, "dig": digest(payload)})


def _signed_by_service(
    header_lines: list[tuple[str, str]], pinned: PinnedKey, typ: str, names: set[str]
) -> dict[str, Any]:
    """The claims of what a service says that answers no call, if one of its keys has signed exactly these."""
    proof = proof_of(header_lines)
    header, body, _ = split_jws(proof)
    if set(header) != {"alg", "kid", "typ"} or header["typ"] != typ or header["alg"] != "EdDSA":
        raise Refused("not the header of such a proof")
    key = pinned(header["kid"]) if isinstance(header["kid"], str) else None
    if key is None or not verify(proof, key, "EdDSA"):
        raise Refused("not signed by the service")
    claims = parse_object(body)
    if set(claims) != names or not is_integer(claims["iat"]):
        raise Refused("not the claims of such a proof")
    return claims


def _agree(claims: dict[str, Any], expected: dict[str, Any]) -> None:
    for name, value in expected.items():
        if claims[name] != value:
            raise Refused(f"`{name}` is another")
