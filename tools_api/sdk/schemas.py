"""Types as JSON schemas in the strict form that is enforced, and answers read as such types.

``pydantic.TypeAdapter`` is named in full: pydantic loads its module when it is first asked for,
and a client whose answers are text never asks.
"""

from contextlib import suppress
from typing import Any

import pydantic
from pydantic_core import SchemaError

from tools_api.exact_json import loads, may_have_decimals, whole_pairs


def strict_schema(model: Any) -> dict[str, Any]:
    """JSON schema of a type in the strict form: every key required, no other keys.

    Titles and defaults are left out: the first cost prompt tokens, the second say nothing
    where every key is required.

    Args:
        model: a pydantic model, or any type that pydantic has a JSON schema for.

    Raises:
        TypeError: it is none.
    """
    try:
        return _strict(pydantic.TypeAdapter(model).json_schema())
    except (pydantic.errors.PydanticUserError, SchemaError) as error:
        said = str(error).splitlines()[0]
        raise TypeError(f"{model!r} is no type that has a JSON schema: {said}") from error


def json_format(model: Any) -> dict[str, Any]:
    """The ``text`` option that makes the answer a JSON value of ``model``."""
    schema, name = strict_schema(model), getattr(model, "__name__", "answer")
    return {"format": {"type": "json_schema", "name": name, "schema": schema, "strict": True}}


def read_json(model: Any, text: str) -> Any:
    """JSON text as a value of ``model``, a ``Decimal`` in it to the last digit.

    Raises:
        ValidationError: it is none.
    """
    adapter = pydantic.TypeAdapter(model)
    if may_have_decimals(text):
        with suppress(ValueError):
            return adapter.validate_python(loads(text))
    return adapter.validate_json(whole_pairs(text.encode("utf-8", "replace")))


def _strict(schema: dict[str, Any]) -> dict[str, Any]:
    strict: dict[str, Any] = {}
    for key, value in schema.items():
        if key in ("properties", "$defs"):
            strict[key] = {name: _strict(child) for name, child in value.items()}
        elif key in ("anyOf", "oneOf", "allOf", "prefixItems"):
            strict[key] = [_strict(child) for child in value]
        elif key in ("items", "additionalProperties") and isinstance(value, dict):
            strict[key] = _strict(value)
        elif key not in ("title", "default"):
            strict[key] = value
    if "properties" in strict:
        strict["required"] = list(strict["properties"])
        strict["additionalProperties"] = False
    return strict
