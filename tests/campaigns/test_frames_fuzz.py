"""Well-formed frames with wrong contents, between the processes, in both directions.

``tests/unit/runtime/process/test_frames.py`` puts eleven wrong values in every field, one at a
time: FrameError, or what was said. Here what passes goes on: to a real engine, which may answer,
refuse or fail, as its process does before it is replaced; and to the hub, which may replace the
engine and never ends.

KEEPWARM_FUZZ_CASES sets how many frames each direction gets (10^5 for a campaign),
KEEPWARM_FUZZ_SEED where it begins; a failure names its seed.
"""

import asyncio
import os
import random
from collections.abc import Iterator
from typing import Any

import orjson
import pytest

from runtime.messages import (
    Beat,
    CachePicture,
    CancelRequest,
    EngineMessage,
    ErrorKind,
    FinishReason,
    GenerationRequest,
    PictureRequest,
    ReleaseBranch,
    Residency,
    SamplingParams,
    SequenceOutput,
    SequenceStart,
    StepOutput,
    StepStats,
    TokenLogprob,
)
from runtime.process import frames
from runtime.process.engine_process import EngineDied
from sessions.durable.tenant import Tenant
from sessions.pages.metrics import Metrics
from sessions.turns.connection import Connection
from sessions.wire.errands import LongWork
from sessions.wire.hub import Hub
from tests.support.dashboards import make_dashboard
from tests.support.engine_driver import EngineDriver
from tests.support.fake_engine import INFO, HandEngine
from tests.support.mutations import mutant
from tests.support.pictures import picture_node
from tests.support.reading import inline_reading
from tests.support.requests import make_request
from tests.support.sessions_rig import make_service

CASES = int(os.environ.get("KEEPWARM_FUZZ_CASES", "300"))
SEED = int(os.environ.get("KEEPWARM_FUZZ_SEED", "0"))
EXTREMES: tuple[Any, ...] = (0, 1, 15, 16, 271, 272, 2**31 - 1, 2**53, -(2**31), 1e-300, 1e300)
PROMPT = [40, 41, 42, 43, 44]


def split(frame: bytes) -> tuple[bytes, bytes]:
    head, _ = frames.body_sizes(frame[: frames.PREFIX.size])
    return frame[frames.PREFIX.size :][:head], frame[frames.PREFIX.size + head :]


