"""Histories mean what they say: an output is of its call, whichever came first.

Random turns of calls are told to the sessions over all APIs, in order and then otherwise: outputs
permuted, late, twice; all at once, or only what is new against calls that are stored, or warmed one
by one; with ids that repeat and with edited digits. What the model reads is the same tokens, or the
request is refused by name. ``misread`` looks at each prompt as a model does that goes by the place.

KEEPWARM_HISTORIES sets how many histories each test tells in each format (20000 for a campaign),
KEEPWARM_HISTORIES_SEED where it begins; a failure names its seed.
"""

import itertools
import json
import os
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pytest

from keepwarm.demo.child_server import ChildServer, child_server
from runtime.messages import FinishReason
from sessions.turns.reading import Read
from sessions.wire.http_dialects import DIALECTS, Body, read_body
from tests.support.api_clients import APIS, WEBSOCKET, ApiClients
from tests.support.chat_models import served, spelled, written
from tests.support.histories import (
    BODIES,
    Called,
    Output,
    Said,
    Step,
    User,
    as_json,
    delayed,
    doubled,
    edited,
    misread,
    permuted,
    runs_of,
    story,
)
from tests.support.sessions_rig import Client, Rig
from tools_api.items import FunctionCall

HISTORIES = int(os.environ.get("KEEPWARM_HISTORIES", "30"))
SEED = int(os.environ.get("KEEPWARM_HISTORIES_SEED", "0"))
pytestmark = pytest.mark.timeout(300 + HISTORIES // 10)
JSON_ARGUMENTS = (
    *("qwen3", "qwen25", "llama31", "mistral_v3_spm", "mistral_v3_tekken", "mistral_v7_spm"),
    *("mistral_v7_tekken", "harmony", "mistral-v13", "deepseek-v3.1", "deepseek-r1", "kimi-k2"),
)
TOLD = (*JSON_ARGUMENTS, "qwen3-coder", "glm4.7", "lfm2", "gemma4", "minimax-m3")
"""One of each way of writing calls; those of JSON show a client's own digits."""
SERVED = {each.path: each for each in DIALECTS}


def seeds() -> Iterator[tuple[int, random.Random]]:
    for seed in range(SEED, SEED + HISTORIES):
        yield seed, random.Random(seed)


@dataclass(slots=True)
class Asked:
    """What came of a request."""

    prompt: list[int]
    """What the model read; empty if the request was refused."""
    refused: dict[str, Any] | None


class Teller:
    """Clients of one server, over each API."""

    def __init__(self, format_name: str) -> None:
        self.model = served(format_name)
        self.rig = Rig(model=self.model)
        self.client = self.rig.connect()

    @property
    def response(self) -> dict[str, Any]:
        """The last one."""
        found: dict[str, Any] = self.client.response
        return found

    def ask(self, api: str, body: dict[str, Any], *, calls: Sequence[FunctionCall] = ()) -> Asked:
        """Send a body; the model answers with calls, or with a word."""
        client = self.client
        asked, told = len(self.rig.engine.requests), len(client.events)
        if api == WEBSOCKET:
            client.send_raw(as_json({"type": "response.create", **body}).decode())
        else:
            data = as_json(body)
            read = read_body(Body(served=SERVED[api], data=data), self.rig.service.read_context)
            self._take(client, read.read, len(data))
        if len(self.rig.engine.requests) == asked:
            (error,) = client.events[told:]
            assert error["type"] == "error", error
            return Asked([], error)
        request = self.rig.engine.last
        prompt = self.rig.engine.prompt(request)
        tokens = written(self.model, "" if calls else "so", calls)
        finish = FinishReason.STOP
        if not request.max_new_tokens:
            tokens, finish = [], FinishReason.PREFILLED
        self.rig.deliver(self.rig.engine.output(request, tokens, finish))
        return Asked(prompt, None)

    def _take(self, client: Client, read: Read, num_bytes: int) -> None:
        self.rig.carry(client, client.connection.receive_parsed(read, num_bytes))

    def text(self, asked: Asked) -> str:
        return spelled(self.model, asked.prompt)


def body_of(api: str, steps: Sequence[Step]) -> dict[str, Any]:
    return BODIES["/v1/responses" if api == WEBSOCKET else api](steps)


def agreed(seed: int, teller: Teller, plain: Asked, other: Asked) -> None:
    """Equal tokens, no wrong pairing."""
    assert plain.refused is None, f"seed {seed}: {plain.refused}"
    assert other.refused is None, f"seed {seed}: {other.refused}"
    assert misread(teller.text(plain)) is None, f"seed {seed}: {teller.text(plain)}"
    assert other.prompt == plain.prompt, f"seed {seed}: {teller.text(other)}"


def named(seed: int, asked: Asked) -> None:
    """Refused, with the name of what is wrong."""
    assert asked.refused is not None, f"seed {seed}: it was served"
    error = asked.refused["error"]
    assert asked.refused["status"] == 400, f"seed {seed}: {error}"
    assert error["code"] == "invalid_value", f"seed {seed}: {error}"
    assert error["param"].startswith(("input", "messages")), f"seed {seed}: {error}"
    assert "call_" in error["message"], f"seed {seed}: {error}"


# All at once


@pytest.mark.parametrize("format_name", TOLD)
def test_outputs_in_any_order_late_or_twice_are_the_same_tokens(format_name: str) -> None:
    for seed, rng in seeds():
        ids_repeat = rng.random() < 0.3
        plain = story(rng, turns=rng.randint(1, 3), most_calls=4, ids_repeat=ids_repeat)
        came = plain
        if not ids_repeat and rng.random() < 0.5:
            came = delayed(rng, came)
        came = permuted(rng, came)
        if not ids_repeat and rng.random() < 0.5:
            came = doubled(rng, came)
        api = rng.choice(APIS)
        teller = Teller(format_name)
        wanted = teller.ask(api, body_of(api, plain))
        agreed(seed, teller, wanted, teller.ask(api, body_of(api, came)))


@pytest.mark.parametrize("format_name", TOLD)
def test_words_between_outputs_stay_where_they_are(format_name: str) -> None:
    for seed, rng in seeds():
        plain = story(rng, turns=rng.randint(1, 2), most_calls=4, ids_repeat=False)
        begin, end = runs_of(plain)[-1]
        at = rng.randint(begin + 1, end)
        plain.insert(at, User("hurry"))
        outputs = [step for step in plain[begin:] if isinstance(step, Output)]
        rng.shuffle(outputs)
        came = [*plain[:begin], *outputs]
        came.insert(at, User("hurry"))
        api = rng.choice((WEBSOCKET, "/v1/responses", "/v1/chat/completions"))
        teller = Teller(format_name)
        agreed(
            seed, teller, teller.ask(api, body_of(api, plain)), teller.ask(api, body_of(api, came))
        )


@pytest.mark.parametrize("format_name", TOLD)
def test_what_could_be_of_another_call_is_refused_by_name(format_name: str) -> None:
    for seed, rng in seeds():
        steps = story(rng, turns=rng.randint(1, 3), most_calls=4, ids_repeat=False)
        begin, end = rng.choice(runs_of(steps))
        at = rng.randrange(begin, end)
        output = steps[at]
        assert isinstance(output, Output)
        if rng.random() < 0.5:
            steps.insert(rng.randint(at + 1, end), replace(output, text="other"))
        else:
            call = next(step for step in steps if getattr(step, "id", None) == output.id)
            assert isinstance(call, Called)
            again = replace(call, arguments='{"k": "other"}')
            steps.insert(rng.randint(steps.index(call) + 1, begin), again)
        api = rng.choice(APIS)
        named(seed, Teller(format_name).ask(api, body_of(api, steps)))


# Against calls that are stored


def played(teller: Teller, count: int, begin: dict[str, Any]) -> list[FunctionCall]:
    """A turn in which the model makes calls; as they came to the client."""
    if teller.model.chat_format.calls is not None and not teller.model.chat_format.calls.parallel:
        count = 1
    calls = [FunctionCall(call_id="", name="f", arguments=f'{{"k": "K{n}"}}') for n in range(count)]
    asked = teller.ask(WEBSOCKET, begin, calls=calls)
    assert asked.refused is None
    made = [item for item in teller.response["output"] if item["type"] == "function_call"]
    assert len(made) == count, teller.response["output"]
    return [
        FunctionCall(call_id=item["call_id"], name=item["name"], arguments=item["arguments"])
        for item in made
    ]


def outputs_of(calls: Sequence[FunctionCall]) -> list[Step]:
    return [Output(call.call_id, "R" + json.loads(call.arguments)["k"][1:]) for call in calls]


@pytest.mark.parametrize("format_name", TOLD)
def test_what_is_new_alone_stands_behind_stored_calls(format_name: str) -> None:
    """All at once in any order, some twice, with an echo of the calls or without; or warmed one by
    one in any order, with something said between."""
    for seed, rng in seeds():
        count, prompts = rng.randint(1, 5), []
        between = rng.random() < 0.3
        for way in ("plain", "other"):
            teller = Teller(format_name)
            calls = played(teller, count, body_of(WEBSOCKET, [User("ask 0")]))
            outputs = outputs_of(calls)
            echo: list[Step] = [Called(call.call_id, call.arguments) for call in calls]
            spoken: list[Step] = [User("hurry")] if between else []
            chain = {"previous_response_id": teller.response["id"]}
            if way == "plain":
                body = body_of(WEBSOCKET, [*spoken, *outputs]) | chain
            else:
                rng.shuffle(outputs)
                if spoken:
                    chain = warmed(teller, spoken, chain)
                for _ in range(rng.randint(0, len(outputs)) if rng.random() < 0.6 else 0):
                    chain = warmed(teller, [outputs.pop()], chain)
                all_new = len(outputs) == count and not spoken
                if rng.random() < 0.5 and outputs:
                    outputs = doubled(rng, outputs)
                if rng.random() < 0.5 and all_new:
                    outputs = [*echo, *outputs]
                body = body_of(WEBSOCKET, outputs) | chain
            prompts.append(teller.ask(WEBSOCKET, body))
        agreed(seed, teller, *prompts)


def warmed(teller: Teller, steps: Sequence[Step], chain: dict[str, Any]) -> dict[str, Any]:
    """Go on from a warm-up with these steps."""
    body = body_of(WEBSOCKET, steps) | chain | {"generate": False}
    asked = teller.ask(WEBSOCKET, body)
    assert asked.refused is None, asked.refused
    return {"previous_response_id": teller.response["id"]}


@pytest.mark.parametrize("format_name", TOLD)
def test_a_whole_history_in_any_order_finds_what_is_stored(format_name: str) -> None:
    for seed, rng in seeds():
        count, api = rng.randint(1, 5), rng.choice(APIS)
        teller = Teller(format_name)
        first: list[Step] = [User("ask 0")]
        calls = played(teller, count, body_of(WEBSOCKET, first))
        outputs = outputs_of(calls)
        echo: list[Step] = [Called(call.call_id, call.arguments) for call in calls]
        asked = []
        for answers in itertools.islice(itertools.permutations(outputs), 3):
            asked.append(teller.ask(api, body_of(api, [*first, *echo, *answers])))
            assert teller.rig.engine.last.base_offset > 0, f"seed {seed}: it was not found"
        for other in asked[1:]:
            agreed(seed, teller, asked[0], other)
        longer = [*first, *echo, *reversed(outputs), Said("so"), User("more")]
        more = teller.ask(api, body_of(api, longer))
        assert more.prompt[: len(asked[0].prompt)] == asked[0].prompt, f"seed {seed}"
        assert misread(teller.text(more)) is None, f"seed {seed}: {teller.text(more)}"


# Edited digits


def number(rng: random.Random) -> str:
    """A number as JSON, with many digits."""
    digits = str(rng.randint(1, 9)) + "".join(rng.choices("0123456789", k=rng.randint(0, 38)))
    digits += rng.choice("123456789")
    if rng.random() < 0.5:
        at = rng.randint(0, len(digits) - 1)
        digits = (digits[:at] or "0") + "." + digits[at:]
    return rng.choice(["", "-"]) + digits


@pytest.mark.parametrize("format_name", JSON_ARGUMENTS)
def test_a_digit_that_a_client_has_edited_is_noticed(format_name: str) -> None:
    """What the model reads has the digits that the client sent; the unedited history is found, with
    other spaces too. In ``/v1/messages`` arguments are part of the body's own JSON, and a client's
    digits are those that stand there."""
    for seed, rng in seeds():
        api = rng.choice(APIS)
        teller = Teller(format_name)
        first: list[Step] = [User("ask 0")]
        arguments = f'{{"k": "K0", "n": {number(rng)}}}'
        asked = teller.ask(
            WEBSOCKET,
            body_of(WEBSOCKET, first),
            calls=[FunctionCall(call_id="", name="f", arguments=arguments)],
        )
        assert asked.refused is None
        response_id = teller.response["id"]
        made = Called(teller.response["output"][0]["call_id"], arguments)
        output = Output(made.id, "R0")
        respelt = replace(made, arguments=arguments.replace(" ", ""))
        found = teller.ask(api, body_of(api, [*first, respelt, output]))
        assert teller.rig.engine.last.base_offset > 0, f"seed {seed}: it was not found"
        assert arguments in teller.text(found), f"seed {seed}: {teller.text(found)}"
        other = edited(made, rng)
        asked = teller.ask(api, body_of(api, [*first, other, output]))
        text = teller.text(asked)
        assert other.arguments in text, f"seed {seed}: {other.arguments} in {text}"
        assert arguments not in text, f"seed {seed}: {text}"
        chain = {"previous_response_id": response_id}
        named(seed, teller.ask(WEBSOCKET, body_of(WEBSOCKET, [other, output]) | chain))


# Through a server


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ChildServer]:
    options = ["--model", "random:qwen3-tiny", "--kv-cache-mib", "64", "--threads", "1"]
    log = tmp_path_factory.mktemp("server") / "server.log"
    with child_server(options, log=log) as serving:
        yield serving


