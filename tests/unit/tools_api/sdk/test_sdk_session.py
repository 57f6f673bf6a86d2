"""Sessions: two surfaces alike, forks, ways back, sub-agents, and one thing at a time."""

import asyncio
import inspect
from typing import Any

import pytest

from keepwarm.testing import ScriptedServer, hold
from keepwarm.testing import call as call_of
from tests.support.fake_server import FakeServer, call, message, turn
from tools_api.items import FunctionCall, FunctionCallOutput
from tools_api.sdk.client import AsyncClient
from tools_api.sdk.hooks import Hooks
from tools_api.sdk.session import AsyncSession
from tools_api.sdk.sync_client import Client
from tools_api.sdk.sync_session import Session
from tools_api.sdk.tool_making import tool
from tools_api.sdk.tools import ToolContext


class Echo:
    """Answers the n-th request with ``echo n`` and the id ``resp_n``."""

    def __init__(self, **fields: Any) -> None:
        self._count = 0
        self._fields = fields

    def __call__(self, request: dict[str, Any]) -> list[dict[str, Any]]:
        self._count += 1
        texts = [message(f"echo {self._count}")]
        return turn(request, texts, id=f"resp_{self._count}", **self._fields)


def surface(kind: type) -> dict[str, list[tuple[str, Any, Any]]]:
    """Public names with the parameters of methods, each by name, kind and default."""
    found: dict[str, list[tuple[str, Any, Any]]] = {}
    for name, member in inspect.getmembers(kind):
        if not name.startswith("_"):
            parameters = () if isinstance(member, property) else _parameters(member)
            found[name] = [(p.name, p.kind, p.default) for p in parameters]
    return found


def _parameters(member: Any) -> tuple[inspect.Parameter, ...]:
    return tuple(inspect.signature(member).parameters.values())


@pytest.mark.parametrize(
    ("plain", "asynchronous"), [(Session, AsyncSession), (Client, AsyncClient)]
)
def test_the_synchronous_surface_is_the_asynchronous_one(plain: type, asynchronous: type) -> None:
    assert surface(plain) == surface(asynchronous)
    assert len(surface(plain)) >= 2


def test_both_clients_are_made_alike() -> None:
    assert _parameters(Client) == _parameters(AsyncClient)


def test_a_session_has_a_name_and_a_budget_on_the_wire() -> None:
    with FakeServer(Echo()) as server, Client(server.url) as client:
        session = client.session(name="shop", budget={"output": 50}, instructions="Be brief.")
        session.respond("a")
    sent = server.requests[0]
    assert (session.name, sent["instructions"]) == ("shop", "Be brief.")
    assert sent["keepwarm"]["session"] == "shop"
    assert sent["keepwarm"]["budget"] == {"output": 50, "scope": "tree"}


def test_a_named_session_that_the_server_knew_is_not_sent_whole() -> None:
    with FakeServer(Echo(keepwarm={"turn": 7})) as server, Client(server.url) as client:
        session = client.session(name="old")
        session.respond("a")
        assert not session._inner._chain.complete


def test_a_fork_of_a_named_session_goes_on_from_its_response_alone() -> None:
    with FakeServer(Echo()) as server, Client(server.url) as client:
        session = client.session(name="shop", budget={"output": 50})
        session.respond("a")
        session.fork().respond("b")
        session.fork(name="other").respond("c")
    sent = [request["keepwarm"].get("session") for request in server.requests]
    assert sent == ["shop", None, "other"]
    assert [request.get("previous_response_id") for request in server.requests] == [
        None,
        "resp_1",
        "resp_1",
    ]


def test_rewinding_goes_back_by_turns_or_to_a_response() -> None:
    with FakeServer(Echo()) as server, Client(server.url) as client:
        session = client.session()
        for text in "abc":
            session.respond(text)
        session.rewind()
        assert session.head == "resp_2"
        session.respond("d")
        session.rewind(to="resp_1")
        session.respond("e")
        session.rewind(turns=2)
        assert session.head is None
        for wrong in ({"turns": 1}, {"turns": 0}, {"to": "resp_9"}):
            with pytest.raises(ValueError, match="turn"):
                session.rewind(**wrong)
        session.respond("f")
    parents = [request.get("previous_response_id") for request in server.requests]
    assert parents == [None, "resp_1", "resp_2", "resp_2", "resp_1", None]


