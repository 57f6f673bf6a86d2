"""A server of a few lines behind a balancer: it answers checks, says who it is and what it was
asked with, and keeps a socket open. No model, no session.

Like ours it refuses HTTP/1.0 and foreign names.
"""

import socket
import threading
from contextlib import suppress
from typing import Self


class Upstream:
    """``with Upstream("a") as server`` listens at ``server.address``."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.hangs = False
        """Nobody is answered any more; what is open stays open."""
        self.ready = True
        """What ``/readyz`` says."""
        self.seen: list[tuple[int, str]] = []
        """Heads of requests that were no checks, with the number of their connection."""
        self._listening = socket.create_server(("127.0.0.1", 0))
        self._open: list[socket.socket] = []

    @property
    def address(self) -> str:
        host, port = self._listening.getsockname()
        return f"{host}:{port}"

    def __enter__(self) -> Self:
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop_listening()
        for each in self._open:
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
            each.close()

    def stop_listening(self) -> None:
        """Nobody comes in any more; who is there stays."""
        with suppress(OSError):
            self._listening.shutdown(socket.SHUT_RDWR)
        self._listening.close()

    def _accept(self) -> None:
        with suppress(OSError):
            for number in range(10**9):
                client, _ = self._listening.accept()
                self._open.append(client)
                threading.Thread(target=self._serve, args=(client, number), daemon=True).start()

    def _serve(self, client: socket.socket, number: int) -> None:
        with suppress(OSError):
            while head := read_head(client):
                if self.hangs:
                    return
                client.sendall(self._answer(head, number))

    def _answer(self, head: str, number: int) -> bytes:
        first, *fields = head.splitlines()
        _, path, version = first.split()
        named = {line.partition(":")[0].lower(): line.partition(":")[2].strip() for line in fields}
        if version != "HTTP/1.1":
            return answer(505, "")
        if named.get("host", "").partition(":")[0] != "127.0.0.1":
            return answer(403, "")
        if path == "/health":
            return answer(200, "ok")
        if path == "/readyz":
            return answer(200 if self.ready else 503, "")
        self.seen.append((number, head))
        if named.get("upgrade") == "test":
            return (
                f"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: test\r\n"
                f"X-Name: {self.name}\r\n\r\n"
            ).encode()
        return answer(200, self.name)


def answer(status: int, body: str) -> bytes:
    return f"HTTP/1.1 {status} x\r\nContent-Length: {len(body)}\r\n\r\n{body}".encode()


def read_head(client: socket.socket) -> str:
    """Up to the empty line; "" where the other side is gone."""
    found = b""
    while not found.endswith(b"\r\n\r\n"):
        part = client.recv(1)
        if not part:
            return ""
        found += part
    return found.decode("latin-1")
