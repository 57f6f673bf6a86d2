"""One turn from request to terminal event, against a scripted engine."""

from dataclasses import replace
from typing import Any

import pytest

from runtime.messages import ErrorKind, FinishReason, TokenLogprob
from sessions.durable.ledger import PriceTable
from tests.support.sessions_rig import END, Client, Rig, call, spelled, token_ids, tool
from tools_api.limits import Limits

PRICES = PriceTable.per_million(input_uncached=1.0, input_cached=0.1, output=2.0)


@pytest.fixture
def rig() -> Rig:
    return Rig()


@pytest.fixture
def client(rig: Rig) -> Client:
    return rig.connect()


def deltas(client: Client, kind: str) -> list[str]:
    return [e["delta"] for e in client.events if e["type"] == f"response.{kind}.delta"]


def budget(**bounds: Any) -> dict[str, Any]:
    return {"budget": bounds}


def test_a_text_turn_sends_the_events_of_the_protocol_in_order(client: Client) -> None:
    client.turn("21 degrees." + END, input="Weather?")
    assert client.types() == [
        "created",
        "in_progress",
        "output_item.added",
        "content_part.added",
        "output_text.delta",
        "output_text.done",
        "content_part.done",
        "output_item.done",
        "completed",
    ]
    assert [event["sequence_number"] for event in client.events] == list(range(9))
    assert client.response["output"] == [client.events[-2]["item"]]


def test_a_tool_turn_sends_the_events_of_the_protocol_in_order(client: Client) -> None:
    reply = call("get_weather", '{"city": "Oslo"}') + END
    response = client.turn(reply, input="Weather?", tools=[tool("get_weather", city={})])
    assert client.types() == [
        "created",
        "in_progress",
        "output_item.added",
        "function_call_arguments.delta",
        "function_call_arguments.done",
        "output_item.done",
        "completed",
    ]
    (item,) = response["output"]
    assert (item["name"], item["arguments"]) == ("get_weather", '{"city": "Oslo"}')
    assert client.events[2]["item"] == item | {"arguments": "", "status": "in_progress"}
    assert client.events[4]["name"] == "get_weather"


def test_what_a_turn_read_is_told_when_it_begins(client: Client) -> None:
    for question in ("Weather?", "And tomorrow?"):
        client.turn("21 degrees." + END, input=question, keepwarm={"session": "s"})
        begun, ended = (
            event["response"]["keepwarm"]["tokens"]
            for event in client.events[-8:]
            if event["type"] in ("response.in_progress", "response.completed")
        )
        assert begun == {key: ended[key] for key in ("input", "cached")}
        assert begun["input"] > 0


def test_a_call_without_arguments_still_has_a_delta(client: Client) -> None:
    client.turn(call("now") + END, input="time?", tools=[tool("now")])
    assert deltas(client, "function_call_arguments") == ["{}"]


def test_one_step_gives_one_delta(rig: Rig, client: Client) -> None:
    client.create(input="hi")
    for text in ("one ", "two ", "three"):
        events = rig.emit(text)
        assert sum(event["type"].endswith(".delta") for event in events) == 1
    assert deltas(client, "output_text") == ["one ", "two ", "three"]


@pytest.mark.parametrize("width", [1, 2, 3, 7, 1000])
def test_the_events_say_the_same_however_the_output_was_split(width: int) -> None:
    rig = Rig()
    client = rig.connect()
    text = "Grüße: 日本\n" + call("f", '{"a": "é"}') + "\n" + call("g", '{"b": 2}') + END
    client.create(input="hi", tools=[tool("f", a={}), tool("g", b={})])
    tokens = token_ids(text)
    for at in range(0, len(tokens), width):
        last = at + width >= len(tokens)
        finish = FinishReason.STOP if last else None
        step = rig.engine.output(rig.engine.last, tokens[at : at + width], finish)
        rig.deliver(step)
    message, f, g = client.response["output"]
    assert message["content"][0]["text"] == "".join(deltas(client, "output_text"))
    assert message["content"][0]["text"] == "Grüße: 日本"
    assert f["arguments"] + g["arguments"] == "".join(deltas(client, "function_call_arguments"))
    assert (f["arguments"], g["arguments"]) == ('{"a": "é"}', '{"b": 2}')


