"""Agents in a loop against a server: what they send, when, and what they see.

Sessions share a system prompt. A session's turn is a tool's result as a user's message and an
answer of a set length; its next turn begins as soon as this one has ended and its tool has run,
whatever the others do. Every session has a socket of its own. Texts, lengths and the seeds of
the answers follow from the workload's seed; answers are sampled at temperature 1 unless who opens
the sessions says otherwise.

Knows the client's side only: not which server answers, nor what figures are good. Tools are
pauses, no calls are written: random weights write no call of a set length.

Always true: a turn whose answer or prompt has another length than it should is an error.
"""

import asyncio
import hashlib
import math
import random
import string
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from tools_api.sdk.answers import Response, TextDelta
from tools_api.sdk.client import AsyncClient
from tools_api.sdk.session import AsyncSession

_LETTERS = string.ascii_lowercase + "     "
_LOOK_EVERY_S = 0.5


class WrongLength(Exception):
    """A turn had another number of tokens than asked for: the work is not what was to be timed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """The work of a fleet of agents."""

    texts: str = ""
    """Workloads of one name say the same, as far as they go alike."""
    sessions: int
    turns: int
    system_tokens: int = 1500
    result_tokens: tuple[int, int] = (150, 150)
    """Least and most; between them log-uniform."""
    answer_tokens: tuple[int, int] = (32, 32)
    tool_s: float = 0.0
    """Between a turn's end and the session's next one."""
    tool_most_s: float = 0.0
    """Where it is more, a tool takes from ``tool_s`` to so long, each as the seed says."""
    stagger_s: float = 0.0
    """Between the beginnings of two sessions."""
    one_at_a_time: bool = False
    """A session begins when the one before has ended."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedTurn:
    text: str
    answer_tokens: int
    seed: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """All texts and lengths of a workload, the same from the same seed."""

    system: str
    sessions: tuple[tuple[PlannedTurn, ...], ...]


