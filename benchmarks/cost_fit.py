"""The linear machine that a run's steps come nearest to: a device for the simulator.

``prefill + decode`` seconds: prefill of n tokens behind c others takes ``phi + alpha * n +
beta * n * (c + n / 2)``, the decodes of a step together ``gamma + delta * sum(context)``. Two
least-squares fits of relative errors, in which all steps count alike.
"""

from itertools import combinations
from operator import mul

from runtime.scheduling.costs import CostProfile, StepWork

_PRIOR = 1e-5


class _Fit:
    """Coefficients ``a`` of ``y = sum(a[i] * x[i])`` by least squares, none of
    them negative. A weak prior keeps their ratio where the data do not tell them apart."""

    def __init__(self, *start: float) -> None:
        self._start = start
        self.values = list(start)
        indices = range(len(start))
        self._squares = [[0.0 for _ in indices] for _ in indices]
        self._products = [0.0 for _ in indices]
        self._supports = [
            support for size in indices for support in combinations(indices, size + 1)
        ]
        self._supports.reverse()

    def observe(self, *inputs: float, y: float, of: float) -> None:
        """Learn that ``y`` was right; errors count relative to ``of``."""
        if of <= 0.0:
            return
        x = [value / of for value in inputs]
        y = y / of
        for row, left in zip(self._squares, x, strict=True):
            for j, right in enumerate(x):
                row[j] = row[j] + left * right
        self._products = [t + left * y for t, left in zip(self._products, x, strict=True)]
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
    """The solution of the symmetric positive system ``rows`` with its right side behind; None if it
    has none. ``rows`` are used up."""
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


class LinearFit:
    """Fits a ``CostProfile`` to the steps of a run."""

    def __init__(self) -> None:
        start = CostProfile()
        self._prefill = _Fit(start.prefill_token_s, start.prefill_pair_s, start.prefill_chunk_s)
        self._decode = _Fit(start.decode_step_s, start.decode_context_s)

    def observe(self, work: StepWork, *, seconds: float) -> None:
        """One step took ``seconds``."""
        if work.prefill_tokens == 0:
            if work.decode_rows:
                self._decode.observe(1.0, float(work.decode_context), y=seconds, of=seconds)
            return
        decode_s = 0.0
        if work.decode_rows:
            step_s, context_s = self._decode.values
            decode_s = step_s + context_s * work.decode_context
        tokens, pairs = float(work.prefill_tokens), work.prefill_pairs
        rest_s = max(seconds - decode_s, 0.0)
        self._prefill.observe(tokens, pairs, float(work.prefill_chunks), y=rest_s, of=seconds)

    @property
    def profile(self) -> CostProfile:
        token_s, pair_s, chunk_s = self._prefill.values
        step_s, context_s = self._decode.values
        return CostProfile(
            prefill_token_s=token_s,
            prefill_pair_s=pair_s,
            prefill_chunk_s=chunk_s,
            decode_step_s=step_s,
            decode_context_s=context_s,
        )