async def test_a_server_reads_one_prompt_whichever_output_came_first(server: ChildServer) -> None:
    """Its answer is the same, and what was said once is in the cache."""
    async with ApiClients(server.url) as clients:
        for seed in range(SEED, SEED + max(16, HISTORIES // 100)):
            rng = random.Random(seed)
            plain = story(rng, turns=2, most_calls=4, ids_repeat=False)
            came = doubled(rng, permuted(rng, delayed(rng, plain)))
            for api in APIS:
                first, other = [
                    await clients.ask(api, limited(api, told)) for told in (plain, came)
                ]
                assert (first.status, other.status) == (200, 200), f"seed {seed}: {other.body}"
                assert other.said == first.said, f"seed {seed}"
                tokens, cached = other.prompt
                assert tokens == first.prompt[0], f"seed {seed}"
                assert cached > tokens - 32, f"seed {seed}: {cached} of {tokens} cached"


def limited(api: str, steps: Sequence[Step]) -> bytes:
    """A body whose turn is short and always the same."""
    body = body_of(api, steps) | {"temperature": 0, "truncation": "auto"}
    body |= (
        {"input": body.pop("input"), "max_output_tokens": 8}
        if "input" in body
        else {"max_tokens": 8}
    )
    if api == WEBSOCKET:
        body["type"] = "response.create"
    return as_json(body)
