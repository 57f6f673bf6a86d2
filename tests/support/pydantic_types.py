"""What pydantic 2 can put into a schema: a type for each of its ways, as the parameter of a tool.

Some schemas say less than pydantic checks (``FilePath`` wants a file that is there); of those
only what the schema says can be held to, and their rows say why.
"""

import datetime as dt
import enum
import ipaddress
import re
import uuid
from collections import Counter, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple
from zoneinfo import ZoneInfo

import pydantic
from pydantic import BaseModel, ConfigDict, Field, StringConstraints, create_model
from typing_extensions import TypedDict

Schema = dict[str, Any]


class Colour(enum.Enum):
    RED = "red"
    GREEN = "light, green"


class Level(enum.IntEnum):
    LOW = 1
    HIGH = 20


class Address(BaseModel):
    street: str
    number: int = Field(ge=1)
    tags: list[Literal["home", "work, too", "other"]] = []


class Person(BaseModel):
    name: str = Field(description="Full name", examples=["Ada"], deprecated=True)
    addresses: list[Address]
    friend: "Person | None" = None


class Cat(BaseModel):
    kind: Literal["cat"] = "cat"
    lives: int = 9


class Dog(BaseModel):
    kind: Literal["dog"] = "dog"
    name: str


class Sum(BaseModel):
    op: Literal["sum"] = "sum"
    terms: list["Expression"] = Field(max_length=3)


class Number(BaseModel):
    op: Literal["number"] = "number"
    value: float


Expression = Annotated[Sum | Number, Field(discriminator="op")]
Sum.model_rebuild()


class Movie(TypedDict, total=False):
    title: str
    year: int


class Point(NamedTuple):
    x: float
    y: float = 0.0


@dataclass
class Book:
    isbn: Annotated[str, StringConstraints(pattern=r"^\d{3}-\d{10}$")]
    pages: int = 1


class Closed(BaseModel):
    model_config = ConfigDict(extra="forbid")
    a: int | None
    b: bool


class Open(BaseModel):
    model_config = ConfigDict(extra="allow")
    a: int


WideModel = create_model("WideModel", **{f"field_{i}": (str | None, None) for i in range(300)})
Small = Annotated[str, StringConstraints(max_length=3)]

EXACT: dict[str, Any] = {
    "str": str,
    "int": int,
    "float": float,
    "bool": bool,
    "none": None,
    "any": Any,
    "bytes": bytes,
    "list": list,
    "dict": dict,
    "list of str": list[str],
    "list of literals": list[Literal["desk", "lamp", "a, b", 'quo"te']],
    "list of numbers literals": list[Literal[1, 2, 30]],
    "mixed literals": list[Literal["a", 1, True, None]],
    "one literal": list[Literal["only"]],
    "list of enums": list[Colour],
    "int enum": Level,
    "list of lists": list[list[Literal["x", "y"]]],
    "set of int": set[int],
    "set of literals": set[Literal["a", "b", "c"]],
    "frozenset": frozenset[str],
    "sequence": Sequence[bool],
    "deque": deque[int],
    "pair": tuple[int, str],
    "pair of literals": tuple[Literal["a", "b"], Literal["c"]],
    "tuple": tuple[Literal["a", "b"], ...],
    "empty tuple": tuple[()],
    "dict of int": dict[str, int],
    "mapping": Mapping[str, list[Literal["a", "b"]]],
    "dict by literal": dict[Literal["left", "right"], int],
    "dict by enum": dict[Colour, float],
    "dict by length": dict[Annotated[str, StringConstraints(min_length=2, max_length=4)], int],
    "dict by uuid": dict[uuid.UUID, int],
    "dict by date": dict[dt.date, str],
    "counted dict": Annotated[dict[str, int], Field(min_length=1, max_length=2)],
    "counter": Counter[str],
    "list of uuids": list[uuid.UUID],
    "uuid4": pydantic.UUID4,
    "list of dates": list[dt.date],
    "date": dt.date,
    "datetime": dt.datetime,
    "aware datetime": pydantic.AwareDatetime,
    "time": dt.time,
    "timedelta": dt.timedelta,
    "path": Path,
    "http url": pydantic.HttpUrl,
    "list of urls": list[pydantic.HttpUrl],
    "any url": pydantic.AnyUrl,
    "ipv4": ipaddress.IPv4Address,
    "ipv6": ipaddress.IPv6Address,
    "ipv4 interface": ipaddress.IPv4Interface,
    "any address": pydantic.IPvAnyAddress,
    "secret": pydantic.SecretStr,
    "base64": pydantic.Base64Bytes,
    "pattern": list[Annotated[str, StringConstraints(pattern="^[A-Z]{2}-[0-9]+$")]],
    "long str": Annotated[str, StringConstraints(min_length=100, max_length=120)],
    "bounded int": list[Annotated[int, Field(ge=-5, lt=1000)]],
    "positive int": pydantic.PositiveInt,
    "positive float": pydantic.PositiveFloat,
    "non-positive float": pydantic.NonPositiveFloat,
    "bounded float": Annotated[float, Field(gt=0.5, le=7.25)],
    "multiple": Annotated[int, Field(multiple_of=7)],
    "strict": pydantic.StrictInt | pydantic.StrictBool,
    "union": int | str | list[Literal["a"]],
    "optional": list[Literal["a", "b"]] | None,
    "union of models": Address | Closed,
    "tagged union": Annotated[Cat | Dog, Field(discriminator="kind")],
    "list of tagged": list[Annotated[Cat | Dog, Field(discriminator="kind")]],
    "recursive tagged union": Expression,
    "nested models": Person,
    "closed model": Closed,
    "open model": Open,
    "typed dict": Movie,
    "named tuple": Point,
    "dataclass": Book,
    "300 optional properties": WideModel,
    "700 items": Annotated[list[int], Field(min_length=700)],
    "700 literals": Annotated[list[Literal["a", "b"]], Field(min_length=700)],
    "700 models": Annotated[list[Closed], Field(min_length=700)],
    "bounded list": Annotated[list[Literal["a", "b"]], Field(min_length=2, max_length=4)],
}
"""Pydantic takes whatever their schemas allow."""

