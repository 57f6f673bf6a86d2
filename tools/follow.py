"""Through how many functions and files a request passes in the served front end.

    python -m tools.follow [--json]

Serves the shipped model as the command does, with a journal in a file, plays turns over a
WebSocket and writes down which functions of this repository the server's own process calls for
each, from the bytes read to the request given to the engine (*in*), for the step that brings
the first token (*first token*), and from the step that ends the output to the terminal event
handed to the socket (*end*). Each is played several times; what is not called every time, as a
clock's tick between, is none of the request's.

A function is whatever has a frame of its own: comprehensions and lambdas too. Threads that a
request waits for count, as those that read the journal. Not counted are libraries, and what
works for all turns together: the threads that write the journal, and ``runtime.process``, which
packs and unpacks what passes the border of the processes.
"""

import argparse
import asyncio
import contextlib
import json
import os
import re
import signal
import socket
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import uvloop
from websockets.sync.client import connect
from websockets.sync.connection import Connection

from runtime.messages import GenerationRequest, StepOutput
from runtime.process.engine_process import EngineProcess
from sessions.command.options import ServeOptions, read_serve_options
from sessions.command.serve import serve
from sessions.command.serve_settings import SERVE_SETTINGS
from sessions.command.settings import resolve

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = ("kernels", "radix_cache", "tools_api", "runtime", "sessions", "cluster", "keepwarm")
PARTS = ("in", "first token", "end")
REPEATS = 4
_MOST_REPEATS = 40
"""With those whose steps told of other turns as well; a restart has as many sessions."""
_PATIENT_REPEATS = 200
"""The same of turns that need nothing made: beside other work few steps tell of their own alone."""
TERMINAL = ("response.completed", "response.incomplete", "response.failed", "error")
_OURS = tuple(str(ROOT / package) + os.sep for package in PACKAGES)
_BORDER = str(ROOT / "runtime/process") + os.sep
_LOOP = {asyncio.Runner.run.__code__, asyncio.Handle._run.__code__}
"""The callers of what the event loop calls."""
_PATIENCE_S = 120.0
_SETTLES_S = 0.02
"""Behind a turn's end. Not more: the engine tells of KV that is idle with its next step."""
_OF_A_POOL = re.compile(r"_\d+$")
"""Names of threads that are asked for something by somebody who waits for it."""

