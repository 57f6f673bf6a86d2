"""A session as tokens, each with the weight its prediction has in the training loss.

The text is that of the runtime's chat format (Qwen3/Hermes). Only what the assistant writes
is learned; the hardest choices count three times: whether to call or to answer, the names of
tools and parameters, how a value begins (with a quote or without) and what comes after it
(another argument or none). Beside that some tokens are labelled with what is known there, see
``Label``: tasks of their own, whose answers those choices need.
"""

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

import numpy as np
import numpy.typing as npt
from tokenizers import Tokenizer

from examples.train_agent_model.tokenizer import (
    CALL,
    END_OF_CALL,
    END_OF_RESPONSE,
    END_OF_TURN,
    RESPONSE,
    SPECIAL,
    TURN,
    special_ids,
    text_encoder,
)
from examples.train_agent_model.world import Call, Session, Step, Tool
from tools_api.chat_families import chat_format_for
from tools_api.chat_format import TemplateOptions
from tools_api.tools import FunctionTool

CHOICE_WEIGHT = 3.0
WORD = re.compile(r"[A-Z]?[a-z]{2,}")

CHAT_FORMAT = chat_format_for("qwen3", SPECIAL.__contains__)


NO_LABEL = -1


class Label(StrEnum):
    """What a token may be labelled with."""

    KNOWN = "known"
    """At the end of a question's word: 1 where the tools' schemas hold the word, else 0."""

    MORE = "more"
    """At the end of the first argument's name in a call: 1 where the tool takes one more, else 0;
    in questions that do not tell which of two calls takes it."""

    OWNER = "owner"
    """Where a schema says a tool's topic, and at the end of its name: the name's first token,
    in sessions where these differ."""

    CHOSEN = "chosen"
    """The same where a question says a tool's topic."""

    OWNER_SECOND = "owner_second"
    """As OWNER, for topics of two words in camel case: the first token of the second word as the
    name spells it, whose letters are not those of the topic."""

    CHOSEN_SECOND = "chosen_second"
    """The same where a question says a tool's topic."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Mark:
    """A label of the token that ends a run of text."""

    end: int
    """UTF-8 bytes of the part up to there."""

    label: Label
    value: bool | str
    """A text stands for its first token."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """A run of text, or one special token; ``weight`` is that of its tokens in the loss."""

    text: str
    special: bool = False
    weight: float = 0.0
    heavy: tuple[tuple[int, int], ...] = ()
    """Spans of UTF-8 bytes that count CHOICE_WEIGHT times."""

    marks: tuple[Mark, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Encoded:
    """A session as arrays, all of shape [tokens]."""

    ids: npt.NDArray[np.int32]

    weights: npt.NDArray[np.float32]
    """Weight of predicting each token; 0: not learned."""

    labels: dict[Label, npt.NDArray[np.int32]]
    """Of each kind the value at each token, NO_LABEL where there is none."""


def _special(text: str, weight: float = 0.0) -> Part:
    return Part(text=text, special=True, weight=weight)


def header(session: Session) -> list[Part]:
    """Render the system turn: instructions and the tools' schemas."""
    tools = [
        FunctionTool(name=tool.name, description=tool.description, parameters=tool.schema())
        for tool in session.tools
    ]
    segments = CHAT_FORMAT.header(session.instructions, tools, TemplateOptions())
    return [
        Part(
            text=segment.text,
            special=segment.special,
            marks=owner_marks(segment.text, session.tools),
        )
        for segment in segments
    ]


def told_apart(tools: Sequence[Tool]) -> list[Tool]:
    """Return the tools with a topic if their names begin with different words, else none."""
    named = [tool for tool in tools if tool.topic]
    begins = {re.split("_|(?=[A-Z])", tool.name)[0] for tool in named}
    return named if len(begins) > 1 else []


def _mark(text: str, end: int, label: Label, value: bool | str) -> Mark:
    return Mark(end=len(text[:end].encode()), label=label, value=value)


def second_word(tool: Tool) -> str | None:
    """Return the second word of the tool's topic as its name spells it in camel case, if so."""
    _, _, second = tool.topic.partition(" ")
    spelled = second.capitalize()
    return spelled if second and spelled in tool.name else None


