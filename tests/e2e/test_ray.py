"""Servers on Ray Serve: kept, replaced in their slot, told and ended by commands.

One cluster for all tests, each of which leaves two servers that are ready; skipped where Ray,
HAProxy or PostgreSQL are not installed.
"""

import asyncio
import contextlib
import json
from collections.abc import Iterator
from typing import Any

import psutil
import pytest

from keepwarm import AsyncClient, TurnRestarted
from sessions.tenants import ApiKey
from sessions.tenants_file import key_row
from tests.e2e.conftest import OPTIONS
from tests.support.ray_clusters import RayCluster, ray_missing, running_ray

pytest.importorskip("ray.serve", reason="Ray is not installed: the extra 'cluster'")
LACKS = ray_missing()
pytestmark = [pytest.mark.skipif(bool(LACKS), reason=LACKS), pytest.mark.timeout(600)]

KEY, OTHER = "key-of-the-operator", "key-that-goes"
KV = ["--host-kv-mib", "64", "--disk-kv-mib", "64", "--drain-seconds", "5"]
SHORT: dict[str, Any] = {"max_output_tokens": 8, "temperature": 0}
_TEXT = {"type": "string", "minLength": 600, "maxLength": 600}
SHAPE = {"type": "object", "properties": {"text": _TEXT}, "required": ["text"]}
LONG: dict[str, Any] = {
    "text": {"format": {"type": "json_schema", "name": "long", "schema": SHAPE}},
    "max_output_tokens": 1500,
    "temperature": 0,
}


@pytest.fixture(scope="module")
def tenants(tmp_path_factory: pytest.TempPathFactory) -> Any:
    file = tmp_path_factory.mktemp("keys") / "tenants.toml"
    rows = [key_row(ApiKey.of(key, tenant="acme", name=key[:9])) for key in (KEY, OTHER)]
    file.write_text("\n".join(rows))
    return file


@pytest.fixture(scope="module")
def cluster(tenants: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RayCluster]:
    root = tmp_path_factory.mktemp("kv")
    options = [*OPTIONS, *KV, "--tenants-file", str(tenants)]
    with running_ray(2, options, "--kv-folder", str(root)) as made:
        yield made


def client(cluster: RayCluster, key: str = KEY) -> AsyncClient:
    return AsyncClient(cluster.url, api_key=key, sockets="session")


def run(scenario: Any) -> Any:
    return asyncio.run(asyncio.wait_for(scenario, 300))


def test_nothing_of_it_is_reached_from_elsewhere(cluster: RayCluster) -> None:
    listening = []
    for process in cluster.processes():
        with contextlib.suppress(psutil.Error):
            listening += [
                (process.name(), each.laddr.ip)
                for each in process.net_connections(kind="inet")
                if each.status == psutil.CONN_LISTEN
            ]
    assert len(listening) > 4
    loopback = ("127.", "::1", "::ffff:127.")
    assert not [each for each in listening if not each[1].startswith(loopback)]


@pytest.mark.parametrize("parent_lives", [True, False])
def test_a_server_that_is_killed_in_mid_turn_is_replaced_in_its_slot_and_warm(
    cluster: RayCluster, parent_lives: bool
) -> None:
    name = f"killed {parent_lives}"

    async def scenario() -> None:
        async with client(cluster) as own:
            session = own.session(name=name)
            await session.respond("begin", **SHORT)
            struck, again = None, 0
            async for event in session.stream_turn("go on", **LONG):
                if struck is None and type(event).__name__ == "TextDelta":
                    struck = await asyncio.to_thread(cluster.kept, name)
                    await asyncio.to_thread(struck.kill, parent_lives=parent_lives)
                again += isinstance(event, TurnRestarted)
            assert struck is not None
            assert again >= 1
            await asyncio.to_thread(cluster.restored, 2, [struck])
            assert {each.slot for each in cluster.ready()} == {1, 2}
            assert not psutil.pid_exists(struck.pid)
            (new,) = [each for each in cluster.ready() if each.slot == struck.slot]
            words = psutil.Process(new.pid).cmdline()
            folder = words[words.index("--disk-kv-folder") + 1]
            assert folder.endswith(f"slot-{new.slot}")

    run(scenario())


def test_sessions_that_are_idle_come_home_warm_after_every_server_was_replaced(
    cluster: RayCluster,
) -> None:
    text = " ".join(f"word {number}" for number in range(60))

    async def scenario() -> tuple[int, int]:
        names = [f"rolled {number}" for number in range(6)]
        async with client(cluster) as own:
            for name in names:
                await own.session(name=name).respond(f"{name}: {text}", **SHORT)
        before = cluster.ready()
        slots = {each.address: each.slot for each in before}
        homes = {name: slots[at] for name, at in cluster.owners().items() if name in names}
        await asyncio.to_thread(cluster.up, 2)
        await asyncio.to_thread(cluster.restored, 2, before)
        computed = prompt = 0
        async with client(cluster) as own:
            for name in names:
                usage = (await own.session(name=name).respond("and now?", **SHORT)).usage
                computed += usage.input_tokens - usage.cached_tokens
                prompt += usage.input_tokens
        slots = {each.address: each.slot for each in cluster.ready()}
        now = {name: slots[at] for name, at in cluster.owners().items() if name in names}
        assert now == homes
        return computed, prompt

    computed, prompt = run(scenario())
    print(f"computed={computed} prompt={prompt}")
    assert computed < 0.3 * prompt


def test_it_is_scaled_drained_told_and_seen_by_commands(cluster: RayCluster, tenants: Any) -> None:
    before = cluster.ready()
    cluster.command("scale", "1")
    cluster.restored(1)
    cluster.command("scale", "2")
    cluster.restored(2)
    kept = {each.owner for each in before} & {each.owner for each in cluster.ready()}
    assert len(kept) == 1
    rows = json.loads(cluster.command("status", "--json"))
    there = [each for each in rows if each["state"] != "silent"]  # who was killed may be
    assert [(each["state"], each["slot"]) for each in there] == [("ready", 1), ("ready", 2)]
    assert cluster.command("status").count(" ready ") == 2

    async def works(key: str) -> bool:
        async with client(cluster, key) as own:
            with contextlib.suppress(Exception):
                await own.session(name="keys").respond("hi", **SHORT)
                return True
        return False

    assert run(works(OTHER))
    tenants.write_text(key_row(ApiKey.of(KEY, tenant="acme", name="kept")))
    cluster.command("reload")
    cluster.until(lambda: not run(works(OTHER)), "the key is gone everywhere")
    assert run(works(KEY))
    leaver = cluster.ready()[0]
    assert cluster.command("drain", str(leaver.slot)).strip() == f"{leaver.address} drains"
    cluster.restored(2, [leaver])


def test_down_leaves_no_process(cluster: RayCluster) -> None:
    servers = [each.pid for each in cluster.ready()]
    assert "replicas drain" in cluster.command("down")
    cluster.until(lambda: not any(map(psutil.pid_exists, servers)), "no server lives")
    cluster.until(lambda: not cluster.ready(), "no row says that one is ready")
    balance = cluster.balance
    assert balance is not None
    balance.terminate()
    balance.communicate(timeout=20)
    cluster.until(lambda: not cluster.processes(), "nothing of it lives")
