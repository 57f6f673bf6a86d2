"""The shape of compressed attention: what it takes, what is refused."""

from dataclasses import replace
from typing import Any

import pytest

from runtime.model.compressed import Compressed
from runtime.model.config import Gated, Layer, ModelConfig
from runtime.model.kv_shape import KVShape
from runtime.model.latent import Indexer
from runtime.model.rope_config import RopeConfig

SMALL = Compressed(
    heads=4, dim=6, rotary_dim=2, query_rank=5, near=9, output_groups=2, output_rank=3
)
INDEXER = Indexer(heads=3, dim=4, top_k=7)
ALL = replace(SMALL, ratio=8)
CHOSEN = replace(SMALL, ratio=4, indexer=INDEXER)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"heads": 0}, "heads is 0, at least 1"),
        ({"near": 0}, "near is 0, at least 1"),
        ({"output_rank": 0}, "output_rank is 0, at least 1"),
        ({"output_groups": 3}, "4 heads are not in 3 equal groups"),
        ({"rotary_dim": 3}, "3 of 6 dimensions are rotated in pairs"),
        ({"rotary_dim": 8}, "8 of 6 dimensions are rotated in pairs"),
        ({"rope": RopeConfig(rotated=2)}, "a part rotated otherwise"),
        ({"ratio": 1}, "entries of 1 tokens, at least 2"),
        ({"indexer": INDEXER}, "an indexer of entries, and there are none"),
        ({"ratio": 4, "indexer": replace(INDEXER, shared=True)}, "that is shared"),
        ({"ratio": 4, "indexer": replace(INDEXER, dim=1)}, "keys of 1 numbers, of which 2 are"),
    ],
)
def test_what_cannot_be_built_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        replace(SMALL, **changes)


def test_a_row_has_what_entries_are_made_of_behind_its_own_numbers() -> None:
    assert (SMALL.raw_dims, SMALL.head_dim) == ((), 6)
    assert (ALL.raw_dims, ALL.head_dim) == ((12,), 18)
    assert (CHOSEN.raw_dims, CHOSEN.head_dim) == ((24, 16), 46)
    assert {each.values_dim for each in (SMALL, ALL, CHOSEN)} == {6}


def test_an_entry_lies_beside_rows_with_its_index_key() -> None:
    assert SMALL.beside is None
    assert ALL.beside == KVShape(rows=1, heads=1, size=6, tokens=8)
    assert CHOSEN.beside == KVShape(rows=1, heads=1, size=6 + 4, tokens=4)


def test_rows_are_read_by_queries_and_for_windows_that_fill_up() -> None:
    """Of which those of layers that choose overlap with the ones before them."""
    assert [each.window for each in (SMALL, ALL, CHOSEN)] == [9, 9, 9]
    assert [replace(each, near=2).window for each in (SMALL, ALL, CHOSEN)] == [2, 8, 8]
    assert replace(CHOSEN, near=2, ratio=7).window == 14


def test_parameters_add_up() -> None:
    own = 10 * (5 + 6) + 4 * 6 * 5 + 3 * 4 * 6 + 10 * 2 * 3 + 5 + 6 + 4
    assert SMALL.num_parameters(10) == own
    assert ALL.num_parameters(10) == own + 10 * 12 + 6 * (1 + 8)
    compressors = 10 * 24 + 6 * (1 + 8) + 10 * 16 + 4 * (1 + 8)
    assert CHOSEN.num_parameters(10) == own + compressors + 3 * 4 * 5 + 3 * 10


def of_layers(*mixers: Compressed) -> ModelConfig:
    return ModelConfig(
        model_type="x",
        vocab_size=9,
        hidden_size=10,
        layers=tuple(Layer(mixer=each, feed_forward=Gated(size=8)) for each in mixers),
        max_context_tokens=64,
    )


def test_layers_of_every_kind_keep_rows_of_their_own() -> None:
    config = of_layers(SMALL, CHOSEN, ALL, CHOSEN)
    assert config.ratios == (4, 8)
    assert config.top_k is None
    sizes = [(each.shape.size, each.shape.tokens, each.layers) for each in config.kv_groups]
    assert sizes == [(6, 1, 1), (46, 1, 2), (18, 1, 1), (10, 4, 2), (6, 8, 1)]
    layout = config.kv_layout(apart=True)
    assert layout.places == ((0, 0), (1, 0), (2, 0), (1, 1))
    assert layout.beside_places == (None, (3, 0), (4, 0), (3, 1))
    assert [each.windowed for each in layout.groups] == [True, True, True, False, False]


def test_rows_are_given_back_where_entries_stand_for_what_is_far() -> None:
    assert of_layers(SMALL, CHOSEN, ALL).window == 9
    assert of_layers(replace(CHOSEN, near=3), replace(ALL, ratio=40)).window == 40
    assert of_layers(SMALL, SMALL).window is None


def test_entries_of_as_many_tokens_are_rotated_alike() -> None:
    with pytest.raises(ValueError, match="entries of as many tokens, rotated otherwise"):
        of_layers(ALL, replace(ALL, rope=RopeConfig(theta=5.0)))
