"""Bounds, audiences and expiry of what is stored."""

import random
from collections import OrderedDict
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from sessions.ledger import Ledger, PriceTable
from sessions.session import Session
from sessions.store import ConnectionStore, ResponseTable, Store, StoredResponse
from sessions.transcript import ROOT_DIGEST, Entry, Header, Tail, chain, roll_all
from tests.support.clock import FakeClock
from tests.support.sessions_rig import END, Rig
from tools_api.chat_format import TemplateOptions
from tools_api.items import Item, parse_items
from tools_api.limits import Limits

SESSION = Session(name="s", tenant="t", ledger=Ledger(PriceTable()), now=0.0)


def entry(parent: Entry | None = None, answer: str = "a", size: int = 10) -> Entry:
    said: tuple[Item, ...] = parse_items([{"role": "assistant", "content": answer}])
    ids = np.zeros(size, dtype=np.int32)
    header = Header(
        instructions=None,
        opening=None,
        tools=(),
        options=TemplateOptions(),
        ids=np.zeros(2, dtype=np.int32),
    )
    return Entry(
        parent=parent,
        header=parent.header if parent is not None else header,
        opening=None,
        input_items=(),
        input_ids=ids,
        output_items=said,
        output_ids=ids,
        tail=Tail.CLOSED_OUTPUT,
        num_tokens=0,
        open_calls=frozenset(),
        digest=roll_all(parent.digest if parent is not None else ROOT_DIGEST, said),
    )


def response(id_: str, of: Entry, connection_id: str = "c") -> StoredResponse:
    return StoredResponse(
        id=id_, entry=of, session=SESSION, connection_id=connection_id, private=False
    )


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


def store(clock: FakeClock, **limits: Any) -> Store:
    return Store(limits=replace(Limits(), **limits), prices=PriceTable(), clock=clock)


def test_the_longest_idle_session_goes_at_one_beyond_the_bound() -> None:
    made = store(FakeClock(1000.0), max_sessions_per_tenant=2)
    first = made.session("t", "a")
    made.session("t", "b")
    made.session("t", "a")
    made.session("t", "c")
    assert {view.session for view in made.sessions()} == {"a", "c"}
    assert made.session("t", "a") is first


def test_a_session_in_use_is_not_dropped() -> None:
    clock = FakeClock(1000.0)
    made = store(clock, max_sessions_per_tenant=1)
    first = made.session("t", "a")
    first.begin("r", None, clock())
    made.session("t", "b")
    clock.advance(10_000)
    made.sweep()
    assert [view.session for view in made.sessions()] == ["a"]
    first.end("r", clock())
    assert made.session("t", "a") is first


def test_a_bound_of_one_tenant_is_not_the_other_ones() -> None:
    made = store(FakeClock(1000.0), max_sessions_per_tenant=1)
    made.session("t", "a")
    made.session("u", "a")
    assert len(made.sessions()) == 2


def test_an_expired_session_is_closed_and_its_name_free() -> None:
    clock = FakeClock(1000.0)
    made = store(clock)
    first = made.session("t", "a")
    clock.advance(made.limits.stored_response_ttl_s + 1)
    made.sweep()
    assert first.state.value == "closed"
    assert made.session("t", "a") is not first
    assert made.revive(first) is made.session("t", "a")


def test_the_engine_is_told_when_the_last_response_of_a_branch_goes() -> None:
    rig = Rig(limits=replace(Limits(), max_stored_responses_per_tenant=2))
    client = rig.connect()
    first = client.turn("a" + END, input="hi")
    client.turn("b" + END, input="x", previous_response_id=first["id"])
    client.turn("c" + END, input="other")
    assert rig.engine.released == []
    client.turn("d" + END, input="another")
    assert rig.engine.released == ["branch_1"]


def test_a_connections_own_responses_have_their_own_bound() -> None:
    rig = Rig(limits=replace(Limits(), max_stored_responses_per_connection=2))
    client = rig.connect()
    oldest, *_, newest = [client.turn(input="hi", store=False)["id"] for _ in range(3)]
    assert rig.engine.released == ["branch_1"]
    (error,) = client.create(input="x", previous_response_id=oldest)
    assert error["error"]["code"] == "previous_response_not_found"
    assert client.turn(input="x", previous_response_id=newest)["status"] == "completed"


def test_a_private_head_gives_way_to_the_shared_one_when_it_is_dropped() -> None:
    clock = FakeClock(1000.0)
    made = store(clock)
    mine = ConnectionStore(made, tenant="t", connection_id="c")
    session = mine.session("s")
    shared, private = entry(answer="shared"), entry(answer="private")
    mine.keep("r1", shared, session, private=False)
    mine.keep("r2", private, session, private=True)
    heads = [mine.head(session)]
    mine.close()
    heads.append(mine.head(session))
    assert [head.entry for head in heads if head is not None] == [private, shared]
