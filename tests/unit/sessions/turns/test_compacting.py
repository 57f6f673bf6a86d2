"""A context that has grown too long is recast, in a turn and by itself."""

from typing import Any

import pytest

from sessions.durable.conversations import Conversation, all_items
from sessions.durable.item_ids import read_items
from sessions.turns.summaries import INSTRUCTION
from tests.support.recast_loops import (
    LONG,
    G,
    connect,
    loop,
    play,
    prompt,
    recast_of,
    result,
    sums_of,
    sums_up,
    threshold,
)
from tests.support.sessions_rig import END, Client, Rig, call, token_ids
from tools_api.dialects.anthropic_messages import MESSAGES
from tools_api.dialects.responses_compact import COMPACT


def test_a_loop_goes_on_behind_cuts() -> None:
    rig, client = connect()
    done = loop(rig, client, 24)
    assert {turn["status"] for turn, _ in done} == {"completed"}
    assert all("the task" in read for _, read in done)
    recast = recast_of(done)
    assert 3 <= len(recast) <= 12
    for turn, _ in recast:
        context = turn["keepwarm"]["context"]
        assert turn["output"][0]["type"] == "compaction"
        assert context["after"] < context["before"]
        assert context["cleared"] or context["summarised"]["turns"]
    assert any(turn["keepwarm"]["context"]["summarised"]["turns"] for turn, _ in recast)


def test_events_of_a_turn_that_compacts_are_in_order() -> None:
    rig, client = connect()
    loop(rig, client, 12)
    numbers: list[int] = []
    for event in client.events:
        if event["type"] == "response.created":
            numbers = []
        numbers.append(event["sequence_number"])
        assert numbers == list(range(len(numbers)))
    assert "compaction.compacting" in client.types()


def test_the_item_alone_makes_a_fresh_server_read_the_same() -> None:
    rig, client = connect()
    turn, read = recast_of(loop(rig, client, 12))[-1]
    fresh, _ = connect()
    fresh.model.seal = rig.model.seal
    other = fresh.connect()
    _, again = play(fresh, other, END, input=[turn["output"][0]], tools=[G])
    assert again == read


@pytest.mark.parametrize("drops", [False, True])
def test_a_history_that_is_resent_is_found_with_and_without_what_the_item_stands_for(
    drops: bool,
) -> None:
    rig, client = connect()
    history: list[Any] = [{"role": "user", "content": "the task"}]
    fields = {"tools": [G], "context_management": threshold(3000)}
    for number in range(14):
        turn, _ = play(rig, client, call("g") + END, input=history, **fields)
        history += turn["output"]
        if drops and turn["output"][0]["type"] == "compaction":
            history = list(turn["output"])
        history.append(result(turn["output"][-1]["call_id"], f"{number} {LONG}"))
        assert turn["previous_response_id"] is not None or number == 0
    assert any(item.get("type") == "compaction" for item in history)


@pytest.mark.parametrize("resends", [False, True])
def test_a_late_output_of_a_call_that_a_summary_took_is_left_out_and_it_is_said(
    resends: bool,
) -> None:
    rig, client = connect()
    done = loop(rig, client, 12)
    cut = next(n for n, (turn, _) in enumerate(done) if sums_of(turn))
    turn = done[cut][0]
    late = result(done[0][0]["output"][-1]["call_id"], "late")
    answer = result(turn["output"][-1]["call_id"], "in time")
    if resends:
        fields: Any = {"input": [*turn["output"], late, answer]}
    else:
        fields = {"previous_response_id": turn["id"], "input": [late, answer]}
    after, read = play(rig, client, END, tools=[G], **fields)
    assert after["status"] == "completed"
    assert "in time" in read
    assert "late" not in read
    (warning,) = [w for w in after["keepwarm"]["warnings"] if "whose call is in the summary" in w]
    assert late["call_id"] in warning
    again, _ = play(rig, client, END, previous_response_id=after["id"], input="go on")
    assert again["status"] == "completed"


def test_an_output_of_no_call_is_refused_where_nothing_was_summed_up() -> None:
    _, client = connect()
    first = client.turn(call("g") + END, input="the task", tools=[G])
    client.create(previous_response_id=first["id"], input=[result("call_of_nobody")])
    assert client.last["type"] == "error"


def test_what_was_before_a_cut_goes_on_as_ever() -> None:
    rig, client = connect()
    done = loop(rig, client, 12)
    cut = next(n for n, (turn, _) in enumerate(done) if "context" in turn["keepwarm"])
    before = done[cut - 1][0]
    assert done[cut][0]["keepwarm"]["context"]["from"] == before["id"]
    answer = result(before["output"][-1]["call_id"])
    _, read = play(rig, client, END, previous_response_id=before["id"], input=[answer], tools=[G])
    assert "0 " + LONG in read
    assert "[cleared" not in read


