"""The form of one log record as a line: text for people, or a JSON object for machines.

A record's fields are what a call of ``log`` gives as ``extra={"fields": {...}}``, else the
arguments behind ``name=%s`` in its format. Names of fields thus stand in our code, never in what
somebody sent. Knows no handler and no file.

Always true: in JSON a record is one line, whatever stands in it, a value keeps its type, and no
value can look like another field; in text a record is one line, but for its traceback, and that
holds of the fields given as ``extra`` and of texts behind ``name=%s``.
"""

import json
import logging
import math
import re
from collections.abc import Mapping
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any, Literal

LogFormat = Literal["text", "json"]

_PLACEHOLDER = re.compile(r"(?:(\w+)=)?%(?:%|[-#0 +]*[\d*]*(?:\.[\d*]+)?[a-zA-Z])")
_NAMED = re.compile(r"\s*\b\w+=%[-#0 +]*\d*(?:\.\d+)?[a-zA-Z]")
_BARE = re.compile(r"[^\s=\"']+")
"""The values in text that may look so without quotes."""
_OWN = frozenset({"time", "level", "logger", "message", "exception", "process"})


def fields_of(record: logging.LogRecord) -> dict[str, Any]:
    """A record's fields by name."""
    given = getattr(record, "fields", None)
    if isinstance(given, Mapping):
        return dict(given)
    if not isinstance(record.args, tuple):
        return {}
    return {
        name: value
        for name, value in zip(_names(str(record.msg)), record.args, strict=False)
        if name is not None
    }


class TextLines(logging.Formatter):
    """Time, level and message, then the fields given beside it as ``name=value``."""

    def formatMessage(self, record: logging.LogRecord) -> str:
        record.message = _one_line(_filled(record))
        line = super().formatMessage(record)
        given = getattr(record, "fields", None)
        if not isinstance(given, Mapping):
            return line
        return " ".join([line, *(f"{name}={_as_text(value)}" for name, value in given.items())])


class JsonLines(logging.Formatter):
    """An object of ``time``, ``level``, ``logger``, ``message`` and the record's fields, and
    ``exception`` with a traceback where there is one."""

    def __init__(self, process: str) -> None:
        """``process`` is told as a field of that name: the server's lines and its engine's go the
        same way."""
        super().__init__()
        self._process = process

    def format(self, record: logging.LogRecord) -> str:
        fields = {name: _as_json(value) for name, value in fields_of(record).items()}
        told: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "process": self._process,
            "message": _message(record),
        }
        told |= {f"{name}_" if name in _OWN else name: value for name, value in fields.items()}
        if record.exc_info:
            told["exception"] = self.formatException(record.exc_info)
        return json.dumps(told, allow_nan=False)


@lru_cache(maxsize=1024)
def _names(format: str) -> tuple[str | None, ...]:
    """The name in front of every placeholder of a format."""
    return tuple(found[1] for found in _PLACEHOLDER.finditer(format) if not found[0].endswith("%%"))


@lru_cache(maxsize=1024)
def _text_names(format: str) -> tuple[str | None, ...]:
    """The names of arguments that are put in as text as they are, None for the other
    placeholders."""
    found = [match for match in _PLACEHOLDER.finditer(format) if not match[0].endswith("%%")]
    return tuple(match[1] if match[0].endswith("=%s") else None for match in found)


def _message(record: logging.LogRecord) -> str:
    """The words of a record without those arguments that are told as fields. A format in which
    an argument has no name is filled in whole."""
    format = str(record.msg)
    names = _names(format)
    if record.args and names and all(names):
        return _NAMED.sub("", format).strip().replace("%%", "%")
    return record.getMessage()


def _filled(record: logging.LogRecord) -> str:
    """A record's message, with quotes round what might be taken for more than a value."""
    names = _text_names(str(record.msg))
    if not isinstance(record.args, tuple) or not any(names):
        return record.getMessage()
    quoted = [
        _as_text(value) if name is not None and not isinstance(value, int | float) else value
        for name, value in zip(names, record.args, strict=False)
    ]
    return str(record.msg) % (*quoted, *record.args[len(quoted) :])


def _one_line(text: str) -> str:
    return text if text.isprintable() else "".join(map(_printable, text))


def _printable(char: str) -> str:
    return char if char.isprintable() else char.encode("unicode_escape").decode()


def _as_json(value: object) -> object:
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, Mapping):
        return {str(name): _as_json(part) for name, part in value.items()}
    if isinstance(value, list | tuple):
        return [_as_json(part) for part in value]
    return str(value)


def _as_text(value: object) -> str:
    if value is None:
        return "-"
    text = str(value)
    return text if _BARE.fullmatch(text) and text.isprintable() else json.dumps(text)
