"""Drawing one token per row of logits on a GPU, in Triton: what ``kernels.masked_sampling`` says.

A row's tiles are worked on side by side: the best logit of each, then distances and the mass
of each. Rows with top-k or top-p have their threshold searched for, three binary digits of it
a pass: tiles add up what lies within eight distances, and the next pass begins with what that
says. One program for each row draws: it finds the tile from the tiles' masses and the token in
it. Nothing waits for the host, and the tokens stay on the device.

All sums are of whole numbers, so no order of theirs matters; the one place where a product
and a sum of floats meet (penalties) is compiled without fusing them.

Import this module only where Triton is to run; ``kernels.dispatch`` decides that.
"""

from dataclasses import dataclass

import numpy as np
import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.launching import launch
from kernels.masked_sampling import (
    FARTHEST,
    HALVING,
    MASS_BITS,
    NO_TOKEN,
    NOT_FINITE,
    PLACES,
    SHARE_BITS,
    Penalties,
    SamplingBatch,
    WholeNumbers,
)
from kernels.upload import upload

TOKENS_EACH = 1024
"""Tokens of one program's tile."""
SEARCH_WARPS = 8
"""For a tile's tokens, each compared with 8 distances."""
PASSES = 10
"""Distances have 30 binary digits: ten passes of three."""
COLUMNS = 7
"""Whole numbers of a row: scale, top-k, top-p, least mass, seed, position, masked."""

_PLACES = tl.constexpr(PLACES)
_UNIT = tl.constexpr(1 << PLACES)
_FARTHEST = tl.constexpr(float(FARTHEST))
_NOTHING_LEFT = tl.constexpr(FARTHEST << PLACES)
_FAR_OUT = tl.constexpr(0x7FFFFFFF)
_MASS_SHIFT = tl.constexpr(MASS_BITS - 30)
_SHARE_SHIFT = tl.constexpr(64 - SHARE_BITS)
_HALVING_1 = tl.constexpr(HALVING[0])
_HALVING_2 = tl.constexpr(HALVING[1])
_HALVING_3 = tl.constexpr(HALVING[2])
_HALVING_4 = tl.constexpr(HALVING[3])
_HALVING_5 = tl.constexpr(HALVING[4])
_NO_TOKEN = tl.constexpr(NO_TOKEN)
_NOT_FINITE = tl.constexpr(NOT_FINITE)
_COLUMNS = tl.constexpr(COLUMNS)
_DIGITS = tl.constexpr(3)
_PASSES = tl.constexpr(PASSES)
_ROOM_FOR_PASSES = tl.constexpr(16)
_FIRST_UNIT = tl.constexpr(1 << 27)


@triton.jit(do_not_specialize=["count"], do_not_specialize_on_alignment=["rows_ptr", "tokens_ptr"])
def penalise_kernel(
    logits_ptr, rows_ptr, tokens_ptr, factors_ptr, stride, count, BLOCK: tl.constexpr
):
    """BLOCK single logits, in place. ``factors_ptr``: [3, count] factor, inverse, deduction."""
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    known = at < count
    place = tl.load(rows_ptr + at, mask=known, other=0) * stride
    place += tl.load(tokens_ptr + at, mask=known, other=0)
    value = tl.load(logits_ptr + place, mask=known, other=0.0)
    factor = tl.load(factors_ptr + at, mask=known, other=1.0)
    inverse = tl.load(factors_ptr + count + at, mask=known, other=1.0)
    deduction = tl.load(factors_ptr + 2 * count + at, mask=known, other=0.0)
    value = value * tl.where(value > 0, inverse, factor) - deduction
    tl.store(logits_ptr + place, value, mask=known)


