"""``openai`` against a model that writes nothing of its own accord: its calls are asked for. Ways
``http``, ``websocket`` and ``chat``."""

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import openai
from common import QUESTIONS, TOOLS, Forced, Loop, arguments, report, schema_of

URL, WAY = arguments()
CLIENT = openai.OpenAI(base_url=URL, api_key="none", max_retries=0)
TERMINAL = {"response.completed", "response.incomplete", "response.failed", "error"}
Create = Callable[..., Any]


def function(name: str) -> dict[str, Any]:
    model = TOOLS[name]
    described = {"name": name, "description": model.__doc__, "parameters": schema_of(model)}
    return {**described, "strict": True}


FUNCTIONS: Any = [{"type": "function", **function(name)} for name in TOOLS]


@contextlib.contextmanager
def responses() -> Iterator[Create]:
    """Creates one over either transport."""
    if WAY == "http":
        yield CLIENT.responses.create
        return
    with CLIENT.responses.connect() as socket:

        def create(**fields: Any) -> Any:
            socket.response.create(**fields)
            events = [socket.recv()]
            while events[-1].type not in TERMINAL:
                events.append(socket.recv())
            return events[-1].response

        yield create


def by_responses(forced: Forced, create: Create) -> None:
    previous = None
    for question in QUESTIONS:
        new: Any = question
        for choice in forced.choices():
            named = (
                choice if choice in ("required", "none") else {"type": "function", "name": choice}
            )
            response = create(
                **{"model": "default", "input": new, "tools": FUNCTIONS, "tool_choice": named},
                previous_response_id=previous,
                max_output_tokens=forced.room(choice),
            )
            previous = response.id
            calls = [item for item in response.output if item.type == "function_call"]
            outputs = forced.took(
                [(call.name, call.arguments) for call in calls], response.output_text
            )
            forced.cached.append(response.usage.input_tokens_details.cached_tokens)
            new = [
                {"type": "function_call_output", "call_id": call.call_id, "output": output}
                for call, output in zip(calls, outputs, strict=True)
            ]


def by_chat(forced: Forced) -> None:
    messages: Any = []
    functions: Any = [{"type": "function", "function": function(name)} for name in TOOLS]
    for question in QUESTIONS:
        messages.append({"role": "user", "content": question})
        for choice in forced.choices():
            named: Any = choice
            if choice not in ("required", "none"):
                named = {"type": "function", "function": {"name": choice}}
            made = CLIENT.chat.completions.create(
                model="default",
                messages=messages,
                tools=functions,
                tool_choice=named,
                max_completion_tokens=forced.room(choice),
            )
            message = made.choices[0].message
            messages.append(message.model_dump(exclude_unset=True))
            calls = message.tool_calls or []
            outputs = forced.took(
                [(call.function.name, call.function.arguments) for call in calls],
                message.content or "",
            )
            forced.cached.append(made.usage.prompt_tokens_details.cached_tokens)
            messages += [
                {"role": "tool", "tool_call_id": call.id, "content": output}
                for call, output in zip(calls, outputs, strict=True)
            ]


forced = Forced(Loop())
if WAY == "chat":
    by_chat(forced)
else:
    with responses() as create:
        by_responses(forced, create)
report(turns=forced.turns, cached=forced.cached)
