"""A summary is a turn of its own that no client sees, and that is paid for once."""

import pytest

from tests.support.journal_rig import JournalRig
from tests.support.keyed_turns import connect_as, spent_by, two_keys
from tests.support.memory_journal import MemoryJournal
from tests.support.recast_loops import G, connect, loop, play, result, sums_up, threshold
from tests.support.sessions_rig import END, Client


def test_a_summary_is_charged_once_and_is_no_turn() -> None:
    rig, client = connect()
    done = loop(rig, client, 12)
    summaries = [report for report in rig.reports if report.status == "compaction"]
    turns = [report for report in rig.reports if report.status != "compaction"]
    assert summaries
    assert len(turns) == len(done)
    session = rig.store.tenant("acme").session(done[0][0]["keepwarm"]["session"])
    assert session.ledger.turns == len(turns)
    spent = sum(r.usage.input_tokens for r in rig.reports)
    assert session.ledger.usage.input_tokens == spent
    assert session.ledger.account.spent.output == sum(r.usage.output_tokens for r in rig.reports)


def test_summary_and_turn_are_charged_to_the_key_that_asked() -> None:
    rig, client = connect(tenants=two_keys())
    client.connection.identify("ci")
    done = loop(rig, client, 2)
    base = {"previous_response_id": done[-1][0]["id"], "tools": [G]}
    answer = result(done[-1][0]["output"][-1]["call_id"])
    web = connect_as(rig, "web")
    client.create(**base, context_management=threshold(1200), input=[answer])
    assert sums_up(rig)
    summary = rig.engine.last
    first = web.turn("x" + END, **base, input=[answer])["usage"]["total_tokens"]
    rig.reply("a summary" + END, summary)
    behind = rig.engine.last
    second = web.turn("y" + END, **base, input=[answer])["usage"]["total_tokens"]
    rig.reply("done" + END, behind)
    assert client.response["keepwarm"]["context"]["summarised"]["turns"]
    assert client.response["keepwarm"]["session"] == web.response["keepwarm"]["session"]
    assert spent_by(rig, "web") == first + second
    used = [report.usage for report in rig.reports]
    total = sum(usage.input_tokens + usage.output_tokens for usage in used)
    assert spent_by(rig, "ci") == total - first - second


def test_a_turn_that_is_cancelled_while_it_is_summed_up_ends_so() -> None:
    rig, client = connect()
    done = loop(rig, client, 2)
    fields = {"tools": [G], "context_management": threshold(1200)}
    answer = result(done[-1][0]["output"][-1]["call_id"])
    client.create(previous_response_id=done[-1][0]["id"], input=[answer], **fields)
    assert sums_up(rig)
    client.send(type="response.cancel")
    assert client.last["type"] == "response.incomplete"
    assert client.response["keepwarm"]["reason"] == "cancelled"
    assert (
        rig.store.tenant("acme").session(client.response["keepwarm"]["session"]).ledger.turns == 3
    )
    _, read = play(rig, client, END, previous_response_id=done[-1][0]["id"], input=[answer])
    assert "the task" in read


def due(rig: JournalRig, client: Client) -> str:
    """Have a turn's summary written, and its record wait for the journal; returns the session."""
    last = loop(rig, client, 2)[-1][0]
    answer = result(last["output"][-1]["call_id"])
    follows = {"previous_response_id": last["id"], "input": [answer]}
    client.create(tools=[G], context_management=threshold(1200), **follows)
    assert sums_up(rig)
    rig.hold = True
    rig.reply("a summary" + END)
    assert len(rig.held) == 1
    session = last["keepwarm"]["session"]
    assert isinstance(session, str)
    return session


@pytest.mark.parametrize("way", ["cancel", "by its id", "drain", "gone"])
def test_a_turn_that_is_ended_while_its_summary_is_recorded_ends_so(way: str) -> None:
    rig = JournalRig(MemoryJournal(), max_context_tokens=8000)
    client = rig.connect()
    name, asked = due(rig, client), len(rig.engine.requests)
    if way == "cancel":
        client.send(type="response.cancel")
    elif way == "by its id":
        created = next(e for e in reversed(client.events) if e["type"] == "response.created")
        client.send(type="response.cancel", response_id=created["response"]["id"])
    elif way == "drain":
        rig.carry(client, client.connection.drain())
        rig.carry(client, client.connection.engine_died())
    else:
        client.disconnect()
    rig.hold = False
    while rig.held:
        rig.commit()
    assert len(rig.engine.requests) == asked, "nothing is computed for it any more"
    assert client.connection.held == []
    session = rig.store.tenant("acme").session(name)
    assert session.ledger.account.held == type(session.ledger.account.held)()
    if way != "gone":
        reason = "shutting_down" if way == "drain" else "cancelled"
        assert client.response["keepwarm"]["reason"] == reason


def test_a_turn_whose_engine_dies_while_its_summary_is_recorded_goes_on() -> None:
    rig = JournalRig(MemoryJournal(), max_context_tokens=8000)
    client = rig.connect()
    due(rig, client)
    rig.kill_engine()
    rig.hold = False
    rig.commit()
    rig.reply("ok" + END)
    assert client.response["status"] == "completed"
    assert "context" in client.response["keepwarm"]
