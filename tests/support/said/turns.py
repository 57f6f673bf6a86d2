"""Turns over the WebSocket that end by themselves, in lanes, sessions and under ids."""

import json

from tests.support.dialogues import Dialogue
from tests.support.said.common import ASK_FOR_BOTH, CREATED, DELTA, FORMAT, LOOK, Dialogues, outputs

DIALOGUES = Dialogues()
dialogue = DIALOGUES.dialogue


# Turns over the WebSocket


@dialogue
async def plain_turns(d: Dialogue) -> None:
    await d.start()
    ws = await d.socket()
    first = await ws.turn("Who are you?", keepwarm={"session": "s"})
    await ws.turn("And then?", keepwarm={"session": "s"}, metadata={"a": "b"})
    await ws.turn("Once more.", previous_response_id=first["id"], instructions="Be short.")
    await ws.turn("Say nothing of it.", keepwarm={"stats": False})


@dialogue
async def tool_turn(d: Dialogue) -> None:
    await d.start()
    ws = await d.socket()
    tools = {"tools": [LOOK], "max_output_tokens": 80}
    response = await ws.turn("What is a lamp?", tool_choice="required", **tools)
    await ws.turn(outputs(response), previous_response_id=response["id"], **tools)


@dialogue
async def parallel_calls(d: Dialogue) -> None:
    await d.start()
    ws = await d.socket()
    tools = {"tools": [LOOK], "max_output_tokens": 120}
    response = await ws.turn(ASK_FOR_BOTH, tool_choice="required", **tools)
    late = list(reversed(outputs(response)))
    await ws.turn(late, previous_response_id=response["id"], **tools)
    await ws.turn(late, previous_response_id=response["id"], parallel_tool_calls=False, **tools)


@dialogue
async def custom_tool(d: Dialogue) -> None:
    await d.start()
    ws = await d.socket()
    grammar = {"type": "grammar", "syntax": "regex", "definition": "[ab]{2,4}"}
    tool = {"type": "custom", "name": "letters", "format": grammar}
    await ws.turn("Write.", tools=[tool], tool_choice="required", max_output_tokens=80)


@dialogue
async def json_schema(d: Dialogue) -> None:
    await d.start()
    ws = await d.socket()
    await ws.turn("How wide?", text=FORMAT, max_output_tokens=40)
    await ws.turn("Any object.", text={"format": {"type": "json_object"}}, max_output_tokens=40)


@dialogue
async def reasoning(d: Dialogue) -> None:
    await d.start()
    ws = await d.socket()
    response = await ws.turn("Think.", reasoning={"effort": "low"}, max_output_tokens=24)
    said = [*response["output"], {"role": "user", "content": "And?"}]
    await ws.turn([{"role": "user", "content": "Think."}, *said], reasoning={"effort": "low"})


@dialogue
async def stop_string_and_sampling(d: Dialogue) -> None:
    await d.start()
    ws = await d.socket()
    await ws.turn("Who are you?", keepwarm={"sampling": {"stop": ["th"]}})
    await ws.turn("Who?", keepwarm={"sampling": {"repetition_penalty": 1.3, "seed": 7}})


@dialogue
async def history_resent(d: Dialogue) -> None:
    await d.start()
    ws = await d.socket()
    first = await ws.turn("Who are you?")
    asked = {"role": "user", "content": "Who are you?"}
    await ws.turn([asked, *first["output"], {"role": "user", "content": "And then?"}])


@dialogue
async def warm_up(d: Dialogue) -> None:
    await d.start()
    ws = await d.socket()
    response = await ws.turn("A long prompt that is worth a warm-up.", generate=False)
    await ws.turn("Go.", previous_response_id=response["id"])
    await ws.turn("Again.", prompt_cache_options={"prewarm": True})


@dialogue
async def fork(d: Dialogue) -> None:
    await d.start()
    ws = await d.socket()
    parent = await ws.turn("Who are you?", keepwarm={"session": "s"})
    d.engine.hold()
    for lane in ("left", "right"):
        await ws.create(lane, stream_id=lane, previous_response_id=parent["id"])
        await ws.until(CREATED)
    await d.served.asked(3)
    d.engine.go_on()
    await ws.end()
    await ws.end()


