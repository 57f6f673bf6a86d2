"""Sessions in the order of their last activity, for whoever lists them.

Knows of each nothing but a time and a name. To find or to move one costs some comparisons, however
many there are.

Always true: they are sorted, as long as nobody changes the time of one that is here.
"""

from bisect import bisect_left, insort
from collections.abc import Iterator
from typing import Generic, Protocol, TypeVar


class Active(Protocol):
    """Something that has a place in the order; names differ."""

    name: str
    last_active_s: float


T = TypeVar("T", bound=Active)


class ByActivity(Generic[T]):
    """Mutable; whoever changes a time removes what has it first and adds it afterwards."""

    def __init__(self) -> None:
        self._sorted: list[T] = []

    def __len__(self) -> int:
        return len(self._sorted)

    def add(self, each: T) -> None:
        """One that is not here."""
        insort(self._sorted, each, key=_key)

    def remove(self, each: T) -> None:
        """One that is here."""
        place = bisect_left(self._sorted, _key(each), key=_key)
        assert self._sorted[place] is each
        del self._sorted[place]

    def newest(self) -> Iterator[T]:
        """The most recently active first."""
        return reversed(self._sorted)


def _key(each: Active) -> tuple[float, str]:
    return each.last_active_s, each.name
