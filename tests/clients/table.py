"""The clients that are tried, and what is expected of each: the rows of ``docs/clients.md``.

Knows names and versions; runs nothing.

Always true: ``matrix``, ``conversations``, ``compactions``, ``own_tools`` and ``backgrounds`` are
what the document shows; every row of the first is a script that ``tests/clients/test_clients.py``
runs, of the second one of ``test_conversations.py`` or ``test_coding_agents.py``, of the third one
of ``test_compaction.py`` or ``test_full_windows.py``, of the others one of ``test_client_tools.py``
and ``test_background.py``.
"""

import json
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
REQUIREMENTS = HERE / "requirements"
SCRIPTS = HERE / "scripts"
NPM = HERE / "npm"
LARGE_NPM = HERE / "npm_large"
"""Coding agents, a gigabyte of binaries."""
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
    def environment(self) -> str:
        """The name of its requirements, and of what is made of them."""
        return self.package

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


@dataclass(frozen=True, kw_only=True)
class Agent:
    """One way of an agent to the server, over three turns of its user with tools in them."""

    package: str
    script: str
    """Of a coding agent: what its test calls it."""
    way: str
    tried: str
    """The day on which this version was first tried."""
    shares: str | None = None
    """The client in whose environment it is."""
    large: bool = False
    """It has no script, and a gigabyte of binaries."""
    lacks: str | None = None
    """Why the answers are not what they should be: the server is not at fault."""

    @property
    def is_for_node(self) -> bool:
        return self.large or self.script.endswith(".mjs")

    @property
    def environment(self) -> str:
        return self.shares or self.package

    @property
    def heading(self) -> str:
        return f"`{self.package}` ({'npm' if self.is_for_node else 'PyPI'})"


TRIED = "2026-11-28"
COMPACTED = "2026-11-29"
RAISED = "2026-11-30"
CODEX_PROVIDERS = ("OpenAI", "Keepwarm")
"""By this name Codex has the server compact, and by any other it asks for a summary itself."""
REWRITES = "the package rewrites calls and results as text, which the default model cannot read"


def _agent(package: str, script: str, *ways: str, tried: str = TRIED, **fields: Any) -> list[Agent]:
    return [Agent(package=package, script=script, way=w, tried=tried, **fields) for w in ways]


AGENTS: list[Agent] = [
    *_agent("langgraph", "langgraph_agent.py", "chat", "responses", shares="langchain-openai"),
    *_agent("google-adk", "google_adk_agent.py", "chat"),
    *_agent("strands-agents", "strands_agent.py", "chat"),
    *_agent("llama-index-core", "llama_index_agent.py", "chat"),
    *_agent("agno", "agno_agent.py", "chat", "responses"),
    *_agent("autogen-agentchat", "autogen_agent.py", "chat"),
    *_agent("agent-framework-core", "agent_framework_agent.py", "chat", "responses"),
    *_agent("smolagents", "smolagents_agent.py", "chat", lacks=REWRITES),
    *_agent(
        "openai-agents", "openai_agents_conversations.py", "websocket", "http", tried=COMPACTED
    ),
    *_agent("ai", "ai_sdk_conversation.mjs", "responses", "unstored", "chat", "messages"),
    *_agent("@openai/codex", "Codex", "websocket", large=True),
    *_agent("@anthropic-ai/claude-code", "Claude Code", "messages", large=True),
]

COMPACTING: list[Agent] = [
    *_agent(
        "openai-agents",
        "openai_agents_compaction.py",
        "websocket",
        "http",
        tried=COMPACTED,
    ),
    *_agent("pydantic-ai", "pydantic_ai_compaction.py", "managed", "alone", tried=COMPACTED),
    *_agent(
        "langchain-openai",
        "langchain_compaction.py",
        "responses",
        "chained",
        tried=RAISED,
    ),
    *_agent("@openai/codex", "Codex", *CODEX_PROVIDERS, tried=COMPACTED, large=True),
    *_agent("@anthropic-ai/claude-code", "Claude Code", "messages", tried=COMPACTED, large=True),
]
"""Turns of a user by clients that have their context compacted, or compact it themselves."""
BACKGROUND: list[Agent] = _agent("openai", "openai_background.py", "http", tried=RAISED)
"""Clients whose turns run on without them."""
OWN_TOOLS: list[Agent] = _agent(
    "openai-agents", "openai_agents_tools.py", "websocket", "http", tried=COMPACTED
)
"""Clients that run tools of the API's own."""


def version(client: Client | Agent) -> str:
    """The version that is tried, from the file that pins it."""
    if client.is_for_node:
        folder = LARGE_NPM if isinstance(client, Agent) and client.large else NPM
        pins = json.loads((folder / "package.json").read_text(encoding="utf-8"))
        pinned: str = pins["dependencies"][client.package]
        return pinned
    distribution = {"pydantic-ai": "pydantic-ai-slim"}.get(client.package, client.package)
    text = (REQUIREMENTS / f"{client.environment}.txt").read_text(encoding="utf-8")
    found = re.search(rf"^{distribution}==(\S+)", text, re.MULTILINE)
    assert found, f"{client.environment}.txt does not pin {distribution}"
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


def conversations() -> str:
    """The table of agents over three turns of their user."""
    return _agents(AGENTS, "agent", "three turns of a user, each with tools")


def compactions() -> str:
    """The table of clients that compact."""
    return _agents(COMPACTING, "client", "three turns, compacted in between")


def own_tools() -> str:
    """The table of clients that run shells and patches."""
    return _agents(OWN_TOOLS, "client", "`shell`, `local_shell`, `apply_patch`, `tool_search`")


def backgrounds() -> str:
    """The table of clients with turns in the background."""
    return _agents(BACKGROUND, "client", "polled, streamed from an event on, cancelled")


def _agents(agents: list[Agent], first: str, last: str) -> str:
    rows = [
        f"| {first} | version | tried | script, way | {last} |",
        "| --- | --- | --- | --- | --- |",
    ]
    for agent in agents:
        name = agent.script if agent.large else f"`{agent.script}`"
        works = "yes" if agent.lacks is None else f"served; {agent.lacks}"
        cells = [agent.heading, version(agent), agent.tried, f"{name} {agent.way}", works]
        rows.append(f"| {' | '.join(cells)} |")
    return "\n".join(rows)


if __name__ == "__main__":
    tables = (matrix, conversations, compactions, own_tools, backgrounds)
    print(*(table() for table in tables), sep="\n\n")
