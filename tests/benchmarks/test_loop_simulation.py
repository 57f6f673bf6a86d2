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
    foretold_s,
    kv_bytes_per_token,
    sessions_of,
    timed_table,
)
from benchmarks.loop_workload import Played, PlayedTurn, Workload
from runtime.scheduling.costs import CostProfile

LOAD = Workload(sessions=3, turns=2, system_tokens=40, result_tokens=(10, 10))
TABLE = CostTable.linear(CostProfile(prefill_token_s=1e-3, decode_step_s=0.01))
KV_TOKENS = 1 << 16


def played(latency_s: float) -> Played:
    """Three sessions of two turns, 50 + 4 and 64 + 4 tokens."""
    turns = [
        PlayedTurn(sent_s=0.0, token_s=[1.0] * 4, end_s=latency_s, prompt_tokens=prompt)
        for prompt in (50, 64)
    ]
    return Played(sessions=[turns] * 3, wall_s=1.0)


def test_lengths_are_those_that_were_played_and_the_system_prompt_is_shared() -> None:
    first, second, _ = sessions_of(played(1.0), LOAD)
    turns = [(t.prompt_tokens, t.output_tokens, t.kept_tokens) for t in first.turns]
    assert turns == [(50, 4, 0), (64, 4, 54)]
    assert list(first.turns[1].tokens[:54]) == list(first.turns[0].tokens)
    assert list(first.turns[0].tokens[:40]) == list(second.turns[0].tokens[:40])
    assert not set(first.turns[0].tokens[40:]) & set(second.turns[0].tokens[40:])


def test_each_step_takes_as_much_longer_as_those_of_sessions_played_one_by_one() -> None:
    """A host that takes 20 ms more for each step is foretold as well as one that takes none; one
    that takes them only beside others is not foretold."""
    serial_load = replace(LOAD, one_at_a_time=True)

    def seen(load: Workload, host_s: float) -> Seen:
        """What a machine with such a host takes, by the simulator itself."""
        table = with_host(TABLE, prefill_s=host_s, decode_s=host_s, mixed_s=host_s)
        plain = Seen(server="ours", load=load, rounds=[played(1.0)])
        return replace(plain, rounds=[played(foretold_s(table, KV_TOKENS, plain))])

    def off(alone_s: float, beside_s: float) -> float:
        beside = {"ours/s8": seen(LOAD, beside_s)}
        return errors(TABLE, KV_TOKENS, seen(serial_load, alone_s), beside)["ours/s8"]

    assert off(0.0, 0.0) == pytest.approx(0.0)
    assert off(0.02, 0.02) == pytest.approx(0.0)
    assert off(0.0, 0.02) < -0.2
    assert off(0.02, 0.0) > 0.2
    slow = Seen(server="fcfs", load=LOAD, rounds=[played(7.0)])
    assert errors(TABLE, KV_TOKENS, seen(serial_load, 0.0), {"slow": slow})["slow"] < -0.9


def test_the_table_is_timed_on_the_model_itself(tmp_path: Path) -> None:
    write_loop_model(tmp_path / "model", "random:qwen3-tiny")
    table = timed_table(tmp_path / "model", threads=1)
    assert sum(map(sum, table.timed)) >= 16
    assert kv_bytes_per_token(tmp_path / "model") % 2 == 0
