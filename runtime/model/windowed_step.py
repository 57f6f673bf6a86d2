"""A step as layers know it that make one key of several tokens, worked out once for all of them:
which windows its tokens fill, and what each query sees."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from kernels.entry_attention import NearTokens
from kernels.entry_choice import ChoosingRows
from kernels.paged_layout import PagedLayout, SequenceSpan
from runtime.model.kv_shape import places_in_block
from runtime.model.rotary import RotaryTable, Rotation


@dataclass(frozen=True, slots=True, kw_only=True)
class FullWindows:
    """Windows whose last tokens are among a step's."""

    slots: Tensor
    """[windows, ratio] int64: where the rows of their tokens are."""
    before: Tensor
    """The same of the windows before them; of a first window its own. They are there where layers
    with windows of these tokens keep the rows of two."""
    entries: Tensor
    """[windows] int64: the places of what stands for them."""
    is_first: Tensor
    """[windows] bool: whether there is none before it."""
    rotation: Rotation | None
    """By each window's first position; None where layers do not rotate entries."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EntryLists:
    """The entries of a step's sequences."""

    slots: Tensor
    """[sequences, most] int64: their places; behind a sequence's last one, others."""
    lists: Tensor
    """[queries] int64: the sequence of each query."""
    seen: Tensor
    """[queries] int64: how many of its sequence's entries each query sees."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Choosing:
    """The queries that see more entries than they take."""

    rows: Tensor
    """[rows] int64: which they are."""
    spans: tuple[ChoosingRows, ...]
    counts: tuple[int, ...]
    """How many they are of each sequence."""


class WindowedStep:
    """A step's tokens in their windows. Nothing of it is in the pool."""

    def __init__(
        self,
        layout: PagedLayout,
        block_size: int,
        tables: Mapping[int, RotaryTable],
        *,
        near: PagedLayout | None = None,
        apart: bool = False,
    ) -> None:
        """
        Args:
            layout: the step.
            block_size: tokens of a block.
            tables: the angles of layers by their ratio, of those that rotate entries.
            near: the step as layers see it whose rows are given back behind windows; None: they
                keep all.
            apart: entries have places of their own in the blocks in which their windows end
                (``KVShape.places``); else those of their windows' last tokens.
        """
        self._spans = layout.spans()
        self._device = layout.block_tables.device
        self._block_size, self._apart = block_size, apart
        self._places = [_slots_of(span, block_size, self._device) for span in self._spans]
        self._rows = [(places, 0) for places in self._places]
        """Of each sequence, the slots of tokens whose rows may be there, and how many tokens are
        before these."""
        if near is not None:
            self._rows = [
                (_slots_of(own, block_size, self._device), span.context_length - own.context_length)
                for span, own in zip(self._spans, near.spans(), strict=True)
            ]
        self._tables = tables
        self._ends: dict[int, list[Tensor]] = {}
        self._near: dict[int, NearTokens] = {}
        self._windows: dict[int, FullWindows | None] = {}
        self._entries: dict[int, EntryLists] = {}
        self._choosing: dict[tuple[int, int], Choosing | None] = {}

    def near(self, count: int) -> NearTokens:
        """The last ``count`` tokens up to each query, or as many as there are."""
        if count not in self._near:
            slots, counts = [], []
            most = min(count, max(span.context_length for span in self._spans))
            offsets = torch.arange(most, device=self._device)
            for span, rows in zip(self._spans, self._rows, strict=True):
                at = self._positions(span)
                first = (at - count + 1).clamp_(min=0)
                reach = first[:, None] + offsets
                slots.append(_at(rows, torch.minimum(reach, at[:, None])))
                counts.append(at - first + 1)
            self._near[count] = NearTokens(slots=torch.cat(slots), counts=torch.cat(counts))
        return self._near[count]

    def windows(self, ratio: int) -> FullWindows | None:
        """Windows of ``ratio`` tokens that are full with this step; None: there are none."""
        if ratio not in self._windows:
            self._windows[ratio] = self._full_windows(ratio)
        return self._windows[ratio]

    def entries(self, ratio: int) -> EntryLists:
        """Entries of ``ratio`` tokens, those of this step's windows included."""
        if ratio not in self._entries:
            own = self._entry_places(ratio)
            most = max(1, *map(len, own))
            slots = torch.zeros(len(own), most, dtype=torch.int64, device=self._device)
            for row, places in enumerate(own):
                slots[row, : len(places)] = places
            counts = torch.tensor([span.num_queries for span in self._spans], device=self._device)
            numbers = torch.arange(len(own), device=self._device)
            seen = [(self._positions(span) + 1) // ratio for span in self._spans]
            self._entries[ratio] = EntryLists(
                slots=slots, lists=numbers.repeat_interleave(counts), seen=torch.cat(seen)
            )
        return self._entries[ratio]

    def choosing(self, ratio: int, top_k: int) -> Choosing | None:
        """The queries that see more than ``top_k`` entries; None: there are none."""
        if (ratio, top_k) not in self._choosing:
            self._choosing[ratio, top_k] = self._that_choose(ratio, top_k)
        return self._choosing[ratio, top_k]

    def tokens_of(self, choosing: Choosing, chosen: Tensor, ratio: int) -> tuple[Tensor, Tensor]:
        """The tokens that queries see that choose whole windows: theirs, and those behind the last
        full one.

        Args:
            choosing: which queries these are.
            chosen: [rows, windows] int64, numbers of windows, ascending.
            ratio: tokens of a window.

        Returns:
            (slots [rows, windows * ratio + ratio - 1] int32 in the order of tokens, counts [rows]
            int64); behind so many of a row's slots are others of its context.
        """
        slots, counts, at = [], [], 0
        offsets = torch.arange(ratio, device=self._device)
        sequences = zip(self._spans, self._places, choosing.counts, strict=True)
        for span, places, own in sequences:
            if not own:
                continue
            position = self._positions(span)[-own:]
            within = (chosen[at : at + own, :, None] * ratio + offsets).flatten(1)
            begins = (position + 1) // ratio * ratio
            tail = torch.minimum(begins[:, None] + offsets[:-1], position[:, None])
            slots.append(places[torch.cat((within, tail), dim=1)])
            counts.append(within.shape[1] + position + 1 - begins)
            at += own
        return torch.cat(slots).to(torch.int32), torch.cat(counts)

    def _full_windows(self, ratio: int) -> FullWindows | None:
        slots: list[Tensor] = []
        before: list[Tensor] = []
        entries: list[Tensor] = []
        numbers: list[Tensor] = []
        offsets = torch.arange(ratio, device=self._device)
        sequences = zip(self._spans, self._entry_places(ratio), self._rows, strict=True)
        for span, places, rows in sequences:
            first = (span.context_length - span.num_queries) // ratio
            last = span.context_length // ratio
            if first == last:
                continue
            number = torch.arange(first, last, device=self._device)
            slots.append(_at(rows, number[:, None] * ratio + offsets))
            prior = (number - 1).clamp_(min=0)
            before.append(_at(rows, prior[:, None] * ratio + offsets))
            entries.append(places[first:])
            numbers.append(number)
        if not slots:
            return None
        number = torch.cat(numbers)
        table = self._tables.get(ratio)
        highest = max(span.context_length for span in self._spans)
        return FullWindows(
            slots=torch.cat(slots),
            before=torch.cat(before),
            entries=torch.cat(entries),
            is_first=number == 0,
            rotation=None if table is None else table.at(number * ratio, highest),
        )

    def _that_choose(self, ratio: int, top_k: int) -> Choosing | None:
        if all(span.context_length // ratio <= top_k for span in self._spans):
            return None
        rows: list[Tensor] = []
        spans: list[ChoosingRows] = []
        counts: list[int] = []
        before = 0
        for span, places in zip(self._spans, self._entry_places(ratio), strict=True):
            seen = (self._positions(span) + 1) // ratio
            seen = seen[seen > top_k]
            counts.append(len(seen))
            if not len(seen):
                continue
            end = span.first_row + span.num_queries
            rows.append(torch.arange(end - len(seen), end, device=self._device))
            slots = places.to(torch.int32).contiguous()
            spans.append(ChoosingRows(first_row=before, seen=seen, slots=slots))
            before += len(seen)
        return Choosing(rows=torch.cat(rows), spans=tuple(spans), counts=tuple(counts))

    def _entry_places(self, ratio: int) -> list[Tensor]:
        """[entries] int64 of each sequence."""
        if ratio not in self._ends:
            ends = [places[ratio - 1 :: ratio] for places in self._places]
            if self._apart:
                size, own = self._block_size, places_in_block(ratio, self._block_size)
                ends = [each // size * own + each % size // ratio for each in ends]
            self._ends[ratio] = ends
        return self._ends[ratio]

    def _positions(self, span: SequenceSpan) -> Tensor:
        """[queries] int64: those of a sequence's part of the step."""
        start = span.context_length - span.num_queries
        return torch.arange(start, span.context_length, device=self._device)


def _at(rows: tuple[Tensor, int], positions: Tensor) -> Tensor:
    """The slots of tokens, int64; of one whose row is not there any more, another's."""
    places, skipped = rows
    return places[(positions - skipped).clamp_(min=0)]


def _slots_of(span: SequenceSpan, block_size: int, device: torch.device) -> Tensor:
    """[context] int64: the slot of each token."""
    runs: Sequence[tuple[int, int]] = span.runs
    parts = [
        torch.arange(block * block_size, (block + count) * block_size, device=device)
        for block, count in runs
    ]
    return torch.cat(parts)[: span.context_length]
