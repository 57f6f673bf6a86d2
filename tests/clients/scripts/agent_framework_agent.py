"""``agent-framework-core`` with ``agent-framework-openai``; ways ``responses`` and ``chat``."""

import asyncio

from agent_framework import Agent
from agent_framework.openai import OpenAIChatClient, OpenAIChatCompletionClient
from common import Conversation, Loop, arguments, report

URL, WAY = arguments()
CLIENTS = {"responses": OpenAIChatClient, "chat": OpenAIChatCompletionClient}


async def main() -> None:
    loop = Loop()
    client = CLIENTS[WAY](model="default", base_url=URL, api_key="none")
    agent = Agent(
        client=client,
        tools=[loop.get_price, loop.multiply],
        default_options={"temperature": 0},
    )
    session = agent.create_session()

    async def ask(question: str) -> str:
        return (await agent.run(question, session=session)).text

    report(conversation=await Conversation(loop).asked_async(ask))


asyncio.run(main())
