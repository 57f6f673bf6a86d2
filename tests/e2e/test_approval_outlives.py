"""Approvals over the death of client and server: no tool runs twice, and nothing is lost silently.

Clients are processes of their own that tell each step in a line; one is killed, or its server is,
at a random one of them and a little later. Whoever comes next goes on from what the journal knows.
``KEEPWARM_APPROVAL_KILLS=50`` plays so many clients killed and two fifths as many servers (CI: 4
and 1); ``KEEPWARM_APPROVAL_SEED`` is the first seed.
"""

import json
import os
import random
import socket
import subprocess
import sys
import threading
import urllib.request
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from keepwarm import Client, FunctionCall, FunctionCallOutput
from keepwarm.demo.child_server import ChildServer, child_server
from tests.e2e.conftest import OPTIONS
from tests.support.architecture import ROOT

SEED = int(os.environ.get("KEEPWARM_APPROVAL_SEED", "1"))
KILLS = int(os.environ.get("KEEPWARM_APPROVAL_KILLS", "4"))
MOST_LINES = 14
"""Lines of a client that nobody kills, at least."""
JITTER_S = 0.02

CLIENT = '''
import json, os, sys
from typing import Annotated
from pydantic import Field
from keepwarm import Client, Retries, ToolContext, Warned, tool

url, name, ran = sys.argv[1:4]

def tell(what):
    os.write(1, (json.dumps(what) + "\\n").encode())  # in one piece, from any thread

def wrote(call_id):
    with open(ran, "a") as file:
        file.write(call_id + "\\n")
        file.flush()
        os.fsync(file.fileno())

@tool(needs_approval=True)
def pay(context: ToolContext, amount: Annotated[int, Field(ge=0, le=9)]) -> str:
    """Pay."""
    tell("in the tool")
    wrote(context.call_id)
    tell("the tool has paid")
    return f"paid {amount}"

def choice(number):
    return {"type": "function", "name": "pay"} if number == 0 and fresh else "none"

with Client(url, retries=Retries(tries=2400, longest_wait_s=0.2)) as client:
    session = client.session(name=name, tools=[pay], max_output_tokens=60, temperature=0)
    tell("ready")
    if "gate" in sys.argv:
        sys.stdin.readline()
    def said(events):
        for event in events:
            tell(type(event).__name__)
            if isinstance(event, Warned):
                tell({"warned": event.text})
        return event
    pending = session.pending()
    fresh = not pending and session.head is None and not client.session(name=name).pending()
    tell({"pending": [each.state for each in pending]})
    if not pending:
        result = said(session.stream("go", tool_choice=choice, parallel_tool_calls=False))
        pending = session.pending()
        tell("asked")
    fresh = False
    for each in pending:
        if each.state == "pending":
            session.approve(each.call.call_id, by="ana")
            tell("approved")
    result = said(session.stream(tool_choice=choice))
    tell({"status": result.status, "waiting": [call.call_id for call in result.waiting]})
'''


class Serving:
    """A server that may be killed and comes again at the same port, with the same journal."""

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self._port = free.getsockname()[1]
        self._folder, self._stack = folder, stack
        self.url = f"http://127.0.0.1:{self._port}/v1"
        self._server: ChildServer | None = None

    def start(self) -> None:
        options = [*OPTIONS, "--port", str(self._port), "--journal", str(self._folder / "journal")]
        self._server = self._stack.enter_context(child_server(options, log=self._folder / "log"))

    def killed_and_started(self) -> None:
        assert self._server is not None
        self._server.process.kill()
        self._server.process.wait()
        self.start()


@pytest.fixture(scope="module")
def serving(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    with ExitStack() as stack:
        made = Serving(tmp_path_factory.mktemp("serving"), stack)
        made.start()
        yield made


@contextmanager
def client(
    serving: Serving, name: str, ran: Path, *words: str
) -> Iterator["subprocess.Popen[str]"]:
    command = [sys.executable, "-c", CLIENT, serving.url, name, str(ran), *words]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT
    ) as process:
        timer = threading.Timer(120, process.kill)
        timer.start()
        try:
            yield process
        finally:
            timer.cancel()
            process.kill()


def lines(process: "subprocess.Popen[str]") -> Iterator[object]:
    assert process.stdout is not None
    for line in process.stdout:
        yield json.loads(line)


