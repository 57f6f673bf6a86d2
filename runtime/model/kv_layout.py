"""Which tensors of the pool hold what layers of attention keep, and where. No torch here.

Layers whose keys and values are of one shape lie in one tensor, a group. Of a model whose rows
behind windows are given back (``radix_cache.window_rows``), layers with a window are in groups of
their own, which have fewer blocks.
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
    def index_shape(self) -> KVShape | None: ...

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
    """In the order of the groups' first layers, index keys last; layers that share another's keep
    nothing."""
    places: tuple[tuple[int, int], ...]
    """Of each layer of attention, the group that its keys and values are in, and its place there;
    that of another where it shares that one's."""
    index_places: tuple[tuple[int, int] | None, ...]
    """The same of the index keys that lie beside a layer's keys and values; None: it has none
    such."""

    @property
    def windowed(self) -> tuple[bool, ...]:
        """Whether the rows of each layer of attention are given back behind its window."""
        return tuple(self.groups[group].windowed for group, _ in self.places)


def kv_layout(attention: Sequence[KeepsRows], *, apart: bool = False) -> KVLayout:
    """Lay out what layers of attention keep; ``apart``: those with a window in groups of their
    own."""
    keys = [(mixer.kv_shape, apart and mixer.window is not None) for mixer in attention]
    own = [key for key, mixer in zip(keys, attention, strict=True) if mixer.shares is None]
    own += [(shape, False) for mixer in attention if (shape := mixer.index_shape) is not None]
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
    index_places: list[tuple[int, int] | None] = []
    for mixer in attention:
        place = sum(each is not None for each in index_places)
        shape = mixer.index_shape
        index_places.append(None if shape is None else (kinds.index((shape, False)), place))
    return KVLayout(
        groups=tuple(
            KVGroup(shape=shape, layers=own.count((shape, windowed)), windowed=windowed)
            for shape, windowed in kinds
        ),
        places=tuple(places),
        index_places=tuple(index_places),
    )
