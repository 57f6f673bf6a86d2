"""The engine loop on a float64 random model: answers, cache use, limits, failures."""

import itertools
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch

from runtime.engine import step_computation
from runtime.engine.engine import MOST_FAILED_STEPS, EngineBroken
from runtime.messages import ENGINE_PARTS, ErrorKind, FinishReason, SamplingParams
from runtime.model import state_pool
from runtime.model.batch import StepBatch
from runtime.scheduling.costs import StepCosts, StepWork
from tests.support.engine_driver import STEP_S, EngineDriver
from tests.support.preset_kinds import DELTA
from tools_api.grammar import GrammarSpec

PROMPT = list(range(40, 90))
BLOCK = 16
BOUNDED_JSON = GrammarSpec(
    lark='start: %json {"type": "object", "properties": {"name": {"type": "string", '
    '"maxLength": 6}, "size": {"enum": ["small", "large"]}}, "required": ["name", "size"], '
    '"additionalProperties": false, "x-guidance": {"whitespace_flexible": false}}'
)


@pytest.fixture
def driver() -> EngineDriver:
    return EngineDriver.load()


def test_a_turn_is_answered_with_its_start_its_tokens_and_one_finish(driver: EngineDriver) -> None:
    result = driver.turn(PROMPT, max_new_tokens=5)
    assert result.start is not None
    assert (result.start.input_tokens, result.start.cached_tokens) == (len(PROMPT), 0)
    assert sum(result.start.miss_causes.values()) == len(PROMPT)
    assert len(result.tokens) == 5
    assert (result.finish, result.after_finish) == (FinishReason.LENGTH, 0)


def test_a_step_learns_that_turns_with_a_prompt_in_common_read_it_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """96 tokens are six whole blocks."""
    learned: list[StepWork] = []
    monkeypatch.setattr(StepCosts, "observe", lambda self, work, *, seconds: learned.append(work))
    driver = EngineDriver.load(max_draft_tokens=0)
    system = [1 + n % 200 for n in range(96)]
    driver.turn([*system, 5], max_new_tokens=1)
    for own in (7, 8, 9):
        driver.request([*system, own], max_new_tokens=6)
    driver.run()
    together = [work for work in learned if work.decode_rows == 3]
    assert [work.decode_context for work in together] == [
        3 * (98 + n) - 2 * 96 for n in range(len(together))
    ]
    assert len(together) >= 4


@pytest.mark.parametrize("output", [1, 6, 15, 16, 17])
def test_the_next_turn_finds_all_whole_blocks_of_prompt_and_output(
    driver: EngineDriver, output: int
) -> None:
    driver.turn(PROMPT, session="a", max_new_tokens=output)
    offset = len(PROMPT) + output
    following = driver.turn([7, 8, 9], session="a", base="a", offset=offset, max_new_tokens=1)
    assert following.start is not None
    assert following.start.input_tokens == offset + 3
    assert following.start.cached_tokens >= (offset - 1) // BLOCK * BLOCK


def test_a_forced_tail_is_in_the_cache_when_the_next_turn_comes(driver: EngineDriver) -> None:
    first = driver.turn(PROMPT, session="a", max_new_tokens=100, grammar=BOUNDED_JSON)
    assert first.finish is FinishReason.STOP
    assert first.forced > 0
    assert first.forced + first.forwards == len(first.tokens) + 1, "the first is forced as well"
    offset = len(PROMPT) + len(first.tokens)
    following = driver.turn([7], session="a", base="a", offset=offset, max_new_tokens=1)
    assert following.start is not None
    assert following.start.cached_tokens >= (offset - 1) // BLOCK * BLOCK


def test_an_unknown_base_is_said_and_nothing_runs(driver: EngineDriver) -> None:
    result = driver.turn([1, 2], session="a", base="gone", offset=5)
    assert result.finish is FinishReason.UNKNOWN_BASE
    assert result.tokens == []
    again = driver.turn(PROMPT, session="a", max_new_tokens=2)
    assert again.finish is FinishReason.LENGTH


def test_a_released_session_is_unknown_but_its_kv_is_still_found(driver: EngineDriver) -> None:
    driver.turn(PROMPT, session="a", max_new_tokens=4)
    driver.release("a")
    offset = len(PROMPT)
    assert driver.turn([3], session="a", base="a", offset=offset).finish is (
        FinishReason.UNKNOWN_BASE
    )
    again = driver.turn(PROMPT, session="b", max_new_tokens=4)
    assert again.start is not None
    assert again.start.cached_tokens == 48