def test_rewinding_into_a_loop_owes_the_outputs_again() -> None:
    rounds = iter([[call("add", "{}")], [message("a")], [message("b")]])
    numbers = iter("123")

    def answer(request: dict[str, Any]) -> list[dict[str, Any]]:
        return turn(request, next(rounds), id=f"resp_{next(numbers)}")

    with FakeServer(answer) as server, Client(server.url) as client:
        session = client.session()
        session.respond("go")
        session.owe([FunctionCallOutput(call_id="call_1", output="3")])
        session.respond("and?")
        session.rewind()
        session.respond("again")
    first, second = server.requests[1]["input"], server.requests[2]["input"]
    assert first[0] == second[0]
    assert second[1]["content"] == "again"


def test_a_named_session_cannot_go_back_to_nothing() -> None:
    with FakeServer(Echo()) as server, Client(server.url) as client:
        session = client.session(name="shop")
        session.respond("a")
        with pytest.raises(ValueError, match="cannot go back to nothing"):
            session.rewind()


def test_a_child_names_its_parent_and_has_a_transcript_of_its_own() -> None:
    with FakeServer(Echo(keepwarm={"session": "sess_7"})) as server, Client(server.url) as client:
        fresh = client.session(model="m")
        fresh.child(name="before").respond("x")
        session = client.session(model="m", instructions="parent's")
        session.respond("a")
        session.child(budget={"output": 9}, instructions="child's").respond("b")
    before, _, after = server.requests
    assert before["keepwarm"]["parent_session"] == fresh.name
    assert after["keepwarm"]["parent_session"] == "sess_7"
    assert after["keepwarm"]["session"].startswith("sess_7.")
    assert after["keepwarm"]["budget"] == {"output": 9, "scope": "tree"}
    assert (after["model"], after["instructions"]) == ("m", "child's")
    assert "previous_response_id" not in after


def test_stats_add_up_and_show_what_is_left() -> None:
    told = {
        "cost": {"turn": 0.1, "session": 0.25, "saved": 0.5},
        "budget": {"left": {"output": 3}, "exhausted": False},
    }
    with FakeServer(Echo(keepwarm=told)) as server, Client(server.url) as client:
        session = client.session()
        session.respond("a")
        session.respond("b")
        stats = session.stats
    assert (stats.turns, stats.usage.input_tokens, stats.cost) == (2, 20, 0.25)
    assert stats.budget_left == {"output": 3}


@pytest.mark.parametrize("wrong", [{"instruction": "x"}, {"tool": []}])
def test_an_option_that_does_not_exist_is_refused(wrong: dict[str, Any]) -> None:
    with Client() as client, pytest.raises(TypeError, match="unknown turn options"):
        client.session(**wrong).respond("x")


def test_tools_that_want_a_context_are_refused_without_it() -> None:
    @tool
    def look(context: ToolContext[int]) -> int:
        return context.value

    with Client() as client, pytest.raises(TypeError, match="wants a context of type int"):
        client.session(tools=[look])


async def test_a_session_does_one_thing_at_a_time() -> None:
    with FakeServer(Echo()) as server:
        async with AsyncClient(server.url) as client:
            session = client.session()
            answers = await asyncio.gather(*(session.respond(text) for text in "abc"))
    assert {response.text for response in answers} == {"echo 1", "echo 2", "echo 3"}
    assert server.requests[2]["previous_response_id"] == "resp_2"


async def test_a_stream_that_was_left_by_break_holds_nobody_up() -> None:
    with FakeServer(Echo()) as server:
        async with AsyncClient(server.url) as client:
            session = client.session()
            async for _ in session.stream("a"):
                break
            async with asyncio.timeout(60):
                assert (await session.respond("b")).text == "echo 2"


async def test_a_second_run_inside_a_stream_is_an_error_not_a_deadlock() -> None:
    with FakeServer(Echo()) as server:
        async with AsyncClient(server.url) as client:
            session = client.session()
            stream = session.stream("a")
            await anext(stream)
            with pytest.raises(RuntimeError, match="still open"):
                await session.respond("b")
            await stream.aclose()


