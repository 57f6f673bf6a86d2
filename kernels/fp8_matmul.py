"""Products with matrices in fp8 (e4m3): one scale for each output, inputs rounded as they come.

Weights are rounded once; each row of the input gets e4m3 numbers and a scale of its own just
before the product, which GPUs from Hopper on compute in 8 bits and sum up in float32.
Elsewhere the same numbers are multiplied in float32: the same law, not its speed.
"""

import torch
from torch import Tensor

from kernels.dispatch import triton_kernels
from kernels.quantised_kv import quantise_fp8

_HOPPER = (9, 0)
_UNIT = 16
"""Inputs and outputs must be multiples of this for the product in 8 bits."""


def fp8_matmul_reference(x: Tensor, values: Tensor, scales: Tensor) -> Tensor:
    """``x`` times a transposed matrix in fp8.

    Args:
        x: [rows, inputs], any float dtype. Each row is rounded to e4m3 by its largest
            magnitude; one that is not finite gives NaN.
        values: [outputs, inputs] e4m3.
        scales: [outputs] float32.

    Returns:
        [rows, outputs] in x's dtype, summed up in float32.
    """
    rounded, row_scales = quantise_fp8(x)
    product = rounded.float() @ values.float().T
    return (product * row_scales[:, None] * scales).to(x.dtype)


class Fp8Matrix:
    """A matrix [outputs, inputs] in fp8."""

    def __init__(self, weight: Tensor) -> None:
        """Round a matrix of any float dtype; each output's largest magnitude becomes 448."""
        self._values, self._scales = quantise_fp8(weight)
        outputs, inputs = weight.shape
        fits = outputs % _UNIT == 0 and inputs % _UNIT == 0
        self._in_8_bits = fits and multiplies_fp8(weight.device) and weight.dtype == torch.bfloat16
        self.num_bytes = self._values.numel() + self._scales.numel() * 4

    def multiply(self, x: Tensor) -> Tensor:
        """``fp8_matmul_reference`` of ``x`` [rows, inputs] -> [rows, outputs]."""
        if not self._in_8_bits or x.shape[0] == 0:
            return fp8_matmul_reference(x, self._values, self._scales)
        gpu = triton_kernels("fp8", x)
        rounded, row_scales = (quantise_fp8 if gpu is None else gpu.quantise_fp8)(x)
        return torch._scaled_mm(
            rounded,
            self._values.t(),
            scale_a=row_scales[:, None],
            scale_b=self._scales[None, :],
            out_dtype=x.dtype,
        )


def multiplies_fp8(device: torch.device) -> bool:
    """Whether ``device`` multiplies e4m3 numbers with a scale for each row and column."""
    return device.type == "cuda" and torch.cuda.get_device_capability(device) >= _HOPPER
