"""Each description of a recurrent layer has its mixer, and where its state is resumed changes no
bit."""

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch

from kernels.delta_rows import CHUNK
from runtime.model.delta_mixer import DeltaMixer
from runtime.model.kimi_mixer import KimiMixer
from runtime.model.layers import MapLoader
from runtime.model.mamba_mixer import MambaMixer
from runtime.model.mixer import ConvMixer
from runtime.model.random_weights import RandomWeights
from runtime.model.recurrent import GatedDelta, KimiDelta, Mamba2, Recurrent, ShortConv
from runtime.model.recurrent_mixers import load_recurrent
from runtime.model.state_pool import StatePool
from runtime.scheduling.queues import interval
from tests.support.mixing import CPU, HIDDEN, config_around

SPECS = [
    (ShortConv(channels=HIDDEN, taps=3), ConvMixer),
    (GatedDelta(key_heads=2, value_heads=4, key_dim=16, value_dim=24, taps=4), DeltaMixer),
    (KimiDelta(heads=3, head_dim=16, taps=4), KimiMixer),
    (Mamba2(heads=4, head_dim=10, groups=2, state_dim=16, taps=4, bias=True), MambaMixer),
]
SMALL = "conv_windows", "delta_shaping", "gated_norm", "kimi_shaping", "ring_write"
COMPILED = "gated_delta", "short_conv", *SMALL
ENDS = 5 * CHUNK, 5 * CHUNK + 17
"""States have the same bits at multiples of a chunk, outputs everywhere."""


def loaded(spec: Recurrent, dtype: torch.dtype) -> Any:
    loader = MapLoader(source=RandomWeights(0, dtype, CPU), dtype=dtype)
    return load_recurrent(spec, "model.layers.0", HIDDEN, loader, eps=1e-6)


@pytest.mark.parametrize(("spec", "mixer"), SPECS)
def test_a_layer_gets_the_mixer_of_its_description(spec: Recurrent, mixer: type) -> None:
    found = loaded(spec, torch.float64)
    assert isinstance(found, mixer)
    taken = spec.num_parameters(HIDDEN) * torch.float64.itemsize
    assert 0 < found.step_bytes < taken


def row_by_row(product: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    """A product whose bits do not depend on how many rows there are."""
    return lambda x: torch.cat([product(row[None]) for row in x])


def resumed_at(
    mixer: Any, spec: Recurrent, x: torch.Tensor, cuts: Sequence[int]
) -> tuple[torch.Tensor, torch.Tensor]:
    """Outputs for the rows ``x`` and the state behind them: at each cut the state is kept in
    another slot, and a sequence goes on from there."""
    pool = StatePool(config_around(spec), num_slots=2, num_rings=1, dtype=x.dtype, device=CPU)
    pool.begin(0, source=None, position=0)
    rows = []
    for low, high in pairwise([0, *cuts, len(x)]):
        step = pool.step(np.array([0]), np.array([low]), np.array([0, high - low]))
        rows.append(mixer(x[low:high], step, 0))
        step.done()
        if high < len(x):
            assert pool.save(0, target=1, position=high)
            pool.end(0, position=None)
            pool.begin(0, source=1, position=high)
    assert pool.end(0, position=len(x))
    return torch.cat(rows), pool.rows[0].clone()


@pytest.mark.samples(4)
@pytest.mark.parametrize("compiled", [True, False])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("spec", "_"), SPECS)
def test_a_state_that_is_resumed_at_multiples_of_a_chunk_has_the_bits_of_a_whole_run(
    spec: Recurrent,
    _: type,
    dtype: torch.dtype,
    compiled: bool,
    monkeypatch: pytest.MonkeyPatch,
    request: pytest.FixtureRequest,
) -> None:
    """And so have its outputs, with the compiled kernels and without. Behind a last part that is
    shorter the state itself may differ in its last bit: there it is folded at other tokens."""
    if not compiled:
        for module in COMPILED:
            monkeypatch.setattr(f"kernels.{module}.native_library", lambda _: None)
    mixer, seed = loaded(spec, dtype), request.config.getoption("--seed")
    for name in ("_in", "_out", "_mixed", "_paces", "_to_decays", "_to_gates"):
        if hasattr(mixer, name):
            setattr(mixer, name, row_by_row(getattr(mixer, name)))
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(ENDS[-1], HIDDEN, generator=generator, dtype=torch.float64).to(dtype)
    for end in ENDS:
        mixed, state = resumed_at(mixer, spec, x[:end], ())
        for cuts in ((1,), (2, 4), (1, 2, 3, 4)):
            found = resumed_at(mixer, spec, x[:end], [cut * CHUNK for cut in cuts])
            assert torch.equal(found[0], mixed), f"outputs, cut at {cuts}, seed {seed}"
            if end % CHUNK == 0:
                assert torch.equal(found[1], state), f"the state, cut at {cuts}, seed {seed}"


def test_states_of_long_prompts_are_kept_where_that_holds() -> None:
    assert interval(16) % CHUNK == 0
