"""Which blocks of their contexts the queries of a step read (``runtime.model.chosen_blocks``)."""

import torch
from torch import Tensor

from kernels.block_choice import chosen_blocks
from kernels.chosen_attention import ChosenRows
from kernels.kv_write import write_rows
from kernels.norm import rms_norm
from kernels.rope import apply_rope
from runtime.model.chosen_blocks import BlockChoice
from runtime.model.layers import MapLoader
from runtime.model.rotary import Rotation


class BlockIndexer:
    """A layer's index queries and keys, each normed and its first numbers rotated. Weights are
    those of ``NAME.indexer``."""

    def __init__(
        self,
        spec: BlockChoice,
        name: str,
        sizes: tuple[int, int, int],
        loader: MapLoader,
        *,
        eps: float,
    ) -> None:
        """``sizes``: heads of keys, numbers that are rotated, the layer's hidden size."""
        heads, self._rotated, hidden = sizes
        self._spec, self._heads, self._eps = spec, heads, eps
        prefix = f"{name}.indexer"
        self._queries = loader.linear([f"{prefix}.q_proj"], [heads * spec.dim], hidden, bias=False)
        self._keys = loader.linear([f"{prefix}.k_proj"], [spec.dim], hidden, bias=False)
        self._query_norm = loader.source.tensor(f"{prefix}.q_norm.weight", (spec.dim,))
        self._key_norm = loader.source.tensor(f"{prefix}.k_norm.weight", (spec.dim,))

    @property
    def step_bytes(self) -> int:
        """Bytes of weights that a step reads."""
        return self._queries.num_bytes + self._keys.num_bytes

    def write_keys(self, x: Tensor, rotation: Rotation, keys: Tensor, slots: Tensor) -> None:
        """Store each token's index key.

        Args:
            x: [T, hidden], the layer's input.
            rotation: of the tokens' positions.
            keys: [blocks, 1, block_size, dim].
            slots: [T] int64, where each token's goes.
        """
        made = rms_norm(self._keys(x), self._key_norm, self._eps)
        write_rows(self._turned(made[:, None], rotation.cos, rotation.sin), keys, slots)

    def choose(self, x: Tensor, rotation: Rotation, keys: Tensor, rows: ChosenRows) -> Tensor:
        """[choosing rows, heads, count] int32, as ``kernels.block_choice`` has it.

        Args:
            x: [T, hidden], the layer's input.
            rotation: of the tokens' positions.
            keys: see ``write_keys``; those of the step are there.
            rows: which of them choose.
        """
        spec, own = self._spec, rows.choosing
        made = self._queries(x[own]).view(-1, self._heads, spec.dim)
        asked = rms_norm(made, self._query_norm, self._eps)
        return chosen_blocks(
            self._turned(asked, rotation.cos[own], rotation.sin[own]),
            keys,
            rows.spans,
            size=spec.size,
            count=spec.count,
            local=spec.local,
        )

    def _turned(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """[T, heads, dim] with the first numbers rotated; the tables begin with their angles."""
        pairs = self._rotated // 2
        turning = apply_rope(x[..., : self._rotated], cos[:, :pairs], sin[:, :pairs])
        return torch.cat((turning, x[..., self._rotated :]), dim=-1)
