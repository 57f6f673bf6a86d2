"""Turns of a model that knows its calls by numbers, as Kimi does: it reads above an output the
number that it wrote, whoever keeps the conversation."""

from typing import Any

import pytest

from runtime.messages import FinishReason
from tests.support import chat_models
from tests.support.chat_models import spelled, written
from tests.support.sessions_rig import Rig
from tools_api.items import FunctionCall

TOOLS = [
    {"type": "function", "name": name, "parameters": {"type": "object", "properties": {}}}
    for name in ("now", "here")
]


def play(rig: Rig, *calls: FunctionCall, **fields: Any) -> dict[str, Any]:
    client = rig.connect()
    client.create(tools=TOOLS, **fields)
    request = rig.engine.last
    tokens = written(rig.model, "" if calls else "Done.", calls)
    rig.deliver(rig.engine.output(request, tokens, FinishReason.STOP))
    return client.response


def newly_read(rig: Rig) -> str:
    """What the model read last that it had not read before."""
    return spelled(rig.model, rig.engine.last.new_tokens.tolist())


def outputs_of(response: dict[str, Any]) -> list[dict[str, Any]]:
    return [
        {"type": "function_call_output", "call_id": item["call_id"], "output": f"of {item['name']}"}
        for item in response["output"]
        if item["type"] == "function_call"
    ]


@pytest.mark.parametrize("stateful", [True, False])
def test_an_output_stands_under_the_number_of_its_call(stateful: bool) -> None:
    """In a chain, and where the client sends the whole conversation, and where a later turn's
    numbers begin anew."""
    rig = Rig(model=chat_models.served("kimi-k2"))
    history: list[dict[str, Any]] = [{"role": "user", "content": "When and where?"}]
    calls = [
        FunctionCall(call_id=f"x_{n}", name=name, arguments="{}")
        for n, name in ((3, "now"), (4, "here"))
    ]
    last = play(rig, *calls, input=history)
    expected = [("now", 3), ("here", 4)]
    for number in (0, 5):
        given = outputs_of(last)
        history += [*last["output"], *given]
        call = FunctionCall(call_id=f"x_{number}", name="now", arguments="{}")
        chained = {"input": given, "previous_response_id": last["id"]}
        last = play(rig, call, **(chained if stateful else {"input": history}))
        text = newly_read(rig)
        for name, of in expected:
            opening = f"<|im_system|>{name}<|im_middle|>"
            assert f"{opening}## Return of functions.{name}:{of}\nof {name}<|im_end|>" in text
        expected = [("now", number)]
