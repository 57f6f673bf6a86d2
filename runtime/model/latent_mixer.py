"""Multi-head latent attention over the paged pool (``runtime.model.latent``).

The matrices of the heads' keys and values, ``kv_b_proj``, are kept in the model's dtype whatever
the checkpoint or ``--quantization`` has for others: a product with a part of their outputs and one
with a part of their inputs is made.
"""

import torch
from torch import Tensor

from kernels.chosen_attention import ChosenRows, chosen_attention
from kernels.codes import widen_codes
from kernels.latent_attention import LatentHeads, latent_attention
from kernels.latent_rows import latent_rows
from kernels.norm import rms_norm
from kernels.paged_layout import PagedLayout
from kernels.per_head import HeadMaps
from runtime.model.latent import Latent
from runtime.model.layers import Linear, MapLoader, Matrix, biases_of, matrices_of
from runtime.model.pool_indexer import PoolIndexer
from runtime.model.rotary import Rotation
from runtime.model.token_indexer import StepChoice, TokenIndexer


class LatentMixer:
    """See ``Latent``. Weights are those of ``PREFIX.self_attn``."""

    def __init__(self, spec: Latent, prefix: str, hidden: int, loader: MapLoader) -> None:
        self.spec = spec
        self._scale = spec.query_dim**-0.5 if spec.scale is None else spec.scale
        name, source = f"{prefix}.self_attn", loader.source
        self._first = _load_first(spec, name, hidden, loader)
        """To the queries, or their latent, and the row."""
        self._latent_norm = source.tensor(f"{name}.kv_a_layernorm.weight", (spec.rank,))
        self._queries: Linear | None = None
        if spec.query_rank is not None:
            self._query_norm = source.tensor(f"{name}.q_a_layernorm.weight", (spec.query_rank,))
            (weight,) = matrices_of(source, [f"{name}.q_b_proj"], [_queries(spec)], spec.query_rank)
            made = loader.made([_in_halves(spec, weight)], None)
            names, orders = [f"{name}.q_b_proj"], [_order_of_queries(spec)]
            sizes = [_queries(spec)]
            self._queries = loader.adapted(made, names, sizes, spec.query_rank, orders)
        self._heads = _load_heads(spec, name, loader, self._latent_norm)
        self.output = loader.linear(
            [f"{name}.o_proj"], [hidden], spec.heads * spec.value_dim, bias=spec.bias
        )
        self._gate: Linear | None = None
        if spec.gated is not None:
            gates = "g_proj" if spec.gated == "heads" else "gate_proj"
            self._gate = loader.linear([f"{name}.{gates}"], [spec.num_gates], hidden, bias=False)
        self._sinks: Tensor | None = None
        if spec.sinks:
            self._sinks = source.tensor(f"{name}.sinks", (spec.heads,), wide=True)
        self._indexer: TokenIndexer | PoolIndexer | None = None
        if spec.indexer is not None and not spec.indexer.shared:
            kind = TokenIndexer if spec.indexer.pool == 1 else PoolIndexer
            self._indexer = kind(spec, spec.indexer, name, hidden, loader.without_adapters)

    @property
    def waits_for_the_host(self) -> bool:
        """Whether a step asks the host how its rows are to be parted."""
        return self.spec.indexer is not None

    @property
    def step_bytes(self) -> int:
        maps = [self._first, self._heads.keys, self._heads.values, self.output]
        queries = 0 if self._queries is None else self._queries.num_bytes
        queries += 0 if self._gate is None else self._gate.num_bytes
        if self._indexer is not None:
            queries += self._indexer.step_bytes
        return queries + sum(each.num_bytes for each in maps)

    def __call__(
        self,
        x: Tensor,
        *,
        rotation: Rotation,
        blocks: tuple[Tensor, Tensor],
        slots: Tensor,
        layout: PagedLayout,
        choice: StepChoice | None = None,
    ) -> Tensor:
        """[T, hidden] -> [T, hidden]; writes the tokens' rows.

        Args:
            x: the step's tokens.
            rotation: of their positions.
            blocks: the layer's rows, twice: [blocks, 1, block_size, head_dim]; with sparse
                attention index keys are their last numbers.
            slots: [T] where each token's go.
            layout: the step's sequences.
            choice: of the step, where attention is sparse; changed by a layer that has scores.
        """
        spec = self.spec
        assert (choice is None) == (spec.indexer is None)
        first = self._first(x)
        made, rows = torch.split(first, [first.shape[1] - spec.row_dim, spec.row_dim], dim=1)
        latents = blocks[0] if spec.indexer is None else blocks[0][..., : spec.row_dim]
        if self._queries is not None:
            made = rms_norm(made.contiguous(), self._query_norm, spec.eps)
            if self._indexer is not None and choice is not None:
                keys = blocks[0][..., spec.row_dim :]
                self._indexer.write_keys(x, rotation, keys, slots, choice)
                self._indexer.choose(x, made, rotation, keys, choice)
            made = self._queries(made)
        by_head = made.view(len(x), spec.heads, spec.query_dim)
        if rotation.query_scale is not None:
            by_head = by_head * rotation.query_scale[:, None, None]
        turned = latent_rows(
            by_head,
            rows,
            norm=(self._latent_norm, spec.eps),
            rotation=(rotation.cos, rotation.sin),
            blocks=latents,
            slots=slots,
        )
        queries = by_head[:, :, : spec.plain_dim], turned
        if choice is None or choice.rows is None:
            mixed = latent_attention(
                queries, self._heads, latents, layout, scale=self._scale, sinks=self._sinks
            )
        else:
            mixed = self._chosen(queries, latents, choice, choice.rows)
        if self._gate is not None:
            mixed = mixed * self._gate(x).sigmoid().view(len(x), spec.heads, -1)
        return self.output(mixed.flatten(1))

    def _chosen(
        self,
        queries: tuple[Tensor, Tensor],
        latents: Tensor,
        choice: StepChoice,
        rows: ChosenRows,
    ) -> Tensor:
        """[T, heads, value_dim], where some rows see what they have chosen."""
        spec = self.spec
        mixed = queries[0].new_zeros(len(queries[0]), spec.heads, spec.value_dim)
        own = rows.choosing
        mixed[own] = chosen_attention(
            (queries[0][own], queries[1][own]),
            self._heads,
            latents,
            choice.slots,
            scale=self._scale,
            counts=choice.counts,
            sinks=self._sinks,
        )
        if rows.seen is not None:
            own = rows.all_seen
            mixed[own] = latent_attention(
                (queries[0][own], queries[1][own]),
                self._heads,
                latents,
                rows.seen,
                scale=self._scale,
                sinks=self._sinks,
            )
        return mixed


