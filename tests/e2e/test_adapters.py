"""Other frameworks on our sessions: each asks for a price, calls the tool, and gives the answer."""

import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
from agents import Agent, Runner, set_tracing_disabled
from pydantic import BaseModel
from pydantic_ai import Agent as PydanticAgent

from examples.adapters.openai_agents_model import SessionModel as AgentsModel
from examples.adapters.openai_agents_model import get_price
from examples.adapters.pydantic_ai_model import SessionModel as PydanticModel
from keepwarm import AsyncClient
from keepwarm.demo.child_server import ChildServer, child_server
from tests.support.architecture import ROOT
from tests.support.fake_server import FakeServer, call, message, turn

ADAPTERS = sorted(path.stem for path in (ROOT / "examples/adapters").glob("*_model.py"))


@pytest.fixture(scope="module")
def shipped(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ChildServer]:
    """The default model, which knows how to call the tool."""
    log = tmp_path_factory.mktemp("server") / "log"
    options = ["--kv-cache-mib", "64", "--threads", "1", "--journal", ":memory:"]
    with child_server(options, log=log) as serving:
        yield serving


@pytest.mark.parametrize("name", ADAPTERS)
def test_an_adapter_is_short_and_does_what_it_says(name: str, shipped: ChildServer) -> None:
    source = (ROOT / f"examples/adapters/{name}.py").read_text(encoding="utf-8")
    assert len(source.splitlines()) < 80
    ran = subprocess.run(
        [sys.executable, "-m", f"examples.adapters.{name}", shipped.url],
        cwd=ROOT, capture_output=True, text=True, check=False, timeout=120,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout == "The price of desk is 180.\n"


def in_two_turns(answer: dict[str, Any]) -> FakeServer:
    rounds = iter([[call("get_price", '{"product": "desk"}')], [answer]])
    numbers = iter("12")
    return FakeServer(lambda request: turn(request, next(rounds), id=f"resp_{next(numbers)}"))


async def test_openai_agents_sends_only_what_is_new() -> None:
    set_tracing_disabled(True)
    with in_two_turns(message("180")) as server:
        async with AsyncClient(server.url) as client:
            agent = Agent(name="shop", model=AgentsModel(client.session()), tools=[get_price])
            result = await Runner.run(agent, "How much?")
    assert result.final_output == "180"
    assert [item["type"] for item in server.requests[1]["input"]] == ["function_call_output"]
    assert server.requests[1]["previous_response_id"] == "resp_1"


class Offer(BaseModel):
    price: int


async def test_pydantic_ai_sends_only_what_is_new_and_gets_its_type() -> None:
    with in_two_turns(call("final_result", '{"price": 180}', 2)) as server:
        async with AsyncClient(server.url) as client:
            agent = PydanticAgent(PydanticModel(client.session()), output_type=Offer)

            @agent.tool_plain(name="get_price")
            def price(product: str) -> int:
                return 180

            result = await agent.run("How much?")
    assert result.output == Offer(price=180)
    assert [item["type"] for item in server.requests[1]["input"]] == ["function_call_output"]
    assert server.requests[1]["previous_response_id"] == "resp_1"
