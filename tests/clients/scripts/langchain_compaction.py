"""``context_management`` of ``langchain-openai``; ways ``responses`` and ``chained``."""

from typing import Any

from common import Conversation, Loop, arguments, report
from langchain_core.messages import HumanMessage, ToolMessage
from langchain_openai import ChatOpenAI

URL, WAY = arguments()
loop = Loop()
model: Any = ChatOpenAI(
    model="default",
    base_url=URL,
    api_key="none",
    max_retries=0,
    temperature=0,
    use_responses_api=True,
    use_previous_response_id=WAY == "chained",
    context_management=[{"type": "compaction", "compact_threshold": 330}],
).bind_tools([loop.get_price, loop.multiply], strict=True)
messages: list[Any] = []
compacted: list[Any] = []


def ask(question: str) -> str:
    messages.append(HumanMessage(question))
    while True:
        messages.append(model.invoke(messages))
        content = messages[-1].content
        blocks = content if isinstance(content, list) else []
        compacted.extend(block for block in blocks if block["type"] == "compaction")
        if not messages[-1].tool_calls:
            return str(messages[-1].text)
        messages.extend(
            ToolMessage(loop.run(call["name"], call["args"]), tool_call_id=call["id"])
            for call in messages[-1].tool_calls
        )


report(conversation=Conversation(loop).asked(ask), compacted=len(compacted))
