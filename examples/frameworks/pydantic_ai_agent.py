"""``pydantic-ai`` on ``keepwarm serve``: its own loop over HTTP, its history warm at the server.

``pip install 'pydantic-ai-slim[openai]'``, then start ``keepwarm serve``, then:
python examples/frameworks/pydantic_ai_agent.py [URL [SESSION]]
"""

import asyncio
import sys

from openai import AsyncOpenAI
from pydantic_ai import Agent
from pydantic_ai.messages import ModelMessage
from pydantic_ai.models.openai import OpenAIResponsesModel
from pydantic_ai.providers.openai import OpenAIProvider

QUESTIONS = ("What is the price of desk?", "And of lamp?")


def get_price(product: str) -> dict[str, int]:
    """Get the price of a product."""
    return {"price": {"lamp": 24, "desk": 180, "chair": 75}.get(product, 0)}


async def main(url: str = "http://127.0.0.1:8080/v1", session: str = "pydantic-ai") -> None:
    headers = {"x-session-id": session}
    client = AsyncOpenAI(base_url=url, api_key="none", default_headers=headers)
    model = OpenAIResponsesModel("default", provider=OpenAIProvider(openai_client=client))
    agent = Agent(model, tools=[get_price], model_settings={"temperature": 0})
    history: list[ModelMessage] = []
    for question in QUESTIONS:
        result = await agent.run(question, message_history=history)
        history = result.all_messages()
        print(result.output)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
