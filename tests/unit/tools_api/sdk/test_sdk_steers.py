"""What is said to a turn that runs: a client's turn against a server's inside, to the item."""

import random
from typing import Any

import pytest

from runtime.messages import FinishReason
from tests.support.sessions_rig import END, Client, Event, Rig, call, spelled, token_ids, tool
from tools_api.items import Call, Message
from tools_api.sdk.answers import Response, StreamEvent, TextDelta, TurnSteered
from tools_api.sdk.chain import Chain
from tools_api.sdk.failures import ConnectionLost, TurnFailed
from tools_api.sdk.options import TurnOptions, wire_items
from tools_api.sdk.turn import Turn

TOOLS: Any = [tool("look")]


class Played:
    """A client's chain over a connection of a server without sockets."""

    def __init__(self, **defaults: Any) -> None:
        self.rig = Rig(max_context_tokens=1_000_000)
        self.client: Client = self.rig.connect()
        self.chain = Chain(defaults=TurnOptions(tools=TOOLS, **defaults))
        self.events: list[StreamEvent] = []
        self.turn: Turn | None = None
        self.runs = False
        """The server writes a response."""
        self.late: list[str] | None = None
        """Frames on their way to the server, where they take a while."""

    def begin(self, input: Any) -> Turn:
        self.turn = Turn(self.chain, input, {})
        self.send(self.turn)
        return self.turn

    def send(self, turn: Turn) -> None:
        """As a socket would, in a lane."""
        turn.steers.post = self.post
        self.read(self.client.send_raw(turn.frame("lane-0", self.client)))

    def post(self, frame: str) -> None:
        if self.late is None:
            self.read(self.client.send_raw(frame))
        else:
            self.late.append(frame)

    def arrive(self) -> None:
        late, self.late = self.late or [], []
        for frame in late:
            self.read(self.client.send_raw(frame))

    def read(self, events: list[Event]) -> None:
        assert self.turn is not None
        for event in events:
            if event["type"].startswith("response.") and "response" in event:
                self.runs = event["response"]["status"] == "in_progress"
            if not self.turn.over:
                self.events += self.turn.receive(event)

    def emit(self, text: str) -> None:
        finish = FinishReason.STOP if text.endswith(END) else None
        self.read(self.rig.emit(text, finish))

    def steer(self, text: str) -> None:
        assert self.turn is not None
        self.turn.steer(wire_items(text))

    @property
    def response(self) -> Response:
        last = self.events[-1]
        assert isinstance(last, Response)
        return last

    def said(self) -> list[str]:
        """Messages of the user in the chain's history, as the client has it."""
        return [i["content"] for i in self.chain.history if i.get("role") == "user"]

    def read_by_server(self) -> list[str]:
        """The same as the server has them."""
        stored = self.rig.store.tenant("acme").responses.get(self.chain.head or "")
        assert stored is not None
        found: list[str] = []
        entry: Any = stored.entry
        while entry is not None:
            own = [i.text for i in entry.input_items if isinstance(i, Message)]
            found = [*own, *found]
            entry = entry.parent
        return found


def test_the_turn_goes_on_with_the_response_that_has_heard_it() -> None:
    played = Played(keepwarm={"steer": "now"})
    turn = played.begin("hi")
    played.emit("One two")
    played.steer("faster")
    steered = [event for event in played.events if isinstance(event, TurnSteered)]
    assert [event.response.text for event in steered] == ["One two"]
    assert not turn.over
    played.emit("Sure." + END)
    assert (turn.over, played.response.text, turn.text) == (True, "Sure.", "Sure.")
    assert played.said() == played.read_by_server() == ["hi", "faster"]
    assert [mark.head for mark in played.chain.marks] == [None, steered[0].response.id]
    assert played.chain.stats.turns == 2


def test_what_is_said_before_the_response_is_known_waits_for_it() -> None:
    played = Played()
    played.turn = turn = Turn(played.chain, "hi", {})
    turn.steer(wire_items("faster"))
    played.send(turn)
    played.emit("ok" + END)
    played.emit("yes" + END)
    assert played.said() == ["hi", "faster"]


def test_what_waits_for_outputs_is_read_with_them_and_is_in_the_history() -> None:
    played = Played()
    played.begin("hi")
    played.emit("<tool_call>")
    played.steer("faster")
    played.emit(call("look")[11:])
    (made,) = [item for item in played.response.output if isinstance(item, Call)]
    output = [{"type": "function_call_output", "call_id": made.call_id, "output": "seen"}]
    played.begin(output)
    assert spelled(played.rig.engine.prompt(played.rig.engine.last)).count("faster") == 1
    played.emit("ok" + END)
    assert played.said() == played.read_by_server() == ["hi", "faster"]
    assert (played.chain.heard, played.chain.owed) == ([], [])


def test_on_another_socket_the_client_sends_it_itself() -> None:
    played = Played()
    played.begin("hi")
    played.emit("<tool_call>")
    played.steer("faster")
    played.emit(call("look")[11:])
    (made,) = [item for item in played.response.output if isinstance(item, Call)]
    played.client.disconnect()
    played.client = played.rig.connect()
    played.begin([{"type": "function_call_output", "call_id": made.call_id, "output": "seen"}])
    played.emit("ok" + END)
    assert played.said() == played.read_by_server() == ["hi", "faster"]


