"""A session whose budget of KV residency is used up loses its KV, and nothing else."""

import time
import urllib.request
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

from keepwarm import Client, Response
from keepwarm.demo.child_server import child_server
from sessions.journal.encoding import decode_turn
from sessions.journal.view import SqliteView

PRICES = """
[models.default]
input = 0
cached = 0
output = 0
residency = 1000
"""
"""A thousandth of a dollar for a block-second."""
INSTRUCTIONS = "You are a helpful shop assistant. " * 20
QUESTIONS = ("What is the price of desk?", "And of lamp?")
WAIT_S = 30.0


def sample(url: str, name: str) -> float:
    """Of a counter without labels, as Prometheus reads it."""
    with urllib.request.urlopen(url.removesuffix("/v1") + "/metrics", timeout=10) as answer:
        text = answer.read().decode()
    return next(float(x.split()[1]) for x in text.splitlines() if x.startswith(f"keepwarm_{name} "))


def until(what: Callable[[], bool]) -> None:
    end = time.monotonic() + WAIT_S
    while not what():
        assert time.monotonic() < end, "it did not come to pass"
        time.sleep(0.05)


def play(client: Client, name: str, between: Callable[[], None], **budget: Any) -> list[Response]:
    turns = []
    session = client.session(name=name, instructions=INSTRUCTIONS, **budget)
    for question in QUESTIONS:
        turns.append(session.respond(question, temperature=0, max_output_tokens=24))
        between()
    return turns


def test_used_up_residency_drops_kv_and_changes_no_token(tmp_path: Path) -> None:
    (tmp_path / "prices.toml").write_text(PRICES)
    journal = tmp_path / "journal"
    options = ["--threads", "1", "--kv-cache-mib", "64", "--journal", str(journal)]
    options += ["--prices", str(tmp_path / "prices.toml")]
    with child_server(options, log=tmp_path / "log") as server, Client(server.url) as client:
        wanted = iter(range(1, len(QUESTIONS) + 1))

        def dropped() -> None:
            count = next(wanted)
            until(lambda: sample(server.url, "kv_residency_drops_total") >= count)

        budget = {"residency": 0.5, "scope": "session", "soft": {"residency": 0.25}}
        cold = play(client, "bounded", dropped, budget=budget)
        warm = play(client, "free", lambda: None)

        assert [turn.text for turn in cold] == [turn.text for turn in warm]
        assert [turn.status for turn in cold] == [turn.status for turn in warm]
        assert cold[1].usage.cached_tokens < warm[1].usage.cached_tokens
        assert cold[1].usage.output_tokens == warm[1].usage.output_tokens
        assert any("KV residency" in warning for warning in cold[1].warnings)
        kept = cold[1].keepwarm["kv"]["block_seconds"] + cold[0].keepwarm["kv"]["block_seconds"]
        assert 0 < kept <= 0.5
        left = cold[1].keepwarm["budget"]["left"]["residency"]
    assert 0 <= left <= 0.5 - kept, "what lay between the turns counts too"

    with closing(SqliteView(journal)) as view:
        accounts = {each.name: each.account for each in view.sessions()}
        turns = view.session_turns("default", "bounded")
    assert accounts["bounded"].usage.residency == round(0.5 * 1_000_000)
    assert accounts["free"].usage.residency > 0
    assert accounts["free"].turns == accounts["bounded"].turns == len(QUESTIONS)
    assert [decode_turn(turn).status for turn in turns].count("residency") == len(turns) - 2
    # Each record is rounded up to a whole nano-dollar, a thousandth of a dollar a block-second.
    assert 0 <= accounts["bounded"].cost - 500_000 < len(turns)
