"""A glossary, as a server of the Model Context Protocol over Streamable HTTP. It knows nothing of Sealwire, and trusts whoever
reaches it: so nobody does but the service in front of it."""
from mcp.server import MCPServer
from mcp.server.transport_security import TransportSecuritySettings

MOST = 1_000
MEANINGS = {
    "nonce": "A number that is used once.",
    "replay": "A message that is sent again by somebody who has seen it.",
}
server = MCPServer("glossary")


@server.tool()
def lookup(term: str) -> str:
    """What a term means."""
    if (meaning := MEANINGS.get(term)) is None:
        raise ValueError(f"no meaning of {term!r} is known")
    return meaning


@server.tool()
def define(term: str, meaning: str) -> str:
    """Says what a term means, from now until the server ends."""
    if len(term) > 100 or len(meaning) > 1_000:
        raise ValueError("a term has 100 characters at most, and a meaning 1,000")
    if term not in MEANINGS and len(MEANINGS) >= MOST:
        raise ValueError(f"the glossary is full: it has {MOST} terms")
    MEANINGS[term] = meaning
    return meaning


if __name__ == "__main__":
    # Under this name alone, so that no page in a browser can reach it under another one.
    named = TransportSecuritySettings(allowed_hosts=["glossary-mcp:8000"])
    server.run("streamable-http", host="0.0.0.0", port=8000, transport_security=named)
