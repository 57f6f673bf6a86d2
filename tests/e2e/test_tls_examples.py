"""The configurations of ``examples/tls``, with the real Caddy and nginx in front of a real server.

Certificates are made here and trusted by nobody else. What is not installed is skipped by name.
"""

import asyncio
import contextlib
import shutil
import socket
import ssl
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import orjson
import pytest
from websockets.asyncio.client import connect
from websockets.exceptions import InvalidStatus

from keepwarm.demo.child_server import ChildServer, child_server
from tests.e2e.conftest import OPTIONS

EXAMPLES = Path(__file__).parents[2] / "examples" / "tls"
NAME, KEY = "agents.example", "a-key-behind-tls"
HEADERS = {"Authorization": f"Bearer {KEY}"}
TERMINAL = {"response.completed", "response.incomplete", "response.failed", "error"}


@pytest.fixture(scope="module")
def keyed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ChildServer]:
    log = tmp_path_factory.mktemp("behind-tls") / "log"
    with child_server([*OPTIONS, "--api-key", KEY], log=log) as server:
        yield server


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A certificate for ``NAME`` and its key."""
    if shutil.which("openssl") is None:
        pytest.skip("openssl is not installed")
    folder = tmp_path_factory.mktemp("certificate")
    made = folder / "fullchain.pem", folder / "privkey.pem"
    subprocess.run(
        [
            *("openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256"),
            *("-nodes", "-days", "2", "-subj", f"/CN={NAME}"),
            *("-addext", f"subjectAltName=DNS:{NAME}"),
            *("-out", str(made[0]), "-keyout", str(made[1])),
        ],
        check=True,
        capture_output=True,
    )
    return made


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as bound:
        return int(bound.getsockname()[1])


@contextlib.contextmanager
def running(command: list[str], port: int, folder: Path) -> Iterator[None]:
    """A proxy until the block ends."""
    log = folder / "proxy.log"
    with log.open("w") as file, subprocess.Popen(command, stdout=file, stderr=file) as process:
        try:
            end = time.monotonic() + 20
            while True:
                assert process.poll() is None, log.read_text()
                assert time.monotonic() < end, log.read_text()
                with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port)):
                    break
                time.sleep(0.02)
            yield
        finally:
            process.terminate()
            process.wait(20)


def with_our_paths(text: str, certificate: tuple[Path, Path], backend: str) -> str:
    """The example with what its reader is told to replace, replaced."""
    for old, new in (
        ("/etc/ssl/agents.example/fullchain.pem", str(certificate[0])),
        ("/etc/ssl/agents.example/privkey.pem", str(certificate[1])),
        ("127.0.0.1:8080", backend),
    ):
        assert old in text
        text = text.replace(old, new)
    return text


@pytest.fixture(params=["caddy", "nginx"])
def proxy(
    request: pytest.FixtureRequest,
    keyed: ChildServer,
    certificate: tuple[Path, Path],
    tmp_path: Path,
) -> Iterator[int]:
    """The port on which the example serves TLS."""
    name: str = request.param
    binary = shutil.which(name, path="/usr/sbin:/usr/bin:/usr/local/bin:/opt/homebrew/bin")
    if binary is None:
        pytest.skip(f"{name} is not installed")
    port = free_port()
    backend = keyed.url.removeprefix("http://").removesuffix("/v1")
    if name == "caddy":
        text = with_our_paths((EXAMPLES / "Caddyfile").read_text(), certificate, backend)
        text = text.replace("\tadmin off\n", "\tadmin off\n\tauto_https disable_redirects\n")
        text = text.replace("agents.example {", f"agents.example:{port} {{\n\tbind 127.0.0.1")
        config = tmp_path / "Caddyfile"
        command = [binary, "run", "--adapter", "caddyfile", "--config", str(config)]
    else:
        text = with_our_paths((EXAMPLES / "nginx.conf").read_text(), certificate, backend)
        text = text.replace("listen 443 ssl", f"listen 127.0.0.1:{port} ssl")
        paths = ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
        temporary = "".join(f"    {p}_temp_path {tmp_path}/{p};\n" for p in paths)
        text = text.replace("http {\n", f"http {{\n{temporary}    access_log off;\n")
        config = tmp_path / "nginx.conf"
        settings = f"daemon off; pid {tmp_path}/pid; error_log {tmp_path}/errors;"
        command = [binary, "-p", str(tmp_path), "-c", str(config), "-g", settings]
    config.write_text(text)
    with running(command, port, tmp_path):
        yield port


def trusting(certificate: tuple[Path, Path]) -> ssl.SSLContext:
    return ssl.create_default_context(cafile=str(certificate[0]))


def test_turns_go_through_it_over_both_ways_in(proxy: int, certificate: tuple[Path, Path]) -> None:
    context = trusting(certificate)
    body = {"model": "default", "input": "hello", "max_output_tokens": 6}

    async def over_websocket() -> list[str]:
        async with connect(
            f"wss://{NAME}:{proxy}/v1/responses",
            host="127.0.0.1",
            ssl=context,
            additional_headers=HEADERS,
        ) as client:
            await client.send(orjson.dumps({"type": "response.create", **body}).decode())
            kinds = [""]
            async with asyncio.timeout(60):
                while kinds[-1] not in TERMINAL:
                    kinds.append(orjson.loads(await client.recv())["type"])
            return kinds

    kinds = asyncio.run(over_websocket())
    assert kinds[-1] in {"response.completed", "response.incomplete"}
    assert "response.output_text.delta" in kinds
    with httpx.Client(verify=context, headers=HEADERS | {"Host": NAME}) as client:
        url, names = f"https://127.0.0.1:{proxy}/v1", {"sni_hostname": NAME}
        whole = client.post(f"{url}/responses", json=body, extensions=names, timeout=60)
        assert whole.status_code == 200
        assert whole.json()["status"] in {"completed", "incomplete"}
        with client.stream(
            "POST", f"{url}/responses", json=body | {"stream": True}, extensions=names, timeout=60
        ) as stream:
            events = [line for line in stream.iter_lines() if line.startswith("event: ")]
        assert events[0] == "event: response.created"
        assert events[-1].removeprefix("event: ") in TERMINAL


def test_who_has_no_key_stays_outside_and_a_frame_that_is_too_large_is_told_so(
    proxy: int, certificate: tuple[Path, Path]
) -> None:
    context = trusting(certificate)

    async def without_a_key() -> None:
        async with connect(f"wss://{NAME}:{proxy}/v1/responses", host="127.0.0.1", ssl=context):
            raise AssertionError("it got in")

    with pytest.raises(InvalidStatus) as refused:
        asyncio.run(without_a_key())
    assert refused.value.response.status_code == 401
    with httpx.Client(verify=context, headers=HEADERS | {"Host": NAME}) as client:
        large = client.post(
            f"https://127.0.0.1:{proxy}/v1/responses",
            content=b" " * (16 * 1024 * 1024 + 1),
            extensions={"sni_hostname": NAME},
            headers={"Content-Type": "application/json"},
            timeout=60,
        )
    assert large.status_code == 413
    assert "16777216" in large.json()["error"]["message"]


def test_time_outs_are_longer_than_a_connection_lives() -> None:
    """An hour, ``connection_age_s``; nginx would cut a WebSocket after a minute by itself."""
    caddy, nginx = ((EXAMPLES / name).read_text() for name in ("Caddyfile", "nginx.conf"))
    assert "response_header_timeout 65m" in caddy
    assert nginx.count("_timeout 65m;") == 2
    assert "proxy_buffering off;" in nginx
    assert "flush_interval -1" in caddy
