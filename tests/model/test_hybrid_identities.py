"""Whatever becomes of its states, a hybrid's tokens are those of one unbroken run.

Random schedules on a float64 model: sessions of two tenants continued, forked, rewound by a few
tokens and by many, resent, cancelled, stopped, preempted, released, in few slots and few blocks,
with headers named, with drafts of which any number is right, with steps begun ahead and with steps
that fail; half of them over host memory and a disk, where copies end at random times and the engine
is started again. Every token is compared with the plain reference.

On several ranks the same, some with memory below the device.

KEEPWARM_HYBRID_OPERATIONS sets how many operations are played, KEEPWARM_HYBRID_SEED where the seeds
begin.
"""

import os
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from kernels.delta_rows import DeltaRows, DeltaSpans
from runtime.engine.state_memory import StateMemory
from runtime.model.batch import IntArray
from runtime.model.delta_states import DeltaStates, DeltaStep
from runtime.model.kv_pool import KVPool
from runtime.model.state_pool import StatePool
from runtime.offload.checksums import HostMemoryDamaged
from runtime.offload.copies import copies_of
from runtime.scheduling import policy, queues
from tests.support.hybrid_schedules import Schedule, Truth

pytestmark = pytest.mark.tail
_ASKED = os.environ.get("KEEPWARM_HYBRID_OPERATIONS")
OPERATIONS = {
    "lfm2-tiny": int(_ASKED or 3000),
    "lfm3-tiny": int(_ASKED or 250),
    "qwen3.5-tiny": int(_ASKED or 80),
    "granite-hybrid-tiny": int(_ASKED or 80),
    "kimi-linear-tiny": int(_ASKED or 80),
    "glm5-next-tiny": int(_ASKED or 80),
    "olmo-hybrid-tiny": int(_ASKED or 80),
    "ling3-tiny": int(_ASKED or 80),
}
"""The references of layers of matrices go token by token: the short form plays few."""
RANKS = (("lfm2-tiny", 2), ("qwen3.5-tiny", 2), ("qwen3.5-tiny", 4))
RANKS += (("granite-hybrid-tiny", 2), ("granite-hybrid-tiny", 4), ("kimi-linear-tiny", 2))
ON_RANKS = ((3, False), (8, False), (21, False), (5, True), (7, True))
"""Seeds of schedules on each, and whether there is memory below the device: in some steps are begun
ahead, drafts tried, turns preempted, engines started again. KEEPWARM_HYBRID_OPERATIONS adds others,
of a twenty-fifth as many operations, half of them with such memory."""
NEEDED_ON_RANKS = {
    "accepted",
    "rejected",
    "decoded ahead",
    "forked",
    "cancelled",
    "preempted",
    "failed in its draw",
    "begun from host memory",
    "restarted",
    "resumed after a restart",
    "rewound within the ring",
    "resumed at end",
    "resumed at header",
    "resumed at pause",
}
ENOUGH = 3000
"""Of which every kind occurs."""
SEED = int(os.environ.get("KEEPWARM_HYBRID_SEED", "0"))
PER_RUN = 250
SHORT = 80
LANES = 2
NEEDED = {
    "begun",
    "continued",
    "forked",
    "rewound within the ring",
    "rewound beyond it",
    "resent",
    "header named",
    "cancelled",
    "released",
    "stopped",
    "accepted",
    "rejected",
    "step",
    "resumed",
    "state missing",
    "preempted",
    "decoded ahead",
    "failed in its forward pass",
    "failed in its draw",
    "failed in an order",
    "restarted",
    "came back",
    "begun from host memory",
    "resumed after a restart",
    "resumed at the start",
    "resumed at end",
    "resumed at header",
    "resumed at junction",
    "resumed at pause",
    "resumed at interval",
}


