"""Plays what clients may say, and what they may not, against the sessions; checks what they get.

Three connections of two tenants, an engine by hand, checks and plans that come late. Always:
nothing raises, nothing is answered with an internal error, a response ends once, its events are
numbered without a gap, and when all is played out nothing runs any more.
"""

import random
from typing import Any

from runtime.grammar.refusal import GrammarRefused
from runtime.messages import FinishReason
from tests.support.api_clients import WEBSOCKET
from tests.support.mutations import Choose, as_bytes, damaged, mutant
from tests.support.random_requests import request
from tests.support.sessions_rig import END, Client, Rig, call, tool

TERMINAL = {"response.completed", "response.incomplete", "response.failed"}
TEXTS = ("ok", "x" * 40, call("f", '{"n": 1}'), "<think>\nhm\n</think>\nyes", call("g", "{"))
SAID: list[dict[str, Any]] = [
    {"input": "hi"},
    {"input": [{"role": "user", "content": [{"type": "input_text", "text": "hi"}]}]},
    {"input": "hi", "tools": [tool("f", n={"type": "integer"})], "tool_choice": "required"},
    {
        "input": "hi",
        "instructions": "short",
        "max_output_tokens": 30,
        "temperature": 0.5,
        "top_p": 0.9,
        "metadata": {"a": "b"},
        "reasoning": {"effort": "low"},
        "include": ["message.output_text.logprobs"],
        "top_logprobs": 2,
        "truncation": "auto",
    },
    {
        "input": "hi",
        "text": {"format": {"type": "json_schema", "name": "x", "schema": {"type": "object"}}},
    },
    {
        "input": "hi",
        "keepwarm": {
            "session": "s",
            "budget": {"output": 50},
            "priority": 1,
            "sampling": {"stop": ["x"], "seed": 3, "top_k": 5},
        },
    },
    {"input": "hi", "generate": False, "prompt_cache_options": {"prewarm": True}},
]
OTHERS: list[dict[str, Any]] = [
    {"type": "response.cancel"},
    {"type": "response.cancel", "stream_id": "b"},
    {"type": "response.processed", "response_id": "resp_1"},
    {"type": "keepwarm:response.cancel", "response_id": "resp_1"},
]


def is_internal(event: dict[str, Any]) -> bool:
    """Whether an event says that something is wrong with the server itself."""
    if event["type"] == "error":
        return bool(event["status"] == 500)
    error = event.get("response", {}).get("error") or {}
    return "internal error" in error.get("message", "")


