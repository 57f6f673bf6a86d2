"""How much of a step goes to prompts: tokens and seconds beside what decodes take.

Beside decodes a step may take as long as the gap between tokens may be: what was asked for
(``token_gap_ms``), or twice a step of decodes alone, or such a step and one chunk worth its cost
where it is computed, whichever is largest. Plans aim at four fifths of it; within that, whole
prompts go first, and of one that does not fit the step takes a chunk. What is left of a prompt may
take most of the last fifth if no other has a part of the step: another step for so little would
pay its fixed cost again. A client sees a step's tokens later than they are there, so the last
twentieth is never planned.

Turns that decode are nearer to their end than those whose prompts are long, and how long turns take
is what counts. So chunks that end no prompt have to be owed: for each step beside decodes a part of
the bound, the less the more turns decode, since a chunk makes all of them wait. What is owed they
take at once, in few chunks as large as they may be, since each pays the fixed cost of being there.
That is between turns of one tenant: where several have work, their shares say who waits
(``tenant_share``).

Knows the costs of steps and the plan in the making. Knows no order, no slots and no blocks.

Always true: no chunk is shorter than what is worth its cost, unless it ends a prompt or where a
state is to be kept.
"""

from runtime.config import TOKEN_GAP_MS, EngineConfig
from runtime.scheduling.costs import StepCosts
from runtime.scheduling.policy import Policy
from runtime.scheduling.sequence import Sequence
from runtime.scheduling.step_plan import StepPlan

LEAST_CHUNK_TOKENS = 16
_ROW_STEP = 16
"""Steps are filled to a multiple of so many tokens: products of few rows are compiled for 16,
and libraries prepare others anew for each number of rows."""
_EXPLORE_STEPS = 32
"""After so many steps whose chunks the present scale of costs has cut to less than half of what the
table alone would allow, one goes by the table: small chunks tell nothing of large ones."""
_AIM = 0.8
"""Share of the bound that a plan aims at: one step of a hundred takes 1.23 times what is
predicted."""
_AT_MOST = 0.95
"""The share of the bound that a step may take which ends a prompt: tokens are on their way for a
while."""
_OWED = 2.0
"""The share of the bound that prompts are owed for each step beside one decode; beside several, as
many times less. Less leaves decodes too few, more has short answers wait for long prompts."""
_LEAST_OWED = 0.1
"""However many decode, so that a prompt comes to its end."""
_NEARLY = 0.98
"""The share of a plan's aim; rounding must not make a prompt wait for another step."""
_NO_BOUND_S = 3600.0