@triton.jit
def _allowed(words_ptr, numbers_ptr, row, token, num_words, MASKED: tl.constexpr):
    """Which of a row's tokens its mask lets through."""
    if MASKED:
        inside = token // 32 < num_words
        word = tl.load(words_ptr + row * num_words + token // 32, mask=inside, other=0)
        free = tl.load(numbers_ptr + row * _COLUMNS + 6) == 0
        return (((word >> (token % 32)) & 1) != 0) | free
    return token >= 0


@triton.jit
def _mass(distance):
    """``kernels.masked_sampling.mass_of`` of int32."""
    place = (distance & (_UNIT - 1)).to(tl.int64)
    power = tl.full(distance.shape, _HALVING_5, tl.int64)
    power = ((power * place) >> _PLACES) + _HALVING_4
    power = ((power * place) >> _PLACES) + _HALVING_3
    power = ((power * place) >> _PLACES) + _HALVING_2
    power = ((power * place) >> _PLACES) + _HALVING_1
    power = ((power * place) >> _PLACES) + (1 << 30)
    return (power << _MASS_SHIFT) >> (distance >> _PLACES).to(tl.int64)


@triton.jit
def _share(whole, share):
    """Floor of ``whole * share / 2 ** SHARE_BITS``."""
    return tl.umulhi(whole.to(tl.uint64), share.to(tl.uint64) << _SHARE_SHIFT).to(tl.int64)


@triton.jit
def best_kernel(
    logits_ptr,
    words_ptr,
    numbers_ptr,
    best_ptr,
    first_ptr,
    stride,
    num_words,
    vocab_size,
    MASKED: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """The best allowed logit of one tile and the first token that has it; NOT_FINITE in its
    place if any logit is not. Grid: (rows, tiles)."""
    row = tl.program_id(0).to(tl.int64)
    token = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    known = token < vocab_size
    logit = tl.load(logits_ptr + row * stride + token, mask=known, other=0.0)
    exponent = logit.to(tl.int32, bitcast=True) & 0x7F800000
    damaged = tl.max((exponent == 0x7F800000).to(tl.int32), 0)
    open_to = known & _allowed(words_ptr, numbers_ptr, row, token, num_words, MASKED)
    logit = tl.where(open_to & (damaged == 0), logit, float("-inf"))
    best = tl.max(logit, 0)
    first = tl.min(tl.where(logit == best, token, 0x7FFFFFFF), 0)
    place = row * tl.num_programs(1) + tl.program_id(1)
    tl.store(best_ptr + place, best)
    tl.store(first_ptr + place, tl.where(damaged > 0, _NOT_FINITE, first))


@triton.jit
def weigh_kernel(
    logits_ptr,
    words_ptr,
    numbers_ptr,
    best_ptr,
    distances_ptr,
    sums_ptr,
    stride,
    num_words,
    vocab_size,
    MASKED: tl.constexpr,
    BLOCK: tl.constexpr,
    TILES: tl.constexpr,
):
    """Distances of one tile's tokens, and the mass of those that min-p keeps.
    Grid: (rows, tiles)."""
    row = tl.program_id(0).to(tl.int64)
    scale = tl.load(numbers_ptr + row * _COLUMNS).to(tl.int32).to(tl.float32, bitcast=True)
    if scale == 0.0:
        return
    tiles = tl.num_programs(1)
    tile = tl.arange(0, TILES)
    bests = tl.load(best_ptr + row * tiles + tile, mask=tile < tiles, other=float("-inf"))
    best = tl.max(bests, 0)
    token = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    known = token < vocab_size
    logit = tl.load(logits_ptr + row * stride + token, mask=known, other=0.0)
    open_to = known & _allowed(words_ptr, numbers_ptr, row, token, num_words, MASKED)
    far = (best - logit) * scale
    near = (far >= 0) & (far < _FARTHEST)  # neither, if a logit is not finite
    far = tl.where(open_to & near, far, _FARTHEST)
    distance = (far * _UNIT).to(tl.int32)
    tl.store(distances_ptr + row * vocab_size + token, distance, mask=known)
    mass = _mass(distance)
    mass = tl.where(mass < tl.load(numbers_ptr + row * _COLUMNS + 3), 0, mass)
    tl.store(sums_ptr + row * tiles + tl.program_id(1), tl.sum(mass, 0))


@triton.jit
def _found(reached_ptr, wanted, steps):
    """The findings of ``steps`` passes of a search: the least distance such that what is not
    farther reaches ``wanted``, as far as its first digits. ``reached_ptr``: [_PASSES, 8]."""
    step = tl.arange(0, _ROOM_FOR_PASSES)
    done = step < steps
    place = step[:, None] * 8 + tl.arange(0, 8)[None, :]
    reached = tl.load(reached_ptr + place, mask=done[:, None], other=0)
    digits = tl.sum((reached < wanted).to(tl.int32), 1)
    units = _FIRST_UNIT >> tl.minimum(step * _DIGITS, 30)
    return tl.sum(tl.where(done, digits * units, 0), 0)


@triton.jit
def _wanted_mass(reached_ptr, numbers_ptr):
    """The mass that top-p keeps at least; the last bound of the first pass is beyond every
    token."""
    total = tl.load(reached_ptr + 7)
    return tl.maximum(_share(total, tl.load(numbers_ptr + 2)), 1)


@triton.jit
def _limit(reached_ptr, numbers_ptr, COUNTED: tl.constexpr, WEIGHED: tl.constexpr):
    """How far one row's tokens may be for top-k and top-p, after the searches."""
    limit = _NOTHING_LEFT + 0
    if COUNTED:
        top_k = tl.load(numbers_ptr + 1)
        limit = tl.where(top_k > 0, _found(reached_ptr, top_k, _PASSES), limit)
    if WEIGHED:
        reached_ptr += _PASSES * 8
        wanted = _wanted_mass(reached_ptr, numbers_ptr)
        nearest = _found(reached_ptr, wanted, _PASSES)
        limit = tl.where(tl.load(numbers_ptr + 2) > 0, nearest, limit)
    return limit


@triton.jit(do_not_specialize=["step"])
def search_kernel(
    distances_ptr,
    numbers_ptr,
    reached_ptr,
    vocab_size,
    step,
    COUNT: tl.constexpr,
    COUNTED: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """One tile's part of one pass: what its tokens add up to within each of eight distances, in
    tokens (COUNT, for top-k) or in mass (for top-p, of what top-k keeps). Grid: (rows, tiles).
    ``reached_ptr``: [rows, 2, _PASSES, 8], zeros before the first pass."""
    row = tl.program_id(0).to(tl.int64)
    numbers_ptr += row * _COLUMNS
    reached_ptr += row * (2 * _PASSES * 8)
    asked = tl.load(numbers_ptr + 1) if COUNT else tl.load(numbers_ptr + 2)
    if (tl.load(numbers_ptr) == 0) | (asked == 0):
        return
    if COUNT:
        limit = _NOTHING_LEFT + 0
        wanted = asked
    else:
        limit = _limit(reached_ptr, numbers_ptr, COUNTED, False)
        reached_ptr += _PASSES * 8
        wanted = _wanted_mass(reached_ptr, numbers_ptr)
    low = _found(reached_ptr, wanted, step)
    bounds = low + (tl.arange(0, 8) + 1) * (_FIRST_UNIT >> (_DIGITS * step)) - 1
    at = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    known = at < vocab_size
    distance = tl.load(distances_ptr + row * vocab_size + at, mask=known, other=0)
    kept = known & (distance <= limit)
    weight = kept.to(tl.int64)
    if not COUNT:
        weight = tl.where(kept, _mass(distance), 0)
    near = distance[:, None] <= bounds[None, :]
    reached = tl.sum(tl.where(near, weight[:, None], 0), 0)
    tl.atomic_add(reached_ptr + step * 8 + tl.arange(0, 8), reached, sem="relaxed")


@triton.jit
def _kept_mass(distances_ptr, numbers_ptr, limit, token, vocab_size):
    """The mass of one row's tokens after all filters."""
    known = token < vocab_size
    distance = tl.load(distances_ptr + token, mask=known, other=0)
    mass = _mass(distance)
    kept = known & (mass >= tl.load(numbers_ptr + 3)) & (distance <= limit)
    return tl.where(kept, mass, 0)


@triton.jit
def sum_kernel(
    distances_ptr,
    numbers_ptr,
    reached_ptr,
    sums_ptr,
    vocab_size,
    COUNTED: tl.constexpr,
    WEIGHED: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """The mass of one tile after all filters. Grid: (rows, tiles)."""
    row = tl.program_id(0).to(tl.int64)
    numbers_ptr += row * _COLUMNS
    if tl.load(numbers_ptr) == 0:
        return
    limit = _limit(reached_ptr + row * (2 * _PASSES * 8), numbers_ptr, COUNTED, WEIGHED)
    token = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    mass = _kept_mass(distances_ptr + row * vocab_size, numbers_ptr, limit, token, vocab_size)
    tl.store(sums_ptr + row * tl.num_programs(1) + tl.program_id(1), tl.sum(mass, 0))


@triton.jit
def draw_kernel(
    distances_ptr,
    numbers_ptr,
    reached_ptr,
    best_ptr,
    first_ptr,
    sums_ptr,
    tokens_ptr,
    tiles,
    vocab_size,
    COUNTED: tl.constexpr,
    WEIGHED: tl.constexpr,
    BLOCK: tl.constexpr,
    TILES: tl.constexpr,
):
    """One row's token. Grid: (rows,)."""
    row = tl.program_id(0).to(tl.int64)
    tile = tl.arange(0, TILES)
    real = tile < tiles
    bests = tl.load(best_ptr + row * tiles + tile, mask=real, other=float("-inf"))
    firsts = tl.load(first_ptr + row * tiles + tile, mask=real, other=_FAR_OUT)
    best = tl.max(bests, 0)
    token = tl.min(tl.where(bests == best, firsts, 0x7FFFFFFF), 0)
    if tl.min(firsts, 0) == _NOT_FINITE:
        token = _NOT_FINITE
    elif best == float("-inf"):
        token = _NO_TOKEN
    elif tl.load(numbers_ptr + row * _COLUMNS) != 0:
        sums = tl.load(sums_ptr + row * tiles + tile, mask=real, other=0)
        upto = tl.cumsum(sums, 0)
        seed = tl.load(numbers_ptr + row * _COLUMNS + 4)
        position = tl.load(numbers_ptr + row * _COLUMNS + 5)
        none = tl.zeros((), tl.uint32)
        low, high = position.to(tl.uint32), (position >> 32).to(tl.uint32)
        first, second, _, _ = tl.philox(seed, low, high, none, none)
        bits = ((first >> 5).to(tl.int64) << 26) | (second >> 6).to(tl.int64)
        target = _share(tl.sum(sums, 0), bits)
        chosen = tl.sum((real & (upto <= target)).to(tl.int32), 0)
        before = tl.sum(tl.where(tile < chosen, sums, 0), 0)
        inside = chosen * BLOCK + tl.arange(0, BLOCK)
        limit = _limit(
            reached_ptr + row * (2 * _PASSES * 8), numbers_ptr + row * _COLUMNS, COUNTED, WEIGHED
        )
        mass = _kept_mass(
            distances_ptr + row * vocab_size,
            numbers_ptr + row * _COLUMNS,
            limit,
            inside,
            vocab_size,
        )
        upto = tl.cumsum(mass, 0) + before
        token = chosen * BLOCK + tl.sum((upto <= target).to(tl.int32), 0)
    tl.store(tokens_ptr + row, token.to(tl.int64))


@dataclass(frozen=True, slots=True, kw_only=True)
class OnDevice:
    """A batch as the kernels are given it, on the device."""

    numbers: Tensor
    """See ``packed_numbers``."""
    words: Tensor | None
    """The rows' masks, [rows, words] int32."""
    counted: bool
    """Whether some row has top-k."""
    weighed: bool
    """Whether some row has top-p."""


def sample(logits: Tensor, batch: SamplingBatch) -> Tensor:
    """See ``kernels.masked_sampling.sample_reference``; logits are float32, tokens stay on
    their device."""
    if batch.penalties is not None:
        logits = penalised(logits, batch.penalties)
    return draw(logits, put_on_device(batch, logits.shape[1], logits.device))


def put_on_device(batch: SamplingBatch, vocab_size: int, device: torch.device) -> OnDevice:
    """The parameters of ``batch`` but for its penalties."""
    numbers = WholeNumbers.of(batch, vocab_size)
    return OnDevice(
        numbers=upload(packed_numbers(numbers, batch), device),
        words=None if batch.masks is None else upload(batch.masks.contiguous(), device),
        counted=bool((numbers.top_k > 0).any()),
        weighed=bool((numbers.top_p > 0).any()),
    )


def draw(logits: Tensor, told: OnDevice) -> Tensor:
    """One token per row of ``logits`` [rows, vocab] float32: kernels alone."""
    logits = logits if logits.stride(-1) == 1 else logits.contiguous()
    rows, vocab = logits.shape
    device = logits.device
    packed, words = told.numbers, told.words
    filters = {"COUNTED": told.counted, "WEIGHED": told.weighed}
    tiles = triton.cdiv(vocab, TOKENS_EACH)
    best = torch.empty(rows, tiles, dtype=torch.float32, device=device)
    first = torch.empty(rows, tiles, dtype=torch.int32, device=device)
    sums = torch.empty(rows, tiles, dtype=torch.int64, device=device)
    distances = torch.empty(rows, vocab, dtype=torch.int32, device=device)
    limited = told.counted or told.weighed
    reached = torch.zeros(rows if limited else 0, 2, PASSES, 8, dtype=torch.int64, device=device)
    tokens = torch.empty(rows, dtype=torch.int64, device=device)
    sizes = {"BLOCK": TOKENS_EACH, "num_warps": 4}
    padded = triton.next_power_of_2(tiles)
    masked = packed if words is None else words, packed
    lengths = logits.stride(0), 0 if words is None else words.shape[1], vocab
    own = {"MASKED": words is not None} | sizes
    launch(best_kernel, (rows, tiles))(logits, *masked, best, first, *lengths, **own)
    launch(weigh_kernel, (rows, tiles))(
        logits, *masked, best, distances, sums, *lengths, **own, TILES=padded
    )
    for count, asked in ((True, told.counted), (False, told.weighed)):
        for step in range(PASSES if asked else 0):
            launch(search_kernel, (rows, tiles))(
                distances,
                packed,
                reached,
                vocab,
                step,
                COUNT=count,
                COUNTED=told.counted,
                BLOCK=TOKENS_EACH,
                num_warps=SEARCH_WARPS,
            )
    if limited:
        launch(sum_kernel, (rows, tiles))(
            distances, packed, reached, sums, vocab, **filters, **sizes
        )
    launch(draw_kernel, (rows,))(
        distances,
        packed,
        reached,
        best,
        first,
        sums,
        tokens,
        tiles,
        vocab,
        **filters,
        TILES=padded,
        **sizes,
    )
    return tokens


def penalised(logits: Tensor, penalties: Penalties) -> Tensor:
    """See ``kernels.masked_sampling.penalised_reference``."""
    shaped = logits.clone()
    parts = penalties.factors, 1 / penalties.factors, penalties.deductions
    factors = upload(np.stack(parts).astype(np.float32), logits.device)
    at = upload(np.stack((penalties.rows, penalties.tokens)), logits.device)
    count = at.shape[1]
    launch(penalise_kernel, (triton.cdiv(count, TOKENS_EACH),))(
        shaped,
        at[0],
        at[1],
        factors,
        shaped.stride(0),
        count,
        BLOCK=TOKENS_EACH,
        num_warps=4,
        enable_fp_fusion=False,
    )
    return shaped


def packed_numbers(numbers: WholeNumbers, batch: SamplingBatch) -> Tensor:
    """[rows, COLUMNS] int64: what the kernels are told of each row, in one copy."""
    columns = (
        numbers.scales.view(np.int32).astype(np.int64),
        numbers.top_k,
        numbers.top_p,
        numbers.least_mass,
        batch.seeds.view(np.int64),
        batch.positions.view(np.int64),
        batch.masked.astype(np.int64),
    )
    return torch.from_numpy(np.stack(columns, axis=1))