@pytest.mark.parametrize("summary", ["", "endless", INSTRUCTION])
def test_without_a_summary_old_results_alone_are_cleared_and_it_is_said(summary: str) -> None:
    rig, client = connect()
    done = loop(rig, client, 14, summary=summary)
    assert {turn["status"] for turn, _ in done} == {"completed"}
    told = [turn["keepwarm"] for turn, _ in recast_of(done)]
    failed = [each for each in told if any("no summary" in w for w in each["warnings"])]
    assert failed
    assert all(not each["context"]["summarised"]["turns"] for each in failed)


def test_a_trigger_gives_exactly_one_item_and_the_chain_goes_on() -> None:
    rig, client = connect()
    first = client.turn("hello" + END, input="the task")
    client.create(previous_response_id=first["id"], input=[{"type": "compaction_trigger"}])
    assert sums_up(rig)
    rig.reply("all is well" + END)
    rig.reply("")
    done = client.response
    assert [item["type"] for item in done["output"]] == ["compaction"]
    assert done["status"] == "completed"
    _, read = play(rig, client, END, previous_response_id=done["id"], input="go on")
    assert "all is well" in read
    assert "hello" not in read
    assert "the task" in read


@pytest.mark.parametrize("tokens", [1500, 3000])
def test_a_context_that_the_server_recast_is_listed_as_items_that_can_be_sent(tokens: int) -> None:
    """By response and by conversation; nobody is shown an item that is the server's own."""
    rig, client = connect()
    context = {"keepwarm": {"context": {"compact_threshold": tokens}}, "tools": [G]}
    done = loop(rig, client, 14, context_management=[], **context)
    assert recast_of(done)
    last, read = done[-1]
    stored = rig.store.tenant("acme").responses.get(last["id"])
    assert stored is not None
    items = [item.to_wire() for item in read_items(stored.entry)]
    assert "compaction" not in {item["type"] for item in items}
    fresh, other = connect()
    _, again = play(fresh, other, END, input=items, tools=[G])
    unthought = "<think>\n\n</think>\n\n"  # what the model wrote has it, a history has not
    assert again.replace(unthought, "") == read.replace(unthought, "")
    kept = Conversation(id="conv_1", created_s=0, head_id=last["id"])
    listed = [item.to_wire() for item in all_items(kept, stored.entry)]
    assert [item["type"] for item in listed] == [
        *(item["type"] for item in items), *(item["type"] for item in last["output"])
    ]  # fmt: skip
    assert all(item["id"] for item in listed)


@pytest.mark.parametrize("calls", [0, 6])
@pytest.mark.parametrize("summary", ["", "endless"])
def test_a_trigger_without_a_summary_clears_old_results_and_says_so(
    summary: str, calls: int
) -> None:
    """Else a client that compacts where its context is full would find it as full again."""
    rig, client = connect()
    last = client.turn((call("g") if calls else "hi") + END, input="the task", tools=[G])
    for number in range(calls):
        answer = result(last["output"][-1]["call_id"], f"{number} {LONG}")
        reply = (call("g") if number < calls - 1 else "done") + END
        last = client.turn(reply, previous_response_id=last["id"], input=[answer], tools=[G])
    trigger = [{"type": "compaction_trigger"}]
    done, _ = play(
        rig, client, "", summary, previous_response_id=last["id"], input=trigger, tools=[G]
    )
    assert [item["type"] for item in done["output"]] == ["compaction"]
    context, warnings = done["keepwarm"]["context"], done["keepwarm"]["warnings"]
    assert bool(context["cleared"]) is bool(calls)
    assert [
        ("alone are cleared" in w, "stays as long" in w) for w in warnings if "no summary" in w
    ] == [(calls > 0, calls == 0)]
    if calls:
        assert context["after"] < context["before"] * 2 // 3
    _, read = play(rig, client, END, previous_response_id=done["id"], input="go on", tools=[G])
    assert "the task" in read
    assert (f"0 {LONG}" in read) is False


@pytest.mark.parametrize(
    ("input", "param"),
    [
        ([{"type": "compaction_trigger"}, {"role": "user", "content": "x"}], "input[0].type"),
        ([{"type": "compaction_trigger"}] * 2, "input[0].type"),
        ([{"type": "compaction", "encrypted_content": "gAAAA"}], "input[0].encrypted_content"),
    ],
)
def test_bad_items_are_refused_by_their_field(input: list[Any], param: str) -> None:
    _, client = connect()
    client.create(input=input)
    assert client.last["error"]["param"] == param


