"""Bytes of messages that are still arriving count, and are held to three bounds."""

from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from sessions.wire.arriving import Arriving
from tests.unit.sessions.wire.test_websocket_peer import Bench, beside, run
from tools_api.errors import ApiError
from tools_api.limits import Limits

HEADER = bytes((0x81, 0x80 | 60, 0, 0, 0, 0))
"""Of a masked text frame of sixty bytes."""
BOUNDS = ("max_arriving_per_connection", "max_arriving_per_tenant", "max_arriving_bytes")


@pytest.mark.parametrize("bound", BOUNDS)
def test_a_frame_may_arrive_up_to_the_limit_and_one_byte_beyond_ends_the_connection(
    bound: str,
) -> None:
    async def scenario(bench: Bench) -> None:
        bench.peer.data_received(HEADER)
        bench.peer.data_received(b"x" * 50)
        await bench.settle()
        assert bench.arriving.account.total == 50
        assert bench.close_code is None
        bench.peer.data_received(b"x")
        await bench.settle()
        assert bench.close_code == 1013
        assert bench.arriving.account.total == 0
        assert bench.connection.calls == ["close"]
        bench.peer.data_received(b"x" * 1000)
        assert bench.arriving.account.total == 0, "what still comes is dropped"

    run(scenario, **{bound: 50})


def test_bytes_of_other_connections_and_tenants_count_where_they_should() -> None:
    arriving = Arriving(
        Limits(max_arriving_per_connection=10, max_arriving_per_tenant=20, max_arriving_bytes=30)
    )
    sockets = [object() for _ in range(6)]
    holds = [arriving.hold(*each) for each in zip("aab", sockets, strict=False)]
    for hold in holds:
        hold.resize(10)
    with pytest.raises(ApiError, match="unread messages of this connection hold") as caught:
        holds[0].resize(11)
    assert caught.value.code == "server_is_overloaded"
    with pytest.raises(ApiError, match="of this tenant hold"):
        arriving.hold("a", sockets[3]).resize(1)
    with pytest.raises(ApiError, match="of this server hold"):
        arriving.hold("c", sockets[4]).resize(1)
    holds[0].resize(4)
    arriving.hold("a", sockets[5]).resize(6)
    assert arriving.account.total == 30


def _scenario(*pieces: bytes, left: int) -> Callable[[Bench], Coroutine[Any, Any, None]]:
    async def scenario(bench: Bench) -> None:
        for piece in pieces:
            bench.peer.data_received(piece)
            await bench.settle()
        assert bench.arriving.account.total == left
        bench.peer.connection_lost(None)
        assert bench.arriving.account.total == 0

    return scenario


@pytest.mark.parametrize(
    ("pieces", "left"),
    [
        ((HEADER + b"x" * 60,), 0),
        ((HEADER + b"x" * 59, b"x"), 0),
        ((HEADER + b"x" * 59,), 59),
        ((bytes((0x01, 0x80 | 3, 0, 0, 0, 0)) + b"say",), 3),
        ((bytes((0x01, 0x80 | 3, 0, 0, 0, 0)) + b"say", bytes((0x80, 0x80, 0, 0, 0, 0))), 0),
    ],
    ids=["whole", "in two", "a part", "a fragment", "fragments"],
)
def test_what_has_been_read_counts_no_more(pieces: tuple[bytes, ...], left: int) -> None:
    run(_scenario(*pieces, left=left))


def test_a_frame_that_waits_to_be_read_counts() -> None:
    async def never(_: object) -> Any:
        raise AssertionError("it is not its turn")

    reading = beside(never)

    async def scenario(bench: Bench) -> None:
        async with reading.slots.place("other"):
            bench.send("x" * 40)
            await bench.settle()
            assert bench.arriving.account.total == 40
            bench.peer.connection_lost(None)
            await bench.settle()
            assert bench.arriving.account.total == 0

    run(scenario, reading)


def test_a_client_that_closes_already_is_dropped() -> None:
    async def scenario(bench: Bench) -> None:
        bench.client.send_close(1000)
        bench.flush()
        await bench.settle()
        assert not bench.peer.is_open
        bench.peer.data_received(b"x" * 51)
        assert bench.wire.aborted

    run(scenario, max_arriving_per_connection=50)
