"""What the sampler is told of each row of a step: its mask, its place, what was said before.

A turn has one row for its next token and one more behind each token of its draft, except
where the grammar forces the draft's next token: nothing is to be drawn there. Where no grammar
binds, the mask keeps out what the request bans and a call that would not fit.

Knows turns, drafts and masks. Knows no logits and no schedule.
"""

from collections.abc import Sequence as Many
from dataclasses import dataclass

import numpy as np

from runtime.batch import SequenceInput
from runtime.messages import SamplingParams, TokenArray
from runtime.sampler import SampleRow
from runtime.schedule import Chunk
from runtime.sequence import Sequence
from runtime.token_mask import GrammarState, MaskRow

_REMEMBERED_MASKS = 64


@dataclass(frozen=True, slots=True)
class StepPart:
    """What one turn computes in a step."""

    chunk: Chunk
    certain: tuple[int, ...] = ()
    """Places in the chunk's draft whose tokens the grammar forces: no row leads to them."""

    def row_offsets(self) -> tuple[int, ...]:
        """For each row, how many draft tokens stand before what is drawn from it."""
        if not self.chunk.samples:
            return ()
        places = range(1 + len(self.chunk.draft))
        if not self.certain:
            return tuple(places)
        return tuple(place for place in places if place not in self.certain)

    def step_input(self) -> SequenceInput:
        chunk = self.chunk
        sequence = chunk.sequence
        assert sequence.cached is not None
        tokens = sequence.buffer.part(chunk.start, chunk.start + chunk.num_tokens)
        return SequenceInput(
            tokens=np.concatenate((tokens, chunk.draft)) if len(chunk.draft) else tokens,
            start=chunk.start,
            block_table=sequence.cached.block_table,
            num_logits=1 + len(chunk.draft) if chunk.samples else 0,
            certain=self.certain,
        )


class StepRows:
    """Makes rows for a vocabulary of one size."""

    def __init__(self, vocab_size: int) -> None:
        self._mask_words = -(-vocab_size // 32)
        self._all_allowed = np.full(self._mask_words, 0xFFFFFFFF, dtype=np.uint32)
        self._banning: dict[tuple[int, ...], MaskRow] = {}
        """Masks by what they keep out; not to be written to."""

    def rows(self, parts: Many[StepPart]) -> list[SampleRow]:
        """The rows of all parts, in their order."""
        return [row for part in parts if part.chunk.samples for row in self._rows(part)]

    def _rows(self, part: StepPart) -> list[SampleRow]:
        sequence, draft = part.chunk.sequence, part.chunk.draft
        params, length = sequence.request.sampling, len(sequence.buffer)
        emitted: TokenArray | None = None
        if _penalises(params):
            emitted = sequence.buffer.view()[sequence.prompt_length :]
            if len(draft):
                emitted = np.concatenate((emitted, draft))
        if not len(draft) and not part.certain:
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
            for offset, mask in self._masks(part)
        ]

    def _masks(self, part: StepPart) -> list[tuple[int, MaskRow | None]]:
        """Packed allowed tokens for each row, by its offset."""
        sequence, draft = part.chunk.sequence, part.chunk.draft.tolist()
        grammar = sequence.grammar
        state = grammar.copy() if grammar is not None and draft else grammar
        masks: list[tuple[int, MaskRow | None]] = []
        followed = 0
        for offset in part.row_offsets():
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


def _penalises(params: SamplingParams) -> bool:
    """Whether what a turn has said changes what it says next."""
    return (
        params.repetition_penalty != 1
        or params.frequency_penalty != 0
        or params.presence_penalty != 0
    )
