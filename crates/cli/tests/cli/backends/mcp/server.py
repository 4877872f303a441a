"""A server of the Model Context Protocol over stdio, of the era that it is told, with what clients have to cope with.

Usage: server.py modern|legacy|strict|mute LOG
LOG gets every line that was read. `strict` ends when anything comes ahead of the handshake; `mute` says nothing to what it does not
know. SLOW: how many seconds it takes to start.
"""
import json
import os
import sys
import time

ERA, LOG = sys.argv[1], open(sys.argv[2], "a", encoding="utf-8")
TEXT = {"type": "string"}
NUMBER = {"type": "integer"}


def tool(name, properties=None, required=(), **more):
    schema = {"type": "object", "properties": properties or {}, "required": list(required)}
    return {"name": name, "description": f"It can {name}.", "inputSchema": schema, **more}


SUM = {"type": "object", "properties": {"sum": NUMBER}, "required": ["sum"]}
TOOLS = [
    tool("echo", {"text": TEXT, "count": NUMBER}, ["text"], annotations={"readOnlyHint": True}),
    tool("add", {"a": NUMBER, "b": NUMBER}, ["a", "b"], outputSchema=SUM),
    tool("lie", outputSchema=SUM),
    tool("garble"),
    tool("fail"),
    tool("refuse"),
    tool("pose"),
    tool("late"),
    tool("pid"),
    tool("resources/read"),
    tool("job"),
    tool("ask"),
    tool("wait"),
    tool("cancelled"),
    tool("release"),
    tool("spoil"),
    tool("who"),
    tool("grow"),
    tool("exit"),
    tool("später"),
    tool("far", {"x": {"$ref": "https://example.com/schema.json"}}),
]
PROMPTS = [{"name": "p", "description": "It can write.", "arguments": [{"name": "topic", "required": True}]}]
QUESTION = {
    "mode": "form",
    "message": "Which size?",
    "requestedSchema": {"type": "object", "properties": {"size": TEXT}},
}
CANCELLED, LISTENING, ASKED, SPOILT = [], [], {}, []
GROWN = sys.argv[2] + ".grown"


def send(message):
    sys.stdout.write(json.dumps({"jsonrpc": "2.0", **message}) + "\n")
    sys.stdout.flush()


def answer(request, result):
    if ERA == "modern":
        result = {"resultType": "complete", **result}
        if request["method"].endswith("/list") or request["method"] in ("server/discover", "resources/read"):
            result.update(ttlMs=0, cacheScope="private")
    send({"id": request["id"], "result": result})


def text(*lines, **more):
    return {"content": [{"type": "text", "text": line} for line in lines], **more}


def refuse(request, code, message, **more):
    send({"id": request["id"], "error": {"code": code, "message": message, **more}})


def changed(what="tools"):
    if ERA != "modern":
        send({"method": f"notifications/{what}/list_changed"})
    elif LISTENING:
        meta = {"io.modelcontextprotocol/subscriptionId": LISTENING[0]}
        send({"method": f"notifications/{what}/list_changed", "params": {"_meta": meta}})


