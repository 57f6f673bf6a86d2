"""ChatML with calls in XML: Qwen3-Coder, Qwen3.5 and later, Nemotron 3.

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
    tool_object,
)
from tools_api.items import FunctionCallOutput
from tools_api.raw_calls import Delimiter, RawCalls, write_raw_calls
from tools_api.tools import FunctionTool

_DEFAULT_SYSTEM = (
    "You are Qwen, a helpful AI assistant that can interact with a computer to solve tasks."
)
QWEN_CALLS = RawCalls(
    opener="<tool_call>",
    closer="</tool_call>",
    before="\n",
    before_name=Delimiter("<function="),
    after_name=Delimiter(">"),
    name_gap="\n",
    before_key=Delimiter("<parameter="),
    after_key=Delimiter(">"),
    padding="\n",
    after_value=Delimiter("</parameter>"),
    value_gap="\n",
    end=Delimiter("</function>"),
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

    def _assistant(self, out: SegmentWriter, turn: AssistantTurn, options: TemplateOptions) -> None:
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


class Qwen35(ChatML):
    """Qwen3.5 to 3.8: tools as lines of JSON in front of the instructions; a turn that reasons
    begins with it."""

    name = "Qwen3-Coder"
    opens_reasoning = True

    def __init__(self, has_token: Callable[[str], bool]) -> None:
        super().__init__(has_token)
        self.calls = QWEN_CALLS

    def header(
        self, instructions: str | None, tools: Sequence[FunctionTool], options: TemplateOptions
    ) -> list[Segment]:
        """One system turn; nothing if it would say nothing."""
        system = (instructions or "").strip()
        if instructions is None and not tools:
            return []
        out = self._writer()
        self._start(out, "system")
        if tools:
            out.text("# Tools\n\nYou have access to the following functions:\n\n<tools>")
            for tool in tools:
                out.text("\n" + to_json(tool_object(tool)))
            out.text("\n</tools>")
            out.tagged(HOW_TO_CALL)
        out.text(f"\n\n{system}" if tools and system else system)
        self._end(out)
        return out.segments

    def generation_prompt(self, options: TemplateOptions) -> list[Segment]:
        """Opens the think block; an empty one keeps the model from thinking."""
        out = self._writer()
        self._start(out, "assistant")
        out.tagged("<think>\n" if options.thinking else "<think>\n\n</think>\n\n")
        return out.segments

    def _message(self, out: SegmentWriter, text: str) -> None:
        out.text(text.strip())

    def _assistant(self, out: SegmentWriter, turn: AssistantTurn, options: TemplateOptions) -> None:
        out.tagged("<think>\n")
        out.text((turn.reasoning or "").strip() + "\n")
        out.tagged("</think>\n\n")
        text = (turn.text or "").strip()
        out.text(text)
        if turn.calls:
            out.text("\n\n" if text else "")
            write_raw_calls(out, QWEN_CALLS, turn.calls)


class Nemotron3(QwenXml):
    """Nemotron 3: Qwen3-Coder's XML with reasoning; always a system turn."""

    after_thinking = "\n"
    opens_reasoning = True

    def __init__(self, has_token: Callable[[str], bool]) -> None:
        super().__init__(has_token)
        self.thinking = has_token(self.think_opener) and has_token(self.think_closer)

    def header(
        self, instructions: str | None, tools: Sequence[FunctionTool], options: TemplateOptions
    ) -> list[Segment]:
        """The tools behind the instructions, as XML."""
        out = self._writer()
        self._start(out, "system")
        out.text(instructions or "")
        if tools:
            out.text("\n\n" if instructions else "")
            out.text("# Tools\n\nYou have access to the following functions:\n\n<tools>")
            for tool in tools:
                out.text(described_in_xml(tool, required_last=True))
            out.text("\n</tools>")
            out.tagged(HOW_TO_CALL)
        self._end(out)
        return out.segments

    def generation_prompt(self, options: TemplateOptions) -> list[Segment]:
        """Opens the think block, or closes it at once."""
        out = self._writer()
        self._start(out, "assistant")
        out.tagged("<think>\n" if options.thinking else "<think></think>")
        return out.segments

    def _assistant(self, out: SegmentWriter, turn: AssistantTurn, options: TemplateOptions) -> None:
        if turn.reasoning and turn.reasoning.strip():
            out.tagged("<think>\n")
            out.text(turn.reasoning + "\n")
            out.tagged("</think>\n")
        else:
            out.tagged("<think></think>")
        text = (turn.text or "").strip()
        out.text(text)
        if turn.calls:
            out.text("\n" if text or not turn.reasoning else "")
            write_raw_calls(out, QWEN_CALLS, turn.calls)
            out.text("\n")


def described_in_xml(tool: FunctionTool, *, required_last: bool = False) -> str:
    """A tool as Qwen3-Coder's template lists it: what it has no tag for stands in a tag of its
    key's name.

    Args:
        required_last: as Nemotron's has it, which also shows texts of an ``enum`` first.
    """
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
        handled = ["name", "type", "description"]
        if required_last and "enum" in fields:
            lines += [f"<enum>{to_json(fields['enum'])}</enum>"]
            handled.append("enum")
        lines += _other_keys(fields, handled)
        lines.append("</parameter>")
    handled = ["type", "properties", *(["required"] if required_last else [])]
    lines += _other_keys(tool.parameters, handled)
    if required_last and "required" in tool.parameters:
        lines.append(f"<required>{to_json(tool.parameters['required'])}</required>")
    return "\n".join([*lines, "</parameters>", "</function>"])


def _other_keys(fields: dict[str, Any], handled: Sequence[str]) -> list[str]:
    return [
        f"<{key}>{to_json(value) if isinstance(value, dict | list) else _as_python(value)}</{key}>"
        for key, value in fields.items()
        if key not in handled
    ]


def _as_python(value: object) -> str:
    """A value as Jinja's ``string`` filter writes it."""
    return str(value)
