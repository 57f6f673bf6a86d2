"""A session as tokens, each with the weight its prediction has in the training loss.

The text is that of the runtime's chat format (Qwen3/Hermes). Only what the assistant writes
is learned; the hardest choices count three times: whether to call or to answer, the names of
tools and parameters, how a value begins (with a quote or without) and what comes after it
(another argument or none). Beside that the words of a question are labelled with whether the
tools' schemas say them too: a task of its own, whose answer the choice between a call and a
refusal needs.
"""

import json
import re
from dataclasses import dataclass, replace

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
from examples.train_agent_model.world import Call, Session, Step
from tools_api.chat_families import chat_format_for
from tools_api.chat_format import TemplateOptions
from tools_api.tools import FunctionTool

CHOICE_WEIGHT = 3.0
WORD = re.compile(r"[A-Z]?[a-z]{2,}")

CHAT_FORMAT = chat_format_for("qwen3", SPECIAL.__contains__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """A run of text, or one special token; ``weight`` is that of its tokens in the loss."""

    text: str
    special: bool = False
    weight: float = 0.0
    heavy: tuple[tuple[int, int], ...] = ()
    """Spans of UTF-8 bytes that count CHOICE_WEIGHT times."""

    known: tuple[tuple[int, bool], ...] = ()
    """Of each word: the UTF-8 bytes up to its end, and whether the tools' schemas hold it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Encoded:
    """A session as arrays, all of shape [tokens]."""

    ids: npt.NDArray[np.int32]

    weights: npt.NDArray[np.float32]
    """Weight of predicting each token; 0: not learned."""

    known: npt.NDArray[np.int8]
    """At the last token of a question's word: 1 where the tools' schemas hold the word, 0 where
    not; elsewhere -1."""


def _special(text: str, weight: float = 0.0) -> Part:
    return Part(text=text, special=True, weight=weight)


def header(session: Session) -> list[Part]:
    """Render the system turn: instructions and the tools' schemas."""
    tools = [
        FunctionTool(name=tool.name, description=tool.description, parameters=tool.schema())
        for tool in session.tools
    ]
    segments = CHAT_FORMAT.header(session.instructions, tools, TemplateOptions())
    return [Part(text=segment.text, special=segment.special) for segment in segments]


def user_turn(text: str) -> list[Part]:
    """Render a user's message."""
    return [_special(TURN), Part(text=f"user\n{text}"), _special(END_OF_TURN), Part(text="\n")]


def generation_prompt() -> list[Part]:
    """Render what opens the assistant's turn."""
    return [_special(TURN), Part(text="assistant\n")]


def _call(call: Call) -> list[Part]:
    text = f'\n{{"name": "{call.name}", "arguments": '
    heavy = [(text.index(call.name), text.index(call.name) + len(call.name))]
    for number, (name, value) in enumerate(call.arguments.items()):
        text += "{" if number == 0 else ", "
        begin = len(text.encode()) + 1
        heavy.append((begin, begin + len(name) + len('": "')))
        written = json.dumps(value, ensure_ascii=False)
        text += f'"{name}": {written}'
        end = len(text.encode())
        heavy.append((end - written.endswith('"'), end + 1))
    text += "}}\n"
    return [
        _special(CALL, CHOICE_WEIGHT),
        Part(text=text, weight=1.0, heavy=tuple(heavy)),
        _special(END_OF_CALL, 1.0),
    ]


def calls_turn(step: Step) -> list[Part]:
    """Render the assistant's turn that makes a step's calls."""
    parts = generation_prompt()
    for number, call in enumerate(step.calls):
        if number:
            parts.append(Part(text="\n", weight=1.0))
        parts += _call(call)
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


def _label_words(part: Part, tool_words: frozenset[str]) -> Part:
    """Say of each word of a user's message whether it is among ``tool_words``."""
    known = tuple(
        (len(part.text[: match.end()].encode()), match.group() in tool_words)
        for match in WORD.finditer(part.text)
        if match.start() > len("user")
    )
    return replace(part, known=known)


def session_parts(session: Session) -> list[Part]:
    """Render a whole session as the perfect assistant plays it."""
    parts = header(session)
    tool_words = frozenset(WORD.findall(parts[1].text)) if session.tools else frozenset[str]()
    for question in session.questions:
        parts += [
            _label_words(part, tool_words) if part.text.startswith("user\n") else part
            for part in user_turn(question.text)
        ]
        for step in question.steps:
            parts += calls_turn(step) + results_turn(step)
        parts += answer_turn(question.answer)
    return parts


class SessionEncoder:
    """Turns rendered parts into tokens and loss weights with one tokenizer."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._special = special_ids(tokenizer)
        self._encoder = text_encoder(tokenizer)
        self.vocab_size = tokenizer.get_vocab_size()
        self.call_id = self._special[CALL]

    def encode(self, parts: list[Part]) -> Encoded:
        """Return token ids, loss weights and labels.

        Neighbouring texts without weight are joined before they are cut into tokens, as the
        runtime joins them; what a user or a tool says never becomes a special token.
        """
        joined: list[Part] = []
        for part in parts:
            before = joined[-1] if joined else None
            if before and not (part.special or before.special or part.weight or before.weight):
                joined[-1] = replace(before, text=before.text + part.text)
            else:
                joined.append(part)
        plain = [part.text for part in joined if not part.special]
        encodings = iter(self._encoder.encode_batch_fast(plain, add_special_tokens=False))
        ids: list[int] = []
        weights: list[float] = []
        known: list[int] = []
        for part in joined:
            if part.special:
                ids.append(self._special[part.text])
                weights.append(part.weight)
                known.append(-1)
                continue
            encoding = next(encodings)
            ids += encoding.ids
            ends = self._ends(encoding.ids)
            weights += self._weights(part, ends)
            known += self._known(part, ends)
        return Encoded(
            ids=np.array(ids, np.int32),
            weights=np.array(weights, np.float32),
            known=np.array(known, np.int8),
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

    def _known(self, part: Part, ends: list[int]) -> list[int]:
        """Label the tokens that end a word."""
        labels = dict(part.known)
        return [int(labels[end]) if end in labels else -1 for end in ends]
