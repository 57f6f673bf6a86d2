"""Turns over the WebSocket that something else ends, and what goes wrong."""

from typing import Any

import pytest

from sessions.journal import writer
from sessions.journal.sqlite import SqliteJournal
from sessions.tenants import ApiKey
from sessions.tenants_file import key_row
from sessions.wire import journal_desk
from tests.support.dialogues import Dialogue, out_of_reach
from tests.support.said.common import ASK_FOR_BOTH, CREATED, DELTA, LOOK, SIZE, Dialogues, message

DIALOGUES = Dialogues()
dialogue = DIALOGUES.dialogue


# Ends before the end


@dialogue
async def cancel(d: Dialogue) -> None:
    await d.start()
    ws = await d.socket()
    d.engine.hold(after=4)
    await ws.create("Who are you?")
    response = (await ws.until(CREATED))["response"]
    await ws.until(DELTA)
    await d.served.stands()
    await ws.send(type="response.cancel", response_id=response["id"])
    await ws.end()
    d.engine.go_on()
    await ws.turn("Go on.", previous_response_id=response["id"])
    await ws.send(type="response.cancel", response_id=response["id"])
    await ws.end()


@dialogue
async def cancel_of_a_lane(d: Dialogue) -> None:
    await d.start()
    ws = await d.socket()
    d.engine.hold()
    await ws.create("one", keepwarm={"session": "s"})
    await ws.until(CREATED)
    await ws.create("two", stream_id="x", keepwarm={"session": "s"})
    await ws.send(type="response.cancel", stream_id="x")
    await ws.end()
    await ws.create("three")
    await ws.send(type="keepwarm:response.cancel")
    await ws.end()
    await ws.send(type="response.cancel", stream_id="nobody")
    await ws.end()
    d.engine.go_on()
    await ws.end()


@dialogue
async def cancel_from_another_socket(d: Dialogue) -> None:
    await d.start()
    one, two = await d.socket(), await d.socket()
    d.engine.hold(after=2)
    await one.create("Who are you?")
    response = (await one.until(CREATED))["response"]
    await d.served.stands()
    await two.send(type="response.cancel", response_id=response["id"])
    await one.end()
    await two.turn("hi", stream_id="x", model="no")
    d.engine.go_on()


@dialogue
async def resume_of_a_dropped_connection(d: Dialogue) -> None:
    await d.start()
    one = await d.socket()
    d.engine.hold(after=3)
    named = {"request_id": "r1", "session": "s", "on_disconnect": "continue"}
    await one.create("Who are you?", keepwarm=named)
    await one.until(DELTA)
    await d.served.stands()
    await one.leave()
    two = await d.socket()
    resume = "keepwarm:response.resume"
    await two.send(type=resume, request_id="r1", after_sequence=4, stream_id="x")
    await two.event()
    d.engine.go_on()
    response = (await two.end())["response"]
    await two.send(type=resume, response_id=response["id"])
    await two.end()
    await two.send(type=resume, response_id="resp_unknown")
    await two.end()


@dialogue
async def a_cut_cancels(d: Dialogue) -> None:
    await d.start()
    one, two = await d.socket(), await d.socket()
    d.engine.hold(after=3)
    await one.create("Who are you?", keepwarm={"request_id": "r1", "session": "s"})
    await one.until(DELTA)
    await d.served.stands()
    await one.leave()
    await d.served.gave_up(1)
    d.engine.go_on()
    await two.turn("And then?", keepwarm={"session": "s"})
    await two.send(type="keepwarm:response.resume", request_id="r1")
    await two.end()


@dialogue
async def engine_lost(d: Dialogue) -> None:
    await d.start()
    ws = await d.socket()
    first = await ws.turn("Who are you?", keepwarm={"session": "s"})
    d.engine.hold(after=2)
    await ws.create("And then?", keepwarm={"session": "s"})
    await d.served.stands()
    d.engine.die()
    await ws.end()
    await ws.turn("Are you there?", previous_response_id=first["id"])


