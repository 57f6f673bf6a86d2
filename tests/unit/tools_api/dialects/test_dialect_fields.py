"""Fields of foreign bodies: what they must be, and what refusals call them."""

from typing import Any

import pytest

from tools_api import errors
from tools_api.dialects.dialect_fields import (
    FieldNames,
    NamedError,
    a_count,
    a_flag,
    a_name,
    an_array,
    an_object,
    known_fields,
    names_session,
    objects,
    one_of,
    own_names,
    parts_of,
    refuse_others,
    vendor_options,
)
from tools_api.errors import ApiError

NAMES = FieldNames(rules=((r"input\b.*", "messages"), (r"a\.(b|c)(.*)", r"\1\2")))


@pytest.mark.parametrize(
    ("param", "name"),
    [
        ("input", "messages"),
        ("input[3].content", "messages"),
        ("inputs", "inputs"),
        ("a.b", "b"),
        ("a.c[0]", "c[0]"),
        ("a.d", "a.d"),
        ("model", "model"),
    ],
)
def test_a_path_is_renamed_by_the_first_rule_that_fits_it_whole(param: str, name: str) -> None:
    assert NAMES.of(param) == name


def test_a_refusal_is_said_again_in_the_dialects_words() -> None:
    said = NAMES.error(errors.invalid_type("a.b", "a string", 5))
    assert said.param == "b"
    assert said.message == "Invalid type for 'b': expected a string, got an integer."
    assert (said.code, said.status, said.type) == ("invalid_type", 400, "invalid_request_error")


def test_a_refusal_that_has_the_dialects_words_keeps_them() -> None:
    with pytest.raises(NamedError) as raised, own_names():
        raise errors.unsupported_parameter("input", "no such field")
    assert NAMES.error(raised.value) is raised.value
    assert raised.value.param == "input"


def test_a_refusal_without_a_field_stays_as_it_is() -> None:
    error = errors.overloaded("busy")
    assert NAMES.error(error) is error


def test_fields_are_the_known_ones_without_nulls() -> None:
    fields = known_fields({"a": 1, "b": None, "c": None}, frozenset("ab"), {})
    assert fields == {"a": 1}


@pytest.mark.parametrize(
    ("body", "param", "code"),
    [
        ({"x": 1}, "x", "unsupported_parameter"),
        ({"n": 2}, "n", "unsupported_parameter"),
        ({"x" * 500: 1}, "x" * 80, "unsupported_parameter"),
        ([], None, "invalid_json"),
        (None, None, "invalid_json"),
    ],
)
def test_other_fields_and_other_bodies_are_refused(body: Any, param: str | None, code: str) -> None:
    with pytest.raises(ApiError) as raised:
        known_fields(body, frozenset("ab"), {"n": "one at a time"})
    assert (raised.value.param, raised.value.code) == (param, code)


def test_keys_inside_are_refused_by_their_path() -> None:
    refuse_others({"a": 1, "b": None}, frozenset("a"), "at")
    with pytest.raises(ApiError, match=r"'at\.b'"):
        refuse_others({"a": 1, "b": 2}, frozenset("a"), "at")


@pytest.mark.parametrize(
    ("check", "value", "code"),
    [
        (an_object, None, "missing_required_parameter"),
        (an_object, [], "invalid_type"),
        (an_array, None, "missing_required_parameter"),
        (an_array, {}, "invalid_type"),
        (a_name, None, "missing_required_parameter"),
        (a_name, 1, "invalid_type"),
        (a_name, "", "invalid_value"),
        (a_flag, 1, "invalid_type"),
        (parts_of, None, "missing_required_parameter"),
        (parts_of, 5, "invalid_type"),
        (parts_of, [5], "invalid_type"),
    ],
)
def test_a_value_of_another_kind_is_refused(check: Any, value: Any, code: str) -> None:
    with pytest.raises(ApiError) as raised:
        check(value, "at")
    assert raised.value.code == code
    assert raised.value.param in ("at", "at[0]")


@pytest.mark.parametrize("value", [None, True, 1.0, "1", 1])
def test_a_count_is_an_integer_of_at_least_its_least(value: Any) -> None:
    assert a_count(2, "at", least=2) == 2
    with pytest.raises(ApiError):
        a_count(value, "at", least=2)


def test_entries_have_their_paths_and_lose_their_nulls() -> None:
    assert list(objects([{"a": 1}, {"b": None}], "at")) == [("at[0]", {"a": 1}), ("at[1]", {})]


def test_a_string_is_one_part() -> None:
    assert parts_of("hi", "at") == [("at", {"type": "text", "text": "hi"})]
    assert parts_of([{"type": "x"}], "at") == [("at[0]", {"type": "x"})]


def test_a_kind_is_refused_by_its_name_with_those_that_are_served() -> None:
    assert one_of("a", "at", "kind", ("a", "b")) == "a"
    with pytest.raises(ApiError, match="'at': kind 'c' is not supported; supported are a, b"):
        one_of("c", "at", "kind", ("a", "b"))


def test_sampling_joins_the_clients_own_options() -> None:
    body = {"keepwarm": {"session": "s", "sampling": {"min_p": 0.1}}}
    assert vendor_options(body, {"seed": 7}) == {
        "session": "s",
        "sampling": {"min_p": 0.1, "seed": 7},
    }
    assert body["keepwarm"]["sampling"] == {"min_p": 0.1}, "the body is the caller's"
    assert vendor_options({}, {}) == {}


def test_what_is_said_twice_is_refused() -> None:
    with pytest.raises(ApiError, match=r"'keepwarm\.sampling\.seed'"):
        vendor_options({"keepwarm": {"sampling": {"seed": 1}}}, {"seed": 1})


@pytest.mark.parametrize(
    ("create", "named"),
    [
        ({}, False),
        ({"keepwarm": {"lenient": True}}, False),
        ({"keepwarm": {"session": "s"}}, True),
        ({"metadata": {"a": "b"}}, False),
        ({"metadata": {"keepwarm.session": "s"}}, True),
        ({"metadata": 5}, False),
    ],
)
def test_a_session_is_named_in_either_place(create: dict[str, Any], named: bool) -> None:
    assert names_session(create) == named
