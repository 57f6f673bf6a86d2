"""What turns may tell: to the exact token of what is held, and what becomes of the rest."""

from collections.abc import Sequence
from typing import Any

import pytest

from runtime.messages import ErrorKind, FinishReason
from sessions.durable.account import Amount
from sessions.durable.ledger import PriceTable, PromptTokens
from sessions.durable.reservation import GRANT_TOKENS, LOW_TOKENS, amount_of
from sessions.journal.records import TurnRecord
from tests.support.journal_rig import JournalRig
from tests.support.memory_journal import MemoryJournal
from tests.support.sessions_rig import END, Client, Rig, tool

PRICES = PriceTable.per_million(input_uncached=1.0, input_cached=0.1, output=2.0)


@pytest.fixture
def rig() -> Rig:
    return Rig(prices=PRICES)


@pytest.fixture
def lasting() -> JournalRig:
    return JournalRig(MemoryJournal(b"f"), prices=PRICES)


def begin(rig: Rig, **keepwarm: Any) -> tuple[Client, str]:
    client = rig.connect()
    (created,) = client.create(input="hi", keepwarm=keepwarm)
    return client, created["response"]["id"]


def text(client: Client) -> str:
    return "".join(e["delta"] for e in client.events if e["type"].endswith("text.delta"))


def test_parallel_turns_share_a_budget_to_the_last_token(rig: Rig) -> None:
    budget = {"scope": "tree", "output": 700}
    one, _ = begin(rig, session="a", parent_session="root")
    one.send(type="response.cancel")
    client = rig.connect()
    client.turn("x" + END, input="hi", keepwarm={"session": "root", "budget": budget})
    (first, _), (second, _) = (
        begin(rig, session=name, parent_session="root") for name in ("a", "b")
    )
    left = {first: rig.engine.requests[-2], second: rig.engine.requests[-1]}
    while len(left) > 0:
        for client, request in list(left.items()):
            rig.emit("x" * 50, request=request)
            if client.last["type"] == "response.incomplete":
                del left[client]
                assert client.response["keepwarm"]["reason"] == "budget_exhausted"
                assert client.response["keepwarm"]["budget"]["exhausted"]
                assert request.request_id in rig.engine.cancelled
    tokens = [c.response["usage"]["output_tokens"] for c in (first, second)]
    assert sum(tokens) == 700 - 2
    assert [len(text(c)) for c in (first, second)] == tokens
    tree = rig.store.tenant("acme").session("root").ledger.tree
    assert (tree.held, tree.left().output) == (Amount(), 0)


def test_an_end_behind_the_budget_is_not_told(rig: Rig) -> None:
    """The engine was asked for more, since another turn might have given back what it held."""
    begin(rig, session="s", budget={"output": 300})
    hog = rig.engine.last
    rig.clients[0].send(type="response.cancel")
    client = rig.connect()
    client.turn("x" + END, input="hi", keepwarm={"session": "s"})
    one, two = rig.connect(), rig.connect()
    for each in (one, two):
        each.create(input="go", previous_response_id=client.response["id"])
    assert hog.max_new_tokens == 300
    first, second = rig.engine.requests[-2:]
    assert first.max_new_tokens == second.max_new_tokens == 298
    rig.emit("y" * 50 + END, FinishReason.STOP, second)
    assert two.last["type"] == "response.incomplete"
    assert two.response["usage"]["output_tokens"] == 298 - 256
    assert second.request_id not in rig.engine.cancelled, "it had ended"
    two.create(input="on", previous_response_id=two.response["id"])
    assert two.last["type"] == "response.failed", "the first one holds the rest"
    rig.emit("z" + END, FinishReason.STOP, first)
    two.create(input="on", previous_response_id=two.events[-3]["response"]["id"])
    assert two.last["type"] == "response.created", two.last["response"]["error"]
    assert rig.engine.last.base_branch_id == second.branch_id


