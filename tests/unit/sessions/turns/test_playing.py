"""A turn while the engine says something: what comes too late, and what breaks."""

import pytest

from runtime.messages import FinishReason
from sessions.turns.turn import Turn
from tests.support.recast_loops import connect
from tests.support.sessions_rig import END, token_ids


def test_outputs_of_a_turn_that_was_cancelled_are_of_no_interest() -> None:
    rig, client = connect()
    client.create(input="x")
    rig.emit("some")
    late = rig.engine.output(rig.engine.last, token_ids("more" + END), FinishReason.STOP)
    client.send(type="response.cancel")
    assert client.last["type"] == "response.incomplete"
    assert rig.deliver(late) == []
    assert client.connection.num_active == 0


def test_an_output_that_cannot_be_taken_fails_its_turn_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def broken(*_: object) -> None:
        raise KeyError("secret")

    rig, client = connect()
    client.create(input="x")
    with monkeypatch.context() as patch:
        patch.setattr(Turn, "receive", broken)
        rig.reply("some" + END)
    assert client.last["type"] == "response.failed"
    assert "secret" not in client.last["response"]["error"]["message"]
    assert client.turn(input="again")["status"] == "completed"
