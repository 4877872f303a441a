"""A server of the Model Context Protocol over stdio, of the era that it is told, that does what few servers do: it returns more than text,
reports progress from 0, asks for models and folders, lists by small and empty pages, completes, and has errors of its own.

Usage: whole.py modern|legacy NAME
"""
import json
import sys
import time

ERA, NAME = sys.argv[1:]
TEXT = {"type": "string"}
FORM = {"message": "Who?", "requestedSchema": {"type": "object", "properties": {"name": TEXT}}}
SAMPLE = {"messages": [{"role": "user", "content": {"type": "text", "text": "Paris?"}}], "maxTokens": 5}
PNG = "iVBORw0KGgo="
CONTENT = {
    "text": {"type": "text", "text": "seen", "annotations": {"audience": ["user"], "priority": 0.5}},
    "image": {"type": "image", "data": PNG, "mimeType": "image/png", "_meta": {"example.com/n": 1}},
    "audio": {"type": "audio", "data": "UklGRg==", "mimeType": "audio/wav"},
    "resource": {"type": "resource", "resource": {"uri": "test://r", "mimeType": "text/plain", "text": "inside"}},
    "blob": {"type": "resource", "resource": {"uri": "test://b", "mimeType": "image/png", "blob": PNG}},
    "link": {"type": "resource_link", "uri": "test://l", "name": "a link", "description": "elsewhere"},
}
RESULT = {"type": "object", "properties": {"result": {}}, "required": ["result"]}
INPUTS = {
    "user_name": {"method": "elicitation/create", "params": FORM},
    "greeting": {"method": "sampling/createMessage", "params": SAMPLE},
    "folders": {"method": "roots/list", "params": {}},
}
# What each tool that asks wants to know.
WANTED = {
    "ask_name": [["user_name"]],
    "ask_model": [["greeting"]],
    "ask_folders": [["folders"]],
    "ask_all": [["user_name", "greeting", "folders"]],
    "ask_twice": [["user_name"], ["greeting"]],
}
HEADED = {"region": {**TEXT, "x-mcp-header": "Region"}, "n": {"type": "integer", "x-mcp-header": "N"}}
ERRORS = {"own": 7, "missing": -32002, "capability": -32021, "url": -32042, "far": -32099, "params": -32602, "bare": -32602, "lost": -32002, "unknown": -32601}
DATA = {
    "own": {"day": "Monday"},
    "missing": {"uri": "test://gone"},
    "capability": {"requiredCapabilities": {"sampling": {}}},
    "url": {"elicitations": [{"mode": "url", "elicitationId": "1", "url": "https://example.com/", "message": "Go."}]},
    "far": [1],
    "params": {"member": "limit"},
}
WAITING = {}


def send(message):
    sys.stdout.write(json.dumps({"jsonrpc": "2.0", **message}) + "\n")
    sys.stdout.flush()


def answer(request, result):
    if request["method"].split("/")[0] in ("resources", "prompts", "completion"):
        result = {**result, "_meta": {"example.com/of": "server", "dev.sealwire/receipt": "forged", "dev.sealwire/error": "forged"}}
    if ERA == "modern":
        result = {"resultType": "complete", **result}
        if request["method"].endswith("/list") or request["method"] in ("server/discover", "resources/read"):
            result.update(ttlMs=0, cacheScope="private")
    send({"id": request["id"], "result": result})


def refuse(request, code, message, **more):
    send({"id": request["id"], "error": {"code": code, "message": message, **more}})


def fail(request, kind):
    """An error of its own; of this kind, or for want of a resource."""
    if kind == "absent":
        uri = request["params"]["uri"]
        return refuse(request, -32602 if ERA == "modern" else -32002, f"{NAME} has none", data={"uri": uri})
    refuse(request, ERRORS[kind], kind, **({"data": DATA[kind]} if kind in DATA else {}))


def tool(name, properties=None, **more):
    return {"name": name, "description": f"It is {name}.", "inputSchema": {"type": "object", "properties": properties or {}}, **more}


def tools():
    shown = {"kind": {"type": "array", "items": TEXT}, "schema": {"type": "boolean"}}
    all = [tool("show", shown), tool("show_typed", shown, outputSchema=RESULT), tool("show_list", outputSchema={"type": "array"})]
    all += [tool("steps", {"at": {"type": "array"}}), tool("headed", HEADED), tool("error", {"kind": TEXT}), tool("capable")]
    return all + [tool(name) for name in WANTED]


def show(request, arguments, typed):
    kinds = arguments.get("kind", list(CONTENT))
    result = {"content": [CONTENT[kind] for kind in kinds], "_meta": {"example.com/of": "server", "dev.sealwire/receipt": "forged"}}
    if typed:
        result["structuredContent"] = {"result": kinds}
    if arguments.get("schema"):
        result["isError"] = True
    answer(request, result)


def question(request, key):
    """The server's own request, in the revisions that have such."""
    WAITING[key] = request
    send({"id": key, **INPUTS[key]})


def ask(request, rounds):
    params = request["params"]
    given, state = params.get("inputResponses", {}), params.get("requestState")
    at = int(state or 0)
    if all(key in given for key in rounds[at]):
        at += 1
    if at == len(rounds):
        return done(request, given)
    wanted = {"resultType": "input_required", "inputRequests": {key: INPUTS[key] for key in rounds[at]}}
    if at or len(rounds) > 1:
        wanted["requestState"] = str(at)
    send({"id": request["id"], "result": wanted})


def done(request, given):
    if request["method"] == "prompts/get":
        said = {"role": "user", "content": {"type": "text", "text": json.dumps(given)}}
        return answer(request, {"messages": [said]})
    if request["method"] == "resources/read":
        return answer(request, {"contents": [{"uri": request["params"]["uri"], "text": json.dumps(given)}]})
    answer(request, {"content": [{"type": "text", "text": json.dumps(given, sort_keys=True)}]})


