"""A Responses server of a few lines: answers each request as the test says, runs no model.

It lives in a thread of its own, so that synchronous and asynchronous clients meet the same
server. ``requests`` holds what arrived, as parsed JSON.
"""

import asyncio
import threading
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

import orjson
from websockets.asyncio.server import Server, ServerConnection, serve
from websockets.exceptions import ConnectionClosed
from websockets.http11 import Request
from websockets.http11 import Response as HttpResponse


@dataclass(frozen=True, slots=True)
class Close:
    """Instead of an event: close the socket with this code; None drops it without a word."""

    code: int | None


Answer = Callable[[dict[str, Any]], Iterable[dict[str, Any] | Close]]


class FakeServer:
    """``with FakeServer(answer) as server:`` serves on ``server.url`` until the block ends."""

    def __init__(self, answer: Answer, on_cancel: Answer | None = None) -> None:
        """``on_cancel`` answers ``response.cancel``; by default the lane's turn ends incomplete."""
        self._answer = answer
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever)
        self._server: Server | None = None
        self._on_cancel = on_cancel or (lambda request: turn(request, [], status="incomplete")[-1:])
        self.requests: list[dict[str, Any]] = []
        self.cancels: list[dict[str, Any]] = []
        """``response.cancel`` events; they are not among ``requests``."""
        self.headers: list[dict[str, str]] = []
        self.paths: list[str] = []
        """Of the sockets, with their queries."""
        self.closed_by_client = threading.Event()

    @property
    def url(self) -> str:
        assert self._server is not None
        port = next(iter(self._server.sockets)).getsockname()[1]
        return f"http://127.0.0.1:{port}/v1"

    @property
    def num_connections(self) -> int:
        return len(self.headers)

    def __enter__(self) -> Self:
        self._thread.start()
        self._server = asyncio.run_coroutine_threadsafe(self._start(), self._loop).result()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        asyncio.run_coroutine_threadsafe(self._stop(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def _start(self) -> Server:
        return await serve(
            self._handle, "127.0.0.1", 0, compression=None, process_request=self._only_one_path
        )

    def _only_one_path(self, socket: ServerConnection, request: Request) -> HttpResponse | None:
        path = request.path.partition("?")[0]
        return None if path == "/v1/responses" else socket.respond(404, "not here\n")

    async def _stop(self) -> None:
        assert self._server is not None
        self._server.close()
        await self._server.wait_closed()

    async def _handle(self, socket: ServerConnection) -> None:
        assert socket.request is not None
        self.headers.append(dict(socket.request.headers.raw_items()))
        self.paths.append(socket.request.path)
        with suppress(ConnectionClosed):
            async for frame in socket:
                request = orjson.loads(frame)
                cancels = request["type"] == "response.cancel"
                (self.cancels if cancels else self.requests).append(request)
                for event in (self._on_cancel if cancels else self._answer)(request):
                    await self._emit(socket, event)
        self.closed_by_client.set()

    async def _emit(self, socket: ServerConnection, event: dict[str, Any] | Close) -> None:
        if not isinstance(event, Close):
            await socket.send(orjson.dumps(event).decode())
        elif event.code is None:
            socket.transport.abort()
        else:
            await socket.close(event.code)


def message(text: str, number: int = 1) -> dict[str, Any]:
    """An assistant's message as an output item."""
    part = {"type": "output_text", "text": text, "annotations": [], "logprobs": []}
    return {
        "id": f"msg_{number}",
        "type": "message",
        "role": "assistant",
        "status": "completed",
        "content": [part],
    }


def call(name: str, arguments: str, number: int = 1) -> dict[str, Any]:
    """A function call as an output item; its call id is ``call_{number}``."""
    return {
        "id": f"fc_{number}",
        "type": "function_call",
        "status": "completed",
        "call_id": f"call_{number}",
        "name": name,
        "arguments": arguments,
    }


def turn(
    request: dict[str, Any],
    output: list[dict[str, Any]],
    *,
    id: str = "resp_1",
    status: str = "completed",
    **fields: Any,
) -> list[dict[str, Any]]:
    """The events of a turn that gives ``output`` and 10 input, 4 cached, 2 output tokens."""
    usage = {
        "input_tokens": 10,
        "input_tokens_details": {"cached_tokens": 4, "cache_write_tokens": 6},
        "output_tokens": 2,
        "output_tokens_details": {"reasoning_tokens": 1},
        "total_tokens": 12,
    }
    response = {"id": id, "object": "response", "model": "m", "status": "in_progress", "output": []}
    events: list[dict[str, Any]] = [{"type": "response.created", "response": response}]
    for index, item in enumerate(output):
        events.append({"type": "response.output_item.added", "output_index": index, "item": item})
        place = {"item_id": item["id"], "output_index": index}
        if item["type"] == "function_call":
            for delta in item["arguments"]:
                kind = "response.function_call_arguments.delta"
                events.append({"type": kind, "delta": delta, **place})
        elif item["type"] == "message":
            for delta in item["content"][0]["text"]:
                events.append({"type": "response.output_text.delta", "delta": delta, **place})
        events.append({"type": "response.output_item.done", "output_index": index, "item": item})
    final = response | {"status": status, "output": output, "usage": usage, **fields}
    events.append({"type": f"response.{status}", "response": final})
    lane = {"stream_id": request["stream_id"]} if "stream_id" in request else {}
    return [event | {"sequence_number": n} | lane for n, event in enumerate(events)]


def refusal(request: dict[str, Any], code: str, status: int = 400) -> dict[str, Any]:
    """An ``error`` event that answers ``request``."""
    error = {"type": "invalid_request_error", "code": code, "message": "no", "param": None}
    lane = {"stream_id": request["stream_id"]} if "stream_id" in request else {}
    return {"type": "error", "status": status, "error": error} | lane
