"""``agno``; ways ``chat`` and ``responses``."""

from agno.agent import Agent
from agno.db.in_memory import InMemoryDb
from agno.models.openai import OpenAILike, OpenAIResponses
from common import Conversation, Loop, arguments, report

URL, WAY = arguments()
MODELS = {"chat": OpenAILike, "responses": OpenAIResponses}
loop = Loop()
agent = Agent(
    model=MODELS[WAY](id="default", base_url=URL, api_key="none", temperature=0),
    tools=[loop.get_price, loop.multiply],
    db=InMemoryDb(),
    add_history_to_context=True,
    telemetry=False,
)
report(
    conversation=Conversation(loop).asked(
        lambda question: agent.run(question, session_id="s").content
    )
)
