"""An engine without a model: it keeps sessions' tokens and caches, a test writes the output.

It takes the real messages and is as strict as the real one: a base must be known and long
enough, a session runs one turn at a time. What it has once been given counts as cached in
whole blocks, per tenant and adapter. A release is answered; no time passes here, so KV costs
nothing.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np

from runtime.messages import (
    CancelRequest,
    EngineMessage,
    ErrorKind,
    FinishReason,
    GenerationRequest,
    ReleaseBranch,
    Residency,
    ResumePoint,
    SequenceOutput,
    SequenceStart,
    TokenLogprob,
)


@dataclass(slots=True, eq=False)
class OpenTurn:
    """A request the engine has taken and not finished."""

    request: GenerationRequest
    tokens: list[int]
    """Prompt and what was emitted."""
    cached: int
    rebuilt: int = 0
    """Tokens up to which this transcript stands in another one's place."""
    started: bool = False
    emitted: list[int] = field(default_factory=list)


class ScriptedEngine:
    def __init__(self, *, block_size: int = 16) -> None:
        self.block_size = block_size
        self.requests: list[GenerationRequest] = []
        self.cancelled: list[str] = []
        self.released: list[str] = []
        self.sessions: dict[str, list[int]] = {}
        self.open: dict[str, OpenTurn] = {}
        self.lost: dict[str, int] = {}
        """Further causes of misses that the next turns report."""
        self.recurrent = False
        """Whether the model has recurrent layers: turns begin at ends of others."""
        self.cached: dict[tuple[str, str | None], list[list[int]]] = {}
        """By tenant and adapter."""
        self._gone: list[Residency] = []

    @property
    def last(self) -> GenerationRequest:
        return self.requests[-1]

    def submit(self, messages: Iterable[EngineMessage]) -> None:
        for message in messages:
            match message:
                case GenerationRequest():
                    self._open_turn(message)
                case CancelRequest(request_id=request_id):
                    self.cancelled.append(request_id)
                    self.open.pop(request_id, None)
                case ReleaseBranch(branch_id=branch_id):
                    self.released.append(branch_id)
                    self.sessions.pop(branch_id, None)
                    self._gone.append(Residency(branch_id=branch_id, block_us=0, gone=True))

    def take_residency(self) -> list[Residency]:
        """What is to be told of branches' KV with the next step."""
        told, self._gone = self._gone, []
        return told

    def restart(self) -> None:
        """Forget everything, as a new process does."""
        self.sessions.clear()
        self.open.clear()
        self.cached.clear()
        self._gone.clear()

    def forget_past(self) -> None:
        """Drop what only tests look at, and the cache."""
        for past in (self.requests, self.cancelled, self.released):
            past.clear()
        self.cached.clear()

    def prompt(self, request: GenerationRequest) -> list[int]:
        """The whole context of an open request, without its output."""
        turn = self.open[request.request_id]
        return turn.tokens[: len(turn.tokens) - len(turn.emitted)]

    def queue(self, request: GenerationRequest, position: int) -> SequenceOutput:
        return SequenceOutput(
            request_id=request.request_id, new_tokens=_array([]), queue_position=position
        )

    def output(
        self,
        request: GenerationRequest,
        tokens: Sequence[int] = (),
        finish: FinishReason | None = None,
        *,
        forced: int = 0,
        drafted: int = 0,
        accepted: int = 0,
        forwards: int = 0,
        logprobs: tuple[TokenLogprob, ...] = (),
        cached: int | None = None,
        ending_known: bool = True,
    ) -> SequenceOutput:
        """One step: the start if it is the first, some tokens, perhaps the end."""
        turn = self.open[request.request_id]
        start = None
        if not turn.started:
            turn.started = True
            found = turn.cached if cached is None else cached
            rebuilt = max(turn.rebuilt - found, 0)
            new = len(turn.tokens) - found - rebuilt
            misses = {"first_sight": new, "header_changed": rebuilt} | self.lost
            start = SequenceStart(
                input_tokens=len(turn.tokens),
                cached_tokens=found,
                queue_s=0.25,
                miss_causes={cause: count for cause, count in misses.items() if count},
                ending_known=ending_known,
                resumed=ResumePoint(position=found, kind="end", tier="device")
                if self.recurrent and found
                else ResumePoint(position=0)
                if self.recurrent
                else None,
            )
        turn.tokens += tokens
        turn.emitted += tokens
        assert len(turn.emitted) <= request.max_new_tokens, "beyond the limit"
        if finish is not None:
            del self.open[request.request_id]
            owner = (turn.request.tenant, turn.request.adapter)
            self.cached.setdefault(owner, []).append(list(turn.tokens))
        return SequenceOutput(
            request_id=request.request_id,
            new_tokens=_array(tokens),
            start=start,
            finish=finish,
            forced=forced,
            drafted=drafted,
            accepted=accepted,
            forwards=forwards,
            logprobs=logprobs,
        )

    def refuse(
        self, request: GenerationRequest, kind: ErrorKind, message: str = "no"
    ) -> SequenceOutput:
        """Fail a request, started or not."""
        del self.open[request.request_id]
        return SequenceOutput(
            request_id=request.request_id,
            new_tokens=_array([]),
            finish=FinishReason.ERROR,
            error=kind,
            error_message=message,
        )

    def forget(self, request: GenerationRequest) -> SequenceOutput:
        """Answer that the base is not known (any more)."""
        self.open.pop(request.request_id, None)
        if request.base_branch_id is not None:
            self.sessions.pop(request.base_branch_id, None)
            self.sessions.pop(request.branch_id, None)
        return SequenceOutput(
            request_id=request.request_id,
            new_tokens=_array([]),
            finish=FinishReason.UNKNOWN_BASE,
        )

    def _open_turn(self, request: GenerationRequest) -> None:
        self.requests.append(request)
        busy = {turn.request.branch_id for turn in self.open.values()}
        assert request.branch_id not in busy, "the session already has an open turn"
        tokens, rebuilt = request.new_tokens.tolist(), 0
        if request.base_branch_id is not None:
            base = self.sessions[request.base_branch_id]
            assert len(base) >= request.base_offset, "the base is shorter than the offset"
            if request.base_offset == 0 and request.base_branch_id != request.branch_id:
                rebuilt = min(len(base), len(tokens))
            tokens = base[: request.base_offset] + tokens
        assert tokens, "an empty prompt"
        self.sessions[request.branch_id] = tokens
        self.open[request.request_id] = OpenTurn(
            request=request,
            tokens=tokens,
            cached=self._match((request.tenant, request.adapter), tokens),
            rebuilt=rebuilt,
        )

    def _match(self, owner: tuple[str, str | None], tokens: list[int]) -> int:
        size, most = self.block_size, len(tokens) - 1
        best = 0
        for known in self.cached.get(owner, []):  # only one that has a block more than the best
            while best + size <= most and tokens[: best + size] == known[: best + size]:
                best += size
        return best


def _array(tokens: Sequence[int]) -> np.ndarray[tuple[int], np.dtype[np.int32]]:
    return np.array(tokens, dtype=np.int32)
