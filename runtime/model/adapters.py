"""The adapters of a model in memory, and which rows of a step each is for.

The decoder's linear maps ask for their part while they are loaded. Which adapters a step has is
noted before its layers run and is the same for all of them.
"""

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

import torch
from torch import Tensor

from kernels.low_rank import LowRankMaps, RowAdapters, joined_low_rank
from runtime.config import AdapterSource
from runtime.messages import AdapterInfo
from runtime.model.adapter_folder import AdapterFolder
from runtime.model.config import LoadError

_LOG = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class MapPlace:
    """Where a linear map of the decoder is in a checkpoint, whatever is kept together there."""

    module: str
    outputs: int
    """All of the module's, others' among them."""
    own: int
    """The map's alone, on all ranks."""
    inputs: int
    """On all ranks."""
    rows: slice | Tensor | None = None
    """Which of the module's outputs are the map's; None: all."""
    part: Callable[[Tensor, int], Tensor] | None = None
    """From a matrix along an axis of the map's, outputs (0) or inputs (1), to what a rank has;
    None: all of it."""


class PlacesMaps(Protocol):
    """Knows where linear maps are in a checkpoint."""

    def place(self, name: str, outputs: int, inputs: int) -> MapPlace:
        """The place of a map by the decoder's name, without ``.weight``; sizes are this rank's."""
        ...


class StepAdapters:
    """The adapters of the step that is computed."""

    def __init__(self) -> None:
        self.rows: RowAdapters | None = None
        """None: no row has one."""
        self.num_rows = 0

    @contextmanager
    def of_step(self, rows: RowAdapters | None, num_rows: int) -> Iterator[None]:
        """For the length of a step: which rows have which adapter; None: none has one."""
        self.rows, self.num_rows = rows, num_rows
        try:
            yield
        finally:
            self.rows = None


class AdaptedPart:
    """The part of all adapters in one map of the decoder."""

    def __init__(self, maps: LowRankMaps, step: StepAdapters) -> None:
        self._maps = maps
        self._step = step

    def add(self, result: Tensor, x: Tensor) -> None:
        """Add it to ``result`` [T, outputs] of ``x`` [T, inputs], both of all of a step's tokens.

        Raises:
            ValueError: they are of some of its tokens.
        """
        rows = self._step.rows
        if rows is None:
            return
        if len(x) != self._step.num_rows:
            raise ValueError(f"{len(x)} rows of a step of {self._step.num_rows} have adapters")
        self._maps.add(result, x, rows)


class AdapterSet:
    """All adapters of a model, by number in the order in which they were given."""

    def __init__(
        self, sources: Sequence[AdapterSource], dtype: torch.dtype, device: torch.device
    ) -> None:
        """Open and check the folders.

        Raises:
            LoadError: one cannot be served.
        """
        self._folders = [look_at(source) for source in sources]
        self._names = [source.name for source in sources]
        self.dtype = dtype
        self.device = device
        self._num_bytes = [0] * len(sources)
        self._place: PlacesMaps | None = None
        self.step = StepAdapters()

    def __len__(self) -> int:
        return len(self._folders)

    def are_of(self, places: PlacesMaps) -> None:
        """Take parts by where the maps are in this checkpoint."""
        self._place = places

    def part(
        self,
        names: Sequence[str],
        outputs: Sequence[int],
        inputs: int,
        orders: Sequence[Tensor | None] | None = None,
    ) -> AdaptedPart | None:
        """What adapters add to maps of the same input, whose results lie side by side; None:
        nothing.

        Args:
            names: as the decoder calls them.
            outputs: of each as the decoder loads it.
            orders: which of a map's outputs are kept, int64, where not all in their order.

        Raises:
            LoadError: an adapter's matrices are of another shape.
        """
        if not self._folders:
            return None
        assert self._place is not None
        places = [
            self._place.place(name, size, inputs) for name, size in zip(names, outputs, strict=True)
        ]
        orders = orders or [None] * len(names)
        kept = [
            size if order is None else len(order)
            for size, order in zip(outputs, orders, strict=True)
        ]
        firsts = [sum(kept[:place]) for place in range(len(kept))]
        found = {}
        for number, folder in enumerate(self._folders):
            maps = []
            for name, first, place, order in zip(names, firsts, places, orders, strict=True):
                found_place = _found(folder, name, place)
                if found_place is not None:
                    maps.append((first, *self._own(folder, found_place, order)))
            if maps:
                found[number] = joined_low_rank(maps)
                self._num_bytes[number] += found[number].num_bytes
        return AdaptedPart(LowRankMaps(found, len(self._folders)), self.step) if found else None

    def _own(
        self, folder: AdapterFolder, place: MapPlace, order: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        down, up = folder.matrices(place.module, place.outputs, place.inputs)
        up = up if place.rows is None else up[place.rows]
        if place.part is not None:
            down, up = place.part(down, 1), place.part(up, 0)
        if order is not None:
            up = up[order]
        moved = (each.to(self.device, self.dtype).contiguous() for each in (down, up))
        down, up = moved
        return down, up

    def finish(self) -> tuple[AdapterInfo, ...]:
        """The adapters as they are in memory; nothing is loaded any more.

        Raises:
            LoadError: one changes what the model does not have.
        """
        infos = []
        for name, folder, num_bytes in zip(
            self._names, self._folders, self._num_bytes, strict=True
        ):
            folder.check_all_taken()
            infos.append(
                AdapterInfo(
                    name=name,
                    digest=folder.digest(),
                    rank=folder.summary.rank,
                    num_bytes=num_bytes,
                )
            )
            _LOG.info("adapter loaded name=%s rank=%d bytes=%d", name, infos[-1].rank, num_bytes)
        self._folders = []
        return tuple(infos)


def _found(folder: AdapterFolder, name: str, place: MapPlace) -> MapPlace | None:
    """Where an adapter has a map's part: under the checkpoint's name, or as the class of
    ``transformers`` calls it, by itself; None: nowhere."""
    if place.module in folder:
        return place
    for other in (name, name.replace(".linear_attn.", ".self_attn.")):
        if other in folder:
            return replace(place, module=other, outputs=place.own, rows=None)
    return None


def look_at(source: AdapterSource) -> AdapterFolder:
    """An adapter's folder, checked as far as its files tell.

    Raises:
        LoadError: it cannot be served.
    """
    folder = Path(source.folder)
    if not folder.is_dir():
        raise LoadError(f"adapter {source.name}: {folder} is no folder")
    return AdapterFolder(folder)
