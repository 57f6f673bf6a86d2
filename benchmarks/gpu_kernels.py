"""More of the GPU benchmark's cases: the draw, products in fp8, keys and values in fp8.

Each is checked against its reference first, then timed beside what one would use otherwise,
and related to the bytes that it has to move at least.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from benchmarks.gpu_cases import Wrong, blocks_for, make_layout, seconds
from benchmarks.gpu_plan import BLOCK_SIZE, Plan
from benchmarks.gpu_timing import copies_to_rotate
from kernels.attention import paged_attention, paged_attention_reference
from kernels.dispatch import triton_kernels
from kernels.fp8_matmul import Fp8Matrix, fp8_matmul_reference
from kernels.masked_sampling import SamplingBatch, sample_reference
from kernels.paged_layout import PagedLayout
from kernels.quantised_kv import FP8, SCALE_BYTES, fp8_parts, quantise_fp8

FILTERS: tuple[tuple[str, dict[str, float]], ...] = (
    ("greedy", {"temperature": 0.0}),
    ("temperature", {}),
    ("top-p", {"top_p": 0.95}),
    ("top-k and top-p", {"top_k": 20, "top_p": 0.8}),
    ("masked", {"masked": 1}),
)
_LOGIT_BYTES = 4
_FEW_BITS_OFF = 0.01
"""The bound as a share of a result's norm: products of the same rounded numbers, summed up in
another order."""


def sampling_batch(
    rows: int,
    vocab_size: int,
    *,
    temperature: float = 1.0,
    top_k: float = 0,
    top_p: float = 1.0,
    masked: float = 0,
) -> SamplingBatch:
    """The same parameters for every row, and a mask that allows about half of the tokens."""
    rng = np.random.default_rng(0)
    words = rng.integers(-(1 << 31), 1 << 31, (rows, -(-vocab_size // 32)), dtype=np.int64)
    return SamplingBatch(
        temperature=np.full(rows, temperature),
        top_k=np.full(rows, int(top_k), dtype=np.int64),
        top_p=np.full(rows, top_p),
        min_p=np.zeros(rows),
        seeds=rng.integers(0, 1 << 63, rows, dtype=np.uint64),
        positions=np.arange(rows, dtype=np.uint64),
        masks=torch.from_numpy(words.astype(np.int32)) if masked else None,
        masked=np.full(rows, bool(masked)),
    )


def measure_sampling(plan: Plan, rate: float, device: torch.device) -> list[dict[str, Any]]:
    """The draw: kernels alone, beside softmax and multinomial of torch. What has to be read is
    the logits, once.

    Raises:
        Wrong: a token is not the reference's.
    """
    rows: list[dict[str, Any]] = []
    for count, vocab in plan.sampling:
        logits = torch.randn(count, vocab, device=device) * 3
        kernels = triton_kernels("sampling", logits)
        assert kernels is not None
        for name, options in FILTERS:
            batch = sampling_batch(count, vocab, **options)
            told = kernels.put_on_device(batch, vocab, device)
            found, expected = kernels.draw(logits, told).cpu(), sample_reference(logits, batch)
            if not torch.equal(found, expected):
                raise Wrong(f"{name}: {int((found != expected).sum())} of {count} tokens differ")
            taken = seconds([_calling(kernels.draw, logits, told)], device)
            row = {
                "rows": count,
                "filters": name,
                "us": taken * 1e6,
                "share_of_copy": count * vocab * _LOGIT_BYTES / taken / rate,
            }
            if name == "temperature":
                row["torch_us"] = seconds([_calling(_multinomial, logits)], device) * 1e6
            rows.append(row)
    return rows


def _calling(function: Callable[..., object], *args: object) -> Callable[[], object]:
    return lambda: function(*args)


def _multinomial(logits: Tensor) -> Tensor:
    return logits.softmax(-1).multinomial(1)


def measure_fp8_products(
    plan: Plan, rate: float, dtype: torch.dtype, device: torch.device
) -> list[dict[str, Any]]:
    """Products of a layer in fp8, the rounding of their inputs included, beside the same in
    ``dtype``. Few rows are as fast as the matrix can be read, many as numbers are multiplied.

    Raises:
        Wrong: a product is not the reference's.
    """
    rows: list[dict[str, Any]] = []
    for name, outputs, inputs in plan.matrices:
        weight = torch.randn(outputs, inputs, device=device).to(dtype) / inputs**0.5
        matrix = Fp8Matrix(weight.clone())
        copies = range(copies_to_rotate(matrix.num_bytes, plan.rotated_bytes))
        weights = [weight.clone() for _ in copies]
        matrices = [matrix, *(Fp8Matrix(weight.clone()) for _ in copies[1:])]
        for tokens in plan.matrix_rows:
            x = torch.randn(tokens, inputs, device=device).to(dtype)
            found = matrix.multiply(x).float()
            expected = fp8_matmul_reference(x, *quantise_fp8(weight)).float()
            error = float((found - expected).norm() / expected.norm())
            if not error <= _FEW_BITS_OFF:
                raise Wrong(f"{name} in fp8 is off by {error:.2g} of the reference's norm")
            taken = seconds([_calling(each.multiply, x) for each in matrices], device)
            plain = seconds([_calling(functional.linear, x, each) for each in weights], device)
            rows.append(
                {
                    "matrix": name,
                    "rows": tokens,
                    "us": taken * 1e6,
                    "plain_us": plain * 1e6,
                    "faster_than_plain": plain / taken,
                    "share_of_copy": matrix.num_bytes / taken / rate,
                    "tflops": 2 * tokens * outputs * inputs / taken / 1e12,
                }
            )
    return rows


def measure_fp8_kv(
    plan: Plan, rate: float, dtype: torch.dtype, device: torch.device
) -> list[dict[str, Any]]:
    """Decodes over keys and values in fp8, as a share of a copy of the bytes they read.

    Raises:
        Wrong: one disagrees with the reference over the same bytes.
    """
    rows = []
    for name, lengths in plan.fp8_decodes:
        shapes = [(length, 1) for length in lengths]
        num_blocks = blocks_for(shapes)
        size = sum(lengths) * 2 * plan.kv_heads * (plan.head_dim + SCALE_BYTES)
        pools = [
            fp8_pool(plan, num_blocks, device) for _ in range(max(1, plan.round_bytes // size))
        ]
        layout = make_layout(shapes, num_blocks, device)
        queries = torch.randn(len(lengths), plan.heads, plan.head_dim, device=device).to(dtype)
        found = attend(queries, pools[0], layout).float()
        expected = paged_attention_reference(
            queries.float(), *pools[0], layout, scale=plan.head_dim**-0.5, window=None
        )
        error = float((found - expected).norm() / expected.norm())
        if not error <= max(4 * torch.finfo(dtype).eps, 1e-6):
            raise Wrong(f"{name} over fp8 is off by {error:.2g} of the reference's norm")
        taken = seconds([_calling(attend, queries, pool, layout) for pool in pools], device)
        rows.append(
            {
                "case": name,
                "kv_bytes": size,
                "us": taken * 1e6,
                "share_of_copy": size / taken / rate,
            }
        )
    return rows


def attend(queries: Tensor, pool: tuple[Tensor, Tensor], layout: PagedLayout) -> Tensor:
    """Attention of all heads as a model's layer computes it."""
    scale = queries.shape[2] ** -0.5
    return paged_attention(queries, *pool, layout, scale=scale, window=None)


def fp8_pool(plan: Plan, num_blocks: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Random keys and values of ``num_blocks`` blocks."""
    shape = num_blocks, plan.kv_heads, BLOCK_SIZE, plan.head_dim + SCALE_BYTES
    keys, values = (torch.empty(shape, dtype=FP8, device=device) for _ in range(2))
    for pool in (keys, values):
        numbers, scales = fp8_parts(pool)
        drawn = torch.randn(numbers.shape, device=device)
        for part, new in zip((numbers, scales), quantise_fp8(drawn), strict=True):
            part.copy_(new)
    return keys, values
