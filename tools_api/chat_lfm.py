"""ChatML with calls as Python writes them: LFM2, OLMo 3.

Always true: see ``tools_api.chat_format``; where a published template has no place for calls or
their outputs, the class says how they are written.
"""

from collections.abc import Callable, Sequence

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
from tools_api.python_calls import PythonCalls, write_python_calls
from tools_api.tools import FunctionTool


class Lfm2(ChatML):
    """LFM2. Its template leaves calls to whoever writes the content; they stand in front of it."""

    name = "LFM2"

    def __init__(self, has_token: Callable[[str], bool]) -> None:
        super().__init__(has_token)
        self._python = PythonCalls(
            opener="<|tool_call_start|>",
            before="[",
            between=", ",
            after="]",
            closer="<|tool_call_end|>",
            repeats_opener=False,
        )
        self.calls = self._python

    def header(
        self, instructions: str | None, tools: Sequence[FunctionTool], options: TemplateOptions
    ) -> list[Segment]:
        """One system turn, the tools in it as a list of JSON; nothing if it would say nothing."""
        out = self._writer()
        out.tag("<|startoftext|>")
        if not instructions and not tools:
            return out.segments
        self._start(out, "system")
        out.text(instructions or "")
        if tools:
            out.text(("\n" if instructions else "") + "List of tools: ")
            self._list(out, ", ".join(to_json(tool_object(tool)) for tool in tools))
        self._end(out)
        return out.segments

    def generation_prompt(self, options: TemplateOptions) -> list[Segment]:
        """Opens the assistant's turn, whatever the options."""
        out = self._writer()
        self._start(out, "assistant")
        return out.segments

    def _list(self, out: SegmentWriter, tools: str) -> None:
        out.tag("<|tool_list_start|>")
        out.text(f"[{tools}]")
        out.tag("<|tool_list_end|>")

    def _assistant(self, out: SegmentWriter, turn: AssistantTurn, options: TemplateOptions) -> None:
        if self.thinking and turn.reasoning is not None:
            out.tag(self.think_opener)
            out.text("\n" + turn.reasoning.strip("\n") + "\n")
            out.tag(self.think_closer)
            out.text("\n")
        if turn.calls:
            write_python_calls(out, self._python, turn.calls)
        out.text(turn.text or "")

    def _outputs(self, out: SegmentWriter, outputs: Sequence[FunctionCallOutput]) -> None:
        """Outputs of tools, one turn for each."""
        for i, output in enumerate(outputs):
            if i > 0:
                self._end(out)
            self._start(out, "tool")
            self._output(out, output.output)

    def _output(self, out: SegmentWriter, text: str) -> None:
        out.tag("<|tool_response_start|>")
        out.text(text)
        out.tag("<|tool_response_end|>")


class Olmo3(Lfm2):
    """OLMo 3: a call on each line, between tags; outputs are turns of the environment."""

    name = "Olmo 3"

    def __init__(self, has_token: Callable[[str], bool]) -> None:
        super().__init__(has_token)
        tagged = has_token("<function_calls>") and has_token("</function_calls>")
        self._python = PythonCalls(
            opener="<function_calls>" if tagged else None,
            before="" if tagged else "<function_calls>",
            between="\n",
            after="" if tagged else "</function_calls>",
            closer="</function_calls>" if tagged else None,
            repeats_opener=False,
        )
        self.calls = self._python

    def header(
        self, instructions: str | None, tools: Sequence[FunctionTool], options: TemplateOptions
    ) -> list[Segment]:
        """Always a system turn; the functions behind the instructions."""
        out = self._writer()
        self._start(out, "system")
        if instructions is None:
            out.text(
                "You are Olmo, a helpful AI assistant built by Ai2. Your date cutoff is December "
                "2024, and your model weights are available at https://huggingface.co/allenai. "
            )
            out.tagged(_WITH_FUNCTIONS if tools else _WITHOUT_FUNCTIONS)
        else:
            out.text(instructions)
        if tools:
            out.tag("<functions>")
            out.text(to_json([tool_object(tool) for tool in tools]))
            out.tag("</functions>")
        self._end(out)
        return out.segments

    def _assistant(self, out: SegmentWriter, turn: AssistantTurn, options: TemplateOptions) -> None:
        if self.thinking and turn.reasoning is not None:
            out.tag(self.think_opener)
            out.text(turn.reasoning)
            out.tag(self.think_closer)
        out.text(turn.text or "")
        if turn.calls:
            write_python_calls(out, self._python, turn.calls)

    def _outputs(self, out: SegmentWriter, outputs: Sequence[FunctionCallOutput]) -> None:
        for i, output in enumerate(outputs):
            if i > 0:
                self._end(out)
            self._start(out, "environment")
            out.text(output.output)


_WITHOUT_FUNCTIONS = "You do not currently have access to any functions. <functions></functions>"
_WITH_FUNCTIONS = (
    "You are provided with function signatures within <functions></functions> XML tags. You may "
    "call one or more functions to assist with the user query. Output any function calls within "
    "<function_calls></function_calls> XML tags. Do not make assumptions about what values to plug "
    "into functions."
)
