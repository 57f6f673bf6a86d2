"""Whose account KV goes to, what is dropped, and what is recorded without a turn."""

import gc
from pathlib import Path

from runtime.messages import DropBranch, Residency
from sessions.durable.account import Budget
from sessions.durable.ledger import Ledger, PriceTable
from sessions.durable.residents import Residents, Told
from sessions.durable.session import Session
from sessions.journal.sqlite import SqliteJournal
from tests.support.journal_rig import JournalRig
from tests.support.sessions_rig import END

SECOND = 1_000_000


def session(name: str = "s", *, budget: int | None = None) -> Session:
    made = Session(name=name, tenant="acme", ledger=Ledger(PriceTable()), now=0.0)
    if budget is not None:
        made.ledger.account.budget = Budget(residency=budget)
    return made


def row(branch: str, seconds: int = 1, *, gone: bool = False) -> Residency:
    return Residency(branch_id=branch, block_us=seconds * SECOND, gone=gone)


def residents() -> Residents:
    return Residents(lambda dropped: dropped)


def test_a_branch_is_charged_to_the_session_that_wrote_to_it_last() -> None:
    known, first, second = residents(), session(), session("t")
    known.writes("a", first)
    known.writes("b", first)
    assert known.told([row("a", 2), row("b", 3), row("nobody's", 9)]) == Told()
    known.writes("a", second)
    known.told([row("a", 5)])
    assert first.ledger.account.spent.residency == 5 * SECOND
    assert second.ledger.account.spent.residency == 5 * SECOND


def test_a_budget_that_is_used_up_drops_the_branch_every_time_it_is_told_of() -> None:
    known, bounded, free = residents(), session(budget=3 * SECOND), session("t")
    known.writes("a", bounded)
    known.writes("b", free)
    assert known.told([row("a", 3), row("b", 9)]) == Told()
    told = known.told([row("a", 1), row("b", 9)])
    assert told == Told(drops=[DropBranch(branch_id="a")], ended=[bounded])
    assert known.told([row("a", 1)]).drops == [DropBranch(branch_id="a")]
    assert bounded.ledger.account.spent.residency == 3 * SECOND


def test_a_session_is_recorded_without_a_turn_where_none_runs() -> None:
    known, idle, busy = residents(), session(), session("t")
    busy.start_turn("resp_1", None, 0.0)
    known.writes("a", idle)
    known.writes("b", busy)
    assert known.told([row("a", gone=True), row("b", gone=True)]) == Told(ended=[idle])
    assert known.told([row("a"), row("b")]) == Told()
    assert idle.ledger.unsettled.block_us == busy.ledger.unsettled.block_us == SECOND


def test_the_branches_of_a_dropped_session_go_to_the_one_that_has_its_name() -> None:
    old, new = session(), session()
    known = Residents(lambda dropped: new)
    known.writes("a", old)
    known.told([row("a")])
    old.close()
    assert known.told([row("a", 4)]) == Told(ended=[old])
    assert known.told([row("a", 4)]) == Told()
    assert old.ledger.unsettled.block_us == SECOND
    assert new.ledger.account.spent.residency == 8 * SECOND


def test_a_session_that_fell_out_leaves_nothing(tmp_path: Path) -> None:
    """Also one whose turn was cancelled before it ran, or whose branch the engine had forgotten."""
    journal = SqliteJournal(tmp_path / "journal", fingerprint=b"f", synchronous="OFF")
    rig = JournalRig(journal)
    for name in ("ended", "cancelled", "forgotten"):
        client = rig.connect()
        first = client.turn(input="hi", keepwarm={"session": name})
        client.create(input="go on", previous_response_id=first["id"])
        if name == "forgotten":
            rig.deliver(rig.engine.forget(rig.engine.last))
        if name != "cancelled":
            rig.reply("ok" + END)
        client.disconnect()
    assert len(rig.store.residents) == 3
    rig.clock.advance(rig.service.limits.stored_response_ttl_s + 1)
    rig.sweep()
    rig.forget_past()
    del client
    gc.collect()
    assert len(rig.store.residents) == 0
    left = [each.name for each in gc.get_objects() if type(each) is Session]
    assert not {"ended", "cancelled", "forgotten"}.intersection(left)
    journal.close()


def test_with_the_engine_all_kv_is_gone() -> None:
    known, idle = residents(), session()
    known.writes("a", idle)
    known.writes("b", idle)
    known.told([row("a")])
    assert known.closing() == [idle]
    assert known.engine_lost() == [idle]
    assert known.engine_lost() == known.closing() == []
    assert known.told([row("a")]) == Told()
