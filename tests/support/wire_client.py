"""A client that speaks the WebSocket protocol by hand, and counts what it sends."""

import json
from typing import Any

from websockets.asyncio.client import ClientConnection, connect

from tools_api.exact_json import written

TERMINAL = {"response.completed", "response.incomplete", "response.failed", "error"}


class WireClient:
    """One connection, one turn at a time."""

    def __init__(self, socket: ClientConnection) -> None:
        self.socket = socket
        self.sent_bytes: list[int] = []

    @classmethod
    async def open(cls, base_url: str, **options: Any) -> "WireClient":
        url = base_url.replace("http", "ws", 1) + "/responses"
        return cls(await connect(url, compression=None, max_size=None, **options))

    async def send(self, **fields: Any) -> None:
        frame = written({"type": "response.create"} | fields, ensure_ascii=True)
        self.sent_bytes.append(len(frame))
        await self.socket.send(frame)

    async def event(self) -> dict[str, Any]:
        """The next event."""
        event: dict[str, Any] = json.loads(await self.socket.recv())
        return event

    async def events(self) -> list[dict[str, Any]]:
        """All events up to and including the terminal one."""
        events: list[dict[str, Any]] = []
        while not events or events[-1]["type"] not in TERMINAL:
            events.append(await self.event())
        return events

    async def turn(self, **fields: Any) -> dict[str, Any]:
        """Play one turn and return its terminal event."""
        await self.send(**fields)
        return (await self.events())[-1]

    async def response(self, **fields: Any) -> dict[str, Any]:
        """Play one turn that must end with a response, and return that."""
        event = await self.turn(**fields)
        assert "response" in event, event
        response: dict[str, Any] = event["response"]
        return response

    async def close(self) -> None:
        await self.socket.close()
