"""Accounts that other servers draw on too, at one server: asked for, held, given back."""

from pathlib import Path

import pytest

from runtime.messages import FinishReason
from sessions.durable.account import NOTHING, Account, Amount, Budget
from sessions.durable.ledger import Ledger, PriceTable
from sessions.durable.session import Session
from sessions.journal.errors import JournalUnavailable
from sessions.journal.ownership import Ownership
from sessions.journal.records import TENANT_ACCOUNT, tree_account
from sessions.journal.shares import Share
from sessions.journal.sqlite import SqliteJournal
from sessions.journal.writer import STALE, WRITTEN
from sessions.turns.effects import Question
from sessions.turns.sharing import SharedAccounts, account_names, wants
from sessions.turns.wanted import Wanted
from tests.support.journal_rig import FINGERPRINT, JournalRig
from tests.support.sessions_rig import END, Client

BUDGET = Budget(output=12, cost=10**9)


def session_of(tenant_budget: Budget) -> tuple[Session, Account]:
    session = Session(name="s", tenant="t", ledger=Ledger(PriceTable()), now=0.0)
    tenant = Account(scope="tenant", budget=tenant_budget)
    session.ledger.above = (tenant,)
    return session, tenant


def test_a_share_goes_back_when_the_last_turn_that_drew_on_it_is_written() -> None:
    session, tenant = session_of(BUDGET)
    shared = SharedAccounts()
    assert account_names(session) == (tree_account("s"), TENANT_ACCOUNT)
    first, second = shared.follow(session), shared.follow(session)
    assert first == (("tenant", ("output", "cost")),)
    assert tenant.left().output == 12, "what is left does not depend on what is in reach"
    lacking = tenant.lacks(Amount(output=4, input_cached=5))
    assert lacking is not None
    (want,) = wants([(tenant, lacking)])
    assert (want.name, want.amount) == ("tenant", Amount(output=4))
    shared.got(tenant, Share(name="tenant", amount=want.amount, spent=Amount(output=2)))
    assert tenant.lacks(Amount(output=4)) is None
    assert tenant.left().output == 10
    shared.done("t", first)
    assert shared.idle() == []
    shared.done("t", second)
    assert shared.idle() == [("t", "tenant")]
    assert tenant.reach == NOTHING
    assert shared.gone(("t", "tenant"))
    assert shared.idle() == []
    shared.unwanted("t", Share(name="tenant", amount=NOTHING, spent=NOTHING))
    assert shared.idle() == [("t", "tenant")]
    shared.follow(session)
    assert shared.idle() == []
    assert not shared.gone(("t", "tenant")), "a turn draws on it again"


def test_a_turn_that_begins_before_a_share_went_back_has_what_is_left_of_it() -> None:
    session, tenant = session_of(BUDGET)
    shared = SharedAccounts()
    bounded = shared.follow(session)
    shared.got(tenant, Share(name="tenant", amount=Amount(output=9), spent=NOTHING))
    tenant.spend(Amount(output=2))
    shared.done("t", bounded)
    assert tenant.reach == NOTHING
    bounded = shared.follow(session)
    assert tenant.reach == Amount(output=7)
    shared.done("t", bounded)
    shared.distrust_shares()
    shared.follow(session)
    assert tenant.reach == NOTHING, "others may have had it back"


def test_after_a_doubt_nothing_is_believed_but_what_is_held() -> None:
    session, tenant = session_of(BUDGET)
    shared = SharedAccounts()
    shared.follow(session)
    shared.got(tenant, Share(name="tenant", amount=Amount(output=9), spent=NOTHING))
    tenant.held = Amount(output=3)
    shared.distrust_shares()
    assert tenant.reach == Amount(output=3)
    assert tenant.lacks(Amount(output=1)) == Amount(output=1)


def test_a_record_that_is_refused_casts_doubt_on_this_servers_shares(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who took its session over may have had them back too."""
    doubts: list[None] = []
    monkeypatch.setattr(SharedAccounts, "distrust_shares", lambda _: doubts.append(None))
    journal = SqliteJournal(tmp_path / "j", fingerprint=FINGERPRINT, owner="a", shared=True)
    rig = JournalRig(journal)
    client = rig.connect()
    for verdict, doubted in ((WRITTEN, 0), (STALE, 1)):
        rig.hold = True
        client.create(input="a", keepwarm={"session": "s"})
        rig.emit("x", FinishReason.STOP)
        rig.commit(verdict)
        assert len(doubts) == doubted
    journal.close()


def test_an_account_that_nobody_else_draws_on_lacks_nothing() -> None:
    _, tenant = session_of(BUDGET)
    assert tenant.lacks(Amount(output=10**6)) is None
    assert tenant.free() == tenant.limits


def test_a_turn_that_cannot_ask_for_more_fails_and_says_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal = SqliteJournal(tmp_path / "j", fingerprint=FINGERPRINT, owner="a", shared=True)
    rig = JournalRig(journal)
    client = rig.connect()
    named = {"session": "s", "budget": {"scope": "tree", "output": 1000}}
    client.create(input="a", max_output_tokens=600, keepwarm=named)
    rig.emit("x" * 100)
    with monkeypatch.context() as patch:

        def out_of_reach(*_: object) -> None:
            raise JournalUnavailable("gone")

        patch.setattr(Ownership, "claim_shares", out_of_reach)
        rig.emit("x" * 100)
    assert client.response["keepwarm"]["reason"] == "journal_unavailable"
    client.create(input="a", max_output_tokens=600, keepwarm=named)
    for finish in (None, None, FinishReason.LENGTH):
        rig.emit("x" * 200, finish)
    assert client.response["status"] == "incomplete"
    assert client.response["usage"]["output_tokens"] == 600
    account = journal.account("acme", tree_account("s"))
    assert account.usage.output_tokens == 700
    left = client.response["keepwarm"]["budget"]["tree"]["output"]
    assert left == 300
    journal.close()


class HoldsShares(JournalRig):
    """Answers the first question of ``held_for`` about shares only when it is told to."""

    held_for: Client | None = None
    late: Question | None = None

    def ask(self, client: Client, question: Question) -> None:
        of_shares = isinstance(question.asked, Wanted) and question.asked.shares
        if client is self.held_for and self.late is None and of_shares:
            self.late = question
        else:
            super().ask(client, question)


def test_a_turn_whose_share_a_neighbour_used_before_it_began_asks_again(tmp_path: Path) -> None:
    """What was in reach when it asked it did not ask for."""
    journal = SqliteJournal(tmp_path / "j", fingerprint=FINGERPRINT, owner="a", shared=True)
    rig = HoldsShares(journal)
    first, waiting, neighbour = rig.connect(), rig.connect(), rig.connect()
    budget = {"scope": "tree", "input_uncached": 10_000}
    first.create(input="a", keepwarm={"session": "s", "budget": budget})
    rig.deliver(rig.engine.output(rig.engine.last, cached=len(rig.engine.last.new_tokens) - 1))
    rig.held_for = waiting
    waiting.create(input="b", keepwarm={"session": "t", "parent_session": "s"})
    neighbour.create(input="c", keepwarm={"session": "u", "parent_session": "s"})
    assert neighbour.last["type"] == "response.created"
    assert waiting.events == []
    assert rig.late is not None
    rig.ask(waiting, rig.late)
    assert waiting.last["type"] == "response.created"
    rig.reply("x" + END)
    assert waiting.response["status"] == "completed"
    journal.close()
