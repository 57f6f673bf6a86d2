"""Which tensors of the pool hold what layers of attention keep, and where. No torch here.

Layers whose keys and values are of one shape lie in one tensor, a group. Of a model whose rows
behind windows are given back (``radix_cache.window_rows``), layers with a window are in groups of
their own, which have fewer blocks. What layers keep beside keys and values, index keys or entries
that stand for several tokens, is in groups of all blocks.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from runtime.model.kv_shape import KVShape


class KeepsRows(Protocol):
    """A layer of attention, as far as it is asked here."""

    @property
    def kv_shape(self) -> KVShape: ...

    @property
    def beside(self) -> KVShape | None:
        """The room of rows that are kept beside keys and values, however far behind; None: there
        are none."""
        ...

    @property
    def shares(self) -> int | None: ...

    @property
    def window(self) -> int | None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class KVGroup:
    """Layers of attention whose keys and values are of one shape, so that one tensor has them."""

    shape: KVShape
    layers: int
    """How many they are."""
    windowed: bool = False
    """Their rows behind windows are given back."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KVLayout:
    """The groups of a model's pool, and the places of its layers in them."""

    groups: tuple[KVGroup, ...]
    """In the order of the groups' first layers, what lies beside keys and values last; layers that
    share another's keep nothing."""
    places: tuple[tuple[int, int], ...]
    """Of each layer of attention, the group that its keys and values are in, and its place there;
    that of another where it shares that one's."""
    beside_places: tuple[tuple[int, int] | None, ...]
    """The same of rows that lie beside a layer's keys and values; None: there are none."""

    @property
    def windowed(self) -> tuple[bool, ...]:
        """Whether the rows of each layer of attention are given back behind its window."""
        return tuple(self.groups[group].windowed for group, _ in self.places)


def kv_layout(attention: Sequence[KeepsRows], *, apart: bool = False) -> KVLayout:
    """Lay out what layers of attention keep; ``apart``: those with a window in groups of their
    own."""
    keys = [(mixer.kv_shape, apart and mixer.window is not None) for mixer in attention]
    own = [key for key, mixer in zip(keys, attention, strict=True) if mixer.shares is None]
    own += [(shape, False) for mixer in attention if (shape := mixer.beside) is not None]
    kinds = list(dict.fromkeys(own))
    taken = [0] * len(kinds)
    places: list[tuple[int, int]] = []
    for key, mixer in zip(keys, attention, strict=True):
        if mixer.shares is not None:
            places.append(places[mixer.shares])
            continue
        group = kinds.index(key)
        places.append((group, taken[group]))
        taken[group] += 1
    beside_places: list[tuple[int, int] | None] = []
    for mixer in attention:
        if mixer.beside is None:
            beside_places.append(None)
            continue
        group = kinds.index((mixer.beside, False))
        beside_places.append((group, taken[group]))
        taken[group] += 1
    return KVLayout(
        groups=tuple(
            KVGroup(shape=shape, layers=own.count((shape, windowed)), windowed=windowed)
            for shape, windowed in kinds
        ),
        places=tuple(places),
        beside_places=tuple(beside_places),
    )
