"""The compiled draw of ``kernels.masked_sampling`` on a CPU: one pass or a few over each row.

Speaks whole numbers only; what they mean and where they come from is said there, and the
constants of the law stand in ``kernels/native/sampling.cpp`` once more.
"""

import ctypes
import functools
from typing import Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from kernels.native_library import compiled_library

_SUFFIXES = {torch.float32: "f32", torch.float64: "f64"}


class _SampleArgs(ctypes.Structure):
    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("logits", "masks", "masked", "scales")),
        *((name, ctypes.c_void_p) for name in ("top_k", "top_p", "least_mass", "bits", "tokens")),
        *((name, ctypes.c_int64) for name in ("rows", "vocab", "stride", "words")),
    )


class NativeSampler(Protocol):
    """See ``kernels.masked_sampling.sample_reference``."""

    def __call__(
        self,
        logits: Tensor,
        *,
        scales: npt.NDArray[np.float32],
        top_k: npt.NDArray[np.int64],
        top_p: npt.NDArray[np.int64],
        least_mass: npt.NDArray[np.int64],
        bits: npt.NDArray[np.uint64],
        masks: Tensor | None,
        masked: npt.NDArray[np.bool_],
    ) -> Tensor:
        """[rows] int64."""
        ...


@functools.lru_cache
def native_sampler(dtype: torch.dtype) -> NativeSampler | None:
    """The compiled draw for logits of ``dtype``; None where torch has to do."""
    library = compiled_library() if dtype in _SUFFIXES else None
    if library is None:
        return None
    function = getattr(library, f"keepwarm_sample_{_SUFFIXES[dtype]}")
    function.argtypes, function.restype = (ctypes.POINTER(_SampleArgs),), None

    def draw(
        logits: Tensor,
        *,
        scales: npt.NDArray[np.float32],
        top_k: npt.NDArray[np.int64],
        top_p: npt.NDArray[np.int64],
        least_mass: npt.NDArray[np.int64],
        bits: npt.NDArray[np.uint64],
        masks: Tensor | None,
        masked: npt.NDArray[np.bool_],
    ) -> Tensor:
        logits = logits if logits.stride(-1) == 1 else logits.contiguous()
        masks = None if masks is None else masks.contiguous()
        tokens = torch.empty(len(scales), dtype=torch.int64)
        function(
            _SampleArgs(
                logits=logits.data_ptr(),
                masks=None if masks is None else masks.data_ptr(),
                masked=masked.ctypes.data,
                scales=scales.ctypes.data,
                top_k=top_k.ctypes.data,
                top_p=top_p.ctypes.data,
                least_mass=least_mass.ctypes.data,
                bits=bits.ctypes.data,
                tokens=tokens.data_ptr(),
                rows=len(scales),
                vocab=logits.shape[1],
                stride=logits.stride(0),
                words=0 if masks is None else masks.shape[1],
            )
        )
        return tokens

    return draw
