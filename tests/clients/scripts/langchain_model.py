"""``langchain-openai``; ways ``chat`` and ``responses``."""

from typing import Any

import openai
from common import (
    LOOP,
    TALK,
    UNKNOWN_MODEL,
    GetPrice,
    LongStory,
    Loop,
    Multiply,
    Offer,
    Server,
    arguments,
    failed,
    report,
    streamed,
)
from langchain_core.messages import HumanMessage, ToolMessage
from langchain_openai import ChatOpenAI

URL, WAY = arguments()
NAMES = {"GetPrice": "get_price", "Multiply": "multiply"}


def model(name: str = "default") -> Any:
    return ChatOpenAI(
        model=name,
        base_url=URL,
        api_key="none",
        max_retries=0,
        temperature=0,
        use_responses_api=WAY == "responses",
    )


def tool_loop() -> Any:
    loop = Loop()
    seller = model().bind_tools([get_price, multiply], strict=True)
    messages: list[Any] = [HumanMessage(LOOP)]
    while True:
        messages.append(seller.invoke(messages))
        loop.turns += 1
        if not messages[-1].tool_calls:
            return loop.seen(messages[-1].text)
        messages += [
            ToolMessage(loop.run(call["name"], call["args"]), tool_call_id=call["id"])
            for call in messages[-1].tool_calls
        ]


class get_price(GetPrice):
    """Get the price of a product."""


class multiply(Multiply):
    """Multiply two numbers."""


def streaming() -> Any:
    pieces = [chunk.text for chunk in model().stream(TALK)]
    return streamed([piece for piece in pieces if piece], model().invoke(TALK).text)


def structured() -> Any:
    asked = model().with_structured_output(Offer, method="json_schema", strict=True)
    return asked.invoke(TALK).model_dump()


def error() -> Any:
    try:
        model(UNKNOWN_MODEL).invoke(TALK)
    except openai.APIStatusError as error:
        return failed(error, status=error.status_code, code=error.code)


def cancel() -> Any:
    server = Server(URL)
    form = {"type": "json_schema", "json_schema": {"name": "story", "strict": True}}
    form["json_schema"]["schema"] = LongStory.model_json_schema() | {"additionalProperties": False}
    stream = model().bind(response_format=form).stream(TALK)
    for chunk in stream:
        if chunk.text:
            break
    stream.close()
    return {"cancelled": server.cancelled_within(), "after": model().invoke(TALK).text}


report(
    tool_loop=tool_loop(),
    streaming=streaming(),
    structured=structured(),
    error=error(),
    cancel=cancel(),
)