def test_a_trigger_with_outputs_missing_is_refused() -> None:
    _, client = connect()
    first = client.turn(call("g") + END, input="the task", tools=[G])
    client.create(previous_response_id=first["id"], input=[{"type": "compaction_trigger"}])
    assert client.last["type"] == "error"


def test_an_item_of_another_tenant_or_changed_by_a_bit_is_refused() -> None:
    rig, client = connect()
    turn, _ = recast_of(loop(rig, client, 12))[-1]
    item = turn["output"][0]
    other = rig.connect("other")
    other.create(input=[item])
    assert other.last["error"]["code"] == "invalid_value"
    sealed = item["encrypted_content"]
    for place in range(5, len(sealed), 97):
        changed = sealed[:place] + ("A" if sealed[place] != "A" else "B") + sealed[place + 1 :]
        client.create(input=[item | {"encrypted_content": changed}])
        assert client.last["error"]["code"] == "invalid_value", place


def test_a_threshold_below_the_header_is_refused() -> None:
    _, client = connect()
    client.create(input="x", instructions="y" * 100, context_management=threshold(50))
    assert client.last["error"]["param"] == "context_management"


def test_a_client_that_knows_no_items_has_its_history_recast_the_same_way() -> None:
    rig, client = connect()
    history: list[Any] = [{"role": "user", "content": "the task"}]
    fields = {"tools": [G], "keepwarm": {"context": {"compact_threshold": 3000}}}
    recasts = 0
    for number in range(14):
        turn, read = play(rig, client, call("g") + END, input=history, **fields)
        assert all(item["type"] != "compaction" for item in turn["output"])
        assert "the task" in read
        recasts += "context" in turn["keepwarm"]
        history += turn["output"]
        history.append(result(turn["output"][-1]["call_id"], f"{number} {LONG}"))
        assert turn["previous_response_id"] is not None or number == 0
    assert 1 <= recasts <= 6


# Messages


def messages_turn(
    rig: Rig, client: Client, messages: list[Any], edits: list[Any], reply: str
) -> tuple[Any, str]:
    """A turn as a client of Anthropic's sends and reads it, and what the model read."""
    body = {
        "messages": messages,
        "max_tokens": 1000,
        "tools": [{"name": "g", "input_schema": {"type": "object", "properties": {}}}],
        "context_management": {"edits": edits},
    }
    asked = MESSAGES.read(body)
    response, read = play(rig, client, reply, **asked.create)
    return asked.writer.whole(response), read


def messages_loop(rig: Rig, client: Client, edits: list[Any], turns: int) -> list[Any]:
    messages: list[Any] = [{"role": "user", "content": "the task"}]
    done = []
    for number in range(turns):
        answer, read = messages_turn(rig, client, messages, edits, call("g") + END)
        done.append((answer, read))
        messages.append({"role": "assistant", "content": answer["content"]})
        use = answer["content"][-1]
        given = {
            "type": "tool_result",
            "tool_use_id": use["id"],
            "content": f"{number} {LONG}",
        }
        messages.append({"role": "user", "content": [given]})
    return done


def test_old_tool_uses_are_cleared_the_same_way_each_time_and_it_is_said() -> None:
    rig, client = connect()
    edit = {
        "type": "clear_tool_uses_20250919",
        "trigger": {"type": "input_tokens", "value": 3000},
        "keep": {"type": "tool_uses", "value": 1},
    }
    done = messages_loop(rig, client, [edit], 12)
    applied = [answer["context_management"]["applied_edits"] for answer, _ in done]
    assert 2 <= sum(map(bool, applied)) <= 5
    for edits in filter(None, applied):
        assert edits[0]["type"] == edit["type"]
        assert edits[0]["cleared_tool_uses"] > 0
        assert edits[0]["cleared_input_tokens"] > 0
    cut = next(n for n, edits in enumerate(applied) if edits)
    assert "[cleared: output of" in done[cut][1]
    assert done[cut + 1][1].startswith(done[cut][1])


def test_tool_uses_are_cleared_by_their_number_but_those_that_are_exempt() -> None:
    rig, client = connect()
    edit = {
        "type": "clear_tool_uses_20250919",
        "trigger": {"type": "tool_uses", "value": 4},
        "keep": {"type": "tool_uses", "value": 2},
    }
    done = messages_loop(rig, client, [edit], 8)
    assert any(answer["context_management"]["applied_edits"] for answer, _ in done)
    rig, client = connect()
    exempt = messages_loop(rig, client, [edit | {"exclude_tools": ["g"]}], 8)
    assert not any(answer["context_management"]["applied_edits"] for answer, _ in exempt)


