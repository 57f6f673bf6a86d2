"""Descriptors that have run out, and the one that is kept."""

import errno
import os
import resource

import pytest

from sessions.wire.descriptors import (
    KEPT,
    OWN,
    DescriptorWatch,
    SpareDescriptor,
    raise_limit,
    within,
)
from tools_api.limits import DEFAULT_LIMITS


def test_there_is_trouble_while_none_is_left() -> None:
    left = True

    def take() -> int:
        if not left:
            raise OSError(errno.EMFILE, "Too many open files")
        return os.dup(2)

    watch = DescriptorWatch(take)
    for left in (True, False, False, True, False):
        watch.tick()
        assert (watch.trouble is None) == left


def test_other_faults_are_not_hidden() -> None:
    def take() -> int:
        raise OSError(errno.EIO, "broken")

    with pytest.raises(OSError, match="broken"):
        DescriptorWatch(take).tick()


@pytest.mark.parametrize("descriptors", [1, 97, 98, 256, 1024, 1631, 1632, 1 << 20])
def test_bounds_on_sockets_leave_descriptors_for_what_must_go_on(descriptors: int) -> None:
    limits = within(DEFAULT_LIMITS, descriptors)
    sockets = limits.max_open_connections + limits.max_unread_connections
    assert sockets <= max(descriptors - OWN - KEPT, 2)
    assert min(limits.max_open_connections, limits.max_unread_connections) >= 1
    assert 1 <= limits.max_connections_per_tenant <= limits.max_open_connections
    assert (limits == DEFAULT_LIMITS) == (descriptors >= 1632)


def test_the_soft_limit_is_raised_as_far_as_it_may_be() -> None:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(200, before[1]), before[1]))
        assert raise_limit() >= min(200, before[1])
        assert resource.getrlimit(resource.RLIMIT_NOFILE) == (before[1], before[1])
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


def test_a_kept_descriptor_is_lent_for_a_moment() -> None:
    spare = SpareDescriptor()
    before = len(os.listdir("/dev/fd"))
    with spare.lent() as lent:
        assert lent
        assert len(os.listdir("/dev/fd")) == before - 1
    assert len(os.listdir("/dev/fd")) == before
    spare.close()
    spare.close()
    assert len(os.listdir("/dev/fd")) == before - 1


def test_where_another_took_it_there_is_none_until_one_is_free(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    spare = SpareDescriptor()
    with monkeypatch.context() as patched:

        def none_left(*_: object) -> int:
            raise OSError(errno.EMFILE, "none")

        patched.setattr(os, "open", none_left)
        with spare.lent() as lent:
            assert lent
        with spare.lent() as lent:
            assert not lent
    with spare.lent() as lent:
        assert not lent
    with spare.lent() as lent:
        assert lent
    spare.close()


def test_the_kept_one_is_the_lowest_that_could_be_had() -> None:
    """One above a limit that is lowered later would be given up for nothing."""
    low, high = os.dup(2), os.dup(2)
    spare = SpareDescriptor()
    os.close(low)
    spare.restore()
    filling = os.dup(2)
    with spare.lent() as lent:
        assert lent
        got = os.dup(2)
        assert got == low < high < filling
        os.close(got)
    spare.close()
    for each in (high, filling):
        os.close(each)
