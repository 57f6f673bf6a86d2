"""Tiers below the device of several ranks: what one of them has lost is computed again by all.

That tokens do not depend on where parts of blocks and of states have been is shown in
``test_tier_identities.py`` and ``test_hybrid_identities.py``.
"""

import random
import shutil
import socket
import threading
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from radix_cache.nodes import Tier
from radix_cache.snapshots import SaveBelow
from radix_cache.transfers import BlockMove
from runtime.config import EngineConfig
from runtime.messages import Loading
from runtime.model.batch import SequenceInput, StepBatch
from runtime.model.config import LoadError
from runtime.model.rank_link import Room, RoomBelow, RunnerBroken
from runtime.model.runner import ModelRunner, load_runner
from runtime.offload.checksums import HostChecksums, HostMemoryDamaged
from runtime.offload.disk import BLOCKS, slot_bytes
from runtime.offload.opening import open_tiers
from runtime.offload.rank_moves import RankMoves
from runtime.process import frames, rank_frames
from runtime.process.frame_socket import receive_frame
from runtime.process.frames import FrameError
from runtime.process.move_messages import MoveOrder
from runtime.process.rank import Meet
from runtime.process.rank_memory import RankMemory
from runtime.process.rank_processes import partition_of
from runtime.process.ranks import MEETING, MET
from tests.support.engine_driver import EngineDriver, Result
from tests.support.executors import Later
from tests.support.thread_ranks import thread_ranks

BLOCK = 4
RANKS = 2
PART_BYTES = 8 * 2 * 2 * 16 * BLOCK
"""Of one rank's block of qwen3-tiny in float64: two layers, keys and values of 16 numbers."""
SLOT_BYTES = slot_bytes(PART_BYTES)
OUTPUT = 6


def start(folder: Path | None, **settings: object) -> EngineDriver:
    defaults: dict[str, object] = {
        "num_blocks": 60,
        "block_size": BLOCK,
        "host_kv_bytes": 60 * PART_BYTES * RANKS,
        "tensor_parallel": RANKS,
    }
    if folder is not None:
        defaults |= {"disk_kv_bytes": 400 * SLOT_BYTES * RANKS, "disk_kv_folder": str(folder)}
    return EngineDriver.load(**(defaults | settings))


def transcripts(count: int, seed: int = 5) -> list[list[int]]:
    """They begin alike, as those of one agent do."""
    rng = random.Random(seed)
    shared = [rng.randrange(32, 127) for _ in range(21)]
    return [shared + [rng.randrange(32, 127) for _ in range(40)] for _ in range(count)]


def first_turns(folder: Path, seed: int = 5) -> list[list[int]]:
    """Eight sessions on an engine that ends in order; returns the prompts of their second turns."""
    driver = start(folder)
    prompts = transcripts(8, seed)
    answers = [driver.turn(prompt, max_new_tokens=OUTPUT).tokens for prompt in prompts]
    driver.close()
    return [prompt + answer + [40, 41] for prompt, answer in zip(prompts, answers, strict=True)]


def second_turns(folder: Path, prompts: list[list[int]]) -> tuple[list[Result], int]:
    """What they are answered on another engine, checked; and how many tokens were found."""
    plain = EngineDriver.load(num_blocks=2000, block_size=BLOCK)
    driver = start(folder)
    results = [driver.turn(prompt, max_new_tokens=OUTPUT) for prompt in prompts]
    driver.engine.check()
    driver.close()
    expected = [plain.turn(prompt, max_new_tokens=OUTPUT).tokens for prompt in prompts]
    assert [result.tokens for result in results] == expected
    return results, sum(result.start.cached_tokens for result in results if result.start)


def test_first_turns_after_a_restart_hit(tmp_path: Path) -> None:
    prompts = first_turns(tmp_path)
    results, _ = second_turns(tmp_path, prompts)
    for prompt, result in zip(prompts, results, strict=True):
        assert result.start is not None
        assert result.start.cached_tokens >= len(prompt) - 3 - 2 * BLOCK


def test_flipped_bits_on_another_ranks_disk_are_computed_again(tmp_path: Path) -> None:
    prompts = first_turns(tmp_path)
    _, whole = second_turns(shutil.copytree(tmp_path, tmp_path.with_name("whole")), prompts)
    with open(tmp_path / "rank-1" / BLOCKS, "r+b") as file:
        for slot in range(0, 400, 3):
            file.seek(slot * SLOT_BYTES + 3000)
            byte = file.read(1)
            file.seek(slot * SLOT_BYTES + 3000)
            file.write(bytes([byte[0] ^ 1]))
    _, found = second_turns(tmp_path, prompts)
    assert 0 < found < whole


