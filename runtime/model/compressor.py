"""Entries made of windows of tokens, those that are attended to and index keys alike
(``runtime.model.compressed``).

A token gives numbers to its window's entry and, where windows overlap, to the next one's; with each
number goes another that says how much it weighs. They lie in the token's row, which has to be there
until the window is full, and until the next one is where they overlap.
"""

import torch
from torch import Tensor

from kernels.norm import rms_norm
from kernels.rope import turn_tail
from kernels.window_entries import window_entries
from runtime.model.layers import MapLoader
from runtime.model.windowed_step import FullWindows


class Compressor:
    """Entries of one kind. Weights are those of ``NAME``, but for the maps to the numbers above,
    ``maps``, which are made together with a layer's others."""

    def __init__(
        self,
        name: str,
        loader: MapLoader,
        *,
        size: int,
        ratio: int,
        overlaps: bool,
        begins: int,
        eps: float,
    ) -> None:
        """``size``: numbers of an entry; ``begins``: at which number of a row those begin that
        entries are made of."""
        source, series = loader.source, 2 if overlaps else 1
        self.maps = [f"{name}.kv_proj", f"{name}.gate_proj"]
        self.outputs = [series * size] * 2
        shape = ratio, series * size
        self._bias = source.tensor(f"{name}.position_bias", shape, wide=True)
        if overlaps:  # a window's entry has the first series of the window before
            self._bias = torch.cat((self._bias[:, :size], self._bias[:, size:]))
        self._norm = source.tensor(f"{name}.kv_norm.weight", (size,))
        self._size, self._overlaps, self._eps = size, overlaps, eps
        self._first, self._end = begins, begins + 2 * series * size

    def fill(self, rows: Tensor, entries: Tensor, windows: FullWindows) -> None:
        """Make the windows' entries and store each in its place.

        Args:
            rows: [slots, row], those of tokens, in the layer's part of the pool.
            entries: [places, size], the layer's, in the pool; written.
            windows: whose tokens' rows are there.
        """
        own = self._numbers(rows, windows.slots)
        size = self._size
        if not self._overlaps:
            values, gates = own[:, :, :size], own[:, :, size:]
        else:
            before = self._numbers(rows, windows.before)
            first = windows.is_first[:, None, None]
            value, gate = before[:, :, :size], before[:, :, 2 * size : 3 * size]
            values = torch.cat((value, own[:, :, size : 2 * size]), dim=1)
            gate = gate.masked_fill(first, -torch.inf)  # weighs nothing
            gates = torch.cat((gate, own[:, :, 3 * size :]), dim=1)
        assert windows.rotation is not None
        made = rms_norm(window_entries(values, gates, self._bias), self._norm, self._eps)
        turned = turn_tail(made[:, None], windows.rotation.cos, windows.rotation.sin)
        entries[windows.entries] = turned[:, 0]

    def _numbers(self, rows: Tensor, slots: Tensor) -> Tensor:
        """[windows, ratio, numbers]"""
        taken = rows[:, self._first : self._end].index_select(0, slots.flatten())
        return taken.view(*slots.shape, -1)
