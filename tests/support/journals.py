"""Turn records for tests of journals, comparison of what comes back, a server's inside over one."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from sessions.durable.ledger import PriceTable, TurnUsage
from sessions.durable.transcript import Entry, chain
from sessions.journal.adoption import Loader
from sessions.journal.encoding import TurnBody, decode_turn
from sessions.journal.journal import Journal
from sessions.journal.records import RESIDENCY, SERVER_DIED, SessionRecord, StoredTurn, TurnRecord
from sessions.turns.commits import Commits
from sessions.turns.recollection import Recollection
from sessions.turns.service import Service
from sessions.wire.journal_desk import JournalDesk
from tests.support.entries import entry

PRICE = PriceTable(input_uncached=3_000, input_cached=300, output=15_000)


def over(journal: Journal, service: Service, *, keep_s: float = 1e9) -> tuple[Service, JournalDesk]:
    """A service whose turns are kept in a journal, and the desk that writes and reads it. The
    journal's fingerprint is ``b"f"``; it expires nothing unless ``keep_s`` says so."""
    commits = Commits(journal)
    store = service.store
    store.lasts()
    recollection = Recollection(
        journal=journal,
        loader=Loader(journal, fingerprint=b"f"),
        store=store,
        commits=commits,
        wall_clock=service.wall_clock,
    )
    desk = JournalDesk(journal, recollection, store, keep_s=keep_s, wall_clock=service.wall_clock)
    if desk.sharing is not None:
        commits.awake = desk.sharing.awake
    return replace(service, commits=commits), desk


def record(
    response_id: str,
    *,
    parent: TurnRecord | None = None,
    session: str = "s",
    tenant: str = "t",
    answer: str | None = None,
    said: bool = True,
    created_s: float = 1000.0,
    request_id: str | None = None,
    epoch: int = 0,
    size: int = 10,
    accounts: tuple[str, ...] = (),
    shares: tuple[tuple[str, tuple[str, ...]], ...] = (),
    item_id: str | None = None,
) -> TurnRecord:
    """A completed turn; ``said`` False: one that left its usage only."""
    before = None if parent is None else parent.entry
    links = (entry(before, answer or response_id, size, item_id),) if said else ()
    usage = TurnUsage(input_tokens=20, cached_tokens=8, output_tokens=5)
    return TurnRecord(
        tenant=tenant,
        session=session,
        number=1,
        response_id=response_id,
        parent_id=None if parent is None else parent.response_id,
        request_id=request_id,
        status="completed" if said else "failed",
        reason=None if said else "engine_died",
        usage=usage,
        price=PRICE,
        cost=PRICE.cost(usage),
        saved=PRICE.saved(usage),
        accounts=accounts,
        shares=shares,
        created_s=created_s,
        epoch=epoch,
        links=links,
        base_id=None if parent is None or not said else parent.response_id,
        terminal=b'{"type":"response.completed"}' if said else b"",
    )


def reservation(
    response_id: str,
    *,
    session: str = "s",
    tenant: str = "t",
    output: int = 256,
    request_id: str | None = None,
    epoch: int = 0,
    accounts: tuple[str, ...] = (),
) -> TurnRecord:
    """What a turn holds that runs; ``output`` 0: nothing."""
    usage = TurnUsage(input_tokens=30, cached_tokens=10, output_tokens=output)
    usage = usage if output else TurnUsage()
    return TurnRecord(
        tenant=tenant,
        session=session,
        number=2,
        response_id=response_id,
        parent_id="r0",
        request_id=request_id,
        request_digest=b"d" * 16,
        status="failed",
        reason=SERVER_DIED,
        usage=usage,
        price=PRICE,
        cost=PRICE.cost(usage),
        saved=PRICE.saved(usage),
        accounts=accounts,
        created_s=1000.0,
        epoch=epoch,
        options=b'{"session":[{"output":9},{}]}',
    )


def assert_books_agree(session: SessionRecord, rows: Sequence[StoredTurn]) -> list[TurnBody]:
    """The session's account is the sum over all of its rows. Those of KV alone, which its server
    writes whenever it has forgotten the session for a moment, are charged and are no turns. Returns
    what the rows say."""
    bodies, account = list(map(decode_turn, rows)), session.account
    assert len(rows) == session.head_seq
    assert account.turns == sum(body.status != RESIDENCY for body in bodies)
    assert account.usage == sum((body.usage for body in bodies), TurnUsage())
    assert account.cost == sum(body.cost for body in bodies)
    assert account.saved == sum(body.saved for body in bodies)
    return bodies


def assert_same_chain(ours: Entry | None, theirs: Entry | None) -> None:
    """Field by field and id by id, up to the root; but for how large a frame each came in, which
    only memory weighs."""
    links, others = list(chain(ours)), list(chain(theirs))
    assert len(links) == len(others)
    for link, other in zip(links, others, strict=True):
        _assert_same(link, other, skip=("parent", "header", "frame_bytes"))
        _assert_same(link.header, other.header, skip=())


def _assert_same(one: object, other: object, skip: tuple[str, ...]) -> None:
    for name in type(one).__slots__:
        if name in skip:
            continue
        mine, theirs = getattr(one, name), getattr(other, name)
        if isinstance(mine, np.ndarray):
            assert mine.dtype == theirs.dtype, name
            assert np.array_equal(mine, theirs), name
        else:
            assert mine == theirs, name
