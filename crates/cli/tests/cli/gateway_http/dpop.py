"""A client with DPoP (RFC 9449), made with joserfc, which knows nothing of Sealwire. Prints the thumbprints of its keys as one line of JSON,
reads where the gateway is and tokens that are bound to them, and prints what the gateway answers to proofs, good ones and bad ones, as another."""

import base64
import hashlib
import json
import sys
import time
import uuid
import warnings

import requests
from joserfc import jwk, jws

warnings.simplefilter("ignore")  # EdDSA has another name by now, and this one is still sent
[URL] = sys.argv[1:]
PATH = "/rpc/tools"
KEYS = {
    "ES256": jwk.generate_key("EC", "P-256"),
    "EdDSA": jwk.generate_key("OKP", "Ed25519"),
    "RS256": jwk.generate_key("RSA", 2048),
    "PS256": jwk.generate_key("RSA", 2048),
}
STRANGER = jwk.generate_key("EC", "P-256")
LONGER = jwk.generate_key("EC", "P-384")
SECRET = jwk.generate_key("oct", 256)
REGISTRY = jws.JWSRegistry(algorithms=[*KEYS, "ES384", "HS256"], strict_check_header=False)

print(json.dumps({name: key.thumbprint() for name, key in KEYS.items()} | {"ES384": LONGER.thumbprint()}), flush=True)
SAID = json.loads(sys.stdin.readline())
[GATEWAY], TOKENS = SAID["gateways"], SAID["tokens"]
http = requests  # the gateway closes a connection of which it has not read the body


def digest(token):
    return base64.urlsafe_b64encode(hashlib.sha256(token.encode()).digest()).rstrip(b"=").decode()


def proof(alg="ES256", key=None, token=None, header=None, claims=None, without=()):
    key = key or KEYS[alg]
    head = {"typ": "dpop+jwt", "alg": alg, "jwk": key.as_dict(private=False)} | (header or {})
    said = {"jti": str(uuid.uuid4()), "htm": "POST", "htu": URL + PATH, "iat": int(time.time())}
    said |= {"ath": digest(token or TOKENS[alg])} | (claims or {})
    head = {name: value for name, value in head.items() if name not in without}
    said = {name: value for name, value in said.items() if name not in without}
    return jws.serialize_compact(head, json.dumps(said), key, registry=REGISTRY)


def call(proof, token=None, scheme="DPoP", path=PATH):
    headers = {"Authorization": f"{scheme} {token or TOKENS['ES256']}"} | ({"DPoP": proof} if proof else {})
    body = {"jsonrpc": "2.0", "id": 1, "method": "math/add", "params": [1, 2]}
    return http.post(GATEWAY + path, json=body, headers=headers, timeout=60)


def told(answer):
    if answer.status_code == 200:
        return answer.json().get("result")
    challenge = answer.headers.get("WWW-Authenticate", "")
    error = challenge.split('error="')[1].split('"')[0] if "error=" in challenge else ""
    return f"{answer.status_code} {error}"


# Until the gateway has a memory that is older than a proof may be, it asks for its own time.
first = call(proof())
found = {"first": told(first)}
nonce = first.headers.get("DPoP-Nonce")
found["first, with the nonce"] = told(call(proof(claims={"nonce": nonce})))
found["another's nonce"] = told(call(proof("EdDSA", claims={"nonce": nonce}), TOKENS["EdDSA"]))
while told(call(proof())) == "401 use_dpop_nonce":
    time.sleep(0.2)
nonce = call(proof(claims={"iat": int(time.time()) - 9000})).headers["DPoP-Nonce"]

for alg in KEYS:
    found[alg] = told(call(proof(alg), TOKENS[alg]))
found["written otherwise"] = told(call(proof(claims={"htu": URL.upper().replace("HTTPS", "https") + ":443" + PATH + "?a=b#c"})))
found["a time with a fraction"] = told(call(proof(claims={"iat": time.time()})))
found["a slow clock, with a nonce"] = told(call(proof(claims={"iat": int(time.time()) - 9000, "nonce": nonce})))

