"""The order of sessions by their last activity is that of a list sorted anew."""

import random

import pytest

from sessions.durable.ledger import Ledger, PriceTable
from sessions.durable.session import ByActivity, Session


def session(name: str, now: float) -> Session:
    return Session(name=name, tenant="t", ledger=Ledger(PriceTable()), now=now)


@pytest.mark.parametrize("seed", range(5))
def test_whatever_begins_ends_comes_and_goes_the_newest_come_first(seed: int) -> None:
    chance, order, here = random.Random(seed), ByActivity(), list[Session]()
    for number in range(400):
        now = float(chance.randrange(50))  # many at the same time, and some from before
        what = chance.choice(("come", "go", "begin", "end", "recall"))
        each = chance.choice(here) if here else None
        if what == "come" or each is None:
            here.append(session(f"s{number}", now))
            here[-1].stand_in(order)
        elif what == "go":
            here.remove(each)
            each.stand_in(None)
            each.active(now)  # its turn ends after it was dropped
        elif what == "begin":
            each.start_turn(f"r{number}", None, now)
        elif what == "end" and each.in_use:
            each.end_turn(each.running[0], now)
        elif what == "recall":
            each.active(now - 1000)
        expected = sorted(here, key=lambda one: (one.last_active_s, one.name), reverse=True)
        assert list(order.newest()) == expected, f"seed {seed}, step {number}"
        assert len(order) == len(here)
