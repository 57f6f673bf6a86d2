"""Which numbers the grammar library keeps, against the library itself."""

import random
from decimal import Decimal
from typing import Any

import llguidance
import pytest

from runtime.grammar.library_numbers import keeps, keeps_value
from runtime.tokenizer import Tokenizer
from tests.support.exact_schemas import satisfies, some_number
from tests.support.grammars import compiler, encode, schema_spec, small_tokenizer
from tools_api.exact_numbers import exact, plain

ID = 1190000000000000001
STEPS = (1, 2, 7, 10, 100, 0.1, 0.01, 0.5, 0.25, 0.3, 2.5, 0.07)


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return small_tokenizer(tmp_path_factory.mktemp("tokenizer"))


@pytest.mark.parametrize(
    ("value", "kept"),
    [
        (2**53, True),
        (2**53 + 1, False),
        (2**60, True),
        (2**63 - 1, False),
        (-(2**63), False),
        (2**64, False),
        (0.1, True),
        (123456789.123456, True),
        (123456789.12345679, False),
        (1e17, True),
        (1e22, False),
        (5e-324, False),
        (Decimal("1E+400"), False),
        ({"a": [1, "x", None, True]}, True),
        ({"a": [1, {"b": ID}]}, False),
    ],
)
def test_constants_of_few_digits_are_kept(value: Any, kept: bool) -> None:
    assert keeps_value(value) is kept
    assert keeps({"const": value}) is kept
    assert keeps({"enum": [1, value]}) is kept


@pytest.mark.parametrize(
    ("schema", "kept"),
    [
        ({"type": "integer", "minimum": 0, "maximum": 2**63 - 1}, True),
        ({"type": "integer", "minimum": -(2**63)}, False),
        ({"type": "integer", "minimum": 10**18}, False),
        ({"type": "integer", "exclusiveMinimum": 2**53}, False),
        ({"type": "integer", "minimum": 2**60, "maximum": 2**61}, True),
        ({"type": "string", "minimum": ID}, True),
        ({"type": ["string", "integer"], "minimum": ID}, False),
        ({"minimum": ID}, False),
        ({"type": "number", "exclusiveMinimum": 0, "maximum": 0.5}, False),
        ({"type": "number", "exclusiveMinimum": 0, "maximum": 1}, True),
        ({"type": "number", "minimum": -0.5, "exclusiveMaximum": 0}, False),
        ({"type": "number", "minimum": 1e19}, False),
        ({"type": "number", "multipleOf": 0.01}, True),
        ({"type": "number", "multipleOf": 0.07}, False),
        ({"type": "number", "multipleOf": 0.1, "minimum": 0.3, "maximum": 0.3}, False),
        ({"type": "number", "multipleOf": 0.25, "minimum": 0}, False),
        ({"type": "integer", "multipleOf": 10**9}, False),
        ({"default": ID, "examples": [ID], "title": "1"}, True),
    ],
)
def test_bounds_are_kept_where_the_librarys_arithmetic_is_exact(schema: Any, kept: bool) -> None:
    assert keeps(schema) is kept


def test_some_multiples_are_kept_though_not_all_are_written() -> None:
    assert keeps({"type": "number", "multipleOf": 0.25, "minimum": 0}, all_of_them=False)
    assert not keeps({"type": "number", "multipleOf": 0.07}, all_of_them=False)


@pytest.mark.samples(3)
@pytest.mark.parametrize("seed", range(10))
def test_what_is_kept_the_library_accepts_and_nothing_else(tokenizer: Tokenizer, seed: int) -> None:
    rng, grammars, kept = random.Random(seed), compiler(tokenizer, max_cache_bytes=0), 0
    while kept < 20:
        schema, ends = random_range(rng)
        if not keeps(schema):
            continue
        kept += 1
        matcher = grammars.builder(schema_spec(schema).lark)()
        for end in ends:
            for step in ("0", "1", "-1", "0.1", "-0.1", "0.5", "2.5"):
                text = spelled(exact(end) + Decimal(step))
                if schema["type"] == "integer" and "." in text:
                    continue
                fits = satisfies(schema, text)
                assert accepts(matcher, tokenizer, text) is fits, (seed, schema, text)


def random_range(rng: random.Random) -> tuple[dict[str, Any], list[Any]]:
    low, high = some_number(rng), some_number(rng)
    if rng.random() < 0.4:
        high = plain(exact(low) + rng.randint(-1, 20))
    schema: dict[str, Any] = {"type": rng.choice(("integer", "number"))}
    names = (("minimum", low), ("exclusiveMinimum", low), ("maximum", high))
    for name, value in (*names, ("exclusiveMaximum", high)):
        schema |= {name: value} if rng.random() < 0.4 else {}
    schema |= {"multipleOf": rng.choice(STEPS)} if rng.random() < 0.3 else {}
    return schema, [low, high, 0]


def accepts(matcher: llguidance.LLMatcher, tokenizer: Tokenizer, text: str) -> bool:
    """Whether the library's own reading of a schema accepts a number in one of its spellings: next
    to a bound it may want as many places as that has."""
    if matcher.is_error():
        return False
    for count in (0, 1, 2, 3, 8, 15, 16, 17, 18, 19, 20, 21, 22) if "." in text else (0,):
        copy, tokens = matcher.deep_copy(), encode(tokenizer, text + "0" * count)
        if copy.try_consume_tokens(tokens) == len(tokens) and copy.is_accepting():
            return True
    return False


def spelled(value: Decimal) -> str:
    text = format(value, "f")
    text = text.rstrip("0").rstrip(".") if "." in text else text
    return "0" if text == "-0" else text
