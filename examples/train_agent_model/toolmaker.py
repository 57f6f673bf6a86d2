"""Invented tools and the values they take and return.

``ToolMaker`` knows what a tool looks like (name, description, schema) and draws fitting
arguments and results. What is asked of the tools is the generator's.
"""

import json
import random

from examples.train_agent_model.words import WordSupply
from examples.train_agent_model.world import Call, Parameter, Tool, Value

_VERBS = "get find lookup fetch query read show check load search list view"
VERBS = _VERBS.split()
NAME_FORMS = {
    "{verb}_{topic}": 50,
    "{topic}_{verb}": 15,
    "{topic}": 15,
    "{camel}": 10,
    "{word}_{topic}": 10,
}
"""Forms of a lookup tool's name and their weights."""
RECALLED_NAME_FORMS = dict.fromkeys(NAME_FORMS, 1) | {"{camel}": 4}
"""The same for recalls: half in camel case, which spells words unlike any question."""

DESCRIPTIONS = (
    "Get the {topic} of a {thing}.",
    "Look up the {topic} of a {thing}.",
    "Returns the {topic} for one {thing}.",
    "Find the {topic} of the given {thing}.",
    "The {topic} of a {thing}",
    "Knows the {topic} of each {thing}.",
)
COMMON_PARAMETERS = ["name", "id", "city", "item", "code", "query", "key", "user", "date", "place"]
SUFFIXES = ["_name", "_id", "_code", "_key"]
CALCULATORS = {
    "add": (
        ("add", "add_numbers", "add_two", "calc_add"),
        ("Add two numbers.", "Add one number to another."),
        ("Add {number} to {what}.", "Please add {number} to {what}."),
    ),
    "multiply": (
        ("multiply", "multiply_numbers", "multiply_two", "calc_multiply"),
        ("Multiply two numbers.", "Multiply one number by another."),
        ("Multiply {what} by {number}.", "Please multiply {what} by {number}."),
    ),
    "subtract": (
        ("subtract", "subtract_numbers", "subtract_two", "calc_subtract"),
        ("Subtract the second number from the first.", "Subtract a number from another."),
        ("Subtract {number} from {what}.", "Please subtract {number} from {what}."),
    ),
}
NUMBER_PAIRS = (("a", "b"), ("x", "y"), ("first", "second"), ("left", "right"))