def call(request):
    params = request["params"]
    name, arguments, meta = params["name"], params.get("arguments", {}), params.get("_meta", {})
    if name in ("show", "show_typed"):
        show(request, arguments, name == "show_typed")
    elif name == "show_list":
        answer(request, {"content": [{"type": "text", "text": "[1]"}], "structuredContent": [1]})
    elif name == "steps":
        for at in arguments["at"]:
            if "progressToken" in meta:
                send({"method": "notifications/progress", "params": {"progressToken": meta["progressToken"], "progress": at}})
        answer(request, {"content": []})
    elif name == "headed":
        answer(request, {"content": [{"type": "text", "text": json.dumps(arguments)}]})
    elif name == "error":
        fail(request, arguments["kind"])
    elif name == "capable":
        said = meta.get("io.modelcontextprotocol/clientCapabilities") if ERA == "modern" else INITIALIZED
        answer(request, {"content": [{"type": "text", "text": json.dumps(said)}]})
    elif ERA == "modern":
        ask(request, WANTED[name])
    else:
        REST[request["id"]] = [key for keys in WANTED[name] for key in keys]
        GIVEN[request["id"]] = {}
        question(request, REST[request["id"]].pop(0))


REST, GIVEN, INITIALIZED = {}, {}, None


def answered(message):
    key = message["id"]
    request = WAITING.pop(key)
    GIVEN[request["id"]][key] = message.get("result", message.get("error"))
    if REST[request["id"]]:
        question(request, REST[request["id"]].pop(0))
    else:
        done(request, GIVEN.pop(request["id"]))


# Lists by pages: `empty` has none but empty ones, `paged` one entry a page, with empty pages before, between and after.
def page(request, member, entries):
    cursor = int(request["params"].get("cursor", "0"))
    if NAME == "endless":
        return answer(request, {member: [], "nextCursor": str(cursor + 1)})
    if NAME == "slow" and member == "resources":
        time.sleep(2)
        return answer(request, {member: entries[:1], "nextCursor": str(cursor + 1)})
    pages = {"empty": [[], []], "paged": [[], *[one for entry in entries for one in ([entry], [])]]}.get(NAME, [entries])
    result = {member: pages[cursor]}
    if cursor + 1 < len(pages):
        result["nextCursor"] = str(cursor + 1)
    answer(request, result)


def complete(request):
    ref, value = request["params"]["ref"], request["params"]["argument"]["value"]
    if request["params"]["argument"]["name"] in ("error", f"{NAME} error"):
        return fail(request, value)
    known = ref.get("name") == "topic" or ref.get("uri") == "test://{id}"
    values = [f"{NAME} {value}1", f"{NAME} {value}2"] if known and NAME != "empty" else []
    answer(request, {"completion": {"values": values, "total": len(values), "hasMore": False}})


def handle(message):
    global INITIALIZED
    method = message.get("method")
    if method is None:
        answered(message)
    elif "id" not in message:
        pass
    elif method == "server/discover" and ERA == "modern":
        capabilities = {"tools": {}, "resources": {}, "prompts": {}, "completions": {}}
        answer(message, {"supportedVersions": ["2026-07-28"], "capabilities": capabilities})
    elif method == "initialize" and ERA != "modern":
        INITIALIZED = message["params"]["capabilities"]
        capabilities = {"tools": {}, "resources": {}, "prompts": {}, "completions": {}}
        version = message["params"]["protocolVersion"]
        answer(message, {"protocolVersion": version, "capabilities": capabilities, "serverInfo": {"name": NAME, "version": "1"}})
    elif method == "tools/list":
        answer(message, {"tools": tools()})
    elif method == "tools/call":
        call(message)
    elif method == "resources/list":
        page(message, "resources", [{"uri": f"test://{NAME}/{n}", "name": str(n)} for n in range(3)])
    elif method == "resources/templates/list":
        page(message, "resourceTemplates", [{"uriTemplate": "test://{id}", "name": f"{NAME} template"}])
    elif method == "prompts/list":
        page(message, "prompts", [{"name": name} for name in ("topic", "asks", "a__b")])
    elif method == "prompts/get":
        if message["params"]["name"] == "asks" and ERA == "modern":
            ask(message, [["user_name"]])
        elif "kind" in message["params"].get("arguments", {}):
            fail(message, message["params"]["arguments"]["kind"])
        elif message["params"]["name"] in ("topic", "a__b") and NAME != "empty":
            said = {"role": "user", "content": {"type": "text", "text": f"{NAME}: {message['params']['name']}"}}
            answer(message, {"messages": [said]})
        else:
            refuse(message, -32602, "Unknown prompt")
    elif method == "resources/read":
        uri = message["params"]["uri"]
        if uri == "test://asks" and ERA == "modern":
            ask(message, [["folders"]])
        elif uri.startswith(("test://error/", f"test://{NAME}/error/")):
            fail(message, uri.split("/")[-1])
        elif uri.startswith(f"test://{NAME}/"):
            answer(message, {"contents": [{"uri": uri, "text": NAME}]})
        elif ERA == "modern":
            refuse(message, -32602, "Resource not found", data={"uri": uri})
        else:
            refuse(message, -32002, "Resource not found", data={"uri": uri})
    elif method == "resources/subscribe" and ERA != "modern":
        fail(message, message["params"]["uri"].split("/")[-1])
    elif method == "completion/complete":
        complete(message)
    else:
        refuse(message, -32601, "Method not found")


for line in sys.stdin:
    handle(json.loads(line))
