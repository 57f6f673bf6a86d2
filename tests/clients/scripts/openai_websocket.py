"""``openai``: the Responses API over its WebSocket transport; ways ``sync`` and ``async``."""

import asyncio
import inspect
from typing import Any

import openai
from common import (
    LOOP,
    TALK,
    TOOLS,
    UNKNOWN_MODEL,
    LongStory,
    Loop,
    Offer,
    Server,
    arguments,
    report,
    schema_of,
    streamed,
)

URL, WAY = arguments()
FUNCTIONS: Any = [
    {
        "type": "function",
        "name": name,
        "description": model.__doc__,
        "parameters": schema_of(model),
        "strict": True,
    }
    for name, model in TOOLS.items()
]
TERMINAL = {"response.completed", "response.incomplete", "response.failed", "error"}
CLIENT: Any = {"sync": openai.OpenAI, "async": openai.AsyncOpenAI}[WAY](
    base_url=URL, api_key="none"
)


async def got(value: Any) -> Any:
    return await value if inspect.isawaitable(value) else value


async def create(connection: Any, **fields: Any) -> list[Any]:
    """Run one turn; all its events."""
    fields = {"model": "default", "temperature": 0, **fields}
    await got(connection.response.create(**fields))
    events = [await got(connection.recv())]
    while events[-1].type not in TERMINAL:
        events.append(await got(connection.recv()))
    return events


def form(name: str, model: Any) -> Any:
    return {
        "format": {"type": "json_schema", "name": name, "strict": True, "schema": schema_of(model)}
    }


async def tool_loop(connection: Any) -> Any:
    loop, fields = Loop(), {"input": LOOP}
    while True:
        response = (await create(connection, tools=FUNCTIONS, **fields))[-1].response
        loop.turns += 1
        calls = [item for item in response.output if item.type == "function_call"]
        if not calls:
            return loop.seen(response.output_text)
        outputs = [
            {
                "type": "function_call_output",
                "call_id": call.call_id,
                "output": loop.run(call.name, call.arguments),
            }
            for call in calls
        ]
        fields = {"input": outputs, "previous_response_id": response.id}


async def streaming(connection: Any) -> Any:
    events = await create(connection, input=TALK)
    pieces = [event.delta for event in events if event.type == "response.output_text.delta"]
    return streamed(pieces, events[-1].response.output_text)


async def structured(connection: Any) -> Any:
    events = await create(connection, input=TALK, text=form("offer", Offer))
    return Offer.model_validate_json(events[-1].response.output_text).model_dump()


async def error(connection: Any) -> Any:
    (event,) = await create(connection, model=UNKNOWN_MODEL, input=TALK)
    return {
        "class": f"openai.{type(event).__name__}",
        "status": event.status,
        "code": event.error.code,
        "param": event.error.param,
    }


async def cancel(connection: Any, other: Any) -> Any:
    """This transport has no way to stop a turn but to close its connection."""
    server = Server(URL)
    await got(
        connection.response.create(model="default", input=TALK, text=form("story", LongStory))
    )
    while (await got(connection.recv())).type != "response.output_text.delta":
        pass
    await got(connection.close())
    cancelled = server.cancelled_within()
    after = (await create(other, input=TALK))[-1].response
    return {"cancelled": cancelled, "after": after.output_text}


async def main() -> None:
    manager, others = CLIENT.responses.connect(), CLIENT.responses.connect()
    connection, other = await got(manager.enter()), await got(others.enter())
    seen = {
        "tool_loop": await tool_loop(connection),
        "streaming": await streaming(connection),
        "structured": await structured(connection),
        "error": await error(connection),
        "cancel": await cancel(connection, other),
    }
    await got(other.close())
    report(**seen)


asyncio.run(main())