def test_other_tokens_on_another_ranks_disk_are_computed_again(tmp_path: Path) -> None:
    """As where the process was killed when one rank had written and another had not."""
    prompts = first_turns(tmp_path / "one")
    first_turns(tmp_path / "other", seed=6)
    shutil.copy(tmp_path / "other" / "rank-1" / BLOCKS, tmp_path / "one" / "rank-1" / BLOCKS)
    _, found = second_turns(tmp_path / "one", prompts)
    driver = start(None)
    alone = [driver.turn(prompt, max_new_tokens=OUTPUT).start for prompt in prompts]
    driver.close()
    assert found <= sum(start.cached_tokens for start in alone if start is not None)


def test_a_folder_that_another_rank_cannot_use_ends_the_start(tmp_path: Path) -> None:
    (tmp_path / "rank-1").write_text("")
    (tmp_path / "keepwarm-kv.json").touch()
    with pytest.raises(LoadError, match=r"^rank 1: .*rank-1"):
        start(tmp_path)


def test_kv_of_other_parts_is_refused(tmp_path: Path) -> None:
    first_turns(tmp_path)
    with pytest.raises(LoadError, match="another model or another layout"):
        start(tmp_path, tensor_parallel=1, host_kv_bytes=60 * PART_BYTES)


def test_one_ranks_part_is_not_anothers(tmp_path: Path) -> None:
    """Their sizes are the same, and so are the words of their configurations."""
    first_turns(tmp_path / "one")
    shutil.copytree(tmp_path / "one" / "rank-1", tmp_path / "other")
    with pytest.raises(LoadError, match="another model or another layout"):
        start(tmp_path / "other")


def test_memory_below_that_holds_no_part_is_refused() -> None:
    with pytest.raises(LoadError, match=f"a block takes {PART_BYTES} on each of 2 ranks"):
        start(None, host_kv_bytes=1 << 10)


def config_of(model: str, **more: int) -> EngineConfig:
    """One rank with a MiB of host memory."""
    settings = {"threads": 1, "host_kv_bytes": 1 << 20, **more}
    return EngineConfig(model=model, dtype="float64", device="cpu", **settings)  # type: ignore[arg-type]


def test_what_does_not_fit_is_refused() -> None:
    config = config_of("random:lfm2-tiny", num_blocks=20, max_running=2)
    runner = load_runner(config)
    memory = RankMemory(runner, lambda: open_tiers(config, runner, None))
    with pytest.raises(FrameError, match="where there is"):
        memory.open_below(RoomBelow(host_blocks=1))
    with pytest.raises(ValueError, match="cannot be brought to"):
        memory.change(SaveBelow(slot=0, target=0, position=900))
    memory.close()
    plain = load_runner(EngineConfig(model="random:qwen3-tiny", device="cpu", num_blocks=20))
    with pytest.raises(ValueError, match="there are none"):
        RankMemory(plain, lambda: open_tiers(config, plain, None)).change(
            SaveBelow(slot=0, target=0, position=16)
        )


