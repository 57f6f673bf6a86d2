"""A turn over HTTP: one write a step, one answer, heartbeats, and nobody left behind."""

from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import orjson
import pytest

from runtime.messages import CancelRequest
from sessions.turns.reading import Read
from sessions.wire.http_turn import EVENT_STREAM, HEARTBEAT, HEARTBEAT_S, Asked, HttpTurn
from tests.support.exchange import KeptExchange, make_call
from tests.support.fake_engine import play
from tests.support.hub_bench import HubBench
from tests.support.speaking_engine import HELLO, Script, SpeakingEngine
from tools_api.dialects.dialect import Dialect, DialectRequest
from tools_api.dialects.responses_http import RESPONSES
from tools_api.errors import ApiError
from tools_api.request_reading import parse_create

MAX_UNSENT = 20_000


@dataclass
class Turn:
    """One turn and what its client gets."""

    exchange: KeptExchange

    def events(self) -> list[dict[str, Any]]:
        """All that was streamed so far, heartbeats left out."""
        lines = b"".join(self.exchange.writes).decode().split("\n")
        return [orjson.loads(line[6:]) for line in lines if line.startswith("data: ")]

    def types(self) -> list[str]:
        return [event["type"].removeprefix("response.") for event in self.events()]


class Shouting:
    """A dialect that is no Responses: it knows text alone, and fails where it is told to."""

    def __init__(self) -> None:
        self.breaks = False

    def read(self, body: Any) -> DialectRequest:
        return DialectRequest(create=body, streamed=body.pop("stream", False), writer=self)

    def writer(self, **settings: bool) -> "Shouting":
        return self

    def feed(self, event: dict[str, Any]) -> bytes:
        if self.breaks:
            raise RuntimeError("broken")
        if event["type"] == "response.completed":
            return b"data: END\n\n"
        text = event.get("delta", "")
        return f"data: {text.upper()}\n\n".encode() if text else b""

    def whole(self, response: dict[str, Any]) -> dict[str, Any]:
        if response["status"] == "failed":
            raise ApiError("it failed", code="shouted", status=500)
        return {"shout": response["output"][0]["content"][0]["text"].upper()}

    def status(self, error: ApiError) -> int:
        return error.status

    def error(self, error: ApiError) -> dict[str, Any]:
        return {"SORRY": error.code}

    def error_event(self, error: ApiError) -> bytes:
        return f"data: SORRY {error.code}\n\n".encode()


def _read(bench: HubBench, create: dict[str, Any]) -> Read:
    context = bench.service.read_context
    try:
        return Read(content=parse_create(create, None, context.limits, context.models))
    except ApiError as error:
        return Read(content=error)


def begin(bench: HubBench, dialect: Dialect = RESPONSES, **body: Any) -> Turn:
    exchange = KeptExchange()
    body = {"model": "m", "input": "hi"} | body
    asked = dialect.read(body)
    http = HttpTurn(
        make_call(exchange=exchange),
        hub=bench.hub,
        max_unsent_bytes=MAX_UNSENT,
        clock=bench.clock,
    )
    wish = Asked(
        dialect=dialect,
        read=_read(bench, asked.create),
        streamed=asked.streamed,
        writer=asked.writer,
        num_bytes=100,
    )
    http.submit(wish, bench.connect)
    exchange.play(http.ended())
    return Turn(exchange)


def run(
    scenario: Callable[[HubBench], Coroutine[Any, Any, None]],
    script: Script = HELLO,
    *,
    holds: bool = False,
) -> None:
    play(lambda: HubBench(SpeakingEngine(script, holds=holds)), scenario)


def test_a_whole_answer_is_the_response() -> None:
    async def scenario(bench: HubBench) -> None:
        turn = begin(bench)
        await bench.settle()
        assert turn.exchange.status == 200
        assert turn.exchange.body["status"] == "completed"
        assert turn.exchange.body["output"][0]["content"][0]["text"] == "Hello"
        assert turn.exchange.over
        assert bench.hub.num_connections == 0

    run(scenario)


