"""How far the estimates of votes can be trusted, learnt from how votes turned out.

Learnt for each tenant, source and length of match. Knows votes and outcomes. Knows no texts,
and not what is drafted.

Always true: no tenant's outcomes change what another's votes are worth; what is kept is
bounded in number.
"""

from collections import Counter, OrderedDict

from runtime.drafting.votes import Vote
from runtime.scheduling.draft import DraftSource

_PROBE_EVERY = 32
_MAX_LEARNERS = 4096
_LEARNING_RATE = 1 / 64

_Learner = tuple[str, DraftSource, int]


class Calibration:
    """Estimates as they are worth it."""

    def __init__(self) -> None:
        self._seen: OrderedDict[_Learner, tuple[float, float]] = OrderedDict()
        self._skipped: Counter[str] = Counter()

    def probability(self, tenant: str, vote: Vote) -> float:
        right, expected = self._seen.get(_learner(tenant, vote), (1.0, 1.0))
        return min(vote.probability * right / expected, 0.99)

    def is_probe(self, tenant: str) -> bool:
        """True now and then, so that what lost can show that it would win again."""
        self._skipped[tenant] += 1
        if self._skipped[tenant] < _PROBE_EVERY:
            return False
        del self._skipped[tenant]
        return True

    def learn(self, tenant: str, vote: Vote, right: bool) -> None:
        """Note how a vote turned out: exponential means of outcome and of estimate."""
        key = _learner(tenant, vote)
        seen, expected = self._seen.pop(key, (1.0, 1.0))
        seen += _LEARNING_RATE * (right - seen)
        expected += _LEARNING_RATE * (vote.probability - expected)
        self._seen[key] = (max(seen, 0.01), max(expected, 0.01))
        if len(self._seen) > _MAX_LEARNERS:
            self._seen.popitem(last=False)


def _learner(tenant: str, vote: Vote) -> _Learner:
    return tenant, vote.source, vote.length.bit_length()
