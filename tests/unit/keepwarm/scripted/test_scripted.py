"""A scripted server says what a real one says, without a socket, a model or torch."""

import asyncio
import json
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from websockets.exceptions import ConnectionClosed

from keepwarm import (
    ApiError,
    AsyncClient,
    Client,
    ConnectionLost,
    LoopResult,
    Retries,
    TextDelta,
    TurnFailed,
    TurnRestarted,
    TurnSteered,
    tool,
)
from keepwarm.scripted.answers import turn_of
from keepwarm.scripted.cassettes import turn_of_frames
from keepwarm.scripted.over_http import answered
from keepwarm.scripted.played import Counts
from keepwarm.scripted.sessions import ScriptedSessions
from keepwarm.scripted.socket import ScriptedSocket
from keepwarm.testing import (
    AskedTurn,
    Cassette,
    ScriptedServer,
    call,
    call_text,
    cut,
    fail,
    hold,
    recording,
    refuse,
    say,
    stop,
    think,
)
from tests.support.architecture import ROOT
from tests.support.dialogues import Script

RECORDINGS = ROOT / "tests/e2e/dialogues"
ENDS = ("response.completed", "response.incomplete", "response.failed", "error")
RECORDED = (
    "budget_closes_a_call",
    "budget_ends_and_refuses",
    "budget_of_a_tree",
    "cancel",
    "cancel_from_another_socket",
    "cancel_of_a_lane",
    "custom_tool",
    "engine_lost",
    "errors_of_form",
    "fork",
    "grammar_refused",
    "history_resent",
    "http_cancel",
    "http_same_key_twice",
    "http_two_in_a_session",
    "item_reference",
    "json_schema",
    "lanes_and_their_limits",
    "parallel_calls",
    "plain_turns",
    "reasoning",
    "request_id_of_a_refused_request",
    "sse_turns",
    "stop_string_and_sampling",
    "store_false",
    "too_long",
    "tool_turn",
    "truncation",
    "two_in_a_session",
    "unknown_previous_response",
    "warm_up",
)
Line = dict[str, Any]


@tool(read_only=True)
def get_price(product: str) -> int:
    """Get a price."""
    return {"lamp": 24}.get(product, 0)


# Frames


def whole_responses(lines: list[Line]) -> list[Line]:
    """A recording whose response objects have again what was left out of them."""
    last: Line = {}

    def whole(said: Any) -> Any:
        nonlocal last
        if isinstance(said, list):
            return [whole(each) for each in said]
        if not isinstance(said, dict):
            return said
        said = {key: whole(value) for key, value in said.items()}
        if said.get("object") != "response":
            return said
        gone = said.get("without", [])
        last = {k: v for k, v in (last | said).items() if k not in gone and k != "without"}
        return last

    return [whole(line) for line in lines]


def turns_of(name: str) -> list[tuple[Line, list[Line]]]:
    """Requests of a recording and their frames, of those of which all was told to one client."""
    text = (RECORDINGS / f"{name}.jsonl").read_text(encoding="utf-8")
    lines = whole_responses([json.loads(line) for line in text.splitlines()])
    found: list[tuple[Line, list[Line]]] = []
    open_: dict[str, list[Line]] = {}
    for line in lines:
        who, asked, event = line["client"], _asked(line), line.get("gets")
        if asked is not None:
            open_[who] = []
            found.append((asked, open_[who]))
        elif isinstance(event, dict) and who in open_ and "sequence_number" in _event(event):
            open_[who].append(_event(event))
        elif isinstance(event, dict) and who in open_ and event.get("type") == "error":
            open_[who].append(event)
    return [(r, f) for r, f in found if [e["type"] in ENDS for e in f].count(True) == 1]


def _asked(line: Line) -> Line | None:
    """The request for a turn in a line, over a socket or as a stream."""
    if "sends" in line and line["sends"].get("type") == "response.create":
        sent: Line = line["sends"]
        return sent
    asks = line.get("asks") or {}
    body = asks.get("body")
    if asks.get("path") != "/v1/responses" or not isinstance(body, dict) or not body.get("stream"):
        return None
    return {"type": "response.create", **body}


def _event(event: Line) -> Line:
    """An event, which a stream has among its data."""
    data = event.get("data")
    return data if isinstance(data, dict) else event


