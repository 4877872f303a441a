"""A server of the Model Context Protocol over stdio, of the era that it is told, whose resources change when it is told so.

Usage: watched.py modern|legacy LOG [deaf]
LOG gets what it is subscribed to and unsubscribed from. With `deaf`, it has resources and no subscriptions.
"""
import json
import os
import sys

ERA, LOG = sys.argv[1], open(sys.argv[2], "a", encoding="utf-8", buffering=1)
DEAF = "deaf" in sys.argv[3:]
TEXT, NUMBER = {"type": "string"}, {"type": "integer"}
RESOURCES = [{"uri": f"test://{name}", "name": name} for name in ("a", "b", "secret")]
SUBSCRIBED, STREAMS = set(), {}


def send(message):
    sys.stdout.write(json.dumps({"jsonrpc": "2.0", **message}) + "\n")
    sys.stdout.flush()


def answer(request, result):
    if ERA == "modern":
        result = {"resultType": "complete", **result}
        if request["method"].endswith("/list") or request["method"] in ("server/discover", "resources/read"):
            result.update(ttlMs=0, cacheScope="private")
    send({"id": request["id"], "result": result})


def refuse(request, code, message, **more):
    send({"id": request["id"], "error": {"code": code, "message": message, **more}})


def note(method, kind, params):
    """To whoever has asked for it: in 2026-07-28 on each stream that has, before that always."""
    if ERA != "modern":
        return send({"method": method, "params": params} if params else {"method": method})
    for id, wanted in STREAMS.items():
        if wanted.get(kind) is True or params.get("uri") in (wanted.get(kind) or []):
            send({"method": method, "params": {**params, "_meta": {"io.modelcontextprotocol/subscriptionId": id}}})


def touch(uri):
    if ERA == "modern" or uri in SUBSCRIBED or any(uri.startswith(one + "/") for one in SUBSCRIBED):
        note("notifications/resources/updated", "resourceSubscriptions", {"uri": uri})


def call(request):
    name, arguments = request["params"]["name"], request["params"].get("arguments", {})
    if name == "touch":
        for _ in range(arguments.get("times", 1)):
            touch(arguments["uri"])
    elif name == "add_resource":
        RESOURCES.append({"uri": f"test://new/{len(RESOURCES)}", "name": "new"})
        note("notifications/resources/list_changed", "resourcesListChanged", {})
    elif name == "exit":
        os._exit(0)
    answer(request, {"content": [{"type": "text", "text": "done"}]})


def tool(name, **properties):
    return {"name": name, "description": f"It can {name}.", "inputSchema": {"type": "object", "properties": properties}}


def capabilities():
    changes = {} if DEAF else {"listChanged": True}
    return {"tools": {}, "prompts": changes, "resources": {} if DEAF else {"subscribe": True, **changes}}


def handle(message):
    method, params = message.get("method"), message.get("params", {})
    if method == "notifications/cancelled" and STREAMS.pop(params.get("requestId"), None):
        LOG.write(f"over {params['requestId']}\n")
    elif "id" not in message:
        pass
    elif method == "server/discover" and ERA == "modern":
        answer(message, {"supportedVersions": ["2026-07-28"], "capabilities": capabilities()})
    elif method == "initialize" and ERA != "modern":
        version = params["protocolVersion"]
        answer(message, {"protocolVersion": version, "capabilities": capabilities(), "serverInfo": {"name": "watched", "version": "1"}})
    elif method == "ping":
        answer(message, {})
    elif method == "tools/list":
        answer(message, {"tools": [tool("touch", uri=TEXT, times=NUMBER), tool("add_resource"), tool("exit")]})
    elif method == "tools/call":
        call(message)
    elif method == "resources/list":
        answer(message, {"resources": RESOURCES})
    elif method == "resources/templates/list":
        answer(message, {"resourceTemplates": []})
    elif method == "prompts/list":
        answer(message, {"prompts": [{"name": "one"}]})
    elif method == "resources/read":
        answer(message, {"contents": [{"uri": params["uri"], "text": "text"}]})
    elif method == "subscriptions/listen" and ERA == "modern":
        wanted = params["notifications"]
        if DEAF:
            return refuse(message, -32601, "Method not found")
        if "resourceSubscriptions" in wanted:
            wanted["resourceSubscriptions"] = [uri for uri in wanted["resourceSubscriptions"] if uri != "test://unknown"]
            LOG.write(f"listen {' '.join(wanted['resourceSubscriptions'])}\n")
        STREAMS[message["id"]] = wanted
        meta = {"io.modelcontextprotocol/subscriptionId": message["id"]}
        send({"method": "notifications/subscriptions/acknowledged", "params": {"_meta": meta, "notifications": wanted}})
    elif method in ("resources/subscribe", "resources/unsubscribe") and ERA != "modern" and not DEAF:
        if params["uri"] == "test://unknown":
            return refuse(message, -32002, "Resource not found", data={"uri": params["uri"]})
        LOG.write(f"{method.split('/')[1]} {params['uri']}\n")
        (SUBSCRIBED.add if method == "resources/subscribe" else SUBSCRIBED.discard)(params["uri"])
        answer(message, {})
    else:
        refuse(message, -32601, "Method not found")


for line in sys.stdin:
    handle(json.loads(line))
