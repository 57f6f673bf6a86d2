"""A server asked over each of its APIs, byte by byte as a test wants it.

Responses over the WebSocket and over HTTP, Chat Completions, Messages: a body goes out as it is,
and what comes back is a status and an object, wherever they stand in the answer.
"""

import asyncio
import json
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

import httpx
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed

from tests.support.wire_client import TERMINAL

WEBSOCKET = "websocket"
PATHS = ("/v1/responses", "/v1/chat/completions", "/v1/messages")
APIS = (WEBSOCKET, *PATHS)
_TIMEOUT_S = 60.0


@dataclass(frozen=True, slots=True)
class Answer:
    """What came back."""

    status: int
    """0: the socket was closed without a word."""
    body: dict[str, Any]
    """The response, completion or message; or the object that says what is wrong."""

    @property
    def error(self) -> dict[str, Any]:
        """What is said against the request; empty if it was served."""
        found: dict[str, Any] = self.body.get("error") or {}
        return found

    @property
    def prompt(self) -> tuple[int, int]:
        """Tokens that the model read, and how many of them were cached."""
        usage = self.body["usage"]
        if "prompt_tokens" in usage:
            return usage["prompt_tokens"], usage["prompt_tokens_details"]["cached_tokens"]
        if "input_tokens_details" in usage:
            return usage["input_tokens"], usage["input_tokens_details"]["cached_tokens"]
        cached = usage["cache_read_input_tokens"]
        return usage["input_tokens"] + cached, cached

    @property
    def said(self) -> Any:
        """What the model wrote, without the names that each answer has for itself."""
        if "choices" in self.body:
            return _without_ids(self.body["choices"][0]["message"])
        return _without_ids(self.body.get("output") or self.body.get("content"))


def _without_ids(value: Any) -> Any:
    if isinstance(value, dict):
        inner = {k: v for k, v in value.items() if k not in ("id", "call_id", "signature")}
        return {key: _without_ids(part) for key, part in inner.items()}
    return list(map(_without_ids, value)) if isinstance(value, list) else value


class ApiClients:
    """``async with ApiClients(url)``: one client of each kind. ``url`` ends with ``/v1``."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._http = httpx.AsyncClient(base_url=url.removesuffix("/v1"), timeout=_TIMEOUT_S)
        self._socket: ClientConnection | None = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self._http.aclose()
        if self._socket is not None:
            await self._socket.close()

    async def ask(self, api: str, body: bytes) -> Answer:
        """Send a body to one of ``APIS`` and wait for the end of its answer."""
        if api == WEBSOCKET:
            return await self._over_websocket(body)
        headers = {"content-type": "application/json"}
        answer = await self._http.post(api, content=body, headers=headers)
        return Answer(answer.status_code, answer.json())

    async def _over_websocket(self, frame: bytes) -> Answer:
        if self._socket is None:
            url = self._url.replace("http", "ws", 1) + "/responses"
            self._socket = await connect(url, compression=None, max_size=None)
        try:
            await self._socket.send(frame, text=True)
            async with asyncio.timeout(_TIMEOUT_S):
                while True:
                    event = json.loads(await self._socket.recv())
                    if event["type"] in TERMINAL:
                        break
        except ConnectionClosed:
            self._socket = None
            return Answer(0, {})
        if event["type"] == "error":
            return Answer(event["status"], event)
        return Answer(200, event["response"])
