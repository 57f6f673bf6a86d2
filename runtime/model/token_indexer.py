"""Which tokens the queries of a step attend to, layer by layer (``runtime.model.latent.Indexer``).

The Hadamard rotation of index queries and keys in DeepSeek's own code changes no product of theirs,
and its FP8 is a matter of speed: both are left out, as ``transformers`` does. The weights of heads
are made as the logits of a router are, in float32 at least, by torch.
"""

import torch
from torch import Tensor
from torch.nn import functional

from kernels.chosen_attention import part_rows
from kernels.kv_write import write_rows
from kernels.paged_layout import PagedLayout
from kernels.rope import apply_rope
from kernels.token_choice import IndexQueries, chosen_slots
from runtime.model.latent import Indexer, Latent
from runtime.model.layers import MapLoader, Matrix, matrices_of
from runtime.model.rotary import Rotation
from runtime.model.windowed_step import WindowedStep


class StepChoice:
    """The choice that stands in a step: of the last layer that made one."""

    def __init__(self, layout: PagedLayout, indexer: Indexer, block_size: int) -> None:
        self.rows = part_rows(layout, indexer.most_chosen, block_size)
        """Which rows choose; None: none does."""
        self.top_k = indexer.top_k
        self.counts: Tensor | None = None
        """[choosing rows] int64: how many of a row's slots are meant; None: all."""
        self.windows: WindowedStep | None = None
        """The step's tokens in pools, where they are chosen so."""
        if indexer.pool > 1:
            self.windows = WindowedStep(layout, block_size, {})
        self._slots: Tensor | None = None

    @property
    def slots(self) -> Tensor:
        """[choosing rows, most_chosen] int32: see ``kernels.token_choice``; as many numbers as the
        step's tokens have choices."""
        assert self._slots is not None, "the first layer chooses"
        return self._slots

    @slots.setter
    def slots(self, slots: Tensor) -> None:
        self._slots = slots


class TokenIndexer:
    """A layer's scores. Weights are those of ``NAME.indexer``."""

    def __init__(
        self, spec: Latent, indexer: Indexer, name: str, hidden: int, loader: MapLoader
    ) -> None:
        assert spec.query_rank is not None
        source, prefix = loader.source, f"{name}.indexer"
        self._spec, self._heads = indexer, indexer.heads
        first = indexer.dim - spec.rotary_dim if indexer.turns_last else 0
        self._parts = [first, spec.rotary_dim, indexer.dim - first - spec.rotary_dim]
        """Numbers before those that are rotated, these, and those behind them."""
        order = _order(indexer, spec.rotary_dim)
        size = indexer.heads * indexer.dim
        (queries,) = matrices_of(source, [f"{prefix}.wq_b"], [size], spec.query_rank)
        starts = torch.arange(indexer.heads)[:, None] * indexer.dim
        self._queries = loader.made([_rows(queries, (starts + order).flatten())], None)
        (keys,) = matrices_of(source, [f"{prefix}.wk"], [indexer.dim], hidden)
        self._keys = loader.made([_rows(keys, order)], None)
        norm = f"{prefix}.k_norm"
        self._norm = source.tensor(f"{norm}.weight", (indexer.dim,))[order]
        self._norm_bias = source.tensor(f"{norm}.bias", (indexer.dim,))[order]
        weights = f"{prefix}.weights_proj.weight"
        self._weights = source.tensor(weights, (indexer.heads, hidden), wide=True)
        self._scale = (indexer.heads * indexer.dim) ** -0.5

    @property
    def step_bytes(self) -> int:
        """Bytes of weights that a step reads."""
        return self._queries.num_bytes + self._keys.num_bytes + self._weights.nbytes

    def write_keys(
        self,
        x: Tensor,
        rotation: Rotation,
        keys: Tensor,
        slots: Tensor,
        _: StepChoice | None = None,
    ) -> None:
        """Store each token's index key.

        Args:
            x: [T, hidden], the layer's input.
            rotation: of the tokens' positions.
            keys: [blocks, 1, block_size, dim], the part of the pool's rows that they are.
            slots: [T] int64, where each token's goes.
        """
        made = self._keys(x)
        made = functional.layer_norm(
            made, (self._spec.dim,), self._norm, self._norm_bias, self._spec.eps
        )
        write_rows(self._turned(made[:, None], rotation.cos, rotation.sin), keys, slots)

    def choose(
        self, x: Tensor, latents: Tensor, rotation: Rotation, keys: Tensor, choice: StepChoice
    ) -> None:
        """Have the step's rows choose, where there are some that do.

        Args:
            x: [T, hidden], the layer's input.
            latents: [T, query_rank], normed, that queries are made of.
            rotation: of the tokens' positions.
            keys: see ``write_keys``; those of the step are there.
            choice: the step's, changed.
        """
        rows = choice.rows
        if rows is None:
            return
        own = rows.choosing
        queries = self._queries(latents[own]).view(-1, self._heads, self._spec.dim)
        weights = functional.linear(x[own].to(self._weights.dtype), self._weights) * self._scale
        asked = IndexQueries(
            queries=self._turned(queries, rotation.cos[own], rotation.sin[own]), weights=weights
        )
        choice.slots = chosen_slots(asked, keys, rows.spans, choice.top_k)

    def _turned(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """[T, heads, dim] with its own numbers rotated."""
        before, turning, behind = torch.split(x, self._parts, dim=-1)
        return torch.cat((before, apply_rope(turning, cos, sin), behind), dim=-1)


def _order(indexer: Indexer, rotary_dim: int) -> Tensor:
    """Which number of an index key of the checkpoint lies at each place, where the two of a rotated
    pair are half of the rotated ones apart."""
    places = torch.arange(indexer.dim)
    if indexer.interleaved:
        first = indexer.dim - rotary_dim if indexer.turns_last else 0
        turned = slice(first, first + rotary_dim)
        places[turned] = places[turned].view(-1, 2).T.flatten()
    return places


def _rows(weight: Matrix, chosen: Tensor) -> Matrix:
    return weight[chosen] if isinstance(weight, Tensor) else weight.rows(chosen)
