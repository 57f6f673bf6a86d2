"""Ranks as processes, behind the engine's: what one rank answers, and whichever of them is killed.

One that is stopped is in ``tests/faults/test_rank_faults.py``.
"""

import asyncio
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from radix_cache.snapshots import SaveState
from runtime.config import EngineConfig
from runtime.messages import SamplingParams
from runtime.model.runner import load_runner
from runtime.offload.opening import KVTiers
from runtime.process.engine_process import EngineDied, EngineProcess, EngineStartError
from runtime.process.frames import FrameError
from runtime.process.rank import follow
from runtime.process.rank_memory import RankMemory
from runtime.process.step_channel import (
    ChangeOrder,
    Order,
    StepOrder,
    encode_change,
    encode_end,
    encode_step,
    read_order,
)
from tests.support.inline_engine import InlineEngine
from tests.support.rank_groups import NoLink
from tests.support.requests import make_request
from tests.support.step_orders import (
    LIMITS,
    WITH_STATES,
    order_of,
    random_batch,
    random_change,
    reader,
    spoil,
    with_states,
)

ONE = EngineConfig(
    model="random:qwen3-tiny-4",
    dtype="float64",
    device="cpu",
    num_blocks=64,
    threads=1,
    startup_profile_ms=0,
)
TWO = replace(ONE, tensor_parallel=2)
TOLD_S = 5.0
LOADS_S = 60.0
NOTHING = np.empty(0, dtype=np.int64)

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="looks at Linux's processes")


async def tokens_of(engine: EngineProcess | InlineEngine, name: str, count: int = 12) -> list[int]:
    sampling = SamplingParams(temperature=1.0, seed=3)
    engine.send(
        [
            make_request(
                [number + len(name) for number in range(20)],
                request_id=name,
                branch_id=name,
                max_new_tokens=count,
                sampling=sampling,
                banned_tokens=(258,),
            )
        ]
    )
    tokens: list[int] = []
    while True:
        for output in (await engine.receive()).outputs:
            tokens += output.new_tokens.tolist()
            if output.finish is not None:
                return tokens


def others_of(process_id: int) -> list[int]:
    """The other ranks' processes."""
    children = Path(f"/proc/{process_id}/task/{process_id}/children").read_text().split()
    return [int(child) for child in children]


def lives(process_id: int) -> bool:
    """Whether it is there and no mere remainder."""
    try:
        stat = Path(f"/proc/{process_id}/stat").read_text()
    except OSError:
        return False
    return stat.rpartition(")")[2].split()[0] != "Z"


async def until(come: Callable[[], bool], within_s: float = TOLD_S) -> None:
    async with asyncio.timeout(within_s):
        while not come():
            await asyncio.sleep(0.01)


@asynccontextmanager
async def started(config: EngineConfig) -> AsyncIterator[EngineProcess]:
    engine = EngineProcess(config)
    await engine.start()
    try:
        yield engine
    finally:
        await engine.stop()


@pytest.fixture(autouse=True)
def meeting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where ranks make the folders that they meet in."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", None)  # which remembers the place
    return tmp_path


async def _one_rank(model: str, name: str) -> list[int]:
    engine = InlineEngine(replace(ONE, model=model))
    await engine.start()
    tokens = await tokens_of(engine, name)
    await engine.stop()
    return tokens


async def _ended(engine: EngineProcess, within_s: float) -> str:
    """Why the engine has ended, in words."""
    try:
        async with asyncio.timeout(within_s):
            while True:
                await engine.receive()
    except EngineDied as died:
        return str(died)


