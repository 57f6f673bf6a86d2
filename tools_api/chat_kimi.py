"""Kimi K2 and K2.5: every turn is ``<|im_CLASS|>NAME<|im_middle|>...<|im_end|>``.

A call is known by ``functions.NAME:NUMBER``, which the model writes and reads again above the
output. The number stands at the end of our id of the call; of ids that come from elsewhere one
follows (``tools_api.sectioned_calls.call_number``).

Always true: see ``tools_api.chat_format``; where the published template rewrites history this
does not.
"""

import re
from collections.abc import Callable, Mapping, Sequence

from tools_api import exact_json
from tools_api.chat_format import (
    AssistantTurn,
    ChatFormat,
    Segment,
    SegmentWriter,
    TemplateOptions,
    role_of,
    tool_object,
    turns,
)
from tools_api.items import FunctionCallOutput, Item, Message
from tools_api.sectioned_calls import SectionedCalls, call_number, write_sectioned_calls
from tools_api.tools import FunctionTool

DEFAULT_SYSTEM = "You are Kimi, an AI assistant created by Moonshot AI."
_CLASSES = {"user": "<|im_user|>", "assistant": "<|im_assistant|>"}
_SYSTEM, _MIDDLE, _END = "<|im_system|>", "<|im_middle|>", "<|im_end|>"
_OWN_ID = re.compile(r"functions\.[^:]+:[0-9]+")
_CALLS = SectionedCalls(
    opener="<|tool_calls_section_begin|>",
    closer="<|tool_calls_section_end|>",
    repeats_opener=False,
    call_opener="<|tool_call_begin|>",
    separator="<|tool_call_argument_begin|>",
    call_closer="<|tool_call_end|>",
    before_name="functions.",
    numbered=True,
)
TOKENS = (*_CLASSES.values(), _SYSTEM, _MIDDLE, _END, *sorted(_CALLS.specials))
"""The special tokens that conversations are written with."""


class KimiK2(ChatFormat):
    """K2: it does not reason."""

    name = "Kimi K2"

    def __init__(self, has_token: Callable[[str], bool]) -> None:
        super().__init__(has_token)
        self.end_of_turn = (_END,)
        self.calls = _CALLS

    def header(
        self, instructions: str | None, tools: Sequence[FunctionTool], options: TemplateOptions
    ) -> list[Segment]:
        """The tools as one array without white space, then a system turn, always."""
        out = self._writer()
        if tools:
            listed = [tool_object(tool) for tool in tools]
            self._turn(out, "tool_declare", exact_json.written(listed, spaces=False))
        self._turn(out, "system", DEFAULT_SYSTEM if instructions is None else instructions)
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
        """Each output is a turn in the name of its function."""
        out = self._writer()
        if open_output:
            out.special(_END)
        names: dict[str, str] = {}
        for turn in turns(items):
            match turn:
                case Message():
                    self._turn(out, role_of(turn), turn.text)
                case AssistantTurn(only_reasoning=True) if not self.thinking:
                    pass
                case AssistantTurn():
                    names |= {call.call_id: call.full_name for call in turn.calls}
                    self._start(out, "assistant")
                    self._reasoning(out, turn)
                    out.text(turn.text or "")
                    if turn.calls:
                        write_sectioned_calls(out, _CALLS, turn.calls)
                    out.special(_END)
                case outputs:
                    for output in outputs:
                        self._output(out, output, names)
        return out.segments

    def generation_prompt(self, options: TemplateOptions) -> list[Segment]:
        """Opens the model's turn."""
        out = self._writer()
        self._start(out, "assistant")
        self._prompt(out, options)
        return out.segments

    def _prompt(self, out: SegmentWriter, options: TemplateOptions) -> None:
        """What follows the opening of the model's turn."""

    def _reasoning(self, out: SegmentWriter, turn: AssistantTurn) -> None:
        """What an answer begins with."""

    def _output(
        self, out: SegmentWriter, output: FunctionCallOutput, names: Mapping[str, str]
    ) -> None:
        name = output.name or names.get(output.call_id)
        text = f"## Return of {kimi_call_id(output.call_id, name)}\n{output.output}"
        self._turn(out, name or "tool", text)

    def _turn(self, out: SegmentWriter, name: str, text: str) -> None:
        self._start(out, name)
        out.text(text)
        out.special(_END)

    def _start(self, out: SegmentWriter, name: str) -> None:
        out.special(_CLASSES.get(name, _SYSTEM))
        out.text(name)
        out.special(_MIDDLE)


class KimiK2Thinking(KimiK2):
    """K2 Thinking: each answer begins with a think block, which the model opens itself."""

    after_thinking = ""

    def __init__(self, has_token: Callable[[str], bool]) -> None:
        super().__init__(has_token)
        self.thinking = has_token(self.think_opener) and has_token(self.think_closer)

    def _prompt(self, out: SegmentWriter, options: TemplateOptions) -> None:
        if not options.thinking:
            self._block(out, "")

    def _reasoning(self, out: SegmentWriter, turn: AssistantTurn) -> None:
        self._block(out, turn.reasoning or "")

    def _block(self, out: SegmentWriter, text: str) -> None:
        out.tag(self.think_opener)
        out.text(text)
        out.tag(self.think_closer)


class KimiK25(KimiK2Thinking):
    """K2.5: the prompt opens the think block."""

    opens_reasoning = True

    def _prompt(self, out: SegmentWriter, options: TemplateOptions) -> None:
        out.tag(self.think_opener)
        if not options.thinking:
            out.tag(self.think_closer)


def kimi_call_id(call_id: str, name: str | None) -> str:
    """A call as Kimi knows it, by our id and its function's name."""
    if name is None or _OWN_ID.fullmatch(call_id):
        return call_id
    return f"{_CALLS.before_name}{name}:{call_number(call_id)}"
