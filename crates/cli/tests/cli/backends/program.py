"""A program that knows nothing of Sealwire: JSON-RPC 2.0, an object a line. Well-behaved, or not, as it is asked."""

import codecs
import io
import json
import os
import random
import subprocess
import sys
import threading
import time

lock = threading.Lock()
answers = {}


def say(message):
    with lock:
        sys.stdout.write(json.dumps({"jsonrpc": "2.0", **message}) + "\n")
        sys.stdout.flush()


def raw(text):
    with lock:
        sys.stdout.write(text)
        sys.stdout.flush()


def later(id, params):
    time.sleep(random.random() / 20)
    say({"id": id, "result": params})


def job(id, params):
    """Three parts, progress and a notification on the way."""
    say({"method": "rpc.progress", "params": {"id": id, "progress": 1, "total": 3, "message": "on it"}})
    say({"method": "job/began", "params": {"id": id, "by": "me"}})
    for word in ("Once", "upon", "a time"):
        say({"method": "rpc.part", "params": {"id": id, "result": word}})
    say({"id": id, "result": "Once upon a time"})


def ask(id, params):
    answered = threading.Event()
    answers["q1"] = [answered, None]
    say({"method": "which", "params": {"of": [1, 2]}, "id": "q1"})
    answered.wait(20)
    say({"id": id, "result": answers["q1"][1]})


def put(id, params):
    """A question of any name, and what came of it."""
    answered = threading.Event()
    answers["q3"] = [answered, None]
    say({"method": params[0], "params": {"id": id}, "id": "q3"})
    answered.wait(20)
    say({"id": id, "result": answers["q3"][1]})


def quiz(id, params):
    """Does nothing else until its question is answered, which it asks at once or when nobody waits any more."""
    kept = []

    def heard(is_it):
        while True:
            message = json.loads(sys.stdin.readline())
            if is_it(message):
                return message
            kept.append(message)

    if params == ["late"]:
        say({"method": "rpc.part", "params": {"id": id, "result": "waiting"}})
        heard(lambda message: message.get("method") == "rpc.cancel")
    say({"method": "which", "params": {"id": id}, "id": "q2"})
    quizzed.append(heard(lambda message: "method" not in message)["error"]["code"])
    for message in kept:
        run(message)


def forked(id, params):
    """One that leaves its group and closes everything: what daemons do."""
    daemon = subprocess.Popen(
        [sys.executable, "-c", "import time; time.sleep(600)"],
        stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True,
    )
    say({"id": id, "result": [os.getpid(), daemon.pid]})


def usurp(id, params):
    """Leaves its group, closes everything, and then nobody is left to end what it has started."""
    daemon = subprocess.Popen(
        [sys.executable, "-c", "import time; time.sleep(600)"],
        stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True,
    )
    print(f"left {daemon.pid} alone", file=sys.stderr, flush=True)
    os.kill(os.getppid(), 9)


def leak(id, params):
    kept = []
    try:
        for _ in range(4096):
            kept.append(bytearray(1 << 20))
    except MemoryError:
        size = len(kept)
        kept.clear()
        say({"error": {"code": 7, "message": f"no memory beyond {size} MiB"}, "id": id})


def files(id, params):
    kept = []
    try:
        while True:
            kept.append(os.open("/dev/null", os.O_RDONLY))
    except OSError:
        for file in kept:
            os.close(file)
        say({"id": id, "result": len(kept)})


def noise(id, params):
    sys.stderr.write("line\x1b[2J of noise\n" * 200_000)
    sys.stderr.flush()
    say({"id": id, "result": "noisy"})


def garbage(id, params):
    raw("Welcome!\n\n{\"jsonrpc\": \"2.0\"}\n[1, 2\n\x00\xff\n")
    say({"id": 4_000_000, "result": "never asked"})
    say({"id": "x", "result": "nor this"})
    say({"id": id, "result": "after the garbage"})
    say({"id": id, "result": "twice"})


def flood(id, params):
    while True:
        raw("flood\n" * 1000)


def parts(id, params):
    while True:
        say({"method": "rpc.part", "params": {"id": id, "result": "x" * 10_000}})


def ticks():
    number = 0
    while True:
        time.sleep(0.02)
        number += 1
        say({"method": "tick", "params": {"n": number}})


def run(message):
    method, params, id = message["method"], message.get("params"), message.get("id")
    if method == "echo":
        say({"id": id, "result": params})
    elif method == "raw":
        raw('{"jsonrpc": "2.0", "id": %d, "result": %s}\n' % (id, params["text"]))
    elif method == "form":
        # The bytes are text in which `ID` stands for the id.
        with lock:
            sys.stdout.buffer.write(params["text"].replace("ID", str(id)).encode(params.get("encoding", "utf-8"), "surrogateescape"))
            sys.stdout.flush()
    elif method == "burst":
        text = "".join(json.dumps({"jsonrpc": "2.0", "method": "rpc.part", "params": {"id": id, "result": n}}) + "\n" for n in range(params[0]))
        raw(text)
        say({"id": id, "result": params[0]})
    elif method == "deluge":
        say({"method": "tick", "params": {"n": 0}})
        raw('{"jsonrpc": "2.0", "method": "tick", "params": {"n": 1}}\n' * params[0])
        say({"id": id, "result": params[0]})
    elif method == "split":
        # How a reader that ends lines wherever Unicode does has read the request.
        say({"id": id, "result": [len(line.splitlines()), len(list(codecs.getreader("utf-8")(io.BytesIO(line.encode()))))]})
    elif method == "refuse":
        say({"error": {"code": params[0] if params else 42, "message": "not today", "data": {"day": "Monday"}}, "id": id})
    elif method == "who":
        say({"id": id, "result": message.get("caller")})
    elif method == "env":
        say({"id": id, "result": dict(os.environ)})
    elif method == "exit":
        os._exit(3)
    elif method == "ignored":
        print("it is ignored", file=sys.stderr, flush=True)
    elif method == "stuck":
        time.sleep(600)
    elif method == "endless":
        raw("x" * (2 << 20))
    elif method == "deaf":
        os.close(0)
        time.sleep(600)
    elif method == "cancelled":
        say({"id": id, "result": cancelled})
    elif method == "rpc.cancel":
        cancelled.append(params["id"])
    elif method == "quiz":
        quiz(id, params)
    elif method == "quizzed":
        say({"id": id, "result": quizzed})
    elif method == "held":
        say({"id": id, "result": held})
    elif method == "release":
        for one in held:
            say({"id": one, "result": "released"})
        say({"id": id, "result": len(held)})
        held.clear()
    elif method == "wait":
        held.append(id)
        say({"method": "rpc.part", "params": {"id": id, "result": "waiting"}})
    elif method in ("later", "job", "ask", "put", "forked", "leak", "files", "noise", "garbage", "flood", "parts", "usurp"):
        threading.Thread(target=globals()[method], args=(id, params), daemon=True).start()
    else:
        say({"error": {"code": -32601, "message": "Method not found"}, "id": id})


cancelled, held, quizzed = [], [], []
if "--ticks" in sys.argv:
    threading.Thread(target=ticks, daemon=True).start()
print("it has begun", file=sys.stderr, flush=True)
for line in sys.stdin:
    message = json.loads(line)
    if "method" in message:
        run(message)
    else:
        answered = answers[message["id"]]
        answered[1] = message.get("result", message.get("error"))
        answered[0].set()
