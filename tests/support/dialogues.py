"""What clients and a server say to one another, written down so that it is the same in every run.

``Script`` writes down what is sent and what comes, for each client in its own order, with names
and times made the same; ``Dialogue`` has the server (``tests.support.stage``) and its clients.

Always true: what is written down depends on what was said alone: not on the machine, on how
fast it is, or on what was played before.
"""

import asyncio
import contextlib
import itertools
import json
import re
import zlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed

from sessions.journal.errors import JournalUnavailable
from sessions.journal.journal import Journal
from tests.support.stage import PATIENCE_S, HeldEngine, Served, Stage
from tests.support.wire_client import TERMINAL

_ID = re.compile(r"\b([a-z]+)(?:[_-][0-9a-z]+)*?[_-][0-9a-f]{24,}(?:_[0-9]+)*\b")
_SECONDS = re.compile(r"(?<=again in )[0-9.]+(?= s)")
_TIMES = {"created_at", "completed_at", "created", "retry_after_ms", "retry-after"}
_MOST_CHARS = 1000
"""Of a text that is written down; a longer one is told by its length and its digest."""
_TIMINGS = {"timing"}


class Script:
    """What was said, a line each, with stable names. Of a response object those fields are left
    out that the one before it had as well; ``without`` names what that had and this has not."""

    def __init__(self) -> None:
        self.lines: list[dict[str, Any]] = []
        self._last: dict[str, Any] = {}
        """The response object before."""
        self._names: dict[str, str] = {}
        self._kinds: dict[str, itertools.count[int]] = {}

    def note(self, who: str, kind: str, said: Any) -> None:
        """One line: ``who`` is a client, ``kind`` what it did or got."""
        self.lines.append({"client": who, kind: self.stable(said)})

    def text(self) -> str:
        return "".join(json.dumps(line, separators=(",", ":")) + "\n" for line in self.lines)

    def stable(self, said: Any, key: str = "") -> Any:
        """``said`` with names in the order in which they were met, and no times."""
        if key in _TIMES and said is not None:
            return "<time>"
        if isinstance(said, dict):
            if key in _TIMINGS:
                return dict.fromkeys(said, "<time>")
            named = {self.stable(name): self.stable(value, name) for name, value in said.items()}
            return self._changes(named) if named.get("object") == "response" else named
        if isinstance(said, list):
            return [self.stable(each) for each in said]
        return self._text(said) if isinstance(said, str) else said

    def _changes(self, response: dict[str, Any]) -> dict[str, Any]:
        last, self._last = self._last, response
        changed = {key: value for key, value in response.items() if last.get(key, ...) != value}
        gone = sorted(last.keys() - response.keys())
        return {"object": "response"} | changed | ({"without": gone} if gone else {})

    def _text(self, said: str) -> str:
        text = _SECONDS.sub("<time>", _ID.sub(self._named, said))
        if len(text) <= _MOST_CHARS:
            return text
        return f"<{len(text)} characters, {zlib.crc32(text.encode()):08x}>"

    def _named(self, found: re.Match[str]) -> str:
        id_, kind = found[0], found[1]
        if id_ not in self._names:
            number = next(self._kinds.setdefault(kind, itertools.count(1)))
            self._names[id_] = f"<{kind} {number}>"
        return self._names[id_]


class Socket:
    """A WebSocket client whose frames are written down as they are read."""

    def __init__(self, name: str, script: Script, socket: ClientConnection) -> None:
        self._name = name
        self._script = script
        self._socket = socket

    async def send(self, **fields: Any) -> None:
        self._script.note(self._name, "sends", fields)
        await self._socket.send(json.dumps(fields))

    async def send_text(self, text: str) -> None:
        """Anything at all, also what is no JSON."""
        self._script.note(self._name, "sends text", text)
        await self._socket.send(text)

    async def create(self, text: Any = "hi", /, **fields: Any) -> None:
        """A turn at temperature 0 of a few tokens, unless ``fields`` say otherwise."""
        few = {"temperature": 0, "max_output_tokens": 12}
        await self.send(**({"type": "response.create", "input": text} | few | fields))

    async def event(self) -> dict[str, Any]:
        """The next frame."""
        async with asyncio.timeout(PATIENCE_S):
            event: dict[str, Any] = json.loads(await self._socket.recv())
        self._script.note(self._name, "gets", event)
        return event

    async def events(self, count: int) -> list[dict[str, Any]]:
        return [await self.event() for _ in range(count)]

    async def until(self, *types: str) -> dict[str, Any]:
        """All up to the next of these types."""
        while True:
            event = await self.event()
            if event["type"] in types:
                return event

    async def end(self) -> dict[str, Any]:
        """All up to the next terminal event or error."""
        return await self.until(*TERMINAL)

    async def turn(self, text: Any = "hi", /, **fields: Any) -> dict[str, Any]:
        """A whole turn; returns its response, or the error."""
        await self.create(text, **fields)
        event = await self.end()
        response: dict[str, Any] = event.get("response", event)
        return response

    async def closed(self) -> None:
        """Until the server closes the socket, with all that it says before."""
        try:
            while True:
                await self.event()
        except ConnectionClosed as closed:
            code = None if closed.rcvd is None else closed.rcvd.code
            self._script.note(self._name, "is closed with", code)

    async def leave(self) -> None:
        """Cut the socket without a word."""
        self._script.note(self._name, "leaves", None)
        self._socket.transport.abort()
        await self._socket.wait_closed()


