"""The words of a class about its fields."""

from dataclasses import dataclass

from tools_api.docstrings import field_docstrings
from tools_api.requests import KeepwarmOptions


def test_the_string_under_a_field_is_its_words_on_one_line() -> None:
    @dataclass
    class Told:
        """Not a field's."""

        first: int = 0
        """Of the first,
        and more."""
        second: int = 0
        third: str = ""
        """Of the third."""

    assert field_docstrings(Told) == {"first": "Of the first, and more.", "third": "Of the third."}
    assert field_docstrings(KeepwarmOptions)["priority"] == "Larger runs earlier."