class Played:
    """The turns of a recording, played against a scripted server that answers as the real one."""

    def __init__(self, turns: list[tuple[Line, list[Line]]]) -> None:
        self._turns = turns
        self._now: list[Line] = []
        self._names: dict[str, str] = {}
        self._server = ScriptedServer(lambda _: turn_of_frames(self._now))

    async def frames(self) -> Iterator[tuple[list[Line], list[Line]]]:
        """For each turn what was recorded and what came, ids and times made the same."""
        found = []
        recorded, came = Script(), Script()
        for request, frames in self._turns:
            self._now = json.loads(json.dumps(frames).replace('"<time>"', "1000"))
            got = await self._said(self._named(request))
            self._learn(frames, got)
            pair = tuple(
                [script.stable(event) for event in events]
                for script, events in ((recorded, frames), (came, got))
            )
            found.append((_renamed(pair[0]), _renamed(pair[1])))
        return iter(found)

    def _named(self, request: Line) -> Line:
        """The request with this server's ids in place of the recorded names."""
        text = json.dumps(request)
        for name, id_ in self._names.items():
            text = text.replace(name, id_)
        made: Line = json.loads(text)
        return made

    def _learn(self, frames: list[Line], got: list[Line]) -> None:
        """Which id here stands for which name there."""
        for before, now in zip(frames, got, strict=False):
            known, found = _ids(before), _ids(now)
            self._names |= dict(zip(known, found, strict=False))

    async def _said(self, request: Line) -> list[Line]:
        socket = await self._server.open("", {}, open_timeout_s=1)
        await socket.send(json.dumps(request))
        frames: list[Line] = []
        while not frames or frames[-1]["type"] not in ENDS:
            frames.append(json.loads(await asyncio.wait_for(socket.recv(), 5)))
        await socket.close()
        return frames


def _ids(event: Line) -> list[str]:
    """Ids in an event, in the order in which they stand."""
    return re.findall(r'"(<[a-z]+ [0-9]+>|[a-z]+_[0-9a-f]{32})"', json.dumps(event))


def _renamed(events: list[Line]) -> list[Line]:
    """Names in the order in which they come here."""
    names: dict[str, str] = {}

    def name(found: re.Match[str]) -> str:
        return names.setdefault(found[0], f"<{found[1]} no. {len(names)}>")

    made: list[Line] = json.loads(re.sub(r"<([a-z]+) [0-9]+>", name, json.dumps(events)))
    return made


@pytest.mark.parametrize("name", RECORDED)
def test_a_recorded_dialogue_is_answered_as_the_real_server_did(name: str) -> None:
    turns = turns_of(name)
    assert turns
    pairs = asyncio.run(Played(turns).frames())
    for (request, _), (recorded, came) in zip(turns, pairs, strict=True):
        if warms_up(request):  # no answer, so that nothing tells its counts
            recorded, came = uncounted(recorded), uncounted(came)
        assert came == recorded


def warms_up(request: Line) -> bool:
    prewarm = request.get("prompt_cache_options", {}).get("prewarm", False)
    return bool(prewarm or not request.get("generate", True))


def uncounted(frames: list[Line]) -> list[Line]:
    """Without what a prompt's tokens decide."""
    made = []
    for frame in frames:
        response = frame["response"]
        stats = {k: v for k, v in response["keepwarm"].items() if k not in ("kv", "tokens", "cost")}
        made.append(frame | {"response": response | {"usage": None, "keepwarm": stats}})
    return made


def test_thirty_dialogues_are_played() -> None:
    assert len(RECORDED) >= 30


# What an author writes


def both(server: ScriptedServer, story: Callable[..., Any], **options: Any) -> list[Any]:
    """``story(session)`` with a synchronous and an asynchronous session; coroutines are awaited."""

    async def with_async() -> Any:
        async with server.async_client() as client:
            found = story(client.session(**options))
            return await found if asyncio.iscoroutine(found) else found

    with server.client() as client:
        return [story(client.session(**options)), asyncio.run(with_async())]


def test_a_loop_runs_its_tools_and_reads_what_they_gave() -> None:
    read: list[str] = []

    def answers(asked: AskedTurn) -> Any:
        if asked.number == 1:
            assert asked.tools == ("get_price",)
            return [think("Look it up."), "One moment.", call("get_price", product="lamp")]
        read.append(asked.items[-1].output)  # type: ignore[union-attr]
        return "It costs 24."

    results = both(
        ScriptedServer(answers), lambda s: s.run("How much is a lamp?"), tools=[get_price]
    )
    for result in results:
        assert isinstance(result, LoopResult)
        assert (result.text, result.status) == ("It costs 24.", "completed")
        assert result.responses[0].reasoning == "Look it up."
        assert [record.output for record in result.calls] == ["24"]
        first, second = (response.usage for response in result.responses)
        assert second.cached_tokens == first.input_tokens + first.output_tokens
    assert read == ["24", "24"]