used = proof()
found["used"] = [told(call(used)), told(call(used))]
found["same jti"] = [told(call(same)) for same in [proof(claims={"jti": "the-same"}), proof(claims={"jti": "the-same"})]]
found["nonce, used"] = [told(call(noted)) for noted in [proof(claims={"nonce": nonce})] * 2]

good = proof()
header, claims, signature = good.split(".")
UNSIGNED = json.dumps({"typ": "dpop+jwt", "alg": "none", "jwk": KEYS["ES256"].as_dict(private=False)})
UNSIGNED = base64.urlsafe_b64encode(UNSIGNED.encode()).rstrip(b"=").decode()
bad = {
    "none": None,
    "no text": "x",
    "long": "x" * 5000,
    "signature": f"{header}.{claims}.{'A' * 86}",
    "padding": good + "=",
    "typ": proof(header={"typ": "JWT"}),
    "no typ": proof(without=["typ"]),
    "another algorithm": proof("ES384", key=LONGER, token=TOKENS["ES384"]),
    "symmetric": proof("HS256", key=SECRET, token=TOKENS["ES256"], header={"jwk": KEYS["ES256"].as_dict(private=False)}),
    "algorithm none": f"{UNSIGNED}.{claims}.{signature}",
    "another key": proof(key=STRANGER, token=TOKENS["ES256"]),
    "another key, shown as the token's": proof(key=STRANGER, token=TOKENS["ES256"], header={"jwk": KEYS["ES256"].as_dict(private=False)}),
    "private key": proof(header={"jwk": KEYS["ES256"].as_dict(private=True)}),
    "no key": proof(without=["jwk"]),
    "kid": proof(header={"kid": "k"}),
    "crit": proof(header={"x": 1}),
    "method": proof(claims={"htm": "GET"}),
    "method in small letters": proof(claims={"htm": "post"}),
    "no method": proof(without=["htm"]),
    "address": proof(claims={"htu": URL + "/rpc/other"}),
    "host": proof(claims={"htu": "https://evil.example" + PATH}),
    "the gateway's real address": proof(claims={"htu": GATEWAY + PATH}),
    "no address": proof(without=["htu"]),
    "old": proof(claims={"iat": int(time.time()) - 70}),
    "from ahead": proof(claims={"iat": int(time.time()) + 60}),
    "a time as text": proof(claims={"iat": str(int(time.time()))}),
    "no time": proof(without=["iat"]),
    "no jti": proof(without=["jti"]),
    "long jti": proof(claims={"jti": "j" * 200}),
    "no ath": proof(without=["ath"]),
    "another token": proof(token=TOKENS["EdDSA"]),
    "nonce": proof(claims={"nonce": "x"}),
    "nonce of another type": proof(claims={"nonce": 1}),
}
found["bad"] = {name: told(call(text, TOKENS["ES384"] if name == "another algorithm" else None)) for name, text in bad.items()}
found["unused"] = told(call(good))

found["as a bearer"] = told(call(None, scheme="Bearer"))
found["as a bearer, with a proof"] = told(call(proof(), scheme="Bearer"))
found["unbound"] = told(call(proof(token=TOKENS["unbound"]), TOKENS["unbound"]))
found["unbound, as a bearer"] = told(call(None, TOKENS["unbound"], scheme="Bearer"))
found["bound to a kid"] = told(call(proof(token=TOKENS["kid"]), TOKENS["kid"]))
found["twice"] = http.post(GATEWAY + PATH, json={}, headers={"Authorization": f"DPoP {TOKENS['ES256']}", "DPoP": f"{proof()}, {proof()}"}, timeout=60).status_code
streamed = proof(claims={"htu": URL + PATH + "/stream"})
stream = call(streamed, path=PATH + "/stream")
found["a stream"] = [stream.status_code, stream.text.strip().endswith("[DONE]"), told(call(streamed, path=PATH + "/stream"))]
challenge = http.post(GATEWAY + PATH, json={}, timeout=60)
found["challenge"] = challenge.headers["WWW-Authenticate"]
about = http.get(GATEWAY + "/.well-known/oauth-protected-resource", timeout=60).json()
names = ["bearer_methods_supported", "dpop_signing_alg_values_supported", "dpop_bound_access_tokens_required"]
found["about"] = {name: about.get(name) for name in names}
print(json.dumps(found))
