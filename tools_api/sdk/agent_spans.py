"""Spans of an agent: a run, its turns and its tools, for a program that has set up OpenTelemetry.

Names and attributes are those of the semantic conventions for generative AI, as the server's
(``sessions.pages.spans``), whose spans lie beneath those of the turns: a request carries its
span's ``traceparent``. Texts are in no span unless the conventions' own variable,
``OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT``, is ``true``.

Always true: nothing of OpenTelemetry is loaded that the program has not loaded itself, and without
a provider of its own no span is made. A span is no context of its run or turn, since those are
generators that may go on in another context; a tool runs inside its span.
"""

import asyncio
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Final

from tools_api.exact_json import dumps
from tools_api.items import FunctionCall
from tools_api.sdk.answers import CallRecord, Response, Usage

CONVENTIONS: Final = "https://opentelemetry.io/schemas/1.44.0"
CONTENT: Final = "OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT"
_TRACE = "opentelemetry.trace"


class AgentSpan:
    """A span that runs, or none where the program has no provider (``begin_*``)."""

    __slots__ = ("_span", "_trace")

    def __init__(self, trace: Any, span: Any) -> None:
        self._trace = trace
        self._span = span

    @property
    def traceparent(self) -> str:
        """As W3C Trace Context writes it."""
        context = self._span.get_span_context()
        return (
            f"00-{context.trace_id:032x}-{context.span_id:016x}-{int(context.trace_flags) & 1:02x}"
        )

    def begin(self, name: str, kind: str, attributes: Mapping[str, Any]) -> "AgentSpan":
        """A span beneath this one."""
        above = self._trace.set_span_in_context(self._span)
        return _begun(self._trace, name, kind, attributes, above)

    def tell(self, name: str, **attributes: Any) -> None:
        """Something that happened meanwhile."""
        self._span.add_event(name, attributes)

    def end(self, attributes: Mapping[str, Any], error: BaseException | str | None = None) -> None:
        """End it; ``error`` is why it failed. Whoever leaves or cancels it makes no failure."""
        self._span.set_attributes(dict(attributes))
        if isinstance(error, GeneratorExit | asyncio.CancelledError):
            self._span.set_attribute("keepwarm.status", "left")
        elif error is not None:
            kind = error if isinstance(error, str) else type(error).__name__
            self._span.set_attribute("error.type", kind)
            said = self._trace.Status(self._trace.StatusCode.ERROR, str(error))
            self._span.set_status(said)
        self._span.end()

    @contextmanager
    def entered(self) -> Iterator[None]:
        """As the current span of this task, for spans that the program makes inside."""
        used = self._trace.use_span(
            self._span, end_on_exit=False, record_exception=False, set_status_on_exception=False
        )
        with used:
            yield


def begin(
    above: AgentSpan | None, name: str, kind: str, attributes: Callable[[], Mapping[str, Any]]
) -> AgentSpan | None:
    """A span beneath ``above``, or beneath the program's current one; None without a provider.
    ``kind`` as OpenTelemetry calls it."""
    if above is not None:
        return above.begin(name, kind, attributes())
    trace = sys.modules.get(_TRACE)
    if trace is None or not _has_provider(trace):
        return None
    return _begun(trace, name, kind, attributes(), None)


def begin_agent(name: str | None) -> AgentSpan | None:
    """``invoke_agent``: of a run of the session ``name``."""
    return begin(None, f"invoke_agent {name or ''}".rstrip(), "INTERNAL", lambda: _agent(name))


def _agent(name: str | None) -> dict[str, Any]:
    named = {} if name is None else {"gen_ai.agent.name": name, "gen_ai.conversation.id": name}
    return {"gen_ai.operation.name": "invoke_agent", "gen_ai.provider.name": "keepwarm", **named}


def result_attributes(responses: Sequence[Response], status: str) -> dict[str, Any]:
    """Attributes of a run that has ended: its turns added up."""
    costs = [cost for each in responses if (cost := _turn_cost(each)) is not None]
    return {
        **_usage(sum((each.usage for each in responses), Usage())),
        "keepwarm.turns": len(responses),
        "keepwarm.status": status,
        **({"keepwarm.cost.dollars": sum(costs)} if costs else {}),
    }