def test_every_release_is_answered_also_that_of_a_branch_that_never_ran(
    driver: EngineDriver,
) -> None:
    driver.turn(PROMPT, session="a", max_new_tokens=1)
    driver.turn([1, 2], session="b", base="gone", offset=5)
    driver.release("a")
    driver.release("b")
    output = driver.engine.step()
    assert output is not None
    assert {row.branch_id for row in output.residency if row.gone} == {"a", "b"}


def test_another_tenant_finds_nothing(driver: EngineDriver) -> None:
    driver.turn(PROMPT, tenant="a", max_new_tokens=4)
    other = driver.turn(PROMPT, tenant="b", max_new_tokens=4)
    assert other.start is not None
    assert other.start.cached_tokens == 0


def test_a_warm_up_prefills_and_emits_nothing(driver: EngineDriver) -> None:
    warm = driver.turn(PROMPT, session="a", max_new_tokens=0)
    assert (warm.finish, warm.tokens) == (FinishReason.PREFILLED, [])
    turn = driver.turn([5], session="a", base="a", offset=len(PROMPT), max_new_tokens=1)
    assert turn.start is not None
    assert turn.start.cached_tokens == 48


def test_a_cancelled_turn_ends_at_once_wherever_it_is(driver: EngineDriver) -> None:
    running = driver.request(PROMPT, max_new_tokens=1000)
    for _ in range(5):
        driver.step()
    waiting = driver.request(PROMPT[:20], max_new_tokens=1000)
    compiling = driver.request(PROMPT, max_new_tokens=50, grammar=BOUNDED_JSON)
    for name in (running, waiting, compiling, "never-there"):
        driver.cancel(name)
    driver.step()
    for name in (running, waiting, compiling):
        assert driver.results[name].finish is FinishReason.CANCELLED, name
    driver.run()
    assert driver.results[running].after_finish == 0


def test_a_stop_string_ends_the_turn_at_its_token(driver: EngineDriver) -> None:
    free = driver.turn(PROMPT, max_new_tokens=12)
    text = bytes(free.tokens[:8])
    stop = text[4:6].decode("latin-1")
    if not stop.isascii():
        stop = ""
        for at in range(7):
            if text[at : at + 1].isascii():
                stop = text[at : at + 1].decode()
                break
    assert stop, "this seed gives no ASCII text"
    stopped = driver.turn(
        PROMPT, max_new_tokens=12, sampling=SamplingParams(temperature=0, stop=(stop,))
    )
    assert stopped.finish is FinishReason.STOP_STRING
    cut = text.index(stop.encode()) + len(stop.encode())
    assert stopped.tokens == free.tokens[:cut]


def test_a_prompt_that_never_fits_is_refused_and_others_go_on(driver: EngineDriver) -> None:
    small = EngineDriver.load(num_blocks=8)
    too_long = small.request(list(range(40, 200)), max_new_tokens=4)
    fits = small.request(PROMPT, max_new_tokens=4)
    small.run()
    assert small.results[too_long].error is ErrorKind.TOO_LARGE
    assert small.results[fits].finish is FinishReason.LENGTH


def test_a_turn_that_fills_the_context_says_so() -> None:
    small = EngineDriver.load(max_context_tokens=64)
    result = small.turn(PROMPT, max_new_tokens=1000)
    assert result.finish is FinishReason.CONTEXT
    assert len(PROMPT) + len(result.tokens) == 64


def test_the_queue_is_bounded_and_one_more_is_refused() -> None:
    driver = EngineDriver.load(max_waiting=2, max_running=1)
    driver.request(PROMPT, max_new_tokens=50)
    driver.step()
    names = [driver.request(PROMPT, max_new_tokens=1) for _ in range(3)]
    driver.run()
    ends = [driver.results[name].error for name in names]
    assert ends == [None, None, ErrorKind.OVERLOADED]


def test_a_second_turn_on_a_busy_session_is_answered_not_mixed_in(driver: EngineDriver) -> None:
    first = driver.request(PROMPT, session="a", max_new_tokens=8)
    driver.step()
    second = driver.request([1], session="a", base="a", offset=10)
    driver.run()
    assert driver.results[second].error is ErrorKind.INTERNAL
    assert len(driver.results[first].tokens) == 8


def test_a_limit_below_the_shortest_legal_output_is_refused(driver: EngineDriver) -> None:
    result = driver.turn(PROMPT, max_new_tokens=10, grammar=BOUNDED_JSON)
    assert (result.finish, result.error) == (FinishReason.ERROR, ErrorKind.BUDGET_TOO_SMALL)
    assert result.tokens == []


