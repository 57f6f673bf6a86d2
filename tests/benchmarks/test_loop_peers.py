"""Other engines' servers that end in the middle of a comparison."""

import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from benchmarks import loop_fleet
from benchmarks.loop_fleet import Fleet
from benchmarks.loop_peers import Peer, PeerFailed, free_port, serving
from benchmarks.loop_workload import PlannedTurn, PlayedTurn, Workload

HEALTHY = """
import http.server, sys
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
    def log_message(self, *words):
        pass
server = http.server.HTTPServer(("127.0.0.1", int(sys.argv[2])), Handler)
for _ in range(int(sys.argv[1])):
    server.handle_request()
"""


async def test_a_peer_that_is_gone_has_failed() -> None:
    url = f"http://127.0.0.1:{free_port()}"
    peer = Peer(kind="vllm", url=url, model="m", runs=lambda: False)
    async with peer.agent("system") as agent:
        with pytest.raises(PeerFailed, match="vllm: ConnectError"):
            await agent.play(
                PlannedTurn(text="go", answer_tokens=4, seed=0), PlayedTurn(sent_s=0.0)
            )


def test_a_server_that_ends_is_told_from_one_that_runs(tmp_path: Path) -> None:
    port = free_port()
    asked_once = [sys.executable, "-c", HEALTHY, 1, port]
    with serving(asked_once, port, log=tmp_path / "log") as runs:
        until_s = time.monotonic() + 20.0
        while runs():
            assert time.monotonic() < until_s
    with serving([sys.executable, "-c", HEALTHY, 9, port], port, log=tmp_path / "log") as runs:
        assert runs()


class _Peers:
    """Starts peers, of which the first has ended after its warm-up."""

    def __init__(self) -> None:
        self.started = 0

    @contextmanager
    def start(self, program: Path, model: Path, **given: object) -> Iterator[Peer]:
        self.started += 1
        number = self.started
        yield Peer(kind="vllm", url=f"http://{number}", model="m", runs=lambda: number > 1)


def test_another_server_is_started_in_place_of_one_that_has_ended(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    peers, warmed = _Peers(), list[str]()

    def play(self: Fleet, server: str, load: Workload, seed: int) -> None:
        warmed.append(load.texts)

    monkeypatch.setitem(loop_fleet.PEERS, "vllm", ("--vllm-python", peers.start))
    monkeypatch.setattr(Fleet, "play", play)
    monkeypatch.setattr(Fleet, "model_folder", lambda self, server: tmp_path)
    monkeypatch.setattr(loop_fleet, "wait_until_quiet", lambda resting: True)
    with ExitStack() as stack:
        fleet = Fleet(
            stack=stack,
            folder=tmp_path,
            model="m",
            before=None,
            peers={"vllm": tmp_path},
            options=(),
            sessions=1,
            threads=1,
            deadline_s=time.monotonic() + 60.0,
        )
        for _ in range(3):
            assert fleet.rest("vllm/s1")
    assert peers.started == 2
    assert warmed == ["warm up", "warm up"]