def owner_marks(text: str, tools: Sequence[Tool]) -> tuple[Mark, ...]:
    """Mark the end of each tool's name and its topic in its description."""
    marks = []
    named = told_apart(tools)
    for tool in (tool for tool in tools if tool.topic):
        named_so = f'"name": "{tool.name}"'
        for before, until in ((named_so, tool.name), (tool.description, tool.topic)):
            start = text.find(before)
            if start < 0:
                continue
            end = start + before.rindex(until) + len(until)
            if tool in named:
                marks.append(_mark(text, end, Label.OWNER, tool.name))
            if second := second_word(tool):
                marks.append(_mark(text, end, Label.OWNER_SECOND, second))
    return tuple(marks)


def chosen_marks(text: str, tools: Sequence[Tool]) -> tuple[Mark, ...]:
    """Mark in a question the ends of the tools' topics."""
    marks = []
    named = told_apart(tools)
    for tool in (tool for tool in tools if tool.topic):
        for match in re.finditer(rf"\bthe {re.escape(tool.topic)}\b", text):
            if tool in named:
                marks.append(_mark(text, match.end(), Label.CHOSEN, tool.name))
            if second := second_word(tool):
                marks.append(_mark(text, match.end(), Label.CHOSEN_SECOND, second))
    return tuple(marks)


def user_turn(text: str) -> list[Part]:
    """Render a user's message."""
    return [_special(TURN), Part(text=f"user\n{text}"), _special(END_OF_TURN), Part(text="\n")]


def generation_prompt() -> list[Part]:
    """Render what opens the assistant's turn."""
    return [_special(TURN), Part(text="assistant\n")]


def arguments_part(before: str, call: Call, weight: float, *, is_open: bool) -> Part:
    """Spell a call's arguments behind ``before``, without the last brace.

    Args:
        weight: of what is no choice.
        is_open: see ``Question``.
    """
    text = before
    heavy, marks = [], []
    for number, (name, value) in enumerate(call.arguments.items()):
        text += "{" if number == 0 else ", "
        begin = len(text.encode()) + 1
        heavy.append((begin, begin + len(name) + len('": "')))
        if is_open and number == 0:
            more = len(call.arguments) > 1
            marks.append(Mark(end=begin + len(name), label=Label.MORE, value=more))
        written = json.dumps(value, ensure_ascii=False)
        text += f'"{name}": {written}'
        end = len(text.encode())
        heavy.append((end - written.endswith('"'), end + 1))
    return Part(text=text, weight=weight, heavy=tuple(heavy), marks=tuple(marks))


def _call(call: Call, *, is_open: bool = False) -> list[Part]:
    before = f'\n{{"name": "{call.name}", "arguments": '
    said = arguments_part(before, call, 1.0, is_open=is_open)
    name = (before.index(call.name), before.index(call.name) + len(call.name))
    return [
        _special(CALL, CHOICE_WEIGHT),
        replace(said, text=said.text + "}}\n", heavy=(name, *said.heavy)),
        _special(END_OF_CALL, 1.0),
    ]


def calls_turn(step: Step, *, is_open: bool = False) -> list[Part]:
    """Render the assistant's turn that makes a step's calls; ``is_open``: the question does not
    tell how many arguments they take."""
    parts = generation_prompt()
    for number, call in enumerate(step.calls):
        if number:
            parts.append(Part(text="\n", weight=1.0))
        parts += _call(call, is_open=is_open)
    return [*parts, _special(END_OF_TURN, 1.0), Part(text="\n")]


def results_turn(step: Step) -> list[Part]:
    """Render the tools' results, all in one user turn."""
    parts = [_special(TURN), Part(text="user")]
    for result in step.results:
        parts += [
            Part(text="\n"),
            _special(RESPONSE),
            Part(text=f"\n{result}\n"),
            _special(END_OF_RESPONSE),
        ]
    return [*parts, _special(END_OF_TURN), Part(text="\n")]


def answer_turn(text: str) -> list[Part]:
    """Render the assistant's turn that answers in prose."""
    return [
        *generation_prompt()[:1],
        Part(text="assistant\n"),
        Part(text=text, weight=1.0, heavy=((0, 1),)),
        _special(END_OF_TURN, 1.0),
        Part(text="\n"),
    ]


