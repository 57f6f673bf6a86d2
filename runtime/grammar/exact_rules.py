"""Schemas with numbers that the grammar library would round, as rules in which it does not.

A ``%json`` block of which the library keeps every number stays as it is. In another one the way
from its root to each number that it would round is written out in Lark, ordered as the library
does it, with terminals of our own for the numbers (``runtime.grammar.number_rules``); all that
lies beside that way stays with the library, as smaller blocks.

Knows JSON Schema. Compiles nothing.

Always true: the rules accept the values that the block's schema accepts, and no others.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Sequence, Set
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from runtime.grammar.lark_json import RuleBook, TooLong, key, pair, several
from runtime.grammar.library_numbers import keeps, keeps_value
from runtime.grammar.number_rules import KEYWORDS, NotExact, Terminal, literal, numbers
from runtime.grammar.plain_schemas import NotPlain, alternatives, is_assertive
from runtime.grammar.refusal import GrammarRefused
from runtime.grammar.schema_parts import APPLICATORS, nodes, references_to, standalone
from runtime.grammar.schemas import JsonBlock, Path, rule_blocks
from tools_api.exact_json import written
from tools_api.exact_numbers import is_number
from tools_api.schema_judge import Judge
from tools_api.schema_references import Schema, pointed_at

_NUMBERS = re.compile(r'"(?:m\w+imum|exclusiveM\w+|multipleOf)"|[0-9.]{16}|[0-9][eE][-+0-9]')
"""Signs of a block in which the library could round a number."""
_MAX_TIMES, _MAX_CHARS = 16, 64 * 1024
"""Times the block that its rules may be long, and what they may be beyond."""
_MAX_DEPTH = 200
"""Rules that the library compiles inside each other: each takes some kB of a thread's stack."""
_TOO_DEEP = "it is nested too deep for its numbers to be enforced"
_CHOICES = (["anyOf"], ["oneOf"])
_WITH_NUMBERS = frozenset({*KEYWORDS, "const", "enum"})
_ANY_TYPE = ["null", "boolean", "number", "string", "array", "object"]
_OF_TYPE: dict[str, frozenset[str]] = {
    "integer": frozenset(KEYWORDS),
    "number": frozenset(KEYWORDS),
    "string": frozenset({"minLength", "maxLength", "pattern", "format"}),
    "array": frozenset({"items", "prefixItems", "minItems", "maxItems"}),
    "object": frozenset({"properties", "patternProperties", "additionalProperties", "required"})
    | {"minProperties", "maxProperties"},
}

IsEmpty = Callable[[str], bool]
"""Whether the library says of a block that nothing satisfies it."""


