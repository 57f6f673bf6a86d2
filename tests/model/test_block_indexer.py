"""What a layer's choice of blocks is made of, and what a whole model makes of it."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor

from runtime.model.batch import SequenceInput
from runtime.model.block_indexer import BlockIndexer
from runtime.model.layers import MapLoader
from runtime.model.presets import PRESETS, random_model_config
from runtime.model.random_weights import RandomWeights
from runtime.model.rotary import RotaryTable
from runtime.model.runner import ModelRunner
from runtime.model.weights import load_model

CPU = torch.device("cpu")
KIND, TOKENS = "minimax-m3-tiny", 90


def step(start: int, count: int) -> SequenceInput:
    tokens = np.random.default_rng(0).integers(0, 256, TOKENS, dtype=np.int32)
    return SequenceInput(
        tokens=tokens[start : start + count],
        start=start,
        block_table=np.arange(12, dtype=np.int32)[::-1].copy(),
        num_logits=count,
    )


def runner_of(dtype: torch.dtype = torch.float64) -> ModelRunner:
    model = load_model(f"random:{KIND}", dtype=dtype, device=CPU)
    return ModelRunner(model, num_blocks=12, block_size=8)


def test_index_keys_are_written_as_they_were_whatever_is_written_with_them() -> None:
    config = random_model_config(KIND)
    spec = config.layers[1].mixer
    loader = MapLoader(source=RandomWeights(0, torch.float64, CPU))
    sizes = spec.kv_heads, spec.rotated, config.hidden_size
    indexer = BlockIndexer(spec.choice, "model.layers.1.self_attn", sizes, loader, eps=1e-6)
    assert indexer.step_bytes == 8 * 64 * (spec.kv_heads + 1) * spec.choice.dim
    table = RotaryTable(spec.rope, spec.head_dim, torch.float64, CPU)
    x = torch.randn(20, config.hidden_size, dtype=torch.float64)
    whole, parts = torch.zeros(2, 4, 1, 8, spec.choice.dim, dtype=torch.float64)
    slots = torch.randperm(32)[:20]
    indexer.write_keys(x, table.at(torch.arange(20), 19), whole, slots)
    for at in range(20):
        one = slice(at, at + 1)
        indexer.write_keys(x[one], table.at(torch.tensor([at]), at), parts, slots[one])
    assert torch.allclose(whole, parts, rtol=1e-12, atol=1e-12)
    written = whole.view(32, spec.choice.dim)[slots]
    assert written.abs().sum(1).min() > 0
    still = indexer.write_keys(x[:1], table.at(torch.tensor([9]), 9), parts, slots[:1])
    assert still is None
    moved = parts.view(32, -1)[slots[0]] - whole.view(32, -1)[slots[0]]
    assert moved[: spec.rotated].abs().max() > 1e-3
    assert moved[spec.rotated :].abs().max() <= 1e-12


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_a_prompt_in_chunks_has_the_logits_of_a_whole_one(dtype: torch.dtype) -> None:
    def logits(chunk: int) -> Tensor:
        runner, starts = runner_of(dtype), range(0, TOKENS, chunk)
        return torch.cat([runner.run([step(at, min(chunk, TOKENS - at))]).clone() for at in starts])

    whole = logits(TOKENS)[:, :256]
    limit = {torch.float64: 1e-10, torch.float32: 1e-4}.get(dtype, 0.1)
    for chunk in (1, 7, 33):
        errors = (logits(chunk)[:, :256] - whole).norm(dim=1) / whole.norm(dim=1)
        assert errors.median() <= limit
        assert dtype == torch.bfloat16 or errors.max() <= limit


def test_a_query_is_not_told_of_blocks_that_it_has_not_chosen(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """With more to choose than there are, all are seen, and that is another model."""
    chosen = runner_of().run([step(0, TOKENS)]).clone()
    config = PRESETS[KIND]
    layers = tuple(
        layer
        if layer.mixer.choice is None
        else replace(layer, mixer=replace(layer.mixer, choice=replace(layer.mixer.choice, count=6)))
        for layer in config.layers
    )
    monkeypatch.setitem(PRESETS, KIND, replace(config, layers=layers))
    whole = runner_of().run([step(0, TOKENS)])
    first = config.top_k
    assert first == 32
    assert torch.allclose(chosen[:first], whole[:first], rtol=1e-9, atol=1e-9)
    different = (chosen - whole)[48:, :256].norm(dim=1) / whole[48:, :256].norm(dim=1)
    assert (different > 1e-3).all()


def test_a_context_that_all_see_asks_for_no_choice(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("runtime.model.mixer.block_attention", None)
    monkeypatch.setattr("runtime.model.block_indexer.chosen_blocks", None)
    runner = runner_of()
    runner.run([step(0, 20)])
    runner.run([step(20, 12)])
    with pytest.raises(TypeError):
        runner.run([step(32, 1)])
