"""What the scripts share: tools, questions, and how a cancelled turn shows on the server.

Knows no client. A script is run as ``python NAME.py BASE_URL [WAY]`` and prints one JSON object:
for every capability what it saw. It does not judge; ``tests/clients`` does.
"""

import json
import re
import sys
import time
import urllib.request
from collections.abc import Awaitable, Callable
from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field

PRICES = {"lamp": 24, "desk": 180, "chair": 75}
LOOP = "Multiply the price of desk by 3."
"""Two tools one after the other, then the answer: three turns."""
TALK = "What is the price of desk?"
QUESTIONS = (LOOP, "What is the price of lamp?", "Multiply the price of chair by 2.")
"""Three turns of a user, each with tools."""
UNKNOWN_MODEL = "other"
CANCELLED = re.compile(r'^keepwarm_turns_total\{.*"cancelled".*\} (\S+)$', re.MULTILINE)


class GetPrice(BaseModel):
    """Get the price of a product."""

    product: Literal["lamp", "desk", "chair"]


class Multiply(BaseModel):
    """Multiply two numbers."""

    a: Annotated[int, Field(ge=0, le=9999)]
    b: Annotated[int, Field(ge=0, le=9999)]


class Offer(BaseModel):
    """A structured answer; without bounds of numbers, which some clients do not send."""

    product: Literal["lamp", "desk", "chair"]
    pieces: Literal[1, 2, 3]
    express: bool


Chapter = Annotated[str, Field(min_length=3_000, max_length=3_100)]


class LongStory(BaseModel):
    """An answer of thousands of tokens: who wants it shorter has to cancel."""

    beginning: Chapter
    middle: Chapter
    end: Chapter


TOOLS = {"get_price": GetPrice, "multiply": Multiply}


def schema_of(model: type[BaseModel]) -> dict[str, Any]:
    """A strict schema: nothing beyond what is named."""
    return model.model_json_schema() | {"additionalProperties": False}


def called(name: str, arguments: dict[str, Any]) -> str:
    """Run a tool; its result as JSON."""
    if name == "get_price":
        return json.dumps({"price": PRICES[arguments["product"]]})
    return json.dumps({"result": arguments["a"] * arguments["b"]})


class Loop:
    """Plays the tools and notes their calls."""

    def __init__(self) -> None:
        self.calls: list[Any] = []
        self.turns = 0

    def run(self, name: str, arguments: str | dict[str, Any]) -> str:
        read = json.loads(arguments) if isinstance(arguments, str) else arguments
        self.calls.append([name, read])
        return called(name, read)

    def get_price(self, product: Literal["lamp", "desk", "chair"]) -> str:
        """Get the price of a product."""
        return self.run("get_price", {"product": product})

    def multiply(
        self,
        a: Annotated[int, Field(ge=0, le=9999)],
        b: Annotated[int, Field(ge=0, le=9999)],
    ) -> str:
        """Multiply two numbers."""
        return self.run("multiply", {"a": a, "b": b})

    def seen(self, answer: Any) -> dict[str, Any]:
        return {"turns": self.turns, "calls": self.calls, "answer": answer}


def plain_tools(loop: Loop) -> tuple[Callable[[str], str], Callable[[int, int], str]]:
    """The same tools for clients that read plain types and the arguments' meaning from text."""

    def get_price(product: str) -> str:
        """Get the price of a product.

        Args:
            product: lamp, desk or chair
        """
        return loop.get_price(product)

    def multiply(a: int, b: int) -> str:
        """Multiply two numbers.

        Args:
            a: one of them
            b: the other one
        """
        return loop.multiply(a, b)

    return get_price, multiply


class Forced:
    """Notes what came of turns whose calls were asked for: of each question any call, one of
    ``multiply``, then an answer without calls."""

    def __init__(self, loop: Loop) -> None:
        self._loop = loop
        self.turns: list[dict[str, Any]] = []
        self.cached: list[int] = []
        """Tokens of each turn's prompt that the server found."""

    def choices(self) -> tuple[str, ...]:
        return ("required", "multiply", "none")

    def room(self, choice: str) -> int:
        """Tokens that a turn may write."""
        return 24 if choice == "none" else 400

    def took(self, calls: list[tuple[str, str | dict[str, Any]]], text: str) -> list[str]:
        """Run a turn's calls; what came out of each."""
        outputs = [self._loop.run(name, arguments) for name, arguments in calls]
        self.turns.append({"calls": self._loop.calls[:], "text": text})
        self._loop.calls.clear()
        return outputs


class Conversation:
    """Asks the ``QUESTIONS`` one after the other, and notes what came of each."""

    def __init__(self, loop: Loop) -> None:
        self._loop = loop
        self._seen: list[dict[str, Any]] = []

    def asked(self, ask: Callable[[str], Any]) -> list[dict[str, Any]]:
        """``ask`` returns the answer to a question."""
        for question in QUESTIONS:
            self._note(ask(question))
        return self._seen

    async def asked_async(self, ask: Callable[[str], Awaitable[Any]]) -> list[dict[str, Any]]:
        """The same of a coroutine function."""
        for question in QUESTIONS:
            self._note(await ask(question))
        return self._seen

    def _note(self, answer: Any) -> None:
        self._seen.append({"calls": self._loop.calls[:], "answer": answer})
        self._loop.calls.clear()


def streamed(pieces: list[str], final: Any) -> dict[str, Any]:
    return {"pieces": len(pieces), "joined": "".join(pieces), "final": final}


def failed(error: Exception, **fields: Any) -> dict[str, Any]:
    """What a client made of a refusal."""
    kind = type(error)
    return {"class": f"{kind.__module__.split('.')[0]}.{kind.__name__}", **fields}


class Server:
    """What the server says of itself, apart from the client."""

    def __init__(self, base_url: str) -> None:
        self._metrics = base_url.removesuffix("/").removesuffix("/v1") + "/metrics"
        self._before = self.cancelled_turns()

    def cancelled_turns(self) -> int:
        with urllib.request.urlopen(self._metrics) as page:
            text = page.read().decode()
        return sum(int(float(count)) for count in CANCELLED.findall(text))

    def cancelled_within(self, seconds: float = 10) -> int:
        """How many turns were cancelled since this began, as soon as there is one."""
        until = time.monotonic() + seconds
        while self.cancelled_turns() == self._before and time.monotonic() < until:
            time.sleep(0.02)
        return self.cancelled_turns() - self._before


def arguments() -> tuple[str, str]:
    """The server's base URL, and which of the client's ways to it is meant."""
    return sys.argv[1], sys.argv[2] if len(sys.argv) > 2 else ""


def report(**seen: Any) -> None:
    print(json.dumps(seen))
