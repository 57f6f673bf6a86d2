"""``keepwarm cluster up``, ``scale``, ``drain``, ``reload``, ``down``: a cluster's replicas on Ray
Serve.

What is deployed is said in one file of the cluster's folder, which each of these commands reads,
changes and has Serve make true. Serve starts replicas, replaces them when they die and, one after
the other, when they are to be others; a balancer finds them by their rows.

Always true: the file says what Serve was told last; it holds what the options hold, keys too, and
nobody else may read it.
"""

import contextlib
import fcntl
import importlib.util
import json
import logging
import os
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from cluster import ray_head
from cluster.ray_head import RayHeadError
from cluster.ray_replica import RayReplica, ScalePolicy
from cluster.rows import MemberRows
from sessions.journal.errors import JournalError
from sessions.journal.members import Member, MemberState

_FILE = "up.json"
LOOK_EVERY_S = 0.25
HEALTH_EVERY_S = 1.0
TURNS_PER_REPLICA = 8


class UpError(Exception):
    """The cluster is not as it was to be. The message is one line for people."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Deployed:
    """Everything that Serve is told of one cluster."""

    plan: Mapping[str, Any]
    """A replica is made from it (``RayReplica``)."""
    drain_s: float
    """How long a replica may take to end."""
    replicas: int
    most: int
    """Above ``replicas``: as many as are wanted between the two."""
    turns_per_replica: int = TURNS_PER_REPLICA
    cpus: float = 0.0
    gpus: float = 0.0
    ray: str = ""
    """Address of a Ray that is somebody else's; "" a head of our own."""
    generation: int = 1
    """Replicas of another one are replaced."""
    reloads: int = 0
    reloads_tenants: bool = False
    """Replicas have a tenants file: SIGHUP would end one that has none."""
    leaving: tuple[str, ...] = field(default=())
    """Addresses of members that are to drain."""


