"""ChatML with calls in XML: Qwen3-Coder.

A call is ``<function=NAME>`` with one ``<parameter=KEY>`` for each argument, whose value is raw
text: of a string the string itself, of anything else its JSON. Tools are described in XML too.

Always true: see ``tools_api.chat_format``; where the published template rewrites history this
does not.
"""

from collections.abc import Callable, Sequence
from typing import Any

from tools_api.chat_chatml import ChatML
from tools_api.chat_format import (
    AssistantTurn,
    Segment,
    SegmentWriter,
    TemplateOptions,
    to_json,
)
from tools_api.items import FunctionCallOutput
from tools_api.raw_calls import Mark, RawCalls, write_raw_calls
from tools_api.tools import FunctionTool

_DEFAULT_SYSTEM = (
    "You are Qwen, a helpful AI assistant that can interact with a computer to solve tasks."
)
QWEN_CALLS = RawCalls(
    opener="<tool_call>",
    closer="</tool_call>",
    before="\n",
    before_name=Mark("<function="),
    after_name=Mark(">"),
    name_gap="\n",
    before_key=Mark("<parameter="),
    after_key=Mark(">"),
    padding="\n",
    after_value=Mark("</parameter>"),
    value_gap="\n",
    end=Mark("</function>"),
    end_gap="\n",
    python_words=True,
    between="\n",
)
HOW_TO_CALL = (
    "\n\nIf you choose to call a function ONLY reply in the following format with NO suffix:\n\n"
    "<tool_call>\n<function=example_function_name>\n<parameter=example_parameter_1>\nvalue_1\n"
    "</parameter>\n<parameter=example_parameter_2>\nThis is the value for the second parameter\n"
    "that can span\nmultiple lines\n</parameter>\n</function>\n</tool_call>\n\n<IMPORTANT>\n"
    "Reminder:\n- Function calls MUST follow the specified format: an inner <function=...>"
    "</function> block must be nested within <tool_call></tool_call> XML tags\n- Required "
    "parameters MUST be specified\n- You may provide optional reasoning for your function call in "
    "natural language BEFORE the function call, but NOT after\n- If there is no function call "
    "available, answer the question like normal with your current knowledge and do not tell the "
    "user about function calls\n</IMPORTANT>"
)


class QwenXml(ChatML):
    """Qwen3-Coder; it does not reason."""

    name = "Qwen3-Coder"

    def __init__(self, has_token: Callable[[str], bool]) -> None:
        super().__init__(has_token)
        self.thinking = False
        self.calls = QWEN_CALLS

    def header(
        self, instructions: str | None, tools: Sequence[FunctionTool], options: TemplateOptions
    ) -> list[Segment]:
        """One system turn, the tools in it as XML; nothing if it would say nothing."""
        if instructions is None and not tools:
            return []
        out = self._writer()
        self._start(out, "system")
        out.text(_DEFAULT_SYSTEM if instructions is None else instructions)
        if tools:
            out.text("\n\n# Tools\n\nYou have access to the following functions:\n\n<tools>")
            for tool in tools:
                out.text(described_in_xml(tool))
            out.text("\n</tools>")
            out.tagged(HOW_TO_CALL)
        self._end(out)
        return out.segments

    def _assistant(self, out: SegmentWriter, turn: AssistantTurn) -> None:
        if not turn.calls:
            out.text(turn.text or "")
            return
        if text := (turn.text or "").strip():
            out.text(text + "\n\n")
        write_raw_calls(out, QWEN_CALLS, turn.calls)

    def _outputs(self, out: SegmentWriter, outputs: Sequence[FunctionCallOutput]) -> None:
        self._start(out, "user")
        for output in outputs:
            out.tag("<tool_response>")
            out.text(f"\n{output.output}\n")
            out.tag("</tool_response>")
            out.text("\n")


def described_in_xml(tool: FunctionTool) -> str:
    """A tool as Qwen3-Coder's template lists it: what it has no tag for stands in a tag of its
    key's name."""
    lines = ["", "<function>", f"<name>{tool.name}</name>"]
    if (description := tool.shown_description) is not None:
        lines.append(f"<description>{description.strip()}</description>")
    lines.append("<parameters>")
    properties = tool.parameters.get("properties")
    for name, schema in (properties if isinstance(properties, dict) else {}).items():
        lines += ["<parameter>", f"<name>{name}</name>"]
        fields = schema if isinstance(schema, dict) else {}
        if "type" in fields:
            lines.append(f"<type>{_as_python(fields['type'])}</type>")
        if "description" in fields:
            lines.append(f"<description>{str(fields['description']).strip()}</description>")
        lines += _other_keys(fields, ("name", "type", "description"))
        lines.append("</parameter>")
    lines += _other_keys(tool.parameters, ("type", "properties"))
    return "\n".join([*lines, "</parameters>", "</function>"])


def _other_keys(fields: dict[str, Any], handled: Sequence[str]) -> list[str]:
    return [
        f"<{key}>{to_json(value) if isinstance(value, dict | list) else _as_python(value)}</{key}>"
        for key, value in fields.items()
        if key not in handled
    ]


def _as_python(value: object) -> str:
    """As Jinja's ``string`` filter has it."""
    return str(value)
