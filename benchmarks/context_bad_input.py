"""Bad input about contexts, tools, conversations and steers, asked again and again by one client.

    python -m benchmarks.context_bad_input NAME --url http://127.0.0.1:8000/v1 --seconds 3

``CASES`` are the lines of the list: what a compaction item, a trigger, a threshold, references,
tools, conversations and steers can be that they must not be. Each has to be refused by its
endpoint's own error, or to end as a turn does; in between the connection answers a good turn. It
prints two JSON lines: one as it begins, and at the end how often what was answered.

The server has the two tenants of ``KEYS``; of the first one the client has items that are none of
its own.
"""

import argparse
import asyncio
import base64
import json
import os
import time
import zlib
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import httpx

from benchmarks.transport_clients import WrongAnswer
from sessions.tenants import ApiKey
from tests.support.wire_client import TERMINAL, WireClient

VICTIM, HOSTILE = "victim-" + "v" * 32, "hostile-" + "h" * 32
KEYS = [
    ApiKey.of(VICTIM, tenant="victim", name="victim"),
    ApiKey.of(HOSTILE, tenant="hostile", name="hostile"),
]
MANY = 10_000
TRIGGER = {"type": "compaction_trigger"}
TOOL = {"type": "function", "name": "f", "parameters": {"type": "object", "properties": {}}}
SHELL = {"type": "shell_call", "call_id": "c", "action": {"commands": ["ls"]}}
HISTORY = 16
"""Messages of a full context: some 3,000 tokens of the model of random weights."""
THRESHOLD = 1500
Fields = dict[str, Any]
Items = list[Fields]


def user(text: str) -> Fields:
    """A message of the user."""
    return {"type": "message", "role": "user", "content": text}


@dataclass(slots=True)
class Bad:
    """One client and what it has been answered."""

    wire: WireClient
    http: httpx.AsyncClient
    others: httpx.AsyncClient
    """The other tenant's."""
    made: Fields = field(default_factory=dict)
    """Items and requests that are made once."""
    seen: Counter[str] = field(default_factory=Counter)

    async def once(self, name: str, make: Callable[[], Awaitable[Any]]) -> Any:
        """What was made under that name, or is now."""
        if name not in self.made:
            self.made[name] = await make()
        return self.made[name]

    async def posted(self, path: str, body: Fields, client: httpx.AsyncClient | None = None) -> Any:
        """The answer to a body; it has a ``status_code``."""
        return await (client or self.http).post(path, json=body)

    async def refused(self, name: str, make: Callable[[], Awaitable[Fields]], *codes: str) -> None:
        """Ask over the socket for a turn that must not be."""
        frame = await self.once(f"{name} frame", partial(_frame, make))
        await self.wire.socket.send(frame)
        event = (await self.wire.events())[-1]
        error = event.get("error") or event["response"].get("error") or {}
        if error.get("code") not in codes:
            raise WrongAnswer(f"{name}: {json.dumps(event)[:500]}")
        self.seen[error["code"]] += 1

    async def ends(self, name: str, *statuses: str) -> None:
        """Wait for the end of the turn that was begun over the socket."""
        event = (await self.wire.events())[-1]
        status = event.get("response", {}).get("status")
        if status not in statuses:
            raise WrongAnswer(f"{name}: {json.dumps(event)[:500]}")
        self.seen[str(status)] += 1

    def answered(self, name: str, answer: httpx.Response, *statuses: int) -> Any:
        """The body of an answer over HTTP, which has to have one of these statuses."""
        if answer.status_code not in statuses:
            raise WrongAnswer(f"{name}: HTTP {answer.status_code} {answer.text[:500]}")
        self.seen[str(answer.status_code)] += 1
        return answer.json()


async def _frame(make: Callable[[], Awaitable[Fields]]) -> str:
    return json.dumps({"type": "response.create"} | await make())


def _fixed(fields: Fields) -> Callable[[], Awaitable[Fields]]:
    async def make() -> Fields:
        return fields

    return make


async def _item(bad: Bad, client: httpx.AsyncClient) -> Fields:
    """A compaction item of a tenant's."""
    body = {"input": [user("the task"), user("more of it " * 20)], "model": "default"}
    answer = await bad.posted("/responses/compact", body, client)
    items: Items = bad.answered("item", answer, 200)["output"]
    return items[-1]


# What is refused


def _refusal(fields: Fields, *codes: str) -> Callable[[Bad], Awaitable[None]]:
    """A case whose request is always the same."""

    async def case(bad: Bad) -> None:
        await bad.refused(str(id(case)), _fixed(fields), *codes)

    return case


