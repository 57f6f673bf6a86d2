"""Whole sessions played by the shipped model in the runtime's own engine, and judged.

    python -m examples.train_agent_model.evaluate --episodes 500 --seed 1 --json

An episode is one question with all its calls. Tools really answer what is called; nothing is
teacher-forced, so an early mistake stays in the session's history. Words of names and values
are held out from training.
"""

import argparse
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from benchmarks.report import Bar, report
from examples.train_agent_model.agent import EngineAgent, MadeCall, ModelTurn, Transcript
from examples.train_agent_model.generator import MAX_QUESTIONS, SessionGenerator
from examples.train_agent_model.small_talk import ANSWER, openers
from examples.train_agent_model.world import Call, Question, Session, Tool, Toolbox
from tools_api.item_reading import parse_items
from tools_api.items import Item
from tools_api.tools import FunctionTool

SIDE_BY_SIDE = 24
MAX_TURNS_OF_A_QUESTION = 6
TYPES = {"string": str, "integer": int, "number": int | float}
MUST = {
    "call_exact": 0.99,
    "episode_exact": 0.97,
    "call_exact_no_grammar": 0.97,
    "refused_no_tool": 0.95,
    "session_exact": 0.85,
    "plain_call_exact": 0.99,
    "plain_answer_exact": 0.97,
    "openers_ended": 1.0,
}
OPENER_TOKENS = 64
"""An answer to small talk is over within so many."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """How one episode went."""

    kind: str
    num_tools: int
    expected_calls: int
    made_calls: int
    exact_calls: int
    valid_calls: int
    """Made calls whose arguments fit the tool's schema."""

    answer_exact: bool

    @property
    def exact(self) -> bool:
        return self.answer_exact and self.exact_calls == self.expected_calls == self.made_calls


class Play:
    """One session in progress: feeds the model, answers its calls, keeps the verdicts."""

    def __init__(self, session: Session, name: str) -> None:
        tools = tuple(
            FunctionTool(name=t.name, description=t.description, parameters=t.schema())
            for t in session.tools
        )
        self.transcript = Transcript(branch_id=name, instructions=session.instructions, tools=tools)
        self.verdicts: list[Verdict] = []
        self._tools = {tool.name: tool for tool in session.tools}
        self._toolbox = Toolbox(session)
        self._questions = list(session.questions)
        self._calls: list[MadeCall] = []
        self._turns = 0
        self.input: tuple[Item, ...] = self._ask()

    @property
    def over(self) -> bool:
        return not self._questions

    def take(self, turn: ModelTurn) -> None:
        """Take in the model's turn and set ``input`` to what comes next."""
        self._turns += 1
        self._calls += turn.calls
        if turn.calls and self._turns < MAX_TURNS_OF_A_QUESTION:
            self.input = self._results(turn.calls)
            return
        self.verdicts.append(self._judge(self._questions.pop(0), turn.text))
        self._calls, self._turns = [], 0
        if not self.over:
            self.input = self._ask()

    def _ask(self) -> tuple[Item, ...]:
        text = self._questions[0].text
        return parse_items([{"type": "message", "role": "user", "content": text}], "input")

    def _results(self, calls: Iterable[MadeCall]) -> tuple[Item, ...]:
        return parse_items(
            [
                {
                    "type": "function_call_output",
                    "call_id": f"call_{number}",
                    "output": self._toolbox.call(call.name, call.arguments or {}),
                }
                for number, call in enumerate(calls)
            ],
            "input",
        )

    def _judge(self, question: Question, answer: str) -> Verdict:
        expected = [call for step in question.steps for call in step.calls]
        pairs = zip(expected, self._calls, strict=False)
        return Verdict(
            kind=question.kind,
            num_tools=len(self._tools),
            expected_calls=len(expected),
            made_calls=len(self._calls),
            exact_calls=sum(is_same(call, made) for call, made in pairs),
            valid_calls=sum(fits(self._tools.get(c.name), c.arguments) for c in self._calls),
            answer_exact=answer == question.answer,
        )