def test_thinking_becomes_a_reasoning_item_and_is_counted(client: Client) -> None:
    thought = "<think>\nhm\n</think>\n\nYes." + END
    response = client.turn(thought, input="hi", reasoning={"effort": "high"})
    reasoning, message = response["output"]
    assert reasoning["content"] == [{"type": "reasoning_text", "text": "hm"}]
    assert message["content"][0]["text"] == "Yes."
    details = response["usage"]["output_tokens_details"]
    assert details["reasoning_tokens"] == len(token_ids("\nhm\n</think>"))


def test_usage_is_the_engines_own_count(rig: Rig, client: Client) -> None:
    first = client.turn("ok" + END, input="hi")
    second = client.turn("fine" + END, input="more", previous_response_id=first["id"])
    usage, prompt = second["usage"], len(rig.engine.sessions["branch_1"]) - 5
    assert usage["input_tokens"] == prompt
    assert usage["input_tokens_details"] == {
        "cached_tokens": 16,
        "cache_write_tokens": prompt - 16,
    }
    assert usage["output_tokens"] == 5
    assert usage["total_tokens"] == prompt + 5


def test_the_vendor_object_tells_cache_time_tokens_money_and_budget() -> None:
    rig = Rig(prices=PRICES)
    client = rig.connect()
    client.create(input="hi", keepwarm={"session": "s", "budget": {"output": 100, "cost": 1}})
    rig.clock.advance(0.5)
    rig.emit("ab", forced=1, drafted=3, accepted=2, forwards=1)
    rig.clock.advance(2.0)
    rig.emit("cd" + END, FinishReason.STOP, forwards=1)
    stats = client.response["keepwarm"]
    cost = (27 * 1000 + 5 * 2000) / 1e9
    assert stats == {
        "session": "s",
        "turn": 1,
        "kv": {"cached": 0, "written": 27, "miss": {"first_sight": 27}, "block_seconds": 0.0},
        "timing": {"queue_ms": 250, "ttft_ms": 500, "total_ms": 2500, "tokens_per_s": 2.0},
        "tokens": {"input": 27, "cached": 0, "output": 5, "reasoning": 0, "forced": 1},
        "spec": {"drafted": 3, "accepted": 2, "forwards": 2},
        "cost": {"turn": cost, "session": cost, "saved": 0},
        "budget": {"left": {"output": 95, "cost": 1 - cost}, "exhausted": False},
        "warnings": [],
    }


def test_the_vendor_object_can_be_left_out(client: Client) -> None:
    client.turn(input="hi", keepwarm={"stats": False})
    assert not any("keepwarm" in event.get("response", {}) for event in client.events)


def test_what_the_cache_saved_is_counted() -> None:
    rig = Rig(prices=PRICES)
    client = rig.connect()
    first = client.turn("ok" + END, input="hello")
    second = client.turn("ok" + END, input="x", previous_response_id=first["id"])
    assert second["usage"]["input_tokens_details"]["cached_tokens"] == 32
    assert second["keepwarm"]["cost"]["saved"] == 32 * 900 / 1e9


def test_a_stop_string_is_cut_off_and_the_turn_is_complete(rig: Rig, client: Client) -> None:
    client.create(input="hi", keepwarm={"sampling": {"stop": ["###"]}})
    assert rig.engine.last.sampling.stop == ("###",)
    rig.emit("answer#")
    rig.emit("##", FinishReason.STOP_STRING)
    assert client.response["status"] == "completed"
    assert client.response["output"][0]["content"][0]["text"] == "answer"
    assert "".join(deltas(client, "output_text")) == "answer"
    assert client.response["keepwarm"]["stop"] == "###"


def test_a_turn_that_the_model_ended_names_no_stop_string(rig: Rig, client: Client) -> None:
    client.create(input="hi", keepwarm={"sampling": {"stop": ["###"]}})
    rig.reply("answer##" + END)
    assert "stop" not in client.response["keepwarm"]


def test_the_turn_after_a_stop_string_keeps_the_models_own_tokens(rig: Rig, client: Client) -> None:
    client.create(input="hi", keepwarm={"sampling": {"stop": ["###"]}})
    rig.emit("answer###", FinishReason.STOP_STRING)
    client.create(input="go on", previous_response_id=client.response["id"])
    prompt = spelled(rig.engine.prompt(rig.engine.last))
    assert "answer###<|im_end|>\n<|im_start|>user\ngo on" in prompt