@dialogue
async def drain(d: Dialogue) -> None:
    await d.start()
    ws = await d.socket()
    d.engine.hold(after=2)
    await ws.create("Who are you?")
    await ws.create("Never heard.")
    await ws.until(DELTA)
    await d.served.stands()
    d.served.drain()
    while (await ws.event())["type"] != "error":
        pass
    d.engine.go_on()
    await ws.closed()


@dialogue
async def steering(d: Dialogue) -> None:
    await d.start()
    ws = await d.socket()
    await ws.send(type="response.steer", previous_response_id="resp_unknown", input="Left.")
    await ws.event()
    d.engine.hold(after=2)
    await ws.create("Who are you?")
    response = (await ws.until(CREATED))["response"]
    await d.served.stands()
    for said in ([], "Left."):
        await ws.send(type="response.steer", previous_response_id=response["id"], input=said)
    await ws.until("response.steer.accepted")
    d.engine.go_on()
    await ws.end()
    await ws.end()


# Budgets


@dialogue
async def budget_ends_and_refuses(d: Dialogue) -> None:
    await d.start()
    ws = await d.socket()
    named = {"keepwarm": {"session": "s", "budget": {"output": 16}}}
    for _ in range(3):
        await ws.turn("Who are you?", **named)
    soft = {"scope": "turn", "output": 6, "soft": {"output": 3}}
    await ws.turn("Who are you?", keepwarm={"budget": soft})
    await ws.turn("hi", keepwarm={"budget": {"cost": -1}})


@dialogue
async def budget_closes_a_call(d: Dialogue) -> None:
    await d.start()
    ws = await d.socket()
    tools = {"tools": [LOOK], "tool_choice": "required", "max_output_tokens": 200}
    for output in (60, 4):
        session = {"session": f"s{output}", "budget": {"output": output}}
        await ws.turn(ASK_FOR_BOTH, keepwarm=session, **tools)


@dialogue
async def budget_of_a_tree(d: Dialogue) -> None:
    await d.start()
    ws = await d.socket()
    tree = {"scope": "tree", "cost": 0.0009}
    await ws.turn("Who are you?", keepwarm={"session": "root", "budget": tree})
    child = {"session": "child", "parent_session": "root"}
    await ws.turn("Who are you?", keepwarm=child)
    await ws.turn("And then?", keepwarm=child)
    await ws.turn("And then?", keepwarm={"session": "root"})
    await ws.turn("hi", keepwarm={"session": "child", "parent_session": "other"})


# What goes wrong


@dialogue
async def grammar_refused(d: Dialogue) -> None:
    await d.start()
    ws = await d.socket()
    bad = {"type": "object", "properties": {"x": {"not": {"type": "string"}}}}
    named = {"format": {"type": "json_schema", "name": "x", "schema": bad}}
    await ws.turn("hi", text=named)
    never = SIZE | {"properties": {"width": {"type": "integer", "minimum": 9, "maximum": 1}}}
    never = {"format": {"type": "json_schema", "name": "x", "schema": never}}
    await ws.turn("hi", text=never, keepwarm={"session": "s"})
    probed = {"type": "string", "pattern": "^(a|b){3000}[^a]{4000}c$"}
    tool = LOOK | {"parameters": {"type": "object", "properties": {"p": probed}}}
    await ws.turn("hi", tools=[tool], tool_choice="required", max_output_tokens=2)
    grammar = {"type": "grammar", "syntax": "lark", "definition": "start: nowhere"}
    await ws.turn("hi", tools=[{"type": "custom", "name": "c", "format": grammar}])
    await ws.turn("hi", keepwarm={"session": "s"})


@dialogue
async def unknown_previous_response(d: Dialogue) -> None:
    await d.start()
    ws = await d.socket()
    await ws.turn("hi", previous_response_id="resp_unknown", keepwarm={"session": "s"})
    await ws.turn("hi", keepwarm={"session": "s"})


