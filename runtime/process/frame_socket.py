"""Frames from a socket that is waited for: what a child process reads from its parent."""

import socket

from runtime.process import frames


def receive_exactly(connection: socket.socket, size: int) -> bytes:
    """The next so many bytes. Raises EOFError where the peer is gone."""
    parts = bytearray(size)
    view = memoryview(parts)
    while view:
        received = connection.recv_into(view)
        if received == 0:
            raise EOFError
        view = view[received:]
    return bytes(parts)


def receive_frame(connection: socket.socket) -> tuple[bytes, bytes]:
    """Header and arrays of the next frame.

    Raises:
        EOFError: the peer is gone.
        FrameError: it is none of ours.
    """
    head, body = frames.body_sizes(receive_exactly(connection, frames.PREFIX.size))
    return receive_exactly(connection, head), receive_exactly(connection, body)