@dataclass(slots=True, kw_only=True)
class PlayedTurn:
    """A turn as its client saw it; seconds of ``time.perf_counter``."""

    sent_s: float
    token_s: list[float] = field(default_factory=list)
    """When text came."""
    end_s: float = 0.0
    text: str = ""
    prompt_tokens: int = 0

    @property
    def gaps_s(self) -> list[float]:
        return [late - early for early, late in zip(self.token_s, self.token_s[1:], strict=False)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Played:
    """A workload that has been played once."""

    sessions: list[list[PlayedTurn]]
    wall_s: float
    """From the first request to the last answer's end."""

    @property
    def digest(self) -> str:
        """A digest of all answers, by session and turn."""
        found = hashlib.sha256()
        for session in self.sessions:
            for turn in session:
                found.update(turn.text.encode() + b"\0")
        return found.hexdigest()[:32]

    @property
    def figures(self) -> dict[str, float]:
        turns = [turn for session in self.sessions for turn in session]
        first = [turn.token_s[0] - turn.sent_s for turn in turns]
        gaps = [gap for turn in turns for gap in turn.gaps_s]
        latencies = [turn.end_s - turn.sent_s for turn in turns]
        return {
            "wall_s": self.wall_s,
            "ttft_p50_ms": 1000 * percentile(first, 50),
            "ttft_p95_ms": 1000 * percentile(first, 95),
            "gap_p50_ms": 1000 * percentile(gaps, 50),
            "gap_p95_ms": 1000 * percentile(gaps, 95),
            "gap_p99_ms": 1000 * percentile(gaps, 99),
            "latency_mean_s": float(np.mean(latencies)),
            "latency_p50_s": percentile(latencies, 50),
            "latency_p95_s": percentile(latencies, 95),
            "decode_tokens_per_s": _decode_rate(turns),
            "prompt_tokens": sum(turn.prompt_tokens for turn in turns),
        }


def _decode_rate(turns: Sequence[PlayedTurn]) -> float:
    """Tokens a second while all turns decode; nan if they never do at once."""
    begin_s = max(turn.token_s[0] for turn in turns)
    end_s = min(turn.token_s[-1] for turn in turns)
    count = sum(begin_s < moment <= end_s for turn in turns for moment in turn.token_s)
    return count / (end_s - begin_s) if begin_s < end_s else math.nan


def percentile(values: Sequence[float], share: float) -> float:
    return float(np.percentile(values, share)) if values else math.nan


def plan_of(load: Workload, seed: int) -> Plan:
    """Texts of which every letter is a token. Pauses do not matter to it."""
    source = random.Random(f"agent_loop/{load.texts}/{seed}")
    system = letters(source, load.system_tokens)

    def turn() -> PlannedTurn:
        return PlannedTurn(
            text=letters(source, _length(source, load.result_tokens)),
            answer_tokens=_length(source, load.answer_tokens),
            seed=source.getrandbits(62),
        )

    return Plan(
        system=system,
        sessions=tuple(tuple(turn() for _ in range(load.turns)) for _ in range(load.sessions)),
    )


def pause_s(load: Workload, seed: int, session: int, turn: int) -> float:
    """Seconds that the tool before a turn takes."""
    source = random.Random(f"agent_loop/{load.texts}/{seed}/{session}/{turn}")
    return source.uniform(load.tool_s, max(load.tool_s, load.tool_most_s))


def needed_tokens(plan: Plan, overhead: int = 24) -> tuple[int, int]:
    """Tokens of all sessions at their ends, nothing of them shared, and those of the longest.

    Args:
        overhead: at most what a chat format adds to a turn.
    """
    lengths = [
        len(plan.system) + sum(len(turn.text) + turn.answer_tokens + overhead for turn in session)
        for session in plan.sessions
    ]
    return sum(lengths), max(lengths)


def letters(source: random.Random, count: int) -> str:
    return "".join(source.choices(_LETTERS, k=count))


def _length(source: random.Random, bounds: tuple[int, int]) -> int:
    least, most = bounds
    return round(math.exp(source.uniform(math.log(least), math.log(most))))


class Agent(Protocol):
    """A session with some server."""

    async def play(self, turn: PlannedTurn, played: PlayedTurn) -> None:
        """Play ``turn`` and note in ``played`` what comes, as it comes.

        Raises:
            WrongLength: the answer has another length.
        """
        ...


OpenAgent = Callable[[str], AbstractAsyncContextManager[Agent]]
"""From a system prompt to a session on a connection of its own."""


@dataclass(frozen=True, slots=True)
class SessionAgent:
    """A session of this project's client."""

    session: AsyncSession

    async def play(self, turn: PlannedTurn, played: PlayedTurn) -> None:
        """Play ``turn``; see ``Agent.play``."""
        events = self.session.stream_turn(
            turn.text,
            max_output_tokens=turn.answer_tokens,
            keepwarm={"sampling": {"seed": turn.seed}},
        )
        async for event in events:
            if isinstance(event, TextDelta):
                played.token_s.append(time.perf_counter())
            elif isinstance(event, Response):
                played.end_s = time.perf_counter()
                played.text = event.text
                played.prompt_tokens = event.usage.input_tokens
                if event.usage.output_tokens != turn.answer_tokens:
                    raise WrongLength(
                        f"an answer has {event.usage.output_tokens} tokens, "
                        f"not {turn.answer_tokens}"
                    )


def own_agents(url: str, key: str | None, *, temperature: float = 1.0) -> OpenAgent:
    """Sessions with a server of this project."""

    @asynccontextmanager
    async def agent(system: str) -> AsyncIterator[Agent]:
        async with AsyncClient(url, api_key=key, open_timeout_s=30.0) as client:
            yield SessionAgent(client.session(instructions=system, temperature=temperature))

    return agent


async def play(agents: OpenAgent, load: Workload, seed: int) -> Played:
    """Play the workload once; nothing is left open.

    Raises:
        WrongLength: what was played is not the workload.
    """
    plan = plan_of(load, seed)
    sessions: list[list[PlayedTurn]] = [[] for _ in plan.sessions]

    async def run(number: int) -> None:
        await asyncio.sleep(number * load.stagger_s)
        async with agents(plan.system) as agent:
            for index, turn in enumerate(plan.sessions[number]):
                if index:
                    await asyncio.sleep(pause_s(load, seed, number, index))
                sessions[number].append(PlayedTurn(sent_s=time.perf_counter()))
                await agent.play(turn, sessions[number][-1])

    if load.one_at_a_time:
        for number in range(load.sessions):
            await run(number)
    else:
        async with asyncio.TaskGroup() as group:
            for number in range(load.sessions):
                group.create_task(run(number))
    _check_prompts(plan, sessions)
    turns = [turn for session in sessions for turn in session]
    wall_s = max(turn.end_s for turn in turns) - min(turn.sent_s for turn in turns)
    return Played(sessions=sessions, wall_s=wall_s)


def _check_prompts(plan: Plan, sessions: list[list[PlayedTurn]]) -> None:
    """Check that the chat format adds the same to every first turn, and to every further one."""
    added: dict[bool, set[int]] = {True: set(), False: set()}
    for planned, played in zip(plan.sessions, sessions, strict=True):
        before = len(plan.system)
        for index, (turn, seen) in enumerate(zip(planned, played, strict=True)):
            added[index == 0].add(seen.prompt_tokens - before - len(turn.text))
            before = seen.prompt_tokens + turn.answer_tokens
    if any(len(numbers) > 1 for numbers in added.values()):
        raise WrongLength(f"prompts are not as long as their parts: {added} tokens beside them")


async def gaps_beside_prompt(
    agents: OpenAgent,
    *,
    load: Workload,
    prompt_tokens: int,
    seed: int,
    look: Callable[[], Any] = lambda: None,
) -> list[float]:
    """Seconds between token events of the load's sessions, which decode long answers, while a
    prompt of another session is computed, from its request to its first token.

    ``look`` is called in a thread twice a second meanwhile, and at the end of it, before the
    others are stopped.
    """
    plan = plan_of(load, seed)
    source = random.Random(f"agent_loop/prompt/{seed}")
    running: list[PlayedTurn] = []

    async def decode(agent: Agent, turn: PlannedTurn) -> None:
        while True:
            running.append(PlayedTurn(sent_s=time.perf_counter()))
            await agent.play(turn, running[-1])

    async def look_now_and_then() -> None:
        while True:
            await asyncio.sleep(_LOOK_EVERY_S)
            await asyncio.to_thread(look)

    async with AsyncExitStack() as stack:
        running_agents = [
            await stack.enter_async_context(agents(plan.system)) for _ in plan.sessions
        ]
        long = await stack.enter_async_context(agents(""))
        async with asyncio.TaskGroup() as group:
            tasks = [
                group.create_task(decode(agent, turns[0]))
                for agent, turns in zip(running_agents, plan.sessions, strict=True)
            ]
            while sum(bool(turn.token_s) for turn in running) < load.sessions:
                await asyncio.sleep(0.01)
            asked = PlayedTurn(sent_s=time.perf_counter())
            prompt = letters(source, prompt_tokens)
            looking = group.create_task(look_now_and_then())
            await long.play(PlannedTurn(text=prompt, answer_tokens=1, seed=0), asked)
            looking.cancel()
            await asyncio.to_thread(look)
            for task in tasks:
                task.cancel()
    first_s = asked.token_s[0]
    return [
        late - early
        for turn in running
        for early, late in zip(turn.token_s, turn.token_s[1:], strict=False)
        if early < first_s and late > asked.sent_s
    ]
