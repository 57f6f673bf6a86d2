"""The sessions core on the real engine, without sockets: what a session keeps warm."""

import itertools
import json
import time
from pathlib import Path
from typing import Any

import pytest

from runtime.config import EngineConfig
from runtime.messages import GenerationRequest
from runtime.process.loading import load_engine
from runtime.tokenizer import Tokenizer
from sessions.durable.ledger import PriceTable
from sessions.durable.store import Store
from sessions.quotas import Quotas
from sessions.tenants import Tenants
from sessions.turns.connection import Connection
from sessions.turns.effects import Effects, Work
from sessions.turns.service import ServedModel, Service
from tests.support.clock import FakeClock
from tests.support.sessions_rig import tool
from tools_api.chat_families import chat_format_for
from tools_api.limits import Limits

BLOCK = 16
FIND = tool("find", query={"type": "string", "maxLength": 6})
TURN_S = 60.0


class Agent:
    """One connection on one engine; a turn runs to its end."""

    def __init__(self, *, num_blocks: int = 512) -> None:
        self._config = EngineConfig(
            model="random:qwen3-tiny",
            num_blocks=num_blocks,
            dtype="float64",
            device="cpu",
            threads=1,
        )
        self._engine = load_engine(self._config)
        info, clock, ids = self._engine.info, FakeClock(1000.0), itertools.count(1)
        tokenizer = Tokenizer.load(Path(info.tokenizer_folder), vocab_size=info.vocab_size)
        self._store = Store(limits=Limits(), prices=PriceTable(), clock=clock)
        service = Service(
            model=ServedModel(
                name="default",
                aliases=frozenset(),
                tokenizer=tokenizer,
                chat_format=chat_format_for(
                    info.model_type, lambda name: tokenizer.special_id(name) is not None
                ),
                max_context_tokens=info.max_context_tokens,
            ),
            store=self._store,
            limits=Limits(),
            clock=clock,
            wall_clock=FakeClock(),
            new_id=lambda prefix: f"{prefix}_{next(ids)}",
            quotas=Quotas(Tenants([]), clock),
        )
        self._connection = Connection(connection_id="c", tenant="t", service=service)
        self._events: list[dict[str, Any]] = []
        self.tokens_sent: list[int] = []
        """Prompt tokens of each engine request, in order."""

    def turn(self, **fields: Any) -> dict[str, Any]:
        """A greedy turn; returns the final response object."""
        event = {"type": "response.create", "temperature": 0, "max_output_tokens": 64, **fields}
        self._carry(self._connection.receive(json.dumps(event)))
        deadline = time.monotonic() + TURN_S
        while self._connection.num_active:
            assert time.monotonic() < deadline, "the turn does not end"
            time.sleep(self._engine.pause_s)  # while a grammar compiles in its thread
            step = self._engine.step()
            for output in step.outputs if step is not None else ():
                self._carry(self._connection.output(output))
        assert "response" in self._events[-1], self._events[-1]
        return self._events[-1]["response"]

    def restart_engine(self) -> None:
        self._engine = load_engine(self._config)
        self._store.engine_lost()
        self._carry(self._connection.engine_died())

    def _carry(self, effects: Effects) -> None:
        self._events += [json.loads(frame) for frame in effects.frames]
        for message in effects.requests:
            if isinstance(message, GenerationRequest):
                self.tokens_sent.append(len(message.new_tokens))
        self._engine.submit(list(effects.requests))
        for question in effects.questions:
            work = question.asked
            answer = work.call() if isinstance(work, Work) else None
            self._carry(self._connection.answer(question.id, answer))


def next_input(response: dict[str, Any], text: str) -> list[dict[str, Any]]:
    """Answers to the response's calls, or the user's next words."""
    calls = [item for item in response["output"] if item["type"] == "function_call"]
    outputs = [
        {"type": "function_call_output", "call_id": call["call_id"], "output": text}
        for call in calls
        if call["status"] == "completed"
    ]
    return outputs or [{"role": "user", "content": text}]


def total(response: dict[str, Any]) -> int:
    return response["usage"]["total_tokens"]


def cached(response: dict[str, Any]) -> int:
    return response["usage"]["input_tokens_details"]["cached_tokens"]


@pytest.mark.parametrize("resend", [False, True], ids=["by id", "resent history"])
def test_the_next_turn_finds_all_whole_blocks_of_the_last_one(resend: bool) -> None:
    agent = Agent()
    new: list[dict[str, Any]] = [{"role": "user", "content": "Find the red shoes."}]
    history: list[dict[str, Any]] = []
    chain: dict[str, Any] = {}
    before = None
    for number in range(6):
        history += new
        response = agent.turn(
            input=history if resend else new,
            tools=[FIND],
            tool_choice="required" if number % 2 == 0 else "none",
            **chain,
        )
        if before is not None:
            assert cached(response) >= (total(before) - 1) // BLOCK * BLOCK
        if not resend:
            chain = {"previous_response_id": response["id"]}
        history += response["output"]
        new, before = next_input(response, f"answer {number}"), response


def test_a_loop_computes_and_sends_only_what_is_new() -> None:
    agent = Agent()
    response = agent.turn(input="x" * 100, max_output_tokens=8)
    for _ in range(19):
        response = agent.turn(
            input="x" * 100, previous_response_id=response["id"], max_output_tokens=8
        )
        computed = response["usage"]["input_tokens_details"]["cache_write_tokens"]
        assert computed <= agent.tokens_sent[-1] + BLOCK
    assert max(agent.tokens_sent[1:]) <= agent.tokens_sent[0] + BLOCK
    assert total(response) > 2000


def test_a_session_says_the_same_when_its_engine_was_replaced_in_between() -> None:
    said: list[list[str]] = []
    for restart_after in (None, 0, 2):
        agent, texts = Agent(), list[str]()
        response: dict[str, Any] = {"output": []}
        for number in range(4):
            chain = {"previous_response_id": response["id"]} if number else {}
            response = agent.turn(
                input=next_input(response, f"question {number}"), tools=[FIND], **chain
            )
            texts.append(json.dumps([shown(item) for item in response["output"]]))
            if number == restart_after:
                agent.restart_engine()
        said.append(texts)
    assert said[1] == said[0]
    assert said[2] == said[0]


def test_a_fork_says_what_the_trunk_says() -> None:
    agent = Agent()
    first = agent.turn(input="Tell me more.")
    trunk = agent.turn(input="And then?", previous_response_id=first["id"])
    agent.turn(input="Something else.", previous_response_id=trunk["id"])
    fork = agent.turn(input="And then?", previous_response_id=first["id"])
    assert list(map(shown, fork["output"])) == list(map(shown, trunk["output"]))


def test_a_changed_header_reuses_nothing_and_says_why() -> None:
    agent = Agent()
    first = agent.turn(input="x" * 100, instructions="Be kind.")
    second = agent.turn(input="y", instructions="Be quick.", previous_response_id=first["id"])
    miss = second["keepwarm"]["kv"]["miss"]
    assert sum(miss.values()) == second["usage"]["input_tokens"] - cached(second)
    assert miss["header_changed"] > 100


def shown(item: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in item.items() if key not in ("id", "call_id")}
