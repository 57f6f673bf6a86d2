"""``litellm``; ways ``chat``, ``responses`` and ``messages``."""

import asyncio
from typing import Any

import litellm
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
PROVIDER = {"chat": "openai", "responses": "openai/responses", "messages": "anthropic"}[WAY]
BASE = URL.removesuffix("/v1") if WAY == "messages" else URL
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
ASK: Any = [{"role": "user", "content": TALK}]


def complete(model: str = "default", **fields: Any) -> Any:
    fields = {"messages": ASK, "temperature": 0, "max_retries": 0, **fields}
    return litellm.completion(f"{PROVIDER}/{model}", api_base=BASE, api_key="none", **fields)


def tool_loop() -> Any:
    loop, messages = Loop(), [{"role": "user", "content": LOOP}]
    while True:
        message = complete(messages=messages, tools=FUNCTIONS).choices[0].message
        loop.turns += 1
        messages.append(message.model_dump())
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


def streaming() -> Any:
    pieces = [chunk.choices[0].delta.content for chunk in complete(stream=True)]
    return streamed([piece for piece in pieces if piece], complete().choices[0].message.content)


def structured() -> Any:
    answer = complete(response_format=Offer).choices[0].message.content
    return Offer.model_validate_json(answer).model_dump()


def error() -> Any:
    try:
        complete(UNKNOWN_MODEL)
    except litellm.exceptions.NotFoundError as error:
        return failed(error, status=error.status_code)
    except Exception as error:
        return failed(error, text=str(error))


async def read(begun: asyncio.Event) -> None:
    form = {"name": "story", "strict": True, "schema": schema_of(LongStory)}
    stream = await litellm.acompletion(
        f"{PROVIDER}/default",
        api_base=BASE,
        api_key="none",
        messages=ASK,
        stream=True,
        max_tokens=9000,
        response_format={"type": "json_schema", "json_schema": form},
    )
    async for chunk in stream:
        if chunk.choices[0].delta.content:
            begun.set()


async def cancel() -> Any:
    """Not every stream here has a working ``close``; a task can always be cancelled."""
    server, begun = Server(URL), asyncio.Event()
    task = asyncio.create_task(read(begun))
    await begun.wait()
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    cancelled = await asyncio.to_thread(server.cancelled_within, 3)
    return {"cancelled": cancelled, "after": complete().choices[0].message.content}


report(
    tool_loop=tool_loop(),
    streaming=streaming(),
    structured=structured(),
    error=error(),
    cancel=asyncio.run(cancel()),
)
