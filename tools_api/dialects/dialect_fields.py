"""A foreign body field by field: what it must be, what is refused, and what errors call it.

Shared by the dialects. Checks of a value that ``response.create`` makes itself are not made
here: such a field is passed on, and when it is refused later ``FieldNames`` says the refusal
in the dialect's own words. Knows no dialect.

Always true: a field that is neither served nor refused by its own reason is refused as unknown;
null equals absent.
"""

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from tools_api import errors
from tools_api.errors import ApiError
from tools_api.json_fields import join, without_nulls

Fields = dict[str, Any]


class NamedError(ApiError):
    """A refusal that names the dialect's own field already."""


@contextmanager
def own_names() -> Iterator[None]:
    """Marks what is refused inside: its fields are the dialect's, not those of a
    ``response.create``."""
    try:
        yield
    except ApiError as error:
        raise NamedError(
            error.message,
            code=error.code,
            param=error.param,
            status=error.status,
            type=error.type,
        ) from None


@dataclass(frozen=True, slots=True, kw_only=True)
class FieldNames:
    """A dialect's names for the fields of a ``response.create``."""

    rules: tuple[tuple[str, str], ...]
    """Pattern of a whole path there, and the path here; the first that fits counts. A path
    that none fits is the same in both."""

    def of(self, param: str) -> str:
        """The path by which this endpoint's clients know a field."""
        for pattern, name in self.rules:
            found = re.fullmatch(pattern, param)
            if found is not None:
                return found.expand(name)
        return param

    def error(self, error: ApiError) -> ApiError:
        """The same refusal, its field named as the client knows it."""
        if error.param is None or isinstance(error, NamedError):
            return error
        name = self.of(error.param)
        return NamedError(
            error.message.replace(f"'{error.param}'", f"'{name}'"),
            code=error.code,
            param=name,
            status=error.status,
            type=error.type,
        )


def known_fields(body: object, known: frozenset[str], refused: Mapping[str, str]) -> Fields:
    """The body without nulls.

    Args:
        refused: reasons, by the fields that are published and not served.

    Raises:
        ApiError: it is no object, or has a field that is not in ``known``.
    """
    if not isinstance(body, dict):
        raise ApiError(
            f"The body is not a JSON object: it is {errors.type_name(body)}.", code="invalid_json"
        )
    fields = without_nulls(body)
    for name in fields:
        if name in refused:
            raise errors.unsupported_parameter(name, refused[name])
        if name not in known:
            raise errors.unsupported_parameter(
                name[: errors.MAX_QUOTED], "this endpoint has no such field"
            )
    return fields


def refuse_others(value: Fields, known: frozenset[str], path: str) -> None:
    """Refuse keys of an object inside the body that are not in ``known``."""
    for name in without_nulls(value):
        if name not in known:
            raise errors.unsupported_parameter(
                join(path, name[: errors.MAX_QUOTED]), "there is no such field here"
            )


def picked(fields: Fields, names: tuple[str, ...]) -> Fields:
    """Those of ``names`` that are there."""
    return {name: fields[name] for name in names if fields.get(name) is not None}


def an_object(value: object, path: str) -> Fields:
    """``value`` without nulls, which is required."""
    if value is None:
        raise errors.missing_parameter(path)
    if not isinstance(value, dict):
        raise errors.invalid_type(path, "an object", value)
    return without_nulls(value)


def an_array(value: object, path: str) -> list[Any]:
    """``value``, which is required."""
    if value is None:
        raise errors.missing_parameter(path)
    if not isinstance(value, list):
        raise errors.invalid_type(path, "an array", value)
    return value


def a_string(value: object, path: str) -> str:
    """``value``, which is required."""
    if value is None:
        raise errors.missing_parameter(path)
    if not isinstance(value, str):
        raise errors.invalid_type(path, "a string", value)
    return value


def a_name(value: object, path: str) -> str:
    """``value``, a required string that is not empty."""
    text = a_string(value, path)
    if not text:
        raise errors.invalid_value(path, "it is empty")
    return text


def a_flag(value: object, path: str) -> bool:
    """``value``; false if it is absent."""
    if value is None:
        return False
    if not isinstance(value, bool):
        raise errors.invalid_type(path, "a boolean", value)
    return value


def a_count(value: object, path: str, *, least: int) -> int:
    """``value``, a required integer of at least ``least``."""
    if value is None:
        raise errors.missing_parameter(path)
    if not isinstance(value, int) or isinstance(value, bool):
        raise errors.invalid_type(path, "an integer", value)
    if value < least:
        raise errors.invalid_value(path, f"less than {least}")
    return value


def objects(value: object, path: str) -> Iterator[tuple[str, Fields]]:
    """The entries of an array of objects, each with its path."""
    for index, entry in enumerate(an_array(value, path)):
        at = join(path, index)
        yield at, an_object(entry, at)


def parts_of(content: object, path: str) -> list[tuple[str, Fields]]:
    """The parts of a required content, each with its path; a string is one part of text."""
    if content is None:
        raise errors.missing_parameter(path)
    if isinstance(content, str):
        return [(path, {"type": "text", "text": content})]
    if not isinstance(content, list):
        raise errors.invalid_type(path, "a string or an array", content)
    return list(objects(content, path))


def one_of(kind: object, path: str, noun: str, known: tuple[str, ...]) -> str:
    """``kind``, which has to be one of ``known``; refused by name otherwise."""
    text = a_string(kind, path)
    if text not in known:
        raise errors.unsupported_parameter(
            path,
            f"{noun} {errors.quoted(text)} is not supported; supported are {', '.join(known)}",
        )
    return text


def vendor_options(fields: Fields, sampling: Fields) -> Fields:
    """The client's own ``keepwarm`` object, with what the dialect says of sampling in it.

    Raises:
        ApiError: no object, or something is said in both.
    """
    options = an_object(fields.get("keepwarm", {}), "keepwarm")
    if not sampling:
        return options
    path = "keepwarm.sampling"
    given = an_object(options.get("sampling", {}), path)
    for name in sampling:
        if name in given:
            raise errors.invalid_value(join(path, name), "it is given outside of this object too")
    return options | {"sampling": given | sampling}


def names_session(create: Fields) -> bool:
    """Whether the turn continues a session by its name, so that its input may be only what is
    new."""
    metadata = create.get("metadata")
    options: Fields = create.get("keepwarm", {})
    named = options.get("session") is not None
    return named or (isinstance(metadata, dict) and "keepwarm.session" in metadata)
