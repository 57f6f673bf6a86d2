"""Why a grammar was refused, in words a client can act on.

The library reports what it does not support as prose with a dump of the grammar. Here that
becomes one line, the JSON Schema keyword at fault and the place of that keyword.

Knows JSON Schema keywords and the wording of llguidance. Compiles nothing.
"""

import json
import re
from dataclasses import dataclass

from runtime.grammar.schema_places import Place, widest_place
from runtime.grammar.schemas import json_blocks, subschemas
from tools_api.schema_dialect import REFUSED

_PREFIX = "failed to compile JSON schema: "
_LINE = re.compile(r"at (\d+)\(\d+\): ")
_PANIC = re.compile(
    r"\bpanick?(?:ed)?(?: at\b|:)|\bassertion .*failed|called `(?:Option|Result)::|\.rs:\d+|"
    r"internal error: entered unreachable",
    re.IGNORECASE,
)
"""The library's words when it is at fault itself: the innards of its build machine."""
BROKEN = "the grammar compiler cannot cope with it"
TOO_WIDE = "it has too many optional properties or alternatives in one place to keep track of"
TOO_COSTLY = (
    "following it takes too many steps: a pattern, a length, a multiple or a list of names in it "
    "can be read in too many ways"
)
TOO_LARGE = "it is too large to be enforced"
DEAD_END = "it allows an output to begin that nothing may follow"
STUCK = "under its grammar nothing may follow what was written"
_STOPPED = (
    (re.compile(r"Current row has|Too many items"), TOO_WIDE),
    (re.compile(r"too many (?:expressions|states)|fuel exhausted|precomputation"), TOO_COSTLY),
    (re.compile(r"DNF too large"), TOO_COSTLY),
    (re.compile(r"schema too large|\) too big"), TOO_LARGE),
)
"""The bounds that stop the library, and our words for each."""
_MAX_MESSAGE_CHARS = 300


