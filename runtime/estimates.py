"""What work costs on this machine, learnt from the steps that ran. Pure; fed by the engine.

A step costs ``prefill + decode`` seconds: prefill of n tokens behind c others takes
``phi + alpha * n + beta * n * (c + n / 2)``, the decodes of a step together ``gamma + delta *
sum(context)``. Two least-squares fits of relative errors with a forgetting factor, so that
small chunks, which the bound of a step is about, count as much as large ones: steps that
only decode teach gamma and delta, steps with prefill teach phi, alpha and beta after the decode
share is taken off. Small chunks beside decodes cost more per token than prompts that have steps of
their own, and the two take turns: what may go beside decodes is told by a third fit, of such steps
alone. Always true: no coefficient is negative, and with nothing observed they are the
initial ones.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from itertools import combinations
from operator import mul

_FORGET = 0.99
_PRIOR = 1e-5
_OUTLIER = 8.0
_TRUSTED_AFTER = 20
_ROUNDING = 1e-6
"""Tokens that a bound may be passed by: seven tokens fit into the time of seven."""
_FIRST_BESIDE_TOKENS = 64
"""The most prompt tokens beside decodes before any were seen there. Later it is twice what was seen
lately, since a fit says little of what lies far from its data."""
_LATELY = 0.9
"""What tokens beside decodes count in the step after, where fewer are."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CostProfile:
    """Seconds per unit of work; a start value of the fit, or the truth of a simulation."""

    prefill_token_s: float = 2e-4
    """alpha: per prefill token."""
    prefill_pair_s: float = 0.0
    """beta: per prefill token and token before it."""
    prefill_chunk_s: float = 0.0
    """phi: per chunk, however short."""
    decode_step_s: float = 1e-2
    """gamma: per step that decodes, however many turns do."""
    decode_context_s: float = 0.0
    """delta: per token of context that the decodes of a step read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepWork:
    """What one step computed."""

    prefill_tokens: int = 0
    prefill_pairs: float = 0.0
    """Sum of ``n * (c + n / 2)`` over the prefill chunks."""
    prefill_chunks: int = 0
    decode_rows: int = 0
    decode_context: int = 0
    """Tokens of context that the decodes read."""


class _Fit:
    """Coefficients ``a`` of ``y = sum(a[i] * x[i])`` by least squares with forgetting, none of
    them negative. A weak prior keeps their ratio where the data do not tell them apart."""

    def __init__(self, *start: float, forget: float) -> None:
        self._start = start
        self._forget = forget
        self.values = list(start)
        indices = range(len(start))
        self._squares = [[0.0 for _ in indices] for _ in indices]
        self._products = [0.0 for _ in indices]
        self._count = 0
        self._supports = [
            support for size in indices for support in combinations(indices, size + 1)
        ]
        self._supports.reverse()

    @property
    def observed(self) -> bool:
        """Whether anything was learnt."""
        return self._count > 0

    def observe(self, *inputs: float, y: float, of: float) -> None:
        """Learn that ``y`` was right; errors count relative to ``of``."""
        if of <= 0.0:
            return
        x = [value / of for value in inputs]
        y = y / of
        if self._count >= _TRUSTED_AFTER:  # a hiccup of the machine says nothing of the work
            y = min(y, _OUTLIER * sum(map(mul, self.values, x)))
        self._count += 1
        for row, left in zip(self._squares, x, strict=True):
            for j, right in enumerate(x):
                row[j] = self._forget * row[j] + left * right
        self._products = [
            self._forget * t + left * y for t, left in zip(self._products, x, strict=True)
        ]
        self._solve()

    def _solve(self) -> None:
        """The best solution is the free one of some of the coefficients, the others 0: all
        of them unless one would be negative."""
        indices = range(len(self.values))
        pulls = [_PRIOR * self._squares[i][i] for i in indices]
        products = [self._products[i] + pulls[i] * self._start[i] for i in indices]
        best, best_error = None, 0.0
        for support in self._supports:
            rows = [
                [self._squares[i][j] + (pulls[i] if i == j else 0.0) for j in support]
                + [products[i]]
                for i in support
            ]
            found = _solution(rows)
            if found is None or min(found) < 0.0:
                continue
            # The error of a least-squares solution, but for what all have in common.
            error = -sum(map(mul, found, (products[i] for i in support)))
            if best is None or error < best_error:
                best, best_error = dict(zip(support, found, strict=True)), error
            if len(support) == len(indices):
                break
        if best is not None:
            self.values = [best.get(i, 0.0) for i in indices]


def _solution(rows: list[list[float]]) -> list[float] | None:
    """Of the symmetric positive system ``rows`` with its right side behind; None if it has
    none. ``rows`` are used up."""
    size = len(rows)
    for i, pivot_row in enumerate(rows):
        pivot = pivot_row[i]
        if pivot <= 0.0:
            return None
        for row in rows[i + 1 :]:
            factor = row[i] / pivot
            for j in range(i, size + 1):
                row[j] -= factor * pivot_row[j]
    answer = [0.0] * size
    for i in reversed(range(size)):
        rest = sum(rows[i][j] * answer[j] for j in range(i + 1, size))
        answer[i] = (rows[i][size] - rest) / rows[i][i]
    return answer


class StepCosts:
    """Predicted seconds of work, following what the engine observes.

    Args:
        profile: where the fit starts.
        restore_s: tokens of a transcript -> seconds to bring its KV back. None: it is
            computed again.
        forget: what a step counts relative to the next one; 1: all count alike.
    """

    def __init__(
        self,
        profile: CostProfile | None = None,
        *,
        restore_s: Callable[[int], float] | None = None,
        forget: float = _FORGET,
    ) -> None:
        start = profile or CostProfile()
        prefill = (start.prefill_token_s, start.prefill_pair_s, start.prefill_chunk_s)
        self._prefill = _Fit(*prefill, forget=forget)
        self._beside = _Fit(*prefill, forget=forget)
        self._most_beside = _FIRST_BESIDE_TOKENS / 2
        self._decode = _Fit(start.decode_step_s, start.decode_context_s, forget=forget)
        self._restore_s = restore_s

    @property
    def profile(self) -> CostProfile:
        """The coefficients of this moment."""
        token_s, pair_s, chunk_s = self._prefill.values
        step_s, context_s = self._decode.values
        return CostProfile(
            prefill_token_s=token_s,
            prefill_pair_s=pair_s,
            prefill_chunk_s=chunk_s,
            decode_step_s=step_s,
            decode_context_s=context_s,
        )

    def prefill_s(self, num_tokens: int, position: int = 0) -> float:
        """Seconds to prefill ``num_tokens`` behind ``position`` others in one go."""
        if num_tokens <= 0:
            return 0.0
        token_s, pair_s, chunk_s = self._prefill.values
        return chunk_s + num_tokens * (token_s + pair_s * (position + num_tokens / 2))

    def decode_s(self, context: int) -> float:
        """Seconds of a step that only decodes and reads ``context`` tokens in all."""
        step_s, context_s = self._decode.values
        return step_s + context_s * context

    def restore_s(self, num_tokens: int) -> float:
        """Seconds to bring back the KV of a transcript of ``num_tokens``."""
        if self._restore_s is None:
            return self.prefill_s(num_tokens)
        return min(self._restore_s(num_tokens), self.prefill_s(num_tokens))

    def prefill_tokens_within(
        self, seconds: float, position: int, *, beside_decodes: bool = False
    ) -> int:
        """How many tokens behind ``position`` others take at most ``seconds`` to prefill."""
        if not beside_decodes:
            return _tokens_within(seconds, position, *self._prefill.values)
        fit = self._beside if self._beside.observed else self._prefill
        most = math.ceil(2 * self._most_beside)
        return min(_tokens_within(seconds, position, *fit.values), most)

    def observe(self, work: StepWork, *, seconds: float) -> None:
        """Learn from one step that took ``seconds``."""
        if work.prefill_tokens == 0:
            if work.decode_rows:
                self._decode.observe(1.0, float(work.decode_context), y=seconds, of=seconds)
            return
        decode_s = self.decode_s(work.decode_context) if work.decode_rows else 0.0
        rest_s = max(seconds - decode_s, 0.0)
        tokens, pairs = float(work.prefill_tokens), work.prefill_pairs
        chunks = float(work.prefill_chunks)
        self._prefill.observe(tokens, pairs, chunks, y=rest_s, of=seconds)
        if work.decode_rows:
            self._most_beside = max(self._most_beside * _LATELY, tokens)
            self._beside.observe(tokens, pairs, chunks, y=rest_s, of=seconds)


def _tokens_within(
    seconds: float, position: int, token_s: float, pair_s: float, chunk_s: float
) -> int:
    """The largest n with ``chunk_s + n * (token_s + pair_s * (position + n / 2)) <= seconds``."""
    seconds -= chunk_s
    linear = token_s + pair_s * position
    half = pair_s / 2
    if seconds <= 0.0:
        return 0
    if half > 0.0:
        root = math.sqrt(linear * linear + 4 * half * seconds)
        return int(2 * seconds / (linear + root) + _ROUNDING)
    return int(seconds / linear + _ROUNDING) if linear > 0.0 else 1 << 31


class OutputLengths:
    """Expected output tokens of a session's next turn: an exponential mean per session.

    Bounded: the longest unused session is forgotten first.
    """

    def __init__(
        self, *, initial: float = 300.0, weight: float = 0.3, capacity: int = 4096
    ) -> None:
        self._initial = initial
        self._weight = weight
        self._capacity = capacity
        self._means: dict[str, float] = {}

    def expected(self, session_id: str) -> float:
        return self._means.get(session_id, self._initial)

    def observe(self, session_id: str, *, output_tokens: int) -> None:
        mean = self._means.pop(session_id, self._initial)
        self._means[session_id] = mean + self._weight * (output_tokens - mean)
        if len(self._means) > self._capacity:
            del self._means[next(iter(self._means))]
