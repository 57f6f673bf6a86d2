"""Finished responses: bounds and expiry, bytes counted, histories found."""

import random
from collections import OrderedDict

import pytest

from sessions.durable.response_table import PrivateResponses, ResponseTable, StoredResponse
from sessions.durable.transcript import Entry, chain
from tests.support.clock import FakeClock
from tests.support.entries import SESSION, entry, response
from tools_api.item_reading import parse_items


def table(
    clock: FakeClock,
    dropped: list[str],
    *,
    max_count: int = 100,
    max_bytes: int = 1_000_000,
    ttl_s: float = 60.0,
) -> ResponseTable:
    return ResponseTable(
        max_count=max_count,
        max_bytes=max_bytes,
        ttl_s=ttl_s,
        clock=clock,
        on_drop=lambda r: dropped.append(r.id),
    )


def test_the_longest_unused_response_goes_at_one_beyond_the_count() -> None:
    dropped: list[str] = []
    responses = table(FakeClock(1000.0), dropped, max_count=3)
    for id_ in "abc":
        responses.put(response(id_, entry()))
    assert dropped == []
    responses.get("a")
    responses.put(response("d", entry()))
    assert dropped == ["b"]


def test_an_entry_knows_its_response_as_long_as_that_is_here() -> None:
    responses = table(FakeClock(1000.0), [])
    known, unknown = entry(), entry()
    responses.put(response("a", known))
    assert (responses.id_of(known), responses.id_of(unknown)) == ("a", None)
    responses.delete("a")
    assert responses.id_of(known) is None


def test_responses_go_at_one_byte_beyond_the_bound() -> None:
    size = entry().size_bytes
    dropped: list[str] = []
    responses = table(FakeClock(1000.0), dropped, max_bytes=2 * size)
    responses.put(response("a", entry()))
    responses.put(response("b", entry()))
    assert dropped == []
    tight = table(FakeClock(1000.0), dropped, max_bytes=2 * size - 1)
    tight.put(response("a", entry()))
    tight.put(response("b", entry()))
    assert dropped == ["a"]


def test_the_newest_response_is_kept_however_large() -> None:
    responses = table(FakeClock(1000.0), [], max_bytes=1)
    responses.put(response("a", entry()))
    assert responses.get("a") is not None


@pytest.mark.parametrize(("age_s", "there"), [(60.0, True), (60.1, False)])
def test_a_response_lives_as_long_as_it_is_used(age_s: float, there: bool) -> None:
    clock, dropped = FakeClock(1000.0), list[str]()
    responses = table(clock, dropped)
    responses.put(response("a", entry()))
    clock.advance(59.0)
    responses.get("a")
    clock.advance(age_s)
    assert (responses.get("a") is not None) == there
    assert dropped == ([] if there else ["a"])


@pytest.mark.parametrize("seed", range(20))
def test_bytes_are_those_of_all_entries_that_can_be_reached(seed: int) -> None:
    rng, clock = random.Random(seed), FakeClock(1000.0)
    dropped: list[str] = []
    responses = table(clock, dropped, max_count=12, max_bytes=20_000)
    kept: OrderedDict[str, Entry] = OrderedDict()  # the model
    for number in range(200):
        action = rng.choice(["put", "put", "get", "wait"])
        if action == "put":
            parent = rng.choice([None, *kept.values()])
            made = entry(parent, answer=str(number), size=rng.randint(1, 200))
            kept[f"r{number}"] = made
            responses.put(response(f"r{number}", made))
        elif action == "get" and kept:
            id_ = rng.choice(list(kept))
            if responses.get(id_) is not None:
                kept.move_to_end(id_)
        else:
            clock.advance(rng.choice([1.0, 5.0]))
            responses.expire()
        for id_ in dropped:
            assert id_ == next(iter(kept)), "not the longest unused"
            del kept[id_]
        dropped.clear()
        reached = {link for made in kept.values() for link in chain(made)}
        assert responses.num_bytes == sum(link.size_bytes for link in reached)
        assert len(responses) == len(kept) <= 12
        assert responses.num_bytes <= 20_000 or len(kept) == 1
    responses.clear()
    assert responses.num_bytes == 0


def test_a_history_is_found_by_digest_and_items_and_not_by_digest_alone() -> None:
    responses = table(FakeClock(1000.0), [])
    made = entry(answer="yes")
    responses.put(response("a", made))
    same = parse_items([{"role": "assistant", "content": "yes"}])
    other = parse_items([{"role": "assistant", "content": "no"}])
    assert responses.with_history(made.digest, same, "c") is not None
    assert responses.with_history(made.digest, other, "c") is None


def test_of_twins_the_own_connections_is_found_then_the_newest() -> None:
    responses = table(FakeClock(1000.0), [])
    twins = [entry(answer="yes") for _ in range(3)]
    for number, twin in enumerate(twins):
        responses.put(response(f"r{number}", twin, connection_id=f"c{number}"))
    said = twins[0].output_items
    found = [
        responses.with_history(twins[0].digest, said, connection_id)
        for connection_id in ("c0", "c1", "elsewhere")
    ]
    assert [r.id for r in found if r is not None] == ["r0", "r1", "r2"]


def test_a_kept_response_object_counts_while_it_is_kept() -> None:
    responses = table(FakeClock(1000.0), [])
    responses.put(response("a", entry(), packed=b"x" * 100))
    assert responses.num_bytes == entry().size_bytes + 100
    assert responses.delete("a")
    assert responses.num_bytes == 0


def test_what_is_deleted_is_gone_and_what_continues_it_is_not() -> None:
    dropped: list[str] = []
    responses = table(FakeClock(1000.0), dropped)
    parent = entry()
    responses.put(response("a", parent))
    responses.put(response("b", entry(parent, answer="b")))
    assert responses.delete("a")
    assert dropped == ["a"]
    assert responses.get("a") is None
    assert responses.get("b") is not None
    assert not responses.delete("a")
    assert not responses.delete("never was")


def test_a_private_head_goes_with_its_response() -> None:
    def make(on_drop: object) -> ResponseTable:
        assert callable(on_drop)

        def dropped(gone: StoredResponse) -> None:
            on_drop(gone)

        return ResponseTable(
            max_count=1, max_bytes=10_000, ttl_s=60.0, clock=FakeClock(), on_drop=dropped
        )

    private = PrivateResponses(make)
    private.heads[SESSION.name] = "b"
    private.table.put(response("a", entry()))
    private.table.put(response("b", entry()))
    assert private.heads == {SESSION.name: "b"}
    private.table.clear()
    assert private.heads == {}
