"""The benchmark of a collector that hangs: its sums, its collector, and its bars."""

import json
import socket

import pytest
from opentelemetry import trace

from benchmarks import agent_trace


def test_a_delay_is_the_most_by_which_turns_are_longer_in_the_median_round() -> None:
    plain = [[2.0, 90.0, 1.0], [1.0, 2.0, 3.0], [5.0, 5.0, 5.0]]
    hanging = [[3.0, 96.0, 60.0], [3.0, 2.0, 1.0], [5.0, 5.0, 6.0]]
    found = agent_trace.delays("client", plain, hanging)
    assert found == {
        "client_turn_ms": 3.0,
        "client_turn_longest_ms": 90.0,
        "client_turn_hanging_ms": 5.0,
        "client_turn_hanging_longest_ms": 96.0,
        "client_delay_worst_round_ms": 58.0,
        "client_delay_ms": 1.0,
    }
    assert [bar.met for bar in agent_trace.bars(found)] == [True, None]


def test_the_collector_takes_connections_and_says_nothing() -> None:
    with agent_trace.silent_collector() as (address, met):
        host, port = address.split("/")[2].split(":")
        with socket.create_connection((host, int(port)), timeout=10) as client:
            client.sendall(b"POST /v1/traces HTTP/1.1\r\n\r\n")
            client.settimeout(0.05)
            with pytest.raises(TimeoutError):
                client.recv(1)
            assert met()


def test_turns_of_a_client_are_timed_with_and_without_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(trace, "_TRACER_PROVIDER", None)
    found = agent_trace.of_client(turns=20, rounds=2)
    assert found["client_turn_ms"] > 0
    monkeypatch.setattr(agent_trace, "of_client", lambda: found | {"client_delay_ms": 1.0})
    monkeypatch.setattr(agent_trace, "of_server", lambda: {"server_delay_ms": 51.0})
    monkeypatch.setattr("sys.argv", ["agent_trace", "--json"])
    assert agent_trace.main() == 1
    told = json.loads(capsys.readouterr().out)
    assert [bar["met"] for bar in told["bars"]] == [True, False]
