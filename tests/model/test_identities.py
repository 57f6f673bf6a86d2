"""Whatever cache, batches, chunks, preemption and forced tokens do: the tokens are those of
a plain run.

Random schedules of turns on a float64 model: continued, forked, rewound, resent and
cancelled sessions, greedy and sampled, free and constrained, in pools so small that turns
are evicted and preempted. Every token that came out is compared with the reference engine.
"""

import random
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from runtime.config import AdapterSource
from runtime.grammar.compiler import GrammarCompiler
from runtime.grammar.state import GrammarState
from runtime.messages import FinishReason, SamplingParams, TokenArray
from runtime.model.batch import StepBatch
from runtime.model.presets import random_model_config
from runtime.scheduling import policy
from runtime.scheduling.draft import Draft
from runtime.scheduling.scheduler import Scheduler
from runtime.scheduling.step_plan import Chunk, Schedule, StepPlan
from tests.support.adapters import adaptable_maps, write_adapter
from tests.support.engine_driver import END_OF_TURN, EngineDriver
from tests.support.preset_kinds import (
    COMPRESSED,
    DENSE,
    EXPERTS,
    GEMMA4,
    HYBRIDS,
    LATENT,
    MIXERS,
    ROUTERS,
)
from tests.support.reference import ReferenceModel, ReferenceTurn, first_difference
from tools_api.grammar import GrammarSpec

GRAMMARS = (
    GrammarSpec(
        lark='start: %json {"type": "object", "properties": {"city": {"type": "string", '
        '"maxLength": 4}, "unit": {"enum": ["celsius", "kelvin"]}}, '
        '"required": ["city", "unit"], "additionalProperties": false, '
        '"x-guidance": {"whitespace_flexible": false}}'
    ),
    GrammarSpec(lark='start: ("yes" | "no" | "perhaps") " " /[0-9]{1,3}/'),
)


@pytest.fixture(scope="module")
def reference() -> ReferenceModel:
    return ReferenceModel.random("qwen3-tiny")


