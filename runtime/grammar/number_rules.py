"""Numbers of a schema as terminals of our own, where the grammar library would round them.

Knows the keywords of numbers and Lark's terminals.

Always true: a terminal matches the numbers that the keywords accept, each in at least one way of
writing it, and no others.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from fractions import Fraction

from runtime.grammar.library_numbers import MAX_DIGITS, keeps
from runtime.grammar.number_patterns import decimals, whole_numbers
from runtime.grammar.number_ranges import (
    Bound,
    Ends,
    counts,
    decimal_of,
    ends_of,
    is_power_of_ten,
    places_of,
    whole_ends,
)
from tools_api.exact_numbers import Number, exact, is_number, num_digits, plain
from tools_api.schema_references import Schema

KEYWORDS = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf")
_MAX_LISTED = 1000
"""Multiples that are listed one by one."""
_MAX_FRACTIONS = 1000
_TOO_LARGE = 2**63


class NotExact(Exception):
    """Numbers that can neither be left to the library nor be written as a terminal."""

    def __init__(self, keyword: str, message: str) -> None:
        super().__init__(message)
        self.keyword = keyword
        self.message = message


@dataclass(frozen=True, slots=True, kw_only=True)
class Terminal:
    """The body of a Lark terminal."""

    body: str


def literal(value: Number) -> str:
    """A number as JSON text, without an exponent if that is not too long."""
    if num_digits(value) > MAX_DIGITS:
        return str(value)
    text = format(exact(value), "f")
    text = text.rstrip("0").rstrip(".") if "." in text else text
    return "0" if text == "-0" else text


def numbers(node: Schema, kind: str) -> list[Terminal | Schema]:
    """The numbers of one kind ("integer" or "number") that a node's own keywords accept, as
    alternatives: terminals, and schemas that the library keeps. None of them, if there are none.

    Raises:
        NotExact: with the keyword that stands against it.
    """
    own = {"type": kind, **{key: node[key] for key in KEYWORDS if key in node}}
    if keeps(own):
        return [own]
    for keyword in KEYWORDS:
        if is_number(own.get(keyword)) and num_digits(own[keyword]) > MAX_DIGITS:
            raise NotExact(keyword, f"a number of more than {MAX_DIGITS} digits cannot be enforced")
    ends, step = ends_of(own), own.get("multipleOf")
    if is_number(step) and step:
        return _multiples(own, ends, Fraction(abs(exact(step))), whole=kind == "integer")
    return _matching(whole_numbers(*whole_ends(ends)) if kind == "integer" else decimals(*ends))


def _matching(pattern: str | None) -> list[Terminal | Schema]:
    return [] if pattern is None else [Terminal(body=f"/{pattern}/")]


def _multiples(own: Schema, ends: Ends, step: Fraction, *, whole: bool) -> list[Terminal | Schema]:
    step = step * step.denominator if whole else step
    first, last = counts(ends, step)
    if first is not None and last is not None and last - first < _MAX_LISTED:
        return _listed(step, range(first, last + 1))
    if step.denominator == 1 and is_power_of_ten(decimal_of(step)):
        return _matching(_tens(first, last, len(str(step.numerator)) - 1))
    if step.numerator == 1 and step.denominator <= _MAX_FRACTIONS:
        bounds = (None if n is None else _at(n * step) for n in (first, last))
        return [Terminal(body=f"/{decimals(*bounds)}/ & /{_with_fractions(step)}/")]
    beside, first, last = _left_out(step, first, last)
    narrowed: Schema = {"type": "integer" if step.denominator == 1 else "number"}
    narrowed |= {"multipleOf": own["multipleOf"]}
    for keyword, count in (("minimum", first), ("maximum", last)):
        narrowed |= {} if count is None else {keyword: plain(decimal_of(count * step))}
    if keeps(narrowed, all_of_them=False):
        return [*_listed(step, beside), narrowed]
    if keeps(own, all_of_them=False):
        return [own]
    raise NotExact("multipleOf", "its multiples cannot be enforced to the last digit here")


def _listed(step: Fraction, multiples: Iterable[int]) -> list[Terminal | Schema]:
    texts = [literal(plain(decimal_of(count * step))) for count in multiples]
    return [Terminal(body=" | ".join(f'"{text}"' for text in texts))] if texts else []


def _left_out(
    step: Fraction, first: int | None, last: int | None
) -> tuple[list[int], int | None, int | None]:
    """Multiples next to the ends of a range that are no doubles, and the range without them: the
    library keeps bounds that are."""
    beside: list[int] = []
    while first is not None and not _is_double(first * step) and len(beside) < _MAX_LISTED:
        beside.append(first)
        first += 1
    while last is not None and not _is_double(last * step) and len(beside) < 2 * _MAX_LISTED:
        beside.append(last)
        last -= 1
    return beside, first, last


def _is_double(value: Fraction) -> bool:
    return value.denominator > 1 or abs(value) >= _TOO_LARGE or int(float(value)) == value


def _at(value: Fraction) -> Bound:
    return Bound(value=decimal_of(value), included=True)


def _tens(first: int | None, last: int | None, zeros: int) -> str | None:
    """The numbers from ``first`` to ``last`` with so many zeros behind."""
    negative = whole_numbers(first, -1 if last is None else min(last, -1))
    positive = whole_numbers(1 if first is None else max(first, 1), last)
    ways = [f"{way}0{{{zeros}}}" for way in (negative, positive) if way is not None]
    if (first is None or first <= 0) and (last is None or last >= 0):
        ways.append("0")
    return "|".join(ways) or None


def _with_fractions(step: Fraction) -> str:
    """Numbers whose fractions are multiples of ``step``, which is one part of a whole."""
    places = places_of(decimal_of(step))
    if is_power_of_ten(decimal_of(step)):
        return rf"-?[0-9]+(?:\.[0-9]{{1,{places}}}0*)?"
    texts = (format(decimal_of(n * step), "f") for n in range(1, step.denominator))
    parts = "|".join(text.partition(".")[2].rstrip("0") for text in texts)
    return rf"-?[0-9]+(?:\.(?:0+|(?:{parts})0*))?"
