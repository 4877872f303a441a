"""Server-sent events as httpx-sse reads them, from the gateway at the address of the first argument. Prints one JSON object."""

import json
import sys

import httpx
from httpx_sse import connect_sse

GATEWAY = sys.argv[1]


def stream(method, params, most=None):
    """What comes, to the end or up to so many events."""
    call = {"jsonrpc": "2.0", "id": "me", "method": method, "params": params}
    events = []
    with connect_sse(client, "POST", f"{GATEWAY}/rpc/tools/stream", json=call) as source:
        for event in source.iter_sse():
            events.append(event.data if event.data == "[DONE]" else json.loads(event.data))
            if len(events) == most:
                break
    return events


with httpx.Client(timeout=60) as client:
    found = {
        "words": stream("text/echo", {"text": "one by one"}),
        "job": stream("job/run", {"steps": 2}),
        "ticks": stream("clock/ticks", {}, most=2),
        "denied": stream("bank/balance", {"account": "ann"}),
        "wrong": stream("text/echo", {"txt": "x"}),
    }
    asked = {"method": "text/echo", "params": '{"text": "a b"}'}
    with connect_sse(client, "GET", f"{GATEWAY}/rpc/tools/stream", params=asked) as source:
        found["got"] = [event.data for event in source.iter_sse()]
print(json.dumps(found))
