"""Where our renderers differ from published templates on purpose, and what is equal but for it.

The list of ``docs/chat_formats.md`` (tables under *Append-stable*) as code, in one place. Each row
says which conversations it concerns and what the template may write instead.

Knows texts. Knows no template and no process.

Always true: a template that writes what our renderer writes agrees; one that differs where no row
of the list allows it does not.
"""

import dataclasses
import itertools
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass

from runtime.chat_judge.conversations import Conversation, without_reasoning
from tools_api.chat_deepseek import ASSISTANT, END_OF_SENTENCE, OUTPUT_TAGS, USER
from tools_api.chat_format import (
    THINK_CLOSER,
    AssistantTurn,
    ChatFormat,
    Segment,
    TemplateOptions,
    turns,
)
from tools_api.chat_kimi import DEFAULT_SYSTEM, kimi_call_id
from tools_api.items import FunctionCall, FunctionCallOutput, Item, Message, Reasoning

_EMPTY_THINK = re.compile(r"<think>\s*</think>\n*")
_TOOLS_OF_MISTRAL = re.compile(r"\[AVAILABLE_TOOLS\].*?\[/AVAILABLE_TOOLS\]", re.DOTALL)
_SYSTEM_OF_MISTRAL = re.compile(r"\[SYSTEM_PROMPT\].*?\[/SYSTEM_PROMPT\]", re.DOTALL)
_OUTPUT_OF_MISTRAL = re.compile(r'"content": (".*?"), "call_id"', re.DOTALL)
_SHOWN = 24
"""Characters that are shown of what differs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Differing:
    """Where a template and a renderer part."""

    probe: str
    at: int
    """Characters that are equal."""
    template: str
    """The template's text at that place."""
    ours: str

    def __str__(self) -> str:
        return (
            f"in the probe {self.probe!r} at character {self.at} the template has "
            f"{self.template!r}, and the renderer {self.ours!r}"
        )


def written(chat_format: ChatFormat, conversation: Conversation) -> str:
    """The text that a renderer of ours makes of a whole conversation."""
    options = TemplateOptions(thinking=conversation.thinking and chat_format.thinking)
    tools = tuple(conversation.tools)
    segments = chat_format.header(conversation.instructions, tools, options)
    segments += chat_format.items(
        conversation.items, first=True, open_output=False, options=options
    )
    if conversation.prompt:
        segments += _prompt(chat_format, conversation, options)
    return "".join(segment.text for segment in segments)


def _prompt(
    chat_format: ChatFormat, conversation: Conversation, options: TemplateOptions
) -> list[Segment]:
    if chat_format.ends_inside(conversation.items, before=False):
        return chat_format.prompt_inside(options)
    return chat_format.generation_prompt(options)


def differing(
    text: str, name: str, chat_format: ChatFormat, conversation: Conversation
) -> Differing | None:
    """Where a template's text differs otherwise than the list allows; None: nowhere."""
    prompts = _prompts(name, chat_format, conversation)
    ours = [written(chat_format, other) for other in _as_rewritten(name, conversation)]
    if any(_same(text, each, prompts, name, conversation) for each in ours):
        return None
    nearest = max(ours, key=lambda each: _common(text, each))
    return difference(text, nearest, conversation.name)


def difference(template: str, ours: str, probe: str) -> Differing:
    """The first place where two texts that differ do so."""
    at = _common(template, ours)
    return Differing(
        probe=probe,
        at=at,
        template=template[at : at + _SHOWN],
        ours=ours[at : at + _SHOWN],
    )


_CALLS_ARE_CONTENT = frozenset({"gemma3", "lfm2", "phi4-mini", "smollm3"})
"""Their templates have no place for calls, and leave them to whoever writes the contents."""

_WITHOUT_SWITCH = frozenset({"deepseek-r1-0528", "kimi-k2-thinking"})
"""Their models open a think block themselves, and their templates have no way to close one."""


def is_compared(name: str, conversation: Conversation) -> bool:
    """Whether the format's published template has a place for all of the conversation."""
    items = conversation.items
    if name == "harmony":  # one call a turn
        return not _has_calls_in_parallel(items)
    if name.startswith("gemma4") and _has_text_before_call(items):
        return False  # it writes the text behind the outputs, and ends the turn there
    if name == "deepseek-r1":  # it writes a text behind its calls, and knows one turn with calls
        again = sum(isinstance(each, AssistantTurn) and bool(each.calls) for each in turns(items))
        return again < 2 and not _has_text_before_call(items)
    called = any(isinstance(item, FunctionCall) for item in items)
    return not (called and name in _CALLS_ARE_CONTENT)


def may_be_refused(name: str, conversation: Conversation) -> bool:
    """Whether the published template of the format raises an error where ours writes on."""
    if name == "llama3.1":
        return _has_calls_in_parallel(conversation.items)
    return name.startswith("mistral") and _has_text_before_call(conversation.items)


def without_empty_thoughts(text: str) -> str:
    """Without think blocks in which nothing stands: some templates write one before the newest
    answer alone, and here each answer keeps the one that it was generated behind."""
    return _EMPTY_THINK.sub("", text)


