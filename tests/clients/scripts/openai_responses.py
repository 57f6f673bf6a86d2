"""``openai``: the Responses API over HTTP; ways ``sync`` and ``async``."""

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
    failed,
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
CLIENT: Any = {"sync": openai.OpenAI, "async": openai.AsyncOpenAI}[WAY](
    base_url=URL, api_key="none", max_retries=0
)


async def got(value: Any) -> Any:
    """Of the sync client the value, of the async one what it awaits."""
    return await value if inspect.isawaitable(value) else value


async def each(stream: Any) -> Any:
    if WAY == "async":
        async for event in stream:
            yield event
    else:
        for event in stream:
            yield event


async def create(**fields: Any) -> Any:
    fields = {"model": "default", "temperature": 0, **fields}
    return await got(CLIENT.responses.create(**fields))


async def tool_loop() -> Any:
    loop, new, previous = Loop(), LOOP, None
    while True:
        response = await create(input=new, tools=FUNCTIONS, previous_response_id=previous)
        loop.turns, previous = loop.turns + 1, response.id
        calls = [item for item in response.output if item.type == "function_call"]
        if not calls:
            return loop.seen(response.output_text)
        new = [
            {
                "type": "function_call_output",
                "call_id": call.call_id,
                "output": loop.run(call.name, call.arguments),
            }
            for call in calls
        ]


async def streaming() -> Any:
    events = [event async for event in each(await create(input=TALK, stream=True))]
    pieces = [event.delta for event in events if event.type == "response.output_text.delta"]
    return streamed(pieces, events[-1].response.output_text)


async def structured() -> Any:
    parsed = await got(CLIENT.responses.parse(model="default", input=TALK, text_format=Offer))
    return parsed.output_parsed.model_dump()


async def error() -> Any:
    try:
        await create(model=UNKNOWN_MODEL, input=TALK)
    except openai.APIStatusError as error:
        return failed(error, status=error.status_code, code=error.code, param=error.param)


async def cancel() -> Any:
    server = Server(URL)
    form = {"type": "json_schema", "name": "story", "strict": True, "schema": schema_of(LongStory)}
    stream = await create(input=TALK, text={"format": form}, stream=True)
    async for event in each(stream):
        if event.type == "response.output_text.delta":
            break
    await got(stream.close())
    cancelled = server.cancelled_within()
    return {"cancelled": cancelled, "after": (await create(input=TALK)).output_text}


async def main() -> None:
    report(
        tool_loop=await tool_loop(),
        streaming=await streaming(),
        structured=await structured(),
        error=await error(),
        cancel=await cancel(),
    )


asyncio.run(main())
