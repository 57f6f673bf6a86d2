"""``background: true``: answered at once, run without its client, polled, followed, cancelled."""

import random
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest
from openai.types.responses import Response

from runtime.messages import CancelRequest
from sessions.journal.sqlite import SqliteJournal
from sessions.tenants import Principal, Role
from tests.support.fake_engine import play
from tests.support.http_bench import HttpBench, streamed
from tests.support.journals import reservation
from tests.support.sessions_rig import END
from tests.support.speaking_engine import SpeakingEngine
from tools_api.events import decode

ASKED = {"model": "m", "input": "hi", "background": True}
Scenario = Callable[[HttpBench], Coroutine[Any, Any, None]]


def run(scenario: Scenario, *, holds: bool = True) -> None:
    play(lambda: HttpBench(SpeakingEngine(holds=holds)), scenario)


async def begun(bench: HttpBench, **fields: Any) -> str:
    status, response = await bench.ask("POST", "/v1/responses", ASKED | fields)
    assert status == 200
    assert (response["status"], response["background"]) == ("queued", True)
    Response.model_validate(response)
    await bench.settle()
    id_ = response["id"]
    assert isinstance(id_, str)
    return id_


async def shown(bench: HttpBench, id_: str, tenant: str = "acme") -> tuple[int, Any]:
    return await bench.ask("GET", f"/v1/responses/{id_}", tenant=tenant)


def test_it_is_answered_before_a_token_and_runs_on_alone() -> None:
    async def scenario(bench: HttpBench) -> None:
        id_ = await begun(bench)
        assert bench.hub.num_connections == 0
        assert bench.engine.sent_ids(CancelRequest) == []
        assert (await shown(bench, id_))[1]["status"] == "queued"
        assert (await shown(bench, id_, tenant="other"))[0] == 404
        request = bench.engine.waiting.popleft()
        bench.engine.piece(request, "Hel")
        await bench.settle()
        assert (await shown(bench, id_))[1]["status"] == "in_progress"
        bench.engine.piece(request, "lo" + END, last=True)
        await bench.settle()
        status, response = await shown(bench, id_)
        assert (status, response["status"], response["background"]) == (200, "completed", True)
        assert response["output"][0]["content"][0]["text"] == "Hello"
        assert bench.hub.left_running == []

    run(scenario)


def test_its_events_are_streamed_from_any_number() -> None:
    async def scenario(bench: HttpBench) -> None:
        id_ = await begun(bench)
        request = bench.engine.waiting.popleft()
        bench.engine.piece(request, "Hel")
        await bench.settle()
        first = bench.begin("GET", f"/v1/responses/{id_}?stream=true")
        await bench.settle()
        seen = streamed(first)
        assert seen[0]["response"]["status"] == "queued"
        first.leave()
        await bench.settle()
        bench.engine.piece(request, "lo" + END, last=True)
        await bench.settle()
        after = seen[-1]["sequence_number"]
        rest = bench.begin("GET", f"/v1/responses/{id_}?stream=true&starting_after={after}")
        await bench.until(lambda: rest.over)
        numbers = [event["sequence_number"] for event in (*seen, *streamed(rest))]
        assert numbers == list(range(len(numbers)))
        assert streamed(rest)[-1]["type"] == "response.completed"

    run(scenario)


def test_a_key_that_only_looks_takes_nobodys_events() -> None:
    async def scenario(bench: HttpBench) -> None:
        agent = bench.begin("POST", "/v1/responses", {"model": "m", "input": "hi", "stream": True})
        await bench.settle()
        path = f"/v1/responses/{streamed(agent)[0]['response']['id']}"
        looks = Principal(tenant="acme", role=Role.READ_ONLY)
        denied = bench.begin("GET", f"{path}?stream=true", principal=looks)
        await bench.until(lambda: denied.over)
        assert denied.status == 403
        shown = bench.begin("GET", path, principal=looks)
        await bench.until(lambda: shown.over)
        assert shown.status == 200
        bench.engine.speak()
        await bench.until(lambda: agent.over)
        assert streamed(agent)[-1]["type"] == "response.completed"
        ended = bench.begin("GET", f"{path}?stream=true", principal=looks)
        await bench.until(lambda: ended.over)
        assert streamed(ended) == streamed(agent)

    run(scenario)


