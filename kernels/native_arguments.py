"""Arguments of the CPU kernels of ``kernels/native``, as their headers lay them out."""

import ctypes
from dataclasses import dataclass, field
from typing import Literal

from torch import Tensor

WeightKind = Literal["16", "8", "4", "int4", "int8", "e2m1", "e4m3"]
"""Bits of a weight as ``kernels.quant_matmul`` rounds it, and kinds of codes as
``kernels.coded_matrix`` has them. Functions of the compiled library end in it."""


class AttendArgs(ctypes.Structure):
    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("queries", "keys", "values", "output")),
        *((name, ctypes.c_void_p) for name in ("block_tables", "query_starts", "context_lengths")),
        *(
            (name, ctypes.c_int64)
            for name in (
                "query_stride",
                "table_stride",
                "sequences",
                "heads",
                "kv_heads",
                "head_dim",
                "block_size",
                "row_stride",
                "window",
                "max_queries",
            )
        ),
        ("scale", ctypes.c_float),
        ("sinks", ctypes.c_void_p),
    )


class QkvArgs(ctypes.Structure):
    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("qkv", "norm_weight", "cosines", "sines", "slots")),
        *((name, ctypes.c_void_p) for name in ("queries", "keys", "values")),
        *(
            (name, ctypes.c_int64)
            for name in ("tokens", "heads", "kv_heads", "head_dim", "block_size")
        ),
        ("eps", ctypes.c_float),
    )


class LinearArgs(ctypes.Structure):
    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("x", "weights", "scales", "output")),
        *((name, ctypes.c_int64) for name in ("rows", "inputs", "outputs", "group")),
        ("zeros", ctypes.c_void_p),
    )


class PackArgs(ctypes.Structure):
    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("weight", "tiles", "scales")),
        *((name, ctypes.c_int64) for name in ("inputs", "outputs", "group")),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class TiledWeights:
    """A matrix in tiles of 16 outputs, as ``kernels/native/linear.h`` says."""

    kind: WeightKind
    values: Tensor
    """uint8: the tiles' bytes."""
    scales: Tensor
    """float32 [tiles, groups, 16], of e2m1 uint8; empty for 16 bits."""
    zeros: Tensor | None = None
    """int8 [tiles, groups, 16], of codes that are integers."""
    outputs: int
    inputs: int
    group: int
    """Inputs that share a scale; 16 and 8 bits do not look at it."""
    arguments: bytes = field(init=False)
    """The arguments that are the same in every call with these weights: filling a structure takes
    longer than copying it."""

    def __post_init__(self) -> None:
        arguments = LinearArgs(
            weights=self.values.data_ptr(),
            scales=self.scales.data_ptr(),
            inputs=self.inputs,
            outputs=self.outputs,
            group=self.group,
            zeros=None if self.zeros is None else self.zeros.data_ptr(),
        )
        object.__setattr__(self, "arguments", bytes(arguments))


class ShortConvArgs(ctypes.Structure):
    """``native/short_conv.cpp``."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("inputs", "weight", "bias", "windows", "slots")),
        *((name, ctypes.c_void_p) for name in ("starts", "sequence_of", "output")),
        *((name, ctypes.c_int64) for name in ("tokens", "channels", "taps", "window_stride")),
    )


class LowRankLine(ctypes.Structure):
    """``native/low_rank.h``: an adapter's part of a map."""

    _fields_ = (
        ("down", ctypes.c_void_p),
        *((name, ctypes.c_int64) for name in ("ranks", "first_up", "num_ups")),
    )


class LowRankUp(ctypes.Structure):
    """The same: one of its matrices to outputs."""

    _fields_ = (
        ("matrix", ctypes.c_void_p),
        *((name, ctypes.c_int64) for name in ("rank", "outputs", "first_rank", "first_output")),
    )


class LowRankArgs(ctypes.Structure):
    """The same: a call."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("x", "result", "rows", "adapter_of")),
        *((name, ctypes.c_void_p) for name in ("table", "ups")),
        *((name, ctypes.c_int64) for name in ("count", "inputs", "outputs")),
    )


class IndexScoresArgs(ctypes.Structure):
    """``native/index_scores.cpp``."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("queries", "weights", "keys", "slots", "scores")),
        *((name, ctypes.c_int64) for name in ("rows", "heads", "dim", "tokens", "key_stride")),
        ("first_seen", ctypes.c_int64),
    )


class DeltaFoldArgs(ctypes.Structure):
    """``native/gated_delta.h``."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("matrices", "keys", "corrected", "decays")),
        *((name, ctypes.c_void_p) for name in ("slots", "rings", "committed", "counts")),
        *((name, ctypes.c_int64) for name in ("sequences", "layers", "ring", "key_heads")),
        *((name, ctypes.c_int64) for name in ("value_heads", "key_dim", "value_dim")),
        *((name, ctypes.c_int64) for name in ("slot_stride", "by_channel")),
    )


class DeltaArgs(ctypes.Structure):
    """The same."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("queries", "keys", "values", "decays", "betas")),
        *((name, ctypes.c_void_p) for name in ("matrices", "slots", "starts", "positions")),
        *((name, ctypes.c_void_p) for name in ("handed_at", "handed_to")),
        *((name, ctypes.c_void_p) for name in ("mixed", "corrected", "handed")),
        ("due", ctypes.POINTER(DeltaFoldArgs)),
        *((name, ctypes.c_int64) for name in ("sequences", "key_heads", "value_heads")),
        *((name, ctypes.c_int64) for name in ("key_dim", "value_dim", "slot_stride", "layer")),
        ("by_channel", ctypes.c_int64),
    )


class DeltaShapingArgs(ctypes.Structure):
    """``native/recurrent.h``."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("convolved", "paces", "rates", "bias")),
        *((name, ctypes.c_void_p) for name in ("queries", "keys", "values", "decays", "betas")),
        *((name, ctypes.c_int64) for name in ("tokens", "key_heads", "value_heads")),
        *((name, ctypes.c_int64) for name in ("key_dim", "value_dim")),
    )


class KimiShapingArgs(ctypes.Structure):
    """The same."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("convolved", "steps", "said_betas", "rates")),
        *((name, ctypes.c_void_p) for name in ("bias", "queries", "keys", "values", "decays")),
        ("betas", ctypes.c_void_p),
        *((name, ctypes.c_int64) for name in ("tokens", "heads", "head_dim")),
        *((name, ctypes.c_int64) for name in ("steps_stride", "betas_stride")),
    )


class GatedNormArgs(ctypes.Structure):
    """The same."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("mixed", "gates", "weight", "output")),
        *((name, ctypes.c_int64) for name in ("tokens", "heads", "size", "gate_stride")),
        ("eps", ctypes.c_float),
        ("by_sigmoid", ctypes.c_int32),
    )


class RingWriteArgs(ctypes.Structure):
    """The same."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("rows", "rings", "ring_of", "place", "token")),
        *((name, ctypes.c_int64) for name in ("count", "row_size", "ring_stride", "place_stride")),
        *((name, ctypes.c_int64) for name in ("tokens", "rings_count", "ring")),
    )


class WindowArgs(ctypes.Structure):
    """The same."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("windows", "rings", "slots", "ring_of")),
        *((name, ctypes.c_void_p) for name in ("committed", "counts")),
        *((name, ctypes.c_int64) for name in ("sequences", "layers", "before", "channels")),
        *((name, ctypes.c_int64) for name in ("ring", "slot_stride")),
        *((name, ctypes.c_int64) for name in ("slots_count", "rings_count")),
    )
