"""Mistral's tokenizers v3 to v13: turns in brackets; calls are a list of JSON objects up to v7,
from v11 on each names its function.

Always true: see ``tools_api.chat_format``; where the published tokenizers rewrite history this
does not.
"""

import hashlib
import re
from collections.abc import Callable, Sequence

from tools_api.chat_format import (
    AssistantTurn,
    CallSyntax,
    ChatFormat,
    JsonCalls,
    Segment,
    SegmentWriter,
    TemplateOptions,
    Turn,
    call_object,
    to_json,
    tool_object,
    turns,
)
from tools_api.items import FunctionCall, FunctionCallOutput, Item, Message
from tools_api.named_calls import NamedCalls, write_named_calls
from tools_api.tools import FunctionTool


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
        self.calls: CallSyntax | None = None
        if has_token("[TOOL_CALLS]"):
            self.calls = JsonCalls(
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
        """No tokens: the model's turn begins where a user's or a tool's ends."""
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
                self._write_calls(out, turn.calls)
                out.special("</s>")
            case outputs:
                for output in outputs:
                    self._result(out, output)

    def _write_calls(self, out: SegmentWriter, calls: Sequence[FunctionCall]) -> None:
        if calls and isinstance(self.calls, JsonCalls):
            objects = [
                call_object(call, self.calls, f', "id": "{short_call_id(call.call_id)}"')
                for call in calls
            ]
            out.calls(self.calls, objects)

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


class MistralV11(Mistral):
    """Tokenizer v11: a call names its function; results name the call they answer."""

    name = "Mistral v11 and later"

    def __init__(self, has_token: Callable[[str], bool]) -> None:
        super().__init__(has_token)
        self._space = ""
        self._named = NamedCalls(
            opener="[TOOL_CALLS]", before_arguments="[ARGS]", before_id="[CALL_ID]"
        )
        self.calls = self._named

    def _write_calls(self, out: SegmentWriter, calls: Sequence[FunctionCall]) -> None:
        ids = [short_call_id(call.call_id) for call in calls]
        write_named_calls(out, self._named, calls, ids)


class MistralV13(MistralV11):
    """Tokenizer v13, without ids; reasoning in ``[THINK]`` where the tokenizer has it."""

    think_opener = "[THINK]"
    think_closer = "[/THINK]"
    after_thinking = ""

    def __init__(self, has_token: Callable[[str], bool]) -> None:
        super().__init__(has_token)
        self.thinking = has_token(self.think_opener) and has_token(self.think_closer)

    def _write_turn(self, out: SegmentWriter, turn: Turn) -> None:
        if isinstance(turn, AssistantTurn) and self.thinking and turn.reasoning:
            out.special(self.think_opener)
            out.text(turn.reasoning)
            out.special(self.think_closer)
            if turn.only_reasoning:
                out.special("</s>")
        super()._write_turn(out, turn)

    def _write_calls(self, out: SegmentWriter, calls: Sequence[FunctionCall]) -> None:
        write_named_calls(out, self._named, calls)

    def _result(self, out: SegmentWriter, output: FunctionCallOutput) -> None:
        self._turn(out, "TOOL_RESULTS", output.output)


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
