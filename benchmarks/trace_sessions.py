"""Recorded agent sessions as chains of turns, with the lengths and pauses of the recording.

Only the main agent's requests are kept, in their order; sub-agents run elsewhere. Token ids
stand for content: equal prefixes have equal ids and nothing else does. Knows the file format
of the traces, nothing of engines.
"""

import json
import random
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from benchmarks.hit_ratio import session_requests
from runtime.messages import TokenArray

_UNIT = 64
"""Tokens whose ids follow from one id of the recording's prefix hashes."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Turn:
    """One request of a session and its answer."""

    tokens: TokenArray
    """int32: the prompt and the answer behind it."""
    prompt_tokens: int
    kept_tokens: int
    """Leading tokens that are those of the turn before, its answer included."""
    gap_s: float
    """From the end of the turn before to this one's arrival."""
    calls_tool: bool
    """The answer ends in a tool call."""
    sub_agents: "tuple[Session, ...]" = ()
    """They begin when this turn ends; the pause before the next one begins when all have ended."""
    limit_tokens: int | None = None
    """The answer's limit, which the server is told; None: far away."""

    @property
    def output_tokens(self) -> int:
        return len(self.tokens) - self.prompt_tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class Session:
    name: str
    turns: tuple[Turn, ...]


def load_chains(
    path: Path, *, max_turns: int = 40, max_context: int = 252_000, scale: int = 1
) -> list[Session]:
    """The sessions of ``path`` whose first ``max_turns`` requests stay below ``max_context``
    tokens.

    Args:
        scale: lengths are divided by it, after the selection.
    """
    sessions = []
    next_id = 0
    with path.open() as lines:
        for line in lines:
            row = json.loads(line)
            wanted = [i for i, request in enumerate(row["req"]) if request[1] == 0][:max_turns]
            if (
                not wanted
                or max(row["req"][i][4] + row["req"][i][5] for i in wanted) >= max_context
            ):
                continue
            requests = session_requests(row, next_id)
            next_id = 1 + max(int(request.blocks.max()) for request in requests)
            turns: list[Turn] = []
            for i in wanted:
                request = requests[i]
                gap_s, kind = row["req"][i][6], row["req"][i][8]
                tokens = _tokens(request.blocks, request.total_tokens)[::scale]
                prompt = max(1, request.prompt_tokens // scale)
                tokens = tokens[: max(len(tokens), prompt + 1)].copy()
                before = turns[-1].tokens if turns else tokens[:0]
                turns.append(
                    Turn(
                        tokens=tokens,
                        prompt_tokens=min(prompt, len(tokens) - 1),
                        kept_tokens=min(_common(before, tokens), prompt - 1),
                        gap_s=float(gap_s or 0.0) if turns else 0.0,
                        calls_tool=bool(kind & 2),
                    )
                )
            sessions.append(Session(name=row["id"], turns=tuple(turns)))
    return sessions


def choose(sessions: list[Session], count: int, seed: int) -> list[Session]:
    """``count`` sessions, or all if there are fewer, in an order that depends on ``seed``."""
    return random.Random(seed).sample(sessions, min(count, len(sessions)))


def _tokens(units: TokenArray, num_tokens: int) -> TokenArray:
    """int32 [num_tokens]; the last unit may be cut."""
    grid = units[:, None] * np.int32(_UNIT) + np.arange(_UNIT, dtype=np.int32)
    return grid.reshape(-1)[:num_tokens]


def _common(left: TokenArray, right: TokenArray) -> int:
    """Length of the longest common prefix."""
    length = min(len(left), len(right))
    differs = np.flatnonzero(left[:length] != right[:length])
    return int(differs[0]) if len(differs) else length
