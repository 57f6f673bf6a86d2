"""A step's reports on each request, gathered until the step ends.

Knows the messages to the sessions. Knows no sequences, no schedule and no tensors.
"""

import numpy as np

from runtime.messages import (
    ErrorKind,
    FinishReason,
    SequenceOutput,
    SequenceStart,
    TokenLogprob,
)


class PendingOutput:
    """A step's report on one request, gathered until the step ends."""

    __slots__ = (
        "accepted",
        "drafted",
        "error",
        "error_message",
        "finish",
        "forced",
        "forwards",
        "logprobs",
        "queue_position",
        "start",
        "tokens",
    )

    def __init__(self) -> None:
        self.tokens: list[int] = []
        self.logprobs: list[TokenLogprob] = []
        self.forced = 0
        self.drafted = 0
        self.accepted = 0
        self.forwards = 0
        self.start: SequenceStart | None = None
        self.queue_position: int | None = None
        self.finish: FinishReason | None = None
        self.error: ErrorKind | None = None
        self.error_message = ""

    def output(self, request_id: str) -> SequenceOutput:
        return SequenceOutput(
            request_id=request_id,
            new_tokens=np.array(self.tokens, dtype=np.int32),
            forced=self.forced,
            drafted=self.drafted,
            accepted=self.accepted,
            forwards=self.forwards,
            start=self.start,
            queue_position=self.queue_position,
            logprobs=tuple(self.logprobs),
            finish=self.finish,
            error=self.error,
            error_message=self.error_message,
        )


class OutputCollector:
    """The outputs of one step, by request id."""

    def __init__(self) -> None:
        self._outputs: dict[str, PendingOutput] = {}

    def __len__(self) -> int:
        return len(self._outputs)

    @property
    def num_tokens(self) -> int:
        """Emitted since the last call of ``collect``."""
        return sum(len(output.tokens) for output in self._outputs.values())

    def of(self, request_id: str) -> PendingOutput:
        """The request's output, to be added to."""
        return self._outputs.setdefault(request_id, PendingOutput())

    def error(self, request_id: str, kind: ErrorKind, message: str) -> None:
        """End a request with an error."""
        output = self.of(request_id)
        output.finish, output.error, output.error_message = FinishReason.ERROR, kind, message

    def collect(self) -> tuple[SequenceOutput, ...]:
        """The outputs that were gathered since the last call."""
        outputs, self._outputs = self._outputs, {}
        return tuple(output.output(name) for name, output in outputs.items())
