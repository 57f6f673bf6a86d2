"""Constraint on a turn's output, as text.

``GrammarSpec`` is made here, beside the parser of the same syntax, and compiled by
``runtime.grammar.state``. It is hashable, so compiled grammars are cached by value.

Output under a grammar has one spelling: separators are ", " and ": ", no other whitespace,
properties in the order of the schema. This doubles the share of tokens that the grammar
forces and leaves a model no room to ramble. A custom tool's own grammar binds plain text behind
the call's object: up to a special token, so that no text is taken for its end.
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from tools_api import errors
from tools_api.call_rules import CallRules, JsonCallRules, NamedCallRules, SectionedCallRules
from tools_api.chat_format import (
    CALL_BRACE,
    CallSyntax,
    ChatFormat,
    JsonCalls,
    TemplateOptions,
)
from tools_api.harmony import HarmonyCalls
from tools_api.harmony_rules import HarmonyRules
from tools_api.lark_rules import LarkRules, literal
from tools_api.limits import DEFAULT_LIMITS
from tools_api.named_calls import NamedCalls
from tools_api.python_call_rules import PythonCallRules
from tools_api.python_calls import PythonCalls
from tools_api.quoted_call_rules import QuotedCallRules
from tools_api.quoted_calls import QuotedCalls
from tools_api.raw_call_rules import RawCallRules
from tools_api.raw_calls import RawCalls
from tools_api.requests import TextFormat
from tools_api.sectioned_calls import SectionedCalls
from tools_api.tagged_call_rules import TaggedCallRules
from tools_api.tagged_calls import TaggedCalls
from tools_api.tools import FunctionTool, ToolChoice


@dataclass(frozen=True, slots=True, kw_only=True)
class GrammarSpec:
    """A grammar and the point of the output at which it starts to bind.

    The output runs through up to three phases: free until ``after`` was emitted, then free
    until ``trigger`` was emitted, then bound by ``lark`` until the end of the turn. A phase
    whose token is None is skipped; with both None the grammar binds from the first token.
    Once bound the only way to end the turn is an accepting state plus end-of-turn.
    """

    lark: str
    """llguidance Lark text, for what follows the trigger token, the trigger itself excluded.
    Special tokens of the model stand in rules of their own, one a line
    (``special_0: <tool_call>``); see ``resolve_specials``."""
    after: str | None = None
    """Special token that must pass first, e.g. ``</think>``."""
    trigger: str | None = None
    """Special token that opens a call in free text, e.g. ``<tool_call>``."""
    free_text: bool = False
    """``lark`` also allows any text that does not begin with ``call_start``, in place of a call."""
    call_start: str = CALL_BRACE
    """The character that opens a call in place of ``free_text``."""
    begins_in_reasoning: bool = False
    """The prompt has opened the think block that ``after`` closes."""

    @property
    def binds_all(self) -> bool:
        """Whether nothing of the output is free but reasoning."""
        return self.trigger is None and not self.free_text

    @property
    def reasons_first(self) -> bool:
        """All that comes before ``after`` is reasoning, whether the model opens it or not: the rest
        is bound, and room may be left for no more than the tag."""
        return self.begins_in_reasoning or (self.after is not None and self.trigger is None)


def grammar_for(
    chat_format: ChatFormat,
    tools: Sequence[FunctionTool],
    tool_choice: ToolChoice,
    *,
    parallel_tool_calls: bool,
    text_format: TextFormat,
    options: TemplateOptions,
    lenient: bool = False,
    max_calls: int = DEFAULT_LIMITS.max_parallel_calls,
) -> GrammarSpec | None:
    """The grammar of a turn's output; None if it is free.

    A free output may still not contain a call where none is allowed: its special tokens are
    banned by ``ChatFormat.output_specials``.

    Args:
        lenient: leave out what would be refused (``schema_dialect.REFUSED``).

    Raises:
        ApiError: a call is wanted of a model that has no syntax for it.
    """
    callable_tools = tool_choice.callable(tuple(tools))
    if tools and chat_format.calls is None:
        raise errors.unsupported_parameter("tools", "this model cannot call tools")
    syntax, free = chat_format.calls, text_format.type == "text"
    if free and not callable_tools and not isinstance(syntax, HarmonyCalls):
        return None
    lark = LarkRules(lenient=lenient)
    value = None
    if not free:
        value = lark.json_rule("value", text_format.json_schema or {"type": "object"})
    if isinstance(syntax, HarmonyCalls):
        return _harmony(lark, tools, tool_choice, value)
    if value is not None and not callable_tools:
        return _bound(lark, value, chat_format, options)
    assert syntax is not None, "nothing can be called where calls have no syntax"
    limit = max_calls if parallel_tool_calls and syntax.parallel and not tool_choice.named else 1
    calls = call_rules(lark, syntax, limit)
    calls.add_tools(tools, frozenset(tool.name for tool in callable_tools))
    if tool_choice.mode == "required":
        return _bound(lark, calls.whole(), chat_format, options)
    if value is not None:
        return _bound(lark, f"{calls.whole()} | {value}", chat_format, options)
    return _free_until_called(lark, syntax, calls, chat_format, options)


def resolve_specials(lark: str, special_id: Callable[[str], int | None]) -> str:
    """A spec's ``lark`` with the special tokens as ids (``special_0: <[151657]>``).

    Lark can name only tokens that are written in angle brackets; ids go for any.

    Raises:
        LookupError: the tokenizer has no such token; the argument is its name.
    """

    def resolved(rule: re.Match[str]) -> str:
        token = special_id(rule[2])
        if token is None:
            raise LookupError(rule[2])
        return f"{rule[1]}<[{token}]>"

    return re.sub(r"^(special_\d+: )(.+)$", resolved, lark, flags=re.MULTILINE)


def param_at(lark: str, line: int, tools: Sequence[FunctionTool] = ()) -> str | None:
    """The request's parameter whose schema stands in that line (from 1) of a spec's
    ``lark``; None if it is no schema's line.

    Args:
        tools: those of the request, if some stand elsewhere in it than in their order.
    """
    lines = lark.split("\n")
    text = lines[line - 1] if line else ""
    rule = re.match(r"(value|arguments_(\d+)(?:_\d+)?): %json ", text)
    if rule is None:
        return None
    if rule[2] is None:
        return "text.format.schema"
    return f"{place_of(tools, int(rule[2]))}.parameters"


def place_of(tools: Sequence[FunctionTool], index: int) -> str:
    """Path of a tool in the request."""
    place = tools[index].place if index < len(tools) else ""
    return place or f"tools[{index}]"


def _harmony(
    lark: LarkRules, tools: Sequence[FunctionTool], tool_choice: ToolChoice, value: str | None
) -> GrammarSpec:
    """The whole output is bound; what its messages say is free."""
    rules = HarmonyRules(lark)
    chosen = frozenset(tool.name for tool in tool_choice.callable(tuple(tools)))
    rules.add_tools(tools, chosen)
    required = bool(chosen) and tool_choice.mode == "required"
    text = lark.text(rules.output(value=value, required=required))
    return GrammarSpec(lark=text, free_text=value is None and not required)


def call_rules(lark: LarkRules, syntax: CallSyntax, limit: int) -> CallRules:
    """The rules of one way of writing calls."""
    match syntax:
        case JsonCalls():
            return JsonCallRules(lark, syntax, limit)
        case NamedCalls():
            return NamedCallRules(lark, syntax, limit)
        case SectionedCalls():
            return SectionedCallRules(lark, syntax, limit)
        case PythonCalls():
            return PythonCallRules(lark, syntax, limit)
        case QuotedCalls():
            return QuotedCallRules(lark, syntax, limit)
        case RawCalls():
            return RawCallRules(lark, syntax, limit)
        case TaggedCalls():
            return TaggedCallRules(lark, syntax, limit)
    raise TypeError(f"no rules for {type(syntax).__name__}")


def _free_until_called(
    lark: LarkRules,
    syntax: CallSyntax,
    calls: CallRules,
    chat_format: ChatFormat,
    options: TemplateOptions,
) -> GrammarSpec:
    """Any text, in which a call may begin."""
    if syntax.opener is None:
        lark.rule("TEXT", _free_text(syntax.start))
        spec = _bound(lark, f"{calls.whole()} | TEXT", chat_format, options)
        return replace(spec, free_text=True, call_start=syntax.start)
    return GrammarSpec(
        lark=lark.text(calls.after_opener()),
        after=chat_format.think_closer if chat_format.thinking and options.thinking else None,
        trigger=syntax.opener,
        begins_in_reasoning=options.thinking and chat_format.opens_reasoning,
    )


def _free_text(start: str) -> str:
    """A text that is no call: anything that does not begin like one."""
    return rf"/([^{re.escape(start)}\s](?s:.*))?/"


def _bound(
    lark: LarkRules, start: str, chat_format: ChatFormat, options: TemplateOptions
) -> GrammarSpec:
    if chat_format.thinking and options.thinking:
        text = lark.text(f"{literal(chat_format.after_thinking)} ({start})")
        return GrammarSpec(lark=text, after=chat_format.think_closer)
    return GrammarSpec(lark=lark.text(start))
