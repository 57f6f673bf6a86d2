"""The decoder: one implementation for Llama, Qwen and Mistral, steered by ``ModelConfig``.

A step is a flat list of tokens of any mix of sequences; only attention knows which belong
together, from the ``StepInputs`` handed down as an argument. Keys and values go straight to
the paged pool and are read from there.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from kernels.attention import paged_attention
from kernels.native_layers import LayerParts, NativeLayers
from kernels.norm import add_rms_norm
from kernels.paged_layout import PagedLayout
from kernels.qkv import norm_rope_write
from runtime.model.config import LogitShaping, ModelConfig
from runtime.model.feed_forward import GatedMlp, load_feed_forward
from runtime.model.kv_pool import KVPool
from runtime.model.layers import WeightBits, WeightSource, fused_linear, in_tiles, make_linear
from runtime.model.product_choice import ProductChoice
from runtime.model.rotary import RotaryTable


@dataclass(frozen=True, slots=True, kw_only=True)
class StepInputs:
    """A step's tensors on the model's device: T tokens, R logit rows."""

    token_ids: Tensor
    """[T] int64"""
    positions: Tensor
    """[T] int64"""
    slots: Tensor
    """[T] int64: where each token's KV goes."""
    logit_rows: Tensor
    """[R] int64"""
    highest_position: int
    layout: PagedLayout
    all_rows: bool = False
    """Logits are asked for every token, in their order. A recording never says so."""


class DecoderLayer:
    """Attention and MLP of one layer, with the norms before them."""

    def __init__(
        self,
        config: ModelConfig,
        index: int,
        source: WeightSource,
        bits: WeightBits,
        choice: ProductChoice | None,
    ) -> None:
        prefix, hidden = f"model.layers.{index}", config.hidden_size
        self._config = config
        self._index = index
        self._scale = config.head_dim**-0.5
        self._window = config.window(index)
        self._input_norm = source.tensor(f"{prefix}.input_layernorm.weight", (hidden,))
        self._qkv = fused_linear(
            source,
            [f"{prefix}.self_attn.{part}_proj" for part in "qkv"],
            [config.query_size, config.kv_size, config.kv_size],
            hidden,
            bias=config.qkv_bias,
            bits=bits,
            choice=choice,
        )
        self._qk_norm = self._load_qk_norm(prefix, source) if config.qk_norm else None
        self._output = fused_linear(
            source,
            [f"{prefix}.self_attn.o_proj"],
            [hidden],
            config.query_size,
            bias=config.output_bias,
            bits=bits,
            choice=choice,
        )
        self._mlp_norm = source.tensor(f"{prefix}.post_attention_layernorm.weight", (hidden,))
        self._feed_forward = load_feed_forward(config, index, source, bits, choice)

    @property
    def step_bytes(self) -> int:
        """Bytes of weights, norms aside, that a step of one token reads."""
        return self._qkv.num_bytes + self._output.num_bytes + self._feed_forward.step_bytes

    def _load_qk_norm(self, prefix: str, source: WeightSource) -> Tensor:
        """[heads + kv_heads, head_dim]: queries and keys are normed in one go."""
        config = self._config
        query = source.tensor(f"{prefix}.self_attn.q_norm.weight", (config.head_dim,))
        key = source.tensor(f"{prefix}.self_attn.k_norm.weight", (config.head_dim,))
        return torch.cat((query.expand(config.num_heads, -1), key.expand(config.num_kv_heads, -1)))

    def parts(self) -> LayerParts | None:
        """The layer as ``kernels.native_layers`` takes it; None where it cannot."""
        if not isinstance(self._feed_forward, GatedMlp):
            return None
        maps = map(in_tiles, (self._qkv, self._output, *self._feed_forward.maps))
        qkv, output, gate_up, down = maps
        if qkv is None or output is None or gate_up is None or down is None:
            return None
        return LayerParts(
            input_norm=self._input_norm,
            qkv=qkv,
            qk_norm=self._qk_norm,
            output=output,
            mlp_norm=self._mlp_norm,
            gate_up=gate_up,
            down=down,
            window=self._window,
        )

    def forward(
        self,
        delta: Tensor,
        residual: Tensor,
        inputs: StepInputs,
        rotation: tuple[Tensor, Tensor],
        pool: KVPool,
    ) -> tuple[Tensor, Tensor]:
        """The layer's own contribution, and the sum of all before it; both [T, hidden]."""
        eps = self._config.norm_eps
        normed, residual = add_rms_norm(delta, residual, self._input_norm, eps)
        mixed = self._attend(normed, inputs, rotation, pool)
        normed, residual = add_rms_norm(mixed, residual, self._mlp_norm, eps)
        return self._feed_forward(normed), residual

    def _attend(
        self, x: Tensor, inputs: StepInputs, rotation: tuple[Tensor, Tensor], pool: KVPool
    ) -> Tensor:
        config = self._config
        k_blocks, v_blocks = pool.layer(self._index)
        queries = norm_rope_write(
            self._qkv(x).view(x.shape[0], -1, config.head_dim),
            norm_weight=self._qk_norm,
            eps=config.norm_eps,
            rotation=rotation,
            blocks=(k_blocks, v_blocks),
            slots=inputs.slots,
        )
        mixed = paged_attention(
            queries, k_blocks, v_blocks, inputs.layout, scale=self._scale, window=self._window
        )
        return self._output(mixed.flatten(1))


