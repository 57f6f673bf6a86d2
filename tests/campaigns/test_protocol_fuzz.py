"""Clients that say the right things, nearly the right ones and nonsense, in any order.

KEEPWARM_FUZZ_CASES sets how many operations the seeded part plays (10^5 for a campaign),
KEEPWARM_FUZZ_SEED where it begins; a failure names its seed.
"""

import os
import random

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from tests.support.protocol_driver import ProtocolDriver

CASES = int(os.environ.get("KEEPWARM_FUZZ_CASES", "2000"))
SEED = int(os.environ.get("KEEPWARM_FUZZ_SEED", "0"))
PER_RUN = 100


def test_whatever_clients_say_each_response_ends_once_and_nothing_is_left() -> None:
    for run in range(max(1, CASES // PER_RUN)):
        seed = SEED + run
        driver = ProtocolDriver(random.Random(seed).randrange)
        operation = 0
        try:
            for operation in range(PER_RUN):  # noqa: B007
                driver.step()
            driver.close()
        except Exception as error:
            raise AssertionError(f"seed {seed}, operation {operation}: {error!r}") from error


class ProtocolMachine(RuleBasedStateMachine):
    """The same operations chosen by hypothesis, so that a failure shrinks."""

    @initialize(data=st.data())
    def start(self, data: st.DataObject) -> None:
        self.driver = ProtocolDriver(lambda n: data.draw(st.integers(0, n - 1)))

    @rule(data=st.data(), operation=st.sampled_from(sorted(set(ProtocolDriver.OPERATIONS))))
    def operate(self, data: st.DataObject, operation: str) -> None:
        self.driver.choose = lambda n: data.draw(st.integers(0, n - 1))
        getattr(self.driver, operation)()

    @invariant()
    def holds(self) -> None:
        if hasattr(self, "driver"):
            self.driver.check()

    def teardown(self) -> None:
        if hasattr(self, "driver"):
            self.driver.choose = lambda n: 0
            self.driver.close()


TestProtocolMachine = ProtocolMachine.TestCase
TestProtocolMachine.settings = settings(
    max_examples=max(10, CASES // 100),
    stateful_step_count=25,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
