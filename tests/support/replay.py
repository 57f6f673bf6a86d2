"""Turns of a recorded server, each played again alone: nothing cached, no neighbour, no draft.

A turn is compared token by token as far as it got: one that was cancelled, or whose engine or
server was killed, said the beginning of what a plain run says.
"""

import base64
import json
from collections import Counter
from dataclasses import dataclass, field, replace
from pathlib import Path

from runtime.config import EngineConfig
from runtime.messages import FinishReason, GenerationRequest, ReleaseBranch
from runtime.model.runner import ModelRunner, load_runner
from runtime.process import frames
from runtime.process.loading import assemble
from runtime.tokenizer import Tokenizer
from tests.support.executors import AtOnce

ENDED = {"stop", "stop_string", "length", "context"}


@dataclass(slots=True)
class RecordedTurn:
    """What the engine was asked for and how it went."""

    request: GenerationRequest
    tokens: list[int] = field(default_factory=list)
    finish: str | None = None
    """None: the server was killed before the end."""
    error: str = ""
    cached: int = 0


def recorded(path: Path) -> list[RecordedTurn]:
    """The turns of a recorder's file, in the order in which they were asked for."""
    turns: list[RecordedTurn] = []
    of: dict[str, RecordedTurn] = {}
    for text in path.read_bytes().splitlines():
        line = json.loads(text)
        name = line["request"]
        if "frame" in line:
            of[name] = RecordedTurn(_request(base64.b64decode(line["frame"])))
            turns.append(of[name])
        elif "cached" in line:
            of[name].cached = line["cached"]
        else:
            of[name].tokens += line["tokens"]
            of[name].finish, of[name].error = line["finish"], line.get("error", "")
    return turns


def _request(frame: bytes) -> GenerationRequest:
    prefix, rest = frame[: frames.PREFIX.size], frame[frames.PREFIX.size :]
    head, _ = frames.body_sizes(prefix)
    (message,) = frames.decode_messages(rest[:head], rest[head:])
    assert isinstance(message, GenerationRequest)
    return message


class PlainRuns:
    """A model in this process, by an engine that has one turn at a time."""

    def __init__(self, model: str, *, dtype: str, max_context_tokens: int, seed: int = 0) -> None:
        self._config = EngineConfig(
            model=model,
            dtype=dtype,  # type: ignore[arg-type]
            device="cpu",
            threads=1,
            seed=seed,
            num_blocks=2 * max_context_tokens // 16 + 16,
            max_context_tokens=max_context_tokens,
            max_running=1,
            max_batch_tokens=1 << 15,
            max_draft_tokens=0,
            startup_profile_ms=0,
            first_token_limit_s=1 << 20,
        )
        self._runner: ModelRunner = load_runner(self._config)
        model_ = self._runner.model
        self._tokenizer = Tokenizer.load(
            model_.tokenizer_folder, vocab_size=model_.config.vocab_size
        )

        self._engine = assemble(
            self._config, self._runner, self._tokenizer, workers=AtOnce(), looks_ahead=False
        )
        self._played = 0

    def tokens(self, request: GenerationRequest) -> tuple[list[int], FinishReason]:
        """What the turn says, and why it ends. Each is of a tenant of its own, who finds nothing of
        the others'."""
        engine, self._played = self._engine, self._played + 1
        name = f"{self._played}"
        alone = replace(
            request,
            request_id=name,
            branch_id=name,
            tenant=name,
            deadline_s=None,
            resume_points=(),
        )
        engine.submit([alone])
        said: list[int] = []
        while engine.has_work:
            output = engine.step()
            for each in output.outputs if output is not None else ():
                assert each.start is None or each.start.cached_tokens == 0
                said += each.new_tokens.tolist()
                if each.finish is not None:
                    assert each.error is None, each.error_message
                    engine.submit([ReleaseBranch(branch_id=name)])
                    return said, each.finish
        raise AssertionError("the turn does not end")


def compare(turns: list[RecordedTurn], plain: PlainRuns) -> Counter[str]:
    """Hold every turn against its plain run; counts what was compared.

    Raises:
        AssertionError: a token or an end is another one.
    """
    seen: Counter[str] = Counter()
    for number, turn in enumerate(turns):
        seen[f"finish {turn.finish}"] += 1
        if turn.finish not in ENDED and not turn.tokens:
            continue
        expected, reason = plain.tokens(turn.request)
        told = (number, turn.request.request_id, turn.finish, turn.cached)
        place = f"turn {told}, prompt of {len(turn.request.new_tokens)}"
        if turn.finish in ENDED:
            assert turn.tokens == expected, f"{place}: {_difference(turn.tokens, expected)}"
            assert turn.finish == reason.value, f"{place}: {reason}"
        else:
            start = expected[: len(turn.tokens)]
            assert turn.tokens == start, f"{place}: {_difference(turn.tokens, expected)}"
        seen["turns"] += 1
        seen["tokens"] += len(turn.tokens)
        seen["cached"] += turn.cached > 0
        seen["greedy" if not turn.request.sampling.temperature else "drawn"] += 1
        seen["grammar"] += turn.request.grammar is not None
    return seen


def _difference(found: list[int], expected: list[int]) -> str:
    pairs = zip(found, expected, strict=False)
    at = next((n for n, (a, b) in enumerate(pairs) if a != b), min(len(found), len(expected)))
    return f"token {at}: {found[at : at + 4]} for {expected[at : at + 4]}"
