"""Rows are as they were sealed, or it is noticed."""

import numpy as np

from runtime.offload.checksums import HostChecksums


def ids(*numbers: int) -> np.ndarray:
    return np.array(numbers, dtype=np.int32)


def test_a_row_is_intact_until_one_bit_changes() -> None:
    rows = np.random.default_rng(0).integers(0, 256, (5, 1000), dtype=np.uint8)
    sums = HostChecksums(rows)
    assert sums.seal(ids(3, 1))
    assert sums.intact(ids(1, 3))
    rows[2] = 0
    assert sums.intact(ids(1, 3))
    rows[3, 999] ^= 1
    assert not sums.intact(ids(1, 3))
    assert sums.intact(ids(1))
    sums.seal(ids(3))
    assert sums.intact(ids(1, 3))


def test_a_row_that_was_never_sealed_is_not_intact() -> None:
    assert not HostChecksums(np.zeros((2, 16), dtype=np.uint8)).intact(ids(0))
