"""A watcher hears of everything, also of what it makes no use of."""

from inspect import signature

from sessions.durable.ledger import NOTHING_UNSETTLED
from sessions.pages.dashboard import Dashboard
from sessions.pages.metrics import Metrics
from sessions.pages.spans import SpanQueue
from sessions.pages.watcher import Watcher


def test_every_watcher_is_told_in_the_same_words() -> None:
    told = {name: call for name, call in vars(Watcher).items() if not name.startswith("_")}
    assert len(told) == 8
    for kind in (Metrics, Dashboard, SpanQueue):
        assert issubclass(kind, Watcher)
        for name, call in told.items():
            assert signature(getattr(kind, name)) == signature(call), (kind, name)


def test_who_makes_no_use_of_something_does_no_harm() -> None:
    watcher = Watcher()
    watcher.engine_died()
    watcher.engine_restarted()
    watcher.tokens_arrived("acme", 1, None)
    watcher.residency_settled("acme", NOTHING_UNSETTLED)
    watcher.error_sent("acme", None)