async def test_what_a_turn_reads_is_told_as_it_begins() -> None:
    socket = await ScriptedServer(["One.", "Two."]).open("", {}, open_timeout_s=1)
    parent: dict[str, str] = {}
    for said in ("Who?", "And who else?"):
        await socket.send(json.dumps({"type": "response.create", "input": said} | parent))
        told: dict[str, Any] = {}
        while "response.completed" not in told:
            frame = json.loads(await asyncio.wait_for(socket.recv(), 5))
            told[frame["type"]] = frame.get("response")
        ended = told["response.completed"]
        begun, tokens = (
            told["response.in_progress"]["keepwarm"]["tokens"],
            ended["keepwarm"]["tokens"],
        )
        assert begun == {kind: tokens[kind] for kind in ("input", "cached")}
        parent = {"previous_response_id": ended["id"]}
    assert begun["cached"] > 0
    await socket.close()


def test_a_text_streams_a_word_at_a_time() -> None:
    with ScriptedServer(["One two three."]).client() as client:
        events = list(client.session().stream("go"))
    assert [e.text for e in events if isinstance(e, TextDelta)] == ["One", " two", " three."]


@pytest.mark.parametrize(
    ("answer", "error", "code"),
    [
        (refuse("model_not_found", status=404), ApiError, "model_not_found"),
        (fail("server_error", "broke", "It was"), TurnFailed, "server_error"),
    ],
)
def test_errors_come_on_demand_and_the_session_goes_on(
    answer: Any, error: type[Exception], code: str
) -> None:
    with ScriptedServer([answer, "fine"]).client() as client:
        session = client.session()
        with pytest.raises(error) as caught:
            session.run("go")
        assert caught.value.code == code  # type: ignore[attr-defined]
        assert session.run("go").text == "fine"
        assert session.stats.turns == 1


@pytest.mark.parametrize("after", range(1, 9))
def test_a_socket_that_breaks_is_no_end_of_the_turn(after: int) -> None:
    server = ScriptedServer([cut("a b c d e", after=after), "next"])
    with server.client() as client:
        session = client.session()
        events = list(session.stream("go"))
        assert events[-1].text == "a b c d e"  # type: ignore[union-attr]
        assert not [event for event in events if isinstance(event, TurnRestarted)]
        assert "".join(e.text for e in events if isinstance(e, TextDelta)) == "a b c d e"
        assert session.run("more").text == "next"
    ids = [request["keepwarm"]["request_id"] for request in server.requests]
    assert (len(ids), len(set(ids))) == (3, 2)


def test_all_sockets_may_be_broken_between_turns() -> None:
    server = ScriptedServer(["one", "two", "three"])
    with server.client() as client:
        session = client.session()
        session.run("go")
        for code in (None, 1012):
            server.cut(code)
            session.run("go")
        assert session.stats.turns == 3


async def test_a_turn_that_is_held_ends_when_it_is_cancelled_or_let_go() -> None:
    server = ScriptedServer([hold("I would say"), hold("more")])
    async with server.async_client() as client:
        session = client.session()
        for ends in (session.cancel, server.go_on):
            async for event in session.stream_turn("go"):
                if isinstance(event, TextDelta) and event.text in ("I", "more"):
                    ends()
                last = event
            response = last
            if ends == server.go_on:
                assert (response.text, response.status) == ("more", "completed")  # type: ignore[union-attr]
            else:
                assert response.cancelled  # type: ignore[union-attr]


async def steered(server: ScriptedServer, then: Callable[[], object] = lambda: None) -> list[Any]:
    """Steer the first turn at its first word; its events, and the transcript's texts."""
    async with server.async_client() as client:
        session, events = client.session(), list[Any]()
        async for event in session.stream("go"):
            if not events:
                session.steer("rather this")
                then()
            events.append(event)
        texts = [getattr(item, "text", "") async for item in session.items()]
        await session.run("and now?")
        return [events, texts]


async def test_a_turn_that_is_held_is_steered_as_by_a_real_server() -> None:
    server = ScriptedServer([hold("I would say"), "Done.", "Yes."])
    events, texts = await steered(server)
    (heard,) = (event for event in events if isinstance(event, TurnSteered))
    assert heard.response.raw["incomplete_details"] == {"reason": "steered"}
    assert texts == ["go", "I would say", "rather this", "Done."]
    assert events[-1].text == "Done."
    assert [len(request["input"]) for request in server.requests] == [1, 1]


