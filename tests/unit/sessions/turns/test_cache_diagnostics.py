"""What a client is told that asks why its prompt was not cached."""

from typing import Any

import pytest

from tests.support.sessions_rig import END, Client, Rig, tool

F, G = tool("f", a={}), tool("g")


@pytest.fixture
def rig() -> Rig:
    return Rig()


@pytest.fixture
def client(rig: Rig) -> Client:
    return rig.connect()


def diagnosis(client: Client, compared: str, **fields: Any) -> dict[str, Any] | None:
    options = {"comparison_response_id": compared}
    response = client.turn("ok" + END, prompt_cache_options=options, **fields)
    found: dict[str, Any] | None = response.get("prompt_cache_diagnostics")
    return found


def test_a_continuation_hits_what_its_parent_left(client: Client) -> None:
    first = client.turn("ok" + END, input="hello there", tools=[F])
    said = diagnosis(client, first["id"], input="more", tools=[F], previous_response_id=first["id"])
    assert said == {"type": "cache_hit"}


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({"tools": [F, G]}, "tools_changed"),
        ({"tools": []}, "tools_changed"),
        ({"tools": [F], "instructions": "Be kind."}, "input_changed"),
        ({"tools": [F], "input": "hello you"}, "input_changed"),
    ],
)
def test_a_miss_names_what_the_client_changed(
    client: Client, changed: dict[str, Any], reason: str
) -> None:
    first = client.turn("ok" + END, input="hello there", tools=[F])
    said = diagnosis(client, first["id"], **({"input": "hello there"} | changed))
    assert said is not None
    assert (said["type"], said["reason"]) == ("cache_miss", reason)
    context = first["usage"]["total_tokens"]
    assert 0 < said["comparison_reusable_tokens"] < context
    usage = client.response["usage"]
    cached = usage["input_tokens_details"]["cached_tokens"]
    assert said["cache_missed_tokens"] == usage["input_tokens"] - cached


def test_an_unknown_response_and_another_tenants_are_not_found(rig: Rig, client: Client) -> None:
    strange = rig.connect("other").turn("ok" + END, input="hello there")
    for compared in ("resp_nowhere", strange["id"]):
        said = diagnosis(client, compared, input="hello there")
        assert said == {"type": "comparison_response_not_found"}


def test_what_the_cache_itself_let_go_has_no_published_reason(rig: Rig, client: Client) -> None:
    first = client.turn("ok" + END, input="hello there")
    rig.engine.lost = {"evicted": 16}
    said = diagnosis(client, first["id"], input="more", previous_response_id=first["id"])
    assert said == {"type": "unavailable"}


def test_who_does_not_ask_is_not_told(client: Client) -> None:
    assert "prompt_cache_diagnostics" not in client.turn("ok" + END, input="hello there")
