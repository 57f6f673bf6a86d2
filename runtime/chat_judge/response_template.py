"""Ways of writing calls that a folder's ``response_template`` tells.

A response template says how a model's output becomes a message (``tokenizer_config.json``, since
transformers 5.13): which literals or regular expressions open and close calls, and what stands
between. Literals alone are read: a regular expression from a stranger's file can take for ever.
What it tells counts only where the chat template is seen to write calls so
(``runtime.chat_judge.call_match``).

Knows the file's shape. Runs nothing.

Always true: whatever the file holds, there is an answer, and nothing is raised.
"""

from collections.abc import Iterator
from typing import Any

from tools_api.chat_generic import Learned

_VERSION = 1
_MOST_LITERALS = 8
_KEYS = ("arguments", "parameters")
"""Under which a call's object has its arguments where nothing says it."""


def told_calls(response_template: Any) -> tuple[Learned, ...]:
    """The ways of writing calls that a response template tells by literals.

    Args:
        response_template: as parsed from JSON, whatever it is.

    Returns:
        Ways that may need special tokens which the tokenizer lacks
        (``tools_api.chat_generic.learned_syntax``); white space around a literal is left out.
    """
    field = _of_calls(response_template)
    if field is None:
        return ()
    openers, closers = _literals(field, "open"), _literals(field, "close")
    return tuple(
        Learned(format=kind, gaps={**own, "opener": opener, **closing})
        for kind, own in _contents(field)
        for opener in openers
        for closing in (*({"closer": closer} for closer in closers), {})
    )


def _of_calls(response_template: Any) -> dict[str, Any] | None:
    if not isinstance(response_template, dict) or response_template.get("version", 1) != _VERSION:
        return None
    fields = response_template.get("fields")
    field = fields.get("tool_calls") if isinstance(fields, dict) else None
    return field if isinstance(field, dict) else None


def _literals(field: dict[str, Any], name: str) -> list[str]:
    value = field.get(name)
    texts = value if isinstance(value, list) else [value]
    return [text.strip() for text in texts[:_MOST_LITERALS] if isinstance(text, str)]


def _contents(field: dict[str, Any]) -> Iterator[tuple[str, dict[str, str]]]:
    """Kinds of ``tools_api.chat_generic.CALL_KINDS``, each with fields of its own."""
    match field.get("content"):
        case "json":
            for key in _argument_keys(field.get("transform")):
                yield "json", {"arguments_key": key}
                yield "json list", {"arguments_key": key}
        case "python-call-list":
            yield "python list", {}


def _argument_keys(transform: Any) -> tuple[str, ...]:
    function = transform.get("function") if isinstance(transform, dict) else None
    told = function.get("arguments") if isinstance(function, dict) else None
    if not isinstance(told, str):
        return _KEYS
    return (told.strip("{}").removeprefix("content."),)
