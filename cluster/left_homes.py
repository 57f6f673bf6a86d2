"""Homes of sessions whose server has left its slot, kept for who comes to the slot next.

While a server drains, its sessions are cleared from the balancer's table, so that nobody new comes.
Its replacement stands in the same slot and may have its KV: those that went nowhere else meanwhile
come home to it. A line of the file is a slot's number and a key.

Always true: what was kept is given once, as long as it was saved; a file that cannot be read is
none.
"""

import logging
import os
from collections.abc import Callable, Iterable
from pathlib import Path

log = logging.getLogger(__name__)

KEEP_S = 7200.0
"""As long as the balancer's table remembers a session that says nothing."""
MOST_KEYS = 100_000
"""Most sessions of one slot that are kept."""


class LeftHomes:
    """Those of one cluster. Only the balancer's loop uses it."""

    def __init__(self, path: Path, clock: Callable[[], float]) -> None:
        """``clock``: monotonic seconds."""
        self._path = path
        self._clock = clock
        self._changed = False
        self._by_slot: dict[int, tuple[float, dict[str, None]]] = {}
        """When each slot was left, and the keys."""
        for slot, key in _read(path):
            self._by_slot.setdefault(slot, (clock(), {}))[1][key] = None

    def keep(self, slot: int, keys: Iterable[str]) -> None:
        """These were at home in a slot that is being left; with those that were kept before."""
        now = self._clock()
        _, kept = self._by_slot.get(slot, (now, {}))
        before = len(kept)
        for key in keys:
            if len(kept) < MOST_KEYS:
                kept[key] = None
        if len(kept) > before:
            self._by_slot[slot] = (now, kept)
            self._changed = True

    def take(self, slot: int) -> list[str]:
        """The keys that were kept for whoever comes to the slot, unless that is too long ago."""
        if slot not in self._by_slot:
            return []
        left_at_s, keys = self._by_slot.pop(slot)
        self._changed = True
        return list(keys) if self._clock() - left_at_s <= KEEP_S else []

    def save(self) -> None:
        """Write the file, if anything has changed. A disk that is full costs the file alone."""
        if not self._changed:
            return
        self._changed = False
        new = self._path.with_suffix(".new")
        lines = (f"{slot} {key}\n" for slot, (_, kept) in self._by_slot.items() for key in kept)
        try:
            new.write_text("".join(lines))
            os.replace(new, self._path)
        except OSError as error:
            log.warning("the homes of who left cannot be saved reason=%s", error.strerror)


def _read(path: Path) -> list[tuple[int, str]]:
    try:
        lines = path.read_text().splitlines()
    except (OSError, UnicodeDecodeError):
        return []
    pairs = (line.split(" ") for line in lines)
    return [
        (int(pair[0]), pair[1])
        for pair in pairs
        if len(pair) == 2 and pair[0].isascii() and pair[0].isdecimal() and pair[1].isalnum()
    ]
