"""What ``truncation: auto`` leaves of a context."""

import re
from typing import Any

import pytest

from tests.support.sessions_rig import END, Client, Rig, call, spelled, tool

G = tool("g")
G_CALL = '<tool_call>\n{"name": "g", "arguments": {}}\n</tool_call>'
CUT = re.compile(r"\[\.\.\. (\d+) characters left out \.\.\.\]")


def context(rig: Rig) -> str:
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
    text = context(rig)
    assert "yyy" not in text
    assert G_CALL in text
    assert text.count("<tool_response>\n<<") == 1
    assert not CUT.findall(text), "it fits whole"


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
    assert "question 0" not in text
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
