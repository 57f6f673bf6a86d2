"""A WebSocket of a web page: a key among its sub-protocols, and which pages may open one.

Played by ``chromium``, as in ``test_browser``, and by Node's own WebSocket; each is skipped by name
where it is not there.
"""

import base64
import functools
import json
import re
import shutil
import subprocess
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from keepwarm.demo.child_server import ChildServer, child_server
from sessions.tenants import Role
from tests.support.architecture import ROOT
from tests.support.desk import in_a_browser
from tests.support.faults import until
from tools.dashboard_server import MODEL, options_in
from tools.screenshots import browser

TOKEN, ANY = "key-of-acme", "key/of=globex,{\"and\"} 'more'".replace(" ", "")
READS = "key-that-reads"
KEYS = {
    TOKEN: ("acme", Role.TENANT),
    ANY: ("globex", Role.TENANT),
    READS: ("acme", Role.READ_ONLY),
}
FRIEND, STRANGER = "agents.example", "stranger.example"
TURN = """
({ url, offer }) => new Promise((told) => {
  const socket = offer ? new WebSocket(url, offer) : new WebSocket(url);
  const turn = { type: "response.create", input: "hello", max_output_tokens: 4 };
  socket.onopen = () => socket.send(JSON.stringify(turn));
  socket.onmessage = ({ data }) => {
    const { type } = JSON.parse(data);
    if (!["response.completed", "response.incomplete", "error"].includes(type)) return;
    told({ type, protocol: socket.protocol });
    socket.close();
  };
  socket.onerror = () => told({ type: "failed", protocol: socket.protocol });
})
"""
Play = Callable[[str, list[str] | None], dict[str, Any]]
"""A turn on a socket of an address with an offer of sub-protocols: its last event, and which of
them the server named."""
PageOf = Callable[[str], Play]
"""A page of a site."""


def coded(key: str) -> str:
    return "keepwarm-key." + base64.urlsafe_b64encode(key.encode()).decode().rstrip("=")


OFFERS = [
    (["realtime", f"openai-insecure-api-key.{TOKEN}"], "realtime"),
    (["keepwarm", coded(TOKEN)], "keepwarm"),
    ([coded(ANY), "keepwarm"], "keepwarm"),
]
REFUSED = [
    None,
    ["keepwarm"],
    ["keepwarm", coded("another-key")],
    ["keepwarm", coded(READS)],
    [coded(TOKEN)],
]


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("sockets") / "log"


@pytest.fixture(scope="module")
def serving(log: Path) -> Iterator[ChildServer]:
    options = [*MODEL, *options_in(log.parent, KEYS), "--log-level", "debug"]
    allowed = ["--allow-origin", f"http://{FRIEND}"]
    with child_server([*options, *allowed], log=log) as found:
        yield found
    told = log.read_text()
    for key in KEYS:
        assert key not in told
        assert coded(key).removeprefix("keepwarm-key.") not in told


@pytest.fixture(scope="module")
def address(serving: ChildServer) -> str:
    return serving.url.replace("http://", "ws://") + "/responses"


class Blank(BaseHTTPRequestHandler):
    """An empty page, whichever it is."""

    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/html")
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, format: str, *args: Any) -> None:
        return


@pytest.fixture(scope="module")
def page_of() -> Iterator[PageOf]:
    """A browser in which all names of sites lead to one HTTP server."""
    with ThreadingHTTPServer(("127.0.0.1", 0), Blank) as site:
        threading.Thread(target=site.serve_forever, daemon=True).start()
        with browser(f"--host-resolver-rules=MAP *.example 127.0.0.1:{site.server_port}") as chrome:

            def opened(name: str) -> Play:
                page = chrome.new_page()
                page.goto(f"http://{name}/" if "." in name else f"http://{name}:{site.server_port}")
                return lambda url, offer: dict(page.evaluate(TURN, {"url": url, "offer": offer}))

            yield opened
        site.shutdown()


@in_a_browser
@pytest.mark.parametrize("site", [FRIEND, "localhost"])
@pytest.mark.parametrize(("offer", "named"), OFFERS)
def test_a_page_that_may_gives_its_key_among_the_sub_protocols(
    page_of: PageOf, address: str, site: str, offer: list[str], named: str
) -> None:
    told = page_of(site)(address, offer)
    assert told["type"] in ("response.completed", "response.incomplete")
    assert told["protocol"] == named


@in_a_browser
@pytest.mark.parametrize("offer", REFUSED)
def test_a_page_without_a_good_key_gets_no_socket(
    page_of: PageOf, address: str, offer: list[str] | None
) -> None:
    assert page_of(FRIEND)(address, offer) == {"type": "failed", "protocol": ""}


@in_a_browser
@pytest.mark.parametrize("site", [STRANGER, f"{FRIEND}:81", f"localhost.{STRANGER}"])
def test_a_page_of_another_site_gets_no_socket_even_with_a_key(
    page_of: PageOf, address: str, log: Path, site: str
) -> None:
    def refused() -> int:
        return log.read_text().count("http GET /v1/responses 403 ")

    before = refused()
    assert page_of(site)(address, OFFERS[0][0])["type"] == "failed"
    until(lambda: refused() > before)  # the page may know before the log does
    assert refused() == before + 1


@functools.cache
def node_options() -> list[str] | None:
    """What Node needs to have a WebSocket, None where it has none."""
    command = shutil.which("node")
    for options in ([], ["--experimental-websocket"]) if command else ():
        asked = [
            str(command),
            *options,
            "-e",
            "new WebSocket('ws://127.0.0.1:1').onerror = () => 0",
        ]
        if subprocess.run(asked, check=False, capture_output=True).returncode == 0:
            return [str(command), *options]
    return None


with_node = pytest.mark.skipif(node_options() is None, reason="there is no Node with a WebSocket")


def node(script: str) -> str:
    """What a script prints."""
    command = node_options()
    assert command is not None
    command = [*command, "-e", script]
    return subprocess.run(command, check=True, capture_output=True, text=True, timeout=60).stdout


def in_node(url: str, offer: list[str] | None) -> dict[str, Any]:
    played = f"({TURN})({json.dumps({'url': url, 'offer': offer})})"
    told = node(f"{played}.then((told) => console.log(JSON.stringify(told)))")
    return dict(json.loads(told))


@with_node
@pytest.mark.parametrize(("offer", "named"), OFFERS)
def test_a_script_in_node_gives_its_key_so_too(address: str, offer: list[str], named: str) -> None:
    told = in_node(address, offer)
    assert told["type"] in ("response.completed", "response.incomplete")
    assert told["protocol"] == named


@with_node
@pytest.mark.parametrize("offer", REFUSED)
def test_a_script_in_node_without_a_good_key_gets_no_socket(
    address: str, offer: list[str] | None
) -> None:
    assert in_node(address, offer)["type"] == "failed"


@with_node
@pytest.mark.parametrize("key", [TOKEN, ANY])
def test_the_lines_of_the_protocol_page_open_a_socket(address: str, key: str) -> None:
    page = (ROOT / "docs/protocol.md").read_text(encoding="utf-8")
    (lines,) = re.findall(r"```js\n(.*?)```", page, re.DOTALL)
    lines = lines.replace("wss://agents.example/v1/responses", address)
    says = "socket.onopen = () => { console.log(socket.protocol); socket.close(); };"
    assert node(f"const key = {json.dumps(key)};\n{lines}\n{says}") == "keepwarm\n"
