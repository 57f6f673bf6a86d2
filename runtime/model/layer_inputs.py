"""Numbers of a token that each layer gets for itself: see ``config.LayerInputs``.

The table of them is large, is looked up row by row, and stays in the model's dtype. Knows neither
layers nor sequences: all of it is row by row.
"""

import torch
from torch import Tensor

from kernels.activation import gelu_tanh
from kernels.norm import rms_norm
from runtime.model.config import LayerInputs
from runtime.model.layers import MapLoader


class TokenRows:
    """What all layers get of a step's tokens. Weights are those of the model."""

    def __init__(
        self, spec: LayerInputs, hidden: int, layers: int, loader: MapLoader, *, eps: float
    ) -> None:
        size, source = spec.size, loader.source
        self._layers, self._size, self._eps = layers, size, eps
        names = "model.embed_tokens_per_layer", "model.per_layer_model_projection"
        shape = spec.vocabulary, layers * size
        self._table = source.tensor(f"{names[0]}.weight", shape)
        self._projection = loader.linear([names[1]], [layers * size], hidden, bias=False)
        self._norm = source.tensor("model.per_layer_projection_norm.weight", (size,))
        self._hidden_scale = hidden**-0.5
        self._table_scale = torch.tensor(size**0.5, dtype=self._table.dtype).item()
        self.step_bytes = self._projection.num_bytes

    def __call__(self, token_ids: Tensor, embedded: Tensor) -> Tensor:
        """[T] ids and their scaled embeddings [T, hidden] -> [T, layers, size]."""
        rows = torch.embedding(self._table, token_ids) * self._table_scale
        projected = self._projection(embedded) * self._hidden_scale
        projected = projected.view(-1, self._layers, self._size)
        both = rms_norm(projected, self._norm, self._eps) + rows.view_as(projected)
        return both * 2**-0.5


class LayerInput:
    """What one layer makes of its own. Weights are those of ``PREFIX``, a layer of the model."""

    def __init__(
        self, spec: LayerInputs, prefix: str, hidden: int, loader: MapLoader, *, eps: float
    ) -> None:
        self._eps = eps
        size = spec.size
        self._gate = loader.linear([f"{prefix}.per_layer_input_gate"], [size], hidden, bias=False)
        self._out = loader.linear([f"{prefix}.per_layer_projection"], [hidden], size, bias=False)
        name = f"{prefix}.post_per_layer_input_norm.weight"
        self._norm = loader.source.tensor(name, (hidden,))
        self.step_bytes = self._gate.num_bytes + self._out.num_bytes

    def __call__(self, total: Tensor, rows: Tensor) -> Tensor:
        """What is added to the sum behind the layer, [T, hidden], by the layer's [T, size]."""
        return rms_norm(self._out(gelu_tanh(self._gate(total)) * rows), self._norm, self._eps)
