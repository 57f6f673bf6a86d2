"""A small MCP server of the official package: ``python -m tests.support.mcp_tools stdio|PORT``.

With a port it speaks streamable HTTP on loopback.
"""

import os
import sys

from mcp.server import MCPServer
from mcp.types import ToolAnnotations

server = MCPServer("shop")


@server.tool(annotations=ToolAnnotations(read_only_hint=True))
def price(product: str, pieces: int = 1) -> str:
    """Get the price of a product."""
    return f"{product}: {pieces * 24}"


@server.tool(annotations=ToolAnnotations(idempotent_hint=True))
def reserve(product: str) -> dict[str, str]:
    """Reserve a product."""
    return {"reserved": product}


@server.tool()
def refuse(reason: str) -> str:
    """Fail."""
    raise ValueError(reason)


@server.tool()
def die() -> str:
    """End the whole server in the middle of the call."""
    os._exit(1)


if __name__ == "__main__":
    if sys.argv[1] == "stdio":
        server.run("stdio")
    else:
        server.run("streamable-http", host="127.0.0.1", port=int(sys.argv[1]))
