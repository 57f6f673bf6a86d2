"""Batches of the default model's training: reproducible, bounded, labelled rightly."""

import itertools
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import tokenizers
import torch

from examples.train_agent_model.batches import Batch, batches, drill, pool_rows
from examples.train_agent_model.curriculum import STAGES
from examples.train_agent_model.rendering import Label, SessionEncoder
from examples.train_agent_model.tokenizer import SPECIAL

MODEL = Path(__file__).parents[2] / "runtime/assets/default_model"


@pytest.fixture(scope="module")
def encoder() -> SessionEncoder:
    return SessionEncoder(tokenizers.Tokenizer.from_file(str(MODEL / "tokenizer.json")))


def made(encoder: SessionEncoder, stage: int, pool: int, **shares: int) -> list[Batch]:
    rows = pool_rows(encoder, STAGES[stage], 1, stage, pool)
    return list(batches(rows, STAGES[stage], encoder.vocab_size, (1, stage, pool), **shares))


def test_a_pool_is_the_same_each_time_and_unlike_its_neighbour(encoder: SessionEncoder) -> None:
    pools = [made(encoder, 2, pool) for pool in (3, 3, 4)]
    tokens = [[batch.tokens for batch in pool] for pool in pools]
    assert all(torch.equal(a, b) for a, b in zip(tokens[0], tokens[1], strict=True))
    assert not any(torch.equal(a, b) for a, b in zip(tokens[0], tokens[2], strict=False))


def test_a_batch_keeps_within_its_tokens(encoder: SessionEncoder) -> None:
    for batch in made(encoder, 3, 0):
        assert batch.tokens.numel() <= STAGES[3].batch_tokens or len(batch.tokens) == 1


def test_a_pool_holds_as_many_recalls_as_its_stage_says(encoder: SessionEncoder) -> None:
    stage = STAGES[3]
    counts = [
        len(pool_rows(encoder, replace(stage, recalls=recalls), 1, 3, 0)) for recalls in (0, 5, 24)
    ]
    assert [count - counts[0] for count in counts] == [0, 5, 24]


def test_processes_share_the_steps_of_a_pool_equally_and_no_row_is_taken_twice(
    encoder: SessionEncoder,
) -> None:
    alone = made(encoder, 3, 0)
    shares = [made(encoder, 3, 0, share=share, shares=2) for share in range(2)]
    assert len(shares[0]) == len(shares[1])
    assert abs(len(alone) - len(shares[0])) <= 2
    most = STAGES[3].batch_tokens // 2
    batches_of_both = [batch for share in shares for batch in share]
    assert all(b.tokens.numel() <= most or len(b.tokens) == 1 for b in batches_of_both)

    def rows(found: list[Batch]) -> list[tuple[int, ...]]:
        whole = [row for batch in found if not batch.drill for row in batch.tokens]
        return [tuple(row[row != 0].tolist()) for row in whole]  # 0 is padding

    taken = rows(batches_of_both)
    assert len(set(taken)) == len(taken)
    assert set(taken) <= set(rows(alone))
    assert len(taken) >= 0.85 * len(rows(alone))
    assert max(map(len, taken)) == max(map(len, rows(alone)))


def test_a_drill_weighs_exactly_the_tokens_said_before() -> None:
    batch = drill(np.random.default_rng(1), 500, 640)
    assert batch.tokens.min() >= len(SPECIAL)
    rows = zip(batch.tokens.tolist(), batch.weights.tolist(), strict=True)
    for ids, weights in itertools.islice(rows, 0, None, 2):
        run = weights.index(1.0) - 1
        assert ids == [ids[place % run] for place in range(len(ids))]
        assert set(weights[run + 1 :]) == {1.0}


@pytest.mark.parametrize("seed", range(5))
def test_a_drill_labels_a_word_by_whether_the_list_before_it_holds_it(seed: int) -> None:
    batch = drill(np.random.default_rng(seed), 500, 640)
    found = []
    for ids, known in itertools.islice(
        zip(batch.tokens.tolist(), batch.labels[Label.KNOWN].tolist(), strict=True), 1, None, 2
    ):
        labelled = [place for place, label in enumerate(known) if label >= 0]
        separator = ids[0]
        text = " ".join(map(str, ids)) + " "
        starts = [max(p for p in range(place) if ids[p] == separator) for place in labelled]
        listed = " ".join(map(str, ids[: starts[0] + 1])) + " "
        assert text.startswith(listed)
        for start, place in zip(starts, labelled, strict=True):
            word = " ".join(map(str, ids[start : place + 1])) + f" {separator} "
            assert (word in listed) == bool(known[place])
            found.append(known[place])
    assert 0.3 < np.mean(found) < 0.8
