"""Orders on memory below the device, as bytes: what was said arrives, anything else is refused."""

import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from radix_cache.nodes import Tier
from radix_cache.snapshots import SnapshotKind, StateContent
from radix_cache.transfers import BlockMove, Content, RunContent
from runtime.model.rank_link import RoomBelow
from runtime.offload.disk import MARK_BYTES
from runtime.process.frames import FrameError
from runtime.process.move_messages import (
    MoveLimits,
    MoveOrder,
    encode_move,
    encode_room,
    read_move,
    read_room,
)
from tests.support.step_orders import reader

LIMITS = MoveLimits(
    kv={Tier.DEVICE: 40, Tier.HOST: 30, Tier.DISK: 50},
    states={Tier.DEVICE: 9, Tier.HOST: 7, Tier.DISK: 8},
    near={Tier.DEVICE: 0, Tier.HOST: 0, Tier.DISK: 50},
    block_size=4,
    vocab_size=272,
)
WINDOWS = replace(LIMITS, near={Tier.DEVICE: 12, Tier.HOST: 11, Tier.DISK: 50})
Ids = np.ndarray[Any, np.dtype[np.int32]]
WAYS = (
    (Tier.DEVICE, Tier.HOST),
    (Tier.HOST, Tier.DEVICE),
    (Tier.DEVICE, Tier.DISK),
    (Tier.HOST, Tier.DISK),
    (Tier.DISK, Tier.HOST),
)


def random_near(rng: random.Random, count: int, *tiers: Tier) -> list[Ids]:
    """Places of rows of some of so many blocks, on either side of a move."""
    along = [rng.random() < 0.5 for _ in range(count)]
    most = min(WINDOWS.near[tier] for tier in tiers)
    along = [each and sum(along[:at]) < most for at, each in enumerate(along)]
    found = []
    for tier in tiers:
        places = iter(rng.sample(range(WINDOWS.near[tier]), most))
        found.append(ids(*(next(places) if each else -1 for each in along)))
    return found


def random_move(rng: random.Random, *, windows: bool = False) -> MoveOrder:
    """``windows``: with places of rows of layers with a window."""
    states = rng.random() < 0.4
    there = LIMITS.states if states else LIMITS.kv
    source, target = rng.choice(WAYS)
    count = 1 if states else rng.randint(1, min(there[source], there[target]))
    key, tenant = rng.randbytes(16), rng.choice(["", "red", "grün"])
    content: Content | None = None
    if target == Tier.DISK and states:
        content = StateContent(
            tenant=tenant,
            kind=rng.choice(list(SnapshotKind)),
            blocks=rng.randrange(100),
            key=key,
            tail=tokens(rng, rng.randrange(4)),
        )
    elif target == Tier.DISK:
        content = RunContent(
            tenant=tenant,
            position=rng.randrange(100),
            parent_key=key,
            tokens=tokens(rng, count * LIMITS.block_size),
        )
    near: list[Ids | None] = [None, None]
    if windows and not states:
        near = [*random_near(rng, count, source, target)]
    return MoveOrder(
        move=BlockMove(
            source_near=near[0],
            target_near=near[1],
            number=rng.randrange(1 << 40),
            source=source,
            target=target,
            source_blocks=np.array(rng.sample(range(there[source]), count), dtype=np.int32),
            target_blocks=np.array(rng.sample(range(there[target]), count), dtype=np.int32),
            content=content,
        ),
        of_states=states,
        marks=tuple(rng.randbytes(MARK_BYTES) for _ in range(count)) if source == Tier.DISK else (),
    )


def tokens(rng: random.Random, count: int) -> np.ndarray[Any, np.dtype[np.int32]]:
    return np.array([rng.randrange(272) for _ in range(count)], dtype=np.int32)


def plain(order: MoveOrder) -> dict[str, object]:
    """What an order says, without arrays, which do not compare."""
    move, content = order.move, order.move.content
    said: dict[str, object] = {
        "head": (move.number, move.source, move.target, order.of_states, order.marks),
        "ids": (move.source_blocks.tolist(), move.target_blocks.tolist()),
        "near": [None if side is None else side.tolist() for side in near_of(move)],
    }
    if isinstance(content, RunContent):
        said["run"] = content.tenant, content.position, content.parent_key, content.tokens.tolist()
    elif content is not None:
        said["state"] = content.tenant, content.kind, content.blocks, content.key
        said["tail"] = content.tail.tolist()
    return said


def near_of(move: BlockMove) -> tuple[Ids | None, Ids | None]:
    return move.source_near, move.target_near


def test_what_was_said_arrives(request: pytest.FixtureRequest) -> None:
    rng = random.Random(request.config.getoption("--seed"))
    for _ in range(500):
        windows = rng.random() < 0.5
        order = random_move(rng, windows=windows)
        limits = WINDOWS if windows else LIMITS
        assert plain(read_move(reader(encode_move(order)), limits)) == plain(order)


