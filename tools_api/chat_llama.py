"""Llama 3.1 to 3.3: turns behind headers, a call as the one JSON object of a turn.

Always true: see ``tools_api.chat_format``; where the published template rewrites history this
does not.
"""

from collections.abc import Callable, Sequence

from tools_api.chat_format import (
    AssistantTurn,
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
from tools_api.items import Item, Message
from tools_api.tools import FunctionTool


class Llama3(ChatFormat):
    """Llama 3.1; tools stand in the system turn (``tools_in_user_message=False``)."""

    name = "Llama 3.1"

    def __init__(self, has_token: Callable[[str], bool]) -> None:
        super().__init__(has_token)
        self.end_of_turn = tuple(filter(has_token, ("<|eot_id|>", "<|eom_id|>", "<|end_of_text|>")))
        self._calls = self.calls = JsonCalls(
            opener=None, arguments_key="parameters", parallel=False
        )

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
                        self._turn(out, "assistant", call_object(call, self._calls))
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
