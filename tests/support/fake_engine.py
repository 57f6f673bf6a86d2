"""Stand-ins for what the hub sits between: an engine by hand, a connection that obeys.

``HandEngine`` says what the test tells it to say. ``EchoConnection`` has the interface of
``sessions.turns.connection.Connection`` and a language of one line per frame, so that a test of
sockets needs neither a model nor the protocol.
"""

import asyncio
from collections.abc import Callable, Coroutine, Iterable
from typing import Any, Protocol, TypeVar

import numpy as np
import orjson

from runtime.grammar.refusal import GrammarRefused
from runtime.messages import (
    CancelRequest,
    EngineInfo,
    EngineMessage,
    FinishReason,
    GenerationRequest,
    Residency,
    SequenceOutput,
    StepOutput,
    StepStats,
)
from runtime.process.engine_process import EngineDied, EngineStartError
from sessions.durable.ledger import TurnReport, TurnUsage
from sessions.durable.tenant import Tenant
from sessions.turns.effects import Effects, Question, SessionGranted, TurnCancel, TurnEnded, Work
from sessions.turns.reading import Read
from sessions.turns.turn_plan import TurnPlan
from tests.support.requests import make_request
from tools_api.errors import ApiError
from tools_api.grammar import GrammarSpec

INFO = EngineInfo(
    model_name="by-hand",
    device="cpu",
    dtype="float32",
    vocab_size=300,
    max_context_tokens=1000,
    block_size=16,
    kv_capacity_tokens=4096,
    num_parameters=10,
    load_s=0.0,
)


class Bench(Protocol):
    """A hub that runs, with what a test puts around it."""

    task: asyncio.Task[None]


AnyBench = TypeVar("AnyBench", bound=Bench)


def play(
    make: Callable[[], AnyBench], scenario: Callable[[AnyBench], Coroutine[Any, Any, None]]
) -> None:
    """Run ``scenario`` with a bench of its own, made in the event loop, and stop its hub."""

    async def main() -> None:
        bench = make()
        try:
            await scenario(bench)
        finally:
            bench.task.cancel()
            await asyncio.gather(bench.task, return_exceptions=True)

    asyncio.run(main())


def tokens(request_id: str, count: int = 1, finish: FinishReason | None = None) -> SequenceOutput:
    """What one step gave one request."""
    new = np.arange(count, dtype=np.int32)
    return SequenceOutput(request_id=request_id, new_tokens=new, finish=finish)


class HandEngine:
    """An engine that says what it is told, and keeps what it was sent in ``batches``."""

    def __init__(self) -> None:
        self.batches: list[list[EngineMessage]] = []
        self.restarts = 0
        self.stopped = False
        self.start_errors: list[Exception] = []
        """Raised by the next restarts, first one first."""
        self._said: asyncio.Queue[StepOutput | EngineDied] = asyncio.Queue()

    @property
    def sent(self) -> list[EngineMessage]:
        return [message for batch in self.batches for message in batch]

    def sent_ids(self, kind: type[GenerationRequest] | type[CancelRequest]) -> list[str]:
        return [message.request_id for message in self.sent if isinstance(message, kind)]

    def say(self, *outputs: SequenceOutput, stats: StepStats | None = None) -> None:
        self._said.put_nowait(StepOutput(outputs=outputs, stats=stats or StepStats()))

    def tell_of(self, *residency: Residency) -> None:
        self._said.put_nowait(StepOutput(outputs=(), stats=StepStats(), residency=residency))

    def die(self) -> None:
        self._said.put_nowait(EngineDied("told to"))

    async def start(self) -> EngineInfo:
        return INFO

    def send(self, messages: list[EngineMessage]) -> None:
        self.batches.append(messages)

    async def receive(self) -> StepOutput:
        said = await self._said.get()
        if isinstance(said, EngineDied):
            raise said
        return said

    async def restart(self) -> EngineInfo:
        self.restarts += 1
        if self.start_errors:
            raise self.start_errors.pop(0)
        return INFO

    async def stop(self) -> None:
        self.stopped = True


class EchoEngine(HandEngine):
    """Answers each generation with ``num_steps`` steps of one token by itself."""

    def __init__(self, num_steps: int = 3) -> None:
        super().__init__()
        self._num_steps = num_steps

    def send(self, messages: list[EngineMessage]) -> None:
        super().send(messages)
        for message in messages:
            if isinstance(message, GenerationRequest):
                for step in range(self._num_steps):
                    last = step == self._num_steps - 1
                    self.say(tokens(message.request_id, 1, FinishReason.STOP if last else None))


def not_started(reason: str) -> EngineStartError:
    return EngineStartError(reason)


def _no_plan() -> TurnPlan:
    raise ValueError("no plan")