@pytest.mark.parametrize("first", ["It is over.", hold("So:"), hold(["So:", call("look")])])
async def test_what_comes_too_late_to_steer_is_for_the_next_turn(first: Any) -> None:
    server = ScriptedServer([first, "Yes.", "Done."])
    _, texts = await steered(server, server.go_on)
    assert texts[0] == "go"
    later = [str(request["input"]) for request in server.requests[1:]]
    assert ["rather this" in each for each in later].count(True) == 1


async def test_a_steer_that_the_script_has_no_answer_to_is_handed_back() -> None:
    server = ScriptedServer([hold("I would say")])
    with pytest.raises(ApiError, match="and turn 3 was asked"):
        await steered(server)
    assert [item["content"] for item in server.requests[-1]["input"]] == ["rather this", "and now?"]


def test_budgets_end_turns_and_refuse_more() -> None:
    server = ScriptedServer(lambda _: "a b c d e f", prices={"output": 1e6})
    with server.client() as client:
        session = client.session(budget={"output": 8})
        assert session.run("go").final.status == "completed"
        second = session.respond("go")
        assert (second.text, second.keepwarm["reason"]) == ("a b", "budget_exhausted")
        assert session.stats.budget_left == {"output": 0}
        assert session.stats.cost == 8.0
        with pytest.raises(TurnFailed) as caught:
            session.run("go")
        assert caught.value.code == "rate_limit_exceeded"
        lead = client.session(name="lead", budget={"output": 7})
        child = lead.child()
        child.run("go")
        assert lead.respond("go").text == "a"
    assert stop("a b").status == "incomplete"


def test_a_turn_that_a_budget_refuses_takes_no_answer() -> None:
    with ScriptedServer(["a b c", "d e f"]).client() as client:
        session = client.session(budget={"output": 3})
        session.run("go")
        for _ in range(3):
            with pytest.raises(TurnFailed, match="no output token left"):
                session.run("go")
        assert client.session().run("go").text == "d e f"


def test_a_child_is_where_it_may_be_alone() -> None:
    server = ScriptedServer(lambda _: "x")
    with server.client() as client:
        top = client.session(name="top")
        line = [top]
        for number in range(16):
            line.append(line[-1].child(name=f"s{number}"))
            line[-1].run("go")
        other = client.session(name="other")
        other.run("go")
        for child, why in (
            (line[1].child(name="top"), "a part of itself"),
            (other.child(name="s3"), "a part of 's2' already"),
            (top.child(name="other"), "has had turns without it"),
            (line[-1].child(name="deep"), "more than 16 sessions"),
        ):
            with pytest.raises(ApiError, match=why):
                child.run("go")


def test_a_script_that_runs_out_or_raises_says_so() -> None:
    with ScriptedServer(["one"]).client() as client:
        session = client.session()
        session.run("go")
        with pytest.raises(ApiError, match="has 1 answer, and turn 2 was asked") as caught:
            session.run("go")
        assert caught.value.code == "script_ended"

    def broken(asked: AskedTurn) -> str:
        raise KeyError(asked.session)

    server = ScriptedServer(broken)
    with server.client() as client:
        with pytest.raises(ApiError, match="the script raised KeyError: 's'"):
            client.session(name="s").run("go")
    assert isinstance(server.failures[0], KeyError)


@pytest.mark.parametrize("answer", [3, None, [3], {"text": "x"}])
def test_what_is_no_answer_is_a_type_error(answer: Any) -> None:
    with pytest.raises(TypeError):
        turn_of(answer)


def test_a_wrong_request_is_refused_as_by_a_real_server() -> None:
    with ScriptedServer(lambda _: call("nothing")).client() as client:
        session = client.session(tools=[{"type": "function", "name": "nothing"}])
        session.respond("go")
        with pytest.raises(ApiError, match="No tool output found"):
            session.respond("and?")
        with pytest.raises(ApiError, match="not found"):
            client.session(head="resp_none").respond("go")


def test_a_transcript_is_read_page_by_page_and_goes_on_under_its_name() -> None:
    server = ScriptedServer(lambda asked: f"answer {asked.number}")
    with server.client() as client:
        session = client.session(name="a/b")
        for number in range(120):
            session.run(f"question {number}")
        said = [item.text for item in session.items()]  # type: ignore[union-attr]
        expected = [t for n in range(120) for t in (f"question {n}", f"answer {n + 1}")]
        assert said == expected
        assert client.session(name="a/b").run("once more").text == "answer 121"


