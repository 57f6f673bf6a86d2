"""Several ranks compute what one computes: the same tokens, the same bits in each run.

Whole engines, whose other ranks are threads here; ``test_rank.py`` has them as processes, and
``test_identities.py`` compares them with the reference.
"""

import queue
import threading
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from shutil import copytree

import numpy as np
import pytest
import torch
from torch import Tensor

from radix_cache.snapshots import BeginState, EndState, SaveState
from runtime.config import EngineConfig
from runtime.messages import SamplingParams
from runtime.model import runner as runner_module
from runtime.model.batch import SequenceInput, StepBatch
from runtime.model.config import LoadError
from runtime.model.rank_link import RunnerBroken
from runtime.model.runner import ModelRunner, load_runner
from runtime.model.sources import DEFAULT_MODEL
from runtime.model.state_pool import StatePool
from runtime.model.step_buckets import Bucket
from runtime.process import ranks as ranks_module
from tests.support.engine_driver import EngineDriver, Result
from tests.support.thread_ranks import thread_ranks
from tools_api.grammar import GrammarSpec

CALL = GrammarSpec(lark=r'start: "{\"city\": \"" /[a-z]{2,9}/ "\"}"')
FINE = 1e-12


def config_of(model: str, ranks: int, **more: object) -> EngineConfig:
    settings: dict[str, object] = {"dtype": "float64", "device": "cpu", "threads": 1} | more
    settings.setdefault("num_blocks", 64)
    return EngineConfig(model=model, tensor_parallel=ranks, **settings)  # type: ignore[arg-type]


def loaded(config: EngineConfig) -> ModelRunner:
    return load_runner(config, ranks=thread_ranks(config) if config.tensor_parallel > 1 else None)


def step(seed: int = 1) -> list[SequenceInput]:
    """Two chunks of prompts and a decode's beginning, all rows with logits."""
    rng = np.random.default_rng(seed)
    return [
        SequenceInput(
            tokens=rng.integers(0, 256, count).astype(np.int32),
            start=0,
            block_table=np.arange(number * 8, number * 8 + 8, dtype=np.int32),
            num_logits=count,
        )
        for number, count in enumerate((5, 30, 1))
    ]


def logits_of(config: EngineConfig) -> Tensor:
    runner = loaded(config)
    try:
        return runner.run(step())[:, :256].clone()  # the others are banned by large numbers
    finally:
        runner.close()


CUTS: tuple[tuple[str, int, dict[str, object]], ...] = (
    ("random:llama-tiny", 2, {}),
    ("random:llama-tiny", 4, {}),
    ("random:qwen3-tiny-4", 4, {}),
    ("random:qwen3-tiny", 4, {}),
    ("random:qwen2-tiny", 2, {}),
    ("random:mistral-tiny", 2, {}),
    ("random:qwen3-moe-tiny-4", 4, {}),
    ("random:qwen3-moe-tiny-4", 4, {"expert_parallel": True}),
    ("random:glm4-moe-tiny", 2, {}),
    ("random:glm4-moe-tiny", 2, {"expert_parallel": True}),
    ("random:gpt-oss-tiny", 4, {}),
    ("random:gpt-oss-tiny", 2, {"expert_parallel": True}),
    ("random:deepseek-v3-tiny", 2, {"expert_parallel": True}),
    ("random:deepseek-v2-tiny", 4, {}),
    ("random:axk1-tiny", 2, {"expert_parallel": True}),
    ("random:deepseek-v4-tiny", 2, {}),
    ("random:deepseek-v32-tiny", 2, {"expert_parallel": True}),
    ("random:glm-dsa-tiny", 4, {}),
    ("random:hy4-tiny", 2, {"expert_parallel": True}),
    ("random:minimax-m3-tiny", 2, {"expert_parallel": True}),
    ("random:mimo-v2-tiny", 4, {}),
    ("random:laguna-tiny", 4, {}),
    ("random:step3.5-tiny", 2, {"expert_parallel": True}),
    ("random:hy-v3-tiny", 2, {"expert_parallel": True}),
    ("random:dots1-tiny", 2, {"expert_parallel": True}),
    ("random:glm4-tiny", 2, {}),
    ("random:arcee-tiny", 2, {}),
    ("random:exaone4-tiny", 4, {}),
    ("random:seed-oss-tiny", 2, {}),
    ("random:gemma3-tiny", 2, {}),
    ("random:gemma4-tiny", 4, {}),
    ("random:gemma4-moe-tiny", 2, {}),
    ("random:gemma4-moe-tiny", 4, {"expert_parallel": True}),
    ("random:smollm3-tiny", 2, {}),
    ("random:granite-tiny", 2, {}),
    ("random:ministral3-tiny", 2, {}),
    ("random:olmo2-tiny", 4, {}),
    ("random:minimax-m2-tiny", 2, {"expert_parallel": True}),
    ("random:lfm2-tiny", 4, {}),
    ("random:lfm3-tiny", 2, {}),
    ("random:glm5-next-tiny", 2, {}),
    ("random:ling3-tiny", 2, {"expert_parallel": True}),
    ("random:olmo-hybrid-tiny", 2, {}),
    ("random:afmoe-tiny", 2, {}),
    ("random:ernie4.5-moe-tiny", 2, {"expert_parallel": True}),
    ("random:qwen3.5-tiny", 2, {}),
    ("random:qwen3.5-tiny", 4, {}),
    ("random:granite-hybrid-tiny", 2, {}),
    ("random:granite-hybrid-tiny", 4, {}),
    ("random:nemotron-h-tiny", 2, {"expert_parallel": True}),
    ("random:nemotron-h-tiny", 4, {}),
    ("random:kimi-linear-tiny", 2, {}),
    ("random:kimi-linear-tiny", 4, {"expert_parallel": True}),
    ("default", 2, {}),
)


