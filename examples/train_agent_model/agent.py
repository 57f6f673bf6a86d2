"""A model playing agent in the runtime's engine: sessions in, every turn's calls and text out.

Rendering, grammar, engine and parser are those of the runtime; nothing is teacher-forced.
Many sessions advance side by side, one batch of turns after the other.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from runtime.config import EngineConfig
from runtime.engine.engine import Engine
from runtime.messages import FinishReason, GenerationRequest, ReleaseBranch, SamplingParams
from runtime.process.loading import load_engine
from runtime.tokenizer import IncrementalDecoder, Tokenizer
from tools_api.call_parser import CallParser
from tools_api.chat_families import chat_format_for
from tools_api.chat_format import Segment, TemplateOptions
from tools_api.grammar import grammar_for
from tools_api.items import Item
from tools_api.parsed_events import (
    CallDone,
    ParsedText,
)
from tools_api.requests import TextFormat
from tools_api.tools import FunctionTool, ToolChoice

OPTIONS = TemplateOptions()
MAX_TURN_TOKENS = 160


@dataclass(frozen=True, slots=True, kw_only=True)
class MadeCall:
    """A call as the model wrote it."""

    name: str
    arguments: dict[str, Any] | None
    """None: no JSON object."""

    raw_arguments: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelTurn:
    """What the model wrote in one turn."""

    calls: tuple[MadeCall, ...]
    text: str
    num_tokens: int = 0
    ended: bool = True
    """By itself, and not by a limit."""


@dataclass(slots=True)
class Transcript:
    """One engine session: what it holds and the tools its header names."""

    branch_id: str
    instructions: str | None
    tools: tuple[FunctionTool, ...]
    num_tokens: int = 0
    finished: bool = True
    """The last turn ended with its end-of-turn token."""


@dataclass(slots=True)
class _Running:
    transcript: Transcript
    tokens: list[int] = field(default_factory=list)
    finish: FinishReason | None = None


class EngineAgent:
    """A loaded model that takes turns, greedily."""

    def __init__(self, model: str, *, dtype: str, threads: int) -> None:
        config = EngineConfig(
            model=model,
            dtype=dtype,  # type: ignore[arg-type]
            device="cpu",
            threads=threads,
            num_blocks=4096,
        )
        self._engine: Engine = load_engine(config)
        info = self._engine.info
        self._tokenizer = Tokenizer.load(
            Path(info.tokenizer_folder), vocab_size=info.vocab_size, model_type=info.model_type
        )
        self._format = chat_format_for(
            info.model_type, lambda name: self._tokenizer.special_id(name) is not None
        )
        self._turns = 0

    def play(
        self, turns: Sequence[tuple[Transcript, Sequence[Item]]], *, grammar: bool
    ) -> list[ModelTurn]:
        """Take one turn in each transcript, after its new input items."""
        running: dict[str, _Running] = {}
        for transcript, items in turns:
            request = self._request(transcript, items, grammar=grammar)
            running[request.request_id] = _Running(transcript)
            transcript.num_tokens = request.base_offset + len(request.new_tokens)
            self._engine.submit([request])
        while self._engine.has_work:
            step = self._engine.step()
            for output in step.outputs if step else ():
                turn = running[output.request_id]
                turn.tokens += output.new_tokens.tolist()
                turn.finish = output.finish or turn.finish
                if output.error is not None:
                    raise RuntimeError(f"the engine failed: {output.error_message}")
        return [self._read(turn) for turn in running.values()]

    def forget(self, transcripts: Sequence[Transcript]) -> None:
        """Release the engine's sessions of transcripts that are over."""
        self._engine.submit([ReleaseBranch(branch_id=t.branch_id) for t in transcripts])

    def _request(
        self, transcript: Transcript, items: Sequence[Item], *, grammar: bool
    ) -> GenerationRequest:
        first = transcript.num_tokens == 0
        segments: list[Segment] = []
        if first:
            segments += self._format.header(transcript.instructions, transcript.tools, OPTIONS)
        segments += self._format.items(
            items, first=first, open_output=not transcript.finished, options=OPTIONS
        )
        segments += self._format.generation_prompt(OPTIONS)
        spec = grammar_for(
            self._format,
            transcript.tools,
            ToolChoice(),
            parallel_tool_calls=True,
            text_format=TextFormat(),
            options=OPTIONS,
        )
        self._turns += 1
        return GenerationRequest(
            request_id=f"turn-{self._turns}",
            branch_id=transcript.branch_id,
            tenant="evaluation",
            base_branch_id=None if first else transcript.branch_id,
            base_offset=transcript.num_tokens,
            new_tokens=np.asarray(self._tokenizer.encode(segments)),
            max_new_tokens=MAX_TURN_TOKENS,
            sampling=SamplingParams(temperature=0.0),
            grammar=spec if grammar else None,
        )

    def _read(self, turn: _Running) -> ModelTurn:
        turn.transcript.num_tokens += len(turn.tokens)
        turn.transcript.finished = turn.finish is FinishReason.STOP
        decoder = IncrementalDecoder(self._tokenizer)
        parser = CallParser(self._format, False)
        events = parser.push(decoder.push(turn.tokens) + decoder.finish()) + parser.finish()
        calls = tuple(
            MadeCall(name=e.name, arguments=_object(e.arguments), raw_arguments=e.arguments)
            for e in events
            if isinstance(e, CallDone)
        )
        text = "".join(e.text for e in events if isinstance(e, ParsedText))
        return ModelTurn(
            calls=calls,
            text=text,
            num_tokens=len(turn.tokens),
            ended=turn.transcript.finished,
        )


def _object(text: str) -> dict[str, Any] | None:
    try:
        value = json.loads(text)
    except ValueError:
        return None
    return value if isinstance(value, dict) else None
