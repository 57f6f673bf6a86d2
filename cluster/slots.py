"""The slot that a replica is started for, and the folder of KV that belongs to it.

Whoever starts a replica holds its slot by a lock in the database, which goes with the holder: the
next one finds the lowest that is free, which is that of whoever died. On a host of its own each
slot has a folder, so that a replacement finds the KV that was computed there.

Always true: of two that hold a slot by their own account, one has lost its connection to the
database without having asked since; a folder has one engine at a time, whoever holds the slot.
"""

import fcntl
import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Protocol

from runtime.offload.disk import MARK

FOLDER_WAIT_S = 15.0
"""A process that was killed may take so long to let go of its folder."""
_LOOK_EVERY_S = 0.1


class SlotLock(Protocol):
    """A lock of a slot's. Methods raise JournalUnavailable."""

    def holds(self) -> bool:
        """Whether it is this one's, now."""
        ...

    def leave(self) -> None:
        """Let another one have it."""
        ...


def lock_name(cluster: str, slot: int) -> str:
    """The name of a slot's lock."""
    return f"slot {cluster} {slot}"


def order(slots: Iterable[int], root: Path | None) -> list[int]:
    """In which order slots are asked for: those whose folder is on this host come first.

    Args:
        root: the folder of folders; None: there are none.
    """
    here = {slot for slot in slots if root is not None and slot_folder(root, slot).is_dir()}
    return sorted(slots, key=lambda slot: (slot not in here, slot))


def take_first(
    slots: Iterable[int], lock_of: Callable[[int], SlotLock]
) -> tuple[int, SlotLock] | None:
    """The first slot that nobody holds, with its lock; None: all are held.

    Raises:
        JournalUnavailable: the database cannot be asked.
    """
    for slot in slots:
        lock = lock_of(slot)
        if lock.holds():
            return slot, lock
        lock.leave()
    return None


def slot_folder(root: Path, slot: int) -> Path:
    """The folder for the KV of a slot's server."""
    return root / f"slot-{slot}"


def folder_free(
    folder: Path,
    *,
    clock: Callable[[], float],
    pause: Callable[[float], None],
    wait_s: float = FOLDER_WAIT_S,
) -> bool:
    """Wait until no engine has the folder, for a while; False: one has it still.

    Args:
        clock: monotonic seconds.
        pause: waits so many seconds.
    """
    until = clock() + wait_s
    while _is_used(folder):
        if clock() >= until:
            return False
        pause(_LOOK_EVERY_S)
    return True


def _is_used(folder: Path) -> bool:
    try:
        file = os.open(folder / MARK, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError:
        return False  # the engine says what is wrong with it
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(file)
    return False
