"""The shape of attention: what it counts, what is refused."""

from dataclasses import replace
from typing import Any

import pytest

from runtime.model.attention_shape import Attention
from runtime.model.kv_shape import KVShape
from runtime.model.rope_config import RopeConfig

PLAIN = Attention(heads=4, kv_heads=2, head_dim=8)


@pytest.mark.parametrize(
    "changes", [{"norm": "all"}, {"value_norm": True}, {"keys_are_values": True}, {"gated": True}]
)
def test_values_of_another_size_are_nothing_else(changes: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="values of another size that are normed, keys or gated"):
        Attention(heads=2, kv_heads=1, head_dim=8, value_dim=4, **changes)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"rope": RopeConfig(kind="proportional", rotated=4)}, "neighbours that are rotated in"),
        ({"keys_are_values": True}, "values that are keys of which a part is rotated, or neigh"),
    ],
)
def test_neighbours_are_not_everywhere(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Attention(heads=2, kv_heads=1, head_dim=8, interleaved=True, **changes)


def test_shorter_values_are_made_and_mixed_and_take_the_room_of_keys() -> None:
    short = replace(PLAIN, value_dim=6)
    assert (PLAIN.made_sizes, short.made_sizes) == ((16, 16), (16, 12))
    assert (PLAIN.result_size, short.result_size) == (32, 24)
    assert short.kv_shape == KVShape(rows=2, heads=2, size=8)
    assert short.map_shapes(10) == [(32 + 16 + 12, 10), (10, 24)]
    assert short.num_parameters(10) == 10 * (32 + 16 + 12) + 24 * 10


@pytest.mark.parametrize("size", [0, 9])
def test_values_are_no_longer_than_keys(size: int) -> None:
    with pytest.raises(ValueError, match=f"values of {size} numbers beside keys of 8"):
        replace(PLAIN, value_dim=size)


def test_a_gate_for_each_head_is_a_row_for_each() -> None:
    gated = replace(PLAIN, gated_heads=True)
    assert gated.num_parameters(10) - PLAIN.num_parameters(10) == 4 * 10


def test_a_gate_apart_is_as_large_as_one_beside_queries_and_has_no_bias() -> None:
    beside = replace(PLAIN, gated=True, bias=True)
    apart = replace(beside, gate_apart=True)
    assert beside.num_parameters(10) - apart.num_parameters(10) == 32
    with pytest.raises(ValueError, match="a matrix for a gate, and nothing is gated"):
        replace(PLAIN, gate_apart=True)


def test_what_is_rotated_is_counted() -> None:
    assert PLAIN.rotated == 8
    assert replace(PLAIN, rope=None).rotated == 0
    assert replace(PLAIN, rope=RopeConfig(rotated=6)).rotated == 6