Function = tuple[str, str]
"""File, from the repository's root on, and qualified name; a nameless one's line behind it."""
Calls = dict[CodeType, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Passed:
    """Functions and files that a part of a request's way goes through."""

    calls: int
    functions: frozenset[Function]

    @property
    def files(self) -> frozenset[str]:
        return frozenset(file for file, _ in self.functions)

    @property
    def counts(self) -> dict[str, int]:
        return {
            "calls": self.calls,
            "functions": len(self.functions),
            "files": len(self.files),
            "in sessions": sum(file.startswith("sessions/") for file in self.files),
        }


@dataclass(slots=True)
class Way:
    """One request's, as it is followed."""

    parts: dict[str, Calls] = field(default_factory=lambda: {part: {} for part in PARTS})
    part: str = "in"
    """That is under way, or comes next."""
    open: bool = False
    """It is under way."""
    closing: bool = False
    """It ends with what the event loop calls just now."""
    mixed: bool = False
    """The step of its first token told of other turns too."""
    over: threading.Event = field(default_factory=threading.Event)


class Follower:
    """Hears of every call that the event loop and the threads beside it make."""

    def __init__(self) -> None:
        self._way: Way | None = None
        self._burst: Calls = {}
        """The calls of the event loop's callback of just now."""
        self._known: dict[CodeType, bool] = {}
        self._send = EngineProcess.send.__code__
        self._receive = EngineProcess.receive.__code__

    def follow(self) -> Way:
        """Follow the request that comes next, once the last one's end is over."""
        time.sleep(_SETTLES_S)
        way = Way()
        self._way = way
        return way

    def install(self) -> None:
        """Hear of this thread, the event loop's, and of those that start later."""
        threading.setprofile(self._hear_beside)
        sys.setprofile(self._hear)

    def remove(self) -> None:
        sys.setprofile(None)
        threading.setprofile(None)

    def _ours(self, code: CodeType) -> bool:
        known = self._known.get(code)
        if known is None:
            file = code.co_filename
            known = file.startswith(_OURS) and not file.startswith(_BORDER)
            self._known[code] = known
        return known

    def _hear_beside(self, frame: FrameType, event: str, _: Any) -> None:
        if not _OF_A_POOL.search(threading.current_thread().name):
            sys.setprofile(None)
            return
        way = self._way
        if event == "call" and way is not None and way.open and self._ours(frame.f_code):
            _count(way.parts[way.part], frame.f_code)

    def _hear(self, frame: FrameType, event: str, told: Any) -> None:
        if event == "call":
            before = frame.f_back
            if before is not None and before.f_code in _LOOP:
                self._begin_burst()
            if self._ours(frame.f_code):
                _count(self._burst, frame.f_code)
                if frame.f_code.co_name == "deliver":
                    self._delivers(frame)
        elif event == "return" and self._way is not None:
            if frame.f_code is self._send:
                self._sent(frame.f_locals["messages"])
            elif frame.f_code is self._receive and isinstance(told, StepOutput):
                self._received(told)

    def _begin_burst(self) -> None:
        """The last callback's calls are known."""
        way = self._way
        if way is not None and way.open:
            for code, calls in self._burst.items():
                _count(way.parts[way.part], code, calls)
            if way.closing:
                self._end_part(way)
        elif way is not None and way.part == "in":
            way.open = True  # what was under way when it was to be followed is not its own
        self._burst = {}

    def _end_part(self, way: Way) -> None:
        way.open = way.closing = False
        if way.part == PARTS[-1]:
            self._way = None
            way.over.set()
        else:
            way.part = PARTS[PARTS.index(way.part) + 1]

    def _sent(self, messages: Sequence[Any]) -> None:
        """Nothing that follows in this callback is the request's way to the engine."""
        way = self._way
        assert way is not None
        if way.part == "in" and any(isinstance(each, GenerationRequest) for each in messages):
            way.closing = True
            self._begin_burst()

    def _received(self, step: StepOutput) -> None:
        way = self._way
        assert way is not None
        if way.part == "first token" and any(len(each.new_tokens) for each in step.outputs):
            way.open = way.closing = True
            way.mixed = bool(step.residency)
        elif way.part == "end" and any(each.finish is not None for each in step.outputs):
            way.open = True

    def _delivers(self, frame: FrameType) -> None:
        way = self._way
        if way is not None and way.part == "end":
            frames = frame.f_locals.get("frames", ())
            way.closing = any(
                f'"{type_}"'.encode() in each for each in frames for type_ in TERMINAL
            )


def _count(calls: Calls, code: CodeType, number: int = 1) -> None:
    calls[code] = calls.get(code, 0) + number


def passed(ways: Sequence[Way], part: str) -> Passed:
    """The functions that every one of ``ways`` went through in that part."""
    each = [way.parts[part] for way in ways]
    codes = set(each[0]).intersection(*each[1:])
    functions = {_function(code) for code in codes}
    return Passed(
        calls=sum(min(calls[code] for calls in each) for code in codes),
        functions=frozenset(functions),
    )


def _function(code: CodeType) -> Function:
    file, name = Path(code.co_filename).relative_to(ROOT).as_posix(), code.co_qualname
    return file, f"{name}:{code.co_firstlineno}" if name.endswith(">") else name


# What is played

LOOK: dict[str, Any] = {
    "type": "function",
    "name": "look",
    "parameters": {
        "type": "object",
        "properties": {"product": {"enum": ["lamp", "desk"]}},
        "required": ["product"],
        "additionalProperties": False,
    },
}


class Client:
    """One WebSocket, in a thread of its own."""

    def __init__(self, socket: Connection) -> None:
        self._socket = socket

    def turn(self, **fields: Any) -> dict[str, Any]:
        """Play a turn; returns its response."""
        few = {"temperature": 0, "max_output_tokens": 16}
        self._socket.send(json.dumps({"type": "response.create"} | few | fields))
        while True:
            event = json.loads(self._socket.recv(timeout=_PATIENCE_S))
            if event["type"] in TERMINAL:
                response: dict[str, Any] = event["response"]
                return response


Scenario = Callable[[Client, Callable[[], Way], int], Way]
"""Plays one turn, of the given number, and follows it from the call of the second on."""


def plain(client: Client, follow: Callable[[], Way], number: int) -> Way:
    """A turn that continues nothing and names nothing."""
    way = follow()
    client.turn(input=f"Who are you, {number}?")
    return way


def tool(client: Client, follow: Callable[[], Way], number: int) -> Way:
    """A turn that brings the output of a call, with tools."""
    tools: dict[str, Any] = {"tools": [LOOK], "max_output_tokens": 60}
    asked = client.turn(input=f"A lamp, {number}?", tool_choice="required", **tools)
    outputs = [
        {"type": "function_call_output", "call_id": item["call_id"], "output": "4 dollars"}
        for item in asked["output"]
    ]
    way = follow()
    client.turn(input=outputs, previous_response_id=asked["id"], **tools)
    return way


def budget(client: Client, follow: Callable[[], Way], number: int) -> Way:
    """A turn that its session's budget ends."""
    session = {"session": f"budget {number}", "budget": {"output": 24}}
    client.turn(input="Who are you?", keepwarm=session)
    way = follow()
    ended = client.turn(input="And then?", keepwarm=session)
    assert ended["keepwarm"]["reason"] == "budget_exhausted", ended
    return way


def before_restart(client: Client, number: int) -> None:
    client.turn(input="Who are you?", keepwarm={"session": f"restart {number}"})


def after_restart(client: Client, follow: Callable[[], Way], number: int) -> Way:
    """The first turn of a session that the server has in its journal alone."""
    way = follow()
    client.turn(input="And then?", keepwarm={"session": f"restart {number}"})
    return way


SCENARIOS: Mapping[str, Scenario] = {"plain turn": plain, "tool turn": tool, "budget": budget}
RESTART = "restart"


def follow_all() -> dict[str, dict[str, Passed]]:
    """The way through each scenario and part."""
    follower, ways = Follower(), dict[str, list[Way]]()

    def play(client: Client, name: str, scenario: Scenario) -> None:
        scenario(client, Way, -1)  # what is loaded and compiled at its first use
        played = ways.setdefault(name, [])
        for number in range(_MOST_REPEATS if name == RESTART else _PATIENT_REPEATS):
            client.turn(input="Be quick.", max_output_tokens=1)
            way = scenario(client, follower.follow, number)
            assert way.over.wait(_PATIENCE_S)
            if not way.mixed:
                played.append(way)
            if len(played) == REPEATS:
                return
        raise AssertionError(f"{name}: the engine told of other turns each time")

    def first_life(client: Client) -> None:
        for name, scenario in SCENARIOS.items():
            play(client, name, scenario)
        for number in range(-1, _MOST_REPEATS):
            before_restart(client, number)

    with tempfile.TemporaryDirectory() as folder:
        _serve(follower, Path(folder) / "journal.sqlite3", first_life)
        _serve(
            follower,
            Path(folder) / "journal.sqlite3",
            lambda client: play(client, RESTART, after_restart),
        )
    return {name: {part: passed(each, part) for part in PARTS} for name, each in ways.items()}


def _serve(follower: Follower, journal: Path, visit: Callable[[Client], None]) -> None:
    """Serve in this thread until ``visit``, in another, is through."""
    options = _options(journal)
    failed: list[BaseException] = []

    def visitor() -> None:
        try:
            _until_ready(options.port)
            url = f"ws://127.0.0.1:{options.port}/v1/responses"
            with connect(url, compression=None, max_size=None) as client:
                visit(Client(client))
        except BaseException as error:
            failed.append(error)
        finally:
            os.kill(os.getpid(), signal.SIGTERM)

    thread = threading.Thread(target=visitor)
    thread.start()  # before anybody hears of threads
    follower.install()
    try:
        with (
            contextlib.redirect_stdout(sys.stderr),
            asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner,
        ):
            runner.run(serve(options))
    finally:
        follower.remove()
        thread.join(_PATIENCE_S)
    if failed:
        raise failed[0]


def _options(journal: Path) -> ServeOptions:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    typed = {"journal": str(journal), "port": str(port), "threads": "1"}
    typed |= {"startup_profile_ms": "0", "startup_profile_folder": ""}
    values = resolve("serve", SERVE_SETTINGS, typed=typed, environment={})
    return read_serve_options(values, os.environ)


def _until_ready(port: int) -> None:
    deadline = time.monotonic() + _PATIENCE_S
    while time.monotonic() < deadline:
        with contextlib.suppress(OSError, urllib.error.URLError):
            if urllib.request.urlopen(f"http://127.0.0.1:{port}/readyz", timeout=5).status == 200:
                return
        time.sleep(0.05)
    raise TimeoutError("the server is not ready")


# What is printed


def table(found: Mapping[str, Mapping[str, Passed]]) -> Iterator[str]:
    """A row for each scenario; in each part calls, functions, files, and files in sessions."""
    yield f"{'':12}" + "".join(f"{part:>30}" for part in PARTS)
    names = "".join(f"{name:>10}" for name in ("functions", "files", "sessions"))
    yield f"{'':12}" + names * len(PARTS)
    for name, parts in found.items():
        numbers = [parts[part].counts for part in PARTS]
        cells = "".join(
            f"{each['functions']:>10}{each['files']:>10}{each['in sessions']:>10}"
            for each in numbers
        )
        yield f"{name:12}" + cells


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--json", action="store_true", help="all functions by name, too")
    words = parser.parse_args()
    found = follow_all()
    if words.json:
        told = {
            name: {
                part: each.counts | {"names": sorted(map(" ".join, each.functions))}
                for part, each in parts.items()
            }
            for name, parts in found.items()
        }
        print(json.dumps(told, indent=1))
    else:
        print("\n".join(table(found)))


if __name__ == "__main__":
    main()