async def _faults(model: str, meeting: Path, capfd: pytest.CaptureFixture[str]) -> None:
    expected = [await _one_rank(model, "a"), await _one_rank(model, "bb")]
    async with started(replace(TWO, model=model)) as engine:
        assert engine.process_id is not None
        assert not list(meeting.iterdir())
        assert await tokens_of(engine, "a") == expected[0]
        # One rank is killed in mid-turn.
        (other,) = others_of(engine.process_id)
        turn = asyncio.create_task(tokens_of(engine, "lost", 900))
        await asyncio.sleep(0.05)
        os.kill(other, signal.SIGKILL)
        began = time.monotonic()
        with pytest.raises(EngineDied, match="exit status 1"):
            await turn
        assert time.monotonic() - began < TOLD_S
        assert "rank 1 was killed by SIGKILL" in capfd.readouterr().err
        await engine.restart()
        assert await tokens_of(engine, "bb") == expected[1]
        # The leading rank is killed while none of them does anything.
        leading = engine.process_id
        (other,) = others_of(leading)
        os.kill(leading, signal.SIGKILL)
        assert "killed by SIGKILL" in await _ended(engine, TOLD_S)
        await until(lambda: not lives(other))
        assert not list(meeting.iterdir())


@pytest.mark.tail
@pytest.mark.parametrize("model", ["random:qwen3-tiny-4", "random:qwen3.5-tiny"])
def test_two_processes_answer_as_one_and_end_together_whichever_is_lost(
    model: str, meeting: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    run: Coroutine[None, None, None] = _faults(model, meeting, capfd)
    asyncio.run(run)


def test_a_living_rank_refuses_what_no_step_can_be_and_writes_only_what_it_is_told() -> None:
    """300 spoilt messages to one loaded part, which goes on with a whole one behind each."""
    runner = load_runner(replace(ONE, num_blocks=LIMITS.num_blocks, block_size=LIMITS.block_size))
    memory = RankMemory(runner, no_tiers)
    blocks, rng, refused = runner.pool.blocks, random.Random(7), 0
    limits = replace(LIMITS, max_context_tokens=runner.model.config.max_context_tokens)
    for _ in range(300):
        data = bytearray(encode_step(order_of(random_batch(rng))))
        spoil(rng, data)
        said = bytes(data) + encode_end()
        blocks.zero_()
        try:
            order = read_order(reader(said), limits, 0)
            told = order.batch.slots if isinstance(order, StepOrder) else NOTHING
        except (FrameError, EOFError):
            told = NOTHING
        written = set((told // LIMITS.block_size).tolist())
        try:
            follow(runner, memory, reader(said), NoLink())
        except (FrameError, EOFError, KeyError):  # perhaps what lies behind a step
            refused += 1
        touched = blocks.flatten(3).abs().sum(dim=(0, 1, 3)).nonzero().flatten().tolist()
        assert set(touched) <= written
    assert refused > 100
    whole = encode_step(order_of(random_batch(rng)))
    follow(runner, memory, reader(whole + encode_end()), NoLink())


def test_a_living_rank_changes_no_state_but_those_that_it_is_told() -> None:
    """400 steps and orders, spoilt, to one loaded part of a hybrid, whose states are marked."""
    config = replace(ONE, model="random:lfm2-tiny", num_blocks=40, block_size=LIMITS.block_size)
    runner = load_runner(replace(config, state_slots=9, max_running=3))
    memory = RankMemory(runner, no_tiers)
    states, tails = runner.states, runner.tails
    assert states is not None
    assert tails is not None
    limits = replace(WITH_STATES, max_context_tokens=runner.model.config.max_context_tokens)
    rng, refused, changed = random.Random(11), 0, 0
    for _ in range(400):
        batch = with_states(rng, random_batch(rng))
        orders = rng.random() < 0.7
        sent = encode_change(random_change(rng)) if orders else encode_step(order_of(batch))
        data = bytearray(sent)
        if rng.random() < 0.6:
            spoil(rng, data)
        said = bytes(data) + encode_end()
        try:
            told = _slots_of(read_order(reader(said), limits, 0))
        except (FrameError, EOFError):
            told = set()
        states.rows[:9] = torch.rand(9, 1, dtype=torch.float64)
        tails.blocks.zero_()
        before = states.rows.clone()
        try:
            follow(runner, memory, reader(said), NoLink())
        except (FrameError, EOFError, KeyError, ValueError):
            refused += 1
        touched = (states.rows != before).any(dim=1).nonzero().flatten().tolist()
        tailed = tails.blocks.flatten(3).abs().sum(dim=(0, 1, 3)).nonzero().flatten().tolist()
        changed += bool(touched)
        assert set(touched) <= told
        assert set(tailed) <= told
    assert refused > 100
    assert changed > 15


def no_tiers() -> KVTiers:
    raise AssertionError("nobody has ordered any")


def _slots_of(order: Order) -> set[int]:
    """Slots that a message may write."""
    if isinstance(order, StepOrder):
        return {slot for slot in order.batch.state_slots.tolist() if slot >= 0}
    if not isinstance(order, ChangeOrder):
        return set()
    change = order.change
    return {change.slot} | ({change.target} if isinstance(change, SaveState) else set())


async def _refused(config: EngineConfig) -> str:
    with pytest.raises(EngineStartError) as refused:
        await EngineProcess(config).start()
    return str(refused.value)


def test_a_model_that_cannot_be_cut_is_refused_in_one_line(meeting: Path) -> None:
    said = asyncio.run(_refused(replace(TWO, tensor_parallel=3)))
    assert said == (
        "random:qwen3-tiny-4: --tensor-parallel 3 cannot be had: 4 heads are not a multiple of 3; "
        "what can be had: 2, 4"
    )
    assert not list(meeting.iterdir())


def _has_others(process_id: int) -> bool:
    return any("runtime.process.rank" in _words(child) for child in others_of(process_id))


def _words(process_id: int) -> list[str]:
    return Path(f"/proc/{process_id}/cmdline").read_text().split("\0")


async def _given_up(meeting: Path) -> None:
    """A start that is given up while its ranks are on their way to each other."""
    engine = EngineProcess(TWO)
    starting = asyncio.create_task(engine.start())
    await until(lambda: engine.process_id is not None and _has_others(engine.process_id), LOADS_S)
    assert engine.process_id is not None
    (other,) = others_of(engine.process_id)
    assert list(meeting.iterdir())
    starting.cancel()
    await asyncio.gather(starting, return_exceptions=True)
    await engine.stop()
    assert not list(meeting.iterdir())
    await until(lambda: not lives(other), LOADS_S)  # it notices once it has imported torch


@pytest.mark.tail
def test_a_start_that_is_given_up_leaves_neither_rank_nor_folder(meeting: Path) -> None:
    asyncio.run(_given_up(meeting))


async def _dies_on_its_way(meeting: Path) -> None:
    engine = EngineProcess(TWO)
    starting = asyncio.create_task(engine.start())
    await until(lambda: engine.process_id is not None and _has_others(engine.process_id), LOADS_S)
    assert engine.process_id is not None
    os.kill(engine.process_id, signal.SIGKILL)
    with pytest.raises(EngineStartError, match="killed by SIGKILL"):
        await starting
    assert not list(meeting.iterdir())


def test_a_leading_rank_that_is_killed_while_it_loads_leaves_no_folder(meeting: Path) -> None:
    asyncio.run(_dies_on_its_way(meeting))


@pytest.mark.tail
def test_one_rank_has_no_further_process_and_loads_nothing_of_ranks() -> None:
    program = (
        "import sys\n"
        "from runtime.config import EngineConfig\n"
        "from runtime.process.loading import load_engine\n"
        f"load_engine({ONE!r})\n"
        "loaded = {'runtime.process.ranks', 'runtime.model.rank_sum', 'runtime.model.rank_group'}\n"
        "sys.exit(str(loaded & sys.modules.keys()) if loaded & sys.modules.keys() else 0)\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True)
