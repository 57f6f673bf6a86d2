"""What slow readers have not taken is bounded for a tenant and for all; the slowest goes first."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest

from sessions.wire.unsent import BEHIND_BYTES, UnsentBytes
from tools_api.limits import Limits

KIB = 1024


@dataclass(eq=False)
class Reader:
    unsent_bytes: int
    cuts: list["Reader"] = field(default_factory=list)

    def cut(self) -> None:
        self.cuts.append(self)
        self.unsent_bytes = 0


def play(scenario: Callable[[UnsentBytes], None], *, tenant: int, of_all: int) -> UnsentBytes:
    """The scenario, and what follows from it in the loop's next turn."""

    async def in_loop() -> UnsentBytes:
        limits = Limits(max_unsent_per_tenant=tenant, max_unsent_of_all=of_all)
        unsent = UnsentBytes(limits)
        scenario(unsent)
        await asyncio.sleep(0)
        return unsent

    return asyncio.run(in_loop())


@pytest.mark.parametrize("bound", ["tenant", "of_all"])
def test_at_the_limit_nobody_is_cut_and_one_byte_beyond_the_slowest_is(bound: str) -> None:
    for beyond in (0, 1):
        cuts: list[Reader] = []
        slow, slower = Reader(100 * KIB, cuts), Reader(200 * KIB + beyond, cuts)

        def scenario(unsent: UnsentBytes, slow: Reader = slow, slower: Reader = slower) -> None:
            unsent.note("a", slower)
            unsent.note("a" if bound == "tenant" else "b", slow)

        bounds = {"tenant": 1024 * KIB, "of_all": 1024 * KIB} | {bound: 300 * KIB}
        unsent = play(scenario, **bounds)
        assert cuts == [slower][:beyond]
        assert unsent.total == (100 * KIB if beyond else 300 * KIB)


def test_of_all_tenants_the_one_that_has_most_loses_its_slowest() -> None:
    cuts: list[Reader] = []
    one = Reader(250 * KIB, cuts)
    many = [Reader(size * KIB, cuts) for size in (100, 120, 110)]

    def scenario(unsent: UnsentBytes) -> None:
        unsent.note("one", one)
        for reader in many:
            unsent.note("many", reader)

    play(scenario, tenant=1024 * KIB, of_all=500 * KIB)
    assert cuts == [many[1]]


def test_who_was_just_given_much_stays_before_those_who_have_not_read_for_long() -> None:
    cuts: list[Reader] = []
    stalled = [Reader(size * KIB, cuts) for size in (1023, 1024, 2000, 1500)]
    answer = Reader(16_000 * KIB, cuts)

    def scenario(unsent: UnsentBytes) -> None:
        for reader in (*stalled, answer):
            unsent.note("a", reader)
        unsent.note("a", stalled[2])

    play(scenario, tenant=20_000 * KIB, of_all=100_000 * KIB)
    assert cuts == stalled[1:3], "the first that have a MiB or more, until it is enough"


def test_who_has_taken_it_meanwhile_counts_no_more() -> None:
    cuts: list[Reader] = []
    readers = [Reader(200 * KIB, cuts) for _ in range(3)]

    def scenario(unsent: UnsentBytes) -> None:
        for reader in readers:
            unsent.note("a", reader)
        readers[0].unsent_bytes = 0

    unsent = play(scenario, tenant=450 * KIB, of_all=1024 * KIB)
    assert cuts == []
    assert unsent.total == 400 * KIB


def test_as_many_go_as_are_too_many_and_no_more() -> None:
    cuts: list[Reader] = []
    readers = [Reader((100 + n) * KIB, cuts) for n in range(10)]

    def scenario(unsent: UnsentBytes) -> None:
        for reader in readers:
            unsent.note("a", reader)

    unsent = play(scenario, tenant=310 * KIB, of_all=4096 * KIB)
    assert cuts == readers[:2:-1]
    assert unsent.total == sum(range(100, 103)) * KIB


def test_other_tenants_are_left_alone() -> None:
    cuts: list[Reader] = []
    mine, theirs = Reader(200 * KIB, cuts), Reader(190 * KIB, cuts)

    def scenario(unsent: UnsentBytes) -> None:
        unsent.note("mine", mine)
        unsent.note("theirs", theirs)

    play(scenario, tenant=195 * KIB, of_all=1024 * KIB)
    assert cuts == [mine]


def test_little_is_not_counted_and_who_is_forgotten_is_not_either() -> None:
    def scenario(unsent: UnsentBytes) -> None:
        unsent.note("a", Reader(BEHIND_BYTES - 1))
        assert unsent.total == 0
        gone = Reader(BEHIND_BYTES)
        unsent.note("a", gone)
        assert unsent.total == BEHIND_BYTES
        unsent.forget(gone)
        unsent.forget(gone)
        assert unsent.total == 0

    play(scenario, tenant=1, of_all=1)


def test_a_reader_that_gets_more_counts_once() -> None:
    def scenario(unsent: UnsentBytes) -> None:
        reader = Reader(100 * KIB)
        unsent.note("a", reader)
        reader.unsent_bytes = 150 * KIB
        unsent.note("a", reader)
        assert unsent.total == 150 * KIB

    play(scenario, tenant=1024 * KIB, of_all=1024 * KIB)
