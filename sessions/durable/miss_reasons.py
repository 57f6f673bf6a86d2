"""Why prompt tokens had to be computed, in words that a person can act on.

The cache knows what became of blocks (``SequenceStart.miss_causes``), the session knows what the
client changed; a ``Miss`` says both at once, for the dashboard, the metrics and the log. Which
turn missed what for which reason is worked out by ``sessions.turns.miss_account``.
"""

import enum
from dataclasses import dataclass


class MissReason(enum.StrEnum):
    """Why a prompt token had to be computed. Each computed one has one reason."""

    NEW_INPUT = "new_input"
    """Tokens that this turn added; no cache could have held it."""
    NEW_SESSION = "new_session"
    """The first turn of its session, and nothing this tenant said before began so."""
    TOOLS_CHANGED = "tools_changed"
    INSTRUCTIONS_CHANGED = "instructions_changed"
    OPTIONS_CHANGED = "options_changed"
    """The chat template's options, as thinking on or off."""
    HISTORY_CHANGED = "history_changed"
    """The client resent its history with something else in it."""
    TRUNCATED = "truncated"
    """``truncation: auto`` cut the context to fit."""
    EVICTED = "evicted"
    EXPIRED = "expired"
    """Evicted after its lease had run out."""
    FORKED = "forked"
    STATE_MISSING = "state_missing"
    """Keys and values are there, and no state of the recurrent layers to go on from."""
    RESTARTED = "restarted"
    """The engine was replaced and its memory with it."""
    MODEL_CHANGED = "model_changed"
    """The text before was tokenised for another model, or computed with another adapter."""
    PARTIAL_BLOCK = "partial_block"
    """The last block of what went before was not full, and only whole blocks are kept."""
    NOT_KEPT = "not_kept"
    """It was said here before, and no record of it is left in the cache."""


_WORDS = {
    MissReason.NEW_INPUT: "new: this turn's own input",
    MissReason.NEW_SESSION: "new: never seen for this tenant",
    MissReason.TOOLS_CHANGED: "tools changed",
    MissReason.INSTRUCTIONS_CHANGED: "instructions changed",
    MissReason.OPTIONS_CHANGED: "template options changed",
    MissReason.HISTORY_CHANGED: "history changed",
    MissReason.TRUNCATED: "context truncated to fit",
    MissReason.EVICTED: "evicted",
    MissReason.EXPIRED: "evicted after its lease ran out",
    MissReason.FORKED: "forked inside a block",
    MissReason.STATE_MISSING: "behind the last state that was kept",
    MissReason.RESTARTED: "engine restarted",
    MissReason.MODEL_CHANGED: "model changed",
    MissReason.PARTIAL_BLOCK: "last block was not full",
    MissReason.NOT_KEPT: "no longer in the cache",
}

CHANGES = frozenset(
    {MissReason.TOOLS_CHANGED, MissReason.INSTRUCTIONS_CHANGED, MissReason.OPTIONS_CHANGED}
)
"""Another header than before: all that stands behind it is computed."""
OWN = frozenset({MissReason.NEW_INPUT, MissReason.NEW_SESSION, MissReason.PARTIAL_BLOCK})
"""Reasons that nobody could have avoided."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Miss:
    """Some tokens of one prompt and why they had to be computed."""

    reason: MissReason
    tokens: int
    at_token: int | None = None
    """Where the prompt first differs from what was held, if something was changed."""
    kept_s: float | None = None
    """How long the cache had kept it since the session's last turn, if it was evicted."""

    def words(self) -> str:
        """The reason in words for a person, without the number of tokens."""
        words = _WORDS[self.reason]
        if self.at_token is not None:
            words += f" at token {self.at_token:,}"
        if self.kept_s is None:
            return words
        if self.reason is MissReason.EVICTED:
            return f"{words} after {_seconds(self.kept_s)} without lease"
        return f"{words}, {_seconds(self.kept_s)} after the last turn"


def _seconds(value: float) -> str:
    return f"{value:.0f} s" if value >= 10 else f"{value:.1f} s"