@pytest.mark.samples(3)
@pytest.mark.parametrize(("model", "ranks", "more"), CUTS)
def test_logits_are_those_of_one_rank(model: str, ranks: int, more: dict[str, object]) -> None:
    expected = logits_of(config_of(model, 1))
    found = logits_of(config_of(model, ranks, **more))
    assert (found - expected).abs().max() <= FINE * expected.abs().max()


def test_two_runs_have_equal_bits() -> None:
    config = config_of("random:qwen3-moe-tiny-4", 4, dtype="bfloat16")
    assert torch.equal(logits_of(config), logits_of(config))


@pytest.mark.parametrize("model", ["qwen3-tiny-4", "olmo2-tiny", "granite-hybrid-tiny"])
def test_a_rows_bits_do_not_depend_on_the_batch_on_four_ranks(model: str) -> None:
    """With exact sums nothing but products may differ, which are a row's own here; norms over all
    heads and over groups are sums too."""
    runner = loaded(config_of(f"random:{model}", 4))
    together = runner.run(step()).clone()
    alone = runner.run(step()[2:]).clone()
    runner.close()
    torch.testing.assert_close(together[-1:], alone, rtol=FINE, atol=FINE)


def life(ranks: int, *, ahead: bool = False, **settings: object) -> dict[str, dict[str, object]]:
    """Turns of the shipped model, as agents have them: free and constrained, greedy and sampled,
    continued, forked and cancelled. What each was told, by name."""
    driver = EngineDriver.load(
        looks_ahead=ahead, tensor_parallel=ranks, num_blocks=24, block_size=16, **settings
    )
    if ahead:
        lookahead = driver.engine.computation.lookahead
        assert lookahead is not None
        lookahead.always = True
    words = list(b"the weather of the city is fair and the wind is light")
    tool = driver.request(words, session="s1", max_new_tokens=24, grammar=CALL)
    sampled = SamplingParams(temperature=0.9, seed=11, top_p=0.9)
    driver.request(words[4:], session="s2", max_new_tokens=20, sampling=sampled)
    lost = driver.request(words[:9], session="s3", max_new_tokens=40)
    for _ in range(6):
        driver.step()
    driver.cancel(lost)
    driver.run()
    told = len(driver.results[tool].tokens) + len(words)
    driver.request(list(b" and now"), session="s1", base="s1", offset=told, max_new_tokens=16)
    for number in range(3):
        again = replace(sampled, seed=number)
        driver.request(list(b"?"), base="s2", offset=30, max_new_tokens=10, sampling=again)
    driver.run()
    driver.engine.check()
    driver.close()
    return {name: _told(result) for name, result in driver.results.items()}