def _question(text: str, words: frozenset[str], tools: Sequence[Tool]) -> list[Part]:
    """Render a user's message; its words are labelled by whether they are among ``words``, the
    topics of ``tools`` by the names of these."""
    opening, said, *rest = user_turn(text)
    plain = said.text
    known = tuple(
        _mark(plain, match.end(), Label.KNOWN, match.group() in words)
        for match in WORD.finditer(plain)
        if match.start() > len("user")
    )
    return [opening, replace(said, marks=known + chosen_marks(plain, tools)), *rest]


def session_parts(session: Session) -> list[Part]:
    """Render a whole session as the perfect assistant plays it."""
    parts = header(session)
    words = frozenset(WORD.findall(parts[1].text)) if session.tools else frozenset[str]()
    for question in session.questions:
        parts += _question(question.text, words, session.tools)
        for number, step in enumerate(question.steps):
            parts += calls_turn(step, is_open=question.is_open and number == 0) + results_turn(step)
        parts += answer_turn(question.answer)
    return parts


def _joined(before: Part, part: Part) -> Part:
    """Join two texts without weight."""
    shift = len(before.text.encode())
    moved = tuple(replace(mark, end=mark.end + shift) for mark in part.marks)
    return replace(before, text=before.text + part.text, marks=before.marks + moved)


class SessionEncoder:
    """Turns rendered parts into tokens and loss weights with one tokenizer."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._special = special_ids(tokenizer)
        self._encoder = text_encoder(tokenizer)
        self.vocab_size = tokenizer.get_vocab_size()
        self.call_id = self._special[CALL]

    def text(self, ids: npt.NDArray[np.integer]) -> str:
        """Return what token ids spell, special tokens too."""
        spelled: str = self._tokenizer.decode(ids.tolist(), skip_special_tokens=False)
        return spelled

    def encode(self, parts: list[Part]) -> Encoded:
        """Return token ids, loss weights and labels.

        Neighbouring texts without weight are joined before they are cut into tokens, as the
        runtime joins them; what a user or a tool says never becomes a special token.
        """
        joined: list[Part] = []
        for part in parts:
            before = joined[-1] if joined else None
            learned = part.weight or part.heavy
            if before and not (part.special or before.special or learned or before.weight):
                joined[-1] = _joined(before, part)
            else:
                joined.append(part)
        plain = [part.text for part in joined if not part.special]
        encodings = iter(self._encoder.encode_batch_fast(plain, add_special_tokens=False))
        ids: list[int] = []
        weights: list[float] = []
        labels: dict[Label, list[int]] = {label: [] for label in Label}
        for part in joined:
            if part.special:
                ids.append(self._special[part.text])
                weights.append(part.weight)
                for values in labels.values():
                    values.append(NO_LABEL)
                continue
            encoding = next(encodings)
            ids += encoding.ids
            ends = self._ends(encoding.ids)
            weights += self._weights(part, ends)
            for label, values in labels.items():
                values += self._labels(part, label, ends)
        return Encoded(
            ids=np.array(ids, np.int32),
            weights=np.array(weights, np.float32),
            labels={label: np.array(values, np.int32) for label, values in labels.items()},
        )

    def _ends(self, ids: list[int]) -> list[int]:
        """Return the bytes of the text up to the end of each token."""
        ends, end = [], 0
        for token in ids:
            end += len(self._encoder.id_to_token(token) or "")
            ends.append(end)
        return ends

    def _weights(self, part: Part, ends: list[int]) -> list[float]:
        """Weigh tokens by the spans they touch."""
        if not part.heavy:
            return [part.weight] * len(ends)
        weights, start = [], 0
        for end in ends:
            inside = any(start < stop and end > begin for begin, stop in part.heavy)
            weights.append(CHOICE_WEIGHT if inside else part.weight)
            start = end
        return weights

    def _labels(self, part: Part, label: Label, ends: list[int]) -> list[int]:
        values = {mark.end: mark.value for mark in part.marks if mark.label is label}
        if not values:
            return [NO_LABEL] * len(ends)
        return [self._value(values[end]) if end in values else NO_LABEL for end in ends]

    def _value(self, value: bool | str) -> int:
        if isinstance(value, bool):
            return int(value)
        first: int = self._encoder.encode(value, add_special_tokens=False).ids[0]
        return first