def test_the_head_of_its_stream_has_no_body_and_takes_no_events() -> None:
    async def scenario(bench: HttpBench) -> None:
        id_ = await begun(bench)
        stream = bench.begin("GET", f"/v1/responses/{id_}?stream=true")
        await bench.settle()
        head = bench.begin("HEAD", f"/v1/responses/{id_}?stream=true")
        await bench.until(lambda: head.over)
        answer = head.answered
        assert answer is not None
        assert (answer.status, answer.content_type, answer.body) == (200, "text/event-stream", b"")
        unknown = bench.begin("HEAD", "/v1/responses/resp_none?stream=true")
        await bench.until(lambda: unknown.over)
        assert unknown.status == 404
        bench.engine.speak()
        await bench.until(lambda: stream.over)
        assert streamed(stream)[-1]["type"] == "response.completed"

    run(scenario)


@pytest.mark.parametrize("beyond", [0, 1, 10**17])
@pytest.mark.parametrize("runs", [False, True])
def test_a_stream_behind_its_last_event_is_empty_and_ends(beyond: int, *, runs: bool) -> None:
    async def scenario(bench: HttpBench) -> None:
        id_ = await begun(bench)
        if not runs:
            bench.engine.speak()
            await bench.settle()
            whole = bench.begin("GET", f"/v1/responses/{id_}?stream=true")
            await bench.until(lambda: whole.over)
        last = 1000 if runs else streamed(whole)[-1]["sequence_number"]
        path = f"/v1/responses/{id_}?stream=true&starting_after={last + beyond}"
        rest = bench.begin("GET", path)
        await bench.settle()
        assert rest.over is not runs
        if runs:
            bench.engine.speak()
        await bench.until(lambda: rest.over)
        assert streamed(rest) == []

    run(scenario)


def test_a_streamed_one_goes_on_when_its_client_leaves() -> None:
    async def scenario(bench: HttpBench) -> None:
        exchange = bench.begin("POST", "/v1/responses", ASKED | {"stream": True})
        await bench.settle()
        created = streamed(exchange)[0]["response"]
        assert created["status"] == "queued"
        exchange.leave()
        await bench.settle()
        bench.engine.speak()
        await bench.settle()
        assert (await shown(bench, created["id"]))[1]["status"] == "completed"

    run(scenario)


def test_it_is_cancelled_and_a_second_time_shown_as_it_ended() -> None:
    async def scenario(bench: HttpBench) -> None:
        id_ = await begun(bench)
        bench.engine.piece(bench.engine.waiting.popleft(), "Hel")
        await bench.settle()
        path = f"/v1/responses/{id_}/cancel"
        assert (await bench.ask("POST", path, tenant="other"))[0] == 404
        status, response = await bench.ask("POST", path)
        assert (status, response["status"]) == (200, "incomplete")
        assert response["keepwarm"]["reason"] == "cancelled"
        assert await bench.ask("POST", path) == (200, response)
        assert await shown(bench, id_) == (200, response)
        await bench.settle()
        assert len(bench.engine.sent_ids(CancelRequest)) == 1

    run(scenario)


def test_one_that_failed_is_shown_as_it_failed() -> None:
    async def scenario(bench: HttpBench) -> None:
        id_ = await begun(bench)
        bench.engine.die()
        await bench.until(lambda: bench.engine.restarts and bench.hub.ready)
        status, response = await shown(bench, id_)
        assert (status, response["status"]) == (200, "failed")
        assert response["keepwarm"]["reason"] == "engine_died"
        assert (await shown(bench, id_, tenant="other"))[0] == 404

    play(lambda: HttpBench(SpeakingEngine(holds=True), pause=_no_pause), scenario)


def test_one_that_outlasts_the_drain_time_ends_with_the_server() -> None:
    """Not as if the engine had died, which operators would look into."""

    async def scenario(bench: HttpBench) -> None:
        id_ = await begun(bench)
        bench.engine.piece(bench.engine.waiting.popleft(), "Hel")
        await bench.settle()
        await bench.hub.drain(0.01)
        await bench.settle()
        response = (await shown(bench, id_))[1]
        assert (response["status"], response["keepwarm"]["reason"]) == ("failed", "shutting_down")

    run(scenario)


async def _no_pause(_: float) -> None:
    return None


def test_a_request_id_leads_to_the_one_that_runs() -> None:
    async def scenario(bench: HttpBench) -> None:
        for _ in range(3):
            answer = await bench.ask("POST", "/v1/responses", ASKED, idempotency_key="k")
            assert answer[1]["status"] == "queued"
        assert len(bench.engine.waiting) == 1
        bench.engine.speak()
        await bench.settle()
        _, response = await bench.ask("POST", "/v1/responses", ASKED, idempotency_key="k")
        assert response["status"] == "completed"

    run(scenario)


