"""The first half of a layer: what mixes tokens with those before them.

Attention over the paged pool, or a short convolution over states. How a head's dimensions lie in
the pool is decided here: where only a part of a head is rotated, its pairs are laid as far apart as
those of a whole head, so that every kernel rotates whole heads, the rest by nothing. Scores do not
notice the order.
"""

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional

from kernels.attention import paged_attention
from kernels.block_attention import block_attention
from kernels.chosen_attention import ChosenRows
from kernels.norm import mean_square, norm_by, rms_norm
from kernels.paged_layout import PagedLayout
from kernels.qkv import norm_rope_write
from kernels.rope import apply_rope
from kernels.short_conv import ConvWeights, short_conv
from runtime.model.block_indexer import BlockIndexer
from runtime.model.config import Attention
from runtime.model.layers import Linear, MapLoader, Matrix, WeightSource, biases_of, matrices_of
from runtime.model.recurrent import ShortConv
from runtime.model.rotary import Rotation
from runtime.model.state_step import StateStep


class AttentionMixer:
    """See ``config.Attention``. Weights are those of ``PREFIX.self_attn``."""

    def __init__(
        self, spec: Attention, prefix: str, hidden: int, loader: MapLoader, *, eps: float
    ) -> None:
        self.spec = spec
        self._eps = eps
        self._scale = spec.head_dim**-0.5 if spec.scale is None else spec.scale
        name = f"{prefix}.self_attn"
        source, order = loader.source, _order_of_dimensions(spec)
        self.qkv = _load_qkv(spec, name, hidden, loader, order)
        self.head_norm = _head_norms(spec, name, source, order) if spec.norm == "each" else None
        """[heads + kv_heads, head_dim]: queries and keys are normed in one go; of a layer that
        shares another's keys, [heads, head_dim]."""
        self._norm_of_all: tuple[Tensor, Tensor] | None = None
        if spec.norm == "all":
            self._norm_of_all = (
                _reordered(source.tensor(f"{name}.q_norm.weight", (spec.query_size,)), order),
                _reordered(source.tensor(f"{name}.k_norm.weight", (spec.kv_size,)), order),
            )
        self._rank_sum = loader.rank_sum
        self._sinks: Tensor | None = None
        if spec.sinks:
            self._sinks = source.tensor(f"{name}.sinks", (spec.heads,), wide=True)
        self._gate = _load_gate(spec, name, hidden, loader) if spec.gated else None
        self._head_gate: Linear | None = None
        if spec.gated_heads:
            self._head_gate = loader.linear([f"{name}.g_proj"], [spec.heads], hidden, bias=False)
        self._indexer: BlockIndexer | None = None
        if spec.choice is not None:
            sizes = spec.kv_heads, spec.rotated, hidden
            self._indexer = BlockIndexer(spec.choice, name, sizes, loader.without_adapters, eps=eps)
        self.output = loader.linear(
            [f"{name}.o_proj"], [hidden], spec.result_size, bias=spec.output_bias
        )

    @property
    def is_plain(self) -> bool:
        """Whether ``kernels.native_layers`` knows all that it does."""
        spec = self.spec
        if spec.shares is not None or spec.value_norm or spec.keys_are_values:
            return False
        if spec.choice is not None or spec.value_dim is not None or spec.value_scale != 1:
            return False
        if self._head_gate is not None:
            return False
        return self._norm_of_all is None and self._sinks is None and self._gate is None

    @property
    def scale(self) -> float:
        """The scale of the scores."""
        return self._scale

    @property
    def waits_for_the_host(self) -> bool:
        """Whether a step asks the host how its rows are to be parted."""
        return self._indexer is not None

    @property
    def step_bytes(self) -> int:
        gate = sum(0 if each is None else each.num_bytes for each in (self._gate, self._head_gate))
        indexer = 0 if self._indexer is None else self._indexer.step_bytes
        return self.qkv.num_bytes + self.output.num_bytes + gate + indexer

    def __call__(
        self,
        x: Tensor,
        *,
        rotation: Rotation,
        blocks: tuple[Tensor, Tensor],
        slots: Tensor,
        layout: PagedLayout,
        index_keys: Tensor | None = None,
        rows: ChosenRows | None = None,
    ) -> Tensor:
        """[T, hidden] -> [T, hidden]; writes the rows' keys and values, if they are its own.

        Args:
            x: the step's tokens.
            rotation: of their positions.
            blocks: the layer's keys and values, or those that it reads, each
                [blocks, kv_heads, block_size, head_dim].
            slots: [T] where each row's go.
            layout: the step's sequences.
            index_keys: [blocks, 1, block_size, dim], where blocks are chosen; written too.
            rows: which rows choose; None: none does.
        """
        spec, qkv = self.spec, self.qkv(x)
        if self._norm_of_all is not None:
            qkv = self._normed(qkv, *self._norm_of_all)
        heads = self._by_head(qkv)
        if spec.shares is not None:
            queries = self._rotated(heads, rotation)
        else:
            queries = norm_rope_write(
                self._with_values(heads),
                norm_weight=self.head_norm,
                eps=self._eps,
                rotation=(rotation.cos, rotation.sin),
                blocks=blocks,
                slots=slots,
            )
        if rotation.query_scale is not None:
            queries = queries * rotation.query_scale[:, None, None]
        chosen: Tensor | None = None
        if self._indexer is not None and index_keys is not None:
            self._indexer.write_keys(x, rotation, index_keys, slots)
            if rows is not None:
                chosen = self._indexer.choose(x, rotation, index_keys, rows)
        if chosen is None or rows is None:
            mixed = self._attend(queries, blocks, layout)
        else:
            mixed = self._chosen(queries, blocks, chosen, rows)
        if spec.value_dim is not None:
            mixed = mixed[..., : spec.value_dim]
        if spec.value_scale != 1:
            mixed = mixed * spec.value_scale
        if self._head_gate is not None:
            mixed = mixed * self._opened(self._head_gate(x))[..., None]
        mixed = mixed.flatten(1)
        if self._gate is not None:
            mixed = mixed * self._opened(self._gate(x))
        return self.output(mixed)

    def _opened(self, gate: Tensor) -> Tensor:
        """How far gates are open, of what was projected for them; in its shape and dtype."""
        softplus = self.spec.gate_function == "softplus"
        return functional.softplus(gate) if softplus else torch.sigmoid(gate)

    def _by_head(self, qkv: Tensor) -> Tensor:
        """[T, heads, head_dim]: queries, keys and values of what was projected; values that are
        shorter with zeros behind them."""
        spec = self.spec
        if spec.value_dim is None or spec.shares is not None:
            return qkv.view(len(qkv), -1, spec.head_dim)
        size = spec.kv_heads * spec.value_dim
        values = qkv[:, -size:].view(len(qkv), -1, spec.value_dim)
        values = functional.pad(values, (0, spec.head_dim - spec.value_dim))
        rest = qkv[:, :-size].view(len(qkv), -1, spec.head_dim)
        return torch.cat((rest, values), dim=1)

    def _attend(
        self, queries: Tensor, blocks: tuple[Tensor, Tensor], layout: PagedLayout
    ) -> Tensor:
        """[T, heads, head_dim]: each query sees all of its context, or a window of it."""
        window, sinks = self.spec.window, self._sinks
        return paged_attention(
            queries, *blocks, layout, scale=self._scale, window=window, sinks=sinks
        )

    def _chosen(
        self,
        queries: Tensor,
        blocks: tuple[Tensor, Tensor],
        chosen: Tensor,
        rows: ChosenRows,
    ) -> Tensor:
        """The same where some rows read the blocks that they have chosen."""
        choice = self.spec.choice
        assert choice is not None
        mixed, own = torch.empty_like(queries), rows.choosing
        mixed[own] = block_attention(
            queries[own], *blocks, chosen, rows.spans, size=choice.size, scale=self._scale
        )
        if rows.seen is not None:
            mixed[rows.all_seen] = self._attend(queries[rows.all_seen], blocks, rows.seen)
        return mixed

    def _rotated(self, queries: Tensor, rotation: Rotation) -> Tensor:
        """Queries [T, heads, head_dim] of keys that are written already."""
        if self.head_norm is not None:
            queries = rms_norm(queries, self.head_norm, self._eps)
        return apply_rope(queries, rotation.cos, rotation.sin)

    def _with_values(self, heads: Tensor) -> Tensor:
        """[T, heads + 2 kv_heads, head_dim] of what was projected, values as they are kept."""
        spec = self.spec
        if not spec.value_norm and not spec.keys_are_values:
            return heads
        values = heads[:, -spec.kv_heads :]
        if spec.value_norm:
            values = rms_norm(values, None, self._eps)
        rest = heads if spec.keys_are_values else heads[:, : -spec.kv_heads]
        return torch.cat((rest, values), dim=1)

    def _normed(self, qkv: Tensor, query_norm: Tensor, key_norm: Tensor) -> Tensor:
        sizes = [self.spec.query_size, self.spec.kv_size, self.spec.kv_size]
        queries, keys, values = torch.split(qkv, sizes, dim=1)
        if self._rank_sum is None:
            queries = rms_norm(queries, query_norm, self._eps)
            keys = rms_norm(keys, key_norm, self._eps)
        else:  # all ranks have equally many, and a head of keys is on as many as any other
            means = mean_square(queries), mean_square(keys)
            total = self._rank_sum(torch.cat((*means, torch.ones_like(means[0])), dim=1))
            of_queries, of_keys, ranks = total.tensor_split(3, dim=1)
            queries = norm_by(queries, of_queries / ranks, query_norm, self._eps)
            keys = norm_by(keys, of_keys / ranks, key_norm, self._eps)
        return torch.cat((queries, keys, values), dim=1)


