"""The front end's cost of exact budgets for each step of the engine.

    python -m benchmarks.accounting --json

``accounting_share_of_step`` is the CPU time of metering for one step of 256 running turns, over a
step of 10 ms: each turn draws on its own account, its session's, two trees' and its tenant's, all
with bounds of every kind; each step brings every turn a token, and turns end and others begin as
they do at 200 tokens a turn. The code is the server's own (``sessions.durable.reservation``, called
as ``sessions.turns.turn`` calls it); no engine, no sockets. Median over rounds.
"""

import statistics
import time
from collections.abc import Iterable

import numpy as np

from benchmarks.report import Bar, parser, report
from runtime.messages import SequenceOutput, SequenceStart
from sessions.durable.account import Account, Budget
from sessions.durable.ledger import Ledger, PriceTable, TurnUsage
from sessions.durable.reservation import Reservation, TurnNeeds

TURNS = 256
STEP_S = 0.010
TURN_TOKENS = 200
PROMPT_TOKENS = 1000
STEPS = 400
ROUNDS = 5
PRICES = PriceTable.per_million(input_uncached=0.2, input_cached=0.02, output=1.0)
PLENTY = Budget(
    input_uncached=10**15, input_cached=10**15, output=10**15, reasoning=10**15, cost=10**18
)


START = SequenceStart(input_tokens=PROMPT_TOKENS, cached_tokens=960, queue_s=0.0)


class _Turn:
    """One running turn: what it has written, and what it holds."""

    def __init__(self, ledger: Ledger) -> None:
        self.tokens: list[int] = []
        own = Account(scope="turn", budget=PLENTY)
        needs = TurnNeeds(
            prompt_tokens=PROMPT_TOKENS, max_output=4096, bound=False, thinks=False, own=(own,)
        )
        self.reservation = Reservation(needs, ledger)
        self.reservation.admit(cached=900)
        self.reservation.adjust(START)

    def before_reasoning(self, tokens: Iterable[int], most: int) -> int:
        """Nobody thinks here."""
        return len(list(tokens))

    def usage(self) -> TurnUsage:
        return TurnUsage(
            input_tokens=PROMPT_TOKENS, cached_tokens=960, output_tokens=len(self.tokens)
        )


def accounting_share_of_step(turns: int = TURNS, step_s: float = STEP_S) -> float:
    """Time of a step's metering over the step's: the median of several rounds.

    Args:
        turns: that run at the same time.
        step_s: seconds of a step.
    """
    return statistics.median(_step_s(turns) for _ in range(ROUNDS)) / step_s


def _step_s(turns: int) -> float:
    """Seconds of metering for each step, turns' ends and beginnings included."""
    tenant = Account(scope="tenant", budget=PLENTY)
    root = Account(scope="tree", budget=PLENTY)
    ledgers = [
        Ledger(
            PRICES,
            account=Account(scope="session", budget=PLENTY),
            tree=Account(scope="tree", budget=PLENTY),
            above=(root, tenant),
        )
        for _ in range(turns)
    ]
    running = [_Turn(ledger) for ledger in ledgers]
    for place, turn in enumerate(running):  # so that they do not end in the same step
        turn.tokens += [0] * (place * TURN_TOKENS // turns)
    output = SequenceOutput(request_id="a", new_tokens=np.array([7], dtype=np.int32))
    spent_s = 0.0
    for _ in range(STEPS):
        ended = [place for place, turn in enumerate(running) if len(turn.tokens) >= TURN_TOKENS]
        begun = time.thread_time()
        for turn in running:
            if len(turn.tokens) + len(output.new_tokens) > turn.reservation.ask_at:
                turn.reservation.within_budget(output, turn)
        for place in ended:
            running[place].reservation.settle(running[place].usage())
            running[place] = _Turn(ledgers[place])
        spent_s += time.thread_time() - begun
        for turn in running:
            turn.tokens.append(7)
    return spent_s / STEPS


def main() -> int:
    """Measure and report; the exit status says whether the bar is met."""
    arguments = parser(__doc__).parse_args()
    share = accounting_share_of_step()
    bar = Bar(name="accounting_share_of_step", value=round(share, 5), op="<=", bar=0.01)
    figures = {"turns": TURNS, "step_ms": STEP_S * 1000, "metering_us": share * STEP_S * 1e6}
    return report("accounting", figures, [bar], as_json=arguments.json)


if __name__ == "__main__":
    raise SystemExit(main())
