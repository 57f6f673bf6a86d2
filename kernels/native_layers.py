"""All layers of a decoder in one call of the compiled kernels, on a CPU in bfloat16.

The operations are those that are otherwise called one by one, by the same functions and in the
same order, so that not a bit differs; what is saved is the host's time between them
(docs/log/kernels.md).
"""

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from kernels.cpu_attention import COMPILED_QUERIES
from kernels.native_arguments import AttendArgs, LinearArgs, TiledWeights
from kernels.native_library import native_library
from kernels.paged_layout import PagedLayout
from kernels.tiled_matrix import NEVER


@dataclass(frozen=True, slots=True, kw_only=True)
class TiledProduct:
    """A linear map whose matrix lies in tiles."""

    weights: TiledWeights
    bias: Tensor | None
    """[outputs] bfloat16."""
    most_rows: int
    """Products of more rows are made otherwise."""

    @property
    def takes_any_rows(self) -> bool:
        """Whether no product is made otherwise."""
        return self.most_rows >= NEVER - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerParts:
    """The weights and sizes that a layer computes with. Norms are in bfloat16."""

    input_norm: Tensor
    """[hidden]"""
    qkv: TiledProduct
    qk_norm: Tensor | None
    """[heads + kv_heads, head_dim]"""
    output: TiledProduct
    mlp_norm: Tensor
    """[hidden]"""
    gate_up: TiledProduct
    """Gate and up side by side."""
    down: TiledProduct
    window: int | None
    """Tokens a query sees, itself included; None for all."""

    @property
    def products(self) -> tuple[TiledProduct, TiledProduct, TiledProduct, TiledProduct]:
        return self.qkv, self.output, self.gate_up, self.down


class _ProductArgs(ctypes.Structure):
    _fields_ = (("linear", LinearArgs), ("bias", ctypes.c_void_p), ("multiply", ctypes.c_void_p))


class _LayerArgs(ctypes.Structure):
    _fields_ = (
        *((name, _ProductArgs) for name in ("qkv", "output", "gate_up", "down")),
        *((name, ctypes.c_void_p) for name in ("input_norm", "qk_norm", "mlp_norm")),
        *((name, ctypes.c_void_p) for name in ("keys", "values")),
        ("window", ctypes.c_int64),
    )


class _LayersArgs(ctypes.Structure):
    _fields_ = (
        ("layers", ctypes.c_void_p),
        *((name, ctypes.c_int64) for name in ("num_layers", "hidden")),
        ("eps", ctypes.c_float),
        *((name, ctypes.c_void_p) for name in ("delta", "residual", "wide", "queries", "mixed")),
        ("rows", ctypes.c_int64),
        *((name, ctypes.c_void_p) for name in ("cosines", "sines", "slots")),
        ("attend", AttendArgs),
        ("in_blocks", ctypes.c_int64),
    )


