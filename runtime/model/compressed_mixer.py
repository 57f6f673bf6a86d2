"""Attention over a window and compressed entries, over the paged pool
(``runtime.model.compressed``).

The first of the two output projections, a matrix for each group of heads, is kept in the model's
dtype whatever the checkpoint or ``--quantization`` has for others: it multiplies parts of its
input.
"""

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional

from kernels.attention import paged_attention
from kernels.codes import widen_codes
from kernels.entry_attention import SeenEntries, entry_attention
from kernels.entry_choice import chosen_entries
from kernels.kv_write import write_rows
from kernels.norm import rms_norm
from kernels.paged_layout import PagedLayout
from kernels.per_head import HeadMaps
from kernels.rope import turn_tail
from kernels.token_choice import IndexQueries
from runtime.model.compressed import Compressed
from runtime.model.compressor import Compressor
from runtime.model.latent import Indexer
from runtime.model.layers import MapLoader, matrices_of
from runtime.model.rotary import Rotation
from runtime.model.windowed_step import Choosing, WindowedStep


class CompressedMixer:
    """See ``Compressed``. Weights are those of ``PREFIX.self_attn``."""

    def __init__(
        self, spec: Compressed, prefix: str, hidden: int, loader: MapLoader, *, eps: float
    ) -> None:
        self.spec = spec
        self._eps = eps
        name, source = f"{prefix}.self_attn", loader.source
        self._compressors = _load_compressors(spec, name, loader, eps)
        maps, outputs = [f"{name}.q_a_proj", f"{name}.kv_proj"], [spec.query_rank, spec.dim]
        for each in self._compressors:
            maps, outputs = [*maps, *each.maps], [*outputs, *each.outputs]
        self._first = loader.linear(maps, outputs, hidden, bias=False)
        """To the queries' latent and the row."""
        self._query_norm = source.tensor(f"{name}.q_a_norm.weight", (spec.query_rank,))
        self._queries = loader.linear(
            [f"{name}.q_b_proj"], [spec.query_size], spec.query_rank, bias=False
        )
        self._norm = source.tensor(f"{name}.kv_norm.weight", (spec.dim,))
        self._sinks = source.tensor(f"{name}.sinks", (spec.heads,), wide=True)
        self._groups = _load_groups(spec, name, loader, self._norm)
        size = spec.output_groups * spec.output_rank
        self._output = loader.linear([f"{name}.o_b_proj"], [hidden], size, bias=False)
        self._indexer: _EntryIndexer | None = None
        if spec.indexer is not None:
            at = f"{name}.compressor.indexer"
            own = loader.without_adapters
            self._indexer = _EntryIndexer(spec, spec.indexer, at, hidden, own)

    @property
    def step_bytes(self) -> int:
        maps = [self._first, self._queries, self._groups, self._output]
        own = 0 if self._indexer is None else self._indexer.step_bytes
        return own + sum(each.num_bytes for each in maps)

    def __call__(
        self,
        x: Tensor,
        *,
        rotation: Rotation,
        blocks: Tensor,
        entries: Tensor | None,
        slots: Tensor,
        layout: PagedLayout,
        step: WindowedStep,
    ) -> Tensor:
        """[T, hidden] -> [T, hidden]; writes the tokens' rows and the entries of windows that are
        full with them.

        Args:
            x: the step's tokens.
            rotation: of their positions.
            blocks: the layer's rows, [blocks, 1, block_size, head_dim], contiguous.
            entries: its entries with their index keys, [blocks, 1, places, size], contiguous; None
                where it makes none. Their blocks may be others than those of rows.
            slots: [T] where each token's row goes.
            layout: the step's sequences, in blocks of rows.
            step: what else is known of them.
        """
        spec = self.spec
        latents, own, raw = torch.split(
            self._first(x), [spec.query_rank, spec.dim, spec.head_dim - spec.dim], dim=1
        )
        own = rms_norm(own.contiguous(), self._norm, self._eps)[:, None]
        own = turn_tail(own, rotation.cos, rotation.sin)
        write_rows(torch.cat((own, raw[:, None]), dim=2), blocks, slots)
        parts: tuple[Tensor, ...] = ()
        if entries is not None:
            parts = torch.split(entries, list(spec.entry_dims), dim=3)
            self._fill(blocks, parts, step)
        latents = rms_norm(latents.contiguous(), self._query_norm, self._eps)
        queries = self._queries(latents).view(len(x), spec.heads, spec.dim)
        queries = turn_tail(rms_norm(queries, None, self._eps), rotation.cos, rotation.sin)
        if not parts:
            mixed = paged_attention(
                queries,
                blocks,
                blocks,
                layout,
                scale=spec.dim**-0.5,
                window=spec.near,
                sinks=self._sinks,
            )
        else:
            mixed = entry_attention(
                queries,
                blocks,
                parts[0],
                step.near(spec.near),
                self._seen(x, latents, rotation, parts[-1], step),
                scale=spec.dim**-0.5,
                sinks=self._sinks,
            )
        # values are rotated as keys are: what is mixed of them is turned back by the query's angle
        mixed = turn_tail(mixed, rotation.cos, -rotation.sin)
        return self._output(self._groups(self._grouped(mixed)).flatten(1))

    def _fill(self, blocks: Tensor, parts: Sequence[Tensor], step: WindowedStep) -> None:
        """Make the entries of windows that are full with this step, and their index keys."""
        assert self.spec.ratio is not None
        windows = step.windows(self.spec.ratio)
        if windows is None:
            return
        rows = blocks.view(-1, self.spec.head_dim)
        for each, part in zip(self._compressors, parts, strict=True):
            each.fill(rows, part.flatten(0, 2), windows)

    def _grouped(self, mixed: Tensor) -> Tensor:
        return mixed.reshape(len(mixed), self.spec.output_groups, -1)

    def _seen(
        self,
        x: Tensor,
        latents: Tensor,
        rotation: Rotation,
        keys: Tensor,
        step: WindowedStep,
    ) -> SeenEntries:
        """The entries that each token's query sees; ``keys``: their index keys, where it chooses
        among them."""
        ratio = self.spec.ratio
        assert ratio is not None
        lists = step.entries(ratio)
        choosing = None
        if self._indexer is not None:
            choosing = step.choosing(ratio, self._indexer.top_k)
        if self._indexer is None or choosing is None:
            return SeenEntries(slots=lists.slots, lists=lists.lists, counts=lists.seen)
        chosen = self._indexer.chosen(x, latents, rotation, keys, choosing)
        top_k = self._indexer.top_k
        slots = lists.slots[:, :top_k][lists.lists]
        slots[choosing.rows] = chosen
        return SeenEntries(
            slots=slots,
            lists=torch.arange(len(x), device=x.device),
            counts=lists.seen.clamp(max=top_k),
        )