@dialogue
async def truncation(d: Dialogue) -> None:
    await d.start("max_context_tokens", "256")
    ws = await d.socket()
    response = await ws.turn("The first of all.", truncation="auto")
    for number in range(5):
        text = f"Part {number} of a story, which goes on and on for a while, as stories do."
        more = {"previous_response_id": response["id"], "truncation": "auto"}
        response = await ws.turn(text, **more)
    await ws.turn("word " * 300, previous_response_id=response["id"])
    await d.http("GET", f"/v1/responses/{response['id']}/input_items")


@dialogue
async def item_reference(d: Dialogue) -> None:
    await d.start()
    ws = await d.socket()
    first = await ws.turn("Who are you?")
    reference = {"type": "item_reference", "id": first["output"][0]["id"]}
    user = {"role": "user", "content": "Is that so?"}
    await ws.turn([reference, user])
    await ws.turn([user, {"type": "item_reference", "id": "msg_unknown"}])


@dialogue
async def store_false(d: Dialogue) -> None:
    await d.start()
    ws, other = await d.socket(), await d.socket()
    first = await ws.turn("Who are you?", store=False)
    await ws.turn("And then?", previous_response_id=first["id"], store=False)
    await other.turn("And then?", previous_response_id=first["id"])
    await d.http("GET", f"/v1/responses/{first['id']}")
    await ws.turn("hi", store=False, keepwarm={"session": "s", "on_disconnect": "continue"})


@dialogue
async def large_request(d: Dialogue) -> None:
    await d.start()
    ws = await d.socket()
    filler = "".join(" " for _ in range(300_000))
    text = json.dumps(
        {"type": "response.create", "input": "hi", "temperature": 0, "max_output_tokens": 4}
    )
    await ws.send_text(text[:-1] + filler + "}")
    first = await ws.end()
    await ws.turn("word " * 20_000)
    await ws.turn("And?", previous_response_id=first["response"]["id"])


# Lanes, sessions, ids


@dialogue
async def two_in_a_lane(d: Dialogue) -> None:
    await d.start()
    ws = await d.socket()
    d.engine.hold()
    await ws.create("one")
    await ws.create("two", keepwarm={"session": "s"})
    await ws.send_text("{")
    await ws.until(CREATED)
    d.engine.go_on()
    for _ in range(3):
        await ws.end()


@dialogue
async def two_in_a_session(d: Dialogue) -> None:
    await d.start()
    one, two = await d.socket(), await d.socket()
    d.engine.hold()
    await one.create("one", keepwarm={"session": "s"})
    await one.until(CREATED)
    await two.create("two", keepwarm={"session": "s"})
    await two.create("of another lane", stream_id="x")
    await two.until(CREATED)
    await d.served.asked(2)
    d.engine.go_on()
    await one.end()
    await two.end()
    await two.end()


@dialogue
async def lanes_and_their_limits(d: Dialogue) -> None:
    await d.start()
    ws = await d.socket()
    for number in range(33):
        await ws.create(
            "hi", stream_id=f"lane {number}" if number == 7 else f"lane{number}", model="no"
        )
        await ws.end()


@dialogue
async def same_request_id(d: Dialogue) -> None:
    await d.start()
    one, two = await d.socket(), await d.socket()
    named = {"keepwarm": {"request_id": "r1", "session": "s"}}
    d.engine.hold(after=3)
    await one.create("Who are you?", **named)
    await one.until(DELTA)
    await d.served.stands()
    await two.create("Who are you?", **named)
    await one.end()
    await two.until(DELTA)
    d.engine.go_on()
    await two.end()
    await one.turn("Who are you?", **named)
    await one.turn("Something else.", **named)
    await one.turn("And then?", keepwarm={"session": "s"})


@dialogue
async def request_id_of_a_refused_request(d: Dialogue) -> None:
    await d.start()
    ws = await d.socket()
    named = {"keepwarm": {"request_id": "r1"}}
    await ws.turn("hi", previous_response_id="resp_unknown", **named)
    await ws.turn("hi", **named)
