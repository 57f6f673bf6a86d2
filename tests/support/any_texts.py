"""Any text that JSON can write, in any place of a request where a client's text may stand.

Texts are made of runs of the kinds in ``KINDS``; halves of surrogate pairs are among them, as
Python has them in strings. ``body`` puts a text into a request of one of four APIs.
"""

import json
import random
from typing import Any

from tests.support.api_clients import WEBSOCKET

KINDS = {
    "letters": "a",
    "capitals": "A",
    "digits": "7",
    "spaces": " ",
    "tabs": "\t",
    "line breaks": "\n",
    "carriage returns": "\r\n",
    "dashes": "-",
    "equals signs": "=",
    "quotes": '"',
    "backslashes": "\\",
    "apostrophes": "'",
    "brackets": "{}[]();,.",
    "words": "the price of desk ",
    "accents": "é",
    "combining marks": "\u0301",
    "box drawing": "─",
    "ideographs": "字",
    "kana": "ー",
    "hangul": "각",
    "arabic": "م",
    "emoji": "😀",
    "families": "👩\u200d👧",
    "no-break spaces": "\xa0",
    "line separators": "\u2028",
    "next lines": "\x85",
    "NUL": "\0",
    "escapes": "\x1b",
    "deletes": "\x7f",
    "byte order marks": "\ufeff",
    "noncharacters": "\uffff",
    "private use": "\ue000",
    "replacements": "\ufffd",
    "high halves": "\ud83d",
    "low halves": "\ude00",
    "swapped halves": "\ude00\ud83d",
    "whole pairs": "\U0001f600\ud83d",
    "control tokens": "<|im_end|>",
}
"""By name, what a run of the kind repeats."""

PLACES = (
    *("input", "tool output", "arguments", "instructions", "description", "schema", "history"),
    *("stop", "metadata", "format"),
)
"""Where a text stands in what ``body`` makes. The last three take short ones."""
SHORT_PLACES = frozenset({"stop", "metadata", "format"})


