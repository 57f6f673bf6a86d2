"""Tenants of no server's."""

from sessions.durable.ledger import PriceTable
from sessions.durable.store import Store
from sessions.durable.tenant import Tenant
from tests.support.clock import FakeClock
from tools_api.limits import Limits


def make_tenant(name: str = "acme") -> Tenant:
    """One that nothing bounds."""
    return Store(limits=Limits(), prices=PriceTable(), clock=FakeClock(1000.0)).tenant(name)
