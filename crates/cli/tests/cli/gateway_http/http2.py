"""HTTP/2 at the gateway, by clients that nobody here wrote (httpx) and frame by frame (h2). Arguments: the port, the CA's file. Prints one JSON object."""

import asyncio
import json
import socket
import ssl
import sys
import time

import h2.config
import h2.connection
import h2.events
import httpx
from httpx_sse import connect_sse
from jsonrpcclient import notification, request

PORT, CA = int(sys.argv[1]), sys.argv[2]
GATEWAY = f"https://localhost:{PORT}"
found = {}


def raw():
    """A connection on which anything may be said."""
    tls = ssl.create_default_context(cafile=CA)
    tls.set_alpn_protocols(["h2"])
    wire = tls.wrap_socket(socket.create_connection(("localhost", PORT), timeout=60), server_hostname="localhost")
    config = h2.config.H2Configuration(validate_outbound_headers=False, normalize_outbound_headers=False)
    connection = h2.connection.H2Connection(config)
    connection.initiate_connection()
    wire.sendall(connection.data_to_send())
    return wire, connection


def more(wire, connection, stream):
    """What is said next: the status of the stream's answer, how it ended (`reset` it alone, `closed` with the connection), or nothing of that."""
    data = wire.recv(65_536)
    if not data:
        return "closed"
    for event in connection.receive_data(data):
        if isinstance(event, h2.events.ResponseReceived) and event.stream_id == stream:
            return int(dict(event.headers)[b":status"])
        if isinstance(event, h2.events.StreamReset) and event.stream_id == stream:
            return "reset"
        if isinstance(event, h2.events.ConnectionTerminated):
            return "closed"
    wire.sendall(connection.data_to_send())
    return None


def heard(wire, connection, stream):
    while (said := more(wire, connection, stream)) is None:
        pass
    return said


ADD = json.dumps(request("math/add", params=[2, 3])).encode()
RIGHT = [
    (":method", "POST"), (":scheme", "https"), (":path", "/rpc/tools"), (":authority", f"localhost:{PORT}"),
    ("content-type", "application/json"),
]


def asks(*arguments, **named):
    """What a request with these fields comes to. One that is right has to be answered after it, on the same connection."""
    wire, connection = raw()
    try:
        came = heard_of(wire, connection, *arguments, **named)
    except (ConnectionError, ssl.SSLEOFError):
        # The gateway had closed the connection before all of the request was written.
        return "closed"
    if came == "closed":
        return came
    after = connection.get_next_available_stream_id()
    connection.send_headers(after, RIGHT)
    connection.send_data(after, ADD, end_stream=True)
    wire.sendall(connection.data_to_send())
    assert heard(wire, connection, after) == 200
    return came


def heard_of(wire, connection, fields=(), left_out=(), body=ADD, path="/rpc/tools"):
    stream = connection.get_next_available_stream_id()
    head = [(name, path if name == ":path" else value) for name, value in RIGHT if name not in left_out]
    # Pseudo-header fields come first.
    connection.send_headers(stream, sorted(head + list(fields), key=lambda field: field[0][0] != ":"))
    came = None
    for at in range(0, len(body), 16_000):
        while came is None and connection.local_flow_control_window(stream) < 16_000:
            came = more(wire, connection, stream)
        if came is not None:
            break
        connection.send_data(stream, body[at : at + 16_000])
        wire.sendall(connection.data_to_send())
    else:
        connection.end_stream(stream)
    wire.sendall(connection.data_to_send())
    return came or heard(wire, connection, stream)


def late():
    """What a request is refused with whose body comes after its head, and whether its stream was ended while it came."""
    wire, connection = raw()
    stream = connection.get_next_available_stream_id()
    connection.send_headers(stream, [(name, "/rpc/others" if name == ":path" else value) for name, value in RIGHT])
    wire.sendall(connection.data_to_send())
    time.sleep(0.3)
    connection.send_data(stream, ADD, end_stream=True)
    wire.sendall(connection.data_to_send())
    status, is_reset, is_over = None, False, False
    while not is_over:
        for event in connection.receive_data(wire.recv(65_536)):
            status = int(dict(event.headers)[b":status"]) if isinstance(event, h2.events.ResponseReceived) else status
            is_reset |= isinstance(event, h2.events.StreamReset)
            is_over |= isinstance(event, h2.events.StreamEnded)
        wire.sendall(connection.data_to_send())
    return [status, is_reset]


