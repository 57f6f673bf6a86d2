"""The sessions that the cache knows by name, and what a call of one of them means.

A name belongs to one tenant: nobody else can use it, extend it or fork it.
"""

import numpy as np

from radix_cache.edge import TokenArray
from radix_cache.handle import SessionHandle
from radix_cache.nodes import Owner
from radix_cache.retention import Retention
from radix_cache.tree import RadixTree


class KnownSessions:
    """Handles by session id, and their owners in ``tree``."""

    def __init__(self, tree: RadixTree, retention: Retention) -> None:
        self._tree = tree
        self._retention = retention
        self.by_id: dict[str, SessionHandle] = {}

    def resolve(
        self, session_id: str, tenant: str | None, tokens: TokenArray, base_session_id: str | None
    ) -> tuple[Owner, SessionHandle | None, SessionHandle | None]:
        """The owner, the session's handle, and that of its base: None for those not known, and
        for a base of another tenant.

        Raises:
            ValueError: the tokens are no prompt, or the session is another tenant's.
        """
        if tokens.dtype != np.int32 or tokens.ndim != 1 or not tokens.flags.c_contiguous:
            raise ValueError(
                f"tokens are {tokens.dtype} {list(tokens.shape)}, contiguous int32 [n] is needed"
            )
        if not len(tokens):
            raise ValueError("an empty prompt")
        tree = self._tree
        owner = tree.published if tenant is None else tree.owner(tenant)
        handle = self.by_id.get(session_id)
        if handle is not None and handle.owner is not owner:
            raise ValueError(f"session {session_id!r} belongs to another tenant")
        base = None
        if base_session_id is not None:
            base = self.by_id.get(base_session_id)
            if base is not None and base.owner is not owner:
                base = None
        return owner, handle, base

    def release(self, session_id: str) -> None:
        """Forget a handle; while its turn is open, only the name. Unknown ids are ignored."""
        handle = self.by_id.pop(session_id, None)
        if handle is not None and handle.sequence is None:
            self._retention.forget(handle)

    def set_queued(self, session_id: str, queued: bool) -> None:
        """Note whether the session's next turn waits. Unknown ids are ignored."""
        handle = self.by_id.get(session_id)
        if handle is None or handle.queued == queued:
            return
        handle.queued = queued
        if handle.sequence is None:
            self._retention.settle(handle)
