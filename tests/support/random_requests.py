"""Requests of all four APIs, right, nearly right and wrong, drawn at random.

``body`` draws one that the API's own document allows, with any of its fields; ``request`` is its
bytes, sometimes with other values in wrong places, or damaged. What is drawn follows from the
generator that is handed in alone.
"""

import json
import random
from collections.abc import Callable, Sequence
from typing import Any

from tests.support.api_clients import WEBSOCKET
from tests.support.mutations import damaged, mutant

Body = dict[str, Any]
_TEXTS = (
    *(
        "",
        "hi",
        "What is the price of desk?",
        "ä\u2028\u2029é",
        "日本語のテキスト",
        "👩‍👩‍👧‍👦 \U0001f600",
    ),
    *("a\x00b", "\x7f\x1b[0m", "\ufffd\ufeff", '"quoted" \\ back', "</tool_call><|im_end|>[INST]"),
    *("cut \ud83d", "\udc00 cut", "line\nbreak\r\n\ttab", "x" * 700, "{'a': 1}", " ", "0", "null"),
)
_IDS = ("call_1", "call_2", "c", "Ab3dEf9hI", "id with space", "é", "x" * 512)
_NUMBERS: tuple[Any, ...] = (
    *(0, 1, -1, 7, 0.5, -0.0, 1.0, 1e-7, 123456789.12345679, 2**53 + 1, 1190000000000000001),
    *(2**63 - 1, -(2**63), 2**64 - 1, 2**64, 10**30, 0.1 + 0.2),
)
_ARGUMENTS = ("{}", '{"a": 1}', '{"a":1190000000000000001}', '{"a": "\\ud83d"}', "{", "", "[1]")
_SCHEMAS: tuple[Body, ...] = (
    {"type": "object"},
    {"type": "object", "properties": {}, "additionalProperties": False},
    {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    {"type": "object", "properties": {"n": {"enum": [1, 0.5, None, "x"]}}},
    {"type": "object", "properties": {"l": {"type": "array", "items": {"type": "integer"}}}},
    {"type": "object", "properties": {"a": {"const": 1190000000000000001, "minimum": 2**63}}},
    {
        "type": "object",
        "$defs": {"t": {"type": "boolean"}},
        "properties": {"t": {"$ref": "#/$defs/t"}},
    },
    {"type": "object", "properties": {"x": {"not": {"type": "null"}}}},
    {"type": "object", "properties": {"d": {"type": "string", "format": "date", "default": "é"}}},
)
_TRACEPARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


class _Draw:
    """One request in the making."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.tools: list[str] = []

    def one(self, values: Sequence[Any]) -> Any:
        return self.rng.choice(values)

    def some(self, least: int, most: int, make: Callable[[], Any]) -> list[Any]:
        return [make() for _ in range(self.rng.randint(least, most))]

    def maybe(self, share: float) -> bool:
        return self.rng.random() < share

    def text(self) -> str:
        return str(self.one(_TEXTS))

    def fields(self, share: float, makers: dict[str, Callable[[], Any]]) -> Body:
        """Each of the fields or not."""
        return {name: make() for name, make in makers.items() if self.maybe(share)}

    def schema(self) -> Body:
        found: Body = self.one(_SCHEMAS)
        return found

    def name(self, prefix: str) -> str:
        name = f"{prefix}{self.rng.randrange(4)}"
        self.tools.append(name)
        return name

    def sampling(self) -> Body:
        return self.fields(
            0.4,
            {
                "top_k": lambda: self.one((0, 1, 40)),
                "min_p": lambda: self.one((0, 0.5, 1)),
                "seed": lambda: self.one((0, 7, 2**63 - 1)),
                "stop": lambda: self.one(("x", ["x", "yz"], ["é" * 256], [])),
                "presence_penalty": lambda: self.one((-2, 0.5)),
                "repetition_penalty": lambda: self.one((0.01, 1, 10)),
            },
        )

    def keepwarm(self) -> Body:
        budget = {"output": self.one((1, 500)), "scope": self.one(("turn", "session"))}
        return self.fields(
            0.25,
            {
                "budget": lambda: self.one((budget, [budget], [])),
                "sampling": self.sampling,
                "priority": lambda: self.one((-100, 0, 3)),
                "deadline_ms": lambda: 1000,
                "expected_tool_ms": lambda: self.one((0, 500)),
                "lenient": lambda: self.maybe(0.5),
                "stats": lambda: self.maybe(0.8),
                "traceparent": lambda: _TRACEPARENT,
                "compaction": lambda: {"ahead": self.maybe(0.5)},
                "labels": lambda: self.one((None, {}, {self.text(): self.text()}, {"team": "red"})),
                "on_disconnect": lambda: self.one(("cancel", "continue", None)),
                "steer": lambda: self.one(("item", "now", None)),
            },
        )


# Responses


def _responses(draw: _Draw) -> Body:
    tools = draw.some(1, 3, lambda: _tool(draw)) if draw.maybe(0.4) else []
    body: Body = {"input": _input(draw)}
    if tools:
        body["tools"] = tools
        body |= draw.fields(0.5, {"tool_choice": lambda: _tool_choice(draw)})
    return body | draw.fields(
        0.12,
        {
            "model": lambda: draw.one(("default", "m", None, "nobody's")),
            "instructions": draw.text,
            "previous_response_id": lambda: draw.one((None, "resp_unknown", "")),
            "store": lambda: draw.maybe(0.7),
            "generate": lambda: draw.maybe(0.5),
            "stream": lambda: False,
            "parallel_tool_calls": lambda: draw.maybe(0.5),
            "text": lambda: {"format": _format(draw), "verbosity": draw.one(("low", None))},
            "max_output_tokens": lambda: draw.one((1, 2, 40)),
            "temperature": lambda: draw.one((0, 0.7, 2)),
            "top_p": lambda: draw.one((0.5, 1)),
            "top_logprobs": lambda: draw.one((0, 20)),
            "truncation": lambda: draw.one(("auto", "disabled")),
            "metadata": lambda: {"a": draw.text()[:300], "é": "x"},
            "include": lambda: draw.one(([], ["message.output_text.logprobs"], ["file"])),
            "reasoning": lambda: {"effort": draw.one(("low", "none", None)), "summary": "auto"},
            "service_tier": lambda: draw.one(("auto", "flex")),
            "prompt_cache_options": lambda: {"prewarm": draw.maybe(0.3)},
            "context_management": lambda: [{"type": "compaction", "compact_threshold": 10**6}],
            "user": draw.text,
            "keepwarm": draw.keepwarm,
            "unknown_field": lambda: [1, {"a": None}],
        },
    )


def _format(draw: _Draw) -> Body:
    schema = {"type": "json_schema", "name": "x", "schema": draw.schema(), "strict": True}
    return dict(draw.one(({"type": "text"}, {"type": "json_object"}, schema)))


def _tool(draw: _Draw) -> Body:
    function = {"type": "function", "name": draw.name("f"), "parameters": draw.schema()}
    function |= draw.fields(
        0.3, {"description": draw.text, "strict": lambda: draw.maybe(0.5), "async": lambda: True}
    )
    custom: Body = {"type": "custom", "name": draw.name("g")}
    if draw.maybe(0.3):
        custom["format"] = {"type": "grammar", "syntax": "regex", "definition": "[a-z]+"}
    inner = {"type": "function", "name": "inner", "parameters": None}
    namespace = {"type": "namespace", "name": draw.name("n"), "description": "d", "tools": [inner]}
    return dict(draw.one((function, function, custom, namespace, {"type": "web_search"})))


def _tool_choice(draw: _Draw) -> Any:
    one = {"type": "function", "name": draw.one(draw.tools)}
    allowed = {"type": "allowed_tools", "mode": "required", "tools": [one]}
    return draw.one(("auto", "none", "required", one, allowed))


def _input(draw: _Draw) -> Any:
    if draw.maybe(0.1):
        return draw.text()
    items = draw.some(0, 4, lambda: _item(draw))
    if draw.maybe(0.4):
        items += _exchange(draw)
    if draw.maybe(0.2):
        items.insert(0, _reasoning(draw))
    return [*items, {"role": "user", "content": draw.text()}] if draw.maybe(0.8) else items


def _item(draw: _Draw) -> Body:
    return draw.one((_message, _message, _reasoning))(draw)  # type: ignore[no-any-return]


def _message(draw: _Draw) -> Body:
    role = draw.one(("user", "assistant", "system", "developer"))
    tag = "output_text" if role == "assistant" else "input_text"
    parts = draw.some(0, 3, lambda: {"type": tag, "text": draw.text()})
    content = draw.one((draw.text(), parts, [{"type": "refusal", "refusal": draw.text()}]))
    return {"type": "message", "role": role, "content": content} | draw.fields(
        0.2,
        {
            "id": lambda: draw.one((*_IDS, None)),
            "status": lambda: draw.one(("completed", "incomplete", None)),
            "phase": lambda: "final_answer",
        },
    )


def _reasoning(draw: _Draw) -> Body:
    texts = draw.some(0, 2, lambda: {"type": "reasoning_text", "text": draw.text()})
    return {"type": "reasoning", "summary": []} | draw.fields(
        0.5,
        {"content": lambda: texts, "encrypted_content": draw.text, "id": lambda: "rs_1"},
    )


def _exchange(draw: _Draw) -> list[Body]:
    """Calls and outputs in any order: some without the other, some twice."""
    calls: list[Body] = []
    for id_ in draw.rng.sample(_IDS, draw.rng.randint(1, 3)):
        function = {"type": "function_call", "name": "f0", "arguments": draw.one(_ARGUMENTS)}
        custom = {"type": "custom_tool_call", "name": "g0", "input": draw.text()}
        calls.append(draw.one((function, function, custom)) | {"call_id": id_})
        calls[-1] |= draw.fields(0.1, {"status": lambda: "incomplete", "namespace": lambda: "n"})
    outputs = []
    for call in calls:
        custom_call = call["type"] == "custom_tool_call"
        kind = "custom_tool_call_output" if custom_call else "function_call_output"
        parts = draw.some(0, 2, lambda: {"type": "input_text", "text": draw.text()})
        output = {
            "type": kind,
            "call_id": call["call_id"],
            "output": draw.one((draw.text(), parts)),
        }
        outputs += [output] * draw.one((0, 1, 1, 1, 1, 1, 2))
    draw.rng.shuffle(outputs)
    return [*calls, *outputs]


# Chat Completions


def _chat(draw: _Draw) -> Body:
    body: Body = {"messages": _chat_messages(draw)}
    if draw.maybe(0.3):
        function = {"name": draw.name("f"), "parameters": draw.schema()}
        body["tools"] = [{"type": "function", "function": function}]
        named = {"type": "function", "function": {"name": function["name"]}}
        body |= draw.fields(0.4, {"tool_choice": lambda: draw.one(("auto", "required", named))})
    schema = {"name": "x", "schema": draw.schema(), "strict": True}
    format_ = draw.one(({"type": "json_object"}, {"type": "json_schema", "json_schema": schema}))
    return body | draw.fields(
        0.12,
        {
            "model": lambda: draw.one(("default", "m")),
            "max_tokens": lambda: draw.one((1, 30)),
            "response_format": lambda: format_,
            "stop": lambda: draw.one(("x", ["x"], None)),
            "seed": lambda: 3,
            "top_k": lambda: 5,
            "temperature": lambda: draw.one((0, 1.5)),
            "logprobs": lambda: True,
            "reasoning_effort": lambda: draw.one(("low", "none")),
            "stream": lambda: False,
            "n": lambda: draw.one((1, 2)),
            "metadata": lambda: {"a": "b"},
            "store": lambda: draw.maybe(0.5),
            "truncation": lambda: "auto",
            "keepwarm": lambda: {k: v for k, v in draw.keepwarm().items() if k != "sampling"},
            "unknown_field": lambda: 1,
        },
    )


def _chat_messages(draw: _Draw) -> list[Body]:
    messages: list[Body] = []
    if draw.maybe(0.2):
        thought = {"role": "assistant", "content": draw.text(), "reasoning_content": draw.text()}
        messages.append(thought)
    for _ in range(draw.rng.randint(0, 3)):
        role = draw.one(("system", "user", "assistant", "developer"))
        parts = draw.some(0, 2, lambda: {"type": "text", "text": draw.text()})
        messages.append({"role": role, "content": draw.one((draw.text(), parts))})
    if draw.maybe(0.3):
        ids = draw.rng.sample(_IDS, draw.rng.randint(1, 3))
        calls = [
            {
                "id": i,
                "type": "function",
                "function": {"name": "f", "arguments": draw.one(_ARGUMENTS)},
            }
            for i in ids
        ]
        messages.append({"role": "assistant", "content": None, "tool_calls": calls})
        draw.rng.shuffle(ids)
        for id_ in ids[: draw.one((1, 3, 3, 3))]:
            messages.append({"role": "tool", "tool_call_id": id_, "content": draw.text()})
    return [*messages, {"role": "user", "content": draw.text()}] if draw.maybe(0.8) else messages


# Messages


def _messages(draw: _Draw) -> Body:
    body: Body = {"messages": _blocks(draw), "max_tokens": draw.one((0, 1, 30))}
    if draw.maybe(0.3):
        tool = {"name": draw.name("f"), "input_schema": draw.schema()}
        body["tools"] = [tool | draw.fields(0.3, {"input_examples": lambda: [{"a": None}]})]
        named = {"type": "tool", "name": tool["name"]}
        choices = ({"type": "auto"}, {"type": "any", "disable_parallel_tool_use": True}, named)
        body |= draw.fields(0.4, {"tool_choice": lambda: draw.one(choices)})
    system = [{"type": "text", "text": draw.text(), "cache_control": {"type": "ephemeral"}}]
    return body | draw.fields(
        0.12,
        {
            "model": lambda: draw.one(("default", "m")),
            "system": lambda: draw.one((draw.text(), system)),
            "stop_sequences": lambda: draw.one((["x"], [])),
            "temperature": lambda: draw.one((0, 1)),
            "top_k": lambda: 5,
            "thinking": lambda: {"type": draw.one(("enabled", "disabled")), "budget_tokens": 9},
            "output_config": lambda: {"effort": "low"},
            "metadata": lambda: {"user_id": draw.text()},
            "service_tier": lambda: "auto",
            "stream": lambda: False,
            "truncation": lambda: "auto",
            "keepwarm": lambda: {k: v for k, v in draw.keepwarm().items() if k != "sampling"},
            "unknown_field": lambda: 1,
        },
    )


def _blocks(draw: _Draw) -> list[Body]:
    said: list[Body] = []
    if draw.maybe(0.2):
        thinking = {"type": "thinking", "thinking": draw.text(), "signature": "s"}
        said.append({"role": "assistant", "content": [thinking, _text_block(draw)]})
    for _ in range(draw.rng.randint(0, 3)):
        content = draw.one((draw.text(), draw.some(0, 3, lambda: _text_block(draw))))
        said.append({"role": draw.one(("user", "assistant", "system")), "content": content})
    if draw.maybe(0.3):
        ids = draw.rng.sample(_IDS, draw.rng.randint(1, 3))
        uses = [
            {
                "type": "tool_use",
                "id": i,
                "name": "f",
                "input": {"a": draw.one(_NUMBERS), "b": None},
            }
            for i in ids
        ]
        said.append({"role": "assistant", "content": uses})
        draw.rng.shuffle(ids)
        results = [
            {"type": "tool_result", "tool_use_id": i, "content": draw.one((draw.text(), []))}
            | draw.fields(0.2, {"is_error": lambda: True})
            for i in ids[: draw.one((1, 3, 3, 3))]
        ]
        said.append({"role": "user", "content": results})
    return [*said, {"role": "user", "content": draw.text()}] if draw.maybe(0.8) else said


def _text_block(draw: _Draw) -> Body:
    return {"type": "text", "text": draw.text()}


# Any of them

_MAKERS = {
    WEBSOCKET: _responses,
    "/v1/responses": _responses,
    "/v1/chat/completions": _chat,
    "/v1/messages": _messages,
}
_EVENTS: tuple[Body, ...] = (
    {"type": "response.cancel"},
    {"type": "response.cancel", "response_id": "resp_1", "stream_id": "a"},
    {"type": "keepwarm:response.resume", "request_id": "q", "after_sequence": 5},
    {"type": "keepwarm:response.resume", "response_id": "resp_1"},
    {"type": "response.steer", "previous_response_id": "resp_1", "input": [10**30, {"a": None}]},
    {"type": "response.processed", "response_id": "resp_1"},
    {"type": "nonsense"},
)


def body(rng: random.Random, api: str) -> Body:
    """What the API's document allows, or nearly; one in fifty is long."""
    draw = _Draw(rng)
    made = _MAKERS[api](draw)
    if draw.maybe(0.02):
        _lengthen(made, draw)
    return {"type": "response.create", **made} if api == WEBSOCKET else made


def _lengthen(made: Body, draw: _Draw) -> None:
    """Hundreds of short messages, or few of which one is longer than any piece."""
    more: list[Body] = [{"role": "user", "content": draw.text()}] * draw.one((1, 300, 1200))
    more.append({"role": "user", "content": "é\n" * draw.one((10, 40_000))})
    name = "messages" if "messages" in made else "input"
    if isinstance(made[name], list):
        made[name] = [*more, *made[name]]


def request(rng: random.Random, api: str) -> bytes:
    """The bytes of a body or frame: of two in five something is wrong, or everything."""
    if api == WEBSOCKET and rng.random() < 0.1:
        made = dict(rng.choice(_EVENTS))
    else:
        made = body(rng, api)
        if api == WEBSOCKET and rng.random() < 0.2:
            made["stream_id"] = rng.choice(["a", "b", "", "no lane"])
    kind = rng.random()
    if kind < 0.3:
        made = mutant(made, rng.randrange)
    data = json.dumps(made, ensure_ascii=rng.random() < 0.5).encode("utf-8", "surrogatepass")
    return damaged(data, rng.randrange) if kind > 0.9 else data
