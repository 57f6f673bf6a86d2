"""The tensors that hold keys and values, in blocks of ``block_size`` tokens.

Only layers of attention have any. Which block belongs to whom is ``radix_cache``'s business; here a
block is an index. The layout keeps a block of a layer in one piece and, within it, each head's
tokens together: [kv_heads, block_size, head_dim]; int8 and fp8 rows are longer by their scale
(``kernels.quantised_kv``). Of latent attention there is one row that is key and value, of sparse
attention with an index key behind them.

Always true: blocks are never moved or cleared; what was not written is never read.
"""

import torch
from torch import Tensor

from kernels.large_pages import large_pages, touched_bytes
from kernels.quantised_kv import row_size
from runtime.model.config import LoadError, ModelConfig
from runtime.model.pages_ahead import AHEAD_BYTES, PagesAhead


class KVPool:
    """Keys and values of ``num_blocks`` blocks for every layer of attention.

    Memory on a CPU is provided shortly before it is written (``runtime.model.pages_ahead``), so an
    ample pool costs address space only.

    Raises:
        LoadError: there is not that much memory.
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
        sizes = (len(config.attention), config.kv_rows, num_blocks, config.kv_heads, block_size)
        shape = torch.Size((*sizes, row_size(config.head_dim, dtype)))
        try:
            if device.type == "cpu":
                memory = large_pages(shape.numel() * dtype.itemsize)
                self._blocks = memory.view(dtype).view(shape)
            else:
                self._blocks = torch.empty(shape, dtype=dtype, device=device)
        except (OSError, RuntimeError) as error:
            size = num_blocks * block_bytes(config, block_size, dtype)
            raise LoadError(
                f"{num_blocks} KV blocks take {size / (1 << 30):.1f} GiB, which cannot be had on "
                f"{device.type}: a smaller --num-blocks or --kv-cache-mib would fit"
            ) from error
        self._reached = 0
        """Blocks that were written, all below the highest of them included."""
        ample = device.type == "cpu" and self.num_bytes > AHEAD_BYTES // 8
        self._pages = PagesAhead(self._blocks) if ample else None
        self.layers = [(layer[0], layer[-1]) for layer in self._blocks]
        """The result of ``layer`` for each."""

    @property
    def blocks(self) -> Tensor:
        """The whole pool: [layers, kv_rows, blocks, kv_heads, block_size, head_dim]."""
        return self._blocks

    def reach(self, block: int) -> None:
        """Note that blocks up to ``block`` are about to be written."""
        self._reached = max(self._reached, block + 1)
        if self._pages is not None:
            self._pages.reach(block)

    def rest(self) -> None:
        """Note that no block is written until the next ``reach``."""
        if self._pages is not None:
            self._pages.rest()

    def settle(self) -> None:
        """Return when no memory is being provided beside the caller."""
        if self._pages is not None:
            self._pages.wait()

    def layer(self, index: int) -> tuple[Tensor, Tensor]:
        """(keys, values) of a layer, counted among those of attention, each
        [blocks, kv_heads, block_size, head_dim]; views, and the same one where a row is both."""
        return self.layers[index]

    def copy_block(self, source: "KVPool", block: int, target: int) -> None:
        """Copy the keys and values of all layers in a block of ``source`` to ``target`` here."""
        self.reach(target)
        self._blocks[:, :, target] = source.blocks[:, :, block]

    @property
    def num_bytes(self) -> int:
        return self._blocks.numel() * self._blocks.element_size()

    @property
    def memory_bytes(self) -> int:
        """The memory that it takes: on a CPU only as far as blocks were written or are about to
        be, in whole pages."""
        if self._blocks.device.type != "cpu" or not self.num_blocks:
            return self.num_bytes
        layers, rows = self._blocks.shape[:2]
        asked = 0 if self._pages is None else self._pages.asked
        block = self._blocks[0, 0, 0].nbytes if self.num_bytes else 0
        used = max(self._reached, asked) * block
        return touched_bytes(layers * rows, self.num_blocks * block, used) if block else 0


def block_bytes(config: ModelConfig, block_size: int, dtype: torch.dtype) -> int:
    """Memory of one block over all layers."""
    row_bytes = row_size(config.head_dim, dtype) * dtype.itemsize
    return config.kv_rows * len(config.attention) * block_size * config.kv_heads * row_bytes
