"""Interface of those who watch a server: what happens is told to each, whether it makes use of it
or not.

Knows nothing of who tells. Always true: none takes long, and none changes what it is told of.
"""

from runtime.messages import EngineInfo, StepStats
from sessions.durable.ledger import TurnReport, Unsettled


class Watcher:
    """Hears of everything; a watcher of its own kind says what it does with it."""

    def engine_ready(self, info: EngineInfo) -> None:
        """The engine has started, or started again."""

    def engine_died(self) -> None:
        """The engine is gone: no turn runs until it is ready again."""

    def engine_restarted(self) -> None:
        """Another one has taken the place of one that died."""

    def step_finished(self, stats: StepStats) -> None:
        """The engine has made a step."""

    def tokens_arrived(self, tenant: str, count: int, gap_s: float | None) -> None:
        """A turn of the tenant got tokens, ``gap_s`` behind the last ones; None: its first."""

    def turn_finished(self, report: TurnReport) -> None:
        """A turn has ended, and this is its report."""

    def residency_settled(self, tenant: str, unsettled: Unsettled) -> None:
        """The charge for a session's KV after its last turn was recorded."""

    def error_sent(self, tenant: str, code: str | None) -> None:
        """A client was told of an error."""