def test_a_cassette_plays_what_was_recorded_and_nothing_else(tmp_path: Path) -> None:
    def story(client: Client, question: str) -> list[str]:
        with client:
            session = client.session(tools=[get_price])
            texts = [session.run(question).text, session.run("And now?").text]
            with pytest.raises(ApiError) as caught:
                session.run("Too much")
            return [*texts, str(caught.value)]

    real = ScriptedServer(
        [[think("hm"), call("get_price", product="lamp")], "24.", "The same.", refuse("x", "no")]
    )
    path = tmp_path / "turns.jsonl"
    told = story(_recorded(real, path), "Lamp?")
    assert len(path.read_text().splitlines()) == 4
    assert story(ScriptedServer(Cassette(path)).client(), "Lamp?") == told
    with ScriptedServer(Cassette(path)).client() as client:
        with pytest.raises(ApiError, match="turn 1 was recorded with another input"):
            client.session(tools=[get_price]).run("Desk?")
        with pytest.raises(ApiError, match="with another tools"):
            client.session().run("Lamp?")


def _recorded(real: ScriptedServer, path: Path) -> Client:
    return Client("http://scripted.invalid/v1", transport=recording(path, real))


def test_many_clients_and_threads_may_use_one_server() -> None:
    server = ScriptedServer(lambda asked: asked.session)

    async def many() -> list[str]:
        async with server.async_client() as one, server.async_client() as other:
            sessions = [c.session(name=f"s{n}") for n in range(40) for c in (one, other)]
            return [r.text for r in await asyncio.gather(*(s.run("go") for s in sessions))]

    assert sorted(set(asyncio.run(many()))) == sorted({f"s{n}" for n in range(40)})


def test_a_loop_of_twenty_turns_takes_no_second_and_loads_no_torch() -> None:
    program = """
import sys, time
from keepwarm import tool
from keepwarm.testing import ScriptedServer, call
@tool
def look(at: int) -> int:
    return at
server = ScriptedServer([*(call("look", at=n) for n in range(19)), "done"])
with server.client() as client:
    began = time.perf_counter()
    result = client.session(tools=[look]).run("go", max_turns=20)
    took = time.perf_counter() - began
assert (result.text, len(result.calls)) == ("done", 19), result
assert took < 1, took
bad = {"torch", "numpy", "tokenizers", "runtime", "xxhash", "psutil"} & sys.modules.keys()
assert not bad, bad
"""
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60, cwd=ROOT)


async def test_a_client_that_is_not_patient_hears_of_the_break() -> None:
    server = ScriptedServer([cut("a b c", after=2)])
    client = AsyncClient("http://x/v1", transport=server, retries=Retries(tries=0))
    with pytest.raises(ConnectionLost):
        await client.session().run("go")
    await client.close()


def test_a_custom_tools_input_streams_as_it_is() -> None:
    custom = {"type": "custom", "name": "note"}
    server = ScriptedServer([call_text("note", 'say "hi"\n now'), say("ok")])
    with server.client() as client:
        session = client.session(tools=[custom])
        (made,) = session.run("go").waiting
        assert made.input == 'say "hi"\n now'  # type: ignore[union-attr]


# The parts


def test_over_http_what_is_not_there_is_refused_as_by_a_real_server() -> None:
    kept = ScriptedSessions({})
    for path, code in (
        ("/sessions/none", "session_not_found"),
        ("/responses/none", "response_not_found"),
        ("/responses/none/calls", "response_not_found"),
        ("/nothing", None),
    ):
        status, body = answered(kept, path, None)
        assert (status, json.loads(body)["error"]["code"]) == (404, code)


async def test_a_socket_gives_what_was_said_before_it_broke_and_then_the_break() -> None:
    left: list[ScriptedSocket] = []
    socket = ScriptedSocket(lambda socket, frame: socket.deliver(frame.encode()), left.append)
    await socket.send("one")
    socket.break_off(1012)
    socket.deliver(b"too late")
    assert await socket.recv() == b"one"
    for _ in range(2):
        with pytest.raises(ConnectionClosed) as caught:
            await socket.recv()
    assert caught.value.rcvd is not None
    assert caught.value.rcvd.code == 1012
    with pytest.raises(ConnectionClosed):
        await socket.send("two")
    assert left == []


def test_counts_are_a_responses_usage() -> None:
    told = Counts(input=10, cached=4, output=3, reasoning=1).to_wire()
    assert told["input_tokens_details"] == {"cached_tokens": 4, "cache_write_tokens": 6}
    assert (told["output_tokens"], told["total_tokens"]) == (3, 13)
