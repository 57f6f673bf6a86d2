"""An error in one line: what, where, and not all that it says."""

from runtime.process.one_line import in_one_line


def test_an_error_is_told_in_one_line_with_its_place() -> None:
    try:
        raise ValueError("two\nlines " + "x" * 500)
    except ValueError as error:
        said = in_one_line(error)
    assert said.startswith("ValueError in process/test_one_line.py, line ")
    assert ": two lines xxx" in said
    assert "\n" not in said
    assert len(said) < 470


def test_an_error_that_was_never_raised_has_no_place() -> None:
    assert in_one_line(KeyError("a")) == "KeyError in /?, line 0: 'a'"
