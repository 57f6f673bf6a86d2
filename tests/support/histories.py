"""Histories of calls and outputs, told in the words of each API, and what a model reads of them.

A call has a word of its own (``K7``) and so has its output (``R7``), so that a prompt shows which
output stands where, whatever the chat format. ``misread`` reads it as a model does that goes by the
place.
"""

import json
import random
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

PROPERTIES = {"k": {"type": "string"}, "n": {}}
_PARAMETERS = {"type": "object", "properties": PROPERTIES}


@dataclass(frozen=True, slots=True)
class User:
    text: str


@dataclass(frozen=True, slots=True)
class Said:
    """By the model."""

    text: str


@dataclass(frozen=True, slots=True)
class Called:
    id: str
    arguments: str


@dataclass(frozen=True, slots=True)
class Output:
    id: str
    text: str


Step = User | Said | Called | Output


def story(rng: random.Random, *, turns: int, most_calls: int, ids_repeat: bool) -> list[Step]:
    """Turns of calls and their outputs, all in order; it ends with outputs."""
    steps: list[Step] = []
    number = 0
    for turn in range(turns):
        steps.append(User(f"ask {turn}"))
        count = rng.randint(1, most_calls)
        numbers = range(number, number + count)
        number += count
        ids = [f"call_{n if ids_repeat else m}" for n, m in enumerate(numbers)]
        if rng.random() < 0.3:
            steps.append(Said(f"let me {turn}"))
        steps += [Called(id_, f'{{"k": "K{n}"}}') for id_, n in zip(ids, numbers, strict=True)]
        steps += [Output(id_, f"R{n}") for id_, n in zip(ids, numbers, strict=True)]
        if turn < turns - 1:
            steps.append(Said(f"so {turn}"))
    return steps


def runs_of(steps: Sequence[Step]) -> list[tuple[int, int]]:
    """Where the outputs of each turn begin and end."""
    found, begin = [], None
    for at, step in enumerate([*steps, User("")]):
        if isinstance(step, Output) and begin is None:
            begin = at
        elif not isinstance(step, Output) and begin is not None:
            found.append((begin, at))
            begin = None
    return found


def permuted(rng: random.Random, steps: Sequence[Step]) -> list[Step]:
    """Outputs of each turn in another order."""
    out = list(steps)
    for begin, end in runs_of(steps):
        some = out[begin:end]
        rng.shuffle(some)
        out[begin:end] = some
    return out


def delayed(rng: random.Random, steps: Sequence[Step]) -> list[Step]:
    """Some outputs of each turn, not all of them, come with those of the turn after."""
    out: list[Step] = []
    late: list[Step] = []
    before = 0
    runs = runs_of(steps)
    for begin, end in runs:
        kept = [step for step in steps[begin:end] if rng.random() < 0.6]
        kept = kept or [rng.choice(steps[begin:end])]
        kept = list(steps[begin:end]) if (begin, end) == runs[-1] else kept
        out += [*steps[before:begin], *kept, *late]
        late = [step for step in steps[begin:end] if step not in kept]
        before = end
    return [*out, *steps[before:]]


def doubled(rng: random.Random, steps: Sequence[Step]) -> list[Step]:
    """Some outputs come again, at once or later."""
    out = list(steps)
    for _ in range(rng.randint(1, 3)):
        at = rng.choice([n for n, step in enumerate(out) if isinstance(step, Output)])
        ends = [end for _, end in runs_of(out) if end > at]
        place = rng.choice([at + 1, *ends])
        out.insert(place, out[at])
    return out


def misread(text: str) -> str | None:
    """The first output that a model would take for another call's; None: there is none."""
    waiting: list[str] = []
    outputs = False
    for kind, number in re.findall(r"([KR])(\d+)\b", text):
        if kind == "K":
            if outputs and waiting:
                return f"K{waiting[0]} has no output"
            waiting.append(number)
            outputs = False
        else:
            outputs = True
            if not waiting or waiting.pop(0) != number:
                return f"R{number}"
    return f"K{waiting[0]} has no output" if waiting else None


