"""Steering: accepted, then heard by one response or handed back; nothing behind the boundary."""

import os
import random
from collections import Counter
from typing import Any

import pytest
from openai.types.responses import (
    ResponseSteerAcceptedEvent,
    ResponseSteerFailedEvent,
    ResponseSteerPendingEvent,
)

from runtime.messages import FinishReason
from sessions.turns.submissions import Submission
from tests.support.sessions_rig import END, Client, Event, Rig, call, spelled, token_ids, tool
from tools_api.items import Message
from tools_api.limits import Limits

TOOLS = [tool("look")]
PUBLISHED = {
    "response.steer.accepted": ResponseSteerAcceptedEvent,
    "response.steer.pending": ResponseSteerPendingEvent,
    "response.steer.failed": ResponseSteerFailedEvent,
}


@pytest.fixture
def rig() -> Rig:
    return Rig()


@pytest.fixture
def client(rig: Rig) -> Client:
    return rig.connect()


def begin(client: Client, **fields: Any) -> str:
    created = client.create(**{"input": "hi", "tools": TOOLS} | fields)[0]
    assert created["type"] == "response.created"
    id_ = created["response"]["id"]
    assert isinstance(id_, str)
    return id_


def steer(client: Client, id_: str, text: Any = "faster") -> list[Event]:
    told = client.send(type="response.steer", previous_response_id=id_, input=text)
    for event in told:
        if event["type"] in PUBLISHED and event.get("error", {}).get("code") != "invalid_input":
            PUBLISHED[event["type"]].model_validate(event)
    return told


def types(told: list[Event]) -> list[str]:
    return [event["type"].removeprefix("response.") for event in told]


def code(told: list[Event]) -> str:
    (failed,) = told
    assert failed["type"] == "response.steer.failed"
    found = failed["error"]["code"]
    assert isinstance(found, str)
    return found


def test_at_the_end_of_reasoning_the_next_response_hears_it(rig: Rig, client: Client) -> None:
    id_ = begin(client, reasoning={"effort": "high"}, instructions="be kind", stream_id="b")
    rig.emit("<think>\nhm")
    (accepted,) = steer(client, id_)
    assert accepted["stream_id"] == "b"
    told = rig.emit("m\n</think>\n\nYes")
    target = next(event for event in told if event["type"] == "response.incomplete")["response"]
    assert target["incomplete_details"] == {"reason": "steered"}
    assert [item["type"] for item in target["output"]] == ["reasoning"]
    assert target["output"][0]["status"] == "completed"
    created = next(event for event in told if event["type"] == "response.created")
    assert (created["stream_id"], created["sequence_number"]) == ("b", 0)
    successor = created["response"]
    assert successor["previous_response_id"] == id_
    for setting in ("instructions", "tools", "reasoning", "store", "temperature"):
        assert successor[setting] == target[setting]
    prompt = spelled(rig.engine.prompt(rig.engine.last))
    assert "Yes" not in prompt, "no token behind the boundary"
    assert "hmm\n</think>" in prompt
    assert prompt.rindex("faster") > prompt.index("</think>")
    rig.reply("Sure." + END)
    assert client.response["output"][-1]["content"][0]["text"] == "Sure."


def test_a_message_ends_before_the_call_that_follows_it(rig: Rig, client: Client) -> None:
    id_ = begin(client)
    rig.emit("Let me ")
    steer(client, id_)
    told = rig.emit("look. " + call("look"))
    target = next(event for event in told if event["type"] == "response.incomplete")["response"]
    (message,) = target["output"]
    assert (message["content"][0]["text"], message["status"]) == ("Let me look. ", "completed")
    assert "<tool_call>" not in spelled(rig.engine.prompt(rig.engine.last)).partition("Let me")[2]
    assert target["usage"]["output_tokens"] == len(token_ids("Let me look. "))


def test_one_that_ends_by_itself_first_is_completed(rig: Rig, client: Client) -> None:
    id_ = begin(client)
    rig.emit("Yes")
    steer(client, id_)
    told = rig.emit("." + END, finish=FinishReason.STOP)
    assert types(told)[-2:] == ["completed", "created"]
    assert told[-1]["response"]["previous_response_id"] == id_
    assert rig.engine.cancelled == []


def test_now_is_the_next_token_outside_a_call(rig: Rig, client: Client) -> None:
    id_ = begin(client, keepwarm={"steer": "now"})
    rig.emit("Let me")
    told = steer(client, id_)
    assert types(told)[0] == "steer.accepted"
    assert types(told)[-2:] == ["incomplete", "created"]
    (message,) = told[-2]["response"]["output"]
    assert (message["content"][0]["text"], message["status"]) == ("Let me", "incomplete")


