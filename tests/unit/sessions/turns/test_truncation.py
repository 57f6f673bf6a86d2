"""What ``truncation: auto`` leaves of a context."""

import re
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from sessions.durable.shortened import is_shortened
from sessions.durable.transcript import (
    NOTHING,
    Entry,
    Header,
    Tail,
    chain,
    check_calls,
    normalised,
)
from sessions.turns.service import ServedModel
from sessions.turns.shortening import Room
from sessions.turns.truncation import Context, truncations
from tests.support.sessions_rig import END, Client, Rig, call, spelled, tool
from tools_api.chat_format import TemplateOptions
from tools_api.item_reading import parse_items
from tools_api.items import FunctionCall, Item, Reasoning

G = tool("g")
G_CALL = '<tool_call>\n{"name": "g", "arguments": {}}\n</tool_call>'
CUT = re.compile(r"\[\.\.\. (\d+) characters left out \.\.\.\]")


def context(rig: Rig, *, done: bool = False) -> str:
    """What the model reads; ``done``: and what it said."""
    if done:
        return spelled(rig.engine.sessions[rig.engine.last.branch_id])
    return spelled(rig.engine.prompt(rig.engine.last))


def result(call_id: str, output: str) -> dict[str, Any]:
    return {"type": "function_call_output", "call_id": call_id, "output": output}


def said(role: str, text: str) -> dict[str, Any]:
    return {"role": role, "content": text}


def marked(length: int) -> str:
    """A text whose two ends can be told."""
    return "<<" + "x" * (length - 4) + ">>"


def connect(max_context_tokens: int) -> tuple[Rig, Client]:
    rig = Rig(max_context_tokens=max_context_tokens)
    return rig, rig.connect()


def test_a_result_of_fifty_kilobytes_does_not_strand_a_session() -> None:
    rig, client = connect(2000)
    first = client.turn(call("g") + END, input="what is it?", tools=[G])
    call_id = first["output"][0]["call_id"]
    chain: dict[str, Any] = {"previous_response_id": first["id"], "tools": [G]}
    (refused,) = client.create(input=[result(call_id, marked(50_000))], **chain)
    assert refused["error"]["code"] == "context_length_exceeded"
    assert "truncation" in refused["error"]["message"]
    answered = client.turn(
        "big" + END, input=[result(call_id, marked(50_000))], truncation="auto", **chain
    )
    assert answered["status"] == "completed"
    text = spelled(rig.engine.sessions[rig.engine.last.branch_id])
    assert "what is it?" in text
    assert text.count(G_CALL) == text.count("<tool_response>\n<<") == 1
    assert ">>\n</tool_response>" in text
    (cut,) = CUT.findall(text)
    assert 48_000 < int(cut) < 50_000
    assert answered["usage"]["input_tokens"] <= 1500
    (warning,) = answered["keepwarm"]["warnings"]
    assert warning.startswith("truncation: a function_call_output of 50000 characters was cut")
    third = client.turn(input="go on", previous_response_id=answered["id"], tools=[G])
    assert third["status"] == "completed"
    assert third["keepwarm"]["kv"]["cached"] > 900, "what was cut stays cut"


def test_the_whole_chain_is_continued_in_place_if_only_the_item_is_too_long() -> None:
    rig, client = connect(2000)
    first = client.turn(call("g") + END, input="what is it?", tools=[G])
    call_id = first["output"][0]["call_id"]
    client.create(
        input=[result(call_id, marked(9_000))],
        previous_response_id=first["id"],
        tools=[G],
        truncation="auto",
    )
    assert rig.engine.last.base_branch_id == "branch_1"
    assert rig.engine.last.base_offset > 0


@pytest.mark.parametrize("length", [5_000, 500_000, 5_000_000])
def test_one_message_is_cut_to_what_fits(length: int) -> None:
    rig, client = connect(1000)
    client.create(input=marked(length), truncation="auto")
    text = context(rig)
    assert text.startswith("<|im_start|>user\n<<x")
    assert "x>><|im_end|>" in text
    assert 500 < len(rig.engine.prompt(rig.engine.last)) <= 775


def test_several_results_share_the_room_and_short_ones_stay_whole() -> None:
    rig, client = connect(2000)
    calls = "\n".join([call("g")] * 3)
    first = client.turn(calls + END, input="hi", tools=[G])
    ids = [item["call_id"] for item in first["output"]]
    client.create(
        input=[
            result(ids[0], marked(40_000)),
            result(ids[1], "short"),
            result(ids[2], marked(9_000)),
        ],
        previous_response_id=first["id"],
        tools=[G],
        truncation="auto",
    )
    text = context(rig)
    assert "<tool_response>\nshort\n</tool_response>" in text
    assert len(CUT.findall(text)) == 2
    assert text.count("<tool_response>\n<<") == 2


