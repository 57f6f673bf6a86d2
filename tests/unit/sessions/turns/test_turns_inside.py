"""Turns of a model that goes on inside its turn behind outputs, as Gemma 4 does: what it reads and
how its output is read, whoever keeps the conversation."""

from typing import Any

import pytest

from runtime.messages import FinishReason
from tests.support import chat_models
from tests.support.chat_models import spelled
from tests.support.sessions_rig import Rig
from tests.unit.sessions.turns.test_numbered_calls import TOOLS, newly_read, outputs_of
from tests.unit.tools_api.test_quoted_calls import cut

CALLS = "<|tool_call>call:now{}<tool_call|>"
OUTPUTS = 'response:now{value:<|"|>of now<|"|>}<tool_response|>'
PROMPT = "<|turn>model\n<|channel>thought\n<channel|>"
ASKED = "<|turn>user\nAnd now?<turn|>\n"


class Played(Rig):
    """A rig that knows the whole of what the model read last."""

    prompt = ""


def play(rig: Played, output: str, **fields: Any) -> dict[str, Any]:
    client = rig.connect()
    client.create(tools=TOOLS, **fields)
    request = rig.engine.last
    rig.prompt = spelled(rig.model, rig.engine.prompt(request))
    tokens = rig.model.tokenizer.encode(cut(output)).tolist()
    rig.deliver(rig.engine.output(request, tokens, FinishReason.STOP))
    found: dict[str, Any] = client.response
    return found


def rig_of() -> Played:
    return Played(model=chat_models.served("gemma4"))


@pytest.mark.parametrize(
    ("end", "between"),
    [("<|tool_response>", ""), ("<turn|>", "\n<|turn>model\n<|tool_response>")],
)
def test_the_next_output_stands_behind_what_the_model_ended_with(end: str, between: str) -> None:
    """The token that opens an output comes once; a turn that the model closed is opened again."""
    rig = rig_of()
    first = play(rig, CALLS + end, input="When?")
    second = play(rig, CALLS + end, input=outputs_of(first), previous_response_id=first["id"])
    assert newly_read(rig) == between + OUTPUTS
    third = play(rig, "Noon.<turn|>", input=outputs_of(second), previous_response_id=second["id"])
    assert newly_read(rig) == between + OUTPUTS
    assert third["output"][-1]["content"][0]["text"] == "Noon."
    play(rig, "Noon.<turn|>", input="And now?", previous_response_id=third["id"])
    assert newly_read(rig) == f"\n{ASKED}{PROMPT}"


def test_a_history_that_the_client_sends_reads_as_the_chain_does() -> None:
    rig = rig_of()
    history: list[dict[str, Any]] = [{"role": "user", "content": "When?"}]
    first = play(rig, CALLS + "<|tool_response>", input=history)
    history += [*first["output"], *outputs_of(first)]
    play(rig, "Noon.<turn|>", input=history)
    chained = f"<|turn>user\nWhen?<turn|>\n{PROMPT}{CALLS}<|tool_response>{OUTPUTS}"
    assert rig.prompt.endswith(chained)
    fresh = rig_of()
    play(fresh, "Noon.<turn|>", input=history)
    assert fresh.prompt.endswith(chained.replace("<|channel>thought\n<channel|>", ""))


def test_a_message_behind_outputs_closes_the_turn() -> None:
    rig = rig_of()
    first = play(rig, CALLS + "<|tool_response>", input="When?")
    more = [*outputs_of(first), {"role": "user", "content": "And now?"}]
    play(rig, "Noon.<turn|>", input=more, previous_response_id=first["id"])
    assert newly_read(rig) == f"{OUTPUTS}<turn|>\n{ASKED}{PROMPT}"


def test_outputs_that_are_read_ahead_leave_the_turn_open() -> None:
    """A warm-up ends inside the model's turn, which then goes on."""
    rig = rig_of()
    first = play(rig, CALLS + "<|tool_response>", input="When?")
    client = rig.connect()
    chained = {"input": outputs_of(first), "previous_response_id": first["id"]}
    client.create(tools=TOOLS, generate=False, **chained)
    rig.deliver(rig.engine.output(rig.engine.last, [], FinishReason.PREFILLED))
    warm = client.response
    play(rig, "Noon.<turn|>", input=[], previous_response_id=warm["id"])
    assert rig.prompt.endswith(f"{CALLS}<|tool_response>{OUTPUTS}")
    play(rig, "Noon.<turn|>", input="And now?", previous_response_id=warm["id"])
    assert rig.prompt.endswith(f"{OUTPUTS}<turn|>\n{ASKED}{PROMPT}")


@pytest.mark.parametrize("choice", ["auto", "required"])
def test_behind_outputs_the_prompt_opens_the_thought_that_is_read(choice: str) -> None:
    rig, how = rig_of(), {"reasoning": {"effort": "high"}, "tool_choice": choice}
    thought = "<|channel>thought\nHm.\n<channel|>"
    first = play(rig, f"{thought}{CALLS}<|tool_response>", input="When?", **how)
    assert [item["type"] for item in first["output"]] == ["reasoning", "function_call"]
    assert rig.prompt.endswith("When?<turn|>\n<|turn>model\n")
    assert rig.engine.last.grammar is not None
    assert not rig.engine.last.grammar.begins_in_reasoning
    chained = {"input": outputs_of(first), "previous_response_id": first["id"]}
    second = play(rig, f"So.\n<channel|>{CALLS}<|tool_response>", **chained, **how)
    assert newly_read(rig) == f"{OUTPUTS}<|channel>thought\n"
    assert rig.engine.last.grammar.begins_in_reasoning
    assert rig.engine.last.grammar.reasons_first
    reasoning, call = second["output"]
    assert reasoning["content"][0]["text"] == "So."
    assert call["name"] == "now"
    spent = second["usage"]["output_tokens_details"]["reasoning_tokens"]
    assert spent == len("So.\n") + 1
