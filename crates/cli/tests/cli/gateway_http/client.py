"""Clients that nobody here wrote, against the gateway at the address of the first argument. Prints one JSON object."""

import json
import sys

import requests
from jsonrpcclient import notification, request

GATEWAY = sys.argv[1]
found = {}


def post(body):
    return requests.post(f"{GATEWAY}/rpc/tools", json=body, timeout=60)


answer = post(request("math/add", params=[2, 3]))
found["added"] = [answer.status_code, answer.json()["result"]]
found["named"] = post(request("math/add", params={"a": 2, "b": 3.5})).json()["result"]
denied = post(request("bank/balance", params={"account": "ann"}))
found["denied"] = [denied.status_code, denied.json()["error"]["code"]]
wrong = post(request("math/add", params=["x"]))
found["wrong"] = [wrong.status_code, wrong.json()["error"]["code"]]
told = post(notification("log/append", params={"msg": "from python"}))
found["told"] = [told.status_code, told.text]
batch = [request("math/add", params=[1, 1]), notification("log/append", params={"msg": "x"}), request("no/such")]
answers = {answer["id"]: answer for answer in post(batch).json()}
found["batch"] = [answers[batch[0]["id"]]["result"], answers[batch[2]["id"]]["error"]["code"], len(answers)]
silent = post([notification("log/append", params={"msg": "x"}), notification("log/append", params={"msg": "y"})])
found["silent"] = [silent.status_code, silent.text]
large = post(request("text/echo", params={"text": "x" * 250_000}))
found["large"] = [large.status_code, large.json()["error"]["code"]]
listed = requests.get(f"{GATEWAY}/rpc/tools/openrpc.json", timeout=60)
found["methods"] = [method["name"] for method in listed.json()["methods"]]
found["ready"] = requests.get(f"{GATEWAY}/readyz", timeout=60).status_code
with requests.Session() as session:
    kept = [session.post(f"{GATEWAY}/rpc/tools", json=request("math/add", params=[n, 1])).json()["result"] for n in range(5)]
found["kept"] = kept
print(json.dumps(found))