@pytest.mark.parametrize("limit", range(33, 45))
def test_a_constrained_turn_closes_its_json_within_the_limit(
    driver: EngineDriver, limit: int
) -> None:
    sampling = SamplingParams(temperature=1.0, seed=limit)
    result = driver.turn(PROMPT, max_new_tokens=limit, grammar=BOUNDED_JSON, sampling=sampling)
    assert result.finish is FinishReason.STOP
    assert len(result.tokens) <= limit


def test_an_impossible_grammar_fails_its_turn_alone(driver: EngineDriver) -> None:
    bad = driver.request(PROMPT, grammar=GrammarSpec(lark="start: ("))
    good = driver.request(PROMPT, max_new_tokens=3)
    driver.run()
    assert driver.results[bad].error is ErrorKind.GRAMMAR
    assert driver.results[good].finish is FinishReason.LENGTH


def test_banned_tokens_are_never_drawn(driver: EngineDriver) -> None:
    free = driver.turn(PROMPT, max_new_tokens=10)
    banned = tuple(set(free.tokens))
    other = driver.turn(PROMPT, max_new_tokens=10, banned_tokens=banned)
    assert not set(other.tokens) & set(banned)


def test_logprobs_cover_every_token_and_forced_ones_are_certain(driver: EngineDriver) -> None:
    result = driver.turn(
        PROMPT,
        max_new_tokens=60,
        grammar=BOUNDED_JSON,
        sampling=SamplingParams(temperature=1.0, top_logprobs=2),
    )
    assert [p.token for p in result.logprobs] == result.tokens
    assert sum(p.logprob == 0.0 for p in result.logprobs) >= result.forced


@pytest.mark.parametrize("limit", [36, 38, 40])
def test_a_token_that_the_limit_imposes_has_a_logprob_of_its_own(
    driver: EngineDriver, limit: int
) -> None:
    sampling = SamplingParams(temperature=1.3, seed=limit, top_logprobs=1)
    result = driver.turn(PROMPT, max_new_tokens=limit, grammar=BOUNDED_JSON, sampling=sampling)
    assert [p.token for p in result.logprobs] == result.tokens


