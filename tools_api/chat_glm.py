"""GLM 4.5 to 4.7: roles are special tokens, calls have tags around keys and values.

A turn has no token of its own that ends it: the model ends one with the role it expects next. That
token stays, and the next turn opens with its own.

Always true: see ``tools_api.chat_format``; where the published templates rewrite history this
does not.
"""

from collections.abc import Callable, Sequence

from tools_api.chat_format import (
    AssistantTurn,
    ChatFormat,
    Segment,
    SegmentWriter,
    TemplateOptions,
    role_of,
    to_json,
    tool_object,
    turns,
)
from tools_api.items import FunctionCallOutput, Item, Message
from tools_api.raw_calls import RawCalls, delimiter_of, write_raw_calls
from tools_api.tools import FunctionTool

_HOW = (
    "\n\nFor each function call, output the function name and arguments within the following XML "
    "format:\n"
)


class Glm45(ChatFormat):
    """GLM 4.5 and 4.6: every part on a line of its own."""

    name = "GLM-4.5"
    after_thinking = "\n"
    _line = "\n"
    """Between the parts of a turn."""
    _example = (
        "<tool_call>{function-name}\n<arg_key>{arg-key-1}</arg_key>\n"
        "<arg_value>{arg-value-1}</arg_value>\n<arg_key>{arg-key-2}</arg_key>\n"
        "<arg_value>{arg-value-2}</arg_value>\n...\n</tool_call>"
    )

    def __init__(self, has_token: Callable[[str], bool]) -> None:
        super().__init__(has_token)
        self.thinking = has_token(self.think_opener) and has_token(self.think_closer)
        ends = ("<|user|>", "<|observation|>", "<|endoftext|>")
        self.end_of_turn = tuple(filter(has_token, ends))
        self._calls = RawCalls(
            opener="<tool_call>",
            closer="</tool_call>",
            between=self._line,
            name_gap=self._line,
            before_key=delimiter_of("<arg_key>", has_token),
            after_key=delimiter_of("</arg_key>", has_token),
            key_gap=self._line,
            before_value=delimiter_of("<arg_value>", has_token),
            after_value=delimiter_of("</arg_value>", has_token),
            value_gap=self._line,
        )
        self.calls = self._calls

    def header(
        self, instructions: str | None, tools: Sequence[FunctionTool], options: TemplateOptions
    ) -> list[Segment]:
        """The tools as a system turn, then the instructions as another."""
        out = self._writer()
        out.tag("[gMASK]")
        out.tag("<sop>")
        if tools:
            out.special("<|system|>")
            out.text(
                "\n# Tools\n\nYou may call one or more functions to assist with the user query.\n\n"
                "You are provided with function signatures within <tools></tools> XML tags:\n"
                "<tools>\n"
            )
            for tool in tools:
                out.text(to_json(tool_object(tool)) + "\n")
            out.text("</tools>" + _HOW)
            out.tagged(self._example)
        if instructions is not None:
            out.special("<|system|>")
            out.text(self._line + instructions)
        return out.segments

    def items(
        self,
        items: Sequence[Item],
        *,
        first: bool,
        open_output: bool,
        options: TemplateOptions,
        after_output: bool = True,
    ) -> list[Segment]:
        """Nothing closes an output that was cut; the next role does."""
        out = self._writer()
        for turn in turns(items):
            match turn:
                case Message():
                    out.special(f"<|{role_of(turn)}|>")
                    out.text(self._line + turn.text)
                    if turn.role == "user":
                        self._end_user(out, turn.text, options)
                case AssistantTurn():
                    out.special("<|assistant|>")
                    self._assistant(out, turn)
                case outputs:
                    out.special("<|observation|>")
                    for output in outputs:
                        self._output(out, output)
        return out.segments

    def generation_prompt(self, options: TemplateOptions) -> list[Segment]:
        """An empty think block keeps the model from thinking."""
        out = self._writer()
        out.special("<|assistant|>")
        if not options.thinking:
            out.tagged("\n<think></think>")
        return out.segments

    def _end_user(self, out: SegmentWriter, text: str, options: TemplateOptions) -> None:
        if not options.thinking and not text.endswith("/nothink"):
            out.tag("/nothink")

    def _output(self, out: SegmentWriter, output: FunctionCallOutput) -> None:
        out.tagged("\n<tool_response>")
        out.text(f"\n{output.output}\n")
        out.tag("</tool_response>")

    def _assistant(self, out: SegmentWriter, turn: AssistantTurn) -> None:
        out.text(self._line)
        self._think(out, turn)
        if text := (turn.text or "").strip():
            out.text(self._line + text)
        if turn.calls:
            out.text(self._line)
            write_raw_calls(out, self._calls, turn.calls)

    def _think(self, out: SegmentWriter, turn: AssistantTurn) -> None:
        out.tag(self.think_opener)
        out.text((turn.reasoning or "").strip())
        out.tag(self.think_closer)


class Glm47(Glm45):
    """GLM 4.7 and its Flash: nothing between the parts; a turn that reasons begins with it."""

    name = "GLM-4.7"
    after_thinking = ""
    opens_reasoning = True
    _line = ""
    _example = (
        "<tool_call>{function-name}<arg_key>{arg-key-1}</arg_key><arg_value>{arg-value-1}"
        "</arg_value><arg_key>{arg-key-2}</arg_key><arg_value>{arg-value-2}</arg_value>..."
        "</tool_call>"
    )

    def generation_prompt(self, options: TemplateOptions) -> list[Segment]:
        """Opens the think block, or closes it at once."""
        out = self._writer()
        out.special("<|assistant|>")
        out.tag(self.think_opener if options.thinking else self.think_closer)
        return out.segments

    def _end_user(self, out: SegmentWriter, text: str, options: TemplateOptions) -> None:
        pass

    def _output(self, out: SegmentWriter, output: FunctionCallOutput) -> None:
        out.tag("<tool_response>")
        out.text(output.output)
        out.tag("</tool_response>")

    def _think(self, out: SegmentWriter, turn: AssistantTurn) -> None:
        if reasoning := (turn.reasoning or "").strip():
            out.tag(self.think_opener)
            out.text(reasoning)
        out.tag(self.think_closer)
