"""A server of the Model Context Protocol over HTTP, of an earlier revision, with a resource that its tool `touch` changes.

Usage: told.py PORT NAME stream|refusing|stateless
The resource is NAME://a. With `stream` there is a stream on which it tells of changes, which the tool `cut` ends; `refusing` refuses it, and
`stateless` keeps no session. All of them announce subscriptions and grant them.
"""
import json
import queue
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

PORT, NAME, KIND = int(sys.argv[1]), sys.argv[2], sys.argv[3]
URI, SUBSCRIBED, STREAMS = f"{NAME}://a", set(), []


def tell(message):
    for stream in STREAMS:
        stream.put(message)


def result(method, params):
    if method == "initialize":
        capabilities = {"tools": {}, "resources": {"subscribe": True}}
        return {"protocolVersion": params["protocolVersion"], "capabilities": capabilities, "serverInfo": {"name": NAME, "version": "1"}}
    if method == "tools/list":
        return {"tools": [{"name": name, "inputSchema": {"type": "object"}} for name in ("touch", "cut")]}
    if method == "tools/call":
        if params["name"] == "cut":
            tell(None)
            STREAMS.clear()
        elif URI in SUBSCRIBED:
            tell({"jsonrpc": "2.0", "method": "notifications/resources/updated", "params": {"uri": URI}})
        return {"content": [{"type": "text", "text": "done"}]}
    if method == "resources/subscribe" and params["uri"] == URI:
        SUBSCRIBED.add(URI)
        return {}
    if method == "resources/unsubscribe":
        SUBSCRIBED.discard(params["uri"])
        return {}
    return {} if method == "ping" else None


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    def say(self, status, body=""):
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        if KIND != "stateless":
            self.send_header("Mcp-Session-Id", "s")
        self.end_headers()
        self.wfile.write(body.encode())

    def do_GET(self):
        if KIND != "stream":
            return self.say(405)
        self.close_connection = True
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Connection", "close")
        self.end_headers()
        stream = queue.Queue()
        STREAMS.append(stream)
        while (message := stream.get()) is not None:
            self.wfile.write(f"data: {json.dumps(message)}\n\n".encode())

    def do_DELETE(self):
        self.say(200)

    def do_POST(self):
        message = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if "id" not in message:
            return self.say(202)
        said = result(message["method"], message.get("params", {}))
        unknown = {"code": -32002, "message": "no such thing", "data": {"of": NAME}}
        answer = {"error": unknown} if said is None else {"result": said}
        self.say(200, json.dumps({"jsonrpc": "2.0", "id": message["id"], **answer}))


ThreadingHTTPServer.daemon_threads = True
ThreadingHTTPServer(("127.0.0.1", PORT), Handler).serve_forever()
