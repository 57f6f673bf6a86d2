"""``pydantic-ai``; ways ``websocket``, ``http`` and ``chat``."""

import asyncio
from typing import Any

from common import (
    LOOP,
    TALK,
    UNKNOWN_MODEL,
    LongStory,
    Loop,
    Offer,
    Server,
    arguments,
    failed,
    report,
    streamed,
)
from pydantic_ai import Agent, NativeOutput, Tool
from pydantic_ai.exceptions import ModelHTTPError
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
from pydantic_ai.providers.openai import OpenAIProvider

URL, WAY = arguments()
PROVIDER = OpenAIProvider(base_url=URL, api_key="none")


def agent(name: str = "default", **fields: Any) -> Any:
    settings: Any = {"temperature": 0}
    if WAY == "chat":
        return Agent(OpenAIChatModel(name, provider=PROVIDER), model_settings=settings, **fields)
    if WAY == "websocket":
        settings["openai_transport"] = "websocket"
    return Agent(OpenAIResponsesModel(name, provider=PROVIDER), model_settings=settings, **fields)


def seller(loop: Loop) -> Any:
    return agent(tools=[Tool(loop.get_price, strict=True), Tool(loop.multiply, strict=True)])


async def tool_loop() -> Any:
    loop = Loop()
    result = await seller(loop).run(LOOP)
    loop.turns = result.usage.requests
    return loop.seen(result.output)


async def streaming() -> Any:
    async with seller(Loop()).run_stream(LOOP) as result:
        pieces = [text async for text in result.stream_text(delta=True, debounce_by=None)]
        return streamed(pieces, await result.get_output())


async def structured() -> Any:
    return (await agent(output_type=NativeOutput(Offer, strict=True)).run(TALK)).output.model_dump()


async def error() -> Any:
    try:
        await agent(UNKNOWN_MODEL).run(TALK)
    except ModelHTTPError as error:
        return failed(error, status=error.status_code)
    except Exception as error:
        return failed(error, text=str(error))


async def cancel() -> Any:
    server = Server(URL)
    writer = agent(output_type=NativeOutput(LongStory, strict=True))
    async with writer.iter(TALK) as run:
        async for node in run:
            if Agent.is_model_request_node(node):
                async with node.stream(run.ctx) as stream:
                    async for _ in stream:
                        break
                    await stream.cancel()
                break
    cancelled = await asyncio.to_thread(server.cancelled_within)
    return {"cancelled": cancelled, "after": (await agent().run(TALK)).output}


async def main() -> None:
    report(
        tool_loop=await tool_loop(),
        streaming=await streaming(),
        structured=await structured(),
        error=await error(),
        cancel=await cancel(),
    )


asyncio.run(main())
