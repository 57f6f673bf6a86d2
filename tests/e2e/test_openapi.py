"""Each operation of ``/openapi.json`` is asked for over a socket, and it and its answer fit."""

from pathlib import Path
from typing import Any

import httpx
import pytest

from sessions.journal.sqlite import SqliteJournal
from tests.e2e.test_http_api import FIND
from tests.support.openapi import Contract
from tests.support.running_server import RunningServer, play
from tests.support.sessions_rig import END, call
from tests.support.speaking_engine import SpeakingEngine, always

SOCKET = "/v1/responses"
"""Where GET opens a WebSocket."""
ASKED = {"model": "m", "input": "hi"}
MESSAGES = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}
ITEM = {"type": "message", "role": "user", "content": "hi"}
CALLS = always("Let me see.\n", call("find", '{"query": "x"}'), END)


async def every_operation(client: httpx.AsyncClient, engine: SpeakingEngine) -> None:
    async def ask(method: str, path: str, body: Any = None) -> Any:
        answer = await client.request(method, path, json=body)
        assert answer.status_code == 200, (method, path, answer.text)
        return answer.json() if answer.headers["content-type"] == "application/json" else None

    for page in ("/", "/openapi.json", "/health", "/healthz", "/readyz", "/metrics", "/v1/usage"):
        await ask("GET", page)
    for model in ("", "/m"):
        await ask("GET", f"/v1/models{model}")
    engine.script, hello = CALLS, engine.script
    made = await ask(
        "POST", "/v1/responses", ASKED | {"tools": [FIND], "keepwarm": {"session": "s"}}
    )
    engine.script = hello
    one = f"/v1/responses/{made['id']}"
    (wanted,) = (item for item in made["output"] if item["type"] == "function_call")
    decision = {"call_id": wanted["call_id"], "decision": "approve", "by": "ana"}
    for method, path, body in (
        ("GET", one, None),
        ("GET", f"{one}/input_items", None),
        ("GET", f"{one}/calls", None),
        ("POST", f"{one}/calls", decision),
        ("GET", "/v1/sessions/s", None),
        ("DELETE", one, None),
        ("POST", "/v1/responses", ASKED | {"stream": True}),
        ("POST", "/v1/responses/input_tokens", ASKED),
        ("POST", "/v1/responses/compact", ASKED | {"input": [ITEM, ITEM | {"content": "and?"}]}),
        ("POST", "/v1/chat/completions", MESSAGES),
        ("POST", "/v1/messages", MESSAGES | {"max_tokens": 20}),
        ("POST", "/v1/messages/count_tokens", MESSAGES),
    ):
        await ask(method, path, body)
    engine.holds = True
    running = await ask("POST", "/v1/responses", ASKED | {"background": True})
    await ask("POST", f"/v1/responses/{running['id']}/cancel")
    engine.holds = False
    conversation = (await ask("POST", "/v1/conversations", {"metadata": {"a": "b"}}))["id"]
    its = f"/v1/conversations/{conversation}"
    await ask("POST", its, {"metadata": {"a": "c"}})
    added = (await ask("POST", f"{its}/items", {"items": [ITEM]}))["data"][0]["id"]
    for path in (its, f"{its}/items", f"{its}/items/{added}"):
        await ask("GET", path)
    for path in (f"{its}/items/{added}", its):
        await ask("DELETE", path)


def described(contract: Contract) -> set[tuple[str, str]]:
    """Operations of which the document says what they answer; of HEAD those of one address."""
    return {
        (method.upper(), path)
        for path, operations in contract.document["paths"].items()
        for method, operation in operations.items()
        if "*/*"
        not in contract.document["paths"][path]["get" if method == "head" else method]["responses"]
        .get("200", {})
        .get("content", {})
        and (method != "head" or ("{" not in path and path != SOCKET))
    }


def test_each_operation_is_played_and_fits(tmp_path: Path) -> None:
    engine = SpeakingEngine(lambda request: ["Hi", END] if request.max_new_tokens else [""])

    async def scenario(server: RunningServer) -> None:
        contract = Contract.of(server.routes)
        base_url = f"http://127.0.0.1:{server.port}"
        hooks = {"response": [contract.look_later]}
        async with httpx.AsyncClient(base_url=base_url, timeout=20, event_hooks=hooks) as client:
            await every_operation(client, engine)
            for method, path in described(contract):
                if method == "HEAD":
                    assert (await client.head(path)).status_code == 200, path
            async with server.client():
                contract.fitted["GET", SOCKET] += 1  # and no answer
        assert described(contract) == set(contract.fitted)
        assert len(contract.fitted) > 30

    journal = SqliteJournal(tmp_path / "journal", fingerprint=b"f")
    play(scenario, lambda: RunningServer(engine, real=True, real_time=True, journal=journal))


GOOD = {"object": "session", "name": "s", "head": "resp_1", "turns": 1}


@pytest.mark.parametrize(
    ("status", "kind", "answer"),
    [
        (200, "application/json", GOOD | {"turns": "one"}),
        (200, "application/json", {}),
        (200, "text/plain", GOOD),
        (404, "application/json", {"error": "none"}),
        (204, "application/json", GOOD),
    ],
)
def test_what_is_not_as_it_is_said_is_noticed(status: int, kind: str, answer: Any) -> None:
    contract = Contract.of(RunningServer().routes)
    fine = ("GET", "/v1/sessions/s", b"", 200, {"content-type": "application/json"})
    contract.check(*fine, httpx.Response(200, json=GOOD).content)
    assert contract.fitted == {("GET", "/v1/sessions/{name}"): 1}
    told = httpx.Response(200, json=answer).content
    with pytest.raises(AssertionError):
        contract.check("GET", "/v1/sessions/s", b"", status, {"content-type": kind}, told)


def test_a_body_that_is_taken_and_not_as_it_is_said_is_noticed() -> None:
    contract = Contract.of(RunningServer().routes)
    answer = httpx.Response(200, json={"call_id": "c", "state": "approved"}).content
    ways = ("POST", "/v1/responses/r/calls")
    kind = {"content-type": "application/json"}
    contract.check(*ways, b'{"call_id":"c","decision":"approve"}', 200, kind, answer)
    with pytest.raises(AssertionError, match="body of POST"):
        contract.check(*ways, b'{"call_id":"c","decision":"maybe"}', 200, kind, answer)
