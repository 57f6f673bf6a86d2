"""The simulation of placement: the seed decides, sessions come home, a ring is a ring."""

from pathlib import Path

import pytest

from benchmarks.placement import POLICIES, SMALL, Ring, least_kv, least_sockets, play
from benchmarks.placement_world import Scene, World

SCENE = SMALL["60_on_4"]


def figures(policy: str, seed: int = 0, scene: Scene = SCENE) -> dict[str, dict[str, float]]:
    found = play(scene, policy, seed)
    del found["took_s"]
    return found


def test_the_seed_decides_everything() -> None:
    assert figures("least_sockets") == figures("least_sockets")
    assert figures("least_sockets") != figures("least_sockets", seed=1)


@pytest.mark.parametrize("policy", sorted(set(POLICIES) - {"none"}))
def test_without_losses_every_turn_finds_its_sessions_server(policy: str) -> None:
    found = figures(policy, scene=Scene(servers=4, sessions=60, seconds=400.0, losses=0))
    assert found["quiet"]["hit_ratio"] > 0.9
    assert found["losses"]["moved_turns"] <= 12  # those whose KV was evicted
    assert figures("none")["quiet"]["hit_ratio"] < 0.5


def test_folders_keep_what_was_computed_over_an_update() -> None:
    quiet = {"servers": 4, "sessions": 60, "seconds": 800.0, "losses": 0}
    warm = figures("least_sockets", scene=Scene(**quiet, folders=True))["update"]
    cold = figures("least_sockets", scene=Scene(**quiet, folders=False))["update"]
    assert warm["hit_ratio"] > cold["hit_ratio"]


def test_the_least_is_chosen_of_those_that_are_open(tmp_path: Path) -> None:
    world = World(SCENE, least_sockets, tmp_path, seed=0)
    world.weights[1:] = [0, 100, 100, 50]
    world.sockets[1:] = [0, 7, 5, 3]
    world.kv[1:] = [0, 10, 90, 20]
    assert least_sockets(world, "k") == 3  # the last one counts twice
    assert least_kv(world, "k") == 2


def test_a_ring_leaves_keys_where_they_are_when_a_server_goes(tmp_path: Path) -> None:
    world, ring = World(SCENE, least_sockets, tmp_path, seed=0), Ring(4)
    world.weights[1:] = 100
    before = {f"k{n}": ring(world, f"k{n}") for n in range(400)}
    world.weights[2] = 0
    after = {key: ring(world, key) for key in before}
    assert {at for key, at in after.items() if before[key] == 2} == {1, 3, 4}
    assert all(after[key] == at for key, at in before.items() if at != 2)
