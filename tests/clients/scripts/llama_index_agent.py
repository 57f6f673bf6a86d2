"""``llama-index-core``'s ``FunctionAgent`` with ``llama-index-llms-openai-like``; way ``chat``."""

import asyncio

from common import Conversation, Loop, arguments, report
from llama_index.core.agent.workflow import FunctionAgent
from llama_index.core.memory import ChatMemoryBuffer
from llama_index.llms.openai_like import OpenAILike

URL, _ = arguments()


async def main() -> None:
    loop = Loop()
    model = OpenAILike(
        model="default",
        api_base=URL,
        api_key="none",
        is_chat_model=True,
        is_function_calling_model=True,
        temperature=0,
        max_retries=0,
    )
    agent = FunctionAgent(tools=[loop.get_price, loop.multiply], llm=model)
    memory = ChatMemoryBuffer.from_defaults(token_limit=4000)

    async def ask(question: str) -> str:
        return str(await agent.run(question, memory=memory))

    report(conversation=await Conversation(loop).asked_async(ask))


asyncio.run(main())