def _told(result: Result) -> dict[str, object]:
    return {name: value for name, value in asdict(result).items() if name != "logprobs"}


@pytest.mark.tail
def test_the_shipped_models_turns_are_those_of_one_rank() -> None:
    one = life(1, model="default")
    assert sum(len(str(told["tokens"])) for told in one.values()) > 200
    assert life(2, model="default") == one
    assert life(4, model="default") == one


@pytest.mark.tail
@pytest.mark.parametrize("ranks", [2, 4])
def test_steps_begun_ahead_change_nothing_on_several_ranks(ranks: int) -> None:
    plain = life(1, model="random:qwen3-tiny-4", max_draft_tokens=0)
    ahead = life(ranks, ahead=True, model="random:qwen3-tiny-4", max_draft_tokens=0)
    assert ahead == plain


# Loading


def test_blocks_are_the_least_of_what_the_ranks_have_room_for() -> None:
    config = config_of("random:qwen3-tiny-4", 2, num_blocks=50)
    few = thread_ranks(config, others=replace(config, num_blocks=17))
    runner = load_runner(config, ranks=few)
    assert runner.num_blocks == 17
    runner.run(step()[:2])
    runner.close()


def test_slots_for_states_are_the_least_of_what_the_ranks_have_room_for() -> None:
    config = config_of("random:lfm2-tiny", 2, state_slots=9, max_running=3)
    few = thread_ranks(config, others=replace(config, state_slots=4))
    runner = load_runner(config, ranks=few)
    assert runner.states is not None
    assert (runner.states.num_slots, runner.states.num_rings) == (4, 4)
    runner.run(step()[:2])
    runner.close()


def refusal(config: EngineConfig, others: EngineConfig) -> str:
    """Why rank 0 does not load where the others have another configuration."""
    ranks = thread_ranks(config, others=others)
    try:
        with pytest.raises(LoadError) as refused:
            load_runner(config, ranks=ranks)
    finally:
        ranks.close()
    return str(refused.value)


def test_a_rank_that_cannot_load_is_told_in_one_line() -> None:
    config = config_of("random:qwen3-tiny-4", 2)
    said = refusal(config, replace(config, model="random:qwen3-tiny-5"))
    assert said.startswith("rank 1: LoadError: random:qwen3-tiny-5: no random model")


def test_ranks_that_have_read_other_files_do_not_start(tmp_path: Path) -> None:
    here = copytree(DEFAULT_MODEL, tmp_path / "here")
    other = copytree(DEFAULT_MODEL, tmp_path / "other")
    (other / "config.json").write_text((other / "config.json").read_text() + "\n")
    config = config_of(str(here), 2)
    said = refusal(config, replace(config, model=str(other)))
    assert "rank 1 has read other files than rank 0" in said


# Steps that fail


