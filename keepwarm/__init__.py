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
    "ArgumentsDelta": "tools_api.sdk.answers",
    "AsyncClient": "tools_api.sdk.client",
    "AsyncSession": "tools_api.sdk.session",
    "Budget": "tools_api.sdk.options",
    "BuiltInCall": "tools_api.built_in_items",
    "BuiltInOutput": "tools_api.built_in_items",
    "CallRecord": "tools_api.sdk.answers",
    "CallStarted": "tools_api.sdk.answers",
    "Client": "tools_api.sdk.sync_client",
    "ConnectionLost": "tools_api.sdk.failures",
    "CustomToolCall": "tools_api.items",
    "CustomToolCallOutput": "tools_api.items",
    "FunctionCall": "tools_api.items",
    "FunctionCallOutput": "tools_api.items",
    "GenerationOptions": "tools_api.sdk.options",
    "HookEnded": "tools_api.sdk.failures",
    "Hooks": "tools_api.sdk.hooks",
    "Input": "tools_api.sdk.options",
    "LoopResult": "tools_api.sdk.answers",
    "Message": "tools_api.items",
    "OutputInvalid": "tools_api.sdk.failures",
    "PendingCall": "tools_api.sdk.open_calls",
    "Reasoning": "tools_api.items",
    "ReasoningDelta": "tools_api.sdk.answers",
    "Refuse": "tools_api.sdk.hooks",
    "Repairing": "tools_api.sdk.answers",
    "Response": "tools_api.sdk.answers",
    "Retries": "tools_api.sdk.backoff",
    "RunEvent": "tools_api.sdk.answers",
    "Session": "tools_api.sdk.sync_session",
    "SessionStats": "tools_api.sdk.answers",
    "StreamEvent": "tools_api.sdk.answers",
    "TextDelta": "tools_api.sdk.answers",
    "TooManyTurns": "tools_api.sdk.failures",
    "Tool": "tools_api.sdk.tools",
    "ToolChoice": "tools_api.sdk.options",
    "ToolContext": "tools_api.sdk.tools",
    "ToolExit": "tools_api.sdk.threads",
    "ToolFailed": "tools_api.sdk.answers",
    "ToolFinished": "tools_api.sdk.answers",
    "ToolStarted": "tools_api.sdk.answers",
    "TurnFailed": "tools_api.sdk.failures",
    "TurnOptions": "tools_api.sdk.options",
    "TurnRestarted": "tools_api.sdk.answers",
    "TurnSteered": "tools_api.sdk.answers",
    "Usage": "tools_api.sdk.answers",
    "Warned": "tools_api.sdk.answers",
    "__version__": "tools_api.version",
    "json_format": "tools_api.sdk.schemas",
    "tool": "tools_api.sdk.tool_making",
}
"""Every public name and the module that defines it."""
__all__ = list(_HOMES)


def __getattr__(name: str) -> Any:
    """Load a public name from its module (PEP 562)."""
    if name not in _HOMES:
        alike = import_module("difflib").get_close_matches(name, __all__, n=1)
        hint = f"; is {alike[0]} meant?" if alike else ""
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}{hint}")
    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
