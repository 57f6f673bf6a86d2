"""Constraint on a turn's output, as text.

``GrammarSpec`` is made here, beside the parser of the same syntax, and compiled by
``runtime.token_mask``. It is hashable, so compiled grammars are cached by value.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class GrammarSpec:
    """A grammar and the point of the output at which it starts to bind.

    The output runs through up to three phases: free until ``after`` was emitted, then free
    until ``trigger`` was emitted, then bound by ``lark`` until the end of the turn. A phase
    whose token is None is skipped; with both None the grammar binds from the first token.
    Once bound the only way to end the turn is an accepting state plus end-of-turn.
    """

    lark: str
    """llguidance Lark text. Special tokens of the model are written ``<name>``; the text
    that follows the trigger token, the trigger itself excluded."""
    after: str | None = None
    """Special token that must pass first, e.g. ``</think>``."""
    trigger: str | None = None
    """Special token that opens a call in free text, e.g. ``<tool_call>``."""
