"""Seats for those that have asked something, a reserve for those that have not."""

from dataclasses import replace
from typing import Any

import pytest

from sessions.wire.seats import Seats, network_of
from tools_api.limits import Limits


def seats(idle: list[str] | None = None, **limits: Any) -> Seats[str]:
    def make_room() -> bool:
        if not idle:
            return False
        made.forget(idle.pop())
        return True

    made: Seats[str] = Seats(replace(Limits(), **limits), make_room)
    return made


def test_of_those_that_have_said_nothing_the_oldest_goes_at_one_beyond() -> None:
    made = seats(max_unread_connections=2)

    def greet(newcomer: str, silent: str) -> list[str]:
        made.greet(newcomer)
        return made.thin_out(lambda each: each in silent, made.too_many(0))

    assert [greet(each, "abc") for each in "abc"] == [[], [], ["a"]]
    assert made.seat("b", "1.1.1.1", "t") is None
    assert greet("d", "cd") == [], "b has a seat and leaves its place"
    assert greet("e", "de") == ["d"], "what c has sent is not read yet"
    assert greet("f", "") == []
    assert (made.too_many(0), made.too_many(3)) == (1, 4)
    assert greet("g", "cefg") == ["c", "e"], "f and g are as many as may be"
    assert (made.too_many(0), made.too_many(1)) == (0, 1)
    made.forget("f")
    assert greet("h", "gh") == []


@pytest.mark.parametrize(
    ("limit", "second", "reason"),
    [
        ("max_open_connections", ("2.2.2.2", "u"), "1 connections are open"),
        ("max_connections_per_tenant", ("2.2.2.2", "t"), "1 connections of this tenant are open"),
        (
            "max_connections_per_address",
            ("1.1.1.1", "u"),
            "1 connections from this address are open",
        ),
    ],
)
def test_each_bound_holds_at_its_limit_and_one_beyond(
    limit: str, second: tuple[str, str], reason: str
) -> None:
    made = seats(**{limit: 1})
    made.greet("a")
    made.greet("b")
    assert made.seat("a", "1.1.1.1", "t") is None
    assert made.seat("a", "1.1.1.1", "t") is None, "its next request"
    assert made.seat("b", *second) == reason
    made.forget("a")
    made.forget("a")
    assert made.seat("b", *second) is None


def test_a_tenant_may_have_a_number_of_its_own_which_may_change() -> None:
    of = {"t": 1, "big": 3}
    made = Seats[str](replace(Limits(), max_connections_per_tenant=2), lambda: False, of.get)
    assert made.seat("a", "", "t") is None
    assert made.seat("b", "", "t") == "1 connections of this tenant are open"
    assert [made.seat(each, "", "big") for each in "cde"] == [None] * 3
    assert [made.seat(each, "", "other") is None for each in "fgh"] == [True, True, False]
    of["t"], of["big"] = 2, 1
    assert made.seat("b", "", "t") is None
    assert made.seat("i", "", "big") == "1 connections of this tenant are open"
    assert made.seat("c", "", "big") is None, "who has a seat keeps it"


def test_a_seat_counts_for_the_tenant_that_asked_last() -> None:
    made = seats(max_connections_per_tenant=2)
    assert [made.seat(each, "", "t") for each in "ab"] == [None, None]
    assert made.seat("c", "", "") is None, "a health check"
    for _ in range(2):
        assert made.seat("c", "", "t") == "2 connections of this tenant are open"
    assert made.seat("c", "", "u") is None
    assert made.seat("c", "", "t") is not None, "a tenant that has room is no way round"
    assert made.seat("a", "", "") is None, "a health check frees no place of its tenant"
    assert made.seat("c", "", "t") is not None
    assert made.seat("a", "", "u") is None
    assert made.seat("d", "", "u") is not None, "c and a are u's"
    assert made.seat("c", "", "t") is None
    made.pass_on("c", "C")
    assert made.seat("d", "", "t") is not None
    made.forget("C")
    assert made.seat("d", "", "t") is None


def test_an_idle_one_gives_way_and_a_successor_keeps_the_seat() -> None:
    made = seats(["a"], max_open_connections=1)
    assert made.seat("a", "1.1.1.1", "t") is None
    assert made.seat("b", "1.1.1.1", "t") is None
    made.pass_on("b", "B")
    made.forget("b")
    assert made.seat("c", "1.1.1.1", "t") is not None
    made.forget("B")
    assert made.seat("c", "1.1.1.1", "t") is None


def test_one_client_can_have_64_bits_of_addresses() -> None:
    assert network_of("2001:db8::1") == network_of("2001:db8::ffff:2%eth0") == "2001:db8::/64"
    assert network_of("::ffff:1.2.3.4") == network_of("1.2.3.4") == "1.2.3.4"
    assert network_of("") == network_of("127.0.0.1") == network_of("::1") == ""
