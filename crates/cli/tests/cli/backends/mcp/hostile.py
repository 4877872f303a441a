"""A server of the Model Context Protocol over HTTP, of an earlier revision, in sessions, which answers calls in every
way that it should not. Usage: hostile.py PORT [news], where its first session has a stream of news from the second time on"""

import itertools
import json
import sys
import threading
import time
from collections import Counter
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

NAMES = [
    "good", "garbage", "wrong_id", "page", "large", "flood", "silent", "cut", "ended", "redirect", "pose", "refused", "denied",
    "encoded", "heads", "nothing", "missing", "unfound", "slow", "begun", "sick", "release", "end", "doomed", "made", "ask",
    "pings", "spoil", "split", "restart", "comments", "blanks", "empties", "ids", "changes",
]
BEGUN, RELEASED, SICK, SPOILT, SPLIT = threading.Event(), threading.Event(), [], [], []
ENDED, UNHEARD = threading.Event(), [503] if "news" in sys.argv else []
NUMBERS, SESSIONS, MADE, CANCELLED = itertools.count(), set(), Counter(), set()
TOOLS = [{"name": name, "inputSchema": {"type": "object"}} for name in NAMES]


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    def say(self, status, kind, body, **more):
        body = body if isinstance(body, bytes) else body.encode()
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        for name, value in more.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        self.wfile.write(body)

    def answer(self, id, **what):
        more = {"Mcp_Session_Id": what.pop("session")} if "session" in what else {}
        self.say(what.pop("status", 200), "application/json", json.dumps({"jsonrpc": "2.0", "id": id, **what}), **more)

    def stream(self):
        self.close_connection = True
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Connection", "close")
        self.end_headers()

    def do_GET(self):
        session = self.headers["Mcp-Session-Id"]
        MADE["listen"] += session == "s0"
        if session == "s0" and UNHEARD:
            self.say(UNHEARD.pop(), "text/plain", "")
        elif "news" not in sys.argv or ENDED.is_set():
            self.say(404, "text/plain", "")
        else:
            self.stream()
            ENDED.wait(600)

    def do_POST(self):
        message = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        method, id = message.get("method"), message.get("id")
        if method == "initialize":
            session = f"s{next(NUMBERS)}"
            if not SPLIT:
                SESSIONS.add(session)
            server = {"name": "hostile", "version": "1"}
            self.answer(id, result={"protocolVersion": "2025-03-26", "capabilities": {"tools": {}}, "serverInfo": server}, session=session)
        elif id is not None and self.headers["Mcp-Session-Id"] not in SESSIONS:
            self.say(404, "text/plain", "")
        elif method == "tools/list" and SPOILT:
            self.say(SPOILT.pop(), "text/plain", "")
        elif method == "tools/list":
            self.answer(id, result={"tools": TOOLS})
        elif method == "ping" and SICK:
            self.say(SICK.pop(), "text/plain", "")
        elif method == "ping":
            self.answer(id, result={})
        elif method == "tools/call":
            MADE[message["params"]["name"]] += 1
            getattr(self, message["params"]["name"])(id)
        elif method == "notifications/cancelled":
            CANCELLED.add((self.headers["Mcp-Session-Id"], message["params"]["requestId"]))
            self.say(202, "text/plain", "")
        elif method is None and id == "question":
            self.say(500, "text/plain", "")
        elif method is None:
            time.sleep(600)
        elif id is None:
            self.say(202, "text/plain", "")
        else:
            self.say(400, "text/plain", "Bad Request")

    def good(self, id):
        self.answer(id, result={"content": [{"type": "text", "text": "good"}]})

    def garbage(self, id):
        self.say(200, "application/json", b"\xff{]")

    def wrong_id(self, id):
        self.answer(id + 1, result={"content": []})

    def page(self, id):
        self.say(200, "text/html", "<p>Sign in</p>")

    def large(self, id):
        self.answer(id, result={"content": ["x" * (2 << 20)]})

    def flood(self, id):
        self.stream()
        while True:
            self.wfile.write(b"data: useless\n\n" * 100)

    def comments(self, id, line=b": x\n"):
        self.stream()
        while True:
            self.wfile.write(line * 1000)

    def blanks(self, id):
        self.comments(id, b"\n")

    def empties(self, id):
        self.comments(id, b"event: x\n\n")

    def ids(self, id):
        self.comments(id, b"id: 7\n")

    def changes(self, id):
        note = json.dumps({"jsonrpc": "2.0", "method": "notifications/tools/list_changed"})
        self.comments(id, f"data: {note}\n\n".encode())

    def silent(self, id):
        time.sleep(600)

    def cut(self, id):
        self.stream()
        self.wfile.write(b"data: {\"jsonrpc\": \"2.0\", \"id\"")

    def ended(self, id):
        self.stream()
        other = json.dumps({"jsonrpc": "2.0", "id": id + 1, "result": {"content": []}})
        self.wfile.write(f"id: 1\ndata:\n\ndata: {other}\n\n".encode())

    def redirect(self, id):
        self.say(307, "text/plain", "", Location="http://127.0.0.1:1/elsewhere?secret")

    def pose(self, id):
        self.answer(id, status=400, error={"code": -32004, "message": "I speak for Sealwire"})

    def refused(self, id):
        self.answer("other", status=400, error={"code": 7, "message": "not today", "data": {"day": "Monday"}})

    def denied(self, id):
        self.say(403, "text/plain", "")

    def encoded(self, id):
        self.say(200, "application/json", b"\x1f\x8b", Content_Encoding="gzip")

    def heads(self, id):
        self.say(200, "application/json", "{}", X_Long="x" * 20_000)

    def nothing(self, id):
        self.say(202, "text/plain", "")

    def missing(self, id):
        self.answer(id, status=404, error={"code": 8, "message": "there is no such thing"})

    def unfound(self, id):
        self.say(404, "text/plain", "")

    def slow(self, id):
        BEGUN.set()
        RELEASED.wait(600)
        self.good(id)

    def begun(self, id):
        BEGUN.wait(600)
        self.good(id)

    def event(self, **message):
        self.wfile.write(f"data: {json.dumps({'jsonrpc': '2.0', **message})}\n\n".encode())

    def end(self, id):
        self.good(id)
        SESSIONS.discard(self.headers["Mcp-Session-Id"])

    def doomed(self, id):
        SESSIONS.discard(self.headers["Mcp-Session-Id"])
        self.say(404, "text/plain", "")

    def made(self, id):
        self.answer(id, result={"content": [], "structuredContent": MADE})

    def ask(self, id):
        self.stream()
        self.event(id="question", method="elicitation/create", params={"message": "?", "requestedSchema": {"type": "object"}})
        while (self.headers["Mcp-Session-Id"], id) not in CANCELLED:
            time.sleep(0.05)
        MADE["ask cancelled"] += 1

    def pings(self, id):
        self.stream()
        for number in range(40):
            self.event(id=f"ping{number}", method="ping")
        self.event(id=id, result={"content": []})

    def spoil(self, id):
        self.stream()
        SPOILT.extend([500, 500])
        self.event(method="notifications/tools/list_changed")
        self.event(id=id, result={"content": []})

    def split(self, id):
        """As one of several behind a balancer: what comes next is for another one, which knows no session of this one."""
        SPLIT.append(True)
        SESSIONS.clear()
        self.good(id)

    def restart(self, id):
        """Ends its stream of news, and cannot say for a while what its tools are."""
        SPOILT.extend([500, 500, 500])
        ENDED.set()
        self.good(id)

    def sick(self, id):
        BEGUN.wait(600)
        SICK.extend([502, 429, 502, 502, 502, 502])
        self.say(500, "text/plain", "")

    def release(self, id):
        RELEASED.set()
        self.good(id)


ThreadingHTTPServer.daemon_threads = True
ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
