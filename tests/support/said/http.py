"""Dialogues over HTTP: Responses, Chat Completions, Messages."""

import asyncio
from typing import Any

from tests.support.dialogues import Dialogue
from tests.support.said.common import CREATED, DELTA, LOOK, Dialogues, body, message

DIALOGUES = Dialogues()
dialogue = DIALOGUES.dialogue


# Responses over HTTP


@dialogue
async def http_response_and_its_items(d: Dialogue) -> None:
    await d.start()
    response = await d.http("POST", "/v1/responses", body(), x_session_id="s")
    at = f"/v1/responses/{response['id']}"
    more = body("And then?", previous_response_id=response["id"])
    second = await d.http("POST", "/v1/responses", more)
    await d.http("GET", at)
    items = f"/v1/responses/{second['id']}/input_items"
    page = await d.http("GET", items + "?limit=2")
    await d.http("GET", f"{items}?order=asc&limit=1&after={page['data'][-1]['id']}")
    await d.http("GET", items + "?limit=0")
    await d.http("DELETE", at)
    await d.http("GET", at)
    await d.http("DELETE", at)
    await d.http("POST", "/v1/responses", more)
    await d.http("POST", f"{at}/cancel")


@dialogue
async def sse_turns(d: Dialogue) -> None:
    await d.start()
    await d.http("POST", "/v1/responses", body(stream=True))
    await d.http(
        "POST",
        "/v1/responses",
        body(stream=True, tools=[LOOK], tool_choice="required", max_output_tokens=80),
    )
    await d.http("POST", "/v1/responses", body(stream=True, previous_response_id="resp_none"))
    budget = {"keepwarm": {"budget": {"output": 1, "input_uncached": 1}}}
    await d.http("POST", "/v1/responses", body(stream=True, **budget))


@dialogue
async def sse_client_gone_then_fetched(d: Dialogue) -> None:
    await d.start()
    d.engine.hold(after=3)
    async with d.stream("POST", "/v1/responses", body(stream=True)) as answer:
        response = (await answer.until(CREATED))["response"]
        await answer.until(DELTA)
        await d.served.stands()
    at = f"/v1/responses/{response['id']}"
    await d.gone(at)
    d.engine.go_on()
    await d.http("GET", at)
    await d.http("GET", at + "?stream=true")


@dialogue
async def sse_followed_from_elsewhere(d: Dialogue) -> None:
    await d.start()
    d.engine.hold(after=4)
    goes_on = body(stream=True, keepwarm={"session": "s", "on_disconnect": "continue"})
    async with d.stream("POST", "/v1/responses", goes_on) as answer:
        response = (await answer.until(CREATED))["response"]
        await answer.until(DELTA)
        await d.served.stands()
    at = f"/v1/responses/{response['id']}"
    await d.http("GET", at)
    async with d.stream("GET", at + "?stream=true&starting_after=4") as answer:
        await answer.event()
        d.engine.go_on()
        await answer.rest()
    await d.http("GET", at)
    await d.http("GET", at + "?stream=true&starting_after=10")


@dialogue
async def http_cancel(d: Dialogue) -> None:
    await d.start()
    d.engine.hold(after=3)
    async with d.stream("POST", "/v1/responses", body(stream=True)) as answer:
        response = (await answer.until(CREATED))["response"]
        await d.served.stands()
        await d.http("POST", f"/v1/responses/{response['id']}/cancel")
        await answer.rest()
    d.engine.go_on()
    await d.http("POST", f"/v1/responses/{response['id']}/cancel")


@dialogue
async def http_same_key_twice(d: Dialogue) -> None:
    await d.start()
    for _ in range(2):
        await d.http("POST", "/v1/responses", body(), idempotency_key="k1")
    await d.http("POST", "/v1/responses", body("Else."), idempotency_key="k1")
    response = await d.http("POST", "/v1/responses", body(stream=True), idempotency_key="k1")
    await d.http("DELETE", f"/v1/responses/{response['response']['id']}")
    await d.http("POST", "/v1/responses", body(), idempotency_key="k1")


@dialogue
async def http_two_in_a_session(d: Dialogue) -> None:
    await d.start()
    ws = await d.socket()
    d.engine.hold(after=2)
    await ws.create("one", keepwarm={"session": "s"})
    await ws.until(DELTA)
    await d.served.stands()
    async with asyncio.TaskGroup() as group:
        waiting = group.create_task(d.http("POST", "/v1/responses", body(), x_session_id="s"))
        await asyncio.sleep(0)
        d.engine.go_on()
        await ws.end()
    assert waiting.result()["keepwarm"]["turn"] == 2


