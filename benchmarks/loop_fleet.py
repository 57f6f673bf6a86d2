"""The servers of ``benchmarks.agent_loop``: ways of serving of our own, and other engines.

Each is a process on a loopback port, started when it is first needed and warmed up; a peer that has
ended is started again. Knows no bars and no figures.
"""

import asyncio
import time
import urllib.request
from collections import Counter
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from benchmarks.loop_model import write_loop_model
from benchmarks.loop_peers import OpenPeer, Peer, llama_server, vllm_server
from benchmarks.loop_workload import Played, Workload, gaps_beside_prompt, own_agents, play
from benchmarks.quiet_machine import wait_until_quiet
from keepwarm.demo.child_server import ChildServer, child_server
from sessions.tenants import ApiKey, Role
from sessions.tenants_file import key_row

NO_DRAFTS = ("--max-draft-tokens", "0")
FCFS = ("--policy", "fcfs", "--prefill-tokens-beside-decodes", "512", *NO_DRAFTS)
FLOAT64 = ("--dtype", "float64")
SERVERS = {
    "ours": NO_DRAFTS,
    "fcfs": FCFS,
    "drafts": (),
    "before": NO_DRAFTS,
    "before_fcfs": FCFS,
    "exact_ours": (*FLOAT64, *NO_DRAFTS),
    "exact_fcfs": (*FLOAT64, *FCFS),
    "exact_drafts": FLOAT64,
}
"""Options by name. ``before*`` run another checkout's code, ``exact*`` the tiny model."""
StartPeer = Callable[..., AbstractContextManager[Peer]]
PEERS: dict[str, tuple[str, StartPeer]] = {
    "llama": ("--llama-server", llama_server),
    "vllm": ("--vllm-python", vllm_server),
}
PEER_CONTEXT = 8192
EXACT_MODEL = "random:qwen3-tiny"
GAUGE = "keepwarm_token_gap_bound_seconds"
NUM_TENANTS = 100
"""More than the same texts are played to one server."""
WARM_UP = Workload(texts="warm up", sessions=2, turns=2, system_tokens=64, result_tokens=(64, 64))
Result = TypeVar("Result")


class OutOfTime(Exception):
    """The time that the whole benchmark may take is over."""


