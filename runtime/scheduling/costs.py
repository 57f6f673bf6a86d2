"""Costs of steps on this machine: a table of measured steps, and how fast the machine is just now.

The shape comes from measurement: ``CostTable`` holds seconds of steps by how many prompt tokens
they compute and how many sequences decode in them, piecewise linear between its cells, and what
each token of context adds. The scale comes from life: one slow factor for steps that only
prefill, only decode, or do both. A factor moves by a few hundredths a step at most, whatever a
step took, towards the middle of what is seen; so one hiccup means nothing, a slower machine is
followed within some dozens of steps, and steps of one kind teach nothing wrong about others.

Pure; fed by the engine. Knows no clock and no sequences.

Always true: a step that computes more is never predicted to be shorter; predictions stay within
``MOST_SCALE`` times the table, both ways.
"""

import math
from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Literal

TOKENS = (0, 1, 16, 64, 256, 1024)
"""Prompt tokens of a cell's step."""
ROWS = (0, 1, 8, 32)
"""Sequences that decode in a cell's step."""
MOST_SCALE = 16.0
_STEP = 0.05
"""A factor's logarithm moves by so much a step at most."""
_NEAR = 0.02
"""Where predictions are this close (in the logarithm) a factor moves in proportion."""
_CELL_STEP = 0.2
"""A cell that was never timed learns faster, while it is new."""
_NEW_CELL_STEPS = 16
_ROUNDING = 1e-9
_ENDLESS_TOKENS = 1 << 31

Kind = Literal["prefill", "decode", "mixed"]


@dataclass(frozen=True, slots=True, kw_only=True)
class CostProfile:
    """Seconds per unit of work of a machine whose steps are linear: where a table starts before
    anything is timed, and the truth of a simulation."""

    prefill_token_s: float = 2e-4
    """alpha: per prefill token."""
    prefill_pair_s: float = 0.0
    """beta: per prefill token and token before it."""
    prefill_chunk_s: float = 0.0
    """phi: per chunk, however short."""
    decode_step_s: float = 1e-2
    """gamma: per step that decodes, however many sequences do."""
    decode_context_s: float = 0.0
    """delta: per token of context that the decodes of a step read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepWork:
    """The work of one step, by which its time is estimated."""

    prefill_tokens: int = 0
    prefill_pairs: float = 0.0
    """Sum of ``n * (c + n / 2)`` over the prefill chunks of n tokens behind c others."""
    prefill_chunks: int = 0
    decode_rows: int = 0
    decode_context: int = 0
    """Tokens of context that the decodes read."""

    @property
    def kind(self) -> Kind:
        if not self.decode_rows:
            return "prefill"
        return "mixed" if self.prefill_tokens else "decode"


@dataclass(slots=True, kw_only=True)
class CostTable:
    """Seconds of steps by prompt tokens and decode rows, without what attention adds."""

    cells: list[list[float]]
    """[len(TOKENS)][len(ROWS)], never falling along either; the first one is 0."""
    pair_s: float = 0.0
    """Per prompt token and token before it."""
    context_s: float = 0.0
    """Per token of context that decodes read."""
    chunk_s: float = 0.0
    """Per prefill chunk of a step but the first."""
    timed: list[list[bool]] = field(default_factory=lambda: [[False] * len(ROWS) for _ in TOKENS])
    """Cells that were measured; others are extrapolated."""

    @classmethod
    def linear(cls, profile: CostProfile) -> "CostTable":
        """The table of a machine that is as ``profile`` says."""
        return cls(
            cells=[
                [
                    (profile.prefill_chunk_s + n * profile.prefill_token_s if n else 0.0)
                    + (profile.decode_step_s if rows else 0.0)
                    for rows in ROWS
                ]
                for n in TOKENS
            ],
            pair_s=profile.prefill_pair_s,
            context_s=profile.decode_context_s,
            chunk_s=profile.prefill_chunk_s,
        )

    def seconds(self, tokens: int, rows: int) -> float:
        """Seconds of a step at no context, between the cells."""
        column = self.column(rows)
        return column[0] if not tokens else _at(column, tokens)

    def column(self, rows: int) -> list[float]:
        """Times of steps with ``rows`` decodes at each of ``TOKENS``; the last segment goes on
        beyond."""
        j = min(bisect_right(ROWS, rows) - 1, len(ROWS) - 2)
        if rows == ROWS[j]:
            return [row[j] for row in self.cells]
        share = (rows - ROWS[j]) / (ROWS[j + 1] - ROWS[j])
        return [row[j] + share * (row[j + 1] - row[j]) for row in self.cells]

    def step_s(self, work: StepWork) -> float:
        """Time of a step that computes ``work``."""
        return (
            self.seconds(work.prefill_tokens, work.decode_rows)
            + self.pair_s * work.prefill_pairs
            + self.context_s * work.decode_context
            + self.chunk_s * max(work.prefill_chunks - 1, 0)
        )

    def nearest(self, tokens: int, rows: int) -> tuple[int, int]:
        """The cell nearest to a step, by ratio."""
        return _nearest(TOKENS, tokens), _nearest(ROWS, rows)

    def straighten(self) -> None:
        """Raise what is below a smaller step's cell to it."""
        for i, row in enumerate(self.cells):
            for j in range(len(ROWS)):
                if i:
                    row[j] = max(row[j], self.cells[i - 1][j])
                if j:
                    row[j] = max(row[j], row[j - 1])


