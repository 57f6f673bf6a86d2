"""How long a lease is, and when it ends."""

import pytest

from radix_cache.edge import PieceShop
from radix_cache.handle import BranchHandle
from radix_cache.leases import Leases
from radix_cache.nodes import IDLE, LEASED, Account, Owner

OWNER = Owner(Account("red"), "", 0, PieceShop(1))


def make_leases() -> Leases:
    return Leases(cap_s=100.0, kappa=10.0, restore_cost=lambda tokens: tokens / 1000)


def leased(name: str, until: float) -> BranchHandle:
    handle = BranchHandle(name, OWNER)
    handle.klass, handle.leased_until = LEASED, until
    return handle


@pytest.mark.parametrize(
    ("tokens", "wanted_s", "expected_s"),
    [
        (500, None, 5.0),
        (50_000, None, 100.0),
        (500, 2.0, 2.0),
        (50_000, 7.0, 7.0),
        (500, 1e9, 100.0),
    ],
    ids=["estimate", "estimate over the cap", "hint", "hint below the estimate", "hint over cap"],
)
def test_a_lease_is_kappa_times_the_restore_cost_or_the_hint(
    tokens: int, wanted_s: float | None, expected_s: float
) -> None:
    assert make_leases().length_s(tokens, wanted_s) == expected_s


@pytest.mark.parametrize(("tokens", "expected_s"), [(500, 1.5), (16_000, 48.0), (50_000, 50.0)])
def test_after_an_answer_the_estimate_is_shorter_and_so_is_the_cap(
    tokens: int, expected_s: float
) -> None:
    assert make_leases().length_s(tokens, None, answered=True) == expected_s
    assert make_leases().length_s(tokens, 7.0, answered=True) == 7.0


def test_without_a_restore_cost_only_a_hint_makes_a_lease() -> None:
    leases = Leases(cap_s=100.0, kappa=10.0, restore_cost=None)
    assert leases.length_s(5000, None) == 0.0
    assert leases.length_s(5000, 3.0) == 3.0


def test_leases_end_in_the_order_of_their_ends() -> None:
    leases = make_leases()
    handles = [leased(name, until) for name, until in (("b", 5.0), ("a", 3.0), ("c", 9.0))]
    for handle in handles:
        leases.watch(handle, 0.0)
    assert leases.next_end_s == 3.0
    ended = []
    while (handle := leases.take_ended(6.0)) is not None:
        ended.append(handle.branch_id)
    assert ended == ["a", "b"]
    assert leases.next_end_s == 9.0


def test_a_session_that_came_back_or_was_leased_anew_does_not_end_early() -> None:
    leases = make_leases()
    returned, renewed = leased("returned", 2.0), leased("renewed", 2.0)
    leases.watch(returned, 0.0)
    leases.watch(renewed, 0.0)
    returned.klass = IDLE
    renewed.leased_until = 8.0
    leases.watch(renewed, 0.0)
    assert leases.take_ended(5.0) is None
    assert leases.live() == [renewed]
