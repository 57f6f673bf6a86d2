"""The gated delta rule, by head and by channel: chunks beside token by token, any cut, and going
back by factors."""

from collections.abc import Callable
from dataclasses import fields
from itertools import pairwise

import numpy as np
import pytest
import torch

from kernels.delta_rows import CHUNK, DeltaRows
from kernels.gated_delta import (
    FOLD,
    DeltaInputs,
    DeltaOutputs,
    fold,
    gated_delta,
    gated_delta_chunked,
    gated_delta_reference,
)

SHAPES = [(1, 1, 5, 7), (2, 4, 16, 12), (3, 3, 128, 128)]
FORGETS = {"nearly nothing": 1e-4, "some": 0.5, "nearly all": 30.0}
WAYS = {"as they are": (False, False), "corrected": (True, False), "by channel": (True, True)}
"""Whether values are corrected, and whether decays are by channel."""
CASES = [(s, f) for s in SHAPES for f in FORGETS if s != SHAPES[-1] or f == "some"]
LIMITS = {torch.float64: 1e-13, torch.float32: 1e-5}
DTYPES = list(LIMITS)
Way = Callable[[DeltaInputs, torch.Tensor, DeltaRows], DeltaOutputs]


def drawn(
    shape: tuple[int, int, int, int],
    tokens: int,
    forgets: float,
    dtype: torch.dtype,
    seed: int,
    *,
    way: str = "corrected",
) -> tuple[DeltaInputs, torch.Tensor]:
    """Of some tokens; and six matrices, within larger slots."""
    corrects, by_channel = WAYS[way]
    key_heads, value_heads, key_dim, value_dim = shape
    generator = torch.Generator().manual_seed(seed)

    def normal(*size: int) -> torch.Tensor:
        return torch.randn(*size, generator=generator, dtype=torch.float64)

    keys, queries = normal(2, tokens, key_heads, key_dim)
    inputs = DeltaInputs(
        queries=torch.nn.functional.normalize(queries, dim=-1),
        keys=torch.nn.functional.normalize(keys, dim=-1),
        values=normal(tokens, value_heads, value_dim),
        decays=-forgets * normal(tokens, value_heads, *[key_dim] * by_channel).abs(),
        betas=normal(tokens, value_heads).sigmoid(),
    )
    matrices = normal(6, 2, value_heads, key_dim, value_dim).to(dtype)[:, 1]
    own = {each.name: getattr(inputs, each.name).to(dtype) for each in fields(inputs)}
    return DeltaInputs(**own | ({} if corrects else {"betas": None})), matrices


def part(inputs: DeltaInputs, low: int, high: int) -> DeltaInputs:
    own = {each.name: getattr(inputs, each.name) for each in fields(inputs)}
    return DeltaInputs(**{n: None if t is None else t[low:high] for n, t in own.items()})


def alone(low: int, high: int, *, slot: int = 0, handed: int | None = None) -> DeltaRows:
    return DeltaRows(
        slots=np.array([slot]),
        starts=np.array([0, high - low]),
        positions=np.array([low]),
        handed=() if handed is None else ((0, handed - low),),
    )


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("shape", "forgets"), CASES)
@pytest.mark.parametrize("computed", [gated_delta_chunked, gated_delta])
@pytest.mark.parametrize("way", WAYS)
def test_every_way_of_computing_is_the_one_token_by_token(
    way: str,
    computed: Way,
    shape: tuple[int, int, int, int],
    forgets: str,
    dtype: torch.dtype,
    request: pytest.FixtureRequest,
) -> None:
    seed = request.config.getoption("--seed")
    inputs, matrices = drawn(shape, 180, FORGETS[forgets], dtype, seed, way=way)
    before = matrices.clone()
    several = DeltaRows(
        slots=np.array([4, 0, 5, 2]),
        starts=np.array([0, 1, 8, 90, 180]),
        positions=np.array([63, 500, 40, 64]),
        handed=((1, 2), (2, 82), (3, 33)),
    )
    few = DeltaRows(
        slots=np.array([1, 3, 3, 0]),
        starts=np.array([0, 1, 2, 10, 30]),
        positions=np.array([9, 63, 60, 128]),
    )
    for rows in (several, few):
        own = part(inputs, 0, int(rows.starts[-1]))
        expected, found = gated_delta_reference(own, matrices, rows), computed(own, matrices, rows)
        for name in ("mixed", "corrected", "handed"):
            wanted, got = getattr(expected, name), getattr(found, name)
            assert got.shape == wanted.shape
            difference = (got - wanted).norm() / wanted.norm().clamp(min=1e-30)
            assert difference < LIMITS[dtype], (name, seed)
    assert torch.equal(matrices, before)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("way", WAYS)
def test_a_state_that_is_cut_at_multiples_of_a_chunk_has_the_bits_of_a_whole_run(
    way: str, dtype: torch.dtype, request: pytest.FixtureRequest
) -> None:
    """Each step hands its state out 32 tokens before its end, and the next one begins with that
    state, taken on by factors."""
    seed = request.config.getoption("--seed")
    end = 5 * CHUNK
    inputs, matrices = drawn(SHAPES[-1], end, 0.05, dtype, seed, way=way)
    whole = gated_delta_chunked(inputs, matrices, alone(0, end, handed=end - FOLD))
    for cuts in ((1,), (2, 3), (1, 2, 4)):
        bounds = [0, *(cut * CHUNK for cut in cuts), end]
        state, mixed = matrices[:1], []
        for low, high in pairwise(bounds):
            own = part(inputs, low, high)
            found = gated_delta_chunked(own, state, alone(low, high, handed=high - FOLD))
            mixed.append(found.mixed)
            factors = own.keys[-FOLD:], found.corrected[-FOLD:], own.decays[-FOLD:]
            state = fold(found.handed, *(each[None].clone() for each in factors))
        assert torch.equal(torch.cat(mixed), whole.mixed), f"cut at {cuts}, seed {seed}"
        assert torch.equal(found.handed, whole.handed), f"cut at {cuts}, seed {seed}"


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("forgets", FORGETS)
@pytest.mark.parametrize("way", ["corrected", "by channel"])
def test_factors_take_a_state_to_every_token(
    way: str, forgets: str, dtype: torch.dtype, request: pytest.FixtureRequest
) -> None:
    seed = request.config.getoption("--seed")
    inputs, matrices = drawn(SHAPES[1], FOLD, FORGETS[forgets], dtype, seed, way=way)
    found = gated_delta_chunked(inputs, matrices, alone(0, FOLD))
    for count in range(1, FOLD + 1):
        rows = alone(0, FOLD, handed=count)
        expected = gated_delta_reference(inputs, matrices, rows).handed
        factors = inputs.keys, found.corrected, inputs.decays
        got = fold(matrices[:1], *(each[None, :count] for each in factors))
        difference = (got - expected).norm() / expected.norm()
        assert difference < LIMITS[dtype], f"{count} tokens, seed {seed}"
