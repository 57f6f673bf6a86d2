"""With host memory and disk below a pool that is too small, tokens are those of a plain run.

Copies and the disk finish at random times; turns are continued, forked and rewound. One test
plays the fleet of sessions that the tiers are for, and one ends the engine and starts it again.
"""

import errno
import os
import random
from collections import OrderedDict
from fractions import Fraction
from pathlib import Path

import pytest
import torch

from runtime.messages import FinishReason, SamplingParams
from runtime.model import window_plan
from runtime.model.kv_pool import block_bytes
from runtime.model.presets import random_model_config
from runtime.offload.checksums import HostChecksums, HostMemoryDamaged
from runtime.offload.disk import BLOCKS, slot_bytes
from tests.support.engine_driver import EngineDriver
from tests.support.executors import AtOnce, Later
from tests.support.preset_kinds import COMPRESSED, EXPERTS, GEMMA4, LATENT

BLOCK = 4
BLOCK_BYTES = 8 * 2 * 2 * 32 * BLOCK
"""Of qwen3-tiny in float64: two layers, keys and values of 32 numbers a token."""
SLOT_BYTES = slot_bytes(BLOCK_BYTES)
OUTPUT = 6
WINDOWED = ("gemma3-tiny", "gpt-oss-tiny", "deepseek-v4-tiny")


def words(rng: random.Random, count: int) -> list[int]:
    return [rng.randrange(32, 127) for _ in range(count)]


def play(
    seed: int,
    *,
    host_blocks: int,
    disk_blocks: int,
    folder: Path,
    num_blocks: int,
    kind: str = "qwen3-tiny",
    ranks: int = 1,
    steps: tuple[int, ...] = (16, 64, 512),
) -> tuple[list[list[int]], EngineDriver]:
    """A random schedule of turns; returns the tokens of each, in order of arrival."""
    size = block_bytes(random_model_config(kind), BLOCK, torch.float64)
    rng = random.Random(seed)
    workers = Later(random.Random(seed))
    driver = EngineDriver.load(
        workers=workers,
        model=f"random:{kind}",
        num_blocks=num_blocks,
        block_size=BLOCK,
        max_batch_tokens=rng.choice(steps),
        max_running=rng.choice([1, 3]),
        output_reserve_percent=rng.choice([0, 100]),
        session_context_percent=10_000,
        policy=rng.choice(["fcfs", "short_turn_first", "fair"]),
        cache_policy=rng.choice(["lru", "lease"]),
        host_kv_bytes=host_blocks * size,
        disk_kv_bytes=disk_blocks * slot_bytes(size),
        disk_kv_folder=str(folder) if disk_blocks else None,
        max_draft_tokens=rng.choice([0, 8]),
        tensor_parallel=ranks,
    )
    rng = random.Random(seed + 1000)
    sessions: dict[str, list[int]] = {}
    open_turns: dict[str, tuple[str, list[int]]] = {}
    names: list[str] = []
    shared = words(rng, 18)

    def step() -> None:
        workers.run_some()
        driver.step()

    def settle() -> None:
        for name in [n for n in open_turns if driver.results[n].finish is not None]:
            session, prompt = open_turns.pop(name)
            sessions[session] = prompt + driver.results[name].tokens

    def finish() -> None:
        for _ in range(20_000):
            if not driver.engine.has_work:
                return
            step()
        raise AssertionError("still busy")

    while len(names) < 40:
        session, base, known = f"s{rng.randrange(14)}", None, [*shared]
        if session in (s for s, _ in open_turns.values()):
            finish()
            settle()
        if session in sessions:
            base, known = session, sessions[session]
            if rng.random() < 0.2 or len(known) > 70:
                known = known[: rng.randint(1, 40)]
        new = words(rng, rng.randint(1, 12))
        name = driver.request(
            new if base else known + new,
            session=session,
            base=base,
            offset=len(known) if base else 0,
            max_new_tokens=rng.randint(1, 8),
            sampling=SamplingParams(temperature=rng.choice([0.0, 1.0]), seed=rng.getrandbits(60)),
            expected_tool_s=rng.choice([None, 0.05, 1.0]),
            expects_tool_call=rng.random() < 0.5,
        )
        names.append(name)
        open_turns[name] = (session, known + new)
        for _ in range(rng.randint(0, 30)):
            step()
        driver.engine.check()
        settle()
    finish()
    driver.engine.check()
    assert all(driver.results[n].finish is FinishReason.LENGTH for n in names)
    workers.hurry()
    driver.engine.close()
    return [driver.results[n].tokens for n in names], driver


