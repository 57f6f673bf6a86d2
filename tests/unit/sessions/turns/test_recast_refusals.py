"""What is bad about a cut, or comes in its middle, is refused or bounded; the connection lives."""

import base64
import zlib
from typing import Any

import pytest

from sessions.durable.compaction import KEY_BYTES, MAX_IN_A_ROW, Seal, opened
from tests.support.recast_loops import (
    G,
    connect,
    loop,
    play,
    prompt,
    recast_of,
    result,
    sums_up,
    threshold,
)
from tests.support.sessions_rig import END, Client, Rig, call
from tools_api import exact_json
from tools_api.dialects.anthropic_messages import MESSAGES
from tools_api.items import Compaction, StandsFor

TRIGGER = {"type": "compaction_trigger"}
CUT: dict[str, Any] = {"tools": [G], "context_management": threshold(1500)}


def goes_on(rig: Rig, client: Client) -> None:
    """The connection answers the next turn, and nothing of the last one is held."""
    assert client.connection.num_active == 0
    turn, _ = play(rig, client, "well" + END, input="what comes next")
    assert turn["status"] == "completed"
    session = rig.store.tenant("acme").session(turn["keepwarm"]["session"])
    assert session.ledger.account.held == type(session.ledger.account.held)()


def an_item(rig: Rig, client: Client) -> dict[str, Any]:
    turn, _ = recast_of(loop(rig, client, 12))[-1]
    item: dict[str, Any] = turn["output"][0]
    return item


def begin_cut(rig: Rig, client: Client) -> list[Any]:
    """Turns up to one whose summary is being written."""
    done = [play(rig, client, call("g") + END, input="the task", **CUT)[0]]
    for number in range(20):
        answer = result(done[-1]["output"][-1]["call_id"], f"{number} " + "x" * 200)
        client.create(previous_response_id=done[-1]["id"], input=[answer], **CUT)
        if sums_up(rig):
            return done
        rig.reply(call("g") + END)
        done.append(client.response)
    raise AssertionError("nothing was cut")


@pytest.mark.parametrize("other", ["model", "tokenizer", "key"])
def test_an_item_made_for_something_else_is_refused(other: str) -> None:
    rig, client = connect()
    item = an_item(rig, client)
    key = bytes(KEY_BYTES)
    made_for = {"model": b"another|bytes", "tokenizer": b"default|another", "key": b"default|bytes"}
    rig.model.seal = Seal(key, b"default|bytes")
    mine = rig.model.seal.for_tenant("acme").sealed("whole", _stands_for(item), "cmp_1").to_wire()
    rig.model.seal = Seal(bytes([1] * KEY_BYTES) if other == "key" else key, made_for[other])
    client = rig.connect()
    client.create(input=[mine])
    assert client.last["error"]["param"] == "input[0].encrypted_content"
    assert "model or tokenizer" in client.last["error"]["message"]
    goes_on(rig, client)


def _stands_for(item: dict[str, Any]) -> StandsFor:
    stands_for = opened(Compaction(encrypted_content=item["encrypted_content"])).stands_for
    assert stands_for is not None
    return stands_for


def test_an_item_of_a_chain_that_was_deleted_says_what_it_said() -> None:
    rig, client = connect()
    turn, read = recast_of(loop(rig, client, 12))[-1]
    rig.store.tenant("acme").forget_session(turn["keepwarm"]["session"])
    _, again = play(rig, client, END, input=[turn["output"][0]], tools=[G])
    assert again == read


def test_an_item_in_an_item_is_refused_however_deep() -> None:
    """Not even this server's own signature opens one."""
    rig, client = connect()
    item = an_item(rig, client)
    seal, text = rig.model.seal, item["encrypted_content"]
    for _ in range(50):
        text = _sealed_around(seal, text)
        client.create(input=[{"type": "compaction", "encrypted_content": text}])
        assert client.last["error"]["param"] == "input[0].encrypted_content"
    goes_on(rig, client)


def _sealed_around(seal: Seal, inner: str) -> str:
    told = {"items": [{"type": "compaction", "encrypted_content": inner}], "summary": None}
    packed = base64.urlsafe_b64encode(zlib.compress(exact_json.dumps(told))).rstrip(b"=").decode()
    body = f"kw1w.{packed}"
    return f"{body}.{seal.for_tenant('acme').signature_of(body)}"


