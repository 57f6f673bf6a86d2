"""What a turn continues, what the model reads, what is refused."""

from dataclasses import replace
from typing import Any

import pytest

from runtime.grammar.refusal import GrammarRefused
from runtime.messages import FinishReason
from tests.support.sessions_rig import END, Client, Rig, call, spelled, token_ids, tool
from tools_api.limits import Limits

F, G = tool("f", a={}), tool("g")
NO_THOUGHT = "<think>\n\n</think>\n\n"


@pytest.fixture
def rig() -> Rig:
    return Rig()


@pytest.fixture
def client(rig: Rig) -> Client:
    return rig.connect()


def context(rig: Rig, *, done: bool = False) -> str:
    """What the newest turn made the model read (and, when done, what it wrote)."""
    request = rig.engine.last
    return spelled(rig.engine.sessions[request.branch_id] if done else rig.engine.prompt(request))


def result(call_id: str, output: str = "1") -> dict[str, Any]:
    return {"type": "function_call_output", "call_id": call_id, "output": output}


def said(role: str, text: str) -> dict[str, Any]:
    return {"role": role, "content": text}


# Headers


def test_an_equal_header_appends_only_the_new_items(rig: Rig, client: Client) -> None:
    fields = {"instructions": "Be kind.", "tools": [F, G]}
    first = client.turn("ok" + END, input="hi", **fields)
    before = list(rig.engine.sessions["branch_1"])
    client.create(input="more", previous_response_id=first["id"], **fields)
    request = rig.engine.last
    assert (request.branch_id, request.base_branch_id) == ("branch_1", "branch_1")
    assert request.base_offset == len(before)
    assert rig.engine.prompt(request)[: len(before)] == before
    assert spelled(request.new_tokens) == (
        f"\n<|im_start|>user\nmore<|im_end|>\n<|im_start|>assistant\n{NO_THOUGHT}"
    )


@pytest.mark.parametrize(
    "changed",
    [
        {"instructions": "Be kind."},
        {"instructions": "Be kind.", "tools": [G, F]},
        {"instructions": "Be kind.", "tools": [F]},
        {"instructions": "Be kind.", "tools": [F, G, tool("h")]},
        {"tools": [F, G]},
        {"instructions": "Be quick.", "tools": [F, G]},
        {},
    ],
    ids=["tools dropped", "reordered", "one dropped", "added", "no instructions", "other", "none"],
)
def test_a_changed_header_starts_a_branch_and_is_reported(
    rig: Rig, client: Client, changed: dict[str, Any]
) -> None:
    first = client.turn("ok" + END, input="hello " * 20, instructions="Be kind.", tools=[F, G])
    second = client.turn("ok" + END, input="more", previous_response_id=first["id"], **changed)
    request = rig.engine.last
    assert (request.base_branch_id, request.base_offset) == ("branch_1", 0)
    assert request.branch_id != "branch_1"
    fresh = rig.connect("another tenant")
    fresh.create(
        input=[said("user", "hello " * 20), said("assistant", "ok"), said("user", "more")],
        **changed,
    )
    header = spelled(request.new_tokens).split("<|im_start|>user")[0]
    assert header == context(rig).split("<|im_start|>user")[0]
    miss = second["keepwarm"]["kv"]["miss"]
    uncached = second["usage"]["input_tokens_details"]["cache_write_tokens"]
    assert sum(miss.values()) == uncached
    assert miss["header_changed"] > 100


def test_the_stored_ids_are_reused_under_a_changed_header(rig: Rig, client: Client) -> None:
    odd = [*token_ids("o"), *token_ids("k"), *token_ids(END)]
    client.create(input="hi", instructions="one")
    rig.deliver(rig.engine.output(rig.engine.last, odd, FinishReason.STOP))
    before = rig.engine.sessions["branch_1"]
    client.create(input="x", instructions="two", previous_response_id=client.response["id"])
    header = len(token_ids("<|im_start|>system\none<|im_end|>\n"))
    assert rig.engine.prompt(rig.engine.last)[header : len(before)] == before[header:]


