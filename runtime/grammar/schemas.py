"""The JSON Schemas inside a grammar's text: where they are, and samples of what they ask.

A grammar embeds schemas as ``%json {...}``. Nothing is validated here; a schema that makes
no sense gives no samples.
"""

import functools
import json
import re
from collections.abc import Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass
from re import _constants as op  # type: ignore[attr-defined]
from re import _parser as regex_parser  # type: ignore[attr-defined]
from typing import Any

from tools_api import exact_numbers

Path = tuple[str | int, ...]

_BLOCK = re.compile(r"%json\s*")
_RULE_NAME = re.compile(r"\w+: ")
_DECODER = json.JSONDecoder(parse_float=exact_numbers.number)
_NOT_SCHEMAS = frozenset({"const", "enum", "default", "examples", "x-guidance"})
_MAPS = frozenset({"properties", "patternProperties", "$defs", "definitions", "dependentSchemas"})
_MAX_SAMPLE_CHARS = 64
_MAX_SAMPLES = 64
_MAX_NAMES = 256
_MAX_KNOWN_GRAMMARS = 4
_MAX_KNOWN_PATTERNS = 256
_FORMAT_SAMPLES = {
    "date-time": "2000-01-01T00:00:00Z",
    "date": "2000-01-01",
    "time": "00:00:00Z",
    "duration": "P1D",
    "email": "a@b.co",
    "hostname": "a.co",
    "ipv4": "1.1.1.1",
    "ipv6": "::1",
    "uuid": "00000000-0000-4000-8000-000000000000",
    "uri": "a:b",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class JsonBlock:
    """A ``%json`` directive of a grammar's text."""

    number: int
    """Among all of them, from 0."""
    start: int
    end: int
    """``lark[start:end]`` is the directive with its value."""
    schema: Any


def rule_blocks(lark: str) -> Iterator[JsonBlock]:
    """The directives that are the whole of a rule, as ours are."""
    for block in all_blocks(lark):
        line = lark.rfind("\n", 0, block.start) + 1
        if _RULE_NAME.fullmatch(lark, line, block.start):
            yield block


def json_blocks(lark: str) -> Iterator[tuple[int, Any]]:
    """The values of the grammar's ``%json`` directives in order, each with the line (from 1)
    it stands in."""
    for block in all_blocks(lark):
        yield lark.count("\n", 0, block.start) + 1, block.schema


@functools.lru_cache(_MAX_KNOWN_GRAMMARS)
def all_blocks(lark: str) -> Sequence[JsonBlock]:
    """The blocks of all directives. Read once: whoever compiles a grammar looks at its schemas
    several times."""
    blocks: list[JsonBlock] = []
    position = 0
    while (found := _BLOCK.search(lark, position)) is not None:
        try:
            value, position = _DECODER.raw_decode(lark, found.end())
        except (ValueError, RecursionError):
            break
        blocks.append(
            JsonBlock(number=len(blocks), start=found.start(), end=position, schema=value)
        )
    return tuple(blocks)


def subschemas(schema: Any) -> Iterator[tuple[Path, dict[str, Any]]]:
    """Every schema in the document with its path, in document order. Instances inside
    ``const`` or ``enum`` are none, and a property may be called like a keyword."""
    pending: list[tuple[Path, Any, bool]] = [((), schema, True)]
    while pending:
        path, node, is_schema = pending.pop()
        children: list[tuple[str | int, Any, bool]] = []
        if isinstance(node, dict):
            if is_schema:
                yield path, node
            children = [
                (key, value, not is_schema or key not in _MAPS)
                for key, value in node.items()
                if not is_schema or key not in _NOT_SCHEMAS
            ]
        elif isinstance(node, list):
            children = [(index, item, True) for index, item in enumerate(node)]
        pending += [((*path, key), child, flag) for key, child, flag in reversed(children)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Hints:
    """The needs of an output that satisfies the schemas."""

    required: tuple[bytes, ...]
    """Names of required properties as JSON writes them, in order, at most 256."""
    samples: tuple[str, ...]
    """Short strings that match the patterns and formats, as far as they can be told; without
    repetition, about 64 at most."""


def reading_hints(lark: str) -> Generator[None, None, Hints]:
    """The hints in a grammar's schemas. Pauses after each schema: there may be thousands."""
    names: dict[bytes, None] = {}
    samples: dict[str, None] = {}
    for _, block in json_blocks(lark):
        for _, schema in subschemas(block):
            yield
            required = schema.get("required")
            for name in required if isinstance(required, list) else ():
                if isinstance(name, str) and len(names) < _MAX_NAMES:
                    written = json.dumps(name, ensure_ascii=False)[1:-1]
                    names.setdefault(written.encode("utf-8", "replace"))
            if len(samples) < _MAX_SAMPLES:
                samples |= dict.fromkeys(_samples_of(schema))
    return Hints(required=tuple(names), samples=tuple(samples))


def string_sample(schema: dict[str, Any]) -> str | None:
    """A short string that fits a schema's ``pattern``, or else its ``format``; None where that is
    not clear."""
    if isinstance(schema.get("pattern"), str):
        return _pattern_sample(schema["pattern"])
    known = isinstance(schema.get("format"), str)
    return _FORMAT_SAMPLES.get(schema["format"]) if known else None


def _samples_of(schema: dict[str, Any]) -> Iterator[str]:
    properties = schema.get("patternProperties")
    patterns = [schema.get("pattern"), *(properties if isinstance(properties, dict) else ())]
    for pattern in patterns:
        sample = _pattern_sample(pattern) if isinstance(pattern, str) else None
        if sample:
            yield sample
    if isinstance(schema.get("format"), str) and schema["format"] in _FORMAT_SAMPLES:
        yield _FORMAT_SAMPLES[schema["format"]]


@functools.lru_cache(_MAX_KNOWN_PATTERNS)
def _pattern_sample(pattern: str) -> str | None:
    """A short string that the regular expression matches; None where that is not clear."""
    try:
        return _sample(regex_parser.parse(pattern))
    except (re.error, OverflowError, RecursionError, ValueError):
        return None


def _sample(parsed: Iterable[tuple[Any, Any]]) -> str:
    text = "".join(_sample_step(kind, value) for kind, value in parsed)
    if len(text) > _MAX_SAMPLE_CHARS:
        raise ValueError("sample too long")
    return text


def _sample_step(kind: Any, value: Any) -> str:
    if kind is op.LITERAL:
        return chr(value)
    if kind is op.ANY:
        return "a"
    if kind is op.AT:
        return ""
    if kind is op.NOT_LITERAL:
        return "a" if value != ord("a") else "b"
    if kind is op.IN:
        return _sample_class(value)
    if kind is op.SUBPATTERN:
        return _sample(value[3])
    if kind is op.BRANCH:
        return str(min((_sample(branch) for branch in value[1]), key=len))
    if kind in (op.MAX_REPEAT, op.MIN_REPEAT):
        count, _, body = value
        if count > _MAX_SAMPLE_CHARS:
            raise ValueError("sample too long")
        return _sample(body) * int(count)
    raise ValueError(f"no sample for {kind}")


def _sample_class(members: list[tuple[Any, Any]]) -> str:
    """A character of a class, the plainest one that fits."""
    negated = members[0][0] is op.NEGATE
    rest = members[1:] if negated else members
    own: list[str] = [
        chr(value if kind is op.LITERAL else value[0])
        for kind, value in rest
        if kind is not op.CATEGORY
    ]
    candidates: list[str] = [*"a0A-_ .:/@b1", *own, *map(chr, range(0x21, 0x180))]
    for char in candidates:
        if _in_class(char, rest) != negated:
            return char
    raise ValueError("no character fits")


def _in_class(char: str, members: list[tuple[Any, Any]]) -> bool:
    categories = {
        op.CATEGORY_DIGIT: char.isdigit(),
        op.CATEGORY_NOT_DIGIT: not char.isdigit(),
        op.CATEGORY_SPACE: char.isspace(),
        op.CATEGORY_NOT_SPACE: not char.isspace(),
        op.CATEGORY_WORD: char.isalnum() or char == "_",
        op.CATEGORY_NOT_WORD: not (char.isalnum() or char == "_"),
    }
    for kind, value in members:
        if kind is op.LITERAL and ord(char) == value:
            return True
        if kind is op.RANGE and value[0] <= ord(char) <= value[1]:
            return True
        if kind is op.CATEGORY and categories.get(value, False):
            return True
    return False
