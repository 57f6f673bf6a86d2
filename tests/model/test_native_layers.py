"""All layers in one call: bit for bit what they are one by one."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from kernels.native_library import native_library
from runtime.model.batch import SequenceInput
from runtime.model.config import (
    Attention,
    Experts,
    Gated,
    Layer,
    ModelConfig,
    Router,
)
from runtime.model.decoder import Decoder
from runtime.model.layers import MapLoader, WeightBits
from runtime.model.product_choice import ProductChoice
from runtime.model.random_weights import RandomWeights
from runtime.model.rope_config import RopeConfig
from runtime.model.runner import ModelRunner
from runtime.model.weights import LoadedModel, load_model
from tests.support.model_shapes import changed

CPU = torch.device("cpu")
LIBRARY = native_library(torch.bfloat16)
HAS_PRODUCTS = LIBRARY is not None and LIBRARY.has_linear
BLOCK_SIZE = 16
PLAIN = ModelConfig(
    model_type="llama",
    vocab_size=272,
    hidden_size=64,
    layers=(Layer(mixer=Attention(heads=6, kv_heads=2, head_dim=32), feed_forward=Gated(size=96)),)
    * 3,
    max_context_tokens=4096,
)
CONFIGS = {
    "plain": PLAIN,
    "norms of heads": changed(PLAIN, mixer={"norm": "each"}),
    "biases": changed(PLAIN, mixer={"bias": True, "output_bias": True}, mlp={"bias": True}),
    "windows": replace(
        PLAIN,
        layers=tuple(
            replace(layer, mixer=replace(layer.mixer, window=window))
            for layer, window in zip(PLAIN.layers, (None, 40, 17), strict=True)
        ),
    ),
    "a wide MLP": changed(PLAIN, mlp={"size": 320}),
    "narrow heads": changed(PLAIN, mixer={"head_dim": 16}),
    "a part of each head turned": changed(PLAIN, mixer={"rope": RopeConfig(rotated=16)}),
    "no positions": changed(PLAIN, mixer={"rope": None}),
    "a scale of its own": changed(PLAIN, mixer={"scale": 0.3}),
}


def with_layer(**changes: Any) -> ModelConfig:
    """The second of its layers differs."""
    first, second, third = PLAIN.layers
    return replace(PLAIN, layers=(first, replace(second, **changes), third))


pytestmark = pytest.mark.skipif(not HAS_PRODUCTS, reason="no compiled products here")


@pytest.fixture(autouse=True)
def two_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


class Counted:
    """Counts how often a decoder's layers were run in one call."""

    def __init__(self, decoder: Decoder, monkeypatch: pytest.MonkeyPatch) -> None:
        self.calls = 0
        native = decoder.native
        assert native is not None
        run = native.run

        def counting(*given, **named) -> None:
            self.calls += 1
            run(*given, **named)

        monkeypatch.setattr(native, "run", counting)


def model_of(
    config: ModelConfig, *, bits: WeightBits = 16, choice: ProductChoice | None = None
) -> LoadedModel:
    source = RandomWeights(7, torch.bfloat16, CPU)
    decoder = Decoder(
        config,
        MapLoader(source=source, bits=bits, choice=choice, dtype=torch.bfloat16),
        CPU,
    )
    like = load_model("random:qwen3-tiny", dtype=torch.bfloat16, device=CPU)
    return replace(like, decoder=decoder, config=config)


def steps() -> list[list[SequenceInput]]:
    """A prompt, a decode beside a chunk of another prompt that shares its first blocks, drafts,
    and decodes."""
    source = np.random.default_rng(3)
    tables = source.permutation(60).astype(np.int32).reshape(3, 20)
    tables[1, :4] = tables[0, :4]

    def part(sequence: int, start: int, count: int) -> SequenceInput:
        tokens = source.integers(0, 256, count, dtype=np.int32)
        table = tables[sequence]
        return SequenceInput(tokens=tokens, start=start, block_table=table, num_logits=count)

    return [
        [part(0, 0, 90)],
        [part(0, 90, 1), part(1, 64, 50)],
        [part(0, 91, 5), part(1, 114, 1), part(2, 0, 3)],
        [part(0, 96, 1), part(1, 115, 1), part(2, 3, 1)],
    ]


