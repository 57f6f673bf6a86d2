"""An engine that writes what the test has told it to, by itself, a piece a step.

Behind the hub's own interface, with the caches and the strictness of ``ScriptedEngine``.
"""

from collections import deque
from collections.abc import Callable

import numpy as np

from runtime.messages import (
    CancelRequest,
    EngineMessage,
    FinishReason,
    GenerationRequest,
    SequenceOutput,
)
from tests.support.fake_engine import HandEngine
from tests.support.scripted_engine import ScriptedEngine
from tests.support.sessions_rig import END, token_ids

Script = Callable[[GenerationRequest], list[str]]


def always(*pieces: str) -> Script:
    """The same output for every request, one piece a step."""
    return lambda _: list(pieces)


HELLO = always("Hel", "lo" + END)


class SpeakingEngine(HandEngine):
    """Answers each request by its script; while ``holds`` is set, only when told."""

    def __init__(self, script: Script = HELLO, *, holds: bool = False) -> None:
        super().__init__()
        self.script = script
        self.holds = holds
        self.scripted = ScriptedEngine()
        self.waiting: deque[GenerationRequest] = deque()
        """Requests that nothing was said to yet."""

    def send(self, messages: list[EngineMessage]) -> None:
        super().send(messages)
        open_before = set(self.scripted.open)
        self.scripted.submit(messages)
        for message in messages:
            if isinstance(message, GenerationRequest):
                self.waiting.append(message)
                if not self.holds:
                    self.speak()
            elif isinstance(message, CancelRequest) and message.request_id in open_before:
                self._say_cancelled(message.request_id)

    def speak(self) -> None:
        """Say all of the script to the request that waits longest."""
        request = self.waiting.popleft()
        pieces = self.script(request)
        for number, piece in enumerate(pieces, start=1):
            self.piece(request, piece, last=number == len(pieces))

    def piece(self, request: GenerationRequest, text: str, *, last: bool = False) -> None:
        """One step for one request."""
        finish = None
        if last:
            finish = FinishReason.STOP if text.endswith(END) else FinishReason.LENGTH
        self.say(self.scripted.output(request, token_ids(text), finish))

    def _say_cancelled(self, request_id: str) -> None:
        none = np.array([], dtype=np.int32)
        self.say(
            SequenceOutput(request_id=request_id, new_tokens=none, finish=FinishReason.CANCELLED)
        )
