"""Several servers behind HAProxy: what a cluster costs, keeps and loses.

    python -m benchmarks.replicas --json --parts placement,moves,kills,stalls,turns,carrier,quota
    python -m benchmarks.replicas --json --parts ray_moves,ray_kills,ray_update

Four servers of the shipped model with one thread each, on a PostgreSQL and behind an HAProxy that
are made for the run. ``placement``: parts of prompts that came from the cache behind the first
turn, a new socket each turn, over those at one server and those of sessions sent in turns to all;
and sockets of 60 sessions. ``moves``: sockets that a scale-up or a drain cut, also with
``balance`` killed in the middle; an engine that dies behind its front end. ``kills`` and
``stalls``: seconds until a client hears of its turn again whose server got SIGKILL or SIGSTOP, and
whether the books agree. ``turns``: one chain moved with each turn over one at home, medians.
``carrier``: an echo through HAProxy less one without, medians of five. ``quota``: what a tenant
gets at all servers over what it gets at one. ``ray_moves`` and ``ray_kills`` are the same on Ray
Serve, with the time until a replacement serves over a server's own start; ``ray_update``: prompt
tokens computed after all servers were replaced, with folders of KV over without. Nothing here is
throughput: the machine has two cores. It has to be idle.
"""

import argparse
import asyncio
import os
import signal
import statistics
import sys
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

import psutil

from benchmarks.replica_costs import carrier, quota, turns
from benchmarks.replica_faults import kills, stalls
from benchmarks.replica_parts import (
    OPTIONS,
    SHORT,
    SMALL,
    Answer,
    Sizes,
    client,
    num_cut,
    open_sockets,
    replace_dead,
    told,
)
from benchmarks.replica_ray import ray_kills, ray_moves, ray_update
from benchmarks.report import parser, report
from cluster.replica_process import ReplicaProcess
from tests.support.clusters import Cluster, missing, running
from tests.support.ray_clusters import ray_missing

PARTS = ("placement", "moves", "kills", "stalls", "turns", "carrier", "quota")
RAY_PARTS = {"ray_moves": ray_moves, "ray_kills": ray_kills, "ray_update": ray_update}
"""They need the extra ``cluster``, and are measured where they are asked for."""
# Placement


async def hit_ratio(sizes: Sizes, name: str, url_of: Callable[[int, int], str]) -> float:
    """Cached parts of prompts behind the first turn; each turn has a new socket, at the address
    that ``url_of`` gives for session and turn."""
    prompt = cached = 0
    heads: dict[int, str] = {}
    for turn in range(sizes.turns):
        for number in range(sizes.sessions):
            async with client(url_of(number, turn)) as own:
                session = own.session(name=f"{name} {number}", head=heads.get(number))
                # Unlike all others from its first word on: no session warms another one.
                said = f"{name} {number} asks ({turn}): what is the price of desk, lamp and chair?"
                response = await session.respond(said, **SHORT)
                heads[number] = response.id
            if turn:
                prompt += response.usage.input_tokens
                cached += response.usage.cached_tokens
    return cached / prompt


async def placement(cluster: Cluster, sizes: Sizes, answer: Answer) -> None:
    one = f"http://{cluster.replicas[0].address}/v1"
    urls = [f"http://{each.address}/v1" for each in cluster.replicas]
    at_one = await hit_ratio(sizes, "one", lambda number, turn: one)
    home = await hit_ratio(sizes, "home", lambda number, turn: cluster.url)
    turned = await hit_ratio(sizes, "rr", lambda number, turn: urls[(number + turn) % len(urls)])
    answer.figures |= {"hit_ratio": home, "hit_ratio_one": at_one, "hit_ratio_round_robin": turned}
    answer.bar("hit_ratio_over_one_replica", home / at_one, ">=", 0.98)
    answer.bar("hit_ratio_over_round_robin", home / turned, ">=", 1.5)
    before: dict[str, str] = {}
    for again in range(2):
        async with client(cluster.url) as own:
            sessions = [own.session(name=f"root {number}") for number in range(sizes.roots)]
            for each in reversed(sessions):
                await each.respond("hello", **SHORT)
            owners = {
                name: at
                for name, at in (await asyncio.to_thread(cluster.owners)).items()
                if name.startswith("root ")
            }
        if not again:
            before = owners
    counts = [list(before.values()).count(each.address) for each in cluster.replicas]
    answer.bar("sockets_max_over_mean", max(counts) / statistics.mean(counts), "<=", 1.07)
    strays = sum(before[name] != at for name, at in owners.items())
    answer.bar("not_come_home", strays, "<=", 0)


# Scaling, draining, an engine's death


@dataclass(slots=True)
class Drained:
    """What a drain did."""

    of_others: int
    not_1012: int
    failed: int
    idle_kept: int
    """Idle sessions that the leaver still had as its last turn ended."""


