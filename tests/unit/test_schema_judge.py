"""Verdicts on values, against the reference implementation where both know."""

import random
from typing import Any

import jsonschema
import pytest

from tests.support.bound_outputs import random_schema
from tools_api.schema_judge import Judge


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
def test_a_verdict_is_that_of_the_reference(seed: int) -> None:
    rng = random.Random(seed)
    known = 0
    for _ in range(60):
        schema, value = random_schema(rng), random_value(rng)
        found = Judge(schema).verdict(schema, value, ())
        if found is not None:
            known += 1
            assert found == jsonschema.Draft202012Validator(schema).is_valid(value), (schema, value)
    assert known > 20
