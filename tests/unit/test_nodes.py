"""Classes of blocks: the strongest holder decides."""

import pytest

from radix_cache.nodes import BlockClass, class_of

ONE = {BlockClass.LEASED: 1, BlockClass.QUEUED: 1 << 20, BlockClass.RUNNING: 1 << 40}


def test_the_order_of_the_classes_is_the_order_of_protection() -> None:
    assert list(BlockClass) == sorted(BlockClass)
    assert BlockClass.IDLE < BlockClass.LEASED < BlockClass.QUEUED < BlockClass.RUNNING


@pytest.mark.parametrize("holders", [1, 2, 1000])
@pytest.mark.parametrize("strongest", list(ONE))
def test_many_weaker_holders_never_hide_a_stronger_one(strongest: BlockClass, holders: int) -> None:
    weaker = sum(holders * ONE[each] for each in ONE if each < strongest)
    assert class_of(weaker + ONE[strongest]) == strongest
    assert class_of(weaker) < strongest


def test_nobody_holds_an_idle_node() -> None:
    assert class_of(0) == BlockClass.IDLE