@dataclass(slots=True, kw_only=True)
class Fleet:
    """The servers, each started when it is first needed. ``stack`` ends them."""

    stack: ExitStack
    folder: Path
    model: str
    before: Path | None
    peers: Mapping[str, Path]
    """The peers that were given, of ``programs``."""
    options: tuple[str, ...]
    sessions: int
    """That other engines make room for."""
    threads: int
    deadline_s: float
    """By ``time.monotonic``."""
    ways: Mapping[str, Sequence[str]] = field(default_factory=lambda: SERVERS)
    """Options of our own servers by name."""
    programs: Mapping[str, tuple[str, StartPeer]] = field(default_factory=lambda: PEERS)
    write_model: Callable[[Path, str], int] = write_loop_model
    temperature: float = 1.0
    start_timeout_s: float = 120.0
    """Within which a server of our own is ready."""
    parameters: dict[str, int] = field(default_factory=dict)
    """Parameters of the models that have been written."""
    _servers: dict[str, ChildServer] = field(default_factory=dict)
    _peers: dict[str, Peer] = field(default_factory=dict)
    _said: Counter[tuple[str, str, int]] = field(default_factory=Counter)
    """How often each server was told each text of each round."""

    def __post_init__(self) -> None:
        keys = [ApiKey.of("operator-key", tenant="operator", role=Role.OPERATOR)]
        keys += [
            ApiKey.of(_key(number), tenant=f"tenant-{number}") for number in range(NUM_TENANTS)
        ]
        self._keys.write_text("".join(map(key_row, keys)))

    @property
    def _keys(self) -> Path:
        return self.folder / "tenants.toml"

    def play(self, server: str, load: Workload, seed: int) -> Played:
        """Play ``load`` on the server, which has nothing of it in its cache."""
        agents: OpenPeer
        if server in self.programs:
            agents = self.peer(server).agent
        else:
            agents = own_agents(
                self.server(server).url,
                self._new_key(server, load, seed),
                temperature=self.temperature,
            )
        return self.within_time(play(agents, load, seed))

    def rest(self, run: str) -> bool:
        """Have the server of ``run`` and wait until none does anything any more; False where one
        still does."""
        server = run.partition("/")[0]
        self.peer(server) if server in self.programs else self.server(server)
        return wait_until_quiet(resting=len(self._servers))

    def lacks(self, run: str) -> str | None:
        """Why a run cannot be played, None if it can."""
        server = run.partition("/")[0]
        if server.startswith("before") and self.before is None:
            return "no --before was given"
        if server in self.programs and server not in self.peers:
            return f"no {self.programs[server][0]} was given"
        return None

    def gaps(self, server: str, load: Workload, prompt_tokens: int, seed: int) -> "Gaps":
        """Between the tokens of ``load`` beside a prompt."""
        url, key = self.server(server).url, self._new_key(server, load, seed)
        bounds: list[float | None] = []  # of the plans that were looked at
        gaps = self.within_time(
            gaps_beside_prompt(
                own_agents(url, key),
                load=load,
                prompt_tokens=prompt_tokens,
                seed=seed,
                look=lambda: bounds.append(gauge(url, GAUGE)),
            )
        )
        told = [bound for bound in bounds if bound is not None]
        return Gaps(gaps, max(told, default=None))

    def server(self, name: str) -> ChildServer:
        """The server of that name, warmed up."""
        if name not in self._servers:
            if self.deadline_s < time.monotonic():
                raise OutOfTime
            given = ["--model", str(self.model_folder(name)), "--tenants-file", str(self._keys)]
            self._servers[name] = self.stack.enter_context(
                child_server(
                    [*given, *self.ways[name], *self.options],
                    log=self.folder / f"{name}.log",
                    start_timeout_s=self.start_timeout_s,
                    checkout=self.before if name.startswith("before") else None,
                )
            )
            self.play(name, WARM_UP, seed=0)
        return self._servers[name]

    def peer(self, name: str) -> Peer:
        """The other engine's server of that name, warmed up; another one where it has ended."""
        if name not in self._peers or not self._peers[name].runs():
            if self.deadline_s < time.monotonic():
                raise OutOfTime
            self._peers[name] = self.stack.enter_context(
                self.programs[name][1](
                    self.peers[name],
                    self.model_folder(name),
                    folder=self.folder,
                    sessions=self.sessions,
                    threads=self.threads,
                    context=PEER_CONTEXT,
                )
            )
            self.play(name, WARM_UP, seed=0)
        return self._peers[name]

    def _new_key(self, server: str, load: Workload, seed: int) -> str:
        """The key of a tenant that has not said these texts to the server."""
        said = server, load.texts, seed
        self._said[said] += 1
        return _key(self._said[said] - 1)

    def within_time(self, work: Coroutine[Any, Any, Result]) -> Result:
        async def bounded() -> Result:
            async with asyncio.timeout(self.deadline_s - time.monotonic()):
                return await work

        try:
            return asyncio.run(bounded())
        except TimeoutError as error:
            raise OutOfTime from error

    def model_folder(self, server: str) -> Path:
        """The model that a server serves, written when it is first needed."""
        model = EXACT_MODEL if server.startswith("exact") else self.model
        folder = self.folder / model.replace(":", "-")
        if model not in self.parameters:
            self.parameters[model] = self.write_model(folder, model)
        return folder


class Gaps(NamedTuple):
    seconds: list[float]
    bound_s: float | None
    """The largest that the server said of itself meanwhile; None: it says nothing."""


def _key(tenant: int) -> str:
    return f"key-of-tenant-{tenant}"


def gauge(url: str, name: str) -> float | None:
    """A gauge of the server's metrics, None if it has no such."""
    request = urllib.request.Request(
        url.removesuffix("/v1") + "/metrics", headers={"Authorization": "Bearer operator-key"}
    )
    with urllib.request.urlopen(request, timeout=30) as answer:
        for line in answer.read().decode().splitlines():
            if line.startswith(f"{name} "):
                return float(line.split()[1])
    return None
