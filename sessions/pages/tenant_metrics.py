"""Metrics by tenant, where the operator names tenants.

Always true: no label takes a value that a client chose; no more than ``MOST_TENANTS`` tenants have
series of their own, and all of them with ``other`` add up to the metrics of the server.
"""

from collections.abc import Callable, Collection

from prometheus_client import CollectorRegistry, Counter

from sessions.durable.ledger import TurnUsage

MOST_TENANTS = 64
OTHER = "other"


class TenantMetrics:
    """Metrics by tenant. Not thread-safe: only the event loop touches them."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.names: Callable[[], Collection[str]] = tuple
        """Names of tenants that the operator gives keys; none: nothing is counted."""
        self._known: set[str] = set()

        def counter(name: str, text: str) -> Counter:
            made = Counter(f"keepwarm_tenant_{name}", text, ["tenant"], registry=registry)
            made.labels(OTHER)
            return made

        self._turns = counter("turns", "Turns that ended, by tenant.")
        self._input = counter("input_tokens", "Prompt tokens, cached or computed, by tenant.")
        self._cached = counter("cached_tokens", "Prompt tokens found in the cache, by tenant.")
        self._output = counter("output_tokens", "Tokens emitted, by tenant.")
        self._cost = counter(
            "cost_nanodollars", "What turns cost, and KV kept after them, by tenant."
        )

    def turn_ended(self, tenant: str) -> None:
        """A turn of the tenant has ended."""
        if (name := self._name(tenant)) is not None:
            self._turns.labels(name).inc()

    def spent(self, tenant: str, usage: TurnUsage, cost: int) -> None:
        """Nano-dollars, and tokens, were charged to the tenant."""
        if (name := self._name(tenant)) is None:
            return
        self._input.labels(name).inc(usage.input_tokens)
        self._cached.labels(name).inc(usage.cached_tokens)
        self._output.labels(name).inc(usage.output_tokens)
        self._cost.labels(name).inc(cost)

    def _name(self, tenant: str) -> str | None:
        if tenant in self._known:
            return tenant
        names = self.names()
        if not names:
            return None
        if tenant not in names or len(self._known) >= MOST_TENANTS:
            return OTHER
        self._known.add(tenant)
        return tenant
