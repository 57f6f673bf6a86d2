"""Finished turns as spans: what a trace says of each, and the way there, which holds nobody up.

A turn is one span with a child each for its queue, its prefill and its decode. Names and
attributes are those of OpenTelemetry's semantic conventions for generative AI, all of which are
marked "development"; the constants here are those of release 1.44.0, so that the conventions'
package, which moves them about, is not needed. What the conventions have no word for is
``keepwarm.*``. Nobody's input or output is in a span. Knows no OpenTelemetry SDK and no network:
``sessions.pages.span_export`` has both.

Always true: a report that is handed over has been sent, has failed to be, waits, or is counted as
dropped; handing one over never waits.
"""

import logging
import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from sessions.durable.ledger import TurnReport, dollars
from sessions.pages.watcher import Watcher

log = logging.getLogger(__name__)

CONVENTIONS: Final = "https://opentelemetry.io/schemas/1.44.0"
"""The schema whose names these are."""
OPERATION_NAME: Final = "gen_ai.operation.name"
PROVIDER_NAME: Final = "gen_ai.provider.name"
REQUEST_MODEL: Final = "gen_ai.request.model"
CONVERSATION_ID: Final = "gen_ai.conversation.id"
RESPONSE_ID: Final = "gen_ai.response.id"
RESPONSE_MODEL: Final = "gen_ai.response.model"
RESPONSE_FINISH_REASONS: Final = "gen_ai.response.finish_reasons"
RESPONSE_TIME_TO_FIRST_CHUNK: Final = "gen_ai.response.time_to_first_chunk"
USAGE_INPUT_TOKENS: Final = "gen_ai.usage.input_tokens"
USAGE_OUTPUT_TOKENS: Final = "gen_ai.usage.output_tokens"
USAGE_CACHE_READ_INPUT_TOKENS: Final = "gen_ai.usage.cache_read.input_tokens"
USAGE_CACHE_CREATION_INPUT_TOKENS: Final = "gen_ai.usage.cache_creation.input_tokens"
USAGE_REASONING_OUTPUT_TOKENS: Final = "gen_ai.usage.reasoning.output_tokens"
ERROR_TYPE: Final = "error.type"

QUEUE_TURNS = 4096
BATCH_TURNS = 128
CLOSE_TIMEOUT_S = 5.0

Value = str | int | float | tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class SpanData:
    """One span, without its ids."""

    name: str
    begin_ns: int
    """When the span began, in nanoseconds since the epoch."""
    end_ns: int
    attributes: Mapping[str, Value] = field(default_factory=dict)
    error: str | None = None
    """Why the turn failed; None: it did not."""
    traceparent: str | None = None
    """The span above, as W3C Trace Context writes it; None: it begins a trace."""
    children: tuple["SpanData", ...] = ()


def turn_span(report: TurnReport, ended_s: float) -> SpanData:
    """A turn as a span and its children; they lie end to end and fill it.

    Args:
        ended_s: when it ended, seconds since the epoch.
    """
    end = round(ended_s * 1e9)
    begin = end - round(report.total_s * 1e9)
    admitted = min(begin + round(report.queue_s * 1e9), end)
    first = end
    if report.ttft_s is not None:
        first = max(admitted, min(begin + round(report.ttft_s * 1e9), end))
    usage = report.usage
    children = [SpanData(name="queue", begin_ns=begin, end_ns=admitted)]
    if usage.input_tokens:
        computed = {"keepwarm.tokens.computed": usage.uncached_tokens}
        computed |= {f"keepwarm.miss.{cause}": n for cause, n in report.miss_causes.items()}
        prefill = SpanData(name="prefill", begin_ns=admitted, end_ns=first, attributes=computed)
        children.append(prefill)
    if report.ttft_s is not None:
        emitted = {
            USAGE_OUTPUT_TOKENS: usage.output_tokens,
            "keepwarm.forwards": usage.forwards,
        }
        children.append(SpanData(name="decode", begin_ns=first, end_ns=end, attributes=emitted))
    return SpanData(
        name=f"chat {report.model}",
        begin_ns=begin,
        end_ns=end,
        attributes=_attributes(report),
        error=report.reason or "failed" if report.status == "failed" else None,
        traceparent=report.traceparent,
        children=tuple(children),
    )