def wrong(frame: bytes, rng: random.Random) -> tuple[bytes, bytes]:
    """A frame with one to three other values in its header, or other tokens in its body."""
    header, body = split(frame)
    value = orjson.loads(header)
    if rng.random() < 0.3 and body:
        at = 4 * rng.randrange(len(body) // 4)
        token = rng.choice([-1, 272, 300, 2**31 - 1, -(2**31)]).to_bytes(4, "little", signed=True)
        return header, body[:at] + token + body[at + 4 :]
    if rng.random() < 0.4:
        header = orjson.dumps(value).replace(
            str(rng.randrange(10)).encode(), orjson.dumps(rng.choice(EXTREMES)), 1
        )
        return header, body
    return orjson.dumps(mutant(value, rng.randrange)), body


# Towards the engine


@pytest.fixture(scope="module")
def truth() -> list[int]:
    driver = EngineDriver.load(num_blocks=64)
    return driver.turn(PROMPT, max_new_tokens=6).tokens


def batches() -> list[list[EngineMessage]]:
    sampling = SamplingParams(temperature=0.7, top_k=5, seed=3, stop=("x",), top_logprobs=2)
    return [
        [make_request(PROMPT, request_id="w1", branch_id="wb", max_new_tokens=6)],
        [make_request(PROMPT, request_id="w2", branch_id="wb", sampling=sampling)],
        [
            make_request(
                PROMPT, request_id="w3", branch_id="wb", base_branch_id="wb", base_offset=3
            ),
            CancelRequest(request_id="w1"),
            ReleaseBranch(branch_id="wb"),
            PictureRequest(tenant="acme", max_nodes=4),
        ],
    ]


def test_whatever_an_engine_is_told_the_next_request_has_its_tokens(truth: list[int]) -> None:
    """An engine that raises is replaced, as its process is; one that goes on is right."""
    refused = replaced = taken = 0
    driver = EngineDriver.load(num_blocks=64)
    for case in range(CASES):
        seed = SEED + case
        rng = random.Random(seed)
        frame = frames.encode_messages(rng.choice(batches()))
        try:
            messages = frames.decode_messages(*wrong(frame, rng))
        except frames.FrameError:
            refused += 1
            continue
        try:
            driver.engine.submit(messages)
            for _ in range(4):
                if driver.engine.has_work:
                    driver.engine.step()
            told = [m for m in messages if isinstance(m, GenerationRequest)]
            driver.engine.submit([CancelRequest(request_id=m.request_id) for m in told])
            driver.engine.submit([ReleaseBranch(branch_id=m.branch_id) for m in told])
            driver.engine.check()
        except AssertionError as error:
            raise AssertionError(f"seed {seed}: {error}") from error
        except Exception:
            replaced += 1
            driver = EngineDriver.load(num_blocks=64)
        taken += 1
        if taken % 10 == 0:
            assert driver.turn(PROMPT, max_new_tokens=6).tokens == truth, f"seed {seed}"
    assert driver.turn(PROMPT, max_new_tokens=6).tokens == truth
    assert refused > CASES // 10, "hardly a frame was wrong"
    assert taken > CASES // 10, "hardly a frame got through"
    assert replaced < CASES // 10, f"{replaced} of {CASES} frames end an engine"


# Towards the front end


class Outlet:
    """Takes what a client would get."""

    def __init__(self) -> None:
        self.frames: list[bytes] = []
        self.closed: int | None = None

    def deliver(self, out: Any, close: int | None) -> None:
        self.frames += out
        self.closed = close if close is not None else self.closed


NODE = picture_node()


def reports(request_id: str) -> Iterator[bytes]:
    start = SequenceStart(input_tokens=9, cached_tokens=4, queue_s=0.25, miss_causes={"new": 5})
    logprobs = (TokenLogprob(token=1, logprob=-0.5, top=((1, -0.5),)),)
    new = make_request(PROMPT).new_tokens
    for output in (
        SequenceOutput(request_id=request_id, new_tokens=new, start=start),
        SequenceOutput(request_id=request_id, new_tokens=new[:1], logprobs=logprobs),
        SequenceOutput(request_id=request_id, new_tokens=new[:1], finish=FinishReason.STOP),
        SequenceOutput(
            request_id=request_id,
            new_tokens=new[:0],
            finish=FinishReason.ERROR,
            error=ErrorKind.INTERNAL,
            error_message="no",
        ),
        SequenceOutput(request_id=request_id, new_tokens=new[:0], queue_position=3),
    ):
        yield frames.encode_step(StepOutput(outputs=(output,), stats=StepStats(steps_s=[0.5])))
    yield frames.encode_step(
        StepOutput(
            outputs=(),
            stats=StepStats(),
            pictures=(CachePicture(tenant="acme", nodes=(NODE,), num_nodes=0),),
            residency=(Residency(branch_id="b", block_us=7),),
        )
    )
    yield frames.encode_beat(Beat(turn=7, working=True))


class SaidEngine(HandEngine):
    """Says what its peer's bytes are decoded to, as ``EngineProcess`` does."""

    def say_bytes(self, header: bytes, body: bytes) -> bool:
        """Returns whether it was a frame."""
        try:
            report = frames.decode_report(header, body)
        except frames.FrameError as error:
            self._said.put_nowait(EngineDied(str(error)))
            return False
        if isinstance(report, StepOutput):
            self._said.put_nowait(report)
        return True


async def _told(cases: int) -> None:
    engine, ids = SaidEngine(), iter(range(1 << 30))
    service = make_service(lambda: float(next(ids)))

    def connect(connection_id: str, tenant: Tenant) -> Connection:
        return Connection(connection_id=connection_id, tenant=tenant, service=service)

    async def no_pause(_: float) -> None:
        await asyncio.sleep(0)

    hub = Hub(
        engine=engine,
        store=service.store,
        connect=connect,
        long_work=LongWork(
            check_grammar=None,  # type: ignore[arg-type]
            reading=inline_reading(service.read_context),
        ),
        metrics=Metrics(),
        dashboard=make_dashboard(service.clock),
        clock=service.clock,
        pause=no_pause,
    )
    hub.engine_ready(INFO)
    running = asyncio.get_running_loop().create_task(hub.run())
    for case in range(cases):
        seed = SEED + case
        rng = random.Random(seed)
        outlet = Outlet()
        link = hub.open("acme", outlet)
        hub.receive(link, '{"type": "response.create", "input": "hi", "max_output_tokens": 40}')
        await asyncio.sleep(0)
        for _ in range(3):
            asked = engine.sent_ids(GenerationRequest)
            frame = rng.choice(list(reports(asked[-1])))
            engine.say_bytes(*wrong(frame, rng))
            for _ in range(6):
                await asyncio.sleep(0)
            assert not running.done(), f"seed {seed}: the hub ended"
        engine.die()
        for _ in range(8):
            await asyncio.sleep(0)
        assert not running.done(), f"seed {seed}: the hub ended"
        ended = [f for f in outlet.frames if _is_terminal(f)]
        refused = [f for f in ended if orjson.loads(f).get("status") == 500]
        assert not refused, f"seed {seed}: {refused}"
        assert len(ended) == 1 or outlet.closed is not None, f"seed {seed}: {ended}"
        hub.disconnected(link)
        engine.batches.clear()
    assert engine.restarts >= cases
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


def _is_terminal(frame: bytes) -> bool:
    kinds = {"response.completed", "response.incomplete", "response.failed", "error"}
    return orjson.loads(frame)["type"] in kinds


def test_whatever_an_engine_says_the_hub_goes_on_and_each_turn_ends_once() -> None:
    asyncio.run(_told(CASES))
