"""A stream sends everything once and then what changed; who does not read gets nothing queued."""

import asyncio
from collections.abc import Callable

import orjson

from sessions.http.exchange import started
from sessions.pages.event_stream import (
    CONTENT_TYPE,
    HEARTBEAT_S,
    MAX_UNSENT_BYTES,
    EventStream,
    Parts,
    changes,
)
from tests.support.exchange import KeptExchange


class Watched:
    """A stream over parts that the test changes."""

    def __init__(self) -> None:
        self.exchange = KeptExchange()
        self.parts: Parts | None = {"a": b"1"}
        self.looks = 0
        self.waiting: list[Callable[[], None]] = []
        self.in_turn: Callable[[Callable[[], None]], None] = lambda call: call()
        self.stream = EventStream(
            self.exchange,
            parts=self._look,
            in_turn=self._in_turn,
            now=0.0,
        )

    def _in_turn(self, call: Callable[[], None]) -> None:
        self.in_turn(call)

    def _look(self) -> Parts | None:
        self.looks += 1
        return self.parts

    def close(self) -> None:
        """Nobody waits for the stream's end any more."""

        async def leave() -> None:
            task = started(self.stream.ended())
            assert task is not None
            task.cancel()
            await asyncio.wait([task])

        asyncio.run(leave())

    def news(self) -> list[object]:
        text = b"".join(self.exchange.writes).decode()
        blocks = [block for block in text.split("\n\n") if block]
        data = [line for block in blocks for line in block.split("\n") if line.startswith("data:")]
        return [orjson.loads(line.removeprefix("data: ")) for line in data]


def test_changes_name_what_is_new_and_what_is_gone() -> None:
    assert changes({}, {}) == b""
    assert changes({"a": b"1"}, {"a": b"1"}) == b""
    found = orjson.loads(changes({"a": b"1", "b": b"2"}, {"a": b"3", 's["x"]': b"{}"}))
    assert found == {"a": 3, 's["x"]': {}, "b": None}


def test_all_parts_come_first_then_those_that_changed() -> None:
    watched = Watched()
    assert watched.exchange.content_type == CONTENT_TYPE
    watched.parts = {"a": b"1", "b": b"2"}
    watched.stream.tick(1.0)
    watched.stream.tick(2.0)
    assert watched.news() == [{"a": 1}, {"b": 2}]


def test_a_view_is_made_in_its_turn_however_often_time_passes_before() -> None:
    watched = Watched()
    watched.in_turn = watched.waiting.append
    watched.parts = {"a": b"2"}
    for number in range(1, 4):
        watched.stream.tick(float(number))
    assert (watched.looks, len(watched.waiting)) == (1, 1)
    watched.waiting.pop()()
    assert watched.news() == [{"a": 1}, {"a": 2}]
    watched.stream.tick(4.0)
    watched.close()
    watched.waiting.pop()()
    assert watched.looks == 2, "nobody looks at it any more"


def test_silence_is_broken_by_a_heartbeat() -> None:
    watched = Watched()
    watched.stream.tick(HEARTBEAT_S - 1)
    assert len(watched.exchange.writes) == 1
    watched.stream.tick(HEARTBEAT_S)
    assert watched.exchange.writes[1].startswith(b":")
    assert watched.exchange.writes[1].endswith(b"\n\n")


def test_a_page_that_does_not_read_is_skipped_and_gets_the_newest_later() -> None:
    watched = Watched()
    watched.exchange.reads = False
    watched.parts = {"a": b'"' + b"x" * MAX_UNSENT_BYTES + b'"'}
    watched.stream.tick(1.0)
    for number in range(2, 50):
        watched.parts = {"a": str(number).encode()}
        watched.stream.tick(float(number))
    assert len(watched.exchange.writes) == 2
    watched.exchange._unsent = 0
    watched.stream.tick(50.0)
    assert watched.news()[-1] == {"a": 49}


def test_it_says_goodbye_when_the_view_may_not_be_seen_any_more() -> None:
    watched = Watched()
    watched.parts = None
    watched.stream.tick(1.0)
    watched.stream.tick(2.0)
    asyncio.run(watched.stream.ended())
    assert watched.exchange.over
    assert watched.exchange.writes[-1].startswith(b"event: bye")


def test_a_closed_page_ends_it() -> None:
    watched = Watched()
    watched.close()
    watched.stream.tick(1.0)
    assert len(watched.exchange.writes) == 1
