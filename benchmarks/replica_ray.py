"""Servers of a cluster under Ray Serve: scaled, killed, replaced one after the other. Parts of
``benchmarks.replicas`` that need the extra ``cluster``, each with a cluster of its own."""

import asyncio
import statistics
import tempfile
import time
from collections.abc import Sequence
from functools import partial

from benchmarks.replica_faults import Books, kill_bars, struck_in_turn
from benchmarks.replica_parts import (
    OPTIONS,
    SHORT,
    Answer,
    Sizes,
    client,
    num_cut,
    open_sockets,
    told,
)
from keepwarm import AsyncClient, TurnRestarted
from tests.support.ray_clusters import Kept, RayCluster, running_ray

SPARE_S = 6.0
"""A replacement may take so much longer than a server's own start."""
LARGE = ["--model", "random:qwen3-100m", "--threads", "1", "--kv-cache-mib", "512"]
LARGE += ["--dtype", "float32", "--drain-seconds", "10"]
ON_DISK = ["--host-kv-mib", "512", "--disk-kv-mib", "512"]
WORDS = 160
"""Of a session's first message, so that its context has 500 tokens and more."""


def ray_moves(sizes: Sizes, answer: Answer) -> None:
    """Sockets that one server more, and one less, cut."""
    with running_ray(sizes.replicas, OPTIONS) as cluster:
        asyncio.run(scaled_up(cluster, sizes, answer))
        asyncio.run(scaled_down(cluster, sizes, answer))


async def scaled_up(cluster: RayCluster, sizes: Sizes, answer: Answer) -> None:
    async with open_sockets(cluster.url, 16, "scale") as opened, client(cluster.url) as own:
        events = [asyncio.Event() for _ in range(sizes.replicas * 4)]
        turns = [
            asyncio.create_task(told(own.session(name=f"scale {number}"), event))
            for number, event in enumerate(events)
        ]
        await asyncio.gather(*(event.wait() for event in events))
        await asyncio.to_thread(cluster.command, "scale", str(sizes.replicas + 1))
        await asyncio.to_thread(cluster.restored, sizes.replicas + 1)
        restarts = sum(again for _, _, again in await asyncio.gather(*turns))
        answer.bar("ray_scale_up_cut", num_cut(opened) + restarts, "<=", 0)


async def scaled_down(cluster: RayCluster, sizes: Sizes, answer: Answer) -> None:
    count = 4 * (sizes.replicas + 1)
    before = await asyncio.to_thread(cluster.ready)
    async with open_sockets(cluster.url, count, "drain") as opened:
        owners = sockets_by_server(cluster, opened)
        await asyncio.to_thread(cluster.command, "scale", str(sizes.replicas))
        await asyncio.to_thread(cluster.restored, sizes.replicas)
        await asyncio.sleep(1.0)
        after = {each.address for each in await asyncio.to_thread(cluster.ready)}
        (left,) = {each.address for each in before} - after
        codes = [each.close_code for each in opened if each.close_code is not None]
    answer.figures["ray_drain_closed"] = codes
    answer.bar("ray_drain_cut_of_others", max(len(codes) - owners[left], 0), "<=", 0)
    answer.bar("ray_drain_faults", sum(code != 1012 for code in codes), "<=", 0)


def sockets_by_server(cluster: RayCluster, opened: Sequence[object]) -> dict[str, int]:
    """How many are open at each, by address."""
    lines = cluster.haproxy.ask("show stat").splitlines()
    names = lines[0].removeprefix("# ").split(",")
    rows = [dict(zip(names, line.split(","), strict=False)) for line in lines[1:]]
    found = {row["addr"]: int(row["scur"]) for row in rows if row["status"] == "UP" and row["addr"]}
    assert sum(found.values()) >= len(opened)
    return found


