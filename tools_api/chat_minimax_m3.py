"""MiniMax M3: turns as M2's, two turns in front of all, calls whose tags are named after keys.

Always true: see ``tools_api.chat_format``; where the published template rewrites history this
does not.
"""

from collections.abc import Callable, Sequence

from tools_api.chat_format import (
    AssistantTurn,
    Segment,
    SegmentWriter,
    TemplateOptions,
    to_json,
    tool_object,
)
from tools_api.chat_minimax import MiniMaxM2
from tools_api.items import Message
from tools_api.raw_calls import delimiter_of, write_mark
from tools_api.tagged_calls import TaggedCalls, write_tagged_calls
from tools_api.tools import FunctionTool

_MARK = "]<]minimax[>["
TOKENS = ("]~!b[", "]~b]", "[e~[", _MARK)
"""The special tokens without which nothing can be written."""
_IDENTITY = (
    "Your model version is MiniMax-M3, developed by MiniMax. Knowledge cutoff: January 2026. "
    "Founded in early 2022, MiniMax is a global AI foundation model company committed to advancing "
    "the frontiers of AI towards AGI."
)
_MODES = {
    True: "adaptive. You are encouraged to think for complex decision-making, multi-step "
    "reasoning, or when analyzing function/tool results.",
    False: "disabled. Do not output any thinking process.",
}
_DEFAULT_INSTRUCTIONS = "You are a helpful assistant."


class MiniMaxM3(MiniMaxM2):
    """Every answer begins with a thought, or with the tag that would close one. Where it may think
    the model decides whether it does (the mode that the template calls adaptive)."""

    name = "MiniMax M3"
    opens_reasoning = False
    think_opener = "<mm:think>"
    think_closer = "</mm:think>"
    after_thinking = ""

    def __init__(self, has_token: Callable[[str], bool]) -> None:
        super().__init__(has_token)
        self._calls = TaggedCalls(
            opener=_MARK,
            repeats_opener=False,
            before=delimiter_of("<tool_call>", has_token),
            after=delimiter_of("</tool_call>", has_token),
        )
        self.calls = self._calls

    def header(
        self, instructions: str | None, tools: Sequence[FunctionTool], options: TemplateOptions
    ) -> list[Segment]:
        """A system turn that is the model's own, then the instructions and the tools."""
        out = self._writer()
        out.special("]~!b[")
        self._start(out, "system")
        self._tell_how_to_think(out, options)
        self._end(out)
        self._start(out, "developer")
        out.text(instructions or _DEFAULT_INSTRUCTIONS)
        if tools:
            self._tell_tools(out, tools)
        self._end(out)
        return out.segments

    def generation_prompt(self, options: TemplateOptions) -> list[Segment]:
        """Without reasoning the tag that would close a thought opens the answer."""
        out = self._writer()
        self._start(out, "ai")
        if not options.thinking:
            out.tag(self.think_closer)
        return out.segments

    def _tell_how_to_think(self, out: SegmentWriter, options: TemplateOptions) -> None:
        out.text(
            f"{_IDENTITY}\n\n<thinking_instructions>\nYou have a thinking capability that allows "
            "you to reason step by step before responding. When thinking is enabled, wrap your "
            "reasoning in "
        )
        out.tag(self.think_opener)
        out.tag(self.think_closer)
        out.text(
            " tags before your response. When thinking is disabled, begin your response directly "
            "after the "
        )
        out.tag(self.think_closer)
        out.text(
            " prefix. When thinking is adaptive, decide on your own whether to think for the "
            f"current turn.\nCurrent thinking mode: {_MODES[options.thinking]}\n"
            "</thinking_instructions>"
        )

    def _tell_tools(self, out: SegmentWriter, tools: Sequence[FunctionTool]) -> None:
        out.text(
            "\n\n# Tools\nYou may call one or more tools to assist with the user query.\n"
            "Here are the tools available in JSONSchema format:\n\n<tools>\n"
        )
        for tool in tools:
            out.text(f"<tool>{to_json(tool_object(tool)['function'])}</tool>\n")
        out.text("</tools>\n\nTo call tools, wrap all invocations in a single ")
        self._tags(out, "<tool_call>", "</tool_call>")
        out.text(
            " block. Parameter values containing nested objects or arrays are recursively expanded "
            "into XML elements. Example:\n\n"
        )
        self._tags(out, "<tool_call>", "\n")
        self._tags(out, '<invoke name="tool-name-1">', "<param-1>value-1", "</param-1>")
        self._tags(out, "<param-2>", "<item>", "<key-a>val-a", "</key-a>")
        self._tags(out, "<key-b>val-b", "</key-b>", "</item>", "</param-2>", "</invoke>\n")
        self._tags(out, '<invoke name="tool-name-2">', "<param-1>value-1", "</param-1>")
        self._tags(out, "</invoke>\n", "</tool_call>")

    def _tags(self, out: SegmentWriter, *tags: str) -> None:
        """Tags of the template, each behind the token that stands before all."""
        for tag in tags:
            if tag.startswith("<"):
                out.special(_MARK)
            write_mark(out, delimiter_of(tag, self._has_token))

    def _assistant(self, out: SegmentWriter, turn: AssistantTurn) -> None:
        if turn.reasoning:
            out.tag(self.think_opener)
            out.text(turn.reasoning)
        out.tag(self.think_closer)
        out.text(turn.text or "")
        write_tagged_calls(out, self._calls, turn.calls, nulls=False)

    def _role(self, message: Message) -> str:
        """A system message among others has the place of the instructions."""
        return "user" if message.role == "user" else "developer"
