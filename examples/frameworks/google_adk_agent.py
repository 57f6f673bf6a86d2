"""``google-adk`` on ``keepwarm serve``, by way of LiteLLM and Chat Completions.

``pip install google-adk litellm``, then start ``keepwarm serve``, then:
python examples/frameworks/google_adk_agent.py [URL [SESSION]]
"""

import asyncio
import sys

from google.adk.agents import LlmAgent
from google.adk.models.lite_llm import LiteLlm
from google.adk.runners import InMemoryRunner
from google.genai import types

QUESTIONS = ("What is the price of desk?", "And of lamp?")


def get_price(product: str) -> dict[str, int]:
    """Get the price of a product."""
    return {"price": {"lamp": 24, "desk": 180, "chair": 75}.get(product, 0)}


async def main(url: str = "http://127.0.0.1:8080/v1", session: str = "google-adk") -> None:
    model = LiteLlm(
        model="openai/default",
        api_base=url,
        api_key="none",
        temperature=0,
        extra_headers={"x-session-id": session},
    )
    agent = LlmAgent(name="shop", model=model, tools=[get_price])
    runner = InMemoryRunner(agent=agent, app_name="shop")
    theirs = await runner.session_service.create_session(app_name="shop", user_id="user")
    for question in QUESTIONS:
        asked = types.Content(role="user", parts=[types.Part(text=question)])
        said = ""
        async for event in runner.run_async(
            user_id="user", session_id=theirs.id, new_message=asked
        ):
            parts = (event.content and event.content.parts) or []
            said = "".join(part.text for part in parts if part.text) or said
        print(said)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