def test_now_in_a_call_is_behind_it_and_waits_for_its_output(rig: Rig, client: Client) -> None:
    id_ = begin(client, keepwarm={"steer": "now"})
    rig.emit('<tool_call>\n{"name": "lo')
    assert types(steer(client, id_)) == ["steer.accepted"]
    told = rig.emit('ok", "arguments": {}}\n</tool_call>\n<tool_call>\n{"name"')
    assert types(told)[-2:] == ["completed", "steer.pending"]
    response, pending = told[-2]["response"], told[-1]
    (item,) = response["output"]
    stub = {"type": "function_call_output", "call_id": item["call_id"], "name": "look"}
    assert (pending["required_input"], pending["reason"]) == ([stub], "waiting_for_required_input")
    assert pending["sequence_number"] == told[-2]["sequence_number"] + 1
    assert not rig.engine.open, "no successor"
    output = {"type": "function_call_output", "call_id": item["call_id"], "output": "seen"}
    begin(client, previous_response_id=id_, input=[output], instructions="own")
    prompt = spelled(rig.engine.prompt(rig.engine.last))
    assert prompt.count("faster") == prompt.count("seen") == 1
    assert prompt.rindex("faster") > prompt.index("<tool_call>")
    rig.reply("ok" + END)
    assert client.response["instructions"] == "own"
    assert code(steer(client, id_)) == "response_already_completed"


def test_pending_input_stays_when_the_request_is_refused(rig: Rig, client: Client) -> None:
    id_ = begin(client)
    rig.emit("<tool_call>")
    steer(client, id_)
    rig.emit('\n{"name": "look", "arguments": {}}\n</tool_call>')
    told = client.create(previous_response_id=id_, input="no output", tools=TOOLS)
    assert types(told) == ["error"]
    (item,) = next(e for e in client.events if e["type"] == "response.completed")["response"][
        "output"
    ]
    output = {"type": "function_call_output", "call_id": item["call_id"], "output": "seen"}
    begin(client, previous_response_id=id_, input=[output])
    assert "faster" in spelled(rig.engine.prompt(rig.engine.last))


def test_several_are_heard_together_in_their_order(rig: Rig, client: Client) -> None:
    id_ = begin(client)
    rig.emit("Yes")
    for text in ("one", [{"role": "user", "content": "two"}], "three"):
        assert types(steer(client, id_, text)) == ["steer.accepted"]
    told = rig.emit(END, finish=FinishReason.STOP)
    assert types(told).count("created") == 1
    prompt = spelled(rig.engine.prompt(rig.engine.last))
    assert prompt.index("one") < prompt.index("two") < prompt.index("three")


def test_a_steered_response_is_steered_again(rig: Rig, client: Client) -> None:
    id_ = begin(client, keepwarm={"steer": "now"})
    for n in range(5):
        rig.emit(f"word {n}")
        told = steer(client, id_, f"say {n}")
        id_ = told[-1]["response"]["id"]
        assert told[-1]["type"] == "response.created"
    prompt = spelled(rig.engine.prompt(rig.engine.last))
    assert [prompt.count(f"say {n}") for n in range(5)] == [1] * 5


def test_the_successor_comes_before_what_waits_in_the_lane(rig: Rig, client: Client) -> None:
    id_ = begin(client)
    client.create(input="waits")
    rig.emit("Yes")
    steer(client, id_)
    rig.emit(END, finish=FinishReason.STOP)
    assert "faster" in spelled(rig.engine.prompt(rig.engine.last))
    rig.reply("ok" + END)
    assert "waits" in spelled(rig.engine.prompt(rig.engine.last))


BAD: list[Any] = [
    "",
    [],
    [1],
    ["x"],
    [{"role": "assistant", "content": "x"}],
    [{"role": "system", "content": "x"}],
    [{"type": "function_call_output", "call_id": "c", "output": "x"}],
    [{"type": "item_reference", "id": "x"}],
    [{"role": "user", "content": [{"type": "input_image", "image_url": "x"}]}],
    [{"role": "user", "content": "x", "name": "n"}],
    [{"role": "user"}],
    "x" * 70_000,
]


