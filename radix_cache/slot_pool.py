"""State slots: which ids are free, and what each of the others holds.

A slot is memory for the state of recurrent layers after some prefix; this module handles ids only.
Always true: free + running + snapshots == slots, and a slot is one of the three.
"""

from typing import Final, Literal

Use = Literal["free", "running", "snapshot"]

NO_SLOT: Final = -1


class OutOfSlots(Exception):
    """No state slot can be had. The caller waits and asks again; nothing has changed."""


class SlotPool:
    """Slots ``0 .. num_slots - 1`` of one tier."""

    def __init__(self, num_slots: int) -> None:
        self.num_slots = num_slots
        self._free = list(range(num_slots))[::-1]
        self._uses: list[Use] = ["free"] * num_slots
        self.counts: dict[Use, int] = {"free": num_slots, "running": 0, "snapshot": 0}

    @property
    def num_free(self) -> int:
        return len(self._free)

    def take(self, use: Use) -> int:
        """A free slot.

        Raises:
            OutOfSlots: there is none.
        """
        if not self._free:
            raise OutOfSlots(f"none of {self.num_slots} state slots is free")
        slot = self._free.pop()
        self._change(slot, "free", use)
        return slot

    def turn(self, slot: int, before: Use, after: Use) -> None:
        """Change what a slot is used for: a sequence donates its slot, or gets one back."""
        self._change(slot, before, after)

    def release(self, slot: int, before: Use) -> None:
        """Take a slot back."""
        self._change(slot, before, "free")
        self._free.append(slot)

    def _change(self, slot: int, before: Use, after: Use) -> None:
        if self._uses[slot] != before:
            raise ValueError(f"slot {slot} is {self._uses[slot]}, not {before}")
        self._uses[slot] = after
        self.counts[before] -= 1
        self.counts[after] += 1

    def check(self, *, running: list[int], snapshots: list[int]) -> None:
        """AssertionError where these are not the slots in use."""
        assert sum(self.counts.values()) == self.num_slots, f"slots {self.counts}"
        together = sorted([*self._free, *running, *snapshots])
        assert together == list(range(self.num_slots)), "a slot lost or doubled"
        found: dict[Use, list[int]]
        found = {"free": self._free, "running": running, "snapshot": snapshots}
        for use, slots in found.items():
            assert all(self._uses[slot] == use for slot in slots), f"a slot that is not {use}"
            assert self.counts[use] == len(slots), f"{self.counts[use]} {use}, found {len(slots)}"
