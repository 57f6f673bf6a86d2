"""``openai-agents`` on a session: the framework's loop, only what is new on the wire.

The framework hands over its whole history before each turn; the session sends what it has not
seen. ``pip install openai-agents keepwarm``, then start ``keepwarm serve``, then:
python -m examples.adapters.openai_agents_model [URL]
"""

import asyncio
import sys
from collections.abc import AsyncIterator
from typing import Any

from agents import Agent, Model, ModelResponse, Runner, Usage, function_tool, set_tracing_disabled
from agents.models.openai_responses import Converter
from openai.types.responses import Response as OpenAIResponse
from openai.types.responses import ResponseCompletedEvent, ResponseOutputItem
from pydantic import TypeAdapter

from keepwarm import AsyncClient, AsyncSession, Response

NAMES = ("system_instructions", "input", "model_settings", "tools", "output_schema", "handoffs")
ITEMS = TypeAdapter(list[ResponseOutputItem])


class SessionModel(Model):
    """A model of ``openai-agents`` that plays its turns in one of our sessions."""

    def __init__(self, session: AsyncSession) -> None:
        self._session = session
        self._seen = 0

    async def get_response(self, *given: Any, **named: Any) -> ModelResponse:
        """One turn; the arguments are the framework's, in the order of ``NAMES``."""
        response = await self._turn(*given, **named)
        read, wrote = response.usage.input_tokens, response.usage.output_tokens
        usage = Usage(requests=1, input_tokens=read, output_tokens=wrote, total_tokens=read + wrote)
        output = ITEMS.validate_python(response.raw["output"])
        return ModelResponse(output=output, usage=usage, response_id=response.id)

    async def stream_response(self, *given: Any, **named: Any) -> AsyncIterator[Any]:
        """One turn, told when it has ended: the framework's stream of events, one long."""
        whole = OpenAIResponse.model_validate((await self._turn(*given, **named)).raw)
        yield ResponseCompletedEvent(response=whole, sequence_number=0, type="response.completed")

    async def _turn(self, *given: Any, **named: Any) -> Response:
        wants = dict(zip(NAMES, given, strict=False)) | named
        settings, asked = wants["model_settings"], wants["input"]
        items = [{"role": "user", "content": asked}] if isinstance(asked, str) else list(asked)
        options = {
            "instructions": wants["system_instructions"],
            "tools": Converter.convert_tools(wants["tools"], wants["handoffs"]).tools,
            "text": Converter.get_response_format(wants["output_schema"]) or None,
            "max_output_tokens": settings.max_tokens,
            "temperature": settings.temperature,
            "tool_choice": settings.tool_choice,
        }
        said: Any = {name: value for name, value in options.items() if value is not None}
        response = await self._session.respond(items[self._seen :], **said)
        self._seen = len(items) + len(response.output)
        return response


@function_tool
def get_price(product: str) -> int:
    """Get the price of a product."""
    return {"lamp": 24, "desk": 180}.get(product, 0)


async def main(*url: str) -> None:
    set_tracing_disabled(True)
    async with AsyncClient(*url) as client:
        model = SessionModel(client.session(temperature=0, max_output_tokens=64))
        agent = Agent(name="shop", model=model, tools=[get_price])
        print((await Runner.run(agent, "What is the price of desk?")).final_output)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
