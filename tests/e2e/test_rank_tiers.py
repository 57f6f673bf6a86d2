"""Sessions of a model that two ranks compute, over real sockets: more than the device has room for
come back from host memory, and from the disk when the server was started again."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from keepwarm import Client, Response
from keepwarm.demo.child_server import ChildServer, child_server
from tools_api.sdk.sync_session import Session

BLOCK = 16
SESSIONS = 12
TEXT = "you keep the books of a small shop, and say what you do in a few words. " * 5


@contextmanager
def served(model: str, folder: Path) -> Iterator[ChildServer]:
    """Room on the device for two of the sessions, in host memory and on disk for all."""
    options = ["--model", f"random:{model}", "--tensor-parallel", "2", "--threads", "1"]
    options += ["--num-blocks", "64", "--max-running", "2", "--max-draft-tokens", "0"]
    options += ["--host-kv-mib", "16", "--disk-kv-mib", "64"]
    options += ["--disk-kv-folder", str(folder / "kv")]
    options += ["--journal", str(folder / "journal.sqlite")]
    with child_server(options, log=folder / "server.log") as server:
        yield server


def said(session: Session, text: str) -> Response:
    return session.respond(text, max_output_tokens=5, temperature=0)


def moved(server: ChildServer) -> dict[str, float]:
    """Bytes that were moved between tiers, by the way they went."""
    text = httpx.get(f"{server.url.removesuffix('/v1')}/metrics", timeout=30).text
    found = re.findall(r'^keepwarm_kv_transfer_bytes_total\{path="(\w+)"\} (\S+)$', text, re.M)
    return {path: float(value) for path, value in found}


@pytest.mark.parametrize("model", ["qwen3-tiny-4", "lfm2-tiny"])
def test_sessions_come_back_from_below(model: str, tmp_path: Path) -> None:
    with served(model, tmp_path) as server, Client(server.url) as client:
        sessions = [client.session(name=f"s{number}") for number in range(SESSIONS)]
        last = [said(each, f"{number} {TEXT}") for number, each in enumerate(sessions)]
        for turn in range(2):
            for number, session in enumerate(sessions):
                response = said(session, f"turn {turn}")
                before = last[number].usage
                held = before.input_tokens + before.output_tokens - 1
                assert response.usage.cached_tokens >= held // BLOCK * BLOCK, (turn, number)
                last[number] = response
        assert moved(server)["host_device"] > 0
    with served(model, tmp_path) as server, Client(server.url) as client:
        found = 0
        for number, before in enumerate(last):
            session = client.session(name=f"s{number}")
            response = said(session, "behind a restart")
            found += response.usage.cached_tokens > before.usage.input_tokens // 2
        assert found > SESSIONS // 2
        assert moved(server)["disk_host"] > 0