class _Scale:
    """How many times the table a kind of steps takes: a slow median of what is seen."""

    __slots__ = ("_log", "factor")

    def __init__(self) -> None:
        self._log = 0.0
        self.factor = 1.0

    def learn(self, ratio: float) -> None:
        """A step took ``ratio`` times what the table says of it."""
        error = math.log(max(ratio, 1e-9)) - self._log
        move = max(-_STEP, min(_STEP, error * _STEP / _NEAR if abs(error) < _NEAR else error))
        most = math.log(MOST_SCALE)
        self._log = max(-most, min(most, self._log + move))
        self.factor = math.exp(self._log)


class StepCosts:
    """Predicted seconds of work, following what the engine observes.

    Args:
        table: what steps took when they were timed, or a ``CostProfile`` in its place.
        restore_s: tokens of a transcript -> seconds to bring its KV back. None: it is
            computed again.
    """

    def __init__(
        self,
        table: CostTable | CostProfile | None = None,
        *,
        restore_s: Callable[[int], float] | None = None,
    ) -> None:
        if table is None or isinstance(table, CostProfile):
            table = CostTable.linear(table or CostProfile())
        self.table = table
        self._restore_s = restore_s
        self._scales: dict[Kind, _Scale] = {
            "prefill": _Scale(),
            "decode": _Scale(),
            "mixed": _Scale(),
        }
        self._seen_near: dict[tuple[int, int], int] = {}

    def scale(self, kind: Kind) -> float:
        """How many times the table steps of a kind take just now."""
        return self._scales[kind].factor

    def step_s(self, work: StepWork) -> float:
        """Seconds of a step that computes ``work``."""
        return self.table.step_s(work) * self._scales[work.kind].factor

    def prefill_s(self, num_tokens: int, position: int = 0) -> float:
        """Seconds to prefill ``num_tokens`` behind ``position`` others, by themselves."""
        if num_tokens <= 0:
            return 0.0
        pairs = num_tokens * (position + num_tokens / 2)
        seconds = self.table.seconds(num_tokens, 0) + self.table.pair_s * pairs
        return seconds * self._scales["prefill"].factor

    def decode_s(self, context: int, rows: int = 1) -> float:
        """Seconds of a step that only decodes ``rows`` sequences and reads ``context`` tokens."""
        seconds = self.table.seconds(0, rows) + self.table.context_s * context
        return seconds * self._scales["decode"].factor

    def added_s(self, num_tokens: int, position: int, *, tokens: int, rows: int) -> float:
        """The time that ``num_tokens`` behind ``position`` others add to a step that computes
        ``tokens`` of prompts already and decodes ``rows`` sequences."""
        table = self.table
        seconds = table.seconds(tokens + num_tokens, rows) - table.seconds(tokens, rows)
        seconds += table.pair_s * num_tokens * (position + num_tokens / 2)
        if tokens:
            seconds += table.chunk_s
        return seconds * self._scales["mixed" if rows else "prefill"].factor

    def restore_s(self, num_tokens: int) -> float:
        """Seconds to bring back the KV of a transcript of ``num_tokens``."""
        if self._restore_s is None:
            return self.prefill_s(num_tokens)
        return min(self._restore_s(num_tokens), self.prefill_s(num_tokens))

    def tokens_within(
        self, seconds: float, position: int, *, tokens: int = 0, rows: int = 0
    ) -> int:
        """How many tokens behind ``position`` others add at most ``seconds`` to a step that
        computes ``tokens`` of prompts already and decodes ``rows`` sequences."""
        table = self.table
        left = seconds / self._scales["mixed" if rows else "prefill"].factor
        left -= table.chunk_s if tokens else 0.0
        if left <= 0.0:
            return 0
        column = table.column(rows)
        begun, half, at = _at(column, tokens), table.pair_s / 2, 0
        linear = table.pair_s * position
        for index, end in enumerate((*TOKENS[1:], _ENDLESS_TOKENS)):
            if end <= tokens:
                continue
            per_token = _slope(column, min(index, len(TOKENS) - 2), beyond=end == _ENDLESS_TOKENS)
            spent = _at(column, tokens + at) - begun
            found = _root(left - spent + per_token * at, per_token + linear, half)
            if found < end - tokens:
                return int(found + _ROUNDING * max(1.0, found))
            at = end - tokens
        return _ENDLESS_TOKENS

    def knee_tokens(self, rows: int) -> int:
        """The chunk whose tokens cost as much by themselves as the chunk does beside them; a
        shorter one mostly pays for being there."""
        table = self.table
        column = table.column(rows)
        fixed_s, per_token = column[1] - column[0], _slope(column, len(TOKENS) - 2)
        if per_token <= 0.0:
            return TOKENS[-2]
        return max(TOKENS[2], min(int(fixed_s / per_token), TOKENS[-2]))

    def observe(self, work: StepWork, *, seconds: float) -> None:
        """Learn from one step that took ``seconds``."""
        expected = self.table.step_s(work)
        if seconds <= 0.0 or expected <= 0.0:
            return
        self._fill_in(work, seconds)
        self._scales[work.kind].learn(seconds / expected)

    def _fill_in(self, work: StepWork, seconds: float) -> None:
        """Bring a cell that was never timed nearer to a step near it, the first few times."""
        table = self.table
        i, j = cell = table.nearest(work.prefill_tokens, work.decode_rows)
        seen = self._seen_near.get(cell, 0)
        if table.timed[i][j] or seen >= _NEW_CELL_STEPS or not (i or j):
            return
        self._seen_near[cell] = seen + 1
        error = math.log(seconds / self.step_s(work))
        table.cells[i][j] *= math.exp(max(-_CELL_STEP, min(_CELL_STEP, error)))
        table.straighten()


