"""Two keys of a tenant, each with a budget of its own, whose clients share sessions."""

from sessions.durable.account import NOTHING
from sessions.tenants import ApiKey, BudgetTerms, TenantPolicy, Tenants
from tests.support.sessions_rig import Client, Rig
from tools_api.requests import Bounds

KEYS = ("ci", "web")


def two_keys() -> Tenants:
    """Acme's."""
    terms = (BudgetTerms(bounds=Bounds(output=1_000_000)),)
    keys = [ApiKey.of(f"key-of-{name}", tenant="acme", name=name) for name in KEYS]
    return Tenants(keys, {"acme": TenantPolicy(keys=dict.fromkeys(KEYS, terms))})


def connect_as(rig: Rig, key: str) -> Client:
    client = rig.connect()
    client.connection.identify(key)
    return client


def spent_by(rig: Rig, key: str) -> int:
    """Tokens of all kinds on the key's account, on which nothing is held any more."""
    (account,) = rig.store.tenant("acme").policies.for_key(key)
    assert account.held == NOTHING
    spent = account.spent
    return spent.input_uncached + spent.input_cached + spent.output
