"""The endless, seeded supply of sessions, for training and for evaluation.

``SessionGenerator`` invents tools, facts and questions of all kinds. ``level`` (0 to 1) says
how hard: number of tools and questions, kinds, near misses. With ``held_out`` every word of
tool names, parameter names and values is one that training never sees.
"""

import random
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from examples.train_agent_model.phrases import (
    ERRORS,
    FOLLOW_UP_FORMS,
    INSTRUCTIONS,
    LOOKUP_FORMS,
    PAIR_FORMS,
    SECOND_FORMS,
)
from examples.train_agent_model.small_talk import ANSWER, openers
from examples.train_agent_model.toolmaker import CALCULATORS, ToolMaker
from examples.train_agent_model.words import WordSupply
from examples.train_agent_model.world import (
    Call,
    Question,
    Recalled,
    Session,
    Step,
    Tool,
    Value,
    calculate,
)

MAX_TOOLS = 8
MAX_QUESTIONS = 12

SIMPLE_KINDS = {"lookup": 5, "two_parameters": 4, "no_tool": 1}
ALL_KINDS = {
    "lookup": 16,
    "two_parameters": 18,
    "follow_up": 9,
    "parallel": 8,
    "chain": 9,
    "calculate": 8,
    "sum_of_two": 6,
    "chain_calculate": 5,
    "error_retried": 5,
    "error_reported": 4,
    "no_tool": 16,
}
"""Weights of the kinds of question."""
HARD_KINDS = ALL_KINDS | {
    "follow_up": 12,
    "parallel": 12,
    "sum_of_two": 10,
    "chain": 24,
    "chain_calculate": 10,
    "small_talk": 5,
}
"""The same for practice: more of those in which the tools' schemas, and not the question, say where
an argument belongs."""
HARD_CHAINS_PLAIN = 0.25
"""Share kept of the hard chains in which no call takes a second argument."""
RECALL_LEVEL = 1.5
"""Of topics: nearly all share a word with another."""
HARD_PLAIN_SESSIONS = 0.25
"""Of the hard sessions, those whose tools never answer in JSON."""
HARD_PLAIN_SHARE = 0.15
"""Of the results of the other hard sessions, those that are no JSON."""
HARD_BARE_SHARE = 0.08
"""Of the hard sessions, those that have no tools at all."""
HARD_LOOKUPS_DISTRACTED = 0.5
"""Share of the hard questions of tools with one parameter that hold another tool's as well."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Lookup:
    """One fact asked for: the call that finds it and how a question names it."""

    tool: Tool
    call: Call
    entity: str
    extra: str
    """The second argument in the question's words, or empty."""

    @property
    def phrase(self) -> str:
        return f"the {self.tool.topic} of {self.entity}{self.extra}"


@dataclass(slots=True)
class _State:
    """What the questions of one session share."""

    lookups: list[Tool]
    calculators: list[Tool]
    topics: list[str]
    last: _Lookup | None = None
    asked: list[tuple[str, str]] = field(default_factory=list)


def _differ(steps: tuple[Step, ...]) -> bool:
    """Say whether the first calls of steps take different numbers of arguments."""
    return len({len(step.calls[0].arguments) for step in steps}) > 1