def _attributes(report: TurnReport) -> dict[str, Value]:
    usage = report.usage
    found: dict[str, Value] = {
        OPERATION_NAME: "chat",
        PROVIDER_NAME: "keepwarm",
        REQUEST_MODEL: report.model,
        RESPONSE_MODEL: report.model,
        CONVERSATION_ID: report.session,
        RESPONSE_ID: report.response_id,
        RESPONSE_FINISH_REASONS: (report.reason or "stop",),
        USAGE_INPUT_TOKENS: usage.input_tokens,
        USAGE_OUTPUT_TOKENS: usage.output_tokens,
        USAGE_CACHE_READ_INPUT_TOKENS: usage.cached_tokens,
        USAGE_CACHE_CREATION_INPUT_TOKENS: usage.uncached_tokens,
        USAGE_REASONING_OUTPUT_TOKENS: usage.reasoning_tokens,
        "keepwarm.tenant": report.tenant,
        "keepwarm.turn": report.turn,
        "keepwarm.status": report.status,
        "keepwarm.tokens.forced": usage.forced_tokens,
        "keepwarm.tokens.drafted": usage.drafted_tokens,
        "keepwarm.tokens.accepted": usage.accepted_tokens,
        "keepwarm.cost.nano_dollars": report.cost,
        "keepwarm.cost.dollars": dollars(report.cost),
        "keepwarm.saved.nano_dollars": report.saved,
    }
    if report.ttft_s is not None:
        found[RESPONSE_TIME_TO_FIRST_CHUNK] = report.ttft_s
    if report.status == "failed":
        found[ERROR_TYPE] = report.reason or "failed"
    return found


class SpanQueue(Watcher):
    """Takes reports in the event loop; a thread of its own sends them on in batches."""

    def __init__(
        self,
        export: Callable[[Sequence[SpanData]], bool],
        *,
        wall_clock: Callable[[], float],
        capacity: int = QUEUE_TURNS,
    ) -> None:
        """
        Args:
            export: sends the spans of some turns and says whether they arrived; may take long.
            wall_clock: seconds since the epoch.
            capacity: turns that may wait.
        """
        self._export = export
        self._wall_clock = wall_clock
        self._capacity = capacity
        self._waiting: deque[tuple[TurnReport, float]] = deque()
        self._wanted = threading.Condition()
        self._closing = False
        self._sent = self._failed = self._dropped = 0
        self._thread = threading.Thread(target=self._run, name="spans", daemon=True)
        self._thread.start()

    def turn_finished(self, report: TurnReport) -> None:
        """Hand over a turn that ends now."""
        with self._wanted:
            if len(self._waiting) >= self._capacity or self._closing:
                self._dropped += 1
                return
            self._waiting.append((report, self._wall_clock()))
            self._wanted.notify()

    def counts(self) -> dict[str, int]:
        """Turns by what has become of their spans."""
        with self._wanted:
            return {"sent": self._sent, "failed": self._failed, "dropped": self._dropped}

    def close(self) -> None:
        """Send what waits, for some seconds at most; what is left then is counted as dropped."""
        with self._wanted:
            self._closing = True
            self._wanted.notify()
        self._thread.join(CLOSE_TIMEOUT_S)
        with self._wanted:
            self._dropped += len(self._waiting)
            self._waiting.clear()

    def _run(self) -> None:
        while batch := self._next_batch():
            arrived = False
            try:
                arrived = self._export([turn_span(report, ended_s) for report, ended_s in batch])
            except Exception:
                log.exception("spans cannot be sent turns=%d", len(batch))
            with self._wanted:
                if arrived:
                    self._sent += len(batch)
                else:
                    self._failed += len(batch)

    def _next_batch(self) -> list[tuple[TurnReport, float]]:
        """The spans that wait, up to a batch; empty when it is time to end."""
        with self._wanted:
            self._wanted.wait_for(lambda: self._waiting or self._closing)
            number = min(len(self._waiting), BATCH_TURNS)
            return [self._waiting.popleft() for _ in range(number)]
