"""The least that a server of streams can do, for ``benchmarks.transport`` to compare with.

    python -m benchmarks.transport_bare serve --port 0 FILE

A ``websockets`` server in the event loop that the front end has. It reads lists of texts, one for
each connection, and sends a text for each connection and step, in steps as far apart as the
scripted engine's. It starts once all its connections are there and one has spoken.
"""

import asyncio
import sys
from pathlib import Path

import orjson
import uvloop
from websockets.asyncio.server import ServerConnection, serve

from benchmarks.transport_engine import gap_s


class BareServer:
    """Sends what it was given."""

    def __init__(self, texts: list[list[str]]) -> None:
        self._texts = texts
        self._connections: dict[int, ServerConnection] = {}
        self._begin = asyncio.Event()

    async def run(self) -> None:
        """Serve on a free port, which the first line of the output names, until ended."""
        async with serve(
            self._handle, "127.0.0.1", 0, compression=None, ping_interval=None
        ) as server:
            port = next(iter(server.sockets)).getsockname()[1]
            print(f"bare ready at http://127.0.0.1:{port}/v1", flush=True)
            await self._begin.wait()
            await self._play()
            await asyncio.Event().wait()

    async def _handle(self, connection: ServerConnection) -> None:
        assert connection.request is not None
        self._connections[int(connection.request.path.rpartition("/")[2])] = connection
        async for _ in connection:
            self._begin.set()

    async def _play(self) -> None:
        loop = asyncio.get_running_loop()
        pairs = [(self._connections[place], texts) for place, texts in enumerate(self._texts)]
        for step in range(max(map(len, self._texts))):
            due_s = loop.time() + gap_s(len(pairs))
            for connection, texts in pairs:
                if step < len(texts):
                    await connection.send(texts[step])
            await asyncio.sleep(due_s - loop.time())


async def _serve_bare(path: Path) -> None:
    await BareServer(orjson.loads(path.read_bytes())).run()


def main() -> int:
    """Entry point: the last word is the file."""
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_serve_bare(Path(sys.argv[-1])))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
