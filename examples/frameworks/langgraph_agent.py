"""LangGraph on ``keepwarm serve``: the graph's own loop, its history warm at the server.

No checkpointer of ours is needed: a session lasts at the server, and a history that is resent
finds it. ``pip install langgraph langchain-openai``, then start ``keepwarm serve``, then:
python examples/frameworks/langgraph_agent.py [URL [SESSION]]
"""

import sys
import warnings

from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.prebuilt import create_react_agent

warnings.simplefilter("ignore")  # of LangGraph, about what moves elsewhere
QUESTIONS = ("What is the price of desk?", "And of lamp?")


@tool
def get_price(product: str) -> dict[str, int]:
    """Get the price of a product."""
    return {"price": {"lamp": 24, "desk": 180, "chair": 75}.get(product, 0)}


def main(url: str = "http://127.0.0.1:8080/v1", session: str = "langgraph") -> None:
    model = ChatOpenAI(
        model="default",
        base_url=url,
        api_key="none",
        temperature=0,
        use_responses_api=True,
        default_headers={"x-session-id": session},
    )
    agent = create_react_agent(model, [get_price], checkpointer=InMemorySaver())
    for question in QUESTIONS:
        asked = {"messages": [{"role": "user", "content": question}]}
        said = agent.invoke(asked, {"configurable": {"thread_id": session}})
        print(said["messages"][-1].text)


if __name__ == "__main__":
    main(*sys.argv[1:])
