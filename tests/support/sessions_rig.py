"""Connections, a fake engine and the carrying between them, without sockets and clocks.

``Rig`` does what ``sessions.wire.hub`` does, at once and in order. A ``Client`` keeps the events
its connection sent. Output is written as text in which ``<|im_end|>`` and its like are the
special tokens.
"""

import itertools
import json
import re
from collections.abc import Callable, Sequence
from typing import Any

from runtime.messages import EngineMessage, FinishReason, GenerationRequest, SequenceOutput
from runtime.tokenizer import Tokenizer
from sessions.durable.ledger import PriceTable, TurnReport
from sessions.durable.store import Store
from sessions.tenants import Tenants
from sessions.turns.connection import Connection
from sessions.turns.effects import (
    Effects,
    Question,
    ServerReady,
    SessionGranted,
    TurnCancel,
    TurnChanged,
    Work,
)
from sessions.turns.service import ServedModel, Service
from tests.support.byte_tokenizer import FOLDER
from tests.support.clock import FakeClock
from tests.support.scripted_engine import ScriptedEngine
from tools_api.chat_families import chat_format_for
from tools_api.chat_format import Segment
from tools_api.grammar import GrammarSpec
from tools_api.limits import Limits

END = "<|im_end|>"
TOKENIZER = Tokenizer.load(FOLDER)
_BYTES = [TOKENIZER.token_bytes(token) for token in range(TOKENIZER.vocab_size)]

Event = dict[str, Any]


def token_ids(text: str) -> list[int]:
    """Ids of text with special tokens spelt out."""
    names = "|".join(map(re.escape, TOKENIZER.specials))
    pieces = [piece for piece in re.split(f"({names})", text) if piece]
    segments = [Segment(piece, special=piece in TOKENIZER.specials) for piece in pieces]
    return TOKENIZER.encode(segments).tolist()


def spelled(tokens: Sequence[int]) -> str:
    """The inverse of ``token_ids``."""
    return b"".join(map(_BYTES.__getitem__, tokens)).decode()


def call(name: str, arguments: str = "{}") -> str:
    """A tool call as the model writes it."""
    return f'<tool_call>\n{{"name": "{name}", "arguments": {arguments}}}\n</tool_call>'


def tool(name: str, **properties: Any) -> Event:
    return {
        "type": "function",
        "name": name,
        "parameters": {
            "type": "object",
            "properties": properties,
            "required": list(properties),
            "additionalProperties": False,
        },
    }


class Client:
    """One connection and what came out of it."""

    def __init__(self, rig: "Rig", connection: Connection) -> None:
        self.rig = rig
        self.connection = connection
        self.events: list[Event] = []
        self.closed: int | None = None

    def send(self, **event: Any) -> list[Event]:
        """Send a frame; returns the events it led to at once."""
        return self.send_raw(json.dumps(event))

    def send_raw(self, frame: str | bytes) -> list[Event]:
        before = len(self.events)
        self.rig.carry(self, self.connection.receive(frame))
        return self.events[before:]

    def create(self, **fields: Any) -> list[Event]:
        return self.send(type="response.create", **fields)

    def turn(self, reply: str = "ok" + END, **fields: Any) -> Event:
        """A whole turn; returns the final response object."""
        self.create(**fields)
        self.rig.reply(reply)
        return self.events[-1]["response"]

    def types(self) -> list[str]:
        return [event["type"].removeprefix("response.") for event in self.events]

    @property
    def last(self) -> Event:
        return self.events[-1]

    @property
    def response(self) -> Event:
        return self.events[-1]["response"]

    def disconnect(self) -> None:
        self.rig.carry(self, self.connection.close())


def make_service(
    clock: Callable[[], float],
    *,
    limits: Limits | None = None,
    prices: PriceTable | None = None,
    max_context_tokens: int = 4096,
    tenants: Tenants | None = None,
    model: ServedModel | None = None,
) -> Service:
    """What connections share, with a store of its own and ids that count up. ``model``: another
    than the one of bytes and ChatML."""
    limits = limits or Limits()
    ids = itertools.count(1)
    model = model or ServedModel(
        name="default",
        aliases=frozenset({"default", "m"}),
        tokenizer=TOKENIZER,
        chat_format=chat_format_for("qwen3", lambda name: TOKENIZER.special_id(name) is not None),
        max_context_tokens=max_context_tokens,
    )
    return Service(
        model=model,
        store=Store(
            limits=limits,
            prices=prices or PriceTable(),
            clock=clock,
            tenants=tenants,
            wall_clock=lambda: 1_800_000_000.0,
        ),
        limits=limits,
        clock=clock,
        wall_clock=lambda: 1_800_000_000.0,
        new_id=lambda prefix: f"{prefix}_{next(ids)}",
    )