class ConvMixer:
    """See ``recurrent.ShortConv``. Weights are those of ``PREFIX.conv``."""

    def __init__(self, spec: ShortConv, prefix: str, hidden: int, loader: MapLoader) -> None:
        name, channels, source = f"{prefix}.conv", spec.channels, loader.source
        self._in = loader.linear([f"{name}.in_proj"], [3 * channels], hidden, bias=spec.bias)
        self._out = loader.linear([f"{name}.out_proj"], [hidden], channels, bias=spec.bias)
        taps = source.tensor(f"{name}.conv.weight", (channels, 1, spec.taps), wide=True)
        bias = source.tensor(f"{name}.conv.bias", (channels,), wide=True) if spec.bias else None
        self._weights = ConvWeights(taps=taps[:, 0].T.contiguous(), bias=bias)

    @property
    def step_bytes(self) -> int:
        return self._in.num_bytes + self._out.num_bytes

    def __call__(self, x: Tensor, states: StateStep, layer: int) -> Tensor:
        """[T, hidden] -> [T, hidden]; leaves what the next step needs in the sequences' rings.

        Args:
            x: the step's tokens.
            states: of the step's sequences.
            layer: counted among the recurrent ones.
        """
        before, after, values = self._in(x).chunk(3, dim=-1)
        inputs = before * values
        mixed = short_conv(inputs, self._weights, states.windows(layer), states.rows)
        states.keep(layer, inputs)
        return self._out(after * mixed)


