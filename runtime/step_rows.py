"""What the sampler is told of each row of a step: its mask, its place, what was said before.

A turn has one row for its next token and one more behind each token of its draft. Where no
grammar binds, the mask keeps out what the request bans and a call that would not fit.

Knows turns, drafts and masks. Knows no logits and no schedule.
"""

import numpy as np

from runtime.messages import TokenArray
from runtime.sampler import SampleRow
from runtime.scheduler import Chunk
from runtime.sequence import Sequence
from runtime.token_mask import GrammarState, MaskRow


class StepRows:
    """Makes rows for a vocabulary of one size."""

    def __init__(self, vocab_size: int) -> None:
        self._mask_words = -(-vocab_size // 32)
        self._all_allowed = np.full(self._mask_words, 0xFFFFFFFF, dtype=np.uint32)

    def rows(self, sampling: list[Chunk]) -> list[SampleRow]:
        """One row for each chunk and one more for each of its draft tokens."""
        rows = []
        for chunk in sampling:
            sequence = chunk.sequence
            emitted = sequence.buffer.view()[sequence.prompt_length :]
            if len(chunk.draft):
                emitted = np.concatenate((emitted, chunk.draft))
            known = sequence.num_emitted
            for offset, mask in enumerate(self._masks(sequence, chunk.draft)):
                rows.append(
                    SampleRow(
                        params=sequence.request.sampling,
                        position=len(sequence.buffer) + offset,
                        emitted=emitted[: known + offset],
                        mask=mask,
                    )
                )
        return rows

    def _masks(self, sequence: Sequence, draft: TokenArray) -> list[MaskRow | None]:
        """Packed allowed tokens for the next token and for the one behind each draft token."""
        grammar = sequence.grammar
        state = grammar.copy() if grammar is not None and len(draft) else grammar
        masks = [self._mask(sequence, state, sequence.remaining)]
        for offset, token in enumerate(draft.tolist(), start=1):
            if state is not None:
                state.advance([token])
            masks.append(self._mask(sequence, state, sequence.remaining - offset))
        return masks

    def _mask(
        self, sequence: Sequence, grammar: GrammarState | None, remaining: int
    ) -> MaskRow | None:
        """Packed allowed tokens, int32 [ceil(vocab / 32)]; None allows all."""
        if grammar is not None and grammar.bound:
            row = np.zeros(self._mask_words, dtype=np.int32)
            grammar.fill_mask(row)
            return row
        banned = sequence.request.banned_tokens
        if grammar is not None:
            banned += grammar.blocked_tokens(remaining)
        if not banned:
            return None
        words = self._all_allowed.copy()
        for token in banned:
            words[token >> 5] &= np.uint32(0xFFFFFFFF ^ (1 << (token & 31)))
        return words.view(np.int32)
