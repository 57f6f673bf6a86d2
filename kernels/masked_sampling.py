"""Drawing one token per row of logits: mask, temperature, top-k, top-p, min-p, randomness.

The filters are thresholds on the value of a logit, so tokens that tie at a threshold are
kept or dropped together and the result does not depend on the order of a sort. The draw
inverts the cumulative distribution in the order of the vocabulary.

Always true: a row's token is a function of its logits, its mask, its parameters, its seed
and its position; no other row plays a part.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.nn import functional

from kernels.dispatch import triton_kernels

NO_TOKEN = -1

_PHILOX_ROUNDS = 10
_LOW = np.uint64(0xFFFFFFFF)
_32 = np.uint64(32)
_BUCKETS = 1024
_BUCKETS_PER_NAT = 64
_STRETCH = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingBatch:
    """Parameters of a batch of rows, one entry per row."""

    temperature: npt.NDArray[np.float64]
    """0 draws the most likely token."""
    top_k: npt.NDArray[np.int64]
    """Keep the k most likely tokens; 0 keeps all."""
    top_p: npt.NDArray[np.float64]
    """Of those, keep the most likely ones up to this mass; 1 keeps all."""
    min_p: npt.NDArray[np.float64]
    """Of those, drop what is less likely than this share of the most likely one."""
    uniform: npt.NDArray[np.float64]
    """In [0, 1): see ``position_uniform``."""
    masks: Tensor | None
    """[rows, words] int32: bit i % 32 of word i / 32 allows token i; ids beyond are not
    allowed. A row of which ``masked`` is False is not looked at. None: no row is masked."""
    masked: npt.NDArray[np.bool_]


def position_uniform(
    seeds: npt.NDArray[np.uint64], positions: npt.NDArray[np.uint64]
) -> npt.NDArray[np.float64]:
    """A number in [0, 1) with 53 random bits for each (seed, position).

    Philox4x32-10 (Salmon et al. 2011, "Parallel random numbers: as easy as 1, 2, 3"): the
    seed is the key, the position the low 64 bits of the counter.
    """
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
    bits = ((c0 >> np.uint64(5)) << np.uint64(26)) | (c1 >> np.uint64(6))
    return bits.astype(np.float64) * 2.0**-53


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


def sample_reference(logits: Tensor, batch: SamplingBatch) -> Tensor:
    """Draw one token per row.

    Args:
        logits: [rows, vocab] float32 or float64, finite; not changed.
        batch: the rows' parameters.

    Returns:
        [rows] int64 on the CPU; NO_TOKEN where the mask allows nothing.
    """
    tokens = []
    for row, values in enumerate(logits.cpu().double()):
        if batch.masks is not None and batch.masked[row]:
            allowed = allowed_tokens(batch.masks[row], values.numel())
            values = values.masked_fill(~allowed, -torch.inf)
        best = values.max()
        if best == -torch.inf:
            tokens.append(NO_TOKEN)
            continue
        if batch.temperature[row] == 0:
            tokens.append(int((values == best).nonzero()[0]))
            continue
        values = (values - best) / float(batch.temperature[row])
        if 0 < batch.top_k[row] < values.numel():
            bound = values.sort(descending=True).values[int(batch.top_k[row]) - 1]
            values = values.masked_fill(values < bound, -torch.inf)
        if batch.top_p[row] < 1:
            ranked = values.softmax(-1).sort(descending=True)
            before = ranked.values.cumsum(-1) - ranked.values
            bound = values[ranked.indices[before < float(batch.top_p[row])][-1]]
            values = values.masked_fill(values < bound, -torch.inf)
        mass = values.exp()
        mass = mass.masked_fill(mass < float(batch.min_p[row]), 0)
        cumulative = mass.cumsum(-1)
        target = cumulative[-1] * float(batch.uniform[row])
        tokens.append(int(torch.searchsorted(cumulative, target, right=True)))
    return torch.tensor(tokens, dtype=torch.int64)


def sample(logits: Tensor, batch: SamplingBatch) -> Tensor:
    """See ``sample_reference``; the same law, in the logits' own precision."""
    if batch.masks is not None and batch.masked.any():
        logits = _masked(logits, batch.masks, torch.from_numpy(batch.masked))
    best, tokens = logits.max(dim=-1)
    tokens = tokens.masked_fill(best == -torch.inf, NO_TOKEN).cpu()
    drawn = np.flatnonzero((batch.temperature > 0) & (tokens.numpy() != NO_TOKEN))
    if len(drawn):
        rows = torch.from_numpy(drawn)
        temperature = torch.from_numpy(batch.temperature[drawn]).to(logits)
        values = (logits[rows] - best[rows, None]).div_(temperature[:, None])
        for index, row in enumerate(drawn):
            _filter(values[index], batch, int(row))
        tokens[rows] = _invert(values.exp_(), torch.from_numpy(batch.uniform[drawn])).cpu()
    return tokens


