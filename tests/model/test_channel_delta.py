"""The delta rule by channel: chunks beside the plain recurrence, whatever is forgotten and when."""

import pytest
import torch
from torch import Tensor

from kernels.channel_delta import PART, chunk_by_channel, left_behind, products_within
from kernels.delta_rows import CHUNK

HEADS, KEY_DIM, VALUE_DIM = 2, 24, 20
COUNTS = (1, PART - 1, PART, PART + 1, 2 * PART + 3, CHUNK)
LIMITS = {torch.float64: 1e-13, torch.float32: 2e-6}
DECAYS = {
    "nothing": torch.zeros_like,
    "nearly nothing": lambda drawn: -1e-5 * drawn.abs(),
    "some": lambda drawn: -drawn.abs(),
    "twenty a token": lambda drawn: torch.full_like(drawn, -20.0),
    "all at once": lambda drawn: torch.full_like(drawn, -1e4),
    "half of the channels": lambda drawn: torch.where(drawn > 0, -20.0, -1e-3),
    "much, then little": lambda drawn: torch.where(
        (torch.arange(drawn.shape[1]) < drawn.shape[1] // 2)[:, None], -20.0, -0.01 * drawn.abs()
    ),
}


def recurrence(
    keys: Tensor, queries: Tensor, values: Tensor, state: Tensor, decays: Tensor, betas: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """What queries find, the corrected values and the state behind, token by token."""
    mixed, corrected = torch.empty_like(values), torch.empty_like(values)
    for token in range(keys.shape[1]):
        state = state * decays[:, token].exp()[:, :, None]
        there = torch.einsum("vk,vkd->vd", keys[:, token], state)
        corrected[:, token] = betas[:, token, None] * (values[:, token] - there)
        state = state + keys[:, token, :, None] * corrected[:, token, None]
        mixed[:, token] = torch.einsum("vk,vkd->vd", queries[:, token], state)
    return mixed, corrected, state


def drawn(count: int, forgets: str, seed: int) -> list[Tensor]:
    generator = torch.Generator().manual_seed(seed)

    def normal(*size: int) -> Tensor:
        return torch.randn(*size, generator=generator, dtype=torch.float64)

    keys, queries = torch.nn.functional.normalize(normal(2, HEADS, count, KEY_DIM), dim=-1)
    return [
        keys,
        queries,
        normal(HEADS, count, VALUE_DIM),
        normal(HEADS, KEY_DIM, VALUE_DIM),
        DECAYS[forgets](normal(HEADS, count, KEY_DIM)),
        normal(HEADS, count).sigmoid(),
    ]


@pytest.mark.parametrize("dtype", LIMITS)
@pytest.mark.parametrize("forgets", DECAYS)
@pytest.mark.parametrize("count", COUNTS)
def test_a_chunk_is_the_plain_recurrence(
    count: int, forgets: str, dtype: torch.dtype, request: pytest.FixtureRequest
) -> None:
    """And its factors take the state behind it."""
    seed = request.config.getoption("--seed")
    given = [each.to(dtype) for each in drawn(count, forgets, seed)]
    wanted = recurrence(*(each.double() for each in given))
    keys, queries, values, state, decays, betas = given
    mixed, corrected = chunk_by_channel(keys, queries, values, state, decays=decays, betas=betas)
    weights, left = left_behind(decays.transpose(0, 1)[None])
    weighed = keys * weights[0].transpose(0, 1)
    behind = left[0][:, :, None] * state + weighed.mT @ corrected
    for name, found, expected in zip(
        ("mixed", "corrected", "state"), (mixed, corrected, behind), wanted, strict=True
    ):
        assert found.dtype == dtype
        difference = (found.double() - expected).norm() / expected.norm()
        assert difference < LIMITS[dtype], f"{name}, {forgets}, seed {seed}"


@pytest.mark.parametrize("forgets", DECAYS)
def test_products_keep_their_digits_behind_strong_decays(
    forgets: str, request: pytest.FixtureRequest
) -> None:
    """Each number by itself, in float32: differences of summed logarithms would have lost some."""
    seed = request.config.getoption("--seed")
    keys, queries, _, _, decays, _ = drawn(CHUNK, forgets, seed)
    keys, queries = keys.abs(), queries.abs()
    narrow = [each.float() for each in (keys, queries, decays.exp())]
    found = products_within(*narrow)
    for asked, products in zip((narrow[0], narrow[1]), found, strict=True):
        for row in (1, PART, CHUNK // 2 + 1, CHUNK - 1):
            for column in {0, row // 2, row - 1, row}:
                between = narrow[2][:, column + 1 : row + 1].double().prod(1)
                wanted = (asked[:, row].double() * narrow[0][:, column].double() * between).sum(-1)
                got = products[:, row, column].double()
                assert torch.allclose(got, wanted, rtol=1e-5, atol=1e-37), (row, column, seed)
        assert not products.triu(1).any()


def test_what_is_left_behind_of_one_token_is_all_of_its_key() -> None:
    decays = torch.tensor([[[[-1.0, -2.0]]]])
    weights, left = left_behind(decays)
    assert torch.equal(weights, torch.ones(1, 1, 1, 2))
    assert torch.equal(left, decays[:, 0].exp())
