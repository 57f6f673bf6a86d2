"""From drawn tokens to a sequence's output.

Drafts are compared with what was drawn, the sequence's limit is kept, what the grammar forces
behind is taken without logits, and the sequence learns whether a token ended it: end of turn, a
stop string, a limit.

Knows one sequence's tokens and its grammar. Knows no schedule, no cache and no device.

Always true: what is emitted depends on the sequence's tokens, its limit and what was drawn at
each position; not on how many tokens a step brings.
"""

from collections.abc import Callable
from dataclasses import dataclass

from runtime.engine.background import Pieces
from runtime.engine.step_outputs import OutputCollector, PendingOutput
from runtime.grammar.closing import Work
from runtime.messages import ErrorKind, FinishReason, TokenLogprob
from runtime.model.sampler import Sampled
from runtime.scheduling.sequence import Sequence
from runtime.scheduling.step_plan import Chunk, Decodes
from runtime.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True)
class Taken:
    """The tokens that a sequence took of its sampled rows."""

    accepted: int
    finish: FinishReason | None = None
    error: ErrorKind | None = None
    message: str = ""


NOTHING_TAKEN = Taken(0)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Settlement:
    """One sequence's use of the tokens drawn for it, in the making: a background task."""

    sequence: Sequence
    num_drafted: int
    pieces: Pieces[Taken]
    preemptions: int
    """Preemptions of the sequence when the tokens were drawn; more by now means that its KV is
    gone."""
    settled: Callable[["Settlement"], None]
    """Called when it comes to its end in the background."""

    @property
    def is_void(self) -> bool:
        """The sequence has ended otherwise, or was preempted: then it will draw these tokens
        again, and the same ones."""
        sequence = self.sequence
        return sequence.finish is not None or sequence.preemptions != self.preemptions

    def holds(self, sequence: Sequence) -> bool:
        return sequence is self.sequence

    def conclude(self) -> None:
        self.settled(self)


