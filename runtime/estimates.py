"""What work costs on this machine, learnt from the steps that ran. Pure; fed by the engine.

A step costs ``prefill + decode`` seconds: prefill of n tokens behind c others takes
``alpha * n + beta * n * (c + n / 2)``, the decodes of a step together ``gamma + delta *
sum(context)``. Two least-squares fits of relative errors with a forgetting factor, so that
small chunks, which the bound of a step is about, count as much as large ones: steps that
only decode teach gamma and delta, steps with prefill teach alpha and beta after the decode
share is taken off. Always true: no coefficient is negative, and with nothing observed they are the
initial ones.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

_FORGET = 0.99
_PRIOR = 1e-5
_OUTLIER = 8.0
_TRUSTED_AFTER = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class CostProfile:
    """Seconds per unit of work; a start value of the fit, or the truth of a simulation."""

    prefill_token_s: float = 2e-4
    """alpha: per prefill token."""
    prefill_pair_s: float = 0.0
    """beta: per prefill token and token before it."""
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
    decode_rows: int = 0
    decode_context: int = 0
    """Tokens of context that the decodes read."""


class _LineFit:
    """Two coefficients of ``y = a * x0 + b * x1`` by least squares with forgetting. A weak
    prior keeps their ratio where the data do not tell them apart."""

    def __init__(self, a: float, b: float) -> None:
        self._start = (a, b)
        self.a, self.b = a, b
        self._s00 = self._s01 = self._s11 = self._t0 = self._t1 = 0.0
        self._count = 0

    def observe(self, x0: float, x1: float, y: float, *, of: float) -> None:
        """Learn that ``y`` was right; errors count relative to ``of``."""
        if of <= 0.0:
            return
        x0, x1, y = x0 / of, x1 / of, y / of
        if self._count >= _TRUSTED_AFTER:  # a hiccup of the machine says nothing of the work
            y = min(y, _OUTLIER * (self.a * x0 + self.b * x1))
        self._count += 1
        self._s00 = _FORGET * self._s00 + x0 * x0
        self._s01 = _FORGET * self._s01 + x0 * x1
        self._s11 = _FORGET * self._s11 + x1 * x1
        self._t0 = _FORGET * self._t0 + x0 * y
        self._t1 = _FORGET * self._t1 + x1 * y
        self._solve()

    def _solve(self) -> None:
        r0, r1 = _PRIOR * self._s00, _PRIOR * self._s11
        s00, s11 = self._s00 + r0, self._s11 + r1
        t0, t1 = self._t0 + r0 * self._start[0], self._t1 + r1 * self._start[1]
        determinant = s00 * s11 - self._s01 * self._s01
        if determinant > 0.0:
            a = (t0 * s11 - t1 * self._s01) / determinant
            b = (t1 * s00 - t0 * self._s01) / determinant
            if a >= 0.0 and b >= 0.0:
                self.a, self.b = a, b
                return
        # At the border of what makes sense one of the two explains all.
        errors = []
        if s00:
            a = max(t0 / s00, 0.0)
            errors.append((a * a * s00 - 2 * a * t0, a, 0.0))
        if s11:
            b = max(t1 / s11, 0.0)
            errors.append((b * b * s11 - 2 * b * t1, 0.0, b))
        if errors:
            _, self.a, self.b = min(errors)


class StepCosts:
    """Predicted seconds of work, following what the engine observes.

    Args:
        profile: where the fit starts.
        restore_s: tokens of a transcript -> seconds to bring its KV back. None: it is
            computed again.
    """

    def __init__(
        self,
        profile: CostProfile | None = None,
        *,
        restore_s: Callable[[int], float] | None = None,
    ) -> None:
        start = profile or CostProfile()
        self._prefill = _LineFit(start.prefill_token_s, start.prefill_pair_s)
        self._decode = _LineFit(start.decode_step_s, start.decode_context_s)
        self._restore_s = restore_s

    @property
    def profile(self) -> CostProfile:
        """The coefficients of this moment."""
        return CostProfile(
            prefill_token_s=self._prefill.a,
            prefill_pair_s=self._prefill.b,
            decode_step_s=self._decode.a,
            decode_context_s=self._decode.b,
        )

    def prefill_s(self, num_tokens: int, position: int = 0) -> float:
        """Seconds to prefill ``num_tokens`` behind ``position`` others."""
        pairs = num_tokens * (position + num_tokens / 2)
        return self._prefill.a * num_tokens + self._prefill.b * pairs

    def decode_s(self, context: int) -> float:
        """Seconds of a step that only decodes and reads ``context`` tokens in all."""
        return self._decode.a + self._decode.b * context

    def restore_s(self, num_tokens: int) -> float:
        """Seconds to bring back the KV of a transcript of ``num_tokens``."""
        if self._restore_s is None:
            return self.prefill_s(num_tokens)
        return min(self._restore_s(num_tokens), self.prefill_s(num_tokens))

    def prefill_tokens_within(self, seconds: float, position: int) -> int:
        """How many tokens behind ``position`` others take at most ``seconds`` to prefill."""
        linear = self._prefill.a + self._prefill.b * position
        half = self._prefill.b / 2
        if seconds <= 0.0:
            return 0
        if half > 0.0:
            root = math.sqrt(linear * linear + 4 * half * seconds)
            return int(2 * seconds / (linear + root))
        return int(seconds / linear) if linear > 0.0 else 1 << 31

    def observe(self, work: StepWork, *, seconds: float) -> None:
        """Learn from one step that took ``seconds``."""
        if work.prefill_tokens == 0:
            if work.decode_rows:
                self._decode.observe(1.0, float(work.decode_context), seconds, of=seconds)
            return
        decode_s = self.decode_s(work.decode_context) if work.decode_rows else 0.0
        rest_s = max(seconds - decode_s, 0.0)
        tokens, pairs = float(work.prefill_tokens), work.prefill_pairs
        self._prefill.observe(tokens, pairs, rest_s, of=seconds)


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
