"""Recorded turns: a client's turns with a real server, kept in a file and played again.

A file has a line of JSON for each turn: the request, and the frames with which it was answered.
``recording`` writes one; a ``Cassette`` is a script of what it reads. Knows no sessions.

Always true: a cassette answers a request that asks what the recorded one asked, and no other.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from keepwarm.scripted.answers import ScriptedCall, ScriptedPart, ScriptedText, ScriptedTurn
from tools_api.errors import ApiError
from tools_api.sdk.transport import ClientSocket, Transport, WebTransport

_DELTAS = {
    "response.output_text.delta",
    "response.reasoning_text.delta",
    "response.function_call_arguments.delta",
    "response.custom_tool_call_input.delta",
}
_ENDS = {"response.completed", "response.incomplete", "response.failed"}
_COMPARED = ("instructions", "tools", "tool_choice", "text", "generate", "temperature")
_NAMES = frozenset({"id", "call_id", "status"})


class CassetteMismatch(Exception):
    """A turn asks something else than the one that was recorded in its place."""


class Cassette:
    """A script of recorded turns: ``ScriptedServer(Cassette(path))``. Each turn has to ask what the
    recorded one asked, but for ids."""

    def __init__(self, path: Path | str) -> None:
        """
        Raises:
            OSError, ValueError: the file cannot be read, or holds something else.
        """
        text = Path(path).read_text(encoding="utf-8")
        self._turns: Iterator[tuple[int, dict[str, Any]]] = iter(
            enumerate(map(json.loads, text.splitlines()), start=1)
        )

    def __call__(self, asked: Any) -> ScriptedTurn:
        """The recorded answer to the next turn.

        Raises:
            CassetteMismatch: another one was recorded, or none.
        """
        number, turn = next(self._turns, (0, None))
        if turn is None:
            raise CassetteMismatch("the cassette has no more turns: record it anew")
        recorded, now = turn["request"], asked.raw
        for name in (*_COMPARED, "input"):
            before, present = _unnamed(recorded.get(name)), _unnamed(now.get(name))
            if before != present:
                raise CassetteMismatch(
                    f"turn {number} was recorded with another {name}: {_shown(before)}, "
                    f"now {_shown(present)}"
                )
        return turn_of_frames(turn["frames"])


def turn_of_frames(frames: Sequence[Mapping[str, Any]]) -> ScriptedTurn:
    """The answer that a real server gave with these frames."""
    first, last = frames[0], frames[-1]
    if first["type"] == "error":
        told = first["error"]
        wait_ms = told.get("keepwarm", {}).get("retry_after_ms")
        refusal = ApiError(
            told["message"],
            code=told["code"],
            param=told["param"],
            status=first["status"],
            type=told["type"],
            retry_after_s=None if wait_ms is None else wait_ms / 1000,
        )
        return ScriptedTurn(refusal=refusal)
    if last["type"] not in _ENDS:
        raise ValueError(f"the last frame of a recorded turn is {last['type']}")
    response = last["response"]
    error = response.get("error")
    stats = response.get("keepwarm") or {}
    return ScriptedTurn(
        parts=tuple(_parts(frames)),
        status=last["type"].removeprefix("response."),
        reason=stats.get("reason"),
        error=None if error is None else (error["code"], error["message"]),
        usage=response["usage"] or {},
        keepwarm=stats,
    )


def _parts(frames: Sequence[Mapping[str, Any]]) -> Iterator[ScriptedPart]:
    pieces: list[str] = []
    for frame in frames:
        if frame["type"] == "response.output_item.added":
            pieces = []
        elif frame["type"] in _DELTAS:
            pieces.append(frame["delta"])
        elif frame["type"] == "response.output_item.done":
            item = frame["item"]
            cut = item.get("status") == "incomplete"
            if item["type"] in ("message", "reasoning"):
                thought = item["type"] == "reasoning"
                yield ScriptedText(pieces=tuple(pieces), thought=thought, cut=cut)
            else:
                space = item.get("namespace")
                name = item["name"] if space is None else f"{space}__{item['name']}"
                yield ScriptedCall(name=name, pieces=tuple(pieces), cut=cut)


def _unnamed(value: Any) -> Any:
    """Without ids, which differ from run to run."""
    if isinstance(value, Mapping):
        return {key: _unnamed(each) for key, each in value.items() if key not in _NAMES}
    return [_unnamed(each) for each in value] if isinstance(value, list) else value


def _shown(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 160 else f"{text[:157]}..."


class _Recorder:
    """A transport to a real server that writes down the turns which have ended."""

    def __init__(self, path: Path, inner: Transport) -> None:
        self._path = path
        self._inner = inner
        path.write_text("", encoding="utf-8")

    async def open(
        self, url: str, headers: dict[str, str], *, open_timeout_s: float
    ) -> "_RecordedSocket":
        socket = await self._inner.open(url, headers, open_timeout_s=open_timeout_s)
        return _RecordedSocket(socket, self._path)

    async def ask(
        self, url: str, headers: dict[str, str], body: bytes | None, *, timeout_s: float
    ) -> tuple[int, bytes]:
        return await self._inner.ask(url, headers, body, timeout_s=timeout_s)


class _RecordedSocket:
    def __init__(self, inner: ClientSocket, path: Path) -> None:
        self._inner = inner
        self._path = path
        self._open: dict[str | None, tuple[dict[str, Any], list[dict[str, Any]]]] = {}

    async def send(self, frame: str, /) -> None:
        sent = json.loads(frame)
        if sent.get("type") == "response.create":
            self._open[sent.get("stream_id")] = (sent, [])
        await self._inner.send(frame)

    async def recv(self) -> str | bytes:
        frame = await self._inner.recv()
        got = json.loads(frame)
        lane = got.get("stream_id")
        if lane in self._open:
            request, frames = self._open[lane]
            frames.append(got)
            if got["type"] in _ENDS or got["type"] == "error":
                del self._open[lane]
                line = json.dumps({"request": request, "frames": frames}, ensure_ascii=False)
                with self._path.open("a", encoding="utf-8") as file:
                    file.write(line + "\n")
        return frame

    async def close(self, code: int = 1000) -> None:
        await self._inner.close(code)


def recording(path: Path | str, transport: Transport | None = None) -> Transport:
    """A transport to a real server that writes its turns into a cassette:
    ``Client(url, transport=recording("turns.jsonl"))``. The file is begun anew."""
    return _Recorder(Path(path), transport or WebTransport())