class Dialogue:
    """One recording: a server, its clients and the script."""

    def __init__(self, stage: Stage, folder: Path) -> None:
        """``folder``: for the journal, and what else a server reads."""
        self._stage = stage
        self._folder = folder
        self._numbers = itertools.count(1)
        self.script = Script()
        self.served: Served
        self._cleanup = contextlib.AsyncExitStack()
        self._clients = contextlib.AsyncExitStack()

    @property
    def engine(self) -> HeldEngine:
        return self.served.engine

    async def start(self, *words: str) -> None:
        """Serve; a second time: after ``stop``, with the same journal."""
        self.served = await self._cleanup.enter_async_context(
            self._stage.serving(*words, journal=str(self._folder / "journal.sqlite3"))
        )

    def file(self, name: str, text: str) -> str:
        """A file for the server, readable for its user alone; its path."""
        path = self._folder / name
        path.write_text(text)
        path.chmod(0o600)
        return str(path)

    async def gone(self, path: str) -> None:
        """Until the server has noticed that a response's client left, which nobody is told."""
        async with asyncio.timeout(PATIENCE_S), httpx.AsyncClient(verify=False) as client:
            while True:
                answer = await client.get(f"http://{self.served.address}{path}")
                if answer.status_code != 200 or answer.json()["status"] != "in_progress":
                    return
                await asyncio.sleep(0.01)

    async def stop(self) -> None:
        """Close the clients and end the server."""
        await self._clients.aclose()
        await self._cleanup.aclose()

    async def socket(self, **headers: str) -> Socket:
        url = f"ws://{self.served.address}/v1/responses"
        client = connect(url, compression=None, max_size=None, additional_headers=headers)
        opened = await self._clients.enter_async_context(client)
        return Socket(f"socket {next(self._numbers)}", self.script, opened)

    async def http(
        self, method: str, path: str, body: Any = None, **headers: str
    ) -> dict[str, Any]:
        """A request and its whole answer; ``body``: JSON, or a text as it is."""
        async with self.stream(method, path, body, **headers) as answer:
            return await answer.rest()

    @contextlib.asynccontextmanager
    async def stream(
        self, method: str, path: str, body: Any = None, **headers: str
    ) -> AsyncIterator["HttpAnswer"]:
        """A request whose answer is read as it comes; left before its end it is cut."""
        name = f"http {next(self._numbers)}"
        sent = {"method": method, "path": path, "headers": headers, "body": body}
        self.script.note(name, "asks", sent)
        told = {key.replace("_", "-"): value for key, value in headers.items()}
        if body is not None:
            told = {"content-type": "application/json"} | told
        content = body if isinstance(body, str | None) else json.dumps(body)
        async with (
            httpx.AsyncClient(timeout=PATIENCE_S, verify=False) as client,
            client.stream(
                method, f"http://{self.served.address}{path}", content=content, headers=told
            ) as answer,
        ):
            self.script.note(
                name,
                "is answered",
                {
                    "status": answer.status_code,
                    "headers": _lasting(answer.headers),
                },
            )
            yield HttpAnswer(name, self.script, answer)


class HttpAnswer:
    """An answer whose body is written down as it is read."""

    def __init__(self, name: str, script: Script, answer: httpx.Response) -> None:
        self._name = name
        self._script = script
        self._answer = answer
        self._lines = answer.aiter_lines()
        self._streams = answer.headers.get("content-type", "").startswith("text/event-stream")

    async def event(self) -> dict[str, Any] | None:
        """The next server-sent event; None at the end."""
        event: dict[str, Any] = {}
        async with asyncio.timeout(PATIENCE_S):
            async for line in self._lines:
                if not line and event:
                    break
                name, _, value = line.partition(": ")
                if name:
                    event[name] = value
        if not event:
            return None
        with contextlib.suppress(json.JSONDecodeError, KeyError):
            event["data"] = json.loads(event["data"])
        self._script.note(self._name, "gets", event)
        return event

    async def until(self, *types: str) -> dict[str, Any]:
        """All up to the next event of one of these names; its data."""
        while (event := await self.event()) is not None:
            if event.get("event") in types:
                data: dict[str, Any] = event["data"]
                return data
        raise AssertionError(f"none of {types} came")

    async def rest(self) -> dict[str, Any]:
        """All that is left; the body, or the data of the last event."""
        if self._streams:
            last: dict[str, Any] = {}
            while (event := await self.event()) is not None:
                if isinstance(event.get("data"), dict):
                    last = event["data"]
            return last
        text = (await self._answer.aread()).decode()
        body: dict[str, Any] = json.loads(text) if text else {}
        self._script.note(self._name, "gets", body)
        return body


def _lasting(headers: httpx.Headers) -> dict[str, str]:
    """Without what says when, or how long ids and times are when written."""
    return {
        name: value for name, value in headers.items() if name not in ("date", "content-length")
    }


def out_of_reach(patch: pytest.MonkeyPatch, journal: type[Journal], *methods: str) -> None:
    """From now on the journal's methods cannot reach it."""

    def fail(*_: Any, **__: Any) -> Any:
        raise JournalUnavailable("told to")

    for method in methods:
        patch.setattr(journal, method, fail)
