"""``OpenAIResponsesCompactionSession`` of ``openai-agents``; ``websocket`` and ``http``."""

import asyncio
from typing import Any

import agents
import openai
from agents.memory import OpenAIResponsesCompactionSession
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
session: Any = OpenAIResponsesCompactionSession(
    "s",
    agents.SQLiteSession("s"),
    client=CLIENT,
    should_trigger_compaction=lambda context: len(context["compaction_candidate_items"]) >= 4,
)
session.model = "default"  # only names of OpenAI's are taken above


async def main() -> None:
    compacted = 0

    async def ask(question: str) -> str:
        nonlocal compacted
        result = await agents.Runner.run(agent, question, session=session)
        items = await session.get_items()
        compacted += any(item.get("type") == "compaction" for item in items)
        return str(result.final_output)

    told = await Conversation(loop).asked_async(ask)
    report(conversation=told, compacted=compacted)


asyncio.run(main())
