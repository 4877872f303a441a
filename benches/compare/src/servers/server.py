"""The same two tools in an MCP server made with the package mcp, with a check of the token of each request in front.

Without sessions, and with answers in JSON: as fast as it can be set up. Prints where it listens, and ends with its input.
"""

import asyncio
import socket
import sys

import jwt
import uvicorn
from mcp.server import MCPServer

server = MCPServer("compare", log_level="ERROR")


@server.tool()
def site_add(a: int, b: int) -> int:
    """Adds."""
    return a + b


@server.tool()
def site_echo(text: str) -> str:
    """Says it again."""
    return text


def guarded(app, secret):
    async def gate(scope, receive, send):
        if scope["type"] == "http":
            shown = dict(scope["headers"]).get(b"authorization", b"").decode()
            try:
                claims = jwt.decode(shown.removeprefix("Bearer "), secret, algorithms=["HS256"], audience="compare")
            except jwt.InvalidTokenError:
                claims = {}
            if "worker" not in claims.get("roles", []):
                await send({"type": "http.response.start", "status": 401, "headers": []})
                await send({"type": "http.response.body"})
                return
        await app(scope, receive, send)

    return gate


async def main():
    secret = sys.argv[1].encode()
    app = guarded(server.streamable_http_app(stateless_http=True, json_response=True), secret)
    # With the protocol named: asyncio sets TCP_NODELAY only on such a socket, and each answer would wait 40 ms otherwise.
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listener.bind(("127.0.0.1", 0))
    listener.listen(1024)
    print("127.0.0.1:%d" % listener.getsockname()[1], flush=True)
    serving = uvicorn.Server(uvicorn.Config(app, log_level="error", timeout_keep_alive=60))
    running = asyncio.create_task(serving.serve([listener]))
    await asyncio.to_thread(sys.stdin.read)
    serving.should_exit = True
    await running


asyncio.run(main())
