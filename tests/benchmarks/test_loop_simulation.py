"""The simulator plays what a server played, and says how far it is off."""

from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.loop_model import write_loop_model
from benchmarks.loop_simulation import (
    CostTable,
    Seen,
    errors,
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


def test_what_is_foretold_is_scaled_by_the_sessions_played_one_by_one() -> None:
    """One by one a turn takes 10 to 50 tokens and three decodes: mean 53 ms with the prompt shared.
    A machine that is twice as slow throughout is foretold as well as one that is not."""
    serial_load = replace(LOAD, one_at_a_time=True)

    def off(slower: float) -> float:
        serial = Seen(server="ours", load=serial_load, rounds=[played(0.05 * slower)])
        beside = Seen(server="ours", load=LOAD, rounds=[played(0.07 * slower)])
        return errors(TABLE, KV_TOKENS, serial, {"ours/s8": beside})["ours/s8"]

    assert off(1.0) == pytest.approx(off(2.0))
    serial = Seen(server="ours", load=serial_load, rounds=[played(0.05)])
    assert errors(TABLE, KV_TOKENS, serial, {"same": serial})["same"] == pytest.approx(0.0)
    slow = Seen(server="fcfs", load=LOAD, rounds=[played(7.0)])
    assert errors(TABLE, KV_TOKENS, serial, {"slow": slow})["slow"] < -0.9


def test_the_table_is_timed_on_the_model_itself(tmp_path: Path) -> None:
    write_loop_model(tmp_path / "model", "random:qwen3-tiny")
    table = timed_table(tmp_path / "model", threads=1)
    assert sum(map(sum, table.timed)) >= 16
    assert kv_bytes_per_token(tmp_path / "model") % 2 == 0
