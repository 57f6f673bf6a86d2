"""One token per row of logits: penalties, mask, temperature, top-k, top-p, min-p, randomness.

A token's likelihood counts as a whole number, so sums do not depend on their order and every
implementation draws the same token from the same logits. How far a logit is below the best
one, in halvings and 24 binary places, is the token's distance; its mass is
2 ** (40 - distance), by whole-number arithmetic, rounded down. One subtraction and one product
in float32 lead from logit to distance; both round the same way everywhere.

Filters are thresholds on distance or mass: tokens that tie stay or go together. The draw
inverts the cumulative mass in the order of the vocabulary.

Always true: a row's token is a function of its logits, its mask, its parameters, its seed
and its position; no other row plays a part.
"""

import functools
import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from kernels.dispatch import triton_kernels
from kernels.native_sampling import native_sampler

NO_TOKEN = -1
"""In place of a token: the mask allows none."""
NOT_FINITE = -2
"""In place of a token: a logit is NaN or infinite."""

PLACES = 24
"""Binary places of a distance."""
MASS_BITS = 40
"""The best token's mass is 2 ** MASS_BITS."""
FARTHEST = MASS_BITS + 1
"""Distances are cut here, where nothing is left of the mass."""
HALVING = (-744257403, 257891465, -59375086, 9884650, -1014583)
"""2 ** -x on 0..1 is 1 + x times the polynomial of these coefficients, all in 30 binary
places; it is off by less than 1e-7 of itself."""
SHARE_BITS = 53
"""Shares and uniform numbers are whole multiples of 2 ** -SHARE_BITS."""

_PHILOX_ROUNDS = 10
_FEW_ROWS = 8
_LOW = np.uint64(0xFFFFFFFF)
_32 = np.uint64(32)


@dataclass(frozen=True, slots=True, kw_only=True)
class Penalties:
    """Changes to single logits of a batch before all else; each pair of row and token at most once.
    A positive logit is divided, another multiplied by its factor (Keskar et al. 2019,
    arXiv:1909.05858), then the deduction is taken off."""

    rows: npt.NDArray[np.int64]
    tokens: npt.NDArray[np.int64]
    factors: npt.NDArray[np.float64]
    deductions: npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingBatch:
    """Parameters of a batch of rows, one entry per row."""

    temperature: npt.NDArray[np.float64]
    """0 draws the most likely token."""
    top_k: npt.NDArray[np.int64]
    """Keep the k most likely tokens; 0 keeps all."""
    top_p: npt.NDArray[np.float64]
    """Keep the most likely of those up to this mass; 1 keeps all."""
    min_p: npt.NDArray[np.float64]
    """Drop of those what is less likely than this share of the most likely one."""
    seeds: npt.NDArray[np.uint64]
    positions: npt.NDArray[np.uint64]
    """With the seed they make the row's uniform number: ``position_bits``."""
    masks: Tensor | None
    """[rows, words] int32: bit i % 32 of word i / 32 allows token i; ids beyond are not
    allowed. A row of which ``masked`` is False is not looked at. None: no row is masked."""
    masked: npt.NDArray[np.bool_]
    penalties: Penalties | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class WholeNumbers:
    """The parameters of a batch as the law has them, one entry per row."""

    scales: npt.NDArray[np.float32]
    """Halvings for each unit of logit; 0 draws the most likely token."""
    top_k: npt.NDArray[np.int64]
    """Most tokens that are kept; 0 keeps all."""
    top_p: npt.NDArray[np.int64]
    """In units of 2 ** -SHARE_BITS; 0 keeps all."""
    least_mass: npt.NDArray[np.int64]
    """Tokens of less mass are dropped; 0 keeps all."""

    @classmethod
    def of(cls, batch: SamplingBatch, vocab_size: int) -> "WholeNumbers":
        """The kinds of sampling that ``batch`` asks for. The arrays may be those of another call
        and are read only: most steps ask for what the last one did."""
        asked = (batch.temperature, batch.top_k, batch.top_p, batch.min_p)
        return _whole_numbers(vocab_size, *(array.tobytes() for array in asked))