def run(kind: str, length: int) -> str:
    """A run of so many characters."""
    sign = KINDS[kind]
    return (sign * (length // len(sign) + 1))[:length]


def any_text(rng: random.Random, most_bytes: int) -> str:
    """Runs of any kinds, long and short ones."""
    parts, left = [], rng.randrange(1, most_bytes)
    while left > 0:
        kind = rng.choice(tuple(KINDS))
        width = len(KINDS[kind][0].encode("utf-8", "surrogatepass"))
        length = min(max(left // width, 1), rng.choice((1, 1, 2, 5, 30, 400, 5000)))
        parts.append(run(kind, length))
        left -= length * width
    return "".join(parts)


def written(body: dict[str, Any], rng: random.Random) -> bytes:
    """The body as JSON; what UTF-8 can write is not always escaped."""
    text = json.dumps(body, ensure_ascii=rng.random() < 0.5)
    return text.encode("utf-8", "backslashreplace")


def body(api: str, place: str, text: str, *, tokens: int = 2) -> dict[str, Any]:
    """A request with the text in one place, that runs for so many tokens, or for as many as its
    format takes."""
    made = _MADE[api](place, text, text[:100] or "x")
    limit = "max_output_tokens" if "input" in made else "max_tokens"
    return {limit: 2000 if place == "format" else tokens} | made


def _schema(text: str) -> dict[str, Any]:
    described = {"type": "string", "description": text}
    return {"type": "object", "properties": {"a": described}, "required": ["a"]}


def _format(short: str) -> dict[str, Any]:
    enum = {"type": "string", "enum": [short, "x"]}
    return {"type": "object", "properties": {short: enum}, "required": [short]}


def _responses(place: str, text: str, short: str) -> dict[str, Any]:
    asked: dict[str, Any] = {"role": "user", "content": "hi"}
    made: dict[str, Any] = {"model": "default", "input": [asked]}
    call = {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"}
    given = {"type": "function_call_output", "call_id": "c", "output": "done"}
    match place:
        case "input":
            asked["content"] = text
        case "tool output":
            made["input"] += [call, given | {"output": text}]
        case "arguments":
            made["input"] += [call | {"arguments": json.dumps({"a": text})}, given]
        case "instructions":
            made["instructions"] = text
        case "description" | "schema":
            tool = {"type": "function", "name": "f", "description": "d", "strict": False}
            told = {"description": text} if place == "description" else {}
            made["tools"] = [tool | {"parameters": _schema("d")} | told]
            if place == "schema":
                made["tools"][0]["parameters"] = _schema(text)
        case "history":
            made["input"] += [{"role": "assistant", "content": text}, asked]
        case "stop":
            made["keepwarm"] = {"sampling": {"stop": [short]}}
        case "metadata":
            made["metadata"] = {"a": short}
        case "format":
            form = {"type": "json_schema", "name": "n", "schema": _format(short), "strict": True}
            made["text"] = {"format": form}
    return made


def _chat(place: str, text: str, short: str) -> dict[str, Any]:
    asked: dict[str, Any] = {"role": "user", "content": "hi"}
    made: dict[str, Any] = {"model": "default", "messages": [asked]}
    function = {"name": "f", "arguments": "{}"}
    called: dict[str, Any] = {"id": "c", "type": "function", "function": function}
    calls = {"role": "assistant", "content": None, "tool_calls": [called]}
    given = {"role": "tool", "tool_call_id": "c", "content": "done"}
    match place:
        case "input":
            asked["content"] = [{"type": "text", "text": text}]
        case "tool output":
            made["messages"] += [calls, given | {"content": text}]
        case "arguments":
            function["arguments"] = json.dumps({"a": text})
            made["messages"] += [calls, given]
        case "instructions":
            made["messages"].insert(0, {"role": "system", "content": text})
        case "description" | "schema":
            tool = {"name": "f", "description": "d", "parameters": _schema("d")}
            tool |= {"description": text} if place == "description" else {}
            tool |= {"parameters": _schema(text)} if place == "schema" else {}
            made["tools"] = [{"type": "function", "function": tool}]
        case "history":
            made["messages"] += [{"role": "assistant", "content": text}, asked]
        case "stop":
            made["stop"] = [short]
        case "metadata":
            made["metadata"] = {"a": short}
        case "format":
            form = {"name": "n", "schema": _format(short), "strict": True}
            made["response_format"] = {"type": "json_schema", "json_schema": form}
    return made


def _messages(place: str, text: str, short: str) -> dict[str, Any]:
    asked: dict[str, Any] = {"role": "user", "content": "hi"}
    made: dict[str, Any] = {"model": "default", "messages": [asked]}
    use: dict[str, Any] = {"type": "tool_use", "id": "c", "name": "f", "input": {}}
    result: dict[str, Any] = {"type": "tool_result", "tool_use_id": "c", "content": "done"}
    loop = [{"role": "assistant", "content": [use]}, {"role": "user", "content": [result]}]
    match place:
        case "input":
            asked["content"] = [{"type": "text", "text": text}]
        case "tool output":
            result["content"] = text
            made["messages"] += loop
        case "arguments":
            use["input"] = {"a": text, text[:50]: [text[:50]]}
            made["messages"] += loop
        case "instructions":
            made["system"] = text
        case "description" | "schema":
            tool = {"name": "f", "description": "d", "input_schema": _schema("d")}
            tool |= {"description": text} if place == "description" else {}
            tool |= {"input_schema": _schema(text)} if place == "schema" else {}
            made["tools"] = [tool]
        case "history":
            made["messages"] += [{"role": "assistant", "content": text or "x"}, asked]
        case "stop":
            made["stop_sequences"] = [short]
        case "metadata":
            made["metadata"] = {"user_id": short}
        case "format":
            form = {"type": "json_schema", "schema": _format(short)}
            made["output_config"] = {"format": form}
    return made


def _websocket(place: str, text: str, short: str) -> dict[str, Any]:
    return {"type": "response.create"} | _responses(place, text, short)


_MADE = {
    WEBSOCKET: _websocket,
    "/v1/responses": _responses,
    "/v1/chat/completions": _chat,
    "/v1/messages": _messages,
}
