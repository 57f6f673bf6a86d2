"""What tools return as text: JSON, errors, and long outputs cut in their middle."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tools_api.sdk.tool_output import cut, error_text, output_text


class Odd:
    def __repr__(self) -> str:
        return "something odd"


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("as it is", "as it is"),
        (None, "null"),
        ({"a": [1, 2.5]}, '{"a":[1,2.5]}'),
        (b"bytes", '"bytes"'),
        ({1, }, "[1]"),
    ],
)  # fmt: skip
def test_a_value_becomes_text(value: object, text: str) -> None:
    assert output_text(value) == text


def test_what_is_no_json_is_written_as_well_as_can_be() -> None:
    assert "odd" in output_text(Odd())


def test_what_contains_itself_is_written_once() -> None:
    ring: list[Any] = []
    ring.append(ring)
    assert output_text(ring) == '["..."]'


def test_what_breaks_while_it_is_written_is_an_error() -> None:
    with pytest.raises(ValueError, match="utf-8"):
        output_text({"a": b"\xff"})


def test_an_error_names_its_type() -> None:
    assert error_text(KeyError("x")) == '{"error":"KeyError: \'x\'"}'


@pytest.mark.parametrize("letter", ["a", "é", "☃", "😀"])
def test_long_text_keeps_head_and_tail_and_says_what_is_missing(letter: str) -> None:
    text = "HEAD" + letter * 10_000 + "TAIL"
    short, left_out = cut(text, 1000)
    assert len(short.encode()) <= 1000
    assert short.startswith("HEAD" + letter)
    assert short.endswith(letter + "TAIL")
    assert f"{left_out} bytes left out" in short
    kept = len("".join(short.split(f"\n[... {left_out} bytes left out here by the tool's "
                                   "max_output_bytes ...]\n")).encode())  # fmt: skip
    assert kept + left_out == len(text.encode())
    assert len(short.encode()) > 980


@pytest.mark.parametrize(("length", "is_cut"), [(1000, False), (1001, True)])
def test_the_bound_is_exact(length: int, is_cut: bool) -> None:
    text, left_out = cut("x" * length, 1000)
    assert (left_out > 0) is is_cut
    assert len(text.encode()) <= 1000


def test_fifty_megabytes_are_cut() -> None:
    text, left_out = cut("x" * 50_000_000, 16 * 1024)
    assert len(text) <= 16 * 1024
    assert left_out > 49_900_000


def test_lone_surrogates_do_no_harm() -> None:
    cut("\ud800" * 5000, 1000)[0].encode()


@dataclass
class Found:
    path: str


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("name \udcff", "name \ufffd"),
        ({"name \udcff": 1}, '{"name \ufffd":1}'),
        ([{"a": ["\udcff", 2**70]}], '[{"a":["\ufffd",1180591620717411303424]}]'),
        (Found("\udcff"), '{"path":"\ufffd"}'),
        ((Path("\udcff"), {"\ud83d"}), '["\ufffd",["\ufffd"]]'),
    ],
)
def test_half_a_surrogate_pair_is_a_replacement_character(value: object, text: str) -> None:
    """As Python has names of files that are no text."""
    assert output_text(value) == text


def test_an_error_may_name_a_file_whose_name_is_no_text() -> None:
    said = error_text(FileNotFoundError("no \udcff"))
    assert said == '{"error":"FileNotFoundError: no \ufffd"}'
