"""Checks, with two public keys and nothing else, that these bytes were the request, and that the service answered those to it.

    curl -sS -D head.txt -o answer.json -H 'content-type: application/json' \\
        --data-binary @call.json http://127.0.0.1:8480/rpc/math
    python examples/receipt.py call.json head.txt answer.json dev/math AGENT_KEY SERVICE_KEY

The keys are Ed25519, in base64url: `sealwire keys list` shows that of the gateway's agent, `sealwire keys new-service` that of the service.
"""

import base64
import hashlib
import json
import sys

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey


def unb64(text):
    return base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))


def digest(data):
    return base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()


def claims(proof, key, typ):
    """What a proof says; an exception if the key has not signed it."""
    signed, signature = proof.rsplit(".", 1)
    Ed25519PublicKey.from_public_bytes(unb64(key)).verify(unb64(signature), signed.encode())
    header, body = (json.loads(unb64(part)) for part in signed.split("."))
    if (header["alg"], header["typ"]) != ("EdDSA", typ):
        sys.exit(f"not a proof of {typ}")
    return body


call, head, answer = (open(name, "rb").read() for name in sys.argv[1:4])
service, agent_key, service_key = sys.argv[4:]
proofs = {name.lower(): value for name, _, value in (line.partition(": ") for line in head.decode().splitlines())}
asked = claims(proofs["sealwire-request"], agent_key, "nats-rpc-v1+jwt")
answered = claims(proofs["sealwire-answer"], service_key, "nats-rpc-v1-reply+jwt")
for what, said, found in [
    ("the request is for the service", asked["aud"], service),
    ("the request is of these bytes", asked["dig"], digest(call)),
    ("the answer is of the service", answered["iss"], service),
    ("the answer is to this request", answered["req"], digest(proofs["sealwire-request"].encode())),
    ("the answer is of these bytes", answered["dig"], digest(answer)),
]:
    if said != found:
        sys.exit(f"it does not hold that {what}")
print(f"{service} answered this call, signed at {answered['iat']}")
