"""Attention over near tokens and entries beside the same one query at a time."""

import pytest
import torch
from torch import Tensor

import kernels.cpu_attention
from kernels import entry_attention as module
from kernels.entry_attention import (
    NearTokens,
    SeenEntries,
    entry_attention,
    entry_attention_reference,
)

TOLERANCE = {torch.float64: 1e-11, torch.float32: 1e-5, torch.bfloat16: 3e-2}
QUERIES, HEADS, DIM, ROW, SLOTS, FAR = 23, 6, 10, 31, 640, 13


@pytest.fixture(params=["compiled", "torch"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    if request.param == "torch":
        monkeypatch.setattr(kernels.cpu_attention, "native_library", lambda _: None)
    return str(request.param)


def given(
    dtype: torch.dtype, most: int
) -> tuple[tuple[Tensor, Tensor, Tensor, NearTokens, SeenEntries], Tensor]:
    """Queries that see from one token on and from no entry on; what nobody sees is no number."""
    draw = torch.Generator().manual_seed(most)
    pool = torch.randn(SLOTS, ROW, generator=draw).to(dtype)
    far = torch.randn(SLOTS, FAR, generator=draw).to(dtype)
    near = torch.stack([torch.randperm(SLOTS, generator=draw)[:70] for _ in range(QUERIES)])
    counts = torch.arange(QUERIES) * 3 + 1
    lists = torch.arange(QUERIES) % 4
    slots = torch.stack([torch.randperm(SLOTS, generator=draw)[:most] for _ in range(4)])
    seen = torch.arange(QUERIES).flip(0).clamp(max=most)
    own = torch.zeros(SLOTS, dtype=torch.bool)
    other = own.clone()
    for query in range(QUERIES):
        own[near[query, : counts[query]]] = True
        other[slots[lists[query], : seen[query]]] = True
    pool[~own], pool[:, DIM:] = torch.nan, torch.nan
    far[~other], far[:, DIM:] = torch.nan, torch.nan
    queries = torch.randn(QUERIES, HEADS, DIM, generator=draw).to(dtype)
    sinks = torch.randn(HEADS, generator=draw).to(torch.promote_types(dtype, torch.float32))
    return (
        queries,
        pool.view(-1, 1, 16, ROW),
        far.view(-1, 1, 4, FAR)[..., :DIM],
        NearTokens(slots=near, counts=counts),
        SeenEntries(slots=slots, lists=lists, counts=seen),
    ), sinks


@pytest.mark.usefixtures("way")
@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("most", [1, 17, 100])
def test_each_query_attends_to_what_it_sees_alone(
    dtype: torch.dtype, most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    arguments, sinks = given(dtype, most)
    limit = TOLERANCE[dtype]
    expected = entry_attention_reference(*arguments, scale=0.3, sinks=sinks)
    found = entry_attention(*arguments, scale=0.3, sinks=sinks)
    assert found.dtype == dtype
    assert torch.allclose(found.double(), expected.double(), rtol=limit, atol=limit)
    monkeypatch.setattr(module, "_NUMBERS", 2 * 5 * 128 * DIM)
    in_pieces = entry_attention(*arguments, scale=0.3, sinks=sinks)
    assert torch.allclose(in_pieces.double(), expected.double(), rtol=limit, atol=limit)


@pytest.mark.usefixtures("way")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_query_has_the_same_bits_whatever_is_beside_it(dtype: torch.dtype) -> None:
    (queries, blocks, entries, near, seen), sinks = given(dtype, 17)
    together = entry_attention(queries, blocks, entries, near, seen, scale=0.3, sinks=sinks)
    for at in range(QUERIES):
        some = slice(at, at + 1)
        alone = entry_attention(
            queries[some],
            blocks,
            entries,
            NearTokens(slots=near.slots[some], counts=near.counts[some]),
            SeenEntries(slots=seen.slots, lists=seen.lists[some], counts=seen.counts[some]),
            scale=0.3,
            sinks=sinks,
        )
        assert torch.equal(alone, together[some]), at