class _EntryIndexer:
    """Which entries queries attend to. Weights are those of ``NAME``; those of heads' weights are
    kept and multiplied in float32 at least, as a router's are."""

    def __init__(
        self, spec: Compressed, indexer: Indexer, name: str, hidden: int, loader: MapLoader
    ) -> None:
        self.top_k, self.dim, self._heads = indexer.top_k, indexer.dim, indexer.heads
        size = indexer.heads * indexer.dim
        self._queries = loader.linear([f"{name}.q_b_proj"], [size], spec.query_rank, bias=False)
        weights = f"{name}.scorer.weights_proj.weight"
        self._weights = loader.source.tensor(weights, (indexer.heads, hidden), wide=True)

    @property
    def step_bytes(self) -> int:
        return self._queries.num_bytes + self._weights.nbytes

    def chosen(
        self, x: Tensor, latents: Tensor, rotation: Rotation, keys: Tensor, choosing: Choosing
    ) -> Tensor:
        """[choosing rows, top_k] int64: places of entries.

        Args:
            x: [T, hidden], the layer's input.
            latents: [T, query_rank], normed, that queries are made of.
            rotation: of the tokens' positions.
            keys: [blocks, 1, places, dim], index keys in the pool, parts of longer rows.
            choosing: which tokens' queries choose.
        """
        own = choosing.rows
        queries = self._queries(latents[own]).view(-1, self._heads, self.dim)
        weights = functional.linear(x[own].to(self._weights.dtype), self._weights)
        asked = IndexQueries(
            queries=turn_tail(queries, rotation.cos[own], rotation.sin[own]),
            weights=weights * (self._heads * self.dim) ** -0.5,
        )
        return chosen_entries(asked, keys, choosing.spans, self.top_k)


def _load_compressors(
    spec: Compressed, name: str, loader: MapLoader, eps: float
) -> list[Compressor]:
    """Those of entries and of index keys, in the order in which rows have their numbers."""
    if spec.ratio is None:
        return []
    found, begins = [], spec.dim
    names = (f"{name}.compressor", f"{name}.compressor.indexer")
    for at, size, numbers in zip(names, spec.entry_dims, spec.raw_dims, strict=False):
        found.append(
            Compressor(
                at,
                loader,
                size=size,
                ratio=spec.ratio,
                overlaps=spec.indexer is not None,
                begins=begins,
                eps=eps,
            )
        )
        begins += numbers
    return found


def _load_groups(spec: Compressed, name: str, loader: MapLoader, like: Tensor) -> HeadMaps:
    """The first output projection, for rows of the dtype of ``like``."""
    inputs = spec.query_size // spec.output_groups
    outputs = spec.output_groups * spec.output_rank
    (weight,) = matrices_of(loader.source, [f"{name}.o_a_proj"], [outputs], inputs)
    if not isinstance(weight, Tensor):
        weight = widen_codes(weight, torch.float32)
    by_group = weight.to(like.dtype).view(spec.output_groups, spec.output_rank, inputs)
    return HeadMaps(by_group.transpose(1, 2))
