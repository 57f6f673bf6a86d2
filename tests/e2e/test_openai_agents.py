"""The stock ``openai-agents`` SDK over its WebSocket transport."""

import enum
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import date
from typing import Annotated, Any, Literal
from uuid import UUID

import pytest
from agents import (
    Agent,
    ModelSettings,
    OpenAIConversationsSession,
    OpenAIResponsesModel,
    ResponsesWebSocketSession,
    Runner,
    function_tool,
    responses_websocket_session,
    set_tracing_disabled,
)
from agents.exceptions import ModelBehaviorError
from openai import AsyncOpenAI
from pydantic import BaseModel, Field, HttpUrl

from keepwarm.demo.child_server import ChildServer

Product = Literal["lamp", "desk"]


class Offer(BaseModel):
    product: Product
    pieces: Annotated[int, Field(ge=1, le=9)]
    remark: Annotated[str, Field(max_length=10)]


@pytest.fixture(autouse=True)
def no_tracing() -> None:
    """Traces would go to a server of the SDK's makers."""
    set_tracing_disabled(True)


@asynccontextmanager
async def session_with(server: ChildServer) -> AsyncIterator[ResponsesWebSocketSession]:
    async with responses_websocket_session(api_key="none", base_url=server.url) as session:
        yield session


class Shop:
    """Two tools that count their calls, and an agent that must call the one named."""

    def __init__(self) -> None:
        self.calls: list[str] = []

        @function_tool
        def get_price(product: Product) -> dict[str, int]:
            """Get the price of a product."""
            self.calls.append("get_price")
            return {"price": {"lamp": 24, "desk": 180}[product]}

        @function_tool
        def get_stock(product: Product, shelf: Annotated[int, Field(ge=1, le=9)]) -> str:
            """Count the pieces on a shelf."""
            self.calls.append("get_stock")
            return f"{shelf} pieces of {product}"

        self.tools = [get_price, get_stock]

    def agent(self, tool_choice: str) -> Agent[Any]:
        return Agent(
            name="shop",
            model="default",
            instructions="You sell furniture.",
            tools=list(self.tools),
            output_type=Offer,
            model_settings=ModelSettings(
                tool_choice=tool_choice, parallel_tool_calls=False, max_tokens=256
            ),
        )


async def test_an_agent_with_two_tools_and_an_output_type_ends_with_a_value(
    server: ChildServer,
) -> None:
    shop = Shop()
    async with session_with(server) as session:
        first = await session.run(shop.agent("get_price"), "Offer me a desk.", max_turns=8)
        second = await session.run(
            shop.agent("get_stock"),
            "And how many are there?",
            previous_response_id=first.last_response_id,
            max_turns=8,
        )
    assert isinstance(first.final_output, Offer)
    assert isinstance(second.final_output, Offer)
    assert shop.calls[0] == "get_price"
    assert "get_stock" in shop.calls
    assert first.context_wrapper.usage.requests >= 2


async def test_a_chain_kept_by_the_server_is_cached_turn_by_turn(server: ChildServer) -> None:
    shop = Shop()
    async with session_with(server) as session:
        result = await session.run(
            shop.agent("get_price"), "Offer me a lamp.", auto_previous_response_id=True, max_turns=8
        )
    first, second = result.raw_responses[:2]
    reached = first.usage.input_tokens + first.usage.output_tokens - 1
    assert second.usage.input_tokens_details.cached_tokens >= reached // 16 * 16


async def test_a_whole_history_that_the_sdk_resends_is_found_in_the_cache(
    server: ChildServer,
) -> None:
    shop = Shop()
    async with session_with(server) as session:
        first = await session.run(shop.agent("get_price"), "Offer me a lamp.", max_turns=8)
        history = [*first.to_input_list(), {"role": "user", "content": "And a desk?"}]
        second = await session.run(shop.agent("get_price"), history, max_turns=8)
    last = first.raw_responses[-1].usage
    reached = last.input_tokens + last.output_tokens - 1
    found = second.raw_responses[0].usage.input_tokens_details.cached_tokens
    assert found >= reached // 16 * 16


async def test_streaming_yields_the_steps_and_ends_with_the_same_value(
    server: ChildServer,
) -> None:
    shop = Shop()
    async with session_with(server) as session:
        result = session.run_streamed(shop.agent("get_stock"), "How many?", max_turns=8)
        events = [event async for event in result.stream_events()]
    names = [event.name for event in events if event.type == "run_item_stream_event"]
    assert names[:2] == ["tool_called", "tool_output"]
    assert names[-1] == "message_output_created"
    text = "".join(
        event.data.delta
        for event in events
        if event.type == "raw_response_event" and event.data.type == "response.output_text.delta"
    )
    assert Offer.model_validate_json(text) == result.final_output


async def test_a_spent_budget_fails_the_run_and_keeps_the_socket(server: ChildServer) -> None:
    agent = Agent(
        name="frugal",
        model="default",
        model_settings=ModelSettings(
            max_tokens=64,
            extra_body={"keepwarm": {"session": "frugal", "budget": {"input_uncached": 1}}},
        ),
    )
    async with session_with(server) as session:
        with pytest.raises(ModelBehaviorError):
            await session.run(agent, "Hello, is anybody there?")
        shop = Shop()
        result = await session.run(shop.agent("get_price"), "A desk.", max_turns=8)
    assert isinstance(result.final_output, Offer)


class Order(BaseModel):
    products: list[Product]
    day: date
    number: UUID
    page: HttpUrl


class Size(enum.Enum):
    SMALL = "S"
    LARGE = "L"


async def test_lists_of_literals_dates_and_unique_items_are_called_under_strict(
    server: ChildServer,
) -> None:
    orders: list[Order] = []

    @function_tool
    def place(order: Order, sizes: Annotated[set[Size], Field(max_length=1)]) -> str:
        """Place an order."""
        orders.append(order)
        return "placed"

    assert place.strict_json_schema
    assert "uniqueItems" in str(place.params_json_schema)
    agent = Agent(
        name="shop",
        model="default",
        tools=[place],
        output_type=Offer,
        model_settings=ModelSettings(
            tool_choice="place", parallel_tool_calls=False, max_tokens=512
        ),
    )
    async with session_with(server) as session:
        result = await session.run(agent, "Order two lamps.", max_turns=8)
    assert isinstance(result.final_output, Offer)
    assert len(orders) >= 1


async def test_a_conversation_of_the_server_is_the_agents_memory(server: ChildServer) -> None:
    """Each turn sends the whole history, as the conversation has it: what was said is cached."""
    client = AsyncOpenAI(base_url=server.url, api_key="none")
    memory = OpenAIConversationsSession(openai_client=client)
    agent = Agent(
        name="a",
        model=OpenAIResponsesModel("default", client),
        model_settings=ModelSettings(max_tokens=200),
        output_type=Offer,
    )
    kept: list[Any] = []
    for text in ("one", "two", "three"):
        result = await Runner.run(agent, text, session=memory)
        usage = result.raw_responses[-1].usage
        assert (usage.input_tokens_details.cached_tokens > 0) == bool(kept)
        now = await memory.get_items()
        assert now[: len(kept)] == kept
        kept = now
    asked = [item["content"] for item in kept if item.get("role") == "user"]
    assert [content[0]["text"] for content in asked] == ["one", "two", "three"]
    assert (await memory.pop_item()) == kept[-1]
    assert await memory.get_items() == kept[:-1]
    await memory.clear_session()
    await client.close()
