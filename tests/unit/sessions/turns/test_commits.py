"""What of a turn is recorded, and what a turn becomes whose record is refused."""

from decimal import Decimal

import orjson
import pytest

from sessions.journal.records import TurnRecord
from sessions.journal.writer import STALE, Verdict
from sessions.turns.commits import Ending, refused
from tests.support.journal_rig import JournalRig
from tests.support.memory_journal import MemoryJournal
from tests.support.sessions_rig import END, call, tool
from tools_api.events import type_of
from tools_api.exact_json import dumps, loads
from tools_api.items import CallOutput


def played(**fields: object) -> tuple[TurnRecord, Ending]:
    rig = JournalRig(MemoryJournal(b"f"))
    rig.hold = True
    client = rig.connect()
    sent = {"type": "response.create", "input": "hello", "instructions": "rules"}
    client.send_raw(dumps(sent | fields))
    rig.reply("answer" + END)
    (_, question) = rig.held[0]
    assert isinstance(question.asked, TurnRecord)
    (job,) = client.connection.jobs
    assert job.ending is not None
    return question.asked, job.ending


def test_a_record_holds_what_the_client_is_about_to_be_told() -> None:
    record, ending = played(keepwarm={"session": "s", "request_id": "q"})
    event = orjson.loads(record.terminal)
    assert record.terminal == ending.terminal
    assert event["response"]["id"] == record.response_id
    assert event["response"]["usage"]["output_tokens"] == record.usage.output_tokens
    assert (record.session, record.request_id, record.number) == ("s", "q", 1)
    assert record.request_digest
    assert record.entry is ending.outcome.entry
    assert record.base_id is None


@pytest.mark.parametrize("forgotten", [False, True])
def test_a_turn_that_says_a_warm_up_anew_is_recorded_behind_what_it_continues(
    forgotten: bool,
) -> None:
    """Where that has left memory it is recorded with the turn."""
    rig = JournalRig(MemoryJournal(b"f"))
    client = rig.connect()
    tools = [tool("f"), tool("g")]
    first = client.turn(call("f") + "\n" + call("g") + END, input="hi", tools=tools)
    one, other = (item["call_id"] for item in first["output"])
    answer = {"type": "function_call_output", "output": "1"}
    warm = client.turn(
        "",
        input=[answer | {"call_id": other}],
        previous_response_id=first["id"],
        tools=tools,
        generate=False,
    )
    rig.hold = True
    if forgotten:
        rig.store.tenant("acme").responses.delete(first["id"])
    client.create(input=[answer | {"call_id": one}], previous_response_id=warm["id"], tools=tools)
    rig.reply("so" + END)
    ((_, question),) = rig.held
    record = question.asked
    assert isinstance(record, TurnRecord)
    assert record.parent_id == warm["id"]
    assert (record.base_id, len(record.links)) == ((None, 2) if forgotten else (first["id"], 1))
    told = [item.call_id for item in record.links[-1].input_items if isinstance(item, CallOutput)]
    assert told == [one, other]


def test_what_was_said_anew_comes_back_from_the_journal() -> None:
    rig = JournalRig(MemoryJournal(b"f"))
    client = rig.connect()
    tools = [tool("f"), tool("g")]
    first = client.turn(call("f") + "\n" + call("g") + END, input="hi", tools=tools)
    one, other = (item["call_id"] for item in first["output"])
    answer = {"type": "function_call_output"}
    chain = {"tools": tools, "previous_response_id": first["id"]}
    late = [answer | {"call_id": other, "output": "2"}]
    warm = client.turn("", input=late, generate=False, **chain)
    chain = {"tools": tools, "previous_response_id": warm["id"]}
    last = client.turn(input=[answer | {"call_id": one, "output": "1"}], **chain)
    kept = rig.engine.sessions[rig.engine.last.branch_id]
    rig.restart()
    client = rig.connect()
    client.create(input="more", tools=tools, previous_response_id=last["id"])
    assert rig.engine.prompt(rig.engine.last)[: len(kept)] == kept


def test_of_a_private_turn_only_what_it_cost_is_recorded() -> None:
    record, ending = played(store=False, keepwarm={"session": "s", "request_id": "q"})
    assert ending.outcome.entry is not None
    assert (record.links, record.terminal, record.digest) == ((), b"", b"")
    assert record.request_digest == b""
    assert record.usage == ending.outcome.report.usage


def test_a_turn_whose_record_is_refused_has_failed_under_the_same_number() -> None:
    _, ending = played()
    failed = refused(ending, STALE)
    assert type_of(failed.terminal) == b"response.failed"
    before, after = orjson.loads(ending.terminal), orjson.loads(failed.terminal)
    assert after["sequence_number"] == before["sequence_number"]
    assert after["response"]["error"]["code"] == "server_error"
    assert after["response"]["usage"] is None
    assert failed.outcome.entry is None
    assert (failed.outcome.report.status, failed.outcome.report.reason) == (
        "failed",
        "session_moved",
    )


def test_a_turn_whose_record_is_refused_keeps_the_numbers_of_its_tools() -> None:
    numbers = [2**64 + 1, Decimal("1e400"), Decimal("0.12345678901234567890")]
    parameters = {"type": "object", "properties": {"a": {"enum": numbers}}}
    sent = {"type": "function", "name": "f", "parameters": parameters, "strict": False}
    _, ending = played(tools=[sent], tool_choice="none")
    failed = loads(refused(ending, STALE).terminal)
    assert failed["response"]["tools"][0]["parameters"] == parameters


def test_a_turn_that_failed_for_want_of_its_journal_says_what_it_has_spent() -> None:
    _, ending = played()
    before = orjson.loads(ending.terminal)["response"]
    for reason in ("unavailable", "error", "parent_deleted"):
        failed = refused(ending, Verdict(written=False, reason=reason))
        after = orjson.loads(failed.terminal)["response"]
        assert after["status"] == "failed"
        assert after["usage"] == before["usage"]
        assert after["keepwarm"]["cost"] == before["keepwarm"]["cost"]
        assert failed.outcome.report.usage.output_tokens == after["usage"]["output_tokens"]
