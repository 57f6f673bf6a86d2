"""The ``response`` object of lifecycle events, its usage and log-probabilities.

A ``ResponseObject`` is what stays equal over the life of one response: the echo of the
request and the ids. What changes (status, output, usage) is given to ``wire``. All fields
that typed clients insist on are always present, null where there is nothing to say.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from tools_api.requests import CreateRequest
from tools_api.tools import wire_tools

ResponseStatus = Literal["queued", "in_progress", "completed", "incomplete", "failed"]
IncompleteReason = Literal["max_output_tokens", "content_filter", "steered"]
FailureCode = Literal["server_error", "rate_limit_exceeded", "invalid_prompt", "output_invalid"]
"""The members of the SDK's closed enum that fit a text server."""
FAILURES = {
    "rate_limit_exceeded": (429, "rate_limit_error"),
    "invalid_prompt": (400, "invalid_request_error"),
    "output_invalid": (422, "invalid_request_error"),
}
"""Status and type of a failed response by its code; any other is the server's own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ResponseObject:
    """The fields that all ``response`` objects of one turn's events have in common."""

    id: str
    request: CreateRequest
    model: str
    created_at: int
    """Seconds since the epoch."""
    previous_response_id: str | None
    """The response really continued, also when a session's name or a resent history led to it."""
    service_tier: str = "default"
    """The tier in use, which may differ from the one asked for."""
    temperature: float = 1.0
    top_p: float = 1.0
    max_output_tokens: int | None = None

    def wire(
        self,
        *,
        status: ResponseStatus,
        output: Sequence[dict[str, Any]] = (),
        usage: dict[str, Any] | None = None,
        incomplete_reason: IncompleteReason | None = None,
        error: tuple[FailureCode, str] | None = None,
        completed_at: int | None = None,
        keepwarm: dict[str, Any] | None = None,
        cache_diagnostics: dict[str, Any] | None = None,
    ) -> dict[str, Any]:
        """The object as one event carries it.

        Args:
            output: final items in order (``Item.to_wire()``).
            usage: from ``usage()``; null until the response is terminal.
            incomplete_reason: None for one that was cancelled, for which the published types
                have no reason.
            error: code and message of a failed response.
            keepwarm: vendor object; left out when None.
            cache_diagnostics: left out when None.
        """
        wire = self._echo()
        wire |= {
            "status": status,
            "output": list(output),
            "usage": usage,
            "incomplete_details": _incomplete_details(status, incomplete_reason),
            "error": None if error is None else failure(*error),
            "completed_at": completed_at,
        }
        if cache_diagnostics is not None:
            wire["prompt_cache_diagnostics"] = cache_diagnostics
        if keepwarm is not None:
            wire["keepwarm"] = keepwarm
        return wire

    def _echo(self) -> dict[str, Any]:
        request = self.request
        echo: dict[str, Any] = {
            "id": self.id,
            "object": "response",
            "created_at": self.created_at,
            "status": None,
            "error": None,
            "incomplete_details": None,
            "background": request.background,
            "instructions": request.instructions,
            "max_output_tokens": self.max_output_tokens,
            "max_tool_calls": request.max_tool_calls,
            "metadata": request.metadata,
            "model": self.model,
            "output": [],
            "parallel_tool_calls": request.parallel_tool_calls,
            "previous_response_id": self.previous_response_id,
            "prompt_cache_key": request.prompt_cache_key,
            "prompt_cache_retention": request.prompt_cache_retention,
            "reasoning": {"effort": request.reasoning.effort, "summary": request.reasoning.summary},
            "safety_identifier": request.safety_identifier,
            "service_tier": self.service_tier,
            "store": request.store,
            "temperature": self.temperature,
            "text": {"format": request.text_format.to_wire()},
            "tool_choice": request.tool_choice.to_wire(request.tools),
            "tools": wire_tools(request.tools),
            "top_logprobs": request.top_logprobs or 0,
            "top_p": self.top_p,
            "truncation": request.truncation,
            "user": request.user,
        }
        if request.conversation is not None:
            echo["conversation"] = {"id": request.conversation}
        if request.verbosity is not None:
            echo["text"]["verbosity"] = request.verbosity
        if (options := request.prompt_cache_options) is not None:
            echo["prompt_cache_options"] = {
                "mode": options.mode,
                "ttl": options.ttl,
                "comparison_response_id": options.comparison_response_id,
            }
        return echo


def failure(code: FailureCode, message: str) -> dict[str, Any]:
    """The ``error`` of a failed response. The published one has no ``type``, without which the
    AI SDK cannot read it."""
    _, kind = FAILURES.get(code, (500, "server_error"))
    return {"type": kind, "code": code, "message": message}


def _incomplete_details(
    status: ResponseStatus, reason: IncompleteReason | None
) -> dict[str, Any] | None:
    if status != "incomplete":
        return None
    return {} if reason is None else {"reason": reason}


def usage(
    *,
    input_tokens: int,
    cached_tokens: int,
    cache_write_tokens: int,
    output_tokens: int,
    reasoning_tokens: int = 0,
) -> dict[str, Any]:
    """The ``usage`` object; all six numbers are required by current clients."""
    return {
        "input_tokens": input_tokens,
        "input_tokens_details": {
            "cached_tokens": cached_tokens,
            "cache_write_tokens": cache_write_tokens,
        },
        "output_tokens": output_tokens,
        "output_tokens_details": {"reasoning_tokens": reasoning_tokens},
        "total_tokens": input_tokens + output_tokens,
    }


def logprob(
    token: bytes, logprob_: float, top: Sequence[tuple[bytes, float]] = ()
) -> dict[str, Any]:
    """One token's entry in ``logprobs``; bytes that are no UTF-8 show as U+FFFD in ``token``."""
    return _logprob_entry(token, logprob_) | {
        "top_logprobs": [_logprob_entry(other, value) for other, value in top]
    }


def _logprob_entry(token: bytes, value: float) -> dict[str, Any]:
    return {"token": token.decode("utf-8", "replace"), "bytes": list(token), "logprob": value}