@pytest.mark.parametrize("is_async", [True, False])
def test_a_tool_that_calls_its_own_session_is_told_so(is_async: bool) -> None:
    rounds = iter([[call("ask", "{}")], [message("child says")], [message("done")]])
    with FakeServer(lambda request: turn(request, next(rounds))) as server:
        with Client(server.url) as client:
            session = client.session()

            @tool
            def ask() -> str:
                with pytest.raises(RuntimeError, match="called the session that runs it"):
                    session.respond("deadlock?")
                return session.child().respond("fine").text

            @tool(name="ask")
            async def ask_async() -> str:
                inner = session._inner
                with pytest.raises(RuntimeError, match="called the session that runs it"):
                    await inner.respond("deadlock?")
                return (await inner.child().respond("fine")).text

            result = session.run("go", tools=[ask_async if is_async else ask])
    assert result.calls[0].output == "child says"


def test_what_is_left_is_the_least_that_any_budget_leaves() -> None:
    told = {
        "budget": {
            "left": {"output": 30, "reasoning": 4},
            "tree": {"output": 12, "cost": 0.5},
            "tenant": {"cost": 0.25, "output": 900},
            "exhausted": False,
        },
    }
    with FakeServer(Echo(keepwarm=told)) as server, Client(server.url) as client:
        session = client.session()
        session.respond("a")
        left = session.stats.budget_left
    assert left == {"output": 12, "reasoning": 4, "cost": 0.25}


async def test_await_may_stand_before_what_acts_at_once_and_need_not() -> None:
    with FakeServer(Echo()) as server:
        async with AsyncClient(server.url) as client:
            session = client.session()
            await session.respond("a")
            fork = await session.fork()
            assert fork.head == session.head
            await session.owe([FunctionCallOutput(call_id="call_1", output="8")])
            session.owe([FunctionCallOutput(call_id="call_2", output="9")])
            await session.cancel()
            session.cancel()
            await session.respond("b")
            await session.rewind()
            assert session.head == "resp_1"
    assert [item["type"] for item in server.requests[1]["input"]] == [
        *("function_call_output", "function_call_output", "message")
    ]


@pytest.mark.parametrize("kind", ["session", "child", "run", "stream"])
def test_an_option_that_does_not_exist_is_refused_at_once_with_its_like(kind: str) -> None:
    with Client("http://127.0.0.1:9/v1") as client:
        session = client.session()
        made = {
            "session": client.session,
            "child": session.child,
            "run": lambda **options: session.run("go", **options),
            "stream": lambda **options: session.stream("go", **options),
        }[kind]
        with pytest.raises(TypeError, match=r"unknown turn options \['temprature'\].*temperature"):
            made(temprature=0.5)
        with pytest.raises(TypeError, match=r"unknown turn options \['xyz'\]$"):
            made(xyz=1)


@pytest.mark.parametrize("is_async", [True, False])
def test_a_child_is_a_tool_of_its_parent(is_async: bool) -> None:
    rounds = iter(
        [
            [call("expert", '{"input": "how many?"}', 1), call("expert", '{"input": "again"}', 2)],
            [message("eight")],
            [message("nine")],
            [message("done")],
        ]
    )
    with FakeServer(lambda request: turn(request, next(rounds))) as server:
        with Client(server.url) as client:
            session = client.session(name="lead")
            child = session.child(name="expert")
            maker = child._inner if is_async else child
            expert = maker.as_tool("expert", "Knows numbers.")
            result = session.run("go", tools=[expert])
    assert [record.output for record in result.calls] == ["eight", "nine"]
    shown = server.requests[0]["tools"][0]
    assert (shown["name"], shown["description"]) == ("expert", "Knows numbers.")
    asked = [request["input"][0]["content"] for request in server.requests[1:3]]
    assert asked == ["how many?", "again"]
    assert {request["keepwarm"]["session"] for request in server.requests[1:3]} == {"expert"}


