"""Warnings about fields of a ``response.create`` that are read and have another effect elsewhere.

Each published field of a request either works, or is refused by ``tools_api.request_reading`` and
``sessions.turns.planning``, or gives one of the sentences below, which the turn carries to
``response.keepwarm.warnings``. docs/protocol.md has the same three groups, field by field, and
a test holds both to the published types.

Always true: a warning begins with the path of its field, or says that fields are unknown, and
quotes a bounded part of what the client sent.
"""

from collections.abc import Iterable
from typing import Any

from tools_api.errors import quoted
from tools_api.noted_items import TOLD
from tools_api.tools import searches_here, tool_warnings

WORKING = frozenset(
    {"type", "stream_id", "keepwarm", "model", "input", "instructions", "previous_response_id"}
    | {"store", "generate", "stream", "tools", "tool_choice", "parallel_tool_calls", "text"}
    | {"max_output_tokens", "temperature", "top_p", "top_logprobs", "truncation", "metadata"}
    | {"include", "reasoning", "service_tier", "prompt_cache_key", "prompt_cache_options"}
    | {"safety_identifier", "user", "stream_options", "context_management", "background"}
    | {"conversation", "max_tool_calls"}
)
"""Fields that do what they say, ``background`` over HTTP; of some a part does not, see below."""
REFUSED = frozenset({"prompt"})
"""Fields that are refused."""
WITHOUT_EFFECT = {
    "access_programs": "there are none here",
    "background_options": "a response in the background runs like any other",
    "image": "no images are read here",
    "moderation": "nothing is moderated here",
    "prompt_cache_retention": "how long KV is kept does not depend on it",
}
"""Fields without effect, and why."""
UNPUBLISHED = frozenset({"client_metadata", "keepwarm:compact", "keepwarm:items"})
"""Fields that clients send for their own accounts, and those that dialects add; nothing is
expected of them."""
_INCLUDED = ("message.output_text.logprobs", "reasoning.encrypted_content")
_PARTS: tuple[tuple[str, str, tuple[object, ...], str], ...] = (
    ("reasoning", "summary", (), "no summaries are written; the output has the reasoning itself"),
    ("reasoning", "generate_summary", (), "no summaries are written"),
    ("reasoning", "context", ("auto",), "reasoning stays in the context as written"),
    ("reasoning", "mode", ("standard",), "there is one mode here"),
    ("text", "verbosity", (), "it is echoed, and the model is told nothing"),
    ("prompt_cache_options", "mode", ("implicit",), "every prefix is cached by itself"),
    ("prompt_cache_options", "ttl", (), "KV is kept as long as there is room, by its use"),
    ("stream_options", "include_obfuscation", (False,), "events are not padded"),
    ("stream_options", "reasoning_summary_delivery", (), "no summaries are written"),
)
"""Field, key in it, values that need no warning, and why the others do nothing."""
_MAX_NAMED = 8


def request_warnings(raw: dict[str, Any]) -> tuple[str, ...]:
    """The warnings for a request without nulls that was read without a fault."""
    warnings = [*tool_warnings(raw.get("tools")), *_noted_warnings(raw.get("input"))]
    warnings += [
        f"{field}: no effect, {reason}" for field, reason in WITHOUT_EFFECT.items() if field in raw
    ]
    for field, key, harmless, reason in _PARTS:
        part = raw.get(field)
        value = part.get(key) if isinstance(part, dict) else None
        if value is not None and value not in harmless:
            warnings.append(f"{field}.{key}: no effect, {reason}")
    if "max_tool_calls" in raw and not searches_here(raw.get("tools")):
        warnings.append("max_tool_calls: no effect, it counts built-in tools, and none runs here")
    included = [value for value in raw.get("include", ()) if value not in _INCLUDED]
    warnings += [
        f"include: no effect, there is no {quoted(value)} here" for value in included[:_MAX_NAMED]
    ]
    if unknown := sorted(raw.keys() - _KNOWN):
        names = ", ".join(map(quoted, unknown[:_MAX_NAMED]))
        warnings.append(f"unknown fields are ignored: {names}")
    return tuple(warnings)


_KNOWN = WORKING | REFUSED | WITHOUT_EFFECT.keys() | UNPUBLISHED


def _noted_warnings(items: object) -> Iterable[str]:
    """A warning if some of these items, as they were sent, are notes to the model."""
    if not isinstance(items, list):
        return
    kinds = {
        kind
        for item in items
        if isinstance(item, dict) and isinstance(kind := item.get("type"), str) and kind in TOLD
    }
    if kinds:
        yield (
            f"input: what ran elsewhere is read as a note among what was said: "
            f"{', '.join(sorted(kinds))}"
        )