def test_what_was_cut_can_be_continued(rig: Rig) -> None:
    client = rig.connect()
    client.turn("y" + END, input="hi", keepwarm={"session": "s", "budget": {"output": 300}})
    first, second = rig.connect(), rig.connect()
    for each in (first, second):
        each.create(input="go", previous_response_id=client.response["id"])
    one, two = rig.engine.requests[-2:]
    for _ in range(2):
        rig.emit("x" * 40, request=one)
    rig.emit("z" * 43, request=two)
    assert second.last["type"] == "response.incomplete", "the first holds the rest"
    assert len(text(second)) == 300 - 2 - 256
    rig.emit("x" * 10 + END, FinishReason.STOP, one)
    rig.engine.released.clear()
    client.create(
        input="more",
        previous_response_id=second.response["id"],
        keepwarm={"budget": {"output": 1000}},
    )
    prompt = rig.engine.prompt(rig.engine.last)
    assert rig.engine.last.base_branch_id is None, "what stands in the engine is not known"
    assert len(prompt) > 42
    rig.reply("ok" + END)
    assert client.last["type"] == "response.completed"


def test_reasoning_ends_at_its_exact_token(rig: Rig) -> None:
    client = rig.connect()
    client.create(
        input="hi",
        reasoning={"effort": "high"},
        keepwarm={"session": "s", "budget": {"reasoning": 5}},
    )
    rig.emit("<think>")
    rig.emit("abcdefgh")
    assert client.last["type"] == "response.incomplete"
    assert client.response["keepwarm"]["tokens"]["reasoning"] == 5
    assert client.response["usage"]["output_tokens_details"]["reasoning_tokens"] == 5
    assert client.response["keepwarm"]["budget"]["left"] == {"reasoning": 0}
    client.create(input="hi", reasoning={"effort": "high"}, keepwarm={"session": "s"})
    assert client.last["type"] == "response.failed"
    client.create(input="hi", keepwarm={"session": "s"})
    assert client.last["type"] == "response.created", "without thinking it goes on"


def test_input_is_held_as_the_engine_reports_it(rig: Rig) -> None:
    client, _ = begin(rig, session="s", budget={"input_uncached": 10_000, "input_cached": 16})
    account = rig.store.tenant("acme").session("s").ledger.account
    request = rig.engine.last
    prompt = len(rig.engine.prompt(request))
    assert account.held.input_uncached == prompt
    rig.emit("x", cached=10)
    assert (account.held.input_uncached, account.held.input_cached) == (prompt - 10, 10)
    rig.emit(END, FinishReason.STOP)
    assert (account.spent.input_uncached, account.spent.input_cached) == (prompt - 10, 10)
    assert account.held == Amount()
    client.create(input="hi", keepwarm={"session": "s"})
    assert client.last["type"] == "response.failed"
    assert "cached tokens, the session's budget has 6 left" in client.response["error"]["message"]
    assert account.spent.input_cached == 10, "a turn that was refused costs nothing"


@pytest.mark.parametrize("how", ["disconnect", "cancel", "engine"])
def test_however_a_turn_ends_what_it_told_is_spent_and_nothing_stays_held(
    rig: Rig, how: str
) -> None:
    client, _ = begin(rig, session="s", budget={"output": 1000})
    rig.emit("x" * 30)
    if how == "disconnect":
        client.disconnect()
    elif how == "cancel":
        client.send(type="response.cancel")
    else:
        rig.store.engine_lost()
        rig.carry(client, client.connection.engine_died())
    account = rig.store.tenant("acme").session("s").ledger.account
    assert (account.spent.output, account.held) == (30, Amount())
    (report,) = rig.reports
    assert report.cost == account.spent.cost == PRICES.cost(report.usage)


