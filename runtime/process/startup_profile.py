"""Times of steps on this machine, found out before the first request.

Steps of the sizes that a ``CostTable`` has cells for are computed a few times: the first time pays
for what is made once (compiled kernels, prepared products, recorded steps) and does not count, of
the others the shortest does, so that one hiccup spoils nothing, and none while the pool's memory is
being provided, which takes a core. What is worth most comes first; when the time is over the other
cells are extrapolated, and filled in by turns.

Times of an earlier start (``runtime.process.stored_profile``) are taken where two of them still
hold; the time then goes to cells that no start has come to yet, and to timing again what is known.

Knows a runner and a clock. Knows no sequences and no cache: it runs while the pool belongs to
nobody yet.

Always true: no step is begun that would end after the time allowed, as far as those before it
tell, where the first of each kind does not count; what is paid once and one hiccup may take some
more; what steps have written is in blocks that nobody
takes for written.
"""

import logging
import math
from collections.abc import Callable

import numpy as np

from runtime.messages import TokenArray
from runtime.model.batch import TRIAL_STATE, SequenceInput
from runtime.model.runner import ModelRunner
from runtime.process.stored_profile import StoredProfile, Times
from runtime.scheduling.costs import ROWS, TOKENS, CostProfile, CostTable

_CELLS = (
    (0, 1),
    (16, 0),
    (0, 8),
    (256, 0),
    (64, 0),
    (64, 8),
    (1, 0),
    (256, 8),
    (1024, 0),
    (16, 8),
    (0, 32),
    (64, 1),
    (256, 1),
    (16, 1),
    (1024, 8),
    (64, 32),
    (256, 32),
    (16, 32),
)
"""(prompt tokens, decode rows), what is worth most first."""
_CHECKED = ((0, 1), (64, 0))
"""Cells by which times of an earlier start are checked."""
_STILL_HOLDS = 1.5
"""How many times longer or shorter steps may have become for a stored profile to hold."""
_LONG_CONTEXT = 2048
_FAR_CELLS = ((0, 8, 2048), (64, 0, 2048), (256, 0, 6144))
"""(prompt tokens, decode rows, position) of steps behind a long context, which tell what context
costs. Attention to what no cache holds any more is dearer: the farthest counts."""
_AGAIN_SHARE = 4
"""One part in so many of the time is for timing again where nothing is left to be found out."""
_TIMES = 3
_MOST_TIMES = 8
"""How many times the time allowed it may take, with what is paid once, and with a hiccup."""

log = logging.getLogger(__name__)


def measured_table(
    runner: ModelRunner,
    *,
    seconds: float,
    max_batch_tokens: int,
    clock: Callable[[], float],
    stored: StoredProfile | None = None,
) -> CostTable:
    """The table of this machine, by steps that take ``seconds`` together at most, and by what is
    ``stored``, which is brought up to date. Where the pool or the time is too small for any, it is
    the one that the cost model starts with."""
    if seconds <= 0.0:
        return CostTable.linear(CostProfile())
    runner.pool.settle()
    trials = _Trials(runner, clock, seconds=seconds)
    longest = min(runner.num_blocks * runner.block_size, runner.model.config.max_context_tokens)
    cells = [
        (tokens, rows)
        for tokens, rows in _CELLS
        if tokens + rows <= max_batch_tokens and max(tokens, 2) <= longest
    ]
    known = {} if stored is None else stored.read()
    times = trials.check(known)
    if stored is not None and known and not times:
        log.info("stored step times %s hold no longer, timed anew", stored.path)
    far = [cell for cell in _FAR_CELLS if cell[0] + cell[2] + 1 <= longest]
    if times.keys() >= {*cells, *map(_far_key, far)}:
        trials.hurry(seconds / _AGAIN_SHARE)
    for number, cell in enumerate(sorted(cells, key=times.__contains__)):
        found = trials.shortest_s(*cell, 0, expected_s=_expected_s(times, *cell))
        if found is not None:
            times[cell] = min(found, times.get(cell, found))
        if number == 4 and (64, 0) in times and (0, 8) in times:
            _time_far(trials, far, times)
    if stored is not None and times and times != known:
        stored.write(times)
    return _table_of(times)


def _time_far(trials: "_Trials", far: list[tuple[int, int, int]], times: Times) -> None:
    """Time steps behind long contexts, under keys that are no cells."""
    for tokens, rows, position in far:
        key = _far_key((tokens, rows, position))
        expected_s = times.get(key, times.get((tokens, rows), 0.0))
        found = trials.shortest_s(tokens, rows, position, expected_s=expected_s)
        if found is not None:
            times[key] = min(found, times.get(key, found))


def _far_key(cell: tuple[int, int, int]) -> tuple[int, int]:
    tokens, rows, position = cell
    return tokens + position, rows


def _expected_s(times: Times, tokens: int, rows: int) -> float:
    """At most what a step takes: in proportion to the largest smaller one."""
    smaller = [
        seconds * (tokens + rows) / (n + r)
        for (n, r), seconds in times.items()
        if n <= tokens and r <= rows and n + r
    ]
    return min(smaller, default=0.0)


