"""Which pools of tokens the queries of a step attend to, layer by layer, where neighbouring tokens
are chosen together (``runtime.model.latent.Indexer``).

A pool's index key is a mixture of its tokens', number by number, by a softmax over gates that the
tokens have. Keys and gates lie in the tokens' rows until the pool is full, and the pool's key takes
the place of its last token's, which nothing asks for again.
"""

import torch
from torch import Tensor
from torch.nn import functional

from kernels.entry_choice import chosen_numbers
from kernels.kv_write import write_rows
from kernels.token_choice import IndexQueries
from kernels.window_entries import window_entries
from runtime.model.latent import Indexer, Latent
from runtime.model.layers import MapLoader, matrices_of
from runtime.model.rotary import Rotation
from runtime.model.token_indexer import StepChoice


class PoolIndexer:
    """A layer's scores of pools. Weights are those of ``NAME.indexer``."""

    def __init__(
        self, spec: Latent, indexer: Indexer, name: str, hidden: int, loader: MapLoader
    ) -> None:
        assert spec.query_rank is not None
        source, prefix, dim = loader.source, f"{name}.indexer", indexer.dim
        self._indexer = indexer
        size = indexer.heads * dim
        self._queries = loader.linear([f"{prefix}.wq_b"], [size], spec.query_rank, bias=False)
        (keys,) = matrices_of(source, [f"{prefix}.wk"], [dim], hidden)
        gates = source.tensor(f"{prefix}.pool_gate", (dim, hidden))
        self._keys = loader.made([keys, gates], None)
        self._norm = source.tensor(f"{prefix}.k_norm.weight", (dim,))
        self._norm_bias = source.tensor(f"{prefix}.k_norm.bias", (dim,))
        self._bias = source.tensor(f"{prefix}.pool_bias", (indexer.pool, dim), wide=True)
        weights = f"{prefix}.weights_proj.weight"
        self._weights = source.tensor(weights, (indexer.heads, hidden), wide=True)
        self._scale = size**-0.5

    @property
    def step_bytes(self) -> int:
        """Bytes of weights that a step reads."""
        return self._queries.num_bytes + self._keys.num_bytes + self._weights.nbytes

    def write_keys(
        self, x: Tensor, _: Rotation, keys: Tensor, slots: Tensor, choice: StepChoice
    ) -> None:
        """Store each token's index key and gates, and the keys of pools that are full.

        Args:
            x: [T, hidden], the layer's input.
            keys: [blocks, 1, block_size, 2 * dim], the part of the pool's rows that they are.
            slots: [T] int64, where each token's go.
            choice: of the step.
        """
        assert choice.windows is not None
        dim, pool = self._indexer.dim, self._indexer.pool
        made, gates = torch.split(self._keys(x), [dim, dim], dim=1)
        made = functional.layer_norm(made, (dim,), self._norm, self._norm_bias, self._indexer.eps)
        write_rows(torch.cat((made, gates), dim=1)[:, None], keys, slots)
        windows = choice.windows.windows(pool)
        if windows is None:
            return
        block_size = keys.shape[2]
        places = windows.slots // block_size, windows.slots % block_size
        own = keys[places[0], 0, places[1]]
        entries = window_entries(own[..., :dim], own[..., dim:], self._bias)
        keys[places[0][:, -1], 0, places[1][:, -1], :dim] = entries

    def choose(
        self, x: Tensor, latents: Tensor, _: Rotation, keys: Tensor, choice: StepChoice
    ) -> None:
        """Have the step's rows choose, where there are some that do.

        Args:
            x: [T, hidden], the layer's input.
            latents: [T, query_rank], normed, that queries are made of.
            keys: see ``write_keys``; those of the step are there.
            choice: the step's, changed.
        """
        assert choice.windows is not None
        pool, dim = self._indexer.pool, self._indexer.dim
        count = choice.top_k // pool
        choosing = choice.windows.choosing(pool, count)
        if choosing is None:
            return
        own = choosing.rows
        weights = functional.linear(x[own].to(self._weights.dtype), self._weights) * self._scale
        queries = self._queries(latents[own]).view(-1, self._indexer.heads, dim)
        asked = IndexQueries(queries=queries, weights=weights)
        chosen = chosen_numbers(asked, keys[..., :dim], choosing.spans, count)
        choice.slots, choice.counts = choice.windows.tokens_of(choosing, chosen, pool)
