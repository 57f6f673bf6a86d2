"""A session that goes on after a restart: from the disk tier, or computed once and warm then."""

from pathlib import Path
from typing import Any

import httpx

from keepwarm.demo.child_server import child_server
from tests.e2e.conftest import OPTIONS

_LONG = "the quick brown fox jumps over the lazy dog " * 40


def turns(options: list[str], log: Path, texts: list[str]) -> list[dict[str, Any]]:
    """What turns of one session used, at a server that lives as long as they take."""
    used = []
    with child_server([*OPTIONS, *options], log=log) as server:
        for text in texts:
            asked = {"input": text, "max_output_tokens": 8, "keepwarm": {"session": "s"}}
            response = httpx.post(f"{server.url}/responses", json=asked, timeout=60).json()
            assert response["status"] in ("completed", "incomplete"), response
            used.append(response["usage"])
    return used


def cached(usage: dict[str, Any]) -> int:
    count: int = usage["input_tokens_details"]["cached_tokens"]
    return count


def test_a_session_goes_on_from_the_disk_tier_after_a_restart(tmp_path: Path) -> None:
    options = ["--journal", str(tmp_path / "journal"), "--host-kv-mib", "16"]
    options += ["--disk-kv-mib", "64", "--disk-kv-folder", str(tmp_path / "kv")]
    before = turns(options, tmp_path / "log", [_LONG, "and?"])
    (after,) = turns(options, tmp_path / "log", ["go on"])
    transcript = before[-1]["total_tokens"]
    print(f"transcript={transcript} cached_after_restart={cached(after)}")
    assert after["input_tokens"] > transcript > 300
    assert cached(after) >= 0.9 * transcript


def test_without_that_tier_the_first_turn_computes_the_transcript_once(tmp_path: Path) -> None:
    options = ["--journal", str(tmp_path / "journal")]
    before = turns(options, tmp_path / "log", [_LONG])
    first, second = turns(options, tmp_path / "log", ["go on", "and on"])
    assert first["input_tokens"] > before[-1]["total_tokens"]
    assert cached(first) == 0
    assert cached(second) >= 0.9 * first["input_tokens"]