def test_log_probabilities_follow_the_text(rig: Rig, client: Client) -> None:
    client.create(input="hi", include=["message.output_text.logprobs"], top_logprobs=1)
    assert rig.engine.last.sampling.top_logprobs == 1
    tokens = token_ids("Hi")
    known = tuple(
        TokenLogprob(token=t, logprob=-0.5 * i, top=((t, -0.5 * i),))
        for i, t in enumerate([*tokens, *token_ids(END)])
    )
    rig.emit("Hi" + END, FinishReason.STOP, logprobs=known)
    (delta,) = [e for e in client.events if e["type"] == "response.output_text.delta"]
    assert [entry["token"] for entry in delta["logprobs"]] == ["H", "i"]
    assert delta["logprobs"][1] == {
        "token": "i",
        "bytes": [105],
        "logprob": -0.5,
        "top_logprobs": [{"token": "i", "bytes": [105], "logprob": -0.5}],
    }
    part = client.response["output"][0]["content"][0]
    assert part["logprobs"] == delta["logprobs"]


def test_no_log_probabilities_are_asked_for_unasked(rig: Rig, client: Client) -> None:
    client.create(input="hi", top_logprobs=5)
    assert rig.engine.last.sampling.top_logprobs is None


def test_sampling_fields_reach_the_engine(rig: Rig, client: Client) -> None:
    client.create(
        input="hi",
        temperature=0.3,
        top_p=0.9,
        service_tier="flex",
        keepwarm={
            "priority": 3,
            "deadline_ms": 1500,
            "expected_tool_ms": 2000,
            "sampling": {"top_k": 4, "min_p": 0.1, "seed": 7, "repetition_penalty": 1.5},
        },
    )
    request = rig.engine.last
    assert (request.priority, request.deadline_s, request.expected_tool_s) == (-7, 1.5, 2.0)
    sampling = request.sampling
    assert (sampling.temperature, sampling.top_p, sampling.top_k) == (0.3, 0.9, 4)
    assert (sampling.min_p, sampling.seed, sampling.repetition_penalty) == (0.1, 7, 1.5)
    assert client.response["service_tier"] == "flex"


def test_without_a_seed_turns_differ(rig: Rig, client: Client) -> None:
    client.turn(input="hi")
    client.turn(input="hi")
    seeds = [request.sampling.seed for request in rig.engine.requests]
    assert seeds[0] != seeds[1]


def test_control_tokens_are_banned_and_call_tags_only_where_calls_are(
    rig: Rig, client: Client
) -> None:
    client.turn(input="hi")
    client.turn(call("f") + END, input="hi", tools=[tool("f")])
    without, with_calls = (set(request.banned_tokens) for request in rig.engine.requests)
    tags = set(token_ids("<tool_call></tool_call>"))
    assert without - with_calls == tags
    assert set(token_ids("<|im_start|><think>")) <= with_calls
    assert not set(token_ids(END + "<|endoftext|>")) & without


def test_a_waiting_turn_is_reported_once_with_its_place(rig: Rig, client: Client) -> None:
    client.create(input="hi")
    rig.deliver(rig.engine.queue(rig.engine.last, 4))
    rig.deliver(rig.engine.queue(rig.engine.last, 2))
    rig.reply("ok" + END)
    assert client.types()[:3] == ["created", "queued", "in_progress"]
    queued = client.events[1]["response"]
    assert queued["status"] == "queued"
    assert queued["keepwarm"]["queue"] == {"position": 4, "retry_after_ms": 5000}


@pytest.mark.parametrize(
    ("fields", "limit", "reason", "exhausted"),
    [
        ({"max_output_tokens": 5}, 5, "max_output_tokens", False),
        ({}, 4096 - 27, "context_full", False),
        ({"keepwarm": budget(output=6)}, 6, "budget_exhausted", True),
        ({"keepwarm": budget(output=6), "max_output_tokens": 6}, 6, "max_output_tokens", False),
        ({"keepwarm": budget(output=9), "max_output_tokens": 6}, 6, "max_output_tokens", False),
    ],
)
def test_a_turn_that_meets_its_limit_is_incomplete(
    rig: Rig, client: Client, fields: Any, limit: int, reason: str, exhausted: bool
) -> None:
    client.create(input="hi", **fields)
    assert rig.engine.last.max_new_tokens == limit
    rig.emit("a" * limit, FinishReason.LENGTH)
    response = client.response
    assert client.last["type"] == "response.incomplete"
    assert response["incomplete_details"] == {"reason": "max_output_tokens"}
    assert response["output"][0]["status"] == "incomplete"
    assert response["keepwarm"]["reason"] == reason
    assert response["keepwarm"]["budget"]["exhausted"] == exhausted


