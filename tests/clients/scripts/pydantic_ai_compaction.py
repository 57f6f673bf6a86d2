"""``OpenAICompaction`` of ``pydantic-ai``; ways ``managed`` (in the turn) and ``alone``."""

import asyncio
from typing import Any

from common import Conversation, Loop, arguments, report
from pydantic_ai import Agent, Tool
from pydantic_ai.messages import CompactionPart, ModelRequest, UserPromptPart
from pydantic_ai.models.openai import OpenAICompaction, OpenAIResponsesModel
from pydantic_ai.providers.openai import OpenAIProvider

URL, WAY = arguments()


def asks(messages: list[Any]) -> bool:
    """A user has asked something, and there is something behind it."""
    last = messages[-1]
    told = isinstance(last, ModelRequest) and isinstance(last.parts[-1], UserPromptPart)
    return told and len(messages) > 2


loop = Loop()
compaction: Any = (
    OpenAICompaction(token_threshold=330) if WAY == "managed" else OpenAICompaction(trigger=asks)
)
agent: Any = Agent(
    OpenAIResponsesModel("default", provider=OpenAIProvider(base_url=URL, api_key="none")),
    model_settings={"temperature": 0},
    tools=[Tool(loop.get_price, strict=True), Tool(loop.multiply, strict=True)],
    capabilities=[compaction],
)


async def main() -> None:
    history: list[Any] = []
    compacted = 0

    async def ask(question: str) -> str:
        nonlocal history, compacted
        result = await agent.run(question, message_history=history)
        history = result.all_messages()
        compacted += any(
            isinstance(part, CompactionPart) for message in history for part in message.parts
        )
        return str(result.output)

    told = await Conversation(loop).asked_async(ask)
    report(conversation=told, compacted=compacted)


asyncio.run(main())
