"""Matrices in slots: taken on by what rings hold, compiled and in torch, whoever else runs."""

import itertools
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from kernels import gated_delta
from kernels.delta_rows import DeltaRows, DeltaSpans
from kernels.gated_delta import (
    DeltaInputs,
    DeltaOutputs,
    folds_apart,
    gated_delta_chunked,
    gated_delta_reference,
)
from runtime.model import delta_states
from runtime.model.batch import IntArray
from runtime.model.delta_states import DeltaStates, delta_bytes, factor_bytes
from runtime.model.recurrent import GatedDelta, KimiDelta, OfMatrices

SPEC = GatedDelta(key_heads=2, value_heads=4, key_dim=24, value_dim=40, taps=4)
KIMI = KimiDelta(heads=3, head_dim=24, taps=4)
RING, LAYERS, SLOTS = 32, 2, 5
LIMITS = {torch.float64: 1e-13, torch.float32: 1e-5}


def drawn(tokens: int, dtype: torch.dtype, seed: int, spec: OfMatrices = SPEC) -> DeltaInputs:
    generator = torch.Generator().manual_seed(seed)

    def normal(*size: int) -> torch.Tensor:
        return torch.randn(*size, generator=generator, dtype=torch.float64).to(dtype)

    queries, keys = normal(2, tokens, spec.key_heads, spec.key_dim)
    return DeltaInputs(
        queries=queries / 5,
        keys=torch.nn.functional.normalize(keys, dim=-1),
        values=normal(tokens, spec.value_heads, spec.value_dim),
        decays=-0.3 * normal(tokens, spec.value_heads, *[spec.key_dim] * spec.by_channel).abs(),
        betas=normal(tokens, spec.value_heads).sigmoid(),
    )


NONE = torch.empty(0, dtype=torch.int64)


def spans(slots: IntArray, rings: IntArray, committed: IntArray, *counts: int) -> DeltaSpans:
    return DeltaSpans(
        slots=slots, rings=rings, committed=committed, counts=np.array(counts, dtype=np.int64)
    )


def part_of_a_step(
    states: DeltaStates,
    spec: OfMatrices,
    slots: IntArray,
    lacking: DeltaSpans,
    seed: int,
    *,
    layers: int,
) -> None:
    """A token for each sequence, in the first layers; the next one fails."""
    rows = DeltaRows(
        slots=slots,
        starts=np.arange(len(slots) + 1),
        positions=lacking.committed + lacking.counts,
    )
    step = states.step(rows, lacking, (NONE,) * 3, (NONE,) * 3)
    for layer in range(layers):
        inputs = drawn(len(slots), step.matrices.dtype, seed + layer, spec)
        mixed = step.mix(layer, inputs).mixed
        expected = gated_delta_reference(inputs, step.matrices[:, layer], rows).mixed
        assert (mixed - expected).norm() / expected.norm() < LIMITS[mixed.dtype]


def fails_at(call: int, work: Callable[..., Any]) -> Callable[..., Any]:
    calls = itertools.count(1)

    def failing(*arguments: Any) -> Any:
        if next(calls) == call:
            raise RuntimeError("planted")
        return work(*arguments)

    return failing


def fails_for_tokens(inputs: DeltaInputs, matrices: torch.Tensor, rows: DeltaRows) -> DeltaOutputs:
    """Takes the place of ``gated_delta_chunked``: to fold asks it for no tokens."""
    if len(inputs.queries):
        raise RuntimeError("planted")
    return gated_delta_chunked(inputs, matrices, rows)


