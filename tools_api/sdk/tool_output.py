"""A tool's result, as text that a model reads: JSON where it is no text, cut where it is long.

Always true: whatever a tool returns becomes text of at most so many bytes of UTF-8, and where
something was left out the text says how much.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import ValidationError
from pydantic_core import PydanticSerializationError, to_json, to_jsonable_python

from tools_api.exact_json import dumps, whole_text

_NOTE = "\n[... {} bytes left out here by the tool's max_output_bytes ...]\n"


def output_text(value: object) -> str:
    """``value`` as text: a string as it is, anything else as JSON.

    Raises:
        ValueError: it contains itself, or nothing of it can be written.
    """
    if isinstance(value, str):
        return whole_text(value)
    try:
        return to_json(value, serialize_unknown=True, bytes_mode="utf8").decode()
    except PydanticSerializationError as error:
        if "surrogates" not in str(error):
            raise
    plain = to_jsonable_python(_whole_keys(value), serialize_unknown=True, bytes_mode="utf8")
    return dumps(plain).decode()


def error_text(error: BaseException) -> str:
    """The text that a model reads of a tool that raised, or of arguments that do not fit."""
    if isinstance(error, ValidationError):
        return _json({"error": "the arguments do not fit", "faults": list(faults(error))})
    return _json({"error": f"{type(error).__name__}: {error}"})


def refusal_text(reason: str) -> str:
    """The text that a model reads of a call that was not run."""
    return _json({"error": reason})


def faults(error: ValidationError) -> tuple[str, ...]:
    """One sentence for each thing that does not fit."""
    return tuple(
        f"{'.'.join(map(str, fault['loc'])) or 'arguments'}: {fault['msg']}"
        for fault in error.errors(include_url=False)
    )


def cut(text: str, max_bytes: int) -> tuple[str, int]:
    """``text`` in at most ``max_bytes`` bytes, its head and its tail with a note between them,
    and how many bytes were left out."""
    if len(text) <= max_bytes // 4:
        return text, 0
    encoded = text.encode("utf-8", "replace")
    if len(encoded) <= max_bytes:
        return text, 0
    room = max_bytes - len(_NOTE.format(len(encoded)).encode())
    head = encoded[: room - room // 3].decode("utf-8", "ignore")
    tail = encoded[len(encoded) - room // 3 :].decode("utf-8", "ignore")
    left_out = len(encoded) - len(head.encode()) - len(tail.encode())
    return head + _NOTE.format(left_out) + tail, left_out


def _whole_keys(value: object) -> object:
    """``value``; pydantic has whole texts for any key."""
    if isinstance(value, dict):
        return {
            whole_text(key) if isinstance(key, str) else key: _whole_keys(inner)
            for key, inner in value.items()
        }
    return list(map(_whole_keys, value)) if isinstance(value, list | tuple) else value


def _json(value: object) -> str:
    return dumps(value).decode()


def shortened(output: Any, max_bytes: int) -> Any:
    """A call's output on the wire with its text cut to ``max_bytes``, or each text of its parts;
    what else there is stays."""
    if isinstance(output, str):
        return cut(output, max_bytes)[0]
    if not isinstance(output, Sequence):
        return output
    return [
        {**part, "text": cut(part["text"], max_bytes)[0]}
        if isinstance(part, Mapping) and isinstance(part.get("text"), str)
        else part
        for part in output
    ]
