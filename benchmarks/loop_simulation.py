"""The simulator's answer for sessions in a loop, beside what a server took for them.

The device is the table of steps timed in this process, after each round: a machine may become
slower. How much longer steps take in life, sockets and all, is taken from sessions played one
after the other, of those that compute a prompt and of those that decode, and from sessions that
only decode beside each other, for each of them. How turns get on beside each other, prompts and
all, is what the simulator has to foretell.
"""

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch

from benchmarks import fleet_engine
from benchmarks.fleet_engine import with_host
from benchmarks.loop_workload import Played, PlayedTurn, Workload
from benchmarks.simulation import OURS, DeviceProfile, Mode, Setting, Simulation
from benchmarks.trace_sessions import Session, Turn
from runtime.config import TOKEN_GAP_MS, EngineConfig
from runtime.model.hf_config import read_model_config
from runtime.model.kv_pool import block_bytes
from runtime.model.runner import load_runner
from runtime.scheduling.costs import CostTable

BLOCK = 16
FCFS = Mode(name="fcfs", policy="fcfs", beside_tokens=512)
MODES = {"ours": OURS, "fcfs": FCFS}


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """A run that was played: on which server, and each round of it."""

    server: str
    load: Workload
    rounds: Sequence[Played]

    @property
    def latency_s(self) -> float:
        return statistics.median(played.figures["latency_mean_s"] for played in self.rounds)

    @property
    def first_token_s(self) -> float:
        """Mean of all turns, as is the latency."""
        return statistics.median(
            statistics.fmean(turn.token_s[0] - turn.sent_s for turn in _turns(played))
            for played in self.rounds
        )

    @property
    def later_tokens(self) -> float:
        """Tokens of a turn behind the first one: their mean number."""
        return statistics.fmean(len(turn.token_s) - 1 for turn in _turns(self.rounds[0]))


class Foretold(NamedTuple):
    """Means over the turns of a run."""

    latency_s: float
    first_token_s: float


def _turns(played: Played) -> list[PlayedTurn]:
    return [turn for session in played.sessions for turn in session]


def timed_table(model: Path, *, threads: int | None) -> CostTable:
    """The table of the machine for the model in a folder, every cell timed."""
    config = EngineConfig(model=str(model), threads=threads, kv_cache_bytes=512 << 20)
    return fleet_engine.timed_table(load_runner(config), config)


def middle_of(tables: Sequence[CostTable]) -> CostTable:
    """The table of the medians of each cell and of what context costs."""

    def middle(number: Callable[[CostTable], float]) -> float:
        return statistics.median(map(number, tables))

    return replace(
        tables[0],
        cells=[
            [
                statistics.median(table.cells[i][j] for table in tables)
                for j in range(len(tables[0].cells[i]))
            ]
            for i in range(len(tables[0].cells))
        ],
        pair_s=middle(lambda table: table.pair_s),
        context_s=middle(lambda table: table.context_s),
        chunk_s=middle(lambda table: table.chunk_s),
    )


def kv_bytes_per_token(model: Path) -> int:
    """KV memory of one token, in bfloat16, of the model in a folder."""
    return block_bytes(read_model_config(model), 1, torch.bfloat16)


def errors(
    table: CostTable, kv_tokens: int, serial: Seen, decoding: Seen, runs: Mapping[str, Seen]
) -> dict[str, float]:
    """How far the simulator's mean turn latency of each run is off, as a share.

    Steps take as much longer than the table says as those of ``serial``, whose turns are alone, did
    to the first token and between tokens, and for each sequence beside another as much as those of
    ``decoding`` did, all of whose sessions decode at once. What a turn waits for before its prompt
    is computed, where it is alone, is done beside the steps of others: steps with both prompts and
    decodes take as much longer as those of decodes.
    """
    said = foretold(table, kv_tokens, serial)
    prompt_s = serial.first_token_s - said.first_token_s
    step_s = _decoding_s(serial, said)
    alone = with_host(table, prefill_s=prompt_s, decode_s=step_s, mixed_s=step_s)
    others = decoding.load.sessions - 1
    row_s = _decoding_s(decoding, foretold(alone, kv_tokens, decoding)) / others if others else 0.0
    device = with_host(table, prefill_s=prompt_s, decode_s=step_s, mixed_s=step_s, row_s=row_s)
    return {
        name: foretold(device, kv_tokens, seen).latency_s / seen.latency_s - 1
        for name, seen in runs.items()
    }


def _decoding_s(seen: Seen, said: Foretold) -> float:
    """Seconds that a step between two tokens took longer than was foretold."""
    took_s, foretold_s = seen.latency_s - seen.first_token_s, said.latency_s - said.first_token_s
    return (took_s - foretold_s) / seen.later_tokens


def sessions_of(played: Played, load: Workload) -> list[Session]:
    """The sessions as the simulator plays them: lengths of what was played, contents made up, the
    system prompt the same for all."""
    sessions = []
    for number, turns in enumerate(played.sessions):
        length = turns[-1].prompt_tokens + len(turns[-1].token_s)
        own = np.arange(length, dtype=np.int32) + (number + 1) * (1 << 20)
        own[: load.system_tokens] = np.arange(load.system_tokens, dtype=np.int32)
        made: list[Turn] = []
        kept = 0
        for turn in turns:
            total = turn.prompt_tokens + len(turn.token_s)
            made.append(
                Turn(
                    tokens=own[:total],
                    prompt_tokens=turn.prompt_tokens,
                    kept_tokens=kept,
                    gap_s=load.tool_s if made else 0.0,
                    calls_tool=True,
                    limit_tokens=len(turn.token_s),
                )
            )
            kept = total
        sessions.append(Session(name=f"session-{number}", turns=tuple(made)))
    return sessions


def foretold(table: CostTable, kv_tokens: int, seen: Seen) -> Foretold:
    """The simulator's answer for a run, over the rounds."""
    setting = Setting(
        sessions=1 if seen.load.one_at_a_time else seen.load.sessions,
        profile=DeviceProfile(costs=table, kv_tokens=kv_tokens, reload_token_s=0.0),
        block_size=BLOCK,
        stride=1,
        token_gap_ms=TOKEN_GAP_MS,
    )
    mode = MODES[seen.server]
    runs = [
        Simulation(sessions_of(played, seen.load), mode, setting).run() for played in seen.rounds
    ]
    return Foretold(
        latency_s=statistics.median(run.mean_s for run in runs),
        first_token_s=statistics.median(run.first_token_mean_s for run in runs),
    )
