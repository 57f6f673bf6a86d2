"""Values of JSON as fields of dataclasses: exact, or an error that names the field."""

import enum
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import pytest

from runtime.process.field_types import INT64, WrongField, build, checked


class Colour(enum.Enum):
    RED = "red"


@dataclass(frozen=True, kw_only=True)
class Inner:
    name: str
    weight: float = 1.0


@dataclass(frozen=True, kw_only=True)
class Outer:
    count: int
    seed: int = 0
    ready: bool = False
    colour: Colour = Colour.RED
    mode: Literal["on", "off"] = "on"
    inner: Inner | None = None
    names: tuple[str, ...] = ()
    pairs: tuple[tuple[int, float], ...] = ()
    seconds: list[float] = field(default_factory=list)
    causes: dict[str, int] = field(default_factory=dict)
    tokens: npt.NDArray[np.int32] | None = None
    either: int | str = 0


def test_all_kinds_of_fields_are_read_exactly() -> None:
    found = build(
        Outer,
        {
            "count": 3,
            "ready": True,
            "colour": "red",
            "mode": "off",
            "inner": {"name": "x", "weight": 2},
            "names": ["a", "b"],
            "pairs": [[1, 0.5]],
            "seconds": [1, 2.5],
            "causes": {"new": 4},
        },
    )
    assert found == Outer(
        count=3,
        ready=True,
        mode="off",
        inner=Inner(name="x", weight=2.0),
        names=("a", "b"),
        pairs=((1, 0.5),),
        seconds=[1.0, 2.5],
        causes={"new": 4},
    )
    assert type(found.inner and found.inner.weight) is float


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (None, "Outer is null"),
        ([], "Outer is list"),
        ({}, "Outer lacks count"),
        ({"count": 1, "more": 2}, "no field 'more'"),
        ({"count": True}, "Outer.count: bool True, not int"),
        ({"count": 1.0}, "Outer.count"),
        ({"count": -1}, "Outer.count: -1 is not in"),
        ({"count": INT64 + 1}, "Outer.count"),
        ({"count": 1, "ready": 1}, "Outer.ready"),
        ({"count": 1, "colour": "blue"}, "Outer.colour: str 'blue', not one of red"),
        ({"count": 1, "colour": []}, "Outer.colour"),
        ({"count": 1, "mode": "maybe"}, "Outer.mode"),
        ({"count": 1, "mode": None}, "Outer.mode"),
        ({"count": 1, "inner": {"name": 5}}, "Outer.inner: Inner.name"),
        ({"count": 1, "inner": {}}, "Outer.inner: Inner lacks name"),
        ({"count": 1, "names": "ab"}, "Outer.names"),
        ({"count": 1, "names": [1]}, "Outer.names"),
        ({"count": 1, "names": ["\0" * 100, 1]}, "Outer.names"),
        ({"count": 1, "pairs": [[1]]}, "Outer.pairs"),
        ({"count": 1, "pairs": [[0.5, 1]]}, "Outer.pairs"),
        ({"count": 1, "seconds": {"a": 1}}, "Outer.seconds"),
        ({"count": 1, "seconds": [None]}, "Outer.seconds"),
        ({"count": 1, "causes": {"new": -1}}, "Outer.causes"),
        ({"count": 1, "causes": []}, "Outer.causes"),
        ({"count": 1, "tokens": [1, 2]}, "Outer.tokens"),
        ({"count": 1, "either": 5}, "Outer.either"),
    ],
)
def test_anything_else_is_an_error_that_names_the_field(value: Any, said: str) -> None:
    with pytest.raises(WrongField) as caught:
        build(Outer, value)
    assert said in str(caught.value)
    assert len(str(caught.value)) < 300


@pytest.mark.parametrize(("seed", "fits"), [(2**64 - 1, True), (2**64, False), (-1, False)])
def test_some_numbers_have_a_range_of_their_own(seed: int, fits: bool) -> None:
    value = {"count": 1, "seed": seed}
    if fits:
        assert build(Outer, value).seed == seed
    else:
        with pytest.raises(WrongField, match="seed"):
            build(Outer, value)


def test_what_is_given_beside_the_json_cannot_be_in_it() -> None:
    tokens = np.arange(2, dtype=np.int32)
    assert build(Outer, {"count": 1}, tokens=tokens).tokens is tokens
    with pytest.raises(WrongField, match="no field 'tokens'"):
        build(Outer, {"count": 1, "tokens": None}, tokens=tokens)


def test_one_field_alone_can_be_checked() -> None:
    assert checked(Outer, "count", 7) == 7
    with pytest.raises(WrongField, match=r"Outer\.count"):
        checked(Outer, "count", "7")