class PrefillBudget:
    """Shares the steps of one scheduler out to prompts, one step after the other."""

    def __init__(self, config: EngineConfig, costs: StepCosts, policy: Policy) -> None:
        self._config = config
        self._costs = costs
        self._policy = policy
        self._gap_s = (config.token_gap_ms or TOKEN_GAP_MS) / 1000
        self._cut_steps = 0
        self._tokens = 0
        self._seconds = 0.0
        self._spare_s = 0.0
        """Between what the plan aims at and what it may take."""
        self._owed_s = _NO_BOUND_S
        """To prompts, of the steps that had decodes."""
        self._saves = False
        """Less is owed than a step may have, so that only what ends a prompt is computed."""
        self._knee = LEAST_CHUNK_TOKENS
        self.gap_bound_s = self._gap_s
        """The longest gap between tokens that the last plan beside decodes allowed."""

    @property
    def is_spent(self) -> bool:
        return self._tokens <= 0 or self._seconds <= 0.0

    def start_step(
        self, step: StepPlan, *, used: int, num_decodes: int, num_candidates: int, num_tenants: int
    ) -> None:
        """A step that computes ``used`` tokens of ``num_decodes`` sequences without prompts, for
        which there are so many."""
        costs, rows = self._costs, step.decode_rows
        self._saves = False
        self._tokens = self._config.max_batch_tokens - used
        self._knee = costs.knee_tokens(rows)
        if rows:
            self._tokens = min(self._tokens, self._config.prefill_tokens_beside_decodes)
        if self._policy.strict:
            self._seconds = _NO_BOUND_S
        elif rows:
            chunk_s = costs.added_s(self._knee, 0, tokens=0, rows=rows)
            self.gap_bound_s = max(self._gap_s, 2 * step.decode_s, step.decode_s + chunk_s)
            aim_s = _AIM * self.gap_bound_s - step.decode_s
            self._seconds = aim_s
            owed = min(max(_OWED / max(num_decodes, 1), _LEAST_OWED), 1.0)
            self._owed_s = min(self._owed_s + owed * self.gap_bound_s, aim_s)
            self._saves = num_tenants <= 1 and self._owed_s < _NEARLY * aim_s
            self._spare_s = (_AT_MOST - _AIM) * self.gap_bound_s
        else:
            self._seconds = _NO_BOUND_S if num_candidates <= 1 else self._gap_s

    def share(self, sequence: Sequence, pending: int, step: StepPlan) -> int:
        """How many of its ``pending`` tokens a sequence may compute, of what the step has left: the
        rest of its prompt, or a chunk that is worth its cost, or none. The first chunk of a step
        may be as long as that takes."""
        take = min(self._tokens, pending)
        if self._policy.strict or take <= 0:
            return max(take, 0)
        position = len(sequence.buffer) - pending
        most = self._within(position, take, step)
        if most >= take or (take == pending and self._ends_within(position, take, step)):
            return take
        if self._saves:
            return 0
        least = min(self._knee, take)
        if most >= least:
            return most
        return 0 if step.prefill_tokens else least

    def grant(self, sequence: Sequence, step: StepPlan, *, used: int) -> tuple[int, float]:
        """Give a running sequence its share of a step that computes ``used`` tokens so far: tokens
        of its prompt, and the seconds they add to the step."""
        pending = sequence.num_pending
        tokens = self.share(sequence, pending, step)
        if not tokens:
            return 0, 0.0
        if tokens < pending and not self._policy.strict:
            tokens = _evenly(tokens, used)
        tokens = sequence.to_next_cut(tokens)
        position, rows = sequence.num_computed, step.decode_rows
        seconds = self._costs.added_s(tokens, position, tokens=step.prefill_tokens, rows=rows)
        if rows and not step.prefill_tokens and not self._policy.strict:
            # Behind a long context a chunk may take longer than any gap that was asked for.
            chunk_s = self._costs.added_s(self._knee, position, tokens=0, rows=rows)
            self.gap_bound_s = max(self.gap_bound_s, step.decode_s + chunk_s)
        step.prefill_tokens += tokens
        # What is left of a budget that cut a prompt short is not worth another chunk's cost.
        self._tokens = self._tokens - tokens if tokens == pending else 0
        if not self._policy.strict:
            self._seconds -= seconds
            if rows:
                self._owed_s = max(self._owed_s - seconds, 0.0)
        return tokens, seconds

    def _ends_within(self, position: int, pending: int, step: StepPlan) -> bool:
        """Whether the rest of a prompt, alone beside decodes, is within what a step may take."""
        if not step.decode_rows or step.prefill_tokens:
            return False
        rest_s = self._costs.added_s(pending, position, tokens=0, rows=step.decode_rows)
        return rest_s <= self._seconds + self._spare_s

    def _within(self, position: int, wanted: int, step: StepPlan) -> int:
        """Tokens for which there is time; now and then by the table of costs alone."""
        costs, rows, tokens = self._costs, step.decode_rows, step.prefill_tokens
        within = costs.tokens_within(self._seconds, position, tokens=tokens, rows=rows)
        if within >= wanted or self._saves:
            return within
        scale = costs.scale("mixed" if rows else "prefill")
        plain = costs.tokens_within(self._seconds * scale, position, tokens=tokens, rows=rows)
        if 2 * within < min(plain, wanted):
            self._cut_steps += 1
            if self._cut_steps >= _EXPLORE_STEPS:
                self._cut_steps = 0
                return plain
        return within


def _evenly(num_tokens: int, used: int) -> int:
    """A chunk of about ``num_tokens`` that fills a step of ``used`` tokens to a multiple of
    ``_ROW_STEP``, unless little or nothing would be left of it."""
    even = num_tokens - (used + num_tokens) % _ROW_STEP
    return even if even >= LEAST_CHUNK_TOKENS else num_tokens
