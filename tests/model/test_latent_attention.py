"""Both forms of attention over latents are one sum, wherever a sequence's rows lie."""

import pytest
import torch
from torch import Tensor

import kernels.cpu_attention
from kernels import latent_attention as module
from kernels.latent_attention import LatentHeads, latent_attention, latent_attention_reference
from kernels.per_head import HeadMaps
from kernels.quantised_kv import quantise_rows
from tests.support.paged_contexts import Contexts, make_contexts

TOLERANCE = {torch.float64: 1e-11, torch.float32: 1e-5, torch.bfloat16: 3e-2}
HEADS, RANK, ROTARY, PLAIN, VALUE = 6, 40, 8, 12, 10
SHAPES = [(1, 1), (300, 1), (150, 7), (500, 15), (500, 16), (90, 90), (620, 300)]
"""The last three are computed with keys and values that are made."""
SCALE = 0.3


@pytest.fixture(params=["compiled", "torch"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    if request.param == "torch":
        monkeypatch.setattr(kernels.cpu_attention, "native_library", lambda _: None)
    return str(request.param)


def heads(dtype: torch.dtype) -> LatentHeads:
    draw = torch.Generator().manual_seed(3)
    keys = torch.randn(HEADS, PLAIN, RANK, generator=draw) * RANK**-0.5
    values = torch.randn(HEADS, RANK, VALUE, generator=draw) * RANK**-0.5
    return LatentHeads(keys=HeadMaps(keys.to(dtype)), values=HeadMaps(values.to(dtype)))


def contexts(dtype: torch.dtype, shapes: list[tuple[int, int]]) -> Contexts:
    return make_contexts(shapes, seed=1, dtype=dtype, kv_heads=1, head_dim=RANK + ROTARY)


def queries(dtype: torch.dtype, shapes: list[tuple[int, int]]) -> tuple[Tensor, Tensor]:
    rows, draw = sum(new for _, new in shapes), torch.Generator().manual_seed(4)
    both = torch.randn(rows, HEADS, PLAIN + ROTARY, generator=draw).to(dtype)
    return both[..., :PLAIN], both[..., PLAIN:]


def sinks(dtype: torch.dtype) -> Tensor:
    drawn = torch.randn(HEADS, generator=torch.Generator().manual_seed(5))
    return drawn.to(torch.float64 if dtype == torch.float64 else torch.float32)


def as_defined(dtype: torch.dtype, given: Contexts, beside: Tensor | None = None) -> Tensor:
    """Of each sequence, head and query, from all keys and values; ``beside``: the heads' sinks."""
    plain, turned = (part.double() for part in queries(dtype, given.shapes))
    maps, at, rows = heads(dtype), 0, []
    into_keys, into_values = maps.keys.weights.double(), maps.values.weights.double()
    for context, (length, new) in zip(given.keys, given.shapes, strict=True):
        latents, shared = context[:, 0].double().split([RANK, ROTARY], 1)
        for query in range(new):
            seen = slice(0, length - new + query + 1)
            row = []
            for head in range(HEADS):
                keys = torch.cat((latents @ into_keys[head].T, shared), 1)[seen]
                asked = torch.cat((plain[at, head], turned[at, head]))
                scores = keys @ asked * SCALE
                if beside is not None:
                    scores = torch.cat((scores, beside[head : head + 1].double()))
                weights = scores.softmax(0)[: len(keys)]
                row.append(weights @ (latents[seen] @ into_values[head]))
            rows.append(torch.stack(row))
            at += 1
    return torch.stack(rows)


@pytest.mark.samples(2)
@pytest.mark.usefixtures("way")
@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("some", [slice(None), slice(0, 4), slice(4, None), slice(3, 5)])
def test_every_way_gives_what_keys_and_values_say(dtype: torch.dtype, some: slice) -> None:
    given, limit = contexts(dtype, SHAPES[some]), TOLERANCE[dtype]
    arguments = queries(dtype, SHAPES[some]), heads(dtype), given.blocks[0], given.layout
    assert heads(dtype).made_from() == 16
    expected = as_defined(dtype, given)
    for way in (latent_attention, latent_attention_reference):
        found = way(*arguments, scale=SCALE)
        assert found.dtype == dtype
        assert torch.allclose(found.double(), expected, rtol=limit, atol=limit)


@pytest.mark.usefixtures("way")
@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("some", [slice(None), slice(0, 4), slice(4, None)])
def test_sinks_count_in_every_way(dtype: torch.dtype, some: slice) -> None:
    given, limit = contexts(dtype, SHAPES[some]), TOLERANCE[dtype]
    arguments = queries(dtype, SHAPES[some]), heads(dtype), given.blocks[0], given.layout
    expected = as_defined(dtype, given, sinks(dtype))
    for way in (latent_attention, latent_attention_reference):
        found = way(*arguments, scale=SCALE, sinks=sinks(dtype))
        assert torch.allclose(found.double(), expected, rtol=limit, atol=limit)


@pytest.mark.usefixtures("way")
def test_rows_in_8_bits_are_read_as_the_numbers_they_stand_for() -> None:
    given = contexts(torch.float32, SHAPES)
    blocks = quantise_rows(given.blocks[0].nan_to_num(7.0))
    arguments = queries(torch.float32, SHAPES), heads(torch.float32)
    wide = latent_attention_reference(*arguments, blocks, given.layout, scale=SCALE)
    found = latent_attention(*arguments, blocks, given.layout, scale=SCALE)
    assert torch.allclose(found, wide, rtol=1e-4, atol=1e-4)


def test_heads_and_queries_come_in_pieces_where_contexts_are_long(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    given = contexts(torch.float64, SHAPES)
    arguments = queries(torch.float64, SHAPES), heads(torch.float64), given.blocks[0], given.layout
    own = sinks(torch.float64)
    whole = latent_attention(*arguments, scale=SCALE, sinks=own)
    monkeypatch.setattr(module, "_PIECE", 33)
    for numbers in (1, 620 * 100 * 4):
        monkeypatch.setattr(module, "_NUMBERS", numbers)
        found = latent_attention(*arguments, scale=SCALE, sinks=own)
        assert torch.allclose(found, whole, rtol=1e-12, atol=1e-12)


def test_what_is_longer_than_latents_is_never_made() -> None:
    keys, values = torch.randn(2, 16, 8), torch.randn(2, 8, 16)
    long = LatentHeads(keys=HeadMaps(keys), values=HeadMaps(values))
    assert long.made_from() > 1 << 60
    deepseek = torch.empty(1, 128, 512), torch.empty(1, 512, 128)
    assert LatentHeads(keys=HeadMaps(deepseek[0]), values=HeadMaps(deepseek[1])).made_from() == 171


@pytest.mark.usefixtures("way")
@pytest.mark.parametrize("dtype", TOLERANCE)
def test_rows_may_be_the_first_numbers_of_longer_ones(dtype: torch.dtype) -> None:
    """The rest is never read; it is no number here."""
    given, limit = contexts(dtype, SHAPES), TOLERANCE[dtype]
    row_by_row = given.blocks[0]
    longer = torch.full((*row_by_row.shape[:3], RANK + ROTARY + 7), torch.nan, dtype=dtype)
    longer[..., : RANK + ROTARY] = row_by_row
    arguments = queries(dtype, SHAPES), heads(dtype)
    expected = latent_attention(*arguments, row_by_row, given.layout, scale=SCALE)
    blocks = longer[..., : RANK + ROTARY]
    found = latent_attention(*arguments, blocks, given.layout, scale=SCALE)
    assert torch.allclose(found, expected, rtol=limit, atol=limit)