class ProtocolDriver:
    OPERATIONS = (
        *("create",) * 4,
        *("drawn",) * 3,
        *("go_on", "refer", "other", "mutated", "mutated", "broken"),
        *("emit", "emit", "emit", "finish"),
        *("finish", "verdict", "plan", "late", "tick", "kill", "leave"),
    )

    def __init__(self, choose: Choose) -> None:
        self.choose = choose
        self.rig = Rig()
        self.clients = [self.rig.connect(tenant) for tenant in ("acme", "acme", "other")]

    def step(self) -> None:
        """One random operation, and the checks after it."""
        getattr(self, self._one(self.OPERATIONS))()
        self.check()

    def _one(self, values: Any) -> Any:
        return values[self.choose(len(values))]

    def _frame(self) -> tuple[Client, dict[str, Any]]:
        client = self._one(self.clients)
        fields = {"type": "response.create", **self._one(SAID)}
        if self.choose(3) == 0:
            fields["stream_id"] = self._one(("a", "b", "c"))
        return client, fields

    # What clients do

    def create(self) -> None:
        client, fields = self._frame()
        client.send(**fields)

    def drawn(self) -> None:
        """Anything that the document allows, or nearly."""
        frame = request(random.Random(self.choose(1 << 30)), WEBSOCKET)
        self._one(self.clients).send_raw(frame.decode(errors="replace"))

    def go_on(self) -> None:
        """Continue a response, one's own or somebody else's, with an output or without."""
        client, fields = self._frame()
        known = [e["response"]["id"] for c in self.clients for e in c.events if "response" in e]
        fields["previous_response_id"] = self._one([*known[-6:], "resp_unknown"])
        calls = [
            item["call_id"]
            for event in client.events[-8:]
            for item in event.get("response", {}).get("output", [])
            if item["type"] == "function_call"
        ]
        if calls:
            fields["input"] = [
                {"type": "function_call_output", "call_id": self._one(calls), "output": "1"}
                for _ in range(1 + self.choose(3))
            ]
        client.send(**fields)

    def refer(self) -> None:
        """Name items that somebody was told of, or nobody, among those that are sent."""
        client, fields = self._frame()
        said = [
            item["id"]
            for each in self.clients
            for event in each.events[-20:]
            for item in event.get("response", {}).get("output", [])
        ]
        ids = [self._one([*said[-6:], "msg_unknown", "msg_0_1"]) for _ in range(self.choose(4))]
        named = [{"type": "item_reference", "id": id_} for id_ in ids]
        fields["input"] = [*named, {"role": "user", "content": "hi"}, *named[: self.choose(2)]]
        client.send(**fields)

    def other(self) -> None:
        self._one(self.clients).send(**self._one(OTHERS))

    def mutated(self) -> None:
        client, fields = self._frame()
        client.send_raw(as_bytes(mutant(fields, self.choose)).decode())

    def broken(self) -> None:
        client, fields = self._frame()
        frame = damaged(as_bytes(fields), self.choose)
        client.send_raw(frame if self.choose(2) else frame.decode(errors="replace"))

    def leave(self) -> None:
        """A client goes, another comes."""
        if self.choose(4) == 0:
            client = self.clients.pop(self.choose(len(self.clients)))
            client.disconnect()
            self.clients.append(self.rig.connect(self._one(("acme", "other"))))

    # What the engine and the helpers do

    def emit(self) -> None:
        self._emit(None)

    def finish(self) -> None:
        self._emit(FinishReason.STOP)

    def _emit(self, finish: FinishReason | None) -> None:
        if not self.rig.engine.open:
            return
        turn = self._one(list(self.rig.engine.open.values()))
        text = "" if not turn.request.max_new_tokens else self._one(TEXTS)[: 1 + self.choose(60)]
        left = turn.request.max_new_tokens - len(turn.emitted)
        text = text[: max(0, left - 1)] if "<" not in text or left < 60 else text
        if finish is not None:
            finish = FinishReason.PREFILLED if not turn.request.max_new_tokens else finish
            text += END if finish is FinishReason.STOP and left > 0 else ""
        self.rig.emit(text.replace("<|", "") if finish is None else text, finish, turn.request)

    def verdict(self) -> None:
        if self.rig.checks:
            self.rig.verdict(None if self.choose(3) else GrammarRefused("no"))

    def plan(self) -> None:
        if self.rig.plannings:
            self.rig.plan_next()

    def late(self) -> None:
        """From now on checks or plans come when they come, or at once."""
        self.rig.checks_pass = bool(self.choose(2))
        self.rig.plans_at_once = bool(self.choose(2))

    def tick(self) -> None:
        self.rig.clock.advance(float(self.choose(40)))
        for client in self.clients:
            self.rig.carry(client, client.connection.tick())

    def kill(self) -> None:
        if self.choose(3) == 0:
            self.rig.kill_engine()

    # What must hold

    def check(self) -> None:
        for client in self.rig.clients:
            ended: set[str] = set()
            numbers: dict[str, int] = {}
            current: dict[str | None, str] = {}
            for event in client.events:
                self._check_event(event, ended, numbers, current)

    def _check_event(
        self,
        event: dict[str, Any],
        ended: set[str],
        numbers: dict[str, int],
        current: dict[str | None, str],
    ) -> None:
        lane = event.get("stream_id")
        assert not is_internal(event), event
        if event["type"] == "response.created":
            current[lane] = event["response"]["id"]
            numbers[current[lane]] = event["sequence_number"]
            return
        if event["type"] == "response.steer.failed" and event["sequence_number"] == 0:
            return  # of no response that runs
        if lane in current and "sequence_number" in event:
            numbers[current[lane]] += 1
            assert event["sequence_number"] == numbers[current[lane]], event
        if event["type"] in TERMINAL:
            name = event["response"]["id"]
            assert name not in ended, f"{name} ended twice"
            ended.add(name)
            if current.get(lane) == name:
                del current[lane]

    def close(self) -> None:
        """Play everything out: all turns end, nothing is left over."""
        self.rig.checks_pass = self.rig.plans_at_once = True
        for _ in range(5000):
            if self.rig.checks:
                self.verdict()
            elif self.rig.plannings:
                self.rig.plan_next()
            elif self.rig.engine.open:
                self.finish()
            else:
                break
        for client in self.clients:
            assert client.connection.num_active == 0, "a lane is still taken"
            client.disconnect()
        assert len(self.rig.store.running) == 0, "a turn still runs"
        self.check()
