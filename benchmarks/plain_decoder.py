"""The yardstick: a plain eager decoder over a dense KV cache, as one writes it in an evening.

Fused QKV, ``nn.Linear``, SDPA with ``enable_gqa=True``, a bare loop. It has no scheduler,
no pages and no sampler, so whatever it is slower at is not for lack of features. The
``grouped`` variant folds each KV head's query heads into query rows before SDPA; ``pack`` has
oneDNN lay out the weights once. Both together are the best that torch offers without compiling.
"""

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional

from benchmarks.dense_shape import dense_layer
from runtime.model.config import ModelConfig
from runtime.model.layers import PackedLinear


class PlainDecoder:
    """Random weights of a shape, ``batch`` sequences of up to ``capacity`` tokens."""

    def __init__(
        self,
        config: ModelConfig,
        *,
        batch: int,
        capacity: int,
        dtype: torch.dtype,
        grouped: bool = False,
    ) -> None:
        self._config = config
        self._grouped = grouped
        torch.manual_seed(0)
        self.embedding = self._weight(config.vocab_size, config.hidden_size, dtype)
        self.layers = [_Layer(config, dtype) for _ in range(config.num_layers)]
        self.norm = torch.ones(config.hidden_size, dtype=dtype)
        self._packed_head: PackedLinear | None = None
        mixer, _, rope = dense_layer(config)
        shape = (config.num_layers, 2, batch, mixer.kv_heads, capacity, mixer.head_dim)
        self._cache = torch.randn(shape, dtype=dtype)
        frequencies = rope.theta ** (-torch.arange(0, config.head_dim, 2).float() / config.head_dim)
        angles = torch.outer(torch.arange(capacity).float(), frequencies)
        self._cos, self._sin = angles.cos().to(dtype), angles.sin().to(dtype)

    @staticmethod
    def _weight(rows: int, columns: int, dtype: torch.dtype) -> Tensor:
        return torch.randn(rows, columns).mul_(columns**-0.5).to(dtype)

    def pack(self) -> None:
        """Lay out all weights for oneDNN; bfloat16 only, on a processor that has units for it."""
        self._packed_head = PackedLinear(self.embedding, None)
        for layer in self.layers:
            layer.pack()

    @torch.inference_mode()
    def step(self, tokens: Tensor, start: int) -> Tensor:
        """[batch, new] token ids at ``start`` -> [batch, vocab] logits of the last ones."""
        new = tokens.shape[1]
        rotation = self._cos[start : start + new], self._sin[start : start + new]
        x = functional.embedding(tokens, self.embedding)
        for layer, cache in zip(self.layers, self._cache, strict=True):
            x = x + layer.attend(x, cache, start, rotation, self._grouped)
            x = x + layer.feed_forward(x)
        x = functional.rms_norm(x[:, -1], self.norm.shape, self.norm, self._config.norm_eps)
        if self._packed_head is not None:
            return self._packed_head(x)
        return functional.linear(x, self.embedding)


class _Layer:
    def __init__(self, config: ModelConfig, dtype: torch.dtype) -> None:
        self._config = config
        self._mixer, mlp, _ = dense_layer(config)
        hidden, size, mixer = config.hidden_size, mlp.size, self._mixer

        def linear(inputs: int, outputs: int) -> Callable[[Tensor], Tensor]:
            return nn.Linear(inputs, outputs, bias=False, dtype=dtype)

        self.qkv = linear(hidden, mixer.query_size + 2 * mixer.kv_size)
        self.output = linear(mixer.query_size, hidden)
        self.gate_up = linear(hidden, 2 * size)
        self.down = linear(size, hidden)
        self.norms = [torch.ones(hidden, dtype=dtype) for _ in range(2)]
        self.head_norms = [torch.ones(config.head_dim, dtype=dtype) for _ in range(2)]

    def pack(self) -> None:
        for name in ("qkv", "output", "gate_up", "down"):
            weight: Tensor = getattr(self, name).weight.detach()
            setattr(self, name, PackedLinear(weight, None))

    def _normed(self, x: Tensor, weight: Tensor) -> Tensor:
        return functional.rms_norm(x, weight.shape, weight, self._config.norm_eps)

    def attend(
        self, x: Tensor, cache: Tensor, start: int, rotation: tuple[Tensor, Tensor], grouped: bool
    ) -> Tensor:
        config, (batch, new, _) = self._config, x.shape
        heads = self.qkv(self._normed(x, self.norms[0])).view(batch, new, -1, config.head_dim)
        sizes = [self._mixer.heads, self._mixer.kv_heads, self._mixer.kv_heads]
        q, k, v = heads.transpose(1, 2).split(sizes, dim=1)
        if self._mixer.norm == "each":
            q, k = self._normed(q, self.head_norms[0]), self._normed(k, self.head_norms[1])
        q, k = _rotated(q, *rotation), _rotated(k, *rotation)
        end = start + new
        cache[0, :, :, start:end], cache[1, :, :, start:end] = k, v
        keys, values = cache[0, :, :, :end], cache[1, :, :, :end]
        if grouped and new == 1:
            folded = q.reshape(batch, self._mixer.kv_heads, -1, config.head_dim)
            mixed = functional.scaled_dot_product_attention(folded, keys, values)
            mixed = mixed.reshape(batch, self._mixer.heads, 1, config.head_dim)
        else:
            mixed = functional.scaled_dot_product_attention(
                q, keys, values, is_causal=new > 1, enable_gqa=True
            )
        return self.output(mixed.transpose(1, 2).reshape(batch, new, -1))

    def feed_forward(self, x: Tensor) -> Tensor:
        gate, up = self.gate_up(self._normed(x, self.norms[1])).chunk(2, dim=-1)
        return self.down(functional.silu(gate) * up)


def _rotated(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    first, second = x.chunk(2, dim=-1)
    return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1)
