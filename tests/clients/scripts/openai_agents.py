"""``openai-agents``; ways ``websocket``, ``http`` and ``chat``."""

import asyncio
from typing import Any

import agents
import openai
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

URL, WAY = arguments()
agents.set_tracing_disabled(True)
CLIENT = openai.AsyncOpenAI(base_url=URL, api_key="none", max_retries=0)
GREEDY = agents.ModelSettings(temperature=0)


def model(name: str = "default") -> Any:
    if WAY == "chat":
        return agents.OpenAIChatCompletionsModel(name, CLIENT)
    if WAY == "http":
        return agents.OpenAIResponsesModel(name, CLIENT)
    return agents.OpenAIResponsesWSModel(name, CLIENT)


MODEL = model()


def agent(**fields: Any) -> Any:
    return agents.Agent(**{"name": "shop", "model": MODEL, "model_settings": GREEDY} | fields)


def seller(loop: Loop) -> Any:
    tools = [agents.function_tool(tool) for tool in (loop.get_price, loop.multiply)]
    return agent(tools=tools)


async def tool_loop() -> Any:
    loop = Loop()
    result = await agents.Runner.run(seller(loop), LOOP)
    loop.turns = len(result.raw_responses)
    return loop.seen(result.final_output)


async def streaming() -> Any:
    result = agents.Runner.run_streamed(seller(Loop()), LOOP)
    pieces = [
        event.data.delta
        async for event in result.stream_events()
        if event.type == "raw_response_event" and event.data.type == "response.output_text.delta"
    ]
    return streamed(pieces, result.final_output)


async def structured() -> Any:
    result = await agents.Runner.run(agent(output_type=Offer), TALK)
    return result.final_output.model_dump()


async def error() -> Any:
    try:
        await agents.Runner.run(agent(model=model(UNKNOWN_MODEL)), TALK)
    except openai.APIStatusError as error:
        return failed(error, status=error.status_code, code=error.code)
    except Exception as error:
        return failed(error, text=str(error))


async def cancel() -> Any:
    server = Server(URL)
    result = agents.Runner.run_streamed(agent(output_type=LongStory), TALK)
    async for event in result.stream_events():
        if event.type == "raw_response_event" and event.data.type == "response.output_text.delta":
            result.cancel()
    cancelled = await asyncio.to_thread(server.cancelled_within)
    after = await agents.Runner.run(agent(), TALK)
    return {"cancelled": cancelled, "after": after.final_output}


async def main() -> None:
    report(
        tool_loop=await tool_loop(),
        streaming=await streaming(),
        structured=await structured(),
        error=await error(),
        cancel=await cancel(),
    )


asyncio.run(main())
