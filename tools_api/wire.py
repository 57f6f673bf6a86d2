"""The door for bytes from outside: JSON text to checked, frozen objects.

``parse_json`` bounds depth and size of a frame before any parser sees it. ``WireModel`` is
the base of what pydantic reads from the wire: null equals absent, unknown keys are ignored,
no type is converted into another. ``validate`` turns a fault into an ``ApiError`` that
names the path. What the fields mean is said by the modules that define the models.
"""

from typing import Any, TypeVar

import orjson
from pydantic import BaseModel, ConfigDict, ValidationError, model_validator

from tools_api import errors
from tools_api.errors import ApiError
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

    Of equal keys in one object the last one counts. NaN, infinities and numbers that only
    an infinity could hold, lone surrogates and invalid UTF-8 are faults.

    Raises:
        ApiError: ``invalid_json``.
    """
    text = frame.encode("utf-8", "surrogatepass") if isinstance(frame, str) else frame
    _bound(text, limits, what)
    try:
        parsed = orjson.loads(text)
    except orjson.JSONDecodeError as error:
        raise errors.invalid_json(str(error), what) from None
    if not isinstance(parsed, dict):
        raise errors.invalid_json(f"it is {errors.type_name(parsed)}", what)
    return parsed


def _bound(text: bytes, limits: Limits, what: str) -> None:
    """Refuse text nested too deep or with too many values, in time linear in its length.

    Works on bytes alone: first what stands in strings is cut out, then pairs of brackets
    are deleted from the inside out, one level at a time. On malformed text the figures may
    be wrong behind the fault, where no parser arrives.
    """
    text = text.replace(b"\\\\", b"").replace(b'\\"', b"")
    if text.count(b'"') > 2 * limits.max_json_values:
        raise errors.invalid_json(f"more than {limits.max_json_values} strings", what)
    structure = b"".join(text.split(b'"')[::2])
    if sum(map(structure.count, (b",", b"[", b"{"))) > limits.max_json_values:
        raise errors.invalid_json(f"more than {limits.max_json_values} values", what)
    brackets = structure.translate(_TO_SQUARE, delete=_NOT_BRACKETS)
    for _ in range(limits.max_json_depth):
        brackets = brackets.replace(b"[]", b"")
    if b"[]" in brackets or brackets.count(b"[") > limits.max_json_depth:
        raise errors.invalid_json(f"nested deeper than {limits.max_json_depth} levels", what)


_TO_SQUARE = bytes.maketrans(b"{}", b"[]")
_NOT_BRACKETS = bytes(byte for byte in range(256) if byte not in b"[]{}")