class ToolMaker:
    """Draws tools and values; all randomness is the caller's ``rng`` and ``words``."""

    def __init__(
        self,
        rng: random.Random,
        words: WordSupply,
        *,
        held_out: bool,
        hard: bool = False,
        plain_share: float = 0.0,
        plain_sessions: float = 0.0,
    ) -> None:
        """
        Args:
            hard: tools that are easier to mistake for each other than those of ordinary
                sessions, for practice.
            plain_share: of results that are a bare value and no JSON.
            plain_sessions: of sessions in which all results are such.
        """
        self._plain_share, self._plain_sessions = plain_share, plain_sessions
        self._plain_now = plain_share
        self._rng, self._words, self._held_out, self._hard = rng, words, held_out, hard
        self._convention: tuple[str, str, str] | None = None
        self._name_forms = NAME_FORMS
        self.sorted_keys = False
        """Style of the schemas, one for all tools of a session."""
        self.compact = False
        """Whether the session's tools answer in JSON without spaces."""

    def new_session(self, *, recalled: bool = False) -> None:
        """Draw what the tools of a session share: nearly always one way of naming, as the
        functions of one programming interface do. Hard ones share it half of the time: where
        each tool has a way of its own, the first token of a name is the whole choice.

        Args:
            recalled: forms of names are those of recalls.
        """
        self._name_forms = RECALLED_NAME_FORMS if recalled else NAME_FORMS
        self.sorted_keys = self._rng.random() < 0.35
        self.compact = self._rng.random() < 0.5
        if self._plain_sessions:
            always = self._rng.random() < self._plain_sessions
            self._plain_now = 1.0 if always else self._plain_share
        alike = 0.5 if self._hard else 0.9
        self._convention = self._draw_convention() if self._rng.random() < alike else None

    def _draw_convention(self) -> tuple[str, str, str]:
        forms = self._name_forms
        form = self._rng.choices(list(forms), list(forms.values()))[0]
        return form, self._rng.choice(VERBS), self._words.word()

    def topic(self, others: list[str], level: float) -> str:
        """Draw one or two words; a near miss shares one word with another topic. Beyond a ``level``
        of 1 there are more of both than in any session."""
        rng = self._rng
        pairs = [t for t in others if " " in t]
        if pairs and rng.random() < (0.6 if self._hard else 0.25) * level:
            left, right = rng.choice(pairs).split()
            fresh = self._words.word()
            return rng.choice((f"{fresh} {right}", f"{left} {fresh}"))
        if rng.random() < 0.4 * max(1.0, level):
            return f"{self._words.word()} {self._words.word()}"
        return self._words.word()

    def lookup_tool(self, topic: str) -> Tool:
        rng, word = self._rng, self._words.word
        form, verb, extra = self._convention or self._draw_convention()
        snake = topic.replace(" ", "_")
        camel = topic.split(maxsplit=1)[0] + "".join(
            w.capitalize() for w in [*topic.split()[1:], verb]
        )
        name = form.format(verb=verb, topic=snake, camel=camel, word=extra)
        thing = word()
        if rng.random() < 0.25 and not self._held_out:
            thing = rng.choice(COMMON_PARAMETERS)
        first = Parameter(
            name=thing + (rng.choice(SUFFIXES) if rng.random() < 0.15 else ""),
            schema=self._first_schema(thing),
        )
        parameters = [first]
        if rng.random() < 0.45:
            parameters.append(self._second_parameter())
        return Tool(
            name=name,
            description=rng.choice(DESCRIPTIONS).format(topic=topic, thing=thing),
            parameters=tuple(parameters),
            topic=topic,
            closed=self.sorted_keys or rng.random() < 0.4,
            sorted_keys=self.sorted_keys,
        )

    def _first_schema(self, thing: str) -> dict[str, object]:
        kind = self._rng.choices(("string", "integer", "enum"), (12, 4, 4))[0]
        return self._enum(thing) if kind == "enum" else self._typed(kind, thing)

    def _enum(self, thing: str) -> dict[str, object]:
        schema = self._typed("string", thing)
        values = [self._words.word() for _ in range(self._rng.randint(2, 5))]
        schema["enum"] = values if self._rng.random() < 0.7 else [v.capitalize() for v in values]
        return schema

    def _typed(self, kind: str, thing: str) -> dict[str, object]:
        schema: dict[str, object] = {"type": kind}
        if kind != "string" and self._rng.random() < 0.15:
            schema |= {"minimum": 0, "maximum": 99_999}
        if self._rng.random() < 0.2:
            schema["description"] = f"The {thing}."
        return schema

    def _second_parameter(self) -> Parameter:
        rng, name = self._rng, self._words.word()
        kind = rng.choices(("string", "integer", "number", "enum"), (3, 3, 2, 3))[0]
        schema = self._enum(name) if kind == "enum" else self._typed(kind, name)
        return Parameter(name=name, schema=schema)

    def calculator(self, operation: str) -> Tool:
        rng = self._rng
        names, descriptions, _ = CALCULATORS[operation]
        pair, kind = rng.choice(NUMBER_PAIRS), rng.choice(("number", "number", "integer"))
        if self._held_out or rng.random() < 0.4:
            pair = (self._words.word(), self._words.word())
        return Tool(
            name=rng.choice(names),
            description=rng.choice(descriptions),
            parameters=tuple(Parameter(name=p, schema=self._typed(kind, p)) for p in pair),
            operation=operation,
            closed=self.sorted_keys or rng.random() < 0.4,
            sorted_keys=self.sorted_keys,
        )

    def integer(self) -> int:
        return self._rng.randrange(1, 10 ** self._rng.randint(1, 5))

    def number(self) -> int | float:
        if self._rng.random() < 0.6:
            return self.integer()
        digits = self._rng.randint(1, 2)
        scale: int = 10 ** self._rng.randint(2, 5)
        return round(self._rng.randrange(1, scale) / 10.0**digits, digits)

    def _code(self) -> str:
        rng = self._rng
        letters = "".join(rng.choices("ABCDEFGHJKLMNPRSTUVWXYZ", k=rng.randint(1, 3)))
        return rng.choice(
            (
                f"{letters}-{rng.randint(10, 9999)}",
                f"{letters}{rng.randint(100, 99999)}",
                f"{self._words.word()}-{rng.randint(1, 999)}",
                f"{self._words.word()}_{self._words.word()}",
                f"{rng.randint(0, 23):02}:{rng.randint(0, 59):02}",
            )
        )

    def string(self) -> str:
        rng, word = self._rng, self._words.word
        form = rng.random()
        if form < 0.35:
            return word()
        if form < 0.6:
            return word().capitalize()
        if form < 0.78:
            return f"{word().capitalize()} {word().capitalize()}"
        if form < 0.81:
            return word().replace("e", "é").replace("o", "ö").capitalize()
        return self._code()

    def entity(self, parameter: Parameter) -> Value:
        if "enum" in parameter.schema:
            return str(self._rng.choice(parameter.schema["enum"]))
        return self.integer() if parameter.schema["type"] == "integer" else self.string()

    def second_value(self, parameter: Parameter) -> Value:
        if "enum" in parameter.schema:
            return str(self._rng.choice(parameter.schema["enum"]))
        kind = parameter.schema["type"]
        if kind == "string":
            return self.string()
        return self.integer() if kind == "integer" else self.number()

    def result(self, tool: Tool, call: Call, value: Value) -> str:
        """Wrap a fact as a tool would return it: bare, under its topic, among other keys."""
        rng, key = self._rng, tool.topic.replace(" ", "_")
        first = tool.parameters[0].name
        shapes: list[dict[str, Value]] = [
            {key: value},
            {"result": value},
            {"value": value},
            {first: call.arguments[first], key: value},
            {key: value, self._words.word(): self.number()},
            {"ok": True, "result": value},
        ]
        if self._hard:
            shapes += [shapes[3], shapes[4], shapes[4]]  # with two values, of which one is meant
        return self.plain(value) or self.as_json(rng.choice(shapes))

    def plain(self, value: Value) -> str | None:
        """A result that is the value itself and no JSON, as often as such are wanted; else None."""
        if self._plain_now and self._rng.random() < self._plain_now:
            return str(value)
        return None

    def as_json(self, result: dict[str, Value]) -> str:
        """Spell a tool's result."""
        separators = (",", ":") if self.compact else (", ", ": ")
        return json.dumps(result, ensure_ascii=False, separators=separators)
