"""The simulator plays what a server played, and says how far it is off."""

from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.fleet_engine import with_host
from benchmarks.loop_model import write_loop_model
from benchmarks.loop_simulation import (
    CostTable,
    Seen,
    errors,
    foretold,
    kv_bytes_per_token,
    middle_of,
    sessions_of,
    timed_table,
)
from benchmarks.loop_workload import Played, PlayedTurn, Workload
from runtime.scheduling.costs import CostProfile

LOAD = Workload(sessions=3, turns=2, system_tokens=40, result_tokens=(10, 10))
TABLE = CostTable.linear(CostProfile(prefill_token_s=1e-3, decode_step_s=0.01))
KV_TOKENS = 1 << 16


def played(
    latency_s: float, first_s: float = 1.0, *, prompts: tuple[int, ...] = (50, 64), answer: int = 4
) -> Played:
    """Three sessions of two turns, 50 + 4 and 64 + 4 tokens."""
    turns = [
        PlayedTurn(sent_s=0.0, token_s=[first_s] * answer, end_s=latency_s, prompt_tokens=prompt)
        for prompt in prompts
    ]
    return Played(sessions=[turns] * 3, wall_s=1.0)


def test_lengths_are_those_that_were_played_and_the_system_prompt_is_shared() -> None:
    first, second, _ = sessions_of(played(1.0), LOAD)
    turns = [(t.prompt_tokens, t.output_tokens, t.kept_tokens) for t in first.turns]
    assert turns == [(50, 4, 0), (64, 4, 54)]
    assert [t.limit_tokens for t in first.turns] == [4, 4]  # as clients say
    assert list(first.turns[1].tokens[:54]) == list(first.turns[0].tokens)
    assert list(first.turns[0].tokens[:40]) == list(second.turns[0].tokens[:40])
    assert not set(first.turns[0].tokens[40:]) & set(second.turns[0].tokens[40:])


def test_steps_take_as_much_longer_as_those_of_sessions_one_by_one_and_decoding_together() -> None:
    """What a host takes for each step, for prompts by themselves and for each sequence beside
    another is foretold; what it takes only for steps of both prompts and decodes is not."""
    serial_load, decode_load = replace(LOAD, one_at_a_time=True), replace(LOAD, turns=1)

    def seen(load: Workload, table: CostTable) -> Seen:
        """What such a machine takes, by the simulator itself."""
        prompts, answer = ((50, 64), 4) if load.turns == 2 else ((50,), 200)
        empty = played(1.0, prompts=prompts, answer=answer)
        said = foretold(table, KV_TOKENS, Seen(server="ours", load=load, rounds=[empty]))
        full = played(said.latency_s, said.first_token_s, prompts=prompts, answer=answer)
        return Seen(server="ours", load=load, rounds=[full])

    def off(prompt_s: float, step_s: float, row_s: float, mixed_s: float | None = None) -> float:
        table = with_host(
            TABLE,
            prefill_s=prompt_s,
            decode_s=step_s,
            mixed_s=step_s if mixed_s is None else mixed_s,
            row_s=row_s,
        )
        serial, decoding = seen(serial_load, table), seen(decode_load, table)
        runs = {"ours/s8": seen(LOAD, table)}
        return errors(TABLE, KV_TOKENS, serial, decoding, runs)["ours/s8"]

    assert off(0.0, 0.0, 0.0) == pytest.approx(0.0)
    assert off(0.02, 0.02, 0.0) == pytest.approx(0.0)
    assert off(0.05, 0.02, 0.0) == pytest.approx(0.0)
    assert off(0.05, 0.02, 0.01) == pytest.approx(0.0, abs=0.01)
    assert off(0.0, 0.0, 0.0, mixed_s=0.2) < -0.2
    serial, decoding = seen(serial_load, TABLE), seen(decode_load, TABLE)
    slow = {"slow": Seen(server="fcfs", load=LOAD, rounds=[played(7.0)])}
    assert errors(TABLE, KV_TOKENS, serial, decoding, slow)["slow"] < -0.9


def test_the_table_is_timed_on_the_model_itself(tmp_path: Path) -> None:
    write_loop_model(tmp_path / "model", "random:qwen3-tiny")
    table = timed_table(tmp_path / "model", threads=1)
    assert sum(map(sum, table.timed)) >= 16
    assert kv_bytes_per_token(tmp_path / "model") % 2 == 0


def test_a_table_that_was_timed_in_a_bad_moment_does_not_count() -> None:
    good = replace(TABLE, pair_s=3e-8, context_s=1e-7)
    slow = replace(
        TABLE, cells=[[9 * cell for cell in row] for row in TABLE.cells], pair_s=1.0, context_s=1.0
    )
    fast = replace(TABLE, cells=[[0.0 for _ in row] for row in TABLE.cells])
    middle = middle_of([slow, good, fast])
    assert middle.cells == TABLE.cells
    assert (middle.pair_s, middle.context_s) == (3e-8, 1e-7)
