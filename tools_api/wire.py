"""The door for bytes from outside: JSON text to checked, frozen objects.

``parse_json`` bounds depth and size of a frame before any parser sees it, and its numbers
before anything reckons with them. ``WireModel`` is
the base of what pydantic reads from the wire: null equals absent, unknown keys are ignored,
no type is converted into another. ``validate`` turns a fault into an ``ApiError`` that
names the path. What the fields mean is said by the modules that define the models.
"""

import re
from decimal import Decimal
from functools import cache
from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError, model_validator

from tools_api import errors, exact_json
from tools_api.errors import ApiError
from tools_api.exact_numbers import num_digits
from tools_api.json_bounds import bounded
from tools_api.json_fields import join, without_nulls
from tools_api.limits import Limits


class WireModel(BaseModel):
    """Base of what is read from the wire: unknown keys are ignored, no type is converted."""

    model_config = ConfigDict(frozen=True, extra="ignore", strict=True, populate_by_name=True)

    @model_validator(mode="before")
    @classmethod
    def _null_equals_absent(cls, raw: Any) -> Any:
        return without_nulls(raw) if isinstance(raw, dict) else raw


Model = TypeVar("Model", bound=WireModel)


def validate(model: type[Model], raw: object, path: str) -> Model:
    """Make a ``model`` of parsed JSON.

    Raises:
        ApiError: for the first fault, with its path under ``path`` as ``param``.
    """
    if not isinstance(raw, dict):
        raise errors.invalid_type(path, "an object", raw)
    try:
        return model.model_validate(raw)
    except ValidationError as error:
        fault = error.errors(include_url=False)[0]
        raise _as_api_error(fault, path) from None


def refuse_unprintable(name: str | None, path: str) -> None:
    """Names and ids are kept and looked up as text, which not every store can do with NUL.

    Raises:
        ApiError: ``name`` has characters that cannot be printed.
    """
    if name is not None and not name.isprintable():
        raise errors.invalid_value(path, "it has unprintable characters")


def _as_api_error(fault: Any, base: str) -> ApiError:
    path, kind, found = join(base, *fault["loc"]), fault["type"], fault["input"]
    if kind == "missing":
        return errors.missing_parameter(path)
    if kind == "extra_forbidden":
        return errors.invalid_value(path, "unknown key")
    reason = fault["msg"].removeprefix("Value error, ")
    if kind.endswith("_type"):
        return errors.invalid_type(path, reason.removeprefix("Input should be "), found)
    shown = f", got {errors.quoted(str(found))}" if isinstance(found, str | int | float) else ""
    return errors.invalid_value(path, reason.removeprefix("Input ") + shown)


def parse_json(frame: str | bytes, limits: Limits, what: str = "frame") -> dict[str, Any]:
    """Parse one frame, or the body of a request (``what`` an error calls it).

    Of equal keys in one object the last one counts. NaN, infinities and invalid UTF-8 are faults;
    an escaped half of a surrogate pair is U+FFFD. Numbers are as ``exact_json.loads`` has them.

    Raises:
        ApiError: ``invalid_json``; ``invalid_value`` for a number that is too long.
    """
    text = frame.encode("utf-8", "surrogatepass") if isinstance(frame, str) else frame
    try:
        structure = bounded(
            text, most_values=limits.max_json_values, most_levels=limits.max_json_depth
        )
        parsed = exact_json.loads(text, structure)
    except ValueError as error:
        raise errors.invalid_json(str(error), what) from None
    if not isinstance(parsed, dict):
        raise errors.invalid_json(f"it is {errors.type_name(parsed)}", what)
    if _long_number(limits.max_number_digits).search(structure) is not None:
        _refuse_long_numbers(parsed, limits)
    return parsed


def _refuse_long_numbers(parsed: dict[str, Any], limits: Limits) -> None:
    """Nobody can compare, convert or write a number that is long enough in bounded time."""
    most = limits.max_number_digits
    values: list[tuple[str, Any]] = list(parsed.items())
    while values:
        path, value = values.pop()
        if isinstance(value, dict):
            values += ((join(path, key), inner) for key, inner in value.items())
        elif isinstance(value, list):
            values += ((join(path, index), inner) for index, inner in enumerate(value))
        elif isinstance(value, int | Decimal) and num_digits(value) > most:
            raise errors.invalid_value(
                path, f"a number of more than {most} digits; send it as a string"
            )


@cache
def _long_number(most: int) -> re.Pattern[bytes]:
    """A number that may have more than ``most`` places."""
    return re.compile(rb"[0-9.]{%d}|[0-9][eE]" % (most + 1))
