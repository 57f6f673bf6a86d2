"""The real engine as ``benchmarks.agent_fleet`` needs it: recorded lengths, known costs."""

import time
from dataclasses import replace
from typing import Any

from runtime.config import EngineConfig
from runtime.engine.emission import Emission
from runtime.engine.engine import Engine
from runtime.messages import FinishReason
from runtime.model.runner import ModelRunner
from runtime.process.loading import assemble
from runtime.process.startup_profile import measured_table
from runtime.scheduling.costs import ROWS, CostTable, StepCosts
from runtime.scheduling.sequence import Sequence
from runtime.tokenizer import Tokenizer

PROFILE_S = 5.0
"""For timing every cell of the table."""


class RecordedLengths(Emission):
    """Turns stop where the recording did: a made-up text has no end of its
    own, and only a turn that stops by itself is taken for one that calls a tool."""

    def __init__(self, **parts: Any) -> None:
        super().__init__(**parts)
        self.ends: dict[str, int] = {}

    def append(self, sequence: Sequence, token: int) -> FinishReason | None:
        reason = super().append(sequence, token)
        wanted = self.ends.get(sequence.request.request_id)
        if reason is None and wanted is not None and sequence.num_emitted >= wanted:
            return FinishReason.STOP
        return reason

    def limit(self, sequence: Sequence) -> int:
        most = super().limit(sequence)
        wanted = self.ends.get(sequence.request.request_id)
        return most if wanted is None else min(most, sequence.prompt_length + wanted)


def engine_for(
    runner: ModelRunner, tokenizer: Tokenizer, config: EngineConfig, costs: StepCosts
) -> Engine:
    """An engine around a runner that exists; what its KV pool holds is forgotten."""
    return assemble(config, runner, tokenizer, costs=costs, emission_type=RecordedLengths)


def timed_table(runner: ModelRunner, config: EngineConfig) -> CostTable:
    """Times of the runner's steps, every cell of the table timed."""
    return measured_table(
        runner,
        seconds=PROFILE_S,
        max_batch_tokens=config.max_batch_tokens,
        clock=time.perf_counter,
    )


def with_host(
    table: CostTable, *, prefill_s: float, decode_s: float, mixed_s: float, row_s: float = 0.0
) -> CostTable:
    """The table of a device whose steps take so much longer, by their kind, than the model does,
    and ``row_s`` for each sequence that decodes in one beside the first.

    That is no share of the step: what the host does for one and between two, sockets and all, or
    what the first one after a pause waits for, is the same for a long one.
    """
    others_s = [row_s * max(rows - 1, 0) for rows in ROWS]
    cells = [
        [
            max(cell + (mixed_s if i and j else prefill_s if i else decode_s) + others_s[j], 0.0)
            if i or j
            else cell
            for j, cell in enumerate(row)
        ]
        for i, row in enumerate(table.cells)
    ]
    return replace(table, cells=cells)


def tokenizer_of(runner: ModelRunner) -> Tokenizer:
    model = runner.model
    return Tokenizer.load(
        model.tokenizer_folder, vocab_size=model.config.vocab_size, model_type=model.model_type
    )
