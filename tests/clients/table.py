"""The clients that are tried, and what is expected of each: the rows of ``docs/clients.md``.

Knows names and versions; runs nothing.

Always true: ``matrix`` is what the document shows, and every row is a script that
``tests/clients/test_clients.py`` runs.
"""

import json
import re
from dataclasses import dataclass, field
from pathlib import Path

HERE = Path(__file__).resolve().parent
REQUIREMENTS = HERE / "requirements"
SCRIPTS = HERE / "scripts"
NPM = HERE / "npm"
CAPABILITIES = ("tool_loop", "streaming", "structured", "error", "cancel")


@dataclass(frozen=True, kw_only=True)
class Client:
    """One way of one client to the server."""

    package: str
    """On its registry; of a Python client also the name of its requirements."""
    script: str
    way: str
    error: str
    """The class in which the client reports a model that does not exist."""
    status: int | None = 404
    """That it reports with it; None: it keeps it to itself."""
    lacks: dict[str, str] = field(default_factory=dict)
    """Capabilities that do not work, with the reason. The tests hold that this is so still."""
    unsteady: dict[str, str] = field(default_factory=dict)
    """Those that work in some runs and not in others: the tests take either."""

    @property
    def is_for_node(self) -> bool:
        return self.script.endswith(".mjs")

    @property
    def heading(self) -> str:
        """The package and where it comes from, as the document writes it."""
        return f"`{self.package}` ({'npm' if self.is_for_node else 'PyPI'})"


def _ways(package: str, script: str, error: str, *ways: str) -> list[Client]:
    return [Client(package=package, script=script, way=way, error=error) for way in ways]


CLIENTS: list[Client] = [
    *_ways("openai", "openai_websocket.py", "openai.ResponseWsError", "sync", "async"),
    *_ways("openai", "openai_responses.py", "openai.NotFoundError", "sync", "async"),
    *_ways("openai", "openai_chat.py", "openai.NotFoundError", "sync", "async"),
    Client(
        package="openai-agents",
        script="openai_agents.py",
        way="websocket",
        error="agents.ResponsesWebSocketError",
        status=None,
        unsteady={"cancel": "the package at times keeps its connection, and the turn goes on"},
    ),
    *_ways("openai-agents", "openai_agents.py", "openai.NotFoundError", "http", "chat"),
    *_ways(
        "pydantic-ai",
        "pydantic_ai_agent.py",
        "pydantic_ai.ModelNotFoundError",
        "websocket",
        "http",
        "chat",
    ),
    *_ways(
        "langchain-openai",
        "langchain_model.py",
        "langchain_openai.OpenAIModelNotFoundError",
        "chat",
        "responses",
    ),
    *_ways("litellm", "litellm_client.py", "litellm.NotFoundError", "chat", "messages"),
    Client(
        package="litellm",
        script="litellm_client.py",
        way="responses",
        error="litellm.NotFoundError",
        lacks={"cancel": "LiteLLM leaves its connection open; the turn ends with the process"},
    ),
    *_ways("anthropic", "anthropic_messages.py", "anthropic.NotFoundError", "sync", "async"),
    *_ways("openai", "openai_websocket.mjs", "WebSocketError", "websocket"),
    *_ways("openai", "openai_http.mjs", "NotFoundError", "responses", "chat"),
    Client(
        package="@openai/agents",
        script="openai_agents.mjs",
        way="websocket",
        error="ModelBehaviorError",
        status=None,
    ),
    *_ways("@openai/agents", "openai_agents.mjs", "NotFoundError", "http", "chat"),
    *_ways("ai", "ai_sdk.mjs", "APICallError", "responses", "chat"),
]


def version(client: Client) -> str:
    """The version that is tried, from the file that pins it."""
    if client.is_for_node:
        pinned: str = json.loads((NPM / "package.json").read_text())["dependencies"][client.package]
        return pinned
    distribution = {"pydantic-ai": "pydantic-ai-slim"}.get(client.package, client.package)
    text = (REQUIREMENTS / f"{client.package}.txt").read_text(encoding="utf-8")
    found = re.search(rf"^{distribution}==(\S+)", text, re.MULTILINE)
    assert found, f"{client.package}.txt does not pin {distribution}"
    return found[1]


def matrix() -> str:
    """The table of the document, one row a client and way."""
    rows = [
        "| client | version | script, way | tool loop | streaming | structured output | unknown "
        "model | cancel |",
        "| --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for client in CLIENTS:
        status = "no status" if client.status is None else str(client.status)
        cells = [client.heading, version(client), f"`{client.script}` {client.way}"]
        for capability in CAPABILITIES:
            works = f"`{client.error}`, {status}" if capability == "error" else "yes"
            reason = client.lacks.get(capability)
            if capability in client.unsteady:
                cells.append(f"not always: {client.unsteady[capability]}")
            else:
                cells.append(works if reason is None else f"no: {reason}")
        rows.append(f"| {' | '.join(cells)} |")
    return "\n".join(rows)


if __name__ == "__main__":
    print(matrix())
