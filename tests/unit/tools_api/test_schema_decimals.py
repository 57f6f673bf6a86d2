"""Pydantic's decimal patterns without look-ahead: they take the same strings."""

import itertools
import random
import re
from decimal import Decimal
from typing import Annotated

import pytest
from pydantic import Field, TypeAdapter, ValidationError

from tests.support.pydantic_types import old_decimal
from tools_api import schema_decimals

KINDS = [(None, None), (8, 2), (5, None), (None, 3), (2, 2), (3, 0), (None, 0), (1, None)]


@pytest.mark.parametrize(("digits", "places"), KINDS)
def test_the_pattern_takes_what_theirs_was_meant_to_take(
    digits: int | None, places: int | None
) -> None:
    _, described = old_decimal(digits, places)["anyOf"]
    splits = schema_decimals.splits(described)
    assert splits is not None
    ours, theirs = schema_decimals.pattern(splits), described["pattern"]
    assert "(?=" not in ours
    assert "(?!" not in ours
    bounds = Field(max_digits=digits, decimal_places=places)
    adapter: TypeAdapter[Decimal] = TypeAdapter(Annotated[Decimal, bounds])
    rng = random.Random(0)
    short = ("".join(chars) for n in range(5) for chars in itertools.product("+0.7", repeat=n))
    long = ("".join(rng.choices("0123.", k=rng.randint(4, 14))) for _ in range(3000))
    for text in (*short, *long):
        if re.search(ours, text):
            assert re.search(theirs, text), text
            adapter.validate_python(text)
        elif re.search(theirs, text) and re.fullmatch(r"[+-]?[0-9]*\.?[0-9]*", text):
            # Theirs is not anchored behind whole numbers, and takes longer ones for that.
            with pytest.raises(ValidationError):
                adapter.validate_python(text)


@pytest.mark.parametrize(("digits", "places"), KINDS)
def test_the_number_beside_it_is_one_that_the_string_could_say(
    digits: int | None, places: int | None
) -> None:
    number, described = old_decimal(digits, places)["anyOf"]
    splits = schema_decimals.splits(described)
    assert splits is not None
    bounded = schema_decimals.beside(number, splits)
    assert bounded["exclusiveMaximum"] == -bounded["exclusiveMinimum"] <= 10**15
    step = Decimal(repr(bounded.get("multipleOf", 0.1)))
    largest = Decimal(bounded["exclusiveMaximum"]) - step
    assert re.search(described["pattern"], f"{largest:f}") or largest < 0


def test_bounds_of_the_clients_own_stay() -> None:
    number = {"type": "number", "minimum": 0, "exclusiveMaximum": 7, "multipleOf": 0.5}
    assert schema_decimals.beside(number, [(3, 2)]) == number


@pytest.mark.parametrize(
    "schema", [True, {}, {"type": "number"}, {"type": "string"}, {"type": "string", "pattern": "^"}]
)
def test_nothing_else_is_taken_for_a_decimal(schema: object) -> None:
    assert schema_decimals.splits(schema) is None
