"""Compiled grammars and walks through them for tests, over the small byte-level tokenizer."""

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from runtime.grammar.closing import complete
from runtime.grammar.compiler import GrammarCompiler
from runtime.grammar.mask_bits import mask_words
from runtime.grammar.state import GrammarState
from runtime.tokenizer import Tokenizer
from tests.support.tokenizers import byte_level_json, write_tokenizer
from tools_api.chat_format import Segment
from tools_api.exact_json import written
from tools_api.grammar import GrammarSpec

GUIDANCE = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}


def small_tokenizer(folder: Path) -> Tokenizer:
    return Tokenizer.load(write_tokenizer(folder, byte_level_json()), model_type="qwen3")


def schema_spec(schema: Any, **phases: str) -> GrammarSpec:
    """A grammar of one JSON value, or of one call's inside after a trigger."""
    if isinstance(schema, dict):
        schema = {**schema, "x-guidance": GUIDANCE}
    end = ' "\\n" </tool_call>' if phases.get("trigger") else ""
    lark = f"start: value{end}\nvalue: %json {written(schema, ensure_ascii=True)}"
    return GrammarSpec(lark=lark, **phases)


def encode(tokenizer: Tokenizer, text: str) -> list[int]:
    return [int(token) for token in tokenizer.encode([Segment(text)])]


def decode(tokenizer: Tokenizer, tokens: list[int]) -> str:
    return b"".join(tokenizer.token_bytes(token) for token in tokens).decode("utf-8", "replace")


def mask_of(state: GrammarState, tokenizer: Tokenizer) -> list[int]:
    """The ids that a state's mask allows."""
    row = np.full(mask_words(tokenizer.vocab_size), -1, dtype=np.int32)
    state.fill_mask(row)
    return np.flatnonzero(np.unpackbits(row.view(np.uint8), bitorder="little")).tolist()


def decided(state: GrammarState, token: int, remaining: int) -> int:
    """What comes of a drawn token: ``GrammarState.deciding`` in one go."""
    return complete(state.deciding(token, remaining))


def random_output(
    state: GrammarState,
    tokenizer: Tokenizer,
    limit: int,
    rng: random.Random,
    on_choice: Callable[[list[int]], None] = lambda allowed: None,
) -> list[int]:
    """A turn with random weights under the mask and the guard: the worst model there is."""
    out: list[int] = []
    while not state.ended and state.failed is None and len(out) < limit:
        run = state.forced_tokens(limit - len(out))
        if not run:
            allowed = mask_of(state, tokenizer)
            on_choice(allowed)
            run = [decided(state, rng.choice(allowed), limit - len(out))]
        state.advance(run)
        out += run
    return out


def compiler(tokenizer: Tokenizer, max_cache_bytes: int = 10**8) -> GrammarCompiler:
    return GrammarCompiler(tokenizer, max_cache_bytes=max_cache_bytes)