@dialogue
async def journal_out_of_reach(d: Dialogue) -> None:
    await d.start()
    ws = await d.socket()
    first = await ws.turn("Who are you?", keepwarm={"session": "s", "request_id": "r1"})
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(writer, "GIVE_UP_S", 0.0)
        patch.setattr(writer, "RETRY_S", 0.01)
        patch.setattr(journal_desk, "GIVE_UP_S", 0.0)
        patch.setattr(journal_desk, "RETRY_S", 0.01)
        out_of_reach(patch, SqliteJournal, "append", "turn", "session", "turn_of_request")
        await ws.turn("And then?", keepwarm={"session": "s"})
        await ws.turn("hi", previous_response_id="resp_of_nobody")
        await ws.turn("hi", keepwarm={"session": "t"})
        await ws.turn("hi", keepwarm={"request_id": "r2"})
    await ws.turn("Are you back?", previous_response_id=first["id"])


@dialogue
async def errors_of_form(d: Dialogue) -> None:
    await d.start()
    ws = await d.socket()
    for text in ("", "[]", '"x"', '{"type": "nothing"}', '{"type": "response.create", "input": 1}'):
        await ws.send_text(text)
        await ws.end()
    wrong: list[dict[str, Any]] = [
        {"model": "gpt-none"},
        {"temperature": 9},
        {"max_output_tokens": 0},
        {"tools": [{"type": "function"}]},
        {"tool_choice": {"type": "function", "name": "absent"}},
        {"conversation": "c"},
        {"background": True},
        {"stream_id": ""},
        {"keepwarm": {"unheard": 1}},
        {"keepwarm": {"session": "x" * 300}},
        {"input": [{"role": "user", "content": [{"type": "input_image", "image_url": "u"}]}]},
        {"input": [{"type": "function_call_output", "call_id": "c", "output": "1"}]},
        {"truncation": "maybe", "metadata": {"a": 1}},
        {"unheard": 1, "service_tier": "flex", "max_tool_calls": 3, "include": ["x.y"]},
    ]
    for fields in wrong:
        await ws.turn(fields.pop("input", "hi"), **fields)


@dialogue
async def too_long(d: Dialogue) -> None:
    await d.start("max_context_tokens", "64")
    ws = await d.socket()
    await ws.turn("word " * 100)
    await ws.turn("Fits.", instructions="word " * 100, truncation="auto")
    await d.http("POST", "/v1/messages", message("word " * 100))


@dialogue
async def after_a_restart(d: Dialogue) -> None:
    await d.start()
    ws = await d.socket()
    named = {"session": "s", "request_id": "r1", "budget": {"output": 200}}
    first = await ws.turn("Who are you?", keepwarm=named)
    private = await ws.turn("Who are you?", store=False, keepwarm={"request_id": "r2"})
    await d.stop()
    await d.start()
    ws = await d.socket()
    await ws.turn("And then?", keepwarm={"session": "s"})
    await ws.turn("And then?", previous_response_id=first["id"])
    await ws.turn("Who are you?", keepwarm=named)
    await ws.send(type="keepwarm:response.resume", request_id="r2")
    await ws.end()
    await ws.turn("And then?", previous_response_id=private["id"])
    asked = {"role": "user", "content": "Who are you?"}
    await ws.turn([asked, *first["output"], {"role": "user", "content": "Resent."}])
    await ws.turn([{"type": "item_reference", "id": first["output"][0]["id"]}])
    await d.http("GET", f"/v1/responses/{first['id']}")


@dialogue
async def tenants_and_their_limits(d: Dialogue) -> None:
    rows = [key_row(ApiKey.of(f"key-of-{name}", tenant=name)) for name in ("acme", "globex")]
    limits = "[tenants.acme]\nturns_per_minute = 1\n"
    await d.start("tenants_file", d.file("tenants.toml", "\n".join([*rows, limits])))
    one = await d.socket(authorization="Bearer key-of-acme")
    two = await d.socket(authorization="Bearer key-of-globex")
    first = await one.turn("Who are you?", keepwarm={"session": "s"})
    await two.turn("Who are you?", previous_response_id=first["id"])
    await two.turn("Who are you?", keepwarm={"session": "s"})
    await one.turn("And then?", keepwarm={"session": "s"})
    await d.http("GET", "/v1/responses/none")
    await d.http("GET", f"/v1/responses/{first['id']}", authorization="Bearer key-of-globex")