@pytest.mark.parametrize("limited", [True, False])
def test_a_budget_cuts_no_call_whose_ending_is_not_known(rig: Rig, limited: bool) -> None:
    client = rig.connect()
    client.create(
        input="hi",
        tools=[tool("look", x={"type": "string"})],
        tool_choice="required",
        max_output_tokens=50,
        keepwarm={"session": "s", "budget": {"output": 40 if limited else 60}},
    )
    rig.emit("x", ending_known=False)
    if not limited:
        assert "No legal ending" in client.events[1]["response"]["keepwarm"]["warnings"][0]
        return
    assert client.last["type"] == "response.failed"
    assert "no legal ending" in client.response["error"]["message"]
    assert rig.engine.cancelled
    account = rig.store.tenant("acme").session("s").ledger.account
    assert (account.spent, account.held) == (Amount(), Amount())


# What the journal is told


def noted(rig: JournalRig) -> Amount:
    (held,) = rig.journal.reservations("acme", "s")
    usage = held.usage
    prompt = PromptTokens(usage.uncached_tokens, usage.cached_tokens)
    assert held.cost == PRICES.most(prompt, usage.output_tokens, usage.reasoning_tokens)
    return amount_of(usage, held.cost)


def test_what_a_turn_holds_is_noted_from_its_start_on(lasting: JournalRig) -> None:
    client = lasting.connect()
    client.create(input="hi" * 40, max_output_tokens=600, keepwarm={"session": "s"})
    account = lasting.store.tenant("acme").session("s").ledger.account
    assert noted(lasting) == account.held
    assert account.held.output == GRANT_TOKENS
    lasting.emit("x", cached=16)
    assert noted(lasting) == account.held
    assert account.held.input_cached == 16
    for told in range(30, 600, 30):
        lasting.emit("x" * 30)
        assert noted(lasting) == account.held
        assert account.held.output >= told
    lasting.reply(END)
    assert lasting.journal.reservations("acme", "s") == []


def test_of_output_that_is_held_at_once_a_grant_is_noted(lasting: JournalRig) -> None:
    client = lasting.connect()
    json = {"format": {"type": "json_object"}}
    client.create(input="hi", max_output_tokens=600, text=json, keepwarm={"session": "s"})
    account = lasting.store.tenant("acme").session("s").ledger.account
    assert (account.held.output, noted(lasting).output) == (600, GRANT_TOKENS)
    for told in range(100, 600, 100):
        lasting.emit("x" * 100)
        assert told <= noted(lasting).output <= min(told + LOW_TOKENS + GRANT_TOKENS, 600)
    lasting.reply(END)
    assert lasting.journal.reservations("acme", "s") == []


@pytest.mark.parametrize("how", ["refused at the start", "refused by the engine", "engine died"])
def test_a_turn_that_comes_to_nothing_leaves_nothing_noted(lasting: JournalRig, how: str) -> None:
    client = lasting.connect()
    budget = {"input_cached": 0} if how == "refused at the start" else {}
    client.create(input="hi" * 20, keepwarm={"session": "s", "budget": budget})
    assert len(lasting.journal.reservations("acme", "s")) == 1
    if how == "refused at the start":
        lasting.emit("x", cached=16)
    elif how == "refused by the engine":
        lasting.deliver(lasting.engine.refuse(lasting.engine.last, ErrorKind.TOO_LARGE))
    else:
        lasting.kill_engine()
    assert client.last["type"] == "response.failed"
    assert lasting.journal.reservations("acme", "s") == []
    assert lasting.journal.session("acme", "s") is None


def test_only_what_has_changed_is_noted_anew(lasting: JournalRig) -> None:
    written: list[int] = []
    reserve = lasting.journal.reserve

    def counting(reserved: Sequence[TurnRecord]) -> None:
        written.append(len(reserved))
        reserve(reserved)

    lasting.journal.reserve = counting  # type: ignore[method-assign]
    lasting.connect().create(input="hi", max_output_tokens=600, keepwarm={"session": "s"})
    for _ in range(300):
        lasting.emit("x")
    assert len(written) == 2, "at the start, and for one more grant"