def _allowed(state: GrammarState, vocab_size: int) -> Collection[int]:
    row = np.zeros((vocab_size + 31) // 32, dtype=np.int32)
    state.fill_mask(row)
    bits = np.unpackbits(row.view(np.uint8), bitorder="little")[:vocab_size]
    return np.flatnonzero(bits).tolist()


class _Case:
    """One turn with all that the reference needs to repeat it."""

    def __init__(
        self, prompt: list[int], params: SamplingParams, limit: int, grammar: GrammarSpec | None
    ) -> None:
        self.prompt, self.params, self.limit, self.grammar = prompt, params, limit, grammar

    def difference(
        self, driver: EngineDriver, reference: ReferenceModel, tokens: Sequence[int]
    ) -> int:
        vocab = driver.tokenizer.vocab_size
        compiler = GrammarCompiler(driver.tokenizer, max_cache_bytes=1 << 24)
        grammar = self.grammar

        def allowed(emitted: Sequence[int]) -> Collection[int]:
            if grammar is None:
                return [t for t in range(vocab) if t != END_OF_TURN]
            state = GrammarState(compiler.compile(grammar), driver.tokenizer)
            state.advance(emitted)
            return _allowed(state, vocab)

        turn = ReferenceTurn(
            prompt=self.prompt,
            params=self.params,
            max_new_tokens=self.limit,
            end_tokens=driver.tokenizer.end_of_turn_ids,
            allowed=allowed,
        )
        return first_difference(reference, turn, tokens)


def _params(rng: random.Random) -> SamplingParams:
    if rng.random() < 0.4:
        return SamplingParams(temperature=0)
    return SamplingParams(
        temperature=rng.choice([0.7, 1.0, 1.3]),
        top_k=rng.choice([0, 0, 20]),
        top_p=rng.choice([1.0, 0.9]),
        min_p=rng.choice([0.0, 0.02]),
        seed=rng.getrandbits(63),
        frequency_penalty=rng.choice([0.0, 0.0, 0.5]),
        repetition_penalty=rng.choice([1.0, 1.0, 1.2]),
    )


class _Guesser:
    """Drafts that are right, wrong or illegal by chance: the true continuations are learnt
    from an undisturbed run of the same schedule."""

    num_bytes = 0

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self.truth: dict[bytes, int] = {}

    def learn(self, tokens: Sequence[int]) -> None:
        array = np.array(tokens, dtype=np.int32)
        for end in range(1, len(array)):
            self.truth[array[:end].tobytes()] = int(array[end])

    def propose(
        self,
        branch_id: str,
        tenant: str,
        tokens: TokenArray,
        grammar: GrammarState | None,
        limit: int,
        *,
        may_go_on: Callable[[], bool] = lambda: True,
    ) -> Draft:
        draft: list[int] = []
        for _ in range(min(limit, self._rng.randint(0, 8))):
            known = np.array([*tokens.tolist(), *draft], dtype=np.int32).tobytes()
            guess = self.truth.get(known, self._rng.randrange(272))
            draft.append(guess if self._rng.random() < 0.8 else self._rng.randrange(272))
        survival = tuple(0.8**n for n in range(1, len(draft) + 1))
        return Draft(tokens=np.array(draft, dtype=np.int32), sources=(), survival=survival)

    def verified(self, branch_id: str, verified: int, accepted: int) -> None:
        assert 0 <= accepted <= verified

    def remember(self, tenant: str, output: TokenArray) -> None: ...

    def close(self, branch_id: str) -> None: ...


@pytest.fixture(autouse=True)
def _short_levels(monkeypatch: pytest.MonkeyPatch) -> None:
    """Outputs here are a few tokens long; some are to count as long, and be paused."""
    monkeypatch.setattr(policy, "ANSWER_LEVELS", (2, 6))


@pytest.mark.parametrize(
    "seed", [*range(4), *(pytest.param(seed, marks=pytest.mark.tail) for seed in range(4, 12))]
)
@pytest.mark.samples(2)
def test_random_schedules_give_the_tokens_of_a_plain_run(
    reference: ReferenceModel, seed: int
) -> None:
    """Without drafts, with drafts that are partly right, and with the engine's own drafter; with
    that also where steps fail and are repeated for each of their sequences."""
    guesser = _Guesser(random.Random(seed))
    for transcript in play(reference, seed, None, 0):
        guesser.learn(transcript)
    play(reference, seed, guesser, 16)
    play(reference, seed, None, 16)
    play(reference, seed, None, 16, plant=plant_failures)


@pytest.mark.parametrize(
    "kind",
    [*MIXERS, *ROUTERS, *EXPERTS, *DENSE, *GEMMA4, *LATENT, *COMPRESSED, *HYBRIDS],
)
@pytest.mark.samples(4)
def test_random_schedules_give_the_tokens_of_a_plain_run_whatever_the_layers_are(
    kind: str, request: pytest.FixtureRequest
) -> None:
    """With the engine's own drafter."""
    seed = request.config.getoption("--seed")
    play(ReferenceModel.random(kind), seed, None, 16, kind=kind)


RANKS = (
    ("qwen3-tiny-4", {"tensor_parallel": 2}),
    ("qwen3-moe-tiny-4", {"tensor_parallel": 2}),
    ("qwen3-moe-tiny-4", {"tensor_parallel": 2, "expert_parallel": True}),
    ("gpt-oss-tiny", {"tensor_parallel": 2}),
    ("deepseek-v3-tiny", {"tensor_parallel": 2}),
    ("glm-dsa-tiny", {"tensor_parallel": 2}),
    ("minimax-m3-tiny", {"tensor_parallel": 2}),
    ("mimo-v2-tiny", {"tensor_parallel": 4}),
    ("laguna-tiny", {"tensor_parallel": 2}),
    ("deepseek-v4-tiny", {"tensor_parallel": 2}),
    ("qwen3-tiny", {"tensor_parallel": 4}),
    ("olmo2-tiny", {"tensor_parallel": 4}),
    ("minimax-m2-tiny", {"tensor_parallel": 2}),
    ("lfm2-tiny", {"tensor_parallel": 4}),
    ("qwen3.5-tiny", {"tensor_parallel": 2}),
    ("qwen3.5-tiny", {"tensor_parallel": 4}),
    ("granite-hybrid-tiny", {"tensor_parallel": 2}),
    ("granite-hybrid-tiny", {"tensor_parallel": 4}),
    ("nemotron-h-tiny", {"tensor_parallel": 4}),
    ("kimi-linear-tiny", {"tensor_parallel": 2}),
)
"""Every kind of cut: heads of keys in parts and shared, experts by width and whole, biases and
sinks, norms over all heads, gates behind attention, recurrent layers and their states."""


@pytest.mark.tail
@pytest.mark.parametrize(("kind", "settings"), RANKS)
def test_random_schedules_give_the_tokens_of_a_plain_run_on_several_ranks(
    kind: str, settings: dict[str, object], request: pytest.FixtureRequest
) -> None:
    """With the engine's own drafter; the reference is one model on one device."""
    seed = request.config.getoption("--seed")
    play(ReferenceModel.random(kind), seed, None, 16, kind=kind, **settings)


ADAPTED = (
    ("qwen3-tiny", {}),
    ("gpt-oss-tiny", {}),
    ("deepseek-v3-tiny", {}),
    ("qwen3.5-tiny", {}),
    ("qwen3-tiny-4", {"tensor_parallel": 2}),
    ("mimo-v2-tiny", {"tensor_parallel": 4}),
    ("deepseek-v3-tiny", {"tensor_parallel": 2}),
    ("qwen3.5-tiny", {"tensor_parallel": 4}),
    ("granite-hybrid-tiny", {"tensor_parallel": 2}),
    ("lfm2-tiny", {"tensor_parallel": 4}),
)
"""Attention of all kinds, states, windows; alone and on several ranks."""


@pytest.mark.parametrize(
    ("kind", "settings"),
    [ADAPTED[0], *(pytest.param(*each, marks=pytest.mark.tail) for each in ADAPTED[1:])],
)
@pytest.mark.samples(2)
def test_random_schedules_with_adapters_give_the_tokens_of_merged_weights(
    kind: str, settings: dict[str, object], tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """Two adapters and none, in one step and in one session, for two tenants; also where steps are
    begun ahead, and where they fail."""
    seed = request.config.getoption("--seed")
    maps = adaptable_maps(random_model_config(kind))
    folders = {
        name: write_adapter(tmp_path / name, maps, seed=number, rank=2 + number)
        for number, name in enumerate(("red", "blue"))
    }
    adapted = {name: ReferenceModel.with_adapter(kind, folder) for name, folder in folders.items()}
    sources = tuple(
        AdapterSource(name=name, folder=str(folder)) for name, folder in folders.items()
    )
    plain = ReferenceModel.random(kind)
    more: dict[str, Any] = {"adapters": sources, **settings}
    play(plain, seed, None, 16, kind=kind, adapted=adapted, tenants=2, **more)
    if kind == "qwen3-tiny" and not settings:
        play(plain, seed, None, 0, adapted=adapted, tenants=2, looks_ahead=True, **more)
        play(plain, seed, None, 16, adapted=adapted, plant=plant_failures, **more)


@pytest.mark.tail
@pytest.mark.parametrize("seed", range(4))
@pytest.mark.samples(2)
def test_random_schedules_of_several_tenants_give_the_tokens_of_a_plain_run(
    reference: ReferenceModel, seed: int
) -> None:
    """Tenants above their shares lose idle and leased blocks to others."""
    play(reference, seed, None, 16, tenants=3)


@pytest.mark.tail
@pytest.mark.parametrize("seed", range(4))
@pytest.mark.samples(1)
def test_decodes_that_rest_give_the_tokens_of_a_plain_run(
    reference: ReferenceModel, seed: int
) -> None:
    """Tenants whose decodes are left out of steps, by chance, with drafts and without."""
    rested: list[int] = []

    def plant(driver: EngineDriver, seed: int) -> None:
        rng, share = random.Random(f"rests/{seed}"), driver.engine.scheduler.tenant_share

        def begin(
            now: float, step: StepPlan, *, decoders: Mapping[str, int], tenants: int
        ) -> set[str]:
            resting = {tenant for tenant in sorted(decoders) if rng.random() < 0.4}
            if len(resting) == len(decoders):
                return set()
            rested.append(len(resting))
            return resting

        share.start_step = begin  # type: ignore[assignment, method-assign]
        share.has_to_wait = lambda tenant: rng.random() < 0.2  # type: ignore[method-assign]

    guesser = _Guesser(random.Random(seed))
    for transcript in play(reference, seed, None, 0, plant=plant, tenants=3):
        guesser.learn(transcript)
    play(reference, seed, guesser, 16, plant=plant, tenants=3)
    assert sum(rested) > 0


def plant_failures(driver: EngineDriver, seed: int) -> None:
    """Every other step of several sequences fails, before or behind its forward pass."""
    rng = random.Random(f"failures/{seed}")
    runner, computation = driver.runner, driver.engine.computation
    forward, draw = runner.forward, computation.draw

    def failing_forward(batch: StepBatch, *more: Any) -> Any:
        several = len(batch.context_lengths) > 1
        if several and rng.random() < 0.2:
            raise RuntimeError("planted before the forward pass")
        logits = forward(batch, *more)
        if several and rng.random() < 0.2:
            raise RuntimeError("planted behind the forward pass")
        return logits

    def failing_draw(chunks: list[Chunk], *more: Any) -> Any:
        if len(chunks) > 1 and rng.random() < 0.2:
            raise RuntimeError("planted before the draw")
        drawn = draw(chunks, *more)
        if len(chunks) > 1 and rng.random() < 0.2:
            raise RuntimeError("planted behind the draw")
        return drawn

    runner.forward = failing_forward  # type: ignore[method-assign]
    computation.draw = failing_draw  # type: ignore[method-assign]


def play(
    reference: ReferenceModel,
    seed: int,
    guesser: _Guesser | None,
    most_drafts: int,
    plant: Callable[[EngineDriver, int], None] = lambda driver, seed: None,
    tenants: int = 1,
    kind: str = "qwen3-tiny",
    adapted: Mapping[str, ReferenceModel] | None = None,
    **more: Any,
) -> list[list[int]]:
    """Play the schedule of ``seed``; returns the transcripts. ``plant`` spoils the engine;
    ``adapted``: references by the adapter that turns may have; ``more``: settings."""
    references: dict[str | None, ReferenceModel] = {None: reference}
    references.update(adapted or {})
    rng = random.Random(seed)
    driver = EngineDriver.load(
        model=f"random:{kind}",
        drafter=guesser,
        max_draft_tokens=most_drafts,
        num_blocks=rng.choice([14, 24, 60, 400]),
        block_size=rng.choice([4, 16]),
        max_batch_tokens=rng.choice([7, 33, 512]),
        prefill_tokens_beside_decodes=rng.choice([3, 16, 256]),
        max_running=rng.choice([2, 4, 16]),
        output_reserve_percent=rng.choice([0, 0, 100]),
        policy=rng.choice(["fcfs", "short_turn_first", "fair"]),
        cache_policy=rng.choice(["lru", "lease"]),
        **more,
    )
    plant(driver, seed)
    capacity = driver.engine.info.kv_capacity_tokens
    cases: dict[str, _Case] = {}
    sessions: dict[str, list[int]] = {}
    open_turns: dict[str, str] = {}
    cancelled: set[str] = set()
    owners: dict[str, str] = {}
    computed_with: dict[str, str | None] = {}
    adapters: dict[str, str | None] = {}
    shared = [rng.randrange(32, 127) for _ in range(30)]

    def start() -> None:
        new = [rng.randrange(32, 127) for _ in range(rng.randint(1, 25))]
        idle = [s for s in sessions if s not in open_turns.values()]
        session, base, offset = f"s{len(cases)}", None, 0
        if idle and rng.random() < 0.7:
            base = rng.choice(idle)
            offset = len(sessions[base])
            if rng.random() < 0.25:
                offset = rng.randint(0, offset)
            if rng.random() < 0.7:
                session = base
        tenant = owners[base] if base else f"t{len(cases) % tenants}"
        prefix = sessions[base][:offset] if base else []
        if base is None and rng.random() < 0.6:
            new = shared + new
        prompt = prefix + new
        limit = rng.randint(1, 12)
        grammar = rng.choice([None, None, *GRAMMARS])
        if grammar is not None:
            limit = 60
        if len(prompt) + limit > capacity - 2 * 16:
            return
        params = _params(rng)
        adapter = rng.choice(list(references)) if adapted else None
        if base is not None and rng.random() < 0.3:
            adapter = computed_with[base]
        name = driver.request(
            new,
            session=session,
            base=base,
            offset=offset,
            max_new_tokens=limit,
            sampling=params,
            grammar=grammar,
            tenant=tenant,
            adapter=adapter,
        )
        owners[session], computed_with[session], adapters[name] = tenant, adapter, adapter
        cases[name] = _Case(prompt, params, limit, grammar)
        open_turns[name] = session

    def settle() -> None:
        for name in [n for n in open_turns if driver.results[n].finish is not None]:
            sessions[open_turns.pop(name)] = cases[name].prompt + driver.results[name].tokens

    while len(cases) < (60 if adapted else 30):
        for _ in range(rng.randint(0, 3)):
            start()
        if open_turns and rng.random() < 0.08:
            name = rng.choice(list(open_turns))
            cancelled.add(name)
            driver.cancel(name)
        for _ in range(rng.randint(0, 4)):
            if driver.engine.has_work:
                driver.step()
            driver.engine.check()
        settle()
    driver.run()
    driver.engine.check()
    driver.close()
    assert driver.last_stats is not None
    for name, case in cases.items():
        result = driver.results[name]
        assert result.after_finish == 0
        ended = {FinishReason.STOP, FinishReason.LENGTH}
        if name in cancelled:
            ended.add(FinishReason.CANCELLED)
        assert result.finish in ended, (name, result)
        model = references[adapters[name]]
        assert case.difference(driver, model, result.tokens) == len(result.tokens), name
    results = driver.results.values()
    if guesser is not None:
        assert 0 < sum(r.accepted for r in results) < sum(r.drafted for r in results)
    return [case.prompt + driver.results[name].tokens for name, case in cases.items()]


@pytest.mark.parametrize("tenants", [1, 2, 6])
def test_a_paused_turn_gives_the_tokens_of_a_plain_run(
    reference: ReferenceModel, monkeypatch: pytest.MonkeyPatch, tenants: int
) -> None:
    """Paused for a shorter one, or one of a tenant that has no slot: the first two are one's."""
    if tenants > 1:  # by their length none is paused
        monkeypatch.setattr(policy, "ANSWER_LEVELS", (99, 999))
    paused: list[object] = []
    schedule = Scheduler.schedule

    def noting(scheduler: Scheduler, *arguments: Any) -> Schedule:
        plan = schedule(scheduler, *arguments)
        paused.extend(plan.paused)
        return plan

    monkeypatch.setattr(Scheduler, "schedule", noting)
    driver = EngineDriver.load(num_blocks=200, block_size=4, max_running=2, max_draft_tokens=0)
    greedy = SamplingParams(temperature=0)
    cases: dict[str, _Case] = {}
    for n in range(6):
        prompt, limit = [40 + n] * 9, 14 if n < 2 else 2
        tenant = f"t{max(n - 1, 0) % tenants}"
        name = driver.request(prompt, max_new_tokens=limit, sampling=greedy, tenant=tenant)
        cases[name] = _Case(prompt, greedy, limit, None)
        for _ in range(4):
            driver.step()
    driver.run()
    assert paused
    for name, case in cases.items():
        tokens = driver.results[name].tokens
        assert len(tokens) == case.limit
        assert case.difference(driver, reference, tokens) == len(tokens), name


def test_the_random_schedules_do_preempt_and_evict() -> None:
    """Guards the test above: in a pool that small turns are preempted."""
    driver = EngineDriver.load(num_blocks=14, block_size=4, output_reserve_percent=0)
    for n in range(6):
        driver.request([40 + n] * 12, max_new_tokens=20)
    driver.run()
    assert driver.preemptions > 0
    assert all(len(r.tokens) == 20 for r in driver.results.values())
