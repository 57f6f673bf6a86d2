"""A reading claims what a turn is to run in, and holds it until memory has it or it has failed."""

import random
from collections import Counter
from typing import Any

import pytest

from sessions.journal.errors import JournalBusy, JournalElsewhere, JournalUnavailable
from sessions.turns.recalling import Claims, Recalling
from sessions.turns.wanted import Wanted
from tests.support.memory_journal import MemoryJournal


@pytest.mark.parametrize("seed", range(5))
def test_a_session_is_in_hand_as_long_as_somebody_claims_it(seed: int) -> None:
    draw, claims, expected = random.Random(seed), Claims(), Counter[tuple[str, str]]()
    for _ in range(300):
        tenant, name = draw.choice("tu"), draw.choice("abc")
        if draw.random() < 0.5:
            claims.add(tenant, name)
            expected[tenant, name] += 1
        elif expected[tenant, name]:
            claims.remove(tenant, [name])
            expected[tenant, name] -= 1
        held = {key for key, count in expected.items() if count}
        assert set(claims.all) == held
        assert all((key in claims) == (key in held) for key in expected)


def recalling(journal: Any, wanted: Wanted, claims: Claims) -> Recalling:
    loader: Any = None
    return Recalling("t", wanted, journal=journal, loader=loader, claims=claims, max_item_bytes=1)


def test_what_was_claimed_stays_in_hand_until_memory_has_it() -> None:
    claims = Claims()
    found = recalling(MemoryJournal(b"f"), Wanted(session="s"), claims).read()
    assert (found.claimed, claims.all) == (("s",), [("t", "s")])
    assert [record.name for record, _ in found.sessions] == ["s"]


@pytest.mark.parametrize(
    ("error", "again"),
    [(JournalBusy("b"), "s"), (JournalElsewhere("e"), None), (JournalUnavailable("u"), None)],
)
def test_a_reading_that_fails_leaves_nothing_in_hand_and_a_busy_one_begins_with_the_session(
    error: Exception, again: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise error

    journal, claims = MemoryJournal(b"f"), Claims()
    monkeypatch.setattr(journal, "claim", fail)
    monkeypatch.setattr(journal, "session_running", lambda *_: "s")
    wanted = Wanted(session="s")
    with pytest.raises(type(error)):
        recalling(journal, wanted, claims).read()
    assert claims.all == []
    wanted = Wanted(responses=["r"], owns_first=True)
    loaded: Any = type("Loaded", (), {"load": lambda *_: _chain_in("s"), "with_history": None})()
    reading = Recalling(
        "t", wanted, journal=journal, loader=loaded, claims=claims, max_item_bytes=1
    )
    with pytest.raises(type(error)):
        reading.read()
    assert (wanted.session, claims.all) == (again, [])


def _chain_in(session: str) -> Any:
    row = type("Row", (), {"session": session})()
    return type("Chain", (), {"head": type("Head", (), {"row": row})()})()