def _table_of(times: Times) -> CostTable:
    """The timed cells, and the others as the structure of steps suggests: they cost what their
    tokens cost in one go, and never less than a smaller step."""
    if (0, 1) not in times and (16, 0) not in times:
        return CostTable.linear(CostProfile())
    pair_s, context_s = _context_costs(times)
    plain = {
        (n, rows): max(seconds - pair_s * n * n / 2, seconds / 2)
        for (n, rows), seconds in times.items()
        if n < _LONG_CONTEXT
    }
    together = sorted((n + rows, seconds) for (n, rows), seconds in plain.items())
    cells = [[0.0] * len(ROWS) for _ in TOKENS]
    timed = [[False] * len(ROWS) for _ in TOKENS]
    for i, n in enumerate(TOKENS):
        for j, rows in enumerate(ROWS):
            if n or rows:
                timed[i][j] = (n, rows) in plain
                cells[i][j] = plain.get((n, rows)) or _along(together, n + rows)
    table = CostTable(cells=cells, pair_s=pair_s, context_s=context_s, timed=timed)
    table.straighten()
    return table


def _along(points: list[tuple[int, float]], size: int) -> float:
    """The value for ``size`` between sorted points; before the first one what that is, beyond the
    last one between staying and growing in proportion: few tokens tell little of many."""
    before = [point for point in points if point[0] <= size]
    after = [point for point in points if point[0] >= size]
    if not before:
        return points[0][1]
    if not after:
        last, seconds = points[-1]
        times = size / last
        return seconds * (math.sqrt(times) if last < TOKENS[3] else 1 + 0.75 * (times - 1))
    (low, left), (high, right) = before[-1], after[0]
    return left if high == low else left + (right - left) * (size - low) / (high - low)


def _context_costs(times: Times) -> tuple[float, float]:
    """Seconds per pair of prompt token and token before it, and per token that decodes read."""
    pair_s = context_s = 0.0
    for tokens, rows, position in _FAR_CELLS:
        far, near = times.get(_far_key((tokens, rows, position))), times.get((tokens, rows))
        if far is None or near is None:
            continue
        added_s = max(0.0, far - near)
        if tokens:
            pair_s = max(pair_s, added_s / (tokens * position))
        else:
            context_s = added_s / (rows * position)
    return pair_s, context_s


class _Trials:
    """Times steps of one runner up to a moment."""

    def __init__(self, runner: ModelRunner, clock: Callable[[], float], *, seconds: float) -> None:
        self._runner = runner
        self._clock = clock
        self._long_s = seconds / 4
        now = clock()
        self._until = now + seconds
        self._latest = now + _MOST_TIMES * seconds
        self._forgiven = False

    def check(self, known: Times) -> Times:
        """The times of an earlier start, if the checked cells take about what it says."""
        ratios = []
        for cell in _CHECKED:
            if cell not in known:
                return {}
            found = self.shortest_s(*cell, 0, expected_s=known[cell])
            if found is None:
                return {}
            ratios.append(found / known[cell])
        holds = all(1 / _STILL_HOLDS <= ratio <= _STILL_HOLDS for ratio in ratios)
        return dict(known) if holds else {}

    def hurry(self, seconds: float) -> None:
        """Stop the trials as soon as possible."""
        self._until = min(self._until, self._clock() + seconds)

    def shortest_s(
        self, num_tokens: int, num_rows: int, position: int, *, expected_s: float
    ) -> float | None:
        """The shortest time of a step that counts, in which a prompt computes so many tokens and so
        many sequences one each, all behind ``position`` others; None if there was no time for two
        that count."""
        counted: list[float] = []
        for number in range(_TIMES):
            started = self._clock()
            if started + expected_s > self._until:
                break
            if number == 1:  # the first step may have come near to the memory that is there
                self._runner.pool.settle()
                settled = self._clock()
                self._until, started = self._until + settled - started, settled
            _run(self._runner, num_tokens, num_rows, position)
            took_s = self._clock() - started
            is_hiccup = took_s > self._long_s and not self._forgiven
            if number == 0 or is_hiccup:
                # What is paid once is not what is timed, and one hiccup shall not take all time.
                self._forgiven = self._forgiven or number > 0
                self._until = min(self._until + took_s, self._latest)
            if number and took_s > 0.0:
                counted.append(took_s)
                expected_s = min(counted)
        return min(counted) if len(counted) >= _TIMES - 1 else None


def _run(runner: ModelRunner, num_tokens: int, num_rows: int, position: int) -> None:
    """One step of tokens that say nothing."""
    lengths = [num_tokens] * (num_tokens > 0) + [1] * num_rows
    longest = -(-(position + max(lengths)) // runner.block_size)
    apart = max(1, min(longest, runner.num_blocks // len(lengths)))
    inputs = [
        _input(runner, length, position, first_block=number * apart)
        for number, length in enumerate(lengths)
    ]
    runner.run_trial(inputs)[0, 0].item()  # waits for the device


def _input(
    runner: ModelRunner, num_tokens: int, position: int, *, first_block: int
) -> SequenceInput:
    """A sequence in blocks of its own, as far as the pool has so many: contexts that begin with the
    same block are read together."""
    size = runner.block_size
    tokens: TokenArray = np.arange(position, position + num_tokens, dtype=np.int32)
    blocks = np.arange(first_block, first_block - (-(position + num_tokens) // size))
    return SequenceInput(
        tokens=tokens % runner.model.config.vocab_size,
        start=position,
        block_table=(blocks % runner.num_blocks).astype(np.int32),
        num_logits=1,
        state_slot=TRIAL_STATE,
    )
