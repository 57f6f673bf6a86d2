"""The public names with their types: what ``__init__.py`` loads when it is asked for it."""

from tools_api.built_in_items import BuiltInCall, BuiltInOutput
from tools_api.errors import ApiError
from tools_api.items import (
    CustomToolCall,
    CustomToolCallOutput,
    FunctionCall,
    FunctionCallOutput,
    Message,
    Reasoning,
)
from tools_api.sdk.answers import (
    ArgumentsDelta,
    CallRecord,
    CallStarted,
    LoopResult,
    ReasoningDelta,
    Repairing,
    Response,
    RunEvent,
    SessionStats,
    StreamEvent,
    TextDelta,
    ToolFailed,
    ToolFinished,
    ToolStarted,
    TurnRestarted,
    TurnSteered,
    Usage,
    Warned,
)
from tools_api.sdk.backoff import Retries
from tools_api.sdk.client import AsyncClient
from tools_api.sdk.failures import (
    ConnectionLost,
    HookEnded,
    OutputInvalid,
    TooManyTurns,
    TurnFailed,
)
from tools_api.sdk.hooks import Hooks, Refuse
from tools_api.sdk.open_calls import PendingCall
from tools_api.sdk.options import (
    Budget,
    GenerationOptions,
    Input,
    ToolChoice,
    TurnOptions,
)
from tools_api.sdk.schemas import json_format
from tools_api.sdk.session import AsyncSession
from tools_api.sdk.sync_client import Client
from tools_api.sdk.sync_session import Session
from tools_api.sdk.threads import ToolExit
from tools_api.sdk.tool_making import tool
from tools_api.sdk.tools import Tool, ToolContext
from tools_api.version import __version__

__all__ = [
    "ApiError",
    "ArgumentsDelta",
    "AsyncClient",
    "AsyncSession",
    "Budget",
    "BuiltInCall",
    "BuiltInOutput",
    "CallRecord",
    "CallStarted",
    "Client",
    "ConnectionLost",
    "CustomToolCall",
    "CustomToolCallOutput",
    "FunctionCall",
    "FunctionCallOutput",
    "GenerationOptions",
    "HookEnded",
    "Hooks",
    "Input",
    "LoopResult",
    "Message",
    "OutputInvalid",
    "PendingCall",
    "Reasoning",
    "ReasoningDelta",
    "Refuse",
    "Repairing",
    "Response",
    "Retries",
    "RunEvent",
    "Session",
    "SessionStats",
    "StreamEvent",
    "TextDelta",
    "TooManyTurns",
    "Tool",
    "ToolChoice",
    "ToolContext",
    "ToolExit",
    "ToolFailed",
    "ToolFinished",
    "ToolStarted",
    "TurnFailed",
    "TurnOptions",
    "TurnRestarted",
    "TurnSteered",
    "Usage",
    "Warned",
    "__version__",
    "json_format",
    "tool",
]