class EchoConnection:
    """Obeys frames such as ``go a b``: starts turns a and b. Others: ``say x``, ``fill n``
    (n bytes), ``check a``, ``plan a``, ``wake c``, ``stop c a`` (turn a of
    connection c), ``error code``, ``boom``, ``end code``."""

    def __init__(self, connection_id: str, tenant: Tenant) -> None:
        self.id = connection_id
        self.tenant = tenant.name
        self.calls: list[str] = []
        self.running: set[str] = set()
        self.draining = False
        self.asked: list[str] = []
        """Questions that it withdraws when its client leaves."""
        self.work: Callable[[], TurnPlan] = _no_plan
        """What a plan takes."""

    def ask_under(self, key_name: str, http_request: str = "") -> None:
        self.key_name, self.http_request = key_name, http_request

    @property
    def num_active(self) -> int:
        return len(self.running)

    def receive(self, frame: str | bytes) -> Effects:
        text = frame if isinstance(frame, str) else frame.decode()
        self.calls.append(text if len(text) < 100 else f"{len(text)} characters")
        match text.split():
            case ["go", *ids]:
                self.running.update(ids)
                frames = tuple(f"created {id_}".encode() for id_ in ids)
                return Effects(
                    frames=frames, requests=tuple(make_request(request_id=id_) for id_ in ids)
                )
            case ["say", *words]:
                return Effects(frames=tuple(word.encode() for word in words))
            case ["fill", number]:
                return Effects(frames=(b"x" * int(number),))
            case ["check", id_]:
                spec = GrammarSpec(lark=f"start: {id_}")
                self.asked.append(id_)
                return Effects(questions=(Question(id_, spec),))
            case ["withdraw", id_]:
                return Effects(withdrawn=(id_,))
            case ["plan", id_]:
                self.asked.append(id_)
                return Effects(questions=(Question(id_, Work(self.work)),))
            case ["stop", connection_id, id_]:
                return Effects(others=(TurnCancel(connection_id, id_),))
            case ["wake", *ids]:
                return Effects(others=tuple(SessionGranted(id_, "turn") for id_ in ids))
            case ["error", code]:
                event = {"type": "error", "status": 400, "error": {"code": code}}
                return Effects(frames=(orjson.dumps(event),))
            case ["boom"]:
                raise RuntimeError("boom")
            case ["end", code]:
                return Effects(frames=(b"bye",), close=int(code))
            case _:
                return Effects(frames=(f"{len(text)} characters".encode(),))

    def receive_parsed(self, read: Read, num_bytes: int) -> Effects:
        content = read.content
        told = content.code if isinstance(content, ApiError) else type(content).__name__
        self.calls.append(f"took {told}")
        return Effects(frames=(f"read {num_bytes} bytes".encode(),))

    def cancel(self, response_id: str) -> Effects:
        self.running.discard(response_id)
        return Effects(
            frames=(f"cancelled {response_id}".encode(),),
            requests=(CancelRequest(request_id=response_id),),
        )

    def output(self, output: SequenceOutput) -> Effects:
        frames = [f"{output.request_id} +{len(output.new_tokens)}".encode()]
        if output.finish is None:
            return Effects(frames=tuple(frames))
        if output.finish is FinishReason.UNKNOWN_BASE:
            return Effects(requests=(make_request(request_id=output.request_id),))
        self.running.discard(output.request_id)
        frames.append(f"done {output.request_id}".encode())
        return Effects(
            frames=tuple(frames),
            ended=(TurnEnded(report=_report(self.tenant, output.request_id), terminal=b""),),
            close=1012 if self.draining and not self.running else None,
        )

    def answer(self, question_id: str, answer: object) -> Effects:
        self.calls.append(f"answer {question_id}")
        told = f"{question_id}: {answer!r}"
        if isinstance(answer, GrammarRefused):
            told = f"{question_id}: {answer.reason} {answer.block} {answer.path}"
        return Effects(frames=(told.encode(),))

    def engine_died(self) -> Effects:
        self.calls.append("engine_died")
        return Effects(frames=tuple(self._fail_all()))

    def tick(self) -> Effects:
        self.calls.append("tick")
        return Effects()

    def drain(self) -> Effects:
        self.draining = True
        return Effects(close=None if self.running else 1012)

    def close(self) -> Effects:
        self.calls.append("close")
        cancels = tuple(CancelRequest(request_id=id_) for id_ in sorted(self.running))
        self.running.clear()
        return Effects(requests=cancels, withdrawn=tuple(self.asked))

    def _fail_all(self) -> Iterable[bytes]:
        failed = [f"failed {id_}".encode() for id_ in sorted(self.running)]
        self.running.clear()
        return failed


def _report(tenant: str, request_id: str) -> TurnReport:
    return TurnReport(
        tenant=tenant,
        session=request_id,
        turn=1,
        response_id=request_id,
        status="completed",
        reason=None,
        usage=TurnUsage(input_tokens=3, output_tokens=1),
        cost=0,
        saved=0,
        queue_s=0.0,
        ttft_s=0.1,
        total_s=0.2,
    )
