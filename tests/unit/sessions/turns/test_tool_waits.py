"""A session waits for tools as long as the client is there that runs them."""

from collections.abc import Callable
from typing import Any

import pytest

from sessions.durable.store import ConnectionStore
from sessions.turns.connection import Connection
from sessions.turns.tool_waits import MOST, ToolWaits
from tests.support.sessions_rig import END, Client, Rig, call, tool


@pytest.fixture
def rig() -> Rig:
    return Rig()


def states(rig: Rig) -> dict[str, str]:
    return {view.session: view.state for view in rig.store.sessions()[1]}


def called(client: Client, session: str = "s", **options: Any) -> dict[str, Any]:
    """A turn that calls a tool."""
    keepwarm = {"session": session} | options
    return client.turn(call("f") + END, input="hi", tools=[tool("f")], keepwarm=keepwarm)


def output_of(response: dict[str, Any]) -> dict[str, Any]:
    call_id = response["output"][0]["call_id"]
    return {"type": "function_call_output", "call_id": call_id, "output": "1"}


def test_a_session_waits_no_longer_than_its_client_stays(rig: Rig) -> None:
    client, other = rig.connect(), rig.connect()
    called(client, "mine")
    called(client, "also mine")
    called(other, "theirs")
    client.disconnect()
    assert states(rig) == {"mine": "idle", "also mine": "idle", "theirs": "waiting_for_tools"}


def test_what_another_client_went_on_with_waits_for_that_one(rig: Rig) -> None:
    client, other = rig.connect(), rig.connect()
    first = called(client)
    more = {"input": [output_of(first)], "keepwarm": {"session": "s"}, "tools": [tool("f")]}
    second = other.turn(call("f") + END, **more)
    client.disconnect()
    assert states(rig) == {"s": "waiting_for_tools"}
    other.turn("done" + END, input=[output_of(second)], keepwarm={"session": "s"})
    other.disconnect()
    assert states(rig) == {"s": "idle"}


def test_a_session_that_outlives_its_socket_goes_on_waiting(rig: Rig) -> None:
    client = rig.connect()
    called(client, on_disconnect="continue")
    client.disconnect()
    assert states(rig) == {"s": "waiting_for_tools"}


def test_a_turn_that_ends_because_its_client_left_leaves_nobody_waiting(rig: Rig) -> None:
    client = rig.connect()
    first = called(client)
    client.create(input=[output_of(first)], keepwarm={"session": "s"})
    assert states(rig) == {"s": "running"}
    client.disconnect()
    assert states(rig) == {"s": "idle"}


def test_a_client_without_a_socket_between_its_turns_is_waited_for(rig: Rig) -> None:
    """As over HTTP, where each request is a connection."""
    store = rig.service.store
    tenant = store.tenant("acme")
    visible = ConnectionStore(store, tenant=tenant, connection_id="h", private=tenant.unlisted)
    made = Connection(connection_id="h", tenant=tenant, service=rig.service, visible=visible)
    client = Client(rig, made)
    rig.clients.append(client)
    called(client)
    client.disconnect()
    assert states(rig) == {"s": "waiting_for_tools"}


@pytest.mark.parametrize("more", [0, 1])
def test_of_very_many_sessions_the_newest_are_remembered(rig: Rig, more: int) -> None:
    waits = ToolWaits(rig.store.tenant("acme"))
    every = [rig.store.tenant("acme").session(f"s{n}") for n in range(MOST + more)]
    for each in every:
        each.restore(head_id=None, turns_begun=1, open_calls=True)
        assert waits.ended(each, open_calls=True, goes_on=False) is True
    waits.leave()
    waiting = [each for each in every if each.state.value == "waiting_for_tools"]
    assert waiting == every[:more]
    told: Callable[..., bool | None] = waits.ended
    assert told(every[0], open_calls=True, goes_on=False) is False