LOOSE: dict[str, tuple[Any, str]] = {
    "decimal": (Decimal, "since 2.14 the schema is that of 'float | str'"),
    "fraction": (Fraction, "a number may be too large for a double"),
    "file path": (pydantic.FilePath, "the file has to be there"),
    "directory path": (pydantic.DirectoryPath, "the directory has to be there"),
    "new path": (pydantic.NewPath, "its parent has to be there"),
    "json": (pydantic.Json[list[int]], "the string is only described as JSON"),
    "regex": (re.Pattern, "the expression has to compile"),
    "past date": (pydantic.PastDate, "the day has to be past"),
    "naive datetime": (pydantic.NaiveDatetime, "the format demands a time zone"),
    "base64 text": (pydantic.Base64Str, "the bytes have to be UTF-8"),
    "ipv4 network": (ipaddress.IPv4Network, "the format is nobody's standard"),
    "websocket url": (pydantic.WebsocketUrl, "the schema is that of HttpUrl"),
    "file url": (pydantic.FileUrl, "the schema is that of AnyUrl"),
    "dsn": (pydantic.PostgresDsn, "the schema names no scheme"),
    "time zone": (ZoneInfo, "the zone has to be known"),
    "size": (pydantic.ByteSize, "the unit has to be known"),
    "dict by int": (dict[int, str], "the schema says nothing of the names"),
    "dict by pattern": (
        dict[Annotated[str, StringConstraints(pattern="^[a-z]{1,3}$")], int],
        "the schema allows other names",
    ),
    "set of two": (Annotated[set[int], Field(min_length=2)], "items that are equal count once"),
}
"""Their schemas say less than pydantic checks."""


def old_decimal(max_digits: int | None, places: int | None) -> Schema:
    """A decimal as pydantic before 2.14 describes it."""
    if max_digits is not None and places is not None:
        whole = max(0, max_digits - places)
        body = (
            rf"(?:\d{{0,{whole}}}|(?=[\d.]{{1,{max_digits + 1}}}0*$)"
            rf"\d{{0,{whole}}}\.\d{{0,{places}}}0*$)"
        )
    elif max_digits is not None:
        body = rf"(?:\d{{0,{max_digits}}}|(?=[\d.]{{1,{max_digits + 1}}}0*$)\d*\.\d*0*$)"
    elif places is not None:
        body = rf"\d*\.?\d{{0,{places}}}0*$"
    else:
        body = r"\d*\.?\d*$"
    pattern = r"^(?!^[-+.]*$)[+-]?0*" + body
    return {"anyOf": [{"type": "number"}, {"type": "string", "pattern": pattern}]}


def _money(max_digits: int | None, places: int | None) -> Any:
    field = Field(max_digits=max_digits, decimal_places=places)
    described = pydantic.WithJsonSchema(old_decimal(max_digits, places))
    return Annotated[Decimal, field, described]


EXACT |= {
    "old decimal": _money(None, None),
    "old money": _money(8, 2),
    "old digits": _money(5, None),
    "old places": _money(None, 3),
    "list of old money": list[_money(6, 2)],  # type: ignore[misc]
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A tool with one argument of a type."""

    name: str
    model: type[BaseModel]
    loose: str | None
    """Why a value that the schema allows may be refused."""

    @property
    def parameters(self) -> Schema:
        return self.model.model_json_schema()


def cases() -> list[Case]:
    """All types, as tools whose one argument they are."""
    found = []
    for name, kind in EXACT.items():
        found.append(_case(name, kind, None))
    for name, (kind, reason) in LOOSE.items():
        found.append(_case(name, kind, reason))
    return found


def _case(name: str, kind: Any, loose: str | None) -> Case:
    model = create_model("Arguments", value=(kind, ...))
    return Case(name=name, model=model, loose=loose)
