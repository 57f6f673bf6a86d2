"""What a prompt's token and a decode take on this machine, found out before the first turn.

Prompts of growing length, and a step of some turns that decode behind each, are computed some
times: the first time pays for what is made once (compiled kernels, prepared products, recorded
steps) and does not count, of the others the shortest does. Nothing is fitted: what costs grow by
with the context shows only far beyond what there is time for, and is learnt from turns.

Knows a runner and a clock. Knows no turns and no cache: it runs while the pool belongs to nobody
yet.

Always true: no step is begun that would end after the time allowed, as far as those before it
tell; what steps have written is in blocks that nobody takes for written.
"""

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from runtime.batch import SequenceInput
from runtime.estimates import CostProfile
from runtime.model_runner import ModelRunner

_PROMPTS = (16, 64, 256, 1024)
_DECODES = 8
"""Turns in a step that decodes: one alone would make the others' prompts wait too long where the
time of a step grows with them."""
_TIMES = 3


def measured_profile(
    runner: ModelRunner,
    *,
    seconds: float,
    max_batch_tokens: int,
    clock: Callable[[], float],
) -> CostProfile:
    """Where the cost model may start, by steps that take ``seconds`` together at most: a prompt's
    token as in the longest prompt that was timed, a decode as behind it. Where the pool or the
    time is too small for any, it is where the model starts without them."""
    profile = CostProfile()
    trials = _Trials(runner, clock, until=clock() + seconds)
    longest = min(runner.num_blocks * runner.block_size, runner.model.config.max_context_tokens)
    for length in _PROMPTS:
        if length > max_batch_tokens or length + 1 > longest:
            break
        prompt_s = trials.shortest_s(1, length, 0, expected_s=length * profile.prefill_token_s)
        if prompt_s is None:
            break
        profile = replace(profile, prefill_token_s=prompt_s / length)
        decode_s = trials.shortest_s(_DECODES, 1, length, expected_s=profile.decode_step_s)
        if decode_s is None:
            break
        profile = replace(profile, decode_step_s=decode_s)
    return profile


class _Trials:
    """Times steps of one runner up to a moment."""

    def __init__(self, runner: ModelRunner, clock: Callable[[], float], *, until: float) -> None:
        self._runner = runner
        self._clock = clock
        self._until = until

    def shortest_s(
        self, num_turns: int, num_tokens: int, position: int, *, expected_s: float
    ) -> float | None:
        """The shortest time of a step that counts, in which that many turns compute so many
        tokens each; None if there was no time for one."""
        shortest_s: float | None = None
        for number in range(_TIMES):
            started = self._clock()
            if started + expected_s > self._until:
                break
            _run(self._runner, num_turns, num_tokens, position)
            expected_s = self._clock() - started
            if number and expected_s > 0.0:
                shortest_s = min(expected_s, shortest_s or expected_s)
        return shortest_s


def _run(runner: ModelRunner, num_turns: int, num_tokens: int, position: int) -> None:
    """One step of tokens that say nothing, all in the pool's first blocks."""
    size = runner.block_size
    tokens = np.arange(position, position + num_tokens) % runner.model.config.vocab_size
    step = SequenceInput(
        tokens=tokens.astype(np.int32),
        start=position,
        block_table=np.arange(-(-(position + num_tokens) // size), dtype=np.int32),
        num_logits=1,
    )
    runner.run([step] * num_turns)[0, 0].item()  # waits for the device
