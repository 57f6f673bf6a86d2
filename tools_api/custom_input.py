"""Input of a custom tool: one text, free or bound by a grammar.

The model writes free text as a JSON string, ``{"input": "..."}``, and text under a grammar as
it is, behind the call's object; ``InputText`` turns the former into the latter while it
arrives. ``check_definition`` bounds a client's grammar before it becomes part of a larger one
(``tools_api.grammar``). Whether a grammar compiles is known when it is compiled.

Always true: the text that ``InputText`` gives does not depend on how the JSON was split, and
holds no lone surrogate.
"""

import re
from dataclasses import dataclass
from typing import Any, Literal

from tools_api import errors
from tools_api.json_fields import Fields, join
from tools_api.limits import Limits

Kind = Literal["text", "grammar"]
Syntax = Literal["lark", "regex"]
INPUT_SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {"input": {"type": "string"}},
    "required": ["input"],
    "additionalProperties": False,
}
"""Arguments of a custom tool without a grammar."""
_OPENING = re.compile(r'\s*\{\s*"input"\s*:\s*"')
_ESCAPES = {"b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t"}
_REPLACEMENT = "\ufffd"
_LITERALS = re.compile(r'"(?:\\.|[^"\\\n])*"|/(?!/)(?:\\.|[^/\\\n])+/|(?:#|//)[^\n]*')
_DIRECTIVES = frozenset({"import", "ignore"})


@dataclass(frozen=True, slots=True, kw_only=True)
class CustomFormat:
    """``format`` of a custom tool: free text, or text that a grammar binds."""

    type: Kind = "text"
    syntax: Syntax | None = None
    definition: str | None = None

    def to_wire(self) -> dict[str, Any]:
        """The format as responses echo it."""
        if self.type == "text":
            return {"type": "text"}
        return {"type": "grammar", "syntax": self.syntax, "definition": self.definition}


def parse_format(raw: object, path: str, limits: Limits) -> CustomFormat:
    """Read ``format``; absent is free text.

    Raises:
        ApiError: with the path of the first fault.
    """
    if raw is None:
        return CustomFormat()
    fields = Fields(raw, path)
    format_ = CustomFormat(
        type=fields.choice("type", Kind, absent=True) or "text",
        syntax=fields.choice("syntax", Syntax, absent=True),
        definition=fields.text("definition", least=1, absent=True),
    )
    if format_.type == "text":
        return CustomFormat()
    if format_.syntax is None:
        raise errors.missing_parameter(join(path, "syntax"))
    if format_.definition is None:
        raise errors.missing_parameter(join(path, "definition"))
    at = join(path, "definition")
    if len(format_.definition.encode("utf-8", "replace")) > limits.max_grammar_bytes:
        raise errors.invalid_value(at, f"longer than {limits.max_grammar_bytes} bytes")
    if format_.syntax == "lark":
        check_definition(format_.definition, at)
    elif "\n" in format_.definition:
        raise errors.invalid_value(at, "a regular expression stands on one line")
    return format_


def check_definition(lark: str, path: str) -> None:
    """Refuse what a client's grammar could do beyond describing text: name special tokens of
    the model, close the rule it stands in, or use directives other than import and ignore.

    Raises:
        ApiError: ``invalid_value``.
    """
    bare = _LITERALS.sub(" ", lark)
    for directive in re.findall(r"%\s*(\w+)", bare):
        if directive not in _DIRECTIVES:
            raise errors.invalid_value(path, f"the directive '%{directive[:40]}' is not allowed")
    if "<" in bare or ">" in bare.replace("->", " "):
        raise errors.invalid_value(path, "special tokens are not allowed")
    depth = 0
    for brace in re.findall(r"[{}]", bare):
        depth += 1 if brace == "{" else -1
        if depth < 0:
            break
    if depth:
        raise errors.invalid_value(path, "its braces do not match")


class InputText:
    """Reads ``{"input": "..."}`` as it is written and gives the string's text."""

    def __init__(self) -> None:
        self._held = ""
        """The opening, as far as it has come."""
        self._string: StringText | None = None

    def feed(self, json_text: str) -> str:
        """Read on; return the text that became certain."""
        if self._string is None:
            json_text = self._held + json_text
            opening = _OPENING.match(json_text)
            if opening is None:
                self._held = json_text
                return ""
            self._string, json_text = StringText(), json_text[opening.end() :]
        return self._string.feed(json_text)[0]


class StringText:
    """Reads one JSON string as it is written, from behind the quote that opens it."""

    def __init__(self) -> None:
        self._held = ""
        """The beginning of an escape."""
        self.closed = False

    def feed(self, json_text: str) -> tuple[str, str]:
        """Read on; return the text that became certain, and what stands behind the string."""
        if self.closed:
            return "", json_text
        text, self._held = self._held + json_text, ""
        out: list[str] = []
        at = 0
        while at < len(text):
            special = _next_special(text, at)
            out.append(text[at:special])
            at = special
            if at == len(text):
                break
            if text[at] == '"':
                self.closed = True
                return "".join(out), text[at + 1 :]
            length, char = _escape(text, at)
            if length == 0:
                self._held = text[at:]
                break
            out.append(char)
            at += length
        return "".join(out), ""


def _next_special(text: str, start: int) -> int:
    """Where the next quote or backslash stands, or the end."""
    found = [at for at in (text.find('"', start), text.find("\\", start)) if at >= 0]
    return min(found, default=len(text))


def _escape(text: str, at: int) -> tuple[int, str]:
    """Length and meaning of the escape at ``at``; length 0 if more of it has to come."""
    kind = text[at + 1 : at + 2]
    if not kind:
        return 0, ""
    if kind != "u":
        return 2, _ESCAPES.get(kind, kind)
    if len(text) < at + 6:
        return 0, ""
    unit = _code_unit(text, at)
    if not 0xD800 <= unit < 0xE000:
        return 6, chr(unit)
    if unit >= 0xDC00:
        return 6, _REPLACEMENT
    following = text[at + 6 : at + 8]
    if following != "\\u"[: len(following)]:
        return 6, _REPLACEMENT
    if len(text) < at + 12:
        return 0, ""
    low = _code_unit(text, at + 6)
    if not 0xDC00 <= low < 0xE000:
        return 6, _REPLACEMENT
    return 12, chr(0x10000 + ((unit - 0xD800) << 10) + (low - 0xDC00))


def _code_unit(text: str, at: int) -> int:
    """The number of a ``\\uXXXX`` escape; digits that are none count as a lone surrogate."""
    digits = text[at + 2 : at + 6]
    return int(digits, 16) if re.fullmatch("[0-9a-fA-F]{4}", digits) else 0xD800
