"""Lark text as a grammar collects it: rules by name, each on a line of its own.

Every schema and every special token stands in a rule of its own, so that a refusal can be traced
to the request and names of tokens can be replaced by their ids.

Knows Lark as llguidance reads it. Knows no way of writing calls.

Always true: a name stands for one body.
"""

import json
import re
from typing import Any

from tools_api.exact_json import written
from tools_api.name_spellings import ONE_SPELLING, Spellings, spellings
from tools_api.schema_dialect import rewrite_schema

TAGS = "// tags: "
"""Begins the comment in which a grammar tells how its calls close (``runtime.grammar.framing``)."""
_MAX_STRINGS = 256
Tag = tuple[tuple[str, bool], ...]
"""Texts, and names of special tokens."""
JSON_STYLE = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}


class LarkRules:
    """Collects the rules of a Lark grammar."""

    def __init__(self, *, lenient: bool) -> None:
        """``lenient``: leave out what would be refused (``schema_dialect.REFUSED``)."""
        self._lenient = lenient
        # Alternatives that could hold together are checked when the output is finished.
        self._style: dict[str, Any] = JSON_STYLE | {"coerce_one_of": True}
        if lenient:
            self._style["lenient"] = True
        self._rules: dict[str, str] = {}
        self._specials: dict[str, str] = {}
        self._terminals: dict[str, str] = {}
        self._closing: dict[Tag, None] = {}
        self._opening: dict[Tag, None] = {}
        self._strings: list[dict[str, Any]] = []

    def closes(self, tag: Tag) -> None:
        """Calls have a tag that closes a value or a call; those of values come first."""
        self._closing.setdefault(tag)

    def opens(self, tag: Tag) -> None:
        """Calls have a tag that something begins with; what is needed comes first."""
        self._opening.setdefault(tag)

    def has_string(self, schema: dict[str, Any]) -> None:
        """Such strings are written as they are."""
        if len(self._strings) < _MAX_STRINGS:
            self._strings.append(schema)

    def rule(self, name: str, body: str) -> str:
        """Write a rule down; gives its name."""
        self._rules[name] = body
        return name

    def in_dialect(self, schema: dict[str, Any]) -> dict[str, Any]:
        """A client's schema as the library takes it."""
        return rewrite_schema(schema, lenient=self._lenient).schema

    def json_rule(self, name: str, schema: dict[str, Any]) -> str:
        """A rule for the JSON of a client's schema."""
        return self.dialect_rule(name, self.in_dialect(schema))

    def dialect_rule(self, name: str, schema: dict[str, Any]) -> str:
        """A rule for the JSON of a schema that the library takes as it is."""
        style = self._style
        if spellings(schema) is Spellings.ONE:
            style = style | {"json_allowed_escapes": ONE_SPELLING}
        bound = schema | {"x-guidance": style}
        return self.rule(name, "%json " + written(bound, ensure_ascii=True))

    def special(self, token: str) -> str:
        """The rule of a special token."""
        if token not in self._specials:
            name = f"special_{len(self._specials)}"
            self._specials[token] = self.rule(name, token)
        return self._specials[token]

    def terminal(self, body: str, prefix: str = "TEXT") -> str:
        """The terminal with that body."""
        if body not in self._terminals:
            name = f"{prefix}_{len(self._terminals)}"
            self._terminals[body] = self.rule(name, body)
        return self._terminals[body]

    def text(self, start: str) -> str:
        """The grammar that begins with ``start``."""
        rules = {"start": start} | self._rules
        text = "".join(f"{name}: {body}\n" for name, body in rules.items())
        if not self._closing:
            return text
        tags: dict[str, Any] = {"closing": [*self._closing], "opening": [*self._opening]}
        return f"{text}{TAGS}{written(tags | {'strings': self._strings}, ensure_ascii=True)}\n"


def literal(text: str) -> str:
    """A text that is written as it is; nothing where there is none."""
    return json.dumps(text) if text else ""


def containing(text: str) -> str:
    """A regular expression for whatever has ``text`` in it."""
    return f"/(?s:.*){regex_escaped(text)}(?s:.*)/"


def regex_escaped(text: str) -> str:
    """A text as a part of a regular expression between slashes."""
    return slashed(re.escape(text))


def slashed(pattern: str) -> str:
    """A regular expression as it stands between slashes, on one line."""
    pattern = re.sub(r"(?<!\\)((?:\\\\)*)/", r"\1\\/", pattern)
    return pattern.replace("\\\n", "\\n").replace("\n", "\\n").replace("\r", "\\r")