def is_same(expected: Call, made: MadeCall) -> bool:
    """Say whether the model made exactly the expected call."""
    return expected.name == made.name and expected.arguments == made.arguments


def fits(tool: Tool | None, arguments: dict[str, Any] | None) -> bool:
    """Say whether the arguments are valid against the tool's schema."""
    if tool is None or arguments is None or arguments.keys() != {p.name for p in tool.parameters}:
        return False
    return all(
        isinstance(arguments[p.name], TYPES[p.schema["type"]])
        and not isinstance(arguments[p.name], bool)
        and arguments[p.name] in p.schema.get("enum", [arguments[p.name]])
        for p in tool.parameters
    )


def play_all(
    agent: EngineAgent, sessions: Iterable[Session], *, grammar: bool
) -> Iterator[list[Verdict]]:
    """Play sessions side by side; yield each one's verdicts when it is over."""
    waiting = enumerate(sessions)
    active: list[Play] = []
    while True:
        while len(active) < SIDE_BY_SIDE and (following := next(waiting, None)):
            number, session = following
            active.append(Play(session, f"play-{grammar}-{number}"))
        if not active:
            return
        turns = agent.play([(p.transcript, p.input) for p in active], grammar=grammar)
        for play, turn in zip(active, turns, strict=True):
            play.take(turn)
        done = [play for play in active if play.over]
        agent.forget([play.transcript for play in done])
        active = [play for play in active if not play.over]
        yield from (play.verdicts for play in done)


def episodes_of(seed: int, episodes: int) -> list[Session]:
    """Draw held-out sessions of 1 to 8 tools until they hold ``episodes`` questions."""
    generator = SessionGenerator(f"evaluation/{seed}", held_out=True)
    sessions: list[Session] = []
    while (left := episodes - sum(len(s.questions) for s in sessions)) > 0:
        num_tools = len(sessions) % 8 + 1
        sessions.append(generator.session(num_tools=num_tools, num_questions=min(left, 4)))
    return sessions


def long_sessions_of(seed: int, count: int) -> list[Session]:
    """Draw held-out sessions of 12 questions and 1 to 8 tools."""
    generator = SessionGenerator(f"sessions/{seed}", held_out=True)
    return [
        generator.session(num_tools=number % 8 + 1, num_questions=MAX_QUESTIONS)
        for number in range(count)
    ]


def plain_sessions_of(seed: int, count: int) -> list[Session]:
    """Draw held-out sessions whose tools answer with bare values and no JSON."""
    generator = SessionGenerator(f"plain/{seed}", held_out=True, plain_share=1.0)
    return [generator.session(num_tools=n % 8 + 1, num_questions=4) for n in range(count)]


def openers_ended(agent: EngineAgent, seed: int) -> float | None:
    """The share of openers never practised that get a short answer without a call: each without
    tools, and with some."""
    generator = SessionGenerator(f"openers/{seed}", held_out=True)
    plays: list[Play] = []
    for number, opener in enumerate(("hello", *openers(held_out=True))):
        question = Question(kind="small_talk", text=opener, steps=(), answer=ANSWER)
        tools = generator.session(num_tools=number % 8 + 1, num_questions=1).tools
        for kind in ((), tools):
            session = Session(instructions=None, tools=kind, questions=(question,))
            plays.append(Play(session, f"opener-{len(plays)}"))
    turns = agent.play([(play.transcript, play.input) for play in plays], grammar=True)
    agent.forget([play.transcript for play in plays])
    short = [t.ended and t.num_tokens <= OPENER_TOKENS and not t.calls for t in turns]
    return share(sum(short), len(short))


def share(hits: int, total: int) -> float | None:
    """Return a rounded ratio, None where there was nothing to count."""
    return round(hits / total, 4) if total else None


