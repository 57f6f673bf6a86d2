"""Tests of which `make test` plays some cases."""

import pytest

from tests.conftest import leave_to_the_tail


class TestOfSomeCases:
    """Collected as any other; what is looked at are its own marks."""

    @pytest.mark.samples(3)
    @pytest.mark.parametrize("case", range(7))
    def test_of_seven_cases(self, case: int, request: pytest.FixtureRequest) -> None:
        is_quick = request.node.get_closest_marker("tail") is None
        assert is_quick == (case in {0, 2, 4})


@pytest.mark.parametrize(("cases", "number", "quick"), [(1, 3, 1), (2, 2, 2), (51, 12, 12)])
def test_so_many_cases_are_quick_as_are_asked_for(
    cases: int, number: int, quick: int, request: pytest.FixtureRequest
) -> None:
    parent = request.node.parent
    items = []
    for _ in range(cases):
        item = pytest.Function.from_parent(
            parent, name="case", callobj=lambda: None, originalname="case"
        )
        item.add_marker(pytest.mark.samples(number))
        items.append(item)
    leave_to_the_tail(items)
    assert sum(item.get_closest_marker("tail") is None for item in items) == quick
