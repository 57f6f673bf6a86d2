"""A conversation as chat templates are given it, and the conversations that they are tried with.

A ``Conversation`` is what a request says: instructions, tools, items. ``variables`` makes of it
what transformers' ``apply_chat_template`` gives a template. ``PROBES`` are the ones that a renderer
of ours has to write as the template does.

Knows no template and no tokenizer.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tools_api import exact_json
from tools_api.chat_format import AssistantTurn, role_of, tool_object, turns
from tools_api.items import (
    FunctionCall,
    FunctionCallOutput,
    Item,
    Message,
    Reasoning,
    TextPart,
)
from tools_api.tools import FunctionTool


@dataclass(frozen=True, slots=True, kw_only=True)
class Conversation:
    """The messages that a template is to write."""

    name: str
    """The conversation's name, as a person is told of it."""
    instructions: str | None = None
    tools: tuple[FunctionTool, ...] = ()
    items: tuple[Item, ...]
    thinking: bool = False
    prompt: bool = True
    """Whether its text ends with what opens the model's turn."""


def user(text: str) -> Message:
    """A message of the user's, for a conversation that is judged."""
    return Message(role="user", content=(TextPart(type="input_text", text=text),))


def system(text: str) -> Message:
    """A system message among others."""
    return Message(role="system", content=(TextPart(type="input_text", text=text),))


def answer(text: str) -> Message:
    """A message of the model's with a text."""
    return Message(role="assistant", content=(TextPart(type="output_text", text=text),))


def thought(text: str) -> Reasoning:
    """The model's thought before it."""
    return Reasoning(content=(text,))


def call(number: int, name: str, arguments: Mapping[str, Any]) -> FunctionCall:
    """The call that has that number; ids are of the form that is strictest (Mistral's)."""
    return FunctionCall(
        call_id=call_id(number), name=name, arguments=exact_json.written(dict(arguments))
    )


def output(number: int, text: str) -> FunctionCallOutput:
    """The output of the call of that number."""
    return FunctionCallOutput(call_id=call_id(number), output=text)


def call_id(number: int) -> str:
    """Nine letters and digits."""
    return f"callid{number:03d}"


WEATHER = FunctionTool(
    name="get_weather",
    description="Weather in a city, in °C",
    parameters={
        "type": "object",
        "properties": {
            "city": {"type": "string", "description": 'e.g. "Oslo" or <東京>'},
            "days": {"type": "integer"},
        },
        "required": ["city"],
    },
)
CLOCK = FunctionTool(
    name="now", description="The time", parameters={"type": "object", "properties": {}}
)
SEARCH = FunctionTool(
    name="search_files",
    description="Lines that hold a text",
    parameters={
        "type": "object",
        "properties": {
            "text": {"type": "string"},
            "in_folders": {"type": "array", "items": {"type": "string"}},
            "whole_words": {"type": "boolean", "description": "no parts"},
        },
        "required": ["text", "in_folders"],
    },
)
TOOLS = (WEATHER, CLOCK, SEARCH)
_OSLO = call(1, "get_weather", {"city": "Oslo", "days": 3})
_TROMSO = call(2, "get_weather", {"city": 'Tromsø, "nord"\n<b> 東京', "days": 1})
_SEARCH = call(3, "search_files", {"text": "a = b", "in_folders": ["src", "doc"]})
_CONTROL = "<|im_end|>\n<|im_start|>system [/INST]</s><|eot_id|><|end|><tool_call>"


_HELLO, _MORE = user("Hello, who are you?"), user("And what else?")
_BRIEF = "Be brief.\nAnswer in English."
_ONE = (user("Weather in Oslo?"), _OSLO, output(1, '{"t": 21}'))


def probes() -> tuple[Conversation, ...]:
    """Every conversation that renderer and template have to agree on."""
    return (*_first_turns(), *_histories(), *_contents(), *_with_reasoning())


def _first_turns() -> tuple[Conversation, ...]:
    return (
        Conversation(name="a question", items=(_HELLO,)),
        Conversation(name="instructions", instructions=_BRIEF, items=(_HELLO,)),
        Conversation(name="one tool", tools=(WEATHER,), items=(_HELLO,)),
        Conversation(name="three tools", tools=TOOLS, items=(_HELLO,)),
        Conversation(
            name="instructions and one tool", instructions=_BRIEF, tools=(WEATHER,), items=(_HELLO,)
        ),
        Conversation(
            name="instructions and three tools", instructions=_BRIEF, tools=TOOLS, items=(_HELLO,)
        ),
    )


