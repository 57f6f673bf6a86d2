"""Order and bounds of lanes."""

import random
from collections import defaultdict

import pytest

from sessions.turns.lanes import Lane, Lanes


def lane_of(lanes: Lanes[int], stream_id: str | None) -> Lane[int]:
    lane = lanes.find(stream_id)
    assert lane is not None
    return lane


def test_the_default_lane_is_no_name() -> None:
    lanes: Lanes[int] = Lanes(max_names=2, max_active=4)
    assert all(lanes.find(name) is not None for name in (None, "a", "b"))
    assert lanes.find("c") is None
    assert lanes.find("a") is lanes.find("a")


def test_a_name_is_not_taken_by_looking_for_it() -> None:
    lanes: Lanes[int] = Lanes(max_names=1, max_active=4)
    assert lanes.known("a") is None
    assert lanes.find("b") is not None


def test_what_waits_is_dropped_in_the_order_of_arrival() -> None:
    lanes: Lanes[int] = Lanes(max_names=2, max_active=4)
    for number, name in enumerate(["a", None, "b", "a"]):
        lanes.add(lane_of(lanes, name), number)
    assert [request for _, request in lanes.drop_waiting()] == [0, 1, 2, 3]
    assert (lanes.num_waiting, lanes.next()) == (0, None)


@pytest.mark.parametrize("seed", range(20))
def test_lanes_keep_order_and_bounds_under_random_use(seed: int) -> None:
    rng = random.Random(seed)
    lanes: Lanes[int] = Lanes(max_names=3, max_active=2)
    waiting: dict[str | None, list[int]] = defaultdict(list)  # the model
    active: dict[str | None, Lane[int]] = {}
    for number in range(300):
        if rng.random() < 0.5:
            name = rng.choice([None, "a", "b", "c"])
            lanes.add(lane_of(lanes, name), number)
            waiting[name].append(number)
        elif active and rng.random() < 0.5:
            lanes.done(active.pop(rng.choice(list(active))))
        ready = [w[0] for name, w in waiting.items() if w and name not in active]
        taken = lanes.next()
        if ready and len(active) < 2:
            assert taken is not None
            lane, request = taken
            assert request == min(ready) == waiting[lane.stream_id].pop(0)
            active[lane.stream_id] = lane
        else:
            assert taken is None
        assert lanes.num_active == len(active)
        assert lanes.num_waiting == sum(map(len, waiting.values()))
