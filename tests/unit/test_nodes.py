"""The weight that counts holders by class in one integer."""

import itertools

import pytest

from radix_cache.nodes import UNIT, BlockClass, class_of


@pytest.mark.parametrize("counts", list(itertools.product([0, 1, 70_000], repeat=3)))
def test_the_class_is_the_highest_that_is_counted(counts: tuple[int, int, int]) -> None:
    weight = sum(UNIT[klass] * count for klass, count in enumerate(counts, start=1))
    present = [klass for klass, count in enumerate(counts, start=1) if count]
    assert class_of(weight) == max(present, default=BlockClass.IDLE)


def test_classes_are_ordered_by_protection() -> None:
    names = [klass.name for klass in sorted(BlockClass)]
    assert names == ["IDLE", "LEASED", "QUEUED", "RUNNING"]
