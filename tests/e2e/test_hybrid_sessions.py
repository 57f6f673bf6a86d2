"""Sessions of a model with recurrent layers over real sockets: what their turns find again."""

import json
import re
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import psutil
import pytest
from playwright.sync_api import Browser, expect

from keepwarm import Client, Response
from keepwarm.demo.child_server import ChildServer, child_server
from tests.support.desk import in_a_browser
from tools.screenshots import opened
from tools_api.sdk.sync_session import Session

MODELS = ("lfm2-tiny", "qwen3.5-tiny")
PATIENCE_S = 60.0
INSTRUCTIONS = "You keep the books of a small shop, and say what you do in a few words. " * 3


@pytest.fixture(scope="module", params=MODELS)
def serving(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ChildServer]:
    options = ["--model", f"random:{request.param}", "--kv-cache-mib", "64", "--threads", "1"]
    log = tmp_path_factory.mktemp("hybrid") / "server.log"
    with child_server([*options, "--max-running", "4"], log=log) as server:
        yield server


def said(session: Session, text: str) -> Response:
    return session.respond(text, instructions=INSTRUCTIONS, max_output_tokens=5, temperature=0)


def recomputed(before: Response, response: Response) -> int:
    """Tokens that an earlier turn has run through the model and this one ran again: the last one
    drawn was not."""
    held = before.usage.input_tokens + before.usage.output_tokens - 1
    assert response.usage.input_tokens > held
    return max(0, held - response.usage.cached_tokens)


def test_turns_and_forks_of_sessions_recompute_nothing(serving: ChildServer) -> None:
    """The second turn of each, the twentieth, the hundredth of one; and of forks the first."""
    longest = 100 if "lfm2" in serving.ready_line else 20
    with Client(serving.url) as client:
        sessions = [client.session(name=f"s{number}") for number in range(3)]
        last = [said(session, f"begin {number}") for number, session in enumerate(sessions)]
        assert last[2].usage.cached_tokens > 0.8 * len(INSTRUCTIONS), "a header is found"
        for turn in range(longest):
            for number, session in enumerate(sessions):
                if number and turn >= 20:
                    continue
                response = said(session, f"turn {turn}")
                assert recomputed(last[number], response) == 0, (turn, number)
                last[number] = response
            if turn % 10 == 5:
                fork = said(sessions[1].fork(), f"another way {turn}")
                assert recomputed(last[1], fork) == 0, turn
                once_more = said(sessions[1].fork(), f"a third one {turn}")
                assert recomputed(last[1], once_more) == 0, turn


def test_slots_and_what_is_kept_in_them_are_in_the_metrics(serving: ChildServer) -> None:
    with Client(serving.url) as client:
        session = client.session()
        said(session, "first")
        said(session, "second")
    text = httpx.get(f"{serving.url.removesuffix('/v1')}/metrics", timeout=30).text
    found = {
        name: float(value)
        for name, value in re.findall(
            r"^(keepwarm_state_\S+|keepwarm_missed\S+) (\S+)$", text, re.M
        )
    }
    assert found['keepwarm_state_slots{use="snapshot"}'] >= 2
    assert found['keepwarm_state_slots{use="running"}'] == 0
    assert found['keepwarm_state_snapshots_taken_total{kind="end"}'] >= 2
    assert found['keepwarm_state_snapshots_taken_total{kind="header"}'] >= 1
    assert 'keepwarm_missed_tokens_total{cause="state_missing"}' in found
    assert "keepwarm_state_slot_waits_total" in found


def test_a_sessions_page_says_where_each_turn_resumed(serving: ChildServer) -> None:
    with Client(serving.url) as client:
        said(client.session(), "whose header the others find")
        session = client.session(name="paged")
        first, second = said(session, "page one"), said(session, "page two")
        fork = said(session.fork(name="apart"), "another page")
    base = serving.url.removesuffix("/v1")
    rows = {}
    for name in ("paged", "apart"):
        query = {"view": "session", "name": name}
        with httpx.stream("GET", f"{base}/dashboard/events", params=query, timeout=30) as page:
            parts = next(
                json.loads(line.removeprefix("data: "))
                for line in page.iter_lines()
                if line.startswith("data: ")
            )
        rows |= {row["response"]: row for key, row in parts.items() if re.match(r"t\d+$", key)}
    for turn, kinds in ((first, {"header"}), (second, {"end"}), (fork, {"end", "header"})):
        (point,) = rows[turn.id]["resumed"]
        assert point["position"] == turn.usage.cached_tokens
        assert point["kind"] in kinds
        assert point["tier"] == "device"


