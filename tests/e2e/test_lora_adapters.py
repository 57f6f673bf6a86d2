"""One server, the default model and two adapters of it: each answers for itself, and keeps what it
has computed to itself."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest
from websockets.sync.client import connect

from keepwarm import Client, Response, Session
from keepwarm.demo.child_server import ChildServer, ServerDidNotStart, child_server
from runtime.model.sources import find_source
from sessions.tenants import ApiKey
from sessions.tenants_file import key_row
from tests.support.adapters import make_adapter

NAMES = ("default", "sql", "law")
OPTIONS = ["--kv-cache-mib", "64", "--threads", "1", "--dtype", "float32"]
WHOLE, OTHER, NARROW = "key-of-acme-all-open", "key-of-another-all-open", "key-of-whom-one-is-open"
QUESTION = "What is the price of desk?"
RULES = "You sell furniture, and you tell everybody what it costs who asks you for it. " * 3
PRICES = {
    "type": "function",
    "name": "get_price",
    "strict": True,
    "parameters": {
        "type": "object",
        "properties": {"product": {"type": "string", "enum": ["lamp", "desk", "chair"]}},
        "required": ["product"],
        "additionalProperties": False,
    },
}
Wire = dict[str, Any]


@pytest.fixture(scope="module")
def adapters(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Options that name both."""
    config, folder = find_source("default").config, tmp_path_factory.mktemp("adapters")
    words = []
    for seed, name in enumerate(NAMES[1:]):
        make_adapter(folder / name, config, seed=seed + 1, scale=1.0)
        words += ["--adapter", f"{name}={folder / name}"]
    return words


@pytest.fixture(scope="module")
def server(adapters: list[str], tmp_path_factory: pytest.TempPathFactory) -> Iterator[ChildServer]:
    folder = tmp_path_factory.mktemp("server")
    keys = {"acme": WHOLE, "other": OTHER, "narrow": NARROW}
    rows = [key_row(ApiKey.of(key, tenant=name, name=name)) for name, key in keys.items()]
    tenants = folder / "tenants.toml"
    tenants.write_text("\n".join(rows) + '\n[tenants.narrow]\nmodels = ["sql"]\n')
    options = [*OPTIONS, *adapters, "--tenants-file", str(tenants)]
    options += ["--journal", str(folder / "journal")]
    with child_server(options, log=folder / "log") as serving:
        yield serving


@pytest.fixture
def client(server: ChildServer) -> Iterator[Client]:
    with Client(server.url, api_key=WHOLE) as opened:
        yield opened


@pytest.fixture
def http(server: ChildServer) -> Iterator[httpx.Client]:
    headers = {"Authorization": f"Bearer {WHOLE}"}
    with httpx.Client(base_url=server.url, headers=headers, timeout=60) as opened:
        yield opened


def said(session: Session, text: str, **options: Any) -> Response:
    return session.respond(text, **{"temperature": 0, "max_output_tokens": 24} | options)


def asked(http: httpx.Client, **body: Any) -> Wire:
    answer = http.post("responses", json={"temperature": 0, "max_output_tokens": 24} | body)
    assert answer.status_code == 200, answer.text
    found: Wire = answer.json()
    return found


def answer_of(response: Wire) -> str:
    return "".join(part["text"] for item in response["output"] if item["type"] == "message"
                   for part in item["content"])  # fmt: skip


