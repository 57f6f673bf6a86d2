"""Token buffers of the sessions the engine holds, so that a turn sends only what is new.

A session is one append-only branch of exact token ids; a turn continues it, rewinds it or
forks another one. The table is bounded by bytes and forgets the longest unused session
first; a request that names a forgotten one is told so and comes back with its whole
transcript. Tokens only: KV is the cache's business.
"""

from collections import OrderedDict

from runtime.messages import GenerationRequest
from runtime.sequence import TokenBuffer

_BYTES_PER_TOKEN = 4


class SessionTokens:
    """Buffers by session id, least recently used first."""

    def __init__(self, *, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._buffers: OrderedDict[str, TokenBuffer] = OrderedDict()
        self._vouched: dict[str, int] = {}
        self._busy: set[str] = set()

    def __len__(self) -> int:
        return len(self._buffers)

    def is_busy(self, session_id: str) -> bool:
        """Whether a turn of this session is open."""
        return session_id in self._busy

    def length(self, session_id: str) -> int:
        """Tokens the session has; 0 for an unknown one."""
        buffer = self._buffers.get(session_id)
        return 0 if buffer is None else len(buffer)

    def open(self, request: GenerationRequest) -> tuple[TokenBuffer, int] | None:
        """Return the session's buffer holding exactly the request's prompt, marked busy, and
        how many of its tokens the base's cache handle vouches for.

        A handle is moved only by a turn that ran. Tokens that a turn put into the buffer and
        then left without having run are not vouched for, although they lie below the offset.

        None if the base is unknown or shorter than ``base_offset``; nothing changed then.
        A fork copies; a continuation appends to the buffer it had, rewound to the offset.
        """
        base_id, session_id, offset = (
            request.base_session_id,
            request.session_id,
            request.base_offset,
        )
        vouched = 0
        if base_id is None:
            buffer = TokenBuffer(request.new_tokens)
        else:
            base = self._buffers.get(base_id)
            if base is None or len(base) < offset:
                return None
            vouched = min(offset, self._vouched[base_id])
            if base_id == session_id:
                buffer = base
                buffer.truncate(offset)
            else:
                buffer = TokenBuffer(base.view()[:offset])
                self._buffers.move_to_end(base_id)
            buffer.extend(request.new_tokens)
        self._buffers[session_id] = buffer
        self._buffers.move_to_end(session_id)
        self._vouched[session_id] = vouched if base_id == session_id else 0
        self._busy.add(session_id)
        return buffer, vouched

    def close(self, session_id: str, *, ran: bool) -> None:
        """The session's turn is over; its buffer stays for the next one.

        Args:
            ran: the turn was admitted, so the session's cache handle is on its tokens now.
        """
        self._busy.discard(session_id)
        buffer = self._buffers.get(session_id)
        if ran and buffer is not None:
            self._vouched[session_id] = len(buffer)

    def release(self, session_id: str) -> None:
        """Forget a session. A turn that is still open keeps its buffer until it ends."""
        self._buffers.pop(session_id, None)
        self._vouched.pop(session_id, None)

    def overflow(self) -> list[str]:
        """Forget idle sessions until the byte bound holds; returns their ids."""
        used = sum(len(b) for b in self._buffers.values()) * _BYTES_PER_TOKEN
        forgotten: list[str] = []
        for session_id in list(self._buffers):
            if used <= self._max_bytes:
                break
            if session_id not in self._busy:
                used -= len(self._buffers[session_id]) * _BYTES_PER_TOKEN
                self.release(session_id)
                forgotten.append(session_id)
        return forgotten
