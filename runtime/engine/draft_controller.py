"""Which sequences get drafts in a step, and how long proposing for them may take.

Drafts are worth it as long as they bring more tokens a second than steps without: that is
measured, for each number of sequences side by side, by leaving them out now and then (or putting
them in, where they lost). Beside other sequences proposing has a share of a step's time, and a
sequence whose proposals take longer than that, as those of a hostile grammar do, goes without for a
while.

Knows the drafter, the clock and what steps brought. Knows no logits and no cache.

Always true: what is decided here changes how many steps sequences take, never what they emit.
"""

from collections.abc import Callable
from collections.abc import Sequence as Many

from runtime.config import EngineConfig
from runtime.drafting.drafter import Drafter
from runtime.scheduling.draft import Draft, share_budget
from runtime.scheduling.sequence import Sequence

_SHARE = 0.5
"""The share of a step's mean time for proposing for several sequences."""
_LEAST_DRAFT = 4
"""Draft tokens that each sequence could have, or drafts are not tried until they are measured."""
_TRY_EVERY = 32
_ENOUGH_STEPS = 8
_LEARNING_RATE = 1 / 32
_TRIAL_LEARNING_RATE = 1 / 8
"""Trials are few: each counts for more."""
_LONGEST_PAUSE = 64
_OUTLIER = 4.0


class _Rate:
    """Tokens a second of one kind of step: exponential means of both."""

    __slots__ = ("seconds", "steps", "tokens")

    def __init__(self) -> None:
        self.steps = 0
        self.tokens = 0.0
        self.seconds = 0.0

    @property
    def value(self) -> float:
        return self.tokens / self.seconds if self.seconds > 0.0 else 0.0

    def learn(self, tokens: int, seconds: float, rate: float) -> None:
        self.steps += 1
        if self.steps > _ENOUGH_STEPS:
            seconds = min(seconds, _OUTLIER * self.seconds)
        rate = max(rate, 1 / self.steps)
        self.tokens += rate * (tokens - self.tokens)
        self.seconds += rate * (seconds - self.seconds)


class _Arms:
    """Steps of about so many sequences, with drafts and without."""

    __slots__ = ("drafted", "plain", "since_tried")

    def __init__(self) -> None:
        self.drafted = _Rate()
        self.plain = _Rate()
        self.since_tried = 0

    @property
    def is_trial(self) -> bool:
        """Whether it is time to do the other thing than what is best as far as is known."""
        return self.since_tried >= _TRY_EVERY


_UNTRIED = _Arms()


class DraftController:
    """Asks a drafter on behalf of a step's sequences."""

    def __init__(
        self, drafter: Drafter | None, config: EngineConfig, clock: Callable[[], float]
    ) -> None:
        self._drafter = drafter
        self._most = config.max_draft_tokens
        self._budget = config.draft_tokens_per_step
        self._clock = clock
        self._arms: dict[int, _Arms] = {}
        self.pauses: dict[str, tuple[int, int]] = {}
        """Steps still to go without drafts, and how many the next time, by request."""
        self._asked: tuple[_Arms, bool] | None = None

    @property
    def enabled(self) -> bool:
        """Whether anybody proposes drafts."""
        return self._drafter is not None

    @property
    def num_bytes(self) -> int:
        """Memory of what drafts are copied from."""
        return 0 if self._drafter is None else self._drafter.num_bytes

    def propose(self, sequences: Many[Sequence], *, step_s: float) -> dict[Sequence, Draft]:
        """Drafts for sequences that decode, within the step's budget.

        Args:
            step_s: what steps take.
        """
        self._asked = None
        drafter = self._drafter
        if drafter is None or not sequences:
            return {}
        alone = len(sequences) == 1
        if not alone and not self._tries(len(sequences)):
            return {}
        if len(self.pauses) > len(sequences):
            present = {sequence.request.request_id for sequence in sequences}
            self.pauses = {name: p for name, p in self.pauses.items() if name in present}
        share_s = _SHARE * step_s
        until = self._clock() + share_s
        drafts = {}
        for sequence in sequences:
            request, started = sequence.request, self._clock()
            if self._pauses_for(request.request_id, alone):
                continue
            draft = drafter.propose(
                request.branch_id,
                request.tenant,
                sequence.buffer.view(),
                sequence.grammar,
                min(sequence.remaining - 1, self._most),
                may_go_on=lambda: alone or self._clock() <= until,
            )
            if len(draft.tokens):
                drafts[sequence] = draft
            if not alone and self._clock() - started > 2 * share_s:
                self._pause(request.request_id)
        return share_budget(drafts, self._budget)

    def verified(self, branch_id: str, verified: int, accepted: int) -> None:
        """The first ``verified`` tokens of a branch's last draft were looked at, and the first
        ``accepted`` of them were right."""
        if self._drafter is not None:
            self._drafter.verified(branch_id, verified, accepted)

    def observe(self, tokens: int, seconds: float) -> None:
        """The step that was asked for last emitted so many tokens. To be left out if it
        computed more than decodes."""
        if self._asked is not None:
            arms, drafted = self._asked
            is_trial = arms.since_tried == 0
            rate = _TRIAL_LEARNING_RATE if is_trial else _LEARNING_RATE
            (arms.drafted if drafted else arms.plain).learn(tokens, seconds, rate)

    def expects_drafts(self, num_sequences: int) -> bool:
        """Whether the next step has drafts if so many sequences decode in it."""
        if self._drafter is None or num_sequences <= 1:
            return self._drafter is not None
        arms = self._arms.get(num_sequences.bit_length(), _UNTRIED)
        if min(arms.drafted.steps, arms.plain.steps) >= _ENOUGH_STEPS:
            drafts = arms.drafted.value >= arms.plain.value
        else:
            drafts = num_sequences * _LEAST_DRAFT <= self._budget
        return drafts is not arms.is_trial

    def _tries(self, num_sequences: int) -> bool:
        """Whether this step has drafts."""
        drafts = self.expects_drafts(num_sequences)
        arms = self._arms.setdefault(num_sequences.bit_length(), _Arms())
        arms.since_tried = 0 if arms.is_trial else arms.since_tried + 1
        self._asked = (arms, drafts)
        return drafts

    def _pauses_for(self, request_id: str, alone: bool) -> bool:
        left, penalty = self.pauses.get(request_id, (0, 1))
        if alone or not left:
            return False
        self.pauses[request_id] = (left - 1, penalty)
        return True

    def _pause(self, request_id: str) -> None:
        """A step of its chain alone took longer than all chains together should."""
        _, penalty = self.pauses.get(request_id, (0, 1))
        self.pauses[request_id] = (penalty, min(2 * penalty, _LONGEST_PAUSE))