def test_an_engine_of_which_a_rank_is_gone_ends_without_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What sessions may come back for cannot be written to all disks any more; the folder is given
    back, and what was written before is found."""
    prompts = first_turns(tmp_path)
    driver = start(tmp_path)
    driver.turn(transcripts(1, seed=9)[0], session="s", max_new_tokens=OUTPUT)

    def gone(*_: object) -> None:
        raise RunnerBroken("rank 1 was killed by SIGKILL")

    with monkeypatch.context() as patch:
        patch.setattr(RankMoves, "tell", gone)
        driver.close()
    _, found = second_turns(tmp_path, prompts)
    assert found > 0


def test_moves_of_a_rank_that_is_gone_are_not_waited_for() -> None:
    ended = threading.Event()

    def ends(connection: socket.socket, meet: Meet) -> None:
        config = frames.decode_config(*receive_frame(connection))
        receive_frame(connection)
        connection.sendall(rank_frames.encode(Loading(stage=MEETING, memory_bytes=0)))
        meet(Path(), config, partition_of(config, 1))
        connection.sendall(rank_frames.encode(Loading(stage=MET, memory_bytes=0)))
        receive_frame(connection)
        ended.wait(10)

    config = EngineConfig(model="random:qwen3-tiny", tensor_parallel=RANKS)
    leading = thread_ranks(config, run=ends)
    assert leading.take_moved(of_states=False) == []
    ended.set()
    with pytest.raises(LoadError, match="rank 1"):
        leading.room(Room(2))
    with pytest.raises(RunnerBroken, match="rank 1"):
        leading.take_moved(of_states=False)
    leading.close()


def move(source: Tier, target: Tier, one: int, other: int) -> MoveOrder:
    return MoveOrder(
        move=BlockMove(
            number=0,
            source=source,
            target=target,
            source_blocks=np.array([one], dtype=np.int32),
            target_blocks=np.array([other], dtype=np.int32),
            content=None,
        ),
        of_states=False,
    )


def opened() -> tuple[ModelRunner, RankMemory]:
    config = config_of("random:qwen3-tiny", num_blocks=20)
    runner = load_runner(config)
    memory = RankMemory(runner, lambda: open_tiers(config, runner, None))
    memory.open_below(open_tiers(config, runner, None).plan)
    blocks = runner.pool.blocks
    blocks.copy_(torch.rand(blocks.shape, dtype=torch.float64))
    return runner, memory


def test_a_block_that_moves_down_and_up_is_the_same() -> None:
    runner, memory = opened()
    before = runner.pool.blocks.clone()
    memory.move(move(Tier.DEVICE, Tier.HOST, 3, 7))
    memory.move(move(Tier.HOST, Tier.DEVICE, 7, 11))
    memory.settle(reads(11))
    before[:, :, 11] = before[:, :, 3]
    assert torch.equal(runner.pool.blocks, before)
    memory.close()


def test_a_step_that_reads_what_was_harmed_is_not_computed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    _, memory = opened()
    memory.move(move(Tier.DEVICE, Tier.HOST, 3, 7))
    monkeypatch.setattr(HostChecksums, "intact", lambda self, places: False)
    memory.move(move(Tier.HOST, Tier.DEVICE, 7, 11))
    with pytest.raises(HostMemoryDamaged, match="not what was written there"):
        memory.settle(reads(11))
    memory.close()


def reads(block: int) -> StepBatch:
    one = SequenceInput(
        tokens=np.array([40], dtype=np.int32),
        start=3,
        block_table=np.array([block], dtype=np.int32),
        num_logits=1,
    )
    return StepBatch.build([one], 16)


def test_a_step_waits_for_the_copy_of_a_state_that_it_writes_on() -> None:
    """With a copying thread that does nothing unless it is waited for."""
    config = config_of("random:lfm2-tiny", num_blocks=20, max_running=2)
    runner, workers = load_runner(config), Later(random.Random(0))
    assert runner.states is not None
    memory = RankMemory(runner, lambda: open_tiers(config, runner, workers))
    memory.open_below(open_tiers(config, runner, None).plan)
    rows = runner.states.rows
    rows[1].fill_(5.0)
    memory.move(replace(move(Tier.DEVICE, Tier.HOST, 1, 0), of_states=True))
    batch = replace(reads(11), state_slots=np.array([1]))
    memory.settle(batch)
    rows[1].fill_(7.0)
    memory.move(replace(move(Tier.HOST, Tier.DEVICE, 0, 2), of_states=True))
    memory.settle(replace(batch, state_slots=np.array([2])))
    assert (rows[2] == 5.0).all()


def test_a_step_waits_for_the_copy_of_rows_whose_window_block_it_writes() -> None:
    """The block itself may be elsewhere in the step's tables, or in none."""
    config = config_of("random:gemma3-tiny", num_blocks=4000, max_running=2, max_batch_tokens=64)
    runner, workers = load_runner(config), Later(random.Random(0))
    assert runner.pool.near is not None
    memory = RankMemory(runner, lambda: open_tiers(config, runner, workers))
    memory.open_below(open_tiers(config, runner, None).plan)
    near = runner.pool.near.groups[0]
    near[:, :, 5] = 5.0
    one, other = (np.array([each], dtype=np.int32) for each in (5, 2))
    down = move(Tier.DEVICE, Tier.HOST, 1, 0)
    memory.move(replace(down, move=replace(down.move, source_near=one, target_near=other)))
    batch = reads(11)
    memory.settle(replace(batch, window=batch.behind(np.array([0]), [one])))
    near[:, :, 5] = 7.0
    up = move(Tier.HOST, Tier.DEVICE, 0, 2)
    nine = np.array([9], dtype=np.int32)
    memory.move(replace(up, move=replace(up.move, source_near=other, target_near=nine)))
    memory.settle(reads(2))
    assert (near[:, :, 9] == 5.0).all()