def _as_rewritten(name: str, conversation: Conversation) -> Iterator[Conversation]:
    """The conversations that a template may write instead: without reasoning, which all drop in
    one way or another; without text before a call, which Llama's drops; without tools, for which
    DeepSeek's have no place."""
    yield conversation
    items = conversation.items
    if name.startswith("deepseek") and conversation.tools:
        yield from _as_rewritten(name, dataclasses.replace(conversation, tools=()))
    if any(isinstance(item, Reasoning) for item in items):
        for finished_only in (True, False):
            fewer = without_reasoning(items, finished_only=finished_only)
            yield dataclasses.replace(conversation, items=fewer)
    drops = name == "llama3.1" or name.startswith("mistral")
    if drops and _has_text_before_call(items):
        yield dataclasses.replace(conversation, items=_without_text_before_call(items))
    if name == "harmony" and _has_text_before_call(items):
        thought = tuple(
            Reasoning(content=(item.text,)) if isinstance(item, Message) and not kept else item
            for item, kept in _with_text_before_call(items)
        )
        yield dataclasses.replace(conversation, items=thought)


def _prompts(name: str, chat_format: ChatFormat, conversation: Conversation) -> tuple[str, ...]:
    """The text with which our renderer ends the conversation, then what the template may have
    instead: one without a switch for reasoning opens a think block, which we close where nothing is
    to be thought; DeepSeek's opens none behind outputs, nor do Gemma 4's before July 2026."""
    if not conversation.prompt:
        return ("",)
    asked = conversation.thinking and chat_format.thinking
    kinds = [TemplateOptions(thinking=asked)]
    if chat_format.opens_reasoning or name in _WITHOUT_SWITCH:
        kinds.append(TemplateOptions(thinking=True))
    made = [_prompt(chat_format, conversation, kind) for kind in kinds]
    found = ["".join(each.text for each in segments) for segments in made]
    if name.startswith(("deepseek", "gemma4")) and isinstance(
        conversation.items[-1], FunctionCallOutput
    ):
        found.append("")
    return tuple(found)


def _same(
    text: str, ours: str, prompts: tuple[str, ...], name: str, conversation: Conversation
) -> bool:
    if text == ours:
        return True
    known = _normal(ours.removesuffix(prompts[0]), name, conversation)
    return any(
        _normal(text.removesuffix(prompt), name, conversation) == known
        for prompt in prompts
        if text.endswith(prompt)
    )


def _normal(text: str, name: str, conversation: Conversation) -> str:
    text = without_empty_thoughts(text)
    users = sum(map(_by_user, conversation.items))
    if name == "mistral":
        text = _OUTPUT_OF_MISTRAL.sub(_as_it_came, text)
    if name.startswith("deepseek"):
        # Where a message has calls and no text R1's template writes an answer without text too.
        text = text.replace(ASSISTANT + END_OF_SENTENCE, "").replace(ASSISTANT + USER, USER)
        text = text.replace(f"{OUTPUT_TAGS[1]}{THINK_CLOSER}", OUTPUT_TAGS[1])
    if name.startswith("kimi"):
        text = _as_kimi_was_given(text, conversation)
    if name.startswith("mistral-v") and conversation.instructions is None:
        text = _SYSTEM_OF_MISTRAL.sub("", text, count=1)
    if name.startswith("mistral") and (users > 1 or not _by_user(conversation.items[-1])):
        # The template puts tools, v3 also the instructions, before the last user message, and the
        # instructions nowhere if that is not the last of all.
        text = _TOOLS_OF_MISTRAL.sub("", text, count=1)
        if name == "mistral" and conversation.instructions is not None:
            text = text.replace(conversation.instructions + "\n\n", "", 1)
    return text


def _as_kimi_was_given(text: str, conversation: Conversation) -> str:
    """Ids of calls as they came, and no system message that nobody gave."""
    for item in conversation.items:
        if isinstance(item, FunctionCall):
            text = text.replace(kimi_call_id(item.call_id, item.full_name), item.call_id)
    if conversation.instructions is None:
        text = text.replace(f"<|im_system|>system<|im_middle|>{DEFAULT_SYSTEM}<|im_end|>", "", 1)
    return text


def _by_user(item: Item) -> bool:
    return isinstance(item, Message) and item.role == "user"


def _as_it_came(found: re.Match[str]) -> str:
    """An output of a tool, which some templates do not write as a string of JSON."""
    try:
        return f'"content": {json.loads(found[1])}, "call_id"'
    except ValueError:
        return found[0]


def _has_calls_in_parallel(items: tuple[Item, ...]) -> bool:
    calls = [isinstance(item, FunctionCall) for item in items]
    return any(one and other for one, other in itertools.pairwise(calls))


def _has_text_before_call(items: tuple[Item, ...]) -> bool:
    return _without_text_before_call(items) != items


def _without_text_before_call(items: tuple[Item, ...]) -> tuple[Item, ...]:
    return tuple(item for item, kept in _with_text_before_call(items) if kept)


def _with_text_before_call(items: tuple[Item, ...]) -> Iterator[tuple[Item, bool]]:
    """Each item, and whether it is anything else than text in front of a call."""
    for item, after in zip(items, (*items[1:], None), strict=True):
        said = isinstance(item, Message) and item.role == "assistant"
        yield item, not (said and isinstance(after, FunctionCall))


def _common(one: str, other: str) -> int:
    """How many characters at the start are equal."""
    most = min(len(one), len(other))
    return next((i for i in range(most) if one[i] != other[i]), most)