class Decoder:
    """A whole model, from token ids to logits."""

    def __init__(
        self,
        config: ModelConfig,
        source: WeightSource,
        dtype: torch.dtype,
        device: torch.device,
        *,
        bits: WeightBits = 16,
        choice: ProductChoice | None = None,
    ) -> None:
        """Take the weights from ``source`` one by one; linear maps are kept in ``bits``, in the
        layouts of ``choice`` (``make_linear``)."""
        self.config = config
        self.choice = choice
        self._embedding = source.tensor(
            "model.embed_tokens.weight", (config.vocab_size, config.hidden_size)
        )
        self._layers = [
            DecoderLayer(config, index, source, bits, choice) for index in range(config.num_layers)
        ]
        self._native = _native_layers(self._layers, config)
        self._norm = source.tensor("model.norm.weight", (config.hidden_size,))
        self._head = make_linear(self._head_weight(source), None, bits, choice)
        self._rotary = RotaryTable(config.rope, config.head_dim, dtype, device)
        self._shaping = (
            _LogitShaper(config.shaping, config.vocab_size, device) if config.shaping else None
        )

    def _head_weight(self, source: WeightSource) -> Tensor:
        if self.config.tie_embeddings:
            return self._embedding
        shape = (self.config.vocab_size, self.config.hidden_size)
        return source.tensor("lm_head.weight", shape)

    @property
    def step_weight_bytes(self) -> int:
        """Bytes of weights every step reads; of experts, as many as one token takes."""
        return sum(layer.step_bytes for layer in self._layers) + self._head.num_bytes

    def forward(self, inputs: StepInputs, pool: KVPool) -> Tensor:
        """Write the step's KV to ``pool`` and return logits.

        Returns:
            [R, vocab] float32, or float64 for float64 models, in the order of
            ``inputs.logit_rows``. Not checked for NaN: the sampler reports that per row.
        """
        rotation = self._rotary.at(inputs.positions, inputs.highest_position)
        delta = torch.embedding(self._embedding, inputs.token_ids)
        residual = torch.zeros_like(delta)
        delta, residual = self._run_layers(delta, residual, inputs, rotation, pool)
        rows = inputs.logit_rows
        if not inputs.all_rows:
            delta, residual = delta[rows], residual[rows]
        normed, _ = add_rms_norm(delta, residual, self._norm, self.config.norm_eps)
        logits = self._head(normed)
        logits = logits if logits.dtype == torch.float64 else logits.float()
        if self._shaping is not None:
            logits = self._shaping.apply(logits, inputs.positions[rows])
        return logits

    @property
    def is_compiled(self) -> bool:
        """Whether compiled kernels do all of a step's work that is worth more than one thread."""
        native, head = self._native, in_tiles(self._head)
        if native is None or head is None:
            return False
        return native.takes_any_rows and head.takes_any_rows

    def _run_layers(
        self,
        delta: Tensor,
        residual: Tensor,
        inputs: StepInputs,
        rotation: tuple[Tensor, Tensor],
        pool: KVPool,
    ) -> tuple[Tensor, Tensor]:
        native, layout = self._native, inputs.layout
        if native is None or not native.takes(len(delta), pool.layers, layout):
            for layer in self._layers:
                delta, residual = layer.forward(delta, residual, inputs, rotation, pool)
            return delta, residual
        native.run(
            delta,
            residual,
            rotation=rotation,
            slots=inputs.slots,
            layout=layout,
            pool=pool.layers,
        )
        return delta, residual


def _native_layers(layers: Sequence[DecoderLayer], config: ModelConfig) -> NativeLayers | None:
    """All of them in one call, where each allows that."""
    parts = [part for part in (layer.parts() for layer in layers) if part is not None]
    if len(parts) < len(layers):
        return None
    return NativeLayers(parts, head_dim=config.head_dim, eps=config.norm_eps)


class _LogitShaper:
    """See ``LogitShaping``."""

    def __init__(self, shaping: LogitShaping, vocab_size: int, device: torch.device) -> None:
        self._shaping = shaping
        bias = torch.full((vocab_size,), -shaping.ban, device=device)
        bias[: shaping.num_plain] = 0
        bias[shaping.end_of_turn] = 0
        self._bias = bias

    def apply(self, logits: Tensor, positions: Tensor) -> Tensor:
        shaped = logits + self._bias
        due = (positions + 1) % self._shaping.period == 0
        shaped[:, self._shaping.end_of_turn] += due * self._shaping.boost
        return shaped
