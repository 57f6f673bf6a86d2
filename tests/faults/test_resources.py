"""What runs out, what nobody reads, what jumps and what goes silent; and the ends of everything."""

import asyncio
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
from websockets.asyncio.client import connect

from tests.support.fault_launcher import JUMP_S
from tests.support.faults import (
    OPTIONS,
    PHASES,
    Faulty,
    Turn,
    decode,
    faulty_server,
    play,
    reset,
    until,
)

LINUX = pytest.mark.skipif(sys.platform != "linux", reason="limits of another process: Linux only")


def limited(process: psutil.Process, kind: int, soft: int) -> tuple[int, int]:
    """Bound what a process may have; returns what it might have before."""
    before = resource.prlimit(process.pid, kind)
    resource.prlimit(process.pid, kind, (soft, before[1]))
    return before


@LINUX
def test_without_descriptors_those_inside_go_on_and_others_come_later(faulty: Faulty) -> None:
    port = int(faulty.server.url.split(":")[2].split("/")[0])
    rest = faulty.rest()

    async def scenario() -> None:
        async with faulty.socket() as client:
            turn = Turn(client)
            await turn.send(input="hello", max_output_tokens=4)
            await turn.terminal()
            before = limited(faulty.process, resource.RLIMIT_NOFILE, faulty.process.num_fds() + 3)
            crowd = [reset(port) for _ in range(60)]
            try:
                after = Turn(client)
                await after.send(input="hello again", max_output_tokens=4)
                assert (await after.terminal())["type"] != "error"
            finally:
                for each in crowd:
                    each.close()
                resource.prlimit(faulty.process.pid, resource.RLIMIT_NOFILE, before)

    asyncio.run(scenario())
    until(lambda: faulty.page("/readyz")[0] == 200)
    until(lambda: faulty.rest()["descriptors"] <= rest["descriptors"])


@LINUX
def test_an_engine_without_address_space_fails_its_turns_and_the_next_one_runs(
    faulty: Faulty,
) -> None:
    def no_more_memory(faulty: Faulty) -> None:
        limited(faulty.engine, resource.RLIMIT_AS, faulty.engine.memory_info().vms)

    async def large(faulty: Faulty) -> None:
        async with faulty.socket() as client:
            for _ in range(3):
                turn = Turn(client)
                await turn.send(input="q" * 7000, max_output_tokens=200)
                assert (await turn.terminal())["type"] in {
                    *("response.completed", "response.incomplete", "response.failed", "error")
                }

    before = faulty.engine.pid
    play(faulty, "idle", no_more_memory)
    asyncio.run(large(faulty))
    for engine in faulty.engines:
        if engine.pid == before:  # it had what it needed; the limit goes with the process
            engine.kill()
    until(lambda: [engine.pid for engine in faulty.engines] not in ([], [before]))
    until(lambda: faulty.page("/readyz")[0] == 200)
    play(faulty, "decode", lambda _: None)


def test_half_heads_half_closed_and_reset_sockets_leave_nothing(faulty: Faulty) -> None:
    port = int(faulty.server.url.split(":")[2].split("/")[0])
    rest = faulty.rest()
    upgrade = (
        b"GET /v1/responses HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: Upgrade\r\n"
        b"Upgrade: websocket\r\nSec-WebSocket-Version: 13\r\n"
        b"Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n"
    )
    parts = (b"", b"GET /he", upgrade[:40], upgrade, upgrade + b"\x81", upgrade + b"\x81\xfe\xff")
    made = [reset(port, data) for data in parts for _ in range(5)]
    for number, each in enumerate(made):
        if number % 3 == 0:
            each.shutdown(1)
    play(faulty, "decode", lambda _: None)
    for each in made:
        each.close()
    until(lambda: faulty.rest()["descriptors"] <= rest["descriptors"])
    until(lambda: faulty.rest()["tasks"] <= rest["tasks"])


def test_a_clock_that_jumps_an_hour_ends_no_turn_and_no_engine(faulty: Faulty) -> None:
    """Connections are older than they may be then: a turn runs to its end on an old one, and a
    new one takes the next."""
    faulty.lines()

    async def scenario() -> None:
        async with faulty.socket() as client:
            turn = Turn(client)
            await decode(faulty, turn)
            began = time.monotonic()
            faulty.server.process.send_signal(signal.SIGUSR1)
            assert (await turn.terminal())["type"] in {"response.completed", "response.incomplete"}
            assert time.monotonic() - began < JUMP_S

    asyncio.run(scenario())
    play(faulty, "decode", lambda _: None)
    assert not [line for line in faulty.lines() if "engine died" in line]


@LINUX
def test_a_full_disk_costs_the_disk_cache_and_no_turn(tmp_path: Path) -> None:
    options = ["--kv-cache-mib", "4", "--host-kv-mib", "1", "--disk-kv-mib", "16"]
    options += ["--max-batch-tokens", "512"]
    folder = tmp_path / "kv"
    with faulty_server(tmp_path / "server", *options, "--disk-kv-folder", str(folder)) as faulty:
        # Some slots can be written, the engine's part of the log too.
        limited(faulty.engine, resource.RLIMIT_FSIZE, 1 << 20)

        async def fill() -> None:
            async with faulty.socket() as client:
                for number in range(200):
                    turn = Turn(client)
                    await turn.send(input=f"{number} " * 300, max_output_tokens=2)
                    last = await turn.terminal()
                    assert last["type"] in {"response.completed", "response.incomplete"}, last
                    if "disk cache is not written" in faulty.log.read_text():
                        return

        asyncio.run(fill())
        said = [line for line in faulty.lines() if "disk cache is not written any more" in line]
        assert len(said) == 1
        play(faulty, "decode", lambda _: None)


def test_a_log_that_nobody_reads_stops_nothing(tmp_path: Path) -> None:
    """Standard error is a pipe that is full: turns go on, and a signal to stop is heard."""
    command = [sys.executable, "-m", "keepwarm", "serve", "--port", "0", *OPTIONS]
    with subprocess.Popen(
        [*command, "--log-level", "debug"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            url = line.split(" at ")[1].split()[0].replace("http", "ws") + "/responses"

            async def chatter() -> None:
                for number in range(300):
                    async with connect(url, compression=None) as client:
                        turn = Turn(client)
                        await turn.send(input=f"{number}", max_output_tokens=1)
                        assert (await turn.terminal())["type"] != "error"

            asyncio.run(chatter())
            process.terminate()
            assert process.wait(30) == 0
        finally:
            process.kill()


@pytest.mark.parametrize("phase", ["grammar", "decode"])
def test_the_end_of_the_server_is_the_end_of_its_children(tmp_path: Path, phase: str) -> None:
    """SIGKILL: nobody is left behind. Nothing can be said to clients any more."""
    with faulty_server(tmp_path) as faulty:

        async def scenario() -> None:
            async with faulty.socket() as client:
                await PHASES[phase](faulty, Turn(client))
                children = faulty.process.children(recursive=True)
                faulty.process.kill()
                until(lambda: not any(_lives(child) for child in children), 10)

        asyncio.run(scenario())


def _lives(process: psutil.Process) -> bool:
    try:
        return process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
