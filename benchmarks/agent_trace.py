"""Does a trace hold a turn up whose collector takes connections and never answers?

    python -m benchmarks.agent_trace --json

``client_delay_ms``: turns of our client with a scripted server in its process, in blocks without a
provider and with one whose exporter of OTLP hangs, its queue full. ``server_delay_ms``: turns of
one client with two servers in turn, one of which exports its spans to such a collector. Each is
the longest turn with the collector less the median turn without one, over all rounds; the longest
turn without one stands beside it, since that is what the machine does by itself.
"""

import logging
import socket
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from itertools import chain
from pathlib import Path
from typing import Any

from opentelemetry import trace
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor

from benchmarks.report import Bar, parser, report
from keepwarm import Client
from keepwarm.demo.child_server import child_server
from keepwarm.testing import ScriptedServer

ROUNDS = 6
CLIENT_TURNS, SERVER_TURNS = 100, 30
"""Of each kind in a round."""
MODEL = ["--model", "random:qwen3-tiny", "--kv-cache-mib", "64", "--threads", "1"]
BARS = ("client_delay_ms", "server_delay_ms")
BAR_MS = 50.0


@contextmanager
def silent_collector() -> Iterator[tuple[str, Callable[[], bool]]]:
    """Its address, and whether somebody has connected."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        taken: list[socket.socket] = []

        def take() -> None:
            while True:
                try:
                    taken.append(listening.accept()[0])
                except OSError:
                    return

        threading.Thread(target=take, daemon=True).start()
        port = listening.getsockname()[1]
        yield f"http://127.0.0.1:{port}/v1/traces", lambda: bool(taken)
        listening.shutdown(socket.SHUT_RDWR)
        for connection in taken:
            connection.close()


def timed(turn: Callable[[], Any], count: int) -> list[float]:
    """Milliseconds of each of so many turns."""
    found = []
    for _ in range(count):
        began = time.perf_counter()
        turn()
        found.append((time.perf_counter() - began) * 1e3)
    return found


def of_client(turns: int = CLIENT_TURNS, rounds: int = ROUNDS) -> dict[str, float]:
    """Turns of the client with a collector that hangs and without a provider.

    Raises:
        RuntimeError: no span went to the collector.
    """
    plain, hanging = list[list[float]](), list[list[float]]()
    with silent_collector() as (address, met):
        provider = TracerProvider(shutdown_on_exit=False)
        exporter = OTLPSpanExporter(endpoint=address, timeout=600)
        provider.add_span_processor(
            BatchSpanProcessor(exporter, max_queue_size=64, max_export_batch_size=1)
        )
        with ScriptedServer(lambda _: "done").client() as client:
            for _ in range(rounds):
                for provided, times in ((None, plain), (provider, hanging)):
                    trace._TRACER_PROVIDER = provided
                    session = client.session()
                    times.append(timed(lambda session=session: session.respond("go"), turns))  # type: ignore[misc]
        trace._TRACER_PROVIDER = None
        if not met():
            raise RuntimeError("no span went to the collector")
        logging.getLogger(OTLPSpanExporter.__module__).disabled = True  # of what is left
        exporter.shutdown()  # type: ignore[no-untyped-call]
    return delays("client", plain, hanging)


def of_server(turns: int = SERVER_TURNS, rounds: int = ROUNDS) -> dict[str, float]:
    """Turns of a server with a collector that hangs, and of one without. Errors as above."""
    plain, hanging = list[list[float]](), list[list[float]]()
    with ExitStack() as stack:
        address, met = stack.enter_context(silent_collector())
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        urls = [
            stack.enter_context(child_server([*MODEL, *words], log=folder / f"log{number}")).url
            for number, words in enumerate(([], ["--otlp-traces", address]))
        ]
        sessions = [stack.enter_context(Client(url)).session(max_output_tokens=4) for url in urls]
        for _ in range(rounds):
            for session, times in zip(sessions, (plain, hanging), strict=True):
                times.append(timed(lambda session=session: session.respond("go"), turns))  # type: ignore[misc]
        if not met():
            raise RuntimeError("no span went to the collector")
    return delays("server", plain, hanging)


def delays(whose: str, plain: list[list[float]], hanging: list[list[float]]) -> dict[str, float]:
    """Figures of rounds without a collector and with one that hangs, in milliseconds."""
    rounds = [
        max(late - usual for late, usual in zip(sorted(with_it), sorted(without), strict=True))
        for with_it, without in zip(hanging, plain, strict=True)
    ]
    return {
        f"{whose}_turn_ms": statistics.median(chain(*plain)),
        f"{whose}_turn_longest_ms": max(chain(*plain)),
        f"{whose}_turn_hanging_ms": statistics.median(chain(*hanging)),
        f"{whose}_turn_hanging_longest_ms": max(chain(*hanging)),
        f"{whose}_delay_worst_round_ms": max(rounds),
        f"{whose}_delay_ms": statistics.median(rounds),
    }


def bars(figures: dict[str, Any]) -> list[Bar]:
    return [Bar(name=name, value=figures.get(name), op="<=", bar=BAR_MS) for name in BARS]


def main() -> int:
    options = parser(__doc__).parse_args()
    figures = of_client() | of_server()
    return report("agent_trace", figures, bars(figures), as_json=options.json)


if __name__ == "__main__":
    sys.exit(main())
