"""``create_react_agent`` of ``langgraph`` with ``langchain-openai``; ``chat`` and ``responses``."""

import warnings

from common import Conversation, Loop, arguments, report
from langchain_openai import ChatOpenAI
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.prebuilt import create_react_agent

warnings.simplefilter("ignore")
URL, WAY = arguments()
loop = Loop()
model = ChatOpenAI(
    model="default",
    base_url=URL,
    api_key="none",
    max_retries=0,
    temperature=0,
    use_responses_api=WAY == "responses",
)
agent = create_react_agent(model, [loop.get_price, loop.multiply], checkpointer=InMemorySaver())


def ask(question: str) -> str:
    asked = {"messages": [{"role": "user", "content": question}]}
    said = agent.invoke(asked, {"configurable": {"thread_id": "t"}})
    return str(said["messages"][-1].text)


report(conversation=Conversation(loop).asked(ask))