@pytest.mark.parametrize("text", BAD, ids=range(len(BAD)))
def test_bad_input_comes_back_and_the_response_goes_on(rig: Rig, client: Client, text: Any) -> None:
    id_ = begin(client)
    (failed,) = steer(client, id_, text)
    assert failed["error"]["code"] == "invalid_input"
    assert failed["steer"] == {"input": text, "previous_response_id": id_}
    rig.reply("ok" + END)
    assert types(client.events)[-1] == "completed"
    numbers = [event["sequence_number"] for event in client.events]
    assert numbers == list(range(len(numbers)))


def test_there_is_a_limit_to_what_waits(client: Client, rig: Rig) -> None:
    id_ = begin(client)
    rig.emit("x")
    told = [types(steer(client, id_, f"say {n}"))[0] for n in range(100)]
    assert told == ["steer.accepted"] * 16 + ["steer.failed"] * 84
    assert client.last["error"]["code"] == "too_many_pending_steers"
    rig.emit(END, finish=FinishReason.STOP)
    assert spelled(rig.engine.prompt(rig.engine.last)).count("say ") == 16


def test_there_is_a_limit_to_its_bytes() -> None:
    rig = Rig(limits=Limits(max_steer_bytes=1000))
    client = rig.connect()
    id_ = begin(client)
    rig.emit("x")
    assert types(steer(client, id_, "y" * 600)) == ["steer.accepted"]
    assert code(steer(client, id_, "y" * 600)) == "too_many_pending_steers"
    assert code(steer(client, id_, "y" * 1000)) == "invalid_input"
    assert types(steer(client, id_, "y")) == ["steer.accepted"]


def test_what_does_not_run_here_is_not_steered(rig: Rig, client: Client) -> None:
    other = rig.connect()
    id_ = begin(other)
    assert code(steer(client, id_)) == "response_not_found"
    assert code(steer(client, "resp_none")) == "response_not_found"
    rig.reply("ok" + END)
    assert code(steer(other, id_)) == "response_already_completed"


@pytest.mark.parametrize(
    "fields",
    [
        {"context_management": [{"type": "compaction", "compact_threshold": 1000}]},
        {"keepwarm": {"context": {"compact_threshold": 1000}}},
    ],
)
def test_what_may_be_compacted_is_not_steered(client: Client, fields: dict[str, Any]) -> None:
    id_ = begin(client, **fields)
    assert code(steer(client, id_)) == "steering_not_supported"


@pytest.mark.parametrize("how", ["cancel", "engine", "drain"])
def test_what_is_not_heard_comes_back_once(rig: Rig, client: Client, how: str) -> None:
    id_ = begin(client)
    rig.emit("x")
    (accepted,) = steer(client, id_)
    if how == "cancel":
        client.send(type="response.cancel", response_id=id_)
    elif how == "engine":
        rig.store.engine_lost()
        rig.carry(client, client.connection.engine_died())
    else:
        rig.carry(client, client.connection.drain())
        rig.reply("ok" + END)
    failed = [event for event in client.events if event["type"] == "response.steer.failed"]
    assert [event["steer"]["id"] for event in failed] == [accepted["steer"]["id"]]
    assert failed[0]["steer"]["input"] == "faster"
    expected = "successor_creation_failed" if how == "drain" else "response_not_active"
    assert failed[0]["error"]["code"] == expected
    assert client.connection.num_active == 0


def test_a_successor_that_cannot_begin_hands_it_back(client: Client, rig: Rig) -> None:
    id_ = begin(client, max_output_tokens=10)
    rig.emit("x")
    steer(client, id_, "long " * 5000)
    rig.emit(END, finish=FinishReason.STOP)
    assert client.last["error"]["code"] == "successor_creation_failed"
    assert "tokens" in client.last["error"]["message"]
    begin(client)


def test_what_nobody_goes_on_from_is_given_up_in_time(rig: Rig, client: Client) -> None:
    id_ = begin(client)
    rig.emit("<tool_call>")
    (accepted,) = steer(client, id_)
    rig.emit('\n{"name": "look", "arguments": {}}\n</tool_call>')
    for _ in range(64):
        client.create(input="other")
        rig.reply("ok" + END)
    failed = [event for event in client.events if event["type"] == "response.steer.failed"]
    assert [event["steer"]["id"] for event in failed] == [accepted["steer"]["id"]]


