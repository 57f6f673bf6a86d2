"""Which layers' keys and values lie in one tensor, and which layers have none of their own."""

from dataclasses import replace

import pytest

from runtime.model.config import Attention, Gated, KeepsKV, Layer, ModelConfig
from runtime.model.kv_shape import KVShape, places_in_block
from runtime.model.latent import Latent

WIDE, NARROW = (Attention(heads=4, kv_heads=kv, head_dim=size) for kv, size in ((1, 16), (2, 6)))


def with_mixers(*mixers: KeepsKV) -> ModelConfig:
    layers = [Layer(mixer=mixer, feed_forward=Gated(size=20)) for mixer in mixers]
    return ModelConfig(
        model_type="gemma4_text",
        vocab_size=100,
        hidden_size=12,
        layers=tuple(layers),
        max_context_tokens=64,
    )


@pytest.mark.parametrize("block_size", [1, 4, 16, 17])
@pytest.mark.parametrize("tokens", [1, 2, 3, 4, 7, 16, 32, 128])
def test_stretches_that_end_in_a_block_have_places_of_their_own(
    tokens: int, block_size: int
) -> None:
    places = places_in_block(tokens, block_size)
    assert KVShape(rows=1, heads=1, size=5, tokens=tokens).places(block_size) == places
    found = []
    for last in range(tokens - 1, 20 * tokens * block_size, tokens):
        place = last % block_size // tokens
        assert place < places
        found.append((last // block_size, place))
    assert len(set(found)) == len(found)


def test_a_row_is_of_a_token_at_least() -> None:
    with pytest.raises(ValueError, match="a row of 0 tokens, at least 1"):
        KVShape(rows=1, heads=1, size=5, tokens=0)


def test_layers_keep_keys_and_values_or_latents_and_not_both() -> None:
    latent = Latent(heads=4, rank=8, plain_dim=6, rotary_dim=2, value_dim=6)
    with pytest.raises(ValueError, match="keys differ in what they are"):
        with_mixers(WIDE, latent)


def test_layers_whose_keys_are_of_one_shape_are_a_group() -> None:
    alike = with_mixers(NARROW, NARROW)
    (group,) = alike.kv_groups
    assert (group.shape, group.layers) == (KVShape(rows=2, heads=2, size=6), 2)
    assert alike.kv_layout().places == ((0, 0), (0, 1))
    mixed = with_mixers(WIDE, NARROW, NARROW, WIDE, replace(NARROW, shares=2))
    assert [(group.shape, group.layers) for group in mixed.kv_groups] == [
        (KVShape(rows=2, heads=1, size=16), 2),
        (KVShape(rows=2, heads=2, size=6), 2),
    ]
    assert mixed.kv_layout().places == ((0, 0), (1, 0), (1, 1), (0, 1), (1, 1))


@pytest.mark.parametrize("of", [-1, 1, 2, 3])
def test_a_layer_shares_keys_of_one_before_it_that_has_its_own(of: int) -> None:
    with pytest.raises(ValueError, match=f"layer 2 of attention shares the keys of {of}, which is"):
        with_mixers(NARROW, replace(NARROW, shares=0), replace(NARROW, shares=of), NARROW)


@pytest.mark.parametrize(
    "other",
    [WIDE, *(replace(NARROW, **own) for own in ({"rope": None}, {"kv_heads": 1}, {"window": 9}))],
)
def test_a_layer_shares_keys_of_its_own_kind(other: Attention) -> None:
    with pytest.raises(ValueError, match="layer 1 of attention cannot read the keys of another"):
        with_mixers(NARROW, replace(other, shares=0))


def test_a_layer_that_shares_keys_has_no_weights_for_them() -> None:
    normed = replace(NARROW, norm="each", bias=True)
    assert normed.num_parameters(12) == 12 * 24 + 2 * 12 * 12 + 24 * 12 + 48 + 12
    assert replace(normed, shares=0).num_parameters(12) == 12 * 24 + 24 * 12 + 24 + 6
    assert replace(normed, shares=0).map_shapes(12) == [(24, 12), (12, 24)]
