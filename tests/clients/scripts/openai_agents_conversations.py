"""``OpenAIConversationsSession`` of ``openai-agents``; ``websocket`` and ``http``."""

import asyncio
from typing import Any

import agents
import openai
from agents.memory import OpenAIConversationsSession
from common import Conversation, Loop, arguments, report

URL, WAY = arguments()
agents.set_tracing_disabled(True)
CLIENT = openai.AsyncOpenAI(base_url=URL, api_key="none", max_retries=0)
model = agents.OpenAIResponsesModel if WAY == "http" else agents.OpenAIResponsesWSModel
loop = Loop()
agent: Any = agents.Agent(
    name="shop",
    model=model("default", CLIENT),
    model_settings=agents.ModelSettings(temperature=0),
    tools=[agents.function_tool(tool) for tool in (loop.get_price, loop.multiply)],
)
session = OpenAIConversationsSession(openai_client=CLIENT)


async def main() -> None:
    async def ask(question: str) -> str:
        result = await agents.Runner.run(agent, question, session=session)
        return str(result.final_output)

    told = await Conversation(loop).asked_async(ask)
    items: Any = await session.get_items()
    report(conversation=told, kinds=[item["type"] for item in items])
    await session.clear_session()


asyncio.run(main())
