"""The body of one HTTP request as it comes, and the memory that it takes.

Always true: the memory of a body is held from its first byte until it was read or dropped.
"""

from http import HTTPStatus

from sessions.durable.weights import MemoryHold
from sessions.http.message import http_error
from sessions.wire.arriving import Arriving
from tools_api.errors import ApiError

DROPPED_BYTES = 1024 * 1024
"""Bytes of a refused body that are read and dropped so that the connection can go on."""


class IncomingBody:
    """The body of the request that a connection reads, or has read last. It does not know the
    connection, with which it goes."""

    def __init__(self, arriving: Arriving) -> None:
        self._arriving = arriving
        self._most = arriving.limits.max_frame_bytes
        self._data, self._dropped = bytearray(), 0
        self._hold: MemoryHold | None = None
        """The hold of the body, until that has been read."""

    @property
    def max_bytes(self) -> int:
        """The longest that is taken."""
        return self._most

    def begin(self) -> None:
        """The head of a request has come."""
        self._dropped = 0

    def check(self, announced: int) -> None:
        """Raise ApiError where so many bytes are announced that they are not taken."""
        if announced > self._most:
            raise self._too_large()

    def drop(self, data: bytes) -> bool:
        """More of a body that was refused; False: it is too long to be read for nothing."""
        self._dropped += len(data)
        return self._dropped <= DROPPED_BYTES

    def add(self, data: bytes, tenant: str, connection: object) -> None:
        """More of the body of a tenant's request; its memory is held in the connection's name.

        Raises:
            ApiError: it is too long, or there is no room for it just now.
        """
        self._data += data
        if len(self._data) > self._most:
            raise self._too_large()
        if self._hold is None:
            self._hold = self._arriving.hold(tenant, connection)
        self._hold.resize(len(self._data))

    def whole(self) -> bytes:
        """The whole body, which is kept no more; its memory is held until ``release``."""
        data = bytes(self._data)
        self._data.clear()
        return data

    def release(self) -> None:
        """The body has been read: its memory is free."""
        hold, self._hold = self._hold, None
        if hold is not None:
            hold.release()

    def forget(self) -> None:
        """Drop the body: nobody reads it any more."""
        self._data.clear()
        self.release()

    def _too_large(self) -> ApiError:
        message = f"The body is longer than {self._most} bytes."
        return http_error(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, message)
