"""``openai-agents`` on ``keepwarm serve``: its own loop over HTTP, its history warm at the server.

``pip install openai-agents``, then start ``keepwarm serve``, then:
python examples/frameworks/openai_agents.py [URL [SESSION]]
"""

import asyncio
import sys
from typing import Any

from agents import (
    Agent,
    ModelSettings,
    OpenAIResponsesModel,
    Runner,
    function_tool,
    set_tracing_disabled,
)
from openai import AsyncOpenAI

QUESTIONS = ("What is the price of desk?", "And of lamp?")


@function_tool
def get_price(product: str) -> dict[str, int]:
    """Get the price of a product."""
    return {"price": {"lamp": 24, "desk": 180, "chair": 75}.get(product, 0)}


async def main(url: str = "http://127.0.0.1:8080/v1", session: str = "openai-agents") -> None:
    set_tracing_disabled(True)
    headers = {"x-session-id": session}
    client = AsyncOpenAI(base_url=url, api_key="none", default_headers=headers)
    agent = Agent(
        name="shop",
        model=OpenAIResponsesModel("default", client),
        model_settings=ModelSettings(temperature=0),
        tools=[get_price],
    )
    history: list[Any] = []
    for question in QUESTIONS:
        result = await Runner.run(agent, [*history, {"role": "user", "content": question}])
        history = result.to_input_list()
        print(result.final_output)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
