"""Shards of training data: what was written ahead is what would have been made."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from examples.train_agent_model import shards
from examples.train_agent_model.batches import pool_rows
from examples.train_agent_model.curriculum import PRACTICE, STAGES
from examples.train_agent_model.rendering import Label, SessionEncoder
from tests.support.training import MODEL, shipped_encoder, toy_trainer


@pytest.fixture(scope="module")
def encoder() -> SessionEncoder:
    return shipped_encoder()


def write(folder: Path, *options: str, monkeypatch: pytest.MonkeyPatch) -> None:
    folder.mkdir(exist_ok=True)
    (folder / "tokenizer.json").write_bytes((MODEL / "tokenizer.json").read_bytes())
    arguments = ["shards", "--folder", str(folder), "--processes", "2", *options]
    monkeypatch.setattr("sys.argv", arguments)
    shards.main()


def test_a_shard_holds_the_rows_of_its_pool(
    tmp_path: Path,
    encoder: SessionEncoder,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    write(tmp_path, "--pools", "2", "--seed", "5", "--practice", monkeypatch=monkeypatch)
    total = 0
    for pool in range(2):
        rows = shards.read_shard(shards.shard_path(tmp_path, (PRACTICE,), 5, (0, pool)))
        wanted = pool_rows(encoder, PRACTICE, 5, 0, pool)
        assert len(rows) == len(wanted) > 30
        for row, other in zip(rows, wanted, strict=True):
            assert (row.ids.dtype, row.weights.dtype) == (other.ids.dtype, other.weights.dtype)
            assert np.array_equal(row.ids, other.ids)
            assert np.array_equal(row.weights, other.weights)
            assert all(np.array_equal(row.labels[label], other.labels[label]) for label in Label)
            total += len(row.ids)
    assert f"{total} tokens in 2 pools" in capsys.readouterr().out
    assert len(list((tmp_path / "shards").iterdir())) == 2


def test_no_two_pools_share_a_name() -> None:
    few_recalls = replace(PRACTICE, recalls=1)
    names = {
        shards.shard_path(Path(), stages, seed, (number, pool))
        for stages in (STAGES, (PRACTICE,), (replace(PRACTICE, hard=False),), (few_recalls,))
        for number in range(len(stages))
        for seed in (1, 2)
        for pool in (0, 1)
    }
    assert len(names) == (len(STAGES) + 3) * 4


def test_each_stage_of_the_curriculum_has_its_shards(
    tmp_path: Path, encoder: SessionEncoder, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path, "--pools", "1", monkeypatch=monkeypatch)
    lengths = []
    for number, stage in enumerate(STAGES):
        rows = shards.read_shard(shards.shard_path(tmp_path, STAGES, 1, (number, 0)))
        assert [len(r.ids) for r in rows] == [
            len(r.ids) for r in pool_rows(encoder, stage, 1, number, 0)
        ]
        lengths.append(np.mean([len(row.ids) for row in rows]))
    assert lengths[0] < lengths[-2] < lengths[-1]


@pytest.mark.slow
def test_a_training_takes_the_shard_that_is_there_and_learns_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path / "with", "--pools", "1", "--practice", monkeypatch=monkeypatch)
    made = []
    whole = shards.pool_rows
    monkeypatch.setattr(shards, "pool_rows", lambda *at: made.append(at[2:]) or whole(*at))
    states = []
    for name in ("with", "without"):
        trainer = toy_trainer(tmp_path / name)
        trainer.run_pool(budget_s=1e9, autocast=False)
        states.append(trainer.model.state_dict())
    assert made == [(1, 0, 0)], "only the one without shards made its rows"
    assert all(torch.equal(weight, states[1][name]) for name, weight in states[0].items())
