"""ChatML as Qwen3, Qwen2.5 and Hermes write it: turns between ``<|im_start|>`` and ``<|im_end|>``,
calls as JSON in ``<tool_call>``.

Always true: see ``tools_api.chat_format``; where the published templates rewrite history this
does not.
"""

from collections.abc import Callable, Sequence

from tools_api.chat_format import (
    THINK_CLOSER,
    THINK_OPENER,
    AssistantTurn,
    CallSyntax,
    ChatFormat,
    JsonCalls,
    Segment,
    SegmentWriter,
    TemplateOptions,
    call_object,
    role_of,
    to_json,
    tool_object,
    turns,
)
from tools_api.items import FunctionCallOutput, Item, Message
from tools_api.tools import FunctionTool

QWEN2_DEFAULT_SYSTEM = "You are Qwen, created by Alibaba Cloud. You are a helpful assistant."


class ChatML(ChatFormat):
    """Qwen3; without ``<think>`` in the tokenizer plain Hermes (Qwen2.5, Hermes)."""

    name = "Hermes"

    def __init__(self, has_token: Callable[[str], bool], default_system: str | None = None) -> None:
        super().__init__(has_token)
        self._default_system = default_system
        self.thinking = has_token(THINK_OPENER) and has_token(THINK_CLOSER)
        self.end_of_turn = tuple(filter(has_token, ("<|im_end|>", "<|endoftext|>")))
        self.calls: CallSyntax | None = None
        if has_token("<tool_call>") and has_token("</tool_call>"):
            self.calls = JsonCalls(
                opener="<tool_call>", before="\n", after="\n", closer="</tool_call>", between="\n"
            )

    def header(
        self, instructions: str | None, tools: Sequence[FunctionTool], options: TemplateOptions
    ) -> list[Segment]:
        """One system turn, the tools in it as lines of JSON; nothing if it would say nothing."""
        out = self._writer()
        system = self._default_system if instructions is None else instructions
        if system is None and not tools:
            return []
        out.special("<|im_start|>")
        out.text("system\n" + (system or ""))
        if tools:
            out.text("\n\n" if system is not None else "")
            out.tagged(
                "# Tools\n\nYou may call one or more functions to assist with the user query.\n\n"
                "You are provided with function signatures within <tools></tools> XML tags:\n"
                "<tools>"
            )
            for tool in tools:
                out.text("\n" + to_json(tool_object(tool)))
            out.tagged(
                "\n</tools>\n\nFor each function call, return a json object with function name "
                "and arguments within <tool_call></tool_call> XML tags:\n<tool_call>\n"
            )
            out.text('{"name": <function-name>, "arguments": <args-json-object>}')
            out.tagged("\n</tool_call>")
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
        """Outputs that follow one another are one user turn, each in ``<tool_response>``.

        Without think tags a turn of reasoning alone is left out.
        """
        out = self._writer()
        if open_output:
            self._end(out)
        elif not first and after_output:
            out.text("\n")
        for turn in turns(items):
            match turn:
                case Message():
                    self._start(out, role_of(turn))
                    self._message(out, turn.text)
                case AssistantTurn(only_reasoning=True) if not self.thinking:
                    continue
                case AssistantTurn():
                    self._start(out, "assistant")
                    self._assistant(out, turn, options)
                case outputs:
                    self._outputs(out, outputs)
            self._end(out)
        return out.segments

    def generation_prompt(self, options: TemplateOptions) -> list[Segment]:
        """Opens the assistant's turn; an empty think block keeps a thinking model from thinking."""
        out = self._writer()
        self._start(out, "assistant")
        if self.thinking and not options.thinking:
            out.tagged("<think>\n\n</think>\n\n")
        return out.segments

    def _message(self, out: SegmentWriter, text: str) -> None:
        out.text(text)

    def _assistant(self, out: SegmentWriter, turn: AssistantTurn, options: TemplateOptions) -> None:
        if self.thinking and turn.reasoning is not None:
            out.tag(THINK_OPENER)
            out.text("\n" + turn.reasoning.strip("\n") + "\n")
            out.tag(THINK_CLOSER)
            out.text("\n\n")
        out.text(turn.text or "")
        if turn.calls and isinstance(self.calls, JsonCalls):
            out.text("\n" if turn.text else "")
            syntax = self.calls
            out.calls(syntax, [call_object(call, syntax) for call in turn.calls])

    def _outputs(self, out: SegmentWriter, outputs: Sequence[FunctionCallOutput]) -> None:
        out.special("<|im_start|>")
        out.text("user")
        for output in outputs:
            out.tagged("\n<tool_response>")
            out.text(f"\n{output.output}\n")
            out.tag("</tool_response>")

    def _start(self, out: SegmentWriter, role: str) -> None:
        out.special("<|im_start|>")
        out.text(role + "\n")

    def _end(self, out: SegmentWriter) -> None:
        out.special("<|im_end|>")
        out.text("\n")
