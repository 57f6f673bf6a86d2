"""The name to import: the client, its tool loop, its errors, and nothing of the server.

Knows in which module of ``tools_api`` each name stands, and loads that module when the name is
first asked for; what the names mean is said there. Type checkers read ``__init__.pyi``, since
they cannot follow ``__getattr__``.

Always true: asking for a name loads no torch, no numpy, and neither ``runtime`` nor
``sessions``; the command alone does (``keepwarm.__main__``).
"""

from importlib import import_module
from typing import Any

_HOMES = {
    "ApiError": "tools_api.errors",
    "ArgumentsDelta": "tools_api.sdk.turn",
    "AsyncClient": "tools_api.sdk.client",
    "AsyncSession": "tools_api.sdk.client",
    "CallRecord": "tools_api.sdk.tool_loop",
    "Client": "tools_api.sdk.client",
    "ConnectionLost": "tools_api.sdk.turn",
    "CustomToolCall": "tools_api.items",
    "CustomToolCallOutput": "tools_api.items",
    "FunctionCall": "tools_api.items",
    "FunctionCallOutput": "tools_api.items",
    "GenerationOptions": "tools_api.sdk.turn",
    "Input": "tools_api.sdk.turn",
    "LoopResult": "tools_api.sdk.tool_loop",
    "Message": "tools_api.items",
    "Reasoning": "tools_api.items",
    "ReasoningDelta": "tools_api.sdk.turn",
    "Response": "tools_api.sdk.turn",
    "Session": "tools_api.sdk.client",
    "StreamEvent": "tools_api.sdk.turn",
    "TextDelta": "tools_api.sdk.turn",
    "TooManyTurns": "tools_api.sdk.tool_loop",
    "Tool": "tools_api.sdk.tool_loop",
    "ToolChoice": "tools_api.sdk.tool_loop",
    "TurnFailed": "tools_api.sdk.turn",
    "TurnOptions": "tools_api.sdk.turn",
    "Usage": "tools_api.sdk.turn",
    "__version__": "tools_api.version",
    "json_format": "tools_api.sdk.turn",
    "run_tools": "tools_api.sdk.tool_loop",
    "run_tools_async": "tools_api.sdk.tool_loop",
    "tool": "tools_api.sdk.tool_loop",
}
"""Every public name and the module that defines it."""
__all__ = list(_HOMES)


def __getattr__(name: str) -> Any:
    """Load a public name from its module (PEP 562)."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