def test_whatever_is_spoilt_names_what_is_there_or_is_refused(
    request: pytest.FixtureRequest,
) -> None:
    rng, refused = random.Random(request.config.getoption("--seed")), 0
    for _ in range(3000):
        windows = rng.random() < 0.5
        limits = WINDOWS if windows else LIMITS
        data = bytearray(encode_move(random_move(rng, windows=windows)))
        for _ in range(rng.randint(1, 4)):
            data[rng.randrange(len(data))] = rng.choice([0, 1, 2, 39, 127, 255, rng.randrange(256)])
        if rng.random() < 0.2:
            del data[rng.randrange(len(data)) :]
        try:
            order = read_move(reader(bytes(data)), limits)
        except (FrameError, EOFError):
            refused += 1
            continue
        move = order.move
        there = LIMITS.states if order.of_states else LIMITS.kv
        for tier, ids in ((move.source, move.source_blocks), (move.target, move.target_blocks)):
            assert ids.min() >= 0
            assert ids.max() < there[tier]
            assert len(np.unique(ids)) == len(ids)
        assert len(move.source_blocks) == len(move.target_blocks)
        _check_near(order, limits)
        assert (move.content is not None) == (move.target == Tier.DISK)
        assert len(order.marks) == (len(move.source_blocks) if move.source == Tier.DISK else 0)
        if isinstance(move.content, RunContent):
            assert len(move.content.tokens) == 4 * len(move.source_blocks)
    assert refused > 500


def _check_near(order: MoveOrder, limits: MoveLimits) -> None:
    """Rows go along from places that are there, to such, each once; or nobody has any."""
    move = order.move
    there = limits is WINDOWS and not order.of_states
    assert (move.source_near is not None) == (move.target_near is not None) == there
    along = []
    for tier, places in ((move.source, move.source_near), (move.target, move.target_near)):
        if places is None:
            continue
        held = places[places >= 0]
        along.append((places >= 0).tolist())
        assert places.min() >= -1
        assert places.max() < limits.near[tier]
        assert len(np.unique(held)) == len(held)
    assert not along or along[0] == along[1]


def down(**more: object) -> MoveOrder:
    said: dict[str, Any] = {
        "number": 0,
        "source": Tier.DEVICE,
        "target": Tier.HOST,
        "source_blocks": np.array([3, 4], dtype=np.int32),
        "target_blocks": np.array([0, 1], dtype=np.int32),
        "content": None,
    }
    order = {name: more.pop(name) for name in ("of_states", "marks") if name in more}
    return MoveOrder(move=BlockMove(**said | more), **{"of_states": False} | order)  # type: ignore[arg-type]


def ids(*numbers: int) -> Ids:
    return np.array(numbers, dtype=np.int32)


RUN = RunContent(tenant="t", position=0, parent_key=bytes(16), tokens=np.zeros(8, dtype=np.int32))
WRONG: dict[str, Callable[[], MoveOrder]] = {
    "to itself": lambda: down(target=Tier.DEVICE),
    "up from the disk at once": lambda: down(source=Tier.DISK, target=Tier.DEVICE),
    "a number below none": lambda: down(number=-1),
    "no block": lambda: down(source_blocks=ids(), target_blocks=ids()),
    "a block beyond the device": lambda: down(source_blocks=ids(3, 40)),
    "a row beyond the host": lambda: down(target_blocks=ids(0, 30)),
    "a block twice": lambda: down(source_blocks=ids(3, 3)),
    "two states": lambda: down(of_states=True),
    "marks of what is on the device": lambda: down(marks=(bytes(17), bytes(17))),
    "rows of windows that nobody has": lambda: down(source_near=ids(1, 2), target_near=ids(1, 2)),
    "no marks from the disk": lambda: down(source=Tier.DISK),
    "to the disk without content": lambda: down(target=Tier.DISK),
    "content, and not to the disk": lambda: down(content=RUN),
    "a state to the disk as a run": lambda: down(
        target=Tier.DISK, of_states=True, source_blocks=ids(3), target_blocks=ids(0), content=RUN
    ),
}


@pytest.mark.parametrize(
    ("source", "target"),
    [
        (None, None),
        (ids(1, 12), ids(1, 2)),
        (ids(1, 2), ids(1, 11)),
        (ids(1, -2), ids(1, -2)),
        (ids(3, 3), ids(1, 2)),
        (ids(1, -1), ids(1, 2)),
        (ids(1, 2), ids(-1, 2)),
    ],
)
def test_rows_of_windows_that_cannot_go_along_are_refused(
    source: Ids | None, target: Ids | None
) -> None:
    whole = down(source_near=ids(1, -1), target_near=ids(4, -1))
    assert plain(read_move(reader(encode_move(whole)), WINDOWS)) == plain(whole)
    bad = encode_move(down(source_near=source, target_near=target))
    with pytest.raises(FrameError, match=r"of (a window|windows) "):
        read_move(reader(bad), WINDOWS)


@pytest.mark.parametrize("what", WRONG)
def test_what_no_move_is_told_with_is_refused(what: str) -> None:
    with pytest.raises(FrameError):
        read_move(reader(encode_move(WRONG[what]())), LIMITS)


def test_a_token_out_of_the_vocabulary_is_refused() -> None:
    content = RunContent(
        tenant="t",
        position=0,
        parent_key=bytes(16),
        tokens=np.full(8, LIMITS.vocab_size, dtype=np.int32),
    )
    with pytest.raises(FrameError, match="vocabulary"):
        read_move(reader(encode_move(down(target=Tier.DISK, content=content))), LIMITS)


def test_a_mark_that_is_not_known_is_one_that_nothing_has() -> None:
    order = down(source=Tier.DISK, source_blocks=ids(3), target_blocks=ids(1), marks=(b"",))
    assert read_move(reader(encode_move(order)), LIMITS).marks == (bytes(MARK_BYTES),)


def test_room_below_arrives_and_none_at_all_is_refused() -> None:
    room = RoomBelow(host_blocks=3, host_states=1, disk_blocks=1 << 33)
    assert read_room(reader(encode_room(room))) == room
    for bad in (RoomBelow(), RoomBelow(host_blocks=1, disk_states=-1)):
        with pytest.raises(FrameError):
            read_room(reader(encode_room(bad)))