def test_a_context_that_fills_in_mid_turn_is_incomplete(rig: Rig, client: Client) -> None:
    client.create(input="hi", max_output_tokens=50)
    rig.emit("abc", FinishReason.CONTEXT)
    assert client.last["type"] == "response.incomplete"
    assert client.response["keepwarm"]["reason"] == "context_full"


def test_a_call_that_is_cut_is_an_incomplete_item_that_needs_no_output(
    rig: Rig, client: Client
) -> None:
    client.create(input="hi", tools=[tool("f", a={})], max_output_tokens=200)
    half = call("f", '{"a": "b')[: -len("}\n</tool_call>")]
    rig.emit(half, FinishReason.LENGTH)
    (item,) = client.response["output"]
    assert (item["status"], item["arguments"]) == ("incomplete", '{"a": "b')
    done = next(e for e in client.events if e["type"].endswith("arguments.done"))
    assert done["arguments"] == '{"a": "b'
    again = client.turn(input="never mind", previous_response_id=client.response["id"])
    assert again["status"] == "completed"


def test_the_text_before_a_cut_call_stays_complete(rig: Rig, client: Client) -> None:
    client.create(input="hi", tools=[tool("f", a={})])
    rig.emit('Let me see.\n<tool_call>\n{"name": "f", "arguments": {"a"', FinishReason.LENGTH)
    assert [item["status"] for item in client.response["output"]] == ["completed", "incomplete"]


@pytest.mark.parametrize(
    ("kind", "fields", "code"),
    [
        (ErrorKind.INTERNAL, {}, "server_error"),
        (ErrorKind.NOT_FINITE, {}, "server_error"),
        (ErrorKind.OVERLOADED, {}, "server_error"),
        (ErrorKind.BUDGET_TOO_SMALL, {"max_output_tokens": 3}, "invalid_prompt"),
        (ErrorKind.BUDGET_TOO_SMALL, {"keepwarm": budget(output=3)}, "rate_limit_exceeded"),
    ],
)
def test_an_engine_refusal_fails_the_response_and_says_why(
    rig: Rig, client: Client, kind: ErrorKind, fields: Any, code: str
) -> None:
    client.create(input="hi", **fields)
    rig.deliver(rig.engine.refuse(rig.engine.last, kind, "because"))
    assert client.types() == ["created", "failed"]
    error = client.response["error"]
    assert (error["code"], error["message"]) == (code, "because")
    assert client.response["keepwarm"]["reason"] == kind.value
    assert client.response["keepwarm"]["budget"]["exhausted"] == (code == "rate_limit_exceeded")


UNIQUE = {"type": "array", "items": {"type": "integer"}, "uniqueItems": True}


def unique_answer() -> dict[str, Any]:
    schema = {"type": "json_schema", "name": "v", "strict": True, "schema": UNIQUE}
    return {"text": {"format": schema}}


def test_a_turn_warns_of_what_its_grammar_leaves_open(client: Client) -> None:
    response = client.turn("[1, 2]" + END, input="hi", **unique_answer())
    assert response["status"] == "completed"
    (warning,) = response["keepwarm"]["warnings"]
    assert "uniqueItems" in warning
    assert "text.format.schema" in warning
    again = client.turn(input="hi", previous_response_id=response["id"])
    assert again["keepwarm"]["warnings"] == []


def test_an_answer_that_breaks_its_schema_fails_the_turn(rig: Rig, client: Client) -> None:
    first = client.turn(input="hi")
    client.create(input="more", previous_response_id=first["id"], **unique_answer())
    rig.reply("[1, 1]" + END)
    response = client.response
    assert client.types()[-2:] == ["output_item.done", "failed"]
    assert response["error"]["code"] == "output_invalid"
    assert "uniqueItems" in response["error"]["message"]
    assert response["keepwarm"]["reason"] == "output_invalid"
    assert response["output"][0]["content"][0]["text"] == "[1, 1]"
    assert response["usage"]["output_tokens"] == len(token_ids("[1, 1]" + END))
    again = client.turn(input="again", previous_response_id=first["id"])
    assert again["status"] == "completed"


