"""Serve a model, play the agent over one session and then over several at once.

Needs no network, no GPU and no key.
"""

import asyncio
import importlib.util
import os
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

from keepwarm import AsyncClient, Tool
from keepwarm.demo.agent import INSTRUCTIONS, MANY_SESSIONS, ONE_SESSION, PlayedTurn, ask
from keepwarm.demo.child_server import child_server
from keepwarm.demo.report import HEADER, line, summary
from keepwarm.demo.shop import make_shop, shop_tools

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


class TookTooLong(Exception):
    """The demo was ended at its limit."""


async def play(client: AsyncClient, tools: Sequence[Tool], *, forced: bool, sessions: int) -> None:
    """Play and print both parts of the demo."""
    everything: list[PlayedTurn] = []
    async with client:
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
    folder = Path(os.path.expanduser(model))
    if model == "default":
        runtime = importlib.util.find_spec("runtime")
        assert runtime is not None
        assert runtime.origin is not None
        folder = Path(runtime.origin).parent / "assets" / "default_model"
    return any(folder.glob("*.safetensors"))


def run_demo(
    *,
    model: str,
    sessions: int,
    url: str | None,
    api_key: str | None,
    forced: bool,
    limit_seconds: float,
) -> None:
    """Play the demo and print it.

    Args:
        model: as for ``keepwarm serve``, which is started for it.
        url: play against this server instead; the costs are then by its prices.
        api_key: of the server at ``url``.
        forced: name the tool of each turn, also where the model has learnt to choose.
        limit_seconds: for all turns together.

    Raises:
        ServerDidNotStart: with its log.
        TookTooLong: longer than ``limit_seconds``.
        ApiError, ConnectionLost: the server at ``url`` refuses, or is not there.
    """
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        make_shop(folder / "shop.sqlite")
        if url is None:
            serve = ["--model", model, *SERVE]
            server = stack.enter_context(child_server(serve, log=folder / "server.log"))
            print(server.ready_line)
            forced = forced or not is_trained(model)
        _print_note(model, url, forced=forced)
        tools = shop_tools(folder / "shop.sqlite")
        client = AsyncClient(url or server.url, api_key=api_key if url else "")
        playing = play(client, tools, forced=forced, sessions=sessions)
        try:
            asyncio.run(asyncio.wait_for(playing, limit_seconds))
        except TimeoutError:
            raise TookTooLong(
                f"the demo took longer than {limit_seconds:g} s; --limit-seconds gives it more"
            ) from None


def _print_note(model: str, url: str | None, *, forced: bool) -> None:
    """Print a note on the model that plays."""
    if forced:
        print(RANDOM_NOTE)
    elif url is None and model == "default":
        print(SMALL_NOTE)
