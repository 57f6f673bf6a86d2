"""How a client reaches its server: a socket for turns, and requests over HTTP beside it.

``tools_api.sdk.connection`` uses it; tests of users put ``keepwarm.testing`` in its place. Knows
neither turns nor sessions.
"""

from typing import Protocol

from websockets.asyncio.client import connect

from tools_api.sdk.threads import in_thread


class ClientSocket(Protocol):
    """An open socket: a text frame each way. All raise ``ConnectionClosed`` once it is closed."""

    async def send(self, frame: str, /) -> None:
        """Hand a frame to the server."""

    async def recv(self) -> str | bytes:
        """The next frame of the server."""
        ...

    async def close(self, code: int = 1000) -> None:
        """Close it."""


class Transport(Protocol):
    """Ways to a server. ``url`` is whole, ``headers`` has the key."""

    async def open(
        self, url: str, headers: dict[str, str], *, open_timeout_s: float
    ) -> ClientSocket:
        """Open a socket.

        Raises:
            OSError, InvalidHandshake: there is none.
        """
        ...

    async def ask(
        self, url: str, headers: dict[str, str], body: bytes | None, *, timeout_s: float
    ) -> tuple[int, bytes]:
        """The status and the body of an answer over HTTP, whatever the status; GET, or POST where
        there is a body in JSON.

        Raises:
            OSError: there is none.
        """
        ...


class WebTransport:
    """The network."""

    async def open(
        self, url: str, headers: dict[str, str], *, open_timeout_s: float
    ) -> ClientSocket:
        """See ``Transport``."""
        return await connect(
            url,
            additional_headers=headers,
            open_timeout=open_timeout_s,
            compression=None,
            max_size=None,
        )

    async def ask(
        self, url: str, headers: dict[str, str], body: bytes | None, *, timeout_s: float
    ) -> tuple[int, bytes]:
        """See ``Transport``."""
        found: tuple[int, bytes] = await in_thread(lambda: _asked(url, headers, body, timeout_s))
        return found


def _asked(
    url: str, headers: dict[str, str], body: bytes | None, timeout_s: float
) -> tuple[int, bytes]:
    # Here, since they cost as much as all of a client that asks for nothing over HTTP.
    from http.client import HTTPException
    from urllib.error import HTTPError
    from urllib.request import Request, urlopen

    if body is not None:
        headers = {**headers, "Content-Type": "application/json"}
    try:
        with urlopen(Request(url, data=body, headers=headers), timeout=timeout_s) as answer:
            return answer.status, answer.read()
    except HTTPError as error:
        return error.code, error.read()
    except HTTPException as error:
        raise OSError(str(error) or type(error).__name__) from error
