"""``pydantic-ai`` on a session: the framework's agents, only what is new on the wire.

``pip install pydantic-ai-slim keepwarm``, then start ``keepwarm serve``, then:
python -m examples.adapters.pydantic_ai_model [URL]
"""

import asyncio
import sys
from typing import Any

from pydantic_ai import Agent, messages
from pydantic_ai.models import Model, ModelRequestParameters
from pydantic_ai.settings import ModelSettings
from pydantic_ai.usage import RequestUsage

from keepwarm import AsyncClient, AsyncSession


class SessionModel(Model):
    """A model of ``pydantic-ai`` that plays its turns in one of our sessions."""

    model_name, system = "default", "keepwarm"

    def __init__(self, session: AsyncSession) -> None:
        super().__init__()
        self._session = session
        self._seen = 0

    async def request(
        self, history: list[messages.ModelMessage], settings: ModelSettings | None,
        parameters: ModelRequestParameters,
    ) -> messages.ModelResponse:  # fmt: skip
        """One turn; its input is the requests that the session has not seen."""
        unseen = history[self._seen :]
        new = [message for message in unseen if isinstance(message, messages.ModelRequest)]
        self._seen = len(history) + 1  # the answer is the next message
        asked = {"max_tokens": "max_output_tokens", "temperature": "temperature"}
        options: Any = {asked[key]: v for key, v in (settings or {}).items() if key in asked}
        options["tools"] = [
            {"type": "function", "name": tool.name, "description": tool.description,
             "parameters": tool.parameters_json_schema}
            for tool in [*parameters.function_tools, *parameters.output_tools]
        ]  # fmt: skip
        if parameters.output_tools and not parameters.allow_text_output:
            options["tool_choice"] = "required"
        items = [_item(part) for message in new for part in message.parts]
        response = await self._session.respond(items, **options)
        parts: list[Any] = [messages.TextPart(response.text)] if response.text else []
        for call in response.calls:
            parts.append(messages.ToolCallPart(call.name, call.arguments, call.call_id))
        counts = RequestUsage(input_tokens=response.usage.input_tokens,
                              output_tokens=response.usage.output_tokens)  # fmt: skip
        return messages.ModelResponse(parts, usage=counts, provider_response_id=response.id)


def _item(part: Any) -> dict[str, Any]:
    retry = isinstance(part, messages.RetryPromptPart)
    if isinstance(part, messages.ToolReturnPart) or (retry and part.tool_name):
        text = part.model_response() if retry else part.model_response_str()
        return {"type": "function_call_output", "call_id": part.tool_call_id, "output": text}
    role = "user" if retry or isinstance(part, messages.UserPromptPart) else "developer"
    content = part.model_response() if retry else part.content
    return {"type": "message", "role": role, "content": content}


async def main(*url: str) -> None:
    async with AsyncClient(*url) as client:
        agent = Agent(SessionModel(client.session(temperature=0, max_output_tokens=64)))

        @agent.tool_plain
        def get_price(product: str) -> dict[str, int]:
            """Get the price of a product."""
            return {"price": {"lamp": 24, "desk": 180}.get(product, 0)}

        print((await agent.run("What is the price of desk?")).output)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
