"""``google-adk`` with LiteLLM; way ``chat``."""

import asyncio

from common import Conversation, Loop, arguments, plain_tools, report
from google.adk.agents import LlmAgent
from google.adk.models.lite_llm import LiteLlm
from google.adk.runners import InMemoryRunner
from google.genai import types

URL, _ = arguments()


async def main() -> None:
    loop = Loop()
    model = LiteLlm(model="openai/default", api_base=URL, api_key="none", temperature=0)
    agent = LlmAgent(name="seller", model=model, tools=list(plain_tools(loop)))
    runner = InMemoryRunner(agent=agent, app_name="shop")
    session = await runner.session_service.create_session(app_name="shop", user_id="u")

    async def ask(question: str) -> str:
        said = ""
        asked = types.Content(role="user", parts=[types.Part(text=question)])
        async for event in runner.run_async(user_id="u", session_id=session.id, new_message=asked):
            parts = (event.content and event.content.parts) or []
            said = "".join(part.text for part in parts if part.text) or said
        return said

    report(conversation=await Conversation(loop).asked_async(ask))


asyncio.run(main())
