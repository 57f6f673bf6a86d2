"""Where an output may end: never inside a call, in each syntax that calls are written in."""

from collections.abc import Callable

import pytest

from runtime.messages import SequenceOutput
from sessions.turns.boundaries import is_boundary, read_to_boundary
from sessions.turns.output_reader import OutputReader
from sessions.turns.response_events import ResponseEvents
from tests.support.sessions_rig import TOKENIZER, Rig, call, token_ids
from tools_api.call_parser import CallParser
from tools_api.chat_chatml import ChatML
from tools_api.chat_format import ChatFormat, Segment
from tools_api.chat_harmony import Harmony
from tools_api.chat_mistral import Mistral
from tools_api.limits import DEFAULT_LIMITS
from tools_api.request_reading import parse_create
from tools_api.responses import ResponseObject

TOOL = {"type": "function", "name": "f", "parameters": {"type": "object"}}


def parts() -> tuple[OutputReader, ResponseEvents]:
    request = parse_create({"input": "hi", "tools": [TOOL]}, None, DEFAULT_LIMITS)
    reader = OutputReader(
        tokenizer=TOKENIZER,
        chat_format=Rig().model.chat_format,
        thinking=True,
        calls=True,
        stops=(),
        tools=request.tools,
    )
    response = ResponseObject(
        id="resp_1", request=request, model="m", created_at=0, previous_response_id=None
    )
    return reader, ResponseEvents(response, stream_id=None, new_id=lambda prefix: prefix)


def output(text: str) -> SequenceOutput:
    return SequenceOutput(request_id="r", new_tokens=token_ids(text))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("how", "said", "text", "kept"),
    [
        ("item", "", "<think>hm</think>\n\nYes", "<think>hm</think>"),
        ("item", "<think>h", "m</think>\n\nYes", "m</think>"),
        ("item", "<think>hm</think>\n", "\nYes", ""),
        ("item", "I look ", "there. " + call("f"), "there. "),
        ("item", "", call("f") + "\n" + call("f"), call("f")),
        ("item", "", call("f")[:-12], None),
        ("item", "", "Yes, and", None),
        ("now", "", "Yes", ""),
        ("now", "<think>h", "m", ""),
        ("now", "<tool_call>", call("f")[11:] + "\nmore", call("f")[11:]),
        ("now", call("f")[:-12], "\n</tool_call>", "\n</tool_call>"),
        ("now", "<tool_call>", '\n{"name"', None),
    ],
)
def test_tokens_are_read_up_to_the_boundary(
    how: str, said: str, text: str, kept: str | None
) -> None:
    reader, events = parts()
    events.write(reader.read(token_ids(said)))
    whole = output(text)
    read, _ = read_to_boundary(how, whole, reader, events, stopped=False)  # type: ignore[arg-type]
    assert (read is whole) == (kept is None)
    assert list(read.new_tokens) == token_ids(text if kept is None else kept)
    assert reader.tokens == token_ids(said) + list(read.new_tokens)
    assert is_boundary(how, reader, events) or kept is None or how == "item"  # type: ignore[arg-type]


MADE: dict[str, Callable[[Callable[[str], bool]], ChatFormat]] = {
    "chatml": lambda has: ChatML(has, None),
    "mistral": Mistral,
    "harmony": Harmony,
}
WRITTEN = [
    (
        "chatml",
        ["Text ", "<tool_call>", '\n{"name": "f", "argu', 'ments": {}}', "\n", "</tool_call>"],
    ),
    ("mistral", ["[TOOL_CALLS]", '[{"name": "f", "arg', 'uments": {}}', "]"]),
    (
        "harmony",
        [
            *("<|channel|>", "final", "<|message|>", "Text", "<|end|>", "<|start|>", "assistant"),
            *("<|channel|>", "commentary to=functions.f", "<|message|>", "{}", "<|call|>"),
        ],
    ),
]


@pytest.mark.parametrize(("family", "pieces"), WRITTEN, ids=[family for family, _ in WRITTEN])
def test_what_was_read_of_a_call_is_inside_it_up_to_its_end(family: str, pieces: list[str]) -> None:
    parser = CallParser(MADE[family](lambda _: True), False)
    inside: list[bool] = []
    kinds: list[str] = []
    for piece in pieces:
        special = piece[:2] in ("<|", "<t", "</", "[T")
        inside.append(parser.inside_call)
        kinds += [type(e).__name__ for e in parser.push([Segment(piece, special=special)])]
        open_call = kinds.count("ParsedCallStart") > kinds.count("CallDone")
        assert parser.inside_call or not open_call
    assert kinds.count("ParsedCallStart") == 1
    assert inside[-1], "what closes it is part of it"
    assert not inside[0]
    assert parser.opens(pieces[0] if family != "chatml" else "<tool_call>")
    parser.finish()
    assert not parser.inside_call
