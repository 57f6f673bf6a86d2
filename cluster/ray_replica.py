"""A replica as Ray Serve keeps it: an actor without a route, whose child process is the server.

Serve starts and replaces it and says when it is to go; sessions and sockets do not pass through it.
What it is told while it lives comes as its ``user_config``: that the tenants file is to be read
again, and which members are to leave.

Always true: an actor whose child has died ends at once, so that it is replaced; a child does not
outlive its actor.
"""

import logging
import os
import threading
import time
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Protocol

from cluster.keeper import ReplicaKeeper, ReplicaLost, ReplicaPlan
from cluster.rows import MemberRows
from cluster.scaling import ScaleBounds, ScaleMemory, wanted
from cluster.slots import lock_name
from sessions.journal.members import MemberLoad
from sessions.journal.only_one import OnlyOne
from sessions.journal.postgres_connection import connected

log = logging.getLogger(__name__)

_OPENS = "add_port_to_grpc_server"
"""Serve's own function that opens it (ray 2.60, serve/_private/replica.py)."""
_SCALED_BY = ("kv_permille", "active_permille", "running", "waiting")


class RayReplica:
    """The class that is deployed. Serve makes and calls it."""

    def __init__(self, plan: Mapping[str, Any], drain_s: float) -> None:
        """Start the server; returns when the cluster sends it sessions.

        Args:
            plan: fields of ``ReplicaPlan`` as JSON has them, without ``host``.
            drain_s: how long it may take to end.
        """
        open_no_port()
        self.drain_s = drain_s
        self.reloads: int | None = None
        self.leaving = threading.Event()
        rows = MemberRows(plan["journal"], plan["cluster"])
        self.keeper = ReplicaKeeper(
            read_plan(plan, node_address()),
            rows=rows,
            lock_of=lambda slot: OnlyOne(
                partial(connected, plan["journal"]), lock_name(plan["cluster"], slot)
            ),
            on_death=end_at_once,
        )
        self.keeper.start()

    def reconfigure(self, config: Mapping[str, Any]) -> None:
        """Take what the cluster is told: ``reloads``, so often the tenants file was to be read
        again, and ``leaving``, addresses of members that are to drain."""
        reloads, before = int(config.get("reloads", 0)), self.reloads
        self.reloads = reloads
        if before is not None and reloads > before:
            self.keeper.reload()
        if self.keeper.address in config.get("leaving", ()) and not self.leaving.is_set():
            self.leaving.set()
            threading.Thread(target=self._leave, name="leave", daemon=True).start()

    def _leave(self) -> None:
        self.keeper.leave(self.drain_s)
        end_at_once()

    def check_health(self) -> None:
        """Raise where the server is lost; one that drains is not."""
        if self.leaving.is_set():
            return
        try:
            self.keeper.check()
        except ReplicaLost as lost:
            log.error("%s", lost)
            end_at_once()

    def record_autoscaling_stats(self) -> dict[str, int]:
        """Figures by which the number of replicas is chosen."""
        load = self.keeper.load()
        return {name: getattr(load, name) for name in _SCALED_BY}

    def __del__(self) -> None:
        """Serve lets it go: its server drains. Called again it does nothing."""
        if hasattr(self, "keeper") and not self.leaving.is_set():
            self.leaving.set()
            self.keeper.leave(self.drain_s)


class ScalePolicy:
    """How many replicas there are to be; Serve makes and calls it in its controller."""

    def __init__(self, turns_per_server: int) -> None:
        self._turns_per_server = turns_per_server
        self._memory = ScaleMemory()

    def __call__(self, context: "ScaleContext") -> tuple[int, dict[str, Any]]:
        """The number, and Serve's own memory as it was."""
        bounds = ScaleBounds(
            least=context.capacity_adjusted_min_replicas,
            most=context.capacity_adjusted_max_replicas,
            turns_per_server=self._turns_per_server,
        )
        loads = read_loads(context.aggregated_metrics or {})
        found, self._memory = wanted(
            loads, context.target_num_replicas, bounds, self._memory, time.monotonic()
        )
        return found, dict(context.policy_state)


class ScaleContext(Protocol):
    """The part of Serve's ``AutoscalingContext`` that is read."""

    capacity_adjusted_min_replicas: int
    capacity_adjusted_max_replicas: int
    target_num_replicas: int
    policy_state: Mapping[str, Any]

    @property
    def aggregated_metrics(self) -> Mapping[str, Mapping[Any, float]] | None:
        """Means over a while, by name and replica."""
        ...


def read_loads(metrics: Mapping[str, Mapping[Any, float]]) -> list[MemberLoad]:
    """Figures of every replica that told all of them."""
    told = [metrics.get(name, {}) for name in _SCALED_BY]
    replicas = [each for each in told[0] if all(each in figures for figures in told)]
    return [
        MemberLoad(**{name: round(told[n][each]) for n, name in enumerate(_SCALED_BY)})
        for each in replicas
    ]


def read_plan(plan: Mapping[str, Any], host: str) -> ReplicaPlan:
    """The plan as this host has it."""
    options: Sequence[str] = plan["options"]
    return ReplicaPlan(
        cluster=plan["cluster"],
        journal=plan["journal"],
        host=host,
        options=tuple(options),
        folder=Path(plan["folder"]),
        kv_root=None if plan["kv_root"] is None else Path(plan["kv_root"]),
        environment=dict(plan["environment"]),
    )


def node_address() -> str:
    """The address of this host, as Ray's other hosts know it."""
    from ray.util import get_node_ip_address

    return str(get_node_ip_address())


def open_no_port() -> None:
    """Have Serve open no port for requests in this actor: none come by it, and it would listen on
    every address and unpickle what anybody sends, whatever token Ray asks for.

    Raises:
        RuntimeError: this Serve opens it in another way.
    """
    from ray.serve._private import replica

    if not callable(getattr(replica, _OPENS, None)):
        raise RuntimeError(f"ray.serve has no {_OPENS}: its port would be open to everybody")
    setattr(replica, _OPENS, lambda server, address: 0)


def end_at_once() -> None:
    """End this actor's process; its child, where it lives, ends with it."""
    os._exit(1)
