"""The credentials file of SPEC.md §20. Never prints a secret, and refuses a file that others can read."""

from __future__ import annotations

import ssl
import stat
import subprocess
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

import nats_rpc_v1 as rpc


class BadCredentials(Exception):
    """The file does not follow §20; the text says what to change."""


_TOKEN_SOURCES = ("token", "token_file", "token_command")
_MEMBERS = {"version", "environment", "agent", "key", "nats", "prefix", "inbox_prefix", "service_keys", *_TOKEN_SOURCES}
_NATS_MEMBERS = {"urls", "user", "password", "token", "nkey_seed", "tls_ca", "tls_cert", "tls_key"}


@dataclass(frozen=True)
class Credentials:
    """Who the client is, with which key, and where the broker is."""

    folder: Path
    environment: str
    agent: str
    key: rpc.ProofKey
    prefix: str
    inbox_prefix: str
    service_keys: dict[str, dict[str, Ed25519PublicKey]]
    nats: dict[str, Any] = field(repr=False)
    token_source: tuple[str, Any] = field(repr=False)

    def access_token(self) -> str:
        """The current token: from the credentials, from its file, or printed by its command."""
        kind, value = self.token_source
        if kind == "token":
            text = value
        elif kind == "token_file":
            text = (self.folder / value).read_text(encoding="ascii")
        else:
            text = subprocess.run(value, check=True, capture_output=True, cwd=self.folder, timeout=30).stdout.decode()
        return text.strip()

    def connect_options(self) -> dict[str, Any]:
        """Keyword arguments for `nats.connect`."""
        options: dict[str, Any] = {"servers": self.nats["urls"]}
        for ours, theirs in [
            ("user", "user"),
            ("password", "password"),
            ("token", "token"),
            ("nkey_seed", "nkeys_seed_str"),
        ]:
            if ours in self.nats:
                options[theirs] = self.nats[ours]
        if "tls_ca" in self.nats or "tls_cert" in self.nats:
            ca = self.nats.get("tls_ca")
            context = ssl.create_default_context(cafile=str(self.folder / ca) if ca else None)
            if "tls_cert" in self.nats:
                context.load_cert_chain(self.folder / self.nats["tls_cert"], self.folder / self.nats["tls_key"])
            options["tls"] = context
        return options


def load(path: Path) -> Credentials:
    """Reads and checks the file."""
    if path.stat().st_mode & (stat.S_IRWXG | stat.S_IRWXO):
        raise BadCredentials(f"`{path}` can be read by others: chmod 600 it")
    try:
        given = rpc.parse_object(path.read_bytes())
    except rpc.Refused as refused:
        raise BadCredentials(f"`{path}`: {refused}") from refused
    _only(given, _MEMBERS, "the file")
    if given.get("version") != 1:
        raise BadCredentials("`version` is not 1")
    for member in ("environment", "agent"):
        if not rpc.NAME.fullmatch(given.get(member, "")):
            raise BadCredentials(f"`{member}` is not a name")
    sources = [name for name in _TOKEN_SOURCES if name in given]
    if len(sources) != 1:
        raise BadCredentials(f"exactly one of {', '.join(_TOKEN_SOURCES)} is needed")
    nats = given.get("nats", {})
    _only(nats, _NATS_MEMBERS, "`nats`")
    if not nats.get("urls"):
        raise BadCredentials("`nats.urls` names no server")
    try:
        key = _key(given.get("key", {}))
        pins = {
            service: {entry["kid"]: Ed25519PublicKey.from_public_bytes(rpc.unb64(entry["x"])) for entry in entries}
            for service, entries in given.get("service_keys", {}).items()
        }
    except (KeyError, ValueError, TypeError, rpc.Refused) as error:
        raise BadCredentials("`key` or `service_keys` is not as described") from error
    return Credentials(
        folder=path.resolve().parent,
        environment=given["environment"],
        agent=given["agent"],
        key=key,
        prefix=given.get("prefix", "rpc.v1"),
        inbox_prefix=given.get("inbox_prefix", "_INBOX"),
        service_keys=pins,
        nats=nats,
        token_source=(sources[0], given[sources[0]]),
    )


def _key(given: dict[str, Any]) -> rpc.ProofKey:
    alg, kid = given["alg"], given["kid"]
    member = {"HS256": "secret", "EdDSA": "seed"}[alg]
    _only(given, {"kid", "alg", member}, "`key`")
    secret = rpc.unb64(given[member])
    if not rpc.KID.fullmatch(kid) or (len(secret) != 32 if alg == "EdDSA" else len(secret) < 32):
        raise ValueError("key")
    return rpc.ProofKey(kid, alg, secret)


def _only(given: dict[str, Any], allowed: set[str], where: str) -> None:
    unknown = set(given) - allowed
    if unknown:
        raise BadCredentials(f"{where} has unknown members: {', '.join(sorted(unknown))}")
