"""One line when descriptors have run out, and one a minute while they have."""

import errno
import os

import pytest

from sessions.wire.descriptors import SAY_EVERY_S, DescriptorWatch
from tests.support.clock import FakeClock


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