async def drain(cluster: Cluster, name: str, kill: bool) -> Drained:
    """One server leaves while sockets are open and turns run."""
    count = 4 * len(cluster.replicas)
    async with (
        open_sockets(cluster.url, count, f"{name} open") as opened,
        client(cluster.url) as own,
    ):
        sessions = [own.session(name=f"{name} {number}") for number in range(count)]
        for each in sessions:
            await each.respond("hello", **SHORT)
        owners = await asyncio.to_thread(cluster.owners)
        leaver = cluster.replicas[0]
        mine = [each for each in sessions if owners[str(each.name)] == leaver.address]
        busy, idle = mine[: len(mine) // 2], mine[len(mine) // 2 :]
        runs = [asyncio.Event() for _ in busy]
        pairs = zip(busy, runs, strict=True)
        turns = [asyncio.create_task(told(each, event)) for each, event in pairs]
        await asyncio.gather(*(event.wait() for event in runs))
        if kill:
            cluster.kill_balance()
        leaver.process.send_signal(signal.SIGTERM)
        if kill:
            await asyncio.to_thread(cluster.begin_balance)
        ended = await asyncio.gather(*turns)
        after = await asyncio.to_thread(cluster.owners)
        await asyncio.to_thread(leaver.process.wait, 60)
        await asyncio.sleep(0.2)
        codes = [each.close_code for each in opened if each.close_code is not None]
    failed = sum(restarts > 0 for _, _, restarts in ended)
    kept = sum(after[str(each.name)] == leaver.address for each in idle)
    theirs = count // len(cluster.replicas)
    return Drained(max(len(codes) - theirs, 0), sum(code != 1012 for code in codes), failed, kept)


async def moves(cluster: Cluster, sizes: Sizes, answer: Answer) -> None:
    async with open_sockets(cluster.url, 16, "scale") as opened, client(cluster.url) as own:
        events = [asyncio.Event() for _ in range(sizes.replicas * 4)]
        turns = [
            asyncio.create_task(told(own.session(name=f"scale {number}"), event))
            for number, event in enumerate(events)
        ]
        await asyncio.gather(*(event.wait() for event in events))
        added = await asyncio.to_thread(cluster.start, log="added")
        await asyncio.to_thread(cluster.until, lambda: cluster.serves(added), "it serves")
        restarts = sum(again for _, _, again in await asyncio.gather(*turns))
        answer.bar("scale_up_cut", num_cut(opened) + restarts, "<=", 0)
    await asyncio.to_thread(retire, cluster, added)
    for kill, name in ((False, "drain"), (True, "drain_balance_killed")):
        found = await drain(cluster, name, kill)
        answer.figures[name] = str(found)
        answer.bar(f"{name}_cut_of_others", found.of_others, "<=", 0)
        faults = found.not_1012 + found.failed + found.idle_kept
        answer.bar(f"{name}_faults", faults, "<=", 0)
        await asyncio.to_thread(replace_dead, cluster, sizes, "--drain-notice-s", "10")
    async with open_sockets(cluster.url, 4 * sizes.replicas, "engine") as opened:
        struck = cluster.replicas[0]
        engine_of(struck).kill()
        await asyncio.to_thread(cluster.until, lambda: not cluster.serves(struck), "it is left")
        async with client(cluster.url) as own:
            for number in range(sizes.replicas):
                await own.session(name=f"meanwhile {number}").respond("hello", **SHORT)
        owners = await asyncio.to_thread(cluster.owners)
        there = [n for n in range(sizes.replicas) if owners[f"meanwhile {n}"] == struck.address]
        await asyncio.to_thread(cluster.until, lambda: cluster.serves(struck), "it is back")
        answer.bar("engine_restart_cut", num_cut(opened), "<=", 0)
        answer.bar("engine_restart_new_sessions", len(there), "<=", 0)


def engine_of(replica: ReplicaProcess) -> psutil.Process:
    children = psutil.Process(replica.process.pid).children()
    (found,) = [c for c in children if "runtime.process.engine_process" in c.cmdline()]
    return found


def retire(cluster: Cluster, replica: ReplicaProcess) -> None:
    replica.drain(60)
    cluster.replicas.remove(replica)


Part = Callable[[Cluster, Sizes, Answer], Awaitable[None]]
IN_CLUSTER: dict[str, Part] = {
    "placement": placement,
    "moves": moves,
    "kills": kills,
    "stalls": stalls,
    "turns": turns,
    "carrier": carrier,
}


def measure(parts: Sequence[str], sizes: Sizes) -> Answer:
    answer = Answer()
    answer.figures["load_before"] = os.getloadavg()
    if any(part in IN_CLUSTER for part in parts):
        with running(sizes.replicas, OPTIONS) as cluster:
            for part in (part for part in parts if part in IN_CLUSTER):
                asyncio.run(IN_CLUSTER[part](cluster, sizes, answer))
                replace_dead(cluster, sizes)
    for part in (part for part in parts if part in RAY_PARTS):
        RAY_PARTS[part](sizes, answer)
    if "quota" in parts:
        asyncio.run(quota(sizes, answer))
    answer.figures["load_after"] = os.getloadavg()
    return answer


def main(words: Sequence[str] | None = None) -> int:
    options: argparse.ArgumentParser = parser(__doc__)
    options.add_argument(
        "--parts", default=",".join(PARTS), help=f"of %(default)s,{','.join(RAY_PARTS)}"
    )
    options.add_argument("--small", action="store_true", help="only to see that it runs")
    given = options.parse_args(words)
    parts = given.parts.split(",")
    if unknown := set(parts) - {*PARTS, *RAY_PARTS}:
        options.error(f"no such parts: {', '.join(sorted(unknown))}")
    if lacks := ray_missing() if set(parts) & RAY_PARTS.keys() else missing():
        print(lacks, file=sys.stderr)
        return report("replicas", {"missing": lacks}, [], as_json=given.json) or 2
    answer = measure(parts, SMALL if given.small else Sizes())
    return report("replicas", answer.figures, answer.bars, as_json=given.json)


if __name__ == "__main__":
    sys.exit(main())
