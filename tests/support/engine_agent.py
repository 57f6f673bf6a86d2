"""The sessions core on the real engine, without sockets: one connection, turns to their ends."""

import itertools
import json
import time
from pathlib import Path
from typing import Any

from runtime.config import EngineConfig
from runtime.messages import GenerationRequest
from runtime.process.loading import load_engine
from runtime.tokenizer import Tokenizer
from sessions.durable.compaction import Seal
from sessions.durable.ledger import PriceTable
from sessions.durable.store import Store
from sessions.turns.connection import Connection
from sessions.turns.effects import Effects, Work
from sessions.turns.service import ServedModel, Service
from tests.support.clock import FakeClock
from tools_api.chat_families import chat_format_for
from tools_api.limits import Limits

TURN_S = 60.0


class EngineAgent:
    """One connection on one engine; a turn runs to its end."""

    def __init__(
        self,
        *,
        num_blocks: int = 512,
        model: str = "random:qwen3-tiny",
        seal: Seal | None = None,
    ) -> None:
        self._config = EngineConfig(
            model=model,
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
                seal=seal,
            ),
            store=self._store,
            limits=Limits(),
            clock=clock,
            wall_clock=FakeClock(),
            new_id=lambda prefix: f"{prefix}_{next(ids)}",
        )
        self._connection = Connection(
            connection_id="c", tenant=self._store.tenant("t"), service=service
        )
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
