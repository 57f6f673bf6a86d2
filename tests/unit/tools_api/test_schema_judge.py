"""Verdicts on values: threefold, and exact in every digit."""

import random
from decimal import Decimal
from typing import Any

import jsonschema
import pytest

from tests.support.bound_outputs import random_schema
from tests.support.exact_schemas import Schemas, satisfies, some_value
from tools_api.exact_json import written
from tools_api.schema_judge import Judge

ID = 1190000000000000001


@pytest.mark.parametrize(
    ("schema", "value", "verdict"),
    [
        ({"const": ID}, ID, True),
        ({"const": ID}, ID - 1, False),
        ({"const": float(10**18)}, 10**18, True),
        ({"enum": [[ID], {"a": ID}]}, {"a": ID}, True),
        ({"enum": [[ID], {"a": ID}]}, {"a": ID + 1}, False),
        ({"minimum": ID}, ID - 1, False),
        ({"exclusiveMaximum": 2**64}, 2**64 - 1, True),
        ({"maximum": Decimal("0.12345678901234567890")}, Decimal("0.12345678901234567891"), False),
        ({"maximum": 0.1}, Decimal("0.1000000000000000055"), False),
        ({"type": "integer"}, Decimal("1E+30"), True),
        ({"type": "integer"}, Decimal("0.10000000000000001"), False),
        ({"multipleOf": 0.1}, 0.3, True),
        ({"multipleOf": 0.07}, 0.15, False),
        ({"multipleOf": 3}, 3 * ID, True),
        ({"multipleOf": 3}, Decimal("1E+100000"), None),
        ({"multipleOf": 0}, 1, None),
        ({"uniqueItems": True}, [ID, ID + 1], True),
        ({"uniqueItems": True}, [1, 1.0], False),
        ({"pattern": "a"}, "b", None),
        ({"exclusiveMinimum": True}, 1, None),
        (False, 1, False),
        (True, 1, True),
    ],
)
def test_each_keyword_is_judged_to_the_last_digit(schema: Any, value: Any, verdict: Any) -> None:
    assert Judge(schema if isinstance(schema, dict) else {}).verdict(schema, value, ()) is verdict


@pytest.mark.parametrize("seed", range(40))
def test_a_verdict_is_that_of_the_reference_implementation(seed: int) -> None:
    rng = random.Random(seed)
    drawn = Schemas(rng).document()
    for value in (drawn.draw(rng), drawn.draw(rng), {"p0": some_value(rng, 2)}):
        verdict = Judge(drawn.schema).verdict(drawn.schema, value, ())
        assert verdict is satisfies(drawn.schema, written(value)), (seed, drawn.schema, value)


def test_the_keyword_that_was_broken_last_is_remembered_with_its_place() -> None:
    schema = {"properties": {"a": {"items": {"maximum": 1}}}}
    judge = Judge(schema, ("maximum",))
    assert judge.verdict(schema, {"a": [0, 2**70]}, ()) is False
    assert judge.broken == ("maximum", ("a", 1))


def random_value(rng: random.Random, depth: int = 0) -> Any:
    match rng.randrange(8 if depth < 3 else 6):
        case 0:
            return rng.randint(-60, 10_000)
        case 1:
            return rng.choice((0.5, 1.0, 2.25, 999.5))
        case 2 | 3:
            return rng.choice(("red", "x", "9", "", "a longer green", "abc"))
        case 4:
            return rng.choice((True, False))
        case 5:
            return None
        case 6:
            return [random_value(rng, depth + 1) for _ in range(rng.randrange(4))]
    return {rng.choice(("city", "day", "n", "é")): random_value(rng, depth + 1) for _ in range(3)}


@pytest.mark.parametrize("seed", range(30))
def test_a_verdict_on_any_value_is_that_of_the_reference(seed: int) -> None:
    rng = random.Random(seed)
    known = 0
    for _ in range(60):
        schema, value = random_schema(rng), random_value(rng)
        found = Judge(schema).verdict(schema, value, ())
        if found is not None:
            known += 1
            assert found == jsonschema.Draft202012Validator(schema).is_valid(value), (schema, value)
    assert known > 20
