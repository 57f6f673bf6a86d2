"""State of a socket while nobody reads it, as the system knows it: whether something came, whether
its client has left.

A transport that does not read learns neither; these ask. Knows no protocol.
"""

import asyncio
import select

_LEFT = getattr(select, "POLLRDHUP", 0)
"""The client sends no more; where the system does not tell it apart, only a broken connection
counts (that is always told)."""


def has_come(transport: asyncio.Transport) -> bool:
    """Whether something waits to be read from a socket, its end included."""
    return _tells(transport, select.POLLIN)


def has_left(transport: asyncio.Transport) -> bool:
    """The client has ended its side or is gone, whatever it sent before and nobody has read."""
    return _tells(transport, _LEFT)


def _tells(transport: asyncio.Transport, events: int) -> bool:
    socket = transport.get_extra_info("socket")
    if socket is None or socket.fileno() < 0:
        return False
    asked = select.poll()
    asked.register(socket.fileno(), events)
    return bool(asked.poll(0))
