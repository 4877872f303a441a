"""A server of an earlier revision that answers, and from the call of its tool `flood` on also says one thing as fast as it can, until there
is a file KIND.stop.

Usage: flood.py ping|tools|prompts|log|progress|unknown|blank|text
"""
import json
import os
import sys
import threading

LINES = {
    "ping": {"jsonrpc": "2.0", "id": "p", "method": "ping"},
    "tools": {"jsonrpc": "2.0", "method": "notifications/tools/list_changed"},
    "prompts": {"jsonrpc": "2.0", "method": "notifications/prompts/list_changed"},
    "log": {"jsonrpc": "2.0", "method": "notifications/message", "params": {"level": "info", "data": "x"}},
    "progress": {"jsonrpc": "2.0", "method": "notifications/progress", "params": {"progressToken": 1, "progress": 1}},
    "unknown": {"jsonrpc": "2.0", "method": "notifications/x"},
}
LINE = {"blank": "\n", "text": "hello\n"}.get(sys.argv[1]) or json.dumps(LINES[sys.argv[1]]) + "\n"
TALKING = threading.Event()
OUT = threading.Lock()


def write(text):
    with OUT:
        sys.stdout.write(text)
        sys.stdout.flush()


def talk():
    TALKING.wait()
    while not os.path.exists(f"{sys.argv[1]}.stop"):
        write(LINE * 50)


threading.Thread(target=talk, daemon=True).start()
for line in sys.stdin:
    message = json.loads(line)
    method, id, params = message.get("method"), message.get("id"), message.get("params", {})
    if id is None or method is None:
        continue
    result = {}
    if method == "initialize":
        capabilities = {"tools": {"listChanged": True}}
        result = {"protocolVersion": params["protocolVersion"], "capabilities": capabilities, "serverInfo": {"name": "flood", "version": "1"}}
    elif method == "tools/list":
        result = {"tools": [{"name": name, "inputSchema": {"type": "object"}} for name in ("good", "flood")]}
    elif method == "tools/call":
        result = {"content": [{"type": "text", "text": "good"}]}
        if params["name"] == "flood":
            TALKING.set()
    elif method == "server/discover":
        write(json.dumps({"jsonrpc": "2.0", "id": id, "error": {"code": -32601, "message": "Method not found"}}) + "\n")
        continue
    write(json.dumps({"jsonrpc": "2.0", "id": id, "result": result}) + "\n")