def _load_qkv(
    spec: Attention, name: str, hidden: int, loader: MapLoader, order: Tensor | None
) -> Linear:
    outputs = [_query_rows(spec), *spec.made_sizes]
    names = [f"{name}.{part}_proj" for part in "qkv"[: len(outputs)]]
    source = loader.source
    weights = matrices_of(source, names, outputs, hidden)
    bias = biases_of(source, names, outputs) if spec.bias else None
    if spec.gated and not spec.gate_apart:
        chosen = _rows_of(spec, 0)
        weights[0] = _rows(weights[0], chosen)
        if bias is not None:
            bias = torch.cat((bias[: outputs[0]][chosen], bias[outputs[0] :]))
    if order is not None:
        weights[:2] = [_rows_reordered(each, order) for each in weights[:2]]
        if bias is not None:
            turned = spec.query_size + sum(spec.made_sizes[:1])
            bias[:turned] = _reordered(bias[:turned], order)
    made = loader.made(weights, bias)
    return loader.adapted(made, names, outputs, hidden, _kept_rows(spec, outputs, order))


def _kept_rows(
    spec: Attention, outputs: Sequence[int], order: Tensor | None
) -> list[Tensor | None]:
    """Which rows of the maps to queries, keys and values are kept, where not all in their order."""
    kept: list[Tensor | None] = [None] * len(outputs)
    if spec.gated and not spec.gate_apart:
        kept[0] = _rows_of(spec, 0)
    if order is not None:
        for place, size in enumerate(outputs[:2]):
            rows = torch.arange(size) if kept[place] is None else kept[place]
            assert rows is not None
            kept[place] = _reordered(rows, order)
    return kept