@pytest.mark.parametrize(
    ("numbers", "status"), [("[1, 2]", "completed"), ("[2, 2]", "failed"), ("[2, 2", "incomplete")]
)
def test_calls_are_checked_when_finished(client: Client, numbers: str, status: str) -> None:
    written = call("pick", f'{{"n": {numbers}}}') + END
    if status == "incomplete":
        written = written[: written.index(numbers) + len(numbers)]
    response = client.turn(written, input="hi", tools=[tool("pick", n=UNIQUE)])
    assert response["status"] == status
    assert len(response["keepwarm"]["warnings"]) == 1


def test_a_turn_without_a_known_ending_says_so(rig: Rig, client: Client) -> None:
    client.create(input="hi", max_output_tokens=5)
    rig.deliver(rig.engine.output(rig.engine.last, token_ids("["), ending_known=False))
    rig.emit("1", FinishReason.LENGTH)
    assert client.response["status"] == "incomplete"
    (warning,) = client.response["keepwarm"]["warnings"]
    assert "No legal ending" in warning


def test_a_warm_up_has_nothing_to_warn_of(client: Client) -> None:
    response = client.turn("", input="hi", generate=False, **unique_answer())
    assert response["keepwarm"]["warnings"] == []


def test_a_failure_in_mid_item_closes_the_item_first(rig: Rig, client: Client) -> None:
    client.create(input="hi")
    rig.emit("so far")
    rig.deliver(rig.engine.refuse(rig.engine.last, ErrorKind.INTERNAL))
    assert client.types()[-4:] == [
        "output_text.done",
        "content_part.done",
        "output_item.done",
        "failed",
    ]
    assert client.response["output"][0]["status"] == "incomplete"


def test_after_a_failed_turn_its_parent_is_continued(rig: Rig, client: Client) -> None:
    first = client.turn(input="hi")
    client.create(input="more", previous_response_id=first["id"])
    rig.emit("oh")
    rig.deliver(rig.engine.refuse(rig.engine.last, ErrorKind.INTERNAL))
    again = client.turn(input="again", previous_response_id=first["id"])
    assert again["status"] == "completed"
    assert rig.engine.last.branch_id == rig.engine.requests[0].branch_id
    assert "more" not in spelled(rig.engine.sessions[rig.engine.last.branch_id])


def test_an_unknown_base_is_answered_with_the_whole_transcript_unnoticed(
    rig: Rig, client: Client
) -> None:
    first = client.turn("one" + END, input="hi")
    client.create(input="more", previous_response_id=first["id"])
    expected = rig.engine.prompt(rig.engine.last)
    rig.deliver(rig.engine.forget(rig.engine.last))
    again = rig.engine.last
    assert again.base_branch_id is None
    assert rig.engine.prompt(again) == expected
    rig.reply("two" + END)
    assert client.types()[-1] == "completed"
    assert [event["sequence_number"] for event in client.events[-9:]] == list(range(9))
    third = client.turn(input="x", previous_response_id=client.response["id"])
    assert third["status"] == "completed"
    assert rig.engine.last.base_branch_id == again.branch_id


def test_an_engine_that_forgets_a_whole_transcript_fails_the_turn(rig: Rig, client: Client) -> None:
    client.create(input="hi")
    rig.deliver(rig.engine.forget(rig.engine.last))
    assert client.types() == ["created", "failed"]


def test_a_spent_budget_is_refused_with_created_and_failed(rig: Rig, client: Client) -> None:
    first = client.turn("abc" + END, input="hi", keepwarm=budget(output=4))
    assert first["keepwarm"]["budget"] == {"left": {"output": 0}, "exhausted": False}
    before = len(rig.engine.requests)
    client.create(input="more", previous_response_id=first["id"])
    assert client.types()[-2:] == ["created", "failed"]
    assert client.response["error"]["code"] == "rate_limit_exceeded"
    assert client.response["keepwarm"]["budget"]["exhausted"]
    assert len(rig.engine.requests) == before
    assert rig.engine.released == []


def test_a_prompt_beyond_the_input_budget_is_refused(rig: Rig, client: Client) -> None:
    client.create(input="hi" * 100, keepwarm=budget(input_uncached=50))
    assert client.types() == ["created", "failed"]
    assert rig.engine.requests == []
    assert rig.store.branches.pop_releases() == ()


