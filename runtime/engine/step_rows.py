"""The sampler's arguments for each row of a step: its mask, its position, what was emitted before.

A sequence has one row for its next token and one more behind each token of its draft, except
where the grammar forces the draft's next token: nothing is to be drawn there. Where no grammar
binds, the mask keeps out what the request bans and a call that would not fit.

Knows sequences, drafts and masks. Knows no logits and no schedule.
"""

from collections.abc import Sequence as Many

import numpy as np

from radix_cache.window_rows import WindowRows
from runtime.grammar.mask_bits import MaskRow, mask_words
from runtime.grammar.state import GrammarState
from runtime.messages import TokenArray
from runtime.model.batch import SequenceInput
from runtime.model.sampler import SampleRow
from runtime.scheduling.sequence import Sequence
from runtime.scheduling.step_plan import Chunk

_REMEMBERED_MASKS = 64


def step_input(chunk: Chunk, windows: WindowRows | None) -> SequenceInput:
    """The model's input for a chunk and its draft; ``windows``: where rows behind windows are given
    back, which have reached it."""
    sequence, draft = chunk.sequence, chunk.draft.tokens
    assert sequence.cached is not None
    tokens = sequence.buffer.part(chunk.start, chunk.start + chunk.num_tokens)
    end = chunk.start + chunk.num_tokens + len(draft)
    return SequenceInput(
        tokens=np.concatenate((tokens, draft)) if len(draft) else tokens,
        start=chunk.start,
        window=None if windows is None else windows.window_of(sequence.cached, chunk.start, end),
        block_table=sequence.cached.block_table,
        num_logits=1 + len(draft) if chunk.samples else 0,
        state_slot=sequence.cached.state_slot,
        adapter=sequence.adapter,
        certain=chunk.forced,
    )


class StepRows:
    """Makes rows for a vocabulary of one size."""

    def __init__(self, vocab_size: int) -> None:
        self._mask_words = mask_words(vocab_size)
        self._all_allowed = np.full(self._mask_words, 0xFFFFFFFF, dtype=np.uint32)
        self._banning: dict[tuple[int, ...], MaskRow] = {}
        """Masks by what they keep out; not to be written to."""

    def rows(self, chunks: Many[Chunk]) -> list[SampleRow]:
        """The rows of all chunks, in their order."""
        return [row for chunk in chunks if chunk.samples for row in self._rows(chunk)]

    def _rows(self, chunk: Chunk) -> list[SampleRow]:
        sequence, draft = chunk.sequence, chunk.draft.tokens
        params, length = sequence.request.sampling, len(sequence.buffer)
        emitted: TokenArray | None = None
        if params.penalises:
            emitted = sequence.buffer.view()[sequence.prompt_length :]
            if len(draft):
                emitted = np.concatenate((emitted, draft))
        if not len(draft) and not chunk.forced:
            mask = self._mask(sequence, sequence.grammar, sequence.remaining)
            return [SampleRow(params=params, position=length, emitted=emitted, mask=mask)]
        known = sequence.num_emitted
        return [
            SampleRow(
                params=params,
                position=length + offset,
                emitted=None if emitted is None else emitted[: known + offset],
                mask=mask,
            )
            for offset, mask in self._masks(chunk)
        ]

    def _masks(self, chunk: Chunk) -> list[tuple[int, MaskRow | None]]:
        """Packed allowed tokens for each row, by its offset."""
        sequence, draft = chunk.sequence, chunk.draft.tokens.tolist()
        grammar = sequence.grammar
        state = grammar.copy() if grammar is not None and draft else grammar
        masks: list[tuple[int, MaskRow | None]] = []
        followed = 0
        for offset in chunk.row_offsets():
            if state is not None and offset > followed:
                state.advance(draft[followed:offset])
                followed = offset
            masks.append((offset, self._mask(sequence, state, sequence.remaining - offset)))
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
        mask = self._banning.get(banned)
        if mask is None:
            words = self._all_allowed.copy()
            for token in banned:
                words[token >> 5] &= np.uint32(0xFFFFFFFF ^ (1 << (token & 31)))
            mask = self._banning[banned] = words.view(np.int32)
            if len(self._banning) > _REMEMBERED_MASKS:
                del self._banning[next(iter(self._banning))]
        return mask
