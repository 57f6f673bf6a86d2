"""Which layout of its weights a linear map multiplies with, decided once for a whole model.

What is fastest depends on the processor and on the rows of a product: tiles read one row's
weights at the speed of the memory, matrix units want another layout for many rows. So each
layout is timed, and the one with the best weighted time is kept, or two of them, one for few
rows and one for many, where that pays and there is memory for it.

Knows times, from whoever takes them (``runtime.model.product_timing``), and memory. Knows no
tensors and no clock.

Always true: the same times give the same choice; a layout of later rank is chosen only over one
that it beats by what the rules ask.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

Layout = Literal["tiles", "widened", "packed", "plain"]
"""``kernels.tiled_matrix``, as it lies, or laid out anew for each product, which takes no second
copy; oneDNN's blocks, laid out once; rows of inputs, as in a checkpoint."""
RANK: tuple[Layout, ...] = ("tiles", "packed", "plain")
"""Layouts of a copy. Where nothing was timed, the first that the matrix can have is taken."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProductRules:
    """The rules by which a choice is made."""

    row_weights: tuple[tuple[int, float], ...] = (
        (1, 0.45),
        (8, 0.3),
        (16, 0.15),
        (64, 0.05),
        (256, 0.05),
    )
    """Numbers of rows that are timed, and how often a step has about so many: agents' turns
    read some 150 tokens and write some 30."""
    gain: float = 0.05
    """Share of the weighted time that a layout must save over one of earlier rank, and a second
    copy over the best single one: so much for each size of a first copy that it takes."""
    second_copy_share: float = 1 / 8
    """A share of the memory that the model leaves free: what second copies may take."""
    least_bytes: int = 16 << 20
    """Models with smaller linear maps are not timed: they do not wait for memory."""
    seconds: float = 1.0
    """The time that measuring may take; what is not known by then is not chosen. A quiet machine
    tells within a third of it, and what it has told is kept."""


RULES = ProductRules()


@dataclass(frozen=True, slots=True, kw_only=True)
class ProductChoice:
    """The layouts in which linear maps are kept. A map whose weight cannot have a layout takes the
    next."""

    few: Layout
    many: Layout | None = None
    """For many rows; None: they are as few."""
    from_rows: int = 0
    """Products of so many rows and more are made by ``many``."""

    def __post_init__(self) -> None:
        if self.few not in RANK:
            raise ValueError(f"{self.few} is for many rows")
        if self.many is None and self.from_rows:
            raise ValueError(f"from_rows is {self.from_rows} without another layout for many")
        if self.many is not None and (self.from_rows < 2 or self.many == self.few):
            raise ValueError(f"no use for {self.many} from {self.from_rows} rows on")
        if self.many == "widened" and self.few != "tiles":
            raise ValueError(f"only tiles are widened, not {self.few}")


class ProductTimer(Protocol):
    """Times the model's products."""

    def times(self, layouts: Sequence[Layout], rows: int) -> Mapping[Layout, float] | None:
        """Seconds of the same products of ``rows`` rows in each layout; None: no time for it, or
        no times that could be trusted."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class AllowedLayouts:
    """The layouts that may be kept."""

    first: Sequence[Layout]
    """Layouts of the only copy, or of the one for few rows; not empty, by rank."""
    second_size: float | None
    """A second copy's bytes in those of a first one; None: there is no memory for one."""
    second: Sequence[Layout] = ()
    """Layouts that a second copy of a matrix may have."""


def choose(
    timer: ProductTimer, copies: AllowedLayouts, rules: ProductRules
) -> ProductChoice | None:
    """The best choice by ``timer``; None if it cannot tell."""
    second = copies.second if copies.second_size is not None else ()
    layouts = [name for name in RANK if name in copies.first or name in second]
    if layouts == ["plain"]:
        return ProductChoice(few="plain")
    times: list[tuple[int, float, Mapping[Layout, float]]] = []
    for rows, weight in rules.row_weights:
        widened: list[Layout] = ["widened"] if "tiles" in layouts and rows >= _WIDENED_ROWS else []
        taken = timer.times([*layouts, *widened], rows)
        if taken is None:
            return None
        times.append((rows, weight, taken))
    best = _best(times, copies.first[0])
    for few in copies.first[1:]:
        other = _best(times, few)
        if other.seconds < best.seconds * (1 - rules.gain):
            best = other
    pairs = [_mixed(times, few, many) for few in copies.first for many in second if few != many]
    pair = min(pairs, key=lambda mixed: mixed.seconds, default=best)
    if pair.seconds < best.seconds * (1 - rules.gain * (copies.second_size or 0.0)):
        best = pair
    if best.many is None:
        return ProductChoice(few=best.few)
    change = _change_over(timer, best.few, best.many, best.between)
    return ProductChoice(few=best.few, many=best.many, from_rows=change)


_WIDENED_ROWS = 64
"""Fewer rows are not worth laying out a matrix for."""

_Times = Sequence[tuple[int, float, Mapping[Layout, float]]]
"""Rows, their weight, and the time of each layout."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Mixed:
    """A candidate, its weighted time, and the rows between which it changes over."""

    few: Layout
    many: Layout | None
    seconds: float
    between: tuple[int, int] = (0, 0)


def _best(times: _Times, few: Layout) -> _Mixed:
    """The time of a single copy."""
    seconds = sum(weight * taken[few] for _, weight, taken in times)
    alone = _Mixed(few=few, many=None, seconds=seconds)
    if few != "tiles":
        return alone
    widened = _mixed(times, few, "widened")
    return widened if widened.seconds < seconds else alone


def _mixed(times: _Times, few: Layout, many: Layout) -> _Mixed:
    """The best pair of the two; one that does not change over takes forever."""
    best = _Mixed(few=few, many=many, seconds=math.inf)
    for index in range(1, len(times)):
        parts = [weight * taken[few] for _, weight, taken in times[:index]]
        parts += [weight * taken.get(many, math.inf) for _, weight, taken in times[index:]]
        if sum(parts) < best.seconds:
            between = times[index - 1][0], times[index][0]
            best = _Mixed(few=few, many=many, seconds=sum(parts), between=between)
    return best


def _change_over(timer: ProductTimer, few: Layout, many: Layout, between: tuple[int, int]) -> int:
    """The fewest rows at which ``many`` is faster, to an eighth; more than the lower end of
    ``between`` and no more than its upper end."""
    low, high = between
    while high - low > max(1, low // 8):
        middle = (low + high) // 2
        taken = timer.times((few, many), middle)
        if taken is None:
            break
        if taken[many] < taken[few]:
            high = middle
        else:
            low = middle
    return high