def test_a_cached_history_does_not_count_against_the_input_budget(rig: Rig, client: Client) -> None:
    first = client.turn(input="hi" * 100, keepwarm=budget(input_uncached=320))
    second = client.turn(input="x", previous_response_id=first["id"])
    assert second["status"] == "completed"
    assert second["usage"]["input_tokens_details"]["cached_tokens"] > 200


def test_a_history_that_left_the_cache_is_refused_when_the_engine_says_so(
    rig: Rig, client: Client
) -> None:
    first = client.turn(input="hi" * 100, keepwarm=budget(input_uncached=320))
    left = first["keepwarm"]["budget"]["left"]
    client.create(input="x", previous_response_id=first["id"])
    request = rig.engine.last
    rig.deliver(rig.engine.output(request, token_ids("oops"), cached=0))
    assert client.types()[-2:] == ["created", "failed"]
    assert client.response["error"]["code"] == "rate_limit_exceeded"
    assert rig.engine.cancelled == [request.request_id]
    assert client.response["keepwarm"]["budget"]["left"] == left


def test_a_colder_cache_than_reckoned_shortens_the_turn_before_it_speaks() -> None:
    rig = Rig(prices=PRICES)
    client = rig.connect()
    first = client.turn("ok" + END, input="a" * 200)
    client.create(
        input="x",
        previous_response_id=first["id"],
        keepwarm=budget(cost=0.0012),
        text={"format": {"type": "json_object"}},
    )
    hopeful = rig.engine.last
    rig.deliver(rig.engine.output(hopeful, token_ids("lost"), cached=0))
    sober = rig.engine.last
    assert rig.engine.cancelled == [hopeful.request_id]
    assert sober.max_new_tokens < hopeful.max_new_tokens
    rig.deliver(rig.engine.output(sober, token_ids("a" * sober.max_new_tokens), cached=0))
    rig.deliver(rig.engine.output(sober, finish=FinishReason.LENGTH))
    assert client.last["type"] == "response.incomplete"
    assert client.response["keepwarm"]["budget"]["exhausted"]
    assert "lost" not in "".join(deltas(client, "output_text"))
    assert client.response["keepwarm"]["cost"]["session"] <= 0.0012


def test_a_warm_up_prefills_and_says_nothing(rig: Rig, client: Client) -> None:
    response = client.turn(input="context", instructions="Be kind.", generate=False)
    assert client.types() == ["created", "in_progress", "completed"]
    assert rig.engine.last.max_new_tokens == 0
    assert response["output"] == []
    assert response["usage"]["output_tokens"] == 0
    assert response["usage"]["input_tokens"] == len(rig.engine.sessions["branch_1"])


def test_a_warm_up_is_continued(rig: Rig, client: Client) -> None:
    warm = client.turn(instructions="Be kind.", generate=False)
    client.create(input="hi", instructions="Be kind.", previous_response_id=warm["id"])
    request = rig.engine.last
    assert (request.base_branch_id, request.base_offset) == (
        "branch_1",
        warm["usage"]["input_tokens"],
    )
    assert spelled(rig.engine.prompt(request)) == (
        "<|im_start|>system\nBe kind.<|im_end|>\n<|im_start|>user\nhi<|im_end|>\n"
        "<|im_start|>assistant\n<think>\n\n</think>\n\n"
    )


def test_a_warm_up_of_nothing_completes_without_the_engine(rig: Rig, client: Client) -> None:
    client.create(generate=False)
    assert client.types() == ["created", "in_progress", "completed"]
    assert client.response["usage"]["input_tokens"] == 0
    assert rig.engine.requests == []
    assert client.turn(input="hi", previous_response_id=client.response["id"])["output"]


# Limits nobody named, and cancels


def test_a_turn_without_a_limit_is_bounded_by_the_servers_default() -> None:
    rig = Rig(limits=replace(Limits(), default_output_tokens=5))
    client = rig.connect()
    client.create(input="hi")
    assert rig.engine.last.max_new_tokens == 5
    rig.reply("abcde")
    response = client.response
    assert (response["status"], response["max_output_tokens"]) == ("incomplete", None)
    assert response["incomplete_details"] == {"reason": "max_output_tokens"}
    assert response["keepwarm"]["reason"] == "max_output_tokens"
    assert response["keepwarm"]["warnings"] == [
        "max_output_tokens: not given, so the server's default of 5 ended the turn"
    ]