@pytest.mark.parametrize("pause", [False, True])
def test_a_compaction_block_leads_the_answer_and_comes_back(pause: bool) -> None:
    rig, client = connect()
    first, _ = messages_turn(
        rig, client, [{"role": "user", "content": "the task"}], [], "said " + LONG + END
    )
    messages = [
        {"role": "user", "content": "the task"},
        {"role": "assistant", "content": first["content"]},
        {"role": "user", "content": "go on"},
    ]
    edit = {
        "type": "compact_20260112",
        "trigger": {"type": "input_tokens", "value": 700},
        "pause_after_compaction": pause,
    }
    answer, _ = messages_turn(rig, client, messages, [edit], "" if pause else "more" + END)
    block = answer["content"][0]
    assert block["type"] == "compaction"
    assert "a summary" in block["content"]
    assert answer["stop_reason"] == ("compaction" if pause else "end_turn")
    kinds = [each["type"] for each in answer["usage"]["iterations"]]
    assert kinds == ["compaction", "message"]
    messages += [{"role": "assistant", "content": answer["content"]},
                 {"role": "user", "content": "and then"}]  # fmt: skip
    _, read = messages_turn(rig, client, messages, [edit], END)
    assert "a summary" in read
    assert LONG not in read


@pytest.mark.parametrize("own", [None, " ", "Say only numbers."])
def test_messages_are_compacted_alone_and_the_block_goes_on_without_them(own: str | None) -> None:
    rig, client = connect()
    task = {"role": "user", "content": "the task"}
    first, _ = messages_turn(rig, client, [task], [], "said " + LONG + END)
    said = [task, {"role": "assistant", "content": first["content"]}]
    body = {"model": "m", "max_tokens": 50, "messages": said}
    asked = MESSAGES.read(body | {"compaction": {"type": "summarize", "instructions": own}})
    client.create(**asked.create)
    assert (own or " ").strip() in prompt(rig)
    assert sums_up(rig) is (own != "Say only numbers.")
    rig.reply("a summary" + END)
    rig.reply("")
    answer = asked.writer.whole(client.response)
    assert [block["type"] for block in answer["content"]] == ["compaction"]
    assert answer["stop_reason"] == "compaction"
    assert "a summary" in answer["content"][0]["content"]
    assert [each["type"] for each in answer["usage"]["iterations"]] == ["compaction", "message"]
    going_on = [
        {"role": "assistant", "content": answer["content"]},
        {"role": "user", "content": "go"},
    ]
    _, read = messages_turn(rig, client, going_on, [], END)
    assert "the task" in read
    assert "a summary" in read
    assert LONG not in read


# Alone


def test_a_history_is_compacted_alone_and_leads_a_new_chain() -> None:
    rig, client = connect()
    first = client.turn("said " + LONG + END, input="the task")
    body = {"model": "m", "previous_response_id": first["id"], "input": "and this"}
    asked = COMPACT.read(body)
    response, _ = play(rig, client, "", **asked.create)
    made = asked.writer.whole(response)
    assert made["object"] == "response.compaction"
    assert made["keepwarm"]["context"]["summarised"]["turns"] == 1
    assert [item["type"] for item in made["output"]] == ["message", "message", "compaction"]
    assert all(item["id"] for item in made["output"])
    _, read = play(rig, client, END, input=[*made["output"], {"role": "user", "content": "go"}])
    assert "the task" in read
    assert "a summary" in read
    assert LONG not in read
    client.create(previous_response_id=made["id"], input="x")
    assert client.last["error"]["code"] == "previous_response_not_found"


def test_a_context_that_is_cut_where_nothing_can_be_recast_is_read_anew() -> None:
    """Truncation leaves a part; what the engine holds of the whole does not come before that."""
    rig, client = connect(max_context_tokens=600)
    last: dict[str, Any] = {}
    cut = 0
    for number in range(8):
        text = f"{number}: " + "so many of them. " * 9
        turn, read = play(
            rig,
            client,
            f"answer {number}" + END,
            input=text,
            truncation="auto",
            max_output_tokens=40,
            context_management=threshold(300),
            **last,
        )
        assert turn["status"] == "completed", turn
        assert read.count(f"{number}: ") == 1
        assert all(read.count(f"answer {other}") <= 1 for other in range(number))
        assert turn["usage"]["input_tokens"] == len(token_ids(read)) < 600
        told = " ".join(turn["keepwarm"]["warnings"])
        cut += "nothing of the context can be left out" in told and "truncation: " in told
        last = {"previous_response_id": turn["id"]}
    assert cut