def until(reached: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not reached():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_each_answers_for_itself_the_same_again_and_between_the_others(client: Client) -> None:
    def dialogue(session: Session) -> Iterator[str]:
        for text in (QUESTION, "And of lamp?", "Why?"):
            yield said(session, text).text

    alone = {name: list(dialogue(client.session(model=name))) for name in NAMES}
    assert len({texts[0] for texts in alone.values()}) == len(NAMES)
    between = {name: dialogue(client.session(model=name)) for name in NAMES}
    for turn in range(3):
        for name, texts in between.items():
            assert next(texts) == alone[name][turn]


@pytest.mark.parametrize(
    ("first", "then"), [("sql", "law"), ("default", "sql"), ("law", "default")]
)
def test_a_session_that_goes_on_under_another_is_one_with_that_transcript(
    http: httpx.Client, first: str, then: str
) -> None:
    rules = f"{first}, then {then}: {RULES}"  # its own from the first block on
    begun = asked(http, model=first, instructions=rules, input=QUESTION)
    fields: Wire = {"model": then, "instructions": rules}
    gone_on = asked(http, **fields, input="And now?", previous_response_id=begun["id"])
    assert gone_on["model"] == then
    assert gone_on["usage"]["input_tokens_details"]["cached_tokens"] == 0
    transcript: list[Wire] = [
        {"role": "user", "content": QUESTION},
        *begun["output"],
        {"role": "user", "content": "And now?"},
    ]
    with httpx.Client(base_url=http.base_url, timeout=60) as stranger:
        stranger.headers["Authorization"] = f"Bearer {OTHER}"
        fresh = asked(stranger, **fields, input=transcript)
    assert fresh["usage"]["input_tokens_details"]["cached_tokens"] == 0
    assert fresh["usage"]["input_tokens"] == gone_on["usage"]["input_tokens"]
    assert answer_of(fresh) == answer_of(gone_on)
    again = asked(http, **fields, input="Why?", previous_response_id=gone_on["id"])
    assert again["usage"]["input_tokens_details"]["cached_tokens"] > len(RULES) / 8
    back = asked(http, model=first, instructions=rules, input="B", previous_response_id=again["id"])
    assert back["status"] in ("completed", "incomplete")


def test_what_is_cached_is_found_under_the_same_adapter_only(http: httpx.Client) -> None:
    rules = f"In the year {time.time_ns()}: {RULES}"

    def cached(name: str) -> int:
        usage = asked(http, model=name, instructions=rules, input=QUESTION, store=False)["usage"]
        found: int = usage["input_tokens_details"]["cached_tokens"]
        return found

    assert [cached(name) for name in NAMES] == [0, 0, 0]
    again = [cached(name) for name in NAMES]
    assert min(again) > 0
    assert len(set(again)) == 1


def test_a_schema_and_calls_hold_under_an_adapter(http: httpx.Client) -> None:
    schema = {
        "type": "object",
        "properties": {"colour": {"enum": ["red", "blue"]}, "n": {"type": "integer"}},
        "required": ["colour", "n"],
        "additionalProperties": False,
    }
    form = {"format": {"type": "json_schema", "name": "x", "strict": True, "schema": schema}}
    for name in NAMES:
        answer = asked(http, model=name, input="One of them.", text=form, max_output_tokens=60)
        value = json.loads(answer_of(answer))
        assert value["colour"] in ("red", "blue")
        assert type(value["n"]) is int
        called = asked(http, model=name, input=QUESTION, tools=[PRICES], tool_choice="required",
                       max_output_tokens=60)  # fmt: skip
        (call,) = (item for item in called["output"] if item["type"] == "function_call")
        assert json.loads(call["arguments"])["product"] in ("lamp", "desk", "chair")
        told = {"type": "function_call_output", "call_id": call["call_id"], "output": "24"}
        after = asked(http, model=name, input=[told], previous_response_id=called["id"],
                      tools=[PRICES])  # fmt: skip
        assert after["usage"]["input_tokens_details"]["cached_tokens"] > 0


def test_they_are_listed_with_the_model_that_they_are_of(http: httpx.Client) -> None:
    listed = http.get("models").json()["data"]
    assert [(each["id"], each.get("parent")) for each in listed] == [
        ("default", None),
        ("law", "default"),
        ("sql", "default"),
    ]
    assert http.get("models/sql").json() == listed[2]


def test_an_unknown_name_and_one_that_is_not_for_the_tenant_are_told_alike(
    server: ChildServer, client: Client
) -> None:
    def error(key: str, name: str) -> Wire:
        headers = {"Authorization": f"Bearer {key}"}
        body = {"model": name, "input": "hi", "max_output_tokens": 2}
        over_http = httpx.post(f"{server.url}/responses", headers=headers, json=body, timeout=60)
        url = f"{server.url.replace('http', 'ws', 1)}/responses"
        with connect(url, additional_headers=headers) as socket:
            socket.send(json.dumps({"type": "response.create", **body}))
            over_socket = json.loads(socket.recv(30))
        assert over_http.status_code == over_socket["status"] == 404
        found: Wire = over_http.json()["error"]
        assert found["code"] == over_socket["error"]["code"] == "model_not_found"
        assert found["message"] == over_socket["error"]["message"]
        return found

    unknown = error(WHOLE, "tax")["message"]
    for name in ("law", "default", "tax"):
        assert error(NARROW, name)["message"] == unknown.replace("tax", name)
    with Client(server.url, api_key=NARROW) as narrow:
        assert said(narrow.session(model="sql"), QUESTION).text
    headers = {"Authorization": f"Bearer {NARROW}"}
    listed = httpx.get(f"{server.url}/models", headers=headers, timeout=60).json()["data"]
    assert [each["id"] for each in listed] == ["sql"]
    assert httpx.get(f"{server.url}/models/law", headers=headers, timeout=60).status_code == 404


def test_usage_is_told_by_the_adapters_name(http: httpx.Client, client: Client) -> None:
    said(client.session(model="sql"), "for the account")
    rows = http.get("usage", params={"group_by": "model"})
    assert rows.status_code == 200, rows.text
    assert '"sql"' in rows.text


def test_a_hundred_turns_over_two_adapters_by_two_clients_at_once(server: ChildServer) -> None:
    def turns(client: Client, name: str) -> list[str]:
        sessions = [client.session(model=name) for _ in range(5)]
        return [
            said(session, f"Turn {number} of {place}.", max_output_tokens=8).text
            for number in range(5)
            for place, session in enumerate(sessions)
        ]

    def both(_: int) -> dict[str, list[str]]:
        with Client(server.url, api_key=WHOLE) as client, ThreadPoolExecutor(2) as pool:
            found = {name: pool.submit(turns, client, name) for name in NAMES[1:]}
            return {name: future.result() for name, future in found.items()}

    with ThreadPoolExecutor(2) as pool:
        one, other = pool.map(both, range(2))
    assert one == other
    assert one["sql"] != one["law"]
    assert len(one["sql"]) == 25


def test_a_session_goes_on_under_its_adapter_when_the_engine_is_killed(
    server: ChildServer, client: Client
) -> None:
    kept, other = client.session(model="sql"), client.session(model="sql")
    for session in (kept, other):
        said(session, QUESTION)
    before = said(other, "And of lamp?").text
    engine = next(
        child
        for child in psutil.Process(server.process.pid).children(recursive=True)
        if "runtime.process.engine_process" in child.cmdline()
    )
    engine.send_signal(signal.SIGKILL)
    ready = server.url.removesuffix("/v1") + "/readyz"
    until(lambda: not engine.is_running() or engine.status() == psutil.STATUS_ZOMBIE)
    until(lambda: httpx.get(ready, timeout=60).status_code == 200)
    again = said(kept, "And of lamp?")
    assert again.text == before
    assert again.usage.cached_tokens == 0
    assert said(kept, "Why?").usage.cached_tokens > 0


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--adapter", "sql=/nowhere"], "--adapter sql=/nowhere: there is no such folder"),
        (["--adapter", "default=FOLDER"], "default is a name of the model itself: give"),
        (["--adapter", "sql"], "--adapter: sql has no folder: give NAME=FOLDER"),
    ],
)
def test_a_server_does_not_start_with_one_that_cannot_be_served(
    words: list[str], told: str, adapters: list[str], tmp_path: Path
) -> None:
    folder = adapters[1].partition("=")[2]
    given = [word.replace("FOLDER", folder) for word in words]
    with (
        pytest.raises(ServerDidNotStart) as caught,
        child_server([*OPTIONS, *given], log=tmp_path / "log"),
    ):
        pass
    assert told in str(caught.value)
    assert "Traceback" not in str(caught.value)


def test_the_doctor_looks_at_them_and_at_the_model(adapters: list[str]) -> None:
    asked = [sys.executable, "-m", "keepwarm", "doctor", "--port", "0", *OPTIONS, *adapters]
    environment = os.environ | {"KEEPWARM_CONFIG": "", "KEEPWARM_JOURNAL": ":memory:"}
    found = subprocess.run(asked, capture_output=True, text=True, check=False, env=environment)
    assert found.returncode == 0, found.stdout + found.stderr
    assert "ok: adapter sql: " in found.stdout
    assert "rank 4 on down_proj, gate_proj" in found.stdout
    assert ": memory: weights take" in found.stdout
