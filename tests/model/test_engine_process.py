"""The engine in a child process: the same answers as inline, and what happens when it dies."""

import asyncio
import json
import os
import resource
import signal
import socket
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from runtime.config import EngineConfig
from runtime.heap_pages import with_large_pages
from runtime.messages import (
    Beat,
    FinishReason,
    GenerationRequest,
    Loading,
    SamplingParams,
    TokenArray,
)
from runtime.process import engine_process, frames
from runtime.process.engine_process import (
    EngineDied,
    EngineLink,
    EngineProcess,
    EngineStartError,
)
from tests.support.fake_engine import INFO
from tests.support.inline_engine import InlineEngine
from tests.support.requests import make_request
from tests.support.stalled_model import StalledModel

CONFIG = EngineConfig(
    model="random:qwen3-tiny", dtype="float64", device="cpu", num_blocks=128, threads=1
)
PROMPT = np.arange(40, 75, dtype=np.int32)


def _request(
    name: str, *, tokens: TokenArray = PROMPT, base: str | None = None, offset: int = 0
) -> GenerationRequest:
    return make_request(
        tokens,
        request_id=name,
        branch_id="s" if base else f"s-{name}",
        base_branch_id=base,
        base_offset=offset,
        max_new_tokens=9,
        sampling=SamplingParams(temperature=1.0, seed=5),
    )


async def _finish(engine: EngineLink, names: set[str]) -> dict[str, tuple[list[int], FinishReason]]:
    tokens: dict[str, list[int]] = {name: [] for name in names}
    ended: dict[str, FinishReason] = {}
    while set(ended) != names:
        output = await engine.receive()
        for item in output.outputs:
            tokens[item.request_id] += item.new_tokens.tolist()
            if item.finish is not None:
                ended[item.request_id] = item.finish
    return {name: (tokens[name], ended[name]) for name in names}


async def _three_turns(engine: EngineLink) -> dict[str, tuple[list[int], FinishReason]]:
    info = await engine.start()
    assert info.kv_capacity_tokens == 128 * 16
    engine.send([_request(name) for name in ("a", "b", "c")])
    results = await _finish(engine, {"a", "b", "c"})
    await engine.stop()
    return results


def test_the_child_gives_the_tokens_of_the_inline_engine() -> None:
    child = asyncio.run(_three_turns(EngineProcess(CONFIG)))
    inline = asyncio.run(_three_turns(InlineEngine(CONFIG)))
    assert child == inline


async def _kill_and_restart() -> None:
    engine = EngineProcess(CONFIG)
    await engine.start()
    engine.send([_request("a")])
    before = await _finish(engine, {"a"})
    first_pid = engine.process_id
    assert first_pid is not None
    os.kill(first_pid, signal.SIGKILL)
    with pytest.raises(EngineDied, match="killed by SIGKILL"):
        await engine.receive()
    engine.send([_request("lost")])  # must not raise
    await engine.restart()
    assert engine.process_id != first_pid
    engine.send([_request("b", base="s-a", offset=10)])
    assert (await _finish(engine, {"b"}))["b"] == ([], FinishReason.UNKNOWN_BASE)
    engine.send([_request("a")])
    assert await _finish(engine, {"a"}) == before
    await engine.stop()
    await engine.stop()
    assert engine.process_id is None


@pytest.mark.tail
def test_a_killed_engine_is_noticed_and_a_fresh_one_takes_over() -> None:
    asyncio.run(_kill_and_restart())


class _Cores:
    """In place of a choice of cores: what was asked of it."""

    def __init__(self) -> None:
        self.asked: list[int | str] = []
        self.tended = asyncio.Event()
        self.left = asyncio.Event()

    def tend(self, process_id: int, now_s: float) -> None:
        self.asked.append(process_id)
        self.tended.set()

    def back(self) -> None:
        self.asked.append("back")
        self.left.set()


async def _engines_that_are_kept_clear_of(cores: _Cores) -> list[int]:
    engine, engines = EngineProcess(CONFIG), []
    for begin in (engine.start, engine.restart):
        await begin()
        cores.tended.clear()
        engine.send([_request("a")])
        await _finish(engine, {"a"})
        await cores.tended.wait()
        assert engine.process_id is not None
        engines.append(engine.process_id)
    await engine.stop()
    return engines