def test_what_comes_too_late_is_for_the_next_turn() -> None:
    played = Played()
    turn = played.begin("hi")
    played.emit("ok" + END)
    turn.steer(wire_items("late"))
    played.begin("more")
    played.emit("ok" + END)
    assert played.said() == played.read_by_server() == ["hi", "late", "more"]


def test_what_a_cancelled_turn_did_not_hear_is_for_the_next_one() -> None:
    played = Played()
    turn = played.begin("hi")
    played.emit("o")
    played.steer("faster")
    played.post(turn.cancel_frame("lane-0"))
    assert played.response.cancelled
    played.begin("more")
    played.emit("ok" + END)
    assert played.said() == played.read_by_server() == ["hi", "faster", "more"]


def test_a_next_response_that_cannot_begin_leaves_it_to_the_next_turn() -> None:
    played = Played()
    turn = played.begin("hi")
    played.emit("ok")
    played.steer("faster")
    played.rig.carry(played.client, played.client.connection.drain())
    played.emit(END)
    assert (turn.over, played.response.text) == (True, "ok")
    assert played.chain.owed == wire_items("faster")


def test_what_the_server_gets_behind_the_next_response_leaves_both_responses_whole() -> None:
    played = Played()
    turn = played.begin("hi")
    played.emit("One")
    played.steer("faster")
    played.late = []
    played.steer("no, slower")
    played.emit(" two." + END)
    played.arrive()
    played.emit("Sure." + END)
    kinds = [type(event).__name__ for event in played.events if not isinstance(event, TextDelta)]
    assert (kinds, turn.text) == (["TurnSteered", "Response"], "Sure.")
    assert played.said() == played.read_by_server() == ["hi", "faster"]
    assert played.chain.owed == wire_items("no, slower")
    assert (played.chain.stats.turns, played.chain.stats.restarts) == (2, 0)


def test_a_turn_that_fails_leaves_it_to_the_next_one() -> None:
    played = Played()
    played.begin("hi")
    played.emit("o")
    played.steer("faster")
    played.rig.store.engine_lost()
    before = len(played.client.events)
    played.rig.carry(played.client, played.client.connection.engine_died())
    with pytest.raises(TurnFailed):
        played.read(played.client.events[before:])
    assert played.chain.owed == wire_items("faster")


def test_a_lost_socket_loses_nothing_that_was_said() -> None:
    played = Played(keepwarm={"steer": "now"})
    turn = played.begin("hi")
    played.emit("One")
    played.steer("faster")
    played.client.disconnect()
    assert turn.recover(ConnectionLost("gone", started=True)) is not None
    played.client = played.rig.connect()
    played.send(turn)
    played.emit("ok" + END)
    assert played.said() == played.read_by_server() == ["hi", "faster"]


OUTPUTS = ("Yes it is." + END, call("look") + END, "I look. " + call("look") + END)


@pytest.mark.parametrize("slow", [False, True], ids=["at once", "slow"])
@pytest.mark.parametrize("seed", range(8))
def test_whenever_something_is_said_client_and_server_have_it_once(seed: int, slow: bool) -> None:
    rng = random.Random(seed)
    played = Played(keepwarm={"steer": rng.choice(("item", "now"))})
    played.late = [] if slow else None
    texts: list[str] = []
    next_input: Any = "text 0"
    for number in range(1, 12):
        if isinstance(next_input, str):
            texts.append(next_input)
        turn = played.begin(next_input)
        left: list[int] = []
        while not turn.over:
            request = played.rig.engine.last
            left = left or token_ids(rng.choice(OUTPUTS))
            if rng.random() < 0.15:
                texts.append(f"said {number} {len(texts)}")
                played.steer(texts[-1])
            if played.late and (not played.runs or rng.random() < 0.2):
                played.arrive()
            if turn.over:
                break
            if played.rig.engine.last is not request:
                left = token_ids(rng.choice(OUTPUTS))
            if played.runs:
                left = _step(played, rng, left)
        calls = [item for item in played.response.output if isinstance(item, Call)]
        next_input = [
            {"type": "function_call_output", "call_id": c.call_id, "output": "o"}
            for c in calls
            if c.status == "completed"
        ] or f"text {number}"
    if not isinstance(next_input, str):
        played.begin(next_input)
        played.read(played.rig.reply("done" + END))
    elif played.chain.owed:
        played.begin(())
        played.read(played.rig.reply("done" + END))
    assert sorted(played.said()) == sorted(texts)
    assert played.said() == played.read_by_server()


def _step(played: Played, rng: random.Random, left: list[int]) -> list[int]:
    """The newest response says a few tokens more; returns what it has still to say."""
    request = played.rig.engine.last
    now, rest = left[: (n := rng.randint(1, 5))], left[n:]
    finish = None if rest else FinishReason.STOP
    played.read(played.rig.deliver(played.rig.engine.output(request, now, finish)))
    return rest if played.rig.engine.last is request else []
