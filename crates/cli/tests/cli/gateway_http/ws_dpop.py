"""Sockets and tickets with DPoP (RFC 9449), by `websockets` and joserfc, which know nothing of Sealwire: at two replicas of a gateway, and at one
that takes no other tokens. Prints the thumbprint of its key as one line of JSON, reads where the gateways are and a token that is bound to it, and prints what it found."""

import base64
import hashlib
import json
import sys
import time
import uuid

import requests
from joserfc import jwk, jws
from websockets.exceptions import InvalidStatus
from websockets.sync.client import connect

[URL] = sys.argv[1:]
PATH = "/rpc/tools/ws"
KEY, STRANGER = jwk.generate_key("EC", "P-256"), jwk.generate_key("EC", "P-256")
REGISTRY = jws.JWSRegistry(algorithms=["ES256"], strict_check_header=False)

print(json.dumps({"ES256": KEY.thumbprint()}), flush=True)
SAID = json.loads(sys.stdin.readline())
ONE, TWO, STRICT = SAID["gateways"]
TOKEN, UNBOUND = SAID["tokens"]["ES256"], SAID["tokens"]["unbound"]


def proof(method, path=PATH, key=KEY, **claims):
    ath = base64.urlsafe_b64encode(hashlib.sha256(TOKEN.encode()).digest()).rstrip(b"=").decode()
    said = {"jti": str(uuid.uuid4()), "htm": method, "htu": URL + path, "iat": int(time.time()), "ath": ath} | claims
    head = {"typ": "dpop+jwt", "alg": "ES256", "jwk": key.as_dict(private=False)}
    return jws.serialize_compact(head, json.dumps(said), key, registry=REGISTRY)


def told(status, challenge):
    return f"{status} " + (challenge.split('error="')[1].split('"')[0] if "error=" in challenge else "")


def shown(proof, token, scheme):
    return ({"Authorization": f"{scheme} {token}"} if token else {}) | ({"DPoP": proof} if proof else {})


def asked(proof, token=TOKEN, scheme="DPoP", gateway=ONE):
    answer = requests.post(gateway + PATH + "/ticket", headers=shown(proof, token, scheme), timeout=60)
    return answer.json()["ticket"] if answer.status_code == 200 else told(answer.status_code, answer.headers.get("WWW-Authenticate", ""))


def opened(proof=None, token=TOKEN, scheme="DPoP", gateway=ONE, ticket=None, heard=None):
    protocols = ["jsonrpc"] + ([f"ticket.sealwire.dev.{ticket}"] if ticket else [])
    headers = shown(proof, None if ticket else token, scheme)
    address = gateway.replace("http", "ws", 1) + PATH
    try:
        with connect(address, additional_headers=headers, subprotocols=protocols, open_timeout=60, proxy=None) as socket:
            socket.send(json.dumps({"jsonrpc": "2.0", "id": 1, "method": "math/add", "params": [1, 2]}))
            return json.loads(socket.recv(timeout=60)).get("result")
    except InvalidStatus as refused:
        if heard is not None:
            heard["nonce"] = refused.response.headers.get("DPoP-Nonce")
        return told(refused.response.status_code, ", ".join(refused.response.headers.get_all("WWW-Authenticate")))


def ticket(**more):
    return asked(proof("POST", PATH + "/ticket"), **more)


# Until they have memories that are older than a proof or a ticket may be.
for gateway in (ONE, TWO, STRICT):
    while opened(proof("GET"), gateway=gateway) != 3 or opened(gateway=gateway, ticket=ticket(gateway=gateway)) != 3:
        time.sleep(0.2)

found = {"proved": opened(proof("GET"))}


def mcp(gateway, session=None, stream=False, **message):
    headers = shown(proof("POST", "/mcp/tools"), TOKEN, "DPoP") | {"Accept": "application/json, text/event-stream"}
    headers |= {"Mcp-Session-Id": session} if session else {}
    return requests.post(gateway + "/mcp/tools", json={"jsonrpc": "2.0"} | message, headers=headers, stream=stream, timeout=60)


# What belongs to a call that another replica runs is handed on with its proof, which is used up by then.
hello = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "raw", "version": "1"}}
session = mcp(ONE, id=0, method="initialize", params=hello).headers["Mcp-Session-Id"]
job = {"name": "job_run", "arguments": {"steps": 5999}, "_meta": {"progressToken": 1}}
lines = mcp(ONE, session, True, id=7, method="tools/call", params=job).iter_lines()
next(lines)
told_at_another = mcp(TWO, session, method="notifications/cancelled", params={"requestId": 7}).status_code
found["cancelled at another"] = [told_at_another, any(b'"result"' in line for line in lines)]

used = proof("GET")
found["same proof"] = [opened(used), opened(used)]
slow, heard = int(time.time()) - 9000, {}
found["slow clock"] = opened(proof("GET", iat=slow), heard=heard)
found["slow clock, with the nonce"] = opened(proof("GET", iat=slow, nonce=heard["nonce"]))
found["no proof"] = opened()
found["of another method"] = opened(proof("POST"))
found["of another address"] = opened(proof("GET", PATH + "/ticket"))
found["of another key"] = opened(proof("GET", key=STRANGER))
found["as a bearer"] = opened(proof("GET"), scheme="Bearer")

good = ticket()
found["ticket"] = [opened(ticket=good), opened(ticket=good)]
found["ticket, no proof"] = asked(None)
found["ticket, proof of the socket"] = asked(proof("POST"))
used = proof("POST", PATH + "/ticket")
found["ticket, same proof"] = [not asked(used).startswith("401"), asked(used)]
found["ticket, as a bearer"] = asked(proof("POST", PATH + "/ticket"), scheme="Bearer")

good = ticket()
found["at another, ticket"] = [opened(ticket=good, gateway=gateway) for gateway in (TWO, TWO, ONE, ONE)]
used = proof("GET")
found["at another, proof"] = [opened(used, gateway=gateway) for gateway in (ONE, TWO, ONE, TWO)]

bearers = asked(None, UNBOUND, "Bearer")
found["bearer's, where keys are required"] = opened(ticket=bearers, gateway=STRICT)
found["bearer's"] = opened(ticket=bearers)
found["proved, where keys are required"] = opened(ticket=ticket(), gateway=STRICT)
print(json.dumps(found))