def ray_kills(sizes: Sizes, answer: Answer) -> None:
    """Servers killed in mid-turn, every second one with its actor; then when their replacement
    serves, over a start of the same server without Ray in the same run."""
    books, took = Books(), {True: list[float](), False: list[float]()}
    replaced_s: list[float] = []
    with running_ray(sizes.replicas, OPTIONS) as cluster:
        for number in range(sizes.ray_kills):
            name, parent_lives = f"killed {number}", number % 2 == 0
            struck: list[tuple[Kept, float]] = []
            strike = partial(kill_owner, cluster, name, parent_lives, struck)
            silent_s = asyncio.run(struck_in_turn(cluster.url, name, strike, books))
            took[parent_lives].append(silent_s)
            kept, at = struck[0]
            cluster.restored(sizes.replicas, [kept])
            replaced_s.append(time.monotonic() - at)
        alone_s = [own_start(cluster, number) for number in range(3)]
        kill_bars(answer, took, books, cluster, "ray_")
    start_s = statistics.median(alone_s)
    answer.figures |= {"ray_replaced_s": replaced_s, "own_start_s": alone_s}
    answer.bar("ray_replaced_over_start_s", statistics.median(replaced_s) - start_s, "<=", SPARE_S)


def kill_owner(
    cluster: RayCluster, session: str, parent_lives: bool, struck: list[tuple[Kept, float]]
) -> None:
    """Kill who owns the session; ``struck`` gets that and when."""
    kept = cluster.kept(session)
    kept.kill(parent_lives=parent_lives)
    struck.append((kept, time.monotonic()))


def own_start(cluster: RayCluster, number: int) -> float:
    """Seconds until a server that nobody keeps serves behind the balancer."""
    began = time.monotonic()
    replica = cluster.start(log=f"alone {number}")
    cluster.until(lambda: cluster.serves(replica), "it serves")
    took = time.monotonic() - began
    replica.drain(60)
    cluster.replicas.remove(replica)
    return took


def ray_update(sizes: Sizes, answer: Answer) -> None:
    """Prompt tokens computed in each session's first turn after every server was replaced: with
    folders of KV, over without."""
    computed, failed = {}, 0
    for folders in (True, False):
        with tempfile.TemporaryDirectory(prefix="keepwarm-kv-") as root:
            words = ("--kv-folder", root) if folders else ()
            options = [*LARGE, *(ON_DISK if folders else ())]
            with running_ray(sizes.replicas, options, *words) as cluster:
                found = asyncio.run(updated(cluster, sizes))
        computed[folders], failed = found[0], failed + found[1]
        name = f"ray_update_{'with' if folders else 'without'}_folders"
        answer.figures[name] = {"computed": found[0], "prompt": found[2]}
    ratio = computed[True] / max(computed[False], 1)
    answer.bar("rolling_update_recomputed", ratio, "<=", 0.15)
    answer.bar("rolling_update_failed_turns", failed, "<=", 0)


async def updated(cluster: RayCluster, sizes: Sizes) -> tuple[int, int, int]:
    """Tokens computed, turns that failed or began again, and tokens of the prompts."""
    names = [f"updated {number}" for number in range(sizes.updated)]
    computed = failed = prompt = 0
    async with client(cluster.url) as own:
        for name in names:
            await own.session(name=name).respond(f"{name}: {text_of(name)}", **SHORT)
    before = await asyncio.to_thread(cluster.ready)
    over = asyncio.Event()
    async with client(cluster.url) as busy:
        talking = asyncio.create_task(talk(busy, over))
        await asyncio.to_thread(cluster.up, sizes.replicas)
        await asyncio.to_thread(cluster.restored, sizes.replicas, before)
        over.set()
        failed += await talking
    async with client(cluster.url) as own:
        for name in names:
            response = await own.session(name=name).respond("and now?", **SHORT)
            failed += response.status == "failed"
            computed += response.usage.input_tokens - response.usage.cached_tokens
            prompt += response.usage.input_tokens
    return computed, failed, prompt


async def talk(own: AsyncClient, over: asyncio.Event) -> int:
    """A session that is at work meanwhile; its turns that failed or began again."""
    session, failed = own.session(name="at work"), 0
    while not over.is_set():
        async for event in session.stream_turn("go on", truncation="auto", **SHORT):
            failed += isinstance(event, TurnRestarted)
        failed += getattr(event, "status", "failed") == "failed"
        await asyncio.sleep(0.2)  # the servers that start need the machine too
    return failed


def text_of(name: str) -> str:
    """Words that no other session says in this order."""
    return " ".join(f"{name.rsplit(maxsplit=1)[-1]}-{number}" for number in range(WORDS))