def _load_gate(spec: Attention, name: str, hidden: int, loader: MapLoader) -> Linear:
    """Load the gate of the heads' results, as a rule from the rows behind those of each head's
    queries."""
    if spec.gate_apart:
        return loader.linear([f"{name}.gate_proj"], [spec.query_size], hidden, bias=False)
    source, names, outputs = loader.source, [f"{name}.q_proj"], [_query_rows(spec)]
    (weight,), chosen = matrices_of(source, names, outputs, hidden), _rows_of(spec, 1)
    bias = biases_of(source, names, outputs)[chosen] if spec.bias else None
    made = loader.made([_rows(weight, chosen)], bias)
    return loader.adapted(made, names, outputs, hidden, [chosen])


def _query_rows(spec: Attention) -> int:
    return spec.query_size * (2 if spec.gated and not spec.gate_apart else 1)


def _rows_of(spec: Attention, half: int) -> Tensor:
    """Where the queries (0) or the gates (1) of all heads are, which take turns head by head."""
    return torch.arange(_query_rows(spec)).view(spec.heads, 2, spec.head_dim)[:, half].flatten()


def _rows(weight: Matrix, chosen: Tensor) -> Matrix:
    return weight[chosen] if isinstance(weight, Tensor) else weight.rows(chosen)


def _rows_reordered(weight: Matrix, order: Tensor) -> Matrix:
    outputs = len(weight) if isinstance(weight, Tensor) else weight.outputs
    return _rows(weight, _reordered(torch.arange(outputs), order))


def _head_norms(spec: Attention, name: str, source: WeightSource, order: Tensor | None) -> Tensor:
    shape = (spec.head_dim,)
    query = _reordered(source.tensor(f"{name}.q_norm.weight", shape), order)
    if spec.shares is not None:
        return query.expand(spec.heads, -1).contiguous()
    key = _reordered(source.tensor(f"{name}.k_norm.weight", shape), order)
    return torch.cat((query.expand(spec.heads, -1), key.expand(spec.kv_heads, -1)))


def _order_of_dimensions(spec: Attention) -> Tensor | None:
    """Which dimension of a head of the checkpoint lies at each place; None: as they are.

    8 dimensions of which 4 are rotated, in pairs 0-2 and 1-3: 0 1 4 5 | 2 3 6 7, in which a pair's
    two are 4 apart like those of a head that is rotated whole. Of pairs of neighbours, 0-1 and 2-3:
    0 2 4 5 | 1 3 6 7.
    """
    turned = spec.turned_part
    if turned is None and not spec.interleaved:
        return None
    turned = spec.rotated if turned is None else turned
    half, rest = turned // 2, (spec.head_dim - turned) // 2
    dims = torch.arange(spec.head_dim)
    if spec.interleaved:
        dims[:turned] = dims[:turned].view(-1, 2).T.flatten()
    first, second, unturned, last = torch.split(dims, [half, half, rest, rest])
    return torch.cat((first, unturned, second, last))


def _reordered(rows: Tensor, order: Tensor | None) -> Tensor:
    """Rows [heads * head_dim, ...] with each head's dimensions in ``order``."""
    if order is None:
        return rows
    by_head = rows.view(-1, len(order), *rows.shape[1:])
    return by_head[:, order].reshape(rows.shape)