def test_going_back_to_the_old_header_is_another_branch_not_the_old_one(
    rig: Rig, client: Client
) -> None:
    first = client.turn(input="hi", instructions="one")
    second = client.turn(input="x", instructions="two", previous_response_id=first["id"])
    third = client.turn(input="y", instructions="one", previous_response_id=second["id"])
    sessions = [request.branch_id for request in rig.engine.requests]
    assert len(set(sessions)) == 3
    assert third["keepwarm"]["kv"]["cached"] >= 32, "the cache still has the first turn"


def test_a_leading_system_message_without_instructions_is_the_header(
    rig: Rig, client: Client
) -> None:
    client.create(input=[said("system", "Be kind."), said("user", "hi")], tools=[G])
    with_message = context(rig)
    other = rig.connect()
    other.create(input="hi", instructions="Be kind.", tools=[G])
    assert context(rig) == with_message


def test_a_leading_system_message_stays_in_the_header_of_later_turns(
    rig: Rig, client: Client
) -> None:
    first = client.turn(input=[said("developer", "Be kind."), said("user", "hi")])
    client.create(input="more", previous_response_id=first["id"])
    assert rig.engine.last.base_branch_id == "branch_1"
    assert context(rig).startswith("<|im_start|>system\nBe kind.<|im_end|>\n")


def test_instructions_do_not_swallow_a_leading_system_message(rig: Rig, client: Client) -> None:
    client.create(input=[said("system", "Second."), said("user", "hi")], instructions="First.")
    assert context(rig).startswith(
        "<|im_start|>system\nFirst.<|im_end|>\n<|im_start|>system\nSecond.<|im_end|>\n"
        "<|im_start|>user\nhi"
    )


def test_a_system_message_in_the_middle_is_an_item(rig: Rig, client: Client) -> None:
    first = client.turn(input="hi")
    client.create(
        input=[said("system", "Now rhyme."), said("user", "go")],
        previous_response_id=first["id"],
    )
    assert rig.engine.last.base_branch_id == "branch_1"


def test_thinking_is_asked_for_by_effort(rig: Rig, client: Client) -> None:
    client.create(input="hi", reasoning={"effort": "medium"})
    assert context(rig).endswith("<|im_start|>assistant\n")
    assert not set(token_ids("<think></think>")) & set(rig.engine.last.banned_tokens)


# Calls and their outputs


def test_a_tool_loop_continues_with_the_outputs(rig: Rig, client: Client) -> None:
    response = client.turn(call("f", '{"a": 1}') + "\n" + call("g") + END, input="hi", tools=[F, G])
    ids = [item["call_id"] for item in response["output"]]
    client.create(
        input=[result(ids[0], "one"), result(ids[1], "two")],
        previous_response_id=response["id"],
        tools=[F, G],
    )
    assert context(rig).endswith(
        "<|im_end|>\n<|im_start|>user\n<tool_response>\none\n</tool_response>\n"
        "<tool_response>\ntwo\n</tool_response><|im_end|>\n<|im_start|>assistant\n" + NO_THOUGHT
    )


def test_an_output_without_a_call_is_refused(client: Client) -> None:
    (error,) = client.create(input=[result("call_x")])
    assert (error["status"], error["error"]["code"]) == (400, "invalid_value")
    assert error["error"]["param"] == "input"
    assert error["error"]["message"] == (
        "No tool call found for function call output with call_id 'call_x'."
    )


def test_a_call_left_without_output_is_refused_and_can_be_mended(client: Client) -> None:
    response = client.turn(call("g") + "\n" + call("g") + END, input="hi", tools=[G])
    ids = [item["call_id"] for item in response["output"]]
    chain = {"previous_response_id": response["id"], "tools": [G]}
    (error,) = client.create(input=[result(ids[1])], **chain)
    assert error["error"]["message"] == (
        f"No tool output found for function call with call_id '{ids[0]}'."
    )
    assert client.turn(input=[result(ids[1]), result(ids[0])], **chain)["status"] == "completed"


def test_an_output_may_answer_a_call_of_an_older_turn(client: Client) -> None:
    first = client.turn(call("g") + END, input="hi", tools=[G])
    call_id = first["output"][0]["call_id"]
    second = client.turn(input=[result(call_id)], previous_response_id=first["id"])
    third = client.turn(input=[result(call_id, "corrected")], previous_response_id=second["id"])
    assert third["status"] == "completed"


