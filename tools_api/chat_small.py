"""Smaller families whose calls are JSON objects: Granite 4, SmolLM3, Phi-4 mini, Gemma 3.

Always true: see ``tools_api.chat_format``; where a published template has no place for tools or
calls, the class says how they are written.
"""

from collections.abc import Callable, Sequence

from tools_api.chat_chatml import ChatML
from tools_api.chat_format import (
    TEMPLATE_DATE,
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
from tools_api.items import FunctionCallOutput, Item, Message
from tools_api.tools import FunctionTool

_HERMES = JsonCalls(
    opener="<tool_call>", before="\n", after="\n", closer="</tool_call>", between="\n"
)
_HOW = (
    "within <tool_call></tool_call> XML tags:\n<tool_call>\n",
    '{"name": <function-name>, "arguments": <args-json-object>}',
    "\n</tool_call>",
)
"""The instruction on how to call: tags, and text between them."""


class Granite4(ChatFormat):
    """Granite 4: roles between tokens of their own, calls as Hermes writes them."""

    name = "Hermes"

    def __init__(self, has_token: Callable[[str], bool]) -> None:
        super().__init__(has_token)
        self.end_of_turn = ("<|end_of_text|>",)
        self.calls = _HERMES

    def header(
        self, instructions: str | None, tools: Sequence[FunctionTool], options: TemplateOptions
    ) -> list[Segment]:
        """Always a system turn, the tools behind the instructions."""
        out = self._writer()
        self._start(out, "system")
        if not instructions and not tools:
            out.text(
                "You are a helpful assistant. Please ensure responses are professional, accurate, "
                "and safe."
            )
        out.text(instructions or "")
        if tools:
            out.text("\n\n" if instructions else "")
            out.tagged(
                "You are a helpful assistant with access to the following tools. You may call one "
                "or more tools to assist with the user query.\n\nYou are provided with function "
                "signatures within <tools></tools> XML tags:\n<tools>"
            )
            for tool in tools:
                out.text("\n" + to_json(tool_object(tool)))
            out.tagged("\n</tools>\n\nFor each tool call, return a json object with function name ")
            _explain(out, "and arguments ")
            out.text(
                ". If a tool does not exist in the provided list of tools, notify the user that "
                "you do not have the ability to fulfill the request."
            )
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
        """Reasoning is left out: the format has no place for it."""
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
                case AssistantTurn(only_reasoning=True):
                    continue
                case AssistantTurn():
                    self._start(out, "assistant")
                    out.text(turn.text or "")
                    if turn.calls:
                        out.text("\n" if turn.text else "")
                        out.calls(_HERMES, [call_object(call, _HERMES) for call in turn.calls])
                case outputs:
                    self._start(out, "user")
                    for output in outputs:
                        out.tagged("\n<tool_response>")
                        out.text(f"\n{output.output}\n")
                        out.tag("</tool_response>")
            self._end(out)
        return out.segments

    def generation_prompt(self, options: TemplateOptions) -> list[Segment]:
        """Opens the assistant's turn, whatever the options."""
        out = self._writer()
        self._start(out, "assistant")
        return out.segments

    def _start(self, out: SegmentWriter, role: str) -> None:
        out.special("<|start_of_role|>")
        out.text(role)
        out.special("<|end_of_role|>")

    def _end(self, out: SegmentWriter) -> None:
        out.special("<|end_of_text|>")
        out.text("\n")


class SmolLm3(ChatML):
    """SmolLM3. Its template writes neither calls nor whose an output is: calls are as Hermes has
    them, and an output is a user's turn."""

    after_thinking = "\n"

    def __init__(self, has_token: Callable[[str], bool]) -> None:
        super().__init__(has_token)
        self.calls = _HERMES

    def header(
        self, instructions: str | None, tools: Sequence[FunctionTool], options: TemplateOptions
    ) -> list[Segment]:
        """Always a system turn, with the template's cut-off and date."""
        out = self._writer()
        self._start(out, "system")
        mode = "/think" if options.thinking else "/no_think"
        out.text(
            "## Metadata\n\nKnowledge Cutoff Date: June 2025\n"
            f"Today Date: {TEMPLATE_DATE:%d %B %Y}\nReasoning Mode: {mode}\n\n"
            "## Custom Instructions\n\n"
        )
        system = (instructions or "").rstrip() or (_THINKS if options.thinking else _SMOL)
        out.text(system + "\n\n")
        if tools:
            out.tagged(
                "### Tools\n\nYou may call one or more functions to assist with the user query.\n"
                "You are provided with function signatures within <tools></tools> XML tags:\n\n"
                "<tools>\n"
            )
            for tool in tools:
                out.text(f"{tool_object(tool)}\n")
            out.tagged("</tools>\n\nFor each function call, return a json object with function ")
            _explain(out, "name and arguments ")
            out.text("\n\n")
        self._end(out)
        return out.segments

    def generation_prompt(self, options: TemplateOptions) -> list[Segment]:
        """An empty think block keeps the model from thinking."""
        out = self._writer()
        self._start(out, "assistant")
        if not options.thinking:
            out.tagged("<think>\n\n</think>\n")
        return out.segments

    def _assistant(self, out: SegmentWriter, turn: AssistantTurn, options: TemplateOptions) -> None:
        if turn.reasoning is not None or not options.thinking:
            out.tagged("<think>\n")
            out.text((turn.reasoning or "").strip("\n") + "\n")
            out.tagged("</think>\n")
        out.text((turn.text or "").lstrip("\n"))
        if turn.calls:
            out.text("\n" if turn.text else "")
            out.calls(_HERMES, [call_object(call, _HERMES) for call in turn.calls])

    def _outputs(self, out: SegmentWriter, outputs: Sequence[FunctionCallOutput]) -> None:
        """Outputs of tools, one turn for each."""
        for i, output in enumerate(outputs):
            if i > 0:
                self._end(out)
            self._start(out, "user")
            out.text(output.output)


class Phi4Mini(ChatFormat):
    """Phi-4 mini. Its template writes no calls: they are a list between the model's own tags."""

    name = "Phi-4-mini"

    def __init__(self, has_token: Callable[[str], bool]) -> None:
        super().__init__(has_token)
        self.end_of_turn = tuple(filter(has_token, ("<|end|>", "<|endoftext|>")))
        self._calls = JsonCalls(
            opener="<|tool_call|>",
            before="[",
            after="]",
            closer="<|/tool_call|>",
            between=", ",
            repeats_opener=False,
        )
        self.calls = self._calls

    def header(
        self, instructions: str | None, tools: Sequence[FunctionTool], options: TemplateOptions
    ) -> list[Segment]:
        """One system turn with the tools as a list; nothing if it would say nothing."""
        out = self._writer()
        if instructions is None and not tools:
            return []
        out.special("<|system|>")
        out.text(instructions or "")
        if tools:
            out.special("<|tool|>")
            out.text(to_json([tool_object(tool)["function"] for tool in tools]))
            out.special("<|/tool|>")
        out.special("<|end|>")
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
        """Reasoning is left out: the format has no place for it."""
        out = self._writer()
        if open_output:
            out.special("<|end|>")
        for turn in turns(items):
            match turn:
                case Message():
                    self._turn(out, role_of(turn), turn.text)
                case AssistantTurn(only_reasoning=True):
                    pass
                case AssistantTurn():
                    out.special("<|assistant|>")
                    out.text(turn.text or "")
                    if turn.calls:
                        objects = [call_object(call, self._calls) for call in turn.calls]
                        out.calls(self._calls, objects)
                    out.special("<|end|>")
                case outputs:
                    for output in outputs:
                        self._turn(out, "tool", output.output)
        return out.segments

    def generation_prompt(self, options: TemplateOptions) -> list[Segment]:
        """Opens the assistant's turn, whatever the options."""
        out = self._writer()
        out.special("<|assistant|>")
        return out.segments

    def _turn(self, out: SegmentWriter, role: str, text: str) -> None:
        out.tag(f"<|{role}|>")
        out.text(text)
        out.special("<|end|>")


class Gemma3(ChatFormat):
    """Gemma 3. It has no system turn and its template no tools: instructions and functions open the
    first user turn as text, a call is one JSON object, and an output is a user's turn."""

    name = "Llama 3.1"

    def __init__(self, has_token: Callable[[str], bool]) -> None:
        super().__init__(has_token)
        self.end_of_turn = tuple(filter(has_token, ("<end_of_turn>", "<eos>")))
        self._calls = JsonCalls(opener=None, arguments_key="parameters", parallel=False)
        self.calls = self._calls

    def header(
        self, instructions: str | None, tools: Sequence[FunctionTool], options: TemplateOptions
    ) -> list[Segment]:
        """Ends inside the user's turn that it opens; the first items go on from there."""
        out = self._writer()
        out.special("<bos>")
        self._start(out, "user")
        out.text(f"{instructions}\n\n" if instructions else "")
        if tools:
            out.text(
                "You have access to functions. If you decide to invoke any of the function(s), you "
                'MUST put it in the format of\n{"name": function name, "parameters": dictionary of '
                "argument name and its value}\n\nYou SHOULD NOT include any other text in the "
                "response if you call a function\n"
            )
            out.text(to_json([tool_object(tool)["function"] for tool in tools]) + "\n\n")
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
        """Reasoning is left out: the format has no place for it."""
        out = self._writer()
        if open_output:
            self._end(out)
        elif not first and after_output:
            out.text("\n")
        inside = first
        for turn in turns(items):
            if inside and isinstance(turn, Message):
                system = turn.role != "user"
                out.text(turn.text.strip() + ("\n\n" if system else ""))
                if not system:
                    self._end(out)
                inside = system
                continue
            if inside:
                self._end(out)
                inside = False
            match turn:
                case Message():
                    self._turn(out, "user", turn.text)
                case AssistantTurn():
                    if turn.text is not None:
                        self._turn(out, "model", turn.text)
                    for call in turn.calls:
                        self._turn(out, "model", call_object(call, self._calls))
                case outputs:
                    for output in outputs:
                        self._turn(out, "user", output.output)
        return out.segments

    def generation_prompt(self, options: TemplateOptions) -> list[Segment]:
        """Opens the model's turn, whatever the options."""
        out = self._writer()
        self._start(out, "model")
        return out.segments

    def _turn(self, out: SegmentWriter, role: str, text: str) -> None:
        self._start(out, role)
        out.text(text.strip())
        self._end(out)

    def _start(self, out: SegmentWriter, role: str) -> None:
        out.special("<start_of_turn>")
        out.text(role + "\n")

    def _end(self, out: SegmentWriter) -> None:
        out.special("<end_of_turn>")
        out.text("\n")


def _explain(out: SegmentWriter, before: str) -> None:
    """How calls are written, as Hermes' templates say it."""
    head, shown, tail = _HOW
    out.tagged(before + head)
    out.text(shown)
    out.tagged(tail)


_SMOL = "You are a helpful AI assistant named SmolLM, trained by Hugging Face."
_THINKS = (
    f"{_SMOL} Your role as an assistant involves thoroughly exploring questions through a "
    "systematic thinking process before providing the final precise and accurate solutions. This "
    "requires engaging in a comprehensive cycle of analysis, summarizing, exploration, "
    "reassessment, reflection, backtracking, and iteration to develop well-considered thinking "
    "process. Please structure your response into two main sections: Thought and Solution using "
    "the specified format: <think> Thought section </think> Solution section. In the Thought "
    "section, detail your reasoning process in steps. Each step should include detailed "
    "considerations such as analysing questions, summarizing relevant findings, brainstorming new "
    "ideas, verifying the accuracy of the current steps, refining any errors, and revisiting "
    "previous steps. In the Solution section, based on various attempts, explorations, and "
    "reflections from the Thought section, systematically present the final solution that you "
    "deem correct. The Solution section should be logical, accurate, and concise and detail "
    "necessary steps needed to reach the conclusion."
)