def _load_first(spec: Latent, name: str, hidden: int, loader: MapLoader) -> Linear:
    of_queries = "q_proj" if spec.query_rank is None else "q_a_proj"
    names = [f"{name}.{of_queries}", f"{name}.kv_a_proj_with_mqa"]
    outputs = [spec.query_rank or _queries(spec), spec.row_dim]
    source = loader.source
    queries, rows = matrices_of(source, names, outputs, hidden)
    order = torch.cat((torch.arange(spec.rank), spec.rank + _halves(spec)))
    rows = _rows(rows, order)
    if spec.query_rank is None:
        queries = _in_halves(spec, queries)
    bias: Tensor | None = None
    if spec.bias:
        of_rows = biases_of(source, names[1:], outputs[1:])[order]
        of_queries_too = spec.query_rank is not None
        made = biases_of(source, names[:1], outputs[:1]) if of_queries_too else None
        bias = torch.cat((of_rows.new_zeros(outputs[0]) if made is None else made, of_rows))
    orders = _order_of_queries(spec) if spec.query_rank is None else None, order
    return loader.adapted(loader.made([queries, rows], bias), names, outputs, hidden, orders)


def _load_heads(spec: Latent, name: str, loader: MapLoader, like: Tensor) -> LatentHeads:
    """The two halves of ``kv_b_proj``, for rows of the dtype of ``like``."""
    outputs = spec.heads * (spec.plain_dim + spec.value_dim)
    (weight,) = matrices_of(loader.source, [f"{name}.kv_b_proj"], [outputs], spec.rank)
    if not isinstance(weight, Tensor):
        weight = widen_codes(weight, torch.float32)
    by_head = weight.to(like.dtype).view(spec.heads, -1, spec.rank)
    keys, values = torch.split(by_head, [spec.plain_dim, spec.value_dim], dim=1)
    return LatentHeads(keys=HeadMaps(keys), values=HeadMaps(values.transpose(1, 2)))


def _queries(spec: Latent) -> int:
    return spec.heads * spec.query_dim


def _halves(spec: Latent) -> Tensor:
    """Which of the rotated dimensions of the checkpoint lies at each place, where the two of a pair
    are half of them apart: of 6 that are interleaved 0 2 4 | 1 3 5."""
    places = torch.arange(spec.rotary_dim)
    return places.view(-1, 2).T.flatten() if spec.interleaved else places


def _in_halves(spec: Latent, weight: Matrix) -> Matrix:
    """The same of each head's queries."""
    return _rows(weight, _order_of_queries(spec))


def _order_of_queries(spec: Latent) -> Tensor:
    each = torch.cat((torch.arange(spec.plain_dim), spec.plain_dim + _halves(spec)))
    starts = torch.arange(spec.heads) * spec.query_dim
    return (starts[:, None] + each).flatten()


def _rows(weight: Matrix, chosen: Tensor) -> Matrix:
    return weight[chosen] if isinstance(weight, Tensor) else weight.rows(chosen)