@pytest.mark.parametrize("meanwhile", ["others have ended", "its calls were answered"])
def test_what_a_refused_request_was_to_hear_comes_back_once(
    rig: Rig, client: Client, meanwhile: str
) -> None:
    """Nothing goes on from its target any more once the request is refused."""
    held = {"session": "busy"}
    client.create(input="long", stream_id="busy", keepwarm=held)
    writes = rig.engine.last
    id_ = begin(client)
    rig.emit("<tool_call>")
    (accepted,) = steer(client, id_)
    rig.emit('\n{"name": "look", "arguments": {}}\n</tool_call>')
    (open_call,) = _open_calls(client)
    output = {"type": "function_call_output", "call_id": open_call, "output": "seen"}
    follows = {"previous_response_id": id_, "input": [output], "tools": TOOLS}
    client.create(**follows, stream_id="waits", keepwarm=held)
    if meanwhile == "others have ended":
        for _ in range(64):
            client.create(input="other")
            rig.reply("ok" + END)
    else:
        client.create(**follows)
        rig.reply("ok" + END)
    client.send(type="response.cancel", stream_id="waits")
    failed = [event for event in client.events if event["type"] == "response.steer.failed"]
    assert [event["steer"]["id"] for event in failed] == [accepted["steer"]["id"]]
    rig.reply("ok" + END, writes)
    assert client.connection.held == []


def test_a_client_that_leaves_leaves_nothing(rig: Rig, client: Client) -> None:
    id_ = begin(client)
    rig.emit("x")
    steer(client, id_)
    client.disconnect()
    assert client.connection.held == []


def test_the_numbers_of_a_steered_response_have_no_gap(rig: Rig, client: Client) -> None:
    id_ = begin(client)
    rig.emit("a")
    steer(client, id_)
    steer(client, id_, "")
    rig.emit("b" + END, finish=FinishReason.STOP)
    of_target = [
        event["sequence_number"]
        for event in client.events[
            : next(
                n for n, event in enumerate(client.events) if event["type"] == "response.completed"
            )
            + 1
        ]
    ]
    assert of_target == list(range(len(of_target)))


# A thousand at random instants

OUTPUTS = (
    "Yes, all of it is so." + END,
    "<think>\nlet me see\n</think>\n\nIt is so." + END,
    "I look. " + call("look") + END,
    call("look") + "\n" + call("look") + END,
    "<think>\nhm\n</think>\n\nI look. " + call("look") + "\nand wait." + END,
)
STEERS = int(os.environ.get("KEEPWARM_STEERS", "200"))
SEED = int(os.environ.get("KEEPWARM_STEER_SEED", "0"))