def _per_run(model: str) -> int:
    return min(PER_RUN, OPERATIONS[model] // LANES)


@pytest.fixture(autouse=True)
def _short_levels(monkeypatch: pytest.MonkeyPatch) -> None:
    """Outputs here are a few tokens long; some are to count as long, and be paused. Of prompts
    states are kept every few tokens, and not only where a cut changes no bit."""
    monkeypatch.setattr(policy, "ANSWER_LEVELS", (2, 6))
    monkeypatch.setattr(queues, "INTERVAL_TOKENS", 16)
    monkeypatch.setattr(queues, "_EXACT_CUT", 1)


def killed(model: str, seeds: range, folder: Path, *, tiers: bool = False) -> bool:
    """Whether a schedule notices what is wrong."""
    truth = Truth(model)
    for seed in seeds:
        schedule = Schedule(seed, truth, Counter(), folder, tiers=tiers)
        try:
            schedule.play(_per_run(model))
        except (AssertionError, ValueError, HostMemoryDamaged):
            return True
    return False


def _one_token_early(monkeypatch: pytest.MonkeyPatch) -> None:
    end = StatePool.end

    def early(pool: StatePool, slot: int, *, position: int | None) -> bool:
        reached = pool.committed[slot]
        at = position if position is None else max(position - 1, int(reached))
        return end(pool, slot, position=at)

    monkeypatch.setattr(StatePool, "end", early)


def _window_not_copied(monkeypatch: pytest.MonkeyPatch) -> None:
    begin = StatePool.begin

    def bare(pool: StatePool, slot: int, *, source: int | None, position: int) -> None:
        begin(pool, slot, source=None if source is None else slot, position=position)

    monkeypatch.setattr(StatePool, "begin", bare)


def _not_zeroed(monkeypatch: pytest.MonkeyPatch) -> None:
    begin = StatePool.begin

    def dirty(pool: StatePool, slot: int, *, source: int | None, position: int) -> None:
        begin(pool, slot, source=slot if source is None else source, position=position)

    monkeypatch.setattr(StatePool, "begin", dirty)


def _written_by_the_step_ahead(monkeypatch: pytest.MonkeyPatch) -> None:
    end = StatePool.end

    def late(pool: StatePool, slot: int, *, position: int | None) -> bool:
        return end(pool, slot, position=position and int(pool.reached[slot]))

    monkeypatch.setattr(StatePool, "end", late)


def _rejected_draft_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    commit = StatePool.commit

    def kept(pool: StatePool, slots: IntArray, positions: IntArray) -> None:
        commit(pool, slots, pool.reached[slots])
        pool.committed[slots] = positions

    monkeypatch.setattr(StatePool, "commit", kept)


def _factors_of_another_token(monkeypatch: pytest.MonkeyPatch) -> None:
    """At the end of a sequence and where a step begins."""
    commit, step = DeltaStates.commit, DeltaStates.step

    def shifted(spans: DeltaSpans) -> DeltaSpans:
        return replace(spans, committed=spans.committed + 1)

    def commit_shifted(states: DeltaStates, spans: DeltaSpans) -> None:
        commit(states, shifted(spans))

    def step_shifted(
        states: DeltaStates, rows: DeltaRows, spans: DeltaSpans, *rest: Any
    ) -> DeltaStep:
        return step(states, rows, shifted(spans), *rest)

    monkeypatch.setattr(DeltaStates, "commit", commit_shifted)
    monkeypatch.setattr(DeltaStates, "step", step_shifted)


MUTANTS = (
    _one_token_early,
    _window_not_copied,
    _not_zeroed,
    _written_by_the_step_ahead,
    _rejected_draft_kept,
)


SOON = (_one_token_early, _window_not_copied, _factors_of_another_token)
"""Noticed within a schedule or two."""


@pytest.mark.parametrize(
    ("model", "mutant"),
    [
        *(("lfm2-tiny", mutant) for mutant in MUTANTS),
        *(
            pytest.param(model, mutant, marks=[] if soon else pytest.mark.slow)
            for model in ("qwen3.5-tiny", "granite-hybrid-tiny")
            for mutant in (*MUTANTS, _factors_of_another_token)
            for soon in [mutant in SOON and model == "qwen3.5-tiny"]
        ),
    ],
)
@pytest.mark.timeout(3000)
def test_a_fault_in_what_is_done_with_states_is_noticed(
    model: str,
    mutant: Callable[[pytest.MonkeyPatch], None],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    mutant(monkeypatch)
    assert killed(model, range(20, 26), tmp_path)


def _begun_before_it_is_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(StateMemory, "settle", lambda memory, slots: None)


class _NoCopies:
    """Copies nothing, at once."""

    done, seconds = True, 0.0

    def down(self, *arguments: object) -> "_NoCopies":
        return self

    up = down

    def settle(self) -> None: ...

    wait = settle


def _below_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    """A running state is copied to host memory without what its last tokens bring."""
    monkeypatch.setattr(StatePool, "bring", lambda pool, slot, position: True)


def _tail_stays_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    """The state alone is copied between the tiers."""

    def halved(pool: Any, worker: Any) -> Any:
        return _NoCopies() if isinstance(pool, KVPool) else copies_of(pool, worker)

    monkeypatch.setattr("runtime.offload.state_copies.copies_of", halved)


@pytest.mark.parametrize("mutant", [_begun_before_it_is_up, _below_as_it_was, _tail_stays_behind])
@pytest.mark.timeout(3000)
def test_a_fault_in_what_moves_between_tiers_is_noticed(
    mutant: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    mutant(monkeypatch)
    assert killed("lfm2-tiny", range(30, 40), tmp_path, tiers=True)


@pytest.mark.timeout(3000)
@pytest.mark.parametrize("lane", range(LANES))
@pytest.mark.parametrize("model", OPERATIONS)
def test_a_hybrids_tokens_are_those_of_one_unbroken_run(
    model: str, lane: int, tmp_path: Path
) -> None:
    counts: Counter[str] = Counter()
    truth = Truth(model)
    for run in range(max(1, OPERATIONS[model] // (LANES * PER_RUN))):
        seed = SEED + 1_000_000 * lane + run
        schedule = Schedule(seed, truth, counts, tmp_path, tiers=run % 2 == 0)
        try:
            schedule.play(_per_run(model))
        except AssertionError as error:
            raise AssertionError(f"seed {seed}: {error}") from error
    print(model, dict(counts))
    if OPERATIONS[model] >= ENOUGH:
        assert not NEEDED - {what for what, count in counts.items() if count}, counts


@pytest.mark.timeout(3000)
@pytest.mark.parametrize(("model", "ranks"), RANKS)
def test_a_hybrids_tokens_are_those_of_one_unbroken_run_on_several_ranks(
    model: str, ranks: int, tmp_path: Path
) -> None:
    counts: Counter[str] = Counter()
    truth, more = Truth(model), int(_ASKED or 0) // (25 * SHORT)
    others = [(seed, seed % 2 == 0) for seed in range(SEED + 1000, SEED + 1000 + more)]
    for seed, tiers in [*ON_RANKS, *others]:
        schedule = Schedule(seed + 3_000_000, truth, counts, tmp_path, tiers=tiers, ranks=ranks)
        try:
            schedule.play(SHORT)
        except AssertionError as error:
            raise AssertionError(f"seed {seed}: {error}") from error
    assert not NEEDED_ON_RANKS - {what for what, count in counts.items() if count}, counts
