"""The tensors that hold keys and values, in blocks of ``block_size`` tokens.

Which block belongs to whom is ``radix_cache``'s business; here a block is an index. The
layout keeps a block of a layer in one piece and, within it, each head's tokens together:
[kv_heads, block_size, head_dim].

Always true: blocks are never moved or cleared; what was not written is never read.
"""

import torch
from torch import Tensor

from runtime.models.config import ModelConfig


class KVPool:
    """Keys and values of ``num_blocks`` blocks for every layer.

    Memory is not touched before it is written, so an ample pool costs address space only.
    """

    def __init__(
        self,
        config: ModelConfig,
        *,
        num_blocks: int,
        block_size: int,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        self.num_blocks = num_blocks
        self.block_size = block_size
        shape = (config.num_layers, 2, num_blocks, config.num_kv_heads, block_size)
        self._blocks = torch.empty(*shape, config.head_dim, dtype=dtype, device=device)
        self._layers = [(layer[0], layer[1]) for layer in self._blocks]

    @property
    def blocks(self) -> Tensor:
        """All of it: [layers, 2, blocks, kv_heads, block_size, head_dim]."""
        return self._blocks

    def layer(self, index: int) -> tuple[Tensor, Tensor]:
        """(keys, values) of a layer, each [blocks, kv_heads, block_size, head_dim]; views."""
        return self._layers[index]

    @property
    def num_bytes(self) -> int:
        return self._blocks.numel() * self._blocks.element_size()


def block_bytes(config: ModelConfig, block_size: int, dtype: torch.dtype) -> int:
    """Memory of one block over all layers."""
    return 2 * config.num_layers * block_size * config.kv_size * dtype.itemsize
