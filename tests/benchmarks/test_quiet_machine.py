"""A run begins when what the last one left behind is done."""

import pytest

from benchmarks.quiet_machine import LIMIT_S, WINDOW_S, idle_seconds, wait_until_quiet


class Machine:
    """Two cores that are busy for some seconds each window, of which none is waited for."""

    def __init__(self, *busy_s: float, then_s: float = 0.0) -> None:
        self.now_s = 100.0
        self._idle_s = 1_000.0
        self._busy_s = iter(busy_s)
        self._then_s = then_s

    def sleep(self, seconds: float) -> None:
        self.now_s += seconds
        self._idle_s += 2 * seconds - next(self._busy_s, self._then_s)

    def wait(self, *, resting: int = 0, tells: bool = True) -> tuple[bool, float]:
        """What waiting returned, and how long it took."""
        began_s = self.now_s
        found = wait_until_quiet(
            resting=resting,
            cores=2,
            idle=lambda: self._idle_s if tells else None,
            clock=lambda: self.now_s,
            sleep=self.sleep,
        )
        return found, self.now_s - began_s


def test_a_quiet_machine_is_waited_for_two_seconds() -> None:
    assert Machine().wait() == (True, 2.0)


def test_what_begins_a_second_after_a_run_is_waited_for() -> None:
    machine = Machine(0.02, 0.02, 0.35)
    assert machine.wait() == (True, 3 * WINDOW_S + 2.0)


@pytest.mark.parametrize(("share", "quiet"), [(0.09, True), (0.11, False)])
def test_a_tenth_of_a_core_is_quiet_and_more_is_not(share: float, quiet: bool) -> None:
    found, _ = Machine(then_s=share * WINDOW_S).wait()
    assert found is quiet


@pytest.mark.parametrize(("share", "quiet"), [(0.27, True), (0.29, False)])
def test_servers_at_rest_may_take_a_little_each(share: float, quiet: bool) -> None:
    found, _ = Machine(then_s=share * WINDOW_S).wait(resting=3)
    assert found is quiet


def test_a_machine_that_never_rests_is_not_waited_for_forever() -> None:
    assert Machine(then_s=1.0).wait() == (False, LIMIT_S)


def test_where_nobody_tells_two_seconds_are_waited_for() -> None:
    assert Machine(then_s=1.0).wait(tells=False) == (True, 2.0)


def test_the_system_tells_of_idle_cores() -> None:
    first = idle_seconds()
    if first is None:
        pytest.skip("the system does not tell")
    assert idle_seconds() >= first >= 0.0  # type: ignore[operator]
