"""Each limit that decoding enforces: accepted at the limit, refused one beyond."""

import dataclasses
import json
import random
from collections import Counter
from typing import Any

import pytest

from tools_api.errors import ApiError
from tools_api.events import decode
from tools_api.limits import DEFAULT_LIMITS, Limits, takes_one_more


def nested(depth: int) -> Any:
    value: Any = 1
    for _ in range(depth):
        value = [value]
    return value


def tool(**fields: Any) -> dict[str, Any]:
    return {"type": "function", "name": "f", **fields}


def tools(count: int) -> list[Any]:
    return [tool(name=f"f{i}") for i in range(count)]


def message(parts: int) -> dict[str, Any]:
    return {"role": "user", "content": [{"type": "input_text", "text": "a"}] * parts}


def tool_output(parts: int) -> dict[str, Any]:
    output = [{"type": "input_text", "text": "a"}] * parts
    return {"type": "function_call_output", "call_id": "call_1", "output": output}


def grammar_tool(definition: str) -> dict[str, Any]:
    format_ = {"type": "grammar", "syntax": "regex", "definition": definition}
    return {"type": "custom", "name": "c", "format": format_}


def schema_of(size: int) -> dict[str, Any]:
    empty = len('{"type":"object","description":""}')
    return {"type": "object", "description": "x" * (size - empty)}


# Limit, its value in the test, request fields as a function of a size, code, param.
TABLE: list[tuple[str, int, Any, str, str | None]] = [
    ("max_json_depth", 5, lambda n: {"other": nested(n - 1)}, "invalid_json", None),
    ("max_json_values", 20, lambda n: {"other": [1] * (n - 3)}, "invalid_json", None),
    ("max_list_entries", 3, lambda n: {"include": ["x"] * n}, "invalid_value", "include"),
    (
        "max_input_items",
        3,
        lambda n: {"input": [{"role": "user", "content": "a"}] * n},
        "invalid_value",
        "input",
    ),
    (
        "max_format_description",
        5,
        lambda n: {
            "text": {
                "format": {
                    "type": "json_schema",
                    "name": "x",
                    "schema": {"type": "object"},
                    "description": "d" * n,
                }
            }
        },
        "invalid_value",
        "text.format.description",
    ),
    (
        "max_content_parts",
        3,
        lambda n: {"input": [message(n)]},
        "invalid_value",
        "input[0].content",
    ),
    (
        "max_input_parts",
        6,
        lambda n: {"input": [message(3), tool_output(n - 3)]},
        "invalid_value",
        "input",
    ),
    ("max_tools", 3, lambda n: {"tools": tools(n)}, "invalid_value", "tools"),
    (
        "max_tools",
        4,
        lambda n: {"tools": [*tools(2), {"type": "namespace", "name": "n", "tools": tools(n - 2)}]},
        "invalid_value",
        "tools",
    ),
    (
        "max_tool_name",
        8,
        lambda n: {"tools": [tool(name="f" * n)]},
        "invalid_value",
        "tools[0].name",
    ),
    (
        "max_schema_bytes",
        200,
        lambda n: {"tools": [tool(parameters=schema_of(n))]},
        "invalid_json_schema",
        "tools[0].parameters",
    ),
    (
        "max_grammar_bytes",
        8,
        lambda n: {"tools": [grammar_tool("a" * n)]},
        "invalid_value",
        "tools[0].format.definition",
    ),
    (
        "max_schema_depth",
        4,
        lambda n: {"tools": [tool(parameters={"default": nested(n - 1)})]},
        "invalid_json_schema",
        "tools[0].parameters",
    ),
    (
        "max_metadata_pairs",
        3,
        lambda n: {"metadata": {str(i): "" for i in range(n)}},
        "invalid_value",
        "metadata",
    ),
    ("max_metadata_key", 3, lambda n: {"metadata": {"k" * n: ""}}, "invalid_value", "metadata"),
    (
        "max_metadata_value",
        3,
        lambda n: {"metadata": {"key": "v" * n}},
        "invalid_value",
        "metadata.key",
    ),
    (
        "max_stop",
        2,
        lambda n: {"keepwarm": {"sampling": {"stop": ["x"] * n}}},
        "invalid_value",
        "keepwarm.sampling.stop",
    ),
    (
        "max_stop_chars",
        5,
        lambda n: {"keepwarm": {"sampling": {"stop": "x" * n}}},
        "invalid_value",
        "keepwarm.sampling.stop[0]",
    ),
]


@pytest.mark.parametrize(
    ("limit", "value", "fields", "code", "param"), TABLE, ids=[row[0] for row in TABLE]
)
def test_at_the_limit_is_accepted_and_one_beyond_refused(
    limit: str, value: int, fields: Any, code: str, param: str | None
) -> None:
    limits = dataclasses.replace(DEFAULT_LIMITS, **{limit: value})

    def frame(size: int) -> str:
        return json.dumps({"type": "response.create", "input": "a", **fields(size)})

    decode(frame(value), limits)
    with pytest.raises(ApiError) as refused:
        decode(frame(value + 1), limits)
    assert (refused.value.code, refused.value.param) == (code, param)
    assert str(value) in refused.value.message


@pytest.mark.parametrize("field", dataclasses.fields(Limits), ids=lambda field: field.name)
def test_defaults_are_positive(field: dataclasses.Field[float]) -> None:
    assert getattr(DEFAULT_LIMITS, field.name) > 0


def _takes(limit: int, turns: Counter[str], tenant: str) -> bool:
    return takes_one_more(
        limit, total=turns.total(), held=turns[tenant], tenants=len({*turns, tenant})
    )


def _fill(limit: int, tenants: str) -> dict[str, int]:
    """Of tenants that come one after the other, each with all that is taken."""
    turns: Counter[str] = Counter()
    for tenant in tenants:
        while _takes(limit, turns, tenant):
            turns[tenant] += 1
    return dict(turns)


@pytest.mark.parametrize(
    ("limit", "turns"),
    [
        (0, {}),
        (1, {"a": 1, "b": 1}),
        (4, {"a": 4}),
        (4, {"a": 4, "b": 2}),
        (5, {"a": 5, "b": 3}),
        (4, {"a": 4, "b": 2, "c": 1, "d": 1}),
        (1000, {"a": 1000, "b": 500, "c": 250, "d": 125, "e": 63}),
    ],
)
def test_beyond_a_limit_of_turns_a_tenant_has_its_share_and_half_of_what_is_left(
    limit: int, turns: dict[str, int]
) -> None:
    assert _fill(limit, "".join(turns) or "ab") == turns


@pytest.mark.parametrize("limit", [1, 7, 64, pytest.param(4096, marks=pytest.mark.tail)])
def test_whoever_comes_and_goes_there_are_twice_as_many_turns_at_most(limit: int) -> None:
    rng = random.Random(limit)
    turns: Counter[str] = Counter()
    most = 0
    for _ in range(4000):
        tenant = rng.choice("abcdefghijklmnopqrstuvwxyz")
        if rng.random() < 0.4:
            turns.pop(tenant, None)
        else:
            for _ in range(rng.choice([1, limit])):
                turns[tenant] += _takes(limit, turns, tenant)
        turns = +turns
        most = max(most, turns.total())
    assert limit < most <= 2 * limit