def test_more_items_in_a_row_than_are_taken_are_refused() -> None:
    rig, client = connect()
    first = client.turn("said" + END, input="the task")
    client.create(previous_response_id=first["id"], input=[TRIGGER])
    rig.reply("a summary" + END)
    rig.reply("")
    part = client.response["output"][0]
    inner = [{**part, "encrypted_content": _of_part(rig, part)}] * (MAX_IN_A_ROW + 1)
    client.create(input=inner)
    assert client.last["error"]["param"] == "input"
    goes_on(rig, client)


def _of_part(rig: Rig, item: dict[str, Any]) -> str:
    stands_for = _stands_for(item)
    made = rig.model.seal.for_tenant("acme").sealed("part", stands_for, None)
    return str(made.encrypted_content)


@pytest.mark.parametrize("managed", [True, False])
def test_a_message_larger_than_the_window_is_refused_and_nothing_is_computed(managed: bool) -> None:
    rig, client = connect(max_context_tokens=2000)
    fields: dict[str, Any] = (
        CUT if managed else {"keepwarm": {"context": {"compact_threshold": 1500}}}
    )
    client.create(input="x" * 5000, **fields)
    error = client.last.get("error") or client.last["response"]["error"]
    assert error["code"] == "context_length_exceeded"
    assert not rig.engine.requests
    goes_on(rig, client)


def test_a_summary_that_is_a_call_runs_nothing_and_is_not_told() -> None:
    rig, client = connect()
    done = begin_cut(rig, client)
    rig.reply(call("g") + END)
    rig.reply("behind" + END)
    turn = client.response
    assert turn["status"] == "completed"
    kinds = [item["type"] for item in turn["output"]]
    assert kinds == ["compaction", "message"], "the summary's call is none of the turn's"
    assert done
    goes_on(rig, client)


def test_a_turn_that_is_cancelled_in_its_cut_ends_so_and_its_chain_stands_before_it() -> None:
    rig, client = connect()
    done = begin_cut(rig, client)
    client.send(type="response.cancel")
    turn = client.response
    assert turn["status"] == "incomplete"
    assert turn["keepwarm"]["reason"] == "cancelled"
    assert not rig.engine.open, "the summary is given up with it"
    answer = result(done[-1]["output"][-1]["call_id"], "short")
    again, read = play(
        rig, client, END, previous_response_id=done[-1]["id"], input=[answer], tools=[G]
    )
    assert again["status"] == "completed"
    assert "the task" in read
    goes_on(rig, client)


def test_a_fork_in_the_middle_of_a_cut_sees_nothing_of_it() -> None:
    rig, client = connect()
    done = begin_cut(rig, client)
    summary = rig.engine.last
    other = rig.connect()
    answer = result(done[1]["output"][-1]["call_id"], "the fork's")
    other.create(previous_response_id=done[1]["id"], input=[answer], tools=[G])
    assert "the fork's" in prompt(rig)
    rig.reply("of the fork" + END)
    assert other.response["status"] == "completed"
    rig.reply("a summary" + END, summary)
    assert "a summary" in prompt(rig)
    assert "the fork's" not in prompt(rig)
    rig.reply(END)
    assert client.response["status"] == "completed"
    goes_on(rig, client)


def test_a_steer_in_the_middle_of_a_cut_fails_once_and_the_cut_goes_on() -> None:
    rig, client = connect()
    begin_cut(rig, client)
    id_ = next(event["response"]["id"] for event in reversed(client.events) if "response" in event)
    client.send(
        type="response.steer", previous_response_id=id_, input=[{"role": "user", "content": "x"}]
    )
    failed = [
        event for event in client.events if "fail" in event["type"] or event["type"] == "error"
    ]
    assert len(failed) == 1
    rig.reply("a summary" + END)
    rig.reply(END)
    assert client.response["status"] == "completed"
    goes_on(rig, client)