class Rig:
    """A server's inside."""

    def __init__(
        self,
        *,
        limits: Limits | None = None,
        prices: PriceTable | None = None,
        max_context_tokens: int = 4096,
        tenants: Tenants | None = None,
        model: ServedModel | None = None,
    ) -> None:
        self.clock = FakeClock(1000.0)
        self.engine = ScriptedEngine()
        self.checks: list[tuple[Client, Question]] = []
        """Grammar checks that wait for a verdict; empty while ``checks_pass``."""
        self.checks_pass = True
        self.plannings: list[tuple[Client, Question]] = []
        """Long plans that wait to be worked out; empty while ``plans_at_once``."""
        self.plans_at_once = True
        self.reports: list[TurnReport] = []
        self.service = make_service(
            self.clock,
            limits=limits,
            prices=prices,
            max_context_tokens=max_context_tokens,
            tenants=tenants,
            model=model,
        )
        self.store, self.model = self.service.store, self.service.model
        self._clients: dict[str, Client] = {}
        self._connection_numbers = itertools.count(1)
        self._routes: dict[str, Client] = {}

    def connect(self, tenant: str = "acme") -> Client:
        connection_id = f"conn_{next(self._connection_numbers)}"
        connection = Connection(
            connection_id=connection_id, tenant=self.store.tenant(tenant), service=self.service
        )
        client = self._clients[connection_id] = Client(self, connection)
        return client

    @property
    def clients(self) -> list[Client]:
        """All that ever connected."""
        return list(self._clients.values())

    def forget_past(self) -> None:
        """Drop what only tests look at, of clients that have left and of what was asked."""
        self._clients = {k: c for k, c in self._clients.items() if c.connection.num_active}
        self._routes.clear()
        self.reports.clear()
        self.engine.forget_past()

    def sweep(self) -> None:
        """Drop what is older than its time to live."""
        self._submit(self.store.sweep())

    def _submit(self, messages: Sequence[EngineMessage]) -> None:
        self.engine.submit(messages)
        told = self.store.residents.told(self.engine.take_residency())
        assert not told.drops, "no KV costs anything here"

    def carry(self, client: Client, effects: Effects) -> None:
        """Carry out effects and those they lead to."""
        client.events += [json.loads(frame) for frame in effects.frames]
        self._submit(effects.requests)
        for message in effects.requests:
            if isinstance(message, GenerationRequest):
                self._routes[message.request_id] = client
        self.reports += [ended.report for ended in effects.ended]
        if effects.close is not None:
            client.closed = effects.close
        for question in effects.questions:
            self.ask(client, question)
        for other in effects.others:
            told = self._clients[other.connection_id]
            match other:
                case SessionGranted():
                    self.carry(told, told.connection.answer(other.question_id, None))
                case TurnCancel():
                    self.carry(told, told.connection.cancel(other.response_id))
                case TurnChanged():
                    self.carry(told, told.connection.turn_changed(other.log))

    def ask(self, client: Client, question: Question) -> None:
        """Answer a question, or keep it for the test to answer."""
        match question.asked:
            case GrammarSpec() if self.checks_pass:
                self.carry(client, client.connection.answer(question.id, None))
            case GrammarSpec():
                self.checks.append((client, question))
            case ServerReady():
                self.service.ground.writable = True
                self.carry(client, client.connection.answer(question.id, True))
            case Work():
                self.plannings.append((client, question))
                if self.plans_at_once:
                    self.plan_next()
            case _:
                raise AssertionError(f"nobody answers {question.asked!r}")

    def verdict(self, answer: Exception | None, number: int = 0) -> None:
        """Answer the grammar check that waits longest, or another one."""
        client, question = self.checks.pop(number)
        self.carry(client, client.connection.answer(question.id, answer))

    def plan_next(self) -> None:
        """Work out the long plan that waits longest, and hand it back."""
        client, question = self.plannings.pop(0)
        assert isinstance(question.asked, Work)
        try:
            answer = question.asked.call()
        except Exception as error:
            answer = error
        self.carry(client, client.connection.answer(question.id, answer))

    def deliver(self, output: SequenceOutput) -> list[Event]:
        """Hand an output to its connection; returns the events it led to there."""
        client = self._routes[output.request_id]
        before = len(client.events)
        self.carry(client, client.connection.output(output))
        return client.events[before:]

    def emit(
        self,
        text: str,
        finish: FinishReason | None = None,
        request: GenerationRequest | None = None,
        **fields: Any,
    ) -> list[Event]:
        """One engine step for the newest (or the given) request."""
        request = request or self.engine.last
        return self.deliver(self.engine.output(request, token_ids(text), finish, **fields))

    def reply(self, text: str, request: GenerationRequest | None = None) -> list[Event]:
        """The whole output in one step, ended as the model, a stop string or the limit would."""
        finish = FinishReason.STOP if text.endswith(END) else FinishReason.LENGTH
        if text.endswith((request or self.engine.last).sampling.stop or ("\0",)):
            finish = FinishReason.STOP_STRING
        if (request or self.engine.last).max_new_tokens == 0:
            finish = FinishReason.PREFILLED
            text = ""
        return self.emit(text, finish, request)

    def kill_engine(self) -> None:
        self.engine.restart()
        self.store.engine_lost()
        self.store.residents.engine_lost()
        for client in self._clients.values():
            self.carry(client, client.connection.engine_died())