def test_a_call_of_a_dropped_turn_stays_with_its_output() -> None:
    rig, client = connect(2000)
    first = client.turn(call("g") + END, input="y" * 900, tools=[G])
    call_id = first["output"][0]["call_id"]
    client.create(
        input=[result(call_id, marked(600))],
        previous_response_id=first["id"],
        tools=[G],
        truncation="auto",
    )
    task, rest = context(rig).split("<|im_end|>\n<|im_start|>assistant", 1)
    assert len(CUT.findall(task)) == 1, "the first message is more than a quarter"
    assert G_CALL in rest
    assert rest.count("<tool_response>\n<<") == 1
    assert not CUT.findall(rest), "it fits whole"


def test_of_a_resent_history_calls_and_outputs_go_together() -> None:
    rig, client = connect(900)
    history: list[dict[str, Any]] = []
    for n in range(8):
        history.append(said("user", f"question {n} " + "." * 40))
        item = {"type": "function_call", "call_id": f"c{n}", "name": "g", "arguments": "{}"}
        history += [item, result(f"c{n}", f"answer {n}")]
    client.create(input=history, tools=[G], truncation="auto")
    text = context(rig)
    assert "question 7" in text
    assert "question 0" in text, "it is the task"
    assert "question 1" not in text
    kept = [n for n in range(8) if f"answer {n}" in text]
    assert text.count('{"name": "g", "arguments": {}}') == len(kept)
    assert kept == list(range(kept[0], 8))


def test_a_custom_tools_output_is_cut_as_well() -> None:
    rig, client = connect(1000)
    items = [
        said("user", "go"),
        {"type": "custom_tool_call", "call_id": "c", "name": "run", "input": "ls"},
        {"type": "custom_tool_call_output", "call_id": "c", "output": marked(9_000)},
    ]
    client.create(input=items, tools=[{"type": "custom", "name": "run"}], truncation="auto")
    text = context(rig)
    assert len(CUT.findall(text)) == 1
    assert '{"name": "run", "arguments": {"input": "ls"}}' in text


def test_what_cannot_be_cut_is_refused_without_advising_truncation() -> None:
    _, client = connect(300)
    (error,) = client.create(input="hi", instructions="z" * 400, truncation="auto")
    assert error["error"]["code"] == "context_length_exceeded"
    assert "set truncation" not in error["error"]["message"]


def test_a_late_output_of_a_call_that_was_left_out_is_left_out_too() -> None:
    rig, client = connect(1500)
    fields: dict[str, Any] = {"tools": [G], "truncation": "auto"}
    response = client.turn(call("g") + END, input="first", **fields)
    late = result(response["output"][0]["call_id"], "it came late")
    new: list[dict[str, Any]] = [result(late["call_id"], "none yet")]
    for _ in range(8):
        fields["previous_response_id"] = response["id"]
        response = client.turn("go on " * 10 + END, input=new, **fields)
        new = [said("user", "and then?" + "." * 60)]
    assert "none yet" not in context(rig, done=True), "nothing was left out"
    fields["previous_response_id"] = response["id"]
    response = client.turn(input=[late, said("user", "so?")], **fields)
    assert "it came late" not in context(rig, done=True)
    assert "so?" in context(rig, done=True)
    (warning,) = response["keepwarm"]["warnings"]
    assert warning == f"truncation: left out the output of '{late['call_id']}', like its call"
    (error,) = client.create(input=[late | {"call_id": "x"}])
    assert error["error"]["code"] == "invalid_value", "there never was such a call"


def test_a_call_that_awaits_its_output_stays_over_a_cut() -> None:
    rig, client = connect(1500)
    fields: dict[str, Any] = {"tools": [G], "truncation": "auto"}
    response = client.turn(call("g") + END, input="first", **fields)
    awaited = response["output"][0]["call_id"]
    for number in range(14):
        fields["previous_response_id"] = response["id"]
        new = [said("user", f"meanwhile {number}" + "." * 60)]
        response = client.turn("", input=new, generate=False, **fields)
    assert "meanwhile 0" not in context(rig, done=True), "nothing was left out"
    fields["previous_response_id"] = response["id"]
    client.create(input=[result(awaited, "at last")], **fields)
    text = context(rig)
    assert text.index(G_CALL) < text.index("at last")
    assert "first<|im_end|>" in text


# Which items stay, as tables


def spelt(history: str) -> list[dict[str, Any]]:
    """Items by a letter each: user, assistant, system, reasoning, call, output. Behind it the
    number of a call, and behind a colon how long the text is."""
    items: list[dict[str, Any]] = []
    for number, word in enumerate(history.split()):
        kind, _, length = word.partition(":")
        text = f"<{kind}{number}>".ljust(int(length or 40), ".")
        letter, call_id = kind[0], f"call_{kind[1:]}"
        roles = {"u": "user", "a": "assistant", "s": "system"}
        if letter in roles:
            items.append(said(roles[letter], text))
        elif letter == "r":
            part = {"type": "reasoning_text", "text": text}
            items.append({"type": "reasoning", "summary": [], "content": [part]})
        elif letter == "c":
            called = {"call_id": call_id, "name": "g", "arguments": f'{{"{kind}": {number}}}'}
            items.append({"type": "function_call", **called})
        else:
            items.append(result(call_id, text))
    return items


