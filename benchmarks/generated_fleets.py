"""Agent sessions that nobody recorded: what the recorded ones are not.

Sub-agents that begin with their parent's context, or with its tools alone, several at once,
while the parent waits for all of them; pauses, answers and tool results with heavy tails;
contexts that are compacted, after which only the tools are still the same; few sets of tools
that many sessions share. Medians and spreads are near those of recorded coding agents, the
shape is ours. Everything follows from the seed. Equal prefixes have equal token ids and
nothing else does. Knows nothing of engines.
"""

import math
import random
from dataclasses import dataclass, field

import numpy as np

from benchmarks.trace_sessions import Session, Turn
from runtime.messages import TokenArray

_COMPACTED_SHARE = 0.1
"""Length of the summary that takes the place of a context."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetShape:
    """The distributions to draw from; pairs are the median and the spread (sigma of the
    logarithm)."""

    tool_sets: int = 6
    tools_tokens: int = 13_000
    first_tokens: tuple[float, float] = (12_000, 1.2)
    result_tokens: tuple[float, float] = (400, 1.7)
    call_tokens: tuple[float, float] = (200, 1.1)
    answer_tokens: tuple[float, float] = (350, 1.2)
    tool_gap_s: tuple[float, float] = (9, 1.2)
    human_gap_s: tuple[float, float] = (120, 1.5)
    turns: tuple[float, float] = (18, 0.7)
    calls_in_a_row: float = 8.0
    """Mean of the tool calls before a final answer."""
    compact_at: int = 120_000
    """Prompts are compacted before they are longer."""
    compact_share: float = 0.02
    """The share of compact JSON among all other turns."""
    spawn_share: float = 0.05
    """Turns that call sub-agents."""
    most_sub_agents: int = 6
    fork_share: float = 0.5
    """Sub-agents that begin with all of their parent's context, the others with its tools."""


@dataclass(slots=True)
class _Context:
    """The tokens that a session has in its window."""

    tools: TokenArray
    tokens: TokenArray = field(init=False)

    def __post_init__(self) -> None:
        self.tokens = self.tools


class _Generator:
    def __init__(self, shape: FleetShape, seed: int) -> None:
        self._shape = shape
        self._random = random.Random(seed)
        self._next_id = 0
        self._tools = [self._fresh(shape.tools_tokens) for _ in range(shape.tool_sets)]

    def session(self, name: str) -> Session:
        shape = self._shape
        context = _Context(self._random.choice(self._tools))
        num_turns = min(60, self._draw(shape.turns))
        return self._play(name, context, num_turns, self._draw(shape.first_tokens), spawns=True)

    def _play(
        self, name: str, context: _Context, num_turns: int, first: int, *, spawns: bool
    ) -> Session:
        """A session that begins with ``context`` and ``first`` tokens of its own."""
        shape, rng = self._shape, self._random
        turns: list[Turn] = []
        new, gap_s = first, 0.0
        for number in range(num_turns):
            kept = len(context.tokens) if number else 0
            full = len(context.tokens) + new > shape.compact_at
            if number and (full or rng.random() < shape.compact_share):
                summary = self._fresh(int(_COMPACTED_SHARE * len(context.tokens)))
                context.tokens = np.concatenate([context.tools, summary])
                kept = len(context.tools)
            room = max(1, shape.compact_at - len(context.tokens))
            prompt = np.concatenate([context.tokens, self._fresh(min(new, room))])
            calls = number < num_turns - 1 and rng.random() > 1 / shape.calls_in_a_row
            said = self._draw(shape.call_tokens if calls else shape.answer_tokens)
            context.tokens = np.concatenate([prompt, self._fresh(min(said, 16_000))])
            helpers: tuple[Session, ...] = ()
            if spawns and calls and rng.random() < shape.spawn_share:
                helpers = self._helpers(f"{name}.{number}", context)
            turns.append(
                Turn(
                    tokens=context.tokens,
                    prompt_tokens=len(prompt),
                    kept_tokens=kept,
                    gap_s=gap_s,
                    calls_tool=calls,
                    sub_agents=helpers,
                )
            )
            gap_s = self._lognormal(shape.tool_gap_s if calls else shape.human_gap_s)
            new = self._draw(shape.result_tokens)
        return Session(name=name, turns=tuple(turns))

    def _helpers(self, name: str, parent: _Context) -> tuple[Session, ...]:
        shape, rng = self._shape, self._random
        helpers = []
        for number in range(rng.randint(1, shape.most_sub_agents)):
            context = _Context(parent.tools)
            if rng.random() < shape.fork_share:
                context.tokens = parent.tokens
            num_turns = max(1, self._draw(shape.turns) // 3)
            task = self._draw(shape.result_tokens)
            helpers.append(self._play(f"{name}.{number}", context, num_turns, task, spawns=False))
        return tuple(helpers)

    def _fresh(self, num_tokens: int) -> TokenArray:
        start, self._next_id = self._next_id, self._next_id + num_tokens
        return np.arange(start, self._next_id, dtype=np.int32)

    def _lognormal(self, shape: tuple[float, float]) -> float:
        median, spread = shape
        return self._random.lognormvariate(math.log(median), spread)

    def _draw(self, shape: tuple[float, float]) -> int:
        return max(1, int(self._lognormal(shape)))


def generate(count: int, seed: int, shape: FleetShape | None = None) -> list[Session]:
    """``count`` sessions; their sub-agents stand in the turns that call them."""
    generator = _Generator(shape or FleetShape(), seed)
    return [generator.session(f"g{seed}-{number}") for number in range(count)]
