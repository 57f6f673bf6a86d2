"""A client that takes a byte has not stalled."""

import random

import pytest

from sessions.wire.write_stall import WriteStall


@pytest.mark.parametrize("seed", range(5))
def test_seconds_count_from_the_last_look_that_found_fewer_bytes(seed: int) -> None:
    draw, stall = random.Random(seed), WriteStall()
    now, unsent, since = 0.0, 0, None
    for _ in range(200):
        now += draw.random()
        match draw.choice(("begin", "end", "look", "look")):
            case "begin":
                unsent, since = draw.randrange(1000), now
                stall.begin(now, unsent)
            case "end":
                since = None
                stall.end()
            case _:
                taken = draw.choice((0, 0, 1))
                if taken and since is not None:
                    unsent, since = unsent - taken, now
                assert stall.seconds(now, unsent) == (0.0 if since is None else now - since)
        assert stall.stalled is (since is not None)