def test_a_response_echoes_numbers_to_the_last_digit() -> None:
    numbers = [2**64 + 1, Decimal("0.12345678901234567890"), 123456789.12345679]
    parameters = {"type": "object", "properties": {"a": {"default": numbers}}}
    tools = [{"type": "function", "name": "f", "parameters": parameters}]

    async def scenario(bench: HubBench) -> None:
        turn = begin(bench, tools=tools)
        await bench.settle()
        assert turn.exchange.answered is not None
        text = b'"default":[18446744073709551617,0.12345678901234567890,123456789.12345679]'
        assert text in turn.exchange.answered.body

    run(scenario)


def test_the_events_of_a_step_leave_in_one_write() -> None:
    async def scenario(bench: HubBench) -> None:
        turn = begin(bench, stream=True)
        await bench.settle()
        assert turn.exchange.content_type == EVENT_STREAM
        assert turn.exchange.over
        events = turn.events()
        assert [event["sequence_number"] for event in events] == list(range(len(events)))
        assert turn.types()[:2] == ["created", "in_progress"]
        assert turn.types()[-1] == "completed"
        assert "".join(event.get("delta", "") for event in events) == "Hello"
        assert len(turn.exchange.writes) == 3, "created, and two steps"
        assert bench.hub.num_connections == 0

    run(scenario)


def test_an_error_before_the_turn_is_an_answer_with_its_status() -> None:
    async def scenario(bench: HubBench) -> None:
        for fields, status, code in (
            ({"model": "other"}, 404, "model_not_found"),
            ({"temperature": 3}, 400, "invalid_value"),
            ({"previous_response_id": "resp_none"}, 400, "previous_response_not_found"),
            ({"background": True, "store": False}, 400, "invalid_value"),
        ):
            for stream in (False, True):
                turn = begin(bench, stream=stream, **fields)
                assert turn.exchange.status == status
                assert turn.exchange.body["error"]["code"] == code
        assert bench.hub.num_connections == 0
        assert bench.engine.sent == []

    run(scenario)


@pytest.mark.parametrize("stream", [False, True])
def test_a_client_that_goes_cancels_its_turn(stream: bool) -> None:
    async def scenario(bench: HubBench) -> None:
        turn = begin(bench, stream=stream)
        await bench.settle()
        bench.engine.piece(bench.engine.waiting.popleft(), "Hel")
        await bench.settle()
        turn.exchange.leave()
        turn.exchange.leave()
        await bench.settle()
        assert len(bench.engine.sent_ids(CancelRequest)) == 1
        assert bench.hub.num_connections == 0
        assert len(bench.service.store.running) == 0

    run(scenario, holds=True)


def test_a_silent_stream_says_that_it_lives_and_a_whole_answer_cannot() -> None:
    async def scenario(bench: HubBench) -> None:
        streamed, whole = begin(bench, stream=True), begin(bench)
        await bench.settle()
        written = len(streamed.exchange.writes)
        for turn in (streamed, whole):
            turn.exchange.tick(bench.clock() + HEARTBEAT_S - 0.1)
        assert len(streamed.exchange.writes) == written
        bench.clock.advance(HEARTBEAT_S)
        for turn in (streamed, whole):
            turn.exchange.tick(bench.clock())
            turn.exchange.tick(bench.clock() + 1)
        assert streamed.exchange.writes[written:] == [HEARTBEAT]
        assert not whole.exchange.over
        for _ in range(2):
            bench.engine.speak()
        await bench.settle()
        assert streamed.types()[-1] == "completed"
        assert whole.exchange.status == 200

    run(scenario, holds=True)