class SessionGenerator:
    """Draws sessions; the same seed gives the same sessions for ever.

    ``hard`` ones have more tools, which are easier to mistake for each other, more chains, and
    questions with an argument that the tool asked for does not take.
    """

    def __init__(
        self,
        seed: int | str,
        *,
        held_out: bool,
        hard: bool = False,
        plain_share: float | None = None,
    ) -> None:
        self._rng = random.Random(f"{seed}/{held_out}")
        self._words = WordSupply(self._rng, held_out=held_out)
        plain_sessions = 0.0
        if plain_share is None:
            plain_share = HARD_PLAIN_SHARE if hard else 0.0
            plain_sessions = HARD_PLAIN_SESSIONS if hard else 0.0
        self._maker = ToolMaker(
            self._rng,
            self._words,
            held_out=held_out,
            hard=hard,
            plain_share=plain_share,
            plain_sessions=plain_sessions,
        )
        self._held_out = held_out
        self._hard = hard
        self._kinds: dict[str, Callable[[_State], Question | None]] = {
            "lookup": self._lookup,
            "two_parameters": self._lookup_two,
            "follow_up": self._follow_up,
            "parallel": self._parallel,
            "chain": self._chain,
            "calculate": self._calculate,
            "sum_of_two": self._sum_of_two,
            "chain_calculate": self._chain_calculate,
            "error_retried": self._error_retried,
            "error_reported": self._error_reported,
            "no_tool": self._no_tool,
            "small_talk": self._small_talk,
        }

    def session(
        self, *, level: float = 1.0, num_tools: int | None = None, num_questions: int | None = None
    ) -> Session:
        """Draw a session of difficulty ``level``, with counts as given or drawn."""
        rng = self._rng
        self._words.restart()
        if self._hard and num_tools is None and rng.random() < HARD_BARE_SHARE:
            return self.bare_session(num_questions or rng.randint(1, 3))
        most_tools = max(1, round(1 + (MAX_TOOLS - 1) * level))
        draws = 2 if self._hard else 1
        total = num_tools or max(rng.randint(1, most_tools) for _ in range(draws))
        most_questions = max(4, round(MAX_QUESTIONS * level))
        count = num_questions or 1 + int(most_questions * rng.random() ** 2)
        state = self._tools(total, level)
        every_kind = HARD_KINDS if self._hard else ALL_KINDS
        kinds = SIMPLE_KINDS if level < 0.1 else every_kind
        questions: list[Question] = []
        while len(questions) < count:
            kind = rng.choices(list(kinds), list(kinds.values()))[0]
            question = self._kinds[kind](state)
            if question is not None:
                questions.append(question)
        tools = state.lookups + state.calculators
        rng.shuffle(tools)
        return Session(
            instructions=self._instructions(), tools=tuple(tools), questions=tuple(questions)
        )

    def bare_session(self, num_questions: int) -> Session:
        """Draw a session without tools: small talk, and things that no tool could find."""
        state = _State(lookups=[], calculators=[], topics=[])
        kinds = (self._small_talk, self._small_talk, self._no_tool)
        questions = [self._rng.choice(kinds)(state) for _ in range(num_questions)]
        return Session(instructions=self._instructions(), tools=(), questions=tuple(questions))

    def recall(self) -> tuple[list[Tool], list[Recalled]]:
        """Draw lookup tools, and a call of each in another order: practice in reading schemas."""
        self._words.restart()
        tools = self._tools(self._rng.randint(2, MAX_TOOLS), RECALL_LEVEL, recalled=True).lookups
        recalled = []
        for tool in self._rng.sample(tools, len(tools)):
            asked = self._ask(tool)
            text = self._lookup_text(replace(asked, extra=""))
            recalled.append(Recalled(text=text, call=asked.call))
        return tools, recalled

    # Tools

    def _tools(self, total: int, level: float, *, recalled: bool = False) -> _State:
        rng = self._rng
        wanted = rng.choice((0, 1, 1, 2, 3)) if level >= 0.1 else 0
        num_calculators = min(wanted, total - 1)
        self._maker.new_session(recalled=recalled)
        operations = rng.sample(list(CALCULATORS), num_calculators)
        state = _State(lookups=[], calculators=[], topics=[])
        for _ in range(total - num_calculators):
            topic = self._maker.topic(state.topics, level)
            state.topics.append(topic)
            state.lookups.append(self._maker.lookup_tool(topic))
        state.calculators = [self._maker.calculator(operation) for operation in operations]
        return state

    def _instructions(self) -> str | None:
        rng, word = self._rng, self._words.word
        if rng.random() < 0.3:
            return None
        return rng.choice(INSTRUCTIONS).format(
            Word=word().capitalize(), word=word(), word2=word(), number=rng.randint(1, 999)
        )

    # Values

    # Questions

    def _ask(self, tool: Tool, entity: Value | None = None) -> _Lookup:
        first, *rest = tool.parameters
        value = self._maker.entity(first) if entity is None else entity
        arguments: dict[str, Value] = {first.name: value}
        extra = ""
        for parameter in rest:
            second = self._maker.second_value(parameter)
            arguments[parameter.name] = second
            form = self._rng.choice(SECOND_FORMS)
            extra = form.format(name=parameter.name, value=second)
        call = Call(name=tool.name, arguments=arguments)
        return _Lookup(tool=tool, call=call, entity=str(value), extra=extra)

    def _fact(self, state: _State, asked: _Lookup, value: Value) -> Step:
        state.asked.append(asked.call.key())
        return Step(
            calls=(asked.call,), results=(self._maker.result(asked.tool, asked.call, value),)
        )

    def _pick(self, state: _State, parameters: int | None = None) -> Tool | None:
        tools = [t for t in state.lookups if parameters in (None, len(t.parameters))]
        return self._rng.choice(tools) if tools else None

    def _any_value(self) -> Value:
        return self._maker.number() if self._rng.random() < 0.6 else self._maker.string()

    def _single(self, state: _State, kind: str, parameters: int) -> Question | None:
        tool = self._pick(state, parameters)
        if tool is None:
            return None
        asked, value = self._ask(tool), self._any_value()
        if self._hard and parameters == 1:
            asked = self._distracted(state, asked)
        state.last = asked
        return Question(
            kind=kind,
            text=self._lookup_text(asked),
            steps=(self._fact(state, asked, value),),
            answer=f"The {tool.topic} of {asked.entity} is {value}.",
            is_open=self._hard and bool(asked.extra),
        )

    def _distracted(self, state: _State, asked: _Lookup) -> _Lookup:
        """Add to the question, half of the time, what only another tool takes."""
        other = self._pick(state, 2)
        if other is None or self._rng.random() > HARD_LOOKUPS_DISTRACTED:
            return asked
        return replace(asked, extra=self._ask(other).extra)

    def _lookup_text(self, asked: _Lookup) -> str:
        form = self._rng.choice(LOOKUP_FORMS)
        return form.format(topic=asked.tool.topic, thing=asked.entity + asked.extra)

    def _lookup(self, state: _State) -> Question | None:
        return self._single(state, "lookup", 1)

    def _lookup_two(self, state: _State) -> Question | None:
        return self._single(state, "two_parameters", 2)

    def _follow_up(self, state: _State) -> Question | None:
        if state.last is None:
            return None
        before = state.last
        first = before.tool.parameters[0]
        entity, value = self._maker.entity(first), self._any_value()
        call = Call(name=before.tool.name, arguments=before.call.arguments | {first.name: entity})
        state.last = _Lookup(tool=before.tool, call=call, entity=str(entity), extra=before.extra)
        return Question(
            kind="follow_up",
            text=self._rng.choice(FOLLOW_UP_FORMS).format(thing=entity),
            steps=(self._fact(state, state.last, value),),
            answer=f"The {before.tool.topic} of {entity} is {value}.",
        )

    def _two_facts(
        self, state: _State, values: tuple[Value, Value]
    ) -> tuple[_Lookup, _Lookup, Step]:
        left, right = (self._ask(self._rng.choice(state.lookups)) for _ in range(2))
        state.last = None
        results = tuple(
            self._maker.result(asked.tool, asked.call, value)
            for asked, value in zip((left, right), values, strict=True)
        )
        return left, right, Step(calls=(left.call, right.call), results=results)

    def _parallel(self, state: _State) -> Question:
        values = (self._any_value(), self._any_value())
        left, right, step = self._two_facts(state, values)
        told = [
            f"the {asked.tool.topic} of {asked.entity} is {value}"
            for asked, value in zip((left, right), values, strict=True)
        ]
        return Question(
            kind="parallel",
            text=self._rng.choice(PAIR_FORMS).format(left=left.phrase, right=right.phrase),
            steps=(step,),
            answer=f"T{told[0][1:]} and {told[1]}.",
        )

    def _linked(self, state: _State, value: Value) -> tuple[str, str, tuple[Step, Step]] | None:
        """Look up, then look up again with what was found; return phrase, answer, steps."""
        outer = self._pick(state)
        inner = self._pick(state)
        if outer is None or inner is None or outer is inner:
            return None
        link = self._maker.entity(outer.parameters[0])
        found = self._ask(inner)
        then = self._ask(outer, link)
        state.last = None
        phrase = f"the {outer.topic} of {found.phrase}{then.extra}"
        if found.extra and then.extra:
            return None
        if (
            self._hard
            and not (found.extra or then.extra)
            and self._rng.random() > HARD_CHAINS_PLAIN
        ):
            return None
        steps = (self._fact(state, found, link), self._fact(state, then, value))
        told = f"the {outer.topic} of the {inner.topic} of {found.entity}"
        return phrase, told, steps

    def _chain(self, state: _State) -> Question | None:
        value = self._any_value()
        linked = self._linked(state, value)
        if linked is None:
            return None
        phrase, told, steps = linked
        form = self._rng.choice(("What is {}?", "Tell me {}.", "I need {}.", "Find {}."))
        return Question(
            kind="chain",
            text=form.format(phrase),
            steps=steps,
            answer=f"T{told[1:]} is {value}.",
            is_open=_differ(steps),
        )

    def _calculation(self, tool: Tool, left: Value, right: Value) -> tuple[Step, str]:
        result = calculate(tool.operation, (left, right))
        first, second = tool.parameters
        call = Call(name=tool.name, arguments={first.name: left, second.name: right})
        key = self._rng.choice(("result", "result", "value", tool.operation))
        told = self._maker.plain(result) or self._maker.as_json({key: result})
        step = Step(calls=(call,), results=(told,))
        return step, f"The answer is {result}."

    def _operands(self, tool: Tool) -> tuple[Value, Value]:
        """Draw numbers that the calculator takes and whose result is positive and short."""
        whole = any(p.schema["type"] == "integer" for p in tool.parameters)
        while True:
            left = self._maker.integer() if whole else self._maker.number()
            right = self._maker.integer()
            result = calculate(tool.operation, (left, right))
            assert not isinstance(result, str)
            if 0 < result < 10**7:
                return left, right

    def _calculate(self, state: _State) -> Question | None:
        if not state.calculators:
            return None
        tool, asked = (
            self._rng.choice(state.calculators),
            self._ask(self._rng.choice(state.lookups)),
        )
        left, right = self._operands(tool)
        step, answer = self._calculation(tool, left, right)
        forms = CALCULATORS[tool.operation][2]
        state.last = None
        return Question(
            kind="calculate",
            text=self._rng.choice(forms).format(number=right, what=asked.phrase),
            steps=(self._fact(state, asked, left), step),
            answer=answer,
        )

    def _sum_of_two(self, state: _State) -> Question | None:
        adders = [t for t in state.calculators if t.operation == "add"]
        if not adders:
            return None
        values = self._operands(adders[0])
        left, right, step = self._two_facts(state, values)
        last, answer = self._calculation(adders[0], *values)
        return Question(
            kind="sum_of_two",
            text=f"Add {left.phrase} and {right.phrase}.",
            steps=(step, last),
            answer=answer,
        )

    def _chain_calculate(self, state: _State) -> Question | None:
        if not state.calculators:
            return None
        tool = self._rng.choice(state.calculators)
        left, right = self._operands(tool)
        linked = self._linked(state, left)
        if linked is None:
            return None
        phrase, _, steps = linked
        step, answer = self._calculation(tool, left, right)
        text = self._rng.choice(CALCULATORS[tool.operation][2])
        return Question(
            kind="chain_calculate",
            text=text.format(number=right, what=phrase),
            steps=(*steps, step),
            answer=answer,
            is_open=_differ(steps),
        )

    def _error(self) -> str:
        text = self._rng.choice(ERRORS)
        if self._held_out or self._rng.random() < 0.5:
            text = f"{self._words.word()} {self._words.word()}"
        return text

    def _failing(self, state: _State, *, recovers: bool) -> Question:
        asked, error = self._ask(self._rng.choice(state.lookups)), self._error()
        failure = Step(calls=(asked.call,), results=(self._maker.as_json({"error": error}),))
        value = self._any_value()
        answer = f"The {asked.tool.topic} of {asked.entity} is {value}."
        second = self._fact(state, asked, value)
        if not recovers:
            second, answer = failure, f"The tool {asked.tool.name} failed: {error}."
        state.last = asked if recovers else None
        return Question(
            kind="error_retried" if recovers else "error_reported",
            text=self._lookup_text(asked),
            steps=(failure, second),
            answer=answer,
        )

    def _error_retried(self, state: _State) -> Question:
        return self._failing(state, recovers=True)

    def _error_reported(self, state: _State) -> Question:
        return self._failing(state, recovers=False)

    def _no_tool(self, state: _State) -> Question:
        topic = self._words.word()
        if self._rng.random() < 0.4:
            topic = f"{topic} {self._words.word()}"
            pairs = [t for t in state.topics if " " in t]
            if pairs and self._rng.random() < 0.3:
                left, right = self._rng.choice(pairs).split()
                topic = self._rng.choice(
                    (f"{topic.split()[0]} {right}", f"{left} {topic.split()[0]}")
                )
        thing = self._maker.integer() if self._rng.random() < 0.2 else self._maker.string()
        form = self._rng.choice(LOOKUP_FORMS)
        state.last = None
        return Question(
            kind="no_tool",
            text=form.format(topic=topic, thing=thing),
            steps=(),
            answer=f"I have no tool for the {topic}.",
        )

    def _small_talk(self, state: _State) -> Question:
        opener = self._rng.choice(openers(held_out=self._held_out))
        spelling = (str, str.capitalize, str.upper, lambda text: f"{text}!")
        text = self._rng.choices(spelling, (6, 4, 1, 2))[0](opener)
        state.last = None
        return Question(kind="small_talk", text=text, steps=(), answer=ANSWER)