@functools.lru_cache(maxsize=64)
def _whole_numbers(
    vocab_size: int, temperatures: bytes, top_ks: bytes, top_ps: bytes, min_ps: bytes
) -> WholeNumbers:
    """``WholeNumbers.of`` the bytes of a batch's arrays."""
    temperature, top_p, min_p = (np.frombuffer(part) for part in (temperatures, top_ps, min_ps))
    top_k = np.frombuffer(top_ks, np.int64)
    hot = temperature > 0
    scales = np.log2(math.e) / np.where(hot, temperature, 1)
    keeps_some = (top_k > 0) & (top_k < vocab_size)
    shares = np.maximum((top_p * 2.0**SHARE_BITS).astype(np.int64), 1)
    numbers = WholeNumbers(
        scales=np.where(hot, np.minimum(scales, 1e38), 0).astype(np.float32),
        top_k=np.where(keeps_some, top_k, 0),
        top_p=np.where(top_p < 1, shares, 0),
        least_mass=np.ceil(min_p * 2.0**MASS_BITS).astype(np.int64),
    )
    for array in (numbers.scales, numbers.top_k, numbers.top_p, numbers.least_mass):
        array.flags.writeable = False
    return numbers


def position_bits(
    seeds: npt.NDArray[np.uint64], positions: npt.NDArray[np.uint64]
) -> npt.NDArray[np.uint64]:
    """SHARE_BITS random bits for each (seed, position).

    Philox4x32-10 (Salmon et al. 2011, "Parallel random numbers: as easy as 1, 2, 3"): the
    seed is the key, the position the low 64 bits of the counter.
    """
    if len(seeds) <= _FEW_ROWS:
        pairs = zip(seeds.tolist(), positions.tolist(), strict=True)
        return np.array([_bits_of(seed, position) for seed, position in pairs], dtype=np.uint64)
    key0, key1 = seeds & _LOW, seeds >> _32
    c0, c1 = positions & _LOW, positions >> _32
    c2 = c3 = np.zeros_like(c0)
    for _ in range(_PHILOX_ROUNDS):
        product0 = c0 * np.uint64(0xD2511F53)
        product1 = c2 * np.uint64(0xCD9E8D57)
        c0, c1, c2, c3 = (
            (product1 >> _32) ^ c1 ^ key0,
            product1 & _LOW,
            (product0 >> _32) ^ c3 ^ key1,
            product0 & _LOW,
        )
        key0 = (key0 + np.uint64(0x9E3779B9)) & _LOW
        key1 = (key1 + np.uint64(0xBB67AE85)) & _LOW
    bits: npt.NDArray[np.uint64] = ((c0 >> np.uint64(5)) << np.uint64(26)) | (c1 >> np.uint64(6))
    return bits


def _bits_of(seed: int, position: int) -> int:
    """``position_bits`` of one pair: for few, numpy's hundred calls take longer."""
    key0, key1 = seed & 0xFFFFFFFF, seed >> 32
    c0, c1, c2, c3 = position & 0xFFFFFFFF, position >> 32, 0, 0
    for _ in range(_PHILOX_ROUNDS):
        product0, product1 = c0 * 0xD2511F53, c2 * 0xCD9E8D57
        c0, c1, c2, c3 = (
            (product1 >> 32) ^ c1 ^ key0,
            product1 & 0xFFFFFFFF,
            (product0 >> 32) ^ c3 ^ key1,
            product0 & 0xFFFFFFFF,
        )
        key0, key1 = (key0 + 0x9E3779B9) & 0xFFFFFFFF, (key1 + 0xBB67AE85) & 0xFFFFFFFF
    return (c0 >> 5) << 26 | c1 >> 6


def allowed_tokens(words: Tensor, vocab_size: int) -> Tensor:
    """Unpack mask rows.

    Args:
        words: [..., words] int32 on the CPU.
        vocab_size: ids to report; those beyond ``32 * words`` are not allowed.

    Returns:
        [..., vocab_size] bool.
    """
    packed = words.contiguous().numpy().view(np.uint8)
    bits = np.unpackbits(packed, axis=-1, bitorder="little", count=None)
    if bits.shape[-1] < vocab_size:
        width = [(0, 0)] * (bits.ndim - 1) + [(0, vocab_size - bits.shape[-1])]
        bits = np.pad(bits, width)
    return torch.from_numpy(bits[..., :vocab_size].view(np.bool_))