def test_a_warm_up_may_go_ahead_of_the_tools(rig: Rig, client: Client) -> None:
    first = client.turn(call("g") + END, input="hi", tools=[G])
    call_id = first["output"][0]["call_id"]
    warm = client.turn(previous_response_id=first["id"], tools=[G], generate=False)
    client.create(input=[result(call_id)], previous_response_id=warm["id"], tools=[G])
    assert "</tool_call><|im_end|>\n<|im_start|>user\n<tool_response>" in context(rig)
    (error,) = client.create(input="no", previous_response_id=warm["id"], stream_id="other")
    assert error["error"]["code"] == "invalid_value"


def prompt_of(rig: Rig, client: Client, **fields: Any) -> list[int]:
    """What a turn that is played to its end made the model read."""
    client.create(**fields)
    prompt = rig.engine.prompt(rig.engine.last)
    rig.reply("so" + END)
    return prompt


def two_calls(client: Client, **fields: Any) -> tuple[dict[str, Any], list[str]]:
    """A turn with two calls, and their ids."""
    response = client.turn(
        call("f", '{"a": 1}') + "\n" + call("g") + END, input="hi", tools=[F, G], **fields
    )
    return response, [item["call_id"] for item in response["output"]]


def test_outputs_in_any_order_are_one_prompt(rig: Rig, client: Client) -> None:
    first, (one, other) = two_calls(client)
    chain: dict[str, Any] = {"previous_response_id": first["id"], "tools": [F, G]}
    prompts = []
    for outputs in (
        [result(one, "1"), result(other, "2")],
        [result(other, "2"), result(one, "1")],
        [result(other, "2"), result(one, "1"), result(other, "2")],
        [*first["output"], result(other, "2"), result(one, "1")],
    ):
        prompts.append(prompt_of(rig, client, input=outputs, **chain))
        warnings = client.response["keepwarm"]["warnings"]
        assert any("count once" in each for each in warnings) == (len(outputs) > 2)
    assert all(prompt == prompts[0] for prompt in prompts)
    text = spelled(prompts[0])
    assert text.index("<tool_response>\n1\n") < text.index("<tool_response>\n2\n")


@pytest.mark.parametrize("warmed", [[0], [1], [1, 0], [0, 1]])
def test_outputs_that_are_warmed_one_by_one_are_the_prompt_of_all_together(
    rig: Rig, client: Client, warmed: list[int]
) -> None:
    first, ids = two_calls(client)
    fields: dict[str, Any] = {"tools": [F, G]}
    both = [result(id_, f"the {n}.") for n, id_ in enumerate(ids)]
    wanted = prompt_of(rig, client, input=both, previous_response_id=first["id"], **fields)
    parent = first
    for n in warmed:
        parent = client.turn(
            "", input=[both[n]], previous_response_id=parent["id"], generate=False, **fields
        )
    left = [each for n, each in enumerate(both) if n not in warmed]
    chain = {"previous_response_id": parent["id"], **fields}
    assert prompt_of(rig, client, input=left, **chain) == wanted


def test_what_an_output_stands_in_front_of_is_said_anew_behind_what_is_kept(
    rig: Rig, client: Client
) -> None:
    first, (one, other) = two_calls(client)
    kept = list(rig.engine.sessions[rig.engine.last.branch_id])
    warm = client.turn(
        "", input=[result(other)], previous_response_id=first["id"], tools=[F, G], generate=False
    )
    chain: dict[str, Any] = {"previous_response_id": warm["id"], "tools": [F, G]}
    prompt = prompt_of(rig, client, input=[result(one)], **chain)
    assert rig.engine.last.base_offset == len(kept)
    assert prompt[: len(kept)] == kept


def test_a_call_that_comes_back_edited_is_noticed_to_the_last_digit(client: Client) -> None:
    written = '{"a": 1190000000000000001}'
    first = client.turn(call("f", written) + END, input="hi", tools=[F])
    (made,) = first["output"]
    chain: dict[str, Any] = {"previous_response_id": first["id"], "tools": [F]}
    edited = made | {"arguments": written.replace("1}", "0}")}
    (error,) = client.create(input=[edited, result(made["call_id"])], **chain)
    assert error["error"]["code"] == "invalid_value"
    assert made["call_id"] in error["error"]["message"]
    respelt = made | {"arguments": written.replace(" ", "")}
    whole = client.turn(input=[respelt, result(made["call_id"])], **chain)
    assert whole["status"] == "completed"