class _Play:
    """One client, whose responses are steered whenever it comes to mind."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.rig = Rig(max_context_tokens=1_000_000)
        self.client = self.rig.connect()
        self.sent = 0
        self.outputs: dict[str, list[int]] = {}
        """What the model would say, by response."""
        self.steered_at: dict[str, int] = {}
        """The tokens that a response had said when it was steered first."""
        self.how: dict[str, tuple[str, bool]] = {}
        """Where a response is to end, and whether its model thinks."""

    def step(self) -> None:
        """The engine says a few tokens, of which some may be drafted."""
        for turn in list(self.rig.engine.open.values()):
            output = self._output(turn.request.request_id)
            now = output[len(turn.emitted) :][: self.rng.randint(1, 6)]
            whole = len(turn.emitted) + len(now) == len(output)
            finish = FinishReason.STOP if whole else None
            self.rig.deliver(self.rig.engine.output(turn.request, now, finish))

    def _output(self, request_id: str) -> list[int]:
        id_ = request_id.partition(".")[0]
        if id_ not in self.outputs:
            self.outputs[id_] = token_ids(self.rng.choice(OUTPUTS))
        return self.outputs[id_]

    def steer(self, target: str) -> None:
        self.sent += 1
        turn = self.rig.engine.open.get(f"{target}.1")
        said = None if turn is None else len(turn.emitted)
        told = steer(self.client, target, f"[{self.sent}]")
        if said is not None and told[0]["type"] == "response.steer.accepted":
            self.steered_at.setdefault(target, said)

    def told(self, kind: str) -> list[Event]:
        return [e for e in self.client.events if e["type"] == f"response.{kind}"]


def _boundary(tokens: list[int], said: int, how: str, *, thinks: bool) -> int:
    """How many tokens an output has that is steered when it had said so many: by its text."""
    for end in range(said, len(tokens)):
        before, after = spelled(tokens[:end]), spelled(tokens[end : end + 1])
        called = before.count("<tool_call>") > before.count("</tool_call>")
        if called:
            continue
        ended = max((before.rfind(tag) + len(tag), tag) for tag in _closers(before, thinks))
        between = ended[0] >= len(ended[1]) and not before[ended[0] :].strip()
        opens = after == "<tool_call>" or (thinks and after == "<think>")
        thinking = thinks and before.count("<think>") > before.count("</think>")
        written = before[ended[0] :] if ended[0] >= len(ended[1]) else before
        text = bool(written.strip()) and not thinking
        if how == "now" or between or (opens and text):
            return end
    return len(tokens)


def _closers(before: str, thinks: bool) -> list[str]:
    return ["</tool_call>", "</think>"] if thinks else ["</tool_call>"]


@pytest.mark.parametrize("part", range(4))
def test_at_random_instants_each_is_heard_pending_or_handed_back_once(part: int) -> None:
    seed = SEED * 4 + part
    print(f"seed {seed}")
    play = _Play(seed)
    while play.sent < STEERS // 4:
        _one_dialogue(play, play.rng)
    _assert_each_once(play)
    _assert_ends_where_it_should(play)
    assert play.client.connection.num_active == 0
    play.client.disconnect()
    assert play.client.connection.held == []


def _one_dialogue(play: _Play, rng: random.Random) -> None:
    client, how = play.client, rng.choice(("item", "now"))
    thinks = rng.random() < 0.5
    fields = {"keepwarm": {"steer": how}} | ({"reasoning": {"effort": "high"}} if thinks else {})
    target = begin(client, **fields)
    for _ in range(rng.randint(0, 30)):
        if rng.random() < 0.3:
            play.steer(rng.choice([target, _newest(client)]))
        if rng.random() < 0.03:
            client.send(type="response.cancel", response_id=_newest(client))
        play.step()
    while play.rig.engine.open:
        play.step()
    while calls := _open_calls(client):
        outputs = [
            {"type": "function_call_output", "call_id": call_id, "output": "o"} for call_id in calls
        ]
        if rng.random() < 0.3:
            play.steer(_newest(client))
        begin(client, previous_response_id=_newest(client), input=outputs, **fields)
        while play.rig.engine.open:
            play.step()
    for event in play.told("created"):
        play.how.setdefault(event["response"]["id"], (how, thinks))


def _newest(client: Client) -> str:
    created = [e for e in client.events if e["type"] == "response.created"]
    id_ = created[-1]["response"]["id"]
    assert isinstance(id_, str)
    return id_


def _open_calls(client: Client) -> list[str]:
    """Of the newest response."""
    ended = [e for e in client.events if e["type"] == "response.completed"]
    if not ended or ended[-1]["response"]["id"] != _newest(client):
        return []
    output = ended[-1]["response"]["output"]
    return [item["call_id"] for item in output if item["type"] == "function_call"]


def _assert_ends_where_it_should(play: _Play) -> None:
    """Steered ones at their boundary, others by themselves; the successor comes at once."""
    events, steered = play.client.events, 0
    for n, event in enumerate(events):
        response = event.get("response", {})
        if event["type"] not in ("response.completed", "response.incomplete"):
            continue
        if response.get("keepwarm", {}).get("reason") == "cancelled":
            continue
        output, (how, thinks) = play.outputs.get(response["id"], []), play.how[response["id"]]
        said, whole = play.steered_at.get(response["id"]), len(output)
        expected = whole if said is None else _boundary(output, said, how, thinks=thinks)
        assert response["usage"]["output_tokens"] == expected, spelled(output)
        if event["type"] == "response.incomplete":
            steered += 1
            assert response["incomplete_details"] == {"reason": "steered"}
            assert events[n + 1]["type"] == "response.created"
            assert events[n + 1]["response"]["previous_response_id"] == response["id"]
    assert steered > 3


def _assert_each_once(play: _Play) -> None:
    accepted = [event["steer"]["id"] for event in play.told("steer.accepted")]
    failed = [event["steer"].get("id") for event in play.told("steer.failed")]
    refused = failed.count(None)
    assert len(accepted) + refused == play.sent
    assert len(set(accepted)) == len(accepted) > play.sent // 10
    assert len(failed) == refused + len(set(failed) - {None})
    pending = [event["steer"]["id"] for event in play.told("steer.pending")]
    assert len(set(pending)) == len(pending) > 0
    heard = Counter[str]()
    for response in play.rig.store.tenant("acme").responses:
        items = [item for item in response.entry.input_items if isinstance(item, Message)]
        heard.update(item.text for item in items)
    returned = {event["steer"]["input"] for event in play.told("steer.failed")}
    # Those that wait for the outputs of a response that was cancelled, and that nobody answers.
    waiting = [
        each.asked.input for each in play.client.connection.held if isinstance(each, Submission)
    ]
    for n in range(1, play.sent + 1):
        assert [*heard, *returned, *waiting].count(f"[{n}]") == 1, n
    del heard["hi"]
    assert set(heard.values()) == {1}