def kept_of(history: str, items: Sequence[Item]) -> str:
    """Which words of ``history`` are among ``items``; those whose text was cut with a sign."""
    whole = parse_items(spelt(history))
    words = []
    for word, item in zip(history.split(), whole, strict=True):
        for other in items:
            if item == other:
                words.append(word.partition(":")[0])
                break
            if type(item) is type(other) and not isinstance(item, FunctionCall | Reasoning):
                ours, theirs = normalised(item), normalised(other)
                assert ours is not None
                assert theirs is not None
                if ours[:-1] == theirs[:-1] and is_shortened(theirs[-1], ours[-1]):
                    words.append(word.partition(":")[0] + "~")
                    break
    return " ".join(words)


OPTIONS = TemplateOptions()


def a_context(parent: Entry | None, items: tuple[Item, ...], model: ServedModel) -> Context:
    header = Header(
        instructions=None, opening=None, tools=(), options=OPTIONS, ids=np.empty(0, dtype=np.int32)
    )
    return Context(
        parent=parent,
        items=items,
        header=header if parent is None else parent.header,
        open_calls=check_calls(parent, items, complete=False),
        digest=b"",
        left_out=NOTHING if parent is None else parent.left_out,
    )


def room_of(tokens: int) -> Room:
    return Room(max_tokens=tokens, longest_token_bytes=1, reply_tokens=tokens // 8)


def taken(context: Context, room: Room, model: ServedModel) -> Context:
    """The first that fits, counted as ``planning`` does."""
    if tokens_of(context, model) + room.reply_tokens <= room.max_tokens:
        return context
    for shorter in truncations(context, model.renderer, OPTIONS, room):
        if tokens_of(shorter, model) <= room.left_by_cut(0):
            break
    return shorter


def tokens_of(context: Context, model: ServedModel) -> int:
    tail = Tail.START if context.parent is None else context.parent.tail
    ids, _ = model.renderer.input(context.items, tail, generate=True, options=OPTIONS)
    return len(ids) + (0 if context.parent is None else context.parent.num_tokens)


def items_of(context: Context) -> list[Item]:
    links = reversed(list(chain(context.parent)))
    held = [item for link in links for item in (*link.input_items, *link.output_items)]
    return [*held, *context.items]


@pytest.fixture(scope="module")
def model() -> ServedModel:
    return Rig().model


@pytest.mark.parametrize(
    ("history", "kept"),
    [
        # The oldest goes, the first message of the user stays.
        ("u a u a u a u a u a", "u u a u a"),
        ("a u a u a u a u a u", "u u a u a u"),
        ("s u a u a u a u a u", "s u u a u a u"),
        ("s u u s a u a u a u a u", "u u s u a u"),
        # Calls and their outputs go together, whichever turn the output is in.
        ("u c1 o1 c2 o2 c3 o3 c4 o4 c5 o5", "u c4 o4 c5 o5"),
        ("u c1 c2 o1 o2 c3 c4 o3 o4 c5 c6 o5 o6", "u c5 c6 o5 o6"),
        ("u c1 c2 o2 o1 u c3 c4 o4 o3 u c5 c6 o6 o5", "u u c5 c6 o6 o5"),
        ("u r c1 o1 r c2 o2 r c3 o3 r c4 o4", "u r c3 o3 r c4 o4"),
        ("u c1 o1 c2 o2 c3 o3 c4 o4 c5 o5 o1", "u c1 c4 o4 c5 o5 o1"),
        # What the history ends with stays, with the calls it answers.
        ("u a:500 c1 c2 o1 o2", "u c1 c2 o1 o2"),
        ("u a:200 c1 a:300 o1", "u c1 o1"),
        ("u a u a u a:400 c1", "u a~ c1"),
        # What awaits its output stays.
        ("u c1 a:300 u:60 a:60 u:60", "u c1 u a u"),
        # What is too long is cut in the middle: a first message above a quarter, what a turn
        # ends with above a half, whether the turn is the newest or not.
        ("u:900 a u", "u~ a u"),
        ("u:140 a u:60 a u:60 a u:60", "u~ u a u"),
        ("u c1 o1:900", "u c1 o1~"),
        ("u c1 o1:900 a:9 u:9", "u u"),
        ("u c1 c2 o1:900 o2", "u c1 c2 o1~ o2"),
        ("u a u:900 u", "u a u~ u"),
        ("u:900", "u~"),
        ("u:900 u", "u~ u"),
        ("u:200 s:300 a u a u", "u~ s~ u"),
        ("", ""),
    ],
)
def test_what_has_to_stay_stays_and_the_oldest_goes(
    history: str, kept: str, model: ServedModel
) -> None:
    context = a_context(None, parse_items(spelt(history)), model)
    assert kept_of(history, taken(context, room_of(500), model).items) == kept
