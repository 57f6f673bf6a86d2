"""An engine without a model, in a process of its own: a token for each open turn in every step.

It speaks the frames of the real one, so that the front end does all of its own work, and none
of this process's time is the front end's. Turns that come together start together: the first
step runs once nothing has come for a moment. A step comes every so often for each open turn,
slower than the front end takes them in, so that every step is a wake-up of its own.

A turn gets as many tokens as it may have, the last of them the end of the turn; they spell plain
words of the shipped model's tokenizer.
"""

import json
import select
import socket
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from runtime.messages import (
    Beat,
    CancelRequest,
    EngineInfo,
    EngineMessage,
    FinishReason,
    GenerationRequest,
    SequenceOutput,
    SequenceStart,
    StepOutput,
    StepStats,
)
from runtime.process import frames
from runtime.process.watchdog import period_s
from runtime.tokenizer import Tokenizer
from tools_api.chat_format import Segment

MODEL = Path(__file__).parents[1] / "runtime/assets/default_model"
WORDS = "the quick brown fox jumps over a lazy dog while nobody looks and "
GATHER_S = 0.1
"""Silence after which the turns that have come start."""
STEP_S = 0.0002
LEAST_STEP_S = 0.01


def gap_s(turns: int) -> float:
    """Time between two steps of so many turns."""
    return max(turns * STEP_S, LEAST_STEP_S)


@dataclass(slots=True)
class OpenTurn:
    """A request and how many tokens it has got."""

    request: GenerationRequest
    emitted: int = 0


class Script:
    """Says what a step gives each open turn."""

    def __init__(self, words: Sequence[int], end: int) -> None:
        """
        Args:
            words: token ids, said over and over.
            end: id that ends a turn.
        """
        self._words = [np.array([token], dtype=np.int32) for token in words]
        self._end = np.array([end], dtype=np.int32)
        self._open: dict[str, OpenTurn] = {}

    @property
    def num_open(self) -> int:
        return len(self._open)

    def submit(self, messages: Sequence[EngineMessage]) -> None:
        """Open and drop turns."""
        for message in messages:
            if isinstance(message, GenerationRequest):
                self._open[message.request_id] = OpenTurn(message)
            elif isinstance(message, CancelRequest):
                self._open.pop(message.request_id, None)

    def step(self) -> StepOutput:
        """A token for each open turn."""
        outputs = tuple(map(self._next, list(self._open.values())))
        step_s = gap_s(len(outputs))
        stats = StepStats(
            running=len(outputs),
            step_s=step_s,
            steps_s=[step_s],
            steps_prefill_tokens=[0],
            decode_tokens_delta=len(outputs),
        )
        return StepOutput(outputs=outputs, stats=stats)

    def _next(self, turn: OpenTurn) -> SequenceOutput:
        request, place = turn.request, turn.emitted
        turn.emitted += 1
        ends = turn.emitted >= request.max_new_tokens
        if ends:
            del self._open[request.request_id]
        return SequenceOutput(
            request_id=request.request_id,
            new_tokens=self._end if ends else self._words[place % len(self._words)],
            forwards=1,
            start=None if place else _start(request),
            finish=FinishReason.STOP if ends else None,
        )


def _start(request: GenerationRequest) -> SequenceStart:
    """Nothing was cached."""
    prompt = request.base_offset + len(request.new_tokens)
    return SequenceStart(
        input_tokens=prompt, cached_tokens=0, queue_s=0.0, miss_causes={"first_sight": prompt}
    )


def _info(tokenizer: Tokenizer) -> EngineInfo:
    config = json.loads((MODEL / "config.json").read_text())
    return EngineInfo(
        model_name="scripted",
        device="none",
        dtype="none",
        vocab_size=tokenizer.vocab_size,
        max_context_tokens=4096,
        block_size=16,
        kv_capacity_tokens=1 << 24,
        num_parameters=0,
        load_s=0.0,
        tokenizer_folder=str(MODEL),
        model_type=config["model_type"],
    )


def _receive(connection: socket.socket) -> tuple[bytes, bytes]:
    head, body = frames.body_sizes(_exactly(connection, frames.PREFIX.size))
    return _exactly(connection, head), _exactly(connection, body)


def _exactly(connection: socket.socket, size: int) -> bytes:
    parts = b""
    while len(parts) < size:
        part = connection.recv(size - len(parts))
        if not part:
            raise EOFError
        parts += part
    return parts


def serve(connection: socket.socket) -> None:
    """Run steps until the peer closes the socket."""
    config = frames.decode_config(*_receive(connection))
    tokenizer = Tokenizer.load(MODEL)
    script = Script(tokenizer.encode([Segment(WORDS)]).tolist(), tokenizer.end_of_turn_id)
    connection.sendall(frames.encode_ready(_info(tokenizer)))
    due_s, beat_s = time.monotonic(), period_s(config.hung_after_s)
    while True:
        wait_s = max(due_s - time.monotonic(), 0.0)
        if select.select([connection], [], [], wait_s if script.num_open else beat_s)[0]:
            opened = script.num_open
            script.submit(frames.decode_messages(*_receive(connection)))
            if script.num_open > opened:
                due_s = max(due_s, time.monotonic() + GATHER_S)
        elif script.num_open:
            due_s = time.monotonic() + gap_s(script.num_open)
            connection.sendall(frames.encode_step(script.step()))
        else:
            connection.sendall(frames.encode_beat(Beat(turn=0, working=False)))


def main() -> None:
    """Entry point: one argument, the number of the inherited socket."""
    with socket.socket(fileno=int(sys.argv[1])) as connection:
        try:
            serve(connection)
        except (EOFError, ConnectionError):
            return


if __name__ == "__main__":
    main()
