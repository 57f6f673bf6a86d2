"""A session as tokens, each with the weight its prediction has in the training loss.

The text is that of the runtime's chat format (Qwen3/Hermes). Only what the assistant writes
is learned; the hardest choices count three times: whether to call or to answer, the names of
tools and parameters, and how a value begins (with a quote or without).
"""

import json
from dataclasses import dataclass

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

CHAT_FORMAT = chat_format_for("qwen3", SPECIAL.__contains__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """A run of text, or one special token; ``weight`` is that of its tokens in the loss."""

    text: str
    special: bool = False
    weight: float = 0.0
    heavy: tuple[tuple[int, int], ...] = ()
    """Spans of characters that count CHOICE_WEIGHT times."""


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
        heavy.append((len(text) + 1, len(text) + len(name) + len('"": "')))
        text += f'"{name}": {json.dumps(value, ensure_ascii=False)}'
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


def session_parts(session: Session) -> list[Part]:
    """Render a whole session as the perfect assistant plays it."""
    parts = header(session)
    for question in session.questions:
        parts += user_turn(question.text)
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

    def encode(self, parts: list[Part]) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.float32]]:
        """Return token ids and loss weights, both [tokens].

        Neighbouring texts without weight are joined before they are cut into tokens, as the
        runtime joins them; what a user or a tool says never becomes a special token.
        """
        joined: list[Part] = []
        for part in parts:
            before = joined[-1] if joined else None
            if before and not (part.special or before.special or part.weight or before.weight):
                joined[-1] = Part(text=before.text + part.text)
            else:
                joined.append(part)
        plain = [part.text for part in joined if not part.special]
        encodings = iter(self._encoder.encode_batch_fast(plain, add_special_tokens=False))
        ids: list[int] = []
        weights: list[float] = []
        for part in joined:
            if part.special:
                ids.append(self._special[part.text])
                weights.append(part.weight)
                continue
            encoding = next(encodings)
            ids += encoding.ids
            weights += self._weights(part, encoding.ids)
        return np.array(ids, np.int32), np.array(weights, np.float32)

    def _weights(self, part: Part, ids: list[int]) -> list[float]:
        """Weigh tokens by span; bytes equal characters up to the last heavy span."""
        if not part.heavy:
            return [part.weight] * len(ids)
        weights, start = [], 0
        for token in ids:
            end = start + len(self._encoder.id_to_token(token) or "")
            inside = any(start < stop and end > begin for begin, stop in part.heavy)
            weights.append(CHOICE_WEIGHT if inside else part.weight)
            start = end
        return weights
