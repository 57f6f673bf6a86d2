"""``anthropic``: the Messages API; ways ``sync`` and ``async``."""

import asyncio
import inspect
from typing import Any

import anthropic
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
    {"name": name, "description": model.__doc__, "input_schema": schema_of(model)}
    for name, model in TOOLS.items()
]
CLIENT: Any = {"sync": anthropic.Anthropic, "async": anthropic.AsyncAnthropic}[WAY](
    base_url=URL.removesuffix("/v1"), api_key="none", max_retries=0
)
ASK: Any = [{"role": "user", "content": TALK}]
GREEDY: Any = {"temperature": 0}


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
    fields = {"model": "default", "max_tokens": 200, "messages": ASK, "extra_body": GREEDY} | fields
    return await got(CLIENT.messages.create(**fields))


async def tool_loop() -> Any:
    loop, messages = Loop(), [{"role": "user", "content": LOOP}]
    while True:
        message = await create(messages=messages, tools=FUNCTIONS)
        loop.turns += 1
        messages.append({"role": "assistant", "content": message.content})
        uses = [block for block in message.content if block.type == "tool_use"]
        if not uses:
            return loop.seen(message.content[0].text)
        results = [
            {"type": "tool_result", "tool_use_id": use.id, "content": loop.run(use.name, use.input)}
            for use in uses
        ]
        messages.append({"role": "user", "content": results})


async def streaming() -> Any:
    manager = CLIENT.messages.stream(
        model="default", max_tokens=200, messages=ASK, extra_body=GREEDY
    )
    if WAY == "async":
        async with manager as stream:
            pieces = [text async for text in stream.text_stream]
            final = await stream.get_final_message()
    else:
        with manager as stream:
            pieces = list(stream.text_stream)
            final = stream.get_final_message()
    return streamed(pieces, final.content[0].text)


async def structured() -> Any:
    parsed = await got(
        CLIENT.messages.parse(model="default", max_tokens=200, messages=ASK, output_format=Offer)
    )
    return parsed.parsed_output.model_dump()


async def error() -> Any:
    try:
        await create(model=UNKNOWN_MODEL)
    except anthropic.APIStatusError as error:
        return failed(error, status=error.status_code, code=error.body["error"]["type"])


async def cancel() -> Any:
    server = Server(URL)
    form = {"type": "json_schema", "schema": schema_of(LongStory)}
    stream = await create(stream=True, max_tokens=9000, output_config={"format": form})
    async for event in each(stream):
        if event.type == "content_block_delta":
            break
    await got(stream.close())
    cancelled = server.cancelled_within()
    return {"cancelled": cancelled, "after": (await create()).content[0].text}


async def main() -> None:
    report(
        tool_loop=await tool_loop(),
        streaming=await streaming(),
        structured=await structured(),
        error=await error(),
        cancel=await cancel(),
    )


asyncio.run(main())
