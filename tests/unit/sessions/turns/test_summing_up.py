"""A summary is a turn of its own that no client sees, and that is paid for once."""

from tests.support.recast_loops import G, connect, loop, play, result, sums_up, threshold
from tests.support.sessions_rig import END


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
