"""Positions of longrope, and the context that follows from them; the other kinds are
``test_hf_config``'s."""

import math
from pathlib import Path
from typing import Any

import pytest

from runtime.model.config import LoadError
from runtime.model.config_fields import Fields
from runtime.model.rope_fields import longrope_of, rope_object

PATH = Path("config.json")


def fields_of(**values: Any) -> Fields:
    return Fields(PATH, {"max_position_embeddings": 4096, **values})


def longrope(serves: int | None, **changes: Any) -> Any:
    rope = {
        "type": "longrope",
        "short_factor": [1.0, 1.5],
        "long_factor": [4.0, 9.0],
        "original_max_position_embeddings": 1024,
        **changes,
    }
    fields = fields_of(rope_scaling=rope)
    return longrope_of(fields, rope_object(fields), theta=10000.0, rotated=4, serves=serves)


@pytest.mark.parametrize(
    ("serves", "factors", "context"),
    [
        (None, (4.0, 9.0), 4096),
        (1025, (4.0, 9.0), 4096),
        (100_000, (4.0, 9.0), 4096),
        (1024, (1.0, 1.5), 1024),
        (16, (1.0, 1.5), 1024),
    ],
)
def test_the_factors_of_longrope_follow_what_is_served_and_nothing_longer_is(
    serves: int | None, factors: tuple[float, ...], context: int
) -> None:
    rope, found = longrope(serves)
    assert (rope.factors, found) == (factors, context)
    assert rope.attention_factor == pytest.approx(math.sqrt(1 + math.log(4) / math.log(1024)))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"long_factor": [1.0]}, "long_factor is '1 numbers', not 2, one for each pair"),
        ({"long_factor": [1.0, 0.0]}, "long_factor is .*, not a list of numbers above 0"),
        ({"short_factor": "1"}, "short_factor is '1', not a list"),
        ({"short_factor": None}, "short_factor is None"),
    ],
)
def test_factors_of_longrope_that_cannot_be_are_refused(
    changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(LoadError, match=message):
        longrope(None, **changes)