# Histories that are sent again


@pytest.mark.parametrize("edit", [("1}", "0}"), ("1}", "1.0}"), ("1190", "1191")])
def test_a_resent_history_with_another_digit_is_another_history(
    rig: Rig, client: Client, edit: tuple[str, str]
) -> None:
    first = client.turn(call("f", '{"a": 1190000000000000001}') + END, input="hi", tools=[F])
    (made,) = first["output"]
    edited = made | {"arguments": made["arguments"].replace(*edit)}
    same = edit[1] == "1.0}"
    history = [said("user", "hi"), edited, result(made["call_id"])]
    read = spelled(prompt_of(rig, client, input=history, tools=[F]))
    assert edited["arguments"] != made["arguments"]
    assert (edited["arguments"] in read) != same
    assert (rig.engine.last.base_offset > 0) == same


def test_a_resent_history_with_outputs_in_another_order_continues_too(
    rig: Rig, client: Client
) -> None:
    first, (one, other) = two_calls(client)
    chain = {"previous_response_id": first["id"], "tools": [F, G]}
    second = client.turn("so" + END, input=[result(other, "2"), result(one, "1")], **chain)
    kept = len(rig.engine.sessions[rig.engine.last.branch_id])
    for outputs in ([result(one, "1"), result(other, "2")], [result(other, "2"), result(one, "1")]):
        history = [said("user", "hi"), *first["output"], *outputs, *second["output"]]
        client.turn(input=[*history, said("user", "more")], tools=[F, G])
        assert rig.engine.last.base_offset == kept


def test_reasoning_alone_is_no_history_to_be_found_by(rig: Rig, client: Client) -> None:
    fields: dict[str, Any] = {"instructions": "rules", "reasoning": {"effort": "low"}}
    client.turn("<think>\nhm", input=[], **fields)
    thought = {"type": "reasoning_text", "text": "other"}
    other = {"type": "reasoning", "summary": [], "content": [thought]}
    read = spelled(prompt_of(rig, client, input=[other, said("user", "q")], **fields))
    assert "other" in read
    assert "hm" not in read


def test_a_resent_history_continues_where_the_server_stands(rig: Rig, client: Client) -> None:
    first = client.turn(call("f", '{"a": 1}') + END, input="hi", tools=[F])
    item = first["output"][0]
    history = [
        {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "hi"}]},
        item,
        result(item["call_id"]),
    ]
    second = client.turn("done" + END, input=history, tools=[F])
    assert rig.engine.last.base_branch_id == "branch_1"
    assert second["previous_response_id"] == first["id"]
    assert second["keepwarm"]["session"] == first["keepwarm"]["session"]
    history += [
        {"role": "assistant", "content": "done"},
        {"role": "user", "content": "thanks"},
    ]
    client.create(input=history, tools=[F])
    assert rig.engine.last.base_branch_id == "branch_1"
    assert spelled(rig.engine.last.new_tokens).startswith("\n<|im_start|>user\nthanks")


def test_reasoning_may_be_left_out_of_a_resent_history(rig: Rig, client: Client) -> None:
    fields = {"reasoning": {"effort": "high"}}
    client.turn("<think>\nhm\n</think>\n\nYes." + END, input="hi", **fields)
    for history in (
        [said("user", "hi"), said("assistant", "Yes.")],
        [said("user", "hi"), *client.response["output"]],
    ):
        client.turn(input=[*history, said("user", "more")], **fields)
        assert rig.engine.last.base_branch_id == "branch_1"
        assert rig.engine.last.base_offset == rig.engine.requests[1].base_offset


def test_a_resent_history_includes_its_leading_system_message(rig: Rig, client: Client) -> None:
    history = [said("system", "Be kind."), said("user", "hi")]
    client.turn("ok" + END, input=history)
    client.create(input=[*history, said("assistant", "ok"), said("user", "more")])
    assert rig.engine.last.base_branch_id == "branch_1"