def test_a_child_that_says_nothing_is_an_error_that_the_model_reads() -> None:
    def answer(request: dict[str, Any]) -> Any:
        if request["keepwarm"]["session"] == "expert":
            return turn(request, [], status="incomplete")
        owed = request["input"][0].get("type") == "function_call_output"
        said = message("done") if owed else call("expert", '{"input": "?"}')
        return turn(request, [said])

    with FakeServer(answer) as server, Client(server.url) as client:
        session = client.session(name="lead")
        expert = session.child(name="expert").as_tool("expert", "Knows numbers.")
        (record,) = session.run("go", tools=[expert]).calls
    assert record.failed
    assert "the run was incomplete and said nothing" in record.output


def test_a_result_is_printed_in_three_lines() -> None:
    rounds = iter([[call("ask", "{}")], [message("all\nis " + "well " * 100)]])

    @tool
    def ask() -> str:
        return "x" * 5_000

    with FakeServer(lambda request: turn(request, next(rounds))) as server:
        with Client(server.url) as client:
            shown = repr(client.session().run("go", tools=[ask]))
    first, second, third = shown.splitlines()
    assert first.startswith("<LoopResult completed: 2 turns, ")
    assert second == " 1 calls (ask), 0 failed, 0 waiting"
    assert "well" in third
    assert len(shown) < 500


COMPACTED = {"type": "compaction", "id": "cmp_1", "encrypted_content": "kw1w.x.y"}


class Compacting(Echo):
    """Sums up what it is asked to, and what its third turn finds."""

    def __call__(self, request: dict[str, Any]) -> list[dict[str, Any]]:
        asked = [item.get("type") for item in request["input"]] == ["compaction_trigger"]
        if not asked:
            return super().__call__(request)
        self._count += 1
        context = {"context": {"from": request["previous_response_id"], "before": 9, "after": 4}}
        return turn(request, [COMPACTED], id=f"resp_{self._count}", keepwarm=context)


def test_a_session_is_compacted_and_goes_on_from_before_that_elsewhere() -> None:
    with FakeServer(Compacting()) as server, Client(server.url) as client:
        session = client.session()
        with pytest.raises(ValueError, match="nothing of this session was compacted"):
            session.before_compaction()
        session.respond("a")
        response = session.compact()
        assert response.keepwarm["context"]["from"] == "resp_1"
        session.respond("b")
        before = session.before_compaction()
        assert before.head == "resp_1"
        before.respond("c")
    asked = [request.get("previous_response_id") for request in server.requests]
    assert asked == [None, "resp_1", "resp_2", "resp_1"]
    told = [item.get("type") for item in session._inner._chain.history]
    assert told == ["message", "message", "compaction", "message", "message"]


def test_a_session_that_was_taken_over_goes_back_before_its_cut_too() -> None:
    with FakeServer(Compacting()) as server, Client(server.url) as client:
        session = client.session(head="resp_of_old")
        session.compact()
        before = session.before_compaction()
        assert before.head == "resp_of_old"
        before.respond("c")
    assert server.requests[-1]["previous_response_id"] == "resp_of_old"


@pytest.mark.parametrize(
    ("options", "ahead"),
    [
        ({"context_management": [{"type": "compaction", "compact_threshold": 9000}]}, True),
        ({"keepwarm": {"context": {"compact_threshold": 9000}}}, True),
        ({"context_management": [{"type": "compaction"}]}, None),
        ({}, None),
        (
            {
                "context_management": [{"type": "compaction", "compact_threshold": 9000}],
                "keepwarm": {"compaction": {"ahead": False}},
            },
            False,
        ),
    ],
)
def test_what_comes_behind_a_cut_is_asked_for_ahead(
    options: dict[str, Any], ahead: bool | None
) -> None:
    with FakeServer(Echo()) as server, Client(server.url) as client:
        client.session(**options).respond("a")
    sent = server.requests[0].get("keepwarm", {}).get("compaction", {})
    assert sent.get("ahead") is ahead


def test_a_session_outlives_an_event_loop_in_which_somebody_waited_for_it() -> None:
    async def both() -> list[str]:
        async with asyncio.timeout(10):
            answers = await asyncio.gather(session.respond("a"), session.respond("b"))
        return [answer.text for answer in answers]

    with FakeServer(Echo()) as server:
        session = AsyncClient(server.url).session()
        found = [asyncio.run(both()) for _ in range(3)]
    assert found == [["echo 1", "echo 2"], ["echo 3", "echo 4"], ["echo 5", "echo 6"]]


