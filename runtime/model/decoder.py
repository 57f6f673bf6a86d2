"""The decoder: one implementation for all families, steered by the layers of ``ModelConfig``.

A step is a flat list of tokens of any mix of sequences; only mixers know which belong together,
from the ``StepInputs`` handed down as an argument. Keys and values go straight to the paged pool
and are read from there.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from kernels.chosen_attention import ChosenRows, part_rows
from kernels.low_rank import RowAdapters
from kernels.native_layers import LayerParts, NativeLayers
from kernels.norm import add_rms_norm, rms_norm
from kernels.paged_layout import PagedLayout
from runtime.model.adapters import StepAdapters
from runtime.model.compressed import Compressed
from runtime.model.compressed_mixer import CompressedMixer
from runtime.model.config import Attention, Experts, KeepsKV, LogitShaping, ModelConfig
from runtime.model.embedding import Embedding
from runtime.model.feed_forward import (
    ExpertMlp,
    ExpertsApart,
    FeedForward,
    GatedMlp,
    GroupedExpertMlp,
    SharedExpertMlp,
    load_feed_forward,
    waits_for_the_host,
)
from runtime.model.hyper_connections import HyperConnection, StreamHead, joined
from runtime.model.kv_pool import KVPool
from runtime.model.latent import Latent
from runtime.model.latent_mixer import LatentMixer
from runtime.model.layer_inputs import LayerInput, TokenRows
from runtime.model.layers import MapLoader, Matrix, WeightSource, in_tiles
from runtime.model.mixer import AttentionMixer
from runtime.model.recurrent_mixers import RecurrentMixer, load_recurrent
from runtime.model.rotary import RotaryTable, Rotation
from runtime.model.state_step import StateStep
from runtime.model.token_indexer import StepChoice
from runtime.model.windowed_step import WindowedStep


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
    states: StateStep | None = None
    """States of the sequences, in a model with recurrent layers."""
    all_rows: bool = False
    """Logits are asked for every token, in their order. A recording never says so."""
    near: tuple[Tensor, PagedLayout] | None = None
    """``slots`` and ``layout`` of layers with a window, where their rows are given back behind
    it."""
    adapters: RowAdapters | None = None
    """Rows by their adapter; None: none has one."""


_Mixer = AttentionMixer | LatentMixer | CompressedMixer | RecurrentMixer


class DecoderLayer:
    """Mixer and feed-forward of one layer, with their norms."""

    def __init__(self, config: ModelConfig, index: int, loader: MapLoader) -> None:
        prefix, hidden, spec = f"model.layers.{index}", config.hidden_size, config.layers[index]
        before_it = config.layers[:index]
        self._index = sum(isinstance(each.mixer, type(spec.mixer)) for each in before_it)
        """Among the layers with a mixer of its kind."""
        self._eps = config.norm_eps
        self._residual_scale = spec.residual_scale

        def norm(name: str, *, there: bool) -> Tensor | None:
            return loader.source.tensor(f"{prefix}.{name}.weight", (hidden,)) if there else None

        before, after = spec.norms != "after", spec.norms in ("after", "both")
        mixes, feeds = spec.mixer is not None, spec.feed_forward is not None
        apart = isinstance(spec.feed_forward, Experts) and spec.feed_forward.apart
        self._mixer_norms = (
            norm("input_layernorm", there=before and mixes),
            norm("after_mixer_norm", there=after and mixes),
        )
        self._mixer: _Mixer | None = None
        if isinstance(spec.mixer, Attention):
            self._mixer = AttentionMixer(spec.mixer, prefix, hidden, loader, eps=config.norm_eps)
        elif isinstance(spec.mixer, Latent):
            self._mixer = LatentMixer(spec.mixer, prefix, hidden, loader)
        elif isinstance(spec.mixer, Compressed):
            self._mixer = CompressedMixer(spec.mixer, prefix, hidden, loader, eps=config.norm_eps)
        elif spec.mixer is not None:
            self._mixer = load_recurrent(spec.mixer, prefix, hidden, loader, eps=config.norm_eps)
        self._mlp_norms = (
            norm("post_attention_layernorm", there=before and feeds and not apart),
            norm("after_mlp_norm", there=spec.norms != "before" and feeds),
        )
        self._feed_forward: FeedForward | None = None
        if spec.feed_forward is not None:
            self._feed_forward = load_feed_forward(
                spec.feed_forward, prefix, hidden, loader, eps=config.norm_eps
            )
        self._rank_sum = loader.rank_sum
        self._streams: tuple[HyperConnection, HyperConnection] | None = None
        """Around the mixer, and around the feed-forward."""
        if config.streams is not None:
            own, source = config.streams, loader.source
            self._streams = (
                HyperConnection(own, f"{prefix}.attn_hc", hidden, source, eps=config.norm_eps),
                HyperConnection(own, f"{prefix}.ffn_hc", hidden, source, eps=config.norm_eps),
            )
        self._input: LayerInput | None = None
        if config.layer_inputs is not None:
            inputs = config.layer_inputs
            self._input = LayerInput(inputs, prefix, hidden, loader, eps=config.norm_eps)
        self._scale: Tensor | None = None
        if spec.learnt_scale:
            self._scale = loader.source.tensor(f"{prefix}.layer_scale", (1,))

    @property
    def step_bytes(self) -> int:
        """Bytes of weights, norms aside, that a step of one token reads."""
        halves = (self._mixer, self._feed_forward, self._input, *(self._streams or ()))
        return sum(half.step_bytes for half in halves if half is not None)

    @property
    def waits_for_the_host(self) -> bool:
        """Whether the host has to know something of a step before it can go on."""
        mixer = self._mixer
        if isinstance(mixer, CompressedMixer):
            return True
        if isinstance(mixer, LatentMixer | AttentionMixer) and mixer.waits_for_the_host:
            return True
        return waits_for_the_host(self._feed_forward)

    @property
    def scale(self) -> float | None:
        """The scale of the scores of attention; None where there is none."""
        return self._mixer.scale if isinstance(self._mixer, AttentionMixer) else None

    def parts(self) -> LayerParts | None:
        """The layer as ``kernels.native_layers`` takes it; None where it cannot."""
        if not isinstance(self._mixer, AttentionMixer) or self._rank_sum is not None:
            return None
        (input_norm, after_mixer), (mlp_norm, after_mlp) = self._mixer_norms, self._mlp_norms
        if input_norm is None or mlp_norm is None or after_mixer is not None:
            return None
        if self._input is not None or self._scale is not None or self._streams is not None:
            return None
        if not self._mixer.is_plain or after_mlp is not None or self._residual_scale != 1:
            return None
        mlp = self._feed_forward
        if not isinstance(mlp, GatedMlp) or mlp.spec.activation != "silu":
            return None
        maps = map(in_tiles, (self._mixer.qkv, self._mixer.output, *mlp.maps))
        qkv, output, gate_up, down = maps
        if qkv is None or output is None or gate_up is None or down is None:
            return None
        return LayerParts(
            input_norm=input_norm,
            qkv=qkv,
            qk_norm=self._mixer.head_norm,
            output=output,
            mlp_norm=mlp_norm,
            gate_up=gate_up,
            down=down,
            window=self._mixer.spec.window,
        )

    def forward(
        self,
        delta: Tensor,
        residual: Tensor,
        inputs: StepInputs,
        rotation: Rotation,
        pool: KVPool,
        *,
        rows: Tensor | None = None,
        choice: StepChoice | WindowedStep | ChosenRows | None,
    ) -> tuple[Tensor, Tensor]:
        """The layer's own contribution, and the sum of all before it; both [T, hidden]. ``rows``
        [T, size]: the layer's own of ``config.LayerInputs``; ``choice``: what layers of the
        model's attention share in the step. Of a model with streams the streams behind the layer,
        [T, count, hidden], from those before it, and what there was as a sum."""
        if self._streams is not None:
            streams = self._through_streams(delta, inputs, rotation, pool, choice=choice)
            return streams, residual
        if self._mixer is not None:
            normed, residual = self._into(delta, residual, self._mixer_norms[0])
            mixed = self._mixed(self._mixer, normed, inputs, rotation, pool, choice=choice)
            delta = self._out_of(self._of_all_ranks(mixed), self._mixer_norms[1])
        if self._feed_forward is not None:
            normed, residual = self._into(delta, residual, self._mlp_norms[0])
            added = self._fed(self._feed_forward, normed, inputs)
            delta = self._out_of(added, self._mlp_norms[1])
        if self._input is not None and rows is not None:
            residual = residual + delta
            delta = self._input(residual, rows)
        if self._scale is not None:
            delta = (residual + delta) * self._scale
            residual = torch.zeros_like(delta)
        return delta, residual

    def _through_streams(
        self,
        streams: Tensor,
        inputs: StepInputs,
        rotation: Rotation,
        pool: KVPool,
        *,
        choice: StepChoice | WindowedStep | ChosenRows | None,
    ) -> Tensor:
        """``forward`` of a model with streams."""
        assert self._streams is not None
        around_mixer, around_mlp = self._streams
        if self._mixer is not None:
            seen, behind, mixing = around_mixer(streams)
            normed = self._normed(seen, self._mixer_norms[0])
            mixed = self._mixed(self._mixer, normed, inputs, rotation, pool, choice=choice)
            streams = joined(streams, self._of_all_ranks(mixed), behind, mixing)
        if self._feed_forward is not None:
            seen, behind, mixing = around_mlp(streams)
            normed = self._normed(seen, self._mlp_norms[0])
            added = self._fed(self._feed_forward, normed, inputs)
            streams = joined(streams, added, behind, mixing)
        return streams

    def _fed(self, feed_forward: FeedForward, normed: Tensor, inputs: StepInputs) -> Tensor:
        if isinstance(feed_forward, ExpertsApart):
            return feed_forward(normed)
        if isinstance(feed_forward, SharedExpertMlp | ExpertMlp | GroupedExpertMlp):
            return self._of_all_ranks(feed_forward(normed, tokens=inputs.token_ids))
        return self._of_all_ranks(feed_forward(normed))

    def _normed(self, x: Tensor, norm: Tensor | None) -> Tensor:
        return x if norm is None else rms_norm(x, norm, self._eps)

    def _mixed(
        self,
        mixer: _Mixer,
        normed: Tensor,
        inputs: StepInputs,
        rotation: Rotation,
        pool: KVPool,
        *,
        choice: StepChoice | WindowedStep | ChosenRows | None,
    ) -> Tensor:
        slots, layout = inputs.slots, inputs.layout
        parted = inputs.near if isinstance(mixer, AttentionMixer | CompressedMixer) else None
        if parted is not None and pool.windowed[self._index]:
            slots, layout = parted
        if isinstance(mixer, AttentionMixer):
            return mixer(
                normed,
                rotation=rotation,
                blocks=pool.layer(self._index),
                slots=slots,
                layout=layout,
                index_keys=pool.beside(self._index),
                rows=choice if isinstance(choice, ChosenRows) else None,
            )
        if isinstance(mixer, CompressedMixer):
            assert isinstance(choice, WindowedStep)
            return mixer(
                normed,
                rotation=rotation,
                blocks=pool.layer(self._index)[0],
                entries=pool.beside(self._index),
                slots=slots,
                layout=layout,
                step=choice,
            )
        if isinstance(mixer, LatentMixer):
            assert not isinstance(choice, WindowedStep | ChosenRows)
            blocks = pool.layer(self._index)
            return mixer(
                normed, rotation=rotation, blocks=blocks, slots=slots, layout=layout, choice=choice
            )
        assert inputs.states is not None
        return mixer(normed, inputs.states, self._index)

    def _of_all_ranks(self, part: Tensor) -> Tensor:
        return part if self._rank_sum is None else self._rank_sum(part)

    def _into(self, delta: Tensor, residual: Tensor, norm: Tensor | None) -> tuple[Tensor, Tensor]:
        """The input of a half of the layer, and the sum so far."""
        if norm is not None:
            return add_rms_norm(delta, residual, norm, self._eps)
        total = residual + delta
        return total, total

    def _out_of(self, x: Tensor, norm: Tensor | None) -> Tensor:
        x = self._normed(x, norm)
        return x if self._residual_scale == 1 else x * self._residual_scale


class Decoder:
    """A whole model, from token ids to logits."""

    def __init__(
        self,
        config: ModelConfig,
        loader: MapLoader,
        device: torch.device,
        *,
        has_head: bool = True,
    ) -> None:
        """Take the weights one by one, as ``loader`` does it.

        Args:
            has_head: logits are computed here; else another rank's are looked at.
        """
        self.config = config
        self.choice = loader.choice
        source, dtype = loader.source, loader.dtype
        size = config.vocab_size, config.hidden_size
        self._embedding = Embedding(source.matrix("model.embed_tokens.weight", size), dtype)
        self._layers = [DecoderLayer(config, index, loader) for index in range(config.num_layers)]
        distinct = list(dict.fromkeys((mixer.rope, mixer.rotary_dim) for mixer in config.attention))
        self._table_of_layer = [
            distinct.index((layer.mixer.rope, layer.mixer.rotary_dim))
            if isinstance(layer.mixer, KeepsKV)
            else 0
            for layer in config.layers
        ]
        self._tables = [RotaryTable(rope, size, dtype, device) for rope, size in distinct]
        self.native = _native_layers(self._layers, config, self._tables)
        """The layers as one compiled call; None where there is none for them."""
        self._rows: TokenRows | None = None
        if config.layer_inputs is not None:
            own, count = config.layer_inputs, config.num_layers
            self._rows = TokenRows(own, config.hidden_size, count, loader, eps=config.norm_eps)
        self._stream_head: StreamHead | None = None
        if config.streams is not None and config.streams.learnt_end:
            spec, hidden = config.streams, config.hidden_size
            self._stream_head = StreamHead(spec, hidden, source, eps=config.norm_eps)
        self._embedding_scale = torch.tensor(config.embedding_scale, dtype=dtype).item()
        self._norm = source.tensor("model.norm.weight", (config.hidden_size,))
        self._step_adapters = StepAdapters() if loader.adapters is None else loader.adapters.step
        self.adapts = loader.adapters is not None and len(loader.adapters) > 0
        """Whether rows can have adapters."""
        self._head = loader.made([self._head_weight(source)], None) if has_head else None
        self._shaping = (
            _LogitShaper(config.shaping, config.vocab_size, device) if config.shaping else None
        )

    def _head_weight(self, source: WeightSource) -> Matrix:
        if self.config.tie_embeddings:
            return self._embedding.weight
        shape = (self.config.vocab_size, self.config.hidden_size)
        return source.matrix("lm_head.weight", shape)

    @property
    def waits_for_the_host(self) -> bool:
        """Whether a step asks the host something before it is over, so that none is recorded."""
        return any(layer.waits_for_the_host for layer in self._layers)

    @property
    def step_weight_bytes(self) -> int:
        """Bytes of weights every step reads; of experts, as many as one token takes."""
        head = 0 if self._head is None else self._head.num_bytes
        rows = 0 if self._rows is None else self._rows.step_bytes
        rows += 0 if self._stream_head is None else self._stream_head.step_bytes
        return sum(layer.step_bytes for layer in self._layers) + head + rows

    def forward(self, inputs: StepInputs, pool: KVPool) -> Tensor:
        """Write the step's KV to ``pool`` and return logits.

        Returns:
            [R, vocab] float32, or float64 for float64 models, in the order of
            ``inputs.logit_rows``. Not checked for NaN: the sampler reports that per row. [R, 0]
            where there is no head.
        """
        delta = self._embedding(inputs.token_ids)
        if self._embedding_scale != 1:
            delta = delta * self._embedding_scale
        residual = torch.zeros_like(delta)
        rows = None if self._rows is None else self._rows(inputs.token_ids, delta)
        if self.config.streams is not None:
            delta = delta[:, None].expand(-1, self.config.streams.count, -1)
        with self._step_adapters.of_step(inputs.adapters, len(inputs.token_ids)):
            delta, residual = self._run_layers(delta, residual, inputs, pool, rows)
        logits = self._logits(delta, residual, inputs)
        if inputs.states is not None:
            inputs.states.done()  # behind all that may fail for want of memory
        return logits

    def _logits(self, delta: Tensor, residual: Tensor, inputs: StepInputs) -> Tensor:
        """[R, vocab] from the last layer's [T, hidden] and what is to be added to it."""
        rows = inputs.logit_rows
        if self._head is None:
            return delta.new_empty(len(rows), 0)
        if not inputs.all_rows:
            delta, residual = delta[rows], residual[rows]
        if self._stream_head is not None:
            delta = self._stream_head(delta)
        elif self.config.streams is not None:
            delta = delta.mean(1)
        normed, _ = add_rms_norm(delta, residual, self._norm, self.config.norm_eps)
        logits = self._head(normed)
        logits = logits if logits.dtype == torch.float64 else logits.float()
        if self.config.logit_divisor != 1:
            logits = logits / self.config.logit_divisor
        cap = self.config.logit_cap
        if cap is not None:
            logits = torch.tanh(logits / cap) * cap
        if self._shaping is not None:
            logits = self._shaping.apply(logits, inputs.positions[rows])
        return logits

    @property
    def is_compiled(self) -> bool:
        """Whether compiled kernels do all of a step's work that is worth more than one thread."""
        if self.native is None or self._head is None:
            return False
        native, head = self.native, in_tiles(self._head)
        if head is None:
            return False
        return native.takes_any_rows and head.takes_any_rows

    def _run_layers(
        self,
        delta: Tensor,
        residual: Tensor,
        inputs: StepInputs,
        pool: KVPool,
        rows: Tensor | None,
    ) -> tuple[Tensor, Tensor]:
        rotations = [table.at(inputs.positions, inputs.highest_position) for table in self._tables]
        native, layout = self.native, inputs.layout
        apart = inputs.near is not None or inputs.adapters is not None
        if native is None or apart or not native.takes(len(delta), pool.layers, layout):
            choice = self._shared_in_step(inputs, pool)
            for index, layer in enumerate(self._layers):
                rotation = rotations[self._table_of_layer[index]]
                own = None if rows is None else rows[:, index]
                delta, residual = layer.forward(
                    delta, residual, inputs, rotation, pool, rows=own, choice=choice
                )
            return delta, residual
        native.run(
            delta,
            residual,
            rotation=(rotations[0].cos, rotations[0].sin),
            slots=inputs.slots,
            layout=layout,
            pool=pool.layers,
        )
        return delta, residual

    def _shared_in_step(
        self, inputs: StepInputs, pool: KVPool
    ) -> StepChoice | WindowedStep | ChosenRows | None:
        """The part of a step that layers of attention share: a choice of tokens; which rows choose
        blocks, layer by layer; or windows and what their entries are made of."""
        first, top_k, layout = self.config.attention[0], self.config.top_k, inputs.layout
        if isinstance(first, Latent) and first.indexer is not None:
            return StepChoice(layout, first.indexer, pool.block_size)
        if isinstance(first, Attention) and top_k is not None:
            return part_rows(layout, top_k, pool.block_size)
        if not isinstance(first, Compressed):
            return None
        tables = {
            layer.mixer.ratio: self._tables[self._table_of_layer[index]]
            for index, layer in enumerate(self.config.layers)
            if isinstance(layer.mixer, Compressed) and layer.mixer.ratio is not None
        }
        near = None if inputs.near is None else inputs.near[1]
        return WindowedStep(layout, pool.block_size, tables, near=near, apart=True)


def _native_layers(
    layers: Sequence[DecoderLayer], config: ModelConfig, tables: Sequence[RotaryTable]
) -> NativeLayers | None:
    """All layers in one call, where each allows that and all are rotated and scaled alike; else
    None."""
    scales = {layer.scale for layer in layers}
    scale = scales.pop()
    if scales or scale is None or len(tables) > 1 or not tables[0].is_plain:
        return None
    if len(config.kv_groups) > 1:
        return None
    parts = [part for part in (layer.parts() for layer in layers) if part is not None]
    if len(parts) < len(layers):
        return None
    return NativeLayers(parts, head_dim=config.head_dim, eps=config.norm_eps, scale=scale)


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
