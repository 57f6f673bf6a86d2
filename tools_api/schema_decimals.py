r"""Decimal numbers as pydantic writes them into a schema: a number, or a string with a pattern.

Before 2.14 that pattern looks ahead (``(?!^[-+.]*$)``), which no grammar can. Here it becomes
one that says the same without; and the number beside it, of which the schema says nothing, is
kept where it is read as what was written: a double of 400 digits is infinite.

Knows the texts of those patterns. Knows no other schema.

Always true: what comes out accepts nothing that the schema refuses, and any decimal can be
written as a string.
"""

import re
from typing import Any

_PATTERN = re.compile(
    r"\^\(\?!\^\[-\+\.\]\*\$\)\[\+-\]\?0\*"
    r"(?:\\d\*\\\.\?\\d(?:\*|\{0,(?P<places>\d+)\}0\*)\$"
    r"|\(\?:\\d\{0,(?P<whole>\d+)\}\|\(\?=\[\\d\.\]\{1,\d+\}0\*\$\)"
    r"\\d(?:\*|\{0,\d+\})\\\.\\d(?:\*|\{0,(?P<broken>\d+)\})0\*\$\))"
)
_EXACT_DIGITS = 15
"""A double holds so many digits of any decimal."""
_MOST_PLACES = 6
"""More are not asked of the grammar library, which counts in 32 bits."""

Split = tuple[int | None, int | None]
"""Most digits before the point and behind it."""


def splits(schema: Any) -> list[Split] | None:
    """How the digits of pydantic's decimal string may be split; None if it is no such string."""
    if not isinstance(schema, dict) or schema.get("type") != "string":
        return None
    if schema.get("format") == "fraction":
        return [(None, None)]
    found = _PATTERN.fullmatch(str(schema.get("pattern", "")))
    if found is None:
        return None
    places, whole, broken = (
        None if found[name] is None else int(found[name]) for name in ("places", "whole", "broken")
    )
    if whole is None or broken is not None:
        return [(whole, places if whole is None else broken)]
    return [(digits, whole - digits) for digits in range(whole + 1)]


def pattern(allowed: list[Split]) -> str:
    """The decimals that are split like that, as a pattern without look-ahead."""
    return f"^[+-]?(?:{'|'.join(form for split in allowed for form in _forms(*split))})$"


def beside(number: dict[str, Any], allowed: list[Split]) -> dict[str, Any]:
    """The number that stands beside such a string, held to what the string may say."""
    whole, places = allowed[len(allowed) // 2]
    bound = 10 ** (_EXACT_DIGITS if whole is None else min(whole, _EXACT_DIGITS))
    bounded = dict(number)
    if not number.keys() & {"minimum", "exclusiveMinimum"}:
        bounded["exclusiveMinimum"] = -bound
    if not number.keys() & {"maximum", "exclusiveMaximum"}:
        bounded["exclusiveMaximum"] = bound
    if places is not None and "multipleOf" not in number:
        bounded["multipleOf"] = 10.0 ** -min(places, _MOST_PLACES) if places else 1
    return bounded


def _forms(whole: int | None, places: int | None) -> list[str]:
    """Forms of a number with digits before the point, and without."""
    none, most = places == 0, "" if places is None else places
    fraction = r"\.0+" if none else rf"\.[0-9]{{1,{most}}}0*"
    if whole == 0 and not none:
        return [f"0*{fraction}"]
    integer = "[0-9]+" if whole is None else f"0*[0-9]{{1,{whole}}}" if whole else "0+"
    return [integer + (r"(?:\.0*)?" if none else rf"(?:\.[0-9]{{0,{most}}}0*)?"), fraction]
