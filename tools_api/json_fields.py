"""An object of parsed JSON read field by field: what a field must be, and where the fault is.

Null equals absent, no type is converted into another, unknown keys are the reader's business.
Faults are ``ApiError`` with the path of the field. Nothing here is slow to import: a client
reads what its server says with it.
"""

from collections.abc import Mapping
from typing import Any, Literal, overload

from tools_api import errors


class Fields:
    """The fields of one object and its path."""

    __slots__ = ("_path", "_raw")

    def __init__(self, raw: object, path: str) -> None:
        """Raises ApiError: ``raw`` is no object."""
        if not isinstance(raw, dict):
            raise errors.invalid_type(path, "an object", raw)
        self._raw: Mapping[str, Any] = raw
        self._path = path

    def of(self, name: str) -> Any:
        """The value of a field, unchecked; None if it is absent."""
        return self._raw.get(name)

    def path(self, name: str) -> str:
        """The path of one of the fields, for an error."""
        return join(self._path, name)

    def required(self, name: str) -> Any:
        """The value of a field, unchecked, which is no null."""
        value = self._raw.get(name)
        if value is None:
            raise errors.missing_parameter(self.path(name))
        return value

    @overload
    def text(self, name: str, *, least: int = 0, most: int | None = None) -> str: ...

    @overload
    def text(
        self, name: str, *, least: int = 0, most: int | None = None, absent: Literal[True]
    ) -> str | None: ...

    def text(
        self, name: str, *, least: int = 0, most: int | None = None, absent: bool = False
    ) -> str | None:
        """A string of ``least`` to ``most`` characters; ``absent``: it may be, and is None."""
        value = self._raw.get(name) if absent else self.required(name)
        if value is None:
            return None
        if not isinstance(value, str):
            raise errors.invalid_type(self.path(name), "a string", value)
        if len(value) < least:
            raise errors.invalid_value(self.path(name), f"shorter than {_characters(least)}")
        if most is not None and len(value) > most:
            raise errors.invalid_value(self.path(name), f"longer than {_characters(most)}")
        return value

    def choice(self, name: str, of: Any, *, absent: bool = False) -> Any:
        """One of the strings of the ``Literal`` type ``of``."""
        value = self._raw.get(name) if absent else self.required(name)
        if value is None:
            return None
        allowed = of.__args__
        if not isinstance(value, str) or value not in allowed:
            found = f", got {errors.quoted(str(value))}" if isinstance(value, str | int) else ""
            *first, last = map(repr, allowed)
            said = f"{', '.join(first)} or {last}" if first else last
            raise errors.invalid_value(self.path(name), f"should be {said}{found}")
        return value

    def flag(self, name: str, default: bool) -> bool:
        """A boolean, or the default."""
        value = self._raw.get(name)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise errors.invalid_type(self.path(name), "a boolean", value)
        return value


def _characters(count: int) -> str:
    return f"{count} character{'' if count == 1 else 's'}"


def without_nulls(raw: dict[str, Any]) -> dict[str, Any]:
    """``raw`` without null values on its own level; ``raw`` itself if it has none."""
    if None not in raw.values():
        return raw
    return {key: value for key, value in raw.items() if value is not None}


def join(base: str, *location: str | int) -> str:
    """Path in the form the protocol uses: ``join("tools", 0, "name")`` is ``tools[0].name``."""
    path = base
    for step in location:
        if isinstance(step, int):
            path += f"[{step}]"
        else:
            path += f".{step}" if path else step
    return path


def depth_of(value: object) -> int:
    """Levels of arrays and objects in parsed JSON; 0 for a scalar. Does not recurse."""
    depth, level = 0, [value]
    while level := [part for part in level if isinstance(part, dict | list)]:
        depth += 1
        level = [
            child for part in level for child in (part.values() if isinstance(part, dict) else part)
        ]
    return depth
