"""A server with few descriptors among more clients than it can have."""

import sys

import pytest

from benchmarks.ground_sockets import table


@pytest.mark.skipif(sys.platform != "linux", reason="limits and children: Linux only")
def test_health_answers_and_a_dead_engine_is_replaced_however_many_clients_there_are() -> None:
    (row,) = table((256,), share=0.2, seconds=6.0)
    assert row["health"] > 50, row
    assert row["health_lost"] == 0, row
    assert row["models"] > 0, row
    assert row["cut"] > 0, "there were fewer than it can have"
    assert row["replaced_s"] < 2.0 * row["alone_s"] + 10.0, row
    assert row["log_lines"] <= 8, row
