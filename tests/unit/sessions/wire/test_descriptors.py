"""One line when descriptors have run out, and one a minute while they have."""

import errno
import os
import resource

import pytest

from sessions.wire.descriptors import (
    KEPT,
    OWN,
    SAY_EVERY_S,
    DescriptorWatch,
    SpareDescriptor,
    raise_limit,
    within,
)
from tests.support.clock import FakeClock
from tools_api.limits import DEFAULT_LIMITS


def test_it_is_said_once_a_minute_while_it_lasts(caplog: pytest.LogCaptureFixture) -> None:
    clock, left = FakeClock(100.0), True

    def take() -> int:
        if not left:
            raise OSError(errno.EMFILE, "Too many open files")
        return os.dup(2)

    watch = DescriptorWatch(clock, take)
    watch.tick()
    assert not caplog.records
    left = False
    for _ in range(5):
        watch.tick()
        clock.advance(1)
    assert [record.getMessage() for record in caplog.records] == [
        "file descriptors have run out, nobody is accepted; raise the limit (ulimit -n) "
        "reason='Too many open files'"
    ]
    clock.advance(SAY_EVERY_S)
    watch.tick()
    assert len(caplog.records) == 2
    left = True
    watch.tick()
    left = False
    watch.tick()
    assert len(caplog.records) == 3, "it is new trouble"


def test_other_faults_are_not_hidden() -> None:
    def take() -> int:
        raise OSError(errno.EIO, "broken")

    with pytest.raises(OSError, match="broken"):
        DescriptorWatch(FakeClock(), take).tick()


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
