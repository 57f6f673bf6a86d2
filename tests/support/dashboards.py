"""Dashboards for tests that are about something else."""

from collections.abc import Callable

from sessions.durable.ledger import PriceTable
from sessions.durable.store import Store
from sessions.pages.dashboard import Dashboard
from tests.support.sessions_rig import TOKENIZER
from tools_api.limits import Limits


def make_dashboard(clock: Callable[[], float], store: Store | None = None) -> Dashboard:
    """One over ``store``, by default an empty one."""
    store = store or Store(limits=Limits(), prices=PriceTable(), clock=clock)
    return Dashboard(store=store, clock=clock, version="0", text_of=TOKENIZER.text_of)
