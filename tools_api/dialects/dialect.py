"""Interface of a translation from an HTTP API other than Responses: a body in, the same events out.

A dialect turns the body of its POST into the fields of a ``response.create`` and what comes back,
the events and the response object of the Responses protocol, into what its own clients read. The
transport (``sessions``) knows nothing of any dialect but this.

Pure: no sockets, no sessions, no clock but the times that responses carry.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from tools_api.errors import ApiError


class DialectWriter(Protocol):
    """Writes one answer. One for each request."""

    def feed(self, event: dict[str, Any]) -> bytes:
        """Server-sent events for one event of the Responses protocol; often none, never half of
        one. The one for a terminal event ends the stream."""
        ...

    def whole(self, response: dict[str, Any]) -> dict[str, Any]:
        """The body of an answer that is not streamed, from the response object of the terminal
        event.

        Raises:
            ApiError: the response failed.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class DialectRequest:
    """A body that has been understood."""

    create: dict[str, Any]
    """Fields of a ``response.create``, its ``type`` left out."""
    streamed: bool
    writer: DialectWriter
    settings: Mapping[str, bool] = field(default_factory=dict)
    """The settings with which the writer was made; see ``Dialect.writer``."""


class Dialect(Protocol):
    """One endpoint's way to read requests and to write answers."""

    def read(self, body: Any) -> DialectRequest:
        """Understand a body that is JSON.

        Raises:
            ApiError: it cannot be served; names the field as this API calls it.
        """
        ...

    def writer(self, **settings: bool) -> DialectWriter:
        """A writer like that of a body that was read elsewhere, with these ``settings``."""
        ...

    def status(self, error: ApiError) -> int:
        """The HTTP status of an error: its own, unless this API has another for the like."""
        ...

    def error(self, error: ApiError) -> dict[str, Any]:
        """The body of an error, in this API's shape."""
        ...

    def error_event(self, error: ApiError) -> bytes:
        """The same inside a stream that has begun."""
        ...