async def others_item(bad: Bad) -> None:
    """A compaction item of another tenant."""

    async def make() -> Fields:
        return {"input": [await _item(bad, bad.others), user("go on")]}

    await bad.refused("others item", make, "invalid_value")


async def changed_item(bad: Bad) -> None:
    """One of its own that a bit was changed in."""

    async def make() -> Fields:
        item = await _item(bad, bad.http)
        sealed = item["encrypted_content"]
        last = "A" if sealed[len(sealed) // 2] != "A" else "B"
        changed = sealed[: len(sealed) // 2] + last + sealed[len(sealed) // 2 + 1 :]
        return {"input": [item | {"encrypted_content": changed}, user("go on")]}

    await bad.refused("changed item", make, "invalid_value")


async def nested_item(bad: Bad) -> None:
    """Items in items, 50 deep."""

    async def make() -> Fields:
        item = await _item(bad, bad.http)
        for _ in range(50):
            told = json.dumps({"items": [item], "summary": None}).encode()
            inner = base64.urlsafe_b64encode(zlib.compress(told)).rstrip(b"=").decode()
            item = {"type": "compaction", "encrypted_content": f"kw1w.{inner}.AAAA"}
        return {"input": [item, user("go on")]}

    await bad.refused("nested item", make, "invalid_value")


async def trigger_without_outputs(bad: Bad) -> None:
    """A trigger behind a call that waits for its output."""

    async def make() -> Fields:
        asked = {"input": "hi", "tools": [TOOL], "tool_choice": "required", "model": "default"}
        first = bad.answered("call", await bad.posted("/responses", asked), 200)
        return {"previous_response_id": first["id"], "input": [TRIGGER]}

    await bad.refused("outputs missing", make, "missing_call_output", "invalid_value")


def _references(bad: Bad, whose: str) -> Callable[[], Awaitable[Fields]]:
    """Ten thousand references to what is unknown, another's, or deleted."""

    async def make() -> Fields:
        if whose == "unknown":
            ids = [f"msg_{n}" for n in range(MANY)]
            return {"input": [{"type": "item_reference", "id": id_} for id_ in ids]}
        client = bad.others if whose == "foreign" else bad.http
        body = {"input": "hi", "max_output_tokens": 4, "model": "default"}
        response = bad.answered(whose, await bad.posted("/responses", body, client), 200)
        if whose == "deleted":
            bad.answered(whose, await client.delete(f"/responses/{response['id']}"), 200)
        named = {"type": "item_reference", "id": response["output"][0]["id"]}
        return {"input": [named] * MANY}

    return make


def references(whose: str) -> Callable[[Bad], Awaitable[None]]:
    """The case of these."""

    async def case(bad: Bad) -> None:
        codes = ("item_not_found", "invalid_value")
        await bad.refused(f"references {whose}", _references(bad, whose), *codes)

    return case


async def reference_to_no_tool(bad: Bad) -> None:
    """Messages: a result that refers to a tool that is not there."""
    use = {"type": "tool_use", "id": "u", "name": "f", "input": {}}
    found = [{"type": "tool_reference", "tool_name": "nobody"}]
    result = {"type": "tool_result", "tool_use_id": "u", "content": found}
    body = _messages(
        [{"role": "assistant", "content": [use]}, {"role": "user", "content": [result]}]
    )
    bad.answered("no tool", await bad.posted("/messages", body), 400)


async def tool_removed_while_called(bad: Bad) -> None:
    """Messages: a tool that is withdrawn while its call is open; the call is answered all the
    same."""
    use = {"type": "tool_use", "id": "u", "name": "f", "input": {}}
    gone = {"type": "tool_removal", "tool": {"type": "tool_reference", "name": "f"}}
    result = {"type": "tool_result", "tool_use_id": "u", "content": "1"}
    said = [
        {"role": "assistant", "content": [use]},
        {"role": "system", "content": [gone]},
        {"role": "user", "content": [result]},
    ]
    bad.answered("removed", await bad.posted("/messages", _messages(said)), 200, 400)


def _messages(more: Items) -> Fields:
    tool = {"name": "f", "input_schema": {"type": "object", "properties": {}}}
    asked = [{"role": "user", "content": "hi"}, *more]
    return {"model": "default", "max_tokens": 8, "tools": [tool], "messages": asked}


async def background_unstored(bad: Bad) -> None:
    """A turn in the background of which nothing is to be kept."""
    body = {"model": "default", "input": "hi", "background": True, "store": False}
    bad.answered("background", await bad.posted("/responses", body), 400)


# What is bounded


def _full(number: int) -> Fields:
    """A turn whose context is over its threshold, and was never said before."""
    threshold = {"type": "compaction", "compact_threshold": THRESHOLD}
    return _long(number) | {"context_management": [threshold]}


def _long(number: int) -> Fields:
    """The same turn without a threshold."""
    line = f"{os.getpid()} {number}: " + "the shop has sold this and that " * 5
    items = [user("the task"), *(user(f"{line} {n}") for n in range(HISTORY))]
    return {"input": items, "max_output_tokens": 8}


async def _begin_full(bad: Bad) -> str:
    """Begin such a turn over the socket; returns the response's id."""
    number = bad.made["turns"] = bad.made.get("turns", 0) + 1
    await bad.wire.send(**_full(number))
    event = await bad.wire.event()
    if "response" not in event:
        raise WrongAnswer(f"full: {json.dumps(event)[:500]}")
    return str(event["response"]["id"])


async def endless_summary(bad: Bad) -> None:
    """A context that is summed up by a model that does not end."""
    await _begin_full(bad)
    await bad.ends("endless", "completed", "incomplete", "failed")


async def cancelled_cut(bad: Bad) -> None:
    """The turn is cancelled while it is summed up."""
    id_ = await _begin_full(bad)
    await bad.wire.socket.send(json.dumps({"type": "response.cancel", "response_id": id_}))
    await bad.ends("cancelled", "incomplete", "completed")


async def steered_cut(bad: Bad) -> None:
    """The turn is steered while it is summed up."""
    id_ = await _begin_full(bad)
    steer = {"type": "response.steer", "previous_response_id": id_, "input": "faster"}
    await bad.wire.socket.send(json.dumps(steer))
    events = await _until(bad, lambda told: {"response.steer.failed"} & told and told & TERMINAL)
    bad.seen.update(each for each in events if "steer" in each)


async def forked_cut(bad: Bad) -> None:
    """Two turns from one place, both over their threshold."""
    first = {"model": "default", "input": "the task", "max_output_tokens": 4}
    parent = bad.answered("parent", await bad.posted("/responses", first), 200)
    number = bad.made["turns"] = bad.made.get("turns", 0) + 1
    body = _full(number) | {"model": "default", "previous_response_id": parent["id"]}
    for answer in await asyncio.gather(*(bad.posted("/responses", body) for _ in range(2))):
        bad.answered("forked", answer, 200)


async def deleted_conversation(bad: Bad) -> None:
    """A conversation that is deleted while its turn runs."""
    id_ = bad.answered("made", await bad.posted("/conversations", {}), 200)["id"]
    body = {"model": "default", "conversation": id_, "input": "hi", "max_output_tokens": 32}
    running = asyncio.create_task(bad.posted("/responses", body))
    await asyncio.sleep(0.005)
    bad.answered("deleted", await bad.http.delete(f"/conversations/{id_}"), 200)
    bad.answered("turn", await running, 200, 404)


async def two_in_a_conversation(bad: Bad) -> None:
    """Two turns at once in one."""
    id_ = bad.answered("made", await bad.posted("/conversations", {}), 200)["id"]
    body = {"model": "default", "conversation": id_, "input": "hi", "max_output_tokens": 8}
    for answer in await asyncio.gather(*(bad.posted("/responses", body) for _ in range(2))):
        bad.answered("two", answer, 200)


async def many_steers(bad: Bad) -> None:
    """A hundred steers of one turn, then one of 1 MB, and one of another tenant's response."""
    await bad.wire.send(input="hi", max_output_tokens=64, keepwarm={"steer": "item"})
    id_ = (await bad.wire.event())["response"]["id"]
    large = await bad.once("large", _fixed({"text": "x" * (1 << 20)}))
    texts = [*(f"say {n}" for n in range(100)), large["text"]]
    for target, text in [*((id_, text) for text in texts), ("resp_none", "x")]:
        steer = {"type": "response.steer", "previous_response_id": target, "input": text}
        await bad.wire.socket.send(json.dumps(steer))
    told: Counter[str] = Counter()
    while told["failed"] + told["accepted"] <= len(texts) or told["ended"] < told["turns"]:
        event = await bad.wire.event()
        kind = event["type"].removeprefix("response.steer.")
        told[kind] += kind in ("accepted", "failed")
        told["ended"] += event["type"] in TERMINAL
        told["turns"] = 1 + bool(told["accepted"])  # the successor hears all that were accepted
    bad.seen.update({kind: told[kind] for kind in ("accepted", "failed")})


async def _until(bad: Bad, come: Callable[[set[str]], Any]) -> list[str]:
    """The types of the events up to where ``come`` is content with them."""
    told: list[str] = []
    while not come(set(told)):
        told.append((await bad.wire.event())["type"])
    return told


async def ordinary(bad: Bad) -> None:
    """No bad input: an ordinary turn, what the others are compared with."""
    number = bad.made["turns"] = bad.made.get("turns", 0) + 1
    await bad.wire.send(input=f"hello {os.getpid()} {number}", max_output_tokens=16)
    await bad.ends("ordinary", "completed", "incomplete")


async def ordinary_long(bad: Bad) -> None:
    """No bad input either: a long prompt, what turns that are cut are compared with."""
    number = bad.made["turns"] = bad.made.get("turns", 0) + 1
    await bad.wire.send(**_long(number))
    await bad.ends("ordinary", "completed", "incomplete")


def _later(name: str) -> Fields:
    return TOOL | {"name": name, "defer_loading": True}


_TWICE = {"type": "additional_tools", "role": "developer", "tools": [TOOL, TOOL]}
_OUTPUT = {"stdout": "x" * (1 << 20), "stderr": "", "outcome": {"type": "exit", "exit_code": 0}}
_THRESHOLD = [{"type": "compaction", "compact_threshold": 20}]
BASELINE, LONG = "ordinary", "ordinary_long"
CUT = ("endless_summary", "cancelled_cut", "forked_cut", "steered_cut")
"""Cases with long prompts."""
CASES: dict[str, Callable[[Bad], Awaitable[None]]] = {
    BASELINE: ordinary,
    LONG: ordinary_long,
    "others_item": others_item,
    "changed_item": changed_item,
    "nested_item": nested_item,
    "trigger_first": _refusal({"input": [TRIGGER, user("x")]}, "invalid_value"),
    "trigger_twice": _refusal({"input": [user("x"), TRIGGER, TRIGGER]}, "invalid_value"),
    "trigger_without_outputs": trigger_without_outputs,
    "low_threshold": _refusal(
        {"input": "x", "instructions": "y " * 100, "context_management": _THRESHOLD},
        "invalid_value",
    ),
    "long_message": _refusal(
        {"input": "word " * 60_000, "context_management": [{"type": "compaction"}]},
        "context_length_exceeded",
    ),
    "endless_summary": endless_summary,
    "cancelled_cut": cancelled_cut,
    "forked_cut": forked_cut,
    "steered_cut": steered_cut,
    "unknown_references": references("unknown"),
    "foreign_references": references("foreign"),
    "deleted_references": references("deleted"),
    "deferred_tools": _refusal(
        {"input": "x", "tools": [{"type": "tool_search"}, *(_later(f"t{n}") for n in range(MANY))]},
        "invalid_value", "array_above_max_length",
    ),
    "reference_to_no_tool": reference_to_no_tool,
    "tool_added_twice": _refusal({"input": [user("x"), _TWICE]}, "invalid_value"),
    "tool_removed_while_called": tool_removed_while_called,
    "deleted_conversation": deleted_conversation,
    "two_in_a_conversation": two_in_a_conversation,
    "background_unstored": background_unstored,
    "many_steers": many_steers,
    "shell_output": _refusal(
        {"input": [user("x"), SHELL, {"type": "shell_call_output", "call_id": "c",
                                      "output": [_OUTPUT]}], "tools": [{"type": "shell"}]},
        "context_length_exceeded",
    ),
}  # fmt: skip
"""By name."""


async def ask(name: str, url: str, seconds: float, begun: Callable[[], None]) -> Counter[str]:
    """Ask for a case again and again for that time; in between the socket answers a good turn.

    Raises:
        WrongAnswer: something was neither refused nor bounded as it has to be.
    """
    own, other = ({"Authorization": f"Bearer {key}"} for key in (HOSTILE, VICTIM))
    wire = await WireClient.open(url, additional_headers=own, ping_interval=None)
    async with (
        httpx.AsyncClient(base_url=url, headers=own, timeout=60) as http,
        httpx.AsyncClient(base_url=url, headers=other, timeout=60) as others,
    ):
        bad = Bad(wire=wire, http=http, others=others)
        await CASES[name](bad)  # what is made once, before the time begins
        bad.seen.clear()
        begun()
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            await CASES[name](bad)
            bad.seen["asked"] += 1
        if name not in (BASELINE, LONG):
            await ordinary(bad)
        await wire.close()
    return bad.seen


def main(words: Sequence[str] | None = None) -> int:
    """See the module."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("case", choices=sorted(CASES))
    options.add_argument("--url", required=True)
    options.add_argument("--seconds", type=float, default=3.0)
    asked = options.parse_args(words)
    os.nice(10)
    begun = partial(print, json.dumps({"begun": asked.case}), flush=True)
    seen = asyncio.run(ask(asked.case, asked.url, asked.seconds, begun))
    print(json.dumps({"seen": seen}), flush=True)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
