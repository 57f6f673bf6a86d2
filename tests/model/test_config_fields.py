"""Fields are read with their types, and what nobody read must change nothing."""

from pathlib import Path
from typing import Any

import pytest

from runtime.model.config import LoadError
from runtime.model.config_fields import _NEUTRAL, Fields

PATH = Path("folder/config.json")


@pytest.mark.parametrize(
    ("method", "value", "wanted"),
    [
        ("size", 1.5, "a whole number of at least 1"),
        ("size", True, "a whole number of at least 1"),
        ("size", "3", "a whole number of at least 1"),
        ("size", 1 << 31, "a whole number of at least 1"),
        ("number", "3", "a number"),
        ("number", False, "a number"),
        ("number", -1, "a finite number of at least 0"),
        ("number", float("nan"), "a finite number of at least 0"),
        ("number", 10**400, "a finite number of at least 0"),
        ("flag", 1, "true or false"),
        ("text", 1, "a string"),
        ("within", [1], "an object"),
        ("numbers", 3, "a list of numbers above 0"),
        ("numbers", [1, 0], "a list of numbers above 0"),
        ("numbers", [1, 10**400], "a list of numbers above 0"),
        ("numbers", ["1"], "a list of numbers above 0"),
    ],
)
def test_a_value_of_another_type_is_named_with_what_is_wanted(
    method: str, value: Any, wanted: str
) -> None:
    fields = Fields(PATH, {"name": value}, prefix="text_config.")
    arguments = (False,) if method == "flag" else ()
    with pytest.raises(LoadError) as caught:
        getattr(fields, method)("name", *arguments)
    text = str(caught.value)
    assert text.startswith("folder/config.json: field text_config.name is ")
    assert text.endswith(f", not {wanted}")
    assert "\n" not in text
    assert len(text) < 250


@pytest.mark.parametrize("name", _NEUTRAL)
def test_what_changes_arithmetic_and_is_not_read_is_refused(name: str) -> None:
    for neutral in (*_NEUTRAL[name], None):
        Fields(PATH, {name: neutral}).check_rest()
    strange = Fields(PATH, {name: 0.37})
    with pytest.raises(LoadError, match=f"field {name} is 0.37, not .*computes without it"):
        strange.check_rest()
    strange.get(name)
    strange.check_rest()


def test_an_object_within_one_is_read_by_its_full_name() -> None:
    inner = Fields(PATH, {"a": {"b": {"c": "x"}}}).within("a")
    assert inner is not None
    deeper = inner.within("b")
    assert deeper is not None
    with pytest.raises(LoadError, match=r"field a\.b\.c is 'x', not a number"):
        deeper.number("c")
    assert inner.within("absent") is None


def test_defaults_fill_what_is_absent_and_reading_them_is_reading_the_fields() -> None:
    fields = Fields(PATH, {"logits_scaling": 3, "head_dim": None})
    fuller = fields.with_defaults({"logits_scaling": 1, "hidden_size": 8})
    assert (fuller.number("logits_scaling"), fuller.size("hidden_size")) == (3.0, 8)
    fields.check_rest()