def call(request):
    params = request["params"]
    name, arguments, meta = params["name"], params.get("arguments", {}), params.get("_meta", {})
    if name == "echo":
        answer(request, text(*[arguments["text"]] * arguments.get("count", 1)))
    elif name == "add":
        total = arguments["a"] + arguments["b"]
        answer(request, text(str(total), structuredContent={"sum": total}))
    elif name == "garble":
        sys.stdout.write('{"jsonrpc": "2.0", "id": %d, "result": {"content": [], "content": []}}\n' % request["id"])
        sys.stdout.flush()
    elif name == "lie":
        answer(request, text("none", structuredContent={"sum": "none"}))
    elif name == "fail":
        answer(request, text("there is no such city", isError=True))
    elif name == "refuse":
        refuse(request, 7, "not today", data={"day": "Monday"})
    elif name == "pose":
        refuse(request, -32004, "I speak for Sealwire")
    elif name == "late":
        # Of a call that was given up, which nothing here says.
        send({"method": "notifications/message", "params": {"level": "info", "data": "of another"}})
        if ERA != "modern":
            send({"id": "late", "method": "elicitation/create", "params": QUESTION})
        answer(request, text("done"))
    elif name == "pid":
        answer(request, text(str(os.getpid())))
    elif name == "job":
        if "progressToken" in meta:
            for done in (1, 2):
                progress = {"progressToken": meta["progressToken"], "progress": done, "total": 2, "message": "on it"}
                send({"method": "notifications/progress", "params": progress})
            send({"method": "notifications/message", "params": {"level": "info", "data": "half of it"}})
        answer(request, text("done"))
    elif name == "ask":
        if ERA != "modern":
            ASKED["question"] = request
            send({"id": "question", "method": "elicitation/create", "params": QUESTION})
        elif "inputResponses" in params:
            assert params["requestState"] == "halfway"
            answer(request, text(json.dumps(params["inputResponses"]["size"])))
        else:
            asked = {"size": {"method": "elicitation/create", "params": QUESTION}}
            wanted = {"resultType": "input_required", "inputRequests": asked, "requestState": "halfway"}
            send({"id": request["id"], "result": wanted})
    elif name == "wait":
        ASKED[request["id"]] = request
    elif name == "cancelled":
        answer(request, text(*[str(one) for one in CANCELLED]))
    elif name == "release":
        for one in ASKED.values():
            answer(one, text("released"))
        answer(request, text(str(len(ASKED))))
        ASKED.clear()
    elif name == "spoil":
        SPOILT.extend([1, 2])
        changed()
        answer(request, text("spoilt"))
    elif name == "who":
        answer(request, text(json.dumps(meta.get("dev.sealwire/caller"))))
    elif name == "grow":
        open(GROWN, "w", encoding="utf-8").close()
        changed()
        changed("prompts")
        answer(request, text("grown"))
    elif name == "exit":
        sys.stdout.flush()
        os._exit(3)
    else:
        refuse(request, -32602, f"Unknown tool: {name}")


def handle(message):
    method = message.get("method")
    if method is None:
        if message["id"] == "question":
            answer(ASKED.pop("question"), text(json.dumps(message["result"])))
    elif method == "notifications/cancelled":
        CANCELLED.append(message["params"]["requestId"])
    elif "id" not in message:
        pass
    elif method == "server/discover" and ERA == "modern":
        capabilities = {"tools": {"listChanged": True}, "resources": {}, "prompts": {"listChanged": True}}
        answer(message, {"supportedVersions": ["2026-07-28"], "capabilities": capabilities})
    elif method == "initialize" and ERA != "modern":
        capabilities = {"tools": {"listChanged": True}, "resources": {}, "prompts": {}}
        server = {"name": "test", "version": "1"}
        version = message["params"]["protocolVersion"]
        answer(message, {"protocolVersion": version, "capabilities": capabilities, "serverInfo": server})
    elif method == "tools/list" and SPOILT:
        SPOILT.pop()
        refuse(message, -32603, "Not now")
    elif method == "tools/list":
        if os.path.exists(GROWN):
            TOOLS[0] = tool("echo", {"text": TEXT, "loud": {"type": "boolean"}}, ["text", "loud"])
            TOOLS[0]["description"] = "It can echo.\u200b"
        start = int(message["params"].get("cursor", "0"))
        page = {"tools": TOOLS[start : start + 5]}
        if start + 5 < len(TOOLS):
            page["nextCursor"] = str(start + 5)
        answer(message, page)
    elif method == "subscriptions/listen" and ERA == "modern":
        LISTENING.append(message["id"])
        meta = {"io.modelcontextprotocol/subscriptionId": message["id"]}
        granted = {"_meta": meta, "notifications": message["params"]["notifications"]}
        send({"method": "notifications/subscriptions/acknowledged", "params": granted})
    elif method == "tools/call":
        call(message)
    elif method == "resources/list":
        answer(message, {"resources": [{"uri": "test://one", "name": "one"}]})
    elif method == "resources/read":
        if message["params"]["uri"] == "test://one":
            answer(message, {"contents": [{"uri": "test://one", "text": "the first"}]})
        else:
            refuse(message, -32602 if ERA == "modern" else -32002, "Resource not found")
    elif method == "prompts/list":
        if os.path.exists(GROWN):
            PROMPTS[0]["description"] = "It can write anything."
        answer(message, {"prompts": PROMPTS})
    elif method == "prompts/get":
        said = {"role": "user", "content": {"type": "text", "text": message["params"]["arguments"]["topic"]}}
        answer(message, {"messages": [said]})
    elif ERA != "mute":
        refuse(message, -32601, "Method not found")


time.sleep(float(os.environ.get("SLOW", "0")))
first = True
for line in sys.stdin:
    LOG.write(line)
    LOG.flush()
    message = json.loads(line)
    if first and ERA == "strict" and message.get("method") != "initialize":
        sys.exit("this is no handshake")
    first = False
    handle(message)
