"""Token buffers of the branches the engine holds, so that a sequence sends only what is new.

A branch is one append-only run of exact token ids; a sequence continues it, rewinds it or
forks another one. The table is bounded by bytes and forgets the longest unused branch
first; a request that names a forgotten one is told so and comes back with its whole
transcript. Tokens only: KV is the cache's business.
"""

from collections import OrderedDict

from runtime.messages import GenerationRequest
from runtime.scheduling.sequence import TokenBuffer

_BYTES_PER_TOKEN = 4
_BUFFER_BYTES = 640
"""An empty buffer and its entries here."""


class BranchTokens:
    """Buffers by branch id, least recently used first."""

    def __init__(self, *, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._buffers: OrderedDict[str, TokenBuffer] = OrderedDict()
        self._vouched: dict[str, int] = {}
        self._busy: set[str] = set()
        self.idle_tokens = 0
        """Tokens of all branches that are not busy."""

    def __len__(self) -> int:
        return len(self._buffers)

    @property
    def num_bytes(self) -> int:
        """Memory of all buffers, with what they have to grow and what each takes without tokens;
        roughly."""
        busy = sum(self.length(branch_id) for branch_id in self._busy)
        tokens = (self.idle_tokens + busy) * _BYTES_PER_TOKEN
        return tokens + tokens // 8 + len(self._buffers) * _BUFFER_BYTES

    def is_busy(self, branch_id: str) -> bool:
        """Whether a sequence of this branch is open."""
        return branch_id in self._busy

    def length(self, branch_id: str) -> int:
        """Tokens the branch has; 0 for an unknown one."""
        buffer = self._buffers.get(branch_id)
        return 0 if buffer is None else len(buffer)

    def open(self, request: GenerationRequest) -> tuple[TokenBuffer, int] | None:
        """Return the branch's buffer holding exactly the request's prompt, marked busy, and
        how many of its tokens the base's cache handle vouches for.

        A handle is moved only by a sequence that ran. Tokens that a sequence put into the buffer
        and then left without having run are not vouched for, although they lie below the offset.

        None if the base is unknown or shorter than ``base_offset``; nothing changed then.
        A fork copies; a continuation appends to the buffer it had, rewound to the offset.
        """
        base_id, branch_id, offset = (
            request.base_branch_id,
            request.branch_id,
            request.base_offset,
        )
        vouched, idle_tokens = 0, self._idle_length(branch_id)
        if base_id is None:
            buffer = TokenBuffer(request.new_tokens)
        else:
            base = self._buffers.get(base_id)
            if base is None or len(base) < offset:
                return None
            vouched = min(offset, self._vouched[base_id])
            if base_id == branch_id:
                buffer = base
                buffer.truncate(offset)
            else:
                buffer = TokenBuffer(base.view()[:offset])
                self._buffers.move_to_end(base_id)
            buffer.extend(request.new_tokens)
        self._buffers[branch_id] = buffer
        self._buffers.move_to_end(branch_id)
        self._vouched[branch_id] = vouched if base_id == branch_id else 0
        self.idle_tokens -= idle_tokens
        self._busy.add(branch_id)
        return buffer, vouched

    def close(self, branch_id: str, *, ran: bool) -> None:
        """The branch's sequence is over; its buffer stays for the next one.

        Args:
            ran: the sequence was admitted, so the branch's cache handle is on its tokens now.
        """
        self.idle_tokens -= self._idle_length(branch_id)
        self._busy.discard(branch_id)
        self.idle_tokens += self._idle_length(branch_id)
        buffer = self._buffers.get(branch_id)
        if ran and buffer is not None:
            self._vouched[branch_id] = len(buffer)

    def release(self, branch_id: str) -> None:
        """Forget a branch. A sequence that is still open keeps its buffer until it ends."""
        self.idle_tokens -= self._idle_length(branch_id)
        self._buffers.pop(branch_id, None)
        self._vouched.pop(branch_id, None)

    def overflow(self) -> list[str]:
        """Forget idle branches until the byte bound holds; returns their ids."""
        busy_tokens = sum(self.length(branch_id) for branch_id in self._busy)
        used = (self.idle_tokens + busy_tokens) * _BYTES_PER_TOKEN
        forgotten: list[str] = []
        for branch_id, buffer in self._buffers.items():
            if used <= self._max_bytes:
                break
            if branch_id not in self._busy:
                used -= len(buffer) * _BYTES_PER_TOKEN
                forgotten.append(branch_id)
        for branch_id in forgotten:
            self.release(branch_id)
        return forgotten

    def _idle_length(self, branch_id: str) -> int:
        return 0 if branch_id in self._busy else self.length(branch_id)
