"""Sockets that nobody reads tell that something came, and that their client has left."""

import asyncio
import socket

import pytest

from sessions.wire.socket_state import has_come, has_left


class OnSocket(asyncio.Transport):
    def __init__(self, each: socket.socket) -> None:
        super().__init__({"socket": each})


@pytest.mark.parametrize("unread", [b"", b"words"])
def test_what_came_and_who_left(unread: bytes) -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        transport = OnSocket(ours)
        theirs.sendall(unread)
        assert has_come(transport) == bool(unread)
        assert not has_left(transport)
        theirs.shutdown(socket.SHUT_WR)
        assert has_come(transport)
        assert has_left(transport)


def test_a_closed_socket_or_none_tells_nothing() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        pass
    for transport in (OnSocket(ours), asyncio.Transport()):
        assert not has_come(transport)
        assert not has_left(transport)