@pytest.mark.tail
def test_each_engine_is_kept_clear_of_and_starts_with_all_cores(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cores = _Cores()
    monkeypatch.setattr(engine_process, "CoreChoice", lambda: cores)
    monkeypatch.setattr(engine_process, "LOOK_S", 0.001)
    monkeypatch.setattr(engine_process, "RESTS_AFTER_S", 3600.0)
    first, second = asyncio.run(_engines_that_are_kept_clear_of(cores))
    assert list(dict.fromkeys(cores.asked)) == [first, "back", second]
    assert cores.asked[-1] == "back"
    assert cores.asked.count("back") == 2


@pytest.mark.tail
def test_an_engine_at_rest_is_not_looked_at_and_leaves_all_cores(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cores = _Cores()
    monkeypatch.setattr(engine_process, "CoreChoice", lambda: cores)
    monkeypatch.setattr(engine_process, "LOOK_S", 0.0)
    monkeypatch.setattr(engine_process, "RESTS_AFTER_S", 0.001)

    async def scenario() -> None:
        engine = EngineProcess(CONFIG)
        await engine.start()
        await cores.left.wait()
        assert cores.asked == ["back"], "nothing has been computed"
        engine.send([_request("a")])
        await _finish(engine, {"a"})
        await cores.tended.wait()
        cores.left.clear()
        await cores.left.wait()
        assert engine.process_id in cores.asked
        await engine.stop()

    asyncio.run(scenario())


async def _stop_and_restart() -> None:
    engine = EngineProcess(replace(CONFIG, hung_after_s=1))
    await engine.start()
    engine.send([_request("a")])
    before = await _finish(engine, {"a"})
    first_pid = engine.process_id
    assert first_pid is not None
    os.kill(first_pid, signal.SIGSTOP)
    with pytest.raises(EngineDied, match="it hung: no sign of life for 1"):
        await engine.receive()
    await engine.restart()
    assert engine.process_id != first_pid
    engine.send([_request("a")])
    assert await _finish(engine, {"a"}) == before
    await engine.stop()


@pytest.mark.tail
@pytest.mark.samples(1)
def test_an_engine_can_be_replaced_while_thousands_of_clients_are_there() -> None:
    """Its socket has the lowest number that is free in this process, and keeps it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < 1500:
        pytest.skip("so many descriptors cannot be had here")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, 1500), hard))
    clients = [os.open(os.devnull, os.O_RDONLY) for _ in range(1100)]
    try:
        asyncio.run(_kill_and_restart())
    finally:
        for client in clients:
            os.close(client)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.tail
def test_an_engine_that_stands_still_is_killed_and_a_fresh_one_takes_over() -> None:
    asyncio.run(_stop_and_restart())


@pytest.mark.tail
def test_neither_a_long_step_nor_a_long_rest_is_taken_for_a_hung_engine() -> None:
    """Steps take several times as long as the engine may show no sign of life."""

    async def scenario() -> None:
        engine = EngineProcess(
            EngineConfig(
                model="random:qwen3-100m",
                dtype="float32",
                device="cpu",
                num_blocks=128,
                max_batch_tokens=8192,
                threads=1,
                hung_after_s=1,
            )
        )
        await engine.start()
        rest = asyncio.create_task(engine.receive())
        await asyncio.wait([rest], timeout=2.0)
        assert not rest.done(), "an engine at rest has nothing to say"
        prompt = np.random.default_rng(0).integers(40, 200, 1500, dtype=np.int32)
        engine.send([_request("a", tokens=prompt)])
        step, longest_s = await rest, 0.0
        while not any(item.finish for item in step.outputs):
            longest_s = max(longest_s, step.stats.step_s)
            step = await engine.receive()
        await engine.stop()
        if longest_s < 1.0:
            pytest.skip("too fast a machine: no step was long")

    asyncio.run(scenario())


def _stalls(folder: Path, *, hung_after_s: int = 300, limit_s: int = 0) -> EngineConfig:
    return replace(
        CONFIG,
        model=str(folder),
        dtype="auto",
        load_hung_after_s=hung_after_s,
        load_limit_s=limit_s,
    )


@pytest.mark.tail
@pytest.mark.parametrize(
    ("signal_number", "reason"),
    [
        (
            signal.SIGSTOP,
            r"was killed: no sign of life for \S+ s while reading the folder \(--load-",
        ),
        (signal.SIGKILL, "was killed by SIGKILL, as .*, while reading the folder"),
        (None, r"was killed: no sign of life for \S+ s while reading the folder \(--load-hung"),
    ],
)
def test_a_loader_that_hangs_or_dies_is_told_with_its_stage(
    signal_number: signal.Signals | None, reason: str, tmp_path: Path
) -> None:
    async def scenario() -> None:
        model = StalledModel(tmp_path)
        model.stall()
        engine = EngineProcess(_stalls(tmp_path, hung_after_s=2))
        starting = asyncio.create_task(engine.start())
        pipe = await asyncio.to_thread(model.loader_waits)
        assert engine.process_id is not None
        if signal_number is not None:
            os.kill(engine.process_id, signal_number)
            model.let_go(pipe)  # a loader that lives goes on
        with pytest.raises(EngineStartError, match=reason):
            await starting
        assert engine.process_id is None
        if signal_number is None:
            with pytest.raises(BrokenPipeError):
                model.let_go(pipe)

    asyncio.run(scenario())


def test_a_load_beyond_its_limit_is_ended_though_the_process_works(tmp_path: Path) -> None:
    async def scenario() -> None:
        StalledModel(tmp_path).stall()
        engine = EngineProcess(_stalls(tmp_path, hung_after_s=0, limit_s=1))
        with pytest.raises(EngineStartError, match=r"not ready after .* \(--load-limit-s 1\)"):
            await engine.start()

    asyncio.run(scenario())


@pytest.mark.tail
def test_a_load_that_is_given_up_ends_at_once(tmp_path: Path) -> None:
    async def scenario() -> None:
        model = StalledModel(tmp_path)
        model.stall()
        engine = EngineProcess(_stalls(tmp_path))
        starting = asyncio.create_task(engine.start())
        pipe = await asyncio.to_thread(model.loader_waits)
        process_id = engine.process_id
        assert process_id is not None
        starting.cancel()
        await asyncio.gather(starting, return_exceptions=True)
        async with asyncio.timeout(60):
            await engine.stop()
        with pytest.raises(ProcessLookupError):
            os.kill(process_id, 0)
        os.close(pipe)

    asyncio.run(scenario())


@pytest.mark.tail
def test_a_model_that_does_not_exist_is_one_clear_error() -> None:
    async def start() -> None:
        await EngineProcess(EngineConfig(model="/nonexistent/model")).start()

    with pytest.raises(EngineStartError, match="/nonexistent/model") as caught:
        asyncio.run(start())
    assert "Traceback" not in str(caught.value)


@pytest.mark.tail
@pytest.mark.parametrize("link", [EngineProcess, InlineEngine])
@pytest.mark.samples(1)
def test_what_an_engine_leaves_on_disk_is_there_for_the_next(
    link: type[EngineProcess] | type[InlineEngine], tmp_path: Path
) -> None:
    config = replace(
        CONFIG, host_kv_bytes=1 << 22, disk_kv_bytes=1 << 22, disk_kv_folder=str(tmp_path)
    )

    async def run() -> None:
        engine = link(config)
        await engine.start()
        engine.send([_request("a")])
        before = await _finish(engine, {"a"})
        await engine.restart()
        engine.send([_request("b")])
        cached = None
        tokens: list[int] = []
        finish = None
        while finish is None:
            for item in (await engine.receive()).outputs:
                tokens += item.new_tokens.tolist()
                cached = item.start.cached_tokens if item.start is not None else cached
                finish = item.finish
        await engine.stop()
        assert cached == 32, "two whole blocks of the prompt"
        assert tokens == before["a"][0]

    asyncio.run(run())


_PEER = """
import socket, sys
said, stays, number = sys.argv[1:]
connection = socket.socket(fileno=int(number))
connection.recv(1 << 20)
connection.sendall(bytes.fromhex(said))
if stays == "stays":
    connection.recv(1)
"""
_READY = frames.encode_ready(INFO)
_BEAT = frames.encode_beat(Beat(turn=1, working=True))
_LOADING = frames.encode_loading(Loading(stage="loading the model", memory_bytes=1))
_TOO_LARGE = b"KWF1" + (1 << 31).to_bytes(4, "little") + bytes(4)


def _peer(said: bytes, then: str) -> EngineProcess:
    """A child that reads its configuration, says some bytes, and stays or goes."""
    config = EngineConfig(load_hung_after_s=1, hung_after_s=1)
    return EngineProcess(config, command=(sys.executable, "-c", _PEER, said.hex(), then))


@pytest.mark.samples(2)
@pytest.mark.parametrize(
    ("said", "then", "reason"),
    [
        (b"no frame at all", "stays", "no message .frame starts with b'no f'"),
        (_TOO_LARGE, "stays", "no message .frame of 2147483648 bytes, 268435456 allowed"),
        (_BEAT, "stays", "no message .not what an engine says while it starts"),
        (_LOADING + _READY[:-9], "goes", "ended with status 0, .* while loading the model"),
        (_READY[:7], "goes", "ended with status 0, .* while starting"),
        (_LOADING + _READY[:-9], "stays", "no sign of life .* while loading the model"),
        (b"", "goes", "ended with status 0, .* while starting"),
    ],
)
def test_a_loader_that_says_what_cannot_be_understood_is_ended(
    said: bytes, then: str, reason: str
) -> None:
    async def scenario() -> None:
        engine = _peer(said, then)
        with pytest.raises(EngineStartError, match=reason):
            async with asyncio.timeout(60):
                await engine.start()
        assert engine.process_id is None

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("said", "then", "reason"),
    [
        (b"no frame at all", "stays", "frame starts with"),
        (_TOO_LARGE, "stays", "268435456 allowed"),
        (_LOADING, "stays", "neither a step's output nor a beat"),
        (_BEAT + _BEAT[:-3], "goes", r"connection ended \(.*\), exit status 0"),
        (_BEAT + _BEAT[:-3], "stays", "it hung: no sign of life"),
    ],
)
def test_an_engine_that_says_what_cannot_be_understood_counts_as_dead(
    said: bytes, then: str, reason: str
) -> None:
    async def scenario() -> None:
        engine = _peer(_READY + said, then)
        await engine.start()
        with pytest.raises(EngineDied, match=reason):
            async with asyncio.timeout(60):
                await engine.receive()
        await engine.stop()

    asyncio.run(scenario())


_CONFIG = frames.encode_config(CONFIG)


@pytest.mark.samples(2)
@pytest.mark.parametrize(
    ("said", "status", "complaint"),
    [
        (b"no frame at all", 1, "frame starts with"),
        (_TOO_LARGE, 1, "268435456 allowed"),
        (_BEAT, 1, "not an engine configuration"),
        (_CONFIG[:-5], 0, None),
        (b"", 0, None),
    ],
)
def test_a_child_that_is_told_what_cannot_be_understood_ends_without_a_traceback(
    said: bytes, status: int, complaint: str | None
) -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.sendall(said)
        ours.shutdown(socket.SHUT_WR)
        result = subprocess.run(
            [sys.executable, "-m", "runtime.process.engine_process", str(theirs.fileno())],
            pass_fds=[theirs.fileno()],
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
    assert result.returncode == status
    assert "Traceback" not in result.stderr
    lines = result.stderr.splitlines()
    assert len(lines) == status
    assert complaint is None or complaint in lines[0]


def test_an_engine_that_cannot_be_run_at_all_is_one_clear_error() -> None:
    engine = EngineProcess(EngineConfig(), command=("/nonexistent/python",))
    with pytest.raises(EngineStartError, match=r"cannot be started: .*/nonexistent/python"):
        asyncio.run(engine.start())


def test_an_engine_has_its_heap_in_large_pages_where_there_are_some(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("PYTHONMALLOC", "GLIBC_TUNABLES"):
        monkeypatch.delenv(name, raising=False)
    program = "import json, os, sys; json.dump(dict(os.environ), open(sys.argv[1], 'w'))"
    seen = tmp_path / "environment"
    engine = EngineProcess(EngineConfig(), command=(sys.executable, "-c", program, str(seen)))
    with pytest.raises(EngineStartError):
        asyncio.run(engine.start())
    environment = json.loads(seen.read_text())
    wanted = with_large_pages({})
    assert {name: environment.get(name) for name in wanted} == wanted
    assert environment["LRU_CACHE_CAPACITY"] == "64"
