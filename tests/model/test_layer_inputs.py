"""Inputs of single layers, beside the same worked out token by token."""

import pytest
import torch

from runtime.model.config import LayerInputs
from runtime.model.layer_inputs import LayerInput, TokenRows
from runtime.model.layers import MapLoader
from runtime.model.random_weights import RandomWeights

CPU = torch.device("cpu")
HIDDEN, LAYERS = 20, 3
SPEC = LayerInputs(vocabulary=11, size=6)


def normed(row: torch.Tensor) -> torch.Tensor:
    return row / (row.square().mean() + 1e-6).sqrt()


def test_each_layer_gets_its_part_of_a_row_and_of_a_projection() -> None:
    source = RandomWeights(0, torch.float64, CPU)
    rows = TokenRows(SPEC, HIDDEN, LAYERS, MapLoader(source=source), eps=1e-6)
    ids, embedded = torch.tensor([3, 10, 3]), torch.randn(3, HIDDEN, dtype=torch.float64)
    found = rows(ids, embedded)
    assert found.shape == (3, LAYERS, 6)
    table = source.tensor("model.embed_tokens_per_layer.weight", (11, 18))
    projection = source.tensor("model.per_layer_model_projection.weight", (18, HIDDEN))
    norm = source.tensor("model.per_layer_projection_norm.weight", (6,))
    assert rows.step_bytes == 18 * HIDDEN * 8
    for token in range(3):
        for layer in range(LAYERS):
            part = slice(6 * layer, 6 * layer + 6)
            made = projection[part] @ embedded[token] / HIDDEN**0.5
            own = 6**0.5 * table[ids[token], part]
            expected = (normed(made) * norm + own) / 2**0.5
            assert torch.allclose(found[token, layer], expected, rtol=1e-12, atol=1e-12)


def test_what_a_layer_adds_is_gated_by_the_sum_behind_it() -> None:
    source = RandomWeights(0, torch.float64, CPU)
    layer = LayerInput(SPEC, "model.layers.1", HIDDEN, MapLoader(source=source), eps=1e-6)
    total, own = (torch.randn(4, size, dtype=torch.float64) for size in (HIDDEN, 6))
    gate = source.tensor("model.layers.1.per_layer_input_gate.weight", (6, HIDDEN))
    out = source.tensor("model.layers.1.per_layer_projection.weight", (HIDDEN, 6))
    norm = source.tensor("model.layers.1.post_per_layer_input_norm.weight", (HIDDEN,))
    for token, found in enumerate(layer(total, own)):
        inner = gate @ total[token]
        inner = 0.5 * inner * (1 + ((2 / torch.pi) ** 0.5 * (inner + 0.044715 * inner**3)).tanh())
        expected = normed(out @ (inner * own[token])) * norm
        assert torch.allclose(found, expected, rtol=1e-12, atol=1e-12)
    assert layer.step_bytes == 2 * 6 * HIDDEN * 8


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_table_stays_in_the_models_dtype(dtype: torch.dtype) -> None:
    loader = MapLoader(source=RandomWeights(0, dtype, CPU), bits=8, dtype=dtype)
    rows = TokenRows(SPEC, 32, LAYERS, loader, eps=1e-6)
    assert rows(torch.tensor([3]), torch.randn(1, 32).to(dtype)).dtype == dtype