@pytest.mark.parametrize(
    ("fields", "param", "code"),
    [
        ({"store": False}, "background", "invalid_value"),
        ({"background": "yes"}, "background", "invalid_type"),
        ({"background": 1}, "background", "invalid_type"),
        ({"previous_response_id": "resp_none"}, "previous_response_id", None),
        ({"model": "other"}, "model", None),
    ],
)
def test_what_cannot_run_is_refused_at_once(
    fields: dict[str, Any], param: str, code: str | None
) -> None:
    async def scenario(bench: HttpBench) -> None:
        for stream in (False, True):
            body = ASKED | fields | {"stream": stream}
            status, answer = await bench.ask("POST", "/v1/responses", body)
            assert status in (400, 404)
            assert answer["error"]["param"] == param
            assert code in (None, answer["error"]["code"])
        assert bench.engine.sent == []

    run(scenario)


def test_what_continues_a_private_response_cannot_be_asked_for() -> None:
    async def scenario(bench: HttpBench) -> None:
        body = {"model": "m", "input": "hi", "store": False}
        _, private = await bench.ask("POST", "/v1/responses", body)
        more = ASKED | {"previous_response_id": private["id"]}
        status, answer = await bench.ask("POST", "/v1/responses", more)
        assert (status, answer["error"]["param"]) == (400, "background")

    run(scenario, holds=False)


def test_a_websocket_has_none() -> None:
    with pytest.raises(Exception, match="POST /v1/responses") as caught:
        decode('{"type": "response.create", "input": "hi", "background": true}')
    assert getattr(caught.value, "code", None) == "unsupported_parameter"


def test_after_its_servers_death_it_says_so(tmp_path: Path) -> None:
    async def scenario(bench: HttpBench) -> None:
        status, response = await shown(bench, "resp_1")
        assert (status, response["status"]) == (200, "failed")
        assert response["keepwarm"]["reason"] == "server_died"
        assert (await shown(bench, "resp_1", tenant="other"))[0] == 404
        assert (await shown(bench, "resp_2"))[0] == 404
        await bench.close()

    def died() -> HttpBench:
        before = SqliteJournal(tmp_path / "journal", fingerprint=b"f")
        before.reserve([reservation("resp_1", tenant="acme")])
        before.close()
        return HttpBench(path=tmp_path / "journal", first_id=100)

    play(died, scenario)


@pytest.mark.parametrize("seed", range(10))
def test_whatever_its_clients_do_it_ends_once_and_loses_no_event(seed: int) -> None:
    rng = random.Random(seed)

    async def scenario(bench: HttpBench) -> None:
        id_ = await begun(bench)
        request, said, follower = bench.engine.waiting.popleft(), 0, None
        seen: list[int] = []
        while True:
            match rng.choice(("say", "say", "poll", "follow", "leave", "cancel")):
                case "say":
                    said += 1
                    bench.engine.piece(request, f"{said} ")
                case "poll":
                    status, response = await shown(bench, id_)
                    assert (status, response["id"]) == (200, id_)
                case "follow" if follower is None:
                    after = f"&starting_after={seen[-1]}" if seen else ""
                    follower = bench.begin("GET", f"/v1/responses/{id_}?stream=true{after}")
                case "leave" if follower is not None:
                    seen += [event["sequence_number"] for event in streamed(follower)]
                    follower.leave()
                    follower = None
                case "cancel" if said > 4:
                    break
            await bench.settle()
        if follower is not None:
            seen += [event["sequence_number"] for event in streamed(follower)]
            follower.leave()
            await bench.settle()
        _, response = await bench.ask("POST", f"/v1/responses/{id_}/cancel")
        assert response["status"] == "incomplete"
        text = "".join(f"{n} " for n in range(1, said + 1))
        assert response["output"][0]["content"][0]["text"] == text
        after = f"&starting_after={seen[-1]}" if seen else ""
        rest = bench.begin("GET", f"/v1/responses/{id_}?stream=true{after}")
        await bench.until(lambda: rest.over)
        seen += [event["sequence_number"] for event in streamed(rest)]
        assert seen == list(range(len(seen)))
        await bench.settle()
        assert bench.hub.held == []

    run(scenario)