def begin_turn(above: AgentSpan | None, request: Mapping[str, Any]) -> AgentSpan | None:
    """``chat``: of the turn that ``request`` asks for."""
    return begin(
        above, f"chat {request.get('model', 'default')}", "CLIENT", lambda: _asked(request)
    )


def _asked(request: Mapping[str, Any]) -> dict[str, Any]:
    found = {"gen_ai.operation.name": "chat", "gen_ai.provider.name": "keepwarm"}
    if (model := request.get("model")) is not None:
        found["gen_ai.request.model"] = model
    if (session := request.get("keepwarm", {}).get("session")) is not None:
        found["gen_ai.conversation.id"] = session
    if shows_content():
        found["gen_ai.input.messages"] = dumps(request["input"]).decode()
    return found


def response_attributes(response: Response) -> dict[str, Any]:
    """Attributes of a turn that has ended."""
    told = response.keepwarm
    found: dict[str, Any] = {
        "gen_ai.response.id": response.id,
        "gen_ai.response.finish_reasons": (told.get("reason") or "stop",),
        "keepwarm.status": response.status,
        **_usage(response.usage),
    }
    if (model := response.raw.get("model")) is not None:
        found["gen_ai.response.model"] = model
    if (session := told.get("session")) is not None:
        found["gen_ai.conversation.id"] = session
    if response.ttft_s is not None:
        found["gen_ai.response.time_to_first_chunk"] = response.ttft_s
    if (cost := _turn_cost(response)) is not None:
        found["keepwarm.cost.dollars"] = cost
    for cause, tokens in ((told.get("kv") or {}).get("miss") or {}).items():
        found[f"keepwarm.miss.{cause}"] = tokens
    if shows_content():
        items = [dict(item) for item in response.raw.get("output") or ()]
        found["gen_ai.output.messages"] = dumps(items).decode()
    return found


def begin_tool(above: AgentSpan | None, call: FunctionCall) -> AgentSpan | None:
    """``execute_tool``: of a call that a run's tool begins."""
    if above is None:
        return None
    return begin(above, f"execute_tool {call.full_name}", "INTERNAL", lambda: _called(call))


def _called(call: FunctionCall) -> dict[str, Any]:
    shown = {"gen_ai.tool.call.arguments": call.arguments} if shows_content() else {}
    return {
        "gen_ai.operation.name": "execute_tool",
        "gen_ai.tool.name": call.full_name,
        "gen_ai.tool.call.id": call.call_id,
        "gen_ai.tool.type": "function",
        **shown,
    }


def record_attributes(record: CallRecord) -> dict[str, Any]:
    """Attributes of a call that has ended."""
    shown = {"gen_ai.tool.call.result": record.output} if shows_content() else {}
    return {"keepwarm.tool.attempts": record.attempts, **shown}


def shows_content() -> bool:
    """Whether the program wants texts in its spans."""
    return os.environ.get(CONTENT, "").lower() in ("true", "1", "span_only", "span_and_event")


def _has_provider(trace: Any) -> bool:
    provider = trace.get_tracer_provider()
    return not isinstance(provider, trace.ProxyTracerProvider | trace.NoOpTracerProvider)


def _begun(
    trace: Any, name: str, kind: str, attributes: Mapping[str, Any], above: Any
) -> AgentSpan:
    tracer = trace.get_tracer("keepwarm", schema_url=CONVENTIONS)
    span = tracer.start_span(
        name, context=above, kind=trace.SpanKind[kind], attributes=dict(attributes)
    )
    return AgentSpan(trace, span)


def _usage(usage: Usage) -> dict[str, Any]:
    return {
        "gen_ai.usage.input_tokens": usage.input_tokens,
        "gen_ai.usage.output_tokens": usage.output_tokens,
        "gen_ai.usage.cache_read.input_tokens": usage.cached_tokens,
        "gen_ai.usage.reasoning.output_tokens": usage.reasoning_tokens,
    }


def _turn_cost(response: Response) -> float | None:
    cost = (response.keepwarm.get("cost") or {}).get("turn")
    return None if cost is None else float(cost)