def penalised_reference(logits: Tensor, penalties: Penalties) -> Tensor:
    """A copy of ``logits`` [rows, vocab] with its penalties. A division is a product with the
    reciprocal, rounded to the dtype, which is the same on every device."""
    rows, tokens = torch.from_numpy(penalties.rows), torch.from_numpy(penalties.tokens)
    at = rows.to(logits.device), tokens.to(logits.device)
    factors, deductions = (
        torch.from_numpy(part).to(logits) for part in (penalties.factors, penalties.deductions)
    )
    inverses = torch.from_numpy(1 / penalties.factors).to(logits)
    values = logits[at]
    shaped = logits.clone()
    shaped[at] = values * torch.where(values > 0, inverses, factors) - deductions
    return shaped


def mass_of(distances: Tensor) -> Tensor:
    """Mass of tokens at ``distances``; both int64."""
    place = distances & ((1 << PLACES) - 1)
    power = torch.full_like(distances, HALVING[-1])
    for coefficient in (*HALVING[-2::-1], 1 << 30):
        power = ((power * place) >> PLACES) + coefficient
    return (power << (MASS_BITS - 30)) >> (distances >> PLACES)


def sample_reference(logits: Tensor, batch: SamplingBatch) -> Tensor:
    """Draw one token per row.

    Args:
        logits: [rows, vocab] float32 or float64; not changed.
        batch: the rows' parameters.

    Returns:
        [rows] int64 on the CPU; NO_TOKEN or NOT_FINITE where no token can be drawn.
    """
    logits = logits.cpu()
    if batch.penalties is not None:
        logits = penalised_reference(logits, batch.penalties)
    finite = logits.isfinite().all(-1).tolist()
    numbers = WholeNumbers.of(batch, logits.shape[1])
    bits = position_bits(batch.seeds, batch.positions)
    tokens = []
    for row, values in enumerate(logits):
        if not finite[row]:
            tokens.append(NOT_FINITE)
            continue
        if batch.masks is not None and batch.masked[row]:
            allowed = allowed_tokens(batch.masks[row], values.numel())
            values = values.masked_fill(~allowed, -torch.inf)
        best = values.max()
        if best == -torch.inf:
            tokens.append(NO_TOKEN)
        elif numbers.scales[row] == 0:
            tokens.append(int((values == best).nonzero()[0]))
        else:
            tokens.append(_draw((best - values).float(), numbers, row, int(bits[row])))
    return torch.tensor(tokens, dtype=torch.int64)


def _draw(behind: Tensor, numbers: WholeNumbers, row: int, bits: int) -> int:
    """Draw from logits that are ``behind`` [vocab] float32 the best one."""
    far = (behind * float(numbers.scales[row])).clamp(max=FARTHEST)
    distances = (far * (1 << PLACES)).long()
    mass = mass_of(distances)
    top_k, top_p = int(numbers.top_k[row]), int(numbers.top_p[row])
    if top_k:
        mass[distances > distances.sort().values[top_k - 1]] = 0
    if top_p:
        wanted = max(int(mass.sum()) * top_p >> SHARE_BITS, 1)
        ranked = distances.sort()
        reached = mass[ranked.indices].cumsum(0) >= wanted
        mass[distances > ranked.values[reached][0]] = 0
    mass[mass < int(numbers.least_mass[row])] = 0
    upto = mass.cumsum(0)
    target = int(upto[-1]) * bits >> SHARE_BITS
    return int((upto > target).nonzero()[0])


def sample(logits: Tensor, batch: SamplingBatch) -> Tensor:
    """``sample_reference``, with the tokens where the logits are."""
    gpu = triton_kernels("sampling", logits)
    if gpu is not None:
        drawn: Tensor = gpu.sample(logits, batch)
        return drawn
    native = native_sampler(logits.dtype) if logits.device.type == "cpu" else None
    if native is None:
        return sample_reference(logits, batch).to(logits.device)
    if batch.penalties is not None:
        logits = penalised_reference(logits, batch.penalties)
    numbers = WholeNumbers.of(batch, logits.shape[1])
    return native(
        logits,
        scales=numbers.scales,
        top_k=numbers.top_k,
        top_p=numbers.top_p,
        least_mass=numbers.least_mass,
        bits=position_bits(batch.seeds, batch.positions),
        masks=batch.masks,
        masked=batch.masked,
    )
