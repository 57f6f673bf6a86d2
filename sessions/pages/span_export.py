"""Spans to OpenTelemetry: the SDK makes them, its OTLP exporter sends them over HTTP.

Needs the extra ``otel`` and is imported only where spans are asked for. The SDK's variables hold:
OTEL_EXPORTER_OTLP_HEADERS, OTEL_SERVICE_NAME, OTEL_RESOURCE_ATTRIBUTES, OTEL_TRACES_SAMPLER and
their like. It runs in the thread of ``sessions.pages.spans`` and nowhere else.
"""

from collections.abc import Sequence

from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult
from opentelemetry.trace import SpanKind, Status, StatusCode, Tracer, set_span_in_context
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from sessions.pages.spans import CONVENTIONS, SpanData

_PROPAGATOR = TraceContextTextMapPropagator()


class SpanExport:
    """Makes spans of turns and hands them to an exporter, batch by batch."""

    def __init__(self, exporter: SpanExporter, *, version: str) -> None:
        self._exporter = exporter
        self._ended = _Ended()
        # A name from the environment takes the place of ours.
        named = Resource.create({"service.version": version})
        if str(named.attributes.get("service.name", "")).startswith("unknown_service"):
            named = named.merge(Resource({"service.name": "keepwarm"}))
        self._provider = TracerProvider(resource=named, shutdown_on_exit=False)
        self._provider.add_span_processor(self._ended)
        self._tracer = self._provider.get_tracer("keepwarm", version, schema_url=CONVENTIONS)

    def send(self, turns: Sequence[SpanData]) -> bool:
        """Whether the spans arrived. Spans that the sampler leaves out count as arrived."""
        for turn in turns:
            _make(self._tracer, turn)
        spans = self._ended.take()
        return not spans or self._exporter.export(spans) is SpanExportResult.SUCCESS

    def close(self) -> None:
        self._exporter.shutdown()


def otlp(endpoint: str, *, version: str) -> SpanExport:
    """To a collector's OTLP endpoint for traces, as ``http://127.0.0.1:4318/v1/traces``."""
    return SpanExport(OTLPSpanExporter(endpoint=endpoint), version=version)


class _Ended(SpanProcessor):
    """Keeps spans that have ended until they are taken; one thread does both."""

    def __init__(self) -> None:
        self._spans: list[ReadableSpan] = []

    def on_end(self, span: ReadableSpan) -> None:
        self._spans.append(span)

    def take(self) -> list[ReadableSpan]:
        spans, self._spans = self._spans, []
        return spans


def _make(tracer: Tracer, data: SpanData) -> None:
    context = None
    if data.traceparent is not None:
        context = _PROPAGATOR.extract({"traceparent": data.traceparent})
    span = tracer.start_span(
        data.name,
        context=context,
        kind=SpanKind.SERVER,
        attributes=data.attributes,
        start_time=data.begin_ns,
    )
    for child in data.children:
        tracer.start_span(
            child.name,
            context=set_span_in_context(span),
            attributes=child.attributes,
            start_time=child.begin_ns,
        ).end(child.end_ns)
    if data.error is not None:
        span.set_status(Status(StatusCode.ERROR, data.error))
    span.end(data.end_ns)