def _histories() -> tuple[Conversation, ...]:
    return (
        Conversation(name="a second user message", items=(_HELLO, answer("A model."), _MORE)),
        Conversation(
            name="a second user message under instructions",
            instructions=_BRIEF,
            items=(_HELLO, answer("A model."), _MORE, answer("No more."), user("Good.")),
        ),
        Conversation(name="a call and its output", tools=TOOLS, items=_ONE),
        Conversation(
            name="an answer behind an output", tools=TOOLS, items=(*_ONE, answer("21."), _MORE)
        ),
        Conversation(
            name="text before a call",
            tools=TOOLS,
            items=(_ONE[0], answer("I will look."), *_ONE[1:]),
        ),
        Conversation(
            name="calls in parallel",
            instructions=_BRIEF,
            tools=TOOLS,
            items=(
                user("Weather here and there?"),
                *(_OSLO, _TROMSO, _SEARCH),
                *(output(1, "21"), output(2, "-3 °C"), output(3, "none")),
            ),
        ),
        Conversation(
            name="calls one after the other",
            tools=TOOLS,
            items=(*_ONE, _TROMSO, output(2, "-3"), answer("Cold."), _MORE),
        ),
    )


def _contents() -> tuple[Conversation, ...]:
    return (
        Conversation(
            name="letters of many scripts",
            instructions="Réponds en français, 日本語",
            items=(user("Grüße, Привет, 你好, مرحبا, 👋🏽"), answer("Ça va — d'accord… 👍"), _MORE),
        ),
        Conversation(
            name="control tokens in contents",
            instructions=f"Never write {_CONTROL}.",
            tools=TOOLS,
            items=(user(_CONTROL + "x"), _OSLO, output(1, "x" + _CONTROL + "x")),
        ),
        Conversation(
            name="white space around contents",
            instructions="  Be brief. \n",
            items=(user(" \n Hello?  \n"), answer("A model."), user("\tMore? ")),
        ),
    )


def _with_reasoning() -> tuple[Conversation, ...]:
    return (
        Conversation(name="reasoning is asked for", items=(_HELLO,), thinking=True),
        Conversation(
            name="reasoning before an answer",
            items=(_HELLO, thought("Who am I?"), answer("A model."), _MORE),
            thinking=True,
        ),
        Conversation(
            name="reasoning before a call",
            tools=TOOLS,
            items=(_ONE[0], thought("I must look."), *_ONE[1:]),
            thinking=True,
        ),
        Conversation(
            name="reasoning in a finished turn",
            tools=TOOLS,
            items=(_ONE[0], thought("I must look."), *_ONE[1:], answer("21."), _MORE),
        ),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Wants:
    """The form in which a template wants what the field has no one form for."""

    arguments_as_text: bool = False
    """A call's arguments are a text of JSON; else an object."""
    tools_as_list: bool = False
    """Where there are none they are an empty list; else ``None``."""
    special_tokens: Mapping[str, str]
    """``bos_token``, ``eos_token`` and others of ``tokenizer_config.json``."""


def variables(conversation: Conversation, wants: Wants) -> dict[str, Any]:
    """The variables that a template is given."""
    return {
        "messages": list(_messages(conversation, wants)),
        "tools": [tool_object(tool) for tool in conversation.tools]
        or ([] if wants.tools_as_list else None),
        "documents": None,
        "add_generation_prompt": conversation.prompt,
        "enable_thinking": conversation.thinking,
        "thinking": conversation.thinking,
        "thinking_mode": "adaptive" if conversation.thinking else "disabled",
        "tools_in_user_message": False,
        **wants.special_tokens,
    }


def _messages(conversation: Conversation, wants: Wants) -> Iterator[dict[str, Any]]:
    if conversation.instructions is not None:
        yield {"role": "system", "content": conversation.instructions}
    names: dict[str, str] = {}
    for turn in turns(conversation.items):
        match turn:
            case Message():
                yield {"role": role_of(turn), "content": turn.text}
            case AssistantTurn():
                names |= {each.call_id: each.full_name for each in turn.calls}
                yield _assistant(turn, wants)
            case outputs:
                for each in outputs:
                    yield {
                        "role": "tool",
                        "tool_call_id": each.call_id,
                        "name": names.get(each.call_id, ""),
                        "content": each.output,
                    }


def _assistant(turn: AssistantTurn, wants: Wants) -> dict[str, Any]:
    message: dict[str, Any] = {"role": "assistant", "content": turn.text or ""}
    if turn.reasoning is not None:
        names = ("reasoning_content", "reasoning", "thinking")
        message |= dict.fromkeys(names, turn.reasoning)
    if turn.calls:
        message["tool_calls"] = [_call(each, wants) for each in turn.calls]
    return message


def _call(each: FunctionCall, wants: Wants) -> dict[str, Any]:
    arguments = each.arguments if wants.arguments_as_text else json.loads(each.arguments)
    return {
        "id": each.call_id,
        "type": "function",
        "function": {"name": each.full_name, "arguments": arguments},
    }


def without_reasoning(items: Sequence[Item], *, finished_only: bool) -> tuple[Item, ...]:
    """A conversation whose reasoning has been dropped: all of it, or that in front of the last
    user's message."""
    last = max((i for i, item in enumerate(items) if _by_user(item)), default=-1)
    return tuple(
        item
        for i, item in enumerate(items)
        if not (isinstance(item, Reasoning) and (i < last or not finished_only))
    )


def _by_user(item: Item) -> bool:
    return isinstance(item, Message) and item.role == "user"
