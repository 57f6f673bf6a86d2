"""Texts that drafts are copied from: the branch itself, and what its tenant's sequences emitted
before.

Each text comes with an index of what followed what in it. Knows tokens, branches and tenants
by name. Knows no grammar and does not choose.

Always true: a text is of the same branch or of the same tenant; all that is held is bounded
in bytes.
"""

from collections import OrderedDict
from dataclasses import dataclass

import numpy as np

from runtime.drafting.ngram_index import NgramIndex
from runtime.messages import TokenArray
from runtime.scheduling.draft import DraftSource

BREAK = -1
"""Stands between two outputs in a tenant's memory; no context holds it."""


@dataclass(frozen=True, slots=True)
class Source:
    """A text from which drafts are copied."""

    index: NgramIndex
    tokens: TokenArray
    kind: DraftSource


class BranchTexts:
    """Indices over the transcripts of branches, bounded in bytes: the one idle longest is
    dropped, and made again when its branch goes on."""

    def __init__(self, *, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._indices: OrderedDict[str, NgramIndex] = OrderedDict()
        self._num_bytes = 0

    @property
    def num_bytes(self) -> int:
        return self._num_bytes

    def source(self, branch_id: str, tokens: TokenArray) -> Source:
        """The branch's transcript, int32 [n], which is longer than the last time, or shorter
        if it was cut."""
        index = self._indices.pop(branch_id, None)
        if index is not None:
            self._num_bytes -= index.num_bytes
        if index is None or len(index) > len(tokens):
            index = NgramIndex()
        index.extend(tokens)
        self._indices[branch_id] = index
        self._num_bytes += index.num_bytes
        while self._num_bytes > self._max_bytes and len(self._indices) > 1:
            _, dropped = self._indices.popitem(last=False)
            self._num_bytes -= dropped.num_bytes
        return Source(index, tokens, DraftSource.SESSION)

    def close(self, branch_id: str) -> None:
        """Forget a branch; it may be unknown."""
        index = self._indices.pop(branch_id, None)
        if index is not None:
            self._num_bytes -= index.num_bytes


class TenantMemory:
    """Earlier outputs of each tenant, the newest of them, bounded in bytes.

    A tenant never sees another's. When a tenant outgrows its share the older half of its
    outputs goes; when all together outgrow the bound the tenant that was quiet longest goes.
    """

    def __init__(self, *, max_bytes: int, max_tenant_tokens: int = 65_536) -> None:
        self._max_bytes = max_bytes
        self._max_tenant_tokens = max_tenant_tokens
        self._tenants: OrderedDict[str, _Log] = OrderedDict()

    @property
    def num_bytes(self) -> int:
        return sum(log.num_bytes for log in self._tenants.values())

    def remember(self, tenant: str, output: TokenArray) -> None:
        output = output[-self._max_tenant_tokens // 4 :]
        log = self._tenants.setdefault(tenant, _Log())
        self._tenants.move_to_end(tenant)
        if log.length + len(output) + 1 > self._max_tenant_tokens:
            log.keep_newest(self._max_tenant_tokens // 2)
        log.append(output)
        while self.num_bytes > self._max_bytes:
            self._tenants.popitem(last=False)

    def source(self, tenant: str) -> Source | None:
        """The tenant's outputs, a ``BREAK`` behind each; None if there are none."""
        log = self._tenants.get(tenant)
        if log is None:
            return None
        return Source(log.index, log.tokens, DraftSource.MEMORY)


class _Log:
    """Outputs one behind the other, each followed by a break, and their index."""

    def __init__(self) -> None:
        self.index = NgramIndex()
        self.length = 0
        self._array = np.empty(1024, dtype=np.int32)

    @property
    def tokens(self) -> TokenArray:
        return self._array[: self.length]

    @property
    def num_bytes(self) -> int:
        return self._array.nbytes + self.index.num_bytes

    def append(self, output: TokenArray) -> None:
        end = self.length + len(output) + 1
        if end > len(self._array):
            grown = np.empty(max(end, 2 * len(self._array)), dtype=np.int32)
            grown[: self.length] = self.tokens
            self._array = grown
        self._array[self.length : end - 1] = output
        self._array[end - 1] = BREAK
        self.length = end
        self.index.extend(self.tokens)

    def keep_newest(self, count: int) -> None:
        kept = self.tokens[-count:].copy()
        self.index = NgramIndex()
        self.length = len(kept)
        self._array[: self.length] = kept
        self.index.extend(self.tokens)
