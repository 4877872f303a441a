"""A server of an earlier revision over stdio that says, word for word, what the file says that it is told.

Usage: said.py FILE, a JSON object: for a method, `METHOD CURSOR` (as JSON) or `call TOOL`, the text of the answer, in which $ID stands
for the id of the request. The file is read for every request. `begin`: what it prints first. Its tool `changed` says that its lists
have changed; any other tool gives its arguments back.
"""
import json
import sys


def said(name):
    with open(sys.argv[1], encoding="utf-8") as file:
        return json.load(file).get(name)


def send(text):
    # Whatever JSON cannot hold as characters, the file holds as surrogates: bytes that are no UTF-8.
    sys.stdout.buffer.write(text.encode("utf-8", "surrogateescape") + b"\n")
    sys.stdout.flush()


def answer(id, result):
    send(json.dumps({"jsonrpc": "2.0", "id": id, "result": result}))


def handle(message):
    method, id, params = message.get("method"), message.get("id"), message.get("params", {})
    if id is None or method is None:
        return
    names = [method]
    if "cursor" in params:
        names = [f"{method} {json.dumps(params['cursor'])}"]
    if method == "tools/call":
        names = [f"call {params['name']}"]
    text = said(names[0])
    if text is not None:
        send(text.replace("$ID", str(id)))
    elif method == "initialize":
        capabilities = {kind: {"listChanged": True} for kind in ("tools", "prompts", "resources")}
        version = params["protocolVersion"]
        answer(id, {"protocolVersion": version, "capabilities": capabilities, "serverInfo": {"name": "said", "version": "1"}})
    elif method == "tools/call" and params["name"] == "changed":
        for kind in ("tools", "prompts"):
            send(json.dumps({"jsonrpc": "2.0", "method": f"notifications/{kind}/list_changed"}))
        answer(id, {"content": []})
    elif method == "tools/call":
        answer(id, {"content": [{"type": "text", "text": json.dumps(params.get("arguments", {}))}]})
    elif method == "ping":
        answer(id, {})
    elif method.endswith("/list"):
        answer(id, {{"resources/templates/list": "resourceTemplates"}.get(method, method.split("/")[0]): []})
    else:
        send(json.dumps({"jsonrpc": "2.0", "id": id, "error": {"code": -32601, "message": "Method not found"}}))


if said("begin") is not None:
    send(said("begin"))
for line in sys.stdin:
    handle(json.loads(line))