class Deployment:
    """One cluster's, as its commands see it."""

    def __init__(self, folder: Path, cluster: str) -> None:
        """``folder``: the cluster's own, of this user."""
        self._folder = folder
        self._cluster = cluster

    @contextlib.contextmanager
    def _alone(self) -> Iterator[None]:
        """Let one command at a time change the deployment."""
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        lock = os.open(self._folder / "up.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            yield
        except BlockingIOError as error:
            raise UpError(f"another command is at work on the cluster {self._cluster}") from error
        finally:
            os.close(lock)

    def found(self) -> Deployed:
        """The last that was deployed. Raises UpError: nothing was."""
        try:
            told = json.loads((self._folder / _FILE).read_text())
            return Deployed(**told | {"leaving": tuple(told["leaving"])})
        except (OSError, ValueError, TypeError, KeyError) as error:
            raise UpError(
                f"no cluster {self._cluster} was started here ('keepwarm cluster up')"
            ) from error

    def up(self, wanted: Deployed, host: str, say: Callable[[str], None]) -> None:
        """Deploy, and wait until every replica is ready. Where the cluster is up already each of
        its replicas is replaced, one after the other.

        Args:
            host: for a Ray of our own.
            say: gets a line for each that is ready.

        Raises:
            UpError: it is not so.
        """
        with self._alone():
            with contextlib.suppress(UpError):
                before = self.found()
                wanted = replace(wanted, generation=before.generation + 1, reloads=before.reloads)
            before_rows = {each.owner for each in self._ready(wanted)}
            with self._ray(wanted, host):
                self._tell(wanted)
                self._wait(wanted, before_rows, say)

    def scale(self, replicas: int, most: int) -> None:
        """Have so many, or as many as are wanted between the two. Raises UpError."""
        self._change(lambda told: replace(told, replicas=replicas, most=most))

    def reload(self) -> None:
        """Have every replica read its tenants file again. Raises UpError: they have none, too."""
        if not self.found().reloads_tenants:
            raise UpError("these servers have no tenants file (--tenants-file behind --)")
        self._change(lambda told: replace(told, reloads=told.reloads + 1))

    def drain(self, member: str) -> str:
        """Have one replica drain, which another one replaces; returns its address.

        Args:
            member: its address, its slot or its name.

        Raises:
            UpError: there is no such member.
        """
        told = self.found()
        here = self._rows(told)
        found = [each for each in here if member in names_of(each)]
        if not found:
            known = ", ".join(each.presence.address for each in here) or "none"
            raise UpError(f"there is no member {member!r}: {known}")
        address = found[0].presence.address
        addresses = {each.presence.address for each in here}
        kept = tuple(each for each in told.leaving if each in addresses and each != address)
        self._change(lambda told: replace(told, leaving=(*kept, address)))
        return address

    def down(self, say: Callable[[str], None]) -> None:
        """Have every replica drain and end, and Ray where it is ours. Raises UpError."""
        with self._alone():
            told = self.found()
            head = None if told.ray else ray_head.find(self._folder)
            if told.ray or head is not None:
                with self._ray(told, ""):
                    serve = _serve()
                    say(f"keepwarm cluster {self._cluster}: replicas drain")
                    if told.ray:
                        serve.delete(self._app)
                    else:
                        serve.shutdown()
            if head is not None:
                ray_head.end(head, self._folder)
            (self._folder / _FILE).unlink(missing_ok=True)

    # Ray

    @property
    def _app(self) -> str:
        return f"keepwarm-{self._cluster}"

    def _change(self, change: Callable[[Deployed], Deployed]) -> None:
        with self._alone():
            told = change(self.found())
            with self._ray(told, ""):
                self._tell(told)

    @contextlib.contextmanager
    def _ray(self, told: Deployed, host: str) -> Iterator[None]:
        """Be connected to the Ray that is used. ``host``: start one there; "": one has to run."""
        address = told.ray
        try:
            if not address:
                head = ray_head.find(self._folder)
                if head is None and not host:
                    raise UpError(f"the Ray of the cluster {self._cluster} does not run any more")
                head = head or ray_head.start(self._folder, host)
                ray_head.prepare(self._folder, head.host)
                address = head.address
        except RayHeadError as error:
            raise UpError(str(error)) from error
        import ray

        logging.getLogger("ray").setLevel(logging.WARNING)
        try:
            ray.init(
                address=address,
                namespace="keepwarm",
                log_to_driver=False,
                logging_level=logging.WARNING,
            )
        except Exception as error:
            raise UpError(f"Ray at {address}: {_last_line(error)}") from error
        try:
            yield
        finally:
            ray.shutdown()

    def _tell(self, told: Deployed) -> None:
        """Have Serve make it so, and keep what it was told."""
        serve = _serve()
        serve.start(proxy_location="Disabled")
        made = serve.deployment(RayReplica, name="replica", **serve_options(told))
        # Without a version each call would replace all replicas, also one that changes a number.
        made = made.options(version=str(told.generation), _internal=True)
        self._write(told)
        target = serve.RunTarget(
            target=made.bind(dict(told.plan), told.drain_s), name=self._app, route_prefix=None
        )
        serve.run_many([target], wait_for_applications_running=False)

    def _write(self, told: Deployed) -> None:
        file = self._folder / _FILE
        new = file.with_suffix(".new")
        descriptor = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(descriptor, "w") as made:
            json.dump(asdict(told), made)
        os.replace(new, file)

    # What there is

    def _rows(self, told: Deployed) -> list[Member]:
        rows = MemberRows(told.plan["journal"], self._cluster)
        try:
            return rows.living()
        except JournalError as error:
            raise UpError(str(error)) from error
        finally:
            rows.close()

    def _ready(self, told: Deployed) -> list[Member]:
        found = self._rows(told)
        return [each for each in found if each.presence.state is MemberState.READY]

    def _wait(self, told: Deployed, before: set[str], say: Callable[[str], None]) -> None:
        """Until so many replicas are ready as there have to be, none of them from ``before``."""
        serve = _serve()
        said = set(before)
        while True:
            try:
                new = [each for each in self._ready(told) if each.owner not in before]
            except UpError:
                new = []  # the database is away
            for each in new:
                if each.owner not in said:
                    said.add(each.owner)
                    say(f"slot {each.slot or each.presence.wanted_slot}: {each.presence.address}")
            application = serve.status().applications.get(self._app)
            if application is not None and application.status == "DEPLOY_FAILED":
                raise UpError(f"the replicas do not start: {failure_of(application)}")
            if len(new) >= told.replicas:
                return
            time.sleep(LOOK_EVERY_S)


def need_ray() -> None:
    """Raise ModuleNotFoundError where Ray is not installed. It is not imported: what it reads of
    the environment as it is imported is not there yet."""
    if importlib.util.find_spec("ray") is None:
        raise ModuleNotFoundError("No module named 'ray'", name="ray")


def serve_options(told: Deployed) -> dict[str, Any]:
    """Options of the deployment; a change of any but ``user_config`` and numbers replaces it."""
    options: dict[str, Any] = {
        "graceful_shutdown_timeout_s": told.drain_s + 5.0,
        "graceful_shutdown_wait_loop_s": 0.1,
        "health_check_period_s": HEALTH_EVERY_S,
        "health_check_timeout_s": 30.0,
        "max_ongoing_requests": 1,
        "max_constructor_retry_count": 2,
        "rolling_update_percentage": 0.001,
        "ray_actor_options": {"num_cpus": told.cpus, "num_gpus": told.gpus},
        "user_config": {"reloads": told.reloads, "leaving": list(told.leaving)},
    }
    if told.most <= told.replicas:
        return options | {"num_replicas": told.replicas}
    policy = {
        "policy_function": ScalePolicy,
        "policy_kwargs": {"turns_per_server": told.turns_per_replica},
    }
    return options | {
        "autoscaling_config": {
            "min_replicas": told.replicas,
            "max_replicas": told.most,
            "upscale_delay_s": 0.0,  # the policy has delays of its own
            "downscale_delay_s": 0.0,
            "look_back_period_s": 10.0,
            "policy": policy,
        }
    }


def names_of(member: Member) -> set[str]:
    """Words by which a person may mean a member."""
    return {member.owner, member.presence.address, str(member.slot)} - {"0"}


def _serve() -> Any:
    """Ray Serve, which says no more than it has to."""
    from ray import serve

    logging.getLogger("ray.serve").setLevel(logging.WARNING)
    return serve


def failure_of(application: Any) -> str:
    """The last line of what Serve says of replicas that do not start."""
    texts = [application.message, *(each.message for each in application.deployments.values())]
    lines = [line.strip() for text in texts for line in text.splitlines() if line.strip()]
    told = [line for line in lines if "ReplicaDidNotStart" in line or "Error" in line]
    found: str = (told or lines or ["see Ray's log"])[-1]
    return found.rpartition("ReplicaDidNotStart: ")[2].removeprefix("keepwarm: error: ")


def _last_line(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return lines[-1] if lines else type(error).__name__
