"""Chat Completions against the sessions behind it: whole conversations, resent each time."""

from typing import Any

from tests.support.dialects import cached_of, over_http, server_sent
from tests.support.sessions_rig import END, Client, Rig, call, tool
from tools_api.dialects.chat_completions import CHAT_COMPLETIONS

SYSTEM = "You answer questions about the weather."
PARAMETERS = tool("get_weather", city={"type": "string"})["parameters"]
TOOL = {"type": "function", "function": {"name": "get_weather", "parameters": PARAMETERS}}
ARGUMENTS = '{"city": "Oslo"}'
REPLIES = [
    call("get_weather", ARGUMENTS) + "\n" + call("get_weather", '{"city": "Bergen"}') + END,
    "It is 21 in Oslo, 22 in Bergen." + END,
    "Let me look.\n" + call("get_weather", '{"city": "Bodø"}') + END,
    "Only 12 there." + END,
]


def asked(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


def resent(rig: Rig, **fields: Any) -> tuple[list[Any], list[Any]]:
    """Responses and completions of a conversation of four turns; the client keeps the messages
    that it was given and answers every call."""
    messages = [{"role": "system", "content": SYSTEM}, asked("Oslo and Bergen?")]
    responses, completions = [], []
    for reply in REPLIES:
        body = {"messages": messages, "tools": [TOOL], **fields}
        response, completion = over_http(rig, CHAT_COMPLETIONS, body, reply)
        responses.append(response)
        completions.append(completion)
        said = completion["choices"][0]["message"]
        calls = said.get("tool_calls", [])
        answers = [
            {"role": "tool", "tool_call_id": made["id"], "content": f"{number}1 degrees"}
            for number, made in enumerate(calls)
        ]
        messages = [*messages, said, *(answers or [asked("And Bodø?")])]
    return responses, completions


def test_a_resent_history_continues_the_response_before_it() -> None:
    responses, completions = resent(Rig())
    ids = [response["id"] for response in responses]
    assert [response["previous_response_id"] for response in responses] == [None, *ids[:-1]]
    reasons = [completion["choices"][0]["finish_reason"] for completion in completions]
    assert reasons == ["tool_calls", "stop", "tool_calls", "stop"]


def over_websocket(rig: Rig) -> list[int]:
    """Cached tokens of the same conversation on one connection, each turn sending what is new."""
    client, cached = rig.connect(), list[int]()
    before = None
    flat = {"type": "function", "name": "get_weather", "parameters": PARAMETERS}
    new = [{"role": "system", "content": SYSTEM}, asked("Oslo and Bergen?")]
    for reply in REPLIES:
        response = client.turn(reply, input=new, tools=[flat], previous_response_id=before)
        before = response["id"]
        cached.append(cached_of(response))
        calls = [item for item in response["output"] if item["type"] == "function_call"]
        new = [
            {
                "type": "function_call_output",
                "call_id": made["call_id"],
                "output": f"{number}1 degrees",
            }
            for number, made in enumerate(calls)
        ] or [asked("And Bodø?")]
    return cached


def test_it_finds_as_much_in_the_cache_as_over_websocket() -> None:
    _, completions = resent(Rig())
    cached = [
        completion["usage"]["prompt_tokens_details"]["cached_tokens"] for completion in completions
    ]
    assert cached == over_websocket(Rig())
    assert cached[0] == 0
    assert min(cached[1:]) > 0


def test_a_stop_string_a_seed_and_a_limit_reach_the_engine() -> None:
    rig = Rig()
    body = {"messages": [asked("hi")], "stop": ["###"], "seed": 7, "max_tokens": 5}
    _, completion = over_http(rig, CHAT_COMPLETIONS, body, "abcde")
    request = rig.engine.last
    assert (request.sampling.stop, request.sampling.seed) == (("###",), 7)
    assert request.max_new_tokens == 5
    assert completion["choices"][0]["finish_reason"] == "length"


def test_a_budget_that_is_spent_is_an_error_and_not_an_answer() -> None:
    rig = Rig()
    options = {"session": "s", "budget": {"output": 2}}
    body = {"messages": [asked("hi")], "keepwarm": options}
    request = CHAT_COMPLETIONS.read(body | {"max_tokens": 2})
    client = rig.connect()
    client.create(**request.create)
    rig.reply("ab")
    client.create(**CHAT_COMPLETIONS.read(body).create)
    writer = CHAT_COMPLETIONS.read(body).writer
    sent = [server_sent(writer.feed(event)) for event in client.events[-2:]]
    assert client.response["status"] == "failed"
    ((_, error),) = [one for some in sent for one in some]
    assert error["error"]["code"] == "rate_limit_exceeded"
    assert error["error"]["type"] == "rate_limit_error"


def said_by(client: Client) -> dict[str, Any]:
    """The error that the last event of a connection becomes."""
    writer = CHAT_COMPLETIONS.read({"messages": [asked("hi")]}).writer
    ((_, data),) = server_sent(writer.feed(client.last))
    error: dict[str, Any] = data["error"]
    return error


def test_a_prompt_that_does_not_fit_is_refused_in_its_words() -> None:
    client = Rig(max_context_tokens=64).connect()
    client.create(**CHAT_COMPLETIONS.read({"messages": [asked("hi " * 99)]}).create)
    error = said_by(client)
    assert (error["code"], error["param"]) == ("context_length_exceeded", "messages")


def test_a_call_without_its_answer_is_refused_in_its_words() -> None:
    called = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    messages = [asked("hi"), {"role": "assistant", "tool_calls": [called]}, asked("well?")]
    client = Rig().connect()
    client.create(**CHAT_COMPLETIONS.read({"messages": messages}).create)
    assert said_by(client)["param"] == "messages"
