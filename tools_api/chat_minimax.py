"""MiniMax M2: turns between ``]~b]ROLE`` and ``[e~[``, calls in XML, all of a turn in one block.

Always true: see ``tools_api.chat_format``; where the published template rewrites history this
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
from tools_api.items import Item, Message
from tools_api.raw_calls import Delimiter, RawCalls, write_raw_calls
from tools_api.tools import FunctionTool

_DEFAULT_SYSTEM = "You are a helpful assistant."
_CALLS = RawCalls(
    opener="<minimax:tool_call>",
    closer="</minimax:tool_call>",
    repeats_opener=False,
    before="\n",
    before_name=Delimiter('<invoke name="'),
    after_name=Delimiter('">'),
    name_gap="\n",
    before_key=Delimiter('<parameter name="'),
    after_key=Delimiter('">'),
    after_value=Delimiter("</parameter>"),
    value_gap="\n",
    end=Delimiter("</invoke>"),
    end_gap="\n",
)


class MiniMaxM2(ChatFormat):
    """M2 to M2.7; a turn begins with reasoning."""

    name = "MiniMax"
    opens_reasoning = True

    def __init__(self, has_token: Callable[[str], bool]) -> None:
        super().__init__(has_token)
        self.thinking = has_token(self.think_opener) and has_token(self.think_closer)
        self.end_of_turn = ("[e~[",)
        self.calls = _CALLS

    def header(
        self, instructions: str | None, tools: Sequence[FunctionTool], options: TemplateOptions
    ) -> list[Segment]:
        """Always a system turn, the tools in it as lines of JSON."""
        out = self._writer()
        out.special("]~!b[")
        self._start(out, "system")
        out.text(instructions or _DEFAULT_SYSTEM)
        if tools:
            out.text(
                "\n\n# Tools\nYou may call one or more tools to assist with the user query.\n"
                "Here are the tools available in JSONSchema format:\n\n<tools>\n"
            )
            for tool in tools:
                out.text(f"<tool>{to_json(tool_object(tool)['function'])}</tool>\n")
            out.tagged(
                "</tools>\n\nWhen making tool calls, use XML format to invoke tools and pass "
                "parameters:\n\n"
            )
            out.tag("<minimax:tool_call>")
            out.text(
                '\n<invoke name="tool-name-1">\n'
                '<parameter name="param-key-1">param-value-1</parameter>\n'
                '<parameter name="param-key-2">param-value-2</parameter>\n...\n</invoke>\n'
            )
            out.tag("</minimax:tool_call>")
        self._end(out)
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
        """Outputs that follow one another are one turn, each in ``<response>``."""
        out = self._writer()
        if open_output:
            self._end(out)
        elif not first and after_output:
            out.text("\n")
        for turn in turns(items):
            match turn:
                case Message():
                    self._start(out, self._role(turn))
                    out.text(turn.text)
                case AssistantTurn():
                    self._start(out, "ai")
                    self._assistant(out, turn)
                case outputs:
                    out.special("]~b]")
                    out.text("tool")
                    for output in outputs:
                        out.text(f"\n<response>{output.output}</response>")
            self._end(out)
        return out.segments

    def generation_prompt(self, options: TemplateOptions) -> list[Segment]:
        """Opens the think block; an empty one keeps the model from thinking."""
        out = self._writer()
        self._start(out, "ai")
        out.tag(self.think_opener)
        out.text("\n")
        if not options.thinking:
            out.text("\n")
            out.tag(self.think_closer)
            out.text("\n\n")
        return out.segments

    def _role(self, message: Message) -> str:
        return role_of(message)

    def _assistant(self, out: SegmentWriter, turn: AssistantTurn) -> None:
        if self.thinking and turn.reasoning:
            out.tag(self.think_opener)
            out.text("\n" + turn.reasoning.strip("\n") + "\n")
            out.tag(self.think_closer)
            out.text("\n\n")
        out.text(turn.text or "")
        if turn.calls:
            out.text("\n")
            write_raw_calls(out, _CALLS, turn.calls)

    def _start(self, out: SegmentWriter, role: str) -> None:
        out.special("]~b]")
        out.text(role + "\n")

    def _end(self, out: SegmentWriter) -> None:
        out.special("[e~[")
        out.text("\n")