# In the words of each API


def responses(steps: Sequence[Step]) -> dict[str, Any]:
    """The body of ``/v1/responses``."""
    return {"input": list(map(_item, steps)), "tools": [_function()]}


def _item(step: Step) -> dict[str, Any]:
    match step:
        case User(text):
            return {"role": "user", "content": text}
        case Said(text):
            return {"role": "assistant", "content": text}
        case Called(id_, arguments):
            call = {"type": "function_call", "call_id": id_, "name": "f"}
            return call | {"arguments": arguments}
        case Output(id_, text):
            return {"type": "function_call_output", "call_id": id_, "output": text}


def _function() -> dict[str, Any]:
    return {"type": "function", "name": "f", "parameters": _PARAMETERS, "strict": False}


def chat(steps: Sequence[Step]) -> dict[str, Any]:
    """The body of ``/v1/chat/completions``."""
    messages: list[dict[str, Any]] = []
    for step in steps:
        match step:
            case User(text):
                messages.append({"role": "user", "content": text})
            case Said(text):
                messages.append({"role": "assistant", "content": text})
            case Called(id_, arguments):
                if not messages or messages[-1]["role"] != "assistant":
                    messages.append({"role": "assistant", "content": None})
                function = {"name": "f", "arguments": arguments}
                call = {"id": id_, "type": "function", "function": function}
                messages[-1].setdefault("tool_calls", []).append(call)
            case Output(id_, text):
                messages.append({"role": "tool", "tool_call_id": id_, "content": text})
    function = {key: value for key, value in _function().items() if key != "type"}
    return {"messages": messages, "tools": [{"type": "function", "function": function}]}


def messages(steps: Sequence[Step]) -> dict[str, Any]:
    """The body of ``/v1/messages``; arguments are JSON in it (``Raw``)."""
    said: list[dict[str, Any]] = []
    for step in steps:
        match step:
            case User(text):
                _add(said, "user", {"type": "text", "text": text})
            case Said(text):
                _add(said, "assistant", {"type": "text", "text": text})
            case Called(id_, arguments):
                block = {"type": "tool_use", "id": id_, "name": "f", "input": Raw(arguments)}
                _add(said, "assistant", block)
            case Output(id_, text):
                block = {"type": "tool_result", "tool_use_id": id_, "content": text}
                _add(said, "user", block)
    tool = {"name": "f", "input_schema": _PARAMETERS}
    return {"messages": said, "tools": [tool], "max_tokens": 64}


def _add(said: list[dict[str, Any]], role: str, block: dict[str, Any]) -> None:
    if not said or said[-1]["role"] != role:
        said.append({"role": role, "content": []})
    said[-1]["content"].append(block)


class Raw(str):
    """JSON that stands in a body to the letter."""

    __slots__ = ()


def as_json(body: dict[str, Any]) -> bytes:
    """A body as bytes, what is ``Raw`` in it to the letter."""
    raw: list[str] = []

    def marked(value: Any) -> Any:
        if isinstance(value, Raw):
            raw.append(value)
            return f"\ue000{len(raw) - 1}\ue000"
        if isinstance(value, dict):
            return {key: marked(part) for key, part in value.items()}
        return list(map(marked, value)) if isinstance(value, list) else value

    text = json.dumps(marked(body), ensure_ascii=False)
    return re.sub('"\ue000(\\d+)\ue000"', lambda found: raw[int(found[1])], text).encode()


BODIES = {
    "/v1/responses": responses,
    "/v1/chat/completions": chat,
    "/v1/messages": messages,
}


def edited(step: Called, rng: random.Random) -> Called:
    """The call with another digit in one of its numbers: the last one, mostly."""
    places = [at for at, letter in enumerate(step.arguments) if letter.isdigit()]
    ends = [at for at in places if at + 1 not in places]
    at = rng.choice(ends if rng.random() < 0.8 else places)
    digit = rng.choice([each for each in "123456789" if each != step.arguments[at]])
    arguments = step.arguments[:at] + digit + step.arguments[at + 1 :]
    return replace(step, arguments=arguments)
