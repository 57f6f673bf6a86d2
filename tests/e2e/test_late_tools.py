"""Tools that come and go in a session on a real server: what was said before stays warm."""

from typing import Annotated

import pytest
from pydantic import Field

from keepwarm import Client, Session, tool
from keepwarm.demo.child_server import ChildServer

TURNS = 20
WARM = 0.95
"""The share of the cached tokens that a turn has at least which adds or removes tools."""


@tool
def look(at: Annotated[int, Field(ge=0, le=9)]) -> str:
    """Look at a thing."""
    return f"thing {at}"


@tool
def pay(amount: Annotated[int, Field(ge=0, le=9)]) -> str:
    """Pay an amount."""
    return f"paid {amount}"


def talked(client: Client) -> Session:
    """A session after so many turns."""
    session = client.session(
        instructions="Be brief.", tools=[look], max_output_tokens=4, tool_choice="none"
    )
    for number in range(TURNS):
        session.respond(f"This is question {number}.")
    return session


def test_a_turn_that_adds_or_removes_tools_finds_what_the_others_find(server: ChildServer) -> None:
    with Client(server.url) as client:
        session = talked(client)
        plain = session.fork().respond("And now?").usage.cached_tokens
        assert plain > 200
        added = session.fork()
        added.add_tools([pay])
        first = added.respond("And now?").usage
        assert first.cached_tokens >= WARM * plain
        second = added.respond("Go on.").usage
        assert second.cached_tokens >= WARM * (first.input_tokens + first.output_tokens - 16)
        removed = session.fork()
        removed.remove_tools(["look"])
        assert removed.respond("And now?", tool_choice="auto").usage.cached_tokens >= WARM * plain
        cold = session.fork().respond("And now?", tools=[look, pay]).usage.cached_tokens
        assert cold < WARM * plain, "this is what a changed header costs"


@pytest.mark.parametrize("streams", [False, True])
def test_an_added_tool_is_called_with_arguments_that_fit(
    streams: bool, server: ChildServer
) -> None:
    def choice(number: int) -> object:
        return {"type": "function", "name": "pay"} if number == 0 else "none"

    with Client(server.url) as client:
        session = client.session(tools=[look], max_output_tokens=120)
        session.respond("hi", tool_choice="none", max_output_tokens=4)
        session.add_tools([pay])
        if streams:
            *_, result = session.stream("pay", tool_choice=choice)  # type: ignore[arg-type]
        else:
            result = session.run("pay", tool_choice=choice)  # type: ignore[arg-type]
        names = {record.call.full_name for record in result.calls}  # type: ignore[union-attr]
        assert names == {"pay"}
        for record in result.calls:  # type: ignore[union-attr]
            assert not record.failed
            assert record.output.startswith("paid ")
