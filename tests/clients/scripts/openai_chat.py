"""``openai``: Chat Completions; ways ``sync`` and ``async``."""

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
        "function": {
            "name": name,
            "description": model.__doc__,
            "parameters": schema_of(model),
            "strict": True,
        },
    }
    for name, model in TOOLS.items()
]
CLIENT: Any = {"sync": openai.OpenAI, "async": openai.AsyncOpenAI}[WAY](
    base_url=URL, api_key="none", max_retries=0
)
ASK: Any = [{"role": "user", "content": TALK}]


async def got(value: Any) -> Any:
    return await value if inspect.isawaitable(value) else value


async def each(stream: Any) -> Any:
    if WAY == "async":
        async for event in stream:
            yield event
    else:
        for event in stream:
            yield event


async def create(**fields: Any) -> Any:
    fields = {"model": "default", "temperature": 0, "messages": ASK, **fields}
    return await got(CLIENT.chat.completions.create(**fields))


async def tool_loop() -> Any:
    loop, messages = Loop(), [{"role": "user", "content": LOOP}]
    while True:
        made = await create(messages=messages, tools=FUNCTIONS)
        loop.turns += 1
        message = made.choices[0].message
        messages.append(message.model_dump(exclude_unset=True))
        if not message.tool_calls:
            return loop.seen(message.content)
        messages += [
            {
                "role": "tool",
                "tool_call_id": call.id,
                "content": loop.run(call.function.name, call.function.arguments),
            }
            for call in message.tool_calls
        ]


async def streaming() -> Any:
    stream = await create(stream=True, stream_options={"include_usage": True})
    chunks = [chunk async for chunk in each(stream)]
    pieces = [part.delta.content or "" for chunk in chunks for part in chunk.choices]
    whole = (await create()).choices[0].message.content
    return streamed([piece for piece in pieces if piece], whole) | {
        "usage": chunks[-1].usage.completion_tokens
    }


async def structured() -> Any:
    made = await got(
        CLIENT.chat.completions.parse(model="default", messages=ASK, response_format=Offer)
    )
    return made.choices[0].message.parsed.model_dump()


async def error() -> Any:
    try:
        await create(model=UNKNOWN_MODEL)
    except openai.APIStatusError as error:
        return failed(error, status=error.status_code, code=error.code, param=error.param)


async def cancel() -> Any:
    server = Server(URL)
    form = {"name": "story", "strict": True, "schema": schema_of(LongStory)}
    stream = await create(stream=True, response_format={"type": "json_schema", "json_schema": form})
    async for chunk in each(stream):
        if chunk.choices and chunk.choices[0].delta.content:
            break
    await got(stream.close())
    cancelled = server.cancelled_within()
    return {"cancelled": cancelled, "after": (await create()).choices[0].message.content}


async def main() -> None:
    report(
        tool_loop=await tool_loop(),
        streaming=await streaming(),
        structured=await structured(),
        error=await error(),
        cancel=await cancel(),
    )


asyncio.run(main())
