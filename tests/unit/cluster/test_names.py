"""Names of clusters go into paths, locks and lines."""

import pytest

from cluster.names import is_name


@pytest.mark.parametrize("name", ["prod", "a.b-c_1", "x" * 64])
def test_a_name_is_a_word(name: str) -> None:
    assert is_name(name)


@pytest.mark.parametrize("name", ["", ".", "..", "a b", "../x", "a/b", "x" * 65, "ä", "a\n"])
def test_what_is_no_word_is_no_name(name: str) -> None:
    assert not is_name(name)