class _Empty(Exception):
    """Nothing satisfies a schema."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Exact:
    """A grammar in which some blocks have become rules."""

    lark: str
    loosened: str
    """The grammar without the numbers that the library would round, line by line the original: for
    the library to say what else is wrong with it."""
    block: int
    """The first that became rules."""


def with_exact_numbers(lark: str, is_empty: IsEmpty | None = None) -> Exact | None:
    """The grammar with its numbers to the last digit; None if the library keeps them all.

    Args:
        is_empty: asked of every block that becomes smaller ones, since the library refuses a whole
            grammar for one that is empty. Without it none is taken for empty.

    Raises:
        GrammarRefused: a number can neither be left to the library nor be written as a rule, or
            nothing satisfies a schema.
    """
    if _NUMBERS.search(lark) is None:
        return None
    exact: list[str] = []
    loosened: list[str] = []
    lines: list[str] = []
    first: int | None = None
    end = 0
    for block in rule_blocks(lark):
        if not isinstance(block.schema, dict):
            continue
        rules = _Rules(block, is_empty)
        if not rules.is_needed:
            continue
        first = block.number if first is None else first
        exact += [lark[end : block.start], rules.start()]
        loosened += [lark[end : block.start], rules.loosened()]
        lines += rules.lines
        end = block.end
    if first is None:
        return None
    return Exact(
        lark="".join([*exact, lark[end:].rstrip("\n"), "\n", *lines]),
        loosened="".join([*loosened, lark[end:]]),
        block=first,
    )


def _loosened(node: Schema) -> Schema:
    """A schema without the keywords whose numbers the library would round."""
    if keeps(node):
        return node
    return {key: value for key, value in node.items() if key not in _WITH_NUMBERS}


class _Rules:
    """The rules that one block becomes."""

    def __init__(self, block: JsonBlock, is_empty: IsEmpty | None) -> None:
        self._root = {k: value for k, value in block.schema.items() if k != "x-guidance"}
        self._style = {"x-guidance": block.schema.get("x-guidance", {})}
        self._number = block.number
        self._is_empty = is_empty
        room = _MAX_TIMES * (block.end - block.start) + _MAX_CHARS
        self._book = RuleBook(f"exact_{block.number}", room)
        self._names: dict[str, str] = {}
        """Names of rules, by the schema's text or by a reference to it."""
        self._pending: list[str] = []
        """References to what has a name and no rule yet."""
        self._rounded = references_to(self._root, lambda node: not keeps(node))

    @property
    def lines(self) -> list[str]:
        return self._book.lines

    @property
    def is_needed(self) -> bool:
        """Whether the library would round a number of the block."""
        return self._is_rounded(self._root)

    def loosened(self) -> str:
        """The block without such numbers."""
        return self._block_text(self._root, _loosened)

    def start(self) -> str:
        """The body of the rule that the block was, after which ``lines`` are complete.

        Raises:
            GrammarRefused: see ``with_exact_numbers``.
        """
        try:
            body = self._symbol(self._root, ())
            while self._pending:
                reference = self._pending.pop()
                target = pointed_at(self._root, reference)
                symbol = self._symbol(target, tuple(reference.split("/")[1:]))
                self._book.add(self._names[reference], symbol)
        except _Empty:
            raise self._refused("no value satisfies it") from None
        except TooLong:
            raise self._refused("it is too long for its numbers to be enforced") from None
        except RecursionError:
            raise self._refused(_TOO_DEEP) from None
        if self._book.depth(body) > _MAX_DEPTH:
            raise self._refused(_TOO_DEEP)
        return body

    def _refused(self, message: str, keyword: str | None = None, path: Path = ()) -> GrammarRefused:
        place = None if keyword is None else (*path, keyword)
        return GrammarRefused(message, keyword, place, self._number)

    def _is_rounded(self, schema: Any) -> bool:
        return any(not keeps(node) or node.get("$ref") in self._rounded for node in nodes(schema))

    def _block(self, schema: Any) -> str:
        """A schema that stays with the library."""
        if schema is False:
            raise _Empty
        body = self._block_text(schema if isinstance(schema, dict) else {})
        if self._is_empty is not None and not self._book.knows(body) and self._is_empty(body):
            raise _Empty
        return self._book.rule(body)

    def _block_text(self, schema: Schema, change: Callable[[Schema], Schema] = dict) -> str:
        try:
            document = standalone(self._root, schema, change)
        except LookupError as error:
            message = f"{error.args[0]} cannot be followed beside numbers that have to be kept"
            raise self._refused(message, "$ref") from None
        return "%json " + written(document | self._style, ensure_ascii=True)

    def _symbol(self, schema: Any, path: Path) -> str:
        """The name of what stands for a schema.

        Raises:
            _Empty: nothing satisfies it.
        """
        if not isinstance(schema, dict) or not self._is_rounded(schema):
            return self._block(schema)
        applied = [keyword for keyword in APPLICATORS if keyword in schema]
        if applied == ["$ref"] and not is_assertive(schema):
            return self._reference(schema["$ref"])
        text = written(schema)
        if text not in self._names:
            self._names[text] = self._book.name()
            try:
                self._book.add(self._names[text], self._body(schema, applied, path))
            except _Empty:
                del self._names[text]
                raise
        return self._names[text]

    def _reference(self, reference: str) -> str:
        if reference not in self._names:
            self._names[reference] = self._book.name()
            self._pending.append(reference)
        return self._names[reference]

    def _body(self, schema: Schema, applied: list[str], path: Path) -> str:
        if applied in _CHOICES and not is_assertive(schema):
            (keyword,) = applied
            options = enumerate(schema[keyword])
            return self._either((option, (*path, keyword, i)) for i, option in options)
        try:
            plain = alternatives(self._root, schema)
        except NotPlain as found:
            message = "beside it numbers that have to be kept cannot be enforced"
            raise self._refused(message, found.keyword, path) from None
        if applied:
            return self._either((option, path) for option in plain)
        return self._typed(plain[0], path)

    def _either(self, options: Iterable[tuple[Any, Path]]) -> str:
        symbols: list[str] = []
        for schema, path in options:
            with suppress(_Empty):
                symbols.append(self._symbol(schema, path))
        return _any_of(symbols)

    def _typed(self, node: Schema, path: Path) -> str:
        """The alternatives of a schema that applies no others, by the types of its values."""
        if "enum" in node:
            return self._values(node, path)
        types = node.get("type", _ANY_TYPE)
        symbols: list[str] = []
        left: list[str] = []
        for kind in types if isinstance(types, list) else [types]:
            own = _of_type(node, [kind])
            if not self._is_rounded(own):
                left.append(kind)
                continue
            with suppress(_Empty):
                symbols.append(self._one_type(kind, own, path))
        if left:
            with suppress(_Empty):
                symbols.append(self._block(_of_type(node, left)))
        return _any_of(symbols)

    def _one_type(self, kind: str, own: Schema, path: Path) -> str:
        if kind == "object":
            return self._book.rule(self._object(own, path))
        if kind == "array":
            return self._book.rule(self._array(own, path))
        try:
            found = numbers(own, kind)
        except NotExact as error:
            raise self._refused(error.message, error.keyword, path) from None
        return _any_of(
            self._book.terminal(part.body) if isinstance(part, Terminal) else self._block(part)
            for part in found
        )

    # Values that are listed

    def _values(self, node: Schema, path: Path) -> str:
        beside = {k: value for k, value in node.items() if k != "enum"}
        verdicts = [(v, Judge(self._root).verdict(beside, v, ())) for v in node["enum"]]
        certain = [value for value, verdict in verdicts if verdict]
        unknown = [value for value, verdict in verdicts if verdict is None]
        if unknown and (self._is_rounded(beside) or not keeps_value(unknown)):
            message = f"whether {written(unknown[0])[:40]} fits the schema beside it is not known"
            raise self._refused(message, "enum", path)
        kept = [value for value in certain if keeps_value(value)]
        rounded = [value for value in certain if not keeps_value(value)]
        single = [literal(value) for value in rounded if is_number(value)]
        symbols = [self._constant(value) for value in rounded if not is_number(value)]
        if single:
            symbols.append(self._book.one_of(single))
        if kept:
            symbols.append(self._block({"enum": kept}))
        if unknown:
            with suppress(_Empty):
                symbols.append(self._block(beside | {"enum": unknown}))
        return _any_of(symbols)

    def _constant(self, value: Any) -> str:
        if keeps_value(value):
            return self._block({"const": value})
        if isinstance(value, dict):
            pairs = [(pair(key(k), self._constant(inner)), True) for k, inner in value.items()]
            return self._book.rule(self._book.object(pairs))
        if isinstance(value, list):
            items = [*map(self._constant, value)]
            return self._book.rule(self._book.array(items, None, len(items), None))
        return self._book.one_of([literal(value)])

    # Objects

    def _object(self, node: Schema, path: Path) -> str:
        required = frozenset(node.get("required", ()))
        pairs = [*self._declared_pairs(node, required, path)]
        least = max(node.get("minProperties", 0) - len(required), 0)
        most = None if "maxProperties" not in node else node["maxProperties"] - len(required)
        if most is not None and most < 0:
            raise _Empty
        if (least or most is not None) and not all(needed for _, needed in pairs):
            keyword = "minProperties" if least else "maxProperties"
            message = "it cannot be enforced beside properties that may be left out"
            raise self._refused(message, keyword, path)
        other = None if most == 0 else self._other_pair(node, path)
        if other is None and least:
            raise _Empty
        if other is not None:
            pairs.append((several(other, least, most), least > 0))
        return self._book.object(pairs)

    def _declared_pairs(
        self, node: Schema, required: Set[str], path: Path
    ) -> Iterator[tuple[str, bool]]:
        """The pairs whose names are known, in the library's order, and whether each must come."""
        properties, rest = node.get("properties", {}), node.get("additionalProperties", True)
        for name in _names(node):
            if any(_may_match(pattern, name) for pattern in node.get("patternProperties", {})):
                message = f"the property '{name}' matches it, beside numbers that have to be kept"
                raise self._refused(message, "patternProperties", path)
            try:
                value = self._symbol(properties.get(name, rest), (*path, "properties", name))
            except _Empty:
                if name in required:
                    raise
                continue
            yield pair(key(name), value), name in required

    def _other_pair(self, node: Schema, path: Path) -> str | None:
        """Pairs whose names are not declared; None if there are none."""
        ways: list[str] = []
        for pattern, schema in node.get("patternProperties", {}).items():
            with suppress(_Empty):
                value = self._symbol(schema, (*path, "patternProperties", pattern))
                ways.append(pair(self._block({"type": "string", "pattern": pattern}), value))
        rest = node.get("additionalProperties", True)
        if node.get("patternProperties") and rest is not False:
            message = "beside other undeclared names its numbers cannot be enforced"
            raise self._refused(message, "patternProperties", path)
        with suppress(_Empty):
            value = self._symbol(rest, (*path, "additionalProperties"))
            taken = _names(node)
            name = self._book.other_name(taken) if taken else self._block({"type": "string"})
            ways.append(pair(name, value))
        return self._book.rule(_any_of(ways)) if ways else None

    # Arrays

    def _array(self, node: Schema, path: Path) -> str:
        least, most = node.get("minItems", 0), node.get("maxItems")
        if most is not None and least > most:
            raise _Empty
        items: list[str] = []
        for index, schema in enumerate(node.get("prefixItems", [])[:most]):
            try:
                items.append(self._symbol(schema, (*path, "prefixItems", index)))
            except _Empty:
                if index < least:
                    raise
                most = index
                break
        other = None
        if most is None or most > len(items):
            with suppress(_Empty):
                other = self._symbol(node.get("items", True), (*path, "items"))
        if other is None and least > len(items):
            raise _Empty
        return self._book.array(items, other, least, most)


def _of_type(node: Schema, kinds: Sequence[str]) -> Schema:
    """The part of a schema that speaks of values of those types."""
    known = {"type"}.union(*(_OF_TYPE.get(kind, ()) for kind in kinds))
    own = {key: value for key, value in node.items() if key in known}
    return own | {"type": kinds[0] if len(kinds) == 1 else list(kinds)}


def _any_of(symbols: Iterable[str]) -> str:
    """One of them.

    Raises:
        _Empty: there are none.
    """
    different = dict.fromkeys(symbols)
    if not different:
        raise _Empty
    return " | ".join(different)


def _names(node: Schema) -> list[str]:
    """The names that an object's schema declares or requires."""
    return list(dict.fromkeys([*node.get("properties", {}), *node.get("required", ())]))


def _may_match(pattern: str, name: str) -> bool:
    try:
        return re.search(pattern, name) is not None
    except re.error:  # the library's syntax is another one
        return True
