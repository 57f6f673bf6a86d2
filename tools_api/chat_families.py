"""Renderers of the chat formats: ChatML (Qwen3, Qwen2.5, Hermes), Llama 3.1, Mistral.

Each follows its family's published template; first turns equal it to the letter. Where the
template rewrites history the rendering stays append-stable instead, and the class says so.
The tokenizer names the family: it holds the control tokens the model was trained on.
"""

import hashlib
import re
from collections.abc import Callable, Sequence

from tools_api.chat_format import (
    THINK_CLOSER,
    THINK_OPENER,
    AssistantTurn,
    CallSyntax,
    ChatFormat,
    Segment,
    SegmentWriter,
    TemplateOptions,
    Turn,
    call_object,
    role_of,
    to_json,
    tool_object,
    turns,
)
from tools_api.items import FunctionCallOutput, Item, Message
from tools_api.tools import FunctionTool


class ChatML(ChatFormat):
    """Qwen3; without ``<think>`` in the tokenizer plain Hermes (Qwen2.5, Hermes)."""

    name = "Hermes"

    def __init__(self, has_token: Callable[[str], bool], default_system: str | None = None) -> None:
        super().__init__(has_token)
        self._default_system = default_system
        self.thinking = has_token(THINK_OPENER) and has_token(THINK_CLOSER)
        self.end_of_turn = tuple(filter(has_token, ("<|im_end|>", "<|endoftext|>")))
        self.calls = None
        if has_token("<tool_call>") and has_token("</tool_call>"):
            self.calls = CallSyntax(
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
                    out.text(turn.text)
                case AssistantTurn(only_reasoning=True) if not self.thinking:
                    continue
                case AssistantTurn():
                    self._start(out, "assistant")
                    self._assistant(out, turn)
                case outputs:
                    out.special("<|im_start|>")
                    out.text("user")
                    for output in outputs:
                        out.tagged("\n<tool_response>")
                        out.text(f"\n{output.output}\n")
                        out.tag("</tool_response>")
            self._end(out)
        return out.segments

    def generation_prompt(self, options: TemplateOptions) -> list[Segment]:
        """Opens the assistant's turn; an empty think block keeps a thinking model from thinking."""
        out = self._writer()
        self._start(out, "assistant")
        if self.thinking and not options.thinking:
            out.tagged("<think>\n\n</think>\n\n")
        return out.segments

    def _assistant(self, out: SegmentWriter, turn: AssistantTurn) -> None:
        if self.thinking and turn.reasoning is not None:
            out.tag(THINK_OPENER)
            out.text("\n" + turn.reasoning.strip("\n") + "\n")
            out.tag(THINK_CLOSER)
            out.text("\n\n")
        out.text(turn.text or "")
        if turn.calls and self.calls is not None:
            out.text("\n" if turn.text else "")
            syntax = self.calls
            out.calls(syntax, [call_object(call, syntax) for call in turn.calls])

    def _start(self, out: SegmentWriter, role: str) -> None:
        out.special("<|im_start|>")
        out.text(role + "\n")

    def _end(self, out: SegmentWriter) -> None:
        out.special("<|im_end|>")
        out.text("\n")


class Llama3(ChatFormat):
    """Llama 3.1; tools stand in the system turn (``tools_in_user_message=False``)."""

    name = "Llama 3.1"

    def __init__(self, has_token: Callable[[str], bool]) -> None:
        super().__init__(has_token)
        self.end_of_turn = tuple(filter(has_token, ("<|eot_id|>", "<|eom_id|>", "<|end_of_text|>")))
        self.calls = CallSyntax(opener=None, arguments_key="parameters", parallel=False)

    def header(
        self, instructions: str | None, tools: Sequence[FunctionTool], options: TemplateOptions
    ) -> list[Segment]:
        """Always a system turn, with the template's own date and the tools as indented JSON."""
        out = self._writer()
        out.special("<|begin_of_text|>")
        self._start(out, "system")
        if tools:
            out.text("Environment: ipython\n")
        # The template's own date: a real one would change every prefix at midnight.
        out.text("Cutting Knowledge Date: December 2023\nToday Date: 26 Jul 2024\n\n")
        if tools:
            out.text(
                "You have access to the following functions. To call a function, please respond "
                "with JSON for a function call."
                'Respond in the format {"name": function name, "parameters": dictionary of '
                "argument name and its value}.Do not use variables.\n\n"
            )
            for tool in tools:
                out.text(to_json(tool_object(tool), indent=4) + "\n\n")
        out.text((instructions or "").strip())
        out.special("<|eot_id|>")
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
        """Each call is a turn of its own, each output an ``ipython`` turn.

        Reasoning is left out: the format has no place for it.
        """
        out = self._writer()
        if open_output:
            out.special("<|eot_id|>")
        for turn in turns(items):
            match turn:
                case Message():
                    self._turn(out, role_of(turn), turn.text.strip())
                case AssistantTurn():
                    if turn.text is not None:
                        self._turn(out, "assistant", turn.text.strip())
                    for call in turn.calls:
                        assert self.calls is not None
                        self._turn(out, "assistant", call_object(call, self.calls))
                case outputs:
                    for output in outputs:
                        self._turn(out, "ipython", to_json(output.output))
        return out.segments

    def generation_prompt(self, options: TemplateOptions) -> list[Segment]:
        """Opens the assistant's turn, whatever the options."""
        out = self._writer()
        self._start(out, "assistant")
        return out.segments

    def _turn(self, out: SegmentWriter, role: str, text: str) -> None:
        self._start(out, role)
        out.text(text)
        out.special("<|eot_id|>")

    def _start(self, out: SegmentWriter, role: str) -> None:
        out.special("<|start_header_id|>")
        out.text(role)
        out.special("<|end_header_id|>")
        out.text("\n\n")


class Mistral(ChatFormat):
    """Tokenizers v3 and v7, sentencepiece (a space after control tokens) and Tekken (none).

    v3 has no system turn: instructions open the first user turn. Its header therefore ends
    inside ``[INST]``, and the first items go on from there, whatever the header was.
    """

    name = "Mistral"

    def __init__(self, has_token: Callable[[str], bool]) -> None:
        super().__init__(has_token)
        self.end_of_turn = ("</s>",)
        self._space = "" if has_token("<SPECIAL_20>") else " "
        self._system_turn = has_token("[SYSTEM_PROMPT]")
        self.calls = None
        if has_token("[TOOL_CALLS]"):
            self.calls = CallSyntax(
                opener="[TOOL_CALLS]",
                before=self._space + "[",
                after="]",
                between=", ",
                repeats_opener=False,
            )

    def header(
        self, instructions: str | None, tools: Sequence[FunctionTool], options: TemplateOptions
    ) -> list[Segment]:
        """v7: the instructions as a system turn, then the tools.

        v3: the tools, then an open ``[INST]`` with the instructions.
        """
        out = self._writer()
        out.special("<s>")
        if self._system_turn and instructions is not None:
            self._turn(out, "SYSTEM_PROMPT", instructions)
        if tools:
            self._turn(out, "AVAILABLE_TOOLS", to_json([tool_object(tool) for tool in tools]))
        if not self._system_turn:
            out.special("[INST]")
            out.text(self._space + (f"{instructions}\n\n" if instructions else ""))
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
        """v3's first items go on inside the ``[INST]`` that the header left open.

        Reasoning is left out: the format has no place for it.
        """
        out = self._writer()
        if open_output:
            out.special("</s>")
        inside = first and not self._system_turn
        for turn in turns(items):
            if inside and isinstance(turn, Message):
                system = turn.role != "user"
                out.text(turn.text + ("\n\n" if system else ""))
                if not system:
                    out.special("[/INST]")
                inside = system
                continue
            if inside:
                out.special("[/INST]")
                inside = False
            self._write_turn(out, turn)
        return out.segments

    def generation_prompt(self, options: TemplateOptions) -> list[Segment]:
        """Nothing: the model's turn begins where a user's or a tool's ends."""
        return []

    def _write_turn(self, out: SegmentWriter, turn: Turn) -> None:
        match turn:
            case Message(role="user"):
                self._turn(out, "INST", turn.text)
            case Message():
                self._turn(out, "SYSTEM_PROMPT" if self._system_turn else "INST", turn.text)
            case AssistantTurn(only_reasoning=True):
                pass
            case AssistantTurn():
                out.text(self._space + turn.text if turn.text else "")
                if turn.calls and self.calls is not None:
                    objects = [
                        call_object(call, self.calls, f', "id": "{short_call_id(call.call_id)}"')
                        for call in turn.calls
                    ]
                    out.calls(self.calls, objects)
                out.special("</s>")
            case outputs:
                for output in outputs:
                    self._result(out, output)

    def _result(self, out: SegmentWriter, output: FunctionCallOutput) -> None:
        call_id = short_call_id(output.call_id)
        if not self._system_turn:
            content = {"content": _number_or_text(output.output), "call_id": call_id}
            self._turn(out, "TOOL_RESULTS", to_json(content))
            return
        out.special("[TOOL_RESULTS]")
        out.text(self._space + call_id)
        out.special("[TOOL_CONTENT]")
        out.text(self._space + output.output)
        out.special("[/TOOL_RESULTS]")

    def _turn(self, out: SegmentWriter, name: str, text: str) -> None:
        out.special(f"[{name}]")
        out.text(self._space + text)
        out.special(f"[/{name}]")


def short_call_id(call_id: str) -> str:
    """Mistral's call ids are 9 letters or digits; any other id is mapped to such a one."""
    if re.fullmatch(r"[A-Za-z0-9]{9}", call_id):
        return call_id
    number = int.from_bytes(hashlib.blake2b(call_id.encode("utf-8", "replace")).digest()[:8])
    digits = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
    return "".join(digits[number // 62**i % 62] for i in range(9))


def _number_or_text(text: str) -> int | float | str:
    """A plain number stays a number in a v3 tool result, as the published template has it."""
    if re.fullmatch(r"-?\d{1,15}(\.\d{1,15})?", text):
        number = float(text) if "." in text else int(text)
        if str(number) == text:
            return number
    return text


def chat_format_for(model_type: str, has_token: Callable[[str], bool]) -> ChatFormat:
    """The renderer for a model.

    The tokenizer decides: it holds the control tokens of the format the model was trained
    on. ``model_type`` (from config.json) settles what tokens cannot tell.

    Raises:
        ValueError: no format known here fits the tokens.
    """
    if has_token("<|im_start|>") and has_token("<|im_end|>"):
        qwen2 = model_type.startswith("qwen2")
        return ChatML(has_token, QWEN2_DEFAULT_SYSTEM if qwen2 else None)
    if has_token("<|start_header_id|>") and has_token("<|eot_id|>"):
        return Llama3(has_token)
    if has_token("[INST]") and has_token("[/INST]"):
        if has_token("[ARGS]"):
            raise ValueError("Mistral's tokenizer v11 and later ([ARGS]) is not supported")
        return Mistral(has_token)
    raise ValueError(
        f"no chat format for model type {model_type!r}: the tokenizer has neither <|im_start|> "
        "nor <|start_header_id|> nor [INST]"
    )


QWEN2_DEFAULT_SYSTEM = "You are Qwen, created by Alibaba Cloud. You are a helpful assistant."
