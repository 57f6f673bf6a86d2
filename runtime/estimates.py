"""What work costs on this machine, learnt from the steps that ran. Pure; fed by the engine.

Two numbers: seconds per prefill token and seconds per decode step. Pure decode steps teach
the one, steps with prefill the other after the decode share is taken off. Exponential means,
so that the figures follow the load.
"""

_WEIGHT = 0.1


class StepCosts:
    """Running estimates in seconds. The initial values only order the first turns."""

    def __init__(self, *, prefill_token_s: float = 2e-4, decode_step_s: float = 1e-2) -> None:
        self._prefill_token_s = prefill_token_s
        self._decode_step_s = decode_step_s

    @property
    def prefill_token_s(self) -> float:
        return self._prefill_token_s

    @property
    def decode_step_s(self) -> float:
        return self._decode_step_s

    def observe(self, *, prefill_tokens: int, decode_rows: int, seconds: float) -> None:
        """Learn from one step of ``seconds`` wall time."""
        if prefill_tokens == 0:
            if decode_rows:
                self._decode_step_s += _WEIGHT * (seconds - self._decode_step_s)
            return
        decode_s = self._decode_step_s if decode_rows else 0.0
        per_token_s = max(seconds - decode_s, 0.0) / prefill_tokens
        self._prefill_token_s += _WEIGHT * (per_token_s - self._prefill_token_s)


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
