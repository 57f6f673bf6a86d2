"""``autogen-agentchat`` with ``autogen-ext``'s client; way ``chat``."""

import asyncio

from autogen_agentchat.agents import AssistantAgent
from autogen_ext.models.openai import OpenAIChatCompletionClient
from common import Conversation, Loop, arguments, plain_tools, report

URL, _ = arguments()
KNOWN = {"vision": False, "function_calling": True, "json_output": True, "family": "unknown",
         "structured_output": True}  # fmt: skip


async def main() -> None:
    loop = Loop()
    client = OpenAIChatCompletionClient(
        model="default", base_url=URL, api_key="none", model_info=KNOWN, temperature=0
    )
    agent = AssistantAgent(
        "seller",
        client,
        tools=list(plain_tools(loop)),
        max_tool_iterations=5,
        system_message=None,
    )

    async def ask(question: str) -> str:
        return (await agent.run(task=question)).messages[-1].to_text()

    report(conversation=await Conversation(loop).asked_async(ask))
    await client.close()


asyncio.run(main())