def test_a_step_that_fails_for_one_sequence_ends_that_one_alone(
    driver: EngineDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    runner, alone = driver.runner, EngineDriver.load().turn(PROMPT, max_new_tokens=8)
    forward = runner.forward

    def broken(batch: StepBatch) -> torch.Tensor:
        if batch.context_lengths.max() > len(PROMPT) + 20:
            raise RuntimeError("planted")
        return forward(batch)

    good = driver.request(PROMPT, max_new_tokens=8)
    driver.step()
    monkeypatch.setattr(runner, "forward", broken)
    bad = driver.request([*PROMPT, *range(60, 110)], max_new_tokens=8)
    driver.run()
    assert driver.results[bad].error is ErrorKind.INTERNAL
    assert driver.results[good].finish is FinishReason.LENGTH
    assert driver.results[good].tokens == alone.tokens
    monkeypatch.setattr(runner, "forward", forward)
    assert driver.turn(PROMPT, max_new_tokens=3).finish is FinishReason.LENGTH
    driver.engine.check()


@pytest.mark.samples(2)
@pytest.mark.parametrize("steps", [0, 3])
@pytest.mark.parametrize("model", ["lfm2-tiny", *DELTA])
def test_wherever_a_step_fails_that_moves_states_they_are_where_tokens_are(
    model: str, steps: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """``steps`` of three sequences, and then each call in turn that wants memory fails once."""
    driver = EngineDriver.load(model=f"random:{model}", max_draft_tokens=0)
    prompts = [[40 + number] * 50 for number in range(3)]
    alone = [driver.turn(prompt, tenant="other", max_new_tokens=6).tokens for prompt in prompts]
    for call in range(10):
        names = [driver.request(p, tenant=f"{call}", max_new_tokens=6) for p in prompts]
        for _ in range(steps):
            driver.step()
        calls = itertools.count()

        def failing(*arguments: Any, work: Any, **more: Any) -> Any:
            if next(calls) == call:  # noqa: B023
                raise RuntimeError("planted")
            return work(*arguments, **more)

        with monkeypatch.context() as planted:
            states = driver.runner.states
            wanting = (state_pool, "upload_together"), (torch, "stack"), (states, "begin")
            for place, name in wanting:
                planted.setattr(place, name, partial(failing, work=getattr(place, name)))
            driver.run()
        assert [driver.results[name].tokens for name in names] == alone, call
        driver.engine.check()


@pytest.mark.parametrize("forgotten", ["released", "for want of room"])
@pytest.mark.parametrize("model", ["qwen3-tiny", "lfm2-tiny"])
def test_a_fork_that_waits_takes_nothing_of_a_later_branch_that_has_its_bases_name(
    model: str, forgotten: str
) -> None:
    driver = EngineDriver.load(
        model=f"random:{model}",
        max_running=1,
        max_draft_tokens=0,
        session_tokens_bytes=1 << 20 if forgotten == "released" else 4096,
    )
    first, second = (list(range(start, start + 96)) for start in (40, 140))
    alone = driver.turn([*first, 33], session="alone", tenant="other", max_new_tokens=6)
    driver.release("alone")
    driver.turn(first, session="base", max_new_tokens=1)
    driver.request([60] * 20, session="long", max_new_tokens=4)
    driver.step()
    fork = driver.request([33], session="fork", base="base", offset=96, max_new_tokens=6)
    if forgotten == "released":
        driver.release("base")
    else:
        driver.cancel(driver.request([7] * 1000, session="another", max_new_tokens=1))
    gone = driver.request([34], session="third", base="base", offset=96, max_new_tokens=1)
    again = driver.request(second, session="base", max_new_tokens=1, priority=1)
    driver.run()
    assert driver.results[gone].finish is FinishReason.UNKNOWN_BASE
    assert driver.results[again].finish is FinishReason.LENGTH
    assert driver.results[fork].tokens == alone.tokens


@pytest.mark.samples(3)
@pytest.mark.parametrize("ahead", [False, True])
@pytest.mark.parametrize("where", ["layers", "head", "draw"])
@pytest.mark.parametrize("model", ["qwen3-tiny", "lfm2-tiny", *DELTA])
def test_a_step_that_fails_for_all_together_ends_none(
    model: str, where: str, *, ahead: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where states of recurrent layers could not go back to where the step began."""
    prompts = [[40 + number] * 50 for number in range(3)]
    driver = EngineDriver.load(model=f"random:{model}", max_draft_tokens=0, looks_ahead=ahead)
    alone = [driver.turn(prompt, tenant="other", max_new_tokens=4).tokens for prompt in prompts]
    failed = []

    def fails_once(work: Callable[..., Any]) -> Callable[..., Any]:
        def failing(*arguments: Any) -> Any:
            if not failed:
                failed.append(work)
                raise RuntimeError("planted")
            return work(*arguments)

        return failing

    decoder = driver.runner.model.decoder
    place, name = {
        "layers": (decoder, "_run_layers"),
        "head": (decoder, "_logits"),
        "draw": (step_computation, "Drawing"),
    }[where]
    monkeypatch.setattr(place, name, fails_once(getattr(place, name)))
    names = [driver.request(prompt, max_new_tokens=4) for prompt in prompts]
    driver.run()
    assert failed
    assert [driver.results[name].tokens for name in names] == alone
    driver.engine.check()


def test_an_engine_all_of_whose_steps_fail_says_that_it_is_broken(
    driver: EngineDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(batch: object) -> object:
        raise RuntimeError("planted")

    for _ in range(MOST_FAILED_STEPS - 1):
        name = driver.request(PROMPT, max_new_tokens=8)
        with monkeypatch.context() as patched:
            patched.setattr(driver.runner, "forward", broken)
            driver.step()
        assert driver.results[name].error is ErrorKind.INTERNAL
    assert driver.turn(PROMPT, max_new_tokens=3).finish is FinishReason.LENGTH
    monkeypatch.setattr(driver.runner, "forward", broken)
    for _ in range(MOST_FAILED_STEPS - 1):
        driver.request(PROMPT, max_new_tokens=8)
        driver.step()
    driver.request(PROMPT, max_new_tokens=8)
    with pytest.raises(EngineBroken, match="8 steps in a row"):
        driver.step()


@pytest.mark.parametrize("token", [-1, 272, 1 << 30])
@pytest.mark.parametrize("place", ["new_tokens", "banned_tokens"])
def test_tokens_that_the_model_does_not_have_are_refused(
    driver: EngineDriver, token: int, place: str
) -> None:
    prompt = [*PROMPT, token] if place == "new_tokens" else PROMPT
    banned = (token,) if place == "banned_tokens" else ()
    result = driver.turn(prompt, max_new_tokens=2, banned_tokens=banned)
    assert result.error is ErrorKind.INTERNAL
    assert "the model does not have" in result.error_message
    assert driver.turn(PROMPT, max_new_tokens=3).finish is FinishReason.LENGTH


def test_rows_that_are_not_finite_fail_their_own_turn_only(
    driver: EngineDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    runner = driver.runner
    forward = runner.forward

    def poisoned(batch: object) -> object:
        logits = forward(batch).clone()
        logits[0] = np.nan
        return logits

    first = driver.request(PROMPT, max_new_tokens=8)
    second = driver.request(PROMPT[::-1], max_new_tokens=8)
    driver.step()
    monkeypatch.setattr(runner, "forward", poisoned)
    driver.step()
    monkeypatch.setattr(runner, "forward", forward)
    driver.run()
    assert driver.results[first].error is ErrorKind.NOT_FINITE
    assert driver.results[second].finish is FinishReason.LENGTH


def test_eight_sessions_with_one_prefix_compute_it_once(driver: EngineDriver) -> None:
    shared = list(range(40, 200))
    names = [driver.request([*shared, n], max_new_tokens=2) for n in range(8)]
    driver.run()
    starts = [driver.results[name].start for name in names]
    cached = sorted(start.cached_tokens for start in starts if start is not None)
    assert cached == [0] + [160] * 7


def test_a_turn_whose_deadline_has_passed_is_refused_at_once() -> None:
    driver = EngineDriver.load()
    late = driver.request([40, 41, 42], deadline_s=-1.0)
    fits = driver.request([40, 41, 42], deadline_s=60.0)
    driver.run()
    assert driver.results[late].error is ErrorKind.OVERLOADED
    assert driver.results[late].start is None
    assert driver.results[fits].finish is FinishReason.LENGTH


def test_a_turn_that_would_wait_too_long_for_its_first_token_is_refused_at_once() -> None:
    driver = EngineDriver.load(num_blocks=4096, first_token_limit_s=1, max_batch_tokens=64)
    names = [driver.request([40 + n] * 200, max_new_tokens=1) for n in range(60)]
    driver.run()
    errors = [driver.results[name].error for name in names]
    assert errors[0] is None
    assert errors[-1] is ErrorKind.OVERLOADED


@pytest.mark.tail
@pytest.mark.parametrize("seconds", [10.0, 7200.0, -7200.0])
@pytest.mark.parametrize("slow_step", [0, 1, 5])
@pytest.mark.samples(3)
def test_a_server_without_other_work_refuses_nothing_after_a_hiccup(
    slow_step: int, seconds: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One step takes ten seconds, or the clock jumps in it; prompts of any length that come to an
    idle engine run."""
    driver = EngineDriver.load(num_blocks=4096, first_token_limit_s=1, max_draft_tokens=0)
    forward = driver.runner.forward
    steps = itertools.count()

    def hiccup(*arguments: Any, **options: Any) -> torch.Tensor:
        driver.clock.advance(seconds if next(steps) == slow_step else 0.002)
        return forward(*arguments, **options)

    monkeypatch.setattr(driver.runner, "forward", hiccup)
    for length in (8, 8, 1300, 4000):
        result = driver.turn([60 + n % 90 for n in range(length)], max_new_tokens=4)
        assert result.finish is FinishReason.LENGTH


def test_steps_that_tell_nothing_are_reported_together_after_some_time() -> None:
    driver = EngineDriver.load(max_batch_tokens=1, max_draft_tokens=0)
    driver.request([60 + n % 90 for n in range(300)], max_new_tokens=1)
    reports = [driver.engine.step() for _ in range(290)]
    told = [report.stats.steps_s for report in reports if report is not None]
    assert [len(steps) for steps in told] == [1, 256]


def test_memory_by_part_is_told_once_a_second_and_when_the_engine_falls_idle() -> None:
    driver = EngineDriver.load(max_draft_tokens=4)
    told: list[dict[str, float]] = []
    name = driver.request(range(40), session="s", max_new_tokens=250)
    while driver.results[name].finish is None:
        driver.step()
        if driver.last_stats is not None and driver.last_stats.memory_bytes:
            told.append(driver.last_stats.memory_bytes)
    assert len(told) == 2 + int(driver.steps * STEP_S)
    last = told[-1]
    assert {*last} == {*ENGINE_PARTS}
    assert last["kv"] > 0
    assert last["drafts"] > 0
    assert last["session_tokens"] >= 290 * 4
    driver.release("s")
    other = driver.request([1], session="t", max_new_tokens=1)
    while driver.results[other].finish is None:
        driver.step()
    assert driver.last_stats is not None
    assert driver.last_stats.memory_bytes["session_tokens"] < last["session_tokens"]
