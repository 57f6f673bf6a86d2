"""A tool loop: the model calls Python functions until it has what it needs.

The first turn must call a tool; its arguments fit the function's types because the schema
constrains every token. Start ``keepwarm serve``, then: python examples/tool_loop.py [URL]
"""

import sys
from typing import Annotated, Literal

from pydantic import Field

from keepwarm import Client, tool

PRICES = {"lamp": 24.5, "desk": 180.0, "chair": 75.0}


@tool
def get_price(product: Literal["lamp", "desk", "chair"]) -> dict[str, float]:
    """Get the price of a product."""
    return {"price": PRICES[product]}


@tool
def multiply(
    a: Annotated[float, Field(ge=0, le=1000)], b: Annotated[float, Field(ge=0, le=1000)]
) -> dict[str, float]:
    """Multiply two numbers."""
    return {"result": a * b}


def main(*url: str) -> None:
    with Client(*url) as client:
        session = client.session(tools=[get_price, multiply])
        result = session.run(
            "Multiply the price of desk by 3.",
            tool_choice="required",
            parallel_tool_calls=False,
            max_output_tokens=128,
        )
    for record in result.calls:
        print(f"{record.call.name}({record.call.arguments}) -> {record.output}")
    print(result.text)
    print(f"[{len(result.responses)} turns, {result.usage.hit_ratio:.0%} of their input cached]")


if __name__ == "__main__":
    main(*sys.argv[1:])