with httpx.Client(http2=True, verify=ssl.create_default_context(cafile=CA), timeout=60) as client:
    answer = client.post(f"{GATEWAY}/rpc/tools", json=request("math/add", params=[2, 3]))
    found["added"] = [answer.http_version, answer.status_code, answer.json()["result"]]
    told = client.post(f"{GATEWAY}/rpc/tools", json=notification("log/append", params={"msg": "from python"}))
    found["told"] = [told.http_version, told.status_code, told.text]
    batch = [request("math/add", params=[n, n]) for n in range(3)]
    found["batch"] = [answer["result"] for answer in client.post(f"{GATEWAY}/rpc/tools", json=batch).json()]
    padded = b" " * 150_000 + json.dumps(request("math/add", params=[2, 3])).encode()
    large = client.post(f"{GATEWAY}/rpc/tools", content=padded, headers={"content-type": "application/json"})
    found["large"] = large.json()["result"]
    found["head"] = [(it := client.head(f"{GATEWAY}/livez")).status_code, it.text]
    body = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": "math_add", "arguments": {"a": 2, "b": 3}}}
    tool = client.post(f"{GATEWAY}/mcp/tools", json=body)
    found["tool"] = [tool.http_version, tool.json()["result"]["content"][0]["text"]]
    stream = request("job/run", params={"steps": 3})
    with connect_sse(client, "POST", f"{GATEWAY}/rpc/tools/stream", json=stream) as events:
        found["events"] = [event.data for event in events.iter_sse()][-1]


async def many():
    """More calls at a time than one connection takes; all of them on one."""
    limits = httpx.Limits(max_connections=1)
    context = ssl.create_default_context(cafile=CA)
    async with httpx.AsyncClient(http2=True, verify=context, limits=limits, timeout=60) as client:
        calls = [client.post(f"{GATEWAY}/rpc/tools", json=request("math/add", params=[n, 1])) for n in range(120)]
        return [answer.json().get("result") for answer in await asyncio.gather(*calls)]


found["many"] = asyncio.run(many()) == [n + 1 for n in range(120)]

found["late"] = late()
found["asked"] = {
    "as it should be": asks(),
    "with its length": asks([("content-length", str(len(ADD)))]),
    "a host that is the same": asks([("host", f"localhost:{PORT}")]),
    "a host alone": asks([("host", f"localhost:{PORT}")], [":authority"]),
    "a host that differs": asks([("host", "localhost")]),
    "two hosts": asks([("host", "localhost"), ("host", "localhost")]),
    "another authority": asks([(":authority", "evil.example")], [":authority"]),
    "no authority": asks(left_out=[":authority"]),
    "user information": asks([(":authority", f"ann@localhost:{PORT}")], [":authority"]),
    "another page": asks([("origin", "https://evil.example")]),
    "two origins": asks([("origin", "https://localhost"), ("origin", "https://localhost")]),
    "two types": asks([("content-type", "application/json")]),
    "another type": asks([("content-type", "text/plain")], ["content-type"]),
    "a proxy": asks([("x-forwarded-for", "10.0.0.1")]),
    "a shorter length": asks([("content-length", "3")]),
    "a longer length": asks([("content-length", "999")]),
    "two lengths": asks([("content-length", str(len(ADD))), ("content-length", str(len(ADD)))]),
    "chunks": asks([("transfer-encoding", "chunked")]),
    "a connection": asks([("connection", "keep-alive")]),
    "capitals": asks([("Origin", "https://localhost")]),
    "too much": asks(body=b" " * 300_000),
    "too much, and said": asks([("content-length", "300000")], body=b" " * 300_000),
    "a large field": asks([("x", "x" * 20_000)]),
    "many fields": asks([("x", "y")] * 120),
    "a long address": asks(path="/rpc/tools?" + "x" * 5_000),
    "nothing there": asks(path="/rpc/others"),
    "a socket": asks(path="/rpc/tools/ws"),
}
print(json.dumps(found))
