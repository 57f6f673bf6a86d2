"""The shape of several residual streams: what it takes, what is refused."""

from dataclasses import replace
from typing import Any

import pytest

from runtime.model.config import Attention, Gated, Layer, LayerInputs, ModelConfig
from runtime.model.streams import Streams

STREAMS = Streams(count=3, iterations=2, eps=1e-6)
LAYER = Layer(mixer=Attention(heads=2, kv_heads=1, head_dim=4), feed_forward=Gated(size=8))
MODEL = ModelConfig(
    model_type="x",
    vocab_size=9,
    hidden_size=10,
    layers=(LAYER, replace(LAYER, feed_forward=None)),
    max_context_tokens=64,
)


@pytest.mark.parametrize("name", ["count", "iterations"])
def test_streams_of_nothing_are_refused(name: str) -> None:
    with pytest.raises(ValueError, match=f"{name} of streams is 0, not at least 1"):
        replace(STREAMS, **{name: 0})


def test_results_that_are_added_by_nothing_are_refused() -> None:
    with pytest.raises(ValueError, match="added to streams by 0 of a sigmoid"):
        replace(STREAMS, largest=0)


def test_parameters_are_those_of_every_half_and_of_the_last_mixture() -> None:
    of_half = 15 * 30 + 15 + 3
    last = 3 * 30 + 3 + 1
    assert STREAMS.num_parameters(10, 3) == 3 * of_half + last
    assert replace(STREAMS, learnt_end=False).num_parameters(10, 3) == 3 * of_half
    kept = replace(STREAMS, iterations=None)
    assert kept.num_parameters(10, 3) == 3 * (6 * 30 + 6 + 2) + last
    beside = replace(MODEL, streams=STREAMS).num_parameters - MODEL.num_parameters
    assert beside == 3 * of_half + last


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"layer_inputs": LayerInputs(vocabulary=9, size=2)}, "layers with inputs of their own"),
        ({"layers": (replace(LAYER, norms="both"),)}, "whose sums are normed or scaled"),
        ({"layers": (replace(LAYER, residual_scale=0.5),)}, "whose sums are normed or scaled"),
        ({"layers": (replace(LAYER, learnt_scale=True),)}, "whose sums are normed or scaled"),
    ],
)
def test_what_streams_do_not_go_through_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        replace(MODEL, streams=STREAMS, **changes)
