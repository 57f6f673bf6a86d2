"""A body is bounded, and its memory is held until it was read or forgotten."""

import pytest

from sessions.wire.arriving import Arriving
from sessions.wire.http_body import DROPPED_BYTES, IncomingBody
from tools_api.errors import ApiError
from tools_api.limits import Limits

CONNECTION = object()


def bounded(most: int) -> tuple[Arriving, IncomingBody]:
    arriving = Arriving(Limits(max_frame_bytes=most))
    return arriving, IncomingBody(arriving)


def test_what_has_come_is_held_until_it_was_read() -> None:
    arriving, body = bounded(10)
    for piece in (b"abc", b"def"):
        body.add(piece, "acme", CONNECTION)
    assert arriving.num_bytes == 6
    assert body.whole() == b"abcdef"
    assert arriving.num_bytes == 6
    body.release()
    assert arriving.num_bytes == 0
    body.add(b"x", "acme", CONNECTION)
    body.forget()
    assert (arriving.num_bytes, body.whole()) == (0, b"")


def test_one_byte_too_many_is_refused_announced_or_not() -> None:
    arriving, body = bounded(3)
    body.check(3)
    body.add(b"abc", "acme", CONNECTION)
    for refused in (lambda: body.check(4), lambda: body.add(b"d", "acme", CONNECTION)):
        with pytest.raises(ApiError) as error:
            refused()
        assert error.value.status == 413
    body.forget()
    assert arriving.num_bytes == 0


def test_so_much_of_a_refused_body_is_dropped_for_each_request() -> None:
    _, body = bounded(3)
    for _ in range(2):
        body.begin()
        assert body.drop(b"x" * DROPPED_BYTES)
        assert not body.drop(b"x")