def summary(verdicts: list[Verdict]) -> dict[str, float | None]:
    """Return the figures of a group of episodes."""
    calls = sum(max(v.expected_calls, v.made_calls) for v in verdicts)
    refusals = [v for v in verdicts if v.kind == "no_tool"]
    return {
        "episodes": len(verdicts),
        "call_exact": share(sum(v.exact_calls for v in verdicts), calls),
        "arguments_valid": share(
            sum(v.valid_calls for v in verdicts), sum(v.made_calls for v in verdicts)
        ),
        "answer_exact": share(sum(v.answer_exact for v in verdicts), len(verdicts)),
        "episode_exact": share(sum(v.exact for v in verdicts), len(verdicts)),
        "refused_no_tool": share(sum(v.made_calls == 0 for v in refusals), len(refusals)),
    }


def grouped(verdicts: list[Verdict], by: str) -> dict[str, dict[str, float | None]]:
    """Return the figures by one field of the verdicts."""
    groups: dict[str, list[Verdict]] = defaultdict(list)
    for verdict in verdicts:
        groups[str(getattr(verdict, by))].append(verdict)
    return {name: summary(groups[name]) for name in sorted(groups)}


def evaluate(
    model: str,
    *,
    episodes: int,
    long_sessions: int,
    plain_sessions: int,
    seed: int,
    dtype: str,
    threads: int,
) -> dict[str, Any]:
    """Return the figures: those of ``MUST``, then ``details`` by mode, kind and tools."""
    started = time.perf_counter()
    agent = EngineAgent(model, dtype=dtype, threads=threads)
    details: dict[str, Any] = {}
    for name, grammar in (("grammar", True), ("no_grammar", False)):
        verdicts = [
            verdict
            for session in play_all(agent, episodes_of(seed, episodes), grammar=grammar)
            for verdict in session
        ]
        details[name] = {
            "all": summary(verdicts),
            "by_kind": grouped(verdicts, "kind"),
            "by_tools": grouped(verdicts, "num_tools"),
        }
    details["plain"] = summary(
        [
            verdict
            for session in play_all(agent, plain_sessions_of(seed, plain_sessions), grammar=True)
            for verdict in session
        ]
    )
    played = list(play_all(agent, long_sessions_of(seed, long_sessions), grammar=True))
    details["sessions_of_12"] = summary([v for session in played for v in session])
    exact = Counter(all(v.exact for v in session) for session in played)
    return {
        "call_exact": details["grammar"]["all"]["call_exact"],
        "episode_exact": details["grammar"]["all"]["episode_exact"],
        "call_exact_no_grammar": details["no_grammar"]["all"]["call_exact"],
        "refused_no_tool": details["grammar"]["all"]["refused_no_tool"],
        "session_exact": share(exact[True], len(played)),
        "plain_call_exact": details["plain"]["call_exact"],
        "plain_answer_exact": details["plain"]["answer_exact"],
        "openers_ended": openers_ended(agent, seed),
        "seed": seed,
        "dtype": dtype,
        "seconds": round(time.perf_counter() - started, 1),
        "details": details,
    }


def main() -> None:
    """Read the command line, evaluate, print."""
    parser = argparse.ArgumentParser(description="Play held-out episodes and judge them.")
    parser.add_argument("--model", default="default", help="model folder, or 'default'")
    parser.add_argument("--episodes", type=int, default=500)
    parser.add_argument("--sessions", type=int, default=40, help="sessions of 12 questions")
    parser.add_argument("--plain-sessions", type=int, default=40, help="of 4 questions")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--json", action="store_true", help="one JSON line instead of a table")
    options = parser.parse_args()
    figures = evaluate(
        options.model,
        episodes=options.episodes,
        long_sessions=options.sessions,
        plain_sessions=options.plain_sessions,
        seed=options.seed,
        dtype=options.dtype,
        threads=options.threads,
    )
    bars = [Bar(name=name, value=figures[name], op=">=", bar=least) for name, least in MUST.items()]
    sys.exit(report("default_model", figures, bars, as_json=options.json))


if __name__ == "__main__":
    main()
