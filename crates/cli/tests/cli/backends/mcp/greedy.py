"""A server of the Model Context Protocol over stdio, of an earlier revision, whose schemas want more than a service has."""

import json
import sys


def object_of(**properties):
    return {"type": "object", "properties": properties}


ROW = {"s0": {"type": "object"}}
for n in range(1, 301):
    ROW[f"s{n}"] = {"anyOf": [{"$ref": f"#/$defs/s{n - 1}"}], "unevaluatedProperties": False}
WIDE = {"not": {"pattern": "[ab]*a[ab]{1000}c"}}
TOOLS = {
    "good": object_of(),
    # Compiling it would use up the stack.
    "row": {"type": "object", "$defs": ROW, "$ref": "#/$defs/s300"},
    # Many small patterns of much memory each.
    "many": object_of(**{f"p{n}": {"pattern": "\\w{28}" + str(n)} for n in range(990)}),
    # Checking it takes long, and would take for ever.
    "wide": object_of(x={"allOf": [WIDE] * 100}),
}
for line in sys.stdin:
    request = json.loads(line)
    if "id" not in request:
        continue
    if request["method"] == "initialize":
        result = {"protocolVersion": "2025-11-25", "capabilities": {"tools": {}}, "serverInfo": {"name": "greedy", "version": "1"}}
    elif request["method"] == "tools/list":
        result = {"tools": [{"name": name, "inputSchema": schema} for name, schema in TOOLS.items()]}
    elif request["method"] == "tools/call":
        result = {"content": [{"type": "text", "text": request["params"]["name"]}]}
    elif request["method"] == "ping":
        result = {}
    else:
        answer = {"error": {"code": -32601, "message": "there is no such method"}}
        print(json.dumps({"jsonrpc": "2.0", "id": request["id"], **answer}), flush=True)
        continue
    print(json.dumps({"jsonrpc": "2.0", "id": request["id"], "result": result}), flush=True)
