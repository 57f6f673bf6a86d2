"""Spans of turns, where they were asked for: the exporter, its queue, and who tells them of turns.

The one place that imports ``sessions.pages.span_export``, and only when it is called: OpenTelemetry
is an extra.
"""

import time

from sessions.command.settings import OptionError
from sessions.pages.metrics import Metrics
from sessions.pages.spans import SpanQueue
from sessions.wire.hub import Hub
from tools_api.version import __version__


class Tracing:
    """Made before the model is loaded, so that a missing extra is told at once."""

    def __init__(self, endpoint: str) -> None:
        """
        Args:
            endpoint: of OTLP over HTTP, for traces.

        Raises:
            OptionError: the extra is not installed.
        """
        try:
            from sessions.pages.span_export import otlp
        except ModuleNotFoundError as error:
            raise OptionError(
                f"--otlp-traces needs more than is installed (no {error.name}): "
                "pip install 'keepwarm[otel]'"
            ) from error
        self._export = otlp(endpoint, version=__version__)
        self._queue = SpanQueue(self._export.send, wall_clock=time.time)

    def follow(self, hub: Hub, metrics: Metrics) -> None:
        """Make spans of the hub's turns from here on, and have metrics count them."""
        hub.watch(self._queue)
        metrics.watch_spans(self._queue.counts)

    def close(self) -> None:
        """Send what waits, for some seconds at most."""
        self._queue.close()
        self._export.close()
