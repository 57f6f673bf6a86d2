"""The SDK's sessions against real servers: killed and started again, budgets shared, ways back.

``KEEPWARM_KILL_SEEDS=20`` plays so many loops whose server is killed at other points (CI: 2),
``KEEPWARM_KILL_SEED`` says the first seed.
"""

import asyncio
import os
import random
import socket
from collections import Counter
from collections.abc import Iterable
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import pytest
from pydantic import BaseModel, Field

from keepwarm import (
    ApiError,
    AsyncClient,
    AsyncSession,
    Client,
    FunctionCall,
    FunctionCallOutput,
    Message,
    Response,
    Retries,
    TextDelta,
    Tool,
    ToolContext,
    TurnFailed,
    TurnSteered,
    tool,
)
from keepwarm.demo.agent import INSTRUCTIONS, MAX_OUTPUT_TOKENS
from keepwarm.demo.child_server import ChildServer, child_server
from keepwarm.demo.shop import Product, make_shop, shop_tools
from tools_api.items import Item

QUESTIONS = (
    "What is the price of desk?",
    "And of lamp?",
    "Multiply the price of chair by 4.",
    "What is the price of carpet?",
    "Multiply the price of desk by 2.",
    "And of mirror?",
    "What is the price of shelf?",
    "Multiply the price of lamp by 3.",
    "What is the price of chair?",
)
"""With the turns of their calls twenty and some more."""
KILLS = 3
PATIENT = Retries(tries=2400, longest_wait_s=0.2)
"""However long a server takes to start on a busy machine."""


class Counted:
    """The shop's tools with a counter outside the process: a line of a file for each effect."""

    def __init__(self, folder: Path) -> None:
        self._file = folder / "effects"
        self._file.touch()
        make_shop(folder / "shop.sqlite")
        get_price, multiply, _ = shop_tools(folder / "shop.sqlite")
        self.tools = [self._counting(get_price), self._counting(multiply)]

    def _counting(self, made: Tool) -> Tool:
        function = made._function

        def run(context: ToolContext[Any], **arguments: Any) -> Any:
            with self._file.open("a") as file:
                file.write(f"{context.call_id}\n")
            return function(**arguments)

        return Tool(run, made.definition, made.bind, made.conduct, ("context", None))

    @property
    def effects(self) -> Counter[str]:
        return Counter(self._file.read_text().split())


class Restarted:
    """A server that is killed and started again on the same port with the same journal."""

    def __init__(self, folder: Path) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self._port = free.getsockname()[1]
        self._folder = folder
        self._stack = ExitStack()
        self._server: ChildServer | None = None
        self.kills = 0

    def start(self) -> str:
        options = ["--port", str(self._port), "--threads", "1", "--kv-cache-mib", "64"]
        options += ["--journal", str(self._folder / "journal")]
        log = self._folder / f"server-{self.kills}.log"
        self._server = self._stack.enter_context(child_server(options, log=log))
        return self._server.url

    @property
    def url(self) -> str:
        """The same in all its lives."""
        return f"http://127.0.0.1:{self._port}/v1"

    def kill(self) -> None:
        assert self._server is not None
        self._server.process.kill()
        self._server.process.wait()
        self.kills += 1

    def close(self) -> None:
        self._stack.close()


class Played(NamedTuple):
    """What a whole loop left behind."""

    said: list[Any]
    """Texts and calls, turn by turn."""
    effects: Counter[str]
    """How often each call's tool had its effect, as the tools themselves counted it."""
    ids: list[str]
    """Of the calls in the transcript."""
    events: int


async def play(server: Restarted, folder: Path, kill_at: list[int]) -> Played:
    """The loop, in a session of its own; its server is killed at these events."""
    folder.mkdir()
    counted, before, said, ids, events = Counted(folder), server.kills, [], [], 0
    starting: asyncio.Task[str] | None = None
    async with AsyncClient(server.url, retries=PATIENT) as client:
        session = client.session(name=folder.name, instructions=INSTRUCTIONS, tools=counted.tools)
        for question in QUESTIONS:
            async for event in session.stream(
                question, temperature=0, max_output_tokens=MAX_OUTPUT_TOKENS
            ):
                if isinstance(event, Response):
                    said.append((event.text, [(c.name, c.arguments) for c in event.calls]))
                    ids += [call.call_id for call in event.calls]
                events += 1
                if events in kill_at and (starting is None or starting.done()):
                    server.kill()
                    starting = asyncio.create_task(asyncio.to_thread(server.start))
        if starting is not None:
            await starting
        await check_transcript(client.session(name=folder.name), said, ids)
    assert server.kills - before == len(kill_at)
    return Played(said, counted.effects, ids, events)


async def check_transcript(session: AsyncSession, said: list[Any], ids: list[str]) -> None:
    """The server's transcript is what was heard of it, turn by turn."""
    items = [item async for item in session.items()]
    assert user_texts(items) == list(QUESTIONS)
    assert [item.call_id for item in items if isinstance(item, FunctionCall)] == ids
    assert [item.call_id for item in items if isinstance(item, FunctionCallOutput)] == ids
    answers = [text for text, _ in said if text]
    assert [i.text for i in items if isinstance(i, Message) and i.role == "assistant"] == answers


