"""The collector of cyclic garbage looks at little at once, and sessions do not need it."""

import asyncio
import gc
import itertools
import socket
import weakref
from collections.abc import Iterator
from functools import partial
from typing import Any, cast

import pytest

from runtime import collection
from runtime.collection import (
    LOOK_EVERY_S,
    MOST_OBJECTS,
    QUIET_LOOKS,
    QUIET_S,
    WHOLE_EVERY_S,
    WholeCollections,
    collect_when_quiet,
    collect_whole,
    keep_short,
)
from runtime.process import engine_process
from tests.support.clock import FakeClock
from tests.support.recast_loops import result, sums_up, threshold
from tests.support.sessions_rig import END, Client, Rig, call, tool
from tools_api.limits import Limits


@pytest.fixture(autouse=True)
def restored() -> Iterator[None]:
    """Other tests find the collector as it was."""
    thresholds, callbacks = gc.get_threshold(), list(gc.callbacks)
    yield
    gc.callbacks[:] = callbacks
    gc.set_threshold(*thresholds)
    gc.unfreeze()


class Node:
    """Something that the collector knows."""

    def __init__(self, other: "Node | None" = None) -> None:
        self.other = other


@pytest.mark.tail
def test_no_collection_looks_at_more_than_it_may_however_much_there_is() -> None:
    looked_at: list[int] = []

    def note(phase: str, info: dict[str, Any]) -> None:
        if phase == "start":
            looked_at.append(sum(len(gc.get_objects(n)) for n in range(info["generation"] + 1)))

    keep_short()
    gc.callbacks.append(note)
    kept = [[Node() for _ in range(size % 700)] for size in range(0, 100_000, 433)]
    gc.callbacks.remove(note)
    assert sum(map(len, kept)) > 5 * MOST_OBJECTS
    assert len(looked_at) > 100
    assert max(looked_at) <= MOST_OBJECTS


@pytest.mark.tail
def test_cycles_of_what_lived_for_a_short_time_are_found_at_once() -> None:
    keep_short()
    first = Node()
    first.other = Node(first)
    gone = weakref.ref(first)
    del first
    kept = [Node() for _ in range(2 * MOST_OBJECTS)]
    assert gone() is None
    assert kept


@pytest.mark.tail
def test_cycles_of_what_was_set_aside_are_found_when_everything_is_looked_at() -> None:
    keep_short()
    old = Node()
    old.other = Node(old)
    kept = [Node() for _ in range(2 * MOST_OBJECTS)]
    gone = weakref.ref(old)
    del old
    gc.collect()
    assert gone() is not None, "it was not set aside"
    assert collect_whole() >= 2
    assert gone() is None
    assert gc.get_freeze_count() > len(kept)


def test_everything_is_looked_at_only_when_nothing_has_run_for_a_while() -> None:
    clock = FakeClock()
    start, busy = clock(), True
    found = [20_000, 0, 0, 20_000]
    collected: list[float] = []

    async def pause(seconds: float) -> None:
        nonlocal busy
        clock.advance(seconds)
        busy = clock() - start < 2 * WHOLE_EVERY_S

    def collect() -> int:
        collected.append(clock() - start)
        if not found:
            raise asyncio.CancelledError
        return found.pop(0)

    collections = WholeCollections(clock, collect)
    with pytest.raises(asyncio.CancelledError):
        asyncio.run(collect_when_quiet(lambda: busy, collections, pause=pause))
    assert collected[0] == pytest.approx(2 * WHOLE_EVERY_S + QUIET_LOOKS * LOOK_EVERY_S, abs=6)
    apart = [(b - a) / WHOLE_EVERY_S for a, b in itertools.pairwise(collected)]
    assert apart == pytest.approx([1, 2, 4, 1], abs=0.1)


@pytest.mark.tail
def test_turns_sessions_and_connections_end_without_the_collector() -> None:
    """Also those that fail, wait, are stopped, call tools or live to be forgotten."""
    limits = Limits()
    rig = Rig(limits=limits)

    def play_cut(rig: Rig, client: Client) -> None:
        """A cut in a turn, and one that is computed ahead and cut off while it is."""
        ahead = {"compaction": {"ahead": True}}
        asked = {"tools": [tool("look")], "context_management": threshold(1000)}
        turn = client.turn(call("look") + END, input="x", **asked)
        cuts = 0
        while cuts < 2 or rig.engine.last.request_id not in rig.engine.open:
            options = {} if cuts < 2 else ahead
            answer = result(turn["output"][-1]["call_id"], "x" * 200)
            client.create(
                input=[answer], previous_response_id=turn["id"], keepwarm=options, **asked
            )
            if sums_up(rig):
                rig.reply("a summary" + END)
                cuts += 1
            rig.reply(call("look") + END)
            turn = client.response

    def play(names: range) -> None:
        for n in names:
            client = rig.connect()
            first = client.turn(input="hi", keepwarm={"session": f"s{n}"})
            client.turn(input="go on", previous_response_id=first["id"], store=False)
            client.turn(call("look") + END, input="x", tools=[tool("look")])
            play_cut(rig, client)
            client.create(input="x", previous_response_id="resp_unknown")
            client.create(input="cut off")
            client.create(input="waits")
            client.disconnect()
        rig.clock.advance(limits.stored_response_ttl_s + 1)
        rig.sweep()
        rig.forget_past()

    play(range(3))
    gc.collect()
    gc.disable()
    try:
        play(range(3, 13))
        assert gc.collect() < 10, "something of each connection waits for the collector"
    finally:
        gc.enable()


@pytest.mark.tail
def test_the_collector_is_told_once() -> None:
    keep_short()
    keep_short()
    assert gc.callbacks.count(collection.set_aside) == 1


def test_an_engine_looks_at_everything_while_nothing_comes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    waited: list[float | None] = []
    quiet: list[int] = []

    def readable(connection: object, wait_s: float | None) -> bool:
        waited.append(wait_s)
        return len(waited) % 3 == 0

    monkeypatch.setattr(engine_process, "_readable", readable)
    collections = WholeCollections(FakeClock())
    monkeypatch.setattr(collections, "quiet", lambda: quiet.append(len(waited)))
    waits = partial(engine_process.readable_or_quiet, cast(socket.socket, None))
    assert waits(None, collections, has_work=False)
    assert waited == [QUIET_S] * 3
    assert quiet == [1, 2]
    assert not waits(QUIET_S, collections, has_work=True)
    assert quiet == [1, 2], "an engine with work to do is not quiet"


def test_an_engine_that_only_looks_after_its_cache_is_quiet(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Branches are told of once a second for as long as they are known."""
    quiet, comes = list[None](), False
    monkeypatch.setattr(engine_process, "_readable", lambda *_: comes)
    collections = WholeCollections(FakeClock())
    monkeypatch.setattr(collections, "quiet", lambda: quiet.append(None))
    waits = partial(
        engine_process.readable_or_quiet, cast(socket.socket, None), QUIET_S / 4, collections
    )
    for _ in range(3):
        assert not waits(has_work=False)
    assert not waits(has_work=True)
    for _ in range(3):
        assert not waits(has_work=False)
    comes = True
    assert waits(has_work=False)
    comes = False
    for _ in range(3):
        assert not waits(has_work=False)
    assert not quiet, "something ran in between"
    assert not waits(has_work=False)
    assert len(quiet) == 1
