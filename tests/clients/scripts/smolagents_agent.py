"""``smolagents``'s ``ToolCallingAgent``; way ``chat``."""

from common import Conversation, Loop, arguments, plain_tools, report
from smolagents import OpenAIModel, ToolCallingAgent, tool

URL, _ = arguments()
loop = Loop()
agent = ToolCallingAgent(
    tools=[tool(each) for each in plain_tools(loop)],
    model=OpenAIModel("default", api_base=URL, api_key="none", temperature=0),
    max_steps=5,
    verbosity_level=0,
)
agent.prompt_templates["system_prompt"] = "You sell furniture."
report(conversation=Conversation(loop).asked(lambda question: agent.run(question, reset=False)))