@pytest.mark.timeout(3600)
async def test_a_server_killed_three_times_changes_neither_transcript_nor_effects(
    tmp_path: Path,
) -> None:
    server = Restarted(tmp_path)
    try:
        await asyncio.to_thread(server.start)
        said, effects, ids, events = await play(server, tmp_path / "undisturbed", [])
        assert len(said) >= 20
        assert effects == Counter(ids)
        third = events // KILLS
        for seed in kill_seeds():
            draw = random.Random(seed)
            kill_at = [number * third + draw.randrange(1, third) for number in range(KILLS)]
            again = await play(server, tmp_path / f"killed-{seed}", kill_at)
            told = f"seed {seed}, killed at events {kill_at}"
            print(told)
            assert again.said == said, told
            assert again.effects == Counter(again.ids), f"{told}: one effect for each call"
            assert max(again.effects.values()) == 1, told
    finally:
        await asyncio.to_thread(server.close)


def kill_seeds() -> range:
    """How many runs, and from which seed on; CI plays two."""
    first = int(os.environ.get("KEEPWARM_KILL_SEED", "1"))
    return range(first, first + int(os.environ.get("KEEPWARM_KILL_SEEDS", "2")))


def test_a_child_draws_from_its_parents_budget(server: ChildServer) -> None:
    with Client(server.url) as client:
        parent = client.session(budget={"output": 20})
        spent = parent.respond("hi", max_output_tokens=5).usage.output_tokens
        assert parent.stats.budget_left == {"output": 20 - spent}
        child = parent.child(budget={"output": 100})
        with suppress(TurnFailed):
            for _ in range(20):
                spent += child.respond("hi", max_output_tokens=50).usage.output_tokens
        assert spent == 20, "to the token, whoever spent it"
        for either in (parent, child):
            with pytest.raises(TurnFailed) as caught:
                either.run("more")
            assert caught.value.code == "rate_limit_exceeded"
            assert caught.value.result is not None


def test_a_session_rewinds_forks_and_is_continued_by_its_name(server: ChildServer) -> None:
    with Client(server.url) as client:
        session = client.session(name="rewound", max_output_tokens=3)
        first = session.respond("one")
        session.respond("two")
        session.rewind()
        again = session.respond("two")
        assert again.raw["previous_response_id"] == first.id
        assert again.usage.cached_tokens > 0.5 * again.usage.input_tokens
        fork = session.fork().respond("three")
        assert fork.raw["previous_response_id"] == again.id
    with Client(server.url) as other:
        taken_up = other.session(name="rewound", max_output_tokens=3)
        assert taken_up.respond("four").keepwarm["session"] == "rewound"


def user_texts(items: Iterable[Item]) -> list[str]:
    return [item.text for item in items if isinstance(item, Message) and item.role == "user"]


def test_a_transcript_is_read_back_also_after_a_fork_and_a_rewind(server: ChildServer) -> None:
    with Client(server.url) as client:
        session = client.session(name="read", max_output_tokens=1)
        for number in range(60):
            last = session.respond(f"turn {number}")
        items = list(session.items())
        assert user_texts(items) == [f"turn {number}" for number in range(60)]
        assert [item.to_wire()["type"] for item in items[-len(last.output) :]] == [
            item.to_wire()["type"] for item in last.output
        ]
        fork = session.fork()
        session.rewind(turns=20)
        assert user_texts(session.items())[-1] == "turn 39"
        fork.respond("elsewhere")
        assert user_texts(fork.items())[-2:] == ["turn 59", "elsewhere"]
        unknown = client.session(head="resp_unknown")
        with pytest.raises(ApiError) as caught:
            next(unknown.items())
        assert caught.value.status == 404


class Answer(BaseModel):
    product: Product
    pieces: Annotated[int, Field(ge=1, le=9)]


def test_an_answer_has_the_type_that_was_asked_for(server: ChildServer) -> None:
    with Client(server.url) as client:
        result = client.session().run("Which?", output_type=Answer, max_output_tokens=64)
        assert isinstance(result.output, Answer)


def test_a_schema_that_cannot_be_enforced_is_named_and_the_session_goes_on(
    server: ChildServer,
) -> None:
    raw = {"type": "function", "name": "odd", "parameters": {"type": "object", "not": {}}}
    with Client(server.url) as client:
        session = client.session(max_output_tokens=4)
        with pytest.raises(ApiError, match="not") as caught:
            session.run("go", tools=[raw])
        assert caught.value.code == "invalid_json_schema"
        assert 1 <= session.respond("fine").usage.output_tokens <= 4


def test_a_result_of_fifty_megabytes_does_not_strand_the_session(server: ChildServer) -> None:
    @tool
    def flood() -> str:
        return "x" * 50_000_000

    with Client(server.url) as client:
        session = client.session(tools=[flood], temperature=0, max_output_tokens=64)
        with suppress(ApiError):  # 16 kB are more tokens than this model's context has
            session.run("go", tool_choice="required")
        assert session.respond("and now?", tool_choice="none").usage.output_tokens > 0


async def test_a_session_is_steered_while_it_speaks(server: ChildServer) -> None:
    """Both ends have the same transcript, and nothing that was said is there twice."""
    async with AsyncClient(server.url) as client:
        session = client.session(keepwarm={"steer": "now"})
        steered: list[Response] = []
        said = 0
        async for event in session.stream_turn("Count.", max_output_tokens=600):
            if isinstance(event, TextDelta) and not steered:
                said += 1
                if said == 3:
                    await session.steer("Stop.")
            elif isinstance(event, TurnSteered):
                steered.append(event.response)
            elif isinstance(event, Response):
                last = event
        assert [each.incomplete_reason for each in steered] == ["steered"]
        assert last.raw["previous_response_id"] == steered[0].id
        items = [item async for item in session.items()]
        asked = [item.text for item in items if isinstance(item, Message) and item.role == "user"]
        assert asked == ["Count.", "Stop."]
        assert last.usage.cached_tokens > 0
        with pytest.raises(ValueError, match="nothing runs"):
            session.steer("x")