@in_a_browser
def test_the_page_shows_where_each_turn_resumed(chrome: Browser, serving: ChildServer) -> None:
    with Client(serving.url) as client:
        session = client.session(name="shown")
        said(session, "page one")
        second = said(session, "page two")
    page = opened(chrome, serving.url.removesuffix("/v1"), None)
    page.goto("/dashboard#session?name=shown")
    rows = page.locator("tr[data-turn]")
    expect(rows).to_have_count(2)
    expect(rows.locator(".resumed")).to_have_count(2)
    told = f"resumed from token {second.usage.cached_tokens:,}, where a turn ended"
    expect(rows.nth(0).locator(".resumed")).to_have_text(told)
    page.context.close()


def test_a_restart_finds_the_states_of_sessions_with_their_keys_and_values(tmp_path: Path) -> None:
    """Few blocks on the device, so that the first session's are in host memory before."""
    options = ["--model", "random:lfm2-tiny", "--threads", "1", "--max-running", "2"]
    options += ["--num-blocks", "80", "--state-slots", "3", "--host-kv-mib", "8"]
    options += ["--disk-kv-mib", "16", "--disk-kv-folder", str(tmp_path / "kv")]
    options += ["--journal", str(tmp_path / "journal")]
    with child_server(options, log=tmp_path / "log") as server, Client(server.url) as client:
        sessions = [client.session() for _ in range(3)]
        last = [said(session, "once upon a time " * 20) for session in sessions]
        for number, session in enumerate(sessions):
            response = said(session, "and then?")
            assert recomputed(last[number], response) == 0, number
            last[number] = response
    with child_server(options, log=tmp_path / "log") as server, Client(server.url) as client:
        for before in last:
            response = said(client.session(head=before.id), "and in the end?")
            assert recomputed(before, response) == 0


def other_rank(server: ChildServer, but: int = 0) -> psutil.Process:
    """The process of the second rank, once there is another than ``but`` and turns can run."""
    until = time.monotonic() + PATIENCE_S
    while time.monotonic() < until:
        ready = httpx.get(f"{server.url.removesuffix('/v1')}/readyz", timeout=30).status_code
        for child in psutil.Process(server.process.pid).children(recursive=True):
            try:
                found = "runtime.process.rank" in child.cmdline() and child.pid != but
            except psutil.NoSuchProcess:
                continue
            if found and ready == httpx.codes.OK:
                return child
        time.sleep(0.05)
    raise AssertionError("no second rank")


def test_two_ranks_say_what_one_does_and_one_that_is_killed_loses_no_session(
    tmp_path: Path,
) -> None:
    """Second turns and forks from states of both; behind the loss the journal brings it back."""
    options = ["--model", "random:qwen3.5-tiny", "--dtype", "float64", "--threads", "1"]
    options += ["--kv-cache-mib", "64", "--max-running", "4"]
    told = []
    for ranks in ("1", "2"):
        words = [*options, "--tensor-parallel", ranks]
        with child_server(words, log=tmp_path / ranks) as server, Client(server.url) as client:
            session = client.session()
            first = said(session, "begin")
            second = said(session, "and then?")
            assert recomputed(first, second) == 0
            fork = said(session.fork(), "another way")
            assert recomputed(second, fork) == 0
            if ranks == "2":
                killed = other_rank(server)
                killed.kill()
                other_rank(server, but=killed.pid)
            third = said(session, "and in the end?")
            fourth = said(session, "is that all?")
            assert recomputed(third, fourth) == 0
            told.append([turn.text for turn in (first, second, fork, third, fourth)])
    assert any(told[0])
    assert told[0] == told[1]
    assert "rank 1 was killed by SIGKILL" in (tmp_path / "2").read_text()
