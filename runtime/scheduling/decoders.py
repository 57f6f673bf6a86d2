"""The sequences that decode, oldest first, and what a step does to all of them at once.

Knows sequences, their rows and their tenants. Knows no drafts and no plan; of blocks, only
``shared_context`` does.

Always true: exactly the sequences held here have a row.
"""

import numpy as np

from runtime.messages import TokenArray
from runtime.scheduling.decode_rows import TAIL, DecodeRows, IntArray
from runtime.scheduling.sequence import Sequence
from runtime.scheduling.shared_context import SharedContext
from runtime.scheduling.step_plan import Decodes


class Decoders:
    """The decoding sequences of one scheduler."""

    def __init__(self, block_size: int) -> None:
        self._block_size = block_size
        self._arrays = DecodeRows()
        self._shared = SharedContext(block_size)
        self._sequences: list[Sequence] = []
        """Sequences by row; where there is a gap, the one that was there."""
        self._rows: IntArray | None = None
        self._dense: tuple[Sequence, ...] | None = None
        self.by_tenant: dict[str, int] = {}
        """How many there are of each tenant that has any."""

    def __len__(self) -> int:
        return len(self.rows)

    def __contains__(self, sequence: Sequence) -> bool:
        return sequence.row is not None

    @property
    def rows(self) -> IntArray:
        """Indices of the sequences' rows, ascending."""
        if self._rows is None:
            self._rows = self._arrays.open_rows()
        return self._rows

    @property
    def sequences(self) -> tuple[Sequence, ...]:
        """One for each of ``rows``."""
        if self._dense is None:
            self._dense = tuple([self._sequences[index] for index in self.rows.tolist()])
        return self._dense

    def add(self, sequence: Sequence) -> None:
        """A sequence decodes from now on."""
        sequence.open_row(self._arrays, self._block_size)
        self._sequences.append(sequence)
        self._shared.add(sequence)
        tenant = sequence.request.tenant
        self.by_tenant[tenant] = self.by_tenant.get(tenant, 0) + 1
        self._changed()

    def discard(self, sequence: Sequence) -> None:
        """A sequence does not decode any more, if it did."""
        if sequence.row is None:
            return
        sequence.close_row()
        self._shared.discard(sequence)
        tenant = sequence.request.tenant
        self.by_tenant[tenant] -= 1
        if not self.by_tenant[tenant]:
            del self.by_tenant[tenant]
        self._changed()

    def _changed(self) -> None:
        self._rows = self._dense = None

    def tidy(self) -> None:
        """Close gaps if there are many. What was planned before holds no longer."""
        if self._arrays.has_many_gaps:
            for sequence in self.sequences:
                sequence.buffer.settle()
            kept = self._arrays.close_gaps()
            self._sequences = [self._sequences[index] for index in kept.tolist()]
            self._changed()

    def _at(self, rows: IntArray) -> slice | IntArray:
        """All rows there are, without gaps, are faster looked up as a slice."""
        return slice(len(rows)) if len(rows) == self._arrays.num_rows else rows

    @property
    def num_tokens(self) -> int:
        """Known tokens of all sequences."""
        return int(self._arrays.length[self._at(self.rows)].sum())

    @property
    def shared_tokens(self) -> int:
        """Tokens of context that are read together with another sequence's."""
        return self._shared.tokens

    @property
    def num_pending(self) -> int:
        """Known tokens without KV."""
        return self.num_tokens - int(self._arrays.computed[self._at(self.rows)].sum())

    def that_need_blocks(self) -> list[Sequence]:
        """Sequences whose blocks do not hold the tokens they have."""
        arrays, count = self._arrays, self._arrays.num_rows
        short = arrays.length[:count] > arrays.block_limit[:count]
        if not short.any():
            return []
        return [self._sequences[index] for index in np.flatnonzero(short).tolist()]

    def decodes(self, without: set[Sequence]) -> Decodes:
        """The pending tokens of all sequences but some."""
        rows, sequences = self.rows, self.sequences
        if without:
            kept = [n for n, sequence in enumerate(sequences) if sequence not in without]
            rows, sequences = rows[kept], tuple([sequences[n] for n in kept])
        at = self._at(rows)
        starts = self._arrays.computed[at].copy()
        ends = self._arrays.length[at].copy()
        return Decodes(sequences=sequences, rows=rows, starts=starts, ends=ends)

    def decoded(self, decodes: Decodes, tokens: TokenArray) -> list[Sequence]:
        """The pending tokens of ``decodes`` are computed, and each sequence has emitted one more.
        Returns the sequences that can publish another block."""
        arrays, rows, ends = self._arrays, decodes.rows, decodes.ends
        arrays.tails[rows, ends & (TAIL - 1)] = tokens
        at = self._at(rows)
        arrays.computed[at] = ends
        lengths = ends + 1
        arrays.length[at] = lengths
        # Each tail is stored once in TAIL tokens, those of different rows in different steps.
        for n in np.flatnonzero((lengths + rows) & (TAIL - 1) == 0).tolist():
            decodes.sequences[n].buffer.settle()
        publish = ends >= arrays.publish_at[at]
        if not publish.any():
            return []
        full = rows[publish]
        arrays.publish_at[full] = (arrays.computed[full] // self._block_size + 1) * self._block_size
        return [decodes.sequences[n] for n in np.flatnonzero(publish).tolist()]