@pytest.mark.parametrize("number", [1, 3])
def test_calls_may_be_answered_while_their_turn_still_runs(number: int) -> None:
    """Also where the turn itself answers calls of the one before."""
    calls = [call_of("look", at=at) for at in range(number)]
    raw = {"type": "function", "name": "look", "parameters": {"type": "object"}, "strict": False}
    server = ScriptedServer([calls, calls, "seen"])
    with server.client() as client:
        session = client.session(tools=[raw])
        for _ in range(2):
            for event in session.stream_turn(() if session.head else "go"):
                if isinstance(event, FunctionCall):
                    session.owe([FunctionCallOutput(call_id=event.call_id, output="a lamp")])
        assert session.respond(()).text == "seen"
    assert [len(request["input"]) for request in server.requests] == [1, number, number]


async def test_a_turn_whose_hook_is_asked_is_cancelled_and_told_what_is_said() -> None:
    asked, go_on = asyncio.Event(), asyncio.Event()

    async def before(items: object) -> None:
        asked.set()
        await go_on.wait()

    server = ScriptedServer([hold("for ever")])
    async with server.async_client() as client:
        session = client.session(hooks=Hooks(before_turn=before))
        turn = asyncio.create_task(session.respond("go"))
        await asked.wait()
        session.steer("quickly")
        session.cancel()
        go_on.set()
        assert (await asyncio.wait_for(turn, 30)).cancelled
    said = [item["content"] for item in server.requests[0]["input"]]
    assert said == ["quickly", "go"]


@pytest.mark.parametrize(
    ("wrong", "error"),
    [
        ({"max_parallel_tools": 0}, ValueError),
        ({"max_parallel_tools": "3"}, TypeError),
        ({"approve": True}, TypeError),
        ({"approve": ()}, TypeError),
        ({"hooks": print}, TypeError),
        ({"hooks": {}}, TypeError),
    ],
)
def test_a_child_checks_what_a_session_checks(
    wrong: dict[str, Any], error: type[Exception]
) -> None:
    with Client("http://127.0.0.1:9/v1") as client:
        for make in (client.session, client.session().child):
            with pytest.raises(error, match=next(iter(wrong))):
                make(**wrong)


@pytest.mark.parametrize("plain", [True, False])
async def test_a_sub_agent_that_is_waited_for_no_longer_is_cancelled(plain: bool) -> None:
    def answer(request: dict[str, Any]) -> list[dict[str, Any]]:
        if request["keepwarm"]["session"] == "sub":
            return turn(request, [message("x")], id="resp_sub")[:1]
        first = "previous_response_id" not in request
        item = call("sub", '{"input": "x"}') if first else message("done")
        return turn(request, [item], id="resp_1" if first else "resp_2")

    def play(client: Any) -> Any:
        parent = client.session(name="parent")
        sub = parent.child(name="sub").as_tool("sub", "Ask.", timeout_s=0.2)
        return parent.run("go", tools=[sub])

    def play_here() -> Any:
        with Client(server.url) as client:
            return play(client)

    with FakeServer(answer, on_cancel=lambda request: []) as server:
        if plain:
            result = await asyncio.to_thread(play_here)
        else:
            async with AsyncClient(server.url) as client:
                result = await play(client)
    assert "no result within" in result.calls[0].output
    assert [cancel["response_id"] for cancel in server.cancels] == ["resp_sub"]


def test_a_cut_that_was_taken_back_is_none_any_more() -> None:
    with FakeServer(Compacting()) as server, Client(server.url) as client:
        session = client.session()
        for text in ("a", "b"):
            session.respond(text)
            session.compact()
        assert session.before_compaction().head == "resp_3"
        session.rewind()
        assert session.head == "resp_3"
        assert session.before_compaction().head == "resp_1"
        session.rewind(to="resp_1")
        with pytest.raises(ValueError, match="nothing of this session was compacted"):
            session.before_compaction()
