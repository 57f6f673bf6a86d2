"""Agents that give the dashboard something to show: for screenshots and for its browser tests.

A handful of sessions over WebSocket, each with a story: one loops over tools and meets its
budget, one forks, one changes its tools, one its instructions, one leads sub-agents that share its
budget, and some ask once. Speaks the wire protocol itself, so that nothing of the SDK is shown by
accident.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any

import orjson
from websockets.asyncio.client import ClientConnection, connect

Event = dict[str, Any]

PERSONA = (
    "You are the support agent of a shop for shoes. Look things up with the tools that you are "
    "given, never guess a price, and answer in one short sentence. "
) * 3
AT_ONCE = 8
TERMINAL = {"response.completed", "response.incomplete", "response.failed"}


def tool(name: str) -> Event:
    """A function with one short argument."""
    argument = {"type": "string", "maxLength": 8}
    return {
        "type": "function",
        "name": name,
        "description": f"Look up the {name.replace('_', ' ')} of an article.",
        "parameters": {
            "type": "object",
            "properties": {"article": argument},
            "required": ["article"],
            "additionalProperties": False,
        },
    }


PRICE, STOCK = tool("price"), tool("stock")


class Agent:
    """One connection of one tenant."""

    def __init__(self, socket: ClientConnection) -> None:
        self._socket = socket

    async def turn(self, session: str, text: str = "", **fields: Any) -> Event:
        """A turn to its end; returns the terminal event's response, or the error event."""
        create: Event = {
            "type": "response.create",
            "instructions": PERSONA,
            "max_output_tokens": 24,
            "temperature": 0,
        }
        if text:
            create["input"] = [{"role": "user", "content": text}]
        options = {"session": session, **fields.pop("keepwarm", {})}
        await self._socket.send(orjson.dumps(create | fields | {"keepwarm": options}).decode())
        while True:
            event: Event = orjson.loads(await self._socket.recv())
            if event["type"] == "error":
                return event
            if event["type"] in TERMINAL:
                found: Event = event["response"]
                return found


@contextlib.asynccontextmanager
async def agent(url: str, key: str | None = None) -> AsyncIterator[Agent]:
    """A connected agent; ``url`` as clients take it, with ``/v1``."""
    address = url.replace("http", "ws", 1) + "/responses"
    headers = {} if key is None else {"Authorization": f"Bearer {key}"}
    async with connect(address, additional_headers=headers, compression=None) as socket:
        yield Agent(socket)


def results(response: Event, text: str) -> list[Event]:
    """Outputs for the calls of a response."""
    return [
        {"type": "function_call_output", "call_id": item["call_id"], "output": text}
        for item in response["output"]
        if item["type"] == "function_call" and item["status"] == "completed"
    ]


async def tool_loop(
    who: Agent,
    session: str,
    turns: int,
    tool_s: float,
    *,
    budget: Event | None = None,
    changes_at: int | None = None,
) -> Event:
    """Turns that each call a tool, which takes ``tool_s``, as each next turn tells, the second one
    to fail; returns the last response. The session waits for the last one's when the socket is
    gone.

    Args:
        changes_at: in this turn, from 0, a second tool is there.
    """
    bounds = [budget | {"scope": "session"}] if budget else []
    options: Event = {"on_disconnect": "continue"} | ({"budget": bounds} if bounds else {})
    forced: Event = {"tools": [PRICE], "tool_choice": "required", "max_output_tokens": 120}
    response = await who.turn(session, "What do the red shoes cost?", **forced, keepwarm=options)
    for number in range(1, turns):
        answers = results(response, f"article {number} costs {20 + number} dollars")
        if response.get("status") != "completed" or not answers:
            break
        await asyncio.sleep(tool_s)
        if number == changes_at:
            forced["tools"] = [PRICE, STOCK]
        told = [
            {"call_id": answer["call_id"], "ms": 1000 * tool_s, "failed": number == 2}
            for answer in answers
        ]
        response = await who.turn(session, input=answers, keepwarm={"tools": told}, **forced)
    return response


async def forking(who: Agent, session: str) -> None:
    """Three turns, then two that both go on from the second."""
    first = await who.turn(session, "Plan the move of the parser.")
    second = await who.turn(session, "And its tests?", previous_response_id=first["id"])
    third = await who.turn(session, "Go on.", previous_response_id=second["id"])
    fork = await who.turn(session, "Or another way?", previous_response_id=second["id"])
    await who.turn(session, "That one then.", previous_response_id=fork["id"])
    await who.turn(session, "And now?", previous_response_id=third["id"])


async def changing(who: Agent, session: str, what: str) -> None:
    """Four turns; from the third on the tools, or the instructions, are others."""
    for number in range(4):
        changed: Event = {}
        if number >= 2 and what == "tools":
            changed = {"tools": [PRICE, STOCK], "tool_choice": "none"}
        elif what == "tools":
            changed = {"tools": [PRICE], "tool_choice": "none"}
        elif number >= 2:
            changed = {"instructions": PERSONA + "Be brief."}
        await who.turn(session, f"Question {number} about the shoes, please.", **changed)


async def team(who: Agent, session: str) -> dict[str, Event]:
    """A lead with a budget for its whole tree, two sub-agents, one with a budget of its own within
    that, and a sub-agent of a sub-agent; the last response of each."""
    lead = {"budget": [{"scope": "tree", "output": 2_000, "cost": 0.05}]}
    coder = {"parent_session": session, "budget": [{"scope": "session", "output": 400}]}
    under = {"parent_session": f"{session}-coder"}
    said = {session: await who.turn(session, "Plan the release.", keepwarm=lead)}
    for name, options in (
        (f"{session}-coder", coder),
        (f"{session}-tester", under),
        (f"{session}-writer", {"parent_session": session}),
    ):
        said[name] = await who.turn(name, f"Your part, {name}?", keepwarm=options)
    return said


async def crowd(url: str, key: str | None, questions: Mapping[str, int]) -> None:
    """Sessions of so many short questions each, some at once."""

    async def ask(names: Sequence[str]) -> None:
        async with agent(url, key) as who:
            for name in names:
                for number in range(questions[name]):
                    text = f"Any news? {number}"
                    await who.turn(name, text, instructions="Be brief.", max_output_tokens=4)

    names = list(questions)
    await asyncio.gather(*(ask(names[first::AT_ONCE]) for first in range(AT_ONCE)))


async def play(url: str, keys: dict[str, str | None], *, tool_s: float = 0.4) -> None:
    """All stories; ``keys`` by tenant."""
    async with contextlib.AsyncExitStack() as stack:
        agents = {
            tenant: await stack.enter_async_context(agent(url, key)) for tenant, key in keys.items()
        }
        for tenant, who in agents.items():
            await forking(who, f"{tenant}-refactor")
            await changing(who, f"{tenant}-report", "tools")
            await changing(who, f"{tenant}-digest", "instructions")
            for number in range(6):
                await who.turn(f"{tenant}-question-{number}", f"Question {number}: any news?")
            await tool_loop(
                who, f"{tenant}-support", 6, tool_s, budget={"cost": 0.004}, changes_at=4
            )
            await tool_loop(who, f"{tenant}-shopper", 8, tool_s / 4)
            await team(who, f"{tenant}-lead")