def test_a_rank_that_fails_in_a_step_is_told_as_its_loss(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever noticed first."""
    lost: list[str] = []
    config = config_of("random:qwen3-tiny-4", 2)
    ranks = thread_ranks(config, on_loss=lost.append)
    runner = load_runner(config, ranks=ranks)
    compute = runner_module.ModelRunner.run_as_it_comes

    def failing(self: ModelRunner, batch: StepBatch, tokens: Tensor | None) -> Tensor:
        if self is runner:
            raise RuntimeError("the sum ended")  # as a library says of a peer that is gone
        raise ValueError("no such row")

    monkeypatch.setattr(runner_module.ModelRunner, "run_as_it_comes", failing)
    with pytest.raises(RunnerBroken, match=r"^rank 1: ValueError: no such row$"):
        runner.run(step())
    assert lost == ["rank 1: ValueError: no such row"]
    monkeypatch.setattr(runner_module.ModelRunner, "run_as_it_comes", compute)
    runner.close()


def test_rank_0_that_fails_alone_in_a_step_breaks_the_runner(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The others wait in a sum for it: no step can follow."""
    monkeypatch.setattr(ranks_module, "SAYS_S", 0.0)
    runner = loaded(config_of("random:qwen3-tiny-4", 2))
    upload, main = runner_module.upload, threading.main_thread()

    def failing(array: np.ndarray, device: torch.device) -> Tensor:
        if threading.current_thread() is main:
            raise RuntimeError("planted")
        return upload(array, device)

    monkeypatch.setattr(runner_module, "upload", failing)
    with pytest.raises(RunnerBroken, match="rank 0 failed in a step: planted"):
        runner.run(step())
    runner.close()


# States


def begin(slot: int, source: int | None = None, position: int = 0) -> BeginState:
    return BeginState(slot=slot, source=source, position=position, tail_block=None)


def row(slot: int, position: int, tokens: bytes) -> SequenceInput:
    return SequenceInput(
        tokens=np.frombuffer(tokens, dtype=np.uint8).astype(np.int32),
        start=position,
        block_table=np.array([slot], dtype=np.int32),
        num_logits=len(tokens),
        state_slot=slot,
    )


@pytest.mark.parametrize("model", ["lfm2-tiny", "qwen3.5-tiny", "granite-hybrid-tiny"])
def test_states_of_all_ranks_follow_the_leading_ones_orders(model: str) -> None:
    """Begun, gone back, saved, ended and begun anew: logits of one rank."""
    said = []
    for ranks in (1, 4):
        runner = loaded(config_of(f"random:{model}", ranks, max_running=3, state_slots=5))
        runner.change_state(begin(0))
        found = [runner.run([row(0, 0, b"a")]).clone(), runner.run([row(0, 1, b"bcde")]).clone()]
        found.append(runner.run([row(0, 2, b"Z")]).clone())  # behind a rejected draft
        runner.change_state(SaveState(slot=0, target=4, position=3, tail_block=0))
        runner.change_state(EndState(slot=0, position=None, tail_block=None))
        tailed = BeginState(slot=1, source=4, position=3, tail_block=1)
        runner.change_state(tailed)
        runner.change_state(begin(0))
        found.append(runner.run([row(0, 0, b"A"), row(1, 3, b"B")]).clone())
        said.append(torch.cat(found)[:, :256])
        runner.close()
    assert (said[0] - said[1]).abs().max() <= FINE * said[0].abs().max()


def test_a_state_that_is_not_finite_on_another_rank_is_told(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    runner, main = loaded(config_of("random:lfm2-tiny", 2, max_running=2)), threading.main_thread()
    runner.change_state(begin(0))
    save = SaveState(slot=0, target=1, position=0, tail_block=None)
    assert runner.change_state(save)
    leads = lambda *_: threading.current_thread() is main  # noqa: E731
    monkeypatch.setattr(StatePool, "_is_finite", leads)
    assert not runner.change_state(save)
    assert not runner.change_state(EndState(slot=0, position=0, tail_block=None))
    runner.close()


def test_an_order_that_fails_on_rank_0_is_not_told_and_may_come_again() -> None:
    runner = loaded(config_of("random:lfm2-tiny", 2, max_running=2))
    runner.change_state(begin(0))
    with pytest.raises(ValueError, match="cannot be brought"):
        runner.change_state(EndState(slot=0, position=3, tail_block=None))
    assert runner.change_state(EndState(slot=0, position=0, tail_block=None))
    runner.close()


def test_an_order_that_another_rank_cannot_carry_out_is_its_loss(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    lost: queue.SimpleQueue[str] = queue.SimpleQueue()
    config = config_of("random:lfm2-tiny", 2, max_running=2)
    runner = load_runner(config, ranks=thread_ranks(config, on_loss=lost.put))
    work, main = StatePool.begin, threading.main_thread()

    def failing(pool: StatePool, slot: int, *, source: int | None, position: int) -> None:
        if threading.current_thread() is not main:
            raise RuntimeError("planted")
        work(pool, slot, source=source, position=position)

    monkeypatch.setattr(StatePool, "begin", failing)
    runner.change_state(begin(0))
    assert lost.get(timeout=30) == "rank 1: RuntimeError: planted"
    runner.close()


def test_a_model_without_states_takes_no_orders_on_them() -> None:
    runner = loaded(config_of("random:qwen3-tiny", 1))
    with pytest.raises(ValueError, match="there are none"):
        runner.change_state(begin(0))


# Recorded steps, played by a stand-in


class StandIn:
    """In place of a recorder: calls, and notes which recording was played, and by rank 0 or not."""

    def __init__(self, fails: int, played: list[tuple[bool, Bucket]]) -> None:
        """``fails``: another rank than rank 0 cannot record steps of so many tokens."""
        self._fails = fails
        self._played = played

    def __call__(self, call: Callable[[], Tensor]) -> Callable[[], Tensor]:
        bucket: Bucket = call.__self__.bucket  # type: ignore[attr-defined]
        leads = threading.current_thread() is threading.main_thread()
        if bucket.tokens == self._fails and not leads:
            raise RuntimeError("operation not permitted when stream is capturing")

        def replay() -> Tensor:
            self._played.append((leads, bucket))
            return call()

        return replay


def recording(
    monkeypatch: pytest.MonkeyPatch,
    played: list[tuple[bool, Bucket]],
    *,
    fails: int = 0,
    model: str = "random:qwen3-tiny-4",
) -> ModelRunner:
    """Two ranks with recorded steps."""
    monkeypatch.setattr(runner_module, "_records", lambda model: True)
    monkeypatch.setattr(runner_module, "CudaRecorder", lambda: StandIn(fails, played))
    return loaded(config_of(model, 2, max_running=4, max_batch_tokens=64))


def decodes(count: int) -> list[SequenceInput]:
    return [
        SequenceInput(
            tokens=np.array([40 + number], dtype=np.int32),
            start=0,
            block_table=np.array([number], dtype=np.int32),
            num_logits=1,
        )
        for number in range(count)
    ]


def test_a_recording_that_one_rank_cannot_make_is_dropped_on_all(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    played: list[tuple[bool, Bucket]] = []
    plain = loaded(config_of("random:qwen3-tiny-4", 1))
    runner = recording(monkeypatch, played, fails=1)
    assert runner.graphs is not None
    assert all(bucket.tokens > 1 for bucket in runner.graphs.steps)
    expected = plain.run(decodes(1))
    torch.testing.assert_close(runner.run(decodes(1)), expected, rtol=FINE, atol=FINE)
    runner.close()
    assert caplog.text.count("recording failed") == 2  # by both
    assert "another rank could not record this step" in caplog.text


def test_the_recording_that_rank_0_names_is_played_on_all(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever another rank would choose: sums of other sizes would be of other rows."""
    played: list[tuple[bool, Bucket]] = []
    plain = loaded(config_of("random:qwen3-tiny-4", 1))
    runner = recording(monkeypatch, played)
    graphs = runner.graphs
    assert graphs is not None
    one = graphs._order[0]
    assert one.tokens == 1
    del graphs.steps[one]
    graphs._order = graphs._order[1:]
    for count in (1, 2, 4, 1):
        expected = plain.run(decodes(count))
        torch.testing.assert_close(runner.run(decodes(count)), expected, rtol=FINE, atol=FINE)
    runner.close()
    assert [bucket for leads, bucket in played if leads] == [
        bucket for leads, bucket in played if not leads
    ]
    assert (True, one) not in played
    assert graphs.counts.replayed == 4


@pytest.mark.parametrize("model", ["random:lfm2-tiny", "random:qwen3.5-tiny"])
def test_recorded_steps_of_a_hybrid_move_the_states_of_all_ranks(
    model: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    played: list[tuple[bool, Bucket]] = []
    plain = loaded(config_of(model, 1, max_running=4))
    runner = recording(monkeypatch, played, model=model)
    for each in (plain, runner):
        for slot in (0, 1):
            each.change_state(begin(slot))
    for at, (one, other) in enumerate(zip(b"abcd", b"ABCD", strict=True)):
        batch = [row(0, at, bytes([one])), row(1, at, bytes([other]))]
        expected = plain.run(batch)[:, :256]
        torch.testing.assert_close(runner.run(batch)[:, :256], expected, rtol=FINE, atol=FINE)
    runner.close()
    assert runner.graphs is not None
    assert runner.graphs.counts.replayed == 4
    assert len(played) == 2 * 4
