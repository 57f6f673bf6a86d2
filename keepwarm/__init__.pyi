"""The public names with their types: what ``__init__.py`` loads when it is asked for it."""

from tools_api.errors import ApiError
from tools_api.items import (
    CustomToolCall,
    CustomToolCallOutput,
    FunctionCall,
    FunctionCallOutput,
    Message,
    Reasoning,
)
from tools_api.sdk.client import AsyncClient, AsyncSession, Client, Session
from tools_api.sdk.tool_loop import (
    CallRecord,
    LoopResult,
    Tool,
    ToolChoice,
    TooManyTurns,
    run_tools,
    run_tools_async,
    tool,
)
from tools_api.sdk.turn import (
    ArgumentsDelta,
    ConnectionLost,
    GenerationOptions,
    Input,
    ReasoningDelta,
    Response,
    StreamEvent,
    TextDelta,
    TurnFailed,
    TurnOptions,
    Usage,
    json_format,
)
from tools_api.version import __version__

__all__ = [
    "ApiError",
    "ArgumentsDelta",
    "AsyncClient",
    "AsyncSession",
    "CallRecord",
    "Client",
    "ConnectionLost",
    "CustomToolCall",
    "CustomToolCallOutput",
    "FunctionCall",
    "FunctionCallOutput",
    "GenerationOptions",
    "Input",
    "LoopResult",
    "Message",
    "Reasoning",
    "ReasoningDelta",
    "Response",
    "Session",
    "StreamEvent",
    "TextDelta",
    "TooManyTurns",
    "Tool",
    "ToolChoice",
    "TurnFailed",
    "TurnOptions",
    "Usage",
    "__version__",
    "json_format",
    "run_tools",
    "run_tools_async",
    "tool",
]
