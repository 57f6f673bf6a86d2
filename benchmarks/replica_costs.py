"""Costs of a cluster: a chain that moves, the carrier, limits that are shared. Parts of
``benchmarks.replicas``."""

import asyncio
import contextlib
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence

from websockets.asyncio.client import connect

from benchmarks.replica_parts import OPTIONS, SHORT, Answer, Sizes, client, haproxy_before
from keepwarm import ApiError, AsyncClient
from sessions.tenants import ApiKey
from sessions.tenants_file import key_row
from tests.support.clusters import Cluster, running
from tools_api.sdk.backoff import Retries

KEY = "key-of-the-tenant"
NO_RETRIES = Retries(tries=0)

ECHO = """
from websockets.sync.server import serve
def checked(socket, request):
    return socket.respond(200, "ok") if request.path == "/health" else None
def echo(socket):
    for message in socket:
        socket.send(message)
with serve(echo, "127.0.0.1", 0, process_request=checked, compression=None) as server:
    print(server.socket.getsockname()[1], flush=True)
    server.serve_forever()
"""


# Costs


async def chain(
    urls: Sequence[str], name: str, said: str, turns: int
) -> tuple[list[float], list[str]]:
    """Seconds and outputs of one chain whose turns go to these servers in turns. Chains that say
    the same from the beginning warm each other."""
    took, texts = [], []
    async with contextlib.AsyncExitStack() as stack:
        own = [await stack.enter_async_context(client(url)) for url in urls]
        head = None
        for number in range(turns):
            session = own[number % len(own)].session(name=name, head=head)
            began = time.monotonic()
            response = await session.respond(f"{said} {number}: how much is a desk?", **SHORT)
            took.append(time.monotonic() - began)
            texts.append(response.text)
            head = response.id
    return took, texts


async def turns(cluster: Cluster, sizes: Sizes, answer: Answer) -> None:
    urls = [f"http://{each.address}/v1" for each in cluster.replicas]
    moved_s, moved = await chain(urls, "moved", "question", sizes.moved)
    home_s, _ = await chain(urls[:1], "at home", "and now", sizes.moved)
    _, home = await chain(urls[:1], "the same", "question", sizes.moved)
    medians = statistics.median(moved_s), statistics.median(home_s)
    answer.figures["moved_turn_s"], answer.figures["home_turn_s"] = medians
    answer.bar("moved_turn_over_home", medians[0] / medians[1], "<=", 3.0)
    answer.bar(
        "moved_turns_that_differ", sum(a != b for a, b in zip(home, moved, strict=True)), "<=", 0
    )


async def echo_us(port: int, count: int) -> float:
    async with connect(f"ws://127.0.0.1:{port}/", compression=None) as echoing:
        took = []
        for _ in range(count):
            began = time.perf_counter()
            await echoing.send("x" * 200)
            await echoing.recv()
            took.append(time.perf_counter() - began)
    return 1e6 * statistics.median(took)


async def carrier(cluster: Cluster, sizes: Sizes, answer: Answer) -> None:
    del cluster
    with subprocess.Popen([sys.executable, "-c", ECHO], stdout=subprocess.PIPE) as server:
        try:
            assert server.stdout is not None
            port = int(server.stdout.readline())
            with haproxy_before([f"127.0.0.1:{port}"]) as before:
                rounds = [
                    (await echo_us(port, sizes.echoes), await echo_us(before, sizes.echoes))
                    for _ in range(5)
                ]
        finally:
            server.terminate()
    answer.figures["echo_us"] = rounds
    answer.bar("carrier_us", statistics.median(b - a for a, b in rounds), "<=", 150.0)


async def used_in(urls: Sequence[str], seconds: float, name: str) -> tuple[int, int]:
    """Turns and tokens that a tenant gets in so many seconds behind its first burst, which asks at
    all servers all the time."""
    counts, until = [0, 0], float("inf")
    burst = asyncio.Event()

    async def ask(number: int) -> None:
        own = AsyncClient(urls[number % len(urls)], api_key=KEY, retries=NO_RETRIES)
        async with own:
            while time.monotonic() < until:
                try:
                    response = await own.session(name=f"{name} {number}").respond("hi", **SHORT)
                except ApiError:
                    burst.set()
                    await asyncio.sleep(0.1)
                    continue
                if burst.is_set():
                    counts[0] += 1
                    usage = response.usage
                    counts[1] += usage.output_tokens + usage.input_tokens - usage.cached_tokens

    tasks = [asyncio.create_task(ask(number)) for number in range(8)]
    await burst.wait()
    until = time.monotonic() + seconds
    await asyncio.gather(*tasks)
    return counts[0], counts[1]


async def quota(sizes: Sizes, answer: Answer) -> None:
    for kind, at in (("turns", 0), ("tokens", 1)):
        limit = 60 if kind == "turns" else 6000
        found = []
        for count in (1, sizes.replicas):
            with tempfile.NamedTemporaryFile("w", suffix=".toml") as file:
                file.write(key_row(ApiKey.of(KEY, tenant="acme")))
                file.write(f"\n[tenants.acme]\n{kind}_per_minute = {limit}\n")
                file.flush()
                with running(count, [*OPTIONS, "--tenants-file", file.name]) as cluster:
                    urls = [f"http://{each.address}/v1" for each in cluster.replicas]
                    found.append((await used_in(urls, sizes.quota_s, kind))[at])
        answer.figures[f"quota_{kind}"], ratio = found, found[1] / max(found[0], 1)
        answer.bar(f"quota_over_one_{kind}_least", ratio, ">=", 0.9)
        answer.bar(f"quota_over_one_{kind}_most", ratio, "<=", 1.1)
