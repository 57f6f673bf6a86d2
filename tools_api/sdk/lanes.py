"""One socket of the asynchronous client, shared by turns: each has a lane of its own.

Frames leave in the order in which they were posted, so a turn's cancel never overtakes its
request; events are handed to the lane they name. Knows when a turn begins and ends, and
nothing else of it.

Always true: a lane has one turn at a time; that of a turn which was left before its end is
free again only after the turn's last event.
"""

import asyncio
import heapq
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from websockets.exceptions import ConnectionClosed, ConnectionClosedError
from websockets.frames import Close, CloseCode

from tools_api.exact_json import loads
from tools_api.sdk.transport import ClientSocket
from tools_api.sdk.turn import Turn, answers_cancel, ends_steered, ends_turn

NUM_LANES = 16
"""Turns that run at once on a connection; a further one waits here for a lane."""


_FLUSH_S = 1.0
"""How long a socket that is closed waits for frames to leave."""


class Lane:
    """A turn's part of the socket."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.name = f"lane-{number}"
        self.events: asyncio.Queue[dict[str, Any] | ConnectionClosed] = asyncio.Queue()
        self.answered = False
        """An event of the present turn has arrived."""
        self.ended = False
        """Its last event has, though the turn may not have taken it yet."""


class Lanes:
    """An open socket and the turns that share it. A lane has one turn at a time."""

    def __init__(self, socket: ClientSocket) -> None:
        self._socket = socket
        self._free = list(range(NUM_LANES))
        self._may_take = asyncio.Semaphore(NUM_LANES)
        self._taken: dict[str, Lane] = {}
        self._abandoned: set[str] = set()
        self.closed = False
        self._outgoing: asyncio.Queue[str] = asyncio.Queue()
        self._writer = asyncio.create_task(self._write())
        self._reader = asyncio.create_task(self._read())

    async def take(self) -> Lane | None:
        """A free lane, the lowest first; None if the socket closed meanwhile."""
        await self._may_take.acquire()
        if self.closed:
            self._may_take.release()  # and so does whoever waits behind this one
            return None
        lane = Lane(heapq.heappop(self._free))
        self._taken[lane.name] = lane
        return lane

    def leave(self, lane: Lane, turn: Turn) -> None:
        """Hand the lane back. A turn that still runs is cancelled, and its lane is free only
        after its last event."""
        if self.closed:
            return
        if turn.over or (lane.ended and not turn.goes_on):
            self._release(lane)
        else:
            self._abandoned.add(lane.name)
            self.post(turn.cancel_frame(lane.name))

    def free(self, lane: Lane) -> None:
        """Hand back a lane in which nothing was asked."""
        if not self.closed:
            self._release(lane)

    def post(self, frame: str) -> None:
        """Send a frame behind all others; a task that is cancelled meanwhile changes nothing."""
        self._outgoing.put_nowait(frame)

    async def close(self) -> None:
        """Close the socket, behind the frames that were posted."""
        with suppress(TimeoutError):
            if self.closed:
                self._outgoing = asyncio.Queue()
            async with asyncio.timeout(_FLUSH_S):
                await self._outgoing.join()
        await self._socket.close()
        await self._reader

    def _release(self, lane: Lane) -> None:
        del self._taken[lane.name]
        self._abandoned.discard(lane.name)
        heapq.heappush(self._free, lane.number)
        self._may_take.release()

    async def _write(self) -> None:
        with suppress(ConnectionClosed):  # the reader tells everybody
            while True:
                await self._socket.send(await self._outgoing.get())
                self._outgoing.task_done()

    async def _read(self) -> None:
        try:
            while True:
                self._dispatch(loads(await self._socket.recv()))
        except ConnectionClosed as closed:
            self._end(closed)
        except asyncio.CancelledError:  # by whoever cancels all tasks, as a loop does that ends
            self._end(ConnectionClosedError(None, None))
            with suppress(TimeoutError):
                async with asyncio.timeout(_FLUSH_S):
                    await self._socket.close()
            raise
        except (
            ValueError,
            TypeError,
            AttributeError,
            LookupError,
        ):  # what came is no event: nothing can be made of more
            self._end(ConnectionClosedError(None, Close(CloseCode.PROTOCOL_ERROR, "not an event")))
            await self._socket.close(CloseCode.PROTOCOL_ERROR)

    def _end(self, closed: ConnectionClosed) -> None:
        """Tell everybody who waits that the socket is of no more use."""
        self.closed = True
        self._writer.cancel()
        for lane in self._taken.values():
            lane.events.put_nowait(closed)
        self._may_take.release()  # whoever waits here goes to the next socket

    def _dispatch(self, event: dict[str, Any]) -> None:
        if answers_cancel(event):
            return
        name = event.get("stream_id")
        lanes = [lane for lane in self._taken.values() if lane.name == name]
        if name is None and event["type"] == "response.steer.failed":
            # Of a response that the server does not know here: whose it is knows the turn.
            lanes = [lane for lane in self._taken.values() if lane.answered]
        elif name is None:  # an error of the connection: concerns what has not started
            lanes = [lane for lane in self._taken.values() if not lane.answered]
        for lane in lanes:
            lane.answered = True
            # A turn that was steered goes on with another response.
            came_back, was_ended = lane.ended and _hands_back(event), lane.ended
            lane.ended = ends_turn(event) or (was_ended and event["type"] != "response.created")
            if lane.name not in self._abandoned:
                lane.events.put_nowait(event)
            elif came_back or (ends_turn(event) and not ends_steered(event)):
                self._release(lane)


def _hands_back(event: Mapping[str, Any]) -> bool:
    """What was said and accepted is heard by no further response."""
    return event["type"] == "response.steer.failed" and event["steer"].get("id") is not None