def test_an_error_behind_a_heartbeat_comes_in_the_stream() -> None:
    async def scenario(bench: HubBench) -> None:
        begin(bench, keepwarm={"session": "s"})
        waiting = begin(bench, stream=True, keepwarm={"session": "s"}, model="m")
        await bench.settle()
        bench.clock.advance(HEARTBEAT_S)
        waiting.exchange.tick(bench.clock())
        assert waiting.exchange.writes == [HEARTBEAT]
        bench.clock.advance(10)
        await bench.hub.drain(0)
        (event,) = waiting.events()
        assert (event["type"], event["code"]) == ("error", "server_is_overloaded")
        assert waiting.exchange.over

    run(scenario, holds=True)


def test_a_client_that_does_not_read_is_cut_off() -> None:
    async def scenario(bench: HubBench) -> None:
        turn, other = begin(bench, stream=True), begin(bench)
        turn.exchange.reads = False
        await bench.settle()
        request = bench.engine.waiting.popleft()
        sent = 0
        while not turn.exchange.was_cut:
            bench.engine.piece(request, "x")
            await bench.settle()
            sent += 1
        assert sum(map(len, turn.exchange.writes)) < MAX_UNSENT + 2000
        await bench.settle()
        assert bench.engine.scripted.cancelled == [request.request_id]
        assert not other.exchange.over
        bench.engine.speak()
        await bench.settle()
        assert other.exchange.status == 200

    run(scenario, holds=True)


def test_an_engine_that_dies_ends_the_turn_and_the_stream() -> None:
    async def scenario(bench: HubBench) -> None:
        whole, streamed = begin(bench), begin(bench, stream=True)
        shouted = [begin(bench, Shouting(), stream=stream) for stream in (False, True)]
        await bench.settle()
        bench.engine.die()
        await bench.settle()
        assert whole.exchange.body["status"] == "failed"
        assert streamed.types()[-1] == "failed"
        for turn in shouted:  # nothing of the stream has been sent
            assert (turn.exchange.status, turn.exchange.body) == (500, {"SORRY": "shouted"})
        assert bench.hub.num_connections == 0

    run(scenario, holds=True)


def test_a_dialect_makes_its_own_stream_and_answer_of_the_same_events() -> None:
    async def scenario(bench: HubBench) -> None:
        whole, streamed = begin(bench, Shouting()), begin(bench, Shouting(), stream=True)
        await bench.settle()
        assert whole.exchange.body == {"shout": "HELLO"}
        assert b"".join(streamed.exchange.writes) == b"data: HEL\n\ndata: LO\n\ndata: END\n\n"
        refused = begin(bench, Shouting(), model="other")
        assert (refused.exchange.status, refused.exchange.body) == (
            404,
            {"SORRY": "model_not_found"},
        )

    run(scenario)


def test_a_dialect_that_breaks_ends_its_own_turn_alone() -> None:
    async def scenario(bench: HubBench) -> None:
        broken = Shouting()
        turn, other = begin(bench, broken, stream=True), begin(bench, stream=True)
        await bench.settle()
        broken.breaks = True
        for _ in range(2):
            bench.engine.speak()
        await bench.settle()
        assert turn.exchange.status == 500
        assert other.types()[-1] == "completed"
        assert bench.hub.num_connections == 0

    run(scenario, holds=True)


def test_a_turn_that_was_ended_by_somebody_else_is_answered() -> None:
    async def scenario(bench: HubBench) -> None:
        whole, streamed = begin(bench), begin(bench, stream=True)
        await bench.settle()
        first = bench.engine.waiting[0]
        bench.engine.piece(first, "Hel")
        await bench.settle()
        for request in list(bench.engine.waiting):
            response_id = request.request_id.rpartition(".")[0]
            assert bench.hub.cancel("other", response_id) is None
            assert bench.hub.cancel("acme", response_id) is not None
            assert bench.hub.cancel("acme", response_id) is None
        await bench.settle()
        assert whole.exchange.body["status"] == "incomplete"
        assert whole.exchange.body["keepwarm"]["reason"] == "cancelled"
        assert whole.exchange.body["output"][0]["content"][0]["text"] == "Hel"
        assert streamed.types()[-1] == "incomplete"
        assert len(bench.engine.scripted.cancelled) == 2

    run(scenario, holds=True)