def _masked(logits: Tensor, words: Tensor, masked: Tensor) -> Tensor:
    gpu = triton_kernels("elementwise", logits)
    if gpu is not None:
        kept: Tensor = gpu.mask_logits(logits, words.to(logits.device), masked.to(logits.device))
        return kept
    allowed = allowed_tokens(words, logits.shape[1])
    allowed |= ~masked[:, None]
    return logits.masked_fill(~allowed.to(logits.device), -torch.inf)


def _filter(values: Tensor, batch: SamplingBatch, row: int) -> None:
    """Set values [vocab], relative to the largest, to -inf where the row's filters say so."""
    top_k, top_p, min_p = int(batch.top_k[row]), float(batch.top_p[row]), float(batch.min_p[row])
    if 0 < top_k < values.numel():
        values.masked_fill_(values < values.topk(top_k).values[-1], -torch.inf)
    if top_p < 1:
        values.masked_fill_(values < _top_p_bound(values, top_p), -torch.inf)
    if min_p > 0:
        values.masked_fill_(values.exp() < min_p, -torch.inf)


def _top_p_bound(values: Tensor, top_p: float) -> Tensor:
    """Smallest value that is kept: sums by bucket of value first, then only the bucket in
    which the mass is reached is sorted."""
    mass = values.double().exp()
    buckets = (values * -_BUCKETS_PER_NAT).clamp_(max=_BUCKETS - 1).long()
    sums = torch.bincount(buckets, weights=mass, minlength=_BUCKETS)
    before = sums.cumsum(0) - sums
    wanted = top_p * sums.sum()
    bucket = (before < wanted).nonzero()[-1]
    inside = values[buckets == bucket].sort(descending=True).values
    own = inside.double().exp()
    return inside[before[bucket] + own.cumsum(0) - own < wanted][-1]


def _invert(mass: Tensor, uniform: Tensor) -> Tensor:
    """First token of each row [rows, vocab] at which the running sum exceeds ``uniform``
    times the whole. Sums are of stretches first, then within the one stretch that counts."""
    rows, vocab = mass.shape
    stretches = functional.pad(mass, (0, -vocab % _STRETCH)).view(rows, -1, _STRETCH)
    sums = stretches.sum(-1, dtype=torch.float64)
    upto = sums.cumsum(-1)
    target = uniform.to(mass.device)[:, None] * upto[:, -1:]
    chosen = torch.searchsorted(upto, target, right=True)
    before = (upto - sums).gather(1, chosen)
    inside = stretches[torch.arange(rows), chosen[:, 0]].double()
    running = inside.cumsum(-1) + before
    last = (inside > 0).cumsum(-1).argmax(-1, keepdim=True)
    offset = torch.minimum(torch.searchsorted(running, target, right=True), last)
    return (chosen * _STRETCH + offset)[:, 0]
