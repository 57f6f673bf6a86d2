"""``keepwarm serve`` as its user meets it: one line when ready, one when not, a clean end."""

import asyncio
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import httpx
import orjson
import psutil
import pytest
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidStatus

from keepwarm.demo.child_server import ChildServer, child_server
from sessions.tenants import ApiKey, Role
from sessions.tenants_file import key_row
from tests.support.stalled_model import StalledModel

MODEL = ["--model", "random:qwen3-tiny", "--kv-cache-mib", "16", "--threads", "1"]
READY = re.compile(
    r"keepwarm ready at http://127\.0\.0\.1:\d+/v1 model=random:qwen3-tiny device=cpu "
    r"dtype=\w+ kv_capacity_tokens=[1-9]\d+"
)
KEY = "a-good-key"


def failing(*words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run ``keepwarm`` where it is expected to give up."""
    return subprocess.run(
        [sys.executable, "-m", "keepwarm", *words],
        capture_output=True,
        text=True,
        env=os.environ | environment,
        timeout=60,
        check=False,
    )


def socket_url(server: ChildServer) -> str:
    return server.url.replace("http", "ws") + "/responses"


def page(server: ChildServer, path: str, **options: Any) -> httpx.Response:
    return httpx.get(server.url.removesuffix("/v1") + path, timeout=20, **options)


def create(**fields: Any) -> str:
    return orjson.dumps({"type": "response.create", "model": "default"} | fields).decode()


async def until_done(client: ClientConnection) -> list[dict[str, Any]]:
    """All events up to the terminal one."""
    events = []
    async with asyncio.timeout(60):
        while True:
            events.append(orjson.loads(await client.recv()))
            if events[-1]["type"] in {
                *("response.completed", "response.incomplete", "response.failed", "error")
            }:
                return events


async def until_logged(log: Path, text: str) -> None:
    async with asyncio.timeout(20):
        while text not in log.read_text():
            await asyncio.sleep(0.01)


def engine_process(server: ChildServer) -> psutil.Process:
    (engine,) = [
        child
        for child in psutil.Process(server.process.pid).children()
        if "runtime.process.engine_process" in child.cmdline()
    ]
    return engine


def test_it_says_in_one_line_when_it_is_ready_and_exits_with_0_when_told_to(
    tmp_path: Path,
) -> None:
    with child_server(MODEL, log=tmp_path / "log") as server:
        assert READY.fullmatch(server.ready_line), server.ready_line
        assert page(server, "/readyz").status_code == 200
        server.process.send_signal(signal.SIGTERM)
        assert server.process.wait(30) == 0
        assert server.process.stdout is not None
        assert server.process.stdout.read() == ""
    assert "Traceback" not in (tmp_path / "log").read_text()


@pytest.mark.tail
@pytest.mark.parametrize(
    "number", [signal.SIGTERM, pytest.param(signal.SIGINT, marks=pytest.mark.tail)]
)
def test_told_to_stop_it_lets_running_turns_finish_and_closes_with_1012(
    number: signal.Signals, tmp_path: Path
) -> None:
    async def scenario(server: ChildServer) -> None:
        async with connect(socket_url(server)) as idle, connect(socket_url(server)) as busy:
            await busy.send(create(input="hello", max_output_tokens=60))
            while orjson.loads(await busy.recv())["type"] != "response.in_progress":
                pass
            server.process.send_signal(number)
            last = (await until_done(busy))[-1]
            assert last["type"] in {"response.completed", "response.incomplete"}
            for client in (busy, idle):
                with pytest.raises(ConnectionClosed) as caught:
                    await client.recv()
                assert caught.value.rcvd is not None
                assert caught.value.rcvd.code == 1012
        assert await asyncio.to_thread(server.process.wait, 30) == 0

    with child_server(MODEL, log=tmp_path / "log") as server:
        asyncio.run(scenario(server))


@pytest.mark.tail
def test_a_second_signal_ends_the_drain_at_once(tmp_path: Path) -> None:
    async def scenario(server: ChildServer) -> None:
        async with connect(socket_url(server)) as client:
            await one_turn_and_another_that_runs(client)
            server.process.send_signal(signal.SIGTERM)
            await until_logged(tmp_path / "log", "stopping")
            assert server.process.poll() is None, "it drains"
            server.process.send_signal(signal.SIGTERM)
            assert await asyncio.to_thread(server.process.wait, 20) == 1

    started = time.monotonic()
    with child_server([*MODEL, "--drain-seconds", "600"], log=tmp_path / "log") as server:
        asyncio.run(scenario(server))
    assert time.monotonic() - started < 120
    assert "Traceback" not in (tmp_path / "log").read_text()


def test_the_front_end_never_loads_torch(server: ChildServer) -> None:
    program = "import sys, keepwarm.commands.serve; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0

    async def one_turn() -> None:
        async with connect(socket_url(server)) as client:
            await client.send(create(input="hello", max_output_tokens=4))
            await until_done(client)

    asyncio.run(one_turn())
    maps = Path(f"/proc/{server.process.pid}/maps")
    if maps.exists():
        assert "libtorch" not in maps.read_text()


async def one_turn_and_another_that_runs(client: ClientConnection) -> Any:
    """The response of a turn that is over, while a long one is under way."""
    await client.send(create(input="first", max_output_tokens=5))
    first = (await until_done(client))[-1]["response"]
    await client.send(create(input="x" * 3000, max_output_tokens=500))
    while orjson.loads(await client.recv())["type"] != "response.in_progress":
        pass
    return first


@pytest.mark.parametrize(
    "signal_number", [signal.SIGKILL, pytest.param(signal.SIGSTOP, marks=pytest.mark.tail)]
)
@pytest.mark.tail
def test_an_engine_that_dies_or_hangs_fails_its_turns_and_is_replaced(
    signal_number: signal.Signals, tmp_path: Path
) -> None:
    async def scenario(server: ChildServer) -> None:
        async with connect(socket_url(server)) as client:
            first = await one_turn_and_another_that_runs(client)
            engine_process(server).send_signal(signal_number)
            failed = (await until_done(client))[-1]
            assert failed["type"] == "response.failed"
            assert failed["response"]["error"]["code"] == "server_error"
            # The same socket and chain go on with the next engine.
            again = create(input="second", previous_response_id=first["id"], max_output_tokens=5)
            await client.send(again)
            last = (await until_done(client))[-1]
            assert last["type"] in {"response.completed", "response.incomplete"}
            assert last["response"]["usage"]["input_tokens"] > first["usage"]["input_tokens"]

    with child_server([*MODEL, "--hung-after-s", "2"], log=tmp_path / "log") as server:
        asyncio.run(scenario(server))
        text = page(server, "/metrics").text
        assert "keepwarm_engine_restarts_total 1.0" in text
        assert "keepwarm_engine_up 1.0" in text
        hung = "it hung: no sign of life" in (tmp_path / "log").read_text()
        assert hung == (signal_number == signal.SIGSTOP)


@pytest.mark.tail
def test_a_signal_to_all_processes_of_the_service_lets_running_turns_finish(tmp_path: Path) -> None:
    """As a supervisor does that knows no better: the engine and the probes get it as well."""

    async def scenario(server: ChildServer) -> None:
        async with connect(socket_url(server)) as client:
            await one_turn_and_another_that_runs(client)
            front_end = psutil.Process(server.process.pid)
            for process in [*front_end.children(recursive=True), front_end]:
                process.send_signal(signal.SIGTERM)
            last = (await until_done(client))[-1]
            assert last["type"] in {"response.completed", "response.incomplete"}
        assert await asyncio.to_thread(server.process.wait, 30) == 0

    with child_server(MODEL, log=tmp_path / "log") as server:
        asyncio.run(scenario(server))
    lines = (tmp_path / "log").read_text().splitlines()
    assert not [line for line in lines if "ERROR" in line or "Traceback" in line]


@pytest.mark.tail
def test_a_log_that_nobody_reads_stops_neither_turns_nor_the_end() -> None:
    command = [sys.executable, "-m", "keepwarm", "serve", "--port", "0", *MODEL]
    with subprocess.Popen(
        [*command, "--log-level", "debug"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        pipesize=4096,
        text=True,
    ) as process:
        assert process.stdout is not None
        line = process.stdout.readline()
        address = re.search(r"http://\S+", line)
        assert address is not None
        server = ChildServer(url=address[0], ready_line=line, process=process)

        async def scenario() -> None:
            async with connect(socket_url(server)) as client:
                for _ in range(60):
                    await client.send(create(input="hello", max_output_tokens=1))
                    last = (await until_done(client))[-1]
                    assert last["type"] in {"response.completed", "response.incomplete"}

        try:
            asyncio.run(scenario())
            process.terminate()
            assert process.wait(20) == 0
        finally:
            process.kill()


@pytest.mark.tail
def test_a_json_log_is_one_object_a_line_from_all_processes(tmp_path: Path) -> None:
    """Whatever a session is called."""
    log = tmp_path / "log"
    name = 'a" status=failed {"level": "error"} %s'

    async def scenario(server: ChildServer) -> dict[str, Any]:
        async with connect(socket_url(server)) as client:
            await client.send(create(input="Hi", max_output_tokens=4, keepwarm={"session": name}))
            response: dict[str, Any] = (await until_done(client))[-1]["response"]
            return response

    with child_server([*MODEL, "--log-format", "json"], log=log) as server:
        response = asyncio.run(scenario(server))
    lines = [orjson.loads(line) for line in log.read_text().splitlines()]
    assert {line["process"] for line in lines} == {"server", "engine"}
    (of_the_key,) = [line for line in lines if line["level"] != "info"]
    assert "compaction" in of_the_key["message"], "it has no journal beside which to keep it"
    (turn,) = [line for line in lines if line["message"] == "turn finished"]
    told = response["keepwarm"]
    assert (turn["session"], turn["turn"], turn["response"]) == (name, 1, response["id"])
    assert (turn["status"], turn["input"]) == (
        response["status"],
        response["usage"]["input_tokens"],
    )
    assert turn["ttft_ms"] == pytest.approx(told["timing"]["ttft_ms"], abs=0.06)


@pytest.mark.tail
def test_a_loader_that_stands_still_after_a_crash_is_given_up_and_another_one_loads(
    tmp_path: Path,
) -> None:
    folder, log = tmp_path / "model", tmp_path / "log"
    folder.mkdir()
    model = StalledModel(folder)

    async def scenario(server: ChildServer) -> None:
        async with connect(socket_url(server)) as client:
            first = await one_turn_and_another_that_runs(client)
            model.stall()
            engine_process(server).kill()
            assert (await until_done(client))[-1]["type"] == "response.failed"
            pipe = await asyncio.to_thread(model.loader_waits)
            engine_process(server).suspend()
            model.let_go(pipe)  # a loader that lives goes on
            assert page(server, "/readyz").status_code == 503
            # It waits for an engine and is told that none came, as often as one is given up.
            await client.send(create(input="second", max_output_tokens=5))
            assert (await until_done(client))[-1]["type"] == "response.failed"
            await client.send(create(input="third", previous_response_id=first["id"]))
            assert (await until_done(client))[-1]["type"] != "response.failed"

    options = ["--model", str(folder), "--kv-cache-mib", "16", "--threads", "1"]
    with child_server([*options, "--load-hung-after-s", "3"], log=log) as server:
        asyncio.run(scenario(server))
        assert page(server, "/readyz").status_code == 200
        text = page(server, "/metrics").text
        assert "keepwarm_engine_restarts_total 1.0" in text
    lines = log.read_text().splitlines()
    (told,) = [line for line in lines if "--load-hung-after-s 3" in line]
    assert "engine did not start retry_s=" in told
    assert "while reading the folder" in told
    assert not [line for line in lines if "Traceback" in line]


@pytest.mark.tail
def test_a_loader_that_stands_still_at_the_start_is_told_in_one_line(tmp_path: Path) -> None:
    folder, log = tmp_path / "model", tmp_path / "log"
    folder.mkdir()
    model = StalledModel(folder)
    model.stall()
    command = [sys.executable, "-m", "keepwarm", "serve", "--port", "0", "--model", str(folder)]
    with (
        log.open("w") as written,
        subprocess.Popen([*command, "--load-hung-after-s", "3"], stderr=written) as process,
    ):
        try:
            pipe = model.loader_waits()
            (loader,) = psutil.Process(process.pid).children()
            loader.suspend()
            model.let_go(pipe)
            assert process.wait(60) == 1
            assert not loader.is_running()
        finally:
            if process.poll() is None:
                for child in psutil.Process(process.pid).children():
                    child.kill()
                process.kill()
    text = log.read_text()
    (line,) = [line for line in text.splitlines() if "--load-hung-after-s" in line]
    assert line.startswith("keepwarm: error: the engine process was killed: no sign of life for ")
    assert "while reading the folder" in line
    assert "Traceback" not in text


@pytest.mark.tail
def test_a_turn_proceeds_while_a_long_prompt_is_tokenised(tmp_path: Path) -> None:
    async def scenario(server: ChildServer) -> None:
        async with connect(socket_url(server)) as long, connect(socket_url(server)) as short:
            await short.send(create(input="hi", max_output_tokens=1))
            await until_done(short)
            # Not refused by its bytes alone: the server counts every token.
            text = "the quick brown fox jumps " * 12_000
            await long.send(create(input=text, max_output_tokens=1, truncation="auto"))
            answer = asyncio.create_task(until_done(long))
            await short.send(create(input="hi", max_output_tokens=1))
            await until_done(short)
            assert not answer.done()
            assert (await answer)[-1]["type"] in {"error", "response.incomplete"}

    with child_server(["--model", "default", "--threads", "1"], log=tmp_path / "log") as server:
        asyncio.run(scenario(server))


@pytest.mark.tail
def test_keys_guard_the_socket_and_the_pages(tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    rows = [
        ApiKey.of(KEY, tenant="acme"),
        ApiKey.of("key-of-watch", tenant="watch", role=Role.OPERATOR),
    ]
    keys.write_text("".join(map(key_row, rows)))

    async def refused(server: ChildServer) -> None:
        with pytest.raises(InvalidStatus) as caught:
            await connect(socket_url(server))
        assert caught.value.response.status_code == 401

    async def one_turn(server: ChildServer) -> None:
        headers = {"Authorization": f"Bearer {KEY}"}
        async with connect(socket_url(server), additional_headers=headers) as client:
            await client.send(
                create(
                    input="hello",
                    max_output_tokens=4,
                    keepwarm={"session": "order-1", "budget": {"output": 100}},
                )
            )
            await until_done(client)

    options = [*MODEL, "--tenants-file", str(keys), "--price", "input=1,cached=0.1,output=4"]
    with child_server(options, log=tmp_path / "log") as server:
        asyncio.run(refused(server))
        asyncio.run(one_turn(server))
        assert page(server, "/dashboard").status_code == 401
        assert page(server, "/dashboard", auth=("anyone", KEY)).status_code == 200
        assert page(server, "/metrics", auth=("anyone", KEY)).status_code == 403
        text = page(server, "/metrics", auth=("anyone", "key-of-watch")).text
        assert "keepwarm_output_tokens_total" in text
        shown = page(server, "/sessions.json", auth=("anyone", KEY)).json()
        (session,) = shown["sessions"]
        assert (session["session"], session["tenant"], session["turns"]) == ("order-1", "acme", 1)
        assert session["cost"] > 0
        assert session["budget_left"]["output"] == 100 - session["output_tokens"]
    assert KEY not in (tmp_path / "log").read_text()


@pytest.mark.tail
def test_a_tenants_file_is_read_again_on_sighup_whole_or_not_at_all(tmp_path: Path) -> None:
    path, log = tmp_path / "tenants.toml", tmp_path / "log"
    old, new = (
        ApiKey.of(f"{name}-key-of-acme", tenant="acme", name=name) for name in ("old", "new")
    )
    path.write_text(key_row(old))

    async def scenario(server: ChildServer) -> None:
        headers = {"Authorization": "Bearer old-key-of-acme"}
        async with connect(socket_url(server), additional_headers=headers) as client:
            path.write_text(key_row(new) + "unknown = 1\n")
            server.process.send_signal(signal.SIGHUP)
            await until_logged(log, "key 1 unknown is unknown")
            await client.send(create(input="hello", max_output_tokens=2))
            await until_done(client)
            path.write_text(key_row(new))
            server.process.send_signal(signal.SIGHUP)
            with pytest.raises(ConnectionClosed) as caught:
                await client.recv()
            assert caught.value.rcvd is not None
            assert (caught.value.rcvd.code, caught.value.rcvd.reason) == (1008, "key revoked")
        for key, status in (("old-key-of-acme", 401), ("new-key-of-acme", 200)):
            asked = {"Authorization": f"Bearer {key}"}
            assert page(server, "/v1/models", headers=asked).status_code == status

    with child_server([*MODEL, "--tenants-file", str(path)], log=log) as server:
        asyncio.run(scenario(server))


@pytest.mark.tail
def test_a_hangup_reaches_a_server_at_any_time_and_ends_none_of_its_processes(
    tmp_path: Path,
) -> None:
    """``systemctl kill --signal=SIGHUP`` signals all processes of a service, also as it starts."""
    path, log = tmp_path / "tenants.toml", tmp_path / "log"
    names = ("first", "second", "third")
    rows = {
        name: key_row(ApiKey.of(f"{name}-key-of-acme", tenant="a", name=name)) for name in names
    }
    path.write_text(rows["first"])

    def hang_up_while_it_loads() -> None:
        while not log.exists() or "engine loads" not in log.read_text():
            time.sleep(0.05)
        path.write_text(rows["second"])
        (main,) = [child for child in psutil.Process().children() if str(path) in child.cmdline()]
        for process in (main, *main.children(recursive=True)):
            process.send_signal(signal.SIGHUP)

    def let_in(server: ChildServer) -> list[str]:
        asked = {name: {"Authorization": f"Bearer {name}-key-of-acme"} for name in names}
        pages = {name: page(server, "/v1/models", headers=asked[name]) for name in names}
        return [name for name, answer in pages.items() if answer.status_code == 200]

    threading.Thread(target=hang_up_while_it_loads, daemon=True).start()
    with child_server([*MODEL, "--tenants-file", str(path)], log=log) as server:
        assert let_in(server) == ["second"]
        path.write_text(rows["third"])
        main = psutil.Process(server.process.pid)
        everyone = [main, *main.children(recursive=True)]
        for process in everyone:
            process.send_signal(signal.SIGHUP)
        time.sleep(1)
        assert let_in(server) == ["third"]
        assert all(process.is_running() for process in everyone)
    assert "engine died" not in log.read_text()


@pytest.mark.tail
def test_a_model_that_is_not_there_is_told_in_one_line(tmp_path: Path) -> None:
    result = failing("serve", "--port", "0", "--model", str(tmp_path / "absent"))
    assert result.returncode == 1
    assert result.stdout == ""
    (line,) = [line for line in result.stderr.splitlines() if line.startswith("keepwarm: error:")]
    assert "absent" in line
    assert "Traceback" not in result.stderr


@pytest.mark.tail
def test_a_port_in_use_is_told_before_the_model_is_loaded() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        started = time.monotonic()
        result = failing("serve", "--port", str(port), "--model", "/nowhere")
    assert result.returncode == 1
    assert f"cannot listen on 127.0.0.1, port {port}: Address already in use" in result.stderr
    assert time.monotonic() - started < 10
    assert "Traceback" not in result.stderr


@pytest.mark.samples(2)
@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["serve", "--host", "0.0.0.0"], "needs a key"),
        (["serve", "--block-size", "3"], "--block-size 3 is not in 4..256"),
        (["serve", "--block-size", "17"], "--block-size is 17, not a power of two"),
        (["serve", "--disk-kv-mib", "9"], "--disk-kv-mib needs --host-kv-mib and --disk-kv-folder"),
        (["serve", "--dtype", "int8"], "--dtype 'int8' is not one of auto, bfloat16"),
        (["serve", "--prot", "1"], "No such option '--prot'"),
        (["serv"], "No such command 'serv'"),
        ([], "Usage: keepwarm"),
    ],
)
def test_bad_options_are_refused_with_status_2(words: list[str], complaint: str) -> None:
    result = failing(*words)
    assert result.returncode == 2
    assert complaint in result.stderr
    assert "Traceback" not in result.stderr


@pytest.mark.tail
def test_a_signal_while_the_model_loads_ends_it(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "keepwarm", "serve", "--port", "0", *MODEL]
    with (tmp_path / "log").open("w") as log, subprocess.Popen(command, stderr=log) as process:
        while process.poll() is None and not psutil.Process(process.pid).children():
            time.sleep(0.01)
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 0
    assert "Traceback" not in (tmp_path / "log").read_text()
