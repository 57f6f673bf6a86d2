"""DeepSeek V3, R1 and V3.1: users' messages behind ``User``, answers behind ``Assistant``.

Their templates write calls and outputs and list no tools: how functions are told is V3.1's
description of its format, and for the others the same words with their own way of calling.

Always true: see ``tools_api.chat_format``; where the published template rewrites history this
does not.
"""

from collections.abc import Callable, Sequence
from typing import Final

from tools_api.chat_format import (
    AssistantTurn,
    ChatFormat,
    Segment,
    SegmentWriter,
    TemplateOptions,
    to_json,
    turns,
)
from tools_api.items import FunctionCallOutput, Item, Message
from tools_api.sectioned_calls import SectionedCalls, write_sectioned_calls
from tools_api.tools import FunctionTool


def _token(words: str) -> str:
    """A special token of DeepSeek's by its words."""
    bar, block = "\N{FULLWIDTH VERTICAL LINE}", "\N{LOWER ONE EIGHTH BLOCK}"
    return f"<{bar}{words.replace(' ', block)}{bar}>"


BEGIN_OF_SENTENCE: Final = _token("begin of sentence")
END_OF_SENTENCE: Final = _token("end of sentence")
USER: Final = _token("User")
ASSISTANT: Final = _token("Assistant")
OUTPUT_TAGS: Final = (_token("tool output begin"), _token("tool output end"))
OUTPUTS_TAGS: Final = (_token("tool outputs begin"), _token("tool outputs end"))
_NAMED = SectionedCalls(
    opener=_token("tool calls begin"),
    closer=_token("tool calls end"),
    repeats_opener=False,
    call_opener=_token("tool call begin"),
    separator=_token("tool sep"),
    call_closer=_token("tool call end"),
)
_FENCED = SectionedCalls(
    opener=_NAMED.opener,
    closer=_NAMED.closer,
    repeats_opener=False,
    between="\n",
    call_opener=_NAMED.call_opener,
    separator=_NAMED.separator,
    call_closer=_NAMED.call_closer,
    word="function",
    before_arguments="\n```json\n",
    after_arguments="\n```",
)
CALL_TOKENS: Final = tuple(sorted(_NAMED.specials))
"""The special tokens that calls are written with."""


class DeepSeekV3(ChatFormat):
    """V3 and V3-0324: no reasoning; the outputs of a turn are a section as its calls are."""

    name = "DeepSeek V3"

    def __init__(self, has_token: Callable[[str], bool]) -> None:
        super().__init__(has_token)
        self.end_of_turn = (END_OF_SENTENCE,)
        self._calls = _FENCED
        self.calls = self._calls

    def header(
        self, instructions: str | None, tools: Sequence[FunctionTool], options: TemplateOptions
    ) -> list[Segment]:
        """The instructions, then the tools; no turn of their own."""
        out = self._writer()
        out.special(BEGIN_OF_SENTENCE)
        out.text(instructions or "")
        if tools:
            out.text("\n\n" if instructions else "")
            self._tools(out, tools)
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
        """A system message behind the header is written as a user's: there is no other turn."""
        out = self._writer()
        if open_output:
            out.special(END_OF_SENTENCE)
        for turn in turns(items):
            match turn:
                case Message():
                    out.special(USER)
                    out.text(turn.text)
                    self._open(out, options)
                case AssistantTurn(only_reasoning=True) if not self._has_reasoning(options):
                    pass
                case AssistantTurn():
                    self._assistant(out, turn, options)
                    out.special(END_OF_SENTENCE)
                case outputs:
                    self._outputs(out, outputs)
        return out.segments

    def generation_prompt(self, options: TemplateOptions) -> list[Segment]:
        """No tokens: the model's turn begins where a user's ends, and goes on behind outputs."""
        return []

    def _has_reasoning(self, options: TemplateOptions) -> bool:
        """Whether there is a place for the reasoning of earlier turns."""
        return False

    def _open(self, out: SegmentWriter, options: TemplateOptions) -> None:
        """Open the model's turn behind a user's."""
        out.special(ASSISTANT)

    def _assistant(self, out: SegmentWriter, turn: AssistantTurn, options: TemplateOptions) -> None:
        out.text(turn.text or "")
        if turn.calls:
            write_sectioned_calls(out, self._calls, turn.calls)

    def _outputs(self, out: SegmentWriter, outputs: Sequence[FunctionCallOutput]) -> None:
        out.special(OUTPUTS_TAGS[0])
        for i, output in enumerate(outputs):
            out.text("\n" if i else "")
            self._output(out, output)
        out.special(OUTPUTS_TAGS[1])

    def _output(self, out: SegmentWriter, output: FunctionCallOutput) -> None:
        out.special(OUTPUT_TAGS[0])
        out.text(output.output)
        out.special(OUTPUT_TAGS[1])

    def _tools(self, out: SegmentWriter, tools: Sequence[FunctionTool]) -> None:
        syntax = self._calls
        out.text("## Tools\nYou have access to the following tools:\n\n")
        for tool in tools:
            out.text(f"### {tool.name}\nDescription: {tool.shown_description or ''}\n\n")
            out.text(f"Parameters: {to_json(tool.parameters)}\n\n")
        out.text("IMPORTANT: ALWAYS adhere to this exact format for tool use:\n")
        out.special(syntax.opener)
        out.special(syntax.call_opener)
        out.text("tool_call_name" if syntax.word is None else syntax.word)
        out.special(syntax.separator)
        out.text("" if syntax.word is None else "tool_call_name")
        out.text(f"{syntax.before_arguments}tool_call_arguments{syntax.after_arguments}")
        out.special(syntax.call_closer)
        out.text("{additional_tool_calls}")
        out.special(syntax.closer)
        chained = "chain them directly without separators or spaces"
        out.text(
            "\n\nWhere:\n\n- `tool_call_name` must be an exact match to one of the available "
            "tools\n- `tool_call_arguments` must be valid JSON that strictly follows the tool's "
            "Parameters Schema\n- For multiple tool calls, "
            f"{chained if not syntax.between else 'begin each on a new line'}\n"
        )


