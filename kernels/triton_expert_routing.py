"""Choosing experts, sorting picks and adding up what experts made, in Triton.

What ``kernels.expert_routing`` says: one launch each, scores and sums in float32.
Import this module only where Triton is to run; ``kernels.dispatch`` decides that.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.expert_routing import Picks, Routing
from kernels.launching import launch
from kernels.triton_elementwise import sigmoid

COLUMNS_EACH = 1024
EXPERTS_EACH = 16
"""Experts whose picks are counted at once."""
MOST_PICKS = 1024
"""More are not sorted by one program."""
MOST_EXPERTS = 1024


@triton.jit
def route_kernel(
    logits_ptr,
    correction_ptr,
    weights_ptr,
    chosen_ptr,
    scale,
    least_sum,
    EXPERTS: tl.constexpr,
    PADDED: tl.constexpr,
    TAKEN: tl.constexpr,
    SLOTS: tl.constexpr,
    GROUPS: tl.constexpr,
    PADDED_GROUPS: tl.constexpr,
    CHOSEN_GROUPS: tl.constexpr,
    BEST_OF_GROUP: tl.constexpr,
    SIGMOID: tl.constexpr,
    CORRECTED: tl.constexpr,
    NORMALISE: tl.constexpr,
):
    """One token. Scores that are no numbers lose every comparison and stay what they are."""
    token = tl.program_id(0).to(tl.int64)
    each = tl.arange(0, PADDED)
    known = each < EXPERTS
    logit = tl.load(logits_ptr + token * EXPERTS + each, mask=known, other=float("-inf"))
    logit = logit.to(tl.float32)
    if SIGMOID:
        score = sigmoid(logit)
    else:
        grown = tl.exp(logit - tl.max(logit, 0))
        score = grown / tl.sum(grown, 0)
    choice = score
    if CORRECTED:
        choice += tl.load(correction_ptr + each, mask=known, other=0.0).to(tl.float32)
    choice = tl.where(known & (choice > float("-inf")), choice, float("-inf"))
    if GROUPS > 1:
        group = tl.arange(0, PADDED_GROUPS)
        member = (each // (EXPERTS // GROUPS))[None, :] == group[:, None]
        left = tl.where(member & known[None, :], choice[None, :], float("-inf"))
        best = tl.zeros((PADDED_GROUPS,), tl.float32)
        for _ in tl.static_range(BEST_OF_GROUP):
            at = tl.argmax(left, 1)
            best += tl.max(left, 1)
            left = tl.where(each[None, :] == at[:, None], float("-inf"), left)
        best = tl.where(group < GROUPS, best, float("-inf"))
        taken = tl.zeros((PADDED_GROUPS,), tl.int32)
        for _ in tl.static_range(CHOSEN_GROUPS):
            first = tl.argmax(best, 0)
            taken = tl.where(group == first, 1, taken)
            best = tl.where(group == first, float("-inf"), best)
        allowed = tl.sum(tl.where(member, taken[:, None], 0), 0) > 0
        choice = tl.where(allowed, choice, float("-inf"))
    slot = tl.arange(0, SLOTS)
    weights = tl.zeros((SLOTS,), tl.float32)
    chosen = tl.zeros((SLOTS,), tl.int32)
    for number in tl.static_range(TAKEN):
        at = tl.argmax(choice, 0)
        mine = tl.sum(tl.where(each == at, score, 0.0), 0)
        weights = tl.where(slot == number, mine, weights)
        chosen = tl.where(slot == number, at, chosen)
        choice = tl.where(each == at, float("-inf"), choice)
    if NORMALISE:
        weights /= tl.sum(weights, 0) + least_sum
    place = token * TAKEN + slot
    kind = weights_ptr.dtype.element_ty
    tl.store(weights_ptr + place, (weights * scale).to(kind), mask=slot < TAKEN)
    tl.store(chosen_ptr + place, chosen.to(tl.int64), mask=slot < TAKEN)


@triton.jit(do_not_specialize=["picks"])
def sorted_picks_kernel(
    chosen_ptr,
    rows_ptr,
    starts_ptr,
    places_ptr,
    picks,
    TAKEN: tl.constexpr,
    PADDED: tl.constexpr,
    EXPERTS: tl.constexpr,
    BLOCK_E: tl.constexpr,
):
    """All picks in one program; those that are padding are behind all others."""
    at = tl.arange(0, PADDED)
    known = at < picks
    expert = tl.load(chosen_ptr + at, mask=known, other=EXPERTS).to(tl.int32)
    order = tl.sort(expert * PADDED + at) % PADDED
    tl.store(rows_ptr + at, (order // TAKEN).to(tl.int64), mask=known)
    tl.store(places_ptr + order, at.to(tl.int64), mask=known)
    for first in tl.range(0, EXPERTS + 1, BLOCK_E):
        each = first + tl.arange(0, BLOCK_E)
        before = tl.sum((expert[None, :] < each[:, None]).to(tl.int32), 1)
        tl.store(starts_ptr + each, before.to(tl.int64), mask=each <= EXPERTS)


@triton.jit
def combined_kernel(
    parts_ptr,
    places_ptr,
    weights_ptr,
    mine_ptr,
    out_ptr,
    HIDDEN: tl.constexpr,
    TAKEN: tl.constexpr,
    SOME: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """BLOCK columns of one token. Grid: (tokens, tiles of columns)."""
    token = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    known = column < HIDDEN
    acc = tl.zeros((BLOCK,), tl.float32)
    for number in tl.static_range(TAKEN):
        pick = token * TAKEN + number
        place, weight = tl.load(places_ptr + pick), tl.load(weights_ptr + pick).to(tl.float32)
        there = known
        if SOME:
            there = known & (tl.load(mine_ptr + pick) != 0)
        part = tl.load(parts_ptr + place * HIDDEN + column, mask=there, other=0.0)
        acc += weight * part.to(tl.float32)
    tl.store(out_ptr + token * HIDDEN + column, acc.to(out_ptr.dtype.element_ty), mask=known)


def route(
    logits: Tensor, correction: Tensor | None, routing: Routing, dtype: torch.dtype
) -> tuple[Tensor, Tensor]:
    """See ``kernels.expert_routing.route``."""
    tokens, experts = logits.shape
    shape, device = (tokens, routing.per_token), logits.device
    weights = torch.empty(shape, dtype=dtype, device=device)
    chosen = torch.empty(shape, dtype=torch.int64, device=device)
    if tokens == 0:
        return weights, chosen
    launch(route_kernel, (tokens,))(
        logits.contiguous(),
        logits if correction is None else correction,
        weights,
        chosen,
        routing.scale,
        routing.least_sum,
        EXPERTS=experts,
        PADDED=triton.next_power_of_2(experts),
        TAKEN=routing.per_token,
        SLOTS=triton.next_power_of_2(routing.per_token),
        GROUPS=routing.groups,
        PADDED_GROUPS=triton.next_power_of_2(routing.groups),
        CHOSEN_GROUPS=routing.chosen_groups,
        BEST_OF_GROUP=routing.best_of_group,
        SIGMOID=routing.scores == "sigmoid",
        CORRECTED=correction is not None,
        NORMALISE=routing.normalise,
        num_warps=4 if experts > 64 else 1,
    )
    return weights, chosen


def sorts(picks: int, experts: int) -> bool:
    """Whether so many picks are sorted by one program."""
    return 0 < picks <= MOST_PICKS and experts <= MOST_EXPERTS


def sorted_picks(chosen: Tensor, num_experts: int) -> Picks:
    """See ``kernels.expert_routing.sorted_picks_reference``; only where ``sorts``."""
    chosen = chosen.contiguous()
    rows = torch.empty(chosen.numel(), dtype=torch.int64, device=chosen.device)
    starts = torch.empty(num_experts + 1, dtype=torch.int64, device=chosen.device)
    places = torch.empty_like(chosen)
    launch(sorted_picks_kernel, (1,))(
        chosen,
        rows,
        starts,
        places,
        chosen.numel(),
        TAKEN=chosen.shape[1],
        PADDED=max(16, triton.next_power_of_2(chosen.numel())),
        EXPERTS=num_experts,
        BLOCK_E=EXPERTS_EACH,
        num_warps=8,
    )
    return Picks(rows, starts, places)


def combined(parts: Tensor, places: Tensor, weights: Tensor, mine: Tensor | None) -> Tensor:
    """See ``kernels.expert_routing.combined_reference``."""
    tokens, taken = places.shape
    hidden = parts.shape[1]
    output = torch.empty(tokens, hidden, dtype=parts.dtype, device=parts.device)
    if tokens == 0:
        return output
    launch(combined_kernel, (tokens, triton.cdiv(hidden, COLUMNS_EACH)))(
        parts.contiguous(),
        places.contiguous(),
        weights.contiguous(),
        weights if mine is None else mine.contiguous(),
        output,
        HIDDEN=hidden,
        TAKEN=taken,
        SOME=mine is not None,
        BLOCK=COLUMNS_EACH,
        num_warps=4,
    )
    return output
