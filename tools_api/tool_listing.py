"""How chat templates list a tool, by name: what ``tools_api.chat_generic`` can be told to write.

Always true: a listing depends on its tool alone.
"""

from collections.abc import Callable, Mapping
from typing import Final

from tools_api.chat_format import to_json, tool_object
from tools_api.chat_qwen_xml import described_in_xml
from tools_api.tools import FunctionTool

LISTINGS: Final[Mapping[str, Callable[[FunctionTool], str]]] = {
    "json": lambda tool: to_json(tool_object(tool)),
    "json, indented by 4": lambda tool: to_json(tool_object(tool), indent=4),
    "json, indented by 2": lambda tool: to_json(tool_object(tool), indent=2),
    "function as json": lambda tool: to_json(tool_object(tool)["function"]),
    "function as json, indented by 4": lambda tool: to_json(tool_object(tool)["function"], 4),
    "function as json, indented by 2": lambda tool: to_json(tool_object(tool)["function"], 2),
    "xml": described_in_xml,
    "xml, required last": lambda tool: described_in_xml(tool, required_last=True),
}
"""Forms that hold more come before those that are part of them."""
