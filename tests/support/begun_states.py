"""States of sequences that begin, for tests which give a runner its steps themselves."""

from runtime.model.batch import NO_STATE
from runtime.model.runner import ModelRunner


def begun_states(runner: ModelRunner, count: int) -> list[int]:
    """Slots for the states of ``count`` sequences that begin, where the model has states."""
    if runner.states is None:
        return [NO_STATE] * count
    runner.hold_states(slots=count, rings=count)
    for slot in range(count):
        runner.states.begin(slot, source=None, position=0)
    return list(range(count))