class DeepSeekR1(DeepSeekV3):
    """R1 and the models that were distilled from it: a think block opens whatever they write."""

    opens_reasoning = True

    def __init__(self, has_token: Callable[[str], bool]) -> None:
        super().__init__(has_token)
        self.thinking = has_token(self.think_opener) and has_token(self.think_closer)

    def _has_reasoning(self, options: TemplateOptions) -> bool:
        return self.thinking

    def generation_prompt(self, options: TemplateOptions) -> list[Segment]:
        """Opens the think block; an empty one keeps the model from thinking."""
        out = self._writer()
        out.tag(self.think_opener)
        out.text("\n")
        if not options.thinking:
            out.text("\n")
            out.tag(self.think_closer)
            out.text("\n\n")
        return out.segments

    def _assistant(self, out: SegmentWriter, turn: AssistantTurn, options: TemplateOptions) -> None:
        if turn.reasoning:
            out.tag(self.think_opener)
            out.text("\n" + turn.reasoning.strip("\n") + "\n")
            out.tag(self.think_closer)
            out.text("\n\n")
        super()._assistant(out, turn, options)


class DeepSeekR1May(DeepSeekR1):
    """R1-0528: the model opens its think block itself."""

    opens_reasoning = False

    def generation_prompt(self, options: TemplateOptions) -> list[Segment]:
        """Nothing, or an empty think block."""
        return [] if options.thinking else super().generation_prompt(options)


class DeepSeekV31(DeepSeekV3):
    """V3.1: outputs have no section, calls no block of code, and without reasoning a user's message
    is followed by the end of a think block.

    It was published as calling tools without reasoning; where both are asked for, a think block
    is opened behind outputs too.
    """

    name = "DeepSeek V3.1"
    opens_reasoning = True
    after_thinking = ""

    def __init__(self, has_token: Callable[[str], bool]) -> None:
        super().__init__(has_token)
        self.thinking = has_token(self.think_opener) and has_token(self.think_closer)
        self._calls = _NAMED
        self.calls = self._calls

    def _has_reasoning(self, options: TemplateOptions) -> bool:
        return options.thinking

    def generation_prompt(self, options: TemplateOptions) -> list[Segment]:
        """Opens the think block where the model is to reason."""
        out = self._writer()
        if options.thinking:
            out.tag(self.think_opener)
        return out.segments

    def _open(self, out: SegmentWriter, options: TemplateOptions) -> None:
        super()._open(out, options)
        if not options.thinking:
            out.tag(self.think_closer)

    def _assistant(self, out: SegmentWriter, turn: AssistantTurn, options: TemplateOptions) -> None:
        if options.thinking:
            if turn.reasoning:
                out.tag(self.think_opener)
                out.text(turn.reasoning)
            out.tag(self.think_closer)
        super()._assistant(out, turn, options)

    def _outputs(self, out: SegmentWriter, outputs: Sequence[FunctionCallOutput]) -> None:
        for output in outputs:
            self._output(out, output)
