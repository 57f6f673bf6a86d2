"""The shape of latent attention: what it takes, what is refused."""

from dataclasses import replace
from typing import Any

import pytest

from runtime.model.config import Attention, Gated, Layer, ModelConfig
from runtime.model.latent import Indexer, Latent
from runtime.model.rope_config import RopeConfig

DEEPSEEK = Latent(heads=128, rank=512, plain_dim=128, rotary_dim=64, value_dim=128, query_rank=1536)
SMALL = Latent(heads=2, rank=6, plain_dim=4, rotary_dim=2, value_dim=3, query_rank=5, bias=True)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"heads": 0}, "heads is 0, at least 1"),
        ({"rank": 0}, "rank is 0, at least 1"),
        ({"value_dim": 0}, "value_dim is 0, at least 1"),
        ({"query_rank": 0}, "query_rank is 0, at least 1"),
        ({"rotary_dim": 0}, "with positions, and nothing is rotated"),
        ({"rotary_dim": -2, "rope": None}, "-2 dimensions are rotated"),
        ({"rotary_dim": 3}, "3 dimensions are rotated: rope turns pairs"),
        ({"rotary_dim": 3, "rope": None}, "3 dimensions are rotated: rope turns pairs"),
        ({"rope": RopeConfig(rotated=2)}, "a part rotated otherwise"),
        (
            {"indexer": Indexer(heads=1, dim=1, top_k=1)},
            "keys of 1 numbers, of which 2 are rotated",
        ),
        (
            {"indexer": Indexer(heads=1, dim=2, top_k=1), "query_rank": None},
            "sparse attention needs queries that come from a latent",
        ),
    ],
)
def test_what_cannot_be_built_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        replace(SMALL, **changes)


def test_a_token_has_one_row_of_latent_and_shared_part() -> None:
    assert (DEEPSEEK.kv_heads, DEEPSEEK.head_dim, DEEPSEEK.kv_rows) == (1, 576, 1)
    assert DEEPSEEK.query_dim == 192
    assert Attention(heads=8, kv_heads=2, head_dim=4).kv_rows == 2


def test_parameters_add_up() -> None:
    maps = 10 * (5 + 8) + 5 * 2 * 6 + 6 * 2 * (4 + 3) + 2 * 3 * 10
    assert SMALL.num_parameters(10) == maps + (5 + 8 + 10) + 6 + 5
    plain = replace(SMALL, query_rank=None, bias=False)
    assert plain.num_parameters(10) == 10 * (12 + 8) + 6 * 2 * 7 + 2 * 3 * 10 + 6


def test_layers_keep_rows_of_one_kind() -> None:
    layers = [
        Layer(mixer=mixer, feed_forward=Gated(size=8))
        for mixer in (SMALL, Attention(heads=2, kv_heads=1, head_dim=8))
    ]
    with pytest.raises(ValueError, match="differ in what they are"):
        ModelConfig(
            model_type="x",
            vocab_size=9,
            hidden_size=10,
            layers=tuple(layers),
            max_context_tokens=64,
        )


INDEXER = Indexer(heads=3, dim=4, top_k=7)


@pytest.mark.parametrize("name", ["heads", "dim", "top_k", "pool"])
def test_an_indexer_of_nothing_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match=f"{name} of the indexer is 0, not at least 1"):
        replace(INDEXER, **{name: 0})


def test_an_index_key_lies_behind_the_row_that_is_attended_to() -> None:
    sparse = replace(SMALL, indexer=INDEXER)
    assert (sparse.row_dim, sparse.head_dim, sparse.values_dim) == (8, 12, 6)
    assert sparse.query_size == SMALL.query_size
    shared = replace(sparse, indexer=replace(INDEXER, shared=True))
    assert shared.head_dim == 12
    assert shared.num_parameters(10) == SMALL.num_parameters(10)
    maps = 3 * 4 * 5 + 4 * 10 + 3 * 10
    assert sparse.num_parameters(10) == SMALL.num_parameters(10) + maps + 2 * 4


def of_layers(*indexers: Indexer | None) -> ModelConfig:
    return ModelConfig(
        model_type="x",
        vocab_size=9,
        hidden_size=10,
        layers=tuple(
            Layer(mixer=replace(SMALL, indexer=each), feed_forward=Gated(size=8))
            for each in indexers
        ),
        max_context_tokens=64,
    )


def test_a_model_chooses_as_many_in_every_layer() -> None:
    shared = replace(INDEXER, shared=True)
    assert of_layers(INDEXER, shared, shared, INDEXER).top_k == 7
    assert of_layers(None, None).top_k is None
    for other in (replace(INDEXER, top_k=8), None):
        with pytest.raises(ValueError, match="choose different numbers of tokens"):
            of_layers(INDEXER, other)
    with pytest.raises(ValueError, match="the first layer shares a choice of tokens, and none"):
        of_layers(shared, INDEXER)


POOLED = replace(INDEXER, top_k=8, pool=4)


def test_gates_of_pools_lie_behind_index_keys() -> None:
    plain = replace(SMALL, rotary_dim=0, rope=None)
    assert (plain.row_dim, plain.head_dim) == (6, 6)
    pooled = replace(plain, indexer=POOLED)
    assert (pooled.row_dim, pooled.head_dim) == (6, 14)
    assert POOLED.most_chosen == 11
    assert INDEXER.most_chosen == 7
    maps = 3 * 4 * 5 + 8 * 10 + 3 * 10
    assert pooled.num_parameters(10) == plain.num_parameters(10) + maps + 2 * 4 + 4 * 4


def test_pools_are_chosen_whole_and_by_each_layer_itself() -> None:
    with pytest.raises(ValueError, match="7 tokens are chosen, no whole number of 4"):
        replace(INDEXER, pool=4)
    with pytest.raises(ValueError, match="a choice of pools that is shared"):
        replace(POOLED, shared=True)
    with pytest.raises(ValueError, match="choose different numbers of tokens"):
        of_layers(POOLED, replace(POOLED, pool=2))


def test_gates_behind_heads_are_a_matrix_more() -> None:
    assert replace(SMALL, gated="heads").num_parameters(10) == SMALL.num_parameters(10) + 2 * 10
    own = 2 * SMALL.value_dim * 10
    assert replace(SMALL, gated="numbers").num_parameters(10) == SMALL.num_parameters(10) + own


def test_sinks_are_a_number_more_for_each_head() -> None:
    assert replace(SMALL, sinks=True).num_parameters(10) == SMALL.num_parameters(10) + 2
