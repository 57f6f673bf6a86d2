"""Serve a model, play the agent over one session and then over several at once.

    python -m examples.demo [--model MODEL] [--sessions N] [--url URL]

Needs no network, no GPU and no key. With ``--url`` it plays against a server that runs
already; the costs are then by that server's prices.
"""

import argparse
import asyncio
import importlib.util
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

from examples.demo.agent import INSTRUCTIONS, MANY_SESSIONS, ONE_SESSION, PlayedTurn, ask
from examples.demo.child_server import child_server
from examples.demo.report import HEADER, line, summary
from examples.demo.shop import make_shop, shop_tools
from keepwarm import AsyncClient, Tool

PRICES = "input=1.00,cached=0.10,output=4.00"
"""Dollars per million tokens, of the order that providers ask for small models."""
SERVE = ("--threads", "1", "--price", PRICES)
"""A model this small is fastest on one thread: the others would only wait for each other."""
RANDOM_NOTE = """\
These weights are random, so the model means nothing by what it says: each call is forced by
tool_choice, its arguments are drawn from what the tool's schema allows, and the answers are
noise. Tools, transcripts, caching and accounts are real."""
SMALL_NOTE = """\
This model has 1.3 million parameters and was trained to call tools, nothing else. It chooses its
calls itself and is at times wrong; its model card (runtime/assets/default_model) says how often."""


async def play(url: str, tools: Sequence[Tool], *, forced: bool, sessions: int) -> None:
    """Play and print both parts of the demo."""
    everything: list[PlayedTurn] = []
    async with AsyncClient(url) as client:
        print(
            f"\nOne session, {len(ONE_SESSION)} questions, only what is new on the wire:\n{HEADER}"
        )
        session = client.session(instructions=INSTRUCTIONS)
        for question in ONE_SESSION:
            for turn in await ask("first", session, tools, question, forced=forced):
                print(line(turn))
                everything.append(turn)

        print(f"\n{sessions} sessions at once, sharing instructions and tools:\n{HEADER}")

        async def play_one(number: int) -> list[PlayedTurn]:
            session = client.session(instructions=INSTRUCTIONS)
            turns: list[PlayedTurn] = []
            for question in MANY_SESSIONS[number % len(MANY_SESSIONS)]:
                turns += await ask(f"s{number + 1}", session, tools, question, forced=forced)
            return turns

        for turns in await asyncio.gather(*(play_one(number) for number in range(sessions))):
            for turn in turns:
                print(line(turn))
            everything += turns
    print(f"\n{summary(everything)}")


def is_trained(model: str) -> bool:
    """Whether ``keepwarm serve --model MODEL`` serves weights that have learnt something."""
    folder = Path(model)
    if model == "default":
        runtime = importlib.util.find_spec("runtime")
        assert runtime is not None
        assert runtime.origin is not None
        folder = Path(runtime.origin).parent / "assets" / "default_model"
    return any(folder.glob("*.safetensors"))


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m examples.demo", description=__doc__)
    parser.add_argument("--model", default="default", help="as for keepwarm serve")
    parser.add_argument("--sessions", type=int, default=8, help="sessions of the second part")
    parser.add_argument("--url", help="play against this server, e.g. http://127.0.0.1:8080/v1")
    parser.add_argument("--forced", action="store_true", help="force calls with --url as well")
    options = parser.parse_args(arguments)
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        make_shop(folder / "shop.sqlite")
        url, forced = options.url, options.forced
        if options.url is None:
            serve = ["--model", options.model, *SERVE]
            server = stack.enter_context(child_server(serve, log=folder / "server.log"))
            url = server.url
            print(server.ready_line)
            forced = forced or not is_trained(options.model)
        if forced:
            print(RANDOM_NOTE)
        elif options.url is None and options.model == "default":
            print(SMALL_NOTE)
        tools = shop_tools(folder / "shop.sqlite")
        asyncio.run(play(url, tools, forced=forced, sessions=options.sessions))


if __name__ == "__main__":
    main()