@pytest.mark.tail
@pytest.mark.parametrize("seed", range(4))
@pytest.mark.samples(2)
def test_tokens_do_not_depend_on_where_kv_has_been(seed: int, tmp_path: Path) -> None:
    plain, _ = play(seed, host_blocks=0, disk_blocks=0, folder=tmp_path, num_blocks=2000)
    hosted, driver = play(seed, host_blocks=60, disk_blocks=0, folder=tmp_path, num_blocks=30)
    assert hosted == plain
    assert driver.host_hits > 0, "nothing came back from host memory"
    stored, driver = play(seed, host_blocks=40, disk_blocks=300, folder=tmp_path, num_blocks=30)
    assert stored == plain
    assert driver.host_hits > 0, "nothing came back"


@pytest.mark.parametrize("kind", [*LATENT, *COMPRESSED, *EXPERTS, *GEMMA4])
def test_tokens_do_not_depend_on_where_rows_of_another_kind_have_been(
    kind: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    seed = request.config.getoption("--seed")
    sizes = {"folder": tmp_path, "kind": kind}
    plain, _ = play(seed, host_blocks=0, disk_blocks=0, num_blocks=2000, **sizes)
    stored, driver = play(seed, host_blocks=40, disk_blocks=300, num_blocks=30, **sizes)
    assert stored == plain
    assert driver.host_hits > 0, "nothing came back"


@pytest.mark.parametrize(("kind", "ranks"), [("qwen3-tiny-4", 4), ("deepseek-v2-tiny", 2)])
def test_tokens_do_not_depend_on_where_parts_of_ranks_have_been(
    kind: str, ranks: int, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    seed = request.config.getoption("--seed")
    sizes = {"folder": tmp_path, "kind": kind}
    plain, _ = play(seed, host_blocks=0, disk_blocks=0, num_blocks=2000, **sizes)
    hosted, driver = play(seed, host_blocks=60, disk_blocks=0, num_blocks=30, ranks=ranks, **sizes)
    assert hosted == plain
    assert driver.host_hits > 0, "nothing came back from host memory"
    stored, driver = play(
        seed, host_blocks=40, disk_blocks=300, num_blocks=30, ranks=ranks, **sizes
    )
    assert stored == plain
    assert driver.host_hits > 0, "nothing came back"


@pytest.fixture
def _few_window_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(window_plan, "_RUNNING", 1)
    monkeypatch.setattr(window_plan, "_LEAST_SHARE", Fraction(1, 4))


@pytest.mark.usefixtures("_few_window_blocks")
@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("kind", WINDOWED)
def test_tokens_do_not_depend_on_where_rows_of_windows_have_been(
    kind: str, seed: int, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    seed += 2 * request.config.getoption("--seed")
    sizes = {"folder": tmp_path, "kind": kind, "steps": (8, 16)}
    plain, driver = play(seed, host_blocks=0, disk_blocks=0, num_blocks=2000, **sizes)
    hosted, driver = play(seed, host_blocks=60, disk_blocks=0, num_blocks=60, **sizes)
    assert hosted == plain
    windows = driver.engine.memory.cache.windows
    assert windows is not None, "every block has rows of all layers"
    assert windows.total < 60
    assert driver.host_hits > 0, "nothing came back from host memory"
    stored, driver = play(seed, host_blocks=20, disk_blocks=300, num_blocks=60, **sizes)
    assert stored == plain
    assert driver.host_hits > 0, "nothing came back"


@pytest.mark.usefixtures("_few_window_blocks")
@pytest.mark.parametrize("kind", WINDOWED)
def test_tokens_do_not_depend_on_where_ranks_have_had_rows_of_windows(
    kind: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    seed = request.config.getoption("--seed")
    sizes = {"folder": tmp_path, "kind": kind, "steps": (8, 16)}
    plain, _ = play(seed, host_blocks=0, disk_blocks=0, num_blocks=2000, **sizes)
    stored, driver = play(seed, host_blocks=20, disk_blocks=300, num_blocks=60, ranks=2, **sizes)
    assert stored == plain
    windows = driver.engine.memory.cache.windows
    assert windows is not None, "every block has rows of all layers"
    assert driver.host_hits > 0, "nothing came back"


class Fleet:
    """Sessions whose turns come at random, at most ten at once, with random pauses."""

    def __init__(
        self, driver: EngineDriver, seed: int, *, sessions: int, in_order: bool = False
    ) -> None:
        self.driver = driver
        self.rng = random.Random(seed)
        self.transcripts: list[list[int]] = [words(self.rng, 24) for _ in range(sessions)]
        self.held = [0] * sessions
        """Tokens of each transcript that the engine has seen."""
        self.open: dict[str, int] = {}
        self.prompts: dict[str, list[int]] = {}
        self.sessions: dict[str, int] = {}
        self.in_order = in_order
        self.passed_over = ""
        self.stalls = 0

    def play(self, turns: int) -> None:
        driver, rng = self.driver, self.rng
        while len(self.prompts) < turns or self.open:
            while len(self.prompts) < turns and len(self.open) < 10 and rng.random() < 0.8:
                self._begin(self._next_session())
            for _ in range(rng.randint(1, 6)):
                self._step()
            driver.clock.advance(rng.choice([0.0, 0.1, 2.0]))
            for name in [n for n in self.open if driver.results[n].finish is not None]:
                number = self.open.pop(name)
                self.transcripts[number] += driver.results[name].tokens
                self.held[number] = len(self.transcripts[number])

    def _next_session(self) -> int:
        """Most often one of some that are busy for now, at times any."""
        count = len(self.held)
        while True:
            number = int(self.rng.gammavariate(2.0, 20.0))
            number = (number + len(self.prompts) // 3) % count
            if self.rng.random() < 0.1:
                number = self.rng.randrange(count)
            if number not in self.open.values():
                return number

    def _begin(self, number: int) -> None:
        known = self.held[number]
        if known:
            self.transcripts[number] += words(self.rng, 6)
        name = self.driver.request(
            self.transcripts[number][known:],
            session=f"s{number}",
            base=f"s{number}" if known else None,
            offset=known,
            max_new_tokens=OUTPUT,
            expects_tool_call=self.rng.random() < 0.7,
        )
        self.open[name] = self.sessions[name] = number
        self.prompts[name] = list(self.transcripts[number])

    def _step(self) -> None:
        """A step, and a look whether the longest waiting turn was passed over again although
        blocks that nobody protects would do for it, for what the running ones are still to say
        and for itself; or whether nothing was computed although they would do."""
        driver, cache = self.driver, self.driver.engine.memory.cache
        waiting = [name for name in self.open if driver.results[name].start is None]
        running = len(self.open) - len(waiting)
        oldest = waiting[0] if waiting else ""
        needed = len(self.prompts.get(oldest, [])) // BLOCK + 1 + 3 * running + 2
        suffice = bool(waiting) and cache.available_blocks() >= needed
        driver.step()
        passed_over = suffice and driver.results[oldest].start is None
        idle = driver.engine.pause_s > 0
        again = oldest == self.passed_over and self.in_order
        self.stalls += passed_over and (again or idle)
        self.passed_over = oldest if passed_over else ""

    def missed(self) -> int:
        results = self.driver.results
        starts = [results[name].start for name in self.prompts]
        return sum(s.input_tokens - s.cached_tokens for s in starts if s is not None)

    def ideally_missed(self, blocks: int) -> int:
        """Prompt tokens that one LRU of ``blocks`` blocks would not find, whole sessions in the
        order of their last turns, cut from the end of the oldest."""
        held: OrderedDict[int, int] = OrderedDict()
        missed = 0
        for name, prompt in self.prompts.items():
            number = self.sessions[name]
            found = min(held.pop(number, 0), (len(prompt) - 1) // BLOCK)
            missed += len(prompt) - found * BLOCK
            held[number] = (len(prompt) + OUTPUT - 1) // BLOCK
            while (excess := sum(held.values()) - blocks) > 0:
                oldest = next(iter(held))
                held[oldest] -= min(excess, held[oldest])
                if not held[oldest]:
                    del held[oldest]
        return missed


def uncached(prompts: list[list[int]], *, model: str = "random:qwen3-tiny") -> list[list[int]]:
    """What each prompt is answered with when nothing is shared or kept."""
    driver = EngineDriver.load(
        model=model, num_blocks=30_000, block_size=BLOCK, max_draft_tokens=0, window_share=100
    )
    names = [
        driver.request(prompt, tenant=f"t{index}", max_new_tokens=OUTPUT)
        for index, prompt in enumerate(prompts)
    ]
    driver.run()
    assert sum(driver.results[n].start.cached_tokens for n in names) == 0
    return [driver.results[n].tokens for n in names]


@pytest.mark.tail
@pytest.mark.parametrize(("policy", "host_sessions"), [("fcfs", 60), ("short_turn_first", 60)])
def test_two_hundred_sessions_share_a_pool_for_ten(policy: str, host_sessions: int) -> None:
    session_blocks = 72 // BLOCK
    device, host = 10 * session_blocks, host_sessions * session_blocks
    driver = EngineDriver.load(
        num_blocks=device,
        block_size=BLOCK,
        max_draft_tokens=0,
        host_kv_bytes=host * BLOCK_BYTES,
        session_context_percent=100_000,
        policy=policy,
    )
    fleet = Fleet(driver, 1, sessions=200, in_order=policy == "fcfs")
    fleet.play(turns=400)
    assert len(set(fleet.sessions.values())) > 140
    answers = [driver.results[name].tokens for name in fleet.prompts]
    assert answers == uncached(list(fleet.prompts.values()))
    assert fleet.stalls == 0
    for number in range(200):
        driver.release(f"s{number}")
    driver.engine.check()
    driver.step()
    stats = driver.engine.memory.cache.stats()
    assert stats.protected == stats.leased == stats.branches == 0, "a claim leaked"
    ideal = fleet.ideally_missed(device + host)
    assert fleet.missed() <= 1.1 * ideal, "more was computed again than an ideal tier would"


# Restarts


def start(folder: Path, **settings: object) -> EngineDriver:
    defaults: dict[str, object] = {
        "num_blocks": 60,
        "block_size": BLOCK,
        "host_kv_bytes": 60 * BLOCK_BYTES,
        "disk_kv_bytes": 400 * SLOT_BYTES,
        "disk_kv_folder": str(folder),
    }
    return EngineDriver.load(**(defaults | settings))


def transcripts(count: int) -> list[list[int]]:
    """They begin alike, as those of one agent do."""
    rng = random.Random(5)
    shared = words(rng, 21)
    return [shared + words(rng, 40) for _ in range(count)]


def first_turns(folder: Path) -> list[list[int]]:
    """Eight sessions on an engine that ends in order; returns what they were answered."""
    driver = start(folder)
    results = [
        driver.turn(prompt, session=f"s{index}", max_new_tokens=OUTPUT)
        for index, prompt in enumerate(transcripts(8))
    ]
    driver.engine.close()
    return [result.tokens for result in results]


def test_first_turns_after_a_restart_hit(tmp_path: Path) -> None:
    answers = first_turns(tmp_path)
    driver = start(tmp_path)
    prompts = [
        prompt + answer + [40, 41] for prompt, answer in zip(transcripts(8), answers, strict=True)
    ]
    again = [driver.turn(prompt, max_new_tokens=OUTPUT) for prompt in prompts]
    assert [result.tokens for result in again] == uncached(prompts)
    for prompt, result in zip(prompts, again, strict=True):
        assert result.start is not None
        assert result.start.cached_tokens >= len(prompt) - 3 - 2 * BLOCK
    other = driver.turn(prompts[0], tenant="other", max_new_tokens=OUTPUT)
    assert other.start is not None
    assert other.start.cached_tokens == 0, "another tenant's KV"
    assert driver.damaged == 0
    driver.engine.close()


@pytest.mark.usefixtures("_few_window_blocks")
@pytest.mark.parametrize("kind", WINDOWED)
def test_windows_are_there_after_a_restart(kind: str, tmp_path: Path) -> None:
    size = block_bytes(random_model_config(kind), BLOCK, torch.float64)
    settings: dict[str, object] = {
        "model": f"random:{kind}",
        "num_blocks": 90,
        "max_batch_tokens": 16,
        "host_kv_bytes": 90 * size,
        "disk_kv_bytes": 400 * slot_bytes(size),
    }
    driver = start(tmp_path, **settings)
    sessions = [
        driver.turn(prompt, session=f"s{index}", max_new_tokens=OUTPUT)
        for index, prompt in enumerate(transcripts(8))
    ]
    driver.engine.close()
    answers = [result.tokens for result in sessions]
    driver = start(tmp_path, **settings)
    assert driver.engine.memory.cache.windows is not None
    prompts = [
        prompt + answer + [40, 41] for prompt, answer in zip(transcripts(8), answers, strict=True)
    ]
    again = [driver.turn(prompt, max_new_tokens=OUTPUT) for prompt in prompts]
    assert [result.tokens for result in again] == uncached(prompts, model=f"random:{kind}")
    for prompt, result in zip(prompts, again, strict=True):
        assert result.start is not None
        assert result.start.cached_tokens >= len(prompt) - 3 - 2 * BLOCK
    assert driver.damaged == 0
    driver.engine.check()
    driver.engine.close()


def test_flipped_bits_are_found_counted_and_computed_again(tmp_path: Path) -> None:
    answers = first_turns(tmp_path)
    with open(tmp_path / BLOCKS, "r+b") as file:
        for slot in range(0, 400, 3):
            file.seek(slot * SLOT_BYTES + 3000)
            byte = file.read(1)
            file.seek(slot * SLOT_BYTES + 3000)
            file.write(bytes([byte[0] ^ 1]))
    driver = start(tmp_path)
    prompts = [
        prompt + answer + [40, 41] for prompt, answer in zip(transcripts(8), answers, strict=True)
    ]
    again = [driver.turn(prompt, max_new_tokens=OUTPUT) for prompt in prompts]
    assert [result.tokens for result in again] == uncached(prompts)
    assert driver.damaged > 0
    driver.engine.check()
    driver.engine.close()


def test_a_disk_that_fills_up_loses_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    prompts = transcripts(8)
    driver = start(tmp_path, host_kv_bytes=30 * BLOCK_BYTES)

    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "pwritev", full)
    answers = [driver.turn(prompt, max_new_tokens=OUTPUT).tokens for prompt in prompts]
    assert answers == uncached(prompts)
    assert driver.engine.memory.cache.stats().failed_blocks > 0
    driver.engine.check()
    driver.engine.close()


def test_a_session_whose_kv_was_harmed_in_host_memory_ends_the_engine(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    driver = EngineDriver.load(
        workers=AtOnce(),
        num_blocks=20,
        block_size=BLOCK,
        host_kv_bytes=64 * BLOCK_BYTES,
        session_context_percent=10_000,
    )
    rng = random.Random(0)
    prompts = {name: words(rng, 50) for name in "ab"}
    for name, prompt in prompts.items():
        driver.turn(prompt, session=name, max_new_tokens=OUTPUT)
    monkeypatch.setattr(HostChecksums, "intact", lambda self, places: False)
    again = driver.request(prompts["a"], session="a", max_new_tokens=OUTPUT)
    with pytest.raises(HostMemoryDamaged):
        driver.run()
    assert not driver.results[again].tokens