def _slope(column: Sequence[float], index: int, *, beyond: bool = False) -> float:
    """Seconds a token in a segment of ``TOKENS``; beyond the last point what it is there, and
    half of the mean at least."""
    slope = (column[index + 1] - column[index]) / (TOKENS[index + 1] - TOKENS[index])
    return max(slope, column[-1] / TOKENS[-1] / 2) if beyond else slope


def _at(column: Sequence[float], tokens: int) -> float:
    """The value of a column between the points of ``TOKENS`` and beyond."""
    last = len(TOKENS) - 1
    index = bisect_right(TOKENS, tokens) - 1
    if index >= last:
        beyond = tokens - TOKENS[last]
        return (
            column[last] + beyond * _slope(column, last - 1, beyond=True)
            if beyond
            else column[last]
        )
    return column[index] + (tokens - TOKENS[index]) * _slope(column, index)


def _nearest(axis: Sequence[int], value: int) -> int:
    """Index of the point nearest to a value by ratio; 0 only for 0."""
    if not value:
        return 0
    return min(range(1, len(axis)), key=lambda index: abs(math.log(axis[index] / value)))


def _root(seconds: float, linear: float, half: float) -> float:
    """The n with ``linear * n + half * n * n == seconds``."""
    if seconds <= 0.0:
        return 0.0
    if half > 0.0:
        return 2 * seconds / (linear + math.sqrt(linear * linear + 4 * half * seconds))
    return seconds / linear if linear > 0.0 else float(_ENDLESS_TOKENS)


class OutputLengths:
    """Expected output tokens of a branch's next request: an exponential mean per branch.

    Bounded: the longest unused branch is forgotten first.
    """

    def __init__(
        self, *, initial: float = 300.0, weight: float = 0.3, capacity: int = 4096
    ) -> None:
        self._initial = initial
        self._weight = weight
        self._capacity = capacity
        self._means: dict[str, float] = {}

    def expected(self, branch_id: str) -> float:
        return self._means.get(branch_id, self._initial)

    def observe(self, branch_id: str, *, output_tokens: int) -> None:
        mean = self._means.pop(branch_id, self._initial)
        self._means[branch_id] = mean + self._weight * (output_tokens - mean)
        if len(self._means) > self._capacity:
            del self._means[next(iter(self._means))]