@pytest.mark.parametrize(
    ("fields", "reply", "reason"),
    [
        ({}, "ab" + END, None),
        ({"max_output_tokens": 5}, "abcde", "max_output_tokens"),
        ({"max_output_tokens": 7}, "abcdefg", "max_output_tokens"),
        ({"keepwarm": {"budget": {"output": 3}}}, "abc", "budget_exhausted"),
    ],
)
def test_the_default_is_named_only_where_it_ended_the_turn(
    fields: dict[str, Any], reply: str, reason: str | None
) -> None:
    rig = Rig(limits=replace(Limits(), default_output_tokens=5))
    client = rig.connect()
    response = client.turn(reply, input="hi", **fields)
    assert response["keepwarm"].get("reason") == reason
    assert response["keepwarm"]["warnings"] == []


def test_a_turn_that_fills_the_context_is_not_ended_by_the_default() -> None:
    rig = Rig(max_context_tokens=60)
    client = rig.connect()
    client.create(input="hi")
    response = rig.reply("a" * rig.engine.last.max_new_tokens)[-1]["response"]
    assert response["keepwarm"]["reason"] == "context_full"


def test_a_turn_cancelled_before_the_engine_began_costs_nothing(rig: Rig, client: Client) -> None:
    client.create(input="hi", keepwarm={"session": "s"} | budget(output=9, input_uncached=500))
    events = client.send(type="response.cancel")
    assert [event["type"] for event in events] == ["response.incomplete"]
    response = events[0]["response"]
    assert response["usage"]["total_tokens"] == 0
    assert response["keepwarm"]["budget"]["left"] == {"input_uncached": 500, "output": 9}
    assert rig.engine.released == ["branch_1"]


def test_what_a_cancelled_turn_wrote_is_counted() -> None:
    rig = Rig(prices=PRICES)
    client = rig.connect()
    client.create(input="hi", keepwarm=budget(output=9))
    rig.emit("abcd")
    client.send(type="response.cancel")
    assert client.response["usage"]["output_tokens"] == 4
    assert client.response["keepwarm"]["budget"]["left"]["output"] == 5
    assert rig.reports[-1].cost > 0


# Custom tools


def test_a_custom_call_is_read_from_what_the_model_wrote(client: Client) -> None:
    grammar = {"type": "grammar", "syntax": "regex", "definition": "[a-z ]+"}
    tools = [
        {"type": "custom", "name": "run", "format": grammar},
        {"type": "custom", "name": "say"},
    ]
    reply = '<tool_call>\n{"name": "run"}\nls {a}</tool_call>\n' + call("say", '{"input": "\\n"}')
    response = client.turn(reply + END, input="go", tools=tools)
    items = response["output"]
    assert [(item["type"], item["name"], item["input"]) for item in items] == [
        ("custom_tool_call", "run", "ls {a}"),
        ("custom_tool_call", "say", "\n"),
    ]
    assert deltas(client, "custom_tool_call_input") == ["ls {a}", "\n"]
    assert response["tools"][0]["format"] == grammar
    outputs = [
        {"type": "custom_tool_call_output", "call_id": item["call_id"], "output": "ok"}
        for item in items
    ]
    chain = {"previous_response_id": response["id"], "tools": tools}
    (error,) = client.create(input=outputs[:1], **chain)
    assert "No tool output found" in error["error"]["message"]
    assert client.turn(input=outputs, **chain)["status"] == "completed"


def test_a_report_says_why_the_uncached_tokens_were_not_cached() -> None:
    rig = Rig()
    client = rig.connect()
    for text in ("Hi", "Hi again"):
        client.turn(input=text, keepwarm={"session": "s"})
    for report in rig.reports:
        assert sum(report.miss_causes.values()) == report.usage.uncached_tokens > 0


def test_a_report_tells_a_turn_that_a_budget_refused_from_one_that_it_cut() -> None:
    rig = Rig()
    client = rig.connect()
    client.turn(reply="ok", input="Hi", keepwarm={"session": "s", "budget": {"output": 2}})
    client.create(input="Hi", keepwarm={"session": "s"})
    assert [report.out_of_budget for report in rig.reports] == ["cut", "refused"]