@pytest.mark.parametrize(
    "lacks",
    [
        "all at once",
        "in a step",
        "in a step that fails",
        "behind a fold",
        "after a failure",
        "after another",
    ],
)
@pytest.mark.parametrize("dtype", LIMITS)
@pytest.mark.parametrize("spec", [SPEC, KIMI])
def test_sequences_are_taken_to_any_token_of_their_rings(
    spec: OfMatrices,
    dtype: torch.dtype,
    lacks: str,
    request: pytest.FixtureRequest,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Two sequences, each at a place of its ring and in a slot of its own."""
    seed = request.config.getoption("--seed")
    size = spec.value_heads, spec.key_dim, spec.value_dim
    memory = torch.randn(SLOTS, 7 + LAYERS * math.prod(size)).to(dtype)
    matrices = memory[:, 7:].view(SLOTS, LAYERS, *size)
    states = DeltaStates(spec, matrices, (3, RING))
    before = matrices.clone()
    inputs, starts = drawn(2 * RING, dtype, seed, spec), np.array([0, RING, 2 * RING])
    slots, rings, committed = np.array([3, 1]), np.array([2, 0]), np.array([45, 7])
    rows = DeltaRows(slots=slots, starts=starts, positions=committed)
    places = np.concatenate([(at + np.arange(RING)) % RING for at in committed])
    kept = torch.from_numpy(np.repeat(rings, RING)), torch.from_numpy(places), torch.arange(64)
    step = states.step(rows, spans(slots, rings, committed, 0, 0), kept, (NONE,) * 3)
    for layer in range(LAYERS):
        step.keep(layer, inputs, step.mix(layer, inputs))
    step.done()
    assert torch.equal(matrices, before)
    behind = spans(slots, rings, committed, 19, RING)
    if lacks == "all at once":
        states.commit(behind)
    elif lacks == "behind a fold":
        if not folds_apart(matrices):
            pytest.skip("one call of compiled kernels folds and mixes")
        with monkeypatch.context() as patch:
            patch.setattr(gated_delta, "gated_delta_chunked", fails_for_tokens)
            with pytest.raises(RuntimeError, match="planted"):
                part_of_a_step(states, spec, slots, behind, seed, layers=1)
        states.catch_up()
    elif lacks == "after a failure":
        monkeypatch.setattr(delta_states, "fold_rings", fails_at(1, delta_states.fold_rings))
        with pytest.raises(RuntimeError, match="planted"):
            states.commit(behind)
        states.catch_up()
    elif lacks == "after another":
        part_of_a_step(states, spec, slots, behind, seed, layers=0)
        monkeypatch.setattr(delta_states, "fold_layer", fails_at(2, delta_states.fold_layer))
        with pytest.raises(RuntimeError, match="planted"):
            states.catch_up()
        states.catch_up()
    else:
        part_of_a_step(
            states, spec, slots, behind, seed, layers=LAYERS if lacks == "in a step" else 1
        )
        states.catch_up()
        states.catch_up()
    there = DeltaRows(slots=slots, starts=starts, positions=committed, handed=((0, 19), (1, RING)))
    for layer in range(LAYERS):
        expected = gated_delta_reference(inputs, before[:, layer], there).handed
        difference = (matrices[slots, layer] - expected).norm() / expected.norm()
        assert difference < LIMITS[dtype], f"layer {layer}, seed {seed}"
    others = [0, 2, 4]
    assert torch.equal(matrices[others], before[others])


def test_what_a_layer_hands_out_is_kept_when_all_have_and_not_before() -> None:
    matrices = torch.zeros(SLOTS, LAYERS, SPEC.value_heads, SPEC.key_dim, SPEC.value_dim)
    states = DeltaStates(SPEC, matrices, (1, RING))
    inputs = drawn(40, torch.float32, 1)
    rows = DeltaRows(
        slots=np.array([2]), starts=np.array([0, 40]), positions=np.array([0]), handed=((0, 8),)
    )
    lacking = spans(rows.slots, np.array([0]), rows.positions, 0)
    nothing = torch.tensor([0])
    step = states.step(rows, lacking, (NONE,) * 3, (torch.tensor([2]), nothing, nothing))
    for layer in range(LAYERS):
        step.keep(layer, inputs, step.mix(layer, inputs))
        assert not matrices.any()
    step.done()
    assert matrices[2].any()
    assert not matrices[[0, 1, 3, 4]].any()


def test_sizes_follow_from_the_heads() -> None:
    assert delta_bytes(SPEC, 4) == 4 * 24 * 40 * 4
    assert factor_bytes(SPEC, 8) == (2 * 24 + 4 * 40 + 4) * 8
    assert delta_bytes(KIMI, 4) == 3 * 24 * 24 * 4
    assert factor_bytes(KIMI, 8) == 3 * (24 + 24 + 24) * 8