@pytest.mark.parametrize("behind", [[], [TRIGGER]])
@pytest.mark.parametrize("whose", ["unknown", "foreign", "deleted", "own"])
def test_ten_thousand_references_are_refused(whose: str, behind: list[Any]) -> None:
    rig, client = connect()
    ids = [f"msg_{n}" for n in range(10_000)]
    if whose != "unknown":
        said = rig.connect("other" if whose == "foreign" else "acme").turn(input="x")
        ids = [said["output"][0]["id"]] * 10_000
        if whose == "deleted":
            rig.store.tenant("acme").delete_response(said["id"])
    before = len(rig.engine.requests)
    client.create(input=[*({"type": "item_reference", "id": id_} for id_ in ids), *behind])
    assert client.last["type"] == "error"
    assert client.last["error"]["param"].startswith("input")
    assert len(rig.engine.requests) == before, "nothing is computed"
    goes_on(rig, client)


def test_a_megabyte_of_a_shells_output_is_refused_by_its_length() -> None:
    rig, client = connect()
    tools = [{"type": "shell"}]
    wanted = {"tools": tools, "tool_choice": {"type": "shell"}}
    turn = client.turn(call("shell", '{"commands": ["ls"]}') + END, input="the task", **wanted)
    (asked,) = turn["output"]
    assert asked["type"] == "shell_call"
    chunk = {"stdout": "x" * 2**20, "stderr": "", "outcome": {"type": "exit", "exit_code": 0}}
    output = {"type": "shell_call_output", "call_id": asked["call_id"], "output": [chunk]}
    before = len(rig.engine.requests)
    follows = {"previous_response_id": turn["id"], "tools": tools}
    client.create(**follows, input=[output])
    error = client.last.get("error") or client.last["response"]["error"]
    assert error["code"] == "context_length_exceeded"
    assert len(rig.engine.requests) == before
    short = output | {"output": [chunk | {"stdout": "x"}]}
    assert client.turn("well" + END, **follows, input=[short])["status"] == "completed"
    goes_on(rig, client)


def test_a_megabyte_of_a_shells_output_is_cut_where_that_is_asked() -> None:
    rig, client = connect()
    shell = {"type": "shell_call", "call_id": "c", "action": {"commands": ["ls"]}}
    chunk = {"stdout": "x" * 2**20, "stderr": "", "outcome": {"type": "exit", "exit_code": 0}}
    output = {"type": "shell_call_output", "call_id": "c", "output": [chunk]}
    task = {"role": "user", "content": "the task"}
    fields: dict[str, Any] = {"tools": [{"type": "shell"}], "truncation": "auto"}
    turn, read = play(rig, client, "well" + END, input=[task, shell, output], **fields)
    assert turn["status"] == "completed"
    assert "the task" in read
    assert 2000 < len(read) < 8000
    goes_on(rig, client)


def test_a_tool_that_is_removed_while_its_call_is_open_is_answered_and_called_no_more() -> None:
    rig, client = connect()
    tools = [{"name": "g", "input_schema": {"type": "object", "properties": {}}},
             {"name": "h", "input_schema": {"type": "object", "properties": {}}}]  # fmt: skip
    use = {"type": "tool_use", "id": "u", "name": "g", "input": {}}
    reference = {"type": "tool_reference", "name": "g"}
    removal = {"role": "system", "content": [{"type": "tool_removal", "tool": reference}]}
    result_ = {"type": "tool_result", "tool_use_id": "u", "content": "what it gave"}
    said = [
        {"role": "user", "content": "the task"},
        {"role": "assistant", "content": [use]},
        {"role": "user", "content": [result_]},
        removal,
    ]
    for order in ([0, 1, 2, 3], [0, 1, 3, 2]):
        body = {
            "model": "m",
            "max_tokens": 50,
            "tools": tools,
            "messages": [said[n] for n in order],
        }
        asked = MESSAGES.read(body)
        client.create(**asked.create)
        assert client.last["type"] != "error", client.last
        assert "what it gave" in prompt(rig)
        grammar = rig.engine.last.grammar
        assert grammar is not None
        assert '\\"name\\": \\"h\\"' in grammar.lark
        assert '\\"name\\": \\"g\\"' not in grammar.lark
        rig.reply("well" + END)
        assert client.response["status"] == "completed"
    goes_on(rig, client)
