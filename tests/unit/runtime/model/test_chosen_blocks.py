"""The shape of a choice of blocks: what it takes, what is refused."""

from dataclasses import replace
from typing import Any

import pytest

from runtime.model.chosen_blocks import BlockChoice
from runtime.model.config import Attention, Gated, Layer, ModelConfig
from runtime.model.kv_shape import KVShape
from runtime.model.rope_config import RopeConfig

CHOICE = BlockChoice(dim=6, size=16, count=3)
PLAIN = Attention(heads=4, kv_heads=2, head_dim=8, rope=RopeConfig(rotated=4), norm="each")
CHOOSING = replace(PLAIN, choice=CHOICE)


def model(*mixers: Attention) -> ModelConfig:
    return ModelConfig(
        model_type="minimax_m3_vl_text",
        vocab_size=9,
        hidden_size=10,
        layers=tuple(Layer(mixer=mixer, feed_forward=Gated(size=4)) for mixer in mixers),
        max_context_tokens=99,
    )


@pytest.mark.parametrize("name", ["dim", "size", "count", "local"])
def test_nothing_of_it_is_nothing(name: str) -> None:
    with pytest.raises(ValueError, match=f"{name} of chosen blocks is 0, not at least 1"):
        replace(CHOICE, **{name: 0})


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"window": 9}, "chosen blocks beside a window, sinks or shared keys"),
        ({"sinks": True}, "chosen blocks beside a window, sinks or shared keys"),
        ({"shares": 0}, "chosen blocks beside a window, sinks or shared keys"),
        ({"rope": RopeConfig()}, "index keys of 6 numbers, of which 8 are rotated"),
    ],
)
def test_what_cannot_be_built_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        replace(CHOOSING, **changes)


def test_more_last_blocks_than_chosen_ones_are_refused() -> None:
    with pytest.raises(ValueError, match="4 last blocks among 3"):
        replace(CHOICE, local=4)


def test_layers_choose_alike_or_not_at_all() -> None:
    assert model(PLAIN, CHOOSING).top_k == 48
    assert model(PLAIN).top_k is None
    other = replace(CHOOSING, choice=replace(CHOICE, count=2))
    with pytest.raises(ValueError, match="layers that choose different blocks"):
        model(CHOOSING, other)


def test_index_keys_have_a_group_of_their_own_behind_keys_and_values() -> None:
    config = model(PLAIN, CHOOSING, PLAIN, CHOOSING)
    assert [(group.shape, group.layers) for group in config.kv_groups] == [
        (KVShape(rows=2, heads=2, size=8), 4),
        (KVShape(rows=1, heads=1, size=6), 2),
    ]
    assert config.kv_layout().places == ((0, 0), (0, 1), (0, 2), (0, 3))
    assert config.kv_layout().beside_places == (None, (1, 0), None, (1, 1))


def test_its_maps_are_counted() -> None:
    assert CHOICE.map_shapes(2, 10) == [(12, 10), (6, 10)]
    assert CHOOSING.map_shapes(10) == [*PLAIN.map_shapes(10), (12, 10), (6, 10)]
    added = CHOOSING.num_parameters(10) - PLAIN.num_parameters(10)
    assert added == 12 * 10 + 6 * 10 + 2 * 6