def to_its_end(serving: Serving, name: str, ran: Path) -> dict[str, object]:
    """What the last line of a client says that nobody kills."""
    with client(serving, name, ran) as process:
        told = list(lines(process))
        assert process.wait(60) == 0, told
    last = told[-1]
    assert isinstance(last, dict)
    return last | {"told": told}


def times_run(ran: Path) -> Counter[str]:
    return Counter(ran.read_text().split()) if ran.exists() else Counter()


def check(serving: Serving, name: str, ran: Path, last: dict[str, object]) -> None:
    """Nothing ran twice; every call is answered, or waits and its author was told why."""
    runs = times_run(ran)
    assert set(runs.values()) <= {1}, runs
    with Client(serving.url) as reader:
        pending = reader.session(name=name).pending()
        items = list(reader.session(head=head_of(serving, name)).items())
    calls = {item.call_id for item in items if isinstance(item, FunctionCall)}
    answered = {item.call_id for item in items if isinstance(item, FunctionCallOutput)}
    states = {each.call.call_id: each.state for each in pending}
    assert runs.keys() <= calls
    assert calls
    if last["status"] == "waiting":
        assert set(states.values()) <= {"begun", "ended"}, states
        begun = {call_id for call_id, state in states.items() if state == "begun"}
        assert begun == set(last["waiting"])  # type: ignore[call-overload]
        assert "its end is not known" in json.dumps(last["told"])
        assert calls - answered == set(states)
    else:
        assert last["status"] == "completed" or last["status"] == "incomplete"
        assert calls == answered
        assert runs.keys() == calls, "each ran: all were approved"


def head_of(serving: Serving, name: str) -> str:
    """The response at which a session stands, as the server says."""
    with urllib.request.urlopen(f"{serving.url}/sessions/{name}", timeout=30) as answer:
        return str(json.load(answer)["head"])


@pytest.mark.parametrize("seed", range(SEED, SEED + KILLS))
def test_a_client_that_is_killed_leaves_nothing_that_runs_twice(
    seed: int, serving: Serving, tmp_path: Path
) -> None:
    draw, name, ran = random.Random(seed), f"client-{seed}", tmp_path / "ran"
    at, later_s = draw.randrange(1, MOST_LINES), draw.uniform(0, JITTER_S)
    with client(serving, name, ran) as process:
        for number, _ in enumerate(lines(process)):
            if number == at:
                break
        _a_little(process, later_s)
        process.kill()
    last = to_its_end(serving, name, ran)
    check(serving, name, ran, last)


def _a_little(process: "subprocess.Popen[str]", seconds: float) -> None:
    try:
        process.wait(seconds)
    except subprocess.TimeoutExpired:
        return


@pytest.mark.parametrize("seed", range(SEED, SEED + max(1, KILLS * 2 // 5)))
def test_a_server_that_is_killed_forgets_no_decision(
    seed: int, serving: Serving, tmp_path: Path
) -> None:
    draw, name, ran = random.Random(seed), f"server-{seed}", tmp_path / "ran"
    at, later_s = draw.randrange(1, MOST_LINES), draw.uniform(0, JITTER_S)
    told: list[object] = []
    with client(serving, name, ran) as process:
        for line in lines(process):
            if len(told) == at:
                _a_little(process, later_s)
                serving.killed_and_started()
            told.append(line)
        assert process.wait(60) == 0, told
    last = told[-1]
    assert isinstance(last, dict)
    check(serving, name, ran, last | {"told": told})


def test_two_processes_that_approve_at_once_run_it_once(serving: Serving, tmp_path: Path) -> None:
    name, ran = "two", tmp_path / "ran"
    with client(serving, name, ran) as first:
        for line in lines(first):
            if line == "asked":
                break
        first.kill()
    with client(serving, name, ran, "gate") as one, client(serving, name, ran, "gate") as other:
        for process in (one, other):
            assert next(lines(process)) == "ready"
        for process in (one, other):
            assert process.stdin is not None
            process.stdin.write("go\n")
            process.stdin.flush()
        ended = [list(lines(process)) for process in (one, other)]
    assert set(times_run(ran).values()) == {1}
    statuses = [told[-1].get("status") for told in ended if isinstance(told[-1], dict)]
    assert [status for status in statuses if status in ("completed", "incomplete")]