@pytest.mark.parametrize(
    "history",
    [
        [said("user", "hi"), said("assistant", "not ok"), said("user", "more")],
        [said("user", "ho"), said("assistant", "ok"), said("user", "more")],
        [said("user", "hi"), said("user", "more")],
    ],
)
def test_a_history_that_differs_is_new_text(rig: Rig, client: Client, history: Any) -> None:
    client.turn("ok" + END, input="hi")
    client.create(input=history)
    assert rig.engine.last.base_branch_id is None


def test_a_history_that_nobody_answered_does_not_join_sessions(rig: Rig, client: Client) -> None:
    client.turn(input="hi", generate=False)
    client.create(input="hi")
    assert rig.engine.last.base_branch_id is None


def test_of_equal_histories_the_connections_own_is_continued(rig: Rig) -> None:
    one, two = rig.connect(), rig.connect()
    mine = one.turn("ok" + END, input="hi")
    two.turn("ok" + END, input="hi")
    history = [said("user", "hi"), said("assistant", "ok"), said("user", "more")]
    again = one.turn(input=history)
    assert again["previous_response_id"] == mine["id"]


def test_a_history_the_server_lost_is_read_as_new_text(rig: Rig, client: Client) -> None:
    client.turn(call("f", '{"a": 1}') + END, input="hi", tools=[F])
    item = client.response["output"][0]
    rig.clock.advance(10_000)
    response = rig.connect().turn(
        "done" + END, input=[said("user", "hi"), item, result(item["call_id"])], tools=[F]
    )
    assert rig.engine.last.base_branch_id is None
    assert response["status"] == "completed"


# The context's size


def test_a_prompt_that_leaves_room_for_one_token_is_the_longest(rig: Rig) -> None:
    rig = Rig(max_context_tokens=100)
    client = rig.connect()
    overhead = 25
    client.create(input="a" * (99 - overhead))
    assert rig.engine.last.max_new_tokens == 1
    rig.reply("b")
    (error,) = client.create(input="a" * (100 - overhead))
    assert error["error"]["code"] == "context_length_exceeded"
    assert error["error"]["param"] == "input"


def test_a_warm_up_may_fill_the_context(rig: Rig) -> None:
    rig = Rig(max_context_tokens=100)
    client = rig.connect()
    overhead = len(token_ids("<|im_start|>user\n<|im_end|>\n"))
    assert client.turn(input="a" * (100 - overhead), generate=False)["status"] == "completed"
    (error,) = client.create(input="a" * (101 - overhead), generate=False)
    assert error["error"]["code"] == "context_length_exceeded"


