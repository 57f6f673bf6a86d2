"""Which layouts a model's weights are kept in, by times that are made up."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import pytest

from runtime.model.product_choice import (
    RANK,
    RULES,
    AllowedLayouts,
    Layout,
    ProductChoice,
    choose,
)

ROWS = [rows for rows, _ in RULES.row_weights]
ONE = AllowedLayouts(first=RANK, second=RANK, second_size=None)
TWO = AllowedLayouts(first=RANK, second=RANK, second_size=1.0)
TILES = AllowedLayouts(first=["tiles"], second=["packed"], second_size=1.0)


class Times:
    """A timer that reads its times from functions of the rows, for so many questions."""

    def __init__(self, times: Mapping[Layout, Callable[[int], float]], answers: int = 99) -> None:
        self._times = times
        self._answers = answers
        self.asked: list[int] = []

    def times(self, layouts: Sequence[Layout], rows: int) -> Mapping[Layout, float] | None:
        self.asked.append(rows)
        if len(self.asked) > self._answers:
            return None
        never: dict[Layout, Callable[[int], float]] = {"widened": lambda _: 1e9}
        return {layout: (never | self._times)[layout](rows) for layout in layouts}


def steps(*seconds: float) -> Callable[[int], float]:
    """A time for each number of rows that is timed, which holds up to the next."""
    return lambda rows: next(
        time for least, time in reversed(list(zip(ROWS, seconds, strict=True))) if rows >= least
    )


XEON: dict[Layout, Callable[[int], float]] = {
    "tiles": lambda rows: 6.4 if rows <= 4 else 16.1 + rows / 10,
    "packed": lambda rows: 7.6 + rows / 20,
    "plain": lambda rows: 13.0 + rows / 18,
}


@pytest.mark.parametrize("best", RANK)
@pytest.mark.parametrize("copies", [ONE, TWO])
def test_a_layout_that_is_best_everywhere_is_the_only_one(
    best: Layout, copies: AllowedLayouts
) -> None:
    times = {layout: steps(*[1.0 if layout == best else 2.0] * 5) for layout in RANK}
    assert choose(Times(times), copies, RULES) == ProductChoice(few=best)


def test_two_copies_are_kept_where_they_pay_and_change_over_where_the_second_is_faster() -> None:
    times: dict[Layout, Callable[[int], float]] = XEON | {
        "tiles": lambda rows: 4.0 if rows <= 4 else 16.0
    }
    choice = choose(Times(times), TWO, RULES)
    assert choice == ProductChoice(few="tiles", many="packed", from_rows=5)


def test_without_memory_for_a_second_copy_the_best_single_one_is_kept() -> None:
    assert choose(Times(XEON), ONE, RULES) == ProductChoice(few="packed")


@pytest.mark.parametrize(("gain", "many"), [(0.01, "packed"), (0.2, None)])
def test_a_second_copy_has_to_pay(gain: float, many: Layout | None) -> None:
    choice = choose(Times(XEON), TWO, replace(RULES, gain=gain))
    assert choice is not None
    assert choice.many == many


def test_a_larger_second_copy_has_to_pay_more() -> None:
    times = {"tiles": steps(1, 1, 1, 1, 9), "packed": steps(1, 1, 1, 1, 5)}
    for size, many in ((1.0, "packed"), (2.0, "packed"), (4.0, None)):  # saves 0.2 of 1.4
        choice = choose(Times(times), replace(TILES, second_size=size), RULES)
        assert choice is not None
        assert choice.many == many


def test_tiles_are_widened_without_any_memory_where_that_is_faster() -> None:
    times: dict[Layout, Callable[[int], float]] = {
        "tiles": float,
        "widened": lambda rows: 30.0 + rows / 2,
        "packed": lambda rows: 20.0 + rows / 2,
    }
    choice = choose(Times(times), replace(TILES, second_size=None), RULES)
    assert choice is not None
    assert (choice.few, choice.many) == ("tiles", "widened")
    assert 61 <= choice.from_rows <= 64
    second = choose(Times(times), TILES, RULES)
    assert second is not None
    assert second.many == "packed"


def test_widening_is_not_asked_about_few_rows() -> None:
    asked: dict[int, set[Layout]] = {}

    class Recording(Times):
        def times(self, layouts: Sequence[Layout], rows: int) -> Mapping[Layout, float] | None:
            asked[rows] = set(layouts)
            return super().times(layouts, rows)

    choose(Recording(XEON), ONE, RULES)
    assert {rows for rows, layouts in asked.items() if "widened" in layouts} == {64, 256}


def test_a_later_layout_that_is_hardly_faster_is_not_taken() -> None:
    times = {"tiles": steps(*[1.0] * 5), "packed": steps(*[0.96] * 5), "plain": steps(*[0.97] * 5)}
    assert choose(Times(times), ONE, RULES) == ProductChoice(few="tiles")


@pytest.mark.parametrize("true_change", [2, 5, 8, 9, 13, 17, 40, 65, 200])
def test_the_change_over_is_found_to_an_eighth(true_change: int) -> None:
    times = {
        "tiles": lambda rows: 1.0 if rows < true_change else 30.0,
        "packed": lambda rows: 10.0 if rows < true_change else 10.1,
    }
    choice = choose(Times(times), TILES, RULES)
    assert choice is not None
    assert true_change <= choice.from_rows <= max(true_change, true_change * 9 // 8)


@pytest.mark.parametrize("answers", range(5))
def test_times_that_are_not_all_there_choose_nothing(answers: int) -> None:
    assert choose(Times(XEON, answers), TWO, RULES) is None


def test_a_change_over_cut_short_is_at_a_number_of_rows_that_was_timed() -> None:
    for answers, from_rows in ((5, 8), (6, 8), (7, 6)):
        choice = choose(Times(XEON, answers), TWO, replace(RULES, gain=0.01))
        assert choice is not None
        assert choice.from_rows == from_rows


def test_a_single_layout_is_not_timed() -> None:
    timer = Times({})
    plain = AllowedLayouts(first=["plain"], second=["plain"], second_size=1.0)
    assert choose(timer, plain, RULES) == ProductChoice(few="plain")
    assert timer.asked == []


@pytest.mark.parametrize(
    "wrong",
    [
        {"few": "widened"},
        {"few": "tiles", "from_rows": 4},
        {"few": "tiles", "many": "packed"},
        {"few": "tiles", "many": "tiles", "from_rows": 4},
        {"few": "packed", "many": "widened", "from_rows": 4},
    ],
)
def test_what_is_no_use_is_no_choice(wrong: dict[str, object]) -> None:
    with pytest.raises(ValueError):
        ProductChoice(**wrong)  # type: ignore[arg-type]
