"""``strands-agents``; way ``chat``."""

from common import Conversation, Loop, arguments, plain_tools, report
from strands import Agent, tool
from strands.models.openai import OpenAIModel

URL, _ = arguments()
loop = Loop()
agent = Agent(
    model=OpenAIModel(
        client_args={"base_url": URL, "api_key": "none"},
        model_id="default",
        params={"temperature": 0},
    ),
    tools=[tool(each) for each in plain_tools(loop)],
    callback_handler=None,
)
report(conversation=Conversation(loop).asked(lambda question: str(agent(question)).strip()))