@pytest.mark.parametrize("truncation", ["disabled", "auto"])
@pytest.mark.parametrize("header", ["instructions", "tools", "opening"])
def test_a_header_that_cannot_fit_is_refused_before_it_is_tokenised(
    header: str, truncation: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig = Rig(max_context_tokens=100)
    client = rig.connect()
    long = "a" * 100_000
    fields: dict[str, Any] = {"input": "hi", "truncation": truncation}
    if header == "tools":
        fields["tools"] = [G | {"description": long}]
    elif header == "instructions":
        fields["instructions"] = long
    else:
        fields["input"] = [said("system", long), said("user", "hi")]
    monkeypatch.setattr(rig.model.renderer._tokenizer, "encode", None)
    (error,) = client.create(**fields)
    assert error["error"]["code"] == "context_length_exceeded"
    if header != "opening":
        assert "instructions and tools alone" in error["error"]["message"]


def test_a_text_that_cannot_fit_is_refused_before_it_is_tokenised(rig: Rig) -> None:
    rig = Rig(max_context_tokens=100)
    client = rig.connect()
    (error,) = client.create(input="a" * 100_000)
    assert error["error"]["code"] == "context_length_exceeded"


@pytest.mark.parametrize("turns", [3, 6, 9])
def test_truncation_drops_the_oldest_turns_but_for_the_first_message(turns: int) -> None:
    rig = Rig(max_context_tokens=400)
    client = rig.connect()
    chain: dict[str, Any] = {}
    for number in range(turns):
        response = client.turn(
            f"answer {number}" + END,
            input=f"question {number} " + "." * 40,
            instructions="Keep this.",
            truncation="auto",
            **chain,
        )
        assert response["status"] == "completed"
        chain = {"previous_response_id": response["id"]}
        text = spelled(rig.engine.sessions[rig.engine.last.branch_id])
        assert text.startswith("<|im_start|>system\nKeep this.<|im_end|>\n<|im_start|>user\nq")
        assert f"question {number}" in text
        assert "question 0" in text
    oldest = 0 if turns == 3 else turns - 4
    assert ("answer 0" in text) == (turns == 3)
    assert f"answer {oldest + 2}" in text


def test_a_truncated_chain_is_continued_in_place(rig: Rig) -> None:
    rig = Rig(max_context_tokens=400)
    client = rig.connect()
    first = client.turn("a" * 50 + END, input="b" * 200)
    second = client.turn(
        "c" * 10 + END, input="d" * 90, previous_response_id=first["id"], truncation="auto"
    )
    client.create(input="e", previous_response_id=second["id"], truncation="auto")
    assert rig.engine.requests[1].base_offset == 0
    assert rig.engine.last.base_branch_id == rig.engine.requests[1].branch_id
    assert rig.engine.last.base_offset > 0
    assert "b" * 51 not in context(rig), "a quarter of the context is left of it"
    assert "ccc" in context(rig)


@pytest.mark.parametrize("length", range(5, 120, 9))
def test_truncation_leaves_no_output_without_its_call(length: int) -> None:
    rig = Rig(max_context_tokens=1500)
    client = rig.connect()
    first = client.turn("a" * 5 * length + END, input="hi", tools=[G])
    chain: dict[str, Any] = {"truncation": "auto", "tools": [G], "max_output_tokens": 60}
    chain["previous_response_id"] = first["id"]
    cuts = []
    for _ in range(4):
        response = client.turn(call("g") + END, input="go on", **chain)
        chain["previous_response_id"] = response["id"]
        call_id = response["output"][0]["call_id"]
        cuts += response["keepwarm"]["warnings"]
        response = client.turn("b" * 50 + END, input=[result(call_id, "c" * length)], **chain)
        cuts += response["keepwarm"]["warnings"]
        chain["previous_response_id"] = response["id"]
        text = context(rig, done=True).split("</tool_call><|im_end|>\n<|im_start|>user", 1)[-1]
        assert text.count("<tool_response>") <= text.count("<tool_call>")
    assert "go on" in text
    assert "hi<|im_end|>" in context(rig, done=True)
    assert ("aaa" in context(rig, done=True)) == (not cuts)
    assert cuts or length < 60, "nothing was truncated"


def test_of_one_long_input_truncation_drops_the_oldest_items() -> None:
    rig = Rig(max_context_tokens=300)
    client = rig.connect()
    items = [said("user" if n % 2 else "assistant", f"item {n} " + "." * 30) for n in range(9)]
    client.create(input=items, truncation="auto")
    text = context(rig)
    assert "item 8" in text
    assert "item 0" not in text
    assert len(rig.engine.last.new_tokens) <= 300 * 3 // 4 + 25


# What the model cannot do


def test_an_unknown_model_is_refused(client: Client) -> None:
    (error,) = client.create(input="hi", model="gpt-9")
    assert (error["status"], error["error"]["code"]) == (404, "model_not_found")


def test_the_model_is_echoed_as_the_client_called_it(client: Client) -> None:
    assert client.turn(input="hi", model="m")["model"] == "m"
    assert client.turn(input="hi")["model"] == "default"


@pytest.mark.parametrize(
    ("fields", "expects_call"),
    [
        ({"tool_choice": "required"}, True),
        ({"tool_choice": {"type": "function", "name": "f"}}, True),
        ({"tool_choice": "auto"}, False),
    ],
)
def test_tools_come_with_a_grammar(
    rig: Rig, client: Client, fields: Any, expects_call: bool
) -> None:
    client.create(input="hi", tools=[F], **fields)
    assert rig.engine.last.grammar is not None
    assert rig.engine.last.expects_tool_call == expects_call


def test_without_tools_and_format_there_is_no_grammar(rig: Rig, client: Client) -> None:
    client.create(input="hi")
    assert rig.engine.last.grammar is None


@pytest.mark.parametrize(
    ("fields", "block", "param"),
    [
        ({"tools": [F, G]}, 0, "tools[0].parameters"),
        ({"tools": [F, G]}, 1, "tools[1].parameters"),
        ({"tools": [F, G]}, None, "tools"),
        (
            {"tools": [F, G], "tool_choice": {"type": "function", "name": "g"}},
            None,
            "tools[1].parameters",
        ),
        (
            {
                "text": {
                    "format": {"type": "json_schema", "name": "x", "schema": {"type": "object"}}
                }
            },
            None,
            "text.format.schema",
        ),
        (
            {
                "text": {
                    "format": {"type": "json_schema", "name": "x", "schema": {"type": "object"}}
                }
            },
            0,
            "text.format.schema",
        ),
    ],
)
def test_a_refused_grammar_names_the_schema_at_fault(
    rig: Rig, client: Client, fields: Any, block: int | None, param: str
) -> None:
    rig.checks_pass = False
    client.create(input="hi", **fields)
    rig.verdict(GrammarRefused("no such thing", block=block))
    (error,) = client.events
    assert error["error"]["code"] == "invalid_json_schema"
    assert error["error"]["param"] == param
    assert "no such thing" in error["error"]["message"]
    assert rig.engine.requests == []


def test_a_refused_grammar_names_the_keyword_inside_the_schema(rig: Rig, client: Client) -> None:
    rig.checks_pass = False
    schema = {"type": "object", "properties": {"a b": {"anyOf": [{"not": {}}]}}}
    client.create(
        input="hi",
        text={"format": {"type": "json_schema", "name": "x", "schema": schema}},
    )
    path = ("properties", "a b", "anyOf", 0, "not")
    rig.verdict(GrammarRefused("no", block=0, path=path))
    (error,) = client.events
    assert error["error"]["param"] == 'text.format.schema.properties["a b"].anyOf[0].not'


# Compaction, which does not exist here


@pytest.mark.parametrize("threshold", [10_000, None])
def test_below_its_threshold_nothing_is_compacted(client: Client, threshold: int | None) -> None:
    entries = [{"type": "compaction", "compact_threshold": threshold}]
    response = client.turn(input="hi", context_management=entries)
    assert response["keepwarm"].get("warnings", []) == []
    assert "context" not in response["keepwarm"]


def test_a_context_of_which_nothing_can_go_runs_as_it_is_and_says_so(client: Client) -> None:
    first = client.turn(input="hi " * 30)
    tokens = first["usage"]["input_tokens"]
    entries = [{"type": "compaction", "compact_threshold": tokens}]
    reached = client.turn(input="hi " * 30, context_management=entries)
    assert reached["status"] == "completed"
    assert any("compaction: nothing" in each for each in reached["keepwarm"]["warnings"])
    more = [{"type": "compaction", "compact_threshold": tokens + 1}]
    below = client.turn(input="hi " * 30, context_management=more)
    assert below["keepwarm"].get("warnings", []) == []


@pytest.mark.parametrize(
    ("entries", "code"),
    [
        ("auto", "invalid_type"),
        ([{"type": "summary"}], "invalid_value"),
        ([{"type": "compaction", "compact_threshold": 0}], "invalid_value"),
        ([{}], "missing_required_parameter"),
    ],
)
def test_faulty_context_management_is_refused(client: Client, entries: Any, code: str) -> None:
    (error,) = client.create(input="hi", context_management=entries)
    assert error["error"]["code"] == code
    assert error["error"]["param"].startswith("context_management")


# Where a refused grammar came from


@pytest.mark.parametrize(
    ("tools", "param"),
    [
        ([{"type": "web_search"}, tool("f")], "tools[1].parameters"),
        (
            [{"type": "namespace", "name": "n", "tools": [tool("f")]}],
            "tools[0].tools[0].parameters",
        ),
        (
            [
                {"type": "mcp"},
                {
                    "type": "custom",
                    "name": "c",
                    "format": {"type": "grammar", "syntax": "regex", "definition": "a"},
                },
            ],
            "tools[1].format.definition",
        ),
        ([tool("f"), {"type": "custom", "name": "c"}], "tools"),
    ],
)
def test_a_refused_grammar_names_the_place_of_its_tool(tools: list[Any], param: str) -> None:
    rig = Rig()
    rig.checks_pass = False
    client = rig.connect()
    client.create(input="hi", tools=tools)
    rig.verdict(GrammarRefused("no"))
    assert client.last["error"]["param"] == param


def test_reasoning_that_cannot_be_read_is_passed_through_unread(rig: Rig, client: Client) -> None:
    sealed = {"type": "reasoning", "summary": [], "encrypted_content": "gAAAA" * 50}
    fields = {"include": ["reasoning.encrypted_content"], "reasoning": {"effort": "high"}}
    client.create(input=[said("user", "hi"), sealed, said("assistant", "yes")], **fields)
    with_it = context(rig)
    other = rig.connect("another tenant")
    other.create(input=[said("user", "hi"), said("assistant", "yes")], **fields)
    assert context(rig) == with_it


# Plans that take long


@pytest.fixture
def slow() -> Rig:
    rig = Rig(limits=replace(Limits(), max_inline_bytes=1000), max_context_tokens=100_000)
    rig.plans_at_once = False
    return rig


FRAME = len('{"type": "response.create", "input": ""}')


@pytest.mark.parametrize(("length", "waits"), [(1000 - FRAME, 0), (1001 - FRAME, 1)])
def test_the_first_turn_is_judged_by_its_frame(slow: Rig, length: int, waits: int) -> None:
    slow.connect().create(input="x" * length)
    assert len(slow.plannings) == waits


@pytest.mark.parametrize(
    ("fields", "waits"),
    [
        ({"input": "x" * 1000}, 0),
        ({"input": "x" * 1001}, 1),
        ({"input": "hi", "metadata": {str(n): "x" * 200 for n in range(10)}}, 0),
        ({"input": "hi", "instructions": "x" * 1000}, 1),
        ({"input": "hi", "tools": [tool("f", **{"x" * 1000: {}})]}, 1),
        ({"input": "hi", "truncation": "auto"}, 0),
    ],
    ids=["at the limit", "new text", "no text", "instructions", "tools", "truncation"],
)
def test_a_later_turn_is_judged_by_what_is_new(
    slow: Rig, fields: dict[str, object], waits: int
) -> None:
    client = slow.connect()
    before = client.turn(input="hi")
    client.create(previous_response_id=before["id"], **fields)
    assert len(slow.plannings) == waits


def test_a_resent_history_is_judged_by_what_follows_it(slow: Rig) -> None:
    client = slow.connect()
    said = {"role": "user", "content": "x" * 900}
    answer = client.turn(input=[said], instructions=None)["output"][0]
    client.create(input=[said, answer, {"role": "user", "content": "y" * 900}])
    assert slow.plannings == []
    assert client.response["previous_response_id"] is not None


def test_a_long_chain_that_may_be_cut_short_is_planned_later(slow: Rig) -> None:
    client = slow.connect()
    client.create(input="x" * 2000)
    slow.plan_next()
    slow.reply("ok<|im_end|>")
    before = client.response
    client.create(input="hi", previous_response_id=before["id"], truncation="auto")
    assert len(slow.plannings) == 1


@pytest.mark.parametrize(("length", "waits"), [(100, 0), (900, 1)])
def test_an_output_behind_a_long_warm_up_is_planned_later(
    slow: Rig, length: int, waits: int
) -> None:
    """It may stand in front of what was warmed, which then is tokenised again."""
    client = slow.connect()
    first = client.turn(call("f") + "\n" + call("f") + END, input="hi", tools=[tool("f")])
    one, other = (item["call_id"] for item in first["output"])
    answer = {"type": "function_call_output", "output": "x" * length}
    warm = client.turn(
        "",
        input=[answer | {"call_id": other}],
        previous_response_id=first["id"],
        tools=[tool("f")],
        generate=False,
    )
    fields = {"previous_response_id": warm["id"], "tools": [tool("f")]}
    client.create(input="no output", stream_id="a", generate=False, **fields)
    assert slow.plannings == []
    client.create(input=[answer | {"call_id": one, "output": "1"}], **fields)
    assert len(slow.plannings) == waits
