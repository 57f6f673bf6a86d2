"""Which turns run, where, and who may have another."""

import pytest

from sessions.durable.running_turns import RunningTurns


def test_a_turn_is_found_by_its_tenant_alone_and_until_it_ends() -> None:
    running = RunningTurns(8)
    running.add("resp_1", "acme", "conn_1")
    assert running.connection_of("acme", "resp_1") == "conn_1"
    assert running.connection_of("other", "resp_1") is None
    assert running.connection_of("acme", "resp_2") is None
    running.remove("resp_1")
    assert running.connection_of("acme", "resp_1") is None
    assert len(running) == 0


@pytest.mark.parametrize("limit", [1, 4])
def test_a_tenant_alone_has_the_limit_and_another_has_its_share_beside_it(limit: int) -> None:
    running = RunningTurns(limit)
    for n in range(limit):
        assert running.has_room_for("greedy")
        running.add(f"g{n}", "greedy", "conn_1")
    assert not running.has_room_for("greedy")
    assert running.has_room_for("modest")
    running.add("m", "modest", "conn_2")
    assert running.has_room_for("modest") == (limit > 2)
    running.remove("g0")
    assert running.has_room_for("greedy") == (limit == 1), "the other's turn has the place"
