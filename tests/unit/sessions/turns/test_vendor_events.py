"""Events of our own go to who asked for them."""

import pytest

from sessions.turns.vendor_events import asks_for_events
from tests.support.recast_loops import connect, loop, recast_of


def test_a_connection_that_asked_is_told_of_cuts_before_their_turns_end() -> None:
    rig, client = connect()
    client.connection.enable_events()
    done = loop(rig, client, 12)
    told = [event for event in client.events if event["type"] == "keepwarm:context.recast"]
    assert [event["sequence_number"] for event in told] == list(range(len(told)))
    cuts = {turn["id"]: turn["keepwarm"]["context"] for turn, _ in recast_of(done)}
    assert {event["response_id"]: event["context"] for event in told} == cuts
    assert len(cuts) >= 2


def test_no_other_connection_is() -> None:
    rig, client = connect()
    assert recast_of(loop(rig, client, 12))
    assert not any(event["type"].startswith("keepwarm:") for event in client.events)


@pytest.mark.parametrize(
    ("target", "header", "asks"),
    [
        ("/v1/responses?keepwarm_events=1", [], True),
        ("/v1/responses?a=b&keepwarm_events=1", [], True),
        ("/v1/responses?keepwarm_events=0", [], False),
        ("/v1/responses", ["1"], True),
        ("/v1/responses", ["no", ""], False),
        ("/v1/responses", [], False),
    ],
)
def test_a_handshake_asks_by_query_or_header(target: str, header: list[str], asks: bool) -> None:
    assert asks_for_events(target, header) is asks