class Emission:
    """Takes drawn tokens into sequences and their outputs."""

    takes_forced_tokens = True
    """False in measurements and tests only: what the grammar forces is then sampled, one token
    a step, and comes out the same."""

    def __init__(
        self, *, tokenizer: Tokenizer, outputs: OutputCollector, max_context_tokens: int
    ) -> None:
        self._tokenizer = tokenizer
        self._outputs = outputs
        self._max_context_tokens = max_context_tokens

    def taking(self, chunk: Chunk, sampled: Sampled, first_row: int) -> Work[Taken]:
        """Emit what was drawn, as far as the draft agrees with it, and the forced run behind.
        Work in pieces: the sequence must not compute anything until it is done. Each token is
        told in the step in which it was emitted.

        The token drawn at a position depends on the tokens before it and on (seed, position)
        alone, so what is emitted is what a run without drafts emits (sample and compare;
        Leviathan et al. 2023, arXiv:2211.17192, for a drafter that proposes one token).
        """
        name = chunk.sequence.request.request_id
        self._outputs.of(name).forwards = 1
        looked_at: list[int] = []
        taken = yield from self._emitting(chunk, sampled, first_row, looked_at)
        in_vain = set(range(chunk.num_drafted)) - set(chunk.forced) - set(looked_at)
        self._outputs.of(name).drafted += len(in_vain)
        return taken

    def take_plain(self, decodes: Decodes, sampled: Sampled) -> list[int]:
        """Tell what was drawn for sequences that emit just that and go on: no grammar, no stop
        string and no limit matters. Returns their indices in ``decodes``, whose rows are the
        first of the draw; their buffers are not touched."""
        plain: list[int] = []
        ends = self._tokenizer.end_of_turn_ids
        drawn = zip(decodes.sequences, decodes.ends.tolist(), sampled.tokens.tolist(), strict=False)
        for index, (sequence, length, token) in enumerate(drawn):
            sampling = sequence.request.sampling
            if sequence.grammar is not None or sampling.stop or sampling.top_logprobs is not None:
                continue
            if token < 0 or token in ends or length + 1 >= self.limit(sequence):
                continue
            output = self._outputs.of(sequence.request.request_id)
            output.forwards = 1
            output.tokens.append(token)
            plain.append(index)
        return plain

    def limit(self, sequence: Sequence) -> int:
        """Tokens at which a sequence ends by itself, at the latest."""
        most = sequence.prompt_length + sequence.request.max_new_tokens
        return min(most, self._max_context_tokens)

    def _emitting(
        self, chunk: Chunk, sampled: Sampled, first_row: int, looked_at: list[int]
    ) -> Work[Taken]:
        """``looked_at`` gets the indices in the draft that were compared with what was drawn."""
        sequence, draft = chunk.sequence, chunk.draft.tokens.tolist()
        grammar = sequence.grammar
        name = sequence.request.request_id
        output = self._outputs.of(name)
        rows = {offset: first_row + n for n, offset in enumerate(chunk.row_offsets())}
        accepted = 0
        for offset in range(1 + len(draft)):
            forced = self._forced(sequence)
            if grammar is not None and grammar.failed is not None:
                return Taken(accepted, FinishReason.ERROR, ErrorKind.GRAMMAR, grammar.failed)
            if forced:
                token, logprob = forced[0], _certain(sequence, forced[0])
            elif offset in rows:
                row = rows[offset]
                error = _row_error(sampled, row)
                if error is not None:
                    return Taken(accepted, FinishReason.ERROR, *error)
                token, logprob = int(sampled.tokens[row]), sampled.logprobs[row]
                if grammar is not None:
                    token = yield from grammar.deciding(token, sequence.remaining)
                    output = self._outputs.of(name)  # steps may have ended in between
                if logprob is not None and logprob.token != token:
                    logprob = _certain(sequence, token)  # the limit left no choice
            else:
                # The draft was wrong about what is forced: its last token is computed again.
                return Taken(accepted - 1)
            output.forced += bool(forced)
            reason = self._emit(sequence, output, token, logprob)
            agrees = offset < len(draft) and token == draft[offset]
            accepted += agrees
            if offset < len(draft) and not forced:
                looked_at.append(offset)
                output.drafted += 1
                output.accepted += agrees
            if reason is not None:
                return Taken(accepted, reason)
            if not agrees:
                break
        return self._take_forced(sequence, output, accepted)

    def _take_forced(self, sequence: Sequence, output: PendingOutput, accepted: int) -> Taken:
        """Emit the tokens that the grammar leaves no choice about: no logits are needed."""
        while run := self._forced(sequence):
            for token in run:
                output.forced += 1
                reason = self._emit(sequence, output, token, _certain(sequence, token))
                if reason is not None:
                    return Taken(accepted, reason)
        grammar = sequence.grammar
        if grammar is not None and grammar.failed is not None:
            return Taken(accepted, FinishReason.ERROR, ErrorKind.GRAMMAR, grammar.failed)
        return Taken(accepted)

    def _forced(self, sequence: Sequence) -> list[int]:
        """The tokens that can only come next."""
        if sequence.grammar is None or not self.takes_forced_tokens:
            return []
        return sequence.grammar.forced_tokens(sequence.remaining)

    def _emit(
        self, sequence: Sequence, output: PendingOutput, token: int, logprob: TokenLogprob | None
    ) -> FinishReason | None:
        """Add one token to the sequence; tells whether it ends the sequence."""
        output.tokens.append(token)
        if logprob is not None:
            output.logprobs.append(logprob)
        reason = self.append(sequence, token)
        if reason is None and sequence.grammar is not None:
            sequence.grammar.advance([token])
        return reason

    def append(self, sequence: Sequence, token: int) -> FinishReason | None:
        """Append one emitted token and tell whether it ends the sequence."""
        sequence.buffer.append(token)
        if token in self._tokenizer.end_of_turn_ids:
            return FinishReason.STOP
        if self._completes_stop_string(sequence, token):
            return FinishReason.STOP_STRING
        if sequence.remaining <= 0:
            return FinishReason.LENGTH
        if len(sequence.buffer) >= self._max_context_tokens:
            return FinishReason.CONTEXT
        return None

    @staticmethod
    def _completes_stop_string(sequence: Sequence, token: int) -> bool:
        search, grammar = sequence.stop_search, sequence.grammar
        if search is None:
            return False
        return search.completes(token, bound=grammar is not None and grammar.bound)


def _certain(sequence: Sequence, token: int) -> TokenLogprob | None:
    """The log-probability of a token that had to come, for a sequence that asked for it."""
    wanted = sequence.request.sampling.top_logprobs is not None
    return TokenLogprob(token=token, logprob=0.0) if wanted else None


def _row_error(sampled: Sampled, row: int) -> tuple[ErrorKind, str] | None:
    if not sampled.finite[row]:
        return ErrorKind.NOT_FINITE, "the model produced logits that are not finite"
    if sampled.tokens[row] < 0:
        return ErrorKind.GRAMMAR, "the grammar allows no token here"
    return None
