"""Configurations of other programs: readable by them, with the served window, without a key."""

import json
import os
import socket
import subprocess
import threading
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from keepwarm.commands.clients import CONFIGURED, NoServer, ServedWindow, served
from keepwarm.commands.main import main

MODELS = {"data": [{"id": "other", "max_model_len": 5}, {"id": "default", "max_model_len": 40_960}]}
FOUND = ServedWindow(base_url="http://127.0.0.1:8080/v1", model="default", window=40_960)
ODD = ServedWindow(base_url="http://h/v1", model="a \"b\" $(c) 'd'", window=16)


@contextmanager
def serving(body: bytes, status: int = 200) -> Iterator[tuple[str, list[str | None]]]:
    """An address, and the keys with which it was asked."""
    keys: list[str | None] = []

    class Answer(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            keys.append(self.headers["Authorization"])
            self.send_response(status if self.path == "/v1/models" else 404)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Answer)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", keys
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def exported(text: str, *names: str) -> list[str]:
    """Values of variables behind the lines, as a shell reads them."""
    show = "; ".join(f'printf "%s\\n" "${name}"' for name in names)
    environment = {"PATH": os.environ["PATH"], "KEEPWARM_API_KEY": "secret"}
    shell = ["sh", "-euc", f"{text}\n{show}"]
    done = subprocess.run(shell, capture_output=True, text=True, check=True, env=environment)
    return done.stdout.splitlines()


@pytest.mark.parametrize("found", [FOUND, ODD], ids=["plain", "odd"])
def test_codex_is_told_its_window_and_when_to_compact(found: ServedWindow) -> None:
    config = tomllib.loads(CONFIGURED["codex"](found))
    assert (config["model"], config["model_context_window"]) == (found.model, found.window)
    assert 0 < config["model_auto_compact_token_limit"] < found.window
    provider = config["model_providers"][config["model_provider"]]
    assert (provider["base_url"], provider["wire_api"]) == (found.base_url, "responses")
    assert provider["supports_websockets"] is True


@pytest.mark.parametrize("found", [FOUND, ODD], ids=["plain", "odd"])
def test_opencode_is_told_its_limits(found: ServedWindow) -> None:
    config = json.loads(CONFIGURED["opencode"](found))
    name, _, model = config["model"].partition("/")
    provider = config["provider"][name]
    limit = provider["models"][model]["limit"]
    assert limit["context"] == found.window
    assert 0 < limit["output"] < found.window
    assert provider["options"]["baseURL"] == found.base_url


@pytest.mark.parametrize("found", [FOUND, ODD], ids=["plain", "odd"])
def test_a_shell_reads_the_lines_for_the_others(found: ServedWindow) -> None:
    names = ["ANTHROPIC_BASE_URL", "ANTHROPIC_AUTH_TOKEN", "ANTHROPIC_MODEL"]
    names += ["CLAUDE_CODE_MAX_CONTEXT_TOKENS", "CLAUDE_CODE_AUTO_COMPACT_WINDOW"]
    root = found.base_url.removesuffix("/v1")
    told = exported(CONFIGURED["claude-code"](found), *names)
    assert told == [root, "secret", found.model, *[str(found.window)] * 2]
    told = exported(CONFIGURED["anthropic"](found), "ANTHROPIC_BASE_URL", "ANTHROPIC_API_KEY")
    assert told == [root, "secret"]
    told = exported(CONFIGURED["openai"](found), "OPENAI_BASE_URL", "OPENAI_API_KEY")
    assert told == [found.base_url, "secret"]


@pytest.mark.parametrize("name", CONFIGURED)
def test_the_command_asks_the_server_and_prints_no_key(
    name: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", "/nowhere")
    with serving(json.dumps(MODELS).encode()) as (url, keys):
        assert main(["clients", name, "--url", url, "--api-key", "sk-mine"]) == 0
        found = served(f"{url}/v1", "sk-mine")
    assert keys == ["Bearer sk-mine"] * 2
    assert found == ServedWindow(base_url=f"{url}/v1", model="default", window=40_960)
    shown = capsys.readouterr().out
    assert shown == CONFIGURED[name](found) + "\n"
    assert "sk-mine" not in shown
    assert "40960" in shown


@pytest.mark.parametrize(
    ("body", "status", "told"),
    [
        (b"{}", 401, "--api-key"),
        (b"{}", 500, "HTTP 500"),
        (b"{}", 200, "says nothing"),
        (b"no JSON", 200, "says nothing"),
        (b'{"data": []}', 200, "says nothing"),
        (b'{"data": [{"id": "default"}]}', 200, "says nothing"),
        (b'{"data": [{"id": "default", "max_model_len": 1e999}]}', 200, "says nothing"),
        (b"[" * 200_000, 200, "says nothing"),
    ],
)
def test_a_server_that_says_no_window_is_told_in_a_line(
    body: bytes, status: int, told: str
) -> None:
    with serving(body, status) as (url, _), pytest.raises(NoServer) as caught:
        served(f"{url}/v1", None)
    assert told in caught.value.message
    assert "\n" not in caught.value.message


@pytest.mark.parametrize(
    "answer",
    [
        b"",
        b"\x15\x03\x01\x00\x02\x02\x46",
        b"SSH-2.0-x\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nno\r\n",
        b"HTTP/1.1 200 OK\r\n" + b"a: b\r\n" * 200 + b"\r\n",
    ],
)
def test_what_speaks_no_http_is_told_in_a_line(answer: bytes) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def once() -> None:
            peer, _ = listening.accept()
            with peer:
                peer.recv(1 << 16)
                peer.sendall(answer)

        thread = threading.Thread(target=once)
        thread.start()
        with pytest.raises(NoServer, match="does not answer: ") as caught:
            served(f"http://127.0.0.1:{listening.getsockname()[1]}/v1", None)
        thread.join()
    assert "\n" not in caught.value.message


@pytest.mark.parametrize("command", [["clients", "codex"], ["chat"], ["demo"]])
@pytest.mark.parametrize("key", ["secret\n", "s\N{EURO SIGN}cret"])
def test_what_can_be_no_key_is_told_with_the_options_name(
    command: list[str], key: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*command, "--url", "http://127.0.0.1:1", "--api-key", key]) == 2
    error = capsys.readouterr().err
    assert error.startswith("keepwarm: error: --api-key has characters that no key has")
    assert "cret" not in error


def test_where_nobody_is_the_command_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    with serving(b"{}") as (url, _):
        pass
    assert main(["clients", "codex", "--url", url]) == 1
    assert "does not answer" in capsys.readouterr().err
    assert main(["clients", "nobody"]) == 2
    assert main(["clients", "codex", "--url", "ftp://x"]) == 2