def logits_of(runner: ModelRunner) -> list[torch.Tensor]:
    runner.pool.blocks.zero_()
    return [runner.run(step).clone() for step in steps()]


def runner_of(model: LoadedModel, kv_dtype: torch.dtype | None = None) -> ModelRunner:
    return ModelRunner(model, num_blocks=60, block_size=BLOCK_SIZE, kv_dtype=kv_dtype)


@pytest.mark.samples(7)
@pytest.mark.parametrize("bits", [16, 8, 4])
@pytest.mark.parametrize("name", CONFIGS)
def test_not_a_bit_differs_from_layer_by_layer(
    name: str, bits: WeightBits, monkeypatch: pytest.MonkeyPatch
) -> None:
    choice = ProductChoice(few="tiles")
    runner = runner_of(model_of(CONFIGS[name], bits=bits, choice=choice))
    counted = Counted(runner.model.decoder, monkeypatch)
    at_once, written = logits_of(runner), runner.pool.blocks.clone()
    assert counted.calls >= 2
    monkeypatch.setattr(runner.model.decoder, "native", None)
    for one_by_one, together in zip(logits_of(runner), at_once, strict=True):
        assert torch.equal(one_by_one, together)
    assert torch.equal(runner.pool.blocks, written)


def test_two_pools_of_one_model_are_told_apart() -> None:
    model = model_of(PLAIN)
    first, second = runner_of(model), runner_of(model)
    expected = logits_of(first)
    assert all(map(torch.equal, logits_of(second), expected))
    assert torch.equal(first.pool.blocks, second.pool.blocks)
    first.pool.blocks.zero_()
    assert all(map(torch.equal, logits_of(first), expected))


def test_more_rows_than_tiles_are_multiplied_as_they_lie_go_layer_by_layer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    choice = ProductChoice(few="tiles", many="plain", from_rows=9)
    runner = runner_of(model_of(PLAIN, choice=choice))
    counted = Counted(runner.model.decoder, monkeypatch)
    logits_of(runner)
    assert counted.calls == 1  # steps of 90, 51, 9 and 3 rows, where eight is the limit
    table = np.arange(4, dtype=np.int32)
    for rows in (8, 9):
        tokens = np.arange(rows, dtype=np.int32)
        runner.run([SequenceInput(tokens=tokens, start=0, block_table=table, num_logits=1)])
    assert counted.calls == 2


def test_keys_and_values_in_8_bits_go_layer_by_layer(monkeypatch: pytest.MonkeyPatch) -> None:
    runner = runner_of(model_of(PLAIN), torch.int8)
    counted = Counted(runner.model.decoder, monkeypatch)
    logits_of(runner)
    assert counted.calls == 0


@pytest.mark.parametrize(
    "config",
    [
        replace(PLAIN, hidden_size=48),
        with_layer(
            feed_forward=Experts(
                router=Router(num_experts=4, per_token=2, normalise=True), each=Gated(size=32)
            )
        ),
        with_layer(feed_forward=Gated(size=96, activation="gelu_tanh")),
        with_layer(norms="after"),
        with_layer(norms="both"),
        with_layer(residual_scale=0.5),
        with_layer(mixer=replace(PLAIN.layers[0].mixer, sinks=True)),
        with_layer(mixer=replace(PLAIN.layers[0].mixer, norm="all")),
        with_layer(mixer=replace(PLAIN.layers[0].mixer, rope=None)),
        with_layer(mixer=replace(PLAIN.layers[0].mixer, scale=0.5)),
        changed(PLAIN, mixer={"rope": RopeConfig(query_beta=0.1, original_max_position=16)}),
    ],
)
def test_what_compiled_layers_do_not_know_goes_layer_by_layer(config: ModelConfig) -> None:
    model = model_of(config)
    assert model.decoder.native is None
    assert all(logits.isfinite().all() for logits in logits_of(runner_of(model)))


def test_other_number_types_go_layer_by_layer() -> None:
    for dtype in (torch.float32, torch.float64, torch.float16):
        decoder = Decoder(PLAIN, MapLoader(source=RandomWeights(7, dtype, CPU), dtype=dtype), CPU)
        assert decoder.native is None
