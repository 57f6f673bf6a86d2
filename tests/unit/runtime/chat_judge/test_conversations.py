"""A conversation reaches a template in the form that transformers gives one."""

from runtime.chat_judge.conversations import (
    CLOCK,
    Conversation,
    Wants,
    answer,
    call,
    output,
    probes,
    thought,
    user,
    variables,
    without_reasoning,
)

WHOLE = Conversation(
    name="all",
    instructions="Be brief.",
    tools=(CLOCK,),
    items=(
        *(user("Time?"), thought("hm"), answer("Wait."), call(1, "now", {"a": [1]})),
        *(output(1, "9"), answer("Nine."), user("Ah.")),
    ),
    thinking=True,
)


def test_messages_tools_and_options_are_what_templates_read() -> None:
    given = variables(WHOLE, Wants(special_tokens={"bos_token": "<s>"}))
    assert [message["role"] for message in given["messages"]] == [
        *("system", "user", "assistant", "tool", "assistant", "user")
    ]
    said = given["messages"][2]
    assert (said["content"], said["reasoning_content"]) == ("Wait.", "hm")
    function = {"name": "now", "arguments": {"a": [1]}}
    assert said["tool_calls"] == [{"id": "callid001", "type": "function", "function": function}]
    told = {"role": "tool", "tool_call_id": "callid001", "name": "now", "content": "9"}
    assert given["messages"][3] == told
    assert given["tools"][0]["function"]["name"] == "now"
    assert (given["bos_token"], given["enable_thinking"]) == ("<s>", True)
    assert given["thinking_mode"] == "adaptive"
    assert given["add_generation_prompt"]


def test_a_template_may_want_arguments_as_text_and_no_tools_as_a_list() -> None:
    wants = Wants(special_tokens={}, arguments_as_text=True, tools_as_list=True)
    function = variables(WHOLE, wants)["messages"][2]["tool_calls"][0]["function"]
    assert function["arguments"] == '{"a": [1]}'
    plain = Conversation(name="plain", items=(user("Hi"),))
    assert variables(plain, wants)["tools"] == []
    assert variables(plain, Wants(special_tokens={}))["tools"] is None


def test_reasoning_is_dropped_from_finished_turns_or_from_all() -> None:
    items = (user("a"), thought("1"), answer("b"), user("c"), thought("2"), answer("d"))
    assert without_reasoning(items, finished_only=True) == (*items[:1], *items[2:])
    assert without_reasoning(items, finished_only=False) == (*items[:1], *items[2:4], items[5])


def test_the_probes_have_names_and_hold_what_matters() -> None:
    named = {probe.name: probe for probe in probes()}
    assert len(named) == len(probes()) == 20
    assert {len(probe.tools) for probe in probes()} == {0, 1, 3}
    assert any(probe.instructions is None and probe.tools for probe in probes())
    assert any(probe.thinking for probe in probes())