class GrammarRefused(Exception):
    """The grammar cannot be enforced; nothing ran. The client changes its schema."""

    def __init__(
        self,
        message: str,
        keyword: str | None = None,
        path: tuple[str | int, ...] | None = None,
        block: int | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.keyword = keyword
        """JSON Schema keyword that is not supported or contradicts itself, if one is named."""
        self.path = path
        """Keys and indices from the root of the schema to the keyword, itself included."""
        self.block = block
        """Which ``%json`` block of the grammar holds that schema, counted from 0."""

    @property
    def reason(self) -> str:
        """The message with the keyword in it."""
        if self.keyword is None or self.keyword in self.message:
            return self.message
        return f"{self.keyword}: {self.message}"


@dataclass(frozen=True, slots=True)
class _Rule:
    """A wording of the library and the keyword it is about. Group 1 of the wording, if any,
    is the keyword when ``keyword`` is None, else the keyword's value."""

    wording: re.Pattern[str]
    keyword: str | None


_UNIMPLEMENTED = re.compile(r'Unimplemented keys: (\["[^\]]+"\])')
_RULES = (
    _Rule(re.compile(r"oneOf constraints are not supported"), "oneOf"),
    _Rule(re.compile(r"Unknown format: (.+)"), "format"),
    _Rule(re.compile(r"patternProperty regexes"), "patternProperties"),
    _Rule(re.compile(r"min/maxProperties"), "minProperties"),
    _Rule(re.compile(r"Unsatisfiable schema: (\w+) \("), None),
    _Rule(re.compile(r"Invalid type: (.+)"), "type"),
    _Rule(re.compile(r"^type must be"), "type"),
    _Rule(re.compile(r"regex parse error|regex"), "pattern"),
    _Rule(re.compile(r"Resource '(.+?)' is not present"), "$ref"),
    _Rule(re.compile(r"circular references"), "$ref"),
    _Rule(re.compile(r"\$ref|\$recursiveRef"), "$ref"),
)


def stopped(error: str) -> str:
    """Why the library's matcher gave up in the middle of an output."""
    return _bound(error) or STUCK


def bounded(message: str, lark: str, place: Place | None = None) -> GrammarRefused:
    """The refusal of a grammar that stopped at one of the library's bounds.

    Args:
        message: what is said of it.
        place: where an output was when it stopped, if that is known.
    """
    wide = widest_place(lark) if message == TOO_WIDE else None
    place = wide or place
    if place is None:
        return GrammarRefused(message)
    keyword = None if wide is None else str(wide.path[-1])
    return GrammarRefused(message, keyword, place.path, place.block)


def _bound(error: str) -> str | None:
    """Our words for an error, if it is about one of the library's bounds."""
    text = error.split("\n   1 | ", 1)[0]
    if _PANIC.search(text):
        return BROKEN
    return next((message for wording, message in _STOPPED if wording.search(text)), None)


def refusal(error: str, lark: str) -> GrammarRefused:
    """The refusal for the library's ``error`` about the grammar ``lark``."""
    bound = _bound(error)
    if bound is not None:
        line = _LINE.match(error)
        block = None if line is None else _block_at(lark, int(line[1]))
        return bounded(bound, lark, None if block is None else Place(block=block, path=()))
    start = error.find(_PREFIX)
    text = error[start + len(_PREFIX) :] if start >= 0 else error
    message = _one_line(text)
    if message.startswith("NoExtension"):
        message = "no text satisfies it"
    if start < 0:
        return GrammarRefused(message)
    line = _LINE.match(error)
    block = None if line is None else _block_at(lark, int(line[1]))
    first_line = text.split("\n", 1)[0]
    unimplemented = _UNIMPLEMENTED.search(first_line)
    if unimplemented is not None:
        name, message = _unsupported(json.loads(unimplemented[1]))
        block, path = _find(lark, block, name, None) or (block, None)
        return GrammarRefused(message, name, path, block)
    for rule in _RULES:
        found = rule.wording.search(first_line)
        if found is None:
            continue
        value = found[1].strip() if rule.wording.groups else None
        keyword = rule.keyword or value
        assert keyword is not None
        place = _find(lark, block, keyword, value if rule.keyword else None)
        block, path = place or (block, None)
        return GrammarRefused(message, keyword, path, block)
    return GrammarRefused(message, block=block)


def _unsupported(keywords: list[str]) -> tuple[str, str]:
    """Which of the keywords that the library does not know is to blame, and what to say of it."""
    keyword = next((name for name in keywords if name in REFUSED), keywords[0])
    reason = f": {REFUSED[keyword]}" if keyword in REFUSED else ""
    return keyword, f"'{keyword}' is not supported{reason}"


def _one_line(text: str) -> str:
    """The message without the dump of the grammar behind it."""
    text = re.split(r"\n\s*\d+ \| |\n<non-verbose/>|\n<state>", text, maxsplit=1)[0]
    cause = re.search(r"^regex parse error:.*?^error: (.*)", text, re.DOTALL | re.MULTILINE)
    if cause is not None:
        text = f"regex: {cause[1]}"
    text = " ".join(text.split())
    return text if len(text) <= _MAX_MESSAGE_CHARS else text[: _MAX_MESSAGE_CHARS - 3] + "..."


def _block_at(lark: str, line: int) -> int | None:
    """Number of the block in that line of the grammar."""
    lines = [number for number, _ in json_blocks(lark)]
    return lines.index(line) if line in lines else None


def _find(
    lark: str, block: int | None, keyword: str, value: str | None
) -> tuple[int, tuple[str | int, ...]] | None:
    """The first place of the keyword (with that value, if one is known): number of the
    block, that one if it is known, and path."""
    for number, (_, schema) in enumerate(json_blocks(lark)):
        if block is not None and number != block:
            continue
        for path, node in subschemas(schema):
            if keyword in node and (value is None or str(node[keyword]) == value):
                return number, (*path, keyword)
    return None
