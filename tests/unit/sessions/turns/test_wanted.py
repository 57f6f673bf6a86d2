"""What memory wants of the journal is one question; what that knew is nothing until it is told."""

from sessions.turns.wanted import Recalled, Wanted


def test_what_is_wanted_may_become_more_while_it_is_read() -> None:
    """A session whose owner has not let go is asked for first the next time."""
    wanted = Wanted(responses=["r"])
    wanted.session = "s"
    assert (wanted.session, wanted.responses) == ("s", ["r"])
    assert Wanted().responses == [], "of its own"


def test_a_journal_that_knows_nothing_gives_nothing() -> None:
    nothing = Recalled()
    assert not nothing.sessions
    assert not nothing.chains
    assert not nothing.items
    assert not nothing.shares
    assert nothing.ended is nothing.head_id is nothing.taken_id is None
