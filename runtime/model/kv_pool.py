"""The tensors that hold keys and values, in blocks of ``block_size`` tokens.

Only layers of attention have any. Which block belongs to whom is ``radix_cache``'s business; here a
block is an index. The layout keeps a block of a layer in one piece and, within it, each head's
tokens together: [kv_heads, block_size, head_dim]; int8 and fp8 rows are longer by their scale
(``kernels.quantised_kv``). Of latent attention there is one row that is key and value, of sparse
attention with an index key behind it; index keys that choose blocks are a group, and so are entries
that stand for several tokens, which have fewer places in a block. Layers whose keys are of one
shape lie in one tensor, a group; of most models there is one group. A layer that shares another's
keys and values has no room of its own. Where rows behind windows are given back, groups of layers
with a window have fewer blocks, and indices of their own, window blocks.

Always true: blocks are never moved or cleared; what was not written is never read.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from kernels.large_pages import large_pages, touched_bytes
from kernels.quantised_kv import row_size
from runtime.model.config import LoadError, ModelConfig
from runtime.model.kv_layout import KVGroup
from runtime.model.pages_ahead import AHEAD_BYTES, PagesAhead


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolPart:
    """Groups of a pool that have equally many blocks."""

    groups: tuple[Tensor, ...]


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
        window_blocks: int | None = None,
    ) -> None:
        """``window_blocks``: blocks of layers with a window; None: ``num_blocks``, the same
        ones."""
        layout = config.kv_layout(apart=window_blocks is not None)
        self.num_blocks = num_blocks
        self.window_blocks = window_blocks
        self.block_size = block_size
        self.dtype = dtype
        """How keys and values are kept."""
        self.device = device
        counts = [(window_blocks or 0) if each.windowed else num_blocks for each in layout.groups]
        shapes = [
            _shape(group, count, block_size, dtype)
            for group, count in zip(layout.groups, counts, strict=True)
        ]
        try:
            self.groups: tuple[Tensor, ...] = tuple(_made(each, dtype, device) for each in shapes)
            """[layers, rows, blocks, kv_heads, places, head_dim] of each group of
            ``ModelConfig.kv_groups``: all that there is. A block has a place for each of its
            tokens, or for each entry that ends in it."""
        except (OSError, RuntimeError) as error:
            size = sum(shape.numel() for shape in shapes) * dtype.itemsize
            raise LoadError(
                f"{num_blocks} KV blocks take {size / (1 << 30):.1f} GiB, which cannot be had on "
                f"{device.type}: a smaller --num-blocks or --kv-cache-mib would fit"
            ) from error
        ample = device.type == "cpu" and self.num_bytes > AHEAD_BYTES // 8
        kinds = list(zip(layout.groups, self.groups, strict=True))
        near = [made for group, made in kinds if group.windowed]
        self.main = PoolPart(groups=tuple(made for group, made in kinds if not group.windowed))
        """The groups that every block has rows in."""
        self._all = _Written(self.main.groups, ample=ample)
        self._near = _Written(near, ample=ample) if near else None
        self.near = PoolPart(groups=tuple(near)) if near else None
        """Rows of layers with a window, where these have blocks of their own."""
        placed = [self.groups[group][place] for group, place in layout.places]
        self.layers = [(layer[0], layer[-1]) for layer in placed]
        """The result of ``layer`` for each."""
        self.windowed = layout.windowed
        """Of each layer, whether its blocks are window blocks."""
        self._beside = [
            None if place is None else self.groups[place[0]][place[1], 0]
            for place in layout.beside_places
        ]

    @property
    def blocks(self) -> Tensor:
        """The whole pool of a model with one group.

        Raises:
            ValueError: there are several.
        """
        if len(self.groups) > 1:
            raise ValueError(f"{len(self.groups)} groups of layers are not in one tensor")
        return self.groups[0]

    def reach(self, block: int, window_block: int | None = None) -> None:
        """Note that blocks up to ``block`` are about to be written, and window blocks likewise."""
        self._all.reach(block)
        if self._near is not None and window_block is not None:
            self._near.reach(window_block)

    def rest(self) -> None:
        """Note that no block is written until the next ``reach``."""
        for written in filter(None, (self._all, self._near)):
            written.rest()

    def settle(self) -> None:
        """Return when no memory is being provided beside the caller."""
        for written in filter(None, (self._all, self._near)):
            written.settle()

    def layer(self, index: int) -> tuple[Tensor, Tensor]:
        """(keys, values) of a layer, counted among those of attention, each
        [blocks, kv_heads, block_size, head_dim]; views, the same one where a row is both, and
        another layer's where it shares that one's."""
        return self.layers[index]

    def beside(self, index: int) -> Tensor | None:
        """[blocks, 1, places, dim], a view: what lies beside the keys and values of a layer,
        counted among those of attention, index keys or entries; None: nothing does."""
        return self._beside[index]

    def copy_block(self, source: "KVPool", block: int, target: int) -> None:
        """Copy the keys and values of all layers in a block of ``source`` to ``target`` here."""
        self.reach(target)
        for here, there in zip(self.groups, source.groups, strict=True):
            here[:, :, target] = there[:, :, block]

    @property
    def num_bytes(self) -> int:
        return sum(group.nbytes for group in self.groups)

    @property
    def memory_bytes(self) -> int:
        """The memory that it takes: on a CPU only as far as blocks were written or are about to
        be, in whole pages."""
        if self.device.type != "cpu" or not self.num_blocks:
            return self.num_bytes
        return sum(written.memory_bytes for written in filter(None, (self._all, self._near)))


class _Written:
    """Tensors of equally many blocks in host memory, which is provided as they are written."""

    def __init__(self, groups: Sequence[Tensor], *, ample: bool) -> None:
        self._groups = groups
        self._reached = 0
        """Blocks that were written, all below the highest of them included."""
        self._pages = PagesAhead(groups) if ample else None

    def reach(self, block: int) -> None:
        self._reached = max(self._reached, block + 1)
        if self._pages is not None:
            self._pages.reach(block)

    def rest(self) -> None:
        if self._pages is not None:
            self._pages.rest()

    def settle(self) -> None:
        if self._pages is not None:
            self._pages.wait()

    @property
    def memory_bytes(self) -> int:
        asked = 0 if self._pages is None else self._pages.asked
        used = max(self._reached, asked)
        return sum(_touched(group, used) for group in self._groups)


def _shape(group: KVGroup, num_blocks: int, block_size: int, dtype: torch.dtype) -> torch.Size:
    kept = group.shape
    sizes = (group.layers, kept.rows, num_blocks, kept.heads, kept.places(block_size))
    return torch.Size((*sizes, row_size(kept.size, dtype)))


def _made(shape: torch.Size, dtype: torch.dtype, device: torch.device) -> Tensor:
    if device.type != "cpu":
        return torch.empty(shape, dtype=dtype, device=device)
    return large_pages(shape.numel() * dtype.itemsize).view(dtype).view(shape)


def _touched(group: Tensor, used: int) -> int:
    """Memory of a group of which so many blocks are written."""
    layers, rows, blocks = group.shape[:3]
    block = group[0, 0, 0].nbytes
    return touched_bytes(layers * rows, blocks * block, used * block)


def block_bytes(config: ModelConfig, block_size: int, dtype: torch.dtype) -> int:
    """Memory of one block over all layers."""
    return sum(_bytes_of(group, block_size, dtype) for group in config.kv_groups)


def parted_bytes(config: ModelConfig, block_size: int, dtype: torch.dtype) -> tuple[int, int]:
    """Memory of one block over the layers that see all, and of one over those with a window."""
    groups = config.kv_layout(apart=True).groups
    near = sum(_bytes_of(each, block_size, dtype) for each in groups if each.windowed)
    return block_bytes(config, block_size, dtype) - near, near


def _bytes_of(group: KVGroup, block_size: int, dtype: torch.dtype) -> int:
    return _shape(group, 1, block_size, dtype).numel() * dtype.itemsize