class NativeLayers:
    """The layers of one decoder."""

    def __init__(
        self, layers: Sequence[LayerParts], *, head_dim: int, eps: float, scale: float
    ) -> None:
        """
        Args:
            layers: all of them, in order.
            head_dim: of queries, keys and values.
            eps: of all norms.
            scale: multiplies the scores of attention.
        """
        library = native_library(torch.bfloat16)
        assert library is not None, "there are no tiles without it"
        self._run = library.run_layers
        self._in_blocks = library.attends_any(head_dim)
        self._layers = layers
        self._head_dim = head_dim
        self._eps = eps
        self._scale = scale
        self._most_rows = min(product.most_rows for layer in layers for product in layer.products)
        first = layers[0]
        self._query_size = first.output.weights.inputs
        self._wide = max(first.qkv.weights.outputs, first.gate_up.weights.outputs)
        self._mixed = max(self._query_size, first.down.weights.inputs)
        self._pool: Sequence[tuple[Tensor, Tensor]] | None = None
        self._arguments: ctypes.Array[_LayerArgs] | None = None

    @property
    def takes_any_rows(self) -> bool:
        """Whether ``takes`` holds for any number of rows, if it does for one."""
        every = all(product.takes_any_rows for layer in self._layers for product in layer.products)
        return self._in_blocks and every

    def takes(self, rows: int, pool: Sequence[tuple[Tensor, Tensor]], layout: PagedLayout) -> bool:
        """Whether ``run`` may be called for such a step."""
        if pool[0][0].dtype != torch.bfloat16 or layout.has_rows_of_nobody:
            return False
        attends = self._in_blocks or layout.max_query_tokens <= COMPILED_QUERIES
        return attends and rows <= self._most_rows

    def run(
        self,
        delta: Tensor,
        residual: Tensor,
        *,
        rotation: tuple[Tensor, Tensor],
        slots: Tensor,
        layout: PagedLayout,
        pool: Sequence[tuple[Tensor, Tensor]],
    ) -> None:
        """Compute the layers for T rows, write their keys and values.

        Args:
            delta: [T, hidden] bfloat16, contiguous: the embeddings; becomes the last layer's own
                contribution.
            residual: likewise: zeros; becomes the sum of all before it.
            rotation: cosines and sines, each [T, head_dim / 2] bfloat16, contiguous.
            slots: [T] int64: where each row's keys and values go.
            layout: the step's sequences.
            pool: keys and values of each layer, each
                [blocks, kv_heads, block_size, head_dim] bfloat16.
        """
        rows, hidden = delta.shape
        cosines, sines = rotation
        wide = delta.new_empty(rows, self._wide)
        queries, mixed = delta.new_empty(rows, self._query_size), delta.new_empty(rows, self._mixed)
        _, kv_heads, block_size, _ = pool[0][0].shape
        arguments = self._layer_arguments(pool)
        attend = AttendArgs(
            block_tables=layout.block_tables.data_ptr(),
            query_starts=layout.query_starts.data_ptr(),
            context_lengths=layout.context_lengths.data_ptr(),
            query_stride=self._query_size,
            table_stride=layout.block_tables.stride(0),
            sequences=layout.context_lengths.numel(),
            heads=self._query_size // self._head_dim,
            kv_heads=kv_heads,
            head_dim=self._head_dim,
            block_size=block_size,
            row_stride=self._head_dim,
            max_queries=COMPILED_QUERIES,
            scale=self._scale,
        )
        step = _LayersArgs(
            layers=ctypes.addressof(arguments),
            num_layers=len(self._layers),
            hidden=hidden,
            eps=self._eps,
            delta=delta.data_ptr(),
            residual=residual.data_ptr(),
            wide=wide.data_ptr(),
            queries=queries.data_ptr(),
            mixed=mixed.data_ptr(),
            rows=rows,
            cosines=cosines.data_ptr(),
            sines=sines.data_ptr(),
            slots=slots.data_ptr(),
            attend=attend,
            in_blocks=self._in_blocks,
        )
        self._run(ctypes.byref(step))

    def _layer_arguments(self, pool: Sequence[tuple[Tensor, Tensor]]) -> "ctypes.Array[_LayerArgs]":
        """Made once for a pool, which is the same in every step."""
        if self._arguments is None or self._pool is not pool:
            made = (_layer_args(*both) for both in zip(self._layers, pool, strict=True))
            self._arguments = (_LayerArgs * len(self._layers))(*made)
            self._pool = pool
        return self._arguments


def _layer_args(layer: LayerParts, blocks: tuple[Tensor, Tensor]) -> _LayerArgs:
    keys, values = blocks
    return _LayerArgs(
        *map(_product_args, layer.products),
        layer.input_norm.data_ptr(),
        None if layer.qk_norm is None else layer.qk_norm.data_ptr(),
        layer.mlp_norm.data_ptr(),
        keys.data_ptr(),
        values.data_ptr(),
        layer.window or 0,
    )


def _product_args(product: TiledProduct) -> _ProductArgs:
    library = native_library(torch.bfloat16)
    assert library is not None, "there are no tiles without it"
    return _ProductArgs(
        LinearArgs.from_buffer_copy(product.weights.arguments),
        None if product.bias is None else product.bias.data_ptr(),
        library.product_of(product.weights.kind),
    )
