"""Why a turn found less in the cache than another response left there.

A client names that response in ``prompt_cache_options.comparison_response_id`` and gets
``response.prompt_cache_diagnostics``. What counts are tokens, not fields: two requests that
differ and render to the same prompt share it.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from runtime.messages import TokenArray
from sessions.durable.transcript import Entry, Header, chain_ids
from tools_api.events import Event

_LOST = ("evicted", "expired")
"""The causes in ``SequenceStart.miss_causes`` that are the cache's own doing."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Comparison:
    """The response to compare with, as far as the client may see it."""

    entry: Entry | None
    """The entry that the prompt is compared with; None: it was not found."""

    def diagnosis(
        self, header: Header, prompt: TokenArray, cached_tokens: int, causes: Mapping[str, int]
    ) -> Event:
        """The object for the client.

        Args:
            header: of the turn that is explained.
            prompt: its whole context, int32 [tokens].
            cached_tokens: how much of it was not computed.
            causes: the cache's own account of the rest, see ``SequenceStart.miss_causes``.
        """
        if self.entry is None:
            return {"type": "comparison_response_not_found"}
        compared = chain_ids(self.entry.header, self.entry, prompt[:0])
        shared = shared_prefix(compared, prompt)
        if shared < min(len(compared), len(prompt)):
            tools_differ = self.entry.header.tools != header.tools
            return {
                "type": "cache_miss",
                "reason": "tools_changed" if tools_differ else "input_changed",
                "cache_missed_tokens": len(prompt) - cached_tokens,
                "comparison_reusable_tokens": shared,
            }
        if any(causes.get(cause, 0) for cause in _LOST):
            return {"type": "unavailable"}  # the published reasons are all the client's doing
        return {"type": "cache_hit"}


def shared_prefix(left: TokenArray, right: TokenArray) -> int:
    length = min(len(left), len(right))
    differing = np.flatnonzero(left[:length] != right[:length])
    return int(differing[0]) if len(differing) else length