@dialogue
async def http_counts_and_models(d: Dialogue) -> None:
    await d.start()
    first = await d.http("POST", "/v1/responses", body(), x_session_id="s")
    count = "/v1/responses/input_tokens"
    await d.http("POST", count, {"input": "Who are you?", "tools": [LOOK]})
    await d.http("POST", count, {"input": "And?", "previous_response_id": first["id"]})
    await d.http("POST", count, {"input": "And?", "keepwarm": {"session": "s"}})
    await d.http("POST", count, {"input": "And?", "previous_response_id": "resp_none"})
    await d.http("POST", count, {"input": 1})
    await d.http("POST", "/v1/messages/count_tokens", message("Who?", max_tokens=None))
    await d.http("GET", "/v1/models")
    await d.http("GET", "/v1/models/default", anthropic_version="2023-06-01")
    await d.http("GET", "/v1/models/none")


@dialogue
async def http_errors_of_form(d: Dialogue) -> None:
    await d.start()
    await d.http("POST", "/v1/responses", "{")
    await d.http("POST", "/v1/responses", "{}", content_type="text/plain")
    await d.http("POST", "/v1/responses", body(model="none"))
    await d.http("POST", "/v1/responses", body(text={"format": {"type": "odd"}}))
    await d.http("PUT", "/v1/responses")
    await d.http("GET", "/v1/responses/resp_none")
    await d.http("GET", "/v1/nowhere")
    await d.http("POST", "/v1/messages", message("hi", max_tokens=None))
    await d.http("POST", "/v1/messages", "{", anthropic_version="2023-06-01")
    await d.http("POST", "/v1/chat/completions", {"messages": [], "n": 2})


# Chat Completions and Messages


def chat(text: str = "Who are you?", **fields: Any) -> dict[str, Any]:
    messages = [{"role": "system", "content": "Be short."}, {"role": "user", "content": text}]
    fields = {"temperature": 0, "max_completion_tokens": 12} | fields
    return {"model": "default", "messages": messages} | fields


CHAT_LOOK: Any = {
    "type": "function",
    "function": {name: LOOK[name] for name in ("name", "description", "parameters")},
}
MESSAGES_LOOK: Any = {
    "name": "look",
    "description": LOOK["description"],
    "input_schema": LOOK["parameters"],
}


@dialogue
async def chat_turns(d: Dialogue) -> None:
    await d.start()
    at = "/v1/chat/completions"
    await d.http("POST", at, chat(keepwarm={"session": "s"}))
    await d.http("POST", at, chat(stream=True, stream_options={"include_usage": True}))
    await d.http("POST", at, chat(stop=["th"], reasoning_effort="low"))
    await d.http("POST", at, chat(n=3))
    await d.http("POST", at, chat(keepwarm={"budget": {"output": 1, "input_uncached": 1}}))
    await d.http("POST", at, chat(stream=True, keepwarm={"budget": {"input_uncached": 1}}))


@dialogue
async def chat_tools(d: Dialogue) -> None:
    await d.start()
    at, more = "/v1/chat/completions", {"tools": [CHAT_LOOK], "max_completion_tokens": 80}
    asked = chat("What is a lamp?", tool_choice="required", **more)
    said = (await d.http("POST", at, asked))["choices"][0]["message"]
    await d.http("POST", at, asked | {"stream": True})
    results = [
        {"role": "tool", "tool_call_id": call["id"], "content": "4"} for call in said["tool_calls"]
    ]
    answered = asked | {"messages": [*asked["messages"], said, *results], "tool_choice": "none"}
    await d.http("POST", at, answered)


@dialogue
async def chat_client_gone(d: Dialogue) -> None:
    await d.start()
    d.engine.hold(after=2)
    at, named = "/v1/chat/completions", {"keepwarm": {"session": "s", "request_id": "r1"}}
    async with d.stream("POST", at, chat(stream=True, **named)) as answer:
        await answer.event()
        await d.served.stands()
    await d.served.gave_up(1)
    d.engine.go_on()
    await d.http("POST", at, chat(**named))
    await d.http("POST", at, chat("And then?", keepwarm={"session": "s"}))


@dialogue
async def messages_turns(d: Dialogue) -> None:
    await d.start()
    at = "/v1/messages"
    await d.http("POST", at, message(system="Be short.", keepwarm={"session": "s"}))
    await d.http("POST", at, message(stream=True))
    await d.http("POST", at, message(stream=True, stop_sequences=["th"]))
    await d.http("POST", at, message(thinking={"type": "enabled", "budget_tokens": 1024}))
    await d.http("POST", at, message(max_tokens=0))
    await d.http("POST", at, message(keepwarm={"budget": {"output": 1, "input_uncached": 1}}))


@dialogue
async def messages_tools(d: Dialogue) -> None:
    await d.start()
    at, more = "/v1/messages", {"tools": [MESSAGES_LOOK], "max_tokens": 80}
    asked = message("What is a lamp?", tool_choice={"type": "any"}, **more)
    said = (await d.http("POST", at, asked))["content"]
    await d.http("POST", at, asked | {"stream": True})
    results = [
        {"type": "tool_result", "tool_use_id": block["id"], "content": "4"}
        for block in said
        if block["type"] == "tool_use"
    ]
    turns = [{"role": "assistant", "content": said}, {"role": "user", "content": results}]
    answered = asked | {"messages": [*asked["messages"], *turns], "tool_choice": {"type": "none"}}
    await d.http("POST", at, answered)
