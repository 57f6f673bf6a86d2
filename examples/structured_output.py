"""An answer that is a value of a type: the schema constrains every token, so it parses. The
default model has learnt to call tools alone: what it writes here has the form, and no sense.

Start ``keepwarm serve``, then: python examples/structured_output.py [URL]
"""

import sys
from typing import Annotated, Literal

from pydantic import BaseModel, Field

from keepwarm import Client, json_format


class Line(BaseModel):
    product: Annotated[str, Field(max_length=12)]
    quantity: Annotated[int, Field(ge=1, le=99)]


class Order(BaseModel):
    customer: Annotated[str, Field(max_length=16)]
    priority: Literal["low", "normal", "high"]
    lines: Annotated[list[Line], Field(min_length=1, max_length=3)]


def main(*url: str) -> None:
    with Client(*url) as client:
        response = client.session().respond(
            "Ada orders two lamps and a desk, and she is in a hurry.", text=json_format(Order)
        )
    order = response.parsed(Order)
    print(f"{order.customer!r} ({order.priority})")
    for line in order.lines:
        print(f"  {line.quantity:>3} x {line.product!r}")


if __name__ == "__main__":
    main(*sys.argv[1:])
