"""Calls of a response over HTTP: listed, decided, and found again by a session's name."""

import asyncio
import json
from pathlib import Path
from typing import Any

import orjson
import pytest

from sessions.http.message import HttpResponse
from sessions.wire.http_api import HttpApi
from sessions.wire.http_calls import MAX_BODY_BYTES
from tests.support.exchange import make_call
from tests.support.fake_engine import play
from tests.support.hub_bench import HubBench
from tests.support.sessions_rig import END
from tests.support.speaking_engine import SpeakingEngine, always
from tests.unit.sessions.wire.test_http_responses import Client
from tests.unit.sessions.wire.test_journal_desk import Bench
from tests.unit.sessions.wire.test_journal_desk import Client as DeskClient
from tools_api.errors import ApiError

TOOL = {"type": "function", "name": "pay", "parameters": {"type": "object", "properties": {}}}
CALLS = always(
    *(f'<tool_call>\n{{"name": "pay", "arguments": {{}}}}\n</tool_call>{x}' for x in ("", END))
)


def api_of(bench: HubBench | Bench) -> HttpApi:
    return HttpApi(hub=bench.hub, service=bench.service)


class Asked:
    """A client's questions over HTTP."""

    def __init__(self, api: HttpApi) -> None:
        self._routes = api.routes()

    async def __call__(
        self, method: str, path: str, body: Any = None, *, tenant: str = "acme"
    ) -> tuple[int, Any]:
        """Status and body, or the code of the refusal."""
        for route in self._routes:
            argument = route.argument(path)
            if argument is not None and method in route.calls:
                break
        else:
            raise AssertionError(path)
        sent = b"" if body is None else json.dumps(body).encode()
        call = make_call(argument, method=method, body=sent, tenant=tenant)
        try:
            found = await route.calls[method](call)
        except ApiError as error:
            return error.status, error.code
        assert isinstance(found, HttpResponse)
        return found.status, orjson.loads(found.body)


async def decided(ask: Asked, id_: str, **fields: Any) -> tuple[int, Any]:
    return await ask("POST", f"/v1/responses/{id_}/calls", fields)


async def told(ask: Asked, response: dict[str, Any]) -> None:
    """The same of a server with a journal and without."""
    id_, session = response["id"], response["keepwarm"]["session"]
    calls = [item for item in response["output"] if item["type"] == "function_call"]
    assert len(calls) == 2
    first, second = (item["call_id"] for item in calls)
    assert await ask("GET", f"/v1/sessions/{session}") == (
        200,
        {"object": "session", "name": session, "head": id_, "turns": 1},
    )
    status, listed = await ask("GET", f"/v1/responses/{id_}/calls")
    assert (status, listed["response_id"], listed["session"]) == (200, id_, session)
    whole = [{k: v for k, v in item.items() if k != "status"} for item in calls]
    assert listed["data"] == [item | {"state": "pending"} for item in whole]
    status, state = await decided(ask, id_, call_id=first, decision="approve", by="ana")
    assert (status, state["state"], state["by"]) == (200, "approved", "ana")
    assert await decided(ask, id_, call_id=first, decision="reject") == (409, "call_decided")
    begin = {"call_id": first, "decision": "begin"}
    assert (await decided(ask, id_, **begin, holder="a"))[0] == 200
    assert await decided(ask, id_, **begin, holder="b") == (409, "call_decided")
    ended = {"decision": "end", "holder": "a", "output": "done"}
    assert (await decided(ask, id_, call_id=first, **ended))[1]["output"] == "done"
    _, listed = await ask("GET", f"/v1/responses/{id_}/calls")
    assert [item["state"] for item in listed["data"]] == ["ended", "pending"]
    guarded = {"call_id": second, "decision": "approve", "session": "another"}
    assert await decided(ask, id_, **guarded) == (409, "call_not_open")
    assert (await decided(ask, id_, **(guarded | {"session": session})))[0] == 200


async def refused(ask: Asked, id_: str, session: str) -> None:
    assert await decided(ask, id_, call_id="none", decision="approve") == (404, "call_not_found")
    assert await decided(ask, "resp_x", call_id="c", decision="approve") == (
        404,
        "response_not_found",
    )
    assert await decided(ask, id_, call_id="c") == (400, "missing_required_parameter")
    assert await ask("GET", "/v1/sessions/none") == (404, "session_not_found")
    for method, path, body in (
        ("GET", f"/v1/responses/{id_}/calls", None),
        ("POST", f"/v1/responses/{id_}/calls", {"call_id": "c", "decision": "approve"}),
        ("GET", f"/v1/sessions/{session}", None),
    ):
        assert (await ask(method, path, body, tenant="other"))[0] == 404
    long = {"call_id": "c", "decision": "approve", "x": "y" * MAX_BODY_BYTES}
    assert (await decided(ask, id_, **long))[0] == 413


def test_without_a_journal_calls_are_decided_as_long_as_their_response_is_known() -> None:
    async def scenario(bench: HubBench) -> None:
        response = await Client(bench).turn(tools=[TOOL], keepwarm={"session": "a/b"})
        ask = Asked(api_of(bench))
        await told(ask, response)
        await refused(ask, response["id"], "a/b")

    play(lambda: HubBench(SpeakingEngine(CALLS)), scenario)


def test_with_a_journal_the_next_server_knows_what_was_decided(tmp_path: Path) -> None:
    async def scenario() -> None:
        ids = iter(range(1000))
        bench = Bench(tmp_path / "j", ids)
        bench.engine.script = CALLS
        turn = await DeskClient(bench).turn(tools=[TOOL], keepwarm={"session": "a/b"})
        response = turn["response"]
        await told(Asked(api_of(bench)), response)
        await bench.close()
        bench = Bench(tmp_path / "j", ids)
        ask = Asked(api_of(bench))
        _, listed = await ask("GET", f"/v1/responses/{response['id']}/calls")
        assert [item["state"] for item in listed["data"]] == ["ended", "approved"]
        await refused(ask, response["id"], "a/b")
        await bench.close()

    asyncio.run(asyncio.wait_for(scenario(), 60))


@pytest.mark.parametrize("store", [True, False])
def test_a_response_that_is_not_kept_has_no_calls_to_decide_about(store: bool) -> None:
    async def scenario(bench: HubBench) -> None:
        response = await Client(bench).turn(tools=[TOOL], store=store)
        status, _ = await Asked(api_of(bench))("GET", f"/v1/responses/{response['id']}/calls")
        assert status == (200 if store else 404)

    play(lambda: HubBench(SpeakingEngine(CALLS)), scenario)
